r"""What holds for every model, graph and option, through PyG's ``Explainer`` and ``explain_nodes``."""

import copy

import pytest
import torch
from helpers import Graph, dense_adjacency, dense_scores, is_overwritten, relabelled
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import EQUIVARIANT, ONE_SIZE, WEIGHTED, cases, indices
from torch_geometric.explain.metric import (
    characterization_score,
    fidelity,
    fidelity_curve_auc,
    groundtruth_metrics,
    unfaithfulness,
)

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


def assert_close(found, expected, tolerance=1e-9, scale=0.0):
    r"""Up to rounding of the largest number, or of what it was computed from, ``scale``."""
    size = max(float(expected.abs().max()) if expected.numel() else 0.0, float(scale))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=tolerance * size + 1e-300)


def magnitude(case):
    r"""What scores may cancel from."""
    hidden = (case.graph.x @ case.surrogate().weight).norm(dim=1).sum()
    return max(1.0, float(hidden)) ** 2


@given(case=cases(kinds=['FastDnX', 'masked FastDnX'], score='projection', contrast=None), data=st.data())
def test_scores_equal_the_definition(case, data):
    node = data.draw(st.integers(0, case.graph.x.size(0) - 1))
    surrogate, adjacency = case.surrogate(), dense_adjacency(*case.graph[1:], case.graph.x.size(0))
    expected = dense_scores(adjacency, case.graph.x, surrogate.weight, surrogate.num_hops)[node]
    found = case.explain(node)
    assert_close(found.node_score, expected)
    evidence = surrogate(*case.inputs, **case.kwargs)[node] - surrogate.bias
    scale = expected.abs().sum() + surrogate.bias.square().sum()
    assert_close(found.node_score.sum(), evidence.square().sum(), scale=scale)


@given(case=cases(), data=st.data())
def test_features_and_edges_share_the_scores_of_nodes(case, data):
    nodes = data.draw(indices(case.graph.x.size(0)))
    objects, attributes, common = (
        case.explain(torch.tensor(nodes), node) for node in ('object', 'attributes', 'common_attributes')
    )
    scale = attributes.node_score.abs().sum()
    assert_close(attributes.node_score.sum(dim=1), objects.node_score, scale=scale)
    assert_close(attributes.node_score.sum(dim=0), common.feature_score, scale=scale)
    for other in (attributes, common):
        assert_close(other.edge_score, objects.edge_score)
    assert_close(common.node_score, objects.node_score)


@given(case=cases(num_hops=1, edge_score='flow'), data=st.data())
def test_one_hop_of_flow_and_the_own_loop_are_the_score(case, data):
    node = data.draw(st.integers(0, case.graph.x.size(0) - 1))
    found, edges = case.explain(node), case.graph.edge_index
    has_loop = ((edges[0] == node) & (edges[1] == node)).any()
    own = torch.zeros_like(found.node_score[node]) if has_loop else found.node_score[node]
    assert_close(found.edge_score.sum() + own, found.node_score.sum(), scale=found.node_score.abs().sum())


@given(case=cases(), data=st.data())
def test_nothing_is_said_beyond_the_hops(case, data):
    nodes = data.draw(indices(case.graph.x.size(0)))
    num_hops = case.surrogate().num_hops
    found = case.explain(torch.tensor(nodes), data.draw(st.sampled_from(['object', 'attributes'])))
    outside = ~case.reach(nodes, num_hops)
    assert not found.node_score[outside].any()
    assert not found.node_mask[outside].any()
    passes = case.reach(nodes, num_hops - 1) if num_hops > 0 else torch.zeros_like(outside)
    passes = passes[case.graph.edge_index[1]]
    assert not found.edge_score[~passes].any()
    assert not found.edge_mask[~passes].any()
    batch = case.explain_nodes(index=torch.tensor(nodes)).scores.to_dense()
    for row, node in zip(batch, nodes, strict=True):
        assert not row[~case.reach([node], num_hops)].any()


@given(case=cases(edge_score='flow'), data=st.data())
def test_joint_scores_are_sums(case, data):
    nodes = data.draw(indices(case.graph.x.size(0)))
    joint = case.explain(torch.tensor(nodes), 'attributes')
    single = [case.explain(node, 'attributes') for node in nodes]
    for key in ('node_score', 'edge_score'):
        answers = case.kind == 'ProbeDnX'  # which solves for effects on them
        scale = answers + sum(one[key].abs().sum() for one in single)
        assert_close(joint[key], sum(one[key] for one in single), 1e-6, scale)


