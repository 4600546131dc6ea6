r"""The model near one node as a linear function of which neighbours it sees, fitted to probes. On plain tensors.

Under mask m, the answer at a node is taken for :math:`c + \sum_j m_j s_j` plus noise. The priors are normal. Effects
:math:`s_j` have the covariance V, but for an unknown multiple of the effects :math:`\mu_j` that the surrogate has for
them. With the masks in the rows of M, one for each probe, the former add :math:`G = M V M^\top` to the covariance of
the answers y; g is the mean of its diagonal. The surrogate's own account of the answers is :math:`z = M \mu`, of
variance :math:`\sigma^2` over the probes. The multiple has variance :math:`\kappa = g / \sigma^2`, the noise
:math:`\rho g`, and c may be anything. The effects expected, given y, are

.. math::
    s = V M^\top w + \kappa (z^\top w) \mu, \quad w = B y, \quad
    B = Q^{-1} - \frac{Q^{-1} 1 1^\top Q^{-1}}{1^\top Q^{-1} 1}, \quad Q = G + \kappa z z^\top + \rho g I,

and those of pair p are off by :math:`B_{pp}^{-1} w_p` from what all others say of them. It takes pairs, as masks are
complementary: in a linear model, each answer is known from that of the other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NOISES = (1e-9, 1e-7, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Solution(NamedTuple):
    weight: Tensor  # w, [b, P]
    multiple: Tensor  # κ (z · w), of the surrogate's effects, [b]
    error: Tensor  # what each answer is off from what all but its pair say of it, [b, P]


def solve(gram: Tensor, account: Tensor, answers: Tensor, noise: float) -> Solution:
    r"""Fits the answers at b nodes.

    Args:
        gram: :math:`G`, [b, P, P].
        account: :math:`z`, [b, P].
        answers: :math:`y`, [b, P].
        noise: :math:`\rho`.
    """
    covariance, scale, heard = _covariance(gram, account)
    covariance.diagonal(dim1=1, dim2=2).add_(noise * scale)
    factor = torch.linalg.cholesky(covariance)
    both = torch.stack([answers, torch.ones_like(answers)], dim=2)
    inverse = torch.cholesky_inverse(factor)
    own, pair = (inverse.diagonal(offset, dim1=1, dim2=2) for offset in (0, 1))
    weight, error = _without_intercept(torch.cholesky_solve(both, factor), own, pair[:, ::2])
    return Solution(weight, (heard * weight).sum(dim=1), error)


def choose_noise(gram: Tensor, account: Tensor, answers: Tensor) -> tuple[float, float]:
    r"""The noise under which pairs of answers are best foretold by all others, over all nodes; see :func:`solve`.

    And by how much these are off then, in squares.
    """
    covariance, scale, _ = _covariance(gram, account)
    values, vectors = torch.linalg.eigh(covariance)
    noises = torch.tensor(NOISES, dtype=values.dtype, device=values.device)
    shrink = 1.0 / (values.clamp(min=0.0)[:, :, None] + noises * scale[:, :, None])  # [b, P, K], for K noises
    own, pair = (each @ shrink for each in (vectors.square(), vectors[:, :-1:2] * vectors[:, 1::2]))
    turned = vectors.mT @ torch.stack([answers, torch.ones_like(answers)], dim=2)
    solved = (vectors @ (shrink[:, :, :, None] * turned[:, :, None]).flatten(2)).unflatten(2, (-1, 2))
    _, error = _without_intercept(*(each.transpose(1, 2).flatten(0, 1) for each in (solved, own, pair)))
    losses = error.square().sum(dim=1).view(-1, len(NOISES)).sum(dim=0).tolist()
    best = min(range(len(NOISES)), key=losses.__getitem__)
    return NOISES[best], losses[best]


def _covariance(gram: Tensor, account: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""G + κ zzᵀ, g [b, 1] and κ z [b, P]."""
    scale = gram.diagonal(dim1=1, dim2=2).mean(dim=1, keepdim=True)
    scale = torch.where(scale > 0.0, scale, 1.0)  # no neighbour has any effect: the answers are the intercept's
    size = account.abs().amax(dim=1, keepdim=True)
    account = account / torch.where(size > 0.0, size, 1.0)  # only its direction counts, and squares may not be numbers
    variance = account.var(dim=1, correction=0, keepdim=True)
    # A surrogate that says the same of all probes has no account of them.
    is_heard = (variance > 1e-20) & (size > 1e-150)
    heard = torch.where(is_heard, scale / variance * account, 0.0)
    return gram + account[:, :, None] * heard[:, None], scale, torch.where(is_heard, heard / size, 0.0)


def _without_intercept(solved: Tensor, own: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
    r"""w and the errors [b, P].

    Args:
        solved: :math:`Q^{-1} [y, 1]`, [b, P, 2].
        own: The diagonal of :math:`Q^{-1}`, [b, P].
        pair: The entries beside it for each pair, [b, P // 2].
    """
    by_answers, by_ones = solved.unbind(dim=2)
    total = by_ones.sum(dim=1, keepdim=True)
    weight = by_answers - by_ones * (by_answers.sum(dim=1, keepdim=True) / total)
    own = own - by_ones.square() / total
    pair = pair - by_ones[:, :-1:2] * by_ones[:, 1::2] / total
    alone = (0, weight.size(1) % 2)  # the last of an odd number has no other
    two, own = (F.pad(each, alone, value=fill).unflatten(1, (-1, 2)) for each, fill in ((weight, 0.0), (own, 1.0)))
    pair = F.pad(pair, alone)[:, :, None]
    error = (own.flip(2) * two - pair * two.flip(2)) / (own.prod(dim=2, keepdim=True) - pair.square())
    return weight, error.flatten(1)[:, : weight.size(1)]
