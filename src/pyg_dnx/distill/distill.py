r"""Distils a model into a linear surrogate: ask once, solve a convex problem, report."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, cast
from weakref import WeakSet

import torch
from torch import Tensor
from torch_geometric.explain.config import ModelMode

from pyg_dnx import files
from pyg_dnx.distill.decomposition import Decomposition, decompose
from pyg_dnx.distill.solvers import (
    PRECISE_MAX_SIZE,
    Fit,
    fit_classifier,
    fit_masked,
    fit_regressor,
    fit_stacked,
    kl_divergence,
)
from pyg_dnx.distill.surrogate import Report, Surrogate
from pyg_dnx.graph.design import Design, Sparse
from pyg_dnx.graph.features import Features, as_sparse, propagate, propagate_together
from pyg_dnx.graph.filters import FILTERS
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import readout_of
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.teacher.probes import NUM_FIXED_MASKS, probe_masks
from pyg_dnx.teacher.teacher import Answers, Teacher

DEFAULT_RIDGE = 1e-5
DEFAULT_RIDGE_OF_GRAPHS = 1e-4
HELD_OUT_SHARE = 0.2
MAX_NODES_TO_CHOOSE_HOPS = 2**16
MAX_HOPS_OF_UNKNOWN_MODEL = 3
NEGLIGIBLE = 1e-6  # the share of an output, or of an answer, up to which a sum of scores is rounding
BYTES_PER_OUTPUT = 40  # that distillation holds at once: its classes, what they should be, and how far off they are
BYTES_PER_EDGE = 20  # to put edges in order
MAX_TRUST_SIZE = 2**22  # numbers; up to here, all outputs are judged at once, and single explanations cost less


@dataclass(frozen=True)
class Recipe:
    r"""How to distil: all options that the surrogate depends on."""

    num_hops: int | str | None = None
    ridge: float = DEFAULT_RIDGE
    filter: str = 'sgc'
    num_masks: int = 0  # under which the model is asked, too; with none, the distillation is the paper's
    how: str = 'features'  # what is taken away under a mask
    chooses_ridge: bool = False  # on held-out answers, where a level does that
    given_pairs: bool = False  # of links: whether those given will do, if the model answers about no others

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
            points to another class, or is no more than rounding.
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


_memos: WeakSet[Memo] = WeakSet()


class Memo:
    r"""What is found once and kept as long as a distilled model is. Copies and pickles of it start empty."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.known: dict[Any, Any] = {}
        _memos.add(self)

    def get(self, key: Any, create: Callable[[], Any]) -> Any:
        r"""What is known under ``key``: one thread finds it, and the others wait."""
        with self.lock:
            if key not in self.known:
                self.known[key] = create()
            return self.known[key]

    def __reduce__(self) -> tuple[type[Memo], tuple[()]]:
        return Memo, ()


def _renew_locks() -> None:
    r"""In a new process, where the threads are gone that hold them."""
    for memo in list(_memos):
        memo.lock = threading.RLock()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_renew_locks)


@dataclass(frozen=True, eq=False)
class Distilled:
    r"""A distilled model on the graph it was distilled on.

    Attributes:
        decomposition: The surrogate on this graph.
        answers: What the model says of it; in float64 unless large.
        memo: What else was asked of the model.
        is_random: Whether the model answers otherwise when it is asked again, so that nothing explains it.
    """

    decomposition: Decomposition
    answers: Answers
    memo: Memo = field(default_factory=Memo)
    is_random: bool = False

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

    def is_as(self, outputs: Tensor) -> bool:
        r"""Whether ``outputs`` [O, C], the model's now, are those that were distilled, up to rounding."""
        if outputs.shape != self.outputs.shape:
            return False
        return torch.allclose(outputs, self.outputs, rtol=1e-4, atol=1e-4 * self.unit + 1e-6)

    def trust(self, outputs: Tensor) -> Trust:
        r"""What is known about the surrogate at some of the outputs [B]."""
        if self.outputs.numel() > MAX_TRUST_SIZE:
            return self.judge(outputs)
        every = self._everywhere
        parts = every.surrogate_agreement, every.distillation_error, every.bias_decides
        return Trust(*(values.index_select(0, outputs) for values in parts))

    @cached_property
    def _everywhere(self) -> Trust:
        return self.judge(slice(None))

    def judge(self, places: Tensor | slice) -> Trust:
        r"""The same, without a look at other outputs."""
        evidence, outputs = self.decomposition.evidence[places], self.outputs[places].double()
        logits = (evidence + self.surrogate.bias).double()
        error = (self.surrogate.outputs(logits) - outputs).norm(dim=1)
        by_bias = evidence.abs().amax(dim=1) <= NEGLIGIBLE * logits.abs().amax(dim=1)
        if self.surrogate.report.mode == 'regression':
            agreement = error <= self.spread + 1e-6
        else:
            agreement = logits.argmax(dim=1) == outputs.argmax(dim=1)
            by_bias |= logits.argmax(dim=1) != evidence.argmax(dim=1)
        return Trust(agreement, error.to(evidence.dtype), by_bias)


