r"""What the model answers with what masks keep, and without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import Rows, ragged
from pyg_dnx.graph.subgraphs import Neighbourhoods
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.teacher.local import Local, Masks

KINDS = ('node', 'edge', 'feature', 'entry')  # of units that a mask keeps; an entry is a feature of one node


class Sides(NamedTuple):
    r"""Answers to masks of some outputs, [B, M, C] each."""

    kept: Tensor  # with what each mask keeps
    removed: Tensor  # without it


@dataclass(frozen=True, eq=False)
class Table:
    r"""Some masks for each of some explanations.

    Args:
        kind: What units the masks are of, one of ``KINDS``.
        rows: The units of each explanation, ascending, and their values in each of its masks, [nnz, M]; others have
            none. The entry of feature f at node j has the number j F + f.
        num_features: The number of features, F.
    """

    kind: str
    rows: Rows
    num_features: int

    @property
    def num_masks(self) -> int:
        return self.rows.value.size(1)

    def values(self, ids: Tensor, numbers: Tensor) -> Tensor:
        r"""The value of nodes or edges [S] under masks [S], [S], [S, 1] or [S, F].

        Mask m of explanation e has the number 2 (e M + m), and what it removes the next.
        """
        asked, place = torch.unique(numbers, return_inverse=True)
        mask = asked // 2
        found = self._kept(ids, place, mask // self.num_masks, mask % self.num_masks)
        removes = (asked % 2 == 1)[place]
        if found.dtype == torch.bool:
            return found ^ removes.view(-1, *[1] * (found.dim() - 1))
        removes = removes.view(-1, *[1] * (found.dim() - 1))
        return torch.where(removes, 1.0 - found, found)

    def _kept(self, ids: Tensor, place: Tensor, explanation: Tensor, mask: Tensor) -> Tensor:
        length = self.rows.length[explanation]
        entry = ragged((self.rows.length.cumsum(0) - self.rows.length)[explanation], length)
        owner = torch.repeat_interleave(length)
        column, value = self.rows.column[entry].long(), self.rows.value[entry, mask[owner]]
        if self.kind == 'feature':
            table = value.new_zeros(explanation.numel(), self.num_features)
            table[owner, column] = value
            return table[place]
        if self.kind == 'entry':
            node, feature = column // self.num_features, column % self.num_features
            spread = value.new_zeros(ids.numel(), self.num_features)
            at, is_there = _find(place, ids, owner, node)
            spread[at[is_there], feature[is_there]] = value[is_there]
            return spread
        at, is_there = _find(owner, column, place, ids)
        found = value.new_zeros(ids.numel())
        if value.numel() > 0:
            found = torch.where(is_there, value[at], found)
        return found[:, None] if self.kind == 'node' else found


def values_at(rows: Rows, other: Rows) -> Tensor:
    r"""The values of ``other`` at the entries of ``rows``, and zero where it has none, [nnz]."""
    owners = [torch.repeat_interleave(each.length) for each in (other, rows)]
    at, is_there = _find(owners[0], other.column.long(), owners[1], rows.column)
    found = other.value.new_zeros(rows.column.numel())
    return torch.where(is_there, other.value[at], found) if other.value.numel() > 0 else found


def _find(groups: Tensor, ids: Tensor, other_groups: Tensor, other_ids: Tensor) -> tuple[Tensor, Tensor]:
    r"""Where each pair of the others is among the first pairs, and whether it is there."""
    size = 1 + max(int(every.max()) if every.numel() > 0 else 0 for every in (ids, other_ids))
    key, wanted = groups * size + ids, other_groups * size + other_ids
    key, order = key.sort()
    at = torch.searchsorted(key, wanted).clamp(max=max(0, key.numel() - 1))
    is_there = key[at] == wanted if key.numel() > 0 else torch.zeros_like(wanted, dtype=torch.bool)
    return (order[at] if key.numel() > 0 else at), is_there


def sides(
    local: Local,
    outputs: Tensor,
    tables: list[Table],
    how: str = 'features',
    explanation: Tensor | None = None,
    run: Run = DEFAULT,
) -> Sides:
    r"""Asks the model about some outputs with what masks keep, and without it.

    Args:
        local: What asks the model.
        outputs: The outputs [B].
        tables: The masks, of nodes (or features), of edges, or of both, which then apply together.
        how: What masks of nodes take away: their ``'features'``, or the ``'nodes'``. Masks of features blank these.
        explanation: The explanation that each output is part of, [B]; by default each has one of its own.
        run: How much to ask at a time.
    """
    num_masks, device = tables[0].num_masks, outputs.device
    if explanation is None:
        explanation = torch.arange(outputs.numel(), device=device)
    numbers = explanation[:, None] * num_masks + torch.arange(num_masks, device=device)
    numbers = (2 * numbers)[..., None] + torch.arange(2, device=device)
    by_kind = {'edge' if table.kind == 'edge' else 'node': table.values for table in tables}
    asked = outputs[:, None, None].expand_as(numbers)
    how = 'features' if {'feature', 'entry'} & {table.kind for table in tables} else how  # which leave nodes there
    found = local.at(asked.reshape(-1), Masks(**by_kind, how=how), numbers.reshape(-1), run)
    return Sides(*found.view(*numbers.shape, -1).unbind(2))


def seen(graph: Graph, outputs: Tensor, kind: str, num_hops: int | None, flow: str, level: str = 'node') -> Rows:
    r"""The units that the model can see from each of some outputs, ascending.

    Args:
        graph: The graph.
        outputs: The outputs [B].
        kind: One of ``KINDS``.
        num_hops: How many hops the model looks; ``None`` if nobody knows, and it may see all.
        flow: The direction of messages.
        level: What the outputs are of.
    """
    size, device = outputs.numel(), outputs.device
    if level == 'graph':
        inside = graph.batch == outputs[:, None]
        if kind == 'edge':
            inside = inside[:, graph.edge_index[0]]
    elif num_hops is None or not graph.has_edge_order:
        count = graph.edge_index.size(1) if kind == 'edge' else graph.num_nodes
        inside = torch.ones(size, count, dtype=torch.bool, device=device)
    else:
        owner, ids = _near(graph, outputs, kind, num_hops, flow, level)
        return _entries(graph, Rows(torch.bincount(owner, minlength=size), ids, torch.ones_like(ids)), kind)
    owner, ids = inside.nonzero(as_tuple=True)
    return _entries(graph, Rows(torch.bincount(owner, minlength=size), ids, torch.ones_like(ids)), kind)


def _near(graph: Graph, outputs: Tensor, kind: str, num_hops: int, flow: str, level: str) -> tuple[Tensor, Tensor]:
    r"""Nodes, or edges that carry messages, within some hops of outputs, with the place of each output, ascending."""
    finder = Neighbourhoods(graph.edge_index, graph.num_nodes, flow)
    ends = graph.nodes_of(outputs)[None] if level == 'node' else graph.pairs.long()[:, outputs]
    place = torch.arange(outputs.numel(), device=outputs.device)

    def merged(owner: Tensor, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
        key = torch.unique(place.repeat(len(ends))[owner] * count + ids)
        return key // count, key % count

    if kind != 'edge':
        around = finder.around(ends.reshape(-1), num_hops)
        return merged(around.owner, around.node, graph.num_nodes)
    if num_hops == 0:
        return place[:0], place[:0]
    around = finder.around(ends.reshape(-1), num_hops - 1)
    edge, at = finder._incoming(around.node)
    return merged(around.owner[at], edge, graph.edge_index.size(1))


def _entries(graph: Graph, rows: Rows, kind: str) -> Rows:
    r"""Of nodes, the features that are not zero, if it is these that are asked about."""
    if kind not in ('entry', 'feature'):
        return rows
    place, feature = graph.x[rows.column].nonzero(as_tuple=True)
    owner = torch.repeat_interleave(rows.length)[place]
    if kind == 'feature':
        key = torch.unique(owner * graph.x.size(1) + feature)
        owner, column = key // graph.x.size(1), key % graph.x.size(1)
    else:
        column = rows.column[place] * graph.x.size(1) + feature
    return Rows(torch.bincount(owner, minlength=rows.length.numel()), column, torch.ones_like(column))
