r"""The model near one node as a linear function of which neighbours it sees, fitted to probes. On plain tensors.

Under mask m, the answer at a node is taken for :math:`c + \sum_j m_j s_j` plus noise. The priors are independent and
normal: effect :math:`s_j` has variance :math:`v_j`. With the masks in the rows of M, one for each probe,
:math:`G = M \, \mathrm{diag}(v) M^\top` is what the effects add to the covariance of the answers y, and g the mean of
its diagonal. The intercept c has variance 10 g, and the noise :math:`\rho g`. The effects expected, given y, are

.. math::
    s = \mathrm{diag}(v) M^\top w, \quad w = Q^{-1} y, \quad Q = G + \rho g I + 10 g \, 1 1^\top,

and answer k is off by :math:`w_k / Q^{-1}_{kk}` from what all others say of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

INTERCEPT = 10.0
NOISES = (1e-9, 1e-7, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class Solution(NamedTuple):
    weight: Tensor  # w, [b, P]
    error: Tensor  # what each answer is off from what all others say of it, [b, P]


def solve(gram: Tensor, answers: Tensor, noise: float) -> Solution:
    r"""Fits the answers at b nodes.

    Args:
        gram: :math:`G`, [b, P, P].
        answers: :math:`y`, [b, P].
        noise: :math:`\rho`.
    """
    covariance, scale = _with_intercept(gram)
    covariance.diagonal(dim1=1, dim2=2).add_(noise * scale)
    factor = torch.linalg.cholesky(covariance)
    weight = torch.cholesky_solve(answers[:, :, None], factor)[:, :, 0]
    return Solution(weight, weight / torch.cholesky_inverse(factor).diagonal(dim1=1, dim2=2))


def choose_noise(gram: Tensor, answers: Tensor) -> float:
    r"""The noise under which answers are best foretold by all others, over all nodes; see :func:`solve`."""
    covariance, scale = _with_intercept(gram)
    values, vectors = torch.linalg.eigh(covariance)
    turned = (vectors.mT @ answers[:, :, None])[:, :, 0]
    losses = []
    for noise in NOISES:
        shrink = 1.0 / (values.clamp(min=0.0) + noise * scale)
        weight = (vectors @ (shrink * turned)[:, :, None])[:, :, 0]
        inverse = (vectors.square() @ shrink[:, :, None])[:, :, 0]
        losses.append(float((weight / inverse).square().sum()))
    return NOISES[min(range(len(NOISES)), key=losses.__getitem__)]


def _with_intercept(gram: Tensor) -> tuple[Tensor, Tensor]:
    r"""G + 10 g 11ᵀ, and g, [b, 1]."""
    scale = gram.diagonal(dim1=1, dim2=2).mean(dim=1, keepdim=True)
    scale = torch.where(scale > 0.0, scale, 1.0)  # no neighbour has any effect: the answers are the intercept's
    return gram + INTERCEPT * scale[:, :, None], scale
