r"""Probes: what the model answers for all nodes when the features of some are blanked.

The same masks serve every node, so that all evaluations of the model tell of all neighbourhoods at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyg_dnx import options
from pyg_dnx.graph.operator import plain

GOLDEN = 0.618034  # whose multiples fill the unit interval evenly
NUM_PROBES = {'node': 1024, 'edge': 256, 'graph': 512}  # unless the user says otherwise
NUM_FIXED_MASKS = 2  # the first two masks keep all nodes, and none
ALL_BLANKED = 1  # the latter


def probe_masks(num_nodes: int, num_probes: int = NUM_PROBES['node']) -> Tensor:
    r"""The masks [num_probes + 2, num_nodes] of probes: all nodes, none, then random ones in complementary pairs.

    They are the same in every call, and fewer probes have the first of more. Pair k keeps a node with probability
    0.1 + 0.8 · frac(0.618034 k + 0.5), and in its second mask the others.

    Args:
        num_nodes (int): The number of nodes.
        num_probes (int): The number of random masks. (default: ``1024``, as for :class:`ProbeDnXAlgorithm`)
    """
    options.count('num_nodes', num_nodes)
    options.count('num_probes', num_probes, least=0)
    masks = torch.empty(num_probes + NUM_FIXED_MASKS, num_nodes, dtype=torch.bool, device='cpu')
    masks[0], masks[1] = True, False
    generator = torch.Generator(device='cpu').manual_seed(0)
    for pair in range((num_probes + 1) // 2):
        rate = 0.1 + 0.8 * ((GOLDEN * pair + 0.5) % 1.0)
        kept = torch.rand(num_nodes, generator=generator, dtype=torch.float32, device='cpu') < rate
        for place, mask in ((NUM_FIXED_MASKS + 2 * pair, kept), (NUM_FIXED_MASKS + 2 * pair + 1, ~kept)):
            if place < masks.size(0):
                masks[place] = mask
    return masks


def edge_numbers(edge_index: Tensor, pairs: bool = False) -> Tensor:
    r"""A number for each edge, [E], or for each two nodes that edges connect, whatever their direction."""
    if not pairs or edge_index.size(1) == 0:
        return torch.arange(edge_index.size(1), device=edge_index.device)
    ends = plain(edge_index).long().sort(dim=0).values
    return (ends[0] * (ends[1].max() + 1) + ends[1]).unique(return_inverse=True)[1]


def probe_edge_masks(edge_index: Tensor, num_probes: int = NUM_PROBES['node'], pairs: bool = False) -> Tensor:
    r"""The masks [num_probes + 2, E] of probes that drop edges: all, none, then random ones in complementary pairs.

    A model that runs elsewhere is asked on the edges ``edge_index[:, mask]`` that each of them keeps.

    Args:
        edge_index (Tensor): The edges [2, E].
        num_probes (int): The number of random masks. (default: ``1024``, as for :class:`ProbeDnXAlgorithm`)
        pairs (bool): Whether both directions between two nodes are dropped together, for ``edge_score='pairs'``.
            (default: ``False``)
    """
    options.count('num_probes', num_probes, least=0)
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.size(0) != 2:
        got = list(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise ValueError(f"'edge_index' must be a tensor of shape [2, E] (got {got}): pass the edges of the graph")
    number = edge_numbers(edge_index, pairs).cpu()
    count = int(number.max()) + 1 if number.numel() > 0 else 0
    return masks_of_parts(count, num_probes, None)[:, number]


def masks_of_parts(num_nodes: int, num_probes: int, parts: Tensor | None) -> Tensor:
    r"""The same masks, drawn for each part by itself if nodes are in ``parts`` [N], from its size alone.

    So a graph has the same masks alone and in a batch. Pair k of a part keeps a node with a probability that is drawn
    from [0.05, 0.95].
    """
    if parts is None:
        if num_nodes == 0:
            return torch.ones(num_probes + 2, 0, dtype=torch.bool, device='cpu')
        return probe_masks(num_nodes, num_probes)
    masks = torch.empty(num_probes + NUM_FIXED_MASKS, num_nodes, dtype=torch.bool, device='cpu')
    masks[0], masks[1] = True, False
    known: dict[int, Tensor] = {}
    for part in parts.cpu().unique().tolist():
        inside = (parts.cpu() == part).nonzero().view(-1)
        if (size := inside.numel()) not in known:
            generator = torch.Generator(device='cpu').manual_seed(size)
            drawn = torch.rand((num_probes + 1) // 2, size + 1, generator=generator, dtype=torch.float32, device='cpu')
            first = drawn[:, 1:] < 0.05 + 0.9 * drawn[:, :1]
            known[size] = torch.stack([first, ~first], dim=1).flatten(0, 1)[:num_probes]
        masks[NUM_FIXED_MASKS:, inside] = known[size]
    return masks


@dataclass(frozen=True)
class Bits:
    r"""The first masks of all pairs, [K, N], eight to a byte."""

    num_pairs: int
    bytes: Tensor  # [N, K / 8]

    @staticmethod
    def of(masks: Tensor) -> Bits:
        parts = [
            (part.T.to(torch.uint8) << _places(part)[: part.size(0)]).sum(dim=1, dtype=torch.uint8)
            for part in masks.split(8)
        ]
        return Bits(masks.size(0), torch.stack(parts, dim=1))

    def first(self, num_pairs: int) -> Bits:
        return Bits(num_pairs, self.bytes[:, : (num_pairs + 7) // 8])

    def kept(self, nodes: Tensor, numbers: Tensor) -> Tensor:
        r"""Whether masks of some numbers [S], of all pairs one after the other, keep nodes [S]."""
        pair = numbers // 2
        first = (self.bytes[nodes, pair // 8] >> (pair % 8).to(torch.uint8)) & 1
        return (first == 1) != (numbers % 2 == 1)

    def at(self, nodes: Tensor, dtype: torch.dtype) -> Tensor:
        r"""The masks at some nodes, of any shape [...], as zeros and ones [..., K]."""
        bits = (self.bytes[nodes][..., None] >> _places(nodes)) & 1
        return bits.flatten(-2)[..., : self.num_pairs].to(dtype)


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
