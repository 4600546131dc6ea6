r"""Scores of nodes, features and edges: three views of one linear function.

The contributions of the surrogate to the explained nodes, projected on a direction :math:`D_i` for each of them,
depend on the graph only through the pulled-back signal :math:`B_k = (\tilde{A}^\top)^k D`. With :math:`h = X \Theta`:

- node j scores :math:`\langle h_j, B_L[j] \rangle`,
- its feature f scores :math:`X_{jf} \langle \Theta_f, B_L[j] \rangle`,
- the edge u → v carries :math:`\tilde{A}_{vu} \sum_l \langle (\tilde{A}^l h)_u, B_{L-1-l}[v] \rangle`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pyg_dnx.distill.surrogate import Decomposition
from pyg_dnx.graph.rows import pull_back

MAX_FLOW_ENTRIES = 2**18  # at a time, since each takes two vectors over the outputs
SMALL_GRAPH = 2**17  # entries of Ã; up to here, products over all of them cost less than looking for those that matter


def attribute(decomposition: Decomposition, nodes: Tensor, directions: Tensor, once: bool = False) -> Attribution:
    r"""Returns the scores for some nodes, explained jointly; for the arguments, see :class:`Attribution`.

    Tables are made of a small graph, for the explanations to come, unless there is but this ``once``.
    """
    operator = decomposition.operator
    if nodes.numel() == 1 and not once and decomposition.has_tables:
        return TabulatedAttribution(decomposition, nodes, directions)
    if nodes.numel() == 1 and operator.col.numel() <= SMALL_GRAPH:
        # A node is reached where its entry of Ã^L is positive, unless that is zero or too small for floating point.
        smallest = max(operator.smallest, 0.0) ** decomposition.surrogate.num_hops
        if smallest > torch.finfo(operator.value.dtype).tiny:
            return SmallGraphAttribution(decomposition, nodes, directions)
    return Attribution(decomposition, nodes, directions)


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
        self.neighbourhood = self.steps[-1].nodes  # [n], ascending

    @property
    def signal(self) -> Tensor:
        r"""What is pulled back to each node in the neighbourhood, [n, C]."""
        return self.steps[-1].signal

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
        inside = self.edges_inside(edge_index)
        if kind == 'flow':
            return self.edge_flow(edge_index, inside), inside
        scores = node_score.new_zeros(edge_index.size(1))
        source, target = node_score[edge_index[:, inside]]
        positive = (source.clamp(min=0.0) * target.clamp(min=0.0)).sqrt()
        scores[inside] = positive if kind == 'geometric' else source + target
        return scores, inside

    def edges_inside(self, edge_index: Tensor) -> Tensor:
        r"""The ids of the edges that carry a message to an explained node."""
        last_step = self.steps[-2:][0]  # which takes no entries if there are no hops
        edge_id = self.decomposition.operator.edge_id[last_step.entry]
        return edge_id[edge_id >= 0].long()

    def edge_flow(self, edge_index: Tensor, inside: Tensor) -> Tensor:
        r"""What each edge carries, over all steps, [E]; only those ``inside`` carry anything."""
        scores = self.signal.new_zeros(edge_index.size(1) + 1)
        for entry, carried in self.flow():  # an added self-loop's, whose id is -1, goes to the last place
            scores.index_put_((self.decomposition.operator.edge_id[entry],), carried, accumulate=True)
        return scores[:-1]

    def flow(self) -> Iterator[tuple[Tensor, Tensor]]:
        r"""What the entries of Ã carry, self-loops included, from the last of the L steps to the first.

        Yields:
            Entries [m] of a step, or of a part of it, and how much each of them carries then, [m].
        """
        operator = self.decomposition.operator
        # Step l of L leaves its source with Ã^l h, and meets what was pulled back over the L - 1 - l steps to come.
        for leaving, step in zip(self.decomposition.propagated[-2::-1], self.steps, strict=False):
            for entry, owner in zip(
                step.entry.split(MAX_FLOW_ENTRIES), step.owner.split(MAX_FLOW_ENTRIES), strict=True
            ):
                carried = (leaving[operator.col[entry]] * step.signal[owner]).sum(dim=1)
                yield entry, carried.mul_(operator.value[entry])


class SmallGraphAttribution(Attribution):
    r"""The same for one node, in which each step takes all nodes and entries of Ã, most of them with a zero."""

    def __init__(self, decomposition: Decomposition, node: Tensor, direction: Tensor) -> None:
        self.decomposition = decomposition
        self.direction = direction[0].to(decomposition.hidden.dtype)
        operator, num_hops = decomposition.operator, decomposition.surrogate.num_hops
        start, end = operator.rowptr[int(node) :][:2].tolist()
        nothing = decomposition.hidden.new_zeros(operator.num_nodes)
        first = [
            nothing.index_add(0, node, nothing.new_ones(1)),
            nothing.index_add(0, operator.col[start:end], operator.value[start:end]),
        ]
        self.rows = first[: num_hops + 1]  # of Ã^k, [N] each
        for _ in range(num_hops - 1):
            self.rows.append((operator.transposed @ self.rows[-1][:, None]).view(-1))
        self.neighbourhood = self.rows[-1].nonzero().view(-1)
        self.row = self.rows[-1].index_select(0, self.neighbourhood)

    @property
    def signal(self) -> Tensor:
        return self.row[:, None] * self.direction

    def node_scores(self) -> Tensor:
        hidden = self.decomposition.hidden.index_select(0, self.neighbourhood)
        return (hidden @ self.direction).mul_(self.row)

    def edges_inside(self, edge_index: Tensor) -> Tensor:
        if len(self.rows) == 1:
            return self.neighbourhood[:0]
        _, target = self._ends(edge_index)
        return self.rows[-2].index_select(0, target).mul_(self.decomposition.operator.edge_value).nonzero().view(-1)

    def edge_flow(self, edge_index: Tensor, inside: Tensor) -> Tensor:
        source, target = (ends.index_select(0, inside) for ends in self._ends(edge_index))
        carried = self.row.new_zeros(inside.numel())
        for leaving, row in zip(self.decomposition.propagated[-2::-1], self.rows, strict=False):
            carried.addcmul_(leaving.index_select(0, source) @ self.direction, row.index_select(0, target))
        carried.mul_(self.decomposition.operator.edge_value.index_select(0, inside))
        return carried.new_zeros(edge_index.size(1)).index_copy_(0, inside, carried)

    def _ends(self, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        first, second = edge_index[0], edge_index[1]
        return (first, second) if self.decomposition.surrogate.flow == 'source_to_target' else (second, first)


class TabulatedAttribution(Attribution):
    r"""The same for one node, from tables of what every node gets from which nodes and edges."""

    def __init__(self, decomposition: Decomposition, node: Tensor, direction: Tensor) -> None:
        self.decomposition, self.node = decomposition, int(node)
        self.direction = direction.to(decomposition.hidden.dtype).view(-1)
        self.neighbourhood = decomposition.node_table.ids(self.node)

    @property
    def signal(self) -> Tensor:
        node = torch.full_like(self.neighbourhood[:1], self.node)
        return Attribution(self.decomposition, node, self.direction[None]).signal

    def node_scores(self) -> Tensor:
        return self.decomposition.node_table.shares(self.node) @ self.direction

    def edges_inside(self, edge_index: Tensor) -> Tensor:
        return self.decomposition.edge_table.ids(self.node)

    def edge_flow(self, edge_index: Tensor, inside: Tensor) -> Tensor:
        carried = self.decomposition.edge_table.shares(self.node) @ self.direction
        return carried.new_zeros(edge_index.size(1)).index_copy_(0, inside, carried)
