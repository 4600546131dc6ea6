r"""The highest scores of ProbeDnX, re-ranked by the model's own responses: by hand, and dense."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from helpers import dense_adjacency, example_graphs
from models import Bare, Teacher, connected, evaluations, explainer, graph, in_chunks
from probe_case import ProbeCase

from pyg_dnx import NodeExplanations, ProbeDnX, certify, shared_cache
from pyg_dnx.teacher.outputs import to_targets

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

CLOSE = {'rtol': 1e-4, 'atol': 1e-6}
TASKS = ['multiclass raw', 'binary raw [N]', 'regression [N, 2]']
NODES = torch.tensor([5, 0, 6, 0])
PAIRS = 2  # evaluations: all pairs at once, and one of them by itself
ASKED = 1 + 8 + 1 + 12  # all, the masks of the distillation, none, and the probes of most cases below


def responses(case, *goal):
    r"""What the model itself says of each node (columns) at each (rows): without it, and with it alone, [N, N]."""
    config, (full, none, *_), found = case.algorithm().model_config, case.answers(*goal), []
    read = torch.log if case.options.get('answer') == 'logit' else torch.clone
    for own in torch.eye(case.x.size(0), dtype=torch.float64):
        both = [to_targets(case.ask(mask[:, None]), config, torch.float64, mask.device)[0] for mask in (1 - own, own)]
        without, alone = ((read(outputs) * case.toward(*goal)).sum(dim=1) for outputs in both)
        found.append((full - without) + (alone - none))
    return torch.stack(found, dim=1).detach()


def deal(score, response, power, shortlist):
    r"""Scores, with the highest of each row in the order of responses, [N, N]."""
    score = score.clone()
    for row, answer, inside in zip(score, response, power > 0, strict=True):
        listed = row.masked_fill(~inside, -torch.inf).argsort(descending=True)[: min(shortlist, int(inside.sum()))]
        row[listed[answer[listed].argsort(descending=True, stable=True)]] = row[listed].clone()
    return score


def dealt(case, shortlist, *goal):
    return deal(case.fit(*goal).score, responses(case, *goal), case.power, shortlist)


@pytest.mark.parametrize('name', example_graphs())
@pytest.mark.parametrize('task', TASKS)
def test_scores_are_dealt_out_by_responses(name, task):
    case = ProbeCase(name, task, num_probes=12)
    plain, (score, response) = case.explain_nodes().scores.to_dense(), (case.fit().score, responses(case))
    for shortlist in (1, 2, 3, 50):
        found = case.explain_nodes(shortlist=shortlist)
        torch.testing.assert_close(found.scores.to_dense(), deal(score, response, case.power, shortlist), **CLOSE)
        torch.testing.assert_close(found._trust.probe_evidence, plain.sum(dim=1), **CLOSE)
        is_same = found.scores.to_dense().allclose(plain)
    assert not is_same or name in ('directed', 'no_edges', 'one_node')


OTHERS = {  # the task, whether a target is given, and options
    'logit': ('multiclass raw', False, {'answer': 'logit'}),
    'contrast': ('multiclass log_probs', False, {'contrast': 'runner_up'}),
    'phenomenon, logit': ('binary probs [N, 2]', True, {'answer': 'logit'}),
    'phenomenon, regression': ('regression [N]', True, {}),
    'scarce phenomenon, logit': ('multiclass raw', True, {'max_memory': 1, 'answer': 'logit'}),
    'scarce regression': ('regression [N, 2]', False, {'max_memory': 1}),
    'paper': ('multiclass raw', False, {'distillation': 'paper', 'num_hops': 1}),
    'farther than the model': ('multiclass raw', False, {'num_hops': 3}),
}


@pytest.mark.parametrize(('task', 'is_given', 'options'), OTHERS.values(), ids=OTHERS)
def test_any_option(task, is_given, options):
    model, goal = Teacher('weighted', task), ()
    model.conv1.lin.weight.data *= 8  # else the order of logits is that of probabilities
    case = ProbeCase(task=task, num_probes=12, model=model, **options)
    if is_given:
        goal = (3 * case.x[:, :1] if 'regression' in task else torch.arange(8) % 2,)
    elif 'contrast' in options:
        goal = case.outputs[0].topk(2, dim=1).indices.unbind(dim=1)
    kind, target = ('phenomenon', goal[0]) if is_given else ('model', None)
    found = case.explain_nodes(kind, target=target, shortlist=3)
    torch.testing.assert_close(found.scores.to_dense(), dealt(case, 3, *goal), **CLOSE)
    alone = case.explain(4, target, explanation_type=kind, shortlist=3)
    torch.testing.assert_close(alone.node_score, found.scores.to_dense()[4], **CLOSE)


def test_nodes_without_response_stay_in_order():
    case = ProbeCase('undirected', model=Bare(), num_probes=12)
    with evaluations(case.model, ASKED + 2 * (6 * 4 + 2)):  # nobody knows how far it looks
        plain, found = (case.explain_nodes(shortlist=size).scores.to_dense() for size in (0, 4))
    torch.testing.assert_close(found, deal(plain, responses(case), case.power, 4))


def test_edges_of_no_weight_keep_no_score():
    case = ProbeCase(num_probes=6)
    case.kwargs['edge_weight'][[0, 6]] = 0.0
    plain, found = (case.explain_nodes(shortlist=size).scores.to_dense() for size in (0, 8))
    assert not found.allclose(plain)
    torch.testing.assert_close(found.sort(dim=1).values, plain.sort(dim=1).values)


@pytest.mark.parametrize('task', TASKS)
def test_many_are_explained_as_each_alone_and_as_their_sum(task):
    case = ProbeCase(task=task, num_probes=12)
    expected, many = dealt(case, 3)[NODES], case.explain_nodes(index=NODES, shortlist=3)
    torch.testing.assert_close(many.scores.to_dense(), expected, **CLOSE)
    for row, item, node in zip(expected, many, NODES.tolist(), strict=True):
        torch.testing.assert_close(item.node_score, row, **CLOSE)
        torch.testing.assert_close(case.explain(node, shortlist=3).node_score, row, **CLOSE)
    torch.testing.assert_close(case.explain(NODES, shortlist=3).node_score, expected.sum(dim=0), **CLOSE)
    case.x, case.model, case.kwargs = case.x.float(), case.model.float(), {'edge_weight': case.graph.edge_weight}
    single = case.explain_nodes(index=NODES, shortlist=3).scores.to_dense()
    torch.testing.assert_close(single, expected.float(), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize('top_k', [None, 2, 5])
def test_results_are_kept_whole(top_k, tmp_path):
    case, given = ProbeCase(num_probes=12), {'top_k': top_k, 'checkpoint': tmp_path / 'folder'}
    found, expected = case.explain_nodes(shortlist=3, given=given), dealt(case, 3)
    found.save(tmp_path / 'file')
    loaded = NodeExplanations.load(tmp_path / 'file', case.x, case.edge_index, **case.kwargs)
    again, top = case.explain_nodes(shortlist=3, given=given), expected.masked_fill(case.power == 0, -9).topk(2, dim=1)
    with evaluations(case.model, 0):
        for each in (found, loaded, again, pickle.loads(pickle.dumps(found))):
            nodes, scores = each.top_k(2)
            assert nodes[:6].equal(top.indices[:6])  # the others are isolated
            torch.testing.assert_close(scores[:6], top.values[:6], **CLOSE)
            torch.testing.assert_close(torch.stack([item.node_score for item in each]), expected, **CLOSE)
            assert each._request.state.prior == found._request.state.prior
            assert each._request.rule.shortlist == 3
    for other in (0, 2, 4):
        with pytest.raises(ValueError, match=r"'checkpoint' must name a folder of the same .* another "):
            case.explain_nodes(shortlist=other, given=given)


@pytest.mark.parametrize('task', TASKS)
def test_certificates_judge_the_scores_as_they_are(task):
    case, mask = ProbeCase(task=task, num_probes=12), torch.tensor([1.0, 0.0, 0.3, 0.0, 1.0, 0.5, 0.0, 1.0]).double()
    moved, explanation = dealt(case, 3) @ (1.0 - mask), case.explain(NODES, shortlist=3)
    explanation.node_mask = mask[:, None]
    found = certify(case.explainer(shortlist=3), explanation)
    torch.testing.assert_close(found.mask_bound, (moved.abs() / case.toward().norm(dim=1))[NODES], **CLOSE)


def test_edges_and_features_follow():
    case = ProbeCase('undirected', num_probes=12)
    (source, target), adjacency, score = case.edge_index, dense_adjacency(case.edge_index, None, 8), dealt(case, 4)[1]
    theta = torch.where(case.power[1] > 0, score / case.power[1], 0.0)
    rows, signals = [adjacency[1], torch.eye(8)[1]], [theta, adjacency @ theta]
    flow = sum(row[target] * signal[source] for row, signal in zip(rows, signals, strict=True))
    expected = torch.where(adjacency[1, target] > 0, flow * adjacency[target, source], 0.0)
    torch.testing.assert_close(
        case.explain(1, edge='object', edge_score='flow', shortlist=4).edge_score, expected, **CLOSE
    )
    found, plain = (
        case.explain(1, node='attributes', feature_score='shares', shortlist=size).node_score[:4] for size in (4, 0)
    )
    torch.testing.assert_close(found.sum(dim=1), score[:4], **CLOSE)
    torch.testing.assert_close(*(part / part.sum(dim=1, keepdim=True) for part in (found, plain)), **CLOSE)


@pytest.mark.parametrize('flow', ['source_to_target', 'target_to_source'])
def test_the_model_is_asked_about_all_pairs_at_once(flow, capsys):
    case = ProbeCase('directed', num_probes=12)
    case.model.conv1.flow = case.model.conv2.flow = flow
    with evaluations(case.model, ASKED + PAIRS):
        list(found := case.explain_nodes(shortlist=3))
    with evaluations(case.model, 2 * PAIRS):  # probes are cached
        case.explain_nodes(shortlist=3)
        case.explain_nodes(shortlist=2, given={'progress': True})
    assert 'Checking' in capsys.readouterr().err
    raw = torch.stack([case.ask(mask[:, None]) for mask in case.masks]).detach()
    shared_cache.clear()
    with evaluations(case.model, PAIRS):
        again = case.explain_nodes(shortlist=3, given={'probe_outputs': raw})
    torch.testing.assert_close(again.scores.to_dense(), found.scores.to_dense(), **CLOSE)
    with pytest.raises(TypeError, match=r"^'model' must .*'shortlist'.* \(got None\): pass it, or no shortlist$"):
        case.explain_nodes(model=None, shortlist=3, given={'probe_outputs': raw})


@pytest.mark.parametrize('value', [-1, 3.0, True, '3', None])
def test_bad_values(value):
    error, rule = (ValueError, 'at least 0') if value == -1 else (TypeError, 'an int')
    with pytest.raises(error) as caught:
        ProbeDnX(shortlist=value)
    assert str(caught.value) == f"'shortlist' must be {rule} (got {value!r}): pass a whole number from 0 on"


def test_a_list_may_be_longer_than_any_memory():
    case = ProbeCase(num_probes=12)
    expected = case.explain_nodes(shortlist=8).scores.values()
    assert case.explain_nodes(shortlist=10**12).scores.values().equal(expected)
    algorithm = in_chunks(case.algorithm(shortlist=8), 1)  # one neighbour at a time
    found = algorithm.explain_nodes(case.model, case.x, case.edge_index, **case.kwargs)
    torch.testing.assert_close(found.scores.values(), expected)


SEEN = SimpleNamespace()  # not of the model, which must not change


class Careful(Teacher):
    r"""Counts its evaluations, and how many there are at once; one may fail."""

    def __init__(self, fails_at=None):
        super().__init__()
        vars(SEEN).update(calls=0, inside=0, most=0, fails_at=fails_at)

    def forward(self, x, edge_index):
        SEEN.calls, SEEN.inside = SEEN.calls + 1, SEEN.inside + 1
        SEEN.most = max(SEEN.most, SEEN.inside)
        outputs = super().forward(x, edge_index)
        SEEN.inside -= 1
        if SEEN.calls == SEEN.fails_at:
            raise RuntimeError('halfway')
        return outputs


@pytest.mark.parametrize('fails_at', [None, ASKED, ASKED + 2])
def test_everything_is_left_as_it_was(fails_at):
    inputs, algorithm = graph(), connected(ProbeDnX(num_probes=12, shortlist=3))
    expected, random = algorithm.explain_nodes(Careful(), *inputs).scores.values(), torch.get_rng_state()
    model = Careful(fails_at).train()
    state = [*model.state_dict().values(), *inputs]
    before = [value.clone() for value in state]
    if fails_at is not None:
        with pytest.raises(RuntimeError, match='halfway'):
            algorithm.explain_nodes(model, *inputs)
    torch.testing.assert_close(algorithm.explain_nodes(model, *inputs).scores.values(), expected, rtol=1e-4, atol=1e-6)
    assert all(map(torch.equal, state, before))
    assert all(module.training for module in model.modules())
    assert torch.get_rng_state().equal(random)


def test_threads_ask_in_turn():
    model, inputs, barrier = Careful().eval(), graph(), threading.Barrier(4)

    def work(_):
        barrier.wait()
        return connected(ProbeDnX(num_probes=12, shortlist=3)).explain_nodes(model, *inputs).scores.values()

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(work, range(4))
    assert all(other.equal(first) for other in others)
    assert (SEEN.calls, SEEN.most) == (ASKED + 4 * PAIRS, 1)


def test_default_device_is_not_used():
    inputs, index = graph(), torch.tensor([1])
    explain = explainer(Teacher().eval(), ProbeDnX(num_probes=6, shortlist=3))
    with torch.device('meta'):
        assert certify(explain, explain(*inputs, index=index)).verdict.is_cpu
        assert explain.algorithm.explain_nodes(explain.model, *inputs, top_k=2)[2].node_score.is_cpu
