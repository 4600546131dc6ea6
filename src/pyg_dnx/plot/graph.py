r"""The neighbourhood of an explained node as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_dnx.plot import edges
from pyg_dnx.plot.labels import Labels
from pyg_dnx.plot.rings import SPACING, Ring, ring_layout, spread, turned
from pyg_dnx.plot.theme import Theme, dress, name_of, new_figure, number, saved, theme_of, title_of
from pyg_dnx.view.scene import Scene, scene_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, MIN_HEIGHT, MAX_HEIGHT = 6.2, 3.6, 6.2  # of the graph, in inches
MARGIN = 22.0  # around the graph, in points
MAX_RADIUS = 14.0  # of a node, in points
MAX_POINTS = 5000  # that labels of rings keep away from
ENOUGH = 0.4  # room around the label of a ring, where rings are 1 apart
MEANINGS = {
    ('node_score', True): 'score: pushes away from / toward the prediction',
    ('node_mask', True): 'node mask: pushes away from / toward the prediction',
    ('node_mask', False): 'importance (node mask)',
    ('edge_mask', True): "highest mask of the node's edges",
    ('edge_mask', False): "importance (highest mask of the node's edges)",
}


def neighborhood(
    explanation: Any,
    index: Any = None,
    *,
    num_hops: int | None = None,
    max_nodes: int = 30,
    node_labels: Sequence[Any] | Mapping[int, Any] | None = None,
    title: str | None = None,
    theme: str = 'light',
    path: str | PathLike[str] | None = None,
) -> Figure:
    r"""Draws what an explanation says of the neighbourhood of the explained node.

    The explained node is in the middle of rings, on which the others are by hops. Colours and sizes of nodes are their
    signed scores where there are such, else masks; colours end at the highest of nodes that aren't explained. Widths of
    edges are their masks, and edges that go one way are arrows. Labels that would overlap are left out.

    Args:
        explanation (Explanation): Any explainer's explanation.
        index (int or Tensor, optional): The explained nodes. (default: those of the explanation)
        num_hops (int, optional): Show all nodes within so many hops. (default: those with a nonzero mask)
        max_nodes (int): Show at most so many nodes, those with the highest ``|score|``. (default: ``30``)
        node_labels (list or dict, optional): What to call nodes. (default: their ids)
        title (str, optional): The title. (default: what is explained)
        theme (str): ``'light'`` or ``'dark'``. (default: ``'light'``)
        path (str, optional): Where to save the picture. (default: nowhere)
    """
    colors = theme_of(theme)
    scene = scene_of(explanation, index, num_hops, max_nodes)
    names = [textwrap.fill(name_of(node_labels, node, 'node_labels'), 18) for node in scene.nodes]
    figure = new_figure(colors, 1.0, 1.0)
    places, rings = _layout(scene)
    points = _frame(figure, places, names)
    radii = _radii(scene, places, points)

    axes = figure.axes[0]
    edges.draw(axes, scene, places, radii / points, colors)
    nodes = _draw_nodes(axes, scene, places, radii, colors)
    labels = Labels(axes, places, radii + 4.0 * (np.arange(len(radii)) < scene.explained))  # with their circles
    _draw_rings(axes, rings, scene, labels, colors)
    labels.add_nodes(names, radii, nodes.get_facecolors(), colors)
    _draw_scale(figure, nodes, scene, colors)
    _draw_legend(figure, scene, colors)
    _write(figure, title or title_of(explanation, scene.nodes[: scene.explained]), _folded(scene), colors)
    return saved(figure, path)


def _layout(scene: Scene) -> tuple[np.ndarray, list[Ring]]:
    r"""Places for all nodes, on rings if any node is explained."""
    pairs = np.array(scene.edges, dtype=int).reshape(-1, 2)
    if scene.explained > 0:
        beyond = max(hop for hop in scene.hops if hop is not None) + 1
        return ring_layout(np.array([beyond if hop is None else hop for hop in scene.hops]), pairs)
    try:
        import networkx as nx
    except ImportError as error:
        raise ImportError(
            "pictures without an explained node need 'networkx', which is not installed: pip install networkx"
        ) from error
    graph = nx.empty_graph(len(scene.nodes))
    graph.add_edges_from(scene.edges)
    places = nx.spring_layout(graph, seed=0, iterations=200, scale=SPACING * np.sqrt(len(scene.nodes)))
    return turned(spread(np.array([places[j] for j in graph]).reshape(-1, 2), SPACING)), []


def _frame(figure: Figure, places: np.ndarray, names: list[str]) -> float:
    r"""Sizes the page to the graph and adds its axes; returns how many points a step of 1 is there."""
    longest = max((len(line) for name in names for line in name.split('\n')), default=0)
    margin = MARGIN + np.array([4.2 * max(0, longest - 4), 0.0])  # in points
    low, high = places.min(axis=0, initial=0.0), places.max(axis=0, initial=0.0)
    extent = np.maximum(high - low, SPACING)
    room = 72 * np.array([WIDTH, MAX_HEIGHT]) - 2 * margin
    points = min(float((room / extent).min()), 110.0)
    height = float(np.clip((extent[1] * points + 2 * margin[1]) / 72, MIN_HEIGHT, MAX_HEIGHT))
    page = np.array([WIDTH + 1.25, height + 0.95])
    figure.set_size_inches(*page)
    half = 0.5 * 72 * np.array([WIDTH, height]) / points
    middle = 0.5 * (low + high)
    axes = figure.add_axes((0.0, 0.42 / page[1], WIDTH / page[0], height / page[1]))
    axes.set(xlim=(middle[0] - half[0], middle[0] + half[0]), ylim=(middle[1] - half[1], middle[1] + half[1]))
    axes.set_axis_off()
    return points


def _radii(scene: Scene, places: np.ndarray, points: float) -> np.ndarray:
    r"""The radius of each node in points, larger for higher scores; nodes don't touch."""
    distance = np.linalg.norm(places[:, None] - places, axis=2) + np.where(np.eye(len(places)), np.inf, 0.0)
    largest = min(MAX_RADIUS, 0.45 * points * float(distance.min(initial=np.inf)))
    share = np.abs(scene.scores) / limit_of(scene)
    radii = largest * (0.6 + 0.4 * np.sqrt(np.minimum(1.0, share)))
    if scene.explained == 1:  # there is room in the middle
        radii[0] = max(radii[0], min(0.7 * MAX_RADIUS, 0.3 * points))
    return radii