@given(case=cases(), data=st.data())
def test_batches_equal_single_explanations(case, data):
    nodes = data.draw(indices(case.graph.x.size(0)))
    batch = case.explain_nodes(index=torch.tensor(nodes))
    top = case.explain_nodes(index=torch.tensor(nodes), top_k=3)
    for place, node in enumerate(nodes):
        alone = case.explain(node)
        scale = alone.node_score.abs().sum() + (case.kind == 'ProbeDnX')
        assert_close(batch.scores.to_dense()[place], alone.node_score, 1e-6, scale)
        for key in ('node_score', 'edge_score'):
            assert_close(batch[place][key], alone[key], 1e-6, scale)
        kept, score = (found[place] for found in top.top_k(3))
        assert_close(score[kept >= 0], alone.node_score[kept[kept >= 0]], 1e-6, scale)
        inside = alone.node_score[case.reach([node], case.surrogate().num_hops)]
        assert_close(score[kept >= 0], inside.topk(min(3, inside.numel())).values, 1e-6, scale)


# A model that is asked anew rounds otherwise: where features are huge and its answers certain, the optimum is too flat
# to be found again to more than a few digits. Other names have other nodes held out for 'auto', and blanked by masks.
SAME = {'models': EQUIVARIANT, 'features': ONE_SIZE, 'ridge': 1e-2}
HOPS = st.integers(0, 3)


@given(case=cases(['FastDnX', 'DnX'], **SAME), num_hops=HOPS, random=st.randoms(use_true_random=False))
def test_names_of_nodes_and_the_order_of_edges_do_not_matter(case, num_hops, random):
    case.options['num_hops'] = num_hops
    graph, num_edges = case.graph, case.graph.edge_index.size(1)
    permutation = torch.tensor(random.sample(range(graph.x.size(0)), graph.x.size(0)))
    order = torch.tensor(random.sample(range(num_edges), num_edges), dtype=torch.long)
    loops = (graph.edge_index[0] == graph.edge_index[1])[order]
    order[loops] = order[loops].sort().values  # of duplicate self-loops, the last counts
    x, edges, weight = relabelled(graph, permutation)
    other = case._replace(graph=Graph(x, edges[:, order], None if weight is None else weight[order]))
    one, two = case.explain(int(permutation[0])), other.explain(0)
    scale = magnitude(case)
    assert_close(two.node_score, one.node_score[permutation], 1e-4, scale)
    assert_close(two.edge_score, one.edge_score[order], 1e-4, scale)


@given(case=cases(**{**SAME, 'models': WEIGHTED}, edge_score='flow'), num_hops=HOPS, data=st.data())
def test_an_edge_may_be_split_into_parallel_ones(case, num_hops, data):
    case.options['num_hops'] = num_hops
    x, edges, weight = case.graph
    weight = torch.ones(edges.size(1), dtype=torch.float64) if weight is None else weight
    links = (edges[0] != edges[1]).nonzero().view(-1)
    assume(links.numel() > 0)
    edge, share = data.draw(st.sampled_from(links.tolist())), data.draw(st.floats(0.1, 0.9))
    parts = weight.clone()
    parts[edge] *= share
    split = Graph(x, torch.cat([edges, edges[:, [edge]]], dim=1), torch.cat([parts, weight[[edge]] * (1 - share)]))
    whole, other = case._replace(graph=Graph(x, edges, weight)), case._replace(graph=split)
    node, scale = int(edges[1, edge]), magnitude(case)
    one, two = whole.explain(node), other.explain(node)
    assert_close(two.node_score, one.node_score, 1e-4, scale)
    merged = two.edge_score[:-1].index_add(0, torch.tensor([edge]), two.edge_score[-1:])
    assert_close(merged, one.edge_score, 1e-4, scale)
    assert_close(two.edge_score[-1], (1 - share) * one.edge_score[edge], 1e-4, scale)


METRICS = ['multiclass raw', 'binary raw [N, 1]']


