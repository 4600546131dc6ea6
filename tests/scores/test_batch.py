import pytest
import torch
from helpers import example_graphs
from models import Teacher, explainer, in_chunks
from torch_geometric.explain import Explanation
from torch_geometric.explain.metric import fidelity

from pyg_dnx import DnX, FastDnX
from pyg_dnx.run import Run
from pyg_dnx.scores import batch

ALGORITHMS = [FastDnX, DnX]
pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


@pytest.fixture(params=ALGORITHMS)
def algorithm(request):
    return request.param()


def setting(name='weighted'):
    r"""A model, its inputs, and how many times it was evaluated."""
    graph = example_graphs()[name]
    model, calls = Teacher(), []
    model.register_forward_pre_hook(lambda *args: calls.append(1))
    kwargs = {} if graph.edge_weight is None else {'edge_weight': graph.edge_weight}
    return model, (graph.x, graph.edge_index), kwargs, calls


def watched(algorithm, entries):
    r"""The algorithm in small chunks, and the sizes of these as they are done."""
    sizes = []

    class Watched(Run):
        def bar(self, *args, **options):
            bar = super().bar(*args, **options)
            bar.update = sizes.append
            return bar

    return in_chunks(algorithm, entries, Watched), sizes


@pytest.mark.parametrize('options', [{}, {'score': 'target'}, {'contrast': 'runner_up'}, {'num_hops': 0}])
@pytest.mark.parametrize('name', ['directed', 'weighted', 'one_node'])
@pytest.mark.parametrize('kind', ALGORITHMS)
def test_rows_equal_single_explanations(kind, name, options):
    model, inputs, kwargs, calls = setting(name)
    single = explainer(model, kind(**options), edge='object')
    explanations = single.algorithm.explain_nodes(model, *inputs, **kwargs)
    assert len(calls) == 1
    rows = explanations.scores.to_dense()
    for node in range(inputs[0].size(0)):
        alone = single(*inputs, index=node, **kwargs)
        torch.testing.assert_close(rows[node], alone.node_score, rtol=1e-3, atol=1e-6)
        one = explanations[node]
        for key in ['node_mask', 'edge_mask', 'node_score', 'edge_score', 'distillation_error', 'surrogate_agreement']:
            torch.testing.assert_close(one[key], alone[key], rtol=1e-3, atol=1e-6)
        assert one.index.tolist() == [node]
        assert explanations.distillation_error[node] == alone.distillation_error
        assert explanations.surrogate_agreement[node] == alone.surrogate_agreement
        assert explanations.bias_decides[node] == alone.bias_decides


def test_the_model_is_evaluated_at_most_once(algorithm):
    model, inputs, kwargs, calls = setting()
    connected = explainer(model, algorithm).algorithm
    explanations = connected.explain_nodes(model, *inputs, **kwargs)
    for explanation in explanations:
        assert isinstance(explanation, Explanation)
    connected.explain_nodes(model, *inputs, index=3, **kwargs)
    assert len(calls) == 1
    connected.cache = None
    list(connected.explain_nodes(model, *inputs, **kwargs))
    assert len(calls) == 2


def test_top_k_lists_the_highest_scores(algorithm):
    model, inputs, kwargs, _ = setting()
    connected = explainer(model, algorithm).algorithm
    index = torch.tensor([5, 0, 6, 0])  # in any order, repeated; node 6 is alone
    full = connected.explain_nodes(model, *inputs, index=index, **kwargs)
    kept = connected.explain_nodes(model, *inputs, index=index, top_k=4, **kwargs)
    assert kept.scores is None
    assert full.index.equal(index)
    for b in range(4):
        start, end = full.scores.crow_indices()[b : b + 2].tolist()
        neighbours, scores = full.scores.col_indices()[start:end], full.scores.values()[start:end]
        order = scores.argsort(descending=True)[:4]
        padding = 4 - order.numel()
        for found in [full.top_k(4), kept.top_k(4)]:
            assert found[0][b].tolist() == neighbours[order].tolist() + [-1] * padding
            torch.testing.assert_close(found[1][b], torch.cat([scores[order], torch.zeros(padding)]))
    assert full.top_k(4)[0][2].tolist() == [6, -1, -1, -1]
    for short, long in zip(kept.top_k(2), full.top_k(4), strict=True):
        torch.testing.assert_close(short, long[:, :2])
    assert full.top_k(20)[0].shape == (4, 20)


