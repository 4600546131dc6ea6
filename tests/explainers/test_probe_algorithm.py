r"""What ProbeDnX's options mean, by hand, on dense matrices."""

import copy
import pickle
import warnings

import pytest
import torch
from helpers import dense_adjacency, example_graphs
from models import Teacher, connected, explainer, graph
from probe_case import ProbeCase

from pyg_dnx import FastDnX, ProbeDnX, ProbeDnXAlgorithm, SurrogateWarning

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

CLOSE = {'rtol': 1e-4, 'atol': 1e-6}
TASKS = ['multiclass raw', 'binary raw [N]', 'regression [N, 2]']
CASES = [(name, num_hops, task) for name in example_graphs() for num_hops in (1, 2, 3) for task in TASKS]
CASES += [('weighted', 2, task) for task in ('multiclass log_probs', 'binary probs [N, 2]', 'regression [N]')]


class Steep(Teacher):
    r"""A model whose logits are linear in which nodes are seen, and whose probabilities are steps."""

    def forward(self, x, edge_index, edge_weight=None):
        return 30 * self.conv1(x, edge_index, edge_weight)[:, :3]


@pytest.mark.parametrize(('name', 'num_hops', 'task'), CASES)
def test_scores_are_those_of_the_definition(name, num_hops, task):
    case = ProbeCase(name, task, num_hops)
    found, expected = case.explain_nodes(), case.fit()
    torch.testing.assert_close(found.scores.to_dense(), expected.score, **CLOSE)
    answers = case.answers()
    torch.testing.assert_close(found._trust.probe_evidence, expected.score.sum(dim=1), **CLOSE)
    torch.testing.assert_close(found._trust.probe_bias, answers[1], **CLOSE)
    variance = answers.var(dim=0, correction=0)
    torch.testing.assert_close(found.probe_r2, 1.0 - expected.error.square().mean(dim=1) / variance, **CLOSE)
    assert found.surrogate_agreement.equal(found.probe_r2 > 0)
    assert found.bias_decides.equal(found._trust.probe_evidence <= 0)
    distance = 1.0 / case.toward().norm(dim=1)
    torch.testing.assert_close(found.distillation_error, expected.error.square().mean(dim=1).sqrt() * distance, **CLOSE)


@pytest.mark.parametrize('num_hops', [0, 1, 2])
@pytest.mark.parametrize('num_probes', [2, 6, 130])
def test_any_number_of_probes(num_hops, num_probes):
    case = ProbeCase('directed', num_hops=num_hops, num_probes=num_probes)
    torch.testing.assert_close(case.explain_nodes().scores.to_dense(), case.fit().score, **CLOSE)


@pytest.mark.parametrize('task', ['multiclass raw', 'multiclass log_probs', 'binary raw [N, 1]', 'binary probs [N, 2]'])
def test_logits(task):
    case = ProbeCase(task=task, answer='logit')
    found, expected = case.explain_nodes(), case.fit()
    torch.testing.assert_close(found.scores.to_dense(), expected.score, **CLOSE)
    assert not found.scores.to_dense().allclose(case.explain_nodes(answer='probability').scores.to_dense(), rtol=0.1)
    distance = 0.5 / case.toward().norm(dim=1)  # the softmax is ½-Lipschitz
    torch.testing.assert_close(found.distillation_error, expected.error.square().mean(dim=1).sqrt() * distance, **CLOSE)


@pytest.mark.parametrize('first', ['probability', 'logit'])
def test_answers_do_not_depend_on_what_was_asked_before(first):
    case = ProbeCase(model=Steep())
    second = 'logit' if first == 'probability' else 'probability'
    expected = case.explain_nodes(answer=second, cache=None)
    other = case.explain_nodes(answer=first)
    found = case.explain_nodes(answer=second)
    assert other._request.state.prior != expected._request.state.prior
    assert found.scores.to_dense().equal(expected.scores.to_dense())


def test_probabilities_of_zero_have_a_logit():
    case = ProbeCase(model=Steep(), answer='logit')
    with torch.no_grad():
        case.model.conv1.lin.weight *= 1e4
    for options in ({}, {'max_memory': 1}):
        found = case.explain_nodes(cache=None, **options)
        assert found.scores.values().isfinite().all()
        assert found.scores.values().abs().max() < 1e3


@pytest.mark.parametrize('answer', ['probability', 'logit'])
@pytest.mark.parametrize('explanation_type', ['model', 'phenomenon'])
@pytest.mark.parametrize('contrast', ['runner_up', 0, 1, 2])
def test_contrast_is_why_this_class_rather_than_that(contrast, explanation_type, answer):
    case = ProbeCase(answer=answer)
    target = torch.arange(8) % 3 if explanation_type == 'phenomenon' else None
    goal = case.outputs[0].argmax(dim=1) if target is None else target
    if contrast == 'runner_up':
        other = case.outputs[0].scatter(1, goal[:, None], -1.0).argmax(dim=1)
    else:
        other = torch.full_like(goal, contrast)
    if goal.equal(other):
        return
    found = case.explain_nodes(explanation_type, target=target, contrast=contrast)
    torch.testing.assert_close(found.scores.to_dense(), case.fit(goal, other).score, **CLOSE)


