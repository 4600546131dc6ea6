r"""Many neighbourhoods in one graph: which nodes and edges, in which order, and what a model answers there."""

import pytest
import torch
from helpers import example_graphs
from hypothesis import given
from hypothesis import strategies as st
from models import CONVS, Teacher
from strategies import graphs
from torch_geometric.nn import GCNConv
from torch_geometric.utils import k_hop_subgraph

from pyg_dnx.graph.graph import Graph as Inputs
from pyg_dnx.graph.subgraphs import Neighbourhoods

FLOWS = ['source_to_target', 'target_to_source']
flows = pytest.mark.parametrize('flow', FLOWS)


def reachable(edge_index, num_nodes, num_hops, flow):
    r"""Whether a message comes to the row's node from the column's within so many hops, dense [N, N]."""
    source, target = edge_index if flow == 'source_to_target' else edge_index.flip(0)
    matrix = torch.eye(num_nodes, dtype=torch.float64)
    matrix[target, source] = 1.0
    return torch.linalg.matrix_power(matrix, num_hops) > 0


def check(edge_index, num_nodes, nodes, num_hops, flow):
    parts = Neighbourhoods(edge_index, num_nodes, flow).around(nodes, num_hops)
    reach = reachable(edge_index, num_nodes, num_hops, flow)
    assert parts.owner.diff().ge(0).all()
    assert parts.node[parts.root].equal(nodes)
    assert parts.owner[parts.root].equal(torch.arange(nodes.numel()))
    assert parts.node[parts.edge_index].equal(edge_index[:, parts.edge])
    assert parts.owner[parts.edge_index[0]].equal(parts.owner[parts.edge_index[1]])
    owner_of_edge = parts.owner[parts.edge_index[0]]
    for part, node in enumerate(nodes.tolist()):
        subset, _, _, kept = k_hop_subgraph(node, num_hops, edge_index, num_nodes=num_nodes, flow=flow)
        own_nodes, own_edges = parts.node[parts.owner == part], parts.edge[owner_of_edge == part]
        assert own_nodes.equal(subset)
        assert own_nodes.equal(reach[node].nonzero().view(-1))
        assert own_edges.equal(kept.nonzero().view(-1))  # ascending, each duplicate once
        assert own_edges.equal(reach[node][edge_index].all(dim=0).nonzero().view(-1))


@flows
@pytest.mark.parametrize('num_hops', range(5))
def test_neighbourhoods_by_a_dense_matrix(graph, num_hops, flow):
    num_nodes = graph.x.size(0)
    everyone = torch.arange(num_nodes)
    for nodes in (everyone, everyone.flip(0), everyone[-1:], torch.tensor([num_nodes - 1, 0, 0])):
        check(graph.edge_index, num_nodes, nodes, num_hops, flow)


@given(graphs(), st.integers(0, 4), st.sampled_from(FLOWS), st.data())
def test_neighbourhoods_of_any_graph(graph, num_hops, flow, data):
    num_nodes = graph.x.size(0)
    nodes = data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=6))
    check(graph.edge_index, num_nodes, torch.tensor(nodes), num_hops, flow)


@given(graphs(), st.integers(0, 4), st.sampled_from(FLOWS))
def test_sizes_bound_the_true_ones(graph, num_hops, flow):
    num_nodes = graph.x.size(0)
    sizes = Neighbourhoods(graph.edge_index, num_nodes, flow).sizes(num_hops)
    assert sizes.shape == (num_nodes,)
    assert (sizes >= reachable(graph.edge_index, num_nodes, num_hops, flow).sum(dim=1)).all()
    assert (sizes <= num_nodes).all()


@given(st.lists(st.integers(0, 99), max_size=12), st.integers(0, 5), st.sampled_from(FLOWS))
def test_sizes_of_trees_are_exact(draws, num_hops, flow):
    parents = [draw % (child + 1) for child, draw in enumerate(draws)]
    edge_index = torch.tensor([[*range(1, len(draws) + 1)], parents], dtype=torch.long)  # messages go to the root
    edge_index = edge_index if flow == 'source_to_target' else edge_index.flip(0)
    sizes = Neighbourhoods(edge_index, len(draws) + 1, flow).sizes(num_hops)
    assert sizes.tolist() == reachable(edge_index, len(draws) + 1, num_hops, flow).sum(dim=1).tolist()


