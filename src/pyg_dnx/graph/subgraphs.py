r"""The neighbourhoods of many nodes as one graph of disjoint parts, on which a model answers for all at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import ragged


class Subgraphs(NamedTuple):
    r"""Disjoint copies of parts of a graph, one for each of some nodes."""

    node: Tensor  # [S], the node of the graph that each node here is a copy of
    owner: Tensor  # [S], the part it belongs to, ascending
    edge: Tensor  # [T], the edge of the graph that each edge here is a copy of
    edge_index: Tensor  # [2, T]
    root: Tensor  # [B], where each part's own node is

    def graph(self, whole: Graph) -> Graph:
        r"""The copies as one graph, given the whole; tensors with a row for each node or edge follow."""
        rows = {'node': self.node, 'edge': self.edge}
        kwargs = {
            name: value if (kind := whole.kind_of(name)) is None else value[rows[kind]]
            for name, value in whole.kwargs.items()
        }
        return Graph(whole.x[self.node], self.edge_index, kwargs)


class Neighbourhoods:
    r"""Finds the nodes that can reach a node within some hops, and all edges between them.

    Args:
        edge_index (Tensor): The edges [2, E].
        num_nodes (int): The number of nodes.
        flow (str): The direction of messages, as in :class:`~torch_geometric.nn.MessagePassing`.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int, flow: str = 'source_to_target') -> None:
        self.num_nodes = num_nodes
        self.flow = flow
        self.source, target = edge_index if flow == 'source_to_target' else edge_index.flip(0)
        self.edge = target.argsort(stable=True)
        self.rowptr = F.pad(torch.bincount(target, minlength=num_nodes).cumsum(0), (1, 0))

    def around(self, nodes: Tensor, num_hops: int) -> Subgraphs:
        r"""The subgraphs that nodes within ``num_hops`` hops of each of ``nodes`` [B] induce."""
        part = torch.arange(nodes.numel(), device=nodes.device)
        key = frontier = part * self.num_nodes + nodes
        for _ in range(num_hops):
            edge, place = self._incoming(frontier % self.num_nodes)
            reached = torch.unique((frontier // self.num_nodes)[place] * self.num_nodes + self.source[edge])
            frontier = reached[~torch.isin(reached, key)]
            key = torch.cat([key, frontier])
        key = key.sort().values
        owner, node = key // self.num_nodes, key % self.num_nodes
        edge, place = self._incoming(node)
        source = owner[place] * self.num_nodes + self.source[edge]
        start = torch.searchsorted(key, source).clamp(max=key.numel() - 1)
        inside = key[start] == source
        edge, order = edge[inside], (owner[place[inside]] * self.edge.numel() + edge[inside]).argsort()
        ends = torch.stack([start[inside], place[inside]])[:, order]
        ends = ends if self.flow == 'source_to_target' else ends.flip(0)
        return Subgraphs(node, owner, edge[order], ends, torch.searchsorted(key, part * self.num_nodes + nodes))

    def sizes(self, num_hops: int) -> Tensor:
        r"""The most nodes that each node's neighbourhood can have, [N]."""
        target = torch.repeat_interleave(self.rowptr.diff())
        size = torch.ones(self.num_nodes, dtype=torch.float64, device=self.edge.device)
        for _ in range(num_hops):
            size = torch.ones_like(size).index_add_(0, target, size[self.source[self.edge]])
        return size.clamp(max=self.num_nodes)

    def _incoming(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        r"""The edges that end at each of ``nodes``, and the position in ``nodes`` of each."""
        length = self.rowptr[nodes + 1] - self.rowptr[nodes]
        return self.edge[ragged(self.rowptr[nodes], length)], torch.repeat_interleave(length)
