r"""Labels that don't overlap, neither one another nor nodes: as many as fit, the most important first."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyg_dnx.plot.theme import Theme

# Where a label can be, seen from its node: beside it, above and below, at the corners.
SIDES = np.array([(1, 0), (-1, 0), (0, 1), (0, -1), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8)])
MAX_LABELS = 80  # beside nodes
NUM_FAR = 10  # of the first nodes, whose labels may be further away
FAR = range(8, 160, 6)  # so many points
MARGIN = 1.0  # around each label, in pixels


class Labels:
    r"""Labels of a graph, and where there is room for more.

    Args:
        axes: Where nodes are drawn, with its final limits and size.
        places: The nodes' places [n, 2], the most important node first.
        free: The radii around them to leave free, in points [n].
    """

    def __init__(self, axes: Any, places: np.ndarray, free: np.ndarray) -> None:
        self.axes = axes
        self.places = places
        self.pixel = axes.figure.dpi / 72
        self.centers = axes.transData.transform(places)
        self.free = free * self.pixel
        self.taken = np.concatenate([self.centers - self.free[:, None], self.centers + self.free[:, None]], axis=1)

    def add_nodes(self, names: list[str], radii: np.ndarray, importance: np.ndarray, fills: Any, theme: Theme) -> None:
        r"""Writes names into nodes of such ``radii`` in points [n] if they fit, else beside them if there is room.

        The first ones, which matter most, may stand further away, with a line to their node. Where a name finds no
        room, no node with less than half of its ``importance`` [n] has one: readers take named nodes for the important.
        """
        from matplotlib.patheffects import withStroke

        outward = self.centers - self.axes.transData.transform((0.0, 0.0))
        halo = {'color': theme.text, 'path_effects': [withStroke(linewidth=2.5, foreground=theme.page)]}
        num_beside, least = 0, 0.0
        for j, name in enumerate(names):
            if importance[j] < least:
                break
            text = self._text(self.places[j], name, zorder=5, gid='label')
            box = self._extent(text)
            half = 0.5 * (box[2:] - box[:2])
            if np.hypot(half[0] - MARGIN, 0.7 * half[1]) < radii[j] * self.pixel:
                text.set_color(theme.ink(fills[j]))
                continue
            sides = SIDES[np.argsort(-SIDES @ outward[j], kind='stable')]
            spots = [self.centers[j] + sides * (self.free[j] + half)]
            if j < NUM_FAR:
                spots += [self.centers[j] + sides * (self.free[j] + half + far * self.pixel) for far in FAR]
            text.set(**halo)
            spot = self._settle(text, np.concatenate(spots)[: len(SIDES) * len(spots) * (num_beside < MAX_LABELS)])
            if spot is None:
                least = max(least, 0.5 * importance[j]) if np.isfinite(importance[j]) else least
                continue
            num_beside += 1
            if not (spots[0] == spot).all(axis=1).any():
                ends = self.axes.transData.inverted().transform(np.stack([self.centers[j], spot]))
                self.axes.plot(*ends.T, color=theme.text, linewidth=0.6, zorder=2.5, gid='leader')

    def add_ring(self, name: str, spots: np.ndarray, theme: Theme) -> None:
        r"""Writes the name of a ring at the first of ``spots`` [k, 2] where there is room."""
        box = {'facecolor': theme.page, 'edgecolor': 'none', 'pad': 1.5}
        text = self._text(spots[0], name, color=theme.muted, bbox=box, zorder=2, gid='ring')
        self._settle(text, self.axes.transData.transform(spots))

    def _text(self, place: np.ndarray, name: str, **style: Any) -> Any:
        return self.axes.text(*place, name, ha='center', va='center', fontsize=8, **style)

    def _extent(self, text: Any) -> np.ndarray:
        box = text.get_window_extent(self.axes.figure.canvas.get_renderer())
        return np.array([box.x0 - MARGIN, box.y0 - MARGIN, box.x1 + MARGIN, box.y1 + MARGIN])

    def _settle(self, text: Any, spots: np.ndarray) -> np.ndarray | None:
        r"""Moves a text to the first of ``spots`` [k, 2], in pixels, where it is on the page and overlaps nothing."""
        page, box = self.axes.get_window_extent(), self._extent(text)
        start = self.axes.transData.transform(text.get_position())
        for spot in spots:
            moved = box + np.tile(spot - start, 2)
            is_inside = (moved[:2] >= page.min).all() and (moved[2:] <= page.max).all()
            if is_inside and not overlaps(moved, self.taken):
                text.set_position(self.axes.transData.inverted().transform(spot))
                self.taken = np.concatenate([self.taken, moved[None]])
                return spot
        text.remove()
        return None


def overlaps(box: np.ndarray, others: np.ndarray) -> bool:
    r"""Whether a box (x0, y0, x1, y1) overlaps any of others [n, 4]."""
    return bool(((box[:2] < others[:, 2:]) & (box[2:] > others[:, :2])).all(axis=1).any())
