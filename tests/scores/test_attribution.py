import pickle
from itertools import product

import pytest
import torch
from helpers import Graph, dense_adjacency, dense_scores, is_overwritten, random_decomposition, relabelled
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs

from pyg_dnx.distill import decomposition as tables
from pyg_dnx.run import Run
from pyg_dnx.scores import attribution as module
from pyg_dnx.scores.attribution import PulledBack, Swept, Tabulated
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.rules import Directed

HOPS = st.integers(0, 3)
CLOSE = {'rtol': 1e-6, 'atol': 1e-9}


def random_directions(count, seed=2):
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attribute(graph, num_hops, nodes, directions=None, **kwargs):
    directions = random_directions(len(nodes)) if directions is None else directions
    return PulledBack(random_decomposition(graph, num_hops, **kwargs), torch.tensor(nodes), directions)


def chosen_for(decomposition, nodes, **options):
    r"""The attribution that is chosen for some nodes."""
    effects = Directed(random_directions(len(nodes)))
    return module.attribute(decomposition, Question(torch.tensor(nodes)), effects, **options)


def node_scores(attribution):
    r"""The scores of all nodes, [N]."""
    scores = attribution.direction.new_zeros(attribution.decomposition.operator.num_nodes)
    scores[attribution.neighbourhood] = attribution.node_scores()
    return scores


def dense(graph):
    return dense_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0))


def walk_flow(graph, num_hops, nodes, directions, hidden):
    r"""What each pair of nodes (target, source) passes on, [N, N], by listing all walks of ``num_hops`` steps."""
    adjacency, flow = dense(graph).tolist(), torch.zeros(graph.x.size(0), graph.x.size(0), dtype=torch.float64)
    for node, direction in zip(nodes, directions, strict=True):
        evidence = (hidden @ direction).tolist()
        for walk in product(range(graph.x.size(0)), repeat=num_hops):
            carried, steps = evidence[walk[0]], list(zip(walk, (*walk[1:], node), strict=True))
            for source, target in steps:
                carried *= adjacency[target][source]
            for source, target in steps:
                flow[target, source] += carried
    return flow


def share_out(graph, flow):
    r"""Shares what pairs of nodes pass on between parallel edges, by weight; one of duplicate self-loops has it all."""
    weight = torch.ones(graph.edge_index.size(1)) if graph.edge_weight is None else graph.edge_weight
    edges = graph.edge_index.T.tolist()
    scores = torch.zeros(len(edges), dtype=torch.float64)
    for e, (source, target) in enumerate(edges):
        parallel = [other for other, pair in enumerate(edges) if pair == [source, target]]
        part = weight[e].double() / weight[parallel].double().sum() if source != target else float(e == parallel[-1])
        scores[e] = flow[target, source] * part
    return scores


@pytest.mark.parametrize('num_hops', [1, 2, 3])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_fast_scores_equal_the_definition(graph, num_hops, dtype):
    decomposition = random_decomposition(graph, num_hops, dtype=dtype)
    expected = dense_scores(dense(graph), graph.x, decomposition.surrogate.weight, num_hops)
    for node in torch.arange(graph.x.size(0)):
        attribution = PulledBack(decomposition, node[None], decomposition.evidence[node][None])
        assert attribution.node_scores().dtype == dtype
        torch.testing.assert_close(node_scores(attribution).double(), expected[node], rtol=2e-4, atol=2e-4)


@given(graph=graphs(), num_hops=HOPS, data=st.data())
def test_scores_are_complete(graph, num_hops, data):
    nodes = data.draw(st.lists(st.integers(0, graph.x.size(0) - 1), min_size=1, max_size=4))
    attribution = attribute(graph, num_hops, nodes)
    explained = (attribution.decomposition.evidence[nodes] * random_directions(len(nodes))).sum()
    scores = attribution.node_scores()
    torch.testing.assert_close(scores.sum(), explained, **CLOSE)
    attribute_scores = attribution.attribute_scores(graph.x)
    torch.testing.assert_close(attribute_scores.sum(dim=1), scores, **CLOSE)
    torch.testing.assert_close(attribute_scores.sum(dim=0), attribution.feature_scores(graph.x), **CLOSE)
    flow = list(attribution.flow())
    assert len(flow) == num_hops
    for _, carried in flow:  # each step passes on all of it
        torch.testing.assert_close(carried.sum(), explained, **CLOSE)


