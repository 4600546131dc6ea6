r"""Which nodes each output of a model is made from, as the first row of the walk back through the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import Rows, unit_rows


@dataclass(frozen=True, eq=False)
class Readout:
    r"""The matrices :math:`R_e` [O, N]: how much each node counts for end e of an output.

    Args:
        num_outputs: How many outputs there are, O.
        rows: The rows of all :math:`R_e`, end by end, [ends · O]; ``None`` if each node is an output of its own.
        ends: How many ends an output has.
        parts: The output that each node is part of, [N], where outputs share no node.
        scale: By how much features count in each of their copies, [N, P]; one copy of them as they are, if ``None``. Of
            a graph these are 1 and its size, so that means and sums of features are means of both copies.
    """

    num_outputs: int
    rows: Rows | None = None
    ends: int = 1
    parts: Tensor | None = None
    scale: Tensor | None = None

    @property
    def num_copies(self) -> int:
        r"""How many copies of the features there are."""
        return 1 if self.scale is None else self.scale.size(1)

    def of(self, outputs: Tensor, end: int = 0) -> Rows:
        r"""The rows of :math:`R_e` for some ``outputs`` [B]."""
        return unit_rows(outputs) if self.rows is None else self.rows.take(outputs + end * self.num_outputs)

    def apply(self, signal: Tensor) -> list[Tensor]:
        r"""What a ``signal`` [N, D] comes to at each end of all outputs, [O, D] each."""
        if self.rows is None:
            return [signal]
        return list(self.rows.apply(signal).split(self.num_outputs))

    def start(self, outputs: Tensor, signals: list[Tensor]) -> tuple[Tensor, Tensor]:
        r"""The nodes that some outputs are made from, distinct and ascending, and :math:`\sum_e R_e^\top D_e` there.

        Args:
            outputs: The outputs [B].
            signals: :math:`D_e` at these outputs, [B, D] for each end.
        """
        parts = [self.of(outputs, end) for end in range(self.ends)]
        column = torch.cat([part.column for part in parts])
        signal = torch.cat(
            [
                signal
                if self.rows is None
                else signal.repeat_interleave(part.length, dim=0) * part.value[:, None].to(signal.dtype)
                for part, signal in zip(parts, signals, strict=True)
            ]
        )
        nodes, merged = torch.unique(column, return_inverse=True)
        return nodes, signal.new_zeros(nodes.numel(), signal.size(1)).index_add_(0, merged, signal)


def _node_readout(graph: Graph, num_outputs: int) -> Readout:
    roots = graph.roots
    return Readout(graph.num_nodes) if roots is None else Readout(num_outputs, unit_rows(roots))


def _graph_readout(graph: Graph, num_outputs: int) -> Readout:
    batch = graph.batch
    size = torch.bincount(batch, minlength=num_outputs)
    if size.numel() != num_outputs:
        raise ValueError(
            f"'model' must return one row a graph of 'batch', {size.numel()} of them (got {num_outputs}): pass the "
            f"'batch' that its outputs are of"
        )
    column = batch.argsort(stable=True)
    share = size.double().clamp(min=1.0).reciprocal().repeat_interleave(size)
    scale = torch.ones(graph.num_nodes, 2, dtype=torch.float64, device=batch.device)
    scale[:, 1] = size[batch]
    return Readout(num_outputs, Rows(size, column, share), parts=batch, scale=scale)


def _edge_readout(graph: Graph, num_outputs: int) -> Readout:
    if graph.pairs.size(1) != num_outputs:
        raise ValueError(
            f"'model' must return one row a pair of '{graph.pair_argument}', {graph.pairs.size(1)} of them (got "
            f"{num_outputs}): name the argument that holds the pairs as 'pair_argument'"
        )
    return Readout(num_outputs, unit_rows(graph.pairs.long().flatten()), ends=2)


READOUTS: dict[str, Callable[[Graph, int], Readout]] = {
    'node': _node_readout,
    'edge': _edge_readout,
    'graph': _graph_readout,
}


def num_outputs(graph: Graph, level: str) -> int:
    r"""How many outputs a model of a task level has."""
    if level == 'node':
        return graph.num_nodes if graph.roots is None else graph.roots.numel()
    if level == 'edge':
        return graph.pairs.size(1)
    batch = graph.kwargs.get('batch')
    return 1 if batch is None else int(batch.max()) + 1


def at_level(graph: Graph, level: str, num_rows: set[int], target_type: Any = None) -> tuple[str, Graph]:
    r"""The level of a model by what the rows of its output are, and the graph with their type if they are nodes of one.

    A model that is called one of nodes may have an output for each graph of a batch; and one of graphs, or of links,
    an output for each node of a type.

    Args:
        graph: The graph.
        level: What the model is called.
        num_rows: How many rows its output may have.
        target_type: The type of the rows, if the user gave it; for links, those of both ends.
    """
    if graph.types is None:
        is_of_graphs = level == 'node' and graph.kwargs.get('batch') is not None
        if is_of_graphs and graph.num_nodes not in num_rows and num_outputs(graph, 'graph') in num_rows:
            return 'graph', graph
        return level, graph
    if level == 'edge':
        graph = graph.paired(target_type)
    if level != 'node' and num_outputs(graph, level) in num_rows:
        return level, graph
    return 'node', graph.aimed(num_rows, target_type)


def readout_of(graph: Graph, level: str, num_outputs: int) -> Readout:
    r"""Which nodes each of ``num_outputs`` outputs is made from, at a task level."""
    return READOUTS[level](graph, num_outputs)
