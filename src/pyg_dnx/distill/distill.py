r"""Distils a model into a linear surrogate: ask once, solve a convex problem, report."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch_geometric.explain.config import ModelConfig, ModelMode

from pyg_dnx.distill.solvers import PRECISE_MAX_SIZE, Fit, fit_classifier, fit_regressor, fit_stacked, kl_divergence
from pyg_dnx.distill.surrogate import Decomposition, Report, Surrogate
from pyg_dnx.graph.features import Features, propagate
from pyg_dnx.graph.operator import Operator, normalized_adjacency
from pyg_dnx.teacher.probes import UNDRAWN, ask, probe_masks
from pyg_dnx.teacher.teacher import query, to_targets

DEFAULT_RIDGE = 1e-5
HELD_OUT_SHARE = 0.2
MAX_NODES_TO_CHOOSE_HOPS = 2**16
KL_CHUNK = 2**16  # nodes at a time
MAX_TRUST_SIZE = 2**22  # numbers; up to here, all nodes are judged at once, and single explanations cost less


@dataclass(frozen=True)
class Settings:
    r"""How to distil."""

    hops: tuple[int, ...]  # candidates for L; with more than one, held-out nodes decide
    ridge: float
    flow: str
    num_masks: int = 0  # under which the model is asked, too; with none, the distillation is the paper's


_known: WeakSet[Distilled] = WeakSet()


class Distilled:
    r"""A distilled model on the graph it was distilled on.

    Attributes:
        decomposition (Decomposition): The surrogate on this graph.
        outputs (Tensor): The model's class probabilities or regression outputs [N, C]; in float64 unless large.
        target (Tensor): The target that PyG derives from the model's outputs.
    """

    def __init__(self, decomposition: Decomposition, outputs: Tensor, target: Tensor) -> None:
        self.decomposition = decomposition
        self.outputs = outputs
        self.target = target
        self.probes: dict[Any, Any] = {}  # the answers to probes of the model, kept as long as it is
        self.probing = threading.Lock()
        _known.add(self)

    @property
    def surrogate(self) -> Surrogate:
        return self.decomposition.surrogate

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
        if target.equal(self.target):
            return True
        if target.shape != self.target.shape:
            return False
        if target.is_floating_point():
            return torch.allclose(target, self.target, rtol=1e-3, atol=1e-3 * self.spread + 1e-6)
        return float((target != self.target).double().mean()) <= 1e-3

    def answers(self, outputs: Tensor) -> bool:
        r"""Whether ``outputs`` [N, C], the model's now, are those that were distilled, up to rounding."""
        if outputs.shape != self.outputs.shape:
            return False
        return torch.allclose(outputs, self.outputs, rtol=1e-4, atol=1e-4 * self.unit + 1e-6)

    def trust(self, nodes: Tensor) -> dict[str, Tensor]:
        r"""What is known about the surrogate at each of ``nodes`` [B].

        - ``surrogate_agreement``: whether it predicts the model's class; for regression, whether it is closer to the
          model's output than these are spread over the graph (one standard deviation).
        - ``distillation_error``: the Euclidean distance of its class probabilities, or outputs, from the model's.
        - ``bias_decides``: whether its class comes from the bias: the evidence of nodes, which is all that scores
          share out, points to another class.
        """
        if self.outputs.numel() > MAX_TRUST_SIZE:
            return self._judge(nodes)
        return {name: values.index_select(0, nodes) for name, values in self._trust.items()}

    @cached_property
    def _trust(self) -> dict[str, Tensor]:
        return self._judge(slice(None))

    def _judge(self, nodes: Tensor | slice) -> dict[str, Tensor]:
        evidence, outputs = self.decomposition.evidence[nodes], self.outputs[nodes].double()
        logits = (evidence + self.surrogate.bias).double()
        error = (self.surrogate.outputs(logits) - outputs).norm(dim=1)
        if self.surrogate.report.mode == 'regression':
            agreement, by_bias = error <= self.spread + 1e-6, torch.zeros_like(error, dtype=torch.bool)
        else:
            agreement = logits.argmax(dim=1) == outputs.argmax(dim=1)
            by_bias = logits.argmax(dim=1) != evidence.argmax(dim=1)
        return {
            'surrogate_agreement': agreement,
            'distillation_error': error.to(evidence.dtype),
            'bias_decides': by_bias,
        }


def _renew_locks() -> None:
    r"""In a new process, where the threads are gone that hold them."""
    for distilled in list(_known):
        distilled.probing = threading.Lock()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_renew_locks)