@given(graph=graphs(), num_hops=HOPS, data=st.data())
def test_scores_equal_dense_contributions(graph, num_hops, data):
    nodes = data.draw(st.lists(st.integers(0, graph.x.size(0) - 1), min_size=1, max_size=4))
    attribution = attribute(graph, num_hops, nodes)
    power = torch.linalg.matrix_power(dense(graph), num_hops)
    weight, x = attribution.decomposition.surrogate.weight, graph.x.double()
    expected = torch.zeros_like(x)
    for node, direction in zip(nodes, random_directions(len(nodes)), strict=True):
        for other in range(x.size(0)):
            expected[other] += power[node, other] * x[other] * (weight @ direction)
    found = torch.zeros_like(x)
    found[attribution.neighbourhood] = attribution.attribute_scores(graph.x)
    torch.testing.assert_close(found, expected, **CLOSE)
    torch.testing.assert_close(node_scores(attribution), expected.sum(dim=1), **CLOSE)
    reached = torch.linalg.matrix_power((dense(graph) > 0).double(), num_hops)[nodes].sum(dim=0)
    assert attribution.neighbourhood.tolist() == reached.nonzero().view(-1).tolist()  # and nothing beyond L hops


@given(graph=graphs(), num_hops=HOPS, data=st.data())
def test_joint_scores_are_sums_of_single_ones(graph, num_hops, data):
    nodes = data.draw(st.lists(st.integers(0, graph.x.size(0) - 1), min_size=2, max_size=5))
    joint, directions = attribute(graph, num_hops, nodes), random_directions(len(nodes))
    singles = [attribute(graph, num_hops, [node], directions[[b]]) for b, node in enumerate(nodes)]
    torch.testing.assert_close(node_scores(joint), sum(map(node_scores, singles)), **CLOSE)
    scores, inside = joint.edge_scores(graph.edge_index, 'flow', node_scores(joint))
    parts = [single.edge_scores(graph.edge_index, 'flow', node_scores(single)) for single in singles]
    torch.testing.assert_close(scores, sum(part[0] for part in parts), **CLOSE)
    assert set(inside.tolist()) == set().union(*(part[1].tolist() for part in parts))


@pytest.mark.parametrize('num_hops', [0, 1, 2])
def test_one_node_twice_is_one_node_with_twice_the_direction(graph, num_hops):
    direction = random_directions(1)
    single = attribute(graph, num_hops, [0], 2.0 * direction)
    double = attribute(graph, num_hops, [0, 0], direction.repeat(2, 1))
    torch.testing.assert_close(double.signals, single.signals)
    for step, other in zip(single.steps, double.steps, strict=True):
        assert step.nodes.equal(other.nodes)
        torch.testing.assert_close(step.signal, other.signal)


@given(graph=graphs(), num_hops=HOPS, random=st.randoms(use_true_random=False))
def test_names_of_nodes_do_not_matter(graph, num_hops, random):
    permutation = torch.tensor(random.sample(range(graph.x.size(0)), graph.x.size(0)))
    first = attribute(graph, num_hops, [int(permutation[0])])
    second = attribute(relabelled(graph, permutation), num_hops, [0])
    torch.testing.assert_close(node_scores(second), node_scores(first)[permutation], **CLOSE)
    edges, other_edges = graph.edge_index, relabelled(graph, permutation).edge_index
    for kind in ['endpoints', 'geometric', 'flow']:
        expected, _ = first.edge_scores(edges, kind, node_scores(first))
        found, _ = second.edge_scores(other_edges, kind, node_scores(second))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('nodes', [[0], [3, 0, 3]])
