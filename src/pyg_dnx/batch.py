r"""Explains many nodes, each by itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.explain import Explanation
from tqdm import tqdm

from pyg_dnx import checks
from pyg_dnx.directions import Directions
from pyg_dnx.distillation import Distilled
from pyg_dnx.propagation import padded_rows, row_chunks, rows

with warnings.catch_warnings():  # PyTorch announces, once a process, that CSR is in beta
    warnings.simplefilter('ignore')
    torch.sparse_csr_tensor(
        torch.zeros(2, dtype=torch.long, device='cpu'),
        torch.zeros(0, dtype=torch.long, device='cpu'),
        torch.zeros(0, device='cpu'),
        (1, 1),
    )


class NodeExplanations:
    r"""The explanations of many nodes, each by itself. ``explanations[b]`` is that of node ``index[b]``, for PyG.

    Attributes:
        index (Tensor): The explained nodes [B].
        scores (Tensor, optional): Their signed scores, a sparse CSR matrix [B, N]; ``None`` if only a ``top_k`` was
            kept.
        surrogate_agreement (Tensor): Whether the surrogate predicts the model's class at each of them, [B].
        distillation_error (Tensor): How far its prediction is from the model's there, [B].
        bias_decides (Tensor): Whether its class comes from the bias and not from nodes, [B].
    """

    def __init__(
        self,
        index: Tensor,
        scores: Tensor | None,
        top: tuple[Tensor, ...] | None,
        trust: dict[str, Tensor],
        explain: Callable[[int], Explanation],
    ) -> None:
        self.index = index
        self.scores = scores
        self.surrogate_agreement = trust['surrogate_agreement']
        self.distillation_error = trust['distillation_error']
        self.bias_decides = trust['bias_decides']
        self._top = top
        self._explain = explain

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        r"""Returns, for each explained node, the ``k`` nodes with the highest scores, and these scores.

        Both are [B, k], highest first; where a neighbourhood is smaller, padded with node -1 and score 0.
        """
        checks.count('k', k)
        if self._top is not None:
            if k > self._top[0].size(1):
                raise ValueError(
                    f"'k' must be at most {self._top[0].size(1)}, as many as were kept (got {k}): explain the nodes "
                    f"with a larger 'top_k'"
                )
            return self._top[0][:, :k], self._top[1][:, :k]
        scores = cast(Tensor, self.scores)
        return highest(scores.crow_indices().diff(), scores.col_indices(), scores.values(), k)

    def __getitem__(self, b: int) -> Explanation:
        if not isinstance(b, int):
            raise TypeError(f'explanations are indexed by an int (got {b!r}): explain the nodes you want, or loop')
        if not -len(self) <= b < len(self):
            raise IndexError(f'there are explanations 0 to {len(self) - 1} (got {b}): see their nodes in `index`')
        return self._explain(b % len(self))

    def __iter__(self) -> Iterator[Explanation]:
        return map(self._explain, range(len(self)))

    def __len__(self) -> int:
        return self.index.numel()

    def __repr__(self) -> str:
        return f'NodeExplanations({len(self)} nodes)'


def score_nodes(
    distilled: Distilled,
    nodes: Tensor,
    toward: Tensor | None,
    find_directions: Callable[[Distilled, Tensor, Tensor | None], Directions],
    top_k: int | None,
    progress: bool | None,
) -> tuple[Tensor, ...]:
    r"""Scores the neighbours of each of ``nodes`` [B], in chunks of bounded memory.

    Returns:
        The number of neighbours [B], the neighbours and their scores, one after the other; or the top k of each node
        and their scores, both [B, top_k].
    """
    decomposition = distilled.decomposition
    operator, num_hops = decomposition.operator, decomposition.surrogate.num_hops
    pieces: list[tuple[Tensor, ...]] = []
    chunks = row_chunks(operator, nodes, num_hops)
    hidden = not progress if progress is not None else (True if len(chunks) == 1 else None)  # None: if no terminal
    with tqdm(total=nodes.numel(), desc='Explaining', unit=' nodes', disable=hidden) as bar:
        for chunk in chunks:
            direction = find_directions(distilled, nodes[chunk], None if toward is None else toward[chunk]).direction
            owner, column, value = rows(operator, nodes[chunk], num_hops)
            scores = value * (decomposition.hidden[column] * direction.to(value.dtype)[owner]).sum(dim=1)
            count = torch.bincount(owner, minlength=chunk.numel())
            pieces.append((count, column, scores) if top_k is None else highest(count, column, scores, top_k))
            bar.update(chunk.numel())
    return tuple(torch.cat(tensors) for tensors in zip(*pieces, strict=True))


def to_csr(num_nodes: int, count: Tensor, column: Tensor, scores: Tensor) -> Tensor:
    r"""Returns scores that are listed row by row as a sparse CSR matrix [B, N]."""
    rowptr = F.pad(count.cumsum(0), (1, 0))
    size = (count.numel(), num_nodes)
    return torch.sparse_csr_tensor(rowptr, column, scores, size, device=scores.device, check_invariants=False)


def highest(count: Tensor, column: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    r"""Returns the ``k`` highest scores of each row and their columns, [B, k], padded with column -1 and score 0."""
    columns = column.new_full((count.numel(), k), -1)
    values = scores.new_zeros(count.numel(), k)
    for row, entry, inside in padded_rows(count):
        padded = torch.where(inside, scores[entry], -torch.inf)
        value, slot = padded.topk(min(k, padded.size(1)), dim=1)
        found = value > -torch.inf
        columns[row, : value.size(1)] = torch.where(found, column[entry.gather(1, slot)], -1)
        values[row, : value.size(1)] = torch.where(found, value, 0.0)
    return columns, values
