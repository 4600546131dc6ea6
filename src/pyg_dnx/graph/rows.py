r"""Products with the powers of Ã: propagated features, signals pulled back along edges, rows of Ã^L."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_dnx.graph import mkl
from pyg_dnx.graph.operator import Operator, csr_matrix, index_type
from pyg_dnx.run import ENTRIES

# Above this share of touched edges, one product over all edges beats expanding the frontier.
FULL_PRODUCT_SHARE = 0.15
LANES = 8  # numbers that a processor multiplies at once; for vectors of fewer, PyTorch takes up to ten times as long
LEAKING = frozenset({'cpu'})  # devices on which PyTorch's products of sparse matrices lose memory, see `mkl`


class Step(NamedTuple):
    r"""Where a signal is after some steps, and where it goes from there."""

    nodes: Tensor  # [n], ascending
    signal: Tensor  # [n, D]
    entry: Tensor  # [m], the entries of the operator that the next step takes; none after the last
    owner: Tensor  # [m], the position in `nodes` from which it takes each


def pull_back(operator: Operator, nodes: Tensor, signal: Tensor, num_hops: int) -> list[Step]:
    r"""Sends a signal at some nodes back along the edges: :math:`(\tilde{A}^{\top})^k D` for k = 0 … ``num_hops``.

    With one node and the signal 1, entry k is that node's row of :math:`\tilde{A}^k`.

    Args:
        operator: The operator.
        nodes: Distinct node ids [B], ascending.
        signal: The non-zero rows [B, D] of :math:`D`.
        num_hops: The number of hops.

    Returns:
        For each k, the nodes that a walk of k steps from ``nodes`` reaches, and their signal.
    """
    steps = []
    for _ in range(num_hops):
        entry, owner = operator.entries(nodes)
        steps.append(Step(nodes, signal, entry, owner))
        if entry.numel() > FULL_PRODUCT_SHARE * operator.col.numel():
            dense = signal.new_zeros(operator.num_nodes, signal.size(1))
            dense[nodes] = signal
            is_reached = torch.zeros(operator.num_nodes, dtype=torch.bool, device=nodes.device)
            is_reached[operator.col[entry]] = True
            nodes = is_reached.nonzero().view(-1)
            signal = (operator.transposed @ dense)[nodes]
        else:
            messages = operator.value[entry][:, None] * signal[owner]
            nodes, merged = torch.unique(operator.col[entry].long(), return_inverse=True)
            signal = signal.new_zeros(nodes.numel(), signal.size(1)).index_add_(0, merged, messages)
    return [*steps, Step(nodes, signal, nodes[:0], nodes[:0])]


class Rows(NamedTuple):
    r"""Rows of a sparse matrix, one after the other; within a row, each column once, in any order."""

    length: Tensor  # [B], the number of entries of each row
    column: Tensor  # [nnz]
    value: Tensor  # [nnz], or [nnz, D]

    def offsets(self) -> Tensor:
        r"""Where each row starts and the last one ends, [B + 1]."""
        return F.pad(self.length.cumsum(0), (1, 0))

    def matrix(self, num_columns: int) -> Tensor:
        r"""The rows as a sparse CSR matrix of PyTorch, whose products don't mind the order of columns."""
        offsets = self.offsets().to(self.column.dtype)
        return csr_matrix(offsets, self.column, self.value, (self.length.numel(), num_columns))

    def order(self, num_columns: int) -> Tensor:
        r"""The places [nnz] of entries, row by row, if columns ascend."""
        num_keys = self.length.numel() * num_columns
        index = index_type(num_keys)
        first = torch.arange(0, num_keys, num_columns, dtype=index, device=self.column.device)
        return first.repeat_interleave(self.length).add_(self.column.to(index)).sort().indices

    def sorted(self, num_columns: int) -> Rows:
        r"""The same with ascending columns."""
        order = self.order(num_columns)
        return Rows(self.length, self.column.index_select(0, order), self.value.index_select(0, order))

    @property
    def size(self) -> Tensor:
        r"""How much each entry counts in all, [nnz]."""
        return self.value if self.value.dim() == 1 else self.value.sum(dim=1)

    def at(self, entry: Tensor, inside: Tensor) -> Tensor:
        r"""The values at some entries, of any shape [...], and zero where not ``inside``: [...] or [..., D]."""
        if self.value.dim() == 1:
            return self.value.take(entry) * inside
        return self.value[entry] * inside[..., None]

    def take(self, index: Tensor) -> Rows:
        r"""Some of the rows."""
        length = self.length[index]
        entry = ragged((self.length.cumsum(0) - self.length)[index], length)
        return Rows(length, self.column[entry], self.value[entry])

    def apply(self, signal: Tensor) -> Tensor:
        r"""The product of the rows with ``signal`` [N, D], [B, D]."""
        weight = self.value.to(signal.dtype)
        return F.embedding_bag(self.column, signal, self.offsets()[:-1], mode='sum', per_sample_weights=weight)

    def values_in(self, other: Rows, num_columns: int) -> Tensor:
        r"""The values [nnz] in the order of ``other``, which has entries in the same places."""
        if torch.equal(self.column, other.column):
            return self.value
        found = torch.empty_like(self.value)
        return found.index_copy_(0, other.order(num_columns), self.value[self.order(num_columns)])


