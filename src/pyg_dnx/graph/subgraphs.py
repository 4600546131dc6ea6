r"""The neighbourhoods of many nodes as one graph of disjoint parts, on which a model answers for all at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.operator import plain
from pyg_dnx.graph.rows import ragged


class Subgraphs(NamedTuple):
    r"""Disjoint copies of parts of a graph, one after the other."""

    node: Tensor  # [S], the node of the graph that each node here is a copy of
    owner: Tensor  # [S], the part it belongs to, ascending
    edge: Tensor  # [T], the edge of the graph that each edge here is a copy of
    edge_index: Tensor  # [2, T]
    root: Tensor  # [B] or [ends, B], where the nodes are that parts are about

    @staticmethod
    def of(graph: Graph, roots: Tensor | None = None) -> Subgraphs:
        r"""All of a graph as one part."""
        node = torch.arange(graph.num_nodes, device=graph.x.device)
        edge = torch.arange(graph.edge_index.size(1), device=graph.x.device)
        ends = torch.stack(list(graph.edge_index)).long()
        return Subgraphs(node, torch.zeros_like(node), edge, ends, node[:0] if roots is None else roots)

    @property
    def owner_of_edge(self) -> Tensor:
        r"""The part that each edge belongs to, [T], ascending."""
        return self.owner[self.edge_index[0]]

    @property
    def sizes(self) -> tuple[Tensor, Tensor]:
        r"""The numbers of nodes and of edges of each part, none of which is empty."""
        nodes = torch.bincount(self.owner)
        return nodes, torch.bincount(self.owner_of_edge, minlength=nodes.numel())

    def take(self, parts: Tensor) -> Subgraphs:
        r"""Copies of some ``parts`` [K], as often as each is named."""
        (sizes, num_edges), roots = self.sizes, self.root
        length, edges = sizes[parts], num_edges[parts]
        start = (sizes.cumsum(0) - sizes)[parts]
        node, edge = ragged(start, length), ragged((num_edges.cumsum(0) - num_edges)[parts], edges)
        shift = length.cumsum(0) - length - start
        return Subgraphs(
            self.node[node],
            torch.repeat_interleave(length),
            self.edge[edge],
            self.edge_index[:, edge] + shift.repeat_interleave(edges),
            roots if roots.numel() == 0 else roots[..., parts] + shift,
        )

    def without(self, nodes: Tensor, edges: Tensor, graphs: Tensor | None = None) -> tuple[Subgraphs, Tensor]:
        r"""What is left where only some nodes and edges are kept, and which nodes these are, [S].

        Roots stay even so, ends of edges, and the first node of each graph that would be empty, as a model needs one.

        Args:
            nodes: Whether each node is kept, [S].
            edges: Whether each edge is kept, [T].
            graphs: The graph that each node is part of, [S], if the model is asked about graphs.
        """
        stays = nodes.clone()
        stays[self.root.flatten()] = True
        stays[self.edge_index[:, edges].flatten()] = True  # as a node may stand for others
        if graphs is not None and graphs.numel() > 0:
            size = int(graphs.max()) + 1
            first = torch.full((size,), graphs.numel(), device=graphs.device)
            first.scatter_reduce_(0, graphs, torch.arange(graphs.numel(), device=graphs.device), 'amin')
            is_empty = torch.ones(size, dtype=torch.bool, device=graphs.device)
            is_empty[graphs[nodes]] = False
            stays[first[is_empty & (first < graphs.numel())]] = True
        place = stays.cumsum(0) - 1
        ends = place[self.edge_index[:, edges]]
        left = Subgraphs(self.node[stays], self.owner[stays], self.edge[edges], ends, place[self.root])
        return left, stays

    def graph(
        self,
        whole: Graph,
        pairs: tuple[Tensor, Tensor] | None = None,
        graphs: Tensor | None = None,
        num_graphs: int | None = None,
    ) -> Graph:
        r"""The copies as one graph, given the whole; tensors with a row for each node, edge, pair or graph follow.

        Args:
            whole: The graph.
            pairs: Where the pairs of nodes [2, R] are that the model is asked about, and which pair [R] of the whole
                each is; all that are inside a part, if ``None``.
            graphs: Which graph [K] of the whole each here is, if the model is asked about graphs.
            num_graphs: How many graphs the whole has.
        """
        if pairs is None and whole.names_pairs:
            pairs = self._pairs_inside(whole.pairs.long(), whole.num_nodes)
        rows = {'node': self.node, 'edge': self.edge, 'graph': graphs, 'pair': None if pairs is None else pairs[1]}
        kwargs = {
            name: value if (ids := rows.get(whole.kind_of(name, num_graphs) or '')) is None else value[ids]
            for name, value in whole.kwargs.items()
        }
        if pairs is not None and whole.names_pairs:
            kwargs[whole.pair_argument] = pairs[0].to(whole.pairs.dtype)
        types = None if whole.types is None else whole.types.take(self.node, self.edge)
        edge_index = self.edge_index.to(whole.edge_index.dtype)
        return Graph(whole.x[self.node], edge_index, kwargs, whole.pair_argument, types=types)

    def _pairs_inside(self, pairs: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        r"""Where pairs [2, Q] of nodes are that are in one part, and which pair each is."""
        length = torch.bincount(self.node, minlength=num_nodes)
        first, order = length.cumsum(0) - length, self.node.argsort(stable=True)
        start = order[ragged(first[pairs[0]], length[pairs[0]])]
        pair = torch.repeat_interleave(length[pairs[0]])
        key, place = (self.owner * num_nodes + self.node).sort()
        wanted = self.owner[start] * num_nodes + pairs[1][pair]
        found = torch.searchsorted(key, wanted).clamp(max=key.numel() - 1)
        inside = key[found] == wanted
        ends, pair = torch.stack([start, place[found]])[:, inside], pair[inside]
        by_part = self.owner[ends[0]].argsort(stable=True)
        return ends[:, by_part], pair[by_part]


def whole_graphs(batch: Tensor, edge_index: Tensor, graphs: Tensor) -> Subgraphs:
    r"""Some ``graphs`` [B] of a batch, distinct and ascending, given the graph that each node is part of."""
    place = torch.full((int(batch.max()) + 1,), -1, device=batch.device)
    place[graphs] = torch.arange(graphs.numel(), device=batch.device)
    owner = place[batch]
    node = owner.argsort(stable=True)[int((owner < 0).sum()) :]
    source, target = plain(edge_index).long()
    of_edge = torch.where(owner[source] == owner[target], owner[source], -1)
    edge = of_edge.argsort(stable=True)[int((of_edge < 0).sum()) :]
    position = torch.empty_like(batch, dtype=torch.long)
    position[node] = torch.arange(node.numel(), device=batch.device)
    return Subgraphs(node, owner[node], edge, position[torch.stack([source[edge], target[edge]])], node[:0])


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
        edges = plain(edge_index)
        self.source, target = edges if flow == 'source_to_target' else edges.flip(0)
        self.edge = target.argsort(stable=True)
        self.rowptr = F.pad(torch.bincount(target, minlength=num_nodes).cumsum(0), (1, 0))

    def around(self, nodes: Tensor, num_hops: int, has_rest: bool = False) -> Subgraphs:
        r"""The subgraphs that nodes within ``num_hops`` hops of each of ``nodes`` induce.

        Those are [B], or [ends, B] for the subgraphs around several nodes at once. With ``has_rest``, all edges that
        end at a node are there: those from outside start at one more node, the first of these, which stands for all.
        So all nodes have their degrees.
        """
        root = torch.arange(nodes.size(-1), device=nodes.device) * self.num_nodes + nodes
        key = frontier = root.flatten().unique()
        for _ in range(num_hops):
            edge, place = self._incoming(frontier % self.num_nodes)
            reached = torch.unique((frontier // self.num_nodes)[place] * self.num_nodes + self.source[edge])
            frontier = reached[~torch.isin(reached, key)]
            key = torch.cat([key, frontier])
        key = key.sort().values
        edge, place = self._incoming(key % self.num_nodes)
        target = key[place]
        owner = target // self.num_nodes
        source = owner * self.num_nodes + self.source[edge]
        inside = key[torch.searchsorted(key, source).clamp(max=key.numel() - 1)] == source
        if has_rest:
            rest = torch.full_like(root.view(-1, root.size(-1))[0], root.size(-1) * self.num_nodes)
            rest.scatter_reduce_(0, owner[~inside], source[~inside], 'amin')
            source = torch.where(inside, source, rest[owner])
            key = torch.cat([key, rest[rest < root.size(-1) * self.num_nodes]]).sort().values
        else:
            edge, source, target, owner = (each[inside] for each in (edge, source, target, owner))
        order = (owner * self.edge.numel() + edge).argsort()
        ends = torch.searchsorted(key, torch.stack([source, target])[:, order])
        ends = ends if self.flow == 'source_to_target' else ends.flip(0)
        return Subgraphs(key % self.num_nodes, key // self.num_nodes, edge[order], ends, torch.searchsorted(key, root))

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
