r"""ProbeDnX's rule: at each explained node, a linear function of which neighbours the model sees, fitted to probes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pyg_dnx.distill.distill import Distilled
from pyg_dnx.distill.surrogate import Decomposition
from pyg_dnx.graph.rows import MAX_PADDED_SIZE, Rows, inner_products, padded_rows, row_chunks, rows_of
from pyg_dnx.results.certificate import Certificate, probe_certificate
from pyg_dnx.scores import local_fit
from pyg_dnx.scores.rules import Directions, Rule
from pyg_dnx.teacher.probes import BLANK, UNDRAWN, Bits, probe_masks

MAX_GRAM_SIZE = 2**21  # numbers at a time in the covariances of answers
MAX_PAIRS_TO_CHOOSE = 65  # the prior by
MAX_TRAITS = 64  # features by which neighbours are told apart
EXACT = 1e-8  # the share of the variance of answers up to which errors count as none
STILL = 1e-4  # the standard deviation of answers, in units of the outputs, up to which they count as all the same
SIZES = ('normalised', 'means', 'sums')
LIKENESSES = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4)


class Prior(NamedTuple):
    r"""What is expected of effects before the model is asked; see :class:`Probing`."""

    sizes: str = 'normalised'
    likeness: float = 0.0
    noise: float = 1.0


@dataclass(frozen=True, eq=False)
class Probing(Rule):
    r"""The answers to probes at some nodes, and what they say of each neighbour.

    Neighbour j's effect on node i is expected to be of the size :math:`q_{ij}`: :math:`\tilde{A}^L_{ij}`, or what the
    same walks count for in a model that takes means or sums over neighbours. One part of it is j's own, with variance
    :math:`q_{ij}^2`. The other, :math:`q_{ij} \, t_j^\top \theta_i` for an unknown :math:`\theta_i`, is what those
    with like traits :math:`t_j` have in common; it varies the answers by ``likeness`` times as much. ``sizes``,
    ``likeness`` and ``noise`` (:mod:`~pyg_dnx.scores.local_fit`) are chosen for all nodes, by how well answers foretell
    one another. A multiple of the surrogate's effects is as likely as both parts together.

    What explains the node is the local fit, so that trust is in that, and not in the surrogate:

    - ``probe_r2``: the share of the variance of answers that is foretold, each pair by all others (R²);
    - ``surrogate_agreement``: whether it is positive;
    - ``distillation_error``: how far answers are off from what the others say of them, as a distance of outputs if
      these move along the answer's direction (for logits, at most half as far);
    - ``probe_evidence``: the sum of all effects; ``bias_decides``: whether it is not positive;
    - ``probe_bias``: the answer if all nodes are blanked.
    """

    facts = ('surrogate_agreement', 'distillation_error', 'bias_decides', 'probe_r2', 'probe_evidence', 'probe_bias')
    masks: Bits  # the first of each of K pairs
    nodes: Tensor  # [n], ascending
    along: Tensor  # [n, C], the direction of these answers in the outputs
    answers: Tensor  # [n, 2K]
    prior: Prior
    distance: Tensor  # [n], about how far outputs have moved if the answer has moved by 1
    unit: float  # of distances between outputs
    traits: Tensor | None = None  # [N, T], of all nodes; none if there is no likeness
    listed: Tensor | None = None  # [n, m], the nodes with the highest scores in another order, and then -1
    listed_score: Tensor | None = None  # [n, m], their scores in it, descending

    def __repr__(self) -> str:
        listed = '' if self.listed is None else f', shortlist={self.listed.size(1)}'
        return f'Probing(num_pairs={self.masks.num_masks}, prior={tuple(self.prior)}{listed})'

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
        factor = self._factor(decomposition, nodes, rows)
        sizes = factor * rows.value
        for group, entry, inside in self._blocks(rows):
            basis = self._basis(rows, entry)
            own, alike, unit, account = self._covariance(rows, factor, assumed, entry, inside, basis)
            prior = self._summed(own, alike, self.prior.likeness)
            fit = local_fit.solve(*prior, account, self.answers[place[group]], self.prior.noise, basis)
            size = sizes.take(entry) * inside
            said = self._said(rows, entry, inside, fit.weight)
            common = self._in_common(rows, entry, inside, size * said) * (self.prior.likeness * unit)[:, None]
            found = factor.take(entry) * (size * said + common) + fit.multiple[:, None] * assumed.take(entry)
            value = rows.value.take(entry).double()
            found = self._relisted(found, place[group], rows.column.take(entry), value) * inside
            effect[entry[inside]] = found[inside].to(effect.dtype)
            sums[:, group] = torch.stack([fit.error.square().mean(dim=1), (found * value).sum(dim=1)])
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

    def choose_prior(self, decomposition: Decomposition) -> Prior:
        r"""The prior under which pairs of answers at ``nodes`` to the first probes are best foretold by the others."""
        pairs = min(self.masks.num_masks, MAX_PAIRS_TO_CHOOSE)
        rule = replace(self, masks=self.masks.first(pairs), answers=self.answers[:, : 2 * pairs])
        rows = rows_of(decomposition.operator, self.nodes, decomposition.surrogate.num_hops)
        assumed = self._assumed(decomposition, torch.arange(self.nodes.numel(), device=self.nodes.device), rows)
        own, alike = self.answers.new_empty(2, self.nodes.numel(), pairs, pairs)
        account, losses = torch.empty_like(own[:, 0]), {}
        # What is as good as exact, as for a linear model, is a tie, and the first prior is taken.
        exact = EXACT * float(rule.answers.var(dim=1, correction=0).sum() * 2 * pairs)
        for sizes in SIZES:
            factor = replace(self, prior=Prior(sizes))._factor(decomposition, self.nodes, rows)
            for group, entry, inside in rule._blocks(rows):
                own[group], alike[group], _, account[group] = rule._covariance(rows, factor, assumed, entry, inside)
            for likeness in LIKENESSES if self.traits is not None else LIKENESSES[:1]:
                noise, loss = local_fit.choose_noise(*rule._summed(own, alike, likeness), account, rule.answers)
                losses[Prior(sizes, likeness, noise)] = max(loss, exact)
        return min(losses, key=losses.__getitem__)

    def with_features(self, x: Tensor, decomposition: Decomposition) -> Probing:
        return self if self.prior.likeness == 0.0 else replace(self, traits=traits(x, decomposition))

    def _assumed(self, decomposition: Decomposition, place: Tensor, rows: Rows) -> Tensor:
        r"""The surrogate's effect of each entry of ``rows`` over its value, [nnz]."""
        along = self.along[place].to(rows.value.dtype)
        return inner_products(rows, along, decomposition.hidden).double()

    def _factor(self, decomposition: Decomposition, nodes: Tensor, rows: Rows) -> Tensor:
        r"""The size expected of each effect over the value of its entry in ``rows``, [nnz]."""
        operator, num_hops = decomposition.operator, decomposition.surrogate.num_hops
        if self.prior.sizes == 'normalised':
            return torch.ones_like(rows.value, dtype=torch.float64)
        if self.prior.sizes == 'means':  # (D⁻¹A)^L is Ã^L between D^-½ and its inverse
            return _over(rows.value.new_ones(1), operator.scale[rows.column.long()])
        parts = [rows_of(operator.sums, nodes[chunk], num_hops) for chunk in row_chunks(operator, nodes, num_hops)]
        sums = Rows(*map(torch.cat, zip(*parts, strict=True)))
        return _over(sums.values_in(rows, operator.num_nodes), rows.value)

    def _basis(self, rows: Rows, entry: Tensor) -> Tensor | None:
        r"""A basis [b, K, m] of what the neighbours at ``entry`` [b, m] can do to the differences, if m is small.

        Padding may add directions to it, which nothing is then said of.
        """
        return torch.linalg.qr(self._halves(rows, entry).mT).Q if entry.size(1) <= self._few else None

    def _covariance(
        self,
        rows: Rows,
        factor: Tensor,
        assumed: Tensor,
        entry: Tensor,
        inside: Tensor,
        basis: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r"""What the neighbours at ``entry`` [b, m] add to the covariance of differences, [b, K, K], each by itself.

        And by what they have in common, [b, K, K], which varies answers by as much; the variance of θ for that, [b];
        and the surrogate's account of the differences, [b, K]. All but the variance are those in ``basis``, if given.
        """
        width = self.masks.num_masks if basis is None else basis.size(2)
        own = self.answers.new_zeros(entry.size(0), width, width)
        account = torch.zeros_like(own[:, 0])
        seen = own[:, :, :0] if self.traits is None else own.new_zeros(*own.shape[:2], self.traits.size(1))
        for at, here in self._slices(entry, inside):
            halves = self._halves(rows, at) * (rows.value.take(at).double() * here)[:, :, None]
            halves = halves if basis is None else halves @ basis
            account += (assumed.take(at)[:, None] @ halves)[:, 0]
            halves *= factor.take(at)[:, :, None]
            own.baddbmm_(halves.mT, halves)
            if self.traits is not None:
                seen.baddbmm_(halves.mT, self._traits(rows, at))
        spread = seen.square().sum(dim=(1, 2)) / self.masks.num_masks
        unit = 2.0 * self._mean_over_pairs(own) / spread
        unit = torch.where(spread > torch.finfo(spread.dtype).tiny, unit, 0.0)  # all the same in every probe
        return own, (seen * unit[:, None, None]) @ seen.mT, unit, account

    def _summed(self, own: Tensor, alike: Tensor, likeness: float) -> tuple[Tensor, Tensor]:
        r"""The covariance [b, K, K] by effects of both kinds, and by how much these vary answers, [b].

        Effects that are each its own vary answers by twice what they vary half the differences by.
        """
        size = 2.0 * self._mean_over_pairs(own) + likeness * self._mean_over_pairs(alike)
        return own + likeness * alike, size

    def _mean_over_pairs(self, covariance: Tensor) -> Tensor:
        r"""The mean of variances [b], in whatever basis."""
        return covariance.diagonal(dim1=1, dim2=2).sum(dim=1) / self.masks.num_masks

    def _said(self, rows: Rows, entry: Tensor, inside: Tensor, weight: Tensor) -> Tensor:
        r"""What ``weight`` [b, K] comes to by the masks of each neighbour, [b, m]."""
        parts = [self._halves(rows, at) @ weight[:, :, None] for at, _ in self._slices(entry, inside)]
        return torch.cat(parts, dim=1)[:, :, 0]

    def _in_common(self, rows: Rows, entry: Tensor, inside: Tensor, amount: Tensor) -> Tensor:
        r"""The traits of each neighbour times the sum of all those, by ``amount`` [b, m]: [b, m]."""
        if self.traits is None:
            return torch.zeros_like(amount)
        slices = [at for at, _ in self._slices(entry, inside)]
        amounts = amount.split(slices[0].size(1), dim=1)
        parts = [part[:, None] @ self._traits(rows, at) for part, at in zip(amounts, slices, strict=True)]
        total = torch.stack(parts).sum(dim=0)[:, 0, :, None]  # [b, T, 1]
        return torch.cat([self._traits(rows, at) @ total for at in slices], dim=1)[:, :, 0]

    def _traits(self, rows: Rows, entry: Tensor) -> Tensor:
        return cast(Tensor, self.traits)[rows.column.take(entry).long()].double()  # [b, m, T]

    def _relisted(self, effect: Tensor, place: Tensor, column: Tensor, value: Tensor) -> Tensor:
        r"""Effects [b, m] over their ``value``, with the scores of the shortlist for those that are on it."""
        if self.listed is None or self.listed_score is None:
            return effect
        same = column[:, :, None] == self.listed[place][:, None]
        score = (same * self.listed_score[place].double()[:, None]).sum(dim=2)
        return torch.where(same.any(dim=2) & (value != 0.0), score / value, effect)

    def _blocks(self, rows: Rows) -> Iterator[tuple[Tensor, ...]]:
        r"""Goes through padded blocks of rows, of so few that their covariances [b, K, K] take bounded memory, too.

        Those that are short enough for a basis are by themselves, whatever the others of the block.
        """
        few = self._few
        for group, entry, inside in padded_rows(rows.length, self.masks.num_masks):
            long = int((rows.length[group] > few).sum())  # the longest come first
            blocks = (
                (group[:long], entry[:long], inside[:long]),
                (group[long:], entry[long:, :few], inside[long:, :few]),
            )
            for block in blocks:
                step = max(1, MAX_GRAM_SIZE // (min(block[1].size(1), self.masks.num_masks) * self._width))
                if block[0].numel() > 0:
                    yield from zip(*(part.split(step) for part in block), strict=True)

    @property
    def _few(self) -> int:
        r"""The most neighbours for whom a basis is worth its while."""
        return self.masks.num_masks // 2

    def _slices(self, entry: Tensor, inside: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        r"""Goes through the columns of a padded block, so many at a time that their masks take bounded memory."""
        step = max(1, MAX_PADDED_SIZE // (entry.size(0) * self._width))
        return zip(entry.split(step, dim=1), inside.split(step, dim=1), strict=True)

    @property
    def _width(self) -> int:
        return max(self.masks.num_masks, 0 if self.traits is None else self.traits.size(1))

    def _halves(self, rows: Rows, entry: Tensor) -> Tensor:
        r"""One half where the first of a pair of masks keeps a neighbour, minus one half where the second does."""
        return self.masks.at(rows.column.take(entry).long(), self.answers.dtype).sub_(0.5)  # [b, m, K]

    def identity(self) -> dict[str, Any]:
        return {'rule': repr(self), 'answers': self.answers}

    def to_dict(self) -> dict[str, Any]:
        numbers = {'num_probes': 2 * self.masks.num_masks - UNDRAWN, 'prior': list(self.prior), 'unit': self.unit}
        tensors = ('nodes', 'along', 'answers', 'distance', 'listed', 'listed_score')
        known = {name: value for name in tensors if (value := getattr(self, name)) is not None}
        return {**numbers, **{name: value.cpu() for name, value in known.items()}}

    @classmethod
    def from_dict(cls, content: dict[str, Any], num_nodes: int) -> Probing:
        masks = probe_masks(num_nodes, content.pop('num_probes'))
        return Probing(Bits.of(masks[::2]), prior=Prior(*content.pop('prior')), **content)


def traits(x: Tensor, decomposition: Decomposition) -> Tensor:
    r"""What tells nodes apart, [N, T]: their features, or, if these are many, what the surrogate makes of them."""
    return decomposition.hidden if x.size(1) > MAX_TRAITS else x.detach().to(decomposition.hidden.dtype, copy=True)


def _over(values: Tensor, others: Tensor) -> Tensor:
    r"""The quotient in float64, and zero where the other value is zero."""
    return torch.where(others != 0.0, values.double() / others.double(), 0.0)
