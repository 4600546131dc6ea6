r"""What masks take away besides nodes: edges or features, and what the surrogate expects of the effect of each.

The model is asked on the remaining edges, or with some features set to zero, and its answers are fitted as those to
masks of nodes are (:mod:`~pyg_dnx.scores.probed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_dnx.distill.decomposition import Decomposition
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.operator import plain
from pyg_dnx.graph.rows import Rows, ragged, rows_of
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.scores.probed import Prior, Probed
from pyg_dnx.teacher.local import Masks
from pyg_dnx.teacher.probes import Bits, edge_numbers
from pyg_dnx.teacher.teacher import Teacher


class Expected(NamedTuple):
    r"""What is expected of the effects of all that some outputs are made from."""

    rows: Rows  # what each output is made from, by number; values are sizes of effects
    assumed: Tensor  # the surrogate's effects, [nnz]

    def over(self) -> Tensor:
        r"""The surrogate's effects over the values in ``rows``, [nnz]."""
        return torch.where(self.rows.value > 0.0, self.assumed / self.rows.value, 0.0).double()

    def factors(self) -> dict[str, Tensor]:
        r"""What sizes may be, over the values in ``rows``, by name."""
        value = self.rows.value.double()
        powers = {'normalised': 0.0, 'roots': -0.5, 'flat': -1.0}
        return {name: torch.where(value > 0.0, value**power, 0.0) for name, power in powers.items()}


class Kind(ABC):
    r"""A kind of what masks take away."""

    how: str  # for the teacher

    @abstractmethod
    def count(self, graph: Graph) -> int:
        r"""How many masks are about."""

    @abstractmethod
    def expected(
        self, decomposition: Decomposition, graph: Graph, outputs: Tensor, direction: Tensor, run: Run
    ) -> Expected:
        r"""What is expected of the effects on some outputs [B], along a direction [B, C] each."""

    def asked(self, graph: Graph, masks: Tensor) -> Tensor:
        r"""The masks as the teacher takes them, given those of what is counted, [P, count]."""
        return masks

    @abstractmethod
    def on_copies(self, graph: Graph, masks: Bits) -> Masks:
        r"""The same where copies of neighbourhoods are asked about."""

    def owner(self, graph: Graph, parts: Tensor) -> Tensor | None:
        r"""The output that each of what is counted is part of, if outputs share no nodes and ``parts`` says whose."""
        return None

    def spread(self, graph: Graph, rows: Rows) -> Rows:
        r"""The scores of single edges or features, given those of what is counted."""
        return rows


@dataclass(frozen=True)
class Edges(Kind):
    r"""Edges, each by itself, or both directions between two nodes ``together``."""

    together: bool
    how = 'edges'

    def number(self, graph: Graph) -> Tensor:
        r"""The number of each edge, [E]."""
        return edge_numbers(graph.edge_index, self.together)

    def count(self, graph: Graph) -> int:
        return int(self.number(graph).max()) + 1 if graph.edge_index.size(1) > 0 else 0

    def asked(self, graph: Graph, masks: Tensor) -> Tensor:
        return masks[:, self.number(graph).to(masks.device)] if self.together else masks

    def on_copies(self, graph: Graph, masks: Bits) -> Masks:
        of_edges = self.number(graph)
        return Masks(edge=lambda ids, numbers: masks.kept(of_edges[ids], numbers))

    def owner(self, graph: Graph, parts: Tensor) -> Tensor | None:
        of_edges = parts[plain(graph.edge_index)[0]]
        return of_edges.new_zeros(self.count(graph)).index_copy_(0, self.number(graph), of_edges)

    def expected(
        self, decomposition: Decomposition, graph: Graph, outputs: Tensor, direction: Tensor, run: Run
    ) -> Expected:
        rows, assumed = walks_over_edges(decomposition, outputs, direction)
        number = self.number(graph)
        return _summed(rows, number[rows.column], assumed, int(number.numel()))

    def spread(self, graph: Graph, rows: Rows) -> Rows:
        r"""Both directions have half of what they have together."""
        if not self.together:
            return rows
        number = self.number(graph)
        order, size = number.argsort(stable=True), torch.bincount(number)
        start, length = (size.cumsum(0) - size)[rows.column], size[rows.column]
        owner = torch.repeat_interleave(length)
        place = torch.arange(owner.numel(), device=owner.device) - (length.cumsum(0) - length)[owner]
        row = torch.repeat_interleave(rows.length)
        count = torch.bincount(row, weights=length.double(), minlength=rows.length.numel()).long()
        return Rows(count, order[start[owner] + place], (rows.value / length)[owner])


