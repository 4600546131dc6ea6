r"""What the model answers at some outputs under many small masks: on copies of neighbourhoods, else on the graph.

Copies are one hop larger than the model looks, so that all degrees that matter are the graph's, and are asked about
together. At each output the unmasked answer on a copy must be that on the graph, and so must one answer under a mask;
where it is not, as for a model that normalises over all nodes, the whole graph is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import runs
from pyg_dnx.graph.subgraphs import Neighbourhoods
from pyg_dnx.run import Run
from pyg_dnx.teacher.teacher import Teacher

TOLERANCE = 1e-4  # relative to the largest output

MaskOf = Callable[[Tensor, Tensor], Tensor]  # of some nodes, or edges, [S], in some questions [S], one row for each


@dataclass(frozen=True, eq=False)
class Local:
    r"""Asks a model about single outputs of a graph.

    Args:
        teacher: The model.
        graph: The graph.
        outputs: What the model says of all outputs, [O, C].
        num_hops: How many hops it looks; ``None`` if nobody knows, and the whole graph is always asked.
    """

    teacher: Teacher
    graph: Graph
    outputs: Tensor
    num_hops: int | None
    was_local: list[bool] = field(default_factory=list, repr=False)  # of an answer under a mask, asked once

    def at(self, nodes: Tensor, node_mask: MaskOf | None, edge_mask: MaskOf | None, run: Run, label: str) -> Tensor:
        r"""Returns the answers to some questions, [Q, C].

        Args:
            nodes: The node that each question is about, [Q].
            node_mask: The masks of nodes, which multiply features: for nodes [S] in questions [S], [S, 1] or [S, F].
            edge_mask: Those of edges, which multiply messages, [S].
            run: How much to ask at a time.
            label: What a progress bar calls it.
        """
        parts = self._neighbourhoods(edge_mask is not None)
        chunks = [torch.arange(nodes.numel(), device=nodes.device)]
        if parts is not None and self.num_hops is not None:
            size = parts.sizes(self.num_hops + 1)[nodes] * (self.graph.x.size(1) + 1) + self.graph.num_nodes
            chunks = runs(size, 16 * run.entries)
        found = [self.outputs.new_zeros(0, self.outputs.size(1), dtype=torch.float64)]
        with run.bar(label, 'questions', total=nodes.numel()) as bar:
            for chunk in chunks:
                answers = None
                if parts is not None:
                    answers = self._on_copies(parts, nodes[chunk], chunk, node_mask, edge_mask)
                    parts = None if answers is None else parts
                if answers is None:
                    answers = torch.stack([self._on_graph(nodes[q], q, node_mask, edge_mask) for q in chunk])
                found.append(answers)
                bar.update(chunk.numel())
        return torch.cat(found)

    def _neighbourhoods(self, has_edge_mask: bool) -> Neighbourhoods | None:
        graph = self.graph
        if self.num_hops is None or not graph.has_edge_order:
            return None
        # Where there is a loop for each node, PyG takes masks by place, and that differs in parts of a graph.
        if has_edge_mask and int((graph.edge_index[0] == graph.edge_index[1]).sum()) == graph.num_nodes:
            return None
        return Neighbourhoods(graph.edge_index, graph.num_nodes, self.teacher.flow)

    def _on_copies(
        self,
        parts: Neighbourhoods,
        nodes: Tensor,
        questions: Tensor,
        node_mask: MaskOf | None,
        edge_mask: MaskOf | None,
    ) -> Tensor | None:
        r"""The answers [q, C] on copies; ``None`` if the model answers otherwise there than on the graph."""
        whole, size = nodes.unique(), nodes.numel()
        copies = parts.around(torch.cat([nodes, whole]), (self.num_hops or 0) + 1)
        graph, is_masked = copies.graph(self.graph), copies.owner < size
        if edge_mask is not None and int((graph.edge_index[0] == graph.edge_index[1]).sum()) == graph.num_nodes:
            return None
        masks = (
            self._spread(node_mask, copies.node, is_masked, questions, copies.owner),
            self._spread(
                edge_mask,
                copies.edge,
                is_masked[graph.edge_index[0]],
                questions,
                copies.owner[graph.edge_index[0]],
            ),
        )
        try:
            answers = self.teacher.under(graph, *masks)[copies.root]
        except Exception:  # a model that knows the size of its graph; any other error will be seen on the graph, too
            return None
        if not _is_close(answers[size:], self.outputs[whole].double()):
            return None
        if not self.was_local:
            first = self._on_graph(nodes[0], questions[0], node_mask, edge_mask)
            self.was_local.append(_is_close(answers[0], first))
        return answers[:size] if self.was_local[0] else None

    def _spread(
        self, mask: MaskOf | None, ids: Tensor, is_masked: Tensor, questions: Tensor, owner: Tensor
    ) -> Tensor | None:
        r"""The mask of what is copied, and 1 where nothing is masked."""
        if mask is None:
            return None
        found = mask(ids[is_masked], questions[owner[is_masked]])
        spread = found.new_ones(ids.numel(), *found.shape[1:])
        spread[is_masked] = found
        return spread

    def _on_graph(self, node: Tensor, question: Tensor, node_mask: MaskOf | None, edge_mask: MaskOf | None) -> Tensor:
        r"""The answer [C] of the whole graph."""

        def spread(mask: MaskOf, count: int) -> Tensor:
            ids = torch.arange(count, device=node.device)
            return mask(ids, question.expand(count))

        nodes = None if node_mask is None else spread(node_mask, self.graph.num_nodes)
        edges = None if edge_mask is None else spread(edge_mask, self.graph.edge_index.size(1))
        return self.teacher.under(self.graph, nodes, edges)[node]


def _is_close(outputs: Tensor, expected: Tensor) -> bool:
    r"""Whether a model answers on a part of the graph as on the whole."""
    return torch.allclose(outputs, expected, rtol=0.0, atol=TOLERANCE * float(expected.abs().max()))
