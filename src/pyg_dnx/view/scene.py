r"""What a picture of an explanation shows: the nodes around the explained ones, their scores, and the edges between."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explanation
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
        nodes (list): The ids of nodes, each in its own type: explained ones first, then others, both by ``|score|``
            descending.
        hops (list): How many edges away from an explained node each is, along the way of messages; 0 for explained
            nodes, ``None`` where no message gets from it to them, and for all nodes if none is explained.
        scores (list): The score of each node.
        is_signed (bool): Whether scores have a sign, so that 0 is in the middle of their scale.
        score_name (str): Where they come from: ``'node_score'``, ``'node_mask'`` or ``'edge_mask'``.
        edges (list): Pairs (source, target) of positions in ``nodes``, each pair of nodes once, without self-loops.
        both_ways (list): Whether each edge is there in both directions.
        edge_weights (list): The mask of each edge in [0, 1], the highest of both directions and of duplicates.
        edge_scores (list, optional): The score of each edge, the sum over both directions and duplicates, if there are
            scores of edges.
        has_edge_mask (bool): Whether ``edge_weights`` come from a mask; otherwise they are all 1.
        explained (int): How many of ``nodes``, the first ones, are explained, as nodes or as ends of links.
        folded (Folded): How many nodes ``max_nodes`` left out, and the sum of their scores.
        level (str): What is explained: ``'node'``, ``'edge'`` or ``'graph'``.
        links (list): The explained links, as pairs of positions in ``nodes``.
        types (list, optional): The type of each node of a heterogeneous graph.
        all_types (list): All node types of such a graph, in its order.
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
    level: str = 'node'
    links: list[tuple[int, int]] = field(default_factory=list)
    types: list[str] | None = None
    all_types: list[str] = field(default_factory=list)


def scene_of(explanation: Any, index: Any = None, num_hops: int | None = None, max_nodes: int | None = None) -> Scene:
    r"""Takes what is to be drawn out of a PyG :class:`~torch_geometric.explain.Explanation` or `HeteroExplanation`.

    Args:
        explanation (Explanation or HeteroExplanation): Any explainer's explanation. Nodes have its signed
            ``node_score`` where there is one, else its ``node_mask``, both summed over features; where only edges have
            masks, the highest of their edges. Of a graph, all nodes are shown.
        index (int or Tensor, optional): What is explained, ids or a boolean mask: nodes, columns of
            ``edge_label_index``, or graphs of ``batch``. (default: that of the explanation)
        num_hops (int, optional): Show all nodes from which messages reach an explained node in so many hops. (default:
            all nodes with a nonzero mask, which are those that :meth:`threshold` leaves)
        max_nodes (int, optional): Show the explained nodes and those with the highest ``|score|``, at most so many in
            all. (default: ``30``, or ``200`` of a graph)
    """
    level = level_of(explanation)
    max_nodes = (200 if level == 'graph' else 30) if max_nodes is None else options.count('max_nodes', max_nodes)
    if num_hops is not None:
        options.count('num_hops', num_hops, least=0)
    sizes = sizes_of(explanation)
    index = explained_index(explanation, index)
    if isinstance(explanation, HeteroData):
        explanation, index = _packed(explanation, sizes, index)
    edge_index, num_nodes = _graph(explanation)
    score, score_name, is_masked = _scores(explanation, edge_index, num_nodes)
    root, links = _asked(explanation, level, index, num_nodes)
    hop = _hops(root, edge_index, num_hops, is_masked)
    shown = is_masked if num_hops is None or root.numel() == 0 else hop >= 0
    if level == 'graph':
        shown = _graphs(explanation, index, num_nodes)
    shown[root] = True

    candidates = (
        (shown if bool(shown.any()) else torch.ones_like(shown)).nonzero().view(-1)
    )  # if all masks are zero, all
    order = score[candidates].abs().argsort(descending=True, stable=True)
    order = order[(hop[candidates[order]] == 0).logical_not().to(torch.uint8).argsort(stable=True)]
    nodes, left_out = candidates[order].tensor_split([max_nodes])

    place = torch.full((num_nodes,), -1, device='cpu')
    place[nodes] = torch.arange(nodes.numel(), device='cpu')
    pairs, weight, edge_score, both_ways = _edges(explanation, edge_index, place, len(nodes))
    names = list(sizes)
    first = torch.tensor([0, *itertools.accumulate(sizes.values())], device='cpu')
    kind = torch.bucketize(nodes, first[1:], right=True).tolist() if sizes else []
    return Scene(
        nodes=(nodes - first[kind]).tolist() if sizes else nodes.tolist(),
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
        level=level,
        links=[(u, v) for u, v in place[links].T.tolist() if min(u, v) >= 0],
        types=[names[k] for k in kind] if sizes else None,
        all_types=names,
    )


def level_of(explanation: Any) -> str:
    r"""What is explained: ``'node'``, ``'edge'`` or ``'graph'``."""
    config = getattr(explanation, '_model_config', None)
    if config is not None:
        return str(ModelTaskLevel(config.task_level).value)
    return 'node' if getattr(explanation, 'edge_label_index', None) is None else 'edge'


def pairs_of(explanation: Any) -> Tensor:
    r"""The pairs that a model of links answers about, [2, Q]: all edges, if it is not told."""
    name = vars(getattr(explanation, '_store', explanation)).get('_pair_argument', 'edge_label_index')
    pairs = getattr(explanation, name, None)
    pairs = explanation.edge_index if pairs is None else pairs
    return cast(Tensor, pairs.detach().cpu().long().reshape(2, -1))


def sizes_of(explanation: Any) -> dict[str, int]:
    r"""How many nodes each type of a heterogeneous graph has; empty for other graphs."""
    if not isinstance(explanation, HeteroData):
        return {}
    sizes = dict.fromkeys(explanation.node_types, 0)
    for name in explanation.node_types:
        rows = [explanation[name].get(key) for key in ('x', 'node_score', 'node_mask')]
        sizes[name] = max([0, *(value.size(0) for value in rows if value is not None)])
    for one, _, other in explanation.edge_types:
        for name, ends in zip((one, other), explanation[one, _, other].edge_index, strict=True):
            sizes[name] = max([sizes.get(name, 0), *([int(ends.max()) + 1] if ends.numel() > 0 else [])])
    return sizes


def target_type_of(explanation: Any) -> str | None:
    r"""The type of the explained nodes: what the explanation says, else the one with as many nodes as targets."""
    named, target = getattr(explanation, 'target_type', None), getattr(explanation, 'target', None)
    if named is not None or not isinstance(target, Tensor) or target.dim() == 0:
        return named if isinstance(named, str) else None  # those of both ends of links
    fitting = [name for name, size in sizes_of(explanation).items() if size == target.size(0)]
    return fitting[0] if len(fitting) == 1 else None


def explained_index(explanation: Any, index: Any = None) -> Any:
    r"""What ``index`` names, or else the explanation's own: ``None`` if it is of everything."""
    return getattr(explanation, 'index', None) if index is None else index


