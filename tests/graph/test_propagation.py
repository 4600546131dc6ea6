from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch
from helpers import Graph, dense_adjacency, random_surrogate, relabelled
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs
from torch_geometric import EdgeIndex
from torch_geometric.nn import SGConv

from pyg_dnx.distill.decomposition import decompose
from pyg_dnx.graph import rows as propagation
from pyg_dnx.graph.graph import Graph as Inputs
from pyg_dnx.graph.operator import normalized_adjacency
from pyg_dnx.graph.readout import Readout
from pyg_dnx.graph.rows import Rows, has_sparse_products, inner_products, padded_rows, pull_back, rows_of

SPARSE_LAYOUTS = {'coo': torch.sparse_coo, 'csr': torch.sparse_csr, 'csc': torch.sparse_csc}


def to_dense(operator):
    return operator @ torch.eye(operator.num_nodes, dtype=operator.value.dtype)


def build(graph, **kwargs):
    return normalized_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0), torch.float64, **kwargs)


def dense(graph):
    return dense_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0))


def to_sparse(graph, kind):
    num_nodes, (source, target) = graph.x.size(0), graph.edge_index
    weight = torch.ones(source.numel()) if graph.edge_weight is None else graph.edge_weight
    if kind == 'SparseTensor':
        sparse = pytest.importorskip('torch_sparse')
        return sparse.SparseTensor(row=target, col=source, value=weight.double(), sparse_sizes=(num_nodes, num_nodes))
    indices = torch.stack([target, source])
    matrix = torch.sparse_coo_tensor(indices, weight.double(), (num_nodes, num_nodes), check_invariants=True)
    return matrix.coalesce().to_sparse(layout=SPARSE_LAYOUTS[kind])


def test_matches_dense_definition(graph):
    torch.testing.assert_close(to_dense(build(graph)), dense(graph))
    torch.testing.assert_close(to_dense(build(graph).transposed), dense(graph).T)


