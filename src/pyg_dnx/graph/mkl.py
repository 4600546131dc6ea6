r"""Products of two sparse matrices on the CPU, by the MKL that comes inside PyTorch.

PyTorch's own ``a @ b`` calls the same function, but never frees the result that MKL allocates for it: eight bytes for
each entry, at every product (seen in 2.13). Hence the library is called directly where it can be found, since
``libtorch_cpu.so`` exports it. MKL calls a matrix a handle, and returns a status, which is zero if all went well.
"""

from __future__ import annotations

import ctypes
import os.path as osp
from functools import cache
from typing import Any

import torch
from torch import Tensor

_FROM_ZERO, _NOT_TRANSPOSED = 0, 10
_PREFIX = {torch.float32: 's', torch.float64: 'd'}

Csr = tuple[Tensor, Tensor, Tensor]  # rowptr [N + 1] and column [nnz], both int32, and value [nnz]


def product(left: Csr, right: Csr, num_columns: int) -> Csr:
    r"""Multiplies two matrices of one floating-point type and with entries, the second with ``num_columns`` columns.

    In each row of the result, columns are in any order.
    """
    handles = []
    try:
        for (rowptr, column, value), width in ((left, right[0].numel() - 1), (right, num_columns)):
            handles.append(_create(rowptr[:-1], rowptr[1:], column, value, width))
        handles.append(_multiply(*handles))
        return _export(handles[2], left[0].numel() - 1, left[2].dtype)
    finally:
        for handle in handles:
            _call('mkl_sparse_destroy', handle)


@cache
def is_available() -> bool:
    r"""Whether the library is there and counts in 32 bits: a build that counts in 64 must not be given such numbers."""
    # Here is a row of one entry and an empty one. Read as 64 bits, it is two rows of one entry.
    start, end, column = (
        torch.tensor(numbers, dtype=torch.int32, device='cpu') for numbers in ([0, 0, 1, 0], [1, 0, 2, 0], [0, 0, 0, 0])
    )
    try:
        matrix = _create(start, end, column, torch.ones(2, device='cpu'), 2, num_rows=2)
        return _export(_multiply(matrix, matrix), 2, torch.float32)[0].tolist() == [0, 1, 1]
    except (AttributeError, OSError, RuntimeError):
        return False


def _create(
    start: Tensor, end: Tensor, column: Tensor, value: Tensor, num_columns: int, num_rows: int | None = None
) -> ctypes.c_void_p:
    r"""A handle on tensors, which must outlive it."""
    handle, num_rows = ctypes.c_void_p(), start.numel() if num_rows is None else num_rows
    places = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (start, end, column, value)]
    name = f'mkl_sparse_{_PREFIX[value.dtype]}_create_csr'
    _call(name, ctypes.byref(handle), _FROM_ZERO, num_rows, num_columns, *places)
    return handle


def _multiply(left: ctypes.c_void_p, right: ctypes.c_void_p) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _call('mkl_sparse_spmm', _NOT_TRANSPOSED, left, right, ctypes.byref(handle))
    return handle


def _export(handle: ctypes.c_void_p, num_rows: int, dtype: torch.dtype) -> Csr:
    r"""Copies what is behind a handle."""
    sizes = [ctypes.c_int() for _ in range(3)]
    places = [ctypes.c_void_p() for _ in range(4)]
    _call(f'mkl_sparse_{_PREFIX[dtype]}_export_csr', handle, *map(ctypes.byref, [*sizes, *places]))
    start, end = (_copy(place, num_rows, torch.int32) for place in places[:2])
    num_entries = int(end[-1]) if num_rows > 0 else 0
    column, value = _copy(places[2], num_entries, torch.int32), _copy(places[3], num_entries, dtype)
    return torch.cat([start, end[-1:]]), column, value


def _copy(place: ctypes.c_void_p, size: int, dtype: torch.dtype) -> Tensor:
    if size == 0 or place.value is None:
        return torch.empty(0, dtype=dtype, device='cpu')
    array = (ctypes.c_char * (size * dtype.itemsize)).from_address(place.value)
    return torch.frombuffer(array, dtype=dtype).clone()


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_library(), name)(*arguments)
    if status != 0:
        raise RuntimeError(f'{name} failed with status {status}')


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(osp.join(osp.dirname(torch.__file__), 'lib', 'libtorch_cpu.so'))
