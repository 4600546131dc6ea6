r"""Propagated features Ã^L X that may be larger than memory: column blocks to store, row chunks to read."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.utils import is_torch_sparse_tensor

from pyg_dnx.graph.design import Design, Sparse
from pyg_dnx.graph.filters import Taps
from pyg_dnx.graph.operator import Operator
from pyg_dnx.run import DEFAULT, Run

SPARSE_COST = 20  # how many multiplications of dense matrices cost as much as one of a sparse matrix, as measured
BLOCK_WIDTH = 16  # columns that a block has about: in float32, those of a node are read from memory at once
CHUNK_SIZE = 2**20  # numbers in a chunk of rows: small enough for the processor's cache, large enough for its threads
MIN_CHUNK_SIZE = 2**14
COPIES = 8  # of a chunk that are held at a time, at most: it, its product, and others


class Features:
    r"""A matrix [N, F] in column blocks, and sums over its rows, of which each process of a group goes through some.

    Args:
        blocks: The blocks, [N, F_k] each.
        run: The processes that it is shared by.
        num_rows: The number of rows of all processes, if each has but its own.
        max_bytes: About how many bytes to go through them in.
    """

    def __init__(
        self, blocks: Sequence[Tensor], run: Run = DEFAULT, num_rows: int | None = None, max_bytes: int = 2**62
    ) -> None:
        self.blocks = list(blocks)
        self.max_bytes = max_bytes
        self.run = run
        self.num_rows = self.blocks[0].size(0) if num_rows is None else num_rows
        mine = run.share(self.num_rows) if num_rows is None else range(self.blocks[0].size(0))
        self.mine = slice(mine.start, mine.stop)
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
        return Features([block[index] for block in self.blocks], max_bytes=self.max_bytes)

    @property
    def step(self) -> int:
        r"""How many rows a chunk has."""
        size = max(MIN_CHUNK_SIZE, self.max_bytes // (COPIES * self.dtype.itemsize))
        return max(1, min(CHUNK_SIZE, size) // self.num_features)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        r"""Goes through all rows of this process, [n, F] at a time, numbered from 0."""
        step, size = self.step, self.mine.stop - self.mine.start
        for first in range(0, size, step):
            rows = slice(first, min(first + step, size))
            yield rows, self.rows(slice(self.mine.start + rows.start, self.mine.start + rows.stop))

    def through(self, weight: Tensor, function: Callable[[slice, Tensor], Tensor]) -> Tensor:
        r"""Returns :math:`S^\top f(S V)` [F, C] in float64, in one pass over the rows; f is told which rows it gets.

        That is the part of it that comes from the rows of this process.
        """
        total = torch.zeros_like(weight.T, dtype=torch.float64)
        for rows, chunk in self.chunks():
            total += function(rows, chunk @ weight).T @ chunk  # a wide product is six times faster than a tall one
        return total.T

    def __matmul__(self, weight: Tensor) -> Tensor:
        r"""Returns :math:`S V`."""
        return self.times(weight, slice(0, self.num_rows))

    def times(self, weight: Tensor, rows: slice) -> Tensor:
        r"""Returns some rows of :math:`S V`."""
        parts = [
            self.rows(slice(first, min(first + self.step, rows.stop))) @ weight
            for first in range(rows.start, rows.stop, self.step)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def mean(self) -> Tensor:
        r"""The mean of each column [F], in float64."""
        total = torch.cat([block[self.mine].sum(dim=0, dtype=torch.float64) for block in self.blocks])
        return self.run.sum(total) / self.num_rows

    def covariance(self, mean: Tensor) -> Tensor:
        r"""The covariance of the columns [F, F], in float64."""
        total = mean.new_zeros(self.num_features, self.num_features)
        for _, chunk in self.chunks():
            centered = chunk - mean.to(chunk.dtype)
            total += centered.T @ centered
        return self.run.sum(total) / self.num_rows

    def variance(self, mean: Tensor) -> Tensor:
        r"""The variance of each column [F], in float64."""
        total = torch.zeros_like(mean)
        for _, chunk in self.chunks():
            total += (chunk - mean).square().sum(dim=0)
        return self.run.sum(total) / self.num_rows


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
    return Features(blocks, max_bytes=max_bytes)


def propagate_together(
    operator: Operator, x: Tensor, taps: Taps, dtype: torch.dtype, run: Run, name: str, mask: Tensor | None = None
) -> Features:
    r"""Returns :math:`\sum_k t_{tk} \tilde{A}^k \mathrm{diag}(m) X` for each tap t, by column blocks.

    Each block is computed by one process, and kept in tables that all processes read.
    """
    num_nodes, num_features = x.shape
    most = num_features if run.max_memory is None else max(1, run.max_memory // (4 * num_nodes * dtype.itemsize))
    width = -(-num_features // max(num_blocks(num_features), -(-num_features // most)))
    columns = [slice(first, min(first + width, num_features)) for first in range(0, num_features, width)]

    def block(place: slice) -> list[Tensor]:
        part = x[:, columns[place.start]].to(operator.value.dtype)
        part = part.contiguous() if mask is None else part * mask[:, None].to(part.dtype)
        found: list[Tensor | None] = [None] * len(taps)
        for k in range(len(taps[0])):
            part = part if k == 0 else operator @ part
            for t, row in enumerate(taps):
                if row[k] != 0.0:
                    term, before = part if row[k] == 1.0 else row[k] * part, found[t]
                    found[t] = term if before is None else before + term
        return [(torch.zeros_like(part) if each is None else each).to(dtype) for each in found]

    blocks = run.each(name, len(columns), num_nodes, block)
    return Features([tables[t].to(x.device) for t in range(len(taps)) for tables in blocks], run)


def num_blocks(num_features: int) -> int:
    r"""How many column blocks there are, by the number of features alone."""
    return min(num_features, max(4, 2 ** math.ceil(math.log2(max(1.0, num_features / BLOCK_WIDTH)))))


def _to_disk(block: Tensor) -> Tensor:
    r"""A copy of ``block`` in a file without a name, which is gone once the copy is."""
    with tempfile.TemporaryDirectory(prefix='pyg_dnx-') as folder:
        path = str(Path(folder) / 'block')
        stored = torch.from_file(path, shared=True, size=block.numel(), dtype=block.dtype, device=block.device)
        return stored.view(block.shape).copy_(block)
