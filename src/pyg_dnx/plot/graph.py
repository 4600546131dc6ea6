r"""Neighbourhoods of explained nodes and links, and explained graphs, as pictures: one, or many side by side."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Sized
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch_geometric.data import Data, HeteroData

from pyg_dnx.plot.draw import FOOT, Panel, draw, draw_legend, draw_scale, label_scale, panel_of, scale_of, step_of
from pyg_dnx.plot.theme import Theme, new_figure, saved, theme_of
from pyg_dnx.results.node_explanations import NodeExplanations
from pyg_dnx.view.scene import Scene, scene_of
from pyg_dnx.view.words import Labels, names_of, number, question_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, MIN_HEIGHT, MAX_HEIGHT = 6.2, 3.6, 6.2  # of the graph, in inches
SIDE = 3.1  # of one of many
MAX_PANELS = 12
MAX_NODES = 15  # of one of many


def neighborhood(
    explanation: Any,
    index: Any = None,
    *,
    num_hops: int | None = None,
    max_nodes: int | None = None,
    node_labels: Labels = None,
    class_names: Labels = None,
    title: str | None = None,
    theme: str = 'light',
    path: str | PathLike[str] | None = None,
) -> Figure:
    r"""Draws what an explanation says of the neighbourhood of the explained node or link, or of a graph.

    What is explained is in the middle of rings, on which the others are by hops; a graph is drawn as a whole. Colours
    and sizes of nodes are their signed scores where there are such, else masks; colours end at the highest of nodes
    that aren't explained. Shapes are node types. Edges are as wide as their masks, arrows where they go one way, and in
    graphs coloured by their scores. Labels are written by rank: where one finds no room, no node with less than half of
    its score has one.

    Args:
        explanation (Explanation, HeteroExplanation or NodeExplanations): Any explainer's explanation. Of many nodes,
            the first twelve are drawn side by side, on one scale.
        index (int or Tensor, optional): What is explained. (default: what the explanation says)
        num_hops (int, optional): Show all nodes within so many hops. (default: those with a nonzero mask)
        max_nodes (int, optional): Show at most so many nodes, those with the highest ``|score|``. (default: ``30``, or
            ``200`` of a graph; ``15`` of each of many nodes)
        node_labels (list or dict, optional): What to call nodes; for heterogeneous graphs, a dict from node types to
            these. (default: the explanation's ``node_names``, or else ids)
        class_names (list or dict, optional): What to call classes. (default: its ``class_names``, or else numbers)
        title (str, optional): The title. (default: what is explained)
        theme (str): ``'light'`` or ``'dark'``. (default: ``'light'``)
        path (str, optional): Where to save the picture. (default: nowhere)
    """
    if isinstance(explanation, NodeExplanations):
        if index is not None:
            raise ValueError(
                f"'index' must be None for the explanations of many nodes (got {index!r}): draw one of them, as in "
                f'neighborhood(explanations[0])'
            )
        look = _Look(_own(explanation, 'node_names', node_labels), _own(explanation, 'class_names', class_names), theme)
        scenes = (
            (item, scene_of(item, None, num_hops, MAX_NODES if max_nodes is None else max_nodes))
            for item in itertools.islice(explanation, MAX_PANELS)
        )
        return saved(_grid(scenes, len(explanation), 'explained nodes', title, look), path)
    colors = theme_of(theme)
    names = names_of(explanation, node_labels, None, class_names)
    scene = scene_of(explanation, index, num_hops, max_nodes)
    figure, panel, scale = new_figure(colors, 1.0, 1.0), panel_of(scene, names), scale_of([scene])
    step = step_of(panel, WIDTH, MAX_HEIGHT)
    height = float(np.clip((panel.extent[1] * step + 2 * panel.margin[1]) / 72, MIN_HEIGHT, MAX_HEIGHT))
    page = np.array([WIDTH + 1.25, height + 0.53 + FOOT])
    figure.set_size_inches(*page)
    nodes = draw(figure.add_axes((0.0, FOOT / page[1], WIDTH / page[0], height / page[1])), panel, step, scale, colors)
    box = ((WIDTH + 0.2) / page[0], (FOOT + 0.2) / page[1], 0.17 / page[0], (height - 0.4) / page[1])
    label_scale(draw_scale(figure, box, nodes, [panel]), [panel], scale, colors)
    draw_legend(figure, [panel], WIDTH + 0.1, colors)
    _write(figure, title or question_of(explanation, names, scene, index)[0], _folded(panel), colors)
    return saved(figure, path)


def graphs(
    explanations: Iterable[Any],
    *,
    max_nodes: int | None = None,
    node_labels: Labels = None,
    class_names: Labels = None,
    title: str | None = None,
    theme: str = 'light',
    path: str | PathLike[str] | None = None,
) -> Figure:
    r"""Draws explained graphs side by side, the first twelve, with one scale of colours.

    Args:
        explanations (iterable of Explanation): Explanations of graphs, by any explainer.
        max_nodes (int, optional): Show at most so many nodes of each. (default: ``200``)
        node_labels, class_names, title, theme, path: As for :func:`neighborhood`.
    """
    if isinstance(explanations, (Data, HeteroData)) or not isinstance(explanations, Iterable):
        raise TypeError(
            f"'explanations' must be the explanations of many graphs (got {type(explanations).__name__}): pass a list, "
            f"or draw a single one with 'plot.neighborhood'"
        )
    total = len(explanations) if isinstance(explanations, Sized) else 0
    scenes = ((item, scene_of(item, None, None, max_nodes)) for item in itertools.islice(explanations, MAX_PANELS))
    look = _Look(node_labels, class_names, theme)
    return saved(_grid(scenes, total, 'explained graphs', title, look), path)


class _Look(NamedTuple):
    node_labels: Labels
    class_names: Labels
    theme: str


def _own(batch: Any, name: str, labels: Labels) -> Labels:
    return getattr(batch, name, None) if labels is None else labels


def _grid(scenes: Iterable[tuple[Any, Scene]], total: int, what: str, title: str | None, look: _Look) -> Figure:
    r"""Draws explanations side by side, with what they share: one scale of colours, and one legend."""
    colors, panels, titles = theme_of(look.theme), [], []
    for explanation, scene in scenes:
        if what == 'explained graphs' and scene.level != 'graph':
            raise ValueError(
                f"'explanations' must be of graphs (got one of level {scene.level!r}): draw it with 'plot.neighborhood'"
            )
        names = names_of(explanation, look.node_labels, None, look.class_names)
        panels.append(panel_of(scene, names))
        titles.append(textwrap.fill(question_of(explanation, names, scene)[0], 42))
    if not panels:
        raise ValueError("'explanations' must hold at least one (got none): explain something first")
    scale, num_columns = scale_of([panel.scene for panel in panels]), min(4 if len(panels) > 6 else 3, len(panels))
    num_rows = -(-len(panels) // num_columns)
    head = 0.22 + 0.15 * max(text.count('\n') for text in titles)
    width, height = num_columns * SIDE, num_rows * (SIDE + head)
    page = np.array([width + 1.25, height + 0.53 + FOOT])
    figure = new_figure(colors, *page)
    for place, (panel, text) in enumerate(zip(panels, titles, strict=True)):
        row, column = divmod(place, num_columns)
        corner = (column * SIDE, FOOT + (num_rows - row - 1) * (SIDE + head))
        axes = figure.add_axes((corner[0] / page[0], corner[1] / page[1], SIDE / page[0], SIDE / page[1]))
        nodes = draw(axes, panel, step_of(panel, SIDE, SIDE), scale, colors)
        axes.set_title(text, fontsize=9, color=colors.text, pad=2)
    tall = min(3.2, page[1] - 1.35)
    box = ((width + 0.2) / page[0], 0.5 - 0.5 * tall / page[1], 0.17 / page[0], tall / page[1])
    label_scale(draw_scale(figure, box, nodes, panels), panels, scale, colors)
    draw_legend(figure, panels, width + 0.1, colors)
    of = f'The first {len(panels)} of {total:,}' if total > len(panels) else f'{len(panels)}'
    _write(figure, title or f'{of} {what}', '', colors)
    return figure


def _write(figure: Figure, title: str, folded: str, theme: Theme) -> None:
    width, height = figure.get_size_inches()
    fontsize = 13.0 * min(1.0, 8.3 * width / max(1, len(title)))  # such that it is not cut off
    figure.text(0.15 / width, 1 - 0.27 / height, title, color=theme.text, fontsize=fontsize, va='center', gid='title')
    figure.text(0.15 / width, 0.2 / height, folded, color=theme.muted, fontsize=8.5, va='center', gid='folded')


def _folded(panel: Panel) -> str:
    num_nodes, score = panel.scene.folded
    what = 'score' if panel.scene.score_name == 'node_score' else 'mask'
    nodes = 'node' if num_nodes == 1 else 'nodes'
    return f'+ {num_nodes:,} more {nodes}, {what} sum {number(score)}' if num_nodes > 0 else ''
