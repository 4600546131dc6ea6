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
        keep: What each copy keeps of the nodes, [k, N], or edges, columns of features, or entries that are not zero.
        how: ``'features'`` blanks the features of other nodes, ``'nodes'`` removes them with their edges, ``'edges'``
            drops other edges, ``'columns'`` and ``'entries'`` set other features to zero.
        num_graphs: How many graphs there are in ``graph``.
    """
    parts = Subgraphs.of(graph).take(keep.new_zeros(len(keep), dtype=torch.long))
    numbers = torch.arange(num_graphs, device=keep.device).repeat(len(keep))
    batch, stays = graph.batch[parts.node] + num_graphs * parts.owner, torch.ones_like(parts.node, dtype=torch.bool)
    if how == 'nodes':
        stays = keep.flatten()
        parts, stays = parts.without(stays, stays[parts.edge_index].all(dim=0), graph.groups(parts.node, batch))
    elif how == 'edges':
        parts, stays = parts.without(stays, keep.flatten())
    found = parts.graph(graph, None, numbers, num_graphs)
    if how == 'columns':
        x = found.x * keep[parts.owner]
    elif how == 'entries':
        x = torch.cat([graph.x * only_entries(graph.x, one) for one in keep])
    else:
        x = found.x if how == 'edges' else found.x * keep.flatten()[stays][:, None]
    return replace(found, x=x, kwargs={**found.kwargs, 'batch': batch[stays]})


def only_entries(x: Tensor, keep: Tensor) -> Tensor:
    r"""A mask of features, [N, F], given which of those that are not zero are kept."""
    return torch.zeros_like(x, dtype=torch.bool).masked_scatter_(x != 0, keep)


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
