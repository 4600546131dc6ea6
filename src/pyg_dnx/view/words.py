r"""What a page says of an explanation, in words and in what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain import Explanation
from torch_geometric.explain.config import ModelMode, ModelTaskLevel

from pyg_dnx.view.layout import rings
from pyg_dnx.view.scene import Scene

MAX_EDGES = 4_000  # drawn: those with the highest masks
MAX_FEATURES = 200  # in the table: those with the highest |score|
SHOWN_AT_FIRST = 60  # nodes
SOURCES = {'node_score': 'score', 'node_mask': 'node mask', 'edge_mask': 'highest edge mask'}


def namer(argument: str, labels: Sequence[Any] | Mapping[int, Any] | None, count: int | None) -> Callable[[int], str]:
    r"""Returns what names nodes, or features: their labels, ``count`` of them if it is a list; or else their ids."""
    if labels is None:
        return str
    if isinstance(labels, Mapping):
        return lambda i: str(labels.get(i, i))
    if isinstance(labels, str) or (count is not None and len(labels) != count):
        got = repr(labels) if isinstance(labels, str) else len(labels)
        raise ValueError(
            f"'{argument}' must hold {count} labels, one for each (got {got}): pass all of them, or a dict of some"
        )
    return lambda i: str(labels[i])


def graph_data(scene: Scene, name: Callable[[int], str]) -> dict[str, Any]:
    r"""What the page draws and tabulates of the graph."""
    size = [abs(score) for score in scene.scores]
    order = torch.tensor(size, dtype=torch.float64, device='cpu').argsort(descending=True, stable=True)
    rank = order.argsort() + 1
    heaviest = sorted(range(len(scene.edges)), key=lambda e: -scene.edge_weights[e])[:MAX_EDGES]
    place, bounds = rings(scene.hops, [scene.edges[e] for e in heaviest])
    hint = 'against or for what is explained' if scene.is_signed else 'without a sign'
    notes, left_out = [], len(scene.edges) - len(heaviest)
    if scene.folded.num_nodes > 0:
        notes.append(
            f'{scene.folded.num_nodes:,} nodes that matter less are left out; their scores sum to '
            f'{_number(scene.folded.score)}.'
        )
    if left_out > 0:
        notes.append(f'{left_out:,} edges with the lowest masks are not drawn.')
    return {
        'nodes': {
            'id': scene.nodes,
            'label': [name(node) for node in scene.nodes],
            'score': [_finite(score) for score in scene.scores],
            'rank': rank.tolist(),
            'hops': scene.hops,
            'x': [round(value, 1) for value in place[:, 0].tolist()],
            'y': [round(value, 1) for value in place[:, 1].tolist()],
        },
        'edges': {
            'source': [scene.edges[e][0] for e in heaviest],
            'target': [scene.edges[e][1] for e in heaviest],
            'weight': [_finite(scene.edge_weights[e], 3) for e in heaviest],
            'oneWay': [int(not scene.both_ways[e]) for e in heaviest],
        },
        'rings': [
            {'radius': round(radius, 1), 'name': _hop_name(hop)}
            for hop, radius in bounds
            if hop != 0 or scene.explained > 1
        ],
        'explained': scene.explained,
        'hasEdgeMask': scene.has_edge_mask,
        'isSigned': scene.is_signed,
        'scoreName': 'Score' if scene.score_name == 'node_score' else 'Mask',
        'scoreHint': f'{SOURCES[scene.score_name]}, {hint}',
        'initial': min(len(size), SHOWN_AT_FIRST),
        'note': ' '.join(notes),
    }


def _hop_name(hop: int | None) -> str:
    if hop is None:
        return 'no way to it'
    return 'explained' if hop == 0 else '1 hop' if hop == 1 else f'{hop} hops'


def feature_data(explanation: Explanation, name: Callable[[int], str]) -> dict[str, Any] | None:
    r"""The table of features, where something is known of them: summed over nodes, highest |score| first."""
    known = {key: explanation.get(key) for key in ('feature_score', 'node_score', 'node_mask')}
    by_feature = {
        key: value.detach().cpu().double().reshape(-1, value.size(-1)).sum(dim=0)
        for key, value in known.items()
        if value is not None and (key == 'feature_score' or (value.dim() == 2 and value.size(1) > 1))
    }
    if not by_feature:
        return None
    source, found = next(iter(by_feature.items()))  # scores before masks
    order = found.abs().argsort(descending=True, stable=True)
    shown, left_out = order.tensor_split([MAX_FEATURES])
    rest = _number(float(found[left_out].sum()))
    note = f'{left_out.numel():,} features that matter less are left out; their scores sum to {rest}.'
    return {
        'name': [name(f) for f in shown.tolist()],
        'score': [_finite(score) for score in found[shown].tolist()],
        'isSigned': source != 'node_mask' or bool((found < 0.0).any()),
        'scoreName': 'Mask' if source == 'node_mask' else 'Score',
        'note': note if left_out.numel() > 0 else '',
    }


def question_of(explanation: Explanation, scene: Scene, explained: list[str]) -> tuple[str, str]:
    r"""A title and a sentence: what is explained. ``explained`` names the explained nodes."""
    if len(explained) > 1:
        rest = f' and {len(explained) - 5:,} more' if len(explained) > 5 else ''
        sentence = f'What matters at nodes {", ".join(explained[:5])}{rest}, explained together.'
        return f'Explanation of {len(explained):,} nodes', sentence
    if not explained:
        config = getattr(explanation, '_model_config', None)
        level = 'node' if config is None else ModelTaskLevel(config.task_level).value
        what = {'node': 'all nodes', 'edge': 'edges', 'graph': 'the graph'}[level]
        return f'Explanation of {what}', f'What matters for the prediction of {what}, explained together.'
    where = f'node {explained[0]}'
    outcome, total = _outcome(explanation, scene.nodes[0]), len(scene.nodes) + scene.folded.num_nodes
    if outcome is None:
        return f'Explanation of {where}', f'What matters at {where}.'
    is_predicted = explanation.get('prediction') is not None
    what = f'The model predicts {outcome}' if is_predicted else f'What is explained is {outcome}'
    say = '1 node has' if total == 1 else f'{total:,} nodes have'
    return f'Why {outcome} at {where}?', f'{what} at {where}: {say} a say in it.'


def _outcome(explanation: Explanation, node: int) -> str | None:
    r"""What is explained at a node: a class, or the values of a regression; ``None`` where it isn't known."""
    x, target = explanation.get('x'), explanation.get('target')
    if x is None or not isinstance(target, Tensor) or target.numel() % x.size(0) != 0 or target.numel() == 0:
        return None
    values = target.detach().cpu().reshape(x.size(0), -1)[node]  # two a node for binary models with two columns
    config = getattr(explanation, '_model_config', None)
    if values.is_floating_point() or (config is not None and config.mode == ModelMode.regression):
        return ' and '.join(f'{value:.4g}' for value in values.tolist())
    return f'class {int(values) if values.numel() == 1 else int(values.argmax())}'


def _finite(value: float, digits: int = 6) -> float | None:
    return float(f'{value:.{digits}g}') if math.isfinite(value) else None


def _number(value: float) -> str:
    return f'{value:.3g}'.replace('-', '−')
