r"""What the model answers at some outputs under many small masks: on copies of neighbourhoods, else on the graph.

Copies are as large as the model looks, and one more node stands for all others, so that all degrees that matter are the
graph's. They are asked about together; of models of graphs they are whole graphs. At each output the unmasked answer on
a copy must be that on the graph, and so must answers under a mask; where they are not, as for a model that normalises
over all nodes, the whole graph is asked. It is asked, too, where that costs less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch
from torch import Tensor
from torch_geometric.explain.config import ModelMode, ModelReturnType

from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import runs
from pyg_dnx.graph.subgraphs import Neighbourhoods, Subgraphs, whole_graphs
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.teacher.teacher import Teacher

TOLERANCE = 1e-4  # relative to the largest output
SMALLEST = 1e-37  # probability whose logarithm is looked at
AT_A_TIME = 4  # by how much the features of copies that are asked about together may exceed the run's entries
PER_NODE, PER_CALL = 16, 2**17  # what a node and an evaluation cost besides the features, in numbers of these
COPYING = 2.0  # by how much a number in a copy costs more than one in the graph, as copies are made first
UNKNOWN, RIGHT, WRONG = range(3)  # what is known of an output on a copy

MaskOf = Callable[[Tensor, Tensor], Tensor]  # of nodes, or edges, [S], in masks of some numbers [S], one row for each


@dataclass(frozen=True)
class Masks:
    r"""What is taken away: M masks as tensors, or functions of ids [S] and of the numbers of masks [S].

    Args:
        node: Of nodes: [M, N], or a function that returns [S], [S, 1] or, for single features, [S, F].
        edge: Of edges: [M, E], or a function that returns [S]. Edges are dropped where booleans are false; numbers
            multiply messages, as in PyG's metrics.
        how: ``'features'`` multiplies features by masks of nodes, ``'nodes'`` removes nodes where these are not
            positive, with their edges. The nodes that an output is about stay even so, isolated and without features,
            and so does the first node of a graph that would be empty, or else there would be no answer.
    """

    node: MaskOf | Tensor | None = None
    edge: MaskOf | Tensor | None = None
    how: str = 'features'

    def of_nodes(self, ids: Tensor, numbers: Tensor) -> Tensor | None:
        r"""The masks of some nodes, [S, 1] or [S, F]."""
        found = _look_up(self.node, ids, numbers)
        return found[:, None] if found is not None and found.dim() == 1 else found

    def of_edges(self, ids: Tensor, numbers: Tensor) -> Tensor | None:
        r"""The masks of some edges, [S]."""
        return _look_up(self.edge, ids, numbers)

    @property
    def kind(self) -> tuple[bool, bool, str]:
        return self.node is None, self.edge is None, self.how


def _look_up(mask: MaskOf | Tensor | None, ids: Tensor, numbers: Tensor) -> Tensor | None:
    return mask[numbers, ids] if isinstance(mask, Tensor) else None if mask is None else mask(ids, numbers)


@dataclass(frozen=True, eq=False)
class Local:
    r"""Asks a model about single outputs of a graph: about nodes, pairs of nodes, or graphs.

    Args:
        teacher: The model.
        graph: The graph.
        outputs: What the model says of all outputs, [O, C].
        num_hops: How many hops it looks; ``None`` if nobody knows, and the whole graph is asked about nodes and pairs.
    """

    teacher: Teacher
    graph: Graph
    outputs: Tensor
    num_hops: int | None
    is_right: dict[tuple[bool, bool, str], bool] = field(default_factory=dict, repr=False)  # by kind of masks

    def at(
        self, outputs: Tensor, masks: Masks, number: Tensor | None = None, run: Run = DEFAULT, label: str = 'Asking'
    ) -> Tensor:
        r"""Returns the answers to some questions, [Q, C], as if each were asked on the whole graph.

        Args:
            outputs: The output that each question is about, [Q].
            masks: What is taken away.
            number: The number of the mask that each question is asked under, [Q]; by default each has its own.
            run: How much to ask at a time.
            label: What a progress bar calls it.
        """
        number = torch.arange(outputs.numel(), device=outputs.device) if number is None else number
        answers = self.outputs.new_zeros(outputs.numel(), self.outputs.size(1), dtype=torch.float64)
        left = torch.ones_like(outputs, dtype=torch.bool)
        with run.bar(label, 'questions', total=outputs.numel()) as bar:
            for chunk, parts, place in self._chunks(outputs, number, masks, run):
                found = self._on_copies(parts, place, outputs[chunk], number[chunk], masks)
                if found is None:
                    break
                done = self._seen[outputs[chunk]] == RIGHT
                answers[chunk[done]], left[chunk[done]] = found[done], False
                bar.update(int(done.sum()))
            for chunk in _alike(number, left.nonzero().view(-1)):
                answers[chunk] = self._on_graph(outputs[chunk], masks, number[chunk[0]])
                bar.update(chunk.numel())
        return answers

    @cached_property
    def _seen(self) -> Tensor:
        r"""What is known of each output on a copy, [O]."""
        with torch.inference_mode(False):  # kept for calls outside of it
            return torch.full_like(self.outputs[:, 0], UNKNOWN, dtype=torch.uint8)

    def share(self, outputs: Tensor, masks: Masks) -> float:
        r"""What it costs to ask about some outputs on copies, as a share of asking the whole graph about all."""
        finder = self._finder(masks)
        if finder is None or bool((self._seen[outputs] == WRONG).any()):
            return torch.inf
        most, total = finder.bounds(outputs), 0.0
        for piece in runs(most, AT_A_TIME * DEFAULT.entries):
            total += float(finder.sizes(outputs[piece]).sum())
            if total > self._cost:
                return torch.inf
        return total / self._cost

    @cached_property
    def _cost(self) -> float:
        r"""What it costs to ask the whole graph, in numbers of copies."""
        graph = self.graph
        return (graph.num_nodes * (graph.x.size(1) + PER_NODE) + graph.edge_index.size(1)) / COPYING + PER_CALL

    def _chunks(
        self, outputs: Tensor, number: Tensor, masks: Masks, run: Run
    ) -> Iterator[tuple[Tensor, Subgraphs, Tensor]]:
        r"""Goes through the questions that cost less on copies: some, with parts, and which of these each is about."""
        finder = self._finder(masks)
        if finder is None or outputs.numel() == 0:
            return
        asked, which = outputs.unique(return_inverse=True)
        most, size = AT_A_TIME * run.entries, finder.bounds(asked)
        pieces = runs(size, most)
        cheap = self._cheap(outputs, number, size[which])
        if not bool(cheap.all()):
            size = torch.cat([finder.sizes(asked[piece]) for piece in pieces])
            cheap = self._cheap(outputs, number, size[which])
        todo = cheap.nonzero().view(-1)
        todo = todo[which[todo].argsort(stable=True)]
        for piece in pieces:
            mine = todo[(which[todo] >= piece[0]) & (which[todo] <= piece[-1])]
            if mine.numel() == 0:
                continue
            parts = finder.parts(asked[piece])
            for places in runs(size[which[mine]], most):
                chunk = mine[places]
                chunk = chunk[self._seen[outputs[chunk]] != WRONG]
                if chunk.numel() > 0:
                    yield chunk, parts, which[chunk] - piece[0]

    def _cheap(self, outputs: Tensor, number: Tensor, size: Tensor) -> Tensor:
        r"""Whether all questions under the same mask, each of some ``size`` [Q], cost less on copies than the graph."""
        size = size.masked_fill(self._seen[outputs] == WRONG, torch.inf)
        together = size.new_zeros(int(number.max()) + 1).index_add_(0, number, size)
        return (together <= self._cost)[number]

    def _finder(self, masks: Masks) -> _Finder | None:
        r"""What finds the parts of the graph on which to ask, if any will do."""
        graph, teacher = self.graph, self.teacher
        if not graph.has_edge_order or teacher.model is None or self.is_right.get(masks.kind) is False:
            return None
        if teacher.level == 'graph':
            return _Finder(graph) if teacher.takes_batches(graph) else None
        if self.num_hops is None:
            return None
        return _Finder(graph, self._around, self._ends, self.num_hops)

    @cached_property
    def _around(self) -> Neighbourhoods:
        return Neighbourhoods(self.graph.edge_index, self.graph.num_nodes, self.teacher.flow)

    @cached_property
    def _ends(self) -> Tensor | None:
        r"""The nodes that each output is about, [O] or [2, O]."""
        if self.teacher.level == 'graph':
            return None
        if self.teacher.level == 'edge':
            return torch.stack(list(self.graph.pairs)).long()
        roots = self.graph.roots
        return torch.arange(self.graph.num_nodes, device=self.graph.x.device) if roots is None else roots

    def _on_copies(
        self, parts: Subgraphs, place: Tensor, outputs: Tensor, number: Tensor, masks: Masks
    ) -> Tensor | None:
        r"""The answers [q, C] on copies of ``parts``; ``None`` if the model answers otherwise than on the graph."""
        is_new = self._seen[outputs] == UNKNOWN
        whole, which = outputs[is_new].unique(return_inverse=True)
        place_of_whole = torch.zeros_like(whole).index_put_((which,), place[is_new])
        copies = parts.take(torch.cat([place, place_of_whole]))
        if self._multiplies(masks, number) and (_has_own_loops(self.graph) or _has_own_loops(copies)):
            return None
        try:
            answers = self._asked(copies, torch.cat([outputs, whole]), masks, number)
        except Exception:  # a model that knows the size of its graph; any other error will be seen on the graph, too
            self.is_right[masks.kind] = False
            return None
        answers, on_whole = answers.split([outputs.numel(), whole.numel()])
        self._seen[whole] = torch.where(self._agree(on_whole, self.outputs[whole].double()), RIGHT, WRONG).byte()
        good = (self._seen[outputs] == RIGHT).nonzero().view(-1)
        if masks.kind not in self.is_right and good.numel() > 0:
            alike = good[number[good] == number[good[0]]]
            expected = self._on_graph(outputs[alike], masks, number[good[0]])
            self.is_right[masks.kind] = bool(self._agree(answers[alike], expected).all())
        return answers if self.is_right.get(masks.kind, True) else None

    def _agree(self, answers: Tensor, expected: Tensor) -> Tensor:
        r"""Whether the model answers on copies as on the graph, [q]: by logits, where it returns them.

        Probabilities that are all 0 or 1 would not tell.
        """
        config, outputs = self.teacher.config, self.outputs
        if config.mode != ModelMode.regression and config.return_type != ModelReturnType.probs:
            answers, expected, outputs = (p.clamp(min=SMALLEST).log() for p in (answers, expected, outputs))
        return (answers - expected).abs().amax(dim=1) <= TOLERANCE * float(outputs.abs().max())

    def _multiplies(self, masks: Masks, number: Tensor) -> bool:
        r"""Whether messages are multiplied. PyG then has masks for self-loops if each node has one."""
        if masks.edge is None or self.graph.edge_index.size(1) == 0:
            return False
        found = masks.of_edges(torch.zeros_like(number[:1]), number[:1])
        return found is not None and found.is_floating_point()

    def _on_graph(self, outputs: Tensor, masks: Masks, number: Tensor) -> Tensor:
        r"""The answers [q, C] of the whole graph under one mask."""
        graph = self.graph
        removes = masks.node is not None and masks.how == 'nodes'
        drops = masks.edge is not None and not self._multiplies(masks, number[None])
        if not removes and not drops:
            ids = torch.arange(graph.num_nodes, device=number.device)
            nodes, edges = masks.of_nodes(ids, number.expand_as(ids)), None
            if masks.edge is not None:
                ids = torch.arange(graph.edge_index.size(1), device=number.device)
                edges = masks.of_edges(ids, number.expand_as(ids))
            return self.teacher.under(graph, nodes, edges)[outputs]
        if not graph.has_edge_order:
            raise ValueError(
                "'edge_index' must list edges where nodes or edges are taken away (got a sparse matrix): pass them as "
                'a tensor [2, E]'
            )
        if self._ends is None:
            every = torch.arange(self.outputs.size(0), device=number.device)
            parts = whole_graphs(graph.batch, graph.edge_index, every)
            return self._asked(parts, every, masks, number.expand_as(every))[outputs]
        return self._asked(Subgraphs.of(graph, self._ends[..., outputs]), outputs, masks, number[None])

    def _asked(self, parts: Subgraphs, outputs: Tensor, masks: Masks, number: Tensor) -> Tensor:
        r"""What the model says on parts of the graph, of the ``outputs`` [K] that these are about.

        The first parts are under masks of some ``number``, and nothing is taken away from the others.
        """
        graph, level, owner = self.graph, self.teacher.level, parts.owner_of_edge
        is_edge = level == 'edge' and not graph.names_pairs
        nodes = _spread(masks.of_nodes, parts.node, parts.owner, number)
        edges = _spread(masks.of_edges, parts.edge, owner, number)
        removes = nodes is not None and masks.how == 'nodes'
        if removes or (edges is not None and not edges.is_floating_point()):
            alive = torch.ones_like(parts.node, dtype=torch.bool)
            kept = torch.ones_like(parts.edge, dtype=torch.bool)
            if nodes is not None and removes:
                alive = (nodes > 0).any(dim=1)
                for end in graph.edge_index:  # of edges from outside, too, where one node stands for all
                    kept &= (cast(Tensor, _spread(masks.of_nodes, end[parts.edge].long(), owner, number)) > 0).any(1)
            if edges is not None and not edges.is_floating_point():
                kept, edges = kept & edges, None
            if is_edge:  # which has no answer if it is dropped
                kept = kept.index_fill(0, _edges_of(parts, outputs, graph), True)
            edges = None if edges is None else edges[kept]
            groups = graph.groups(parts.node, parts.owner) if level == 'graph' else None
            parts, stays = parts.without(alive, kept, groups)
            nodes = alive[stays][:, None] if removes else None if nodes is None else nodes[stays]
        one = parts.graph(
            graph,
            (parts.root, outputs) if level == 'edge' else None,
            outputs if level == 'graph' else None,
            self.outputs.size(0) if level == 'graph' else None,
        )
        if level == 'graph' and ('batch' in graph.kwargs or outputs.numel() > 1):
            one.kwargs['batch'] = parts.owner
        if nodes is not None and nodes.dtype == torch.bool and graph.types is None:
            one.x.mul_(nodes)  # a copy
            nodes = None
        answers = self.teacher.under(one, nodes, edges)
        if level == 'node':
            return answers[one.rows_of(parts.root)]
        return answers[_edges_of(parts, outputs, graph)] if is_edge else answers


@dataclass(frozen=True)
class _Finder:
    r"""Finds the parts of a graph that outputs depend on: neighbourhoods, or else whole graphs of a batch."""

    graph: Graph
    around: Neighbourhoods | None = None
    ends: Tensor | None = None
    num_hops: int = 0

    def parts(self, outputs: Tensor) -> Subgraphs:
        r"""The parts of some outputs, distinct and ascending."""
        if self.around is None or self.ends is None:
            return whole_graphs(self.graph.batch, self.graph.edge_index, outputs)
        if self.graph.types is not None:  # one node can't stand for those of several types
            return self.around.around(self.ends[..., outputs], self.num_hops + 1)
        return self.around.around(self.ends[..., outputs], self.num_hops, has_rest=True)

    def sizes(self, outputs: Tensor) -> Tensor:
        r"""What a copy of each part costs."""
        nodes, edges = self.parts(outputs).sizes
        return nodes * float(self.graph.x.size(1) + PER_NODE) + edges

    def bounds(self, outputs: Tensor) -> Tensor:
        r"""What a copy of each part can cost at most."""
        if self.around is None or self.ends is None:
            return self.sizes(outputs)
        nodes = self.around.sizes(self.num_hops + (self.graph.types is not None)) + 1.0
        return nodes[self.ends[..., outputs]].view(-1, outputs.numel()).sum(0) * (
            self.graph.x.size(1) + PER_NODE + self.graph.edge_index.size(1) / self.graph.num_nodes
        )


def _spread(
    mask: Callable[[Tensor, Tensor], Tensor | None], ids: Tensor, owner: Tensor, number: Tensor
) -> Tensor | None:
    r"""The mask of what is copied, and 1 in the copies beyond the questions, where nothing is masked."""
    is_masked = owner < number.numel()
    found = mask(ids[is_masked], number[owner[is_masked]])
    if found is None:
        return None
    return torch.cat([found, found.new_ones(ids.numel() - found.size(0), *found.shape[1:])])


def _edges_of(parts: Subgraphs, outputs: Tensor, graph: Graph) -> Tensor:
    r"""Where the edges are that outputs [K] are about, in the parts around their ends."""
    count = graph.edge_index.size(1)
    return torch.searchsorted(parts.owner_of_edge * count + parts.edge, parts.owner[parts.root[0]] * count + outputs)


def _has_own_loops(graph: Graph | Subgraphs) -> bool:
    r"""Whether there is a loop for each node: then PyG takes masks by place, and that differs in parts of a graph."""
    source, target = graph.edge_index
    size = graph.num_nodes if isinstance(graph, Graph) else graph.node.numel()
    return int((source == target).sum()) == size


def _alike(number: Tensor, questions: Tensor) -> list[Tensor]:
    r"""The ``questions`` under each mask."""
    _, which, count = number[questions].unique(return_inverse=True, return_counts=True)
    return list(questions[which.argsort(stable=True)].split(count.tolist()))
