from unittest import mock

import psutil
import pytest
import torch

from pyg_dnx.graph import mkl
from pyg_dnx.graph.rows import Rows, rows_of

pytestmark = pytest.mark.skipif(not mkl.is_available(), reason='this build of PyTorch has no MKL to call')


def csr(dense):
    matrix = dense.to_sparse_csr()
    return matrix.crow_indices().int(), matrix.col_indices().int(), matrix.values()


def as_dense(found, num_columns):
    rowptr, column, value = found
    assert rowptr.dtype == column.dtype == torch.int32
    return Rows(rowptr.diff().long(), column.long(), value).sorted(num_columns).matrix(num_columns).to_dense()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize(('rows', 'inner', 'columns', 'share'), [(5, 4, 7, 0.4), (1, 1, 1, 1.0)])
def test_products_are_those_of_dense_matrices(rows, inner, columns, share, dtype):
    generator = torch.Generator().manual_seed(1)
    left, right = (
        torch.rand(size, generator=generator, dtype=dtype) * (torch.rand(size, generator=generator) < share)
        for size in ((rows, inner), (inner, columns))
    )
    found = mkl.product(csr(left), csr(right), columns)
    torch.testing.assert_close(as_dense(found, columns), left @ right)
    assert found[2].dtype == dtype


def test_a_product_may_be_empty():
    left, right = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert as_dense(mkl.product(csr(left), csr(right), 2), 2).tolist() == [[0.0, 0.0]]


def test_products_leave_no_memory_behind():
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(5000, (2, 100_000), generator=generator)
    matrix = torch.sparse_coo_tensor(index, torch.ones(100_000), (5000, 5000)).coalesce().to_sparse_csr()
    parts = matrix.crow_indices().int(), matrix.col_indices().int(), matrix.values()
    size = 8 * mkl.product(parts, parts, 5000)[1].numel()
    for _ in range(5):
        mkl.product(parts, parts, 5000)
    before = psutil.Process().memory_info().rss
    for _ in range(30):  # PyTorch's own product would leave the result behind, thirty times
        mkl.product(parts, parts, 5000)
    assert psutil.Process().memory_info().rss - before < 10 * size


def test_handles_are_freed_if_a_product_fails():
    freed = []

    def call(name, *arguments):
        if name.endswith('destroy'):
            freed.append(name)
        if name == 'mkl_sparse_spmm':
            raise RuntimeError('no memory')

    one = csr(torch.ones(1, 1))
    with mock.patch.object(mkl, '_call', call), pytest.raises(RuntimeError, match='no memory'):
        mkl.product(one, one, 1)
    assert len(freed) == 2


def test_a_failure_is_named():
    with pytest.raises(RuntimeError, match='mkl_sparse_destroy failed with status'):
        mkl._call('mkl_sparse_destroy', None)


@pytest.mark.parametrize('error', [AttributeError, OSError, RuntimeError])
def test_it_is_not_available_without_the_library(error):
    with mock.patch.object(mkl, '_call', side_effect=error):
        assert not mkl.is_available.__wrapped__()


def test_it_is_not_available_if_it_counts_in_64_bits():
    two_rows = torch.tensor([0, 1, 2], dtype=torch.int32), torch.zeros(2, dtype=torch.int32), torch.ones(2)
    with mock.patch.object(mkl, '_export', return_value=two_rows):
        assert not mkl.is_available.__wrapped__()


def test_large_ids_are_left_to_others():
    from pyg_dnx.graph.operator import Operator

    wide = Operator(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), torch.tensor([-1]), torch.ones(1))
    with mock.patch.object(mkl, 'product', side_effect=AssertionError):
        assert rows_of(wide, torch.tensor([0]), 2).value.tolist() == [1.0]
