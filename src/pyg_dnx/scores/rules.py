r"""Rules: what an explainer finds of the explained outputs, from which all scores follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_dnx.distill.decomposition import Decomposition
from pyg_dnx.distill.distill import Distilled, Trust
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import Rows, padded_rows
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.simplex import Solution, solve, solve_adam
from pyg_dnx.teacher.teacher import Teacher

LIPSCHITZ_OF_SOFTMAX = 0.5


@dataclass(frozen=True, eq=False)
class Directed:
    r"""Scores are inner products of the surrogate's contributions with a direction for each output.

    Args:
        direction: The directions [B, C].
        extra: What the explanation shows besides, by name.
    """

    direction: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)

    @property
    def trust(self) -> Trust | None:
        r"""What is known of what stands for the model; ``None`` if that is the surrogate."""
        return None

    def scores(self, decomposition: Decomposition, outputs: Tensor, rows: Rows) -> Tensor:
        r"""The score of each entry of ``rows``, those of ``outputs``, [nnz]."""
        return decomposition.scores(outputs, rows, self.direction.to(rows.value.dtype))

    def kept(self, decomposition: Decomposition, nodes: Tensor, value: Tensor, scores: Tensor) -> Tensor:
        r"""What some nodes [B, k] leave of the evidence, [B, C], given their values and scores [B, k]."""
        return decomposition.mixtures(nodes, value)


@dataclass(frozen=True, eq=False)
class Fitted:
    r"""Scores are numbers that were fitted for each output by itself.

    Args:
        rows: The nodes that each output is made from.
        effect: Their effects over the values in ``rows``, [nnz].
        direction: The directions of the outputs' targets, [B, C].
        trust: What is known of the fit.
        extra: What the explanation shows besides, by name.
        also: The scores of edges or features that were asked about themselves, by kind.
    """

    rows: Rows
    effect: Tensor
    direction: Tensor
    trust: Trust
    extra: dict[str, Tensor] = field(default_factory=dict)
    also: dict[str, Rows] = field(default_factory=dict)

    def scores(self, decomposition: Decomposition, outputs: Tensor, rows: Rows) -> Tensor:
        r"""The score of each entry of ``rows``, those of ``outputs``, [nnz]."""
        return self.effect * self.rows.value

    def kept(self, decomposition: Decomposition, nodes: Tensor, value: Tensor, scores: Tensor) -> Tensor:
        r"""What some nodes leave of the sum of all effects, [B, 1]."""
        return scores.sum(dim=1, keepdim=True)


Effects = Directed | Fitted


class Change(NamedTuple):
    r"""How far a mask moves what stands for the model, [B] each."""

    moved: Tensor  # its class probabilities, or outputs
    bound: Tensor  # the most that these can have moved
    in_bias: Tensor  # the evidence that is in no node
    expected: Tensor  # how unfaithful the explanation is then expected to be


class Rule(ABC):
    r"""What an explainer finds of the explained outputs."""

    facts: tuple[str, ...] = ()  # what it finds of each output besides scores, as in :class:`Trust`

    def prepare(self, teacher: Teacher, graph: Graph, distilled: Distilled, question: Question, run: Run) -> Any:
        r"""What is asked of the model before: ``None``, or a state with ``to_dict``."""
        return None

    @abstractmethod
    def effects(
        self, decomposition: Decomposition, state: Any, question: Question, rows: Rows | None = None, run: Run = DEFAULT
    ) -> Effects:
        r"""What explains the outputs.

        Args:
            decomposition: The surrogate on the graph.
            state: What :meth:`prepare` returned.
            question: Which outputs, and toward what.
            rows: The outputs' rows, where no more than scores is wanted.
            run: How much to do at a time.
        """

    def to_dict(self) -> dict[str, Any]:
        r"""The rule's name and options."""
        return {'name': type(self).__name__, **vars(self)}

    def change(self, distilled: Distilled, state: Any, question: Question, trust: Trust, kept: Tensor) -> Change:
        r"""How far a mask moves the surrogate, given what it keeps of the evidence, [B, C]."""
        surrogate, bias = distilled.surrogate, distilled.surrogate.bias
        before = distilled.decomposition.evidence[question.outputs]
        bound = moved = (before - kept).norm(dim=1)
        if surrogate.report.mode == 'regression':
            in_bias = bias.norm().expand_as(moved)
        else:
            in_bias = bias[distilled.outputs[question.outputs].argmax(dim=1)]
            bound = moved if surrogate.report.is_linear else LIPSCHITZ_OF_SOFTMAX * moved
            moved = (surrogate.outputs(before + bias) - surrogate.outputs(kept + bias)).norm(dim=1)
        return Change(moved, bound, in_bias, moved + 2.0 * trust.distillation_error)


