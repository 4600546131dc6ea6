r"""The paper's theory on an explanation at hand: its unfaithfulness, and bounds on it, the paper's and tighter ones.

A mask m takes :math:`\Delta = p \odot (1 - m)` away from the row p of :math:`\tilde{A}^L` of an explained node, so that
its logits change by :math:`\Delta X \Theta`. The unfaithfulness of the surrogate is the mean, over the features X and K
perturbed ones, of the distance between its class probabilities before and after. Each distance is at most

- :math:`\|\Theta\|_2 \|X\|_2 \|\Delta\|_2`, the paper's Lemma 1, which takes the softmax to be 1-Lipschitz;
- :math:`\tfrac{1}{2} \|\Delta X \Theta\|_2`, since the softmax is in fact ½-Lipschitz, and nothing is lost to norms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch_geometric.explain import Explainer, Explanation

from pyg_dnx import options
from pyg_dnx.explainers.base import algorithm_of
from pyg_dnx.graph.rows import rows_of
from pyg_dnx.scores.question import outputs_of
from pyg_dnx.scores.rules import LIPSCHITZ_OF_SOFTMAX
from pyg_dnx.teacher.teacher import Teacher
from pyg_dnx.trust.measure import graph_of


@dataclass(frozen=True)
class Bounds:
    r"""How unfaithful an explanation is, and at most can be, at each explained node. Printed, it is a table of medians.

    Unfaithfulness is the paper's: the mean, over the features and K perturbations of them, of the Euclidean distance
    between class probabilities (or outputs) with and without the mask. Lemmas are about the surrogate, theorems about
    the model. Those named probable hold with the given probability before perturbations are drawn.

    Attributes:
        index (Tensor): The explained nodes [B].
        unfaithfulness (Tensor): Of the explanation to the model, measured, [B].
        surrogate_unfaithfulness (Tensor): Of the explanation to the surrogate, measured, [B].
        alpha (Tensor): The largest distance between the model and the surrogate over all evaluations, masked ones
            included, [B].
        errors (Tensor): The mean of these distances without the mask plus their mean with it, [B].
        lemma, probable_lemma (Tensor): The paper's, by products of norms, [B].
        tight_lemma, tight_probable_lemma (Tensor): By the change of the logits itself, [B].
    """

    index: Tensor
    unfaithfulness: Tensor
    surrogate_unfaithfulness: Tensor
    alpha: Tensor
    errors: Tensor
    lemma: Tensor
    probable_lemma: Tensor
    tight_lemma: Tensor
    tight_probable_lemma: Tensor

    @property
    def theorem(self) -> Tensor:
        r"""The paper's bound on the unfaithfulness to the model, [B]."""
        return self.lemma + 2.0 * self.alpha

    @property
    def probable_theorem(self) -> Tensor:
        return self.probable_lemma + 2.0 * self.alpha

    @property
    def tight_theorem(self) -> Tensor:
        r"""A tighter one: the surrogate's unfaithfulness is known, and distances count as they are, [B]."""
        return self.surrogate_unfaithfulness + self.errors

    @property
    def tight_probable_theorem(self) -> Tensor:
        return self.tight_probable_lemma + self.errors

    def __str__(self) -> str:
        names = [field.name for field in fields(self)][1:5]
        pairs = [('lemma', 'tight_lemma'), ('probable_lemma', 'tight_probable_lemma')]
        pairs += [('theorem', 'tight_theorem'), ('probable_theorem', 'tight_probable_theorem')]
        rows = [(name, f'{float(getattr(self, name).median()):.3g}') for name in names]
        for paper, tight in pairs:
            values = (float(getattr(self, name).median()) for name in (paper, tight))
            rows.append((paper, '{:.3g}, tight {:.3g}'.format(*values)))
        return '\n'.join(f'{name:<26} {value}' for name, value in rows)