def test_top_k_refuses_more_than_was_kept():
    model, inputs, kwargs, _ = setting()
    kept = explainer(model, FastDnX()).algorithm.explain_nodes(model, *inputs, top_k=2, **kwargs)
    with pytest.raises(ValueError, match=r"'k' must be at most 2, as many as were kept \(got 3\): .*larger 'top_k'"):
        kept.top_k(3)
    with pytest.raises(ValueError, match="'k' must be at least 1"):
        kept.top_k(0)


def test_it_is_a_sequence():
    model, inputs, kwargs, _ = setting()
    nodes = torch.tensor([4, 1, 3])
    explanations = explainer(model, FastDnX()).algorithm.explain_nodes(model, *inputs, index=nodes, **kwargs)
    assert len(explanations) == 3
    assert repr(explanations) == 'NodeExplanations(3 nodes)'
    assert [int(explanation.index) for explanation in explanations] == [4, 1, 3]
    assert int(explanations[-1].index) == 3
    assert int(explanations[-3].index) == 4
    for b in [3, -4]:
        with pytest.raises(IndexError):
            explanations[b]


@pytest.mark.parametrize('index', [2, torch.tensor(2), [2], torch.tensor([-6]), torch.arange(8) == 2])
def test_index_takes_many_forms(index):
    model, inputs, kwargs, _ = setting()
    explanations = explainer(model, FastDnX()).algorithm.explain_nodes(model, *inputs, index=index, **kwargs)
    assert explanations.index.tolist() == [2]


def test_pyg_measures_the_fidelity_of_one(algorithm):
    model, inputs, kwargs, _ = setting()
    single = explainer(model, algorithm, edge='object')
    explanations = single.algorithm.explain_nodes(model, *inputs, **kwargs)
    for node, explanation in enumerate(explanations):
        assert explanation.validate(raise_on_error=True)
        assert fidelity(single, explanation) == fidelity(single, single(*inputs, index=node, **kwargs))