@given(graphs())
def test_matches_dense_definition_on_any_graph(graph):
    torch.testing.assert_close(to_dense(build(graph)), dense(graph), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize('num_hops', [1, 2, 3])
@pytest.mark.parametrize('flow', ['source_to_target', 'target_to_source'])
def test_agrees_with_sgconv(graph, num_hops, flow):
    conv = SGConv(graph.x.size(1), 2, K=num_hops, bias=False, flow=flow).double()
    propagated = graph.x.double()
    for _ in range(num_hops):
        propagated = build(graph, flow=flow) @ propagated
    weight = None if graph.edge_weight is None else graph.edge_weight.double()
    torch.testing.assert_close(conv.lin(propagated), conv(graph.x.double(), graph.edge_index, weight))


def test_a_node_of_degree_zero_neither_sends_nor_receives():
    x, edges = torch.tensor([[1.0], [2.0], [4.0]]).double(), torch.tensor([[0, 0, 2, 1], [0, 1, 1, 2]])
    for weight in ([0.0, 1.0, 1.0, 1.0], [0.0, 2.0, -3.0, 1.0]):  # of its own loop, or of all that it receives
        weight = torch.tensor(weight).double()
        conv = SGConv(1, 1, K=1, bias=False).double()
        operator = normalized_adjacency(edges, weight, 3, torch.float64)
        torch.testing.assert_close(conv.lin(operator @ x), conv(x, edges, weight))
        assert operator.scale[0] == 0.0


@pytest.mark.parametrize('flow', ['source_to_target', 'target_to_source'])
def test_agrees_with_sgconv_on_edge_index_class(graph, flow):
    num_nodes = graph.x.size(0)
    edges = EdgeIndex(graph.edge_index, sparse_size=(num_nodes, num_nodes))
    conv = SGConv(graph.x.size(1), 2, K=1, bias=False, flow=flow).double()
    weight = None if graph.edge_weight is None else graph.edge_weight.double()
    operator = normalized_adjacency(edges, weight, num_nodes, torch.float64, flow)
    torch.testing.assert_close(conv.lin(operator @ graph.x.double()), conv(graph.x.double(), edges, weight))


@pytest.mark.parametrize('kind', ['SparseTensor', 'coo', 'csr', 'csc'])
@pytest.mark.filterwarnings('ignore:Converting sparse tensor', 'ignore:Sparse')
def test_agrees_with_sgconv_on_sparse_matrices(graph, kind):
    conv = SGConv(graph.x.size(1), 2, K=1, bias=False).double()
    operator = normalized_adjacency(to_sparse(graph, kind), None, graph.x.size(0), torch.float64)
    # PyG does not normalise CSC matrices; they mean what the same matrix in CSR means.
    expected = conv(graph.x.double(), to_sparse(graph, 'csr' if kind == 'csc' else kind))
    torch.testing.assert_close(conv.lin(operator @ graph.x.double()), expected)


def test_sparse_tensor_without_values_has_unit_weights(graph):
    matrix = to_sparse(graph, 'SparseTensor').set_value(None)
    conv = SGConv(graph.x.size(1), 2, K=1, bias=False).double()
    operator = normalized_adjacency(matrix, None, graph.x.size(0), torch.float64)
    ones = matrix.set_value(torch.ones(matrix.nnz(), dtype=torch.float64), layout='coo')
    torch.testing.assert_close(conv.lin(operator @ graph.x.double()), conv(graph.x.double(), ones))


@given(graphs(), st.randoms(use_true_random=False))
def test_order_of_edges_and_nodes_does_not_matter(graph, random):
    if graph.edge_weight is not None:  # of duplicate self-loops the last counts, so give them one weight
        graph.edge_weight[graph.edge_index[0] == graph.edge_index[1]] = 0.5
    order = torch.tensor(random.sample(range(graph.edge_index.size(1)), graph.edge_index.size(1)), dtype=torch.long)
    weight = None if graph.edge_weight is None else graph.edge_weight[order]
    shuffled = Graph(graph.x, graph.edge_index[:, order], weight)
    torch.testing.assert_close(to_dense(build(shuffled)), to_dense(build(graph)))
    permutation = torch.tensor(random.sample(range(graph.x.size(0)), graph.x.size(0)))
    expected = to_dense(build(graph))[permutation][:, permutation]
    torch.testing.assert_close(to_dense(build(relabelled(graph, permutation))), expected)


@pytest.mark.parametrize('flow', ['source_to_target', 'target_to_source'])
def test_entries_point_back_to_edges(graph, flow):
    operator = build(graph, flow=flow)
    edges = graph.edge_index if flow == 'source_to_target' else graph.edge_index.flip(0)
    row = torch.arange(operator.num_nodes).repeat_interleave(operator.rowptr.diff())
    given_ = operator.edge_id >= 0
    assert edges[:, operator.edge_id[given_]].equal(torch.stack([operator.col, row])[:, given_])
    assert operator.col[~given_].equal(row[~given_])  # all others are added self-loops

    kept = operator.edge_id[given_].sort().values.tolist()
    loops = {source: e for e, (source, target) in enumerate(edges.T.tolist()) if source == target}
    links = [e for e, (source, target) in enumerate(edges.T.tolist()) if source != target]
    assert kept == sorted([*links, *loops.values()])  # the last of duplicate self-loops

    weight = torch.ones(edges.size(1)) if graph.edge_weight is None else graph.edge_weight
    degree = torch.ones(operator.num_nodes, dtype=torch.float64)
    degree[list(loops)] = weight[list(loops.values())].double()
    degree.index_add_(0, edges[1, links], weight[links].double())
    carried = torch.ones(row.numel(), dtype=torch.float64)
    carried[given_] = weight[operator.edge_id[given_]].double()
    torch.testing.assert_close(operator.value, carried / (degree[row] * degree[operator.col]).sqrt())


@pytest.mark.parametrize('bad', [-3.0, torch.nan, torch.inf])
def test_weights_without_a_degree_raise(bad):
    edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match=r"'edge_weight' must .* \(got weights between .*\): pass finite weights"):
        normalized_adjacency(edge_index, torch.tensor([1.0, bad]), 3, torch.float64)


