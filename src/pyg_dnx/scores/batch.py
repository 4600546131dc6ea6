r"""Scores for many nodes, each by itself, in chunks of bounded memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from pyg_dnx.checkpoint import Checkpoint
from pyg_dnx.distill.surrogate import Decomposition
from pyg_dnx.graph.rows import Rows, padded_rows, row_chunks, rows_of
from pyg_dnx.run import budget, free_memory
from pyg_dnx.scores.rules import Rule

MAX_CHUNK_ENTRIES = 2**20  # entries of rows at a time, more on graphs of more nodes; others take up to a fifth longer
BYTES_PER_ENTRY = 64  # the most that is held for one of them at a time
CHECK_EVERY = 2**28  # bytes of results between two looks at the free memory


def score_nodes(
    decomposition: Decomposition,
    nodes: Tensor,
    toward: Tensor | None,
    rule: Rule,
    top_k: int | None,
    max_memory: int | None = None,
    progress: bool | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    r"""Scores the neighbours of each of ``nodes`` [B].

    Returns:
        The number of neighbours [B], the neighbours and their scores, one after the other; or the top k of each node
        and their scores, both [B, top_k], and what these contribute to the logits of the node, [B, C]. And what the
        rule says of each node besides, [B].
    """
    operator, num_hops = decomposition.operator, decomposition.surrogate.num_hops
    known = checkpoint.pieces() if checkpoint is not None else []
    pieces = [tuple(tensor.to(nodes.device) for tensor in piece) for piece in known]
    done, kept = sum(piece[0].size(0) for piece in pieces), 0
    max_entries = max(MAX_CHUNK_ENTRIES, operator.num_nodes)  # as each product takes time for every node, too
    if max_memory is not None or nodes.numel() * operator.num_nodes > MAX_CHUNK_ENTRIES:
        max_entries = min(max_entries, max(1, budget(max_memory, nodes.device) // BYTES_PER_ENTRY))
    chunks = row_chunks(operator, nodes[done:], num_hops, max_entries) if done < nodes.numel() else []
    hidden = (len(chunks) == 1 or None) if progress is None else not progress  # None: where there is no terminal
    delay = 0 if progress else 1
    with tqdm(total=len(nodes), initial=done, desc='Explaining', unit=' nodes', disable=hidden, delay=delay) as bar:
        for chunk in chunks:
            place = chunk + done
            rows = rows_of(operator, nodes[place], num_hops)
            scores, trust = rule.score(decomposition, nodes[place], None if toward is None else toward[place], rows)
            scored = rows._replace(value=scores)
            if top_k is None:
                scored = scored.sorted(operator.num_nodes)
                piece = tuple(scored._replace(column=scored.column.long()))
            else:
                columns, values, entry = _highest(scored, top_k)
                weight = rows.value.take(entry).masked_fill_(columns < 0, 0.0)
                piece = columns, values, _mixtures(columns.clamp(min=0), weight, decomposition.hidden)
            piece = (*piece, *(trust[name] for name in rule.facts))
            pieces.append(piece)
            if checkpoint is not None:
                checkpoint.add(piece)
            bar.update(chunk.numel())
            checked, kept = kept // CHECK_EVERY, kept + sum(tensor.nbytes for tensor in piece)
            # It takes as much again to join the pieces.
            if kept // CHECK_EVERY > checked and kept > free_memory(nodes.device):
                raise MemoryError(
                    f"'index' names {nodes.numel()} nodes, whose scores don't fit into memory (got "
                    f"{kept / 2**30:.1f} GB for the first {place[-1] + 1}): pass 'top_k', or fewer nodes at a time"
                )
    every = pieces[0] if len(pieces) == 1 else tuple(torch.cat(tensors) for tensors in zip(*pieces, strict=True))
    return every[:3], dict(zip(rule.facts, every[3:], strict=True))


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


def _mixtures(nodes: Tensor, weight: Tensor, hidden: Tensor) -> Tensor:
    r"""The sum of the vectors ``hidden`` [N, C] of some nodes [B, k] by weights [B, k], for each of B, [B, C]."""
    return F.embedding_bag(nodes, hidden, mode='sum', per_sample_weights=weight)