@pytest.mark.parametrize('num_hops', [1, 2, 3])
def test_flow_equals_the_sum_over_walks(graph, num_hops, nodes):
    nodes = [node % graph.x.size(0) for node in nodes]
    attribution = attribute(graph, num_hops, nodes)
    expected = walk_flow(graph, num_hops, nodes, random_directions(len(nodes)), attribution.decomposition.hidden[0])
    operator = attribution.decomposition.operator
    row = torch.arange(operator.num_nodes).repeat_interleave(operator.rowptr.diff())
    found = torch.zeros_like(expected)
    for entry, carried in attribution.flow():
        found.index_put_((row[entry], operator.col[entry].long()), carried, accumulate=True)
    torch.testing.assert_close(found, expected, **CLOSE)
    scores, inside = attribution.edge_scores(graph.edge_index, 'flow', node_scores(attribution))
    torch.testing.assert_close(scores, share_out(graph, expected), **CLOSE)
    assert set(scores.nonzero().view(-1).tolist()) <= set(inside.tolist())


@pytest.mark.parametrize('num_hops', [0, 1, 2, 3])
@pytest.mark.parametrize('nodes', [[2], [0, 4, 2]])
def test_dropped_edges_change_degrees(graph, num_hops, nodes):
    weight = torch.ones(graph.edge_index.size(1)) if graph.edge_weight is None else graph.edge_weight
    weight = weight.double().requires_grad_()
    num_nodes = graph.x.size(0)
    nodes = [node for node in nodes if node < num_nodes] or [0]
    found = attribute(graph, num_hops, nodes)
    matrix, loops = torch.zeros(num_nodes, num_nodes, dtype=torch.float64), torch.ones(num_nodes, dtype=torch.float64)
    for edge, (s, t) in enumerate(graph.edge_index.T.tolist()):
        if s == t:
            loops = loops.index_put((torch.tensor(t),), weight[edge])  # the last of them counts
        else:
            matrix = matrix.index_put((torch.tensor(t), torch.tensor(s)), weight[edge], accumulate=True)
    matrix = matrix + loops.diag()
    scale = matrix.sum(dim=1).rsqrt()
    power = torch.linalg.matrix_power(scale[:, None] * matrix * scale, num_hops)
    evidence = (power[nodes] @ found.decomposition.hidden[0] * found.direction).sum()
    expected = torch.zeros_like(weight)
    if num_hops > 0 and weight.numel() > 0:
        expected = weight.detach() * torch.autograd.grad(evidence, weight)[0]
    inside = torch.zeros(weight.numel(), dtype=torch.bool)
    inside[found.edges_inside(graph.edge_index)] = True  # others change the degrees of neighbours alone
    torch.testing.assert_close(found.edge_drop(graph.edge_index), expected * inside, **CLOSE)


@pytest.mark.parametrize('num_hops', [1, 2, 3])
@pytest.mark.parametrize('kind', ['endpoints', 'geometric'])
def test_edge_scores_from_their_ends(graph, num_hops, kind):
    attribution = attribute(graph, num_hops, [0])
    scores = node_scores(attribution)
    found, inside = attribution.edge_scores(graph.edge_index, kind, scores)
    reached = torch.linalg.matrix_power(dense(graph), num_hops - 1)[0] > 0
    for e, (source, target) in enumerate(graph.edge_index.T.tolist()):
        first, second = float(scores[source]), float(scores[target])
        expected = first + second if kind == 'endpoints' else (max(first, 0.0) * max(second, 0.0)) ** 0.5
        carries = bool(reached[target]) and not is_overwritten(graph.edge_index, e)
        assert (e in inside.tolist()) == carries
        assert float(found[e]) == pytest.approx(expected if carries else 0.0, abs=1e-12)


