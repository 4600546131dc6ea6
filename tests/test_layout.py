r"""Where nodes stand: by hops, apart from one another, and always in the same place."""

import pytest
import torch

from pyg_dnx.view.layout import SPACING, rings


def random_case(num_nodes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hops = [0, *torch.randint(1, 4, (num_nodes - 1,), generator=generator).tolist()]
    edges = torch.randint(num_nodes, (2 * num_nodes, 2), generator=generator).tolist()
    return hops, [(a, b) for a, b in edges if a != b]


@pytest.mark.parametrize('num_nodes', [2, 10, 60, 400])
def test_nodes_stand_apart_and_in_the_ring_of_their_hop(num_nodes):
    hops, edges = random_case(num_nodes)
    place, bounds = rings(hops, edges)
    assert float(torch.pdist(place).min()) > 0.9 * SPACING
    outer = dict(bounds)
    inner = dict(zip(outer, [-1.0, *outer.values()], strict=False))
    assert all(inner[hop] < float(at.norm()) < outer[hop] for hop, at in zip(hops, place, strict=True))
    assert place[0].tolist() == [0.0, 0.0]
    assert rings(hops, edges)[0].equal(place)


def test_the_first_nodes_of_a_hop_are_nearest_to_the_middle():
    distance = rings([0] + [1] * 40, [])[0].norm(dim=1)
    assert bool((distance.diff() > -1e-9).all())
    assert float(distance[-1]) > float(distance[1])


def test_nodes_turn_to_their_neighbours():
    hops = [0, *[1] * 6, *[2] * 6]
    edges = [(0, i) for i in range(1, 7)] + [(i, 13 - i) for i in range(1, 7)]  # in the opposite order
    place, _ = rings(hops, edges)
    cosine = torch.cosine_similarity(place[1:7], place[7:].flip(0))
    assert float(cosine.min()) > 0.99


def test_a_ring_turns_as_a_whole():
    place, _ = rings([0, 1, 1, 1, 2], [(0, 1), (0, 2), (0, 3), (2, 4)])
    assert float(torch.cosine_similarity(place[2], place[4], dim=0)) > 0.99


@pytest.mark.parametrize(
    ('hops', 'names'), [([], []), ([None, None], [None]), ([0, 0, None], [0, None]), ([0, 2, None, 1], [0, 1, 2, None])]
)
def test_hops_are_in_order_and_unknown_ones_last(hops, names):
    place, bounds = rings(hops, [])
    assert list(place.shape) == [len(hops), 2]
    assert [hop for hop, _ in bounds] == names
    radii = [radius for _, radius in bounds]
    assert radii == sorted(radii)
