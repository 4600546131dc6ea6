r"""Filters: polynomials of Ã, each a table of numbers.

A surrogate has hidden signals :math:`h_t = X \Theta_t`, of which tap k takes
:math:`H_k = \sum_t \mathrm{taps}[t, k] \, h_t`, and its logits are made from :math:`\sum_k \tilde{A}^k H_k`.
"""

from __future__ import annotations

from collections.abc import Callable

TELEPORT = 0.15  # of personalised PageRank

Taps = tuple[tuple[float, ...], ...]  # [T, L + 1]

FILTERS: dict[str, Callable[[int], Taps]] = {
    'sgc': lambda num_hops: ((*[0.0] * num_hops, 1.0),),
    'sign': lambda num_hops: tuple(tuple(float(k == t) for k in range(num_hops + 1)) for t in range(num_hops + 1)),
    'ppr': lambda num_hops: (tuple(TELEPORT * (1.0 - TELEPORT) ** k for k in range(num_hops + 1)),),
}
