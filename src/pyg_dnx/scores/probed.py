r"""What probes say of the nodes around an output: a linear function of what the model sees, fitted to its answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pyg_dnx.distill.decomposition import Decomposition
from pyg_dnx.distill.distill import NEGLIGIBLE, Trust
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import Rows, inner_products, padded_rows
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.scores import local_fit
from pyg_dnx.teacher.probes import ALL_BLANKED, NUM_FIXED_MASKS, Bits, masks_of_parts

MIN_PAIRS_TO_JUDGE = 5  # the fit by: all and none, and four at random
MAX_PAIRS_TO_CHOOSE = 65  # the prior by
MAX_TRAITS = 64  # features by which neighbours are compared
EXACT = 1e-8  # the share of the variance of answers up to which errors count as none
STILL = 1e-4  # the standard deviation of answers, in units of the outputs, up to which they count as all the same
SIZES = ('normalised', 'means', 'sums')
LIKENESSES = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4)


class Block(NamedTuple):
    r"""Some rows of similar length, padded."""

    group: Tensor  # which of all rows they are, [b]
    entry: Tensor  # where their entries are, [b, m]
    inside: Tensor  # and which of these are no padding


class Prior(NamedTuple):
    r"""What is expected of effects before the model is asked; see :class:`Probed`."""

    sizes: str = 'normalised'  # or 'means', 'sums', or 'flat' where all nodes are expected to matter alike
    likeness: float = 0.0
    noise: float | None = 1.0  # of each output its own, if ``None``


@dataclass(frozen=True, eq=False)
class Probed:
    r"""The answers to probes at some outputs, and what they say of each neighbour.

    Node j's effect on output o is expected to be of the size :math:`q_{oj}`: its entry of :math:`R \tilde{A}^L`, or
    what the same walks count for in a model that takes means or sums over neighbours. One part of it is j's own, with
    variance :math:`q_{oj}^2`. The other, :math:`q_{oj} \, t_j^\top \theta_o` for an unknown :math:`\theta_o`, is
    what those with like traits :math:`t_j` have in common; it varies the answers by ``likeness`` times as much.
    ``sizes``, ``likeness`` and ``noise`` (:mod:`~pyg_dnx.scores.local_fit`) are chosen for all outputs, by the
    cross-validated R² of the fit. A multiple of the surrogate's effects is as likely as both parts together.

    What explains the output is the local fit, so that trust is in that, and not in the surrogate:

    - ``probe_r2``: R² of the local fit, each pair of probes predicted from the others; at most 0 of fewer than eight
      probes, which tell too little to judge the fit by;
    - ``surrogate_agreement``: whether it is positive;
    - ``distillation_error``: how far answers are from what the others predict, as a distance of outputs if these move
      along the answer's direction (for logits, at most half as far);
    - ``probe_evidence``: the sum of all effects; ``bias_decides``: whether it is not positive, or rounding;
    - ``probe_bias``: the answer with all features blanked.
    """

    masks: Bits  # the first of each of K pairs
    outputs: Tensor  # [n], ascending
    answer_direction: Tensor  # [n, C], of these answers in the outputs
    answers: Tensor  # [n, 2K]
    prior: Prior
    distance: Tensor  # [n], about how far outputs have moved if the answer has moved by 1
    unit: float  # of distances between outputs
    traits: Tensor | None = None  # [N, T], of all nodes; none if there is no likeness
    listed: Tensor | None = None  # [n, m], the nodes with the highest scores in another order, and then -1
    listed_score: Tensor | None = None  # [n, m], their scores in it, descending
    by_halves: bool = False  # whether R² and errors are of half the difference of each pair, as for links
    parts: Tensor | None = None  # [N], the output that each node is part of, if masks are drawn for each by itself
    asked: dict[str, Any] = field(default_factory=dict)  # of edges and features, by kind
    moved: Tensor | None = None  # [n], the share of probes that change the prediction, where that is shown

    def fit(
        self, decomposition: Decomposition, outputs: Tensor, rows: Rows, run: Run = DEFAULT
    ) -> tuple[Tensor, Trust]:
        r"""The effect of each entry of ``rows`` over its value, [nnz], and what is known of each output, [B]."""
        place = torch.searchsorted(self.outputs, outputs)
        assumed = self._assumed(decomposition, outputs, place, rows)
        return self.fit_parts(rows, assumed, self._factor(decomposition, outputs, rows, run), place, run)

    def fit_parts(
        self, rows: Rows, assumed: Tensor, factor: Tensor, place: Tensor, run: Run = DEFAULT
    ) -> tuple[Tensor, Trust]:
        r"""The same of whatever masks take away: nodes, edges or features.

        Args:
            rows: What each output is made from, by number.
            assumed: The surrogate's effect of each entry over its value, [nnz].
            factor: The size expected of each effect over the value of its entry, [nnz].
            place: Where the answers at each output are, [B].
            run: How much to do at a time.
        """
        effect = torch.zeros_like(rows.size)
        sums = self.answers.new_zeros(2, place.numel())
        sizes = factor * rows.size
        for block in self._blocks(rows, run):
            group, entry, inside = block
            basis = self._basis(rows, entry)
            own, alike, unit, account = self._covariance(rows, factor, assumed, block, basis, run)
            prior = self._summed(own, alike, self.prior.likeness)
            answers = self.answers[place[group]]
            noise: float | Tensor | None = self.prior.noise
            if noise is None:
                noise = local_fit.own_noise(*prior, account, answers, basis)
            fit = local_fit.solve(*prior, account, answers, noise, basis)
            size = sizes.take(entry) * inside
            weight = self._weights_by_neighbour(rows, block, fit.weight, run)
            common = self._in_common(rows, block, size * weight, run) * (self.prior.likeness * unit)[:, None]
            found = factor.take(entry) * (size * weight + common) + fit.multiple[:, None] * assumed.take(entry)
            value = rows.size.take(entry).double()
            found = self._reranked(found, place[group], rows.column.take(entry), value) * inside
            effect[entry[inside]] = found[inside].to(effect.dtype)
            wrong = fit.error
            if self.by_halves:
                wrong = 0.5 * (wrong[:, ::2] - wrong[:, 1::2])
            sums[:, group] = torch.stack([wrong.square().mean(dim=1), (found * value).sum(dim=1)])
        error, evidence = sums
        answers, distance, dtype = self.answers[place], self.distance[place], effect.dtype
        # Where there is no direction, all answers are 0: nothing is explained there, and the verdict is no better.
        still = torch.where(distance > 0.0, STILL * self.unit / distance, torch.inf)
        spread = answers.var(dim=1, correction=0)
        if self.by_halves:  # what both answers of a pair have in common is no effect of single nodes
            spread = (0.5 * (answers[:, ::2] - answers[:, 1::2])).square().mean(dim=1)
        r2 = 1.0 - error / spread.clamp(min=still.square())
        if self.masks.num_pairs < MIN_PAIRS_TO_JUDGE:
            r2 = r2.clamp(max=0.0)
        trust = Trust(
            surrogate_agreement=r2 > 0.0,
            distillation_error=(error.sqrt() * distance).to(dtype),
            bias_decides=evidence <= NEGLIGIBLE * answers.abs().amax(dim=1),
            probe_r2=r2.to(dtype),
            probe_evidence=evidence.to(dtype),
            probe_bias=answers[:, ALL_BLANKED].to(dtype),
        )
        return effect, trust

    def choose_prior(self, decomposition: Decomposition, run: Run = DEFAULT) -> Prior:
        r"""The prior under which each pair of the first answers is best predicted from the others."""
        rows = decomposition.rows(self.outputs)
        every = torch.arange(self.outputs.numel(), device=self.outputs.device)
        assumed = self._assumed(decomposition, self.outputs, every, rows)

        def factor(sizes: str) -> Tensor:
            return replace(self, prior=Prior(sizes))._factor(decomposition, self.outputs, rows, run)

        return self.choose_among(rows, assumed, {sizes: factor(sizes) for sizes in SIZES}, run)

    def choose_among(self, rows: Rows, assumed: Tensor, factors: dict[str, Tensor], run: Run = DEFAULT) -> Prior:
        r"""The same of whatever masks take away, given the sizes that may be expected, by name."""
        pairs = min(self.masks.num_pairs, MAX_PAIRS_TO_CHOOSE)
        first = replace(self, masks=self.masks.first(pairs), answers=self.answers[:, : 2 * pairs])
        own, alike = self.answers.new_zeros(2, self.outputs.numel(), pairs, pairs)
        account, losses = torch.zeros_like(own[:, 0]), {}
        # What is as good as exact, as for a linear model, is a tie, and the first prior is taken.
        exact = EXACT * float(first.answers.var(dim=1, correction=0).sum() * 2 * pairs)
        for sizes, factor in factors.items():
            for block in first._blocks(rows, run):
                own[block.group], alike[block.group], _, account[block.group] = first._covariance(
                    rows, factor, assumed, block, None, run
                )
            for likeness in LIKENESSES if self.traits is not None else LIKENESSES[:1]:
                noise, loss = local_fit.choose_noise(*first._summed(own, alike, likeness), account, first.answers)
                losses[Prior(sizes, likeness, noise)] = max(loss, exact)
        return min(losses, key=losses.__getitem__)

    def _assumed(self, decomposition: Decomposition, outputs: Tensor, place: Tensor, rows: Rows) -> Tensor:
        r"""The surrogate's effect of each entry of ``rows`` over its value, [nnz]."""
        direction = self.answer_direction[place].to(rows.value.dtype)
        if rows.value.dim() == 1:
            return inner_products(rows, direction, decomposition.hidden[0]).double()
        return _over(decomposition.scores(outputs, rows, direction), rows.size)

    def _factor(self, decomposition: Decomposition, outputs: Tensor, rows: Rows, run: Run) -> Tensor:
        r"""The size expected of each effect over the value of its entry in ``rows``, [nnz]."""
        operator = decomposition.operator
        if self.prior.sizes == 'normalised':
            return torch.ones_like(rows.size, dtype=torch.float64)
        if self.prior.sizes == 'flat':
            return _over(torch.ones_like(rows.size), rows.size)
        if self.prior.sizes == 'means':  # (D⁻¹A)^L is Ã^L between D^-½ and its inverse
            return _over(rows.value.new_ones(1), operator.scale[rows.column.long()])
        summing = replace(decomposition, operator=operator.sums)
        parts = [summing.rows(outputs[chunk]) for chunk in decomposition.chunks(outputs, 8 * run.entries)]
        sums = Rows(*map(torch.cat, zip(*parts, strict=True)))
        sums, plain = sums._replace(value=sums.size), rows._replace(value=rows.size)
        return _over(sums.values_in(plain, operator.num_nodes), plain.value)

    def _basis(self, rows: Rows, entry: Tensor) -> Tensor | None:
        r"""A basis [b, K, m] of what the neighbours at ``entry`` [b, m] can do to the differences, if m is small.

        Padding may add directions to it, on which nothing depends.
        """
        return torch.linalg.qr(self._halves(rows, entry).mT).Q if entry.size(1) <= self._few else None

    def _covariance(
        self, rows: Rows, factor: Tensor, assumed: Tensor, block: Block, basis: Tensor | None, run: Run
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r"""What the neighbours in a block add to the covariance of differences, [b, K, K], each by itself.

        And by what they have in common, [b, K, K], which varies answers by as much; the variance of θ for that, [b];
        and the surrogate's account of the differences, [b, K]. All but the variance are those in ``basis``, if given.
        """
        width = self.masks.num_pairs if basis is None else basis.size(2)
        own = self.answers.new_zeros(block.group.numel(), width, width)
        account = torch.zeros_like(own[:, 0])
        seen = own[:, :, :0] if self.traits is None else own.new_zeros(*own.shape[:2], self.traits.size(1))
        for at, here in self._slices(block, run):
            halves = self._halves(rows, at) * (rows.size.take(at).double() * here)[:, :, None]
            halves = halves if basis is None else halves @ basis
            account += (assumed.take(at)[:, None] @ halves)[:, 0]
            halves *= factor.take(at)[:, :, None]
            own.baddbmm_(halves.mT, halves)
            if self.traits is not None:
                seen.baddbmm_(halves.mT, self._traits(rows, at))
        spread = seen.square().sum(dim=(1, 2)) / self.masks.num_pairs
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
        return covariance.diagonal(dim1=1, dim2=2).sum(dim=1) / self.masks.num_pairs

    def _weights_by_neighbour(self, rows: Rows, block: Block, weight: Tensor, run: Run) -> Tensor:
        r"""What ``weight`` [b, K] comes to by the masks of each neighbour, [b, m]."""
        parts = [self._halves(rows, at) @ weight[:, :, None] for at, _ in self._slices(block, run)]
        return torch.cat(parts, dim=1)[:, :, 0]

    def _in_common(self, rows: Rows, block: Block, amount: Tensor, run: Run) -> Tensor:
        r"""The traits of each neighbour times the sum of all those, by ``amount`` [b, m]: [b, m]."""
        if self.traits is None:
            return torch.zeros_like(amount)
        slices = [at for at, _ in self._slices(block, run)]
        amounts = amount.split(slices[0].size(1), dim=1)
        parts = [part[:, None] @ self._traits(rows, at) for part, at in zip(amounts, slices, strict=True)]
        total = torch.stack(parts).sum(dim=0)[:, 0, :, None]  # [b, T, 1]
        return torch.cat([self._traits(rows, at) @ total for at in slices], dim=1)[:, :, 0]

    def _traits(self, rows: Rows, entry: Tensor) -> Tensor:
        return cast(Tensor, self.traits)[rows.column.take(entry).long()].double()  # [b, m, T]

    def _reranked(self, effect: Tensor, place: Tensor, column: Tensor, value: Tensor) -> Tensor:
        r"""Effects [b, m] over their ``value``, with the scores of the shortlist for those that are on it."""
        if self.listed is None or self.listed_score is None:
            return effect
        same = column[:, :, None] == self.listed[place][:, None]
        score = (same * self.listed_score[place].double()[:, None]).sum(dim=2)
        return torch.where(same.any(dim=2) & (value != 0.0), score / value, effect)

    def _blocks(self, rows: Rows, run: Run) -> Iterator[Block]:
        r"""Goes through padded blocks of rows, of so few that their covariances [b, K, K] take bounded memory, too.

        Those that are short enough for a basis are by themselves, whatever the others of the block.
        """
        few = self._few
        for group, entry, inside in padded_rows(rows.length, self.masks.num_pairs, run.entries):
            long = int((rows.length[group] > few).sum())  # the longest come first
            blocks = (
                Block(group[:long], entry[:long], inside[:long]),
                Block(group[long:], entry[long:, :few], inside[long:, :few]),
            )
            for block in blocks:
                step = max(1, 2 * run.entries // (min(block.entry.size(1), self.masks.num_pairs) * self._width))
                if block.group.numel() > 0:
                    yield from map(Block, *(part.split(step) for part in block))

    @property
    def _few(self) -> int:
        r"""The most neighbours for whom a basis saves time."""
        return self.masks.num_pairs // 2

    def _slices(self, block: Block, run: Run) -> Iterator[tuple[Tensor, Tensor]]:
        r"""Goes through the columns of a padded block, so many at a time that their masks take bounded memory."""
        step = max(1, run.entries // (block.group.numel() * self._width))
        return zip(block.entry.split(step, dim=1), block.inside.split(step, dim=1), strict=True)

    @property
    def _width(self) -> int:
        return max(self.masks.num_pairs, 0 if self.traits is None else self.traits.size(1))

    def _halves(self, rows: Rows, entry: Tensor) -> Tensor:
        r"""One half where the first of a pair of masks keeps a neighbour, minus one half where the second does."""
        return self.masks.at(rows.column.take(entry).long(), self.answers.dtype).sub_(0.5)  # [b, m, K]

    def to_dict(self) -> dict[str, Any]:
        r"""All of it as tensors, numbers and strings; masks and traits are made anew."""
        tensors = ('outputs', 'answer_direction', 'answers', 'distance', 'listed', 'listed_score', 'parts')
        known = {name: value.cpu() for name in tensors if (value := getattr(self, name)) is not None}
        num_probes = 2 * self.masks.num_pairs - NUM_FIXED_MASKS
        return {
            'num_probes': num_probes,
            'prior': list(self.prior),
            'unit': self.unit,
            'by_halves': self.by_halves,
            **({'asked': {kind: one.to_dict() for kind, one in self.asked.items()}} if self.asked else {}),
            **known,
        }

    @staticmethod
    def from_dict(content: dict[str, Any], num_nodes: int) -> Probed:
        r"""Undoes :meth:`to_dict`, on a graph of so many nodes, but for the traits of its nodes."""
        content = {name: value for name, value in content.items() if name != 'asked'}
        masks = masks_of_parts(num_nodes, content.pop('num_probes'), content.get('parts'))
        return Probed(Bits.of(masks[::2]), prior=Prior(*content.pop('prior')), **content)

    def on(self, graph: Graph, decomposition: Decomposition) -> Probed:
        r"""The same with the traits of all nodes."""
        asked = {kind: replace(one, graph=graph) for kind, one in self.asked.items()}
        found = self if self.prior.likeness == 0.0 else replace(self, traits=traits(graph.x, decomposition))
        return replace(found, asked=asked)


def traits(x: Tensor, decomposition: Decomposition) -> Tensor:
    r"""By what nodes are compared, [N, T]: their features, or, if these are many, what the surrogate makes of them."""
    hidden = decomposition.hidden[0] if len(decomposition.hidden) == 1 else torch.cat(decomposition.hidden, dim=1)
    return hidden if x.size(1) > MAX_TRAITS else x.detach().to(hidden.dtype, copy=True)


def _over(values: Tensor, others: Tensor) -> Tensor:
    r"""The quotient in float64, and zero where the other value is zero."""
    return torch.where(others != 0.0, values.double() / others.double(), 0.0)
