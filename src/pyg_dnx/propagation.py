r"""From a graph to sparse rows of its propagation operator.

The operator is :math:`\tilde{A}`, the normalised adjacency matrix with self-loops that
:class:`torch_geometric.nn.SGConv` uses. Row :math:`v` holds the messages that node :math:`v` receives.
No function here ever forms a dense :math:`N \times N` matrix or normalises a subgraph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    is_torch_sparse_tensor,
    remove_self_loops,
    to_edge_index,
)

# Above this share of touched edges, one product over all edges beats expanding the frontier.
FULL_PRODUCT_SHARE = 0.15
MAX_PADDED_SIZE = 2**22  # numbers in a padded block


@dataclass(frozen=True)
class Operator:
    r"""The matrix :math:`\tilde{A}` in CSR form."""

    rowptr: Tensor  # [N + 1], int64
    col: Tensor  # [nnz], the sources of the messages, int32 where that is enough: products with it are faster
    value: Tensor  # [nnz]
    edge_id: Tensor  # [nnz], the edge's place in `edge_index`, -1 for an added self-loop

    @property
    def num_nodes(self) -> int:
        return self.rowptr.numel() - 1

    @cached_property
    def transposed(self) -> Operator:
        target = torch.arange(self.num_nodes, device=self.col.device).repeat_interleave(self.rowptr.diff())
        return _to_csr(self.col.long(), target, self.value, self.edge_id, self.num_nodes)

    @cached_property
    def _offsets(self) -> Tensor:
        return self.rowptr[:-1].to(self.col.dtype)

    def __matmul__(self, x: Tensor) -> Tensor:
        r"""Returns :math:`\tilde{A} x` for a dense ``x`` of shape [N, D]."""
        return F.embedding_bag(self.col, x, self._offsets, mode='sum', per_sample_weights=self.value)

    def entries(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns where the rows of ``nodes`` [B] are stored, and the position in ``nodes`` of each entry."""
        if nodes.numel() == 1:  # what every explanation of one node starts with
            node = int(nodes)
            entry = torch.arange(*self.rowptr[node : node + 2].tolist(), device=nodes.device)
            return entry, torch.zeros_like(entry)
        start, stop = self.rowptr[nodes], self.rowptr[nodes + 1]
        last = (stop - start).cumsum(0)
        position = torch.arange(int(last[-1]) if nodes.numel() else 0, device=nodes.device)
        owner = torch.searchsorted(last, position, right=True)
        return position + (stop - last)[owner], owner


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
    if is_edge_list(edge_index):
        edges = _plain(edge_index)
        if flow == 'target_to_source':
            edges = edges.flip(0)
        weight = torch.ones_like(edges[0], dtype=dtype)
        if edge_weight is not None:
            weight = edge_weight.detach().to(dtype).view(-1)
        edge_id = torch.arange(edges.size(1), device=edges.device)
        is_loop = edges[0] == edges[1]
        loop_id = edge_id.new_full((num_nodes,), -1)
        loop_id[edges[0, is_loop]] = edge_id[is_loop]
        kept = ~is_loop | (loop_id[edges[0]] == edge_id)  # PyG keeps one of duplicate self-loops
        edges, weight = add_remaining_self_loops(edges[:, kept], weight[kept], 1.0, num_nodes)
        edge_id = torch.cat([edge_id[~is_loop], loop_id])  # the order in which PyG returns them
    else:
        edges, weight = _sparse_to_edges(edge_index, dtype)
        if not is_torch_sparse_tensor(edge_index):  # a SparseTensor's diagonal is replaced, not added to
            edges, weight = remove_self_loops(edges, weight)
        edges, weight = add_self_loops(edges, weight, 1.0, num_nodes)
        edge_id = edges.new_full((edges.size(1),), -1)

    edges, value = gcn_norm(edges, weight, num_nodes, add_self_loops=False, dtype=dtype)
    if not bool(value.isfinite().all()):
        raise ValueError(
            f"'edge_weight' must give every node a positive in-degree, self-loop included (got weights between "
            f'{float(weight.min()):g} and {float(weight.max()):g}): pass finite weights that are not negative'
        )
    return _to_csr(edges[1], edges[0], value, edge_id, num_nodes)