@pytest.mark.parametrize('task', ['multiclass raw', 'binary raw [N]', 'binary raw [N, 2]', 'regression [N, 2]'])
def test_phenomenon_goes_by_the_target(task):
    case = ProbeCase(task=task)
    target = torch.arange(8) % 2 if 'regression' not in task else case.x[:, :2]
    found = case.explain_nodes('phenomenon', target=target)
    torch.testing.assert_close(found.scores.to_dense(), case.fit(target).score, **CLOSE)
    alone = case.explain(3, target, explanation_type='phenomenon')
    torch.testing.assert_close(alone.node_score, found.scores.to_dense()[3])


@pytest.mark.parametrize('given', ['no probes', 'no model'])
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
def test_without_probes_scores_are_those_of_fastdnx(task, given):
    model, inputs = Teacher(task=task).eval(), graph()
    with torch.no_grad():
        outputs = model(*inputs)
    options = {'num_probes': 0} if given == 'no probes' else {'distillation': 'paper'}
    arguments = (None, {'teacher_outputs': outputs}) if given == 'no model' else (model, {})
    algorithm = connected(ProbeDnX(num_hops=2, **options), task)
    with pytest.warns(SurrogateWarning, match=r"without probes .* as FastDnX .*'num_probes', .*'probe_outputs'"):
        found = algorithm.explain_nodes(arguments[0], *inputs, **arguments[1])
    expected = connected(FastDnX(num_hops=2, score='target'), task).explain_nodes(model, *inputs)
    assert found.scores.to_dense().equal(expected.scores.to_dense())
    assert found.probe_r2 is None
    assert found.distillation_error.equal(expected.distillation_error)


def test_with_probes_nothing_is_said_of_it():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        ProbeCase().explain_nodes()
    assert not [warning for warning in caught if 'without probes' in str(warning.message)]


def test_names_and_options():
    assert ProbeDnX is ProbeDnXAlgorithm
    options = (
        "num_hops=2, ridge=None, contrast='runner_up', edge_score='probes', mask='rank', max_memory=None, doubt=0.2"
    )
    options += ", distillation='masked', num_masks=8, num_probes=6, answer='logit', shortlist=3, feature_score='probes'"
    algorithm = ProbeDnX(2, contrast='runner_up', num_probes=6, answer='logit', shortlist=3)
    assert repr(algorithm) == f'ProbeDnXAlgorithm({options})'
    assert (algorithm.score, ProbeDnX().num_probes, ProbeDnX().answer) == ('target', 1024, 'probability')
    assert (ProbeDnX().distillation, ProbeDnX().shortlist) == ('masked', 0)
    with pytest.raises(TypeError, match='score'):
        ProbeDnX(score='projection')


@pytest.mark.parametrize('duplicate', [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_of_an_algorithm(duplicate):
    case = ProbeCase()
    algorithm, inputs = case.algorithm(), (case.model, case.x, case.edge_index)
    expected = algorithm.explain_nodes(*inputs, **case.kwargs)
    found = duplicate(algorithm).explain_nodes(*inputs, **case.kwargs)
    assert repr(duplicate(algorithm)) == repr(algorithm)
    assert found.scores.values().equal(expected.scores.values())


@pytest.mark.parametrize('options', [{'distillation': 'paper'}, {'num_masks': 2}, {'num_masks': 100}])
def test_any_surrogate_may_be_under_it(options):
    case = ProbeCase(**options)
    found = case.explain_nodes()
    masks = {'paper': 0}.get(options.get('distillation'), min(16, options.get('num_masks', 8)))
    assert found.surrogate.report.num_masks == masks
    torch.testing.assert_close(found.scores.to_dense(), case.fit().score, **CLOSE)
    assert not found.scores.to_dense().allclose(ProbeCase().explain_nodes().scores.to_dense())


@pytest.mark.parametrize('edge_score', ['endpoints', 'geometric', 'flow'])
def test_edges_are_scored_by_the_rules_of_fastdnx(edge_score):
    case = ProbeCase('undirected')
    found = case.explain(1, edge='object', edge_score=edge_score)
    source, target = case.edge_index
    adjacency, score = dense_adjacency(case.edge_index, None, 8), case.fit().score[1]
    # Flow is as in a surrogate with the hidden signal θ_j = score_j / Ã^L_ij.
    theta = torch.where(case.power[1] > 0, score / case.power[1], 0.0)
    rows, signals = [adjacency[1], torch.eye(8)[1]], [theta, adjacency @ theta]
    flow = sum(row[target] * signal[source] for row, signal in zip(rows, signals, strict=True))
    expected = {
        'endpoints': score[source] + score[target],
        'geometric': (score[source].clamp(min=0) * score[target].clamp(min=0)).sqrt(),
        'flow': flow * adjacency[target, source],
    }[edge_score]
    torch.testing.assert_close(found.edge_score, torch.where(adjacency[1, target] > 0, expected, 0.0), **CLOSE)


def test_any_task_is_supported():
    assert all(explainer(Teacher(), ProbeDnX(), task).algorithm.supports() for task in TASKS)
