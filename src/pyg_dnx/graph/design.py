r"""What a surrogate is linear in, S = R Σ_k Ã^k X: products with it, which need X only as sparse as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.utils import is_torch_sparse_tensor

from pyg_dnx.graph.operator import Operator, index_type
from pyg_dnx.run import DEFAULT


@dataclass(frozen=True)
class Sparse:
    r"""A sparse matrix by rows."""

    offsets: Tensor  # [n + 1], in the type of `col`
    col: Tensor  # [nnz]
    value: Tensor  # [nnz]
    num_columns: int

    @staticmethod
    def of(matrix: Tensor) -> Sparse:
        r"""The entries of a dense matrix that are not zero, or all those of a ``torch.sparse`` one."""
        matrix = matrix.detach()
        if is_torch_sparse_tensor(matrix):
            matrix = matrix if matrix.layout == torch.sparse_csr else matrix.to_sparse_csr()
            offsets, col, value = matrix.crow_indices(), matrix.col_indices(), matrix.values()
        else:
            row, col = matrix.nonzero(as_tuple=True)
            offsets, value = _offsets(row, matrix.size(0)), matrix[row, col]
        dtype = index_type(max(value.numel(), *matrix.shape))
        return Sparse(offsets.to(dtype), col.to(dtype), value, matrix.size(1))

    @property
    def num_rows(self) -> int:
        return self.offsets.numel() - 1

    @cached_property
    def transposed(self) -> Sparse:
        order = self.col.sort(stable=True).indices
        row = torch.arange(self.num_rows, dtype=self.col.dtype, device=self.col.device)
        row = row.repeat_interleave(self.offsets.diff())[order]
        return Sparse(_offsets(self.col, self.num_columns).to(self.col.dtype), row, self.value[order], self.num_rows)

    def to(self, dtype: torch.dtype) -> Sparse:
        r"""The same in another type, and its transpose; where entries are is shared."""
        if self.value.dtype == dtype:
            return self
        other = self.transposed
        return self._like(self.value.to(dtype), other._like(other.value.to(dtype)))

    def _like(self, value: Tensor, transposed: Sparse | None = None) -> Sparse:
        found = Sparse(self.offsets, self.col, value, self.num_columns)
        if transposed is not None:
            vars(found)['transposed'] = transposed
        return found

    def dense(self) -> Tensor:
        parts = self.offsets, self.col, self.value
        return torch.sparse_csr_tensor(*parts, (self.num_rows, self.num_columns), check_invariants=False).to_dense()

    def rows(self, index: Tensor) -> Sparse:
        r"""Some of the rows."""
        length = self.offsets.diff()[index].long()
        owner = torch.repeat_interleave(length)
        shift = self.offsets[index] + length - length.cumsum(0)
        entry = shift[owner] + torch.arange(owner.numel(), device=owner.device)
        offsets = F.pad(length.cumsum(0), (1, 0)).to(self.col.dtype)
        return Sparse(offsets, self.col[entry], self.value[entry], self.num_columns)

    def __matmul__(self, dense: Tensor) -> Tensor:
        product, *_ = torch.embedding_bag(
            dense, self.col, self.offsets, per_sample_weights=self.value, include_last_offset=True
        )
        return product


class Design:
    r"""The matrix :math:`S = R [\sum_k t_{0k} \tilde{A}^k X, \sum_k t_{1k} \tilde{A}^k X, \dots]`, by products with it.

    Args:
        operator (Operator): :math:`\tilde{A}`.
        x (Tensor or Sparse): X [N, F], dense or sparse.
        taps (Tensor): The weights :math:`t_{tk}` of the powers, a block of columns a row, [T, L + 1].
        readout (Sparse, optional): R [O, N]; the identity by default.
        dtype (torch.dtype): In what to compute. (default: ``torch.float64``)
    """

    run, mine = DEFAULT, slice(None)  # each process has all of it

    def __init__(
        self,
        operator: Operator,
        x: Tensor | Sparse,
        taps: Tensor,
        readout: Sparse | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        other = operator.transposed
        adjacency = Sparse(operator.offsets, operator.col, operator.value, operator.num_nodes)
        self.adjacency = adjacency._like(
            operator.value, Sparse(other.offsets, other.col, other.value, operator.num_nodes)
        ).to(dtype)
        self.x = x.to(dtype)
        self.taps = taps.tolist()
        self.readout = None if readout is None else readout.to(dtype)
        self.dtype = dtype
        self.num_nodes = operator.num_nodes
        self.num_features = len(self.taps) * (x.num_columns if isinstance(x, Sparse) else x.size(1))
        self.masks: Tensor | None = None

    @property
    def num_rows(self) -> int:
        num_outputs = self.num_nodes if self.readout is None else self.readout.num_rows
        return num_outputs if self.masks is None else num_outputs * self.masks.size(1)

    @property
    def device(self) -> torch.device:
        return self.adjacency.col.device

    @property
    def size(self) -> int:
        r"""About the number of multiplications in a product with a vector."""
        num_entries = self.x.value.numel() if isinstance(self.x, Sparse) else self.x.numel()
        num_passes = len(self.taps[0]) - 1
        width = 1 if self.masks is None else self.masks.size(1)
        return len(self.taps) * num_entries + num_passes * width * self.adjacency.value.numel()

    def to(self, dtype: torch.dtype) -> Design:
        r"""The same in another type."""
        found = copy(self)
        found.adjacency, found.x, found.dtype = self.adjacency.to(dtype), self.x.to(dtype), dtype
        found.readout = None if self.readout is None else self.readout.to(dtype)
        found.masks = None if self.masks is None else self.masks.to(dtype)
        return found

    def rows(self, index: Tensor) -> Design:
        r"""Some of the rows."""
        found = copy(self)
        if self.readout is None:
            offsets = torch.arange(index.numel() + 1, dtype=self.adjacency.col.dtype, device=index.device)
            col, value = index.to(offsets.dtype), torch.ones_like(index, dtype=self.dtype)
            found.readout = Sparse(offsets, col, value, self.num_nodes)
        else:
            found.readout = self.readout.rows(index)
        return found

    only = rows  # as of features

    def masked(self, masks: Tensor) -> Design:
        r"""The matrices with :math:`\mathrm{diag}(m) X` for X, one for each of ``masks`` [A, N], their rows in turn."""
        found = copy(self)
        found.masks = masks.T.to(self.dtype).contiguous()
        return found

    def dense(self) -> Tensor:
        r"""All of S, [O, T F]."""
        x = self.x.dense() if isinstance(self.x, Sparse) else self.x
        return torch.cat([self._spread([x], [row]) for row in self.taps], dim=1)

    def __matmul__(self, weight: Tensor) -> Tensor:
        r"""Returns :math:`S V` for ``weight`` V of shape [T F, C]."""
        num_taps, num_outputs = len(self.taps), weight.size(1)
        if num_taps > 1:
            weight = weight.reshape(num_taps, -1, num_outputs).transpose(0, 1).flatten(1)
        hidden = self.x @ weight.contiguous()
        return self._spread(hidden.split(num_outputs, dim=1) if num_taps > 1 else [hidden], self.taps)

    def _spread(self, hidden: Sequence[Tensor], taps: list[list[float]]) -> Tensor:
        r"""Returns :math:`R \sum_k \tilde{A}^k \sum_t t_{tk} H_t` for H_t of shape [N, C], by Horner's rule."""
        width = hidden[0].size(1)
        if self.masks is not None:
            hidden = [(self.masks[:, :, None] * part[:, None]).flatten(1) for part in hidden]
        found: Tensor | None = None
        for weights in zip(*(row[::-1] for row in taps), strict=True):
            found = None if found is None else self.adjacency @ found
            for tap, part in zip(weights, hidden, strict=True):
                if tap != 0.0:
                    term = part.contiguous() if tap == 1.0 else tap * part
                    found = term if found is None else found + term
        found = torch.zeros_like(hidden[0]) if found is None else found
        found = found if self.readout is None else self.readout @ found
        return found.view(-1, width)

    def pull_back(self, signal: Tensor) -> Tensor:
        r"""Returns :math:`S^\top U` for ``signal`` U of shape [O, C]."""
        num_outputs = signal.size(1)
        if self.masks is not None:
            signal = signal.view(-1, self.masks.size(1) * num_outputs)
        signal = signal if self.readout is None else self.readout.transposed @ signal
        found: list[Tensor | None] = [None] * len(self.taps)
        last = max((k for row in self.taps for k, tap in enumerate(row) if tap != 0.0), default=0)
        for k in range(last + 1):
            signal = self.adjacency.transposed @ signal if k > 0 else signal
            for t, row in enumerate(self.taps):
                if row[k] != 0.0:
                    term = signal if row[k] == 1.0 else row[k] * signal
                    before = found[t]
                    found[t] = term if before is None else before + term
        parts = [torch.zeros_like(signal) if part is None else part for part in found]
        if self.masks is not None:
            masks = self.masks[:, :, None]
            parts = [(masks * part.view(self.num_nodes, -1, num_outputs)).sum(dim=1) for part in parts]
        across = self.x.transposed if isinstance(self.x, Sparse) else self.x.T
        if len(parts) == 1:
            return across @ parts[0]
        return (across @ torch.cat(parts, dim=1)).view(-1, len(parts), num_outputs).transpose(0, 1).flatten(0, 1)

    def through(self, weight: Tensor, function: Callable[[slice, Tensor], Tensor]) -> Tensor:
        r"""Returns :math:`S^\top f(S V)`; f is told which rows it gets, all of them."""
        return self.pull_back(function(slice(None), self @ weight))

    def mean(self) -> Tensor:
        r"""The mean of each column [T F]."""
        ones = torch.ones(self.num_rows, 1, dtype=self.dtype, device=self.device)
        return self.pull_back(ones)[:, 0] / self.num_rows


def _offsets(row: Tensor, num_rows: int) -> Tensor:
    r"""Where the entries of each row start, given the row of each."""
    return F.pad(torch.bincount(row, minlength=num_rows).cumsum(0), (1, 0))