@pytest.mark.parametrize('share', [0.0, 2.0], ids=['full', 'frontier'])
@given(graph=graphs(), num_hops=st.integers(0, 4), data=st.data())
def test_pull_back_equals_dense_powers(share, graph, num_hops, data):
    num_nodes = graph.x.size(0)
    nodes = torch.tensor(sorted(data.draw(st.sets(st.integers(0, num_nodes - 1), min_size=1))))
    signal = torch.randn(nodes.numel(), 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with mock.patch.object(propagation, 'FULL_PRODUCT_SHARE', share):
        steps = pull_back(build(graph), nodes, signal, num_hops)

    expected = torch.zeros(num_nodes, 2, dtype=torch.float64)
    expected[nodes] = signal
    is_reached = torch.zeros(num_nodes, dtype=torch.bool)
    is_reached[nodes] = True
    assert len(steps) == num_hops + 1
    assert steps[-1].entry.tolist() == steps[-1].owner.tolist() == []  # where no step follows
    for reached, value, *_ in steps:
        assert reached.tolist() == is_reached.nonzero().view(-1).tolist()
        torch.testing.assert_close(value, expected[reached], rtol=1e-6, atol=1e-9)
        expected = dense(graph).T @ expected
        is_reached = (dense(graph)[is_reached] > 0).any(dim=0)


@pytest.mark.parametrize(('share', 'full'), [(0.24, True), (0.25, False)])
def test_the_share_of_touched_edges_decides(share, full):
    operator = normalized_adjacency(torch.zeros(2, 0, dtype=torch.long), None, 8, torch.float64)
    with mock.patch.object(propagation, 'FULL_PRODUCT_SHARE', share):
        pull_back(operator, torch.tensor([1, 2]), torch.ones(2, 1, dtype=torch.float64), 1)
    assert ('transposed' in vars(operator)) == full


@pytest.mark.parametrize('share', [0.0, 2.0], ids=['full', 'frontier'])
def test_neighbourhoods_are_structural(share):
    operator = normalized_adjacency(torch.tensor([[0, 1], [1, 2]]), torch.zeros(2), 3, torch.float64)
    with mock.patch.object(propagation, 'FULL_PRODUCT_SHARE', share):
        steps = pull_back(operator, torch.tensor([2]), torch.ones(1, 1, dtype=torch.float64), 2)
    assert [step.nodes.tolist() for step in steps] == [[2], [1, 2], [0, 1, 2]]
    assert steps[2][1].view(-1).tolist() == [0.0, 0.0, 1.0]


def decomposed(operator, num_hops):
    surrogate = random_surrogate(3, num_hops)
    graph = Inputs(torch.zeros(operator.num_nodes, 3), None, {}, operators={(surrogate.flow, torch.float64): operator})
    return decompose(surrogate, graph, Readout(operator.num_nodes))


@given(graph=graphs(), num_hops=st.integers(0, 3), max_entries=st.integers(1, 40), data=st.data())
def test_chunks_of_rows_cover_all_positions_in_order(graph, num_hops, max_entries, data):
    nodes = torch.tensor(data.draw(st.lists(st.integers(0, graph.x.size(0) - 1), min_size=1, max_size=20)))
    operator = build(graph)
    chunks = decomposed(operator, num_hops).chunks(nodes, max_entries)
    assert torch.cat(chunks).tolist() == list(range(nodes.numel()))
    sizes = [rows_of(operator, nodes[chunk], num_hops).column.numel() for chunk in chunks]
    largest = max(rows_of(operator, node[None], num_hops).column.numel() for node in nodes)
    assert max(sizes) <= max_entries + largest


def test_chunks_of_rows_are_cut_no_more_than_they_must():
    nodes, one = torch.arange(6), torch.tensor([[0], [1]])  # rows of 1, 2, 1, 1, 1 and 1 entries
    few = decomposed(normalized_adjacency(one, None, 6, torch.float64), 1)
    assert [chunk.tolist() for chunk in few.chunks(nodes, 2**20)] == [[0, 1, 2, 3, 4, 5]]
    assert len(few.chunks(nodes, 4)) == 2
    assert len(few.chunks(nodes, 1)) == 6
    every = torch.cartesian_prod(nodes, nodes).T  # rows of 6 entries
    complete = decomposed(normalized_adjacency(every, None, 6, torch.float64), 2)
    assert [chunk.tolist() for chunk in complete.chunks(nodes, 36)] == [[0, 1, 2, 3, 4, 5]]
    assert [chunk.tolist() for chunk in complete.chunks(nodes, 12)] == [[0], [1, 2], [3, 4], [5]]
    assert [chunk.tolist() for chunk in complete.chunks(nodes[:2], 1)] == [[0], [1]]


@given(count=st.lists(st.integers(1, 9), min_size=1, max_size=20), width=st.integers(1, 3), limit=st.integers(1, 60))
def test_padded_rows_list_every_entry_once(count, width, limit):
    count = torch.tensor(count)
    owner = torch.arange(count.numel()).repeat_interleave(count)
    seen = []
    for group, entry, inside in padded_rows(count, width, limit):
        assert inside.sum(dim=1).tolist() == count[group].tolist()
        assert entry.numel() * width <= limit or group.numel() == 1
        assert owner[entry[inside]].equal(group.repeat_interleave(count[group]))
        seen += entry[inside].tolist()
    assert sorted(seen) == list(range(owner.numel()))


@pytest.mark.parametrize(
    ('limit', 'width', 'sizes'),
    [(2**20, 1, [4, 1, 2]), (8, 1, [2, 2, 1, 2]), (8, 2, [1, 1, 1, 1, 1, 2]), (1, 1, [1] * 7)],
)
def test_padded_rows_are_cut_no_more_than_they_must(limit, width, sizes):
    groups = [group for group, *_ in padded_rows(torch.tensor([1, 4, 3, 2, 4, 1, 4]), width, limit)]
    assert [group.numel() for group in groups] == sizes


@contextmanager
def multiplying(way):
    with (
        mock.patch.object(propagation.mkl, 'is_available', return_value=way == 'mkl'),
        mock.patch.object(propagation, 'has_sparse_products', return_value=way == 'torch'),
        mock.patch.object(propagation, 'LEAKING', frozenset()),
    ):
        yield


@pytest.mark.parametrize('way', ['mkl', 'torch', 'sorting'])
@given(graph=graphs(), num_hops=st.integers(0, 3), data=st.data())
def test_rows_equal_rows_of_the_dense_power(way, graph, num_hops, data):
    num_nodes = graph.x.size(0)
    nodes = torch.tensor(data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=6)))
    with multiplying(way):
        length, column, value = rows_of(build(graph), nodes, num_hops).sorted(num_nodes)
    owner = torch.arange(nodes.numel()).repeat_interleave(length)
    key = owner * num_nodes + column
    assert bool((key.diff() > 0).all())  # sorted, each entry once
    found = torch.zeros(nodes.numel(), num_nodes, dtype=torch.float64)
    found[owner, column] = value
    expected = torch.linalg.matrix_power(dense(graph), num_hops)[nodes]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    assert key.numel() == int((expected > 0).sum())


