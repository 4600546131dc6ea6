r"""ProbeDnX's rule: at each explained node, a linear function of which neighbours the model sees, fitted to probes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from pyg_dnx import local_fit
from pyg_dnx.certificate import Certificate, probe_certificate
from pyg_dnx.directions import Directions, Rule
from pyg_dnx.distillation import Distilled
from pyg_dnx.probing import BLANK, UNDRAWN, Bits, probe_masks
from pyg_dnx.propagation import MAX_PADDED_SIZE, Rows, inner_products, padded_rows, row_chunks, rows_of
from pyg_dnx.surrogate import Decomposition

MAX_GRAM_SIZE = 2**21  # numbers at a time in the covariances of answers
STILL = 1e-4  # the standard deviation of answers, in units of the outputs, up to which they count as all the same


@dataclass(frozen=True, eq=False)
class Probing(Rule):
    r"""The answers to probes at some nodes, and what they say of each neighbour.

    Effects have the prior variances :math:`(\tilde{A}^L_{ij})^2`, and a multiple of the surrogate's effects is as
    likely. What explains the node is the local fit, so that trust is in that, and not in the surrogate:

    - ``probe_r2``: the share of the variance of answers that is foretold, each by all others (R², leave-one-out);
    - ``surrogate_agreement``: whether it is positive;
    - ``distillation_error``: how far answers are off from what all others say of them, as a distance of outputs if
      these move along the answer's direction (for logits, at most half as far);
    - ``probe_evidence``: the sum of all effects; ``bias_decides``: whether it is not positive;
    - ``probe_bias``: the answer if all nodes are blanked.
    """

    facts = ('surrogate_agreement', 'distillation_error', 'bias_decides', 'probe_r2', 'probe_evidence', 'probe_bias')
    masks: Bits
    nodes: Tensor  # [n], ascending
    along: Tensor  # [n, C], the direction of these answers in the outputs
    answers: Tensor  # [n, P]
    noise: float
    distance: Tensor  # [n], about how far outputs have moved if the answer has moved by 1
    unit: float  # of distances between outputs
    listed: Tensor | None = None  # [n, m], the nodes with the highest scores in another order, and then -1
    listed_score: Tensor | None = None  # [n, m], their scores in it, descending

    def __repr__(self) -> str:
        listed = '' if self.listed is None else f', shortlist={self.listed.size(1)}'
        return f'Probing(num_masks={self.masks.num_masks}, noise={self.noise:g}{listed})'

    def __call__(
        self, decomposition: Decomposition, nodes: Tensor, toward: Tensor | None, rows: Rows | None = None
    ) -> Directions:
        if rows is None:
            operator, num_hops = decomposition.operator, decomposition.surrogate.num_hops
            parts = [rows_of(operator, nodes[chunk], num_hops) for chunk in row_chunks(operator, nodes, num_hops)]
            rows = parts[0] if len(parts) == 1 else Rows(*map(torch.cat, zip(*parts, strict=True)))
        effect, trust = self._fit(decomposition, nodes, rows)
        return Directions(cast(Tensor, toward), local=(rows, effect), trust=trust)

    def score(
        self, decomposition: Decomposition, nodes: Tensor, toward: Tensor | None, rows: Rows
    ) -> tuple[Tensor, dict[str, Tensor]]:
        effect, trust = self._fit(decomposition, nodes, rows)
        return effect.mul_(rows.value), trust

    def _fit(self, decomposition: Decomposition, nodes: Tensor, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        r"""The effect of each entry of ``rows`` over its value, [nnz], and what is known of each of ``nodes``, [B]."""
        effect = torch.zeros_like(rows.value)
        sums = self.answers.new_zeros(2, nodes.numel())
        place = torch.searchsorted(self.nodes, nodes)
        assumed = self._assumed(decomposition, place, rows)
        for group, entry, inside in self._blocks(rows):
            covariance = self._covariance(rows, assumed, entry, inside)
            fit = local_fit.solve(*covariance, self.answers[place[group]], self.noise)
            evidence = torch.zeros_like(fit.multiple)
            for at, here in self._slices(entry, inside):
                masks, value = self._masks(rows, at), rows.value.take(at).double()
                found = value * (masks @ fit.weight[:, :, None])[:, :, 0]
                found += fit.multiple[:, None] * assumed.take(at)
                found = self._relisted(found, place[group], rows.column.take(at), value) * here
                evidence += (found * value).sum(dim=1)
                effect[at[here]] = found[here].to(effect.dtype)
            sums[:, group] = torch.stack([fit.error.square().mean(dim=1), evidence])
        error, evidence = sums
        answers, distance = self.answers[place], self.distance[place]
        # Where there is no direction, all answers are 0: nothing is explained there, and the verdict is no better.
        still = torch.where(distance > 0.0, STILL * self.unit / distance, torch.inf)
        r2 = 1.0 - error / answers.var(dim=1, correction=0).clamp(min=still.square())
        facts = (r2 > 0.0, error.sqrt() * distance, evidence <= 0.0, r2, evidence, answers[:, BLANK])
        dtypes = (torch.bool, effect.dtype, torch.bool, *[effect.dtype] * 3)
        return effect, {name: fact.to(dtype) for name, fact, dtype in zip(self.facts, facts, dtypes, strict=True)}

    def judge(
        self,
        distilled: Distilled,
        nodes: Tensor,
        evidence: Tensor,
        kept: Tensor,
        trust: dict[str, Tensor],
        doubt: float,
    ) -> Certificate:
        distance = self.distance[torch.searchsorted(self.nodes, nodes)]
        return probe_certificate(distilled, nodes, kept, distance, trust, doubt)

    def choose_noise(self, decomposition: Decomposition) -> float:
        r"""The noise under which each answer at ``nodes`` is best foretold by all others."""
        rows = rows_of(decomposition.operator, self.nodes, decomposition.surrogate.num_hops)
        assumed = self._assumed(decomposition, torch.arange(self.nodes.numel(), device=self.nodes.device), rows)
        gram = self.answers.new_zeros(self.nodes.numel(), self.masks.num_masks, self.masks.num_masks)
        account = torch.zeros_like(self.answers)
        for group, entry, inside in self._blocks(rows):
            gram[group], account[group] = self._covariance(rows, assumed, entry, inside)
        return local_fit.choose_noise(gram, account, self.answers)

    def _assumed(self, decomposition: Decomposition, place: Tensor, rows: Rows) -> Tensor:
        r"""The surrogate's effect of each entry of ``rows`` over its value, [nnz]."""
        along = self.along[place].to(rows.value.dtype)
        return inner_products(rows, along, decomposition.hidden).double()

    def _covariance(self, rows: Rows, assumed: Tensor, entry: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
        r"""What the neighbours at ``entry`` [b, m] add to the covariance of answers, [b, P, P].

        And the surrogate's account of these, [b, P].
        """
        gram = self.answers.new_zeros(entry.size(0), self.masks.num_masks, self.masks.num_masks)
        account = torch.zeros_like(gram[:, 0])
        for at, here in self._slices(entry, inside):
            masks = self._masks(rows, at) * (rows.value.take(at).double() * here)[:, :, None]
            gram.baddbmm_(masks.mT, masks)
            account += (assumed.take(at)[:, None] @ masks)[:, 0]
        return gram, account

    def _relisted(self, effect: Tensor, place: Tensor, column: Tensor, value: Tensor) -> Tensor:
        r"""Effects [b, m] over their ``value``, with the scores of the shortlist for those that are on it."""
        if self.listed is None or self.listed_score is None:
            return effect
        same = column[:, :, None] == self.listed[place][:, None]
        score = (same * self.listed_score[place].double()[:, None]).sum(dim=2)
        return torch.where(same.any(dim=2) & (value != 0.0), score / value, effect)

    def _blocks(self, rows: Rows) -> Iterator[tuple[Tensor, ...]]:
        r"""Goes through padded blocks of rows, of so few that their covariances [b, P, P] take bounded memory, too."""
        step = max(1, MAX_GRAM_SIZE // self.masks.num_masks**2)
        for block in padded_rows(rows.length, self.masks.num_masks):
            yield from zip(*(part.split(step) for part in block), strict=True)

    def _slices(self, entry: Tensor, inside: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        r"""Goes through the columns of a padded block, so many at a time that their masks take bounded memory."""
        step = max(1, MAX_PADDED_SIZE // (entry.size(0) * self.masks.num_masks))
        return zip(entry.split(step, dim=1), inside.split(step, dim=1), strict=True)

    def _masks(self, rows: Rows, entry: Tensor) -> Tensor:
        return self.masks.at(rows.column.take(entry).long(), self.answers.dtype)  # [b, m, P]

    def identity(self) -> dict[str, Any]:
        return {'rule': repr(self), 'answers': self.answers.norm(dim=1)}

    def to_dict(self) -> dict[str, Any]:
        numbers = {'num_probes': self.masks.num_masks - UNDRAWN, 'noise': self.noise, 'unit': self.unit}
        tensors = ('nodes', 'along', 'answers', 'distance', 'listed', 'listed_score')
        known = {name: value for name in tensors if (value := getattr(self, name)) is not None}
        return {**numbers, **{name: value.cpu() for name, value in known.items()}}

    @classmethod
    def from_dict(cls, content: dict[str, Any], num_nodes: int) -> Probing:
        masks = probe_masks(num_nodes, content.pop('num_probes'))
        return Probing(Bits.of(masks), **content)
