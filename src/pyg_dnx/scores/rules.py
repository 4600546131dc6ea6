r"""Directions turn contributions, which are vectors over the model's outputs, into scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_dnx.distill.distill import Distilled
from pyg_dnx.distill.surrogate import Decomposition
from pyg_dnx.graph.rows import Rows, inner_products, padded_rows, row_chunks, rows_of
from pyg_dnx.results.certificate import Certificate, certificate
from pyg_dnx.scores.simplex import Solution, solve, solve_adam


class Directions(NamedTuple):
    direction: Tensor  # [B, C]
    duality_gap: Tensor | None = None  # [B], DnX's
    node_weight: Tensor | None = None  # [N], DnX's weights E, their sum over the explained nodes
    local: tuple[Rows, Tensor] | None = None  # ProbeDnX's: rows of Ã^L, and the effect [nnz] in place of h_j · D_i
    trust: dict[str, Tensor] | None = None  # ProbeDnX's, [B] each


class Rule(ABC):
    r"""How nodes are scored for the explained ones."""

    facts: ClassVar[tuple[str, ...]] = ()  # what it knows of each explained node besides

    @abstractmethod
    def __call__(
        self, decomposition: Decomposition, nodes: Tensor, toward: Tensor | None, rows: Rows | None = None
    ) -> Directions:
        r"""Finds the directions of ``nodes`` [B].

        Args:
            decomposition: The surrogate on the graph.
            nodes: The explained nodes [B].
            toward: Directions [B, C] of their targets, or ``None``.
            rows: The nodes' rows of :math:`\tilde{A}^L`, if they are known; else they are computed in chunks.
        """

    def score(
        self, decomposition: Decomposition, nodes: Tensor, toward: Tensor | None, rows: Rows
    ) -> tuple[Tensor, dict[str, Tensor]]:
        r"""The score of each entry of ``rows``, [nnz], and its ``facts`` on each of ``nodes``, [B]."""
        direction = self(decomposition, nodes, None, rows).direction if toward is None else toward
        return inner_products(rows, direction.to(rows.value.dtype), decomposition.hidden).mul_(rows.value), {}

    def identity(self) -> dict[str, Any]:
        r"""What tells the rule apart from others that give other scores."""
        return {'rule': repr(self)}

    def to_dict(self) -> dict[str, Any]:
        r"""The rule as tensors, numbers and strings."""
        return vars(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any], num_nodes: int) -> Rule:
        r"""Undoes :meth:`to_dict`, on a graph of so many nodes."""
        return cls(**content)

    def with_features(self, x: Tensor, decomposition: Decomposition) -> Rule:
        r"""The rule with what it takes from the features ``x`` [N, F], which :meth:`to_dict` leaves out."""
        return self

    def judge(
        self,
        distilled: Distilled,
        nodes: Tensor,
        evidence: Tensor,
        kept: Tensor,
        trust: dict[str, Tensor],
        doubt: float,
    ) -> Certificate:
        r"""Judges explanations by what their masks leave: ``evidence`` [B, C], of the surrogate, and of scores, [B]."""
        return certificate(distilled, nodes, evidence, doubt)


@dataclass(frozen=True)
class Projection(Rule):
    r"""FastDnX's directions: :math:`Z_i - b` as in the paper, what all contributions add up to, or a target's."""

    def __call__(
        self, decomposition: Decomposition, nodes: Tensor, toward: Tensor | None, rows: Rows | None = None
    ) -> Directions:
        return Directions(decomposition.evidence.index_select(0, nodes) if toward is None else toward)


@dataclass(frozen=True)
class Mixture(Rule):
    r"""DnX's directions: the optimal dual variable of each node's program over its own neighbourhood.

    With a target, contributions are projected on its direction first. They are numbers then, whose order is FastDnX's:
    its direction is taken, and the program only gives the weights.
    """

    epsilon: float
    prior: str  # 'uniform', or 'propagation', in proportion to |Ã^L_ij|
    solver: str  # 'newton' or 'adam'
    epochs: int
    lr: float

    def __call__(
        self, decomposition: Decomposition, nodes: Tensor, toward: Tensor | None, rows: Rows | None = None
    ) -> Directions:
        if rows is None:
            operator, num_hops = decomposition.operator, decomposition.surrogate.num_hops
            found = [
                self(
                    decomposition,
                    nodes[chunk],
                    None if toward is None else toward[chunk],
                    rows_of(operator, nodes[chunk], num_hops),
                )
                for chunk in row_chunks(operator, nodes, num_hops)
            ]
            return Directions(
                torch.cat([one.direction for one in found]),
                torch.cat([cast(Tensor, one.duality_gap) for one in found]),
                torch.stack([cast(Tensor, one.node_weight) for one in found]).sum(dim=0),
            )

        evidence = decomposition.evidence[nodes].double()
        direction, gap = torch.zeros_like(evidence), torch.zeros_like(evidence[:, 0])
        node_weight = evidence.new_zeros(decomposition.operator.num_nodes)
        for group, entry, inside in padded_rows(rows.length, evidence.size(1)):
            value, column = rows.value.take(entry) * inside, rows.column.take(entry)
            contributions = value[:, :, None].double() * decomposition.hidden[column].double()
            total = evidence[group]
            mass = torch.ones_like(value) if self.prior == 'uniform' else value.abs().clamp(min=1e-30)
            log_prior = (mass * inside).double().log().log_softmax(dim=1)
            if toward is None:
                solution = self._solve(contributions, total, log_prior)
                alone = rows.length[group, None] == 1  # its weight is 1 and leaves nothing over for a direction
                direction[group] = torch.where(alone, total, solution.direction)
            else:
                axis = toward[group].double()[:, None]  # [b, 1, C]
                projected = (contributions * axis).sum(dim=2, keepdim=True)
                solution = self._solve(projected, (total * axis[:, 0]).sum(dim=1, keepdim=True), log_prior)
                direction[group] = axis[:, 0]  # on a line, any direction gives the same order
            gap[group] = solution.gap
            node_weight.index_add_(0, column[inside], solution.weight[inside])
        return Directions(direction, gap, node_weight)

    def _solve(self, contributions: Tensor, total: Tensor, log_prior: Tensor) -> Solution:
        if self.solver == 'adam':
            return solve_adam(contributions, total, log_prior, self.epochs, self.lr)
        return solve(contributions, total, log_prior, self.epsilon)


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