@pytest.mark.parametrize('kind', ['endpoints', 'geometric', 'flow'])
def test_edges_count_in_the_direction_of_messages(graph, kind):
    forward = attribute(graph, 2, [0])
    flipped = graph._replace(edge_index=graph.edge_index.flip(0))
    backward = attribute(flipped, 2, [0], flow='target_to_source')
    torch.testing.assert_close(node_scores(backward), node_scores(forward))
    expected = forward.edge_scores(graph.edge_index, kind, node_scores(forward))
    found = backward.edge_scores(flipped.edge_index, kind, node_scores(backward))
    torch.testing.assert_close(found[0], expected[0])
    assert found[1].sort().values.equal(expected[1].sort().values)


@pytest.mark.parametrize('kind', ['endpoints', 'geometric', 'flow'])
def test_without_hops_a_node_explains_itself(graph, kind):
    attribution = attribute(graph, 0, [0])
    assert attribution.neighbourhood.tolist() == [0]
    expected = (attribution.decomposition.hidden[0][0] * random_directions(1)[0]).sum()
    torch.testing.assert_close(attribution.node_scores()[0], expected)
    scores, inside = attribution.edge_scores(graph.edge_index, kind, node_scores(attribution))
    assert scores.tolist() == [0.0] * graph.edge_index.size(1)
    assert inside.numel() == 0
    assert list(attribution.flow()) == []


KINDS = ['endpoints', 'geometric', 'flow', 'drop']
FLOWS = ['source_to_target', 'target_to_source']


def both(graph, num_hops, node, **kwargs):
    r"""The scores of one node, by the frontier and by products over the whole graph."""
    arguments = random_decomposition(graph, num_hops, **kwargs), torch.tensor([node]), random_directions(1)
    return PulledBack(*arguments), Swept(*arguments), Tabulated(*arguments)


def compare(graph, general, *others):
    for small in others:
        assert small.neighbourhood.tolist() == general.neighbourhood.tolist()
        torch.testing.assert_close(small.signals, general.signals, **CLOSE)
        torch.testing.assert_close(small.node_scores(), general.node_scores(), **CLOSE)
        torch.testing.assert_close(small.attribute_scores(graph.x), general.attribute_scores(graph.x), **CLOSE)
        torch.testing.assert_close(small.feature_scores(graph.x), general.feature_scores(graph.x), **CLOSE)
        for kind in KINDS:
            expected, inside = general.edge_scores(graph.edge_index, kind, node_scores(general))
            found, where = small.edge_scores(graph.edge_index, kind, node_scores(general))
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
            assert sorted(where.tolist()) == sorted(inside.tolist())


@pytest.mark.parametrize('num_hops', [0, 1, 2, 3])
@pytest.mark.parametrize('flow', FLOWS)
def test_small_graphs_are_scored_alike(graph, num_hops, flow):
    for node in range(graph.x.size(0)):
        compare(graph, *both(graph, num_hops, node, flow=flow))


@pytest.mark.parametrize('flow', FLOWS)
@given(graph=graphs(), num_hops=HOPS, data=st.data())
def test_any_small_graph_is_scored_alike(flow, graph, num_hops, data):
    compare(graph, *both(graph, num_hops, data.draw(st.integers(0, graph.x.size(0) - 1)), flow=flow))