def distill(teacher: Teacher, graph: Graph, recipe: Recipe, run: Run) -> Distilled:
    r"""Distils a model with one evaluation of it, and one for each mask, or with none if its outputs are given."""
    start = time.perf_counter()
    x, dtype = graph.x.detach(), torch.promote_types(graph.x.dtype, torch.float32)
    operator, max_bytes, hops = (
        graph.operator(teacher.flow, dtype),
        run.bytes(x.device),
        recipe.candidates(teacher.reach),
    )
    is_whole = run.tables is None or x.numel() <= PRECISE_MAX_SIZE
    inputs = as_sparse(operator, x, max(hops)) if is_whole else x  # which shared features are not
    size = inputs.value.numel() if isinstance(inputs, Sparse) else inputs.numel()
    precise = torch.float64 if (1 + recipe.num_masks) * size <= PRECISE_MAX_SIZE else dtype
    answers = teacher.outputs(graph, precise, run)
    targets, regression = answers.values, teacher.config.mode == ModelMode.regression
    least = max(BYTES_PER_OUTPUT * targets.numel(), BYTES_PER_EDGE * operator.col.numel())
    run.need(least, f'{targets.size(0):,} outputs of {targets.size(1)} and {operator.col.numel():,} edges')

    def spread(num_hops: int, mask: Tensor | None = None, name: str = 'features') -> Features | Design:
        if run.tables is not None and isinstance(inputs, Tensor):
            taps = FILTERS[recipe.filter](num_hops)
            return propagate_together(operator, x, taps, precise, run, f'{name}-{num_hops}', mask)
        if recipe.filter != 'sgc':
            rows = torch.tensor(FILTERS[recipe.filter](num_hops), dtype=torch.float64, device=x.device)
            found: Features | Design = Design(operator, inputs, rows, dtype=precise)
        else:
            found = propagate(operator, inputs if mask is None else x * mask[:, None], num_hops, precise, max_bytes)
        return found if graph.roots is None else found.only(graph.roots)

    def solve() -> tuple[dict[str, Any], Features | Design]:
        num_hops, held_out = hops[0], None
        if len(hops) > 1:
            held_out = _held_out_loss(spread, targets, hops, recipe.ridge, regression, run)
            rounding = 1e-9 * float(torch.linalg.vector_norm(targets)) ** 2 / targets.size(0)
            best = min(held_out.values()) + rounding
            num_hops = next(hops for hops, loss in held_out.items() if not loss > best)  # of ties, the fewest

        features = spread(num_hops)
        if recipe.num_masks > 0:
            every = probe_masks(x.size(0), recipe.num_masks)
            masks, shift = every[NUM_FIXED_MASKS:].to(x.device), 0.0 if regression else 1.0 / targets.size(1)
            shifted = (answer - shift for answer in chain([targets], teacher.probe(graph, every, run)))
            if isinstance(features, Design):
                fit = fit_masked(features, torch.cat([torch.ones_like(masks[:1]), masks]), shifted, recipe.ridge)
            else:
                names = (f'masked{number}' for number in range(masks.size(0)))
                others = (cast(Features, spread(num_hops, mask, name)) for mask, name in zip(masks, names, strict=True))
                parts = (
                    (part, answer[part.mine]) for part, answer in zip(chain([features], others), shifted, strict=True)
                )
                fit = fit_stacked(parts, (1 + recipe.num_masks) * targets.size(0), recipe.ridge)
        else:
            fit = _fit(features, targets, recipe.ridge, regression, run.progress)
        return {**fit._asdict(), 'num_hops': num_hops, 'held_out': held_out}, features

    solution, known = _kept(solve, run)
    num_hops, held_out = solution.pop('num_hops'), solution.pop('held_out')
    fit, features = Fit(**solution), spread(num_hops) if known is None else known
    weight, bias = fit.weight.to(features.dtype), fit.bias.to(features.dtype)

    def evidence_of(rows: slice) -> list[Tensor]:
        return [features @ weight if isinstance(features, Design) else features.times(weight, rows)]

    whole = Run() if isinstance(features, Design) else run
    (evidence,) = whole.rows('evidence', targets.size(0), evidence_of, weight.numel())
    mine, is_masked = run.share(targets.size(0)), recipe.num_masks > 0
    rows = slice(mine.start, mine.stop)
    loss, agreement = quality(evidence[rows] + bias, targets[rows], regression, is_masked, run, targets.size(0))
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
    parts_of = fit.weight.to(dtype), fit.bias.to(dtype), num_hops, report, teacher.flow
    surrogate = Surrogate(*parts_of, filter=recipe.filter)
    readout = readout_of(graph, teacher.level, targets.size(0))
    return Distilled(decompose(surrogate, graph, readout, evidence.to(dtype), run), answers)


