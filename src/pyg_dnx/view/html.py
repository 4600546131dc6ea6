r"""An explanation as one page that any browser opens, without a network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explanation

from pyg_dnx import files
from pyg_dnx.results.certificate import Certificate
from pyg_dnx.results.node_explanations import NodeExplanations
from pyg_dnx.view.scene import scene_of
from pyg_dnx.view.verdict import verdict_on
from pyg_dnx.view.words import feature_data, graph_data, namer, question_of

SCRIPTS = ('graph.js', 'pointer.js', 'tables.js', 'page.js')


def to_html(
    explanation: Explanation,
    path: str | PathLike[str],
    *,
    index: int | Tensor | None = None,
    max_nodes: int = 1000,
    node_labels: Sequence[Any] | Mapping[int, Any] | None = None,
    feature_labels: Sequence[Any] | Mapping[int, Any] | None = None,
    certificate: Certificate | None = None,
    title: str | None = None,
) -> Path:
    r"""Writes an explanation as one page: the graph to pan, zoom and hover, tables that sort, and the verdict.

    The page needs no network, and the same explanation gives the same bytes.

    Args:
        explanation (Explanation): Any explainer's explanation.
        path (str or PathLike): The file to write, in a folder that exists.
        index (int or Tensor, optional): The nodes in the middle. (default: the explained ones)
        max_nodes (int): How many nodes the page holds; of others it says how many there are, and the sum of their
            scores.
        node_labels (list or dict, optional): What to call the nodes of the graph. (default: their ids)
        feature_labels (list or dict, optional): What to call features. (default: their numbers)
        certificate (Certificate, optional): What :func:`~pyg_dnx.certify` says of the explanation.
        title (str, optional): The title. (default: what is explained)
    """
    path = Path(path)
    _check(explanation, path, certificate)
    scene = scene_of(explanation, index, max_nodes=max_nodes)
    num_nodes, num_features = (None, None) if explanation.get('x') is None else explanation.x.shape
    node_name = namer('node_labels', node_labels, num_nodes)
    feature_name = namer('feature_labels', feature_labels, num_features)
    data = {
        **graph_data(scene, node_name),
        'hasLabels': node_labels is not None,
        'features': feature_data(explanation, feature_name),
        'verdict': verdict_on(explanation, certificate, scene.nodes[: scene.explained]),
    }
    named = '{node} ({name})' if node_labels is not None else '{node}'
    explained = [named.format(node=node, name=node_name(node)) for node in scene.nodes[: scene.explained]]
    question, sentence = question_of(explanation, scene, explained)
    files.write_text(path, _page(question if title is None else str(title), sentence, data))
    return path


def _check(explanation: Any, path: Path, certificate: Any) -> None:
    if isinstance(explanation, NodeExplanations):
        raise TypeError(
            "'explanation' must be of one page's nodes (got NodeExplanations of many): index it, as in explanations[0]"
        )
    if not isinstance(explanation, (Explanation, HeteroData)):  # the scene has a sentence on the latter
        raise TypeError(
            f"'explanation' must be a PyG Explanation (got {type(explanation).__name__}): pass what an Explainer "
            f'returned'
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"'path' must be in a folder that exists (got {str(path)!r}): create {str(path.parent)!r} first"
        )
    if path.is_dir():
        raise IsADirectoryError(f"'path' must name a file (got the folder {str(path)!r}): add a name, page.html, say")
    if certificate is not None and not isinstance(certificate, Certificate):
        raise TypeError(
            f"'certificate' must be a Certificate or None (got {type(certificate).__name__}): pass what 'certify' "
            f'returned'
        )


def _page(title: str, sentence: str, data: dict[str, Any]) -> str:
    r"""Fills in the template. The policy lets nothing run but this style and this script, and nothing be loaded."""
    folder = resources('pyg_dnx') / 'view' / 'page'
    read = {name: (folder / name).read_text('utf-8') for name in ('page.html', 'page.css', *SCRIPTS)}
    script = '\n'.join(["'use strict';", *(read[name] for name in SCRIPTS)])
    policy = f"default-src 'none'; style-src {_hash(read['page.css'])}; script-src {_hash(script)}; base-uri 'none'"
    content = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(',', ':'))
    for character in '<>&':  # so that no label ends the script element
        content = content.replace(character, f'\\u{ord(character):04x}')
    return Template(read['page.html']).substitute(
        title=_escape(title),
        sentence=_escape(sentence),
        policy=policy,
        style=read['page.css'],
        data=content,
        script=script,
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _escape(text: str) -> str:
    return html.escape(text).encode('ascii', 'xmlcharrefreplace').decode()
