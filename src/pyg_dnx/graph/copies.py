r"""Copies of a graph without some of its nodes or edges, side by side in one graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyg_dnx.graph.graph import Graph


def copies(graph: Graph, keep: Tensor, how: str, num_outputs: int) -> Graph:
    r"""One copy of a graph, or of a batch of graphs, for each of some masks.

    Tensors with a row for each node, edge or graph follow, and so do pairs; ``batch`` counts on from copy to copy.

    Args:
        graph: The graph.
        keep: The nodes that each copy keeps, [k, N].
        how: ``'features'`` blanks the features of the others, ``'nodes'`` removes them with their edges.
        num_outputs: How many graphs there are in ``graph``.
    """
    stays = torch.ones_like(keep) if how == 'features' else keep
    copy, node = stays.nonzero(as_tuple=True)
    place = torch.zeros_like(keep, dtype=torch.long)
    place[copy, node] = torch.arange(node.numel(), device=node.device)
    source, target = graph.edge_index
    owner, edge = (stays[:, source] & stays[:, target]).nonzero(as_tuple=True)
    edge_index = torch.stack([place[owner, source[edge]], place[owner, target[edge]]]).to(graph.edge_index.dtype)
    x = graph.x[node]
    if how == 'features':
        x = x * keep[copy, node][:, None]
    kwargs: dict[str, Any] = {}
    for name, value in graph.kwargs.items():
        kind = graph.kind_of(name, num_outputs)
        if kind == 'node':
            value = value[node]
        elif kind == 'edge':
            value = value[edge]
        elif kind == 'graph':
            value = value.repeat(len(keep), *[1] * (value.dim() - 1))
        kwargs[name] = value
    if graph.names_pairs:
        first, second = graph.pairs
        owner, pair = (stays[:, first] & stays[:, second]).nonzero(as_tuple=True)
        kwargs[graph.pair_argument] = torch.stack([place[owner, first[pair]], place[owner, second[pair]]])
    kwargs['batch'] = graph.batch[node] + num_outputs * copy
    return Graph(x, edge_index, kwargs, graph.pair_argument)


def without_edges(graph: Graph, keep: Tensor) -> Graph:
    r"""The graph with those of its edges that ``keep`` [E] says; tensors with a row for each edge follow."""
    kwargs = {name: value[keep] if graph.kind_of(name) == 'edge' else value for name, value in graph.kwargs.items()}
    return replace(graph, edge_index=graph.edge_index[:, keep], kwargs=kwargs, operators={})


def part(graph: Graph, number: int, num_outputs: int) -> tuple[Graph, Tensor, Tensor]:
    r"""One graph of a batch, the ids of its nodes in it, and those of its edges."""
    is_inside = graph.batch == number
    node = is_inside.nonzero().view(-1)
    source, target = graph.edge_index
    edge = (is_inside[source] & is_inside[target]).nonzero().view(-1)
    place = is_inside.cumsum(0) - 1
    kwargs = {**graph.kwargs}
    rows = {'node': node, 'edge': edge, 'graph': torch.tensor([number], device=node.device)}
    for name, value in graph.kwargs.items():
        if (kind := graph.kind_of(name, num_outputs)) is not None:
            kwargs[name] = value[rows[kind]]
    if graph.names_pairs:
        kwargs[graph.pair_argument] = place[graph.pairs[:, is_inside[graph.pairs].all(dim=0)]]
    if 'batch' in kwargs:
        kwargs['batch'] = torch.zeros_like(node)
    return Graph(graph.x[node], place[graph.edge_index[:, edge]], kwargs, graph.pair_argument), node, edge
