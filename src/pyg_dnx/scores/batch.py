r"""Scores for many outputs, each by itself, in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_dnx.checkpoint import Checkpoint
from pyg_dnx.distill.decomposition import Decomposition
from pyg_dnx.distill.distill import Trust
from pyg_dnx.graph.rows import Rows, padded_rows
from pyg_dnx.run import Run
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.rules import Rule

BYTES_PER_ENTRY = 64  # the most that is held for one of them at a time
CHECK_EVERY = 2**28  # bytes of results between two looks at the free memory


class Scored(NamedTuple):
    r"""The scores of some outputs: of all their neighbours, or of the highest.

    What the latter keep is of the evidence, [B, C], or of the sum of all effects, [B, 1].
    """

    rows: Rows | None  # of all
    top: tuple[Tensor, Tensor, Tensor] | None  # nodes and scores [B, k], padded with -1 and 0, and what these keep
    trust: Trust | None  # what the rule knows of each output; ``None`` if that is what the surrogate knows


def score(
    decomposition: Decomposition,
    question: Question,
    rule: Rule,
    state: Any,
    top_k: int | None,
    run: Run,
    checkpoint: Checkpoint | None = None,
) -> Scored:
    r"""Scores the neighbours of each output."""
    pieces = [tuple(tensor.to(question.outputs.device) for tensor in piece) for piece in _known(checkpoint)]
    done, kept, size = sum(piece[0].size(0) for piece in pieces), 0, question.outputs.numel()
    with run.bar('Explaining', 'nodes', total=size, initial=done) as bar:
        for chunk in _chunks(decomposition, question.outputs[done:], run):
            place = chunk + done
            piece = _piece(decomposition, question.at(place), rule, state, top_k, run)
            pieces.append(piece)
            if checkpoint is not None:
                checkpoint.add(piece)
            bar.update(chunk.numel())
            checked, kept = kept // CHECK_EVERY, kept + sum(tensor.nbytes for tensor in piece)
            # It takes as much again to join the pieces.
            if kept // CHECK_EVERY > checked and kept > run.free(question.outputs.device):
                raise MemoryError(
                    f"'index' names {size} nodes, whose scores don't fit into memory (got {kept / 2**30:.1f} GB for "
                    f"the first {place[-1] + 1}): pass 'top_k', or fewer nodes at a time"
                )
    every = pieces[0] if len(pieces) == 1 else tuple(torch.cat(tensors) for tensors in zip(*pieces, strict=True))
    trust = Trust(**dict(zip(rule.facts, every[3:], strict=True))) if rule.facts else None
    if top_k is None:
        return Scored(Rows(*every[:3]), None, trust)
    return Scored(None, (every[0], every[1], every[2]), trust)


def top_scores(
    decomposition: Decomposition, question: Question, rule: Rule, state: Any, top_k: int, run: Run
) -> tuple[Tensor, Tensor]:
    r"""The nodes with the highest scores and these, [B, top_k] each, padded with -1 and 0."""
    parts = [
        _piece(decomposition, question.at(chunk), rule, state, top_k, run)[:2]
        for chunk in _chunks(decomposition, question.outputs, run)
    ]
    nodes, scores = zip(*parts, strict=True)
    return torch.cat(nodes), torch.cat(scores)


def _known(checkpoint: Checkpoint | None) -> list[tuple[Tensor, ...]]:
    return checkpoint.pieces() if checkpoint is not None else []


def _chunks(decomposition: Decomposition, outputs: Tensor, run: Run) -> Iterator[Tensor]:
    if outputs.numel() == 0:
        return
    num_nodes = decomposition.operator.num_nodes
    most = max(run.entries, num_nodes)  # as each product takes time for every node, too
    if run.max_memory is not None or outputs.numel() * num_nodes > run.entries:
        most = min(most, max(1, run.bytes(outputs.device) // BYTES_PER_ENTRY))
    yield from decomposition.chunks(outputs, most)


def _piece(
    decomposition: Decomposition, question: Question, rule: Rule, state: Any, top_k: int | None, run: Run
) -> tuple[Tensor, ...]:
    r"""The scores of a chunk of outputs, as tensors with a row for each output, or for each of their entries."""
    rows = decomposition.rows(question.outputs)
    effects = rule.effects(decomposition, state, question, rows, run)
    scored = rows._replace(value=effects.scores(decomposition, question.outputs, rows))
    facts = () if effects.trust is None else tuple(effects.trust.to_dict().values())
    if top_k is None:
        scored = scored.sorted(decomposition.operator.num_nodes)
        return (*scored._replace(column=scored.column.long()), *facts)
    columns, values, entry = _highest(scored, top_k)
    kept = effects.kept(decomposition, columns.clamp(min=0), rows.at(entry, columns >= 0), values)
    return (columns, values, kept, *facts)


def highest(rows: Rows, k: int) -> tuple[Tensor, Tensor]:
    r"""Returns the columns of the ``k`` highest values of each row, and these, [B, k], padded with -1 and 0."""
    return _highest(rows, k)[:2]


def _highest(rows: Rows, k: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""The same, and where these entries are, [B, k], padded with 0."""
    groups, values, entries = [], [], []
    for group, entry, inside in padded_rows(rows.length):
        value, slot = rows.value.take(entry).masked_fill_(~inside, -torch.inf).topk(min(k, entry.size(1)), dim=1)
        missing = (0, k - value.size(1))
        groups.append(group)
        values.append(F.pad(value, missing, value=-torch.inf))
        entries.append(F.pad(entry.gather(1, slot), missing))
    order = torch.cat(groups)  # put back once, which costs less than group by group
    value, entry = (torch.empty_like(found).index_copy_(0, order, found) for found in map(torch.cat, (values, entries)))
    padding = value == -torch.inf
    column = rows.column.take(entry).long().masked_fill_(padding, -1)
    return column, value.masked_fill_(padding, 0.0), entry
