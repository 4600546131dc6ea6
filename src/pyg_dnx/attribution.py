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

from pyg_dnx.propagation import pull_back
from pyg_dnx.surrogate import Decomposition

MAX_FLOW_ENTRIES = 2**18  # at a time, since each takes two vectors over the outputs


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
            self.steps = [step._replace(signal=step.signal * directions) for step in steps]
        else:
            nodes, merged = torch.unique(nodes, return_inverse=True)
            signal = directions.new_zeros(nodes.numel(), directions.size(1)).index_add_(0, merged, directions)
            self.steps = pull_back(decomposition.operator, nodes, signal, num_hops)
        self.last_step = self.steps[-2] if num_hops > 0 else self.steps[-1]  # over all entries that carry anything
        self.neighbourhood, self.signal = self.steps[-1].nodes, self.steps[-1].signal  # [n], ascending, and [n, C]

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
            The scores [E], and the ids of the edges that carry a message to an explained node; all others score 0.
        """
        edge_id = self.decomposition.operator.edge_id[self.last_step.entry]
        inside = edge_id[edge_id >= 0]
        scores = node_score.new_zeros(edge_index.size(1) + 1)
        if kind == 'flow':
            scores[edge_id] = self.flow()[1]  # an added self-loop's, whose id is -1, goes to the last place
        else:
            source, target = node_score[edge_index[:, inside]]
            positive = (source.clamp(min=0.0) * target.clamp(min=0.0)).sqrt()
            scores[inside] = positive if kind == 'geometric' else source + target
        return scores[:-1], inside

    def flow(self) -> tuple[Tensor, Tensor]:
        r"""What each entry of Ã carries, self-loops included: the entries that carry anything [m], and how much [m]."""
        operator = self.decomposition.operator
        receivers, _, entry, owner = self.last_step
        carried = torch.zeros_like(operator.value[entry])
        # Step l of L leaves its source with Ã^l h, and meets what was pulled back over the L - 1 - l steps to come.
        for leaving, step in zip(self.decomposition.propagated[:-1], reversed(self.steps[:-1]), strict=True):
            arriving = self.signal.new_zeros(receivers.numel(), self.signal.size(1))
            arriving[torch.searchsorted(receivers, step.nodes)] = step.signal
            for part in range(0, entry.numel(), MAX_FLOW_ENTRIES):
                here = slice(part, part + MAX_FLOW_ENTRIES)
                carried[here] += (leaving[operator.col[entry[here]]] * arriving[owner[here]]).sum(dim=1)
        return entry, operator.value[entry] * carried
