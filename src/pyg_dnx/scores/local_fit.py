r"""The model near one node as a linear function of which neighbours it sees, fitted to probes. On plain tensors.

Under mask m, the answer at a node is taken for :math:`c + \sum_j m_j s_j` plus noise, where c may be anything. Masks
come in complementary pairs. Half the sum of a pair's answers is the same for all pairs, so that it tells of c alone.
Half the difference, :math:`\delta`, is :math:`\sum_j h_j s_j` with :math:`h = m - \frac12`, and has half of the noise's
variance: what is known of the effects is in these K numbers.

The priors are normal. Effects :math:`s_j` have the covariance V, but for an unknown multiple of the effects
:math:`\mu_j` that the surrogate has for them. With h in the rows of H, one for each pair, the former add
:math:`G = H V H^\top` to the covariance of :math:`\delta`, and vary answers by g. The surrogate's own account of
:math:`\delta` is :math:`z = H \mu`, of mean square :math:`\sigma^2`. The multiple has variance
:math:`\kappa = g / \sigma^2`, the noise :math:`\rho g`. The effects expected, given the answers, are

.. math::
    s = V H^\top w + \kappa (z^\top w) \mu, \quad w = Q^{-1} \delta, \quad
    Q = G + \kappa z z^\top + \tfrac12 \rho g I,

and half the difference of pair p is off by :math:`w_p / Q^{-1}_{pp}` from what all other pairs say of it, half its sum
by its distance from the mean of the others'. It takes pairs: in a linear model, each answer is known from that of the
other.

Where there are fewer neighbours than pairs, all that G and z know is in the span of few directions. In an orthonormal
basis B of these Q is small, and all else is noise:

.. math::
    Q^{-1} = B \left(B^\top Q B\right)^{-1} B^\top + \left(I - B B^\top\right) / \left(\tfrac12 \rho g\right).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NOISES = (1e-9, 1e-7, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Solution(NamedTuple):
    weight: Tensor  # w, [b, K], or its part in the basis, if there is one
    multiple: Tensor  # κ (z · w), of the surrogate's effects, [b]
    error: Tensor  # what each answer is off from what all but its pair say of it, [b, 2K]


def solve(
    gram: Tensor,
    size: Tensor,
    account: Tensor,
    answers: Tensor,
    noise: float | Tensor,
    basis: Tensor | None = None,
) -> Solution:
    r"""Fits the answers at b nodes.

    Args:
        gram: :math:`G`, [b, K, K].
        size: :math:`g`, [b].
        account: :math:`z`, [b, K].
        answers: Those to K pairs of masks, at least two, one pair after the other, [b, 2K].
        noise: :math:`\rho`, one for all or for each of the nodes, [b, 1].
        basis: :math:`B`, [b, K, m], if ``gram`` and ``account`` are those in it, [b, m, m] and [b, m].
    """
    difference, error_of_sum = _halves(answers)
    covariance, size, prior_gain = _covariance(gram, size, account, difference.size(1))
    variance = 0.5 * noise * size  # of the noise in half a difference
    covariance.diagonal(dim1=1, dim2=2).add_(variance)
    factor = torch.linalg.cholesky(covariance)
    inverse = torch.cholesky_inverse(factor)
    if basis is None:
        weight = torch.cholesky_solve(difference[:, :, None], factor)[:, :, 0]
        error, multiple = weight / inverse.diagonal(dim1=1, dim2=2), (prior_gain * weight).sum(dim=1)
    else:
        inner = basis.mT @ difference[:, :, None]
        beyond = (difference - (basis @ inner)[:, :, 0]) / variance
        inner = torch.cholesky_solve(inner, factor)
        weight, multiple = (basis @ inner)[:, :, 0], (prior_gain * inner[:, :, 0]).sum(dim=1)
        diagonal = (basis @ inverse * basis).sum(dim=2) + (1.0 - basis.square().sum(dim=2)) / variance
        error = (weight + beyond) / diagonal
    both = torch.stack([error_of_sum + error, error_of_sum - error], dim=2)
    return Solution(weight, multiple, both.flatten(1))


def choose_noise(gram: Tensor, size: Tensor, account: Tensor, answers: Tensor) -> tuple[float, float]:
    r"""The noise under which each pair of answers is best predicted from all others, over all nodes; see :func:`solve`.

    And the sum of squared errors then.
    """
    losses = _losses(gram, size, account, answers, None).sum(dim=0).tolist()
    best = min(range(len(NOISES)), key=losses.__getitem__)
    return NOISES[best], losses[best]


def own_noise(gram: Tensor, size: Tensor, account: Tensor, answers: Tensor, basis: Tensor | None = None) -> Tensor:
    r"""The same for each node by itself, [b, 1]."""
    noises = torch.tensor(NOISES, dtype=gram.dtype, device=gram.device)
    return noises[_losses(gram, size, account, answers, basis).argmin(dim=1, keepdim=True)]


def _losses(gram: Tensor, size: Tensor, account: Tensor, answers: Tensor, basis: Tensor | None) -> Tensor:
    r"""The sum of squared errors of each node under each of the noises, [b, n]."""
    difference, error_of_sum = _halves(answers)
    covariance, size, _ = _covariance(gram, size, account, difference.size(1))
    values, vectors = torch.linalg.eigh(covariance)
    noises = torch.tensor(NOISES, dtype=values.dtype, device=values.device)
    variance = 0.5 * noises * size[:, :, None]  # [b, 1, n]
    shrink = 1.0 / (values.clamp(min=0.0)[:, :, None] + variance)  # [b, K, n], for n noises
    if basis is not None:
        vectors = basis @ vectors
    inner = vectors.mT @ difference[:, :, None]
    weight, diagonal = vectors @ (shrink * inner), vectors.square() @ shrink
    if basis is not None:  # all beyond the basis is noise
        weight = weight + (difference[:, :, None] - vectors @ inner) / variance
        diagonal = diagonal + (1.0 - vectors.square().sum(dim=2, keepdim=True)) / variance
    error = weight / diagonal
    return 2.0 * (error.square().sum(dim=1) + error_of_sum.square().sum(dim=1, keepdim=True))


def _covariance(gram: Tensor, size: Tensor, account: Tensor, num_pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""G + κ zzᵀ, g [b, 1] and κ z [b, K], or [b, m] in a basis."""
    size = torch.where(size > 0.0, size, 1.0)[:, None]  # no neighbour has any effect: all pairs should be alike
    largest = account.abs().amax(dim=1, keepdim=True)
    has_account = largest > 1e-150  # a surrogate that says the same of all probes has no account of them
    account = account / torch.where(has_account, largest, 1.0)  # only its direction counts; large squares overflow
    prior_gain = torch.where(has_account, num_pairs * size / account.square().sum(dim=1, keepdim=True) * account, 0.0)
    return gram + account[:, :, None] * prior_gain[:, None], size, torch.where(has_account, prior_gain / largest, 0.0)


def _halves(answers: Tensor) -> tuple[Tensor, Tensor]:
    r"""Half the difference of each pair, and what half its sum is off from those of all others, [b, K] each."""
    first, second = answers[:, ::2], answers[:, 1::2]
    total, others = 0.5 * (first + second), first.size(1) - 1
    return 0.5 * (first - second), (total - total.mean(dim=1, keepdim=True)) * ((others + 1) / others)
