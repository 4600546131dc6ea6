r"""From a graph to its propagation operator.

The operator is :math:`\tilde{A}`, the normalised adjacency matrix with self-loops that
:class:`torch_geometric.nn.SGConv` uses. Row :math:`v` holds the messages that node :math:`v` receives.
Degrees are those of the whole graph, and no dense :math:`N \times N` matrix is ever formed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.utils import is_torch_sparse_tensor

from pyg_dnx.run import Run, parts_of

MOST_ENTRIES = 2**31 - 1  # that int32 counts
LEAST_PARTS = 32  # of an operator that processes build together


@dataclass(frozen=True)
class Operator:
    r"""The matrix :math:`\tilde{A}` in CSR form."""

    rowptr: Tensor  # [N + 1], int64
    col: Tensor  # [nnz], the sources of the messages, int32 where that is enough: products with it are faster
    value: Tensor  # [nnz]
    edge_id: Tensor  # [nnz], the edge's place in `edge_index`, -1 for an added self-loop; [0] if edges have no order
    scale: Tensor  # [N], one over the root of each node's degree; zero where that is zero
    most: int = MOST_ENTRIES  # entries in one product; above, it is made row block by row block

    @property
    def num_nodes(self) -> int:
        return self.rowptr.numel() - 1

    @cached_property
    def offsets(self) -> Tensor:
        r"""``rowptr`` in the type of ``col``."""
        return self.rowptr.to(self.col.dtype)

    @cached_property
    def length(self) -> Tensor:
        r"""The number of entries in each row, [N]."""
        return self.rowptr.diff()

    @cached_property
    def edge_value(self) -> Tensor:
        r"""The value of each edge of ``edge_index``, [E]; zero for a self-loop in whose place another one counts."""
        num_edges = int(self.edge_id.max()) + 1
        return self.value.new_zeros(num_edges + 1).index_put_((self.edge_id,), self.value)[:-1]

    @cached_property
    def smallest(self) -> float:
        r"""The smallest entry."""
        return float(self.value.min())

    @cached_property
    def csr(self) -> Tensor:
        r"""The operator as a sparse matrix of PyTorch, in which parallel edges are one entry."""
        parts = (self.rowptr, self.col, self.value) if not self._has_parallel_edges() else self._merged()
        return csr_matrix(parts[0].to(self.col.dtype), *parts[1:], (self.num_nodes, self.num_nodes))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != 'csr'}  # unsorted rows may not be loaded

    def _keys(self, rows: range) -> Tensor:
        r"""A number for each entry of some rows, that only parallel edges have in common."""
        first, last = self.rowptr[[rows.start, rows.stop]].tolist()
        key = torch.arange(len(rows), dtype=self.col.dtype, device=self.col.device).mul_(self.num_nodes)
        return key.repeat_interleave(self.rowptr[rows.start : rows.stop + 1].diff()).add_(self.col[first:last])

    def _row_ranges(self) -> Iterator[range]:
        step = torch.iinfo(self.col.dtype).max // self.num_nodes
        return (range(first, min(first + step, self.num_nodes)) for first in range(0, self.num_nodes, step))

    def _has_parallel_edges(self) -> bool:
        return any(bool((self._keys(rows).sort().values.diff() == 0).any()) for rows in self._row_ranges())

    def _merged(self) -> tuple[Tensor, Tensor, Tensor]:
        length, col, value = [], [], []
        for rows in self._row_ranges():
            first, last = self.rowptr[[rows.start, rows.stop]].tolist()
            key, place = torch.unique(self._keys(rows), return_inverse=True)
            length.append(torch.bincount(key // self.num_nodes, minlength=len(rows)))
            col.append(key % self.num_nodes)
            value.append(self.value.new_zeros(key.numel()).index_add_(0, place, self.value[first:last]))
        return F.pad(torch.cat(length).cumsum(0), (1, 0)), torch.cat(col), torch.cat(value)

    @cached_property
    def transposed(self) -> Operator:
        target = torch.arange(self.num_nodes, device=self.col.device).repeat_interleave(self.rowptr.diff())
        rowptr, order = _sort_rows(self.col, self.num_nodes)
        edge_id = self.edge_id[order] if self.edge_id.numel() > 0 else self.edge_id
        col, value = target[order].to(self.col.dtype), self.value[order]
        return replace(self, rowptr=rowptr, col=col, value=value, edge_id=edge_id)

    def __matmul__(self, x: Tensor) -> Tensor:
        r"""Returns :math:`\tilde{A} x` for a dense ``x`` of shape [N, D]."""
        # As F.embedding_bag, whose checks are felt where a vector is multiplied on a small graph.
        parts = [
            torch.embedding_bag(x, col, offsets, per_sample_weights=value, include_last_offset=True)[0]
            for offsets, col, value in self._blocks
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @cached_property
    def _blocks(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        r"""Blocks of rows with so few entries that ``col`` and where rows start are of one type."""
        if self.col.numel() <= self.most:
            return [(self.offsets, self.col, self.value)]
        firsts, size = [0], self.rowptr.numel() - 1
        while firsts[-1] < size:
            last = int(torch.searchsorted(self.rowptr, self.rowptr[firsts[-1]] + self.most, right=True)) - 1
            firsts.append(max(last, firsts[-1] + 1))
        blocks = []
        for first, last in pairwise(firsts):
            start, stop = self.rowptr[[first, last]].tolist()
            offsets = (self.rowptr[first : last + 1] - start).to(self.col.dtype)
            blocks.append((offsets, self.col[start:stop], self.value[start:stop]))
        return blocks

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Some of the rows, as where each starts [B + 1], columns and values."""
        entry, owner = self.entries(rows)
        offsets = F.pad(torch.bincount(owner, minlength=rows.numel()).cumsum(0), (1, 0))
        return offsets.to(self.col.dtype), self.col[entry], self.value[entry]

    def masked(self, edge_mask: Tensor) -> Operator:
        r"""The operator whose messages are multiplied by a mask [E], as PyG's explainers do.

        Self-loops are left as they are, unless every node has brought its own, and no loop had to be added.
        """
        factor = torch.cat([edge_mask.to(self.value.dtype).view(-1), self.value.new_ones(1)])
        edge_id = self.edge_id.long()
        if self.col.numel() != edge_mask.numel() or bool((edge_id < 0).any()):
            own = torch.arange(self.num_nodes, device=self.col.device).repeat_interleave(self.length) == self.col
            edge_id = edge_id.masked_fill(own, -1)
        return replace(self, value=self.value * factor[edge_id])

    @cached_property
    def sums(self) -> Operator:
        r"""The operator without its normalisation: messages count by their weights, over the largest of these."""
        scale = torch.where(self.scale > 0.0, self.scale, 1.0)
        value = self.value / scale[self.col] / scale.repeat_interleave(self.length)
        return replace(self, value=value / value.abs().max(), scale=torch.ones_like(scale))

    def walks(self, num_hops: int) -> Tensor:
        r"""About the number of walks of ``num_hops`` steps from each node, [N]; a row of Ã^L is no longer."""
        if num_hops not in self._walks:
            before = self.walks(num_hops - 1)[:, None]
            walks = [F.embedding_bag(col, before, offsets[:-1], mode='sum') for offsets, col, _ in self._blocks]
            self._walks[num_hops] = torch.cat(walks).view(-1).clamp_(max=1e30)
        return self._walks[num_hops]

    @cached_property
    def _walks(self) -> dict[int, Tensor]:
        return {0: torch.ones(self.num_nodes, dtype=torch.float32, device=self.col.device)}

    def entries(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns where the rows of ``nodes`` [B] are stored, and the position in ``nodes`` of each entry."""
        if nodes.numel() == 1:  # what every explanation of one node starts with
            node = int(nodes)
            entry = torch.arange(*self.rowptr[node : node + 2].tolist(), device=nodes.device)
            return entry, torch.zeros_like(entry)
        length = self.length[nodes]
        owner = torch.repeat_interleave(length)
        shift = self.rowptr[nodes] + length - length.cumsum(0)
        return shift[owner].add_(torch.arange(owner.numel(), device=nodes.device)), owner


def normalized_adjacency(
    edge_index: Any,
    edge_weight: Tensor | None,
    num_nodes: int,
    dtype: torch.dtype,
    flow: str = 'source_to_target',
) -> Operator:
    r"""Builds :math:`\tilde{A}` exactly as :class:`~torch_geometric.nn.SGConv` does for the same input.

    Args:
        edge_index: A tensor of shape [2, E], an ``EdgeIndex``, a ``torch_sparse.SparseTensor`` or a
            ``torch.sparse`` matrix; the last two hold targets in their rows, as everywhere in PyG.
        edge_weight: The weights [E] of the edges of a [2, E] ``edge_index``.
        num_nodes: The number of nodes N.
        dtype: The floating-point type of the result.
        flow: The direction of messages, as in :class:`~torch_geometric.nn.MessagePassing`.
    """
    has_order = is_edge_list(edge_index)
    if has_order:
        source, target = plain(edge_index) if flow == 'source_to_target' else plain(edge_index).flip(0)
        rowptr, order = _sort_rows(target, num_nodes)
        col, weight = source[order], None if edge_weight is None else edge_weight.detach().view(-1)[order]
    else:
        rowptr, col, weight = _matrix_rows(edge_index)
        order = col[:0]
    col, edge_id = (ids.to(index_type(col.numel() + num_nodes)) for ids in (col, order))
    weight = torch.ones_like(col, dtype=dtype) if weight is None else weight.to(dtype)

    # One loop for each node: PyG keeps the last one of an edge list, replaces a SparseTensor's, and adds to others.
    every_node = torch.arange(num_nodes, dtype=col.dtype, device=col.device)
    loop_weight, loop_id = weight.new_ones(num_nodes), torch.full_like(every_node, -1)
    is_link = every_node.repeat_interleave(rowptr.diff()) != col
    if not is_torch_sparse_tensor(edge_index) and not bool(is_link.all()):
        if has_order:
            loop = (~is_link).nonzero().view(-1)
            loop = loop[F.pad(col[loop].diff() > 0, (0, 1), value=True)]
            loop_weight[col[loop]], loop_id[col[loop]] = weight[loop], edge_id[loop]
            edge_id = edge_id[is_link]
        rowptr = F.pad(is_link.cumsum(0), (1, 0))[rowptr]
        col, weight = col[is_link], weight[is_link]
    rowptr = rowptr + torch.arange(num_nodes + 1, device=rowptr.device)
    is_loop = torch.zeros(col.numel() + num_nodes, dtype=torch.bool, device=col.device)
    is_loop[rowptr[1:] - 1] = True
    col, weight = _insert(col, every_node, is_loop), _insert(weight, loop_weight, is_loop)
    edge_id = _insert(edge_id, loop_id, is_loop) if has_order else edge_id

    ones = weight.new_ones(num_nodes)
    degree = (Operator(rowptr, col, weight, edge_id, ones) @ ones[:, None])[:, 0]
    scale = degree.rsqrt().masked_fill_(degree == 0.0, 0.0)
    value = weight * scale[col]
    value *= scale.repeat_interleave(rowptr.diff())
    if not bool(value.isfinite().all()):
        raise _not_positive(weight)
    return Operator(rowptr, col, value, edge_id, scale)


def shared_adjacency(edge_index: Tensor, dtype: torch.dtype, run: Run, most: int = MOST_ENTRIES) -> Operator:
    r"""The same of a ``torch.sparse_csr`` matrix, row block by row block, in tables that several processes fill.

    Neither the matrix nor the operator is ever in memory as a whole, and nothing is sorted.
    """
    start, size = edge_index.crow_indices(), edge_index.size(0)
    at_a_time = max(1, min(run.entries * size // max(1, edge_index.values().numel() + size), size // LEAST_PARTS))

    def block(rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        r"""Some rows with a self-loop at the end of each: where they start, columns and weights."""
        first, last = start[[rows.start, rows.stop]].tolist()
        nodes = torch.arange(rows.start, rows.stop, device=start.device)
        offsets = start[rows.start : rows.stop + 1].long() - first
        col, weight = edge_index.col_indices()[first:last], edge_index.values()[first:last].to(dtype)
        _check_rows(offsets, col, size)
        offsets = offsets + torch.arange(offsets.numel(), device=start.device)
        is_loop = torch.zeros(col.numel() + nodes.numel(), dtype=torch.bool, device=start.device)
        is_loop[offsets[1:] - 1] = True
        index = index_type(size)
        return (
            offsets,
            _insert(col.to(index), nodes.to(index), is_loop),
            _insert(weight, torch.ones_like(nodes, dtype=dtype), is_loop),
        )

    def degrees(rows: slice) -> list[Tensor]:
        offsets, col, weight = block(rows)
        ones = torch.ones(size, 1, dtype=dtype, device=start.device)
        parts = (offsets.to(col.dtype), True)
        degree = torch.embedding_bag(ones, col, parts[0], per_sample_weights=weight, include_last_offset=True)[0][:, 0]
        return [degree.rsqrt().masked_fill_(degree == 0.0, 0.0), offsets[1:] + start[rows.start] + rows.start]

    rows = parts_of(size, at_a_time)
    scale, ends = run.fill('degrees', rows, degrees, 'Reading edges')

    def entries(places: slice) -> list[Tensor]:
        part = by_first[places.start]
        offsets, col, weight = block(part)
        value = weight * scale[col]
        value *= scale[part].repeat_interleave(offsets.diff())
        if not bool(value.isfinite().all()):
            raise _not_positive(weight)
        return [col, value]

    rowptr = F.pad(ends, (1, 0))
    places = [slice(*rowptr[[part.start, part.stop]].tolist()) for part in rows]
    by_first = dict(zip((place.start for place in places), rows, strict=True))
    col, value = run.fill('operator', places, entries, 'Normalising edges')
    return Operator(rowptr, col, value, col[:0], scale, most)


def _check_rows(offsets: Tensor, col: Tensor, num_nodes: int) -> None:
    r"""Checks that the columns of some rows are nodes, each once a row."""
    if col.numel() == 0:
        return
    low, high = map(int, col.aminmax())
    if low < 0 or high >= num_nodes:
        raise IndexError(
            f"'edge_index' must hold node ids from 0 to {num_nodes - 1} (got ids from {low} to {high}): build the "
            f'matrix anew'
        )
    is_first = torch.zeros(col.numel() + 1, dtype=torch.bool, device=col.device)
    is_first[offsets] = True
    if not bool(((col.diff() > 0) | is_first[1:-1]).all()):
        raise ValueError(
            "'edge_index' must have the columns of each row ascending, each once, where several processes share it "
            "(got others): write it with 'python -m pyg_dnx.edges'"
        )


def _not_positive(weight: Tensor) -> ValueError:
    return ValueError(
        f"'edge_weight' must give every node a positive in-degree, self-loop included (got weights between "
        f'{float(weight.min()):g} and {float(weight.max()):g}): pass finite weights that are not negative'
    )


def is_edge_list(edge_index: Any) -> bool:
    r"""Whether the edges have an order, so that an edge mask can be given for them."""
    return isinstance(edge_index, Tensor) and not is_torch_sparse_tensor(edge_index)


def is_csr(edge_index: Any) -> bool:
    r"""Whether the edges are a ``torch.sparse_csr`` matrix."""
    return isinstance(edge_index, Tensor) and edge_index.layout == torch.sparse_csr


def csr_matrix(rowptr: Tensor, col: Tensor, value: Tensor, size: tuple[int, int]) -> Tensor:
    r"""A sparse CSR matrix of parts that are known to be valid."""
    return torch.sparse_csr_tensor(rowptr, col, value, size, device=value.device, check_invariants=False)


def index_type(count: int) -> torch.dtype:
    r"""A type for numbers up to ``count``."""
    return torch.int32 if count < 2**31 else torch.int64


def _sort_rows(row: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    r"""Returns where each row starts once entries are sorted by ``row`` [nnz], and their order then."""
    order = row.to(index_type(num_nodes)).sort(stable=True).indices
    return F.pad(torch.bincount(row, minlength=num_nodes).cumsum(0), (1, 0)), order


def _insert(values: Tensor, new: Tensor, is_new: Tensor) -> Tensor:
    r"""Puts ``new`` where ``is_new``, and ``values`` elsewhere, both in their order."""
    return values.new_empty(is_new.numel()).masked_scatter_(~is_new, values).masked_scatter_(is_new, new)


def plain(edge_index: Tensor) -> Tensor:
    r"""Edges as a tensor of PyTorch's own, where they are an ``EdgeIndex``."""
    return (edge_index.as_tensor() if hasattr(edge_index, 'as_tensor') else edge_index).detach()


def _matrix_rows(adjacency: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""Returns the rows of a sparse matrix, targets in rows, as (rowptr, col, weight)."""
    if not is_torch_sparse_tensor(adjacency):
        rowptr, col, weight = adjacency.csr()
        return rowptr, col, None if weight is None else weight.detach()
    adjacency = adjacency.detach()
    if adjacency.layout == torch.sparse_coo:
        adjacency = adjacency.coalesce()
        (row, col), weight = adjacency.indices(), adjacency.values()
    elif adjacency.layout == torch.sparse_csr:
        return adjacency.crow_indices().long(), adjacency.col_indices(), adjacency.values()
    else:
        row, weight, length = adjacency.row_indices(), adjacency.values(), adjacency.ccol_indices().diff()
        col = torch.repeat_interleave(length)
    rowptr, order = _sort_rows(row, len(adjacency))
    return rowptr, col[order], weight[order]


with warnings.catch_warnings():  # PyTorch announces, once a process, that CSR is in beta
    warnings.simplefilter('ignore')
    torch.zeros(1, 1, device='cpu').to_sparse_csr()