def _kept(
    solve: Callable[[], tuple[dict[str, Any], Features | Design]], run: Run
) -> tuple[dict[str, Any], Features | Design | None]:
    r"""What was solved, and the features; without these from the folder that processes share, if it is there."""
    if run.tables is None:
        return solve()
    path, features = run.tables.path / 'fit.pt', None
    if run.first(float(path.exists())) == 0.0:
        found, features = solve()
        if run.rank == 0:
            files.write(path, 'Fit', found)
        run.wait()
    return files.read(path, 'Fit', dict), features


def place(surrogate: Surrogate, teacher: Teacher, graph: Graph, answers: Answers | None = None) -> Distilled:
    r"""A surrogate on another graph than those it was distilled on, beside what the model says there."""
    answers = teacher.outputs(graph) if answers is None else answers
    readout = readout_of(graph, teacher.level, answers.values.size(0))
    return Distilled(decompose(surrogate, graph, readout), answers)


def no_surrogate(teacher: Teacher, graph: Graph, recipe: Recipe, num_classes: int) -> Surrogate:
    r"""A surrogate without weights, for explainers that go by what the model answers alone."""
    dtype, num_hops = torch.promote_types(graph.x.dtype, torch.float32), recipe.candidates(teacher.reach)[-1]
    copies = 2 if teacher.level == 'graph' else 1
    weight = torch.zeros(copies * graph.x.size(1), num_classes, dtype=dtype, device=graph.x.device)
    nan = float('nan')
    report = Report(nan, nan, 0.0, 'none', recipe.ridge, True, graph.num_nodes, teacher.config.mode.value, None, 1)
    return Surrogate(weight, weight[0], num_hops, report, teacher.flow, level=teacher.level)


def _held_out_loss(
    spread: Callable[[int], Features | Design],
    targets: Tensor,
    candidates: tuple[int, ...],
    ridge: float,
    regression: bool,
    run: Run,
) -> dict[int, float]:
    r"""The loss on held-out nodes for each candidate number of hops, ascending, given what features come to."""
    num_nodes = targets.size(0)
    generator = torch.Generator(device='cpu').manual_seed(0)
    order = torch.randperm(num_nodes, generator=generator, device='cpu')[:MAX_NODES_TO_CHOOSE_HOPS].to(targets.device)
    held = order[: max(1, int(HELD_OUT_SHARE * order.numel()))]
    kept = order[held.numel() :] if num_nodes > 1 else held
    losses: dict[int, float] = {}
    for num_hops in candidates:
        features = spread(num_hops)
        mine, part = kept, features
        if isinstance(features, Features):
            share = run.share(kept.numel())
            mine = kept[share.start : share.stop]
            part = Features([features.rows(mine)], run, kept.numel())
        else:
            part = features.rows(kept)
        fit = _fit(part, targets[mine], ridge, regression)
        logits = features.rows(held).to(torch.float64) @ fit.weight + fit.bias
        losses[num_hops] = run.first(quality(logits, targets[held], regression)[0])
    return losses


def _fit(
    features: Tensor | Features | Design, targets: Tensor, ridge: float, regression: bool, progress: bool | None = False
) -> Fit:
    if regression:
        return fit_regressor(features, targets, ridge)
    return fit_classifier(features, targets, ridge, progress=progress)


def quality(
    logits: Tensor,
    targets: Tensor,
    regression: bool,
    masked: bool = False,
    run: Run = DEFAULT,
    num_rows: int | None = None,
) -> tuple[float, float]:
    r"""The loss and the agreement of a surrogate's ``logits`` with the model's ``targets``: of this process's rows."""
    num_rows = logits.size(0) if num_rows is None else num_rows
    if regression:
        logits, targets = logits.double(), targets.double()
        error = run.mean((logits - targets).square().sum(dim=1), num_rows)
        middle = run.mean(targets, num_rows)
        variance = run.mean((targets - middle).square().sum(dim=1), num_rows)
        smallest = torch.finfo(targets.dtype).eps * run.mean(targets.square().sum(dim=1), num_rows)
        smallest = smallest + torch.finfo(targets.dtype).tiny
        return 0.5 * float(error), 1.0 - float(error / torch.maximum(variance, smallest))
    agreement = run.mean((logits.argmax(dim=1) == targets.argmax(dim=1)).double(), num_rows)
    if masked:
        error = (logits.double() + 1.0 / logits.size(1) - targets.double()).square().sum(dim=1)
        return 0.5 * float(run.mean(error, num_rows)), float(agreement)
    step = max(1, run.entries // logits.size(1))
    parts = zip(targets.split(step), logits.split(step), strict=True)
    loss = sum(float(kl_divergence(target.double(), logit.double()).sum()) for target, logit in parts)
    return float(run.sum(targets.new_tensor(loss, dtype=torch.float64))) / num_rows, float(agreement)
