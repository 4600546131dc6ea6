r"""Better explanations of the same size: masks improved by swaps that the model itself confirms."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.explain import Explainer, Explanation, HeteroExplanation
from torch_geometric.explain.config import ExplanationType

from pyg_dnx import options
from pyg_dnx.graph.readout import num_outputs
from pyg_dnx.graph.rows import Rows, ragged
from pyg_dnx.results.aim import Aim
from pyg_dnx.results.by_type import packed, unpacked
from pyg_dnx.results.measured import kind_of
from pyg_dnx.run import Run
from pyg_dnx.scores.question import outputs_of
from pyg_dnx.teacher.local import Local
from pyg_dnx.teacher.sides import Table, seen, sides
from pyg_dnx.teacher.teacher import Teacher
from pyg_dnx.trust.measure import graph_of, masks_of
from pyg_dnx.trust.swaps import Outcome, Search, improve

WIDTH = 32  # swaps that are tried in a round


@dataclass(frozen=True)
class Refined:
    r"""Explanations under improved masks, and what that took. Printed, it is a sentence, or a table of means.

    Explanations come in the order they were given, each with all of its sizes, ascending if these are nested.

    Attributes:
        explanations (list): The explanations, whose masks are 1 where they keep something, and else 0.
        index (Tensor): The explained outputs [R].
        size (Tensor): How much each mask keeps, [R].
        num_evaluations (Tensor): How many copies the model was evaluated on for each, [R].
        keeps_before, keeps (Tensor): Whether the prediction is preserved if nothing but the mask is kept, [R].
        changes_before, changes (Tensor): Whether the prediction changes without it, [R].
        gap_before, gap (Tensor): The probability of the class with what is kept, minus that without it, [R]; for
            regression, distances from the output in its standard deviations.
    """

    explanations: list[Explanation]
    index: Tensor
    size: Tensor
    num_evaluations: Tensor
    keeps_before: Tensor
    keeps: Tensor
    changes_before: Tensor
    changes: Tensor
    gap_before: Tensor
    gap: Tensor

    @property
    def gain(self) -> Tensor:
        r"""What each mask gained in ``gap``, [R]."""
        return self.gap - self.gap_before

    def __len__(self) -> int:
        return len(self.explanations)

    def __getitem__(self, place: int) -> Explanation:
        return self.explanations[place]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.explanations)

    def __str__(self) -> str:
        def share(values: Tensor) -> str:
            return f'{float(values.double().mean()):.3g}'

        rows = [
            ('explanations', f'{len(self):,}'),
            ('keeping preserves', f'{share(self.keeps_before)} -> {share(self.keeps)}'),
            ('removing changes', f'{share(self.changes_before)} -> {share(self.changes)}'),
            ('gap', f'{share(self.gap_before)} -> {share(self.gap)}'),
            ('evaluations', f'{share(self.num_evaluations)} (most: {int(self.num_evaluations.max())})'),
        ]
        return '\n'.join(f'{name:<18} {value}' for name, value in rows)


def refine(
    explainer: Explainer,
    explanations: Explanation | Iterable[Explanation],
    *,
    size: int | float | Sequence[int | float] | None = None,
    nested: bool = False,
    num_evaluations: int = 300,
    progress: bool | None = None,
) -> Refined:
    r"""Improves masks by swaps that the model confirms: any explainer's, of nodes, edges or features.

    A swap takes something out of the mask, and something else in. The model is asked, on copies of the neighbourhood,
    with what the mask then keeps and without it. A swap is taken if keeping preserves the prediction, or removing
    changes it, where it did not before; else if the gap between the two probabilities grows. Neither is ever lost.
    What is likely to help is tried first, by the explanation's scores and by what swaps have shown. The search ends
    with a round that finds nothing.

    Args:
        explainer (Explainer): The explainer of the model.
        explanations (Explanation or iterable of these): What it returned, of one output each, or what
            ``explain_nodes`` and its kin did. If there are masks of nodes and of edges, that of nodes is improved, and
            the other left out.
        size (int, float or sequence, optional): How many nodes (edges, features) to keep, or which share of what the
            model sees, or several of these. ``None`` keeps as many as the mask does, which must be 0 or 1 everywhere.
        nested (bool): Whether each larger mask must keep what the smaller ones do. It then starts from them, and is
            filled up by scores. (default: ``False``)
        num_evaluations (int): The most copies that the model is evaluated on for one mask. (default: ``300``)
        progress (bool, optional): Whether to show a progress bar. ``None`` shows it on a terminal, if it takes more
            than a second.
    """
    sizes = _sizes(size)
    options.count('num_evaluations', num_evaluations, least=2)
    given = [explanations] if isinstance(explanations, (Explanation, HeteroExplanation)) else explanations
    if not isinstance(given, Iterable):
        raise TypeError(
            f"'explanations' must be an Explanation or several (got {type(given).__name__}): pass what 'explainer' "
            f'returned'
        )
    parts: list[Refined] = []
    for group in _groups(packed(item, explainer.model) for item in given):
        parts.append(_refine(_Group(explainer, group), sizes, nested, num_evaluations // 2, Run(progress=progress)))
    if not parts:
        raise ValueError("'explanations' must hold at least one explanation (got none): pass what 'explainer' returned")
    joined: dict[str, Any] = {
        field.name: torch.cat([getattr(part, field.name) for part in parts])
        for field in fields(Refined)
        if field.name != 'explanations'
    }
    return Refined([unpacked(item) for part in parts for item in part.explanations], **joined)


def _sizes(size: Any) -> list[int | float | None]:
    sizes = list(size) if isinstance(size, Sequence) else [size]
    for value in sizes:
        is_share = isinstance(value, float) and 0.0 < value <= 1.0
        if value is not None and not is_share and (not isinstance(value, int) or value < 1):
            raise ValueError(
                f"'size' must be a whole number from 1, or a share between 0 and 1 (got {value!r}): pass 10, say, or "
                f'0.1'
            )
    if not sizes:
        raise ValueError("'size' must hold at least one size (got none): leave it out to keep that of the mask")
    return sizes


def _groups(explanations: Iterable[Explanation]) -> Iterator[list[Explanation]]:
    r"""Explanations on one graph by masks of one kind, as long as they follow one another."""
    group: list[Explanation] = []
    for explanation in explanations:
        if group:
            is_same = graph_of(group[0]).is_same(graph_of(explanation))
            if not is_same or _kind(group[0]) != _kind(explanation):
                yield group
                group = []
        group.append(explanation)
    if group:
        yield group


def _kind(explanation: Explanation) -> str:
    node_mask, _ = masks_of(explanation)
    return 'edge' if node_mask is None else kind_of(node_mask, graph_of(explanation).num_nodes)


class _Group:
    r"""Explanations on one graph, and the model."""

    def __init__(self, explainer: Explainer, explanations: list[Explanation]) -> None:
        first, config = explanations[0], explainer.model_config
        self.explanations, self.graph, self.kind = explanations, graph_of(first), _kind(first)
        prediction = first.get('prediction')
        self.teacher = Teacher(explainer.model, config, prediction)
        self.how = first.get('how') or getattr(explainer.algorithm, 'how', 'features')
        size = num_outputs(self.graph, self.teacher.level)
        outputs = [outputs_of(item.get('index'), size, self.graph.x.device) for item in explanations]
        if (joint := next((each.numel() for each in outputs if each.numel() != 1), None)) is not None:
            raise ValueError(
                f"'explanations' must be of one output each (got one of {joint}): explain them one by one, or with "
                f"'explain_nodes'"
            )
        self.outputs = torch.cat(outputs)
        self.answers = Teacher(explainer.model, config, prediction).outputs(self.graph).values
        given = explainer.explanation_type == ExplanationType.phenomenon
        self.aim = Aim.of(self.answers, self.outputs, config, first.target if given else None)
        self.local = Local(self.teacher, self.graph, self.answers, self.teacher.reach)
        self.units = seen(
            self.graph, self.outputs, self.kind, self.teacher.reach, self.teacher.flow, self.teacher.level
        )

    def mask_of(self, place: int) -> Tensor:
        r"""The mask of an explanation, flat."""
        node_mask, edge_mask = masks_of(self.explanations[place])
        return cast(Tensor, edge_mask if node_mask is None else node_mask).detach().view(-1)

    def scores_of(self, place: int) -> Tensor:
        r"""What orders its units: its signed scores if it has them, else its mask."""
        explanation, mask = self.explanations[place], self.mask_of(place)
        names = {'edge': 'edge_score', 'feature': 'feature_score'}
        score = explanation.get(names.get(self.kind, 'node_score'))
        return mask if score is None or score.numel() != mask.numel() else score.detach().view(-1)

    def with_mask(self, place: int, units: Tensor, num_evaluations: int) -> Explanation:
        r"""The explanation under another mask, which keeps some units."""
        explanation = copy.copy(self.explanations[place])
        name = 'edge_mask' if self.kind == 'edge' else 'node_mask'
        mask = torch.zeros_like(explanation[name])
        mask.view(-1)[units] = 1.0
        explanation[name] = mask
        if name == 'node_mask' and 'edge_mask' in explanation:
            explanation.edge_mask = None
        explanation.num_evaluations = num_evaluations
        return explanation


def _refine(group: _Group, sizes: list[int | float | None], nested: bool, num_masks: int, run: Run) -> Refined:
    r"""Improves the masks of explanations on one graph, all at once."""
    units = group.units.column.split(group.units.length.tolist())
    found: list[list[Search]] = [[] for _ in units]
    with torch.no_grad():
        for wave in range(len(sizes) if nested else 1):
            searches = []
            for place, each in enumerate(units):
                fixed = found[place][-1].inside if found[place] else None
                counts = [_size_of(size, each.numel()) for size in sizes]
                for count in [sorted(counts)[wave]] if nested else counts:
                    searches.append(_search(group, place, each, count, fixed))
            improve(searches, lambda some, masks: _ask(group, [s.owner for s in some], masks, run), num_masks, WIDTH)
            for search in searches:
                found[search.owner].append(search)
    rows, device = [search for each in found for search in each], group.outputs.device

    outcomes: dict[str, Any] = {
        name + suffix: torch.stack([getattr(getattr(search, side), name) for search in rows])
        for name in Outcome._fields
        for suffix, side in (('_before', 'start'), ('', 'now'))
    }
    return Refined(
        explanations=[
            group.with_mask(search.owner, units[search.owner][search.inside], 2 * search.num_masks) for search in rows
        ],
        index=group.outputs[torch.tensor([search.owner for search in rows], device=device)],
        size=torch.tensor([int(search.inside.sum()) for search in rows], device=device),
        num_evaluations=torch.tensor([2 * search.num_masks for search in rows], device=device),
        **outcomes,
    )


def _search(group: _Group, place: int, units: Tensor, size: int, fixed: Tensor | None) -> Search:
    r"""The search for a mask of some size, from the explanation's own."""
    score, mask = group.scores_of(place)[units].double(), group.mask_of(place)[units]
    if size == 0:
        if not bool(((mask == 0.0) | (mask == 1.0)).all()):
            raise ValueError(
                "'size' must be given for a mask that is not 0 or 1 everywhere (got None): pass how many to keep, or "
                'threshold the explanation'
            )
        inside = mask > 0.0
    else:
        # By the mask first: it is what the explanation keeps, and scores order what it has alike.
        order = score.argsort(descending=True, stable=True)
        order = order[mask[order].argsort(descending=True, stable=True)]
        if fixed is not None:
            order = torch.cat([fixed.nonzero().view(-1), order[~fixed[order]]])
        inside = torch.zeros_like(units, dtype=torch.bool)
        inside[order[:size]] = True
    return Search(place, score, inside, torch.zeros_like(inside) if fixed is None else fixed)