@dataclass(frozen=True)
class Columns(Kind):
    r"""Columns of features."""

    how = 'columns'

    def count(self, graph: Graph) -> int:
        return graph.x.size(1)

    def on_copies(self, graph: Graph, masks: Bits) -> Masks:
        def kept(ids: Tensor, numbers: Tensor) -> Tensor:
            every, which = numbers.unique(return_inverse=True)
            columns = torch.arange(graph.x.size(1), device=ids.device)
            return masks.kept(columns, every[:, None].expand(-1, columns.numel()))[which]

        return Masks(kept)

    def expected(
        self, decomposition: Decomposition, graph: Graph, outputs: Tensor, direction: Tensor, run: Run
    ) -> Expected:
        x, rows = graph.x.detach(), decomposition.rows(outputs)
        size = rows._replace(value=rows.size.abs()).apply(x.abs().to(rows.value.dtype))
        effect = torch.zeros_like(size)
        values = rows.value.view(rows.column.numel(), -1)
        ends = decomposition.at_ends(outputs, direction.to(size.dtype))
        num_taps = values.size(1) // len(ends)
        every = torch.arange(x.size(0), device=x.device)
        for e, end in enumerate(ends):
            for t, scale, weight in decomposition.weights(x.size(1), every):
                part = rows._replace(value=values[:, e * num_taps + t].contiguous())
                signal = x.to(size.dtype) if scale is None else x * scale
                effect += part.apply(signal.to(size.dtype)) * (end @ weight.T)
        seen = size > 0.0
        return Expected(Rows(seen.sum(dim=1), seen.nonzero()[:, 1], size[seen]), effect[seen])


@dataclass(frozen=True)
class Entries(Kind):
    r"""Features that are not zero, at single nodes."""

    how = 'entries'

    def count(self, graph: Graph) -> int:
        return int((graph.x != 0).sum())

    def on_copies(self, graph: Graph, masks: Bits) -> Masks:
        length = (graph.x != 0).sum(dim=1)
        first = length.cumsum(0) - length

        def kept(ids: Tensor, numbers: Tensor) -> Tensor:
            there = graph.x[ids] != 0
            owner, column = there.nonzero(as_tuple=True)
            number = ragged(first[ids], length[ids])
            found = torch.ones_like(there)
            found[owner, column] = masks.kept(number, numbers[owner])
            return found

        return Masks(kept)

    def owner(self, graph: Graph, parts: Tensor) -> Tensor | None:
        return parts[graph.x.nonzero()[:, 0]]

    def expected(
        self, decomposition: Decomposition, graph: Graph, outputs: Tensor, direction: Tensor, run: Run
    ) -> Expected:
        x, rows = graph.x.detach(), decomposition.rows(outputs)
        there = x != 0
        number = there.sum(dim=1).cumsum(0) - there.sum(dim=1)
        node, values = rows.column.long(), rows.value.view(rows.column.numel(), -1)
        entry, column = there[node].nonzero(as_tuple=True)
        first = torch.cat([entry.new_zeros(1), there[node].sum(dim=1).cumsum(0)[:-1]])
        place = number[node[entry]] + torch.arange(entry.numel(), device=x.device) - first[entry]
        owner = torch.repeat_interleave(rows.length)[entry]
        feature = x[node[entry], column].to(rows.value.dtype)
        effect = torch.zeros_like(feature)
        ends = decomposition.at_ends(outputs, direction.to(feature.dtype))
        num_taps = values.size(1) // len(ends)
        for e, end in enumerate(ends):
            for t, scale, weight in decomposition.weights(x.size(1), node):
                toward = (end @ weight.T)[owner, column] * values[entry, e * num_taps + t]
                effect += toward * feature if scale is None else toward * feature * scale[entry, 0]
        length = torch.bincount(owner, minlength=outputs.numel())
        return Expected(Rows(length, place, (rows.size.abs()[entry] * feature.abs())), effect)

    def spread(self, graph: Graph, rows: Rows) -> Rows:
        r"""By node times the number of features plus the feature."""
        return rows._replace(column=(graph.x.reshape(-1) != 0).nonzero().view(-1)[rows.column])


KINDS: dict[str, Kind] = {'edges': Edges(False), 'pairs': Edges(True), 'columns': Columns(), 'entries': Entries()}


