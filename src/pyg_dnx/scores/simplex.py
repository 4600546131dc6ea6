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

    direction = target.clone()
    scores = _along(contributions, direction) / smoothing[:, None] + log_prior
    for _ in range(200):
        weight = scores.softmax(dim=1)
        mixture = torch.einsum('bm,bmc->bc', weight, contributions)
        gradient = direction - target + mixture
        gap = 0.5 * gradient.square().sum(dim=1) / scale  # primal plus dual value, by E's definition
        solved = gap <= tolerance
        if bool(solved.all()):
            break
        centered = contributions - mixture[:, None]
        hessian = eye + (centered * weight[:, :, None]).mT @ centered / smoothing[:, None, None]
        step = torch.linalg.solve(hessian, gradient)
        slide = _along(contributions, step) / smoothing[:, None]
        rate = _line_search(scores, slide, smoothing, direction - target, step, solved)[:, None]
        direction, scores = direction - rate * step, scores - rate * slide
    return Solution(direction, weight, gap)


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


def _along(contributions: Tensor, direction: Tensor) -> Tensor:
    return torch.einsum('bmc,bc->bm', contributions, direction)


def _line_search(
    scores: Tensor, slide: Tensor, smoothing: Tensor, offset: Tensor, step: Tensor, solved: Tensor
) -> Tensor:
    r"""A rate in (0, 1] at which the dual's slope along a Newton step is a tenth of what it was, or still downward.

    Where the program is ``solved`` already, it is 0, so that a solution does not depend on what else is in the batch.

    For a small entropy the dual is all but piecewise linear: a step that is merely shortened until it descends would
    jump from one side of a kink to the other without end, while this one ends on the kink.
    """
    curvature, start = step.square().sum(dim=1), (offset * step).sum(dim=1)

    def slope(rate: Tensor) -> Tensor:
        weight = (scores - rate[:, None] * slide).softmax(dim=1)
        return rate * curvature - start - smoothing * (weight * slide).sum(dim=1)

    low, rate, high = torch.zeros_like(start), torch.ones_like(start), torch.ones_like(start)
    flat = 0.1 * slope(low).abs()
    for _ in range(50):
        current = slope(rate)
        downward = current < 0.0
        done = solved | (current.abs() <= flat) | (downward & (rate == 1.0))
        if bool(done.all()):
            break
        low, high = torch.where(downward, rate, low), torch.where(downward, high, rate)
        rate = torch.where(done, rate, 0.5 * (low + high))
    return torch.where(solved, 0.0, rate)
