r"""An explanation as one page that any browser opens, without a network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from importlib.resources import files as resources
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain import Explanation, HeteroExplanation

from pyg_dnx import files
from pyg_dnx.results.certificate import Certificate
from pyg_dnx.results.node_explanations import NodeExplanations
from pyg_dnx.view.layout import SPACING, layout_of
from pyg_dnx.view.scene import Scene, scene_of
from pyg_dnx.view.words import (
    NAMES,
    Labels,
    Names,
    explained_ids,
    feature_scores,
    feature_values,
    hop_name,
    names_of,
    number,
    question_of,
    verdict_on,
)

MAX_EDGES = 4_000  # drawn: those with the highest masks
MAX_FEATURES = 200  # in the table: those with the highest |score|
SHOWN_AT_FIRST = 60  # nodes
PIXELS = 26.0 / SPACING  # of a step of 1
SOURCES = {'node_score': 'score', 'node_mask': 'node mask', 'edge_mask': 'highest edge mask'}
MAX_ROWS = 100  # of a table in a notebook
TOP_K = 5  # neighbours in each
SCRIPTS = ('graph.js', 'pointer.js', 'tables.js', 'page.js')


def to_html(
    explanation: Explanation | HeteroExplanation,
    path: str | PathLike[str],
    *,
    index: int | Tensor | None = None,
    max_nodes: int = 1000,
    node_labels: Labels = None,
    feature_labels: Labels = None,
    class_names: Labels = None,
    certificate: Certificate | None = None,
    title: str | None = None,
) -> Path:
    r"""Writes an explanation as one page: the graph to pan, zoom and hover, tables that sort, and the verdict.

    The page needs no network, and the same explanation gives the same bytes. Explanations of nodes, links and graphs
    will do, of homogeneous and heterogeneous graphs.

    Args:
        explanation (Explanation or HeteroExplanation): Any explainer's explanation.
        path (str or PathLike): The file to write, in a folder that exists.
        index (int or Tensor, optional): The nodes in the middle. (default: the explained ones)
        max_nodes (int): How many nodes the page holds; of others it says how many there are, and the sum of their
            scores.
        node_labels (list or dict, optional): What to call the nodes of the graph; for heterogeneous graphs, a dict
            from node types to these. (default: the explanation's ``node_names``, or else ids)
        feature_labels (list or dict, optional): What to call features, likewise. (default: its ``feature_names``, or
            else numbers)
        class_names (list or dict, optional): What to call classes. (default: its ``class_names``, or else numbers)
        certificate (Certificate, optional): What :func:`~pyg_dnx.certify` says of the explanation.
        title (str, optional): The title. (default: what is explained)
    """
    path = Path(path)
    _check(explanation, certificate)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"'path' must be in a folder that exists (got {str(path)!r}): create {str(path.parent)!r} first"
        )
    if path.is_dir():
        raise IsADirectoryError(f"'path' must name a file (got the folder {str(path)!r}): add a name, page.html, say")
    names = names_of(explanation, node_labels, feature_labels, class_names)
    files.write_text(path, _page(explanation, names, certificate, index, max_nodes, title))
    return path


def notebook_html(explanation: Explanation | HeteroExplanation, certificate: Certificate | None = None) -> str:
    r"""The page of :func:`to_html` as a frame for a notebook, which neither sees nor is seen by the rest of it."""
    _check(explanation, certificate)
    page = _page(explanation, names_of(explanation), certificate)
    style = 'width: 100%; height: 780px; border: 0'
    return f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" title="Explanation" style="{style}"></iframe>'


def batch_html(batch: NodeExplanations) -> str:
    r"""The explanations of many nodes as a table for a notebook: their highest scores as bars, and the trust in them.

    It has a row for each of the first ``MAX_ROWS`` nodes. All bars have one scale, on which the longest is the highest
    score of a node that is not explained itself.
    """
    names, size = names_of(batch), min(MAX_ROWS, len(batch))
    nodes, scores = (values[:size].detach().cpu() for values in _top(batch))
    ends = batch.ends[:, :size].cpu()
    others = scores[(nodes != ends[..., None]).all(dim=0)].abs()  # an own score may dwarf all
    limit, certificate = max(others.tolist(), default=0.0) or max(scores.abs().flatten().tolist()), batch.certificate
    bars = [
        ''.join(_bar(names.node(j, None), value, limit) for j, value in zip(*row, strict=True) if j >= 0)
        for row in zip(nodes.tolist(), scores.tolist(), strict=True)
    ]
    titles = [' → '.join(_escape(names.title(node)) for node in each) for each in ends.T.tolist()]
    noun = 'node' if len(ends) == 1 else 'pair'
    columns = {noun: titles}
    if batch.targets is not None:
        columns['explained'] = [_escape(names.of_class(target)) for target in batch.targets[:size].tolist()]
    columns[f'{nodes.size(1)} highest scores'] = [f'<div style="white-space: nowrap">{bar}</div>' for bar in bars]
    columns['surrogate agrees'] = ['yes' if agrees else 'no' for agrees in batch.surrogate_agreement[:size].tolist()]
    columns['distillation error'] = [number(error) for error in batch.distillation_error[:size].tolist()]
    if certificate is not None:
        if (measured := certificate.measured) is not None:
            for name, values in (('with it alone', measured.kept), ('without it', measured.removed)):
                columns[name] = [number(value) for value in values[:size].tolist()]
        elif (expected := certificate.expected_unfaithfulness) is not None:
            columns['expected unfaithfulness'] = [number(value) for value in expected[:size].tolist()]
        columns['verdict'] = [NAMES[code] for code in certificate.verdict[:size].tolist()]
    style = 'text-align: left; vertical-align: top; padding: 2px 12px 2px 0'
    head, cell = ''.join(f'<th style="{style}">{name}</th>' for name in columns), f'<td style="{style}">{{}}</td>'
    rows = (''.join(map(cell.format, row)) for row in zip(*columns.values(), strict=True))
    body = ''.join(f'<tr>{row}</tr>' for row in rows)
    more = f'; the first {size:,} are shown' if size < len(batch) else ''
    caption = f'<caption style="text-align: left">{len(batch):,} explained {noun}s{more}</caption>'
    return f'<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _check(explanation: Any, certificate: Any) -> None:
    if isinstance(explanation, NodeExplanations):
        raise TypeError(
            "'explanation' must be of one page's nodes (got NodeExplanations of many): index it, as in explanations[0]"
        )
    if not isinstance(explanation, (Explanation, HeteroExplanation)):
        raise TypeError(
            f"'explanation' must be a PyG Explanation (got {type(explanation).__name__}): pass what an Explainer "
            f'returned'
        )
    if certificate is not None and not isinstance(certificate, Certificate):
        raise TypeError(
            f"'certificate' must be a Certificate or None (got {type(certificate).__name__}): pass what 'certify' "
            f'returned'
        )


def _top(batch: NodeExplanations) -> tuple[Tensor, Tensor]:
    r"""The highest scores and their nodes, as many as are kept."""
    for k in range(TOP_K, 1, -1):
        try:
            return batch.top_k(k)
        except ValueError:  # fewer were kept
            continue
    return batch.top_k(1)


def _page(
    explanation: Any,
    names: Names,
    certificate: Certificate | None,
    index: Any = None,
    max_nodes: int = 1000,
    title: str | None = None,
) -> str:
    r"""Fills in the template. The policy lets nothing run but this style and this script, and nothing be loaded."""
    scene = scene_of(explanation, index, max_nodes=max_nodes)
    data = {
        **_graph_data(scene, names),
        'hasLabels': names.has_nodes,
        'features': _feature_data(explanation, names, index),
        'verdict': verdict_on(explanation, certificate, explained_ids(explanation, scene, index)),
    }
    question, sentence = question_of(explanation, names, scene, index)
    folder = resources('pyg_dnx') / 'view' / 'page'
    read = {name: (folder / name).read_text('utf-8') for name in ('page.html', 'page.css', *SCRIPTS)}
    script = '\n'.join(["'use strict';", *(read[name] for name in SCRIPTS)])
    policy = f"default-src 'none'; style-src {_hash(read['page.css'])}; script-src {_hash(script)}; base-uri 'none'"
    content = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(',', ':'))
    for character in '<>&':  # so that no label ends the script element
        content = content.replace(character, f'\\u{ord(character):04x}')
    return Template(read['page.html']).substitute(
        title=_escape(question if title is None else str(title)),
        sentence=_escape(sentence),
        policy=policy,
        style=read['page.css'],
        data=content,
        script=script,
    )


def _feature_data(explanation: Any, names: Names, index: Any = None) -> dict[str, Any] | None:
    r"""The table of features, where something is known of them, highest |score| first."""
    known = feature_scores(explanation)
    if known is None:
        return None
    found, source, keys = known
    values = feature_values(explanation, index)
    order = found.abs().argsort(descending=True, stable=True)
    shown, left_out = order.tensor_split([MAX_FEATURES])
    rest = number(float(found[left_out].sum()))
    note = f'{left_out.numel():,} features that matter less are left out; their scores sum to {rest}.'
    return {
        'name': [names.feature(*keys[f]) for f in shown.tolist()],
        'value': None if values is None else [_finite(value, 4) for value in values[shown].tolist()],
        'score': [_finite(score) for score in found[shown].tolist()],
        'isSigned': source != 'node_mask' or bool((found < 0.0).any()),
        'scoreName': 'Mask' if source == 'node_mask' else 'Score',
        'note': note if left_out.numel() > 0 else '',
    }


def _graph_data(scene: Scene, names: Names) -> dict[str, Any]:
    r"""What the page draws and tabulates of the graph."""
    size = [abs(score) for score in scene.scores]
    order = torch.tensor(size, dtype=torch.float64, device='cpu').argsort(descending=True, stable=True)
    rank = order.argsort() + 1
    heaviest = sorted(range(len(scene.edges)), key=lambda e: -scene.edge_weights[e])[:MAX_EDGES]
    place, rings = layout_of(scene)
    x, y = (PIXELS * place * [1.0, -1.0]).round(1).T.tolist()
    hint = 'against or for what is explained' if scene.is_signed else 'without a sign'
    notes, left_out = [], len(scene.edges) - len(heaviest)
    if scene.folded.num_nodes > 0:
        notes.append(
            f'{scene.folded.num_nodes:,} nodes that matter less are left out; their scores sum to '
            f'{number(scene.folded.score)}.'
        )
    if left_out > 0:
        notes.append(f'{left_out:,} edges with the lowest masks are not drawn.')
    types: Sequence[str | None] = scene.types or [None] * len(scene.nodes)
    edge_scores = scene.edge_scores if scene.level == 'graph' else None
    return {
        'nodes': {
            'id': scene.nodes,
            'label': [names.node(node, kind) for node, kind in zip(scene.nodes, types, strict=True)],
            'type': None if scene.types is None else [scene.all_types.index(kind) for kind in scene.types],
            'score': [_finite(score) for score in scene.scores],
            'rank': rank.tolist(),
            'hops': scene.hops,
            'x': x,
            'y': y,
        },
        'edges': {
            'source': [scene.edges[e][0] for e in heaviest],
            'target': [scene.edges[e][1] for e in heaviest],
            'weight': [_finite(scene.edge_weights[e], 3) for e in heaviest],
            'score': None if edge_scores is None else [_finite(edge_scores[e]) for e in heaviest],
            'oneWay': [int(not scene.both_ways[e]) for e in heaviest],
        },
        'rings': [
            {'radius': round(PIXELS * (ring.outer + 0.5), 1), 'name': hop_name(scene.hops[ring.nodes[0]])}
            for hop, ring in enumerate(rings)
            if len(ring.nodes) > 0 and (hop > 0 or scene.explained > 1)
        ],
        'types': scene.all_types,
        'links': scene.links,
        'explained': scene.explained,
        'isGraph': scene.level == 'graph',
        'hasEdgeMask': scene.has_edge_mask,
        'isSigned': scene.is_signed,
        'scoreName': 'Score' if scene.score_name == 'node_score' else 'Mask',
        'scoreHint': f'{SOURCES[scene.score_name]}, {hint}',
        'initial': len(size) if scene.level == 'graph' else min(len(size), SHOWN_AT_FIRST),
        'note': ' '.join(notes),
    }


def _finite(value: float, digits: int = 6) -> float | None:
    return float(f'{value:.{digits}g}') if math.isfinite(value) else None


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _escape(text: str) -> str:
    return html.escape(text).encode('ascii', 'xmlcharrefreplace').decode()


def _bar(name: str, score: float, limit: float) -> str:
    r"""A name, a score, and a bar of its size."""
    width, colour = 100 * min(1.0, abs(score) / (limit or 1.0)), '#d55e00' if score >= 0 else '#0072b2'
    bar = f'<span style="display: block; height: 5px; width: {width:.1f}px; background: {colour}"></span>'
    box = 'display: inline-block; width: 104px; margin-right: 8px; vertical-align: top'
    box += '; white-space: normal; overflow-wrap: anywhere'
    return f'<span style="{box}">{_escape(name)}: {number(score)}{bar}</span>'
