r"""ProbeDnX's rule: at each explained node, a linear function of which neighbours the model sees, fitted to probes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_dnx import local_fit
from pyg_dnx.certificate import Certificate, probe_certificate
from pyg_dnx.directions import Directions, Rule
from pyg_dnx.distillation import Distilled
from pyg_dnx.probing import BLANK, UNDRAWN, Bits, probe_masks
from pyg_dnx.propagation import MAX_PADDED_SIZE, Rows, padded_rows, row_chunks, rows_of
from pyg_dnx.surrogate import Decomposition

MAX_GRAM_SIZE = 2**21  # numbers at a time in the covariances of answers
STILL = 1e-4  # the standard deviation of answers, in units of the outputs, up to which they count as all the same


@dataclass(frozen=True, eq=False)
class Probing(Rule):
    r"""The answers to probes at some nodes, and what they say of each neighbour.

    The effect :math:`s_j` of a neighbour has the prior variance :math:`(\tilde{A}^L_{ij})^2`. What explains the node is
    the local fit, so that trust is in that, and not in the surrogate:

    - ``probe_r2``: the share of the variance of answers that is foretold, each by all others (R², leave-one-out);
    - ``surrogate_agreement``: whether it is positive;
    - ``distillation_error``: how far answers are off from what all others say of them, as a distance of outputs;
    - ``probe_evidence``: the sum of all effects; ``bias_decides``: whether it is not positive;
    - ``probe_bias``: the answer if all nodes are blanked.
    """

    facts = ('surrogate_agreement', 'distillation_error', 'bias_decides', 'probe_r2', 'probe_evidence', 'probe_bias')
    masks: Bits
    nodes: Tensor  # [n], ascending
    answers: Tensor  # [n, P]
    noise: float
    distance: Tensor  # [n], how far outputs have moved at least if the answer has moved by 1
    unit: float  # of distances between outputs

    def __repr__(self) -> str:
        return f'Probing(num_masks={self.masks.num_masks}, noise={self.noise:g})'

    def __call__(
        self, decomposition: Decomposition, nodes: Tensor, toward: Tensor | None, rows: Rows | None = None
    ) -> Directions:
        assert toward is not None
        if rows is None:
            operator, num_hops = decomposition.operator, decomposition.surrogate.num_hops
            parts = [rows_of(operator, nodes[chunk], num_hops) for chunk in row_chunks(operator, nodes, num_hops)]
            rows = parts[0] if len(parts) == 1 else Rows(*map(torch.cat, zip(*parts, strict=True)))
        effect, trust = self._fit(nodes, rows)
        return Directions(toward, local=(rows, effect), trust=trust)

    def score(
        self, decomposition: Decomposition, nodes: Tensor, toward: Tensor | None, rows: Rows
    ) -> tuple[Tensor, dict[str, Tensor]]:
        effect, trust = self._fit(nodes, rows)
        return effect.mul_(rows.value), trust

    def _fit(self, nodes: Tensor, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        r"""The effect of each entry of ``rows`` over its value, [nnz], and what is known of each of ``nodes``, [B]."""
        effect = torch.zeros_like(rows.value)
        sums = self.answers.new_zeros(2, nodes.numel())
        place = torch.searchsorted(self.nodes, nodes)
        for group, entry, inside in self._blocks(rows):
            answers = self.answers[place[group]]
            weight, error = local_fit.solve(self._gram(rows, entry, inside), answers, self.noise)
            evidence = torch.zeros_like(weight[:, 0])
            for at, here in self._slices(entry, inside):
                masks, value = self._masks(rows, at), rows.value.take(at).double()
                found = value * here * (masks @ weight[:, :, None])[:, :, 0]
                evidence += (found * value).sum(dim=1)
                effect[at[here]] = found[here].to(effect.dtype)
            sums[:, group] = torch.stack([error.square().mean(dim=1), evidence])
        error, evidence = sums
        answers, distance = self.answers[place], self.distance[place]
        # Where there is no direction, the answers are all the same.
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

    def choose_noise(self, rows: Rows) -> float:
        r"""The noise under which each answer at ``nodes`` is best foretold by all others; ``rows`` are theirs."""
        gram = self.answers.new_zeros(self.nodes.numel(), self.masks.num_masks, self.masks.num_masks)
        for group, entry, inside in self._blocks(rows):
            gram[group] = self._gram(rows, entry, inside)
        return local_fit.choose_noise(gram, self.answers)

    def _gram(self, rows: Rows, entry: Tensor, inside: Tensor) -> Tensor:
        r"""What the neighbours at ``entry`` [b, m] add to the covariance of answers, [b, P, P]."""
        gram = self.answers.new_zeros(entry.size(0), self.masks.num_masks, self.masks.num_masks)
        for at, here in self._slices(entry, inside):
            masks = self._masks(rows, at) * (rows.value.take(at).double() * here)[:, :, None]
            gram.baddbmm_(masks.mT, masks)
        return gram

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
        return {**numbers, **{name: getattr(self, name).cpu() for name in ('nodes', 'answers', 'distance')}}

    @classmethod
    def from_dict(cls, content: dict[str, Any], num_nodes: int) -> Probing:
        masks = probe_masks(num_nodes, content.pop('num_probes'))
        return Probing(Bits.of(masks), **content)
