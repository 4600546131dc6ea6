r"""The edges of a graph as lines, and as arrows where they go one way."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyg_dnx.plot.theme import Theme
from pyg_dnx.view.scene import Scene

MAX_WIDTH = 4.0  # in points
WIDTH_WITHOUT_MASK = 0.8
DASHES = (0, (4, 2.5))  # of explained links


def look(weight: np.ndarray, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    r"""Widths in points and opacities of edges of such weights [E]; finer where there are many."""
    crowd = min(1.0, (60 / max(1, len(scene.edges))) ** 0.6)
    if not scene.has_edge_mask:
        return np.full(weight.shape, min(MAX_WIDTH * crowd, WIDTH_WITHOUT_MASK)), np.full(weight.shape, 0.8 * crowd)
    return 0.25 + (MAX_WIDTH * crowd - 0.25) * weight**1.5, (0.3 + 0.6 * weight) * max(0.6, crowd)


def along(scene: Scene, places: np.ndarray, num_points: int = 9) -> np.ndarray:
    r"""Points [E * num_points, 2] on all edges."""
    start, end = places[np.array(scene.edges, dtype=int).reshape(-1, 2)].transpose(1, 0, 2)
    share = np.linspace(0.1, 0.9, num_points)[:, None, None]
    return (start + share * (end - start)).reshape(-1, 2)


def draw(axes: Any, scene: Scene, places: np.ndarray, radii: np.ndarray, limit: float, theme: Theme) -> None:
    r"""Draws edges between nodes at ``places`` [n, 2] with ``radii`` [n], in its units, coloured up to ``limit``."""
    from matplotlib.collections import LineCollection, PolyCollection

    if scene.links:
        links: Any = places[np.array(scene.links)]
        style: dict[str, Any] = {'linewidths': 1.2, 'linestyles': [DASHES], 'zorder': 1.5, 'gid': 'links'}
        axes.add_collection(LineCollection(links, colors=theme.text, **style))
    if not scene.edges:
        return
    pairs = np.array(scene.edges)
    start, end = places[pairs].transpose(1, 0, 2)
    forward = (end - start) / np.maximum(np.linalg.norm(end - start, axis=1), 1e-9)[:, None]
    width, alpha = look(np.array(scene.edge_weights), scene)
    is_arrow = ~np.array(scene.both_ways)
    points = 72 * axes.figure.get_figwidth() * axes.get_position().width / np.ptp(axes.get_xlim())
    tip = end - forward * radii[pairs[:, 1], None]
    head = (3.5 + 1.6 * width)[:, None] / points
    end = np.where(is_arrow[:, None], tip - 0.8 * head * forward, end)
    lines: Any = np.stack([start, end], axis=1)
    colors: Any = theme.line
    if scene.level == 'graph' and scene.edge_scores is not None:
        colors, alpha = theme.edge_colors()(0.5 + 0.5 * np.array(scene.edge_scores) / limit), np.ones(len(width))
        width = np.maximum(width, 1.2)
    axes.add_collection(LineCollection(lines, linewidths=width, colors=colors, alpha=alpha, zorder=1))
    if is_arrow.any():
        side = 0.4 * head * np.stack([-forward[:, 1], forward[:, 0]], axis=1)
        heads: Any = np.stack([tip, tip - head * forward + side, tip - head * forward - side], axis=1)[is_arrow]
        style = {'facecolors': theme.line, 'alpha': alpha[is_arrow], 'linewidths': 0.0, 'zorder': 1}
        axes.add_collection(PolyCollection(heads, **style))
