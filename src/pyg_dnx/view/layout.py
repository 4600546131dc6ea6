r"""Where nodes stand in a picture: in rings around the explained ones, hop by hop."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyg_dnx.plot.rings import apart

SPACING = 26.0  # between neighbours on a ring, and between rings of the same hop
GAP = 2.0 * SPACING  # between hops
SWEEPS = 12  # times that rings are sorted by where their neighbours stand


def rings(hops: list[int | None], edges: list[tuple[int, int]]) -> tuple[Tensor, list[tuple[int | None, float]]]:
    r"""Places nodes on rings by hops, always in the same way, so that no two are closer than about ``SPACING``.

    Where a hop has more nodes than fit on a ring, it has several, the first nodes on the inner ones. On its ring, a
    node turns to where its neighbours are.

    Args:
        hops: The hops of each node, which are ordered by importance; ``None`` comes last.
        edges: Pairs of positions in ``hops``.

    Returns:
        The place of each node [N, 2], and the radius within which each hop is.
    """
    radius, members = torch.zeros(len(hops), dtype=torch.float64, device='cpu'), []
    bounds: list[tuple[int | None, float]] = []
    reach = 0.0
    for hop in sorted(set(hops), key=lambda value: math.inf if value is None else value):
        waiting = torch.tensor([i for i, value in enumerate(hops) if value == hop], device='cpu')
        if not bounds and waiting.numel() == 1:
            members.append(waiting)  # in the middle
        else:
            reach += GAP if bounds else SPACING
            while waiting.numel() > 0:
                ring, waiting = waiting.tensor_split([int(2.0 * math.pi * reach / SPACING)])
                radius[ring] = reach
                members.append(ring)
                reach += SPACING
            reach -= SPACING
        bounds.append((hop, reach + 0.5 * GAP))

    angle = torch.zeros_like(radius)
    is_placed = torch.zeros_like(radius)  # so that the first sweep places each by those further in
    pairs = torch.tensor(edges, dtype=torch.long, device='cpu').reshape(-1, 2).T
    source, target = torch.cat([pairs, pairs.flip(0)], dim=1)
    for _ in range(SWEEPS):
        for ring in members:
            unit = torch.polar(is_placed, angle)
            pull = torch.zeros_like(unit).index_add(0, target, unit[source])[ring]
            wish = torch.where(pull.abs() > 1e-6, pull.angle(), angle[ring])
            even = 2.0 * math.pi / ring.numel()
            need = 1.5 * SPACING / max(SPACING, float(radius[ring[0]]))
            angle[ring] = torch.from_numpy(apart(wish.numpy(), min(even, max(need, 0.5 * even))))
            is_placed[ring] = radius[ring].clamp(max=1.0)  # the one in the middle has no say
    return torch.view_as_real(torch.polar(radius, angle)), bounds
