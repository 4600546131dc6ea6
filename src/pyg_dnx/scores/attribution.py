r"""Scores of nodes, features and edges: three views of one linear function.

The contributions of the surrogate to the explained outputs, projected on a direction :math:`D_o` for each of them,
depend on the graph only through the pulled-back signals :math:`B_k = (\tilde{A}^\top)^k R^\top D`:

- node j scores :math:`\sum_k \langle H_k[j], B_k[j] \rangle`,
- its feature f scores :math:`\sum_k X_{jf} \langle \Theta_k[f], B_k[j] \rangle`,
- the edge u → v carries :math:`\tilde{A}_{vu} \sum_k \langle S_{k+1}[u], B_k[v] \rangle`. Were it dropped, other
  messages of v would count for more, which ``edge_drop`` takes into account.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from pyg_dnx.distill.decomposition import Decomposition
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.rules import Directed, Effects, Fitted

SMALL_GRAPH = 2**17  # entries of Ã; up to here, products over all of them cost less than looking for those that matter


class Attribution(ABC):
    r"""The scores for some outputs, explained jointly: the sum of what explains each of them."""

    decomposition: Decomposition
    outputs: Tensor  # the explained outputs [B]
    neighbourhood: Tensor  # the nodes that have scores, [n], ascending

    @abstractmethod
    def node_scores(self) -> Tensor:
        r"""The score of each node in the neighbourhood, [n]."""

    @abstractmethod
    def attribute_scores(self, x: Tensor) -> Tensor:
        r"""The score of each feature of each node in the neighbourhood, [n, F]."""

    @abstractmethod
    def feature_scores(self, x: Tensor) -> Tensor:
        r"""The score of each feature, summed over nodes, [F]."""

    @abstractmethod
    def edges_inside(self, edge_index: Tensor) -> Tensor:
        r"""The ids of the edges that carry a message to an explained output."""

    @abstractmethod
    def edge_flow(self, edge_index: Tensor) -> Tensor:
        r"""What each edge carries, over all steps, [E]."""

    @abstractmethod
    def edge_drop(self, edge_index: Tensor) -> Tensor:
        r"""By how much the scores would fall with each edge's weight, degrees included, to first order, [E]."""

    @abstractmethod
    def masked(self, x: Tensor, node_mask: Tensor | None, edge_mask: Tensor | None) -> Tensor:
        r"""What masks of features and messages leave of each output's evidence, [B, C], or of its scores, [B, 1]."""

    def end_scores(self) -> list[Tensor]:
        r"""The part of each node's score that reaches the outputs through each of their ends, [n] each."""
        return [self.node_scores()]

    def edge_scores(self, edge_index: Tensor, kind: str, node_score: Tensor) -> tuple[Tensor, Tensor]:
        r"""Scores edges, given the scores [N] of all nodes.

        Returns:
            The scores [E], and the ids of the edges that carry a message to an explained output; all others score 0.
        """
        inside = self.edges_inside(edge_index)
        if kind == 'drop':
            return self.edge_drop(edge_index), inside
        if kind not in ('endpoints', 'geometric'):  # 'flow', also where edges could not be asked about
            return self.edge_flow(edge_index), inside
        scores = node_score.new_zeros(edge_index.size(1))
        source, target = node_score[edge_index[:, inside]]
        positive = (source.clamp(min=0.0) * target.clamp(min=0.0)).sqrt()
        scores[inside] = positive if kind == 'geometric' else source + target
        return scores, inside


def attribute(
    decomposition: Decomposition, question: Question, effects: Effects, run: Run = DEFAULT, once: bool = False
) -> Attribution:
    r"""Returns the scores for some outputs, explained jointly.

    Tables are made of a small graph, for the explanations to come, unless it runs only ``once``.
    """
    if isinstance(effects, Fitted):
        return Local(decomposition, question.outputs, effects, run)
    directed = (decomposition, question.outputs, effects.direction.to(decomposition.hidden[0].dtype))
    if question.outputs.numel() == 1 and decomposition.is_plain:
        if not once and decomposition.has_tables:
            return Tabulated(*directed)
        operator = decomposition.operator
        if operator.col.numel() <= SMALL_GRAPH:
            # A node is reached where its entry of Ã^L is positive, unless that is zero or too small for floating point.
            smallest = max(operator.smallest, 0.0) ** decomposition.num_hops
            if smallest > torch.finfo(operator.value.dtype).tiny:
                return Swept(*directed)
    return PulledBack(*directed, run)


