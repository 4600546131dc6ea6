r"""Scores of nodes, features and edges: three views of one linear function.

The contributions of the surrogate to the explained nodes, projected on a direction :math:`D_i` for each of them,
depend on the graph only through the pulled-back signal :math:`B_k = (\tilde{A}^\top)^k D`. With :math:`h = X \Theta`:

- node j scores :math:`\langle h_j, B_L[j] \rangle`,
- its feature f scores :math:`X_{jf} \langle \Theta_f, B_L[j] \rangle`,
- the edge u → v carries :math:`\tilde{A}_{vu} \sum_l \langle (\tilde{A}^l h)_u, B_{L-1-l}[v] \rangle`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_dnx.propagation import Operator, pull_back
from pyg_dnx.surrogate import Decomposition


class Attribution:
    r"""The scores for some nodes, explained jointly: the sum of what explains each of them.

    Args:
        decomposition (Decomposition): The surrogate on the graph.
        nodes (Tensor): The explained nodes [B].
        directions (Tensor): A direction for each of them, [B, C].
    """

    def __init__(self, decomposition: Decomposition, nodes: Tensor, directions: Tensor) -> None:
        self.decomposition = decomposition
        num_hops = decomposition.surrogate.num_hops
        directions = directions.to(decomposition.hidden.dtype)
        if nodes.numel() == 1:  # one row of Ã^L serves all outputs
            steps = pull_back(decomposition.operator, nodes, torch.ones_like(directions[:, :1]), num_hops)
            self.steps = [(reached, row * directions) for reached, row in steps]
        else:
            nodes, merged = torch.unique(nodes, return_inverse=True)
            signal = directions.new_zeros(nodes.numel(), directions.size(1)).index_add_(0, merged, directions)
            self.steps = pull_back(decomposition.operator, nodes, signal, num_hops)
        self.neighbourhood, self.signal = self.steps[-1]  # [n], ascending, and [n, C]

    def node_scores(self) -> Tensor:
        r"""The score of each node in the neighbourhood, [n]."""
        return (self.decomposition.hidden[self.neighbourhood] * self.signal).sum(dim=1)

    def attribute_scores(self, x: Tensor) -> Tensor:
        r"""The score of each feature of each node in the neighbourhood, [n, F]."""
        weight = self.decomposition.surrogate.weight
        return x[self.neighbourhood].to(weight.dtype) * (self.signal @ weight.T)

    def feature_scores(self, x: Tensor) -> Tensor:
        r"""The score of each feature, summed over nodes, [F]."""
        weight = self.decomposition.surrogate.weight
        return ((x[self.neighbourhood].to(weight.dtype).T @ self.signal) * weight).sum(dim=1)

    def edge_scores(self, edge_index: Tensor, kind: str, node_score: Tensor) -> tuple[Tensor, Tensor]:
        r"""Scores edges, given the scores [N] of all nodes.

        Returns:
            The scores [E], and which edges carry a message to an explained node, [E].
        """
        flow = self.decomposition.surrogate.flow
        source, target = edge_index if flow == 'source_to_target' else edge_index.flip(0)
        inside = torch.zeros_like(source, dtype=torch.bool)
        if len(self.steps) > 1:
            receives = torch.zeros_like(node_score, dtype=torch.bool)
            receives[self.steps[-2][0]] = True
            inside = receives[target]
        if kind == 'flow':
            entry, flows = self.flow()
            edge_id = self.decomposition.operator.edge_id[entry]
            scores = node_score.new_zeros(source.numel())
            scores[edge_id[edge_id >= 0]] = flows[edge_id >= 0]
            return scores, inside
        if kind == 'geometric':
            node_score = node_score.clamp(min=0.0).sqrt()
            return torch.where(inside, node_score[source] * node_score[target], 0.0), inside
        return torch.where(inside, node_score[source] + node_score[target], 0.0), inside

    def flow(self) -> tuple[Tensor, Tensor]:
        r"""What each entry of Ã carries, self-loops included: the entries that carry anything [m], and how much [m]."""
        operator: Operator = self.decomposition.operator
        if len(self.steps) == 1:
            return operator.edge_id[:0], operator.value[:0]
        receivers = self.steps[-2][0]
        entry, owner = operator.entries(receivers)
        total = torch.zeros_like(operator.value[entry])
        for (nodes, signal), hidden in zip(self.steps[-2::-1], self.decomposition.propagated, strict=False):
            arriving = signal.new_zeros(receivers.numel(), signal.size(1))
            arriving[torch.searchsorted(receivers, nodes)] = signal
            total += (hidden[operator.col[entry]] * arriving[owner]).sum(dim=1)
        return entry, operator.value[entry] * total
