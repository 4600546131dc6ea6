r"""Labels that don't overlap, neither one another nor what is drawn: as many as fit, the most important first."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyg_dnx.plot.theme import Theme

# Where a label can be, seen from its node: beside it, above and below, at the corners.
SIDES = np.array([(1, 0), (-1, 0), (0, 1), (0, -1), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8)])
MAX_LABELS = 80  # beside nodes
MARGIN = 1.0  # around each label, in pixels


def place_labels(
    axes: Any, places: np.ndarray, radii: np.ndarray, free: np.ndarray, names: list[str], theme: Theme, fills: Any
) -> None:
    r"""Writes each node's name into its circle if it fits there, else beside it if there is room, else not at all.

    Args:
        axes: Where nodes are drawn, with its final limits and size.
        places: The nodes' places [n, 2], the most important node first.
        radii: Their radii in points [n].
        free: The radii to leave free around them [n].
        names: Their labels.
        theme: The colours of texts.
        fills: The colours of nodes.
    """
    from matplotlib.patheffects import withStroke

    figure = axes.figure
    renderer, page = figure.canvas.get_renderer(), axes.get_window_extent()
    centers = axes.transData.transform(places)
    radii, free = radii * figure.dpi / 72, free * figure.dpi / 72
    circles = np.concatenate([centers - free[:, None], centers + free[:, None]], axis=1)
    taken = [*circles, *(_extent(text, renderer) for text in axes.texts)]
    outward = centers - axes.transData.transform((0.0, 0.0))
    halo = {'color': theme.text, 'path_effects': [withStroke(linewidth=2.5, foreground=theme.page)]}
    num_beside = 0
    for j, name in enumerate(names):
        text = axes.text(*places[j], name, ha='center', va='center', fontsize=8, zorder=5, gid='label')
        box = _extent(text, renderer)
        half = 0.5 * (box[2:] - box[:2])
        if np.hypot(half[0] - MARGIN, 0.7 * half[1]) < radii[j]:
            text.set_color(theme.ink(fills[j]))
            continue
        for side in SIDES[np.argsort(-SIDES @ outward[j], kind='stable')]:
            shift = side * (free[j] + half)
            moved = box + np.tile(shift, 2)
            is_inside = (moved[:2] >= page.min).all() and (moved[2:] <= page.max).all()
            if num_beside < MAX_LABELS and is_inside and not overlaps(moved, np.array(taken)):
                text.set(position=axes.transData.inverted().transform(centers[j] + shift), **halo)
                taken.append(moved)
                num_beside += 1
                break
        else:
            text.remove()


def overlaps(box: np.ndarray, others: np.ndarray) -> bool:
    r"""Whether a box (x0, y0, x1, y1) overlaps any of others [n, 4]."""
    return bool(((box[:2] < others[:, 2:]) & (box[2:] > others[:, :2])).all(axis=1).any())


def _extent(text: Any, renderer: Any) -> np.ndarray:
    box = text.get_window_extent(renderer)
    return np.array([box.x0 - MARGIN, box.y0 - MARGIN, box.x1 + MARGIN, box.y1 + MARGIN])
