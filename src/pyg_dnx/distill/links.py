r"""Distils a model of links into a bilinear surrogate: ask about pairs of nodes, with and without masks.

With :math:`g = \tilde{A}^L X V`, where V holds the leading directions of :math:`\tilde{A}^L X`, the logits of a pair
are :math:`z_{uv} = g_u^\top W g_v + a^\top g_u + c^\top g_v + b`, with W, a and c for each class.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain.config import ModelMode

from pyg_dnx.distill.distill import Recipe
from pyg_dnx.distill.surrogate import Bilinear, Report, Surrogate
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.operator import Operator
from pyg_dnx.run import Run
from pyg_dnx.teacher.probes import NUM_FIXED_MASKS, probe_masks
from pyg_dnx.teacher.teacher import Teacher

RANK = 32
NUM_PAIRS, NUM_MASKED_PAIRS, NUM_HELD_OUT = 8_000, 3_000, 1_000  # asked about clean, under each mask, and to choose by
LEAST_TO_HOLD_OUT = 64  # pairs, where no others can be asked about
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class _Asked:
    r"""Pairs with what the model says of them, and the signals at their ends."""

    first: Tensor  # [Q, r]
    second: Tensor
    answers: Tensor  # [Q, C]

    @property
    def features(self) -> Tensor:
        both = (self.first[:, :, None] * self.second[:, None]).flatten(1)
        return torch.cat([both, self.first, self.second], dim=1)


def distill_links(teacher: Teacher, graph: Graph, recipe: Recipe, run: Run) -> Surrogate:
    r"""Distils a model of links on pairs of nodes, half of them edges; on those given, if it answers no others."""
    start, num_hops, num_masks = time.perf_counter(), recipe.candidates(teacher.reach)[-1], recipe.num_masks
    operator, regression = graph.operator(teacher.flow, torch.float64), teacher.config.mode == ModelMode.regression
    known = teacher.outputs(graph).values.double()
    shift = 0.0 if regression else 1.0 / known.size(1)
    weight = leading_directions(operator, graph.x.detach().double(), num_hops)
    hidden = graph.x.detach().double() @ weight
    free = answers_any_pairs(teacher, graph, known, recipe.given_pairs)
    generator, given = torch.Generator(device='cpu').manual_seed(0), graph.pairs.size(1)
    holds_out = free or given >= LEAST_TO_HOLD_OUT
    order = torch.randperm(given, generator=generator, device='cpu').to(hidden.device)
    masks = probe_masks(graph.num_nodes, num_masks)[NUM_FIXED_MASKS:].to(hidden.device)
    fitted, held = [], []
    for number, mask in enumerate([None, *masks]):
        state = hidden if mask is None else hidden * mask[:, None]
        for _ in range(num_hops):
            state = operator @ state
        count = (NUM_PAIRS if mask is None else NUM_MASKED_PAIRS) + NUM_HELD_OUT
        pairs = _drawn(graph, count, generator) if free else graph.pairs
        node_mask = None if mask is None else mask[:, None]
        answers = teacher.under(graph.with_pairs(pairs) if free else graph, node_mask) - shift
        if not free:
            pairs, answers = pairs[:, order], answers[order]
        asked = [state[pairs[0]], state[pairs[1]], answers]
        if number == 0:
            scale = state.square().mean().sqrt().clamp(min=1e-12)
        asked[:2] = [part / scale for part in asked[:2]]
        size = min(NUM_HELD_OUT, max(1, pairs.size(1) // 8))
        held.append(_Asked(*(part[:size] for part in asked)))
        fitted.append(_Asked(*(part[size if holds_out else 0 :] for part in asked)))
    coefficients, bias, chosen = _fit(fitted, held, list(RIDGES) if recipe.chooses_ridge else [recipe.ridge])
    rank, num_classes = weight.size(1), known.size(1)
    bilinear, ends = coefficients[: rank**2], coefficients[rank**2 :]
    decoder = Bilinear(
        bilinear.T.reshape(num_classes, rank, rank) / scale**2, ends[:rank].T / scale, ends[rank:].T / scale
    )
    clean, masked = held[0], held[1:] or held[:1]
    r2 = (_r2([clean], coefficients, bias), _r2(masked, coefficients, bias)) if holds_out else (None, None)
    agreement, majority, by_class = _agreement(clean, coefficients, bias, regression)
    report = Report(
        kl=0.5 * float(_squares(clean, coefficients, bias) / clean.answers.size(0)),
        agreement=agreement,
        seconds=time.perf_counter() - start,
        solver='closed form',
        ridge=chosen,
        converged=True,
        num_nodes=graph.num_nodes,
        mode=teacher.config.mode.value,
        num_masks=num_masks,
        held_out_r2=r2[0],
        masked_r2=r2[1],
        majority=majority if holds_out else None,
        agreement_by_class=by_class if holds_out else None,
    )
    dtype = torch.promote_types(graph.x.dtype, torch.float32)
    options: dict[str, Any] = {'level': 'edge', 'decoder': decoder.to(dtype)}
    return Surrogate(weight.to(dtype), bias.to(dtype), num_hops, report, teacher.flow, **options)


def leading_directions(operator: Operator, x: Tensor, num_hops: int) -> Tensor:
    r"""An orthonormal basis [F, r] of the leading right singular directions of :math:`\tilde{A}^L X`."""
    num_features = x.size(1)
    if num_features <= RANK:
        return torch.eye(num_features, dtype=x.dtype, device=x.device)

    def product(matrix: Tensor, is_transposed: bool = False) -> Tensor:
        matrix, walk = (matrix, operator.transposed) if is_transposed else (x @ matrix, operator)
        for _ in range(num_hops):
            matrix = walk @ matrix
        return x.T @ matrix if is_transposed else matrix

    generator = torch.Generator(device='cpu').manual_seed(0)
    size = min(num_features, RANK + 16)
    found = torch.randn(num_features, size, dtype=x.dtype, generator=generator, device='cpu').to(x.device)
    for _ in range(4):  # a randomised singular value decomposition
        found = torch.linalg.qr(product(torch.linalg.qr(product(found)).Q, is_transposed=True)).Q
    _, _, right = torch.linalg.svd(product(found), full_matrices=False)
    return found @ right[:RANK].T


def answers_any_pairs(teacher: Teacher, graph: Graph, known: Tensor, given_will_do: bool) -> bool:
    r"""Whether the model answers about other pairs than those given, row by row; refuses one that takes no notice."""
    if teacher.model is None or not graph.names_pairs:
        return False
    pairs, name = graph.pairs, graph.pair_argument
    order = torch.arange(pairs.size(1) - 1, -1, -1, device=graph.x.device)
    # And one more, which must change no other answer; of ends that may be what they are.
    other = torch.stack([pairs[0, :1], pairs[0, :1] if graph.ends is None else pairs[1, -1:]])
    found = _answers(teacher, graph.with_pairs(torch.cat([pairs[:, order], other], dim=1)))
    if found is not None and _is_same(found[:-1], known[order]):
        return True
    found = _answers(
        teacher, graph.with_pairs(torch.stack([pairs[0], pairs[1].roll(1)]) if order.numel() > 1 else other)
    )
    if found is not None and _is_same(found, known):
        raise ValueError(
            f"'model' must answer about the pairs of {name!r} (got the same answers about others): read them in its "
            f"'forward', or name the argument that it reads as 'pair_argument'"
        )
    if not given_will_do:
        raise ValueError(
            f"'model' must answer about each pair of {name!r} whatever the others are, as it is distilled on many more "
            f"(got other answers among others): score pairs one by one in its 'forward', or use ProbeDnX"
        )
    return False


def _answers(teacher: Teacher, graph: Graph) -> Tensor | None:
    try:
        return teacher.under(graph)
    except Exception:  # a model that is made for the pairs given
        return None


def _is_same(found: Tensor, known: Tensor) -> bool:
    return torch.allclose(found, known, rtol=0.0, atol=1e-4 * float(known.abs().max()))


def _drawn(graph: Graph, count: int, generator: torch.Generator) -> Tensor:
    r"""Pairs of nodes [2, Q], about half of them edges."""
    edges = graph.edge_index if graph.has_edge_order else graph.pairs
    if graph.ends is not None:
        is_possible = [torch.isin(edge, end) for edge, end in zip(edges, graph.ends, strict=True)]
        edges = edges[:, is_possible[0] & is_possible[1]]
    chosen = torch.rand(count, generator=generator, device='cpu') < (0.5 if edges.size(1) > 0 else 0.0)
    pairs = torch.randint(graph.num_nodes, (2, count), generator=generator, device='cpu')
    if graph.ends is not None:
        pairs = torch.stack([end.cpu()[row % end.numel()] for row, end in zip(pairs, graph.ends, strict=True)])
    if edges.size(1) > 0:
        place = torch.randint(edges.size(1), (count,), generator=generator, device='cpu')
        pairs[:, chosen] = edges.cpu().long()[:, place[chosen]]
    return pairs.to(graph.x.device)


def _fit(fitted: list[_Asked], held: list[_Asked], ridges: list[float]) -> tuple[Tensor, Tensor, float]:
    r"""Least squares in which clean pairs and all masked ones have the same mass, with the ridge that predicts best."""
    size, num_classes = fitted[0].features.size(1), fitted[0].answers.size(1)
    gram, moment = fitted[0].first.new_zeros(size, size), fitted[0].first.new_zeros(size, num_classes)
    mean, level = gram.new_zeros(size), gram.new_zeros(num_classes)
    for number, asked in enumerate(fitted):
        mass = (1.0 if len(fitted) == 1 else 0.5 if number == 0 else 0.5 / (len(fitted) - 1)) / asked.answers.size(0)
        features = asked.features
        gram, moment = gram + mass * features.T @ features, moment + mass * features.T @ asked.answers
        mean, level = mean + mass * features.sum(dim=0), level + mass * asked.answers.sum(dim=0)
    gram, moment = gram - torch.outer(mean, mean), moment - torch.outer(mean, level)
    values, vectors = torch.linalg.eigh(gram)
    inner = vectors.T @ moment

    def solution(ridge: float) -> tuple[Tensor, Tensor]:
        coefficients = vectors @ (inner / (values.clamp(min=0.0) + ridge)[:, None])
        return coefficients, level - mean @ coefficients

    def loss(ridge: float) -> float:
        return sum(float(_squares(asked, *solution(ridge))) / asked.answers.size(0) for asked in held)

    chosen = min(ridges, key=loss)
    return *solution(chosen), chosen


def _squares(asked: _Asked, coefficients: Tensor, bias: Tensor) -> Tensor:
    return (asked.features @ coefficients + bias - asked.answers).square().sum()


def _agreement(
    asked: _Asked, coefficients: Tensor, bias: Tensor, regression: bool
) -> tuple[float, float | None, dict[int, float] | None]:
    r"""How often the model's class is predicted, the share of its largest class, and how often each is predicted."""
    if regression:
        return _r2([asked], coefficients, bias), None, None
    predicted = (asked.features @ coefficients + bias).argmax(dim=1)
    classes = asked.answers.argmax(dim=1)
    hit = (predicted == classes).double()
    by_class = {label: float(hit[classes == label].mean()) for label in classes.unique().tolist()}
    return float(hit.mean()), float(torch.bincount(classes).max() / classes.numel()), by_class


def _r2(parts: list[_Asked], coefficients: Tensor, bias: Tensor) -> float:
    r"""The share of the variance of held-out answers that is predicted."""
    error = sum(float(_squares(part, coefficients, bias)) for part in parts)
    answers = torch.cat([part.answers for part in parts])
    spread = float((answers - answers.mean(dim=0)).square().sum())
    return 1.0 - error / max(spread, 1e-30)