def test_products_over_the_whole_graph_are_for_one_node_of_a_small_graph(monkeypatch):
    path = Graph(torch.ones(3, 1), torch.tensor([[0, 1], [1, 2]]), torch.ones(2))

    def chosen(edge_weight, nodes, num_hops=2, **kwargs):
        decomposition = random_decomposition(path._replace(edge_weight=edge_weight), num_hops, **kwargs)
        return type(chosen_for(decomposition, nodes, once=True))

    assert chosen(torch.ones(2), [2]) is Swept
    assert chosen(torch.ones(2), [2, 0]) is PulledBack
    assert chosen(torch.tensor([1.0, 0.0]), [2]) is PulledBack
    assert chosen(torch.tensor([1.0, 1e-25]), [2]) is Swept
    assert chosen(torch.tensor([1.0, 1e-25]), [2], dtype=torch.float32) is PulledBack  # too small once it is squared
    assert chosen(torch.tensor([1.0, 1e-25]), [2], num_hops=1, dtype=torch.float32) is Swept
    monkeypatch.setattr(module, 'SMALL_GRAPH', 5)  # two edges and three self-loops
    assert chosen(torch.ones(2), [2]) is Swept
    monkeypatch.setattr(module, 'SMALL_GRAPH', 4)
    assert chosen(torch.ones(2), [2]) is PulledBack


def test_tables_are_for_single_nodes_of_a_graph_where_they_are_small(monkeypatch):
    path = Graph(torch.ones(3, 1), torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 0.0]))

    def chosen(nodes, **kwargs):
        decomposition = random_decomposition(path, 2)
        return type(chosen_for(decomposition, nodes, **kwargs))

    size = 2 * (1 + 3 + 4) * random_directions(1).numel()  # the walks of two steps, self-loops among them
    monkeypatch.setattr(tables, 'MAX_TABLE_SIZE', size)
    assert chosen([2]) is Tabulated
    assert chosen([2], once=True) is PulledBack
    assert chosen([2, 0]) is PulledBack
    monkeypatch.setattr(tables, 'MAX_TABLE_SIZE', size - 1)
    assert chosen([2]) is PulledBack


def test_tables_are_not_pickled(graph):
    decomposition = random_decomposition(graph, 2)
    before = len(pickle.dumps(decomposition))
    expected = decomposition.node_table, decomposition.edge_table
    assert len(pickle.dumps(decomposition)) == pytest.approx(before, rel=0.5)
    restored = pickle.loads(pickle.dumps(decomposition))
    for found, table in zip((restored.node_table, restored.edge_table), expected, strict=True):
        torch.testing.assert_close(found.share, table.share)


@pytest.mark.parametrize('num_hops', [1, 2])
def test_edges_without_weight_are_inside(num_hops):
    path = Graph(torch.ones(3, 1), torch.tensor([[0, 1], [1, 2]]), torch.zeros(2))
    found = chosen_for(random_decomposition(path, num_hops), [2])
    assert found.neighbourhood.tolist() == [0, 1, 2][2 - num_hops :]
    assert sorted(found.edges_inside(path.edge_index).tolist()) == [0, 1][2 - num_hops :]


@pytest.mark.parametrize('nodes', [[0], [3, 0, 3]])
@pytest.mark.parametrize('num_hops', [1, 3])
def test_flow_in_parts_is_the_whole_flow(graph, num_hops, nodes):
    attribution = attribute(graph, num_hops, [node % graph.x.size(0) for node in nodes])
    expected, whole = attribution.edge_scores(graph.edge_index, 'flow', None)[0], list(attribution.flow())
    attribution = PulledBack(attribution.decomposition, attribution.outputs, attribution.direction, Run(entries=1))
    parts = list(attribution.flow())
    assert all(entry.numel() == 1 for entry, _ in parts)
    assert torch.cat([entry for entry, _ in parts]).equal(torch.cat([entry for entry, _ in whole]))
    torch.testing.assert_close(attribution.edge_scores(graph.edge_index, 'flow', None)[0], expected)


def test_negative_weights_are_left_to_the_general_way():
    edges, weight = torch.tensor([[0, 1, 0, 2], [1, 3, 2, 3]]), torch.tensor([0.5, 0.5, -0.5, 0.0])
    decomposition = random_decomposition(Graph(torch.randn(4, 2), edges, weight), 2)
    found = chosen_for(decomposition, [3])
    assert found.neighbourhood.tolist() == [0, 1, 2, 3]