@pytest.mark.skipif(not propagation.mkl.is_available(), reason='needs MKL')
@pytest.mark.parametrize(('index', 'count'), [(torch.int32, 2), (torch.int64, 0)])
def test_mkl_multiplies_what_it_can(index, count):
    operator = normalized_adjacency(torch.tensor([[0, 1], [1, 2]]), None, 3, torch.float64)
    operator = replace(operator, col=operator.col.to(index))
    with mock.patch.object(propagation.mkl, 'product', wraps=propagation.mkl.product) as product:
        rows_of(operator, torch.tensor([2]), 2)
    assert product.call_count == count


@pytest.mark.parametrize('leaking', [frozenset(), propagation.LEAKING])
def test_products_that_lose_memory_are_left(leaking):
    operator = normalized_adjacency(torch.tensor([[0, 1], [1, 2]]), None, 3, torch.float64)
    listing = mock.patch.object(propagation, '_next_rows', wraps=propagation._next_rows)
    with multiplying('torch'), mock.patch.object(propagation, 'LEAKING', leaking), listing as listed:
        rows_of(operator, torch.tensor([2]), 2)
    assert listed.call_count == (2 if leaking else 0)


@pytest.mark.parametrize('way', ['torch', 'sorting'])
def test_inner_products_are_sampled_where_they_can_be(way):
    rows, vectors = Rows(torch.tensor([2]), torch.tensor([0, 1]), torch.ones(2)), torch.ones(2, 3)
    with multiplying(way), mock.patch('torch.sparse.sampled_addmm', wraps=torch.sparse.sampled_addmm) as sampled:
        assert inner_products(rows, vectors[:1], vectors).tolist() == [3.0, 3.0]
    assert sampled.called == (way == 'torch')


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize(('width', 'padded'), [(1, 1), (2, 8), (7, 8), (8, 8), (13, 13)])
def test_vectors_are_padded_where_that_is_faster(dtype, width, padded):
    rows = Rows(torch.tensor([3, 3]), torch.arange(3).repeat(2), torch.ones(6, dtype=dtype))
    left, right = (torch.randn(size, width, dtype=dtype) for size in (2, 3))
    with mock.patch('torch.sparse.sampled_addmm', wraps=torch.sparse.sampled_addmm) as sampled:
        torch.testing.assert_close(inner_products(rows, left, right), (left @ right.T).flatten())
    assert sampled.call_args.args[1].size(1) == (padded if dtype == torch.float32 else width)


