r"""Copies of a graph without some of its nodes or edges, side by side in one graph."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.subgraphs import Subgraphs, whole_graphs


def copies(graph: Graph, keep: Tensor, how: str, num_graphs: int) -> Graph:
    r"""One copy of a graph, or of a batch of graphs, for each of some masks.

    Tensors with a row for each node, edge, pair or graph follow; ``batch`` counts on from copy to copy.

    Args:
        graph: The graph.
        keep: The nodes that each copy keeps, [k, N].
        how: ``'features'`` blanks the features of the others, ``'nodes'`` removes them with their edges.
        num_graphs: How many graphs there are in ``graph``.
    """
    parts = Subgraphs.of(graph).take(torch.zeros_like(keep[:, 0], dtype=torch.long))
    numbers = torch.arange(num_graphs, device=keep.device).repeat(len(keep))
    batch, keep = graph.batch[parts.node] + num_graphs * parts.owner, keep.flatten()
    if how == 'nodes':
        parts, stays = parts.without(keep, keep[parts.edge_index].all(dim=0), graph.groups(parts.node, batch))
        batch, keep = batch[stays], keep[stays]
    found = parts.graph(graph, None, numbers, num_graphs)
    return replace(found, x=found.x * keep[:, None], kwargs={**found.kwargs, 'batch': batch})


def without_edges(graph: Graph, keep: Tensor) -> Graph:
    r"""The graph with those of its edges that ``keep`` [E] says; tensors with a row for each edge follow."""
    parts = Subgraphs.of(graph)
    left, _ = parts.without(torch.ones_like(parts.node, dtype=torch.bool), keep)
    return left.graph(graph)


def part(graph: Graph, number: int, num_graphs: int) -> tuple[Graph, Tensor, Tensor]:
    r"""One graph of a batch, the ids of its nodes in it, and those of its edges."""
    graphs = torch.tensor([number], device=graph.x.device)
    found = whole_graphs(graph.batch, graph.edge_index, graphs)
    one = found.graph(graph, None, graphs, num_graphs)
    if 'batch' in graph.kwargs:
        one.kwargs['batch'] = torch.zeros_like(found.node)
    return one, found.node, found.edge