def ragged(start: Tensor, length: Tensor) -> Tensor:
    r"""The numbers from each ``start`` [B] on, as many as its ``length`` [B] says, one after the other."""
    owner = torch.repeat_interleave(length)
    return (start + length - length.cumsum(0))[owner].add_(torch.arange(owner.numel(), device=start.device))


def unit_rows(nodes: Tensor, dtype: torch.dtype | None = None) -> Rows:
    r"""The rows ``nodes`` [B] of the identity."""
    return Rows(torch.ones_like(nodes), nodes, torch.ones_like(nodes, dtype=dtype or torch.get_default_dtype()))


def rows_of(operator: Operator, start: Tensor | Rows, num_hops: int) -> Rows:
    r"""Returns the product of some rows with :math:`\tilde{A}^L`: its own rows at ``start`` [B] if these are nodes."""
    dtype = operator.value.dtype
    rows = unit_rows(start, dtype) if isinstance(start, Tensor) else start._replace(value=start.value.to(dtype))
    if num_hops == 0:  # without the sparse matrix, which takes a sort of all edges
        return rows
    device = rows.value.device.type
    if device == 'cpu' and operator.col.dtype == torch.int32 and mkl.is_available():
        if operator.col.numel() > operator.most:
            return _rows_by_parts(operator, rows, num_hops)
        csr = (operator.csr.crow_indices(), operator.csr.col_indices(), operator.csr.values())
        found = (rows.offsets().int(), rows.column.int(), rows.value)
        for _ in range(num_hops):
            found = mkl.product(found, csr, operator.num_nodes)
        return Rows(found[0].diff().long(), *found[1:])
    if device not in LEAKING and has_sparse_products(device):
        matrix = rows.matrix(operator.num_nodes)
        for _ in range(num_hops):
            matrix = matrix @ operator.csr
        return Rows(matrix.crow_indices().diff(), matrix.col_indices(), matrix.values())
    for _ in range(num_hops):
        rows = _next_rows(operator, rows)
    return rows


def _rows_by_parts(operator: Operator, rows: Rows, num_hops: int) -> Rows:
    r"""The same, of no more of the operator than the rows that each step needs."""
    for _ in range(num_hops):
        needed, place = torch.unique(rows.column, return_inverse=True)
        left = (rows.offsets().int(), place.int(), rows.value)
        offsets, column, value = mkl.product(left, operator.take(needed.long()), operator.num_nodes)
        rows = Rows(offsets.diff().long(), column, value)
    return rows


