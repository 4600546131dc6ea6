r"""DnX's convex program: which mix of contributions comes closest to the whole?

For one explained node with contributions :math:`M` [m, C] of its neighbours and their sum :math:`t`,

.. math::
    \min_{E \in \Delta} \tfrac{1}{2} \|M^\top E - t\|^2 + \epsilon \, \mathrm{KL}(E \,\|\, \pi)

is the paper's program with a small entropy term that makes the optimum unique. Its dual has only C variables,

.. math::
    \min_r \tfrac{1}{2} \|r\|^2 - \langle r, t \rangle
    + \epsilon \log \sum_j \pi_j \exp(\langle M_j, r \rangle / \epsilon),

and at the optimum :math:`E_j \propto \pi_j \exp(\langle M_j, r \rangle / \epsilon)` and :math:`r = t - M^\top E`.
All functions take a batch of B nodes, padded to the largest neighbourhood.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Solution(NamedTuple):
    direction: Tensor  # r, [B, C]
    weight: Tensor  # E, [B, m]
    gap: Tensor  # the duality gap over ½‖t‖², [B]


def solve(
    contributions: Tensor, target: Tensor, log_prior: Tensor, epsilon: float, tolerance: float = 1e-10
) -> Solution:
    r"""Solves the dual by Newton's method.

    Args:
        contributions: :math:`M`, of shape [B, m, C], in float64.
        target: :math:`t`, of shape [B, C].
        log_prior: :math:`\log \pi`, of shape [B, m], minus infinity where a neighbourhood is padded.
        epsilon: The entropy's weight, as a share of :math:`\|t\|^2`.
        tolerance: The relative duality gap to reach.
    """
    size = contributions.square().sum(dim=2).amax(dim=1)
    smoothing = epsilon * torch.maximum(target.square().sum(dim=1), 1e-2 * size)
    smoothing = torch.where(smoothing > 0.0, smoothing, 1.0)  # every contribution is zero
    scale = 0.5 * torch.maximum(target.square().sum(dim=1), smoothing)
    eye = torch.eye(target.size(1), dtype=target.dtype, device=target.device)

    def dual(direction: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.einsum('bmc,bc->bm', contributions, direction) / smoothing[:, None] + log_prior
        value = 0.5 * direction.square().sum(1) - (direction * target).sum(1) + smoothing * scores.logsumexp(dim=1)
        return value, scores

    direction = target.clone()
    value, scores = dual(direction)
    for _ in range(100):
        weight = scores.softmax(dim=1)
        mixture = torch.einsum('bm,bmc->bc', weight, contributions)
        gradient = direction - target + mixture
        centered = contributions - mixture[:, None]
        hessian = eye + (centered * weight[:, :, None]).mT @ centered / smoothing[:, None, None]
        step = torch.linalg.solve(hessian, gradient)
        decrement = (gradient * step).sum(dim=1)
        if bool((decrement <= tolerance * scale).all()):
            break
        rate = torch.ones_like(value)
        for _ in range(40):
            candidate = direction - rate[:, None] * step
            new_value, new_scores = dual(candidate)
            too_long = new_value > value - 1e-4 * rate * decrement + 1e-14 * scale
            if not bool(too_long.any()):
                break
            rate = torch.where(too_long, 0.5 * rate, rate)
        direction, value, scores = candidate, new_value, new_scores
    return Solution(direction, weight, _gap(weight, mixture, target, log_prior, smoothing, value) / scale)


def solve_adam(contributions: Tensor, target: Tensor, log_prior: Tensor, epochs: int, lr: float) -> Solution:
    r"""The published iterate, for comparison: :math:`E = \mathrm{softmax}(v)`, Adam on v from zero, last epoch kept."""
    scores = torch.where(log_prior.isfinite(), 0.0, log_prior)
    optimizer = torch.optim.Adam([scores], lr)
    for _ in range(epochs):
        weight = scores.softmax(dim=1)
        residual = torch.einsum('bm,bmc->bc', weight, contributions) - target
        slope = 2.0 * torch.einsum('bmc,bc->bm', contributions, residual)
        scores.grad = weight * (slope - (weight * slope).sum(dim=1, keepdim=True))
        optimizer.step()
    weight = scores.softmax(dim=1)
    direction = target - torch.einsum('bm,bmc->bc', weight, contributions)
    return Solution(direction, weight, torch.full_like(target[:, 0], torch.nan))


def _gap(weight: Tensor, mixture: Tensor, target: Tensor, log_prior: Tensor, smoothing: Tensor, dual: Tensor) -> Tensor:
    divergence = torch.where(weight > 0.0, weight * (weight.log() - log_prior), 0.0).sum(dim=1)
    primal = 0.5 * (mixture - target).square().sum(dim=1) + smoothing * divergence
    return (primal + dual).clamp(min=0.0)
