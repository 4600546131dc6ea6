import tempfile

import pytest
import torch
from helpers import Graph, dense_adjacency
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs

from pyg_dnx.distill import solvers
from pyg_dnx.distill.solvers import fit_classifier, fit_regressor
from pyg_dnx.graph import features
from pyg_dnx.graph.features import Features, propagate
from pyg_dnx.graph.operator import normalized_adjacency

BUDGETS = {'all at once': 2**40, 'two columns': 512, 'a column on disk': 300, 'nothing': 1}  # of 8 nodes in float64


def random_matrix(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def operator_of(graph, dtype=torch.float64):
    return normalized_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0), dtype)


def is_on_disk(found):
    return [block.untyped_storage().filename is not None for block in found.blocks]


@pytest.mark.parametrize('max_bytes', BUDGETS.values(), ids=BUDGETS)
@pytest.mark.parametrize('num_hops', [0, 1, 3])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_propagated_features_equal_the_dense_power(graph, num_hops, max_bytes, dtype):
    kept = graph.x.clone()
    found = propagate(operator_of(graph), graph.x, num_hops, dtype, max_bytes)
    adjacency = dense_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0))
    expected = torch.linalg.matrix_power(adjacency, num_hops) @ graph.x.double()
    assert found.dtype == dtype
    torch.testing.assert_close(found.rows().double(), expected, rtol=1e-5, atol=1e-6)
    assert graph.x.equal(kept)


@given(graph=graphs(), num_hops=st.integers(0, 3), max_bytes=st.integers(1, 2000))
def test_no_budget_changes_the_features(graph, num_hops, max_bytes):
    whole = propagate(operator_of(graph), graph.x, num_hops, torch.float64, 2**40)
    found = propagate(operator_of(graph), graph.x, num_hops, torch.float64, max_bytes)
    torch.testing.assert_close(found.rows(), whole.rows(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ('name', 'widths', 'on_disk'),
    [
        ('all at once', [3], False),
        ('two columns', [2, 1], False),
        ('a column on disk', [1] * 3, True),
        ('nothing', [1] * 3, True),
    ],
)
def test_blocks_fit_the_budget_and_files_have_no_name(name, widths, on_disk, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    graph = Graph(random_matrix(8, 3), torch.tensor([[0, 1], [1, 2]]), None)
    found = propagate(operator_of(graph), graph.x, 1, torch.float64, BUDGETS[name])
    assert [block.size(1) for block in found.blocks] == widths
    assert is_on_disk(found) == [on_disk] * len(widths)
    assert list(tmp_path.iterdir()) == []


def test_strides_do_not_matter():
    x = random_matrix(3, 8).T
    graph = Graph(x, torch.tensor([[0, 1, 1], [1, 2, 0]]), None)
    for max_bytes in BUDGETS.values():
        found = propagate(operator_of(graph), x, 2, torch.float64, max_bytes)
        expected = propagate(operator_of(graph), x.contiguous(), 2, torch.float64, max_bytes)
        torch.testing.assert_close(found.rows(), expected.rows())


@pytest.mark.parametrize('max_bytes', BUDGETS.values(), ids=BUDGETS)
def test_without_hops_x_is_only_read(max_bytes, monkeypatch):
    monkeypatch.setattr(solvers, 'PRECISE_MAX_SIZE', 0)
    x = random_matrix(8, 3)
    kept, probs = x.clone(), torch.eye(3)[torch.arange(8) % 3]
    found = propagate(operator_of(Graph(x, torch.zeros(2, 0).long(), None), torch.float32), x, 0, x.dtype, max_bytes)
    assert found.rows().equal(x)
    fit_classifier(found, probs, 1e-2)
    fit_regressor(found, probs, 1e-2)
    found.covariance(found.mean())
    found.variance(found.mean())
    assert x.equal(kept)
    assert found.rows().equal(kept)


@pytest.fixture(params=[[5], [2, 3], [1] * 5], ids=str)
def blocks(request):
    matrix = random_matrix(11, 5).double() + 2.0
    return matrix, Features(matrix.split(request.param, dim=1))


@pytest.mark.parametrize('chunk_size', [1, 17, 2**20])
def test_chunks_are_all_rows_in_order(blocks, chunk_size, monkeypatch):
    monkeypatch.setattr(features, 'CHUNK_SIZE', chunk_size)
    matrix, found = blocks
    chunks = list(found.chunks())
    assert torch.cat([chunk for _, chunk in chunks]).equal(matrix)
    assert all(chunk.equal(matrix[rows]) for rows, chunk in chunks)
    assert len(chunks) == {1: 11, 17: 4, 2**20: 1}[chunk_size]


@pytest.mark.parametrize('chunk_size', [1, 17, 2**20])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_moments_are_those_of_the_whole_matrix(blocks, chunk_size, dtype, monkeypatch):
    monkeypatch.setattr(features, 'CHUNK_SIZE', chunk_size)
    matrix, found = blocks[0], Features([block.to(dtype) for block in blocks[1].blocks])
    close = {'rtol': 1e-5, 'atol': 1e-6} if dtype == torch.float32 else {}
    mean = found.mean()
    torch.testing.assert_close(mean, matrix.mean(dim=0), **close)
    torch.testing.assert_close(found.covariance(mean), matrix.T.cov(correction=0), **close)
    torch.testing.assert_close(found.variance(mean), matrix.var(dim=0, correction=0), **close)


@pytest.mark.parametrize('index', [slice(None), slice(2, 5), torch.tensor([7, 0, 7]), torch.arange(11) % 2 == 0])
def test_rows_join_the_blocks(blocks, index):
    matrix, found = blocks
    assert found.rows(index).equal(matrix[index])
    assert (found.num_rows, found.num_features, found.dtype) == (11, 5, torch.float64)


def test_a_matrix_is_one_block_and_not_copied():
    matrix = random_matrix(4, 3)
    found = Features.of(matrix)
    assert found.rows().data_ptr() == matrix.data_ptr()
    assert Features.of(found) is found
