r"""A scene on axes: nodes, circles around the explained ones, rings, edges and labels; and what they mean."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyg_dnx.plot import edges
from pyg_dnx.plot.labels import Labels
from pyg_dnx.plot.theme import Theme, dress
from pyg_dnx.view.layout import SPACING, Ring, layout_of
from pyg_dnx.view.scene import Scene
from pyg_dnx.view.words import Names, hop_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN = 22.0  # around the graph, in points
FOOT = 0.64  # below the graph, in inches, for a legend and a line of text
MAX_STEP = 110.0  # of rings, in points
MAX_RADIUS = 14.0  # of a node, in points
MAX_POINTS = 5000  # that labels of rings keep away from
ENOUGH = 0.4  # room around the label of a ring, where rings are 1 apart
MARKERS = {'o': 1.0, 's': 0.89, 'D': 0.8, '^': 1.0, 'v': 1.0, 'p': 1.05, 'h': 1.05, 'P': 0.95}  # of types, and sizes
MEANINGS = {
    ('node_score', True): 'score: pushes away from / toward the prediction',
    ('node_mask', True): 'node mask: pushes away from / toward the prediction',
    ('node_mask', False): 'importance (node mask)',
    ('edge_mask', True): "highest mask of the node's edges",
    ('edge_mask', False): "importance (highest mask of the node's edges)",
}


class Panel(NamedTuple):
    r"""A scene with its places and names, and the room that these take beside the outermost nodes, in points."""

    scene: Scene
    places: np.ndarray
    rings: list[Ring]
    names: list[str]
    margin: np.ndarray

    @property
    def extent(self) -> np.ndarray:
        return np.maximum(np.ptp(self.places, axis=0), SPACING)


class Scale(NamedTuple):
    r"""What pictures side by side share: where the colours of nodes and of edges end, and if scores have a sign."""

    limit: float
    edge_limit: float
    is_signed: bool


def panel_of(scene: Scene, names: Names) -> Panel:
    kinds: Sequence[str | None] = scene.types or [None] * len(scene.nodes)
    texts = [textwrap.fill(names.node(*key), 18) for key in zip(scene.nodes, kinds, strict=True)]
    longest = max((len(line) for text in texts for line in text.split('\n')), default=0)
    places, rings = layout_of(scene)
    return Panel(scene, places, rings, texts, MARGIN + np.array([4.2 * max(0, longest - 4), 0.0]))


def scale_of(scenes: Sequence[Scene]) -> Scale:
    r"""Colours end at the highest score of nodes that are not explained, as an own score may dwarf all."""
    others = [abs(score) for scene in scenes for score in scene.scores[scene.explained :]]
    every = [abs(score) for scene in scenes for score in scene.scores]
    edge_scores = [abs(score) for scene in scenes for score in scene.edge_scores or []]
    limit = max(others, default=0.0) or max(every, default=0.0) or 1.0
    return Scale(limit, max(edge_scores, default=0.0) or 1.0, any(scene.is_signed for scene in scenes))


def step_of(panel: Panel, width: float, height: float) -> float:
    r"""How many points a step of 1 is, where there are so many inches."""
    room = 72 * np.array([width, height]) - 2 * panel.margin
    return min(float((room / panel.extent).min()), MAX_STEP)


def draw(axes: Any, panel: Panel, step: float, scale: Scale, theme: Theme) -> Any:
    r"""Draws a panel with a ``step`` of so many points; returns its nodes, which have the colours of scores."""
    scene, places = panel.scene, panel.places
    box = axes.get_position()
    half = 0.5 * 72 * axes.figure.get_size_inches() * (box.width, box.height) / step
    middle = 0.5 * (places.min(axis=0) + places.max(axis=0))
    axes.set(xlim=(middle[0] - half[0], middle[0] + half[0]), ylim=(middle[1] - half[1], middle[1] + half[1]))
    axes.set_axis_off()
    radii = _radii(panel, step, scale)
    edges.draw(axes, scene, places, radii / step, scale.edge_limit, theme)
    nodes = _draw_nodes(axes, panel, radii, scale, theme)
    labels = Labels(axes, places, radii + 4.0 * (np.arange(len(radii)) < scene.explained))  # with their circles
    _draw_rings(axes, panel, labels, theme)
    importance = np.where(np.arange(len(radii)) < scene.explained, np.inf, np.abs(scene.scores))
    labels.add_nodes(panel.names, radii, importance, nodes.get_facecolors(), theme)
    return nodes


def _radii(panel: Panel, step: float, scale: Scale) -> np.ndarray:
    r"""The radius of each node in points, larger for higher scores; nodes don't touch."""
    places, scene = panel.places, panel.scene
    distance = np.linalg.norm(places[:, None] - places, axis=2) + np.where(np.eye(len(places)), np.inf, 0.0)
    largest = min(MAX_RADIUS, 0.45 * step * float(distance.min(initial=np.inf)))
    share = np.abs(scene.scores) / scale.limit
    radii = largest * (0.6 + 0.4 * np.sqrt(np.minimum(1.0, share)))
    if scene.explained == 1:  # there is room in the middle
        radii[0] = max(radii[0], min(0.7 * MAX_RADIUS, 0.3 * step))
    return radii