def bound(
    explainer: Explainer,
    explanation: Explanation,
    *,
    num_perturbations: int = 10,
    noise: float = 0.1,
    probability: float = 0.95,
    seed: int = 0,
) -> Bounds:
    r"""Measures the unfaithfulness of an explanation as the paper defines it, and computes every bound on it.

    The features of all nodes in the neighbourhood are perturbed, as often as is asked for, and the model is evaluated
    with and without the mask each time: twice, plus twice for each perturbation.

    Args:
        explainer (Explainer): An explainer with an algorithm of this package.
        explanation (Explanation): What it returned, with a node mask of type ``'object'``; an edge mask is left out.
        num_perturbations (int): How often to perturb the features; 0 for the features alone.
        noise (float): The standard deviation of the perturbations.
        probability (float): With which bounds named probable hold.
        seed (int): Of the perturbations. The random state of PyTorch is not touched.
    """
    algorithm, teacher = algorithm_of(explainer), Teacher(explainer.model, explainer.model_config)
    if type(num_perturbations) is not int or num_perturbations != 0:
        options.count('num_perturbations', num_perturbations)
    noise, probability = options.number_from_zero('noise', noise), options.probability('probability', probability)
    algorithm._check_level('node', "compute the paper's bounds")
    graph = graph_of(explanation)
    x = graph.x
    mask = explanation.get('node_mask')
    if mask is None or mask.shape != (x.size(0), 1):
        got = 'none' if mask is None else list(mask.shape)
        raise ValueError(
            f"'explanation' must have a node mask of shape [{x.size(0)}, 1] (got {got}): the paper's bounds are about "
            f"such masks; pass node_mask_type='object' to the Explainer"
        )
    nodes = outputs_of(explanation.get('index'), x.size(0), x.device)
    surrogate = algorithm.distill(explainer.model, x, graph.edge_index, **graph.kwargs)
    rows = rows_of(graph.operator(surrogate.flow, torch.float64), nodes, surrogate.num_hops)
    inside, column = torch.unique(rows.column.long(), return_inverse=True)
    row = rows.value.new_zeros(nodes.numel(), inside.numel())
    row[torch.repeat_interleave(rows.length), column] = rows.value
    change = row * (1.0 - mask[inside, 0].to(row.dtype))
    weight, bias = surrogate.weight.double(), surrogate.bias.double()

    generator = torch.Generator(device='cpu').manual_seed(seed)
    size = (num_perturbations + 1, inside.numel(), x.size(1))
    drawn = torch.randn(size, dtype=torch.float64, generator=generator, device='cpu').to(x.device)
    drawn[0] = 0.0
    features = x.detach()[inside].double() + noise * drawn  # [K + 1, n, F], as they are first
    is_linear = surrogate.report.is_linear
    answers: dict[str, list[Tensor]] = {'model': [], 'masked model': [], 'surrogate': [], 'masked surrogate': []}
    with torch.no_grad():
        for perturbed in features:
            changed = x.detach().clone()
            changed[inside] = perturbed.to(x.dtype)
            for name, node_mask, kept in (('', None, row), ('masked ', mask, row - change)):
                answers[f'{name}model'].append(teacher.under(replace(graph, x=changed), node_mask)[nodes])
                logits = kept @ (perturbed @ weight) + bias
                answers[f'{name}surrogate'].append(surrogate.outputs(logits))
    found = {name: torch.stack(values) for name, values in answers.items()}  # [K + 1, B, C]
    error = (found['model'] - found['surrogate']).norm(dim=2)
    masked_error = (found['masked model'] - found['masked surrogate']).norm(dim=2)
    lipschitz = 1.0 if is_linear else LIPSCHITZ_OF_SOFTMAX
    local = 1.0 if is_linear else local_lipschitz(found['surrogate'], found['masked surrogate'])
    chances = (noise, num_perturbations, probability)
    return Bounds(
        index=nodes,
        unfaithfulness=(found['model'] - found['masked model']).norm(dim=2).mean(dim=0),
        surrogate_unfaithfulness=(found['surrogate'] - found['masked surrogate']).norm(dim=2).mean(dim=0),
        alpha=torch.cat([error, masked_error]).amax(dim=0),
        errors=error.mean(dim=0) + masked_error.mean(dim=0),
        lemma=paper_bound(change, features, weight),
        probable_lemma=paper_probable_bound(change, features[0], weight, *chances),
        tight_lemma=tight_bound(change, features, weight, local),
        tight_probable_lemma=tight_probable_bound(change, features[0], weight, *chances, lipschitz),
    )


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
