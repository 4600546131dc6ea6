r"""Where nodes are drawn: on rings around the explained ones, or, where none is explained, by their distances."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from pyg_dnx.view.scene import Scene

SPACING = 0.34  # between neighbours on a ring, where rings are 1 apart
NUM_SWEEPS = 30
MAX_SWAP_WORK = 2 * 10**9  # multiplications
MAX_STRESS_WORK = 10**7  # distances
MAX_STARTS = 6
NUM_TURNS = 72


class Ring(NamedTuple):
    r"""Nodes that are equally far from the explained ones. Crowded rings have several lanes around their radius."""

    nodes: np.ndarray  # their positions in the scene
    radius: float
    num_lanes: int

    @property
    def outer(self) -> float:
        return self.radius + 0.5 * SPACING * (self.num_lanes - 1)

    @property
    def least_gap(self) -> float:
        r"""The angle between neighbours: what they need, or all there is on crowded rings and on the first."""
        even = 2 * np.pi / max(1, len(self.nodes))
        need = SPACING / max(SPACING, 2 * self.radius - self.outer) / self.num_lanes
        is_first = self.radius < 1.5
        return min(even, 0.95 * even if is_first or need > 0.4 * even else max(1.5 * need, 0.5 * even))


def layout_of(scene: Scene) -> tuple[np.ndarray, list[Ring]]:
    r"""Returns the place of each node [n, 2], always the same, and the rings if any node is explained."""
    pairs = np.array([*scene.edges, *scene.links], dtype=int).reshape(-1, 2)
    if scene.explained == 0:
        return stress_layout(len(scene.nodes), pairs), []
    beyond = max(hop for hop in scene.hops if hop is not None) + 1
    return ring_layout(np.array([beyond if hop is None else hop for hop in scene.hops]), pairs)


def rings_of(ring: np.ndarray) -> list[Ring]:
    r"""Radii of rings with room for their nodes, given the number of each node's ring [n]."""
    rings: list[Ring] = []
    for number in range(ring.max() + 1):
        nodes = (ring == number).nonzero()[0]
        if number == 0:
            rings.append(Ring(nodes, 0.0 if len(nodes) == 1 else max(0.45, 0.3 * SPACING * len(nodes)), 1))
            continue
        around = SPACING * len(nodes) / (2 * np.pi)  # the radius at which they fit on one lane
        start, num_lanes = rings[-1].outer + 1.0, 1
        while around > num_lanes * start and SPACING * num_lanes**2 < around:  # with more, it would only be larger
            num_lanes += 1
        inner = max(start, around / num_lanes)
        rings.append(Ring(nodes, inner + 0.5 * SPACING * (num_lanes - 1), num_lanes))
    return rings


def ring_layout(ring: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, list[Ring]]:
    r"""Places nodes on rings, such that edges are short.

    Args:
        ring: The number of each node's ring, from 0 in the middle, [n].
        edges: Pairs of nodes [E, 2].

    Returns:
        The place of each node [n, 2], and the rings.
    """
    rings = rings_of(ring)
    joined = np.zeros((len(ring), len(ring)))
    joined[edges[:, 0], edges[:, 1]] = joined[edges[:, 1], edges[:, 0]] = 1.0
    angle = tree_angles(ring, rings, joined)
    if len(rings[0].nodes) == 1:  # whose angle means nothing
        joined[rings[0].nodes] = joined[:, rings[0].nodes] = 0.0
    ring_radius = np.array([part.radius for part in rings])[ring]
    best, shortest = angle, np.inf
    for sweep in range(NUM_SWEEPS):
        for part in rings if sweep % 2 == 0 else rings[::-1]:
            pull = joined[part.nodes] @ np.exp(1j * angle)
            wish = np.where(np.abs(pull) > 1e-9, np.angle(pull), angle[part.nodes])
            angle[part.nodes] = apart(wish, part.least_gap)
        place = ring_radius * np.exp(1j * angle)
        length = (joined * np.abs(place[:, None] - place)).sum()
        if length < shortest - 1e-9:
            best, shortest = angle.copy(), length
    best = swapped(best, ring, ring_radius, joined)
    radius = ring_radius.copy()
    for part in rings:  # neighbours take turns
        turns = np.r_[0 : part.num_lanes : 2, 1 : part.num_lanes : 2]
        place_on_ring = best[part.nodes].argsort(kind='stable').argsort()
        lane = turns[place_on_ring % part.num_lanes]
        radius[part.nodes] += SPACING * (lane - 0.5 * (part.num_lanes - 1))
    return turned(np.stack([radius * np.cos(best), radius * np.sin(best)], axis=1)), rings


