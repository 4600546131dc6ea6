r"""Propagated features Ã^L X that may be larger than memory: column blocks to store, row chunks to read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pyg_dnx.graph.operator import Operator

CHUNK_SIZE = 2**20  # numbers in a chunk of rows: small enough for the processor's cache, large enough for its threads


class Features:
    r"""A matrix [N, F] in column blocks.

    Args:
        blocks: The blocks, [N, F_k] each.
    """

    def __init__(self, blocks: Sequence[Tensor]) -> None:
        self.blocks = list(blocks)
        self.num_nodes = self.blocks[0].size(0)
        self.num_features = sum(block.size(1) for block in self.blocks)
        self.dtype = self.blocks[0].dtype

    @staticmethod
    def of(features: Tensor | Features) -> Features:
        return Features([features]) if isinstance(features, Tensor) else features

    def rows(self, index: Tensor | slice = slice(None)) -> Tensor:
        r"""Some rows in full, [n, F]; without a copy if there is but one block and ``index`` is a slice."""
        parts = [block[index] for block in self.blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        r"""Goes through all rows, [n, F] at a time."""
        step = max(1, CHUNK_SIZE // self.num_features)
        for first in range(0, self.num_nodes, step):
            rows = slice(first, first + step)
            yield rows, self.rows(rows)

    def mean(self) -> Tensor:
        r"""The mean of each column [F], in float64."""
        return torch.cat([block.sum(dim=0, dtype=torch.float64) for block in self.blocks]) / self.num_nodes

    def covariance(self, mean: Tensor) -> Tensor:
        r"""The covariance of the columns [F, F], in float64."""
        total = mean.new_zeros(self.num_features, self.num_features)
        for _, chunk in self.chunks():
            centered = chunk - mean.to(chunk.dtype)
            total += centered.T @ centered
        return total / self.num_nodes

    def variance(self, mean: Tensor) -> Tensor:
        r"""The variance of each column [F], in float64."""
        total = torch.zeros_like(mean)
        for _, chunk in self.chunks():
            total += (chunk - mean).square().sum(dim=0)
        return total / self.num_nodes


def propagate(operator: Operator, x: Tensor, num_hops: int, dtype: torch.dtype, max_bytes: int) -> Features:
    r"""Returns :math:`\tilde{A}^L X` in ``dtype``, computed by column blocks that fit into ``max_bytes``.

    Where all of it takes more than half of ``max_bytes``, blocks are kept in temporary files that go with them.
    """
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