def _draw_nodes(axes: Any, panel: Panel, radii: np.ndarray, scale: Scale, theme: Theme) -> Any:
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import Affine2D

    scene, places = panel.scene, panel.places
    nodes = axes.scatter(
        *places.T,
        s=(2 * radii) ** 2,
        c=scene.scores,
        cmap=theme.colors(scale.is_signed),
        vmin=-scale.limit if scale.is_signed else 0.0,
        vmax=scale.limit,
        edgecolors=theme.line,
        linewidths=0.6,
        zorder=3,
        gid='nodes',
    )
    if scene.types is not None:
        paths = {}
        for kind in scene.all_types:
            marker = marker_of(scene, kind)
            style = MarkerStyle(marker)
            paths[kind] = style.get_path().transformed(style.get_transform() + Affine2D().scale(MARKERS[marker]))
        nodes.set_paths([paths[kind] for kind in scene.types])
    nodes.update_scalarmappable()
    if scene.explained > 0:
        around = (2 * radii[: scene.explained] + 6.5) ** 2
        circle = {'facecolors': 'none', 'edgecolors': theme.text, 'linewidths': 1.6}
        axes.scatter(*places[: scene.explained].T, s=around, **circle, zorder=4, gid='explained')
    return nodes


def marker_of(scene: Scene, kind: str) -> str:
    return list(MARKERS)[scene.all_types.index(kind) % len(MARKERS)]


def _draw_rings(axes: Any, panel: Panel, labels: Labels, theme: Theme) -> None:
    from matplotlib.patches import Circle

    in_the_way = np.concatenate([labels.places, edges.along(panel.scene, labels.places)])
    in_the_way = in_the_way[:: 1 + len(in_the_way) // MAX_POINTS]
    low, high = np.stack([axes.get_xlim(), axes.get_ylim()], axis=1)
    angle = np.pi / 90 * np.array(sorted(range(180), key=lambda step: abs(step - 67)))  # first at the upper left
    directions = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for ring in panel.rings[1:]:
        axes.add_patch(Circle((0.0, 0.0), ring.radius, fill=False, color=theme.faint, linewidth=1.0, zorder=0))
        if len(ring.nodes) == 0:
            continue
        spots = []
        for radius in (ring.radius, ring.outer + SPACING):  # on the ring, or beside a crowded one
            spot = radius * directions
            free = np.linalg.norm(spot[:, None] - in_the_way, axis=2).min(axis=1)
            free = np.minimum(np.minimum(free, ENOUGH), np.minimum(spot - low, high - spot).min(axis=1))
            spots.append(spot[(-free.round(6)).argsort(kind='stable')])
        spots = spots if ring.num_lanes == 1 else spots[::-1]
        labels.add_ring(hop_name(panel.scene.hops[ring.nodes[0]]), np.concatenate(spots), theme)


def draw_scale(figure: Figure, box: tuple[float, float, float, float], nodes: Any, panels: list[Panel]) -> Any:
    r"""Draws the colours of scores, with their ends drawn out where scores go on; returns its axes."""
    scores = [score for panel in panels for score in panel.scene.scores]
    goes_on = (min(scores) < nodes.norm.vmin, max(scores) > nodes.norm.vmax)
    extend = {(False, False): 'neither', (True, False): 'min', (False, True): 'max', (True, True): 'both'}[goes_on]
    scale = figure.colorbar(nodes, cax=figure.add_axes(box), extend=extend, extendfrac=0.03)
    scale.outline.set_visible(False)
    return scale.ax


def label_scale(bar: Any, panels: list[Panel], scale: Scale, theme: Theme) -> None:
    dress(bar, theme).set_ylabel(MEANINGS[panels[0].scene.score_name, scale.is_signed], fontsize=9)


def draw_legend(figure: Figure, panels: list[Panel], right: float, theme: Theme) -> None:
    r"""What circles, shapes and edges mean, in one line that ends ``right``, in inches, below the graph."""
    from matplotlib.lines import Line2D

    scene, handles = max((panel.scene for panel in panels), key=lambda scene: len(scene.edges)), []
    ring: dict[str, Any] = {'linestyle': 'none', 'markersize': 9, 'markerfacecolor': 'none'}
    if any(panel.scene.explained > 0 for panel in panels):
        label = 'explained' if scene.level == 'node' else 'ends of the explained link'
        handles.append(Line2D([], [], marker='o', color=theme.text, label=label, **ring, markeredgewidth=1.6))
    for kind in scene.all_types:
        handles.append(Line2D([], [], marker=marker_of(scene, kind), color=theme.muted, label=kind, **ring))
    if scene.links:
        handles.append(Line2D([], [], color=theme.text, linewidth=1.2, linestyle=edges.DASHES, label='the link'))
    if scene.has_edge_mask and scene.edges:
        for weight in (0.2, 0.6, 1.0):
            look = edges.look(np.array([weight]), scene)
            label = f'edge mask {weight:g}' if weight == 0.2 else f'{weight:g}'
            handles.append(Line2D([], [], color=theme.line, linewidth=look[0][0], alpha=look[1][0], label=label))
    if scene.level == 'graph' and scene.edge_scores:
        for color, label in ((theme.away, 'edge score below 0'), (theme.toward, 'above 0')):
            handles.append(Line2D([], [], color=color, linewidth=2.5, label=label))
    width, height = figure.get_size_inches()
    place: dict[str, Any] = {'loc': 'center right', 'bbox_to_anchor': (right / width, (FOOT - 0.2) / height)}
    style: dict[str, Any] = {'frameon': False, 'fontsize': 8, 'labelcolor': theme.muted, 'borderpad': 0.0}
    figure.legend(handles=handles, ncols=max(1, len(handles)), columnspacing=1.2, handletextpad=0.5, **place, **style)
