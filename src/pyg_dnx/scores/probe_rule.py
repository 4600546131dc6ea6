r"""ProbeDnX's rule: asks the model itself under random masks, and fits what it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.explain.config import ModelConfig, ModelMode

from pyg_dnx.distill.decomposition import Decomposition
from pyg_dnx.distill.distill import Distilled, Trust
from pyg_dnx.distill.graphs import share_moved
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import Rows
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.scores.batch import top_scores
from pyg_dnx.scores.parts import KINDS, Asked, can_be_asked
from pyg_dnx.scores.probed import MAX_PAIRS_TO_CHOOSE, Prior, Probed, traits
from pyg_dnx.scores.question import Goal, Question
from pyg_dnx.scores.rules import Change, Fitted, Mixture, Projection, Rule
from pyg_dnx.teacher.local import Local, Masks
from pyg_dnx.teacher.probes import ALL_BLANKED, NUM_FIXED_MASKS, Bits, masks_of_parts
from pyg_dnx.teacher.teacher import Teacher

SHARE_OF_MEMORY = 0.25  # that all outputs may take; above, only the answers along the targets are kept
NUM_OUTPUTS_FOR_PRIOR = 16
NUM_PROBES_FOR_PRIOR = 2 * MAX_PAIRS_TO_CHOOSE


class Probes(NamedTuple):
    r"""What the model answered, kept with the distilled model."""

    masks: Bits  # the first of each pair
    outputs: Tensor | list[Tensor]  # [P, O, C], or P times [O, C] in files; or the answers alone, [P, O, 1]
    answer_direction: Tensor | None  # of these answers, [O, C]
    sampled: Tensor  # [P', n, C], the first of those where the prior is chosen
    traits: Tensor | None  # [N, T], if masks are of nodes
    only: Tensor | None = None  # the outputs that `outputs` are about, ascending, if not all

    def at(self, outputs: Tensor) -> Tensor:
        r"""What is kept of some outputs, [P, B, C]."""
        outputs = outputs if self.only is None else torch.searchsorted(self.only, outputs)
        if isinstance(self.outputs, Tensor):
            return self.outputs[:, outputs]
        return torch.stack([step[outputs] for step in self.outputs]).to(self.sampled.dtype)


class Few(NamedTuple):
    r"""What the model answered about few outputs, on copies of their neighbourhoods, and what that cost so far."""

    local: Local
    bits: Bits
    masks: Masks
    answers: dict[int, Tensor]  # [P, C]
    spent: list[float]  # as shares of what it costs to ask the whole graph


@dataclass(frozen=True)
class Probing(Rule):
    r"""At each explained output, a linear function of which nodes the model sees, fitted to its answers to probes.

    Args:
        goal: How outputs get their directions.
        num_probes: The number of random masks.
        answer: What is explained of a class, ``'probability'`` or ``'logit'``.
        shortlist: How many of the highest scores are ranked anew by the model's response to removing each.
        how: What masks take away.
        also: What else the model is asked without, of :data:`~pyg_dnx.scores.parts.KINDS`.
    """

    facts = tuple(Trust.__dataclass_fields__)
    goal: Goal
    num_probes: int
    answer: str
    shortlist: int = 0
    how: str = 'features'
    also: tuple[str, ...] = ()

    def prepare(self, teacher: Teacher, graph: Graph, distilled: Distilled, question: Question, run: Run) -> Probed:
        probes, question = self._probes(teacher, graph, distilled, question, run), question.distinct()
        outputs, (direction, answers) = question.outputs, self._answers(probes, distilled, question)
        distance = direction.double().norm(dim=1).reciprocal()
        distance = distance.masked_fill(distance.isinf(), 0.0) * (0.5 if self._takes_logarithms else 1.0)
        prior = self._prior(probes, distilled, run)
        traits_used = probes.traits if prior.likeness > 0.0 else None
        parts = (probes.masks, outputs, direction, answers.T.double(), prior, distance, distilled.unit, traits_used)
        readout = distilled.decomposition.readout
        most = int(SHARE_OF_MEMORY * run.bytes(graph.x.device)) // (self.num_probes + NUM_FIXED_MASKS)
        also = [kind for kind in self.also if can_be_asked(kind, teacher, graph, most)]
        each = [replace(self, how=kind, also=()) for kind in also]
        asked = {one.how: one._asked(teacher, graph, distilled, question, run) for one in each}
        moved = None if readout.parts is None else self._moved(probes, distilled, outputs)
        probed = Probed(*parts, by_halves=readout.ends == 2, parts=readout.parts, asked=asked, moved=moved)
        return probed if self.shortlist == 0 else self._reranked(probed, teacher, graph, distilled, run)

    def effects(
        self, decomposition: Decomposition, state: Any, question: Question, rows: Rows | None = None, run: Run = DEFAULT
    ) -> Fitted:
        outputs, whole = question.outputs, rows is None
        if rows is None:
            parts = [decomposition.rows(outputs[chunk]) for chunk in decomposition.chunks(outputs, 8 * run.entries)]
            rows = parts[0] if len(parts) == 1 else Rows(*map(torch.cat, zip(*parts, strict=True)))
        effect, trust = state.fit(decomposition, outputs, rows, run)
        also = {}
        if whole:
            also = {kind: one.scores(decomposition, outputs, run) for kind, one in state.asked.items()}
        place = torch.searchsorted(state.outputs, outputs)
        direction = state.answer_direction[place]
        if question.direction is not None:
            direction = question.direction
        extra = {} if state.moved is None else {'probes_moved': state.moved[place]}
        return Fitted(rows._replace(value=rows.size), effect, direction, trust, extra, also=also)

    def _moved(self, probes: Probes, distilled: Distilled, outputs: Tensor) -> Tensor | None:
        r"""The share of probes that change the prediction of some outputs, [n], if whole outputs are kept."""
        if probes.answer_direction is not None:
            return None
        found, regression = probes.at(outputs)[NUM_FIXED_MASKS:], self.goal.config.mode == ModelMode.regression
        return share_moved(distilled.outputs[outputs].to(found.dtype), found, regression)

    def change(self, distilled: Distilled, state: Any, question: Question, trust: Trust, kept: Tensor) -> Change:
        distance = state.distance[torch.searchsorted(state.outputs, question.outputs)]
        known = trust.to_dict()
        moved = (known['probe_evidence'] - kept[:, 0]).abs() * distance.to(kept.dtype)
        return Change(moved, moved, known['probe_bias'], moved + trust.distillation_error)

    def to_dict(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in ('num_probes', 'answer', 'shortlist', 'how')}
        options['also'] = list(self.also)
        return {'name': 'Probing', **options, 'by_target': self.goal.by_target, 'contrast': self.goal.contrast}

    @property
    def _takes_logarithms(self) -> bool:
        return self.answer == 'logit' and self.goal.config.mode != ModelMode.regression

    def _readable(self, outputs: Tensor) -> Tensor:
        return outputs.clamp(min=torch.finfo(torch.float32).tiny).log() if self._takes_logarithms else outputs

    def _answer_direction(self, distilled: Distilled, direction: Tensor, blank: Tensor) -> Tensor:
        r"""The directions along which outputs are answers. For regression, they start at those for blank features."""
        if self.goal.config.mode != ModelMode.regression:
            return direction
        return F.normalize(direction + distilled.surrogate.bias - blank, dim=1)

    def _answers(self, probes: Probes, distilled: Distilled, question: Question) -> tuple[Tensor, Tensor]:
        r"""The directions [n, C] along which a question's outputs are answers, and these, [P, n]."""
        outputs, direction = question.outputs, question.direction
        if direction is None:
            raise ValueError("'question' must have a direction to be probed (got none): take its target's")
        found = probes.at(outputs)
        if probes.answer_direction is not None:
            return probes.answer_direction[outputs], found[:, :, 0]
        direction = self._answer_direction(distilled, direction, found[ALL_BLANKED])
        return direction, (self._readable(found) * direction).sum(dim=2)

    def _asked(self, teacher: Teacher, graph: Graph, distilled: Distilled, question: Question, run: Run) -> Asked:
        r"""The answers where edges or features are taken away."""
        probes = self._probes(teacher, graph, distilled, question, run)
        direction, answers = self._answers(probes, distilled, question)
        readout = distilled.decomposition.readout

        def choose() -> Prior:
            sample = self._sample_of(probes, distilled)
            return Asked(self.how, sample, graph).choose_prior(distilled.decomposition, run)

        prior = Prior('flat', 0.0, None)
        if readout.parts is None:
            prior = distilled.memo.get(('prior', self.how, self.num_probes, self._takes_logarithms), choose)
        parts = (probes.masks, question.outputs, direction, answers.T.double(), prior)
        still = torch.ones_like(answers[0], dtype=torch.float64)
        return Asked(self.how, Probed(*parts, still, distilled.unit, by_halves=readout.ends == 2), graph)

    def _few(self, teacher: Teacher, graph: Graph, distilled: Distilled, outputs: Tensor, run: Run) -> Probes | None:
        r"""The answers to probes about some outputs on copies; ``None`` where the graph itself costs less, or did.

        As it answers about all outputs, it is asked as soon as copies have cost as much.
        """
        memo, outputs, key = distilled.memo, outputs.unique(), (self.how, self.num_probes)
        are_few = 2 * outputs.numel() <= distilled.outputs.size(0)
        if not are_few or teacher.model is None or teacher.knows(self.how) or ('probes', *key) in memo.known:
            return None
        parts, dtype = distilled.decomposition.readout.parts, distilled.decomposition.evidence.dtype

        def create() -> Few:
            bits = Bits.of(self._masks(graph, parts)[0][::2].to(graph.x.device))
            kind, local = KINDS.get(self.how), Local(teacher, graph, distilled.outputs, teacher.reach)
            masks = Masks(bits.kept, how=self.how) if kind is None else kind.on_copies(graph, bits)
            return Few(local, bits, masks, {}, [0.0])

        few = memo.get(('few', *key), create)

        def ask(outputs: Tensor, count: int) -> Tensor:  # [count, n, C]
            size, number = outputs.numel(), torch.arange(ALL_BLANKED, count, device=outputs.device)
            asked, numbers = outputs.repeat(number.numel()), number.repeat_interleave(size)
            found = few.local.at(asked, few.masks, numbers, run, 'Probing')
            return torch.cat([distilled.outputs[outputs].to(found), found]).unflatten(0, (count, size)).to(dtype)

        new = outputs.new_tensor([output for output in outputs.tolist() if output not in few.answers])
        if new.numel() > 0:
            few.spent[0] += few.local.share(new, few.masks)
            if few.spent[0] > 1.0:
                few.answers.clear()
                return None
            few.answers.update(zip(new.tolist(), ask(new, self.num_probes + NUM_FIXED_MASKS).unbind(1), strict=True))
        answers = torch.stack([few.answers[output] for output in outputs.tolist()], dim=1)
        sampled = answers[:, :0]
        if parts is None:
            size = min(NUM_PROBES_FOR_PRIOR, self.num_probes + NUM_FIXED_MASKS)
            sampled = memo.get(('sampled', *key), lambda: ask(_sample(distilled.outputs), size))
        return Probes(few.bits, answers, None, sampled, self._traits(graph, distilled.decomposition), outputs)

    def _probes(self, teacher: Teacher, graph: Graph, distilled: Distilled, question: Question, run: Run) -> Probes:
        r"""The answers to probes, from the distilled model's memo if they are there."""
        key: tuple[Any, ...] = ('probes', self.how, self.num_probes)
        size = (self.num_probes + NUM_FIXED_MASKS) * distilled.decomposition.evidence.nbytes
        with distilled.memo.lock:
            if run.tables is None and (few := self._few(teacher, graph, distilled, question.outputs, run)) is not None:
                return few
            if run.tables is not None:
                return distilled.memo.get(key, lambda: self._ask_together(teacher, graph, distilled, run))
            if key in distilled.memo.known or size <= SHARE_OF_MEMORY * run.bytes(graph.x.device):
                return distilled.memo.get(key, lambda: self._ask(teacher, graph, distilled, None, run))
            run.need(size // distilled.outputs.size(1), f'the answers to {self.num_probes:,} probes')
            target = question.target
            content = b'' if target is None else target.detach().cpu().double().numpy().tobytes()
            key = (
                'answers',
                self.how,
                self.num_probes,
                self.answer,
                self.goal.contrast,
                hashlib.sha1(content).digest(),
            )
            if key not in distilled.memo.known:  # one such set of answers is kept
                for other in [other for other in distilled.memo.known if other[:2] == key[:2]]:
                    del distilled.memo.known[other]
            everywhere = self.goal.everywhere(distilled, target)
            return distilled.memo.get(key, lambda: self._ask(teacher, graph, distilled, everywhere, run))

    def _ask(self, teacher: Teacher, graph: Graph, distilled: Distilled, direction: Tensor | None, run: Run) -> Probes:
        r"""Asks the model, and keeps its outputs, or only its answers along a ``direction`` [O, C]."""
        outputs, evidence = distilled.outputs, distilled.decomposition.evidence
        masks, asked, how = self._masks(graph, distilled.decomposition.readout.parts)
        width = outputs.size(1) if direction is None else 1
        kept = evidence.new_empty(masks.size(0), outputs.size(0), width)
        quiet = replace(run, progress=False)
        if direction is None and teacher.level == 'graph':  # whose copies are asked about together
            steps: Iterator[Tensor] = chain([outputs], teacher.probe(graph, asked, run, ALL_BLANKED, how, outputs))
        else:
            blank = next(teacher.probe(graph, asked[:NUM_FIXED_MASKS], quiet, ALL_BLANKED, how))
            direction = None if direction is None else self._answer_direction(distilled, direction, blank)
            steps = chain([outputs, blank], teacher.probe(graph, asked, run, how=how))
        sample, sampled = _sample(outputs), list[Tensor]()
        for place, step in zip(kept, steps, strict=True):
            place.copy_(step if direction is None else (self._readable(step) * direction).sum(dim=1, keepdim=True))
            if len(sampled) < NUM_PROBES_FOR_PRIOR:
                sampled.append(step[sample].to(kept.dtype))
        bits = Bits.of(masks[::2].to(graph.x.device))
        return Probes(bits, kept, direction, torch.stack(sampled), self._traits(graph, distilled.decomposition))

    def _masks(self, graph: Graph, parts: Tensor | None) -> tuple[Tensor, Tensor, str]:
        r"""The masks of what is taken away, these as the teacher takes them, and how it takes that away."""
        if (kind := KINDS.get(self.how)) is None:
            masks = masks_of_parts(graph.num_nodes, self.num_probes, parts)
            return masks, masks, self.how
        masks = masks_of_parts(kind.count(graph), self.num_probes, None if parts is None else kind.owner(graph, parts))
        return masks, kind.asked(graph, masks), kind.how

    def _traits(self, graph: Graph, decomposition: Decomposition) -> Tensor | None:
        return None if self.how in KINDS else traits(graph.x, decomposition)

    def _ask_together(self, teacher: Teacher, graph: Graph, distilled: Distilled, run: Run) -> Probes:
        r"""The same by several processes, each of which asks about some masks: the answers stay in files."""
        decomposition, outputs = distilled.decomposition, distilled.outputs
        masks, asked, how = self._masks(graph, decomposition.readout.parts)
        blank = list(teacher.probe(graph, asked[:NUM_FIXED_MASKS], run, ALL_BLANKED, how))
        steps = [outputs, *blank, *teacher.probe(graph, asked, run, how=how)]
        sample = _sample(outputs)
        sampled = torch.stack([step[sample].to(decomposition.evidence.dtype) for step in steps[:NUM_PROBES_FOR_PRIOR]])
        bits = Bits.of(masks[::2].to(graph.x.device))
        return Probes(bits, steps, None, sampled, self._traits(graph, decomposition))

    def _prior(self, probes: Probes, distilled: Distilled, run: Run) -> Prior:
        r"""The prior that suits the model: chosen for its own answers at some outputs, whatever is explained.

        Outputs that share no nodes have nothing else in common, either: the noise of each is its own.
        """
        if distilled.decomposition.readout.parts is not None:
            return Prior('flat', 0.0, None)

        def choose() -> Prior:
            return self._sample_of(probes, distilled).choose_prior(distilled.decomposition, run)

        return distilled.memo.get(('prior', self.num_probes, self._takes_logarithms), choose)

    def _sample_of(self, probes: Probes, distilled: Distilled) -> Probed:
        r"""The model's own answers at some outputs, by which priors are chosen."""
        outputs, goal = _sample(distilled.outputs), replace(self.goal, contrast=None)
        direction = goal.direction(distilled, outputs, goal.predictions(distilled, outputs))
        direction = self._answer_direction(distilled, direction, probes.sampled[ALL_BLANKED])
        answers = (self._readable(probes.sampled) * direction).sum(dim=2).T.double()
        distance, compared = torch.ones_like(answers[:, 0]), probes.traits
        return Probed(probes.masks, outputs, direction, answers, Prior(), distance, distilled.unit, compared)

    def _reranked(self, probed: Probed, teacher: Teacher, graph: Graph, distilled: Distilled, run: Run) -> Probed:
        r"""Re-ranks the highest scores by the model's responses: without each node, and with it alone."""
        if teacher.model is None:
            raise TypeError(
                "'model' must be a module for a 'shortlist', on which it is asked (got None): pass it, or no shortlist"
            )
        question = Question(probed.outputs, probed.answer_direction)
        size = min(self.shortlist, graph.num_nodes)
        listed, scores = top_scores(distilled.decomposition, question, replace(self, shortlist=0), probed, size, run)
        # Where Ã^L is zero, the score can be no other: these are taken off the list.
        listed = listed.masked_fill(scores == 0.0, -1)
        scores = scores.gather(1, (listed < 0).int().argsort(dim=1, stable=True))
        row, place = (listed >= 0).nonzero(as_tuple=True)
        nodes, others = probed.outputs[row], listed[row, place]

        def mask(ids: Tensor, questions: Tensor) -> Tensor:
            is_other = ids == others[questions % others.numel()]
            return torch.where(questions < others.numel(), ~is_other, is_other)[:, None]

        local = Local(teacher, graph, distilled.outputs, teacher.reach)
        found = local.at(torch.cat([nodes, nodes]), Masks(mask, how=self.how), run=run, label='Checking')
        found = found.unflatten(0, (2, nodes.numel()))
        without, alone = (self._readable(found) * probed.answer_direction[row]).sum(dim=2)
        responses = torch.full_like(scores, -torch.inf, dtype=torch.float64)
        first, blank = probed.answers[row, 0], probed.answers[row, ALL_BLANKED]
        responses[row, place] = (first - without) + (alone - blank)
        order = responses.argsort(dim=1, descending=True, stable=True)
        return replace(probed, listed=listed.gather(1, order), listed_score=scores)


def _sample(outputs: Tensor) -> Tensor:
    r"""Some of the outputs [O, ...], ascending."""
    generator = torch.Generator(device='cpu').manual_seed(0)
    drawn = torch.randperm(outputs.size(0), generator=generator, device='cpu')[:NUM_OUTPUTS_FOR_PRIOR]
    return drawn.sort().values.to(outputs.device)


def rule_from_dict(content: dict[str, Any], config: ModelConfig) -> Rule:
    r"""The rule with a name and options, for a model that returns what ``config`` says."""
    options = {**content}
    name = options.pop('name')
    if name == 'Probing':
        goal = Goal(config, options.pop('by_target', False), True, options.pop('contrast', None))
        return Probing(goal, also=tuple(options.pop('also', ())), **options)
    return {'Projection': Projection, 'Mixture': Mixture}[name](**options)


def state_from_dict(content: dict[str, Any], num_nodes: int) -> Probed:
    r"""What the rule had asked before, on a graph of so many nodes, but for what needs the graph."""
    asked = {kind: Asked.from_dict(kind, one) for kind, one in content.get('asked', {}).items()}
    return replace(Probed.from_dict(content, num_nodes), asked=asked)
