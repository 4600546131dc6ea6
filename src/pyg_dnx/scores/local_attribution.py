r"""Scores of nodes, features and edges from effects that were found at each explained node by itself.

Node j scores :math:`\tilde{A}^L_{ij} \theta_{ij}` for node i: as in a surrogate whose hidden :math:`h_j` node i has for
its own. Edges carry what they carry there. Features share a node's score as they share the surrogate's evidence for
the target, by size: that is no effect of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pyg_dnx.distill.surrogate import Decomposition
from pyg_dnx.graph.rows import Rows
from pyg_dnx.scores.attribution import Attribution, attribute

MAX_SIZE = 2**22  # numbers at a time


class LocalAttribution(Attribution):
    r"""The scores for some nodes, explained jointly: the sum of what explains each of them.

    Args:
        decomposition (Decomposition): The surrogate on the graph.
        nodes (Tensor): The explained nodes [B].
        directions (Tensor): The direction of each one's target, [B, C].
        rows (Rows): Their rows of :math:`\tilde{A}^L`.
        effect (Tensor): :math:`\theta_{ij}` for each entry of these, [nnz].
    """

    def __init__(self, decomposition: Decomposition, nodes: Tensor, directions: Tensor, rows: Rows, effect: Tensor):
        super().__init__(decomposition, nodes, directions)
        self.nodes, self.directions, self.rows, self.effect = nodes, directions, rows, effect
        self.owner = torch.repeat_interleave(rows.length)
        self.place = torch.searchsorted(self.neighbourhood, rows.column.long())

    def node_scores(self) -> Tensor:
        scores = self.effect.new_zeros(self.neighbourhood.numel())
        return scores.index_add_(0, self.place, self.effect * self.rows.value)

    def attribute_scores(self, x: Tensor) -> Tensor:
        scores = self.effect * self.rows.value
        total = scores.new_zeros(self.neighbourhood.numel(), x.size(1))
        for part, share in self._shares(x):
            total.index_add_(0, self.place[part], share.mul_(scores[part, None]))
        return total

    def feature_scores(self, x: Tensor) -> Tensor:
        return self.attribute_scores(x).sum(dim=0)

    def edge_flow(self, edge_index: Tensor, inside: Tensor) -> Tensor:
        total = self.effect.new_zeros(edge_index.size(1))
        for nodes, hidden in self._hidden(self.effect):
            own = torch.eye(nodes.numel(), dtype=hidden.dtype, device=hidden.device)
            local = attribute(self.decomposition.with_hidden(hidden), nodes, own, once=True)
            total += local.edge_flow(edge_index, local.edges_inside(edge_index))
        return total

    def masked(self, x: Tensor, node_mask: Tensor | None, edge_mask: Tensor | None) -> Tensor:
        r"""The sum of scores for each explained node, [B], if features and messages are multiplied by masks.

        Args:
            x: The features [N, F].
            node_mask: Of shape [N, 1], [N, F] or [1, F].
            edge_mask: Of shape [E].
        """
        operator, num_hops = self.decomposition.operator, self.decomposition.surrogate.num_hops
        if edge_mask is not None:
            operator = operator.masked(edge_mask)
        effect = self.effect if node_mask is None else self.effect * self._kept(x, node_mask)
        found = []
        for nodes, signal in self._hidden(effect):
            for _ in range(num_hops):
                signal = operator @ signal
            found.append(signal[nodes].diagonal())
        return torch.cat(found)

    def _kept(self, x: Tensor, node_mask: Tensor) -> Tensor:
        r"""What a node mask leaves of each entry's score, [nnz]."""
        column = self.rows.column.long()
        if node_mask.size(1) == 1:
            return node_mask[column, 0].to(self.effect.dtype)
        kept = torch.zeros_like(self.effect)
        for part, share in self._shares(x):
            mask = node_mask if node_mask.size(0) == 1 else node_mask[column[part]]
            kept[part] = (share * mask.to(share.dtype)).sum(dim=1)
        return kept

    def _shares(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        r"""The share of each feature in the score of an entry, for some entries [m] at a time, [m, F]."""
        weight = self.decomposition.surrogate.weight
        toward = self.directions.to(weight.dtype) @ weight.T  # [B, F]
        for part in torch.arange(self.effect.numel(), device=x.device).split(max(1, MAX_SIZE // x.size(1))):
            values = x.detach()[self.rows.column[part].long()].to(weight.dtype)
            share = (values * toward[self.owner[part]]).abs_()
            # Where the surrogate has no evidence, all features that are there share alike; where none is, all.
            for fallback in ((values != 0.0).to(share.dtype), torch.ones_like(share)):
                share = torch.where(share.sum(dim=1, keepdim=True) > 0.0, share, fallback)
            yield part, share.div_(share.sum(dim=1, keepdim=True))

    def _hidden(self, effect: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        r"""Some explained nodes [b] at a time, and effects on them, [N, b]: each has a hidden signal of its own."""
        num_nodes = self.decomposition.operator.num_nodes
        width = max(1, MAX_SIZE // num_nodes)
        for first in range(0, self.nodes.numel(), width):
            here = (self.owner >= first) & (self.owner < first + width)
            nodes = self.nodes[first : first + width]
            hidden = effect.new_zeros(num_nodes, nodes.numel())
            hidden[self.rows.column[here].long(), self.owner[here] - first] = effect[here]
            yield nodes, hidden
