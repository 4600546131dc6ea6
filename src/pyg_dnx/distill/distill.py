r"""Distils a model into a linear surrogate: ask once, solve a convex problem, report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain.config import ModelMode

from pyg_dnx.distill.decomposition import Decomposition, decompose
from pyg_dnx.distill.solvers import (
    PRECISE_MAX_SIZE,
    Fit,
    fit_classifier,
    fit_regressor,
    fit_stacked,
    kl_divergence,
)
from pyg_dnx.distill.surrogate import Report, Surrogate
from pyg_dnx.graph.features import Features, propagate
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.operator import Operator
from pyg_dnx.run import ENTRIES, Run
from pyg_dnx.teacher.probes import NUM_FIXED_MASKS, probe_masks
from pyg_dnx.teacher.teacher import Answers, Teacher

DEFAULT_RIDGE = 1e-5
HELD_OUT_SHARE = 0.2
MAX_NODES_TO_CHOOSE_HOPS = 2**16
MAX_HOPS_OF_UNKNOWN_MODEL = 3
MAX_TRUST_SIZE = 2**22  # numbers; up to here, all outputs are judged at once, and single explanations cost less


@dataclass(frozen=True)
class Recipe:
    r"""How to distil: all options that the surrogate depends on."""

    num_hops: int | str | None = None
    ridge: float = DEFAULT_RIDGE
    filter: str = 'sgc'
    num_masks: int = 0  # under which the model is asked, too; with none, the distillation is the paper's

    def candidates(self, reach: int | None) -> tuple[int, ...]:
        r"""The candidates for the number of hops, for a model that looks ``reach`` far; held-out nodes decide."""
        if isinstance(self.num_hops, int):
            return (self.num_hops,)
        if self.num_hops is None and reach is not None:
            return (reach,)
        return tuple(range((MAX_HOPS_OF_UNKNOWN_MODEL if reach is None else reach) + 1))


@dataclass(frozen=True)
class Trust:
    r"""What is known, at each explained output [B], about what stands for the model there.

    Attributes:
        surrogate_agreement: Whether it predicts the model's class; for regression, whether it is closer to the model's
            output than these are spread over the graph (one standard deviation).
        distillation_error: The Euclidean distance of its class probabilities, or outputs, from the model's.
        bias_decides: Whether its class comes from the bias: the evidence of nodes, which is all that scores share out,
            points to another class.
        probe_r2: For ProbeDnX, R² of the local fit, each pair of probes predicted from the others.
        probe_evidence: For ProbeDnX, the sum of all effects.
        probe_bias: For ProbeDnX, the answer with all features blanked.
    """

    surrogate_agreement: Tensor
    distillation_error: Tensor
    bias_decides: Tensor
    probe_r2: Tensor | None = None
    probe_evidence: Tensor | None = None
    probe_bias: Tensor | None = None

    def to_dict(self) -> dict[str, Tensor]:
        r"""What is known, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def at(self, places: Any) -> Trust:
        r"""The same at some of the outputs."""
        return Trust(**{name: value[places] for name, value in self.to_dict().items()})

    @staticmethod
    def cat(parts: list[Trust]) -> Trust:
        r"""All parts, one after the other."""
        every = [part.to_dict() for part in parts]
        return Trust(**{name: torch.cat([part[name] for part in every]) for name in every[0]})