def distill(
    model: torch.nn.Module,
    x: Tensor,
    edge_index: Any,
    kwargs: dict[str, Any],
    config: ModelConfig,
    settings: Settings,
    *,
    operator: Operator | None = None,
    teacher_outputs: Tensor | np.ndarray | None = None,
    probe_outputs: Tensor | np.ndarray | None = None,
    max_bytes: int = sys.maxsize,
    progress: bool | None = False,
) -> Distilled:
    r"""Distils ``model`` with one evaluation of it, and one for each mask, or with none if its outputs are given.

    Args:
        model: The model.
        x, edge_index, kwargs: Its arguments.
        config: What it returns.
        settings: How to distil it.
        operator: The graph's operator, if it is known.
        teacher_outputs: What the model returns for all nodes, [N] or [N, C], if it is known.
        probe_outputs: What it returns under each of ``probe_masks``, [P, N] or [P, N, C], if it is known.
        max_bytes: About how much memory to work in.
        progress: Whether to show a progress bar; ``None`` shows it on a terminal.
    """
    start = time.perf_counter()
    dtype = torch.promote_types(x.dtype, torch.float32)
    if operator is None:
        operator = normalized_adjacency(edge_index, kwargs.get('edge_weight'), x.size(0), dtype, settings.flow)
    outputs = query(model, x, edge_index, kwargs) if teacher_outputs is None else teacher_outputs
    precise = torch.float64 if (1 + settings.num_masks) * x.numel() <= PRECISE_MAX_SIZE else dtype
    targets, predicted = to_targets(outputs, config, precise, x.device)
    regression = config.mode == ModelMode.regression

    num_hops, held_out = settings.hops[0], None
    if len(settings.hops) > 1:
        held_out = _held_out_loss(operator, x, targets, settings, regression, max_bytes)
        rounding = 1e-9 * float(torch.linalg.vector_norm(targets)) ** 2 / x.size(0)
        best = min(held_out.values()) + rounding
        num_hops = next(hops for hops, loss in held_out.items() if not loss > best)  # of ties, the fewest

    features = propagate(operator, x.detach(), num_hops, precise, max_bytes)
    if settings.num_masks > 0:
        masks = probe_masks(x.size(0), settings.num_masks)
        answers = ask(model, x, edge_index, kwargs, config, masks, UNDRAWN, probe_outputs, progress)
        masked = (
            (propagate(operator, x.detach() * mask.to(x.device)[:, None], num_hops, precise, max_bytes), answer)
            for mask, answer in zip(masks[UNDRAWN:], answers, strict=True)
        )
        shift = 0.0 if regression else 1.0 / targets.size(1)
        parts = ((part, answer - shift) for part, answer in chain([(features, targets)], masked))
        fit = fit_stacked(parts, (1 + settings.num_masks) * x.size(0), settings.ridge)
    else:
        fit = _fit(features, targets, settings.ridge, regression, progress)
    evidence = torch.cat([chunk @ fit.weight.to(chunk.dtype) for _, chunk in features.chunks()])
    del features
    loss, agreement = _quality(evidence + fit.bias.to(evidence.dtype), targets, regression, settings.num_masks > 0)
    report = Report(
        kl=loss,
        agreement=agreement,
        seconds=time.perf_counter() - start,
        solver=fit.solver,
        ridge=settings.ridge,
        converged=fit.converged,
        num_nodes=x.size(0),
        mode=config.mode.value,
        held_out=held_out,
        num_masks=settings.num_masks,
    )
    surrogate = Surrogate(fit.weight.to(dtype), fit.bias.to(dtype), num_hops, report, settings.flow)
    decomposition = Decomposition(surrogate, operator, x)
    decomposition.evidence = evidence.to(dtype)  # saves propagating it once more
    return Distilled(decomposition, targets, predicted)


def _held_out_loss(
    operator: Operator, x: Tensor, targets: Tensor, settings: Settings, regression: bool, max_bytes: int
) -> dict[int, float]:
    r"""The loss on held-out nodes for each candidate number of hops, ascending."""
    num_nodes = x.size(0)
    generator = torch.Generator(device='cpu').manual_seed(0)
    order = torch.randperm(num_nodes, generator=generator, device='cpu')[:MAX_NODES_TO_CHOOSE_HOPS].to(x.device)
    held = order[: max(1, int(HELD_OUT_SHARE * order.numel()))]
    kept = order[held.numel() :] if num_nodes > 1 else held
    losses: dict[int, float] = {}
    for num_hops in settings.hops:
        features = propagate(operator, x.detach(), num_hops, targets.dtype, max_bytes)
        fit = _fit(Features.of(features.rows(kept)), targets[kept], settings.ridge, regression)
        logits = features.rows(held).double() @ fit.weight + fit.bias
        losses[num_hops] = _quality(logits, targets[held], regression)[0]
    return losses


def _fit(features: Features, targets: Tensor, ridge: float, regression: bool, progress: bool | None = False) -> Fit:
    if regression:
        return fit_regressor(features, targets, ridge)
    return fit_classifier(features, targets, ridge, progress=progress)


def _quality(logits: Tensor, targets: Tensor, regression: bool, masked: bool = False) -> tuple[float, float]:
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
    parts = zip(targets.split(KL_CHUNK), logits.split(KL_CHUNK), strict=True)
    loss = sum(float(kl_divergence(target.double(), logit.double()).sum()) for target, logit in parts)
    return loss / logits.size(0), float(agreement)