def test_inputs_go_by_their_length():
    x, edge_index, edge_weight = example_graphs()['weighted']
    num_nodes, num_edges = x.size(0), edge_index.size(1)
    parts = Neighbourhoods(edge_index, num_nodes).around(torch.tensor([4, 6, 4]), 1)
    assert parts.node.tolist() == [3, 4, 5, 6, 3, 4, 5]
    other = object()
    kwargs = {
        'edge_weight': edge_weight,
        'edge_attr': torch.arange(2 * num_edges).view(num_edges, 2),
        'messages': torch.arange(num_edges),
        'batch': torch.arange(num_nodes),
        'position': torch.arange(2 * num_nodes).view(num_nodes, 2),
        'neither': torch.arange(3),
        'temperature': torch.tensor(2.0),
        'scale': 0.5,
        'nothing': None,
        'other': other,
        'names': ['a'] * num_nodes,
    }
    own = parts.graph(Inputs(x, edge_index, kwargs))
    found = own.kwargs
    assert own.x.equal(x[parts.node])
    assert own.edge_index is parts.edge_index
    assert list(found) == list(kwargs)
    for name in ('edge_weight', 'edge_attr', 'messages'):
        assert found[name].equal(kwargs[name][parts.edge])
    for name in ('batch', 'position'):
        assert found[name].equal(kwargs[name][parts.node])
    for name in ('neither', 'temperature', 'scale', 'nothing', 'other', 'names'):
        assert found[name] is kwargs[name]


def test_inputs_go_by_their_name_where_there_are_as_many_edges_as_nodes():
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 0, 3]])
    parts = Neighbourhoods(edge_index, 4).around(torch.tensor([1, 3]), 1)
    assert parts.node.tolist() == [0, 1, 3]
    assert parts.edge.tolist() == [0, 3]
    values = torch.arange(4)
    kwargs = {'edge_weight': values, 'my_edges': values, 'label': values}
    found = parts.graph(Inputs(torch.eye(4), edge_index, kwargs)).kwargs
    assert found['edge_weight'].tolist() == found['my_edges'].tolist() == [0, 3]
    assert found['label'].tolist() == [0, 1, 3]


def sparse_graph(conv):
    r"""A graph that no neighbourhood covers, with loops, duplicates, weights and edges of one direction only."""
    generator = torch.Generator().manual_seed(4)
    path = torch.stack([torch.arange(19), torch.arange(1, 20)])
    more = torch.tensor([[2, 2, 7, 7, 15, 4], [2, 9, 8, 8, 15, 18]])
    edge_index = torch.cat([path, path[:, 5:].flip(0), more], dim=1)
    kwargs = {'edge_weight': torch.rand(edge_index.size(1), generator=generator)} if conv == 'weighted' else {}
    return torch.randn(21, 3, generator=generator), edge_index, kwargs


def answers(model, x, edge_index, kwargs, nodes, num_hops, flow='source_to_target'):
    r"""What the model answers at ``nodes`` on copies of their neighbourhoods, and on the graph."""
    parts = Neighbourhoods(edge_index, x.size(0), flow).around(nodes, num_hops)
    whole = Inputs(x, edge_index, kwargs)
    assert torch.bincount(parts.owner).max() < x.size(0)
    with torch.no_grad():
        return parts.graph(whole).call(model)[parts.root], whole.call(model)[nodes]


@pytest.mark.parametrize('conv', CONVS)
def test_a_model_answers_as_on_the_graph(conv):
    model, inputs = Teacher(conv).eval(), sparse_graph(conv)
    nodes = torch.arange(20, -1, -1)
    found, expected = answers(model, *inputs, nodes, 3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # what is two hops away does not know its own degree, unless the edges of the next hop are there
    found, expected = answers(model, *inputs, nodes, 2)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5) == (conv not in ('gcn', 'weighted'))
    found, expected = answers(model, *inputs, nodes, 1)
    assert not torch.allclose(found, expected, rtol=1e-2, atol=1e-2)


def test_the_rim_loses_degrees_unless_the_next_hop_is_there():
    path = torch.stack([torch.arange(3), torch.arange(1, 4)])
    neighbourhoods = Neighbourhoods(torch.cat([path, path.flip(0)], dim=1), 4)
    for num_hops, expected in [(2, [1, 2, 1]), (3, [1, 2, 2, 1])]:
        parts = neighbourhoods.around(torch.tensor([0]), num_hops)
        assert torch.bincount(parts.edge_index[1]).tolist() == expected


@flows
def test_messages_against_the_edges(flow):
    torch.manual_seed(0)
    x, edge_index, kwargs = sparse_graph('weighted')
    layer, nodes = GCNConv(3, 2, flow=flow), torch.arange(21)
    found, expected = answers(layer, x, edge_index, kwargs, nodes, 2, flow)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    found, expected = answers(layer, x, edge_index, kwargs, nodes, 2, FLOWS[1 - FLOWS.index(flow)])
    assert not torch.allclose(found, expected, rtol=1e-2, atol=1e-2)