class Memo:
    r"""What is found once and kept as long as a distilled model is. Copies and pickles of it start empty."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.known: dict[Any, Any] = {}

    def get(self, key: Any, create: Callable[[], Any]) -> Any:
        r"""What is known under ``key``: one thread finds it, and the others wait."""
        with self.lock:
            if key not in self.known:
                self.known[key] = create()
            return self.known[key]

    def __reduce__(self) -> tuple[type[Memo], tuple[()]]:
        return Memo, ()


@dataclass(frozen=True, eq=False)
class Distilled:
    r"""A distilled model on the graph it was distilled on.

    Attributes:
        decomposition: The surrogate on this graph.
        answers: What the model says of it; in float64 unless large.
        memo: What else was asked of the model.
    """

    decomposition: Decomposition
    answers: Answers
    memo: Memo = field(default_factory=Memo)

    @property
    def surrogate(self) -> Surrogate:
        return self.decomposition.surrogate

    @property
    def outputs(self) -> Tensor:
        r"""The model's class probabilities or regression outputs, [O, C]."""
        return self.answers.values

    @cached_property
    def spread(self) -> float:
        r"""The standard deviation of the model's outputs over the graph."""
        return float(self.outputs.var(dim=0, correction=0).sum().sqrt())

    @property
    def unit(self) -> float:
        r"""What distances between outputs are measured in: 1 for probabilities, else the spread of the outputs."""
        return self.spread if self.surrogate.report.mode == 'regression' else 1.0

    def predicts(self, target: Tensor) -> bool:
        r"""Whether ``target``, which PyG derives from the model as it is now, is the one it had when distilled.

        Rounding that differs from run to run may flip a near tie, hence the tolerance.
        """
        before = self.answers.target
        if target.equal(before):
            return True
        if target.shape != before.shape:
            return False
        if target.is_floating_point():
            return torch.allclose(target, before, rtol=1e-3, atol=1e-3 * self.spread + 1e-6)
        return float((target != before).double().mean()) <= 1e-3

    def trust(self, outputs: Tensor) -> Trust:
        r"""What is known about the surrogate at some of the outputs [B]."""
        if self.outputs.numel() > MAX_TRUST_SIZE:
            return self._judge(outputs)
        every = self._everywhere
        parts = every.surrogate_agreement, every.distillation_error, every.bias_decides
        return Trust(*(values.index_select(0, outputs) for values in parts))

    @cached_property
    def _everywhere(self) -> Trust:
        return self._judge(slice(None))

    def _judge(self, places: Tensor | slice) -> Trust:
        evidence, outputs = self.decomposition.evidence[places], self.outputs[places].double()
        logits = (evidence + self.surrogate.bias).double()
        error = (self.surrogate.outputs(logits) - outputs).norm(dim=1)
        if self.surrogate.report.mode == 'regression':
            agreement, by_bias = error <= self.spread + 1e-6, torch.zeros_like(error, dtype=torch.bool)
        else:
            agreement = logits.argmax(dim=1) == outputs.argmax(dim=1)
            by_bias = logits.argmax(dim=1) != evidence.argmax(dim=1)
        return Trust(agreement, error.to(evidence.dtype), by_bias)


def distill(teacher: Teacher, graph: Graph, recipe: Recipe, run: Run) -> Distilled:
    r"""Distils a model with one evaluation of it, and one for each mask, or with none if its outputs are given."""
    start = time.perf_counter()
    x, dtype = graph.x, torch.promote_types(graph.x.dtype, torch.float32)
    operator, max_bytes = graph.operator(teacher.flow, dtype), run.bytes(x.device)
    precise = torch.float64 if (1 + recipe.num_masks) * x.numel() <= PRECISE_MAX_SIZE else dtype
    answers = teacher.outputs(graph, precise, run.entries)
    targets, regression = answers.values, teacher.config.mode == ModelMode.regression

    hops, held_out = recipe.candidates(teacher.reach), None
    num_hops = hops[0]
    if len(hops) > 1:
        held_out = _held_out_loss(operator, x, targets, hops, recipe.ridge, regression, max_bytes)
        rounding = 1e-9 * float(torch.linalg.vector_norm(targets)) ** 2 / x.size(0)
        best = min(held_out.values()) + rounding
        num_hops = next(hops for hops, loss in held_out.items() if not loss > best)  # of ties, the fewest

    features = propagate(operator, x.detach(), num_hops, precise, max_bytes)
    if recipe.num_masks > 0:
        masks = probe_masks(x.size(0), recipe.num_masks)
        masked = (
            (propagate(operator, x.detach() * mask.to(x.device)[:, None], num_hops, precise, max_bytes), answer)
            for mask, answer in zip(masks[NUM_FIXED_MASKS:], teacher.probe(graph, masks, run), strict=True)
        )
        shift = 0.0 if regression else 1.0 / targets.size(1)
        parts = ((part, answer - shift) for part, answer in chain([(features, targets)], masked))
        fit = fit_stacked(parts, (1 + recipe.num_masks) * x.size(0), recipe.ridge)
    else:
        fit = _fit(features, targets, recipe.ridge, regression, run.progress)
    evidence = torch.cat([chunk @ fit.weight.to(chunk.dtype) for _, chunk in features.chunks()])
    del features
    logits = evidence + fit.bias.to(evidence.dtype)
    loss, agreement = _quality(logits, targets, regression, recipe.num_masks > 0, run.entries)
    report = Report(
        kl=loss,
        agreement=agreement,
        seconds=time.perf_counter() - start,
        solver=fit.solver,
        ridge=recipe.ridge,
        converged=fit.converged,
        num_nodes=x.size(0),
        mode=teacher.config.mode.value,
        held_out=held_out,
        num_masks=recipe.num_masks,
    )
    surrogate = Surrogate(fit.weight.to(dtype), fit.bias.to(dtype), num_hops, report, teacher.flow)
    return Distilled(decompose(surrogate, graph, evidence.to(dtype)), answers)