# PyG's unfaithfulness takes logarithms of probabilities: those of huge logits are zero.
@given(case=cases(tasks=METRICS, features=ONE_SIZE), data=st.data())
def test_masks_are_what_metrics_take(case, data):
    nodes = torch.tensor(data.draw(indices(case.graph.x.size(0))))
    node = data.draw(st.sampled_from(['object', 'attributes', 'common_attributes', None]))
    explain = case.explainer(node)
    found = explain(*case.inputs, index=nodes, **case.kwargs)
    assert found.validate(raise_on_error=True)
    for key in found.available_explanations:
        assert found[key].isfinite().all()
        assert bool(((found[key] >= 0) & (found[key] <= 1)).all())
        if found[key].numel() > 0:
            shares = groundtruth_metrics(found[key], (found[key] > 0.5).to(torch.long))
            assert all(0 <= share <= 1 + 1e-6 for share in shares)
    positive, negative = fidelity(explain, found)
    assert 0 <= positive <= 1
    assert 0 <= negative <= 1
    if positive > 0 and negative < 1:  # else it is not defined
        assert 0 <= characterization_score(torch.tensor(positive), torch.tensor(negative)) <= 1
        curve = torch.tensor([positive, positive]), torch.tensor([negative, negative]), torch.tensor([0.1, 0.5])
        assert fidelity_curve_auc(*curve) >= 0
    assert -1e-6 <= unfaithfulness(explain, found) <= 1  # PyG's divergence rounds to a little below zero
    if node in ('attributes', 'common_attributes'):
        assert -1e-6 <= unfaithfulness(explain, found, top_k=1) <= 1


@given(case=cases(), data=st.data())
def test_masks_keep_the_order_of_scores(case, data):
    nodes = data.draw(indices(case.graph.x.size(0)))
    found = case.explain(torch.tensor(nodes))
    inside = case.reach(nodes, case.surrogate().num_hops)
    loose = torch.tensor([is_overwritten(case.graph.edge_index, e) for e in range(case.graph.edge_index.size(1))])
    carries = (found.edge_mask > 0) & ~loose.bool()
    for score, mask in [
        (found.node_score[inside], found.node_mask.view(-1)[inside]),
        (found.edge_score[carries], found.edge_mask[carries]),
    ]:
        order = score.argsort()
        assert bool((mask[order].diff() >= 0).all())
        if case.options['mask'] == 'rank':
            assert bool((mask[order].diff() > 0).equal(score[order].diff() > 0))


class Restless(torch.nn.Module):
    r"""Counts its calls in a buffer and draws a random number, before it fails if it does."""

    def __init__(self, model, fails_at=99):
        super().__init__()
        self.model, self.fails_at = model, fails_at
        self.register_buffer('calls', torch.zeros(1))

    def forward(self, *args, **kwargs):
        self.calls += torch.rand(1).ceil()
        if self.calls >= self.fails_at:
            raise RuntimeError('out of memory')
        return self.model(*args, **kwargs)


FAULTS = {
    'none': lambda case, data: {},
    'features': lambda case, data: {'x': case.graph.x.index_fill(0, torch.tensor([0]), torch.nan)},
    'edges': lambda case, data: {'edge_index': case.graph.edge_index - case.graph.x.size(0)},
    'shape': lambda case, data: {'edge_index': case.graph.edge_index.T},
    'index': lambda case, data: {'index': case.graph.x.size(0)},
    'model': lambda case, data: {'model': Restless(case.model, data.draw(st.integers(1, 3)))},
}


@given(case=cases(), fault=st.sampled_from(sorted(FAULTS)), training=st.booleans(), data=st.data())
def test_nothing_is_changed(case, fault, training, data):
    x, edge_index = case.inputs
    given = {'model': Restless(case.model), 'x': x, 'edge_index': edge_index, 'index': 0, **case.kwargs}
    given |= FAULTS[fault](case, data)
    model = given['model'].train(training)
    call = case.explainer().algorithm.explain_nodes
    tensors = [*model.state_dict().values(), *(value for value in given.values() if isinstance(value, torch.Tensor))]
    kept, versions = copy.deepcopy(tensors), [tensor._version for tensor in tensors[len(model.state_dict()) :]]
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    said = None
    try:
        call(**given)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        said = str(error)
    if said is None:
        assert fault in ('none', 'model', 'edges', 'shape')  # without edges there is nothing wrong with them
    else:
        assert fault != 'none'
        assert said == 'out of memory' or '(got' in said
    assert all(module.training == training for module in model.modules())
    for tensor, before in zip(tensors, kept, strict=True):
        torch.testing.assert_close(tensor, before, rtol=0.0, atol=0.0, equal_nan=True)
    assert [tensor._version for tensor in tensors[len(model.state_dict()) :]] == versions
    assert torch.get_rng_state().equal(random)
    assert torch.get_num_threads() == threads