@dataclass(frozen=True)
class Projection(Rule):
    r"""FastDnX's directions: :math:`Z_o - b` as in the paper, what all contributions add up to, or a target's."""

    def effects(
        self, decomposition: Decomposition, state: Any, question: Question, rows: Rows | None = None, run: Run = DEFAULT
    ) -> Directed:
        direction = question.direction
        return Directed(decomposition.evidence[question.outputs] if direction is None else direction)


@dataclass(frozen=True)
class Mixture(Rule):
    r"""DnX's directions: the dual solution of its program, whose weights on the simplex it also finds.

    With a target, contributions are projected on its direction first. They are numbers then, whose order is FastDnX's:
    its direction is taken, and the program only gives the weights.
    """

    epsilon: float
    prior: str  # 'uniform', or 'propagation', in proportion to the size of the values
    solver: str  # 'newton' or 'adam'
    epochs: int
    lr: float

    def effects(
        self, decomposition: Decomposition, state: Any, question: Question, rows: Rows | None = None, run: Run = DEFAULT
    ) -> Directed:
        if rows is not None:
            direction = question.direction
            return Directed(self._solve(decomposition, question, rows, run)[0] if direction is None else direction)
        outputs, parts = question.outputs, []
        for chunk in decomposition.chunks(outputs, 8 * run.entries):
            parts.append(self._solve(decomposition, question.at(chunk), decomposition.rows(outputs[chunk]), run))
        directions, gaps, weights = zip(*parts, strict=True)
        weight = torch.stack(weights).sum(dim=0).to(decomposition.hidden[0].dtype) / outputs.numel()
        extra = {'node_weight': weight, 'duality_gap': torch.cat(gaps)}
        if self.solver == 'adam':  # which weighs nodes, as published
            extra['node_score'] = weight
        return Directed(torch.cat(directions), extra)

    def _solve(
        self, decomposition: Decomposition, question: Question, rows: Rows, run: Run
    ) -> tuple[Tensor, Tensor, Tensor]:
        r"""The directions [B, C], the duality gaps [B], and the sum over outputs of the weights of all nodes, [N]."""
        evidence = decomposition.evidence[question.outputs].double()
        direction, gap = torch.zeros_like(evidence), torch.zeros_like(evidence[:, 0])
        node_weight = evidence.new_zeros(decomposition.operator.num_nodes)
        for group, entry, inside in padded_rows(rows.length, evidence.size(1), run.entries):
            column, values = rows.column.take(entry), rows.at(entry, inside).double()
            contributions = decomposition.contributions(question.outputs[group], column, values)
            total, mass = evidence[group], inside.double()
            if self.prior == 'propagation':
                size = values if values.dim() == 2 else values.sum(dim=2)
                mass = mass * size.abs().clamp(min=1e-30)
            log_prior = mass.log().log_softmax(dim=1)
            if question.direction is None:
                solution = self._solution(contributions, total, log_prior)
                alone = rows.length[group, None] == 1  # its weight is 1 and leaves nothing over for a direction
                direction[group] = torch.where(alone, total, solution.direction)
            else:
                axis = question.direction[group].double()[:, None]  # [b, 1, C]
                projected = (contributions * axis).sum(dim=2, keepdim=True)
                solution = self._solution(projected, (total * axis[:, 0]).sum(dim=1, keepdim=True), log_prior)
                direction[group] = axis[:, 0]  # on a line, any direction gives the same order
            gap[group] = solution.gap
            node_weight.index_add_(0, column[inside], solution.weight[inside])
        return direction, gap, node_weight

    def _solution(self, contributions: Tensor, total: Tensor, log_prior: Tensor) -> Solution:
        if self.solver == 'adam':
            return solve_adam(contributions, total, log_prior, self.epochs, self.lr)
        return solve(contributions, total, log_prior, self.epsilon)