def _packed(explanation: HeteroData, sizes: dict[str, int], index: Any) -> tuple[Explanation, Any]:
    r"""The explanation as one of a homogeneous graph, which has the nodes of all types one after another."""
    first = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))
    packed: dict[str, Any] = {'x': torch.zeros(sum(sizes.values()), 0, device='cpu')}
    stores = {name: explanation[name] for name in sizes}
    for key in ('node_score', 'node_mask'):
        rows = {name: store.get(key) for name, store in stores.items()}
        if any(value is not None for value in rows.values()):
            parts = [
                torch.zeros(sizes[name], device='cpu')
                if value is None
                else value.detach().cpu().double().reshape(sizes[name], -1).sum(dim=1)
                for name, value in rows.items()
            ]
            packed[key] = torch.cat(parts)
    relations = [explanation[kind] for kind in explanation.edge_types]
    if relations:
        edges = [
            store.edge_index.detach().cpu() + torch.tensor([[first[kind[0]]], [first[kind[2]]]], device='cpu')
            for kind, store in zip(explanation.edge_types, relations, strict=True)
        ]
        packed['edge_index'] = torch.cat(edges, dim=1)
    for key in ('edge_mask', 'edge_score'):
        if any(store.get(key) is not None for store in relations):
            parts = [
                torch.zeros(store.edge_index.size(1), device='cpu') if store.get(key) is None else store[key].cpu()
                for store in relations
            ]
            packed[key] = torch.cat(parts)
    kind = target_type_of(explanation)
    if index is None or kind is None:
        return Explanation(**packed), None
    return Explanation(**packed), outputs_of(index, sizes[kind], torch.device('cpu')) + first[kind]


def _graph(explanation: Any) -> tuple[Tensor, int]:
    r"""Returns the edges [2, E] of an explanation, sources first, and its number of nodes."""
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


def _asked(explanation: Any, level: str, index: Any, num_nodes: int) -> tuple[Tensor, Tensor]:
    r"""Returns the ids of explained nodes, and of the ends of explained links [2, P]."""
    nodes, links = torch.zeros(0, dtype=torch.long, device='cpu'), torch.zeros(2, 0, dtype=torch.long, device='cpu')
    if level == 'node' and index is not None:
        nodes = outputs_of(index, num_nodes, torch.device('cpu'))
    if level == 'edge':
        links = pairs_of(explanation)
        if index is not None:
            links = links[:, outputs_of(index, links.size(1), torch.device('cpu'))]
        nodes = links.unique()
    return nodes, links


def _graphs(explanation: Any, index: Any, num_nodes: int) -> Tensor:
    r"""Which nodes are of the explained graphs [N]."""
    batch = explanation.get('batch')
    if batch is None or index is None:
        return torch.ones(num_nodes, dtype=torch.bool, device='cpu')
    batch = batch.detach().cpu()
    return torch.isin(batch, outputs_of(index, int(batch.max()) + 1, torch.device('cpu')))


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
    explanation: Any, edge_index: Tensor, place: Tensor, num_shown: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    r"""Returns the edges between shown nodes [2, P] as places, their masks, scores and if they go both ways."""
    source, target = place[edge_index]
    kept = (source >= 0) & (target >= 0) & (source != target)
    pair = torch.stack([source[kept], target[kept]])
    is_reversed = pair[0] > pair[1]
    found = {name: explanation.get(name) for name in ('edge_mask', 'edge_score')}
    values = {name: value.detach().cpu().double()[kept] for name, value in found.items() if value is not None}
    weight = values.get('edge_mask', torch.ones(pair.size(1), dtype=torch.float64, device='cpu')).abs()
    parts, ends = [weight, is_reversed.double(), (~is_reversed).double()], pair.sort(dim=0).values
    pair, columns = coalesce(ends, torch.stack(parts, dim=1), num_shown, reduce='max')
    _, score = coalesce(ends, values.get('edge_score', weight), num_shown, reduce='sum')
    weight, backward, forward = columns.unbind(dim=1)
    pair = torch.where(forward > 0, pair, pair.flip(0))
    weight = weight / weight.max().clamp(min=1.0) if weight.numel() > 0 else weight
    return pair, weight, score if 'edge_score' in values else None, (backward > 0) & (forward > 0)
