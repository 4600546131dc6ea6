r"""Verdicts by asking the model: what it answers with what a mask keeps, without it, and under random masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from pyg_dnx.distill.distill import Memo
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import Rows, runs
from pyg_dnx.results.aim import Aim
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.scores.masks import SCALINGS
from pyg_dnx.scores.question import Question
from pyg_dnx.teacher.local import Local
from pyg_dnx.teacher.sides import Table, seen, sides, values_at
from pyg_dnx.teacher.teacher import Teacher

VERDICTS = ('trustworthy', 'doubtful', 'not explained')
TRUSTWORTHY, DOUBTFUL, NOT_EXPLAINED = range(3)
NUM_RANDOM = 20  # masks of the same size
SURE, HALF = 0.95, 0.5  # of these, that a trustworthy explanation must be above, and one that explains anything
AT_A_TIME = 1024  # outputs; from more that are explained jointly, the model sees all
ROUNDING = 1e-6  # of probabilities; closer ones are tied
WORDS = ('keep', 'take')
NOUNS = {'node': 'nodes', 'edge': 'edges', 'feature': 'features', 'entry': 'features of nodes'}


@dataclass(frozen=True, eq=False)
class Measured:
    r"""What the model answered about explanations, at each explained output.

    ``before``, ``again``, ``kept`` and ``removed`` are probabilities of the explained class; for regression, minus the
    distance from the model's output, in standard deviations of its outputs.

    Attributes:
        label (Tensor): The explained class, [B]; -1 for regression.
        before (Tensor): On the graph, [B].
        again (Tensor): The same, asked once more in another random state, [B].
        kept (Tensor): With nothing but what the mask keeps, [B].
        removed (Tensor): Without it, [B].
        keeps (Tensor): Whether keeping preserves the prediction, [B].
        changes (Tensor): Whether removing changes it, [B].
        kept_above (Tensor): The share of random masks of the same size with which less is kept; ties count half, [B].
        removed_above (Tensor): The share without which more is left, [B].
        is_moved (Tensor): Whether any of these masks moves the model's answer, [B].
        size (Tensor): How much the mask keeps, of each kind, [B, K].
        room (Tensor): How much it could keep, [B, K].
        is_soft (Tensor): Whether it has values between 0 and 1, [B].
        kinds (tuple): What that is: nodes, edges, features, entries.
        is_refined (bool): Whether masks were improved by swaps before.
        class_names (list or dict, optional): What to call classes in sentences.
    """

    label: Tensor
    before: Tensor
    again: Tensor
    kept: Tensor
    removed: Tensor
    keeps: Tensor
    changes: Tensor
    kept_above: Tensor
    removed_above: Tensor
    is_moved: Tensor
    size: Tensor
    room: Tensor
    is_soft: Tensor
    kinds: tuple[str, ...]
    is_refined: bool = False
    class_names: Any = None

    @property
    def is_random(self) -> bool:
        r"""Whether the model answers otherwise when it is asked again."""
        return bool(_differs(self.again, self.before).any())

    @property
    def verdict(self) -> Tensor:
        r"""0 for trustworthy, 1 for doubtful, 2 for not explained, [B]."""
        is_sure = self.keeps & (self.kept_above >= SURE) & (self.removed_above >= SURE)
        is_not = (self.kept_above <= HALF) & (self.removed_above <= HALF)
        is_not = is_not | (~self.keeps & ~self.changes)
        found = torch.where(is_sure, TRUSTWORTHY, DOUBTFUL).masked_fill(is_not, NOT_EXPLAINED)
        return torch.full_like(found, NOT_EXPLAINED) if self.is_random else found

    def at(self, places: Tensor) -> Measured:
        r"""The same of some of the outputs."""
        rows: dict[str, Any] = {name: value[places] for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **rows)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), 'kinds': list(self.kinds), 'class_names': None}

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Measured:
        return Measured(**{**content, 'kinds': tuple(content['kinds'])})

    @staticmethod
    def cat(parts: list[Measured]) -> Measured:
        r"""All parts, one after the other."""
        names = [field.name for field in fields(Measured) if isinstance(getattr(parts[0], field.name), Tensor)]
        joined: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **joined)

    def sentence(self, b: int) -> str:
        r"""The verdict on explanation ``b``, what was seen, and what to do about it."""
        verdict = int(self.verdict[b])
        start = VERDICTS[verdict].capitalize()
        if self.is_random:
            return (
                f'{start}: the model answers at random ({self._value(self.before, b)}, and '
                f'{self._value(self.again, b)} when asked again): make it deterministic in evaluation mode.'
            )
        if not bool(self.is_moved[b]):
            return (
                f'{start}: the model answers the same ({self._value(self.before, b)}) whatever {self._nouns} are kept, '
                f'so that they explain nothing{self._other_way}.'
            )
        seen = f'{start}: {self._seen(b)}'
        if verdict == TRUSTWORTHY:
            return f'{seen}.'
        if bool((self.size[b] >= self.room[b]).all()) and not self.is_soft[b]:
            return f'{seen}. It keeps all that the model sees: keep fewer.'
        if self.is_refined:
            return f"{seen}. Swaps find no better mask of this size: pass a larger 'size' to 'refine'."
        return f"{seen}. Improve it with 'refine'."

    def _seen(self, b: int) -> str:
        of_class = 'the output' if self.label[b] < 0 else self._class(int(self.label[b]))
        values = f'{self._value(self.before, b)} → {self._number(self.kept, b)}'
        if self.label[b] < 0:
            values = self._value(self.kept, b)
        the = '' if self.is_soft[b] else 'the '
        sizes = ' and '.join(
            f'{the}{size:,} {NOUNS[kind] if size != 1 else NOUNS[kind].replace("s", "", 1)}'
            for size, kind in zip(self.size[b].tolist(), self.kinds, strict=True)
        )
        how = ' by their weights' if self.is_soft[b] else ''
        randomly = [round(NUM_RANDOM * (1.0 - float(share[b])), 6) for share in (self.kept_above, self.removed_above)]
        counts = ['none' if count == 0.0 else f'{count:g}' for count in randomly]
        keep, take = (word + ('' if count > 1.0 else 's') for word, count in zip(WORDS, randomly, strict=True))
        most = NUM_RANDOM - round(SURE * NUM_RANDOM)
        limit = f', where at most {most} may' if max(randomly) > most else ''
        return (
            f'keeping {sizes}{how} {"preserves" if self.keeps[b] else "loses"} {of_class} ({values}); removing them '
            f'{"changes it" if self.changes[b] else "does not change it"} ({self._value(self.removed, b)}); of '
            f'{NUM_RANDOM} random masks of this size, {counts[0]} {keep} as much and {counts[1]} {take} as much{limit}'
        )

    def _class(self, label: int) -> str:
        names = dict(enumerate(self.class_names)) if isinstance(self.class_names, list | tuple) else self.class_names
        return str((names or {}).get(label, f'class {label}'))

    @property
    def _nouns(self) -> str:
        return ' and '.join(NOUNS[kind] for kind in self.kinds)

    @property
    def _other_way(self) -> str:
        if 'edge' in self.kinds:
            return ''
        return ": ask about edges, with edge_mask_type='object' and no node mask"

    def _value(self, values: Tensor, b: int) -> str:
        return f'{"off by" if self.label[b] < 0 else "p"} {self._number(values, b)}'

    def _number(self, values: Tensor, b: int) -> str:
        return f'{abs(float(values[b])):.2f}'.removeprefix('0')


@dataclass(frozen=True, eq=False)
class Asker:
    r"""What asks a model about a graph, and remembers its answers.

    Args:
        local: What asks about single outputs.
        memo: Where what was asked is kept.
    """

    local: Local
    memo: Memo

    @staticmethod
    def of(teacher: Teacher, graph: Graph, outputs: Tensor, memo: Memo | None = None) -> Asker:
        r"""The asker, given what the model says of all outputs, [O, C]."""
        memo = Memo() if memo is None else memo
        return Asker(Local(teacher, graph, outputs, teacher.reach, memo.get('copies', dict)), memo)

    @property
    def again(self) -> Tensor:
        r"""What the model says of all outputs in another random state, [O, C]: the same, if it does not draw lots."""
        found = self.memo.get('asked again', self._ask_again)
        return self.local.outputs if found is None else found

    def _ask_again(self) -> Tensor | None:
        local = self.local
        first = local.teacher.redrawn(local.graph, 1)
        if not bool(_differs(first, local.outputs.double()).any()):
            return None
        second = local.teacher.redrawn(local.graph, 2)  # as what is known may have come from elsewhere
        return second if bool(_differs(first, second).any()) else None

    def seen(self, outputs: Tensor, kind: str) -> Rows:
        r"""The units that the model can see from each of some outputs."""
        teacher = self.local.teacher
        reach = teacher.reach if outputs.numel() <= AT_A_TIME else None
        return seen(self.local.graph, outputs, kind, reach, teacher.flow, teacher.level)


def measure(
    asker: Asker, question: Question, tables: list[Table], how: str = 'features', run: Run = DEFAULT
) -> Measured:
    r"""Asks the model about explanations, and about random masks with the same values.

    Args:
        asker: What asks the model.
        question: What is explained, B outputs.
        tables: The masks, one for each explanation: of nodes or features, of edges, or of both. There are as many
            explanations as outputs, or one of all outputs.
        how: What masks of nodes take away.
        run: How much to ask at a time.
    """
    outputs = question.outputs
    aim = Aim.of(asker.local.outputs, outputs, asker.local.teacher.config, question.target)
    again = asker.again[outputs].double()
    count, parts = tables[0].rows.length.numel(), []
    if bool(_differs(aim.worth(again), aim.worth(aim.before)).any()):  # whatever is asked, the answer is another draw
        same = aim.before[:, None].expand(-1, 1 + NUM_RANDOM, -1)
        return _measured(aim, again, same, same, tables, torch.zeros_like(outputs) if count == 1 else None)
    is_joint = count == 1 and outputs.numel() > 1
    seeds = outputs[:1] if is_joint else outputs
    cost = torch.stack([table.rows.length for table in tables]).sum(dim=0) * 2 * (1 + NUM_RANDOM)
    for chunk in runs(cost.clamp(min=1), 4 * run.entries):
        some = [_with_random(_at(table, chunk), seeds[chunk]) for table in tables]
        mine = torch.arange(outputs.numel(), device=outputs.device) if is_joint else chunk
        explanation = torch.zeros_like(mine) if is_joint else None
        found = sides(asker.local, outputs[mine], some, how, explanation, run)
        parts.append(_measured(aim.at(mine), again[mine], found.kept, found.removed, some, explanation))
    return parts[0] if len(parts) == 1 else Measured.cat(parts)


def _measured(
    aim: Aim, again: Tensor, kept: Tensor, removed: Tensor, tables: list[Table], explanation: Tensor | None
) -> Measured:
    keep, rest = aim.worth(kept), aim.worth(removed)  # [B, 1 + R]
    before = aim.worth(aim.before)
    sizes = [torch.stack([_sum(table.rows, table.rows.value[:, 0] > 0), table.rows.length]) for table in tables]
    size, room = torch.stack(sizes, dim=2)
    is_soft = torch.stack([_sum(table.rows, _is_between(table.rows.value[:, 0])) > 0 for table in tables]).any(dim=0)
    if explanation is not None:
        size, room, is_soft = (each[explanation] for each in (size, room, is_soft))
    return Measured(
        label=torch.full_like(aim.before[:, 0], -1).long() if aim.classes is None else aim.classes,
        before=before,
        again=aim.worth(again),
        kept=keep[:, 0],
        removed=rest[:, 0],
        keeps=aim.holds(kept)[:, 0],
        changes=~aim.holds(removed)[:, 0],
        kept_above=_share_below(keep),
        removed_above=_share_below(-rest),
        is_moved=(torch.cat([keep, rest], dim=1) - before[:, None]).abs().amax(dim=1) > ROUNDING,
        size=size,
        room=room,
        kinds=tuple(table.kind for table in tables),
        is_soft=is_soft,
    )


def _differs(values: Tensor, others: Tensor) -> Tensor:
    return (values - others).abs() > 1e-4 * others.abs().clamp(min=1.0)


def _share_below(values: Tensor) -> Tensor:
    r"""The share of all values but the first that are below it, ties counting half, [B]."""
    gap = values[:, :1] - values[:, 1:]
    return ((gap > ROUNDING).double() + 0.5 * (gap.abs() <= ROUNDING).double()).mean(dim=1)


def _sum(rows: Rows, values: Tensor) -> Tensor:
    owner = torch.repeat_interleave(rows.length)
    return torch.zeros_like(rows.length).index_add_(0, owner, values.long())


def _is_between(values: Tensor) -> Tensor:
    return (values > 0) & (values < 1)


def _at(table: Table, places: Tensor) -> Table:
    return replace(table, rows=table.rows.take(places))


def _with_random(table: Table, seeds: Tensor) -> Table:
    r"""The masks, and after each the same values in random order, which is the same whenever its output is asked."""
    rows, device = table.rows, table.rows.value.device
    drawn = torch.cat([rows.value.new_zeros(0, NUM_RANDOM, dtype=torch.float64), *_draws(rows.length, seeds)]).to(
        device
    )
    owner = torch.repeat_interleave(rows.length)[:, None]
    order = (owner + drawn).argsort(dim=0)
    value = torch.cat([rows.value[:, :1], rows.value[:, 0][order]], dim=1)
    return replace(table, rows=rows._replace(value=value))


def _draws(length: Tensor, seeds: Tensor) -> Iterator[Tensor]:
    for count, seed in zip(length.tolist(), seeds.tolist(), strict=True):
        generator = torch.Generator(device='cpu').manual_seed(seed)
        yield torch.rand(count, NUM_RANDOM, generator=generator, dtype=torch.float64, device='cpu')


def tables_of(asker: Asker, outputs: Tensor, node_mask: Tensor | None, edge_mask: Tensor | None) -> list[Table]:
    r"""The masks of one explanation, over what the model sees from its outputs."""
    tables = []
    for mask, is_edge in ((node_mask, False), (edge_mask, True)):
        if mask is None:
            continue
        kind = 'edge' if is_edge else kind_of(mask, asker.local.graph.num_nodes)
        rows = asker.seen(outputs, kind)
        column = rows.column if outputs.numel() == 1 else rows.column.unique()
        value = mask.detach().reshape(-1)[column]
        if is_edge and bool(((value == 0) | (value == 1)).all()):
            value = value > 0  # which drops edges
        length = torch.tensor([column.numel()], device=column.device)
        tables.append(Table(kind, Rows(length, column, value[:, None]), asker.local.graph.x.size(1)))
    return tables


def measure_each(asker: Asker, question: Question, scored: Rows, scaling: str, run: Run = DEFAULT) -> Measured:
    r"""Asks the model about explanations by nodes, of one output each, some at a time.

    Args:
        asker: What asks the model.
        question: What is explained, B outputs.
        scored: The nodes of each explanation and their scores.
        scaling: How scores become masks: ``'top'`` keeps all nodes that are ``scored``, and no others.
        run: How much to ask at a time.
    """
    parts = []
    for places in torch.arange(question.outputs.numel(), device=scored.length.device).split(AT_A_TIME):
        mine, outputs = scored.take(places), question.outputs[places]
        masks = [
            torch.ones_like(score) if scaling == 'top' else SCALINGS[scaling](score)
            for score in mine.value.split(mine.length.tolist())
        ]
        units = asker.seen(outputs, 'node')
        value = values_at(units, mine._replace(value=torch.cat(masks)))
        table = Table('node', units._replace(value=value[:, None]), asker.local.graph.x.size(1))
        parts.append(measure(asker, question.at(places), [table], run=run))
    return Measured.cat(parts)


def kind_of(node_mask: Tensor, num_nodes: int) -> str:
    r"""What a mask of nodes, or of features, is of; one of shape [1, 1] is of the only feature."""
    if node_mask.shape == (num_nodes, 1):
        return 'node'
    return 'feature' if node_mask.size(0) == 1 else 'entry'