def test_sparse_products_on_a_cpu_take_mkl():
    assert has_sparse_products('cpu') == torch.backends.mkl.is_available()
    with mock.patch('torch.sparse.sampled_addmm', side_effect=NotImplementedError):
        assert not has_sparse_products.__wrapped__('cpu')


def as_dense(rows, num_nodes):
    found = torch.zeros(rows.length.numel(), num_nodes, dtype=rows.value.dtype)
    owner = torch.arange(rows.length.numel()).repeat_interleave(rows.length)
    return found.index_put_((owner, rows.column.long()), rows.value, accumulate=True)


def some_nodes(data, graph):
    return torch.tensor(data.draw(st.lists(st.integers(0, graph.x.size(0) - 1), min_size=1, max_size=6)))


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@given(graph=graphs(), num_hops=st.integers(0, 3), data=st.data())
def test_inner_products_are_those_of_the_entries(dtype, graph, num_hops, data):
    nodes, num_nodes = some_nodes(data, graph), graph.x.size(0)
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.randn(size, 4, generator=generator).to(dtype) for size in (nodes.numel(), num_nodes))
    rows = rows_of(normalized_adjacency(*graph[1:], num_nodes, dtype), nodes, num_hops)
    kept = rows.value.clone()
    expected = (left.double() @ right.double().T) * (as_dense(rows, num_nodes) > 0)
    found = inner_products(rows, left, right)
    with multiplying('sorting'):
        alone = inner_products(rows, left, right)
    for value in (found, alone):
        assert value.dtype == dtype
        torch.testing.assert_close(
            as_dense(rows._replace(value=value), num_nodes).double(), expected, rtol=1e-4, atol=1e-5
        )
    assert rows.value.equal(kept)


@pytest.mark.parametrize('index', [torch.int32, torch.int64])
def test_rows_are_sorted_by_column(index):
    rows = Rows(torch.tensor([3, 0, 2]), torch.tensor([4, 0, 2, 3, 1], dtype=index), torch.arange(5.0))
    found = rows.sorted(5)
    assert found.length.tolist() == [3, 0, 2]
    assert found.column.tolist() == [0, 2, 4, 1, 3]
    assert found.value.tolist() == [1.0, 2.0, 0.0, 4.0, 3.0]
    assert rows.column.tolist() == [4, 0, 2, 3, 1]


def test_values_in_the_order_of_other_rows():
    rows = Rows(torch.tensor([3, 0, 2]), torch.tensor([4, 0, 2, 3, 1]), torch.arange(5.0))
    other = Rows(rows.length, torch.tensor([2, 4, 0, 3, 1]), torch.zeros(5))
    assert rows.values_in(other, 5).tolist() == [2.0, 0.0, 1.0, 3.0, 4.0]
    assert rows.values_in(rows, 5) is rows.value


def test_rows_may_be_longer_than_int32():
    column = torch.tensor([2**31 - 2, 5, 2**31 - 1, 7, 0])
    found = Rows(torch.tensor([2, 1, 2]), column, torch.arange(5.0)).sorted(2**31)
    assert found.column.tolist() == [5, 2**31 - 2, 2**31 - 1, 0, 7]
    assert found.value.tolist() == [1.0, 0.0, 2.0, 4.0, 3.0]


def test_rows_may_be_more_than_int32_in_all():
    operator = normalized_adjacency(torch.zeros(2, 0, dtype=torch.long), None, 2**15, torch.float64)
    nodes = torch.arange(2**15).repeat(2)
    with multiplying('sorting'):
        rows = rows_of(operator, nodes, 1)
    assert rows.length.equal(torch.ones_like(nodes))
    assert rows.column.equal(nodes)


@pytest.mark.parametrize('way', ['mkl', 'torch', 'sorting'])
def test_edges_without_weight_stay_in_the_rows(way):
    operator = normalized_adjacency(torch.tensor([[0, 1], [1, 2]]), torch.zeros(2), 3, torch.float64)
    with multiplying(way):
        rows = rows_of(operator, torch.tensor([2, 0]), 2).sorted(3)
    assert rows.length.tolist() == [3, 1]
    assert rows.column.tolist() == [0, 1, 2, 0]
    assert rows.value.tolist() == [0.0, 0.0, 1.0, 1.0]