def swapped(angle: np.ndarray, ring: np.ndarray, radius: np.ndarray, joined: np.ndarray) -> np.ndarray:
    r"""Swaps two nodes of a ring as long as that makes edges shorter, the best two first."""
    angle = angle.copy()
    for _ in range(min(200, MAX_SWAP_WORK // len(ring) ** 3)):
        place = radius * np.exp(1j * angle)
        distance = np.abs(place[:, None] - place)
        length = joined @ distance  # of the edges of each node, if it were in the place of each other
        own = length.diagonal()
        change = length + length.T - own[:, None] - own + 2 * joined * distance
        change[ring[:, None] != ring] = 0.0
        one, other = np.unravel_index(change.argmin(), change.shape)
        if change[one, other] > -1e-9:
            break
        angle[[one, other]] = angle[[other, one]]
    return angle


def tree_angles(ring: np.ndarray, rings: list[Ring], joined: np.ndarray) -> np.ndarray:
    r"""Angles in a tree drawn from its root outwards, where each node has room for what hangs on it."""
    size = len(ring)
    parent = np.zeros(size, dtype=int)
    for inner, outer in itertools.pairwise(rings):
        if len(inner.nodes) > 0:
            parent[outer.nodes] = inner.nodes[joined[outer.nodes][:, inner.nodes].argmax(axis=1)]
    room = np.ones(size)
    for part in rings[:0:-1]:
        room = np.maximum(room, np.bincount(parent[part.nodes], room[part.nodes], minlength=size))
    start, width = np.zeros(size), np.zeros(size)
    roots = rings[0].nodes
    width[roots] = 2 * np.pi * room[roots] / room[roots].sum()
    start[roots] = np.cumsum(width[roots]) - width[roots]
    for part in rings[1:]:
        used, share = np.zeros(size), np.bincount(parent[part.nodes], room[part.nodes], minlength=size)
        for node in part.nodes:
            above = parent[node]
            width[node] = width[above] * room[node] / share[above]
            start[node] = start[above] + used[above]
            used[above] += width[node]
    return start + 0.5 * width


def stress_layout(size: int, edges: np.ndarray) -> np.ndarray:
    r"""Places of a graph without a middle [n, 2]: the parts that are joined side by side, the largest first."""
    distance = np.full((size, size), np.inf, dtype=np.float32)
    distance[edges[:, 0], edges[:, 1]] = distance[edges[:, 1], edges[:, 0]] = 1.0
    np.fill_diagonal(distance, 0.0)
    for via in range(size):  # by Floyd and Warshall
        np.minimum(distance, distance[:, via, None] + distance[via], out=distance)
    first = np.isfinite(distance).argmax(axis=1)
    parts = [(first == number).nonzero()[0] for number in np.unique(first)]
    drawn = [turned(spread(by_distance(distance[np.ix_(part, part)]), SPACING)) for part in parts]
    boxes = [np.ptp(places, axis=0) + 2 * SPACING for places in drawn]
    width = max(max(box[0] for box in boxes), 1.4 * np.sqrt(sum(box.prod() for box in boxes)))
    found, corner, height = np.empty((size, 2)), np.zeros(2), 0.0
    for k in sorted(range(len(parts)), key=lambda k: -len(parts[k])):
        if corner[0] > 0.0 and corner[0] + boxes[k][0] > width:
            corner, height = np.array([0.0, corner[1] - height]), 0.0
        found[parts[k]] = drawn[k] - [drawn[k][:, 0].min(), drawn[k][:, 1].max()] + corner
        corner[0] += boxes[k][0]
        height = max(height, boxes[k][1])
    return found


def by_distance(distance: np.ndarray) -> np.ndarray:
    r"""Places [n, 2] that are about so far apart [n, n]: Kamada and Kawai's objective, by majorization."""
    size = len(distance)
    distance = np.where(np.eye(size), 0.0, distance.astype(float))
    centred = np.eye(size) - 1.0 / size
    value, vector = np.linalg.eigh(-0.5 * centred @ distance**2 @ centred)
    flat = vector[:, -2:] * np.sqrt(np.maximum(value[-2:], 0.0)) if size > 1 else np.zeros((1, 2))
    draws = np.random.default_rng(0).normal(scale=0.5 * distance.mean(), size=(MAX_STARTS, size, 2))
    draws[0] = flat + 0.05 * draws[0]  # so that no two start at one place
    weight = np.where(np.eye(size), 0.0, 1.0 / np.maximum(distance, 1e-9) ** 2)
    inverse = np.linalg.inv(np.diag(weight.sum(axis=1)) - weight + 1.0 / size) - 1.0 / size  # the pseudo-inverse
    work = MAX_STRESS_WORK // size**2
    found: list[tuple[float, int, np.ndarray]] = []
    for places in draws[: max(1, work // 300)]:  # small graphs from several starts, of which the best is taken
        for _ in range(min(300, work)):
            pull = -weight * distance / np.maximum(between(places), 1e-9)
            np.fill_diagonal(pull, -pull.sum(axis=1))
            places = inverse @ pull @ places
        error = between(places) - distance
        found.append((round(float((weight * error**2).sum()), 6), len(found), places))
    return min(found)[2]


def apart(wish: np.ndarray, gap: float) -> np.ndarray:
    r"""The angles closest to ``wish`` [n], in its order, that are at least ``gap`` apart."""
    size = len(wish)
    if size < 2:
        return wish
    wish = np.mod(wish, 2 * np.pi)
    order = wish.argsort(kind='stable')
    widest = int(np.diff(wish[order], append=wish[order[0]] + 2 * np.pi).argmax())
    order = np.roll(order, -widest - 1)  # the circle is cut where it is emptiest
    wanted = np.unwrap(wish[order])
    even = gap * np.arange(size)
    found = ascending(wanted - even) + even
    if found[-1] - found[0] > 2 * np.pi - gap + 1e-9:
        even = 2 * np.pi / size * np.arange(size)
        found = even + np.angle(np.exp(1j * (wanted - even)).sum())
    angles = np.empty(size)
    angles[order] = found
    return angles


def ascending(values: np.ndarray) -> np.ndarray:
    r"""The ascending sequence closest to ``values``: neighbours that descend are pooled to their mean."""
    pools: list[tuple[float, int]] = []  # mean and size
    for value in values:
        mean, size = float(value), 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean, size = (mean * size + before * count) / (size + count), size + count
        pools.append((mean, size))
    return np.repeat([mean for mean, _ in pools], [size for _, size in pools])


def turned(places: np.ndarray) -> np.ndarray:
    r"""Turns places [n, 2] around the middle such that they fill a page that is rather wide than high."""

    def size(angle: float) -> float:
        width, height = np.ptp(places @ rotation(angle), axis=0)
        return round(float(max(width, height) + 0.5 * height), 6)

    return places @ rotation(min(2 * np.pi / NUM_TURNS * np.arange(NUM_TURNS), key=size))


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def spread(places: np.ndarray, gap: float, num_steps: int = 100) -> np.ndarray:
    r"""Moves places [n, 2] that are closer than ``gap`` away from each other."""
    at = places[:, 0] + 1j * places[:, 1] + 1e-6 * gap * np.exp(1j * np.arange(len(places)))
    for _ in range(num_steps):
        away = at[:, None] - at
        distance = np.abs(away) + np.eye(len(at)) * gap
        push = 0.3 * np.maximum(0.0, gap - distance) / np.maximum(distance, 1e-12)
        if push.max(initial=0.0) < 1e-3:
            break
        at = at + (push * away).sum(axis=1)
    return np.stack([at.real, at.imag], axis=1)


def between(places: np.ndarray) -> np.ndarray:
    r"""The distances of places [n, 2] from one another, [n, n]."""
    at = places[:, 0] + 1j * places[:, 1]
    return np.abs(at[:, None] - at)
