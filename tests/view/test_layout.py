r"""Where nodes are drawn, against definitions and what a reader expects of small graphs."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyg_dnx.view.layout import (
    SPACING,
    apart,
    ascending,
    by_distance,
    layout_of,
    ring_layout,
    rings_of,
    spread,
    stress_layout,
    turned,
)
from pyg_dnx.view.scene import Folded, Scene

NUMBERS = st.floats(-5, 5)


def gaps(angles):
    ordered = np.sort(np.mod(angles, 2 * np.pi))
    return np.diff(ordered, append=ordered[0] + 2 * np.pi)


@given(st.lists(NUMBERS, min_size=1, max_size=8))
def test_ascending_is_the_closest_ascending_sequence(values):
    size = len(values)
    expected = [  # by the max-min formula
        max(min(np.mean(values[j : k + 1]) for k in range(i, size)) for j in range(i + 1)) for i in range(size)
    ]
    assert ascending(np.array(values)).tolist() == pytest.approx(expected, abs=1e-9)


@given(st.lists(NUMBERS, min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_angles_are_apart_and_in_order(wish, share):
    wish, gap = np.array(wish), share * 2 * np.pi / len(wish)
    found = apart(wish, gap)
    if len(wish) == 1:
        assert (found == wish).all()
        return
    assert gaps(found).min() >= gap - 1e-6
    wanted = np.angle(np.exp(1j * wish))
    if gaps(wanted).min() >= gap + 1e-6:  # nothing to do
        assert np.exp(1j * found) == pytest.approx(np.exp(1j * wanted), abs=1e-6)
    before = np.mod(wish, 2 * np.pi).argsort(kind='stable')
    if gaps(wish).min() > 1e-6:
        after = np.mod(found, 2 * np.pi).argsort(kind='stable')
        start = list(after).index(before[0])
        assert np.roll(after, -start).tolist() == before.tolist()


def test_angles_that_would_meet_across_the_cut_are_even():
    wish = np.array([3.484, 3.832, 5.694, 6.185, 7.654, 7.764, 7.9])
    gap = 0.98 * 2 * np.pi / 7
    found = apart(wish, gap)
    assert gaps(found) == pytest.approx(np.full(7, 2 * np.pi / 7))
    assert np.exp(1j * apart(wish + 1.0, gap)) == pytest.approx(np.exp(1j * (found + 1.0)))
    assert np.angle(np.exp(1j * (found - wish)).sum()) == pytest.approx(0.0, abs=1e-6)


def test_pushed_angles_move_evenly():
    assert apart(np.array([0.1, 0.0]), 1.0) == pytest.approx([0.55, -0.45])
    assert np.mod(apart(np.array([6.2, 0.1]), 0.4), 2 * np.pi) == pytest.approx(
        np.mod([3.15 - np.pi - 0.2, 3.15 - np.pi + 0.2], 2 * np.pi), abs=1e-6
    )


@pytest.mark.parametrize('counts', [[1], [1, 4], [1, 30], [1, 300], [1, 20, 300], [3, 5], [40, 5], [1, 0, 4]])
def test_rings_have_room(counts):
    ring = np.repeat(np.arange(len(counts)), counts)
    edges = np.array([(j, 0) for j in range(1, len(ring))], dtype=int).reshape(-1, 2)
    places, rings = ring_layout(ring, edges)
    distance = np.linalg.norm(places[:, None] - places, axis=2) + np.where(np.eye(len(ring)), np.inf, 0.0)
    assert distance.min() > 0.7 * SPACING
    assert [len(part.nodes) for part in rings] == counts
    for inner, outer in itertools.pairwise(rings):
        assert 2 * outer.radius - outer.outer >= inner.outer + 1.0 - 1e-9
    for part in rings:
        radii = np.linalg.norm(places[part.nodes], axis=1)
        lanes = np.unique(radii.round(6))
        assert len(lanes) == min(part.num_lanes, len(part.nodes))
        if len(lanes) > 0:
            assert 0.5 * (lanes.min() + lanes.max()) == pytest.approx(part.radius)


def test_children_are_near_their_parents():
    ring = np.array([0, 1, 1, 1, 2, 2, 2, 2, 2, 2])
    edges = np.array([(1, 0), (2, 0), (3, 0), (4, 3), (5, 1), (6, 2), (7, 3), (8, 1), (9, 2)])
    places, _ = ring_layout(ring, edges)
    for child, parent in edges[3:]:
        others = [j for j in (1, 2, 3) if j != parent]
        to_parent = np.linalg.norm(places[child] - places[parent])
        assert all(to_parent < np.linalg.norm(places[child] - places[j]) for j in others)


def crossings(places, edges):
    def side(a, b, c):
        return np.sign((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))

    count = 0
    for k, (a, b) in enumerate(edges):
        for c, d in edges[k + 1 :]:
            p, q, r, s = places[a], places[b], places[c], places[d]
            if len({a, b, c, d}) == 4:
                count += side(p, q, r) * side(p, q, s) < 0 and side(r, s, p) * side(r, s, q) < 0
    return count


@pytest.mark.parametrize('size', [6, 9, 12])
def test_a_circle_around_a_hub_does_not_cross(size):
    order = (np.random.default_rng(size).permutation(size) + 1).tolist()
    edges = np.array([(0, j) for j in order] + list(zip(order, order[1:] + order[:1], strict=True)))
    places, _ = ring_layout(np.array([0] + size * [1]), edges)
    assert crossings(places, edges.tolist()) == 0


def test_layouts_are_deterministic():
    generator = np.random.default_rng(0)
    ring = np.repeat([0, 1, 2], [1, 20, 60])
    edges = generator.integers(0, 81, (150, 2))
    first, second = (ring_layout(ring, edges)[0] for _ in range(2))
    assert (first == second).all()


def test_pages_are_rather_wide_than_high():
    line = np.array([[0.0, -2.0], [0.0, 3.0], [0.0, 0.0]])
    found = turned(line)
    assert np.ptp(found, axis=0) == pytest.approx([5.0, 0.0], abs=1e-9)
    assert np.linalg.norm(found, axis=1) == pytest.approx([2.0, 3.0, 0.0])


def test_places_are_spread():
    places = np.array([[0.0, 0.0], [0.0, 0.0], [0.05, 0.0], [5.0, 5.0]])
    found = spread(places, 0.3)
    distance = np.linalg.norm(found[:, None] - found, axis=2) + np.where(np.eye(4), np.inf, 0.0)
    assert distance.min() > 0.25
    assert found[3] == pytest.approx([5.0, 5.0], abs=1e-5)
    assert (places[0] == 0.0).all()


def test_one_explained_node_is_in_the_middle_and_several_around_it():
    assert rings_of(np.array([0, 1]))[0].radius == 0.0
    assert rings_of(np.array([0, 0, 1]))[0].radius > SPACING


def test_more_lanes_do_not_make_a_ring_larger():
    for size in (10, 100, 1000):
        ring = rings_of(np.repeat([0, 1], [1, size]))[1]
        assert ring.radius - (ring.outer - ring.radius) >= 1.0 - 1e-9
        assert SPACING * size <= 2 * np.pi * ring.num_lanes * (2 * ring.radius - ring.outer) * (1 + 1e-9)
        assert ring.outer < 2 * SPACING * np.sqrt(size / (2 * np.pi)) + 2.0


HEXAGON = np.array([(j, (j + 1) % 6) for j in range(6)])


def test_a_ring_of_atoms_is_a_regular_polygon():
    places = stress_layout(6, HEXAGON)
    sides = np.linalg.norm(places[HEXAGON[:, 0]] - places[HEXAGON[:, 1]], axis=1)
    assert sides == pytest.approx(np.full(6, sides[0]), rel=1e-3)
    radii = np.linalg.norm(places - places.mean(axis=0), axis=1)
    assert radii == pytest.approx(np.full(6, radii[0]), rel=1e-3)


def test_distances_that_a_plane_has_are_found():
    points = np.random.default_rng(0).normal(size=(12, 2))
    distance = np.linalg.norm(points[:, None] - points, axis=2)
    found = by_distance(distance)
    assert np.linalg.norm(found[:, None] - found, axis=2) == pytest.approx(distance, abs=1e-3)


def test_chains_do_not_cross():
    edges = np.array([(0, 1), (1, 2), (2, 3), (3, 4), (2, 5), (5, 6), *(HEXAGON + 6)])
    assert crossings(stress_layout(12, edges), edges.tolist()) == 0


@pytest.mark.parametrize('size', [1, 2, 5, 40])
def test_parts_stand_side_by_side(size):
    chains = [(part * 3 + j, part * 3 + j + 1) for part in range(size) for j in range(2)]
    places = stress_layout(3 * size + 2, np.array(chains))  # and two nodes by themselves
    distance = np.linalg.norm(places[:, None] - places, axis=2) + np.where(np.eye(len(places)), np.inf, 0.0)
    assert distance.min() > 0.9 * SPACING
    part = np.repeat(np.arange(size + 2), [3] * size + [1, 1])
    assert distance[part[:, None] != part].min() > 1.5 * SPACING
    width, height = np.ptp(places, axis=0)
    assert size < 5 or 0.5 < width / height < 4
    assert (places == stress_layout(3 * size + 2, np.array(chains))).all()


def scene(hops, edges, explained):
    size = len(hops)
    weights = [1.0] * len(edges)
    return Scene(
        list(range(size)),
        hops,
        [0.0] * size,
        True,
        'node_score',
        edges,
        weights,
        weights,
        None,
        False,
        explained,
        Folded(0, 0.0),
    )


def test_nodes_without_a_way_are_on_the_last_ring():
    places, rings = layout_of(scene([0, 1, 3, None], [(0, 1), (1, 2)], 1))
    assert [len(ring.nodes) for ring in rings] == [1, 1, 0, 1, 1]
    assert np.linalg.norm(places, axis=1) == pytest.approx([0.0, 1.0, 3.0, 4.0])
    places, rings = layout_of(scene([None] * 3, [(0, 1), (1, 2)], 0))
    assert rings == []
    assert np.linalg.norm(places[0] - places[2]) == pytest.approx(2.0, abs=1e-2)


@pytest.mark.parametrize('seed', [2, 3, 7])
def test_rings_of_atoms_do_not_cross(seed):
    generator = np.random.default_rng(seed)
    edges, free, size = [], [], 0
    for _ in range(int(generator.integers(2, 4))):  # joined by bonds, with atoms that hang on them
        length = int(generator.integers(5, 7))
        edges += [(size + j, size + (j + 1) % length) for j in range(length)]
        edges += [(int(generator.choice(free)), size)] if free else []
        free += range(size + 2, size + length)
        size += length
    for atom in free:
        if generator.integers(0, 2):
            edges.append((atom, size))
            size += 1
    assert crossings(stress_layout(size, np.array(edges)), edges) == 0