def limit_of(scene: Scene) -> float:
    r"""Where colours end: at the highest score of nodes that are not explained, as an own score may dwarf all."""
    scores = np.abs(scene.scores[scene.explained :] or scene.scores)
    return float(scores.max(initial=0.0)) or float(np.abs(scene.scores).max(initial=0.0)) or 1.0


def _draw_nodes(axes: Any, scene: Scene, places: np.ndarray, radii: np.ndarray, theme: Theme) -> Any:
    limit = limit_of(scene)
    nodes = axes.scatter(
        *places.T,
        s=(2 * radii) ** 2,
        c=scene.scores,
        cmap=theme.colors(scene.is_signed),
        vmin=-limit if scene.is_signed else 0.0,
        vmax=limit,
        edgecolors=theme.line,
        linewidths=0.6,
        zorder=3,
        gid='nodes',
    )
    nodes.update_scalarmappable()
    if scene.explained > 0:
        around = (2 * radii[: scene.explained] + 6.5) ** 2
        circle = {'facecolors': 'none', 'edgecolors': theme.text, 'linewidths': 1.6}
        axes.scatter(*places[: scene.explained].T, s=around, **circle, zorder=4, gid='explained')
    return nodes


def _draw_rings(axes: Any, rings: list[Ring], scene: Scene, labels: Labels, theme: Theme) -> None:
    from matplotlib.patches import Circle

    in_the_way = np.concatenate([labels.places, edges.along(scene, labels.places)])
    in_the_way = in_the_way[:: 1 + len(in_the_way) // MAX_POINTS]
    low, high = np.stack([axes.get_xlim(), axes.get_ylim()], axis=1)
    angle = np.pi / 90 * np.array(sorted(range(180), key=lambda step: abs(step - 67)))  # first at the upper left
    directions = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for hop, ring in enumerate(rings[1:], start=1):
        axes.add_patch(Circle((0.0, 0.0), ring.radius, fill=False, color=theme.faint, linewidth=1.0, zorder=0))
        spots = []
        for radius in (ring.radius, ring.outer + SPACING):  # on the ring, or beside a crowded one
            spot = radius * directions
            free = np.linalg.norm(spot[:, None] - in_the_way, axis=2).min(axis=1)
            free = np.minimum(np.minimum(free, ENOUGH), np.minimum(spot - low, high - spot).min(axis=1))
            spots.append(spot[(-free.round(6)).argsort(kind='stable')])
        name = 'no path' if None in scene.hops and hop == len(rings) - 1 else '1 hop' if hop == 1 else f'{hop} hops'
        labels.add_ring(name, np.concatenate(spots if ring.num_lanes == 1 else spots[::-1]), theme)


def _draw_scale(figure: Figure, nodes: Any, scene: Scene, theme: Theme) -> None:
    width, height = figure.get_size_inches()
    bar = figure.add_axes(((WIDTH + 0.2) / width, 0.62 / height, 0.17 / width, (height - 1.35) / height))
    low, high = min(scene.scores, default=0.0), max(scene.scores, default=0.0)
    goes_on = (low < nodes.norm.vmin, high > nodes.norm.vmax)
    extend = {(False, False): 'neither', (True, False): 'min', (False, True): 'max', (True, True): 'both'}[goes_on]
    scale = figure.colorbar(nodes, cax=bar, extend=extend, extendfrac=0.03)
    scale.outline.set_visible(False)
    dress(bar, theme).set_ylabel(MEANINGS[scene.score_name, scene.is_signed], fontsize=9)


def _draw_legend(figure: Figure, scene: Scene, theme: Theme) -> None:
    r"""What the circle and the widths of edges mean, in one line below the graph."""
    from matplotlib.lines import Line2D

    handles = []
    if scene.explained > 0:
        ring: dict[str, Any] = {'marker': 'o', 'markersize': 9, 'markerfacecolor': 'none', 'markeredgewidth': 1.6}
        handles.append(Line2D([], [], linestyle='none', color=theme.text, label='explained', **ring))
    if scene.has_edge_mask and scene.edges:
        for weight in (0.2, 0.6, 1.0):
            look = edges.look(np.array([weight]), scene)
            label = f'edge mask {weight:g}' if weight == 0.2 else f'{weight:g}'
            handles.append(Line2D([], [], color=theme.line, linewidth=look[0][0], alpha=look[1][0], label=label))
    width, height = figure.get_size_inches()
    place: dict[str, Any] = {'loc': 'center right', 'bbox_to_anchor': ((WIDTH + 0.1) / width, 0.22 / height)}
    style: dict[str, Any] = {
        'frameon': False,
        'fontsize': 8,
        'labelcolor': theme.muted,
        'borderpad': 0.0,
        'columnspacing': 1.2,
    }
    figure.legend(handles=handles, ncols=max(1, len(handles)), handletextpad=0.5, **place, **style)


def _write(figure: Figure, title: str, folded: str, theme: Theme) -> None:
    width, height = figure.get_size_inches()
    fontsize = 13.0 * min(1.0, 62 / max(1, len(title)))  # such that it is not cut off
    figure.text(0.15 / width, 1 - 0.27 / height, title, color=theme.text, fontsize=fontsize, va='center', gid='title')
    figure.text(0.15 / width, 0.22 / height, folded, color=theme.muted, fontsize=8.5, va='center', gid='folded')


def _folded(scene: Scene) -> str:
    num_nodes, score = scene.folded
    what = 'score' if scene.score_name == 'node_score' else 'mask'
    nodes = 'node' if num_nodes == 1 else 'nodes'
    return f'+ {num_nodes:,} more {nodes}, {what} sum {number(score)}' if num_nodes > 0 else ''