@dataclass(frozen=True, eq=False)
class Asked:
    r"""The answers where edges or features are taken away, and what they say of each."""

    kind: str
    probed: Probed
    graph: Graph | None = None

    def scores(self, decomposition: Decomposition, outputs: Tensor, run: Run = DEFAULT) -> Rows:
        r"""The scores of what each of some outputs [B] is made from."""
        graph, kind = self.graph, KINDS[self.kind]
        if graph is None:
            raise ValueError("'graph' must be known to score its edges and features (got None): load with 'x'")
        parts = []
        for chunk in decomposition.chunks(outputs, run.entries):
            place = torch.searchsorted(self.probed.outputs, outputs[chunk])
            direction = self.probed.answer_direction[place]
            found = kind.expected(decomposition, graph, outputs[chunk], direction, run)
            factor = found.factors()[self.probed.prior.sizes]
            effect, _ = self.probed.fit_parts(found.rows, found.over(), factor, place, run)
            parts.append(kind.spread(graph, found.rows._replace(value=effect * found.rows.value)))
        return parts[0] if len(parts) == 1 else Rows(*map(torch.cat, zip(*parts, strict=True)))

    def to_dict(self) -> dict[str, Any]:
        r"""All of it as tensors, numbers and strings; masks are made anew."""
        return {**self.probed.to_dict(), 'count': self.probed.masks.bytes.size(0)}

    @staticmethod
    def from_dict(kind: str, content: dict[str, Any]) -> Asked:
        r"""Undoes :meth:`to_dict`, but for the graph."""
        content = {**content}
        return Asked(kind, Probed.from_dict(content, content.pop('count')))

    def choose_prior(self, decomposition: Decomposition, run: Run = DEFAULT) -> Prior:
        r"""The prior under which each pair of the first answers is best predicted from the others."""
        graph = self.graph
        assert graph is not None
        found = KINDS[self.kind].expected(decomposition, graph, self.probed.outputs, self.probed.answer_direction, run)
        return self.probed.choose_among(found.rows, found.over(), found.factors(), run)


def can_be_asked(kind: str, teacher: Teacher, graph: Graph, most: int) -> bool:
    r"""Whether the model can be asked without parts of a kind, at ``most`` so many, or its answers are known."""
    is_edge = KINDS[kind].how == 'edges'
    if is_edge and (not graph.has_edge_order or (teacher.level == 'edge' and not graph.names_pairs)):
        return False
    if not is_edge and teacher.level == 'graph' and not graph.x.dtype.is_floating_point:
        return False  # 0 is a category, and takes nothing away
    if KINDS[kind].count(graph) > most:  # their masks would not fit into memory
        return False
    return teacher.model is not None or (is_edge and teacher.given_edge_probes is not None)


def walks_over_edges(decomposition: Decomposition, outputs: Tensor, direction: Tensor) -> tuple[Rows, Tensor]:
    r"""The edges that carry a message to each output, and what they carry toward a direction.

    The size of an edge's effect is taken for :math:`|\tilde{A}_{vu}| \sum_k |(R \tilde{A}^k)_{ov}|`.
    """
    operator = decomposition.operator
    every_output, width = torch.arange(outputs.numel(), device=outputs.device), operator.edge_id.numel()
    keys, found = [outputs[:0]], [operator.value.new_zeros(2, 0)]
    for end, toward in enumerate(decomposition.at_ends(outputs, direction.to(operator.value.dtype))):
        rows = decomposition.readout.of(outputs, end)
        for k, state in enumerate(decomposition.all_states[1:]):
            rows = rows_of(operator, rows, 1 if k > 0 else 0)
            entry, walk = operator.entries(rows.column.long())
            is_edge = operator.edge_id[entry] >= 0  # and no added self-loop
            entry, walk = entry[is_edge], walk[is_edge]
            output, value = every_output.repeat_interleave(rows.length)[walk], rows.value[walk] * operator.value[entry]
            carried = value * (state[operator.col[entry].long()] * toward[output]).sum(dim=1)
            keys.append(output * width + operator.edge_id[entry])
            found.append(torch.stack([value.abs(), carried]))
    every, place = torch.unique(torch.cat(keys), return_inverse=True)
    size, flow = operator.value.new_zeros(2, every.numel()).index_add_(1, place, torch.cat(found, dim=1))
    length = torch.bincount(every // width, minlength=outputs.numel())
    return Rows(length, every % width, size), flow


def _summed(rows: Rows, number: Tensor, assumed: Tensor, count: int) -> Expected:
    r"""Sizes and effects of edges that are masked together, added up."""
    owner = torch.repeat_interleave(rows.length)
    every, place = torch.unique(owner * max(1, count) + number, return_inverse=True)
    size, effect = rows.value.new_zeros(2, every.numel()).index_add_(1, place, torch.stack([rows.value, assumed]))
    length = torch.bincount(every // max(1, count), minlength=rows.length.numel())
    return Expected(Rows(length, every % max(1, count), size), effect)
