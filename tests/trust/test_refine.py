r"""Masks that swaps improve: held against asking the model on the whole graph, and against planted answers."""

from itertools import pairwise

import pytest
import torch
from faithfulness_case import NODES, explained, inputs
from models import Teacher, explainer
from torch_geometric.explain import DummyExplainer, Explanation
from torch_geometric.nn import MessagePassing

from pyg_dnx import check, refine
from pyg_dnx.trust.swaps import Outcome, Search, improve

FEATURES = ['object', 'attributes', 'common_attributes']
pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


class Reader(MessagePassing):
    r"""The class of a node is 1 if one of its neighbours, or it, has a large first feature."""

    def forward(self, x, edge_index):
        found = torch.maximum(self.propagate(edge_index, x=x[:, :1]), x[:, :1])
        return torch.cat([0.5 - found, found - 0.5], dim=1)

    def __init__(self):
        super().__init__(aggr='max')


def star(size=40, at=17):
    r"""Node 0 with many neighbours, of which one counts."""
    x = torch.rand(size, 2, generator=torch.Generator().manual_seed(0)) * 0.2
    x[at, 0] = 1.0
    edges = torch.stack([torch.arange(1, size), torch.zeros(size - 1, dtype=torch.long)])
    return x, edges


def with_mask(explanation, kept, name='node_mask'):
    mask = torch.zeros_like(explanation[name])
    mask.view(-1)[kept] = 1.0
    explanation[name] = mask
    return explanation


def on_whole_graph(explain, explanation):
    r"""Whether the prediction is preserved by what a mask keeps, and changes without it, and the gap: densely."""
    x, edges, node = explanation.x, explanation.edge_index, explanation.index
    mask = explanation.node_mask
    with torch.no_grad():
        before, kept, removed = (
            explain.model(x * part, edges)[node].softmax(dim=-1).view(-1)
            for part in (torch.ones_like(mask), mask, 1.0 - mask)
        )
    label = int(before.argmax())
    return int(kept.argmax()) == label, int(removed.argmax()) != label, float(kept[label] - removed[label])


@pytest.mark.parametrize('node', FEATURES)
@pytest.mark.parametrize('algorithm', ['FastDnX', 'GNNExplainer'])
def test_outcomes_are_those_of_the_whole_graph_and_never_worse(algorithm, node):
    explain, explanations = explained(Teacher('gat'), algorithm=algorithm, node=node)
    found = refine(explain, explanations, size=2)
    for b, refined in enumerate(found):
        keeps, changes, gap = on_whole_graph(explain, refined)
        assert (bool(found.keeps[b]), bool(found.changes[b])) == (keeps, changes)
        assert float(found.gap[b]) == pytest.approx(gap, abs=1e-5)
        assert int((refined.node_mask == 1).sum()) == found.size[b] <= 2
    assert found.index.tolist() == NODES
    assert bool((found.keeps >= found.keeps_before).all())
    assert bool((found.changes >= found.changes_before).all())
    assert bool((found.gain.double() > -1e-6)[(found.keeps == found.keeps_before)].all())
    assert bool((found.gain > 0).any())


def test_what_counts_is_found():
    x, edges = star()
    explain = explainer(Reader(), DummyExplainer())
    explanation = with_mask(explain(x, edges, index=0), [3, 5])
    found = refine(explain, explanation)
    assert found[0].node_mask[17] == 1
    assert int(found[0].node_mask.sum()) == 2
    assert (bool(found.keeps_before), bool(found.keeps), bool(found.changes)) == (False, True, True)
    assert explanation.node_mask.flatten().nonzero().flatten().tolist() == [3, 5]


def test_edges_that_count_are_found():
    x, edges = star()
    explain = explainer(Reader(), DummyExplainer(), node=None, edge='object')
    found = refine(explain, with_mask(explain(x, edges, index=0), [3], 'edge_mask'))
    assert found[0].edge_mask.nonzero().flatten().tolist() == [16]  # from node 17
    assert bool(found.changes)


def test_features_that_count_are_found():
    x, edges = star()
    x = torch.cat([x, torch.rand(40, 4)], dim=1)
    explain = explainer(Reader(), DummyExplainer(), node='common_attributes')
    found = refine(explain, with_mask(explain(x, edges, index=0), [4]))
    assert found[0].node_mask.tolist() == [[1, 0, 0, 0, 0, 0]]
    x, edges = star(14, 9)
    explain = explainer(Reader(), DummyExplainer(), node='attributes')
    found = refine(explain, with_mask(explain(x, edges, index=0), [4]))
    assert found[0].node_mask.nonzero().tolist() == [[9, 0]]


def test_many_are_refined_as_one_by_one():
    explain, explanations = explained(Teacher('gcn'))
    together = refine(explain, explanations, size=[1, 3])
    alone = [refine(explain, explanation, size=[1, 3]) for explanation in explanations]
    expected = [explanation.node_mask for found in alone for explanation in found]
    assert all(map(torch.equal, [explanation.node_mask for explanation in together], expected))
    assert together.num_evaluations.tolist() == [n for found in alone for n in found.num_evaluations.tolist()]
    assert together.index.tolist() == [node for node in NODES for _ in range(2)]


