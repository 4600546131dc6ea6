r"""Directions turn contributions, which are vectors over the model's outputs, into scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_dnx.distillation import Distilled
from pyg_dnx.propagation import padded_rows, row_chunks, rows
from pyg_dnx.simplex import Solution


class Directions(NamedTuple):
    direction: Tensor  # [B, C]
    duality_gap: Tensor | None = None  # [B], DnX's
    node_weight: Tensor | None = None  # [N], DnX's weights E, their mean over the explained nodes


def projection(distilled: Distilled, nodes: Tensor) -> Tensor:
    r"""The paper's direction for FastDnX, :math:`Z_i - b` [B, C]: what all contributions add up to."""
    return distilled.decomposition.evidence[nodes]


def toward_target(distilled: Distilled, nodes: Tensor, target: Tensor, contrast: int | str | None) -> Tensor:
    r"""The direction [B, C] of a target: a class for each node [B], or values [B, C] for regression.

    - Classification: the zero-sum indicator of the class, so that scores are evidence for it.
    - With ``contrast``: the class minus another, so that scores tell why the one rather than the other.
    - Regression: the target minus the bias.
    """
    evidence = distilled.decomposition.evidence
    if distilled.surrogate.report.mode == 'regression':
        return target.to(evidence.dtype) - distilled.surrogate.bias
    num_classes = evidence.size(1)
    indicator = F.one_hot(target, num_classes).to(evidence.dtype)
    if contrast is None:
        return indicator - 1.0 / num_classes
    if contrast == 'runner_up':
        other = distilled.outputs[nodes].masked_fill(indicator.bool(), -1.0).argmax(dim=1)
    else:
        other = torch.full_like(target, int(contrast))
    return indicator - F.one_hot(other, num_classes)


def mixture(
    distilled: Distilled,
    nodes: Tensor,
    toward: Tensor | None,
    prior: str,
    solve: Callable[[Tensor, Tensor, Tensor], Solution],
) -> Directions:
    r"""DnX's direction: the optimal dual variable of each node's program over its own neighbourhood.

    With ``toward``, contributions are numbers, whose order is FastDnX's: the direction is ``toward`` then, and the
    program gives the weights.

    Args:
        distilled: The distilled model.
        nodes: The explained nodes [B].
        toward: Directions [B, C] on which contributions are projected first, or ``None``.
        prior: The prior over neighbours, ``'uniform'`` or ``'propagation'`` (in proportion to :math:`|Ã^L_{ij}|`).
        solve: Solves a padded batch of programs from contributions, their sums, and the log-prior.
    """
    decomposition = distilled.decomposition
    evidence = decomposition.evidence[nodes].double()
    direction, gap = torch.zeros_like(evidence), torch.zeros_like(evidence[:, 0])
    weight = evidence.new_zeros(decomposition.operator.num_nodes)
    for chunk in row_chunks(decomposition.operator, nodes, decomposition.surrogate.num_hops):
        owner, column, value = rows(decomposition.operator, nodes[chunk], decomposition.surrogate.num_hops)
        count = torch.bincount(owner, minlength=chunk.numel())
        for batch, entry, inside in padded_rows(count, evidence.size(1)):
            contributions = (value[entry] * inside)[:, :, None].double() * decomposition.hidden[column[entry]].double()
            total = evidence[chunk[batch]]
            mass = torch.ones_like(value[entry]) if prior == 'uniform' else value[entry].abs().clamp(min=1e-30)
            log_prior = (mass * inside).double().log().log_softmax(dim=1)
            if toward is None:
                solution = solve(contributions, total, log_prior)
                alone = count[batch, None] == 1  # its weight is 1 and leaves nothing over for a direction
                direction[chunk[batch]] = torch.where(alone, total, solution.direction)
            else:
                axis = toward[chunk[batch]].double()[:, None]  # [b, 1, C]
                projected = (contributions * axis).sum(dim=2, keepdim=True)
                solution = solve(projected, (total * axis[:, 0]).sum(dim=1, keepdim=True), log_prior)
                direction[chunk[batch]] = axis[:, 0]  # on a line, any direction gives the same order
            gap[chunk[batch]] = solution.gap
            weight.index_add_(0, column[entry[inside]], solution.weight[inside])
    return Directions(direction, gap, weight / nodes.numel())
