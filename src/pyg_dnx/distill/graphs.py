r"""Distils a model of graphs: over a data set, or one graph by itself."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor
from torch_geometric.explain.config import ModelMode

from pyg_dnx.distill.distill import Recipe, quality
from pyg_dnx.distill.solvers import fit_stacked
from pyg_dnx.distill.surrogate import OfGraphs, Report, Surrogate
from pyg_dnx.graph.categories import Categories
from pyg_dnx.graph.features import Features
from pyg_dnx.graph.filters import FILTERS
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import readout_of
from pyg_dnx.run import Run
from pyg_dnx.teacher.probes import NUM_FIXED_MASKS, masks_of_parts
from pyg_dnx.teacher.teacher import Answers, Teacher

NUM_OWN_MASKS = 64  # of a graph that is distilled by itself


def distill_graphs(teacher: Teacher, graph: Graph, recipe: Recipe, run: Run) -> Surrogate:
    r"""Distils a model of graphs on a batch of them, and on copies without some of their nodes, by least squares.

    The graphs as they are have half of the mass, and their copies the other half.
    """
    start = time.perf_counter()
    answers, regression = teacher.outputs(graph), teacher.config.mode == ModelMode.regression
    targets = answers.values
    readout, num_hops = readout_of(graph, teacher.level, targets.size(0)), recipe.candidates(teacher.reach)[-1]
    operator = graph.operator(teacher.flow, torch.float64)
    num_masks = max(1, recipe.num_masks) if targets.size(0) > 1 else max(NUM_OWN_MASKS, recipe.num_masks)
    masks = masks_of_parts(graph.num_nodes, num_masks, readout.parts)
    probes = list(teacher.probe(graph, masks, run, how=recipe.how, known=targets))
    categories = Categories.of(graph.x)
    x = (graph.x if categories is None else categories.encode(graph.x)).detach().double()
    taps = FILTERS[recipe.filter](num_hops)

    def features(mask: Tensor) -> Tensor:
        kept = x * mask.to(x.device)[:, None]
        copies = [kept] if readout.scale is None else [kept * scale[:, None] for scale in readout.scale.T]
        signals, found = torch.cat(copies, dim=1), []
        for k in range(num_hops + 1):
            signals = signals if k == 0 else operator @ signals
            if any(row[k] for row in taps):
                found.append((k, readout.apply(signals)[0]))
        return torch.cat([sum((row[k] * part for k, part in found), torch.zeros_like(found[0][1])) for row in taps], 1)

    full, shift = features(masks[0]), 0.0 if regression else 1.0 / targets.size(1)
    spread = full.std(dim=0, correction=0) if full.size(0) > 1 else full[0].abs()
    spread = torch.where(spread > 1e-12 * spread.max().clamp(min=1e-30), spread, 1.0)
    parts = [(Features.of(full / spread), targets.double() - shift)] * num_masks
    parts += [
        (Features.of(features(mask) / spread), probe - shift)
        for mask, probe in zip(masks[NUM_FIXED_MASKS:], probes, strict=True)
    ]
    fit = fit_stacked(parts, 2 * num_masks * targets.size(0), recipe.ridge)
    weight = fit.weight / spread[:, None]
    loss, agreement = quality(full @ weight + fit.bias, targets, regression, True)
    dtype = torch.promote_types(graph.x.dtype, torch.float32)
    report = Report(
        kl=loss,
        agreement=agreement,
        seconds=time.perf_counter() - start,
        solver=fit.solver,
        ridge=recipe.ridge,
        converged=fit.converged,
        num_nodes=graph.num_nodes,
        mode=teacher.config.mode.value,
        num_masks=num_masks,
        graphs=OfGraphs(
            num_graphs=targets.size(0),
            most_frequent=float('nan') if regression else _most_frequent(targets),
            moved=float(share_moved(targets, torch.stack(probes), regression).mean()),
            unseen=_unseen(teacher, graph, answers, regression),
        ),
    )
    parts_of = weight.to(dtype), fit.bias.to(dtype), num_hops, report, teacher.flow
    return Surrogate(*parts_of, filter=recipe.filter, level=teacher.level, categories=categories)


def share_moved(targets: Tensor, probes: Tensor, regression: bool) -> Tensor:
    r"""The share of probes [P, O, C] that change the class of each output [O, C]; for regression, move it at all."""
    if regression:
        moved = (probes - targets).norm(dim=2) > 1e-3 * targets.norm(dim=1).clamp(min=1e-6)
    else:
        moved = probes.argmax(dim=2) != targets.argmax(dim=1)
    return moved.double().mean(dim=0)


def _most_frequent(targets: Tensor) -> float:
    return float(targets.argmax(dim=1).bincount().max() / targets.size(0))


def _unseen(teacher: Teacher, graph: Graph, answers: Answers, regression: bool) -> dict[str, float]:
    r"""How far the model's answers move, on average, where what the surrogate can't see is shuffled among edges.

    Half the sum of changes of class probabilities; for regression the distance over the standard deviation.
    """
    found, outputs = {}, answers.values.double()
    for name, value in graph.kwargs.items():
        if name != 'edge_weight' and graph.kind_of(name, outputs.size(0)) == 'edge':
            generator = torch.Generator(device='cpu').manual_seed(0)
            order = torch.randperm(value.size(0), generator=generator, device='cpu').to(value.device)
            other = teacher.outputs(replace(graph, kwargs={**graph.kwargs, name: value[order]})).values.double()
            moved = (other - outputs).norm(dim=1) if regression else 0.5 * (other - outputs).abs().sum(dim=1)
            unit = float(outputs.std(dim=0, correction=0).norm()) if regression else 1.0
            found[name] = float(moved.mean()) / (unit or float(outputs.norm(dim=1).mean()) or 1.0)
    return found