def _held_out_loss(
    operator: Operator,
    x: Tensor,
    targets: Tensor,
    candidates: tuple[int, ...],
    ridge: float,
    regression: bool,
    max_bytes: int,
) -> dict[int, float]:
    r"""The loss on held-out nodes for each candidate number of hops, ascending."""
    num_nodes = x.size(0)
    generator = torch.Generator(device='cpu').manual_seed(0)
    order = torch.randperm(num_nodes, generator=generator, device='cpu')[:MAX_NODES_TO_CHOOSE_HOPS].to(x.device)
    held = order[: max(1, int(HELD_OUT_SHARE * order.numel()))]
    kept = order[held.numel() :] if num_nodes > 1 else held
    losses: dict[int, float] = {}
    for num_hops in candidates:
        features = propagate(operator, x.detach(), num_hops, targets.dtype, max_bytes)
        fit = _fit(Features.of(features.rows(kept)), targets[kept], ridge, regression)
        logits = features.rows(held).double() @ fit.weight + fit.bias
        losses[num_hops] = _quality(logits, targets[held], regression)[0]
    return losses


def _fit(features: Features, targets: Tensor, ridge: float, regression: bool, progress: bool | None = False) -> Fit:
    if regression:
        return fit_regressor(features, targets, ridge)
    return fit_classifier(features, targets, ridge, progress=progress)


def _quality(
    logits: Tensor, targets: Tensor, regression: bool, masked: bool = False, entries: int = ENTRIES
) -> tuple[float, float]:
    r"""The loss and the agreement of a surrogate's ``logits`` with the model's ``targets``."""
    if regression:
        logits, targets = logits.double(), targets.double()
        error = (logits - targets).square().sum(dim=1).mean()
        variance = (targets - targets.mean(dim=0)).square().sum(dim=1).mean()
        smallest = torch.finfo(targets.dtype).eps * targets.square().sum(dim=1).mean() + torch.finfo(targets.dtype).tiny
        return 0.5 * float(error), 1.0 - float(error / torch.maximum(variance, smallest))
    agreement = (logits.argmax(dim=1) == targets.argmax(dim=1)).double().mean()
    if masked:
        error = (logits.double() + 1.0 / logits.size(1) - targets.double()).square().sum(dim=1).mean()
        return 0.5 * float(error), float(agreement)
    step = max(1, entries // logits.size(1))
    parts = zip(targets.split(step), logits.split(step), strict=True)
    loss = sum(float(kl_divergence(target.double(), logit.double()).sum()) for target, logit in parts)
    return loss / logits.size(0), float(agreement)