@pytest.mark.parametrize('kind', ALGORITHMS)
@pytest.mark.parametrize('top_k', [None, 3])
@pytest.mark.parametrize('score', ['projection', 'target'])
def test_chunks_change_nothing(kind, top_k, score):
    model, inputs, kwargs, _ = setting()
    connected = explainer(model, kind(score=score)).algorithm
    whole = connected.explain_nodes(model, *inputs, top_k=top_k, **kwargs)
    connected, sizes = watched(connected, 8)
    cut = connected.explain_nodes(model, *inputs, top_k=top_k, **kwargs)
    assert len(sizes) > 1
    if top_k is None:
        assert cut.scores.crow_indices().equal(whole.scores.crow_indices())
        assert cut.scores.col_indices().equal(whole.scores.col_indices())
        torch.testing.assert_close(cut.scores.values(), whole.scores.values(), rtol=1e-3, atol=1e-6)
    for found, expected in zip(cut.top_k(3), whole.top_k(3), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize('kind', ALGORITHMS)
@pytest.mark.parametrize('task', ['multiclass raw', 'binary probs [N, 1]', 'regression [N, 2]'])
def test_phenomenon_goes_by_the_target(kind, task):
    graph = example_graphs()['undirected']
    model = Teacher(task=task)
    target = torch.tensor([0, 1] * 4) if task != 'regression [N, 2]' else 3.0 * graph.x[:, :2]
    single = explainer(model, kind(), task, explanation_type='phenomenon')
    explanations = single.algorithm.explain_nodes(model, graph.x, graph.edge_index, target=target)
    for node in range(8):
        alone = single(graph.x, graph.edge_index, index=node, target=target)
        torch.testing.assert_close(explanations.scores.to_dense()[node], alone.node_score, rtol=1e-3, atol=1e-6)
        assert explanations[node].target.equal(target)
    other = 1 - target if not target.is_floating_point() else -target
    changed = single.algorithm.explain_nodes(model, graph.x, graph.edge_index, target=other)
    assert not changed.scores.values().allclose(explanations.scores.values())


def test_phenomenon_needs_a_target():
    graph = example_graphs()['undirected']
    connected = explainer(Teacher(), FastDnX(), explanation_type='phenomenon').algorithm
    with pytest.raises(ValueError, match="'target' must be a tensor with an entry for each of the 8 nodes"):
        connected.explain_nodes(Teacher(), graph.x, graph.edge_index)


def test_progress_is_shown_when_asked_for(capsys):
    model, inputs, kwargs, _ = setting()
    connected = in_chunks(explainer(model, FastDnX()).algorithm, 8)
    connected.explain_nodes(model, *inputs, progress=True, **kwargs)
    assert '8/8' in capsys.readouterr().err
    connected.explain_nodes(model, *inputs, progress=False, **kwargs)
    connected.explain_nodes(model, *inputs, **kwargs)  # not on a terminal
    assert capsys.readouterr().err == ''


class Full(Run):
    r"""No memory is left."""

    def free(self, device):
        return 0


@pytest.mark.parametrize('top_k', [None, 3])
def test_scores_that_do_not_fit_are_refused_in_time(algorithm, top_k, monkeypatch):
    model, inputs, kwargs, _ = setting()
    connected = explainer(model, algorithm).algorithm
    monkeypatch.setattr('pyg_dnx.scores.batch.CHECK_EVERY', 1)
    in_chunks(connected, 8).explain_nodes(model, *inputs, top_k=top_k, **kwargs)
    with pytest.raises(MemoryError, match=r"'index' names 8 nodes, .* for the first \d\): pass 'top_k', or fewer"):
        in_chunks(connected, 8, Full).explain_nodes(model, *inputs, top_k=top_k, **kwargs)


@pytest.mark.parametrize('top_k', [None, 3])
@pytest.mark.parametrize('kind', ALGORITHMS)
def test_little_memory_gives_the_same_scores(kind, top_k):
    model, inputs, kwargs, _ = setting()
    expected, found = (
        explainer(model, kind(cache=None, max_memory=limit)).algorithm.explain_nodes(
            model, *inputs, top_k=top_k, **kwargs
        )
        for limit in (None, 1)
    )
    for one, other in zip(found.top_k(3), expected.top_k(3), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    if top_k is None:
        torch.testing.assert_close(found.scores.to_dense(), expected.scores.to_dense(), rtol=1e-4, atol=1e-6)


def chunks(limit, entries):
    r"""How many nodes each chunk has."""
    model, inputs, kwargs, _ = setting()
    connected, sizes = watched(explainer(model, FastDnX(max_memory=limit)).algorithm, entries)
    connected.explain_nodes(model, *inputs, **kwargs)
    return sizes


def test_max_memory_bounds_what_is_held():
    assert chunks(1, 2**20) == [1] * 8
    assert chunks(2**40, 2**20) == [8]
    assert chunks(None, 3) == chunks(None, 8)  # every chunk takes time for each of 8 nodes
    assert 1 < len(chunks(10 * batch.BYTES_PER_ENTRY, 2**20)) < 8


def test_half_of_the_free_memory_is_taken():
    class Small(Run):
        def free(self, device):
            return 1001

    cpu = torch.device('cpu')
    assert Small().bytes(cpu) == 500
    assert Small(7).bytes(cpu) == 7
    assert Run().free(cpu) > 0
