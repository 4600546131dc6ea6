from itertools import pairwise
from unittest import mock

import pytest
import torch
from helpers import Graph, dense_adjacency, dense_masked_adjacency, dense_sums, example_graphs, is_overwritten
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs

from pyg_dnx.graph.operator import Operator, index_type, normalized_adjacency

FLOWS = ['source_to_target', 'target_to_source']
CLOSE = {'rtol': 1e-6, 'atol': 1e-9}


def build(graph, **kwargs):
    return normalized_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0), torch.float64, **kwargs)


def dense(graph):
    return dense_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0))


def counts(graph):
    r"""How many messages each node (row) gets from each other, parallel edges apart, [N, N]."""
    matrix = torch.eye(graph.x.size(0), dtype=torch.float64)
    for source, target in graph.edge_index.T.tolist():
        matrix[target, source] += source != target
    return matrix


@pytest.mark.parametrize('step', [None, 1, 3])
@given(graph=graphs())
def test_csr_has_parallel_edges_in_one_entry(step, graph):
    def ranges(operator):
        return (range(i, min(i + step, operator.num_nodes)) for i in range(0, operator.num_nodes, step))

    with mock.patch.object(Operator, '_row_ranges', ranges if step else Operator._row_ranges):
        matrix = build(graph).csr
    torch.testing.assert_close(matrix.to_dense(), dense(graph), **CLOSE)
    assert matrix.values().numel() == int((dense(graph) > 0).sum())


def test_csr_merges_in_every_range_of_rows():
    edge_index = torch.tensor([[1, 1, 0, 4, 4, 4], [0, 0, 5, 3, 3, 3]])
    graph = Graph(torch.zeros(6, 1), edge_index, 0.5 + torch.arange(6.0))
    for step in [1, 2, 5]:
        ranges = [range(i, min(i + step, 6)) for i in range(0, 6, step)]
        with mock.patch.object(Operator, '_row_ranges', lambda self, ranges=ranges: iter(ranges)):
            matrix = build(graph).csr
        assert matrix.crow_indices().diff().tolist() == [2, 1, 1, 2, 1, 2]
        torch.testing.assert_close(matrix.to_dense(), dense(graph))


def test_ranges_of_rows_fit_the_index():
    edge_index = torch.tensor([[0, 0], [2**16 - 1, 2**16 - 1]])
    operator = build(Graph(torch.zeros(2**16, 1), edge_index, None))
    assert operator.col.dtype == torch.int32
    ends = [0, 2**15 - 1, 2**16 - 2, 2**16]  # 2**15 - 1 rows of 2**16 columns are the most below 2**31
    assert list(operator._row_ranges()) == [range(*pair) for pair in pairwise(ends)]
    assert operator.csr.crow_indices().diff().tolist() == [1] * (2**16 - 1) + [2]


def test_csr_without_parallel_edges_is_the_operator_itself():
    operator = build(example_graphs()['weighted'])
    assert operator.csr.col_indices().data_ptr() == operator.col.data_ptr()
    assert operator.csr.values().data_ptr() == operator.value.data_ptr()


@given(graph=graphs(), num_hops=st.integers(0, 4))
def test_walks_are_counted(graph, num_hops):
    operator = build(graph)
    expected = torch.linalg.matrix_power(counts(graph), num_hops).sum(dim=1)
    assert operator.walks(num_hops).tolist() == expected.tolist()
    assert operator.walks(0).tolist() == [1.0] * graph.x.size(0)  # whatever was counted before
    reached = torch.linalg.matrix_power(dense(graph), num_hops) > 0
    assert bool((operator.walks(num_hops) >= reached.sum(dim=1)).all())


def test_walks_without_number_are_still_numbers():
    nodes = torch.arange(8)
    complete = torch.cartesian_prod(nodes, nodes).T.contiguous()
    assert bool(build(Graph(torch.zeros(8, 1), complete, None)).walks(60).isfinite().all())


@given(graph=graphs(), data=st.data())
def test_entries_are_those_of_the_rows(graph, data):
    nodes = data.draw(st.lists(st.integers(0, graph.x.size(0) - 1), min_size=1, max_size=5))
    operator = build(graph)
    entry, owner = operator.entries(torch.tensor(nodes))
    start = operator.rowptr.tolist()
    expected = [(e, b) for b, node in enumerate(nodes) for e in range(start[node], start[node + 1])]
    assert list(zip(entry.tolist(), owner.tolist(), strict=True)) == expected
    assert operator.length.tolist() == counts(graph).sum(dim=1).tolist()