def is_edge_list(edge_index: Any) -> bool:
    r"""Whether the edges have an order, so that an edge mask can be given for them."""
    return isinstance(edge_index, Tensor) and not is_torch_sparse_tensor(edge_index)


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


def rows(operator: Operator, nodes: Tensor, num_hops: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""Returns the rows ``nodes`` [B] of :math:`\tilde{A}^L` as (owner, column, value), sorted by owner and column."""
    num_nodes = operator.num_nodes
    owner, column = torch.arange(nodes.numel(), device=nodes.device), nodes
    value = operator.value.new_ones(nodes.numel())
    for _ in range(num_hops):
        entry, step = operator.entries(column)
        key, merged = torch.unique(owner[step] * num_nodes + operator.col[entry], return_inverse=True)
        value = value.new_zeros(key.numel()).index_add_(0, merged, value[step] * operator.value[entry])
        owner, column = key // num_nodes, key % num_nodes
    return owner, column, value


def row_chunks(operator: Operator, nodes: Tensor, num_hops: int, max_entries: int = 2**22) -> list[Tensor]:
    r"""Cuts ``nodes`` [B] into runs whose rows of :math:`\tilde{A}^L` take about ``max_entries`` entries to compute.

    Returns:
        The positions in ``nodes`` of each run.
    """
    position = torch.arange(nodes.numel(), device=nodes.device)
    if nodes.numel() == 1:
        return [position]
    # A row has no more entries than there are walks from its node.
    pattern = replace(operator, value=torch.ones_like(operator.value))
    walks = operator.value.new_ones(operator.num_nodes, 1)
    for _ in range(num_hops):
        walks = (pattern @ walks).clamp(max=operator.col.numel())
    total = walks[nodes, 0].double().cumsum(0)
    runs = torch.bincount((total / max_entries).long())
    return list(position.split(runs[runs > 0].tolist()))


def padded_rows(count: Tensor, width: int = 1) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    r"""Groups rows of similar length, to be gathered into padded blocks of bounded size.

    Args:
        count: The lengths [B] of rows whose entries are listed one row after the other.
        width: How many numbers each entry stands for.

    Yields:
        The rows [b] of a group, where the entries of each are listed, [b, m], and which of these are not padding.
    """
    start = count.cumsum(0) - count
    order = count.argsort(descending=True)
    lengths = count[order].tolist()
    first = 0
    while first < len(lengths):
        last = first + max(1, MAX_PADDED_SIZE // (lengths[first] * width))
        group = order[first:last]
        slot = torch.arange(lengths[first], device=count.device)
        inside = slot < count[group, None]
        yield group, torch.where(inside, start[group, None] + slot, 0), inside
        first = last


def _to_csr(row: Tensor, col: Tensor, value: Tensor, edge_id: Tensor, num_nodes: int) -> Operator:
    row, order = torch.sort(row, stable=True)
    rowptr = F.pad(torch.bincount(row, minlength=num_nodes).cumsum(0), (1, 0))
    index = torch.int32 if max(row.numel(), num_nodes) < 2**31 else torch.int64
    return Operator(rowptr, col[order].to(index), value[order], edge_id[order])


def _plain(edge_index: Tensor) -> Tensor:
    return (edge_index.as_tensor() if hasattr(edge_index, 'as_tensor') else edge_index).detach()


def _sparse_to_edges(adjacency: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if is_torch_sparse_tensor(adjacency):
        if adjacency.layout == torch.sparse_csc:
            adjacency = adjacency.detach().to_sparse_coo()
        edges, weight = to_edge_index(adjacency.detach())
        return edges.flip(0), weight.to(dtype)
    target, source, weight = adjacency.coo()
    weight = torch.ones_like(source, dtype=dtype) if weight is None else weight.detach().to(dtype)
    return torch.stack([source, target]), weight
