r"""What a picture of an explanation shows: the nodes around the explained ones, their scores, and the edges between."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.explain.config import ModelTaskLevel
from torch_geometric.utils import coalesce, is_torch_sparse_tensor, scatter, to_edge_index

from pyg_dnx import options
from pyg_dnx.graph.operator import is_edge_list
from pyg_dnx.scores.question import outputs_of


class Folded(NamedTuple):
    r"""Nodes that are left out."""

    num_nodes: int
    score: float  # their sum


@dataclass(frozen=True)
class Scene:
    r"""A part of a graph with what an explanation says of it, as plain lists.

    Attributes:
        nodes (list): The ids of nodes: explained ones first, then others, both by ``|score|`` descending.
        hops (list): How many edges away from an explained node each is, along the way of messages; 0 for explained
            nodes, ``None`` where no message gets from it to them, and for all nodes if none is explained.
        scores (list): The score of each node.
        is_signed (bool): Whether scores have a sign, so that 0 is in the middle of their scale.
        score_name (str): Where they come from: ``'node_score'``, ``'node_mask'`` or ``'edge_mask'``.
        edges (list): Pairs (source, target) of positions in ``nodes``, each pair of nodes once, without self-loops.
        both_ways (list): Whether each edge is there in both directions.
        edge_weights (list): The mask of each edge in [0, 1], the highest of both directions and of duplicates.
        edge_scores (list, optional): The score of each edge, the highest likewise, if there are scores of edges.
        has_edge_mask (bool): Whether ``edge_weights`` come from a mask; otherwise they are all 1.
        explained (int): How many of ``nodes``, the first ones, are explained.
        folded (Folded): How many nodes ``max_nodes`` left out, and the sum of their scores.
    """

    nodes: list[int]
    hops: list[int | None]
    scores: list[float]
    is_signed: bool
    score_name: str
    edges: list[tuple[int, int]]
    both_ways: list[bool]
    edge_weights: list[float]
    edge_scores: list[float] | None
    has_edge_mask: bool
    explained: int
    folded: Folded


def scene_of(explanation: Any, index: Any = None, num_hops: int | None = None, max_nodes: int = 30) -> Scene:
    r"""Takes the neighbourhood of the explained nodes out of a PyG :class:`~torch_geometric.explain.Explanation`.

    Args:
        explanation (Explanation): Any explainer's explanation. Nodes have its signed ``node_score`` where there is one,
            else its ``node_mask``, both summed over features; where only edges have masks, the highest of their edges.
        index (int or Tensor, optional): The explained nodes: ids, or a boolean mask. (default: those of the
            explanation; none, if it is of all nodes or of a graph)
        num_hops (int, optional): Show all nodes from which messages reach an explained node in so many hops. (default:
            all nodes with a nonzero mask, which are those that :meth:`threshold` leaves)
        max_nodes (int): Show the explained nodes and those with the highest ``|score|``, at most so many in all.
    """
    options.count('max_nodes', max_nodes)
    if num_hops is not None:
        options.count('num_hops', num_hops, least=0)
    edge_index, num_nodes = _graph(explanation)
    score, score_name, is_masked = _scores(explanation, edge_index, num_nodes)
    root = _explained(explanation, index, num_nodes)
    hop = _hops(root, edge_index, num_hops, is_masked)
    shown = is_masked if num_hops is None or root.numel() == 0 else hop >= 0
    shown[root] = True

    candidates = shown.nonzero().view(-1)
    if candidates.numel() == 0:
        raise ValueError("'index' must name a node if all masks are zero (got None): pass the explained node")
    order = score[candidates].abs().argsort(descending=True, stable=True)
    order = order[(hop[candidates[order]] == 0).logical_not().to(torch.uint8).argsort(stable=True)]
    nodes, left_out = candidates[order].tensor_split([max_nodes])

    pairs, weight, edge_score, both_ways = _edges(explanation, edge_index, nodes, num_nodes)
    return Scene(
        nodes=nodes.tolist(),
        hops=[value if value >= 0 else None for value in hop[nodes].tolist()],
        scores=score[nodes].tolist(),
        is_signed=score_name == 'node_score' or bool((score < 0).any()),
        score_name=score_name,
        edges=list(zip(*pairs.tolist(), strict=True)),
        both_ways=both_ways.tolist(),
        edge_weights=weight.tolist(),
        edge_scores=None if edge_score is None else edge_score.tolist(),
        has_edge_mask=explanation.get('edge_mask') is not None,
        explained=int((hop[nodes] == 0).sum()),
        folded=Folded(left_out.numel(), float(score[left_out].sum())),
    )


def _graph(explanation: Any) -> tuple[Tensor, int]:
    r"""Returns the edges [2, E] of an explanation, sources first, and its number of nodes."""
    if isinstance(explanation, HeteroData):
        raise TypeError(
            "'explanation' must be that of a homogeneous graph (got a heterogeneous one): explain "
            "'HeteroData.to_homogeneous()'"
        )
    edge_index = explanation.get('edge_index')
    if edge_index is None:
        raise ValueError("'explanation' must have its graph's 'edge_index' (got none): set it on the explanation")
    if is_edge_list(edge_index):
        edges = edge_index.as_tensor() if hasattr(edge_index, 'as_tensor') else edge_index
    elif explanation.get('edge_mask') is not None:
        raise ValueError(
            "'explanation' must have its edges as a tensor [2, E] if it has an 'edge_mask' (got a sparse matrix): set "
            "'edge_index' to what the mask is of"
        )
    elif is_torch_sparse_tensor(edge_index):  # targets in rows
        edges = to_edge_index(edge_index)[0].flip(0)
    else:
        target, source, _ = edge_index.coo()
        edges = torch.stack([source, target])
    edges = edges.detach().cpu().long()
    sizes = [value.size(0) for name in ('x', 'node_score', 'node_mask') if (value := explanation.get(name)) is not None]
    return edges, max([*sizes, int(edges.max()) + 1 if edges.numel() > 0 else 0])


def _scores(explanation: Any, edge_index: Tensor, num_nodes: int) -> tuple[Tensor, str, Tensor]:
    r"""Returns the score of each node [N], where it comes from, and which nodes have a nonzero mask [N]."""
    found = {name: explanation.get(name) for name in ('node_score', 'node_mask', 'edge_mask')}
    values = {name: value.detach().cpu().double() for name, value in found.items() if value is not None}
    if 'edge_mask' in values:
        ends, twice = edge_index.reshape(-1), values['edge_mask'].repeat(2)
        values['edge_mask'] = scatter(twice, ends, dim_size=num_nodes, reduce='max')
        reach = scatter(twice.abs(), ends, dim_size=num_nodes, reduce='max')
    rows = {name: value.view(num_nodes, -1) for name, value in values.items() if value.size(0) == num_nodes}
    if not rows:
        raise ValueError(
            "'explanation' must say something of nodes or edges (got neither a 'node_score', nor a 'node_mask' with a "
            "row for each node, nor an 'edge_mask'): pass node_mask_type='object' to the Explainer"
        )
    name, value = next(iter(rows.items()))  # scores before masks
    if not bool(value.isfinite().all()):
        raise ValueError(f"'{name}' of the explanation must be finite (got NaN or infinity): explain another node")
    masks = [rows['node_mask']] if 'node_mask' in rows else []
    masks += [reach[:, None]] if 'edge_mask' in rows else []
    return value.sum(dim=1), name, torch.cat(masks or [value], dim=1).ne(0.0).any(dim=1)


def _explained(explanation: Any, index: Any, num_nodes: int) -> Tensor:
    r"""Returns the ids of explained nodes; none for explanations of graphs, of edges, and of all nodes."""
    if index is None:
        config = getattr(explanation, '_model_config', None)
        if config is None or config.task_level == ModelTaskLevel.node:
            index = explanation.get('index')
    if index is None:
        return torch.zeros(0, dtype=torch.long, device='cpu')
    return outputs_of(index, num_nodes, torch.device('cpu'))


def _hops(root: Tensor, edge_index: Tensor, num_hops: int | None, wanted: Tensor) -> Tensor:
    r"""Returns the hops from each node to ``root`` [N], -1 where there is no way, or it is not ``wanted``."""
    hop = torch.full_like(wanted, -1, dtype=torch.long)
    hop[root] = 0
    source, target = edge_index
    for step in itertools.count() if num_hops is None else range(num_hops):
        reached = source[hop[target] == step]
        reached = reached[hop[reached] < 0]
        if reached.numel() == 0 or (num_hops is None and bool((hop[wanted] >= 0).all())):
            break
        hop[reached] = step + 1
    return hop


def _edges(
    explanation: Any, edge_index: Tensor, nodes: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    r"""Returns the edges between ``nodes`` [2, P] as positions there, their masks, scores and if they go both ways."""
    place = torch.full((num_nodes,), -1, device='cpu')
    place[nodes] = torch.arange(nodes.numel(), device='cpu')
    source, target = place[edge_index]
    kept = (source >= 0) & (target >= 0) & (source != target)
    pair = torch.stack([source[kept], target[kept]])
    is_reversed = pair[0] > pair[1]
    found = {name: explanation.get(name) for name in ('edge_mask', 'edge_score')}
    values = {name: value.detach().cpu().double()[kept] for name, value in found.items() if value is not None}
    weight = values.get('edge_mask', torch.ones(pair.size(1), dtype=torch.float64, device='cpu')).abs()
    parts = [weight, values.get('edge_score', weight), is_reversed.double(), (~is_reversed).double()]
    pair, columns = coalesce(pair.sort(dim=0).values, torch.stack(parts, dim=1), len(nodes), reduce='max')
    weight, score, backward, forward = columns.unbind(dim=1)
    pair = torch.where(forward > 0, pair, pair.flip(0))
    weight = weight / weight.max().clamp(min=1.0) if weight.numel() > 0 else weight
    return pair, weight, score if 'edge_score' in values else None, (backward > 0) & (forward > 0)