def inner_products(rows: Rows, left: Tensor, right: Tensor) -> Tensor:
    r"""Returns :math:`\langle` ``left[i]``, ``right[j]`` :math:`\rangle` for each entry (i, j) of ``rows``, [nnz]."""
    if has_sparse_products(left.device.type):
        if 1 < left.size(1) < LANES and left.dtype == torch.float32:  # whatever the rows, so that all round alike
            left, right = (F.pad(each, (0, LANES - each.size(1))) for each in (left, right))
        pattern = rows.matrix(right.size(0))
        return torch.sparse.sampled_addmm(pattern, left, right.T, beta=0.0).values()
    owner = torch.arange(rows.length.numel(), device=left.device).repeat_interleave(rows.length)
    return (left[owner] * right[rows.column]).sum(dim=1)


@cache
def has_sparse_products(device: str) -> bool:
    r"""Whether this build of PyTorch multiplies sparse matrices on such a device; on a CPU, it takes MKL."""
    one = Rows(*(torch.ones(1, dtype=dtype, device=device) for dtype in (torch.int64, torch.int64, torch.float32)))
    matrix = one._replace(column=torch.zeros_like(one.column)).matrix(1)
    try:
        torch.sparse.sampled_addmm(matrix @ matrix, one.value[:, None], one.value[:, None])
    except RuntimeError:  # of which NotImplementedError is one
        return False
    return True


def _next_rows(operator: Operator, rows: Rows) -> Rows:
    r"""Multiplies ``rows`` by Ã without a sparse product: lists all walks one step longer, and sorts them to sum."""
    num_rows, num_nodes = rows.length.numel(), operator.num_nodes
    index = index_type(num_rows * num_nodes)
    first_key = torch.arange(num_rows, dtype=index, device=rows.column.device).mul_(num_nodes)
    entry, walk = operator.entries(rows.column)
    key = first_key.repeat_interleave(rows.length).index_select(0, walk).add_(operator.col.index_select(0, entry))
    value = rows.value.index_select(0, walk).mul_(operator.value.index_select(0, entry))
    key, order = key.sort()
    first = F.pad(key.diff() != 0, (1, 0), value=True).nonzero().view(-1)
    value = F.embedding_bag(order, value[:, None], first, mode='sum').view(-1)
    key = key.index_select(0, first)
    length = torch.searchsorted(key, first_key + num_nodes).diff(prepend=first_key.new_zeros(1))
    return Rows(length, key - first_key.repeat_interleave(length), value)


def runs(size: Tensor, most: int) -> list[Tensor]:
    r"""Cuts things of some ``size`` [B] into runs of about ``most`` in all, and returns the positions of each run."""
    position = torch.arange(size.numel(), device=size.device)
    number = torch.bincount((size.double().cumsum(0) / most).long())
    return list(position.split(number[number > 0].tolist()))


def padded_rows(length: Tensor, width: int = 1, size: int = ENTRIES) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    r"""Groups rows of similar length, to be gathered into padded blocks of bounded size.

    Args:
        length: The lengths [B] of rows whose entries are listed one row after the other.
        width: How many numbers each entry stands for.
        size: About how many numbers a block may have.

    Yields:
        The rows [b] of a group, none of them empty, where the entries of each are listed, [b, m], and which of these
        are not padding.
    """
    start = length.cumsum(0) - length
    lengths, order = length.sort(descending=True)
    order, first = order[: int((length > 0).sum())], 0
    while first < order.numel():
        longest = int(lengths[first])
        similar = int(torch.searchsorted(-lengths, -(longest // 2), right=False))  # longer than half of it
        last = max(first + 1, min(similar, first + size // (longest * width)))
        group = order[first:last]
        slot = torch.arange(longest, device=length.device)
        inside = slot < length[group, None]
        yield group, (start[group, None] + slot).masked_fill_(~inside, 0), inside
        first = last