def _size_of(size: int | float | None, count: int) -> int:
    r"""How many of some units a size is; 0 for as many as a mask keeps."""
    if size is None:
        return 0
    return min(count, size if isinstance(size, int) else max(1, round(size * count)))


def _ask(group: _Group, owners: list[int], masks: list[Tensor], run: Run) -> list[Outcome]:
    r"""What the model answers under some masks [p, n] of each of some explanations."""
    device, counts = group.outputs.device, [mask.size(0) for mask in masks]
    owner = torch.tensor(owners, device=device).repeat_interleave(torch.tensor(counts, device=device))
    length = group.units.length[owner]
    start = (group.units.length.cumsum(0) - group.units.length)[owner]
    value = torch.cat([mask.reshape(-1) for mask in masks])[:, None]
    if group.kind != 'edge':
        value = value.to(group.graph.x.dtype)
    table = Table(group.kind, Rows(length, group.units.column[ragged(start, length)], value), group.graph.x.size(1))
    found = sides(group.local, group.outputs[owner], [table], group.how, run=run)
    aim = group.aim.at(owner)
    keeps, changes = aim.holds(found.kept)[:, 0], ~aim.holds(found.removed)[:, 0]
    gap = (aim.worth(found.kept) - aim.worth(found.removed))[:, 0]
    return [Outcome(*parts) for parts in zip(*(each.split(counts) for each in (keeps, changes, gap)), strict=True)]
