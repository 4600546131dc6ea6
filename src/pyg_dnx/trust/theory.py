r"""The paper's theory on an explanation at hand: its unfaithfulness, and the bounds on it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch_geometric.explain import Explainer, Explanation

from pyg_dnx import options as checks
from pyg_dnx.explainers.base import algorithm_of
from pyg_dnx.graph.operator import normalized_adjacency
from pyg_dnx.graph.rows import rows_of
from pyg_dnx.teacher.teacher import masked_query, to_targets
from pyg_dnx.trust import bounds
from pyg_dnx.trust.measure import inputs_of


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
    algorithm, config, model = algorithm_of(explainer), explainer.model_config, explainer.model
    if type(num_perturbations) is not int or num_perturbations != 0:
        checks.count('num_perturbations', num_perturbations)
    noise, probability = checks.number_from_zero('noise', noise), checks.probability('probability', probability)
    x, edge_index, kwargs = inputs_of(explanation)
    mask = explanation.get('node_mask')
    if mask is None or mask.shape != (x.size(0), 1):
        got = 'none' if mask is None else list(mask.shape)
        raise ValueError(
            f"'explanation' must have a node mask of shape [{x.size(0)}, 1] (got {got}): the paper's bounds are about "
            f"such masks; pass node_mask_type='object' to the Explainer"
        )
    nodes = checks.index(explanation.get('index'), x)
    surrogate = algorithm.distill(model, x, edge_index, **kwargs)
    operator = normalized_adjacency(edge_index, kwargs.get('edge_weight'), x.size(0), torch.float64, surrogate.flow)
    rows = rows_of(operator, nodes, surrogate.num_hops)
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
                outputs = masked_query(model, changed, edge_index, kwargs, node_mask, None)
                answers[f'{name}model'].append(to_targets(outputs, config, torch.float64, x.device)[0][nodes])
                logits = kept @ (perturbed @ weight) + bias
                answers[f'{name}surrogate'].append(surrogate.outputs(logits))
    found = {name: torch.stack(values) for name, values in answers.items()}  # [K + 1, B, C]
    error = (found['model'] - found['surrogate']).norm(dim=2)
    masked_error = (found['masked model'] - found['masked surrogate']).norm(dim=2)
    lipschitz = 1.0 if is_linear else bounds.LIPSCHITZ_OF_SOFTMAX
    local = 1.0 if is_linear else bounds.local_lipschitz(found['surrogate'], found['masked surrogate'])
    chances = (noise, num_perturbations, probability)
    return Bounds(
        index=nodes,
        unfaithfulness=(found['model'] - found['masked model']).norm(dim=2).mean(dim=0),
        surrogate_unfaithfulness=(found['surrogate'] - found['masked surrogate']).norm(dim=2).mean(dim=0),
        alpha=torch.cat([error, masked_error]).amax(dim=0),
        errors=error.mean(dim=0) + masked_error.mean(dim=0),
        lemma=bounds.paper_bound(change, features, weight),
        probable_lemma=bounds.paper_probable_bound(change, features[0], weight, *chances),
        tight_lemma=bounds.tight_bound(change, features, weight, local),
        tight_probable_lemma=bounds.tight_probable_bound(change, features[0], weight, *chances, lipschitz),
    )