def test_sizes_may_be_nested():
    x, edges = star()
    explain = explainer(Reader(), DummyExplainer())
    torch.manual_seed(3)
    found = refine(explain, explain(x, edges, index=0), size=[0.5, 1, 4], nested=True)
    assert found.size.tolist() == [1, 4, 20]
    assert all(bool((one.node_mask <= other.node_mask).all()) for one, other in pairwise(found))
    assert found[0].node_mask[17] == 1


@pytest.mark.parametrize('limit', [2, 11, 66, 300])
def test_evaluations_are_counted_and_bounded(limit):
    x, edges = star()
    explain = explainer(Reader(), DummyExplainer())
    sizes = []
    explanation = with_mask(explain(x, edges, index=0), [3, 5])
    handle = explain.model.register_forward_hook(lambda module, args, out: sizes.append(args[0].size(0) / 40))
    found = refine(explain, explanation, num_evaluations=limit)
    handle.remove()
    assert int(found.num_evaluations) <= limit
    # Besides the copies, the unmasked neighbourhood once, and the graph to compare with.
    assert int(found.num_evaluations) <= sum(sizes) <= int(found.num_evaluations) + 3
    assert found.num_evaluations.item() > 60 or limit < 66


def test_a_round_that_finds_nothing_is_the_last():
    x, edges = star()
    explain = explainer(Reader(), DummyExplainer())
    first = refine(explain, with_mask(explain(x, edges, index=0), [17, 3]))
    again = refine(explain, first[0])
    assert again[0].node_mask.equal(first[0].node_mask)
    assert float(again.gain) == 0.0
    assert int(again.num_evaluations) == 2 + 2 * 32


@pytest.mark.parametrize('task', ['regression [N]', 'regression [N, 2]', 'binary raw [N]', 'binary probs [N, 2]'])
def test_other_tasks(task):
    explain, explanations = explained(Teacher('sage', task), task=task)
    found = refine(explain, explanations, size=2)
    measured = check(explain, list(found))
    assert bool((found.gap >= found.gap_before - 1e-6).all())
    if measured.fidelity_minus is not None:
        assert measured.fidelity_minus.equal((~found.keeps).double())
        assert measured.fidelity_plus.equal(found.changes.double())


def test_a_given_target_is_what_is_kept():
    explain, explanations = explained(Teacher('gcn'), kind='phenomenon')
    found = refine(explain, explanations, size=2)
    for b, refined in enumerate(found):
        with torch.no_grad():
            kept = explain.model(refined.x * refined.node_mask, refined.edge_index)[NODES[b]]
        assert bool(found.keeps[b]) == (int(kept.argmax()) == int(refined.target[NODES[b]]))


def test_it_is_printed():
    explain, explanations = explained(Teacher('gcn'))
    text = str(refine(explain, explanations, size=2))
    assert 'keeping preserves' in text
    assert 'evaluations' in text


def test_what_can_not_be_refined_is_refused():
    explain, explanations = explained(Teacher('gcn'))
    with pytest.raises(ValueError, match="'size' must be given for a mask that is not 0 or 1"):
        refine(explain, explanations[0])
    for size in (0, -1, 1.5, 'a'):
        with pytest.raises(ValueError, match="'size' must be a whole number"):
            refine(explain, explanations[0], size=size)
    with pytest.raises(ValueError, match='at least one explanation'):
        refine(explain, [])
    with pytest.raises(TypeError, match="'explanations' must be an Explanation"):
        refine(explain, 3)
    x, edge_index, _ = inputs()
    with pytest.raises(ValueError, match='one output each'):
        refine(explain, explain(x, edge_index, index=torch.tensor([1, 2])), size=2)


def by_sum(weight):
    r"""The answers of a model to which nodes add up."""

    def ask(searches, masks):
        return [
            Outcome(mask.double() @ weight > 0.5, (1 - mask.double()) @ weight < 0.5, (2 * mask.double() - 1) @ weight)
            for mask in masks
        ]

    return ask


@pytest.mark.parametrize('seed', range(3))
def test_the_best_mask_of_a_sum_is_found(seed):
    weight = torch.rand(12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    inside = torch.zeros(12, dtype=torch.bool)
    inside[:3] = True
    search = Search(0, torch.zeros(12), inside, torch.zeros_like(inside))
    improve([search], by_sum(weight / weight.sum()), 500, 32)
    assert search.inside.nonzero().flatten().tolist() == weight.topk(3).indices.sort().values.tolist()


def test_explanations_without_a_mask_are_refused():
    explain, explanations = explained(Teacher('gcn'))
    explanation = Explanation(x=explanations[0].x, edge_index=explanations[0].edge_index, index=0)
    explanation._model_args = []
    with pytest.raises(ValueError, match='must have a node mask or an edge mask'):
        refine(explain, explanation, size=2)
