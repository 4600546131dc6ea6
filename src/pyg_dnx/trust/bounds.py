r"""Bounds on how unfaithful an explanation can be: the paper's, and tighter ones. On plain tensors.

A mask m takes :math:`\Delta = p \odot (1 - m)` away from the row p of :math:`\tilde{A}^L` of an explained node, so that
its logits change by :math:`\Delta X \Theta`. The unfaithfulness of the surrogate is the mean, over the features X and K
perturbed ones, of the distance between its class probabilities before and after. Each distance is at most

- :math:`\|\Theta\|_2 \|X\|_2 \|\Delta\|_2`, the paper's Lemma 1, which takes the softmax to be 1-Lipschitz;
- :math:`\tfrac{1}{2} \|\Delta X \Theta\|_2`, since the softmax is in fact ½-Lipschitz, and nothing is lost to norms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LIPSCHITZ_OF_SOFTMAX = 0.5


def paper_bound(change: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    r"""Lemma 1: the largest of :math:`\|\Theta\|_2 \|X_k\|_2 \|\Delta\|_2` over the features :math:`X_k`.

    Args:
        change: :math:`\Delta` for each explained node, [B, n].
        features: The features and their perturbations, [K + 1, n, F].
        weight: :math:`\Theta`, [F, C].

    Returns:
        A bound for each explained node, [B].
    """
    norms = torch.linalg.matrix_norm(features, 2)
    return torch.linalg.matrix_norm(weight, 2) * norms.max() * change.norm(dim=1)


def tight_bound(
    change: Tensor, features: Tensor, weight: Tensor, lipschitz: float | Tensor = LIPSCHITZ_OF_SOFTMAX
) -> Tensor:
    r"""The mean of :math:`\tfrac{1}{2} \|\Delta X_k \Theta\|_2`; for the arguments, see :func:`paper_bound`.

    In place of ½, ``lipschitz`` may be :func:`local_lipschitz`, [K + 1, B]. For regression it is 1, and the result is
    the unfaithfulness itself.
    """
    return (lipschitz * (change @ (features @ weight)).norm(dim=2)).mean(dim=0)


def local_lipschitz(before: Tensor, after: Tensor) -> Tensor:
    r"""The Lipschitz constant of the softmax between two points, given its values [..., C] there.

    It is ½ in general, and :math:`2 r (1 - r)` if all classes but one have a probability of at most r < ½ at both ends.
    On the way they never have more, since the logarithm of a softmax is concave, and by Gershgorin no eigenvalue of the
    Jacobian :math:`\mathrm{diag}(p) - p p^\top` exceeds the largest :math:`2 p_c (1 - p_c)`.
    """
    top = torch.minimum(before, after).argmax(dim=-1, keepdim=True)
    rest = torch.maximum(*(p.scatter(-1, top, 0.0).sum(dim=-1) for p in (before, after)))
    return torch.where(rest < 0.5, 2.0 * rest * (1.0 - rest), LIPSCHITZ_OF_SOFTMAX)


def paper_probable_bound(
    change: Tensor, features: Tensor, weight: Tensor, noise: float, num_perturbations: int, probability: float
) -> Tensor:
    r"""Lemma 2: what the unfaithfulness stays below with a probability, over Gaussian perturbations of X.

    Args:
        change: :math:`\Delta` for each explained node, [B, n].
        features: The features X, [n, F].
        weight: :math:`\Theta`, [F, C].
        noise: The standard deviation of the perturbations.
        num_perturbations: Their number K.
        probability: The probability.
    """
    quantile = chi_square_quantile(probability, num_perturbations * features.numel())
    inflated = noise * (quantile + num_perturbations) / (num_perturbations + 1)
    norm = torch.linalg.matrix_norm(features, 2)
    return torch.linalg.matrix_norm(weight, 2) * change.norm(dim=1) * (norm + inflated)


def tight_probable_bound(
    change: Tensor,
    features: Tensor,
    weight: Tensor,
    noise: float,
    num_perturbations: int,
    probability: float,
    lipschitz: float = LIPSCHITZ_OF_SOFTMAX,
) -> Tensor:
    r"""The same, tighter; for the arguments, see :func:`paper_probable_bound`.

    The noise :math:`\Sigma_k` reaches the logits as :math:`\Delta \Sigma_k \Theta`, where :math:`\Delta \Sigma_k` has
    F independent entries of standard deviation :math:`\sigma \|\Delta\|_2`, of which :math:`\Theta` keeps as many as
    its rank r. Hence the sum of K squared norms is at most :math:`\sigma^2 \|\Delta\|^2 \|\Theta\|_2^2` times a
    chi-square variable of K r degrees of freedom (the paper: K n F), and by Cauchy and Schwarz the sum of norms at most
    the root of K times that (the paper: K plus its square).
    """
    rank = int(torch.linalg.matrix_rank(weight))
    quantile = chi_square_quantile(probability, num_perturbations * rank)
    inflated = noise * math.sqrt(num_perturbations * quantile) / (num_perturbations + 1)
    clean = (change @ (features @ weight)).norm(dim=1)
    return lipschitz * (clean + torch.linalg.matrix_norm(weight, 2) * change.norm(dim=1) * inflated)


def chi_square_quantile(probability: float, degrees: int) -> float:
    r"""What a chi-square variable stays below with a probability; by bisection, for any number of degrees."""
    if degrees == 0 or probability <= 0.0:
        return 0.0
    if probability >= 1.0:
        return math.inf
    tail = -math.log1p(-probability)
    low, high = 0.0, degrees + 2.0 * math.sqrt(degrees * tail) + 2.0 * tail  # Laurent and Massart (2000), lemma 1
    shape = torch.tensor(degrees / 2.0, dtype=torch.float64, device='cpu')
    while (middle := 0.5 * (low + high)) not in (low, high):
        is_above = float(torch.special.gammainc(shape, torch.full_like(shape, middle / 2.0))) >= probability
        low, high = (low, middle) if is_above else (middle, high)
    return high
