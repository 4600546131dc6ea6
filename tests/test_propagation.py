import pytest
import torch
from helpers import dense_adjacency, graphs
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.nn import SGConv

from pyg_dnx.propagation import normalized_adjacency, pull_back, row_chunks, rows


def to_dense(operator):
    return operator @ torch.eye(operator.num_nodes, dtype=operator.value.dtype)


def build(graph, **kwargs):
    return normalized_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0), torch.float64, **kwargs)


def test_matches_dense_definition(graph):
    expected = dense_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0))
    torch.testing.assert_close(to_dense(build(graph)), expected)
    torch.testing.assert_close(to_dense(build(graph).transposed), expected.T)


@given(graphs())
def test_matches_dense_definition_on_any_graph(graph):
    expected = dense_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0))
    torch.testing.assert_close(to_dense(build(graph)), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize('num_hops', [1, 2, 3])
@pytest.mark.parametrize('flow', ['source_to_target', 'target_to_source'])
def test_agrees_with_sgconv(graph, num_hops, flow):
    conv = SGConv(graph.x.size(1), 2, K=num_hops, bias=False, flow=flow).double()
    propagated = graph.x.double()
    for _ in range(num_hops):
        propagated = build(graph, flow=flow) @ propagated
    weight = None if graph.edge_weight is None else graph.edge_weight.double()
    torch.testing.assert_close(conv.lin(propagated), conv(graph.x.double(), graph.edge_index, weight))