class _Along(Attribution):
    r"""Scores by a direction [B, C] for each output."""

    def __init__(self, decomposition: Decomposition, outputs: Tensor, direction: Tensor) -> None:
        self.decomposition, self.outputs, self.direction = decomposition, outputs, direction

    @property
    @abstractmethod
    def signals(self) -> list[Tensor]:
        r"""What is pulled back to each hidden signal, [n, C] each."""

    def node_scores(self) -> Tensor:
        parts = zip(self.decomposition.hidden, self.signals, strict=True)
        scores = [(hidden[self.neighbourhood] * signal).sum(dim=1) for hidden, signal in parts]
        return scores[0] if len(scores) == 1 else torch.stack(scores).sum(dim=0)

    def attribute_scores(self, x: Tensor) -> Tensor:
        signals, total = self.signals, None
        for t, scale, weight in self.decomposition.weights(x.size(1), self.neighbourhood):
            part = x[self.neighbourhood].to(weight.dtype) * (signals[t] @ weight.T)
            part = part if scale is None else part * scale
            total = part if total is None else total + part
        return cast(Tensor, total)

    def feature_scores(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(self.decomposition.surrogate.weight[: x.size(1), 0])
        signals = self.signals
        for t, scale, weight in self.decomposition.weights(x.size(1), self.neighbourhood):
            signal = signals[t] if scale is None else signals[t] * scale
            total = total + ((x[self.neighbourhood].to(weight.dtype).T @ signal) * weight).sum(dim=1)
        return total

    def edge_drop(self, edge_index: Tensor) -> Tensor:
        return PulledBack(self.decomposition, self.outputs, self.direction).edge_drop(edge_index)

    def masked(self, x: Tensor, node_mask: Tensor | None, edge_mask: Tensor | None) -> Tensor:
        return self.decomposition.masked(self.outputs, x, node_mask, edge_mask)


class PulledBack(_Along):
    r"""Scores of any outputs, from what a walk back from them reaches."""

    def __init__(self, decomposition: Decomposition, outputs: Tensor, direction: Tensor, run: Run = DEFAULT) -> None:
        super().__init__(decomposition, outputs, direction)
        self.run, readout = run, decomposition.readout
        if outputs.numel() == 1 and readout.ends == 1:  # one row serves all dimensions of the direction
            row = readout.of(outputs)
            steps = decomposition.pull_back(row.column, row.value.to(direction.dtype)[:, None])
            self.steps = [step._replace(signal=step.signal * direction) for step in steps]
        else:
            self.steps = decomposition.pull_back(*decomposition.start(outputs, direction))
        columns = zip(*decomposition.taps, strict=True)
        reached = [step.nodes for step, column in zip(self.steps, columns, strict=True) if any(column)]
        self.neighbourhood = reached[0] if len(reached) == 1 else torch.unique(torch.cat(reached))

    @cached_property
    def signals(self) -> list[Tensor]:
        spread = []
        for step in self.steps:
            if step.nodes is self.neighbourhood:
                spread.append(step.signal)
            else:
                place = torch.searchsorted(self.neighbourhood, step.nodes).clamp(max=self.neighbourhood.numel() - 1)
                inside = self.neighbourhood[place] == step.nodes
                zeros = step.signal.new_zeros(self.neighbourhood.numel(), step.signal.size(1))
                spread.append(zeros.index_copy_(0, place[inside], step.signal[inside]))
        return self.decomposition.tapped(spread)

    def end_scores(self) -> list[Tensor]:
        decomposition = self.decomposition
        found: list[Tensor] = []
        for end in decomposition.at_ends(self.outputs, self.direction) if decomposition.readout.ends > 1 else []:
            one = decomposition.one_end(len(found))
            part = PulledBack(one, self.outputs, end, self.run)
            scores = self.direction.new_zeros(self.neighbourhood.numel())
            place = torch.searchsorted(self.neighbourhood, part.neighbourhood)
            found.append(scores.index_copy_(0, place, part.node_scores()))
        return found or [self.node_scores()]

    def edges_inside(self, edge_index: Tensor) -> Tensor:
        last_step = self.steps[-2:][0]  # which takes no entries if there are no hops
        edge_id = self.decomposition.operator.edge_id[last_step.entry]
        return edge_id[edge_id >= 0].long()

    def edge_flow(self, edge_index: Tensor) -> Tensor:
        scores = self.direction.new_zeros(edge_index.size(1) + 1)
        for entry, carried in self.flow():  # an added self-loop's, whose id is -1, goes to the last place
            scores.index_put_((self.decomposition.operator.edge_id[entry],), carried, accumulate=True)
        return scores[:-1]

    def edge_drop(self, edge_index: Tensor) -> Tensor:
        # With the edge u → v of weight w, the degree of v falls, and all that passes through v rises by w / 2 of it.
        decomposition, operator = self.decomposition, self.decomposition.operator
        passing, states = self.direction.new_zeros(operator.num_nodes), decomposition.all_states
        for k, step in enumerate(self.steps):
            if k < decomposition.num_hops:  # what arrives there, in step k from the end
                arriving = states[k][step.nodes] - decomposition.tap(k)[step.nodes]
                passing.index_add_(0, step.nodes, (arriving * step.signal).sum(dim=1))
            if k > 0:  # and what leaves in the step before
                passing.index_add_(0, step.nodes, (states[k][step.nodes] * step.signal).sum(dim=1))
        inside = self.edges_inside(edge_index)
        ends = (
            edge_index[:, inside]
            if decomposition.surrogate.flow == 'source_to_target'
            else edge_index[:, inside].flip(0)
        )
        scale, value = operator.scale[ends], operator.edge_value[inside]
        share = torch.where(scale[0] > 0.0, 0.5 * value * scale[1] / scale[0], 0.0)
        carried = self.edge_flow(edge_index)
        return torch.zeros_like(carried).index_copy_(0, inside, carried[inside] - share * passing[ends[1]])

    def flow(self) -> Iterator[tuple[Tensor, Tensor]]:
        r"""What the entries of Ã carry, self-loops included, from the last of the L steps to the first.

        Yields:
            Entries [m] of a step, or of a part of it, and how much each of them carries then, [m].
        """
        operator, size = self.decomposition.operator, max(1, self.run.entries // 4)
        # Step k from the end leaves its source with S_{k+1}, and meets what was pulled back over k steps.
        for leaving, step in zip(self.decomposition.all_states[1:], self.steps, strict=False):
            for entry, owner in zip(step.entry.split(size), step.owner.split(size), strict=True):
                carried = (leaving[operator.col[entry]] * step.signal[owner]).sum(dim=1)
                yield entry, carried.mul_(operator.value[entry])


class Swept(_Along):
    r"""Scores of one output on a small graph: each step takes all nodes and entries of Ã, most of them with a zero."""

    def __init__(self, decomposition: Decomposition, outputs: Tensor, direction: Tensor) -> None:
        super().__init__(decomposition, outputs, direction)
        operator, num_hops, row = decomposition.operator, decomposition.num_hops, decomposition.readout.of(outputs)
        nothing = decomposition.hidden[0].new_zeros(operator.num_nodes)
        start, (entry, owner) = row.value.to(nothing.dtype), operator.entries(row.column)
        first = [
            nothing.index_add(0, row.column, start),
            nothing.index_add(0, operator.col[entry], operator.value[entry] * start[owner]),
        ]
        self.rows = first[: num_hops + 1]  # of R Ã^k, [N] each
        for _ in range(num_hops - 1):
            self.rows.append((operator.transposed @ self.rows[-1][:, None]).view(-1))
        self.neighbourhood = self.rows[-1].nonzero().view(-1)
        self.row = self.rows[-1].index_select(0, self.neighbourhood)

    @property
    def signals(self) -> list[Tensor]:
        return [self.row[:, None] * self.direction]

    def node_scores(self) -> Tensor:
        hidden = self.decomposition.hidden[0].index_select(0, self.neighbourhood)
        return (hidden @ self.direction[0]).mul_(self.row)

    def edges_inside(self, edge_index: Tensor) -> Tensor:
        if len(self.rows) == 1:
            return self.neighbourhood[:0]
        _, target = self._ends(edge_index)
        return self.rows[-2].index_select(0, target).mul_(self.decomposition.operator.edge_value).nonzero().view(-1)

    def edge_flow(self, edge_index: Tensor) -> Tensor:
        inside = self.edges_inside(edge_index)
        source, target = (ends.index_select(0, inside) for ends in self._ends(edge_index))
        carried = self.row.new_zeros(inside.numel())
        for leaving, row in zip(self.decomposition.all_states[1:], self.rows, strict=False):
            carried.addcmul_(leaving.index_select(0, source) @ self.direction[0], row.index_select(0, target))
        carried.mul_(self.decomposition.operator.edge_value.index_select(0, inside))
        return carried.new_zeros(edge_index.size(1)).index_copy_(0, inside, carried)

    def _ends(self, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        first, second = edge_index[0], edge_index[1]
        return (first, second) if self.decomposition.surrogate.flow == 'source_to_target' else (second, first)


class Tabulated(_Along):
    r"""Scores of one output, from tables of what every output gets from which nodes and edges."""

    def __init__(self, decomposition: Decomposition, outputs: Tensor, direction: Tensor) -> None:
        super().__init__(decomposition, outputs, direction)
        self.output = int(outputs)
        self.neighbourhood = decomposition.node_table.ids(self.output)

    @property
    def signals(self) -> list[Tensor]:
        return PulledBack(self.decomposition, self.outputs, self.direction).signals

    def node_scores(self) -> Tensor:
        return self.decomposition.node_table.shares(self.output) @ self.direction[0]

    def edges_inside(self, edge_index: Tensor) -> Tensor:
        return self.decomposition.edge_table.ids(self.output)

    def edge_flow(self, edge_index: Tensor) -> Tensor:
        table = self.decomposition.edge_table
        carried = table.shares(self.output) @ self.direction[0]
        return carried.new_zeros(edge_index.size(1)).index_copy_(0, table.ids(self.output), carried)


class Local(Attribution):
    r"""Scores that were fitted at each explained output by itself.

    Node j scores the value of its entry times an effect: as in a surrogate whose hidden signals each output has for its
    own. Edges carry what they carry there. Features share a node's score as they share the surrogate's evidence for the
    target, by size: that is no effect of their own.
    """

    def __init__(self, decomposition: Decomposition, outputs: Tensor, effects: Fitted, run: Run = DEFAULT) -> None:
        self.decomposition, self.outputs, self.size = decomposition, outputs, 4 * run.entries
        self.rows, self.effect, self.direction, self.also = (
            effects.rows,
            effects.effect,
            effects.direction,
            effects.also,
        )
        self.owner = torch.repeat_interleave(self.rows.length)
        self.neighbourhood, self.place = torch.unique(self.rows.column.long(), return_inverse=True)

    def node_scores(self) -> Tensor:
        scores = self.effect.new_zeros(self.neighbourhood.numel())
        return scores.index_add_(0, self.place, self.effect * self.rows.value)

    def end_scores(self) -> list[Tensor]:
        scores, whole = self.effect * self.rows.value, self.decomposition.rows(self.outputs)
        if whole.value.dim() == 1:
            return [self.node_scores()]
        share = whole.value.abs() / whole.value.abs().sum(dim=1, keepdim=True).clamp(min=1e-30)
        zeros = self.effect.new_zeros(self.neighbourhood.numel())
        return [zeros.index_add(0, self.place, scores * part) for part in share.T]

    def _also(self, kind: str, size: int) -> Tensor:
        r"""The scores of edges or features that were asked about themselves, over all outputs."""
        found = self.also[kind]
        return found.value.new_zeros(size).index_add_(0, found.column.long(), found.value)

    def attribute_scores(self, x: Tensor) -> Tensor:
        if 'entries' in self.also:
            return self._also('entries', x.numel()).view(x.shape)[self.neighbourhood]
        scores = self.effect * self.rows.value
        total = scores.new_zeros(self.neighbourhood.numel(), x.size(1))
        for part, share in self._shares(x):
            total.index_add_(0, self.place[part], share.mul_(scores[part, None]))
        return total

    def feature_scores(self, x: Tensor) -> Tensor:
        if 'columns' in self.also:
            return self._also('columns', x.size(1))
        return self.attribute_scores(x).sum(dim=0)

    def edge_scores(self, edge_index: Tensor, kind: str, node_score: Tensor) -> tuple[Tensor, Tensor]:
        for asked in ('edges', 'pairs'):
            if asked in self.also:
                return self._also(asked, edge_index.size(1)), self.edges_inside(edge_index)
        return super().edge_scores(edge_index, kind, node_score)

    def edges_inside(self, edge_index: Tensor) -> Tensor:
        zeros = self.effect.new_zeros(self.outputs.numel(), self.decomposition.surrogate.bias.numel())
        return PulledBack(self.decomposition, self.outputs, zeros).edges_inside(edge_index)

    def edge_flow(self, edge_index: Tensor) -> Tensor:
        return self._over_edges(edge_index, 'edge_flow')

    def _over_edges(self, edge_index: Tensor, method: str) -> Tensor:
        total = self.effect.new_zeros(edge_index.size(1))
        for outputs, hidden in self._hidden(self.effect):
            own = torch.eye(outputs.numel(), dtype=hidden.dtype, device=hidden.device)
            effects, local = Directed(own), self.decomposition.with_effects(hidden)
            total += getattr(attribute(local, Question(outputs), effects, once=True), method)(edge_index)
        return total

    def edge_drop(self, edge_index: Tensor) -> Tensor:
        return self._over_edges(edge_index, 'edge_drop')

    def masked(self, x: Tensor, node_mask: Tensor | None, edge_mask: Tensor | None) -> Tensor:
        operator = self.decomposition.operator
        if edge_mask is not None:
            operator = operator.masked(edge_mask)
        effect = self.effect if node_mask is None else self.effect * self._kept(x, node_mask)
        found = []
        for outputs, hidden in self._hidden(effect):
            local = self.decomposition.with_effects(hidden)
            *_, state = local.states(operator)
            found.append(local.read(state)[outputs].diagonal())
        return torch.cat(found)[:, None]

    def _kept(self, x: Tensor, node_mask: Tensor) -> Tensor:
        r"""What a node mask leaves of each entry's score, [nnz]."""
        column = self.rows.column.long()
        if node_mask.shape == (x.size(0), 1):
            return node_mask[column, 0].to(self.effect.dtype)
        kept = torch.zeros_like(self.effect)
        for part, share in self._shares(x):
            mask = node_mask if node_mask.size(0) == 1 else node_mask[column[part]]
            kept[part] = (share * mask.to(share.dtype)).sum(dim=1)
        return kept

    def _shares(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        r"""The share of each feature in the score of an entry, for some entries [m] at a time, [m, F]."""
        weights = [weight for *_, weight in self.decomposition.weights(x.size(1), self.neighbourhood[:0])]
        ends = self.decomposition.at_ends(self.outputs, self.direction.to(weights[0].dtype))
        toward = torch.stack([end @ weight.T for end in ends for weight in weights]).sum(dim=0)  # [B, F]
        for part in torch.arange(self.effect.numel(), device=x.device).split(max(1, self.size // x.size(1))):
            values = x.detach()[self.rows.column[part].long()].to(toward.dtype)
            share = (values * toward[self.owner[part]]).abs_()
            # Where the surrogate has no evidence, all features that are there share alike; where none is, all.
            for fallback in ((values != 0.0).to(share.dtype), torch.ones_like(share)):
                share = torch.where(share.sum(dim=1, keepdim=True) > 0.0, share, fallback)
            yield part, share.div_(share.sum(dim=1, keepdim=True))

    def _hidden(self, effect: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        r"""Some explained outputs [b] at a time, and effects on them, [N, b]: each has a hidden signal of its own."""
        num_nodes = self.decomposition.operator.num_nodes
        width = max(1, self.size // num_nodes)
        for first in range(0, self.outputs.numel(), width):
            here = (self.owner >= first) & (self.owner < first + width)
            outputs = self.outputs[first : first + width]
            hidden = effect.new_zeros(num_nodes, outputs.numel())
            hidden[self.rows.column[here].long(), self.owner[here] - first] = effect[here]
            yield outputs, hidden
