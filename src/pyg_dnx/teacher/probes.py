r"""Probes: what the model answers for all nodes when the features of some are blanked.

The same masks serve every node, so that all evaluations of the model tell of all neighbourhoods at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric.explain.config import ModelConfig
from tqdm import tqdm

from pyg_dnx import options as checks
from pyg_dnx.teacher.teacher import masked_query, to_targets

GOLDEN = 0.618034  # whose multiples fill the unit interval evenly
NUM_PROBES = 1024  # unless the user says otherwise
UNDRAWN = 2  # the first two masks keep all nodes, and none
BLANK = 1  # the latter


def probe_masks(num_nodes: int, num_probes: int = NUM_PROBES) -> Tensor:
    r"""The masks [num_probes + 2, num_nodes] of probes: all nodes, none, then random ones in complementary pairs.

    They are the same in every call, and fewer probes have the first of more. Pair k keeps a node with probability
    0.1 + 0.8 · frac(0.618034 k + 0.5), and in its second mask the others.

    Args:
        num_nodes (int): The number of nodes.
        num_probes (int): The number of random masks. (default: ``1024``, as for :class:`ProbeDnXAlgorithm`)
    """
    checks.count('num_nodes', num_nodes)
    checks.count('num_probes', num_probes, least=0)
    masks = torch.empty(num_probes + UNDRAWN, num_nodes, dtype=torch.bool, device='cpu')
    masks[0], masks[1] = True, False
    generator = torch.Generator(device='cpu').manual_seed(0)
    for pair in range((num_probes + 1) // 2):
        rate = 0.1 + 0.8 * ((GOLDEN * pair + 0.5) % 1.0)
        kept = torch.rand(num_nodes, generator=generator, dtype=torch.float32, device='cpu') < rate
        for place, mask in ((UNDRAWN + 2 * pair, kept), (UNDRAWN + 2 * pair + 1, ~kept)):
            if place < masks.size(0):
                masks[place] = mask
    return masks


@dataclass(frozen=True)
class Bits:
    r"""Boolean masks [P, N], eight to a byte."""

    num_masks: int
    bytes: Tensor  # [N, P / 8]

    @staticmethod
    def of(masks: Tensor) -> Bits:
        parts = [
            (part.T.to(torch.uint8) << _places(part)[: part.size(0)]).sum(dim=1, dtype=torch.uint8)
            for part in masks.split(8)
        ]
        return Bits(masks.size(0), torch.stack(parts, dim=1))

    def first(self, num_masks: int) -> Bits:
        return Bits(num_masks, self.bytes[:, : (num_masks + 7) // 8])

    def at(self, nodes: Tensor, dtype: torch.dtype) -> Tensor:
        r"""The masks at some nodes, of any shape [...], as zeros and ones [..., P]."""
        bits = (self.bytes[nodes][..., None] >> _places(nodes)) & 1
        return bits.flatten(-2)[..., : self.num_masks].to(dtype)


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


def ask(
    model: torch.nn.Module | None,
    x: Tensor,
    edge_index: Any,
    kwargs: dict[str, Any],
    config: ModelConfig,
    masks: Tensor,
    first: int = UNDRAWN,
    probe_outputs: Tensor | np.ndarray | None = None,
    progress: bool | None = False,
) -> Iterator[Tensor]:
    r"""Yields what the model says under each of ``masks`` [P, N] from ``first`` on.

    These are class probabilities or regression outputs [N, C], in float64. The model is not evaluated if what it
    returns under all masks, or more, is given as ``probe_outputs``.
    """
    if probe_outputs is not None:
        for outputs in probe_outputs[first : masks.size(0)]:
            yield _answer(outputs, x, config, "'probe_outputs' must hold what a model may return", 'check them')
        return
    rule, remedy = "'model' must answer where features are blanked", "use FastDnX with distillation 'paper'"
    hidden = None if progress is None else not progress
    for mask in tqdm(masks[first:], desc='Probing', unit=' probes', disable=hidden, delay=0 if progress else 1):
        outputs = masked_query(cast(torch.nn.Module, model), x, edge_index, kwargs, mask.to(x.device)[:, None], None)
        yield _answer(outputs, x, config, rule, remedy)


def _answer(outputs: Tensor | np.ndarray, x: Tensor, config: ModelConfig, rule: str, remedy: str) -> Tensor:
    try:
        return to_targets(outputs, config, torch.float64, x.device)[0]
    except ValueError as error:
        raise ValueError(f'{rule} (got: {error}): {remedy}') from error
