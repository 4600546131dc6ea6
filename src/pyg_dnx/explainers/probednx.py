r"""ProbeDnX: FastDnX's question, put to the model itself, with some of its neighbours blanked."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.explain.config import ExplanationType, ModelMode

from pyg_dnx import options as checks
from pyg_dnx.distill.cache import SurrogateCache, shared_cache
from pyg_dnx.distill.distill import Distilled
from pyg_dnx.explainers.base import DistillAndExplain, Inputs
from pyg_dnx.results.certificate import DEFAULT_DOUBT
from pyg_dnx.results.explanation import warn_about_missing_probes
from pyg_dnx.run import budget
from pyg_dnx.scores.batch import score_nodes
from pyg_dnx.scores.probe_rule import Prior, Probing, traits
from pyg_dnx.scores.rules import Projection, Rule, toward_target
from pyg_dnx.teacher.local import Pairs
from pyg_dnx.teacher.probes import BLANK, NUM_PROBES, UNDRAWN, Bits, ask, probe_masks
from pyg_dnx.teacher.teacher import receptive_field

SHARE_OF_MEMORY = 0.25  # that all outputs may take; above, only those along the targets are kept
NUM_NODES_FOR_PRIOR = 64


class Probes(NamedTuple):
    masks: Bits  # the first of each pair
    outputs: Tensor  # [P, N, C]; or the answers alone, [P, N, 1]
    along: Tensor | None  # the directions of these answers, [N, C]
    sampled: Tensor  # [P, n, C], the outputs at the nodes where the prior is chosen
    traits: Tensor  # [N, T]


class ProbeDnXAlgorithm(DistillAndExplain):
    r"""ProbeDnX, which explains the model where FastDnX explains its surrogate, and still only evaluates it.

    The model is evaluated once for each of some random masks that blank the features of nodes, the same for all
    explained nodes. At each of these, its answers are fitted by a linear function of which neighbours it saw
    (:mod:`~pyg_dnx.scores.local_fit`). What it expects before is that effects have sizes like
    :math:`\tilde{A}^L_{ij}`, that neighbours with like features have effects in common, and that the surrogate's
    effects are likely (:class:`~pyg_dnx.scores.probe_rule.Probing`). The effects found are the scores.
    ``probe_r2``, the R² of the local fit, each pair of probes predicted from the others, says how far to trust
    them. Several nodes at once are explained jointly, by the sum of their scores.

    Scores of nodes, and of edges, go by the local fit; those of features share a node's score in proportion to the
    surrogate's, and are no effects of their own. Without probes, scores are FastDnX's, with a warning.

    Args:
        num_hops, ridge, contrast, edge_score, mask, cache, max_memory, doubt: See :class:`FastDnXAlgorithm`.
        num_probes (int): The number of random masks, an even one. Besides what distillation takes, the model is
            evaluated so many times, and once with all nodes blanked. (default: ``1024``)
        answer (str): What is explained of a class: its ``'probability'``, or its ``'logit'``, the logarithm of it less
            the mean over classes. With ``contrast``, the difference between the two classes. For regression it is the
            output, along the way from the model's answer to blank features. (default: ``'probability'``)
        shortlist (int): Deals so many of the highest scores out anew, in the order of the model's own responses to
            these nodes: how much its answer falls without one, and rises with it alone. This takes two evaluations for
            each, on copies of the neighbourhood where the model allows that. (default: ``0``)
        distillation, num_masks: See :class:`FastDnXAlgorithm`; the surrogate says which effects are to be expected. It
            is distilled under at most ``num_probes`` masks. (default: ``'masked'`` and ``8``)
    """

    _options = (
        *('num_hops', 'ridge', 'contrast', 'edge_score', 'mask', 'max_memory', 'doubt', 'distillation', 'num_masks'),
        *('num_probes', 'answer', 'shortlist'),
    )

    def __init__(
        self,
        num_hops: int | str | None = None,
        ridge: float | None = None,
        contrast: int | str | None = None,
        edge_score: str = 'flow',
        mask: str = 'rank',
        cache: SurrogateCache | None = shared_cache,
        max_memory: int | None = None,
        doubt: float = DEFAULT_DOUBT,
        *,
        num_probes: int = NUM_PROBES,
        answer: str = 'probability',
        shortlist: int = 0,
        distillation: str = 'masked',
        num_masks: int = 8,
    ) -> None:
        options = (num_hops, ridge, 'target', contrast, edge_score, mask, cache, max_memory, doubt)
        super().__init__(*options, distillation=distillation, num_masks=num_masks)
        self.num_probes = checks.pairs('num_probes', num_probes)
        self.answer = checks.choice('answer', answer, ('probability', 'logit'))
        self.shortlist = checks.count('shortlist', shortlist, least=0)

    @property
    def _num_masks(self) -> int:
        return min(self.num_probes, super()._num_masks)

    @property
    def _num_probes(self) -> int:
        return self.num_probes

    def _rule(
        self, inputs: Inputs, distilled: Distilled, nodes: Tensor, toward: Tensor | None, target: Tensor | None
    ) -> Rule:
        if self.num_probes == 0 or (inputs.model is None and inputs.probe_outputs is None):
            warn_about_missing_probes()
            return Projection()
        probes, toward = self._probes(inputs, distilled, target), cast(Tensor, toward)
        nodes, place = torch.unique(nodes, return_inverse=True)
        toward = toward.new_empty(nodes.numel(), toward.size(1)).index_copy_(0, place, toward)
        rule = self._probing(probes, distilled, nodes, toward, self._prior(probes, distilled))
        return rule if self.shortlist == 0 else self._shortlisted(rule, inputs, distilled)

    def _probing(self, probes: Probes, distilled: Distilled, nodes: Tensor, toward: Tensor, prior: Prior) -> Probing:
        r"""The rule for ``nodes``, ascending, whose targets are in the directions ``toward``."""
        if probes.along is not None:
            toward, answers = probes.along[nodes], probes.outputs[:, nodes, 0]
        else:
            toward = self._along(distilled, toward, probes.outputs[BLANK, nodes])
            answers = (self._readable(probes.outputs[:, nodes]) * toward).sum(dim=2)
        distance = toward.double().norm(dim=1).reciprocal()
        distance = distance.masked_fill(distance.isinf(), 0.0) * (0.5 if self._takes_logarithms else 1.0)
        told = probes.traits if prior.likeness > 0.0 else None
        return Probing(probes.masks, nodes, toward, answers.T.double(), prior, distance, distilled.unit, told)

    def _shortlisted(self, rule: Probing, inputs: Inputs, distilled: Distilled) -> Probing:
        r"""The same rule, with the highest scores given anew in the order of the model's own responses."""
        if inputs.model is None:
            raise TypeError(
                "'model' must be a module for a 'shortlist', on which it is asked (got None): pass it, or no shortlist"
            )
        options = (rule, min(self.shortlist, inputs.x.size(0)), self.max_memory, inputs.progress)
        (listed, scores, _), _ = score_nodes(distilled.decomposition, rule.nodes, rule.along, *options)
        # Where Ã^L is zero, the score can be no other: these are taken off the list.
        listed = listed.masked_fill(scores == 0.0, -1)
        scores = scores.gather(1, (listed < 0).int().argsort(dim=1, stable=True))
        row, place = (listed >= 0).nonzero(as_tuple=True)
        graph = (inputs.x, inputs.edge_index, inputs.kwargs)
        reach, flow = receptive_field(inputs.model), self._flow(inputs.model)
        pairs = Pairs(inputs.model, *graph, self.model_config, distilled.outputs, reach, flow)
        outputs = pairs.answers(rule.nodes[row], listed[row, place], inputs.progress)
        without, alone = (self._readable(outputs) * rule.along[row]).sum(dim=2)
        responses = torch.full_like(scores, -torch.inf, dtype=torch.float64)
        responses[row, place] = (rule.answers[row, 0] - without) + (alone - rule.answers[row, BLANK])
        order = responses.argsort(dim=1, descending=True, stable=True)
        return replace(rule, listed=listed.gather(1, order), listed_score=scores)

    @property
    def _takes_logarithms(self) -> bool:
        return self.answer == 'logit' and self.model_config.mode != ModelMode.regression

    def _readable(self, outputs: Tensor) -> Tensor:
        return outputs.clamp(min=torch.finfo(torch.float32).tiny).log() if self._takes_logarithms else outputs

    def _along(self, distilled: Distilled, toward: Tensor, blank: Tensor) -> Tensor:
        r"""The directions along which outputs are answers. For regression, they start at those for blank features."""
        if self.model_config.mode != ModelMode.regression:
            return toward
        return F.normalize(toward + distilled.surrogate.bias - blank, dim=1)

    def _probes(self, inputs: Inputs, distilled: Distilled, target: Tensor | None) -> Probes:
        r"""The answers to probes, from the cache if they are there."""
        key: tuple[Any, ...] = (self.num_probes,)
        size = (self.num_probes + UNDRAWN) * distilled.decomposition.evidence.nbytes
        is_scarce = key not in distilled.probes and size > SHARE_OF_MEMORY * budget(self.max_memory, inputs.x.device)
        if is_scarce:
            by_target = self.explainer_config.explanation_type == ExplanationType.phenomenon and target is not None
            content = cast(Tensor, target).detach().cpu().double().numpy().tobytes() if by_target else b''
            key = (*key, self.answer, self.contrast, hashlib.sha1(content).digest())
        with distilled.probing:  # one thread asks, and the others wait for it
            if key not in distilled.probes:
                toward = self._toward_everywhere(distilled, target) if is_scarce else None
                found = self._ask(inputs, distilled, toward)
                if is_scarce:  # one such set of answers is kept
                    distilled.probes = {k: v for k, v in distilled.probes.items() if getattr(v, 'along', None) is None}
                distilled.probes[key] = found
            return distilled.probes[key]

    def _toward_everywhere(self, distilled: Distilled, target: Tensor | None) -> Tensor:
        r"""The directions of all nodes' targets, [N, C]; anything where there is none."""
        nodes, goal = torch.arange(distilled.outputs.size(0), device=distilled.outputs.device), distilled.outputs
        if self.explainer_config.explanation_type == ExplanationType.phenomenon and target is not None:
            goal = target.detach().to(nodes.device).reshape(nodes.numel(), -1)
        elif self.model_config.mode != ModelMode.regression:
            goal = goal.argmax(dim=1)
        if self.model_config.mode != ModelMode.regression:
            goal = goal.reshape(-1).long().clamp(0, distilled.outputs.size(1) - 1)
        return toward_target(distilled, nodes, goal, self.contrast)

    def _ask(self, inputs: Inputs, distilled: Distilled, toward: Tensor | None) -> Probes:
        r"""Asks the model, and keeps its outputs, or only what they are along ``toward`` [N, C]."""
        x, config = inputs.x, self.model_config
        masks = probe_masks(x.size(0), self.num_probes)
        width = distilled.outputs.size(1) if toward is None else 1
        kept = distilled.decomposition.evidence.new_empty(masks.size(0), x.size(0), width)
        graph = (x, inputs.edge_index, inputs.kwargs)
        blank, *_ = ask(inputs.model, *graph, config, masks[:UNDRAWN], BLANK, inputs.probe_outputs)
        rest = ask(inputs.model, *graph, config, masks, UNDRAWN, inputs.probe_outputs, inputs.progress)
        along = None if toward is None else self._along(distilled, toward, blank)
        sample, sampled = _sample(x), []
        for place, outputs in zip(kept, chain([distilled.outputs, blank], rest), strict=True):
            place.copy_(outputs if along is None else (self._readable(outputs) * along).sum(dim=1, keepdim=True))
            sampled.append(outputs[sample].to(kept.dtype))
        bits = Bits.of(masks[::2].to(x.device))
        return Probes(bits, kept, along, torch.stack(sampled), traits(x, distilled.decomposition))

    def _prior(self, probes: Probes, distilled: Distilled) -> Prior:
        r"""The prior that suits the model: chosen for its own answers at some nodes, whatever is explained."""
        key = ('prior', self.num_probes, self._takes_logarithms)
        if key not in distilled.probes:
            nodes = _sample(distilled.outputs)
            goal = distilled.outputs[nodes]
            goal = goal if self.model_config.mode == ModelMode.regression else goal.argmax(dim=1)
            toward = self._along(distilled, toward_target(distilled, nodes, goal, None), probes.sampled[BLANK])
            answers = (self._readable(probes.sampled) * toward).sum(dim=2).T.double()
            distance = torch.ones_like(answers[:, 0])
            rule = Probing(probes.masks, nodes, toward, answers, Prior(), distance, distilled.unit, probes.traits)
            distilled.probes[key] = rule.choose_prior(distilled.decomposition)
        return distilled.probes[key]


def _sample(values: Tensor) -> Tensor:
    r"""Some of the nodes of ``values`` [N, ...], ascending."""
    generator = torch.Generator(device='cpu').manual_seed(0)
    drawn = torch.randperm(values.size(0), generator=generator, device='cpu')[:NUM_NODES_FOR_PRIOR]
    return drawn.sort().values.to(values.device)