@pytest.mark.parametrize('flow', FLOWS)
@given(graph=graphs())
def test_edge_values_share_out_the_matrix(flow, graph):
    operator = build(graph, flow=flow)
    received = graph if flow == 'source_to_target' else graph._replace(edge_index=graph.edge_index.flip(0))
    matrix, edges = dense(received), received.edge_index.T.tolist()
    weight = torch.ones(len(edges)) if graph.edge_weight is None else graph.edge_weight
    expected = torch.zeros(len(edges), dtype=torch.float64)
    for e, (source, target) in enumerate(edges):
        parallel = [other for other, pair in enumerate(edges) if pair == [source, target]]
        part = weight[e].double() / weight[parallel].double().sum() if source != target else 1.0
        expected[e] = 0.0 if is_overwritten(received.edge_index, e) else matrix[target, source] * part
    torch.testing.assert_close(operator.edge_value, expected, **CLOSE)


@pytest.mark.parametrize('flow', FLOWS)
@pytest.mark.parametrize('own_loops', [False, True])
@given(graph=graphs(), seed=st.integers(0, 2**16))
def test_masked_messages_count_by_their_mask(flow, own_loops, graph, seed):
    if own_loops:  # each node exactly one, so that none is added and all are masked
        links = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
        loops = torch.arange(graph.x.size(0)).repeat(2, 1)
        graph = graph._replace(edge_index=torch.cat([links, loops], dim=1), edge_weight=None)
    mask = torch.rand(graph.edge_index.size(1), generator=torch.Generator().manual_seed(seed))
    found = build(graph, flow=flow).masked(mask)
    torch.testing.assert_close(found.csr.to_dense(), dense_masked_adjacency(graph, mask, flow), **CLOSE)


@given(graph=graphs())
def test_sums_are_the_weights_over_the_largest(graph):
    weight = torch.ones(graph.edge_index.size(1)) if graph.edge_weight is None else graph.edge_weight
    matrix = dense_sums(graph.edge_index, graph.edge_weight, graph.x.size(0))
    largest = torch.cat([matrix.diagonal(), weight[graph.edge_index[0] != graph.edge_index[1]].double()]).max()
    found = build(graph).sums
    torch.testing.assert_close(found.csr.to_dense(), matrix / largest, **CLOSE)
    assert found.scale.tolist() == [1.0] * graph.x.size(0)


def test_sums_where_no_message_has_a_weight():
    graph = Graph(torch.zeros(3, 1), torch.tensor([[0, 1, 2], [1, 0, 2]]), torch.tensor([2.0, 2.0, 0.0]))
    assert build(graph).sums.csr.to_dense().tolist() == [[0.5, 1.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(('weight', 'expected'), [([1.0, 1.0], 0.5), ([1.0, 0.0], 0.0), ([-0.5, 1.0], -0.5 * 2**0.5)])
def test_smallest_entry(weight, expected):
    operator = build(Graph(torch.zeros(3, 1), torch.tensor([[0, 1], [1, 2]]), torch.tensor(weight)))
    assert operator.smallest == pytest.approx(expected)


@pytest.mark.parametrize('flow', FLOWS)
def test_transposed_keeps_values_and_edges(graph, flow):
    operator = build(graph, flow=flow)
    torch.testing.assert_close(operator.transposed.csr.to_dense(), operator.csr.to_dense().T)
    torch.testing.assert_close(operator.transposed.transposed.csr.to_dense(), operator.csr.to_dense())
    torch.testing.assert_close(operator.transposed.edge_value, operator.edge_value)


def test_transposed_of_a_matrix_has_no_edges():
    source, target = torch.tensor([[0, 1, 1], [1, 2, 0]])
    indices, weight = torch.stack([target, source]), torch.tensor([1.0, 2.0, 3.0])
    matrix = torch.sparse_coo_tensor(indices, weight, (3, 3), check_invariants=True)
    operator = normalized_adjacency(matrix.to_sparse_csr(), None, 3, torch.float64)
    torch.testing.assert_close(operator.transposed.csr.to_dense(), operator.csr.to_dense().T)
    assert operator.transposed.edge_id.numel() == 0


def test_indices_are_no_longer_than_they_must_be():
    assert [index_type(count) for count in (1, 2**31 - 1, 2**31)] == [torch.int32, torch.int32, torch.int64]
