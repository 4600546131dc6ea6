r"""From signed scores to masks in [0, 1], as PyG's metrics and plots expect them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MAX_PAIRS = 2**8  # scores; up to here, comparing all pairs costs less than sorting, which takes more operations


def rank(scores: Tensor) -> Tensor:
    r"""The share of scores that are not larger, ties averaged: in (0, 1]."""
    total = scores.numel()
    if total <= MAX_PAIRS:
        return (scores.unsqueeze(1) - scores).sign_().sum(dim=1).add_(total + 1).div_(2 * total)
    ordered = scores.sort().values
    first, last = torch.searchsorted(ordered, scores), torch.searchsorted(ordered, scores, right=True)
    return (first + last + 1).to(scores.dtype) / (2 * total)


def positive(scores: Tensor) -> Tensor:
    r"""The positive part over its maximum; all zero if no score is positive."""
    scores = scores.clamp(min=0.0)
    return scores / scores.max().clamp(min=torch.finfo(scores.dtype).tiny)


def size(scores: Tensor) -> Tensor:
    r"""The rank of the scores' sizes, whatever their signs: what a mask is to hold that reproduces the prediction."""
    return rank(scores.abs())


def minmax(scores: Tensor) -> Tensor:
    r"""Scores stretched to [0, 1]; all one if they are equal."""
    low, high = scores.aminmax()
    return torch.where(high > low, (scores - low) / (high - low), 1.0)


SCALINGS: dict[str, Callable[[Tensor], Tensor]] = {
    'rank': rank,
    'size': size,
    'positive': positive,
    'minmax': minmax,
}


def to_mask(
    scores: Tensor, inside: Tensor | None, scaling: str, dtype: torch.dtype, parts: Tensor | None = None
) -> Tensor:
    r"""Scales the scores whose rows are ``inside`` the neighbourhood, and leaves all others at zero.

    Args:
        scores: Signed scores, of shape [N] or [N, F].
        inside: The ids of the rows that count, or ``None`` for all.
        scaling: One of :data:`SCALINGS`.
        dtype: The type of the mask.
        parts: What each row is part of, [N], if each part is scaled by itself.
    """
    inner = scores if inside is None else scores.index_select(0, inside)
    if inner.numel() == 0:
        return torch.zeros_like(scores, dtype=dtype)
    if parts is None:
        scaled = SCALINGS[scaling](inner.reshape(-1)).view_as(inner).to(dtype)
    else:
        scaled, of = torch.zeros_like(inner, dtype=dtype), parts if inside is None else parts[inside]
        for part in of.unique():
            rows = of == part
            scaled[rows] = SCALINGS[scaling](inner[rows].reshape(-1)).view_as(inner[rows]).to(dtype)
    if inside is None:
        return scaled
    return scores.new_zeros(scores.shape, dtype=dtype).index_copy_(0, inside, scaled)
