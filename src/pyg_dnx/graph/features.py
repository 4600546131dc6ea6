r"""Propagated features Ã^L X that may be larger than memory: column blocks to store, row chunks to read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.utils import is_torch_sparse_tensor

from pyg_dnx.graph.design import Design, Sparse
from pyg_dnx.graph.operator import Operator

SPARSE_COST = 20  # how many multiplications of dense matrices cost as much as one of a sparse matrix, as measured
CHUNK_SIZE = 2**20  # numbers in a chunk of rows: small enough for the processor's cache, large enough for its threads


class Features:
    r"""A matrix [N, F] in column blocks.

    Args:
        blocks: The blocks, [N, F_k] each.
    """

    def __init__(self, blocks: Sequence[Tensor]) -> None:
        self.blocks = list(blocks)
        self.num_rows = self.blocks[0].size(0)
        self.num_features = sum(block.size(1) for block in self.blocks)
        self.dtype = self.blocks[0].dtype

    @staticmethod
    def of(features: Tensor | Features) -> Features:
        return Features([features]) if isinstance(features, Tensor) else features

    def rows(self, index: Tensor | slice = slice(None)) -> Tensor:
        r"""Some rows in full, [n, F]; without a copy if there is but one block and ``index`` is a slice."""
        parts = [block[index] for block in self.blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def only(self, index: Tensor) -> Features:
        r"""Some rows, in column blocks."""
        return Features([block[index] for block in self.blocks])

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        r"""Goes through all rows, [n, F] at a time."""
        step = max(1, CHUNK_SIZE // self.num_features)
        for first in range(0, self.num_rows, step):
            rows = slice(first, first + step)
            yield rows, self.rows(rows)

    def through(self, weight: Tensor, function: Callable[[slice, Tensor], Tensor]) -> Tensor:
        r"""Returns :math:`S^\top f(S V)` [F, C] in float64, in one pass over the rows; f is told which rows it gets."""
        total = torch.zeros_like(weight.T, dtype=torch.float64)
        for rows, chunk in self.chunks():
            total += function(rows, chunk @ weight).T @ chunk  # a wide product is six times faster than a tall one
        return total.T

    def __matmul__(self, weight: Tensor) -> Tensor:
        r"""Returns :math:`S V`."""
        parts = [chunk @ weight for _, chunk in self.chunks()]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def mean(self) -> Tensor:
        r"""The mean of each column [F], in float64."""
        return torch.cat([block.sum(dim=0, dtype=torch.float64) for block in self.blocks]) / self.num_rows

    def covariance(self, mean: Tensor) -> Tensor:
        r"""The covariance of the columns [F, F], in float64."""
        total = mean.new_zeros(self.num_features, self.num_features)
        for _, chunk in self.chunks():
            centered = chunk - mean.to(chunk.dtype)
            total += centered.T @ centered
        return total / self.num_rows

    def variance(self, mean: Tensor) -> Tensor:
        r"""The variance of each column [F], in float64."""
        total = torch.zeros_like(mean)
        for _, chunk in self.chunks():
            total += (chunk - mean).square().sum(dim=0)
        return total / self.num_rows


def as_sparse(operator: Operator, x: Tensor, num_hops: int) -> Tensor | Sparse:
    r"""Returns X in the form in which products with :math:`\tilde{A}^L X` cost less: as it is, or sparse."""
    num_steps = num_hops * operator.col.numel()
    if is_torch_sparse_tensor(x):
        return Sparse.of(x)
    if SPARSE_COST * num_steps >= x.numel() or SPARSE_COST * (num_steps + int(x.count_nonzero())) >= x.numel():
        return x.detach()
    return Sparse.of(x)


def propagate(
    operator: Operator, x: Tensor | Sparse, num_hops: int, dtype: torch.dtype, max_bytes: int
) -> Features | Design:
    r"""Returns :math:`\tilde{A}^L X` in ``dtype``, computed by column blocks that fit into ``max_bytes``.

    Where all of it takes more than half of ``max_bytes``, blocks are kept in temporary files that go with them. Of a
    sparse X, it is not computed.
    """
    if isinstance(x, Sparse):
        return Design(operator, x, torch.eye(num_hops + 1, device='cpu')[-1:], dtype=dtype)
    column_bytes = x.size(0) * max(dtype.itemsize, operator.value.dtype.itemsize)
    width = min(x.size(1), max(1, max_bytes // (4 * column_bytes)))  # a block of x, and of two powers, and in `dtype`
    on_disk = x.size(1) * column_bytes > max_bytes // 2 and x.device.type == 'cpu'
    blocks = []
    for block in x.split(width, dim=1):
        propagated = block.to(operator.value.dtype)
        propagated = propagated if num_hops == 0 else propagated.contiguous()
        for _ in range(num_hops):
            propagated = operator @ propagated
        propagated = propagated.to(dtype)
        blocks.append(_to_disk(propagated) if on_disk else propagated)
    return Features(blocks)


def _to_disk(block: Tensor) -> Tensor:
    r"""A copy of ``block`` in a file without a name, which is gone once the copy is."""
    with tempfile.TemporaryDirectory(prefix='pyg_dnx-') as folder:
        path = str(Path(folder) / 'block')
        stored = torch.from_file(path, shared=True, size=block.numel(), dtype=block.dtype, device=block.device)
        return stored.view(block.shape).copy_(block)
