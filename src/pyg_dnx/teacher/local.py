r"""What the model answers at a node if one other is taken from the graph, or is all that is left of it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.explain.config import ModelConfig
from tqdm import tqdm

from pyg_dnx.graph.operator import is_edge_list
from pyg_dnx.graph.subgraphs import MAX_FEATURES_AT_A_TIME, Neighbourhoods, is_close
from pyg_dnx.teacher.teacher import masked_query, to_targets


class Pairs:
    r"""Asks a model about pairs of nodes: what it says of the one without the other, and with the other alone.

    Many are asked about at once, on copies of neighbourhoods one hop larger than the model looks, so that degrees are
    the graph's own. Where the model answers otherwise there than on the graph, each pair takes two evaluations of it.

    Args:
        model, x, edge_index, kwargs: The model and its arguments.
        config: What it returns.
        outputs: What it says of all nodes, [N, C].
        num_hops: How many hops it looks; ``None`` if nobody knows.
        flow: The direction of messages.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        x: Tensor,
        edge_index: Any,
        kwargs: dict[str, Any],
        config: ModelConfig,
        outputs: Tensor,
        num_hops: int | None,
        flow: str,
    ) -> None:
        self.model, self.graph, self.config, self.outputs = model, (x, edge_index, kwargs), config, outputs
        self.neighbourhoods = None
        if num_hops is not None and is_edge_list(edge_index):
            self.neighbourhoods, self.num_hops = Neighbourhoods(edge_index, x.size(0), flow), num_hops + 1

    def answers(self, nodes: Tensor, others: Tensor, progress: bool | None = False) -> Tensor:
        r"""What the model says of each of ``nodes`` [Q] without one of ``others`` [Q], and with it alone, [2, Q, C]."""
        hidden, delay = None if progress is None else not progress, 0 if progress else 1
        found = [self.outputs.new_zeros(2, 0, self.outputs.size(1), dtype=torch.float64)]
        with tqdm(total=nodes.numel(), desc='Checking', unit=' pairs', disable=hidden, delay=delay) as bar:
            for chunk in self._chunks(nodes):
                pairs = nodes[chunk], others[chunk]
                answers = self._on_copies(*pairs) if self.neighbourhoods is not None else None
                if answers is None:
                    self.neighbourhoods = None
                    answers = self._on_graph(*pairs)
                found.append(answers)
                bar.update(chunk.numel())
        return torch.cat(found, dim=1)

    def _chunks(self, nodes: Tensor) -> list[Tensor]:
        r"""Positions in ``nodes`` of pairs that are asked about at once: consecutive, and none is in two."""
        position = torch.arange(nodes.numel(), device=nodes.device)
        if self.neighbourhoods is None:
            return list(position[:, None].unbind())
        x, *_ = self.graph
        size = 2.0 * self.neighbourhoods.sizes(self.num_hops)[nodes] * (x.size(1) + 1)
        runs = torch.bincount((size.cumsum(0) / MAX_FEATURES_AT_A_TIME).long())
        return list(position.split(runs[runs > 0].tolist()))

    def _on_copies(self, nodes: Tensor, others: Tensor) -> Tensor | None:
        r"""The answers [2, q, C] on copies; ``None`` if the model answers otherwise there than on the graph."""
        x, edge_index, kwargs = self.graph
        whole, size = nodes.unique(), nodes.numel()
        parts = cast(Neighbourhoods, self.neighbourhoods).around(torch.cat([nodes, nodes, whole]), self.num_hops)
        other = torch.cat([others, others, torch.full_like(whole, -1)])  # no node: the whole neighbourhood is left
        without = torch.ones_like(other, dtype=torch.bool)
        without[size : 2 * size] = False
        keep = (parts.node == other[parts.owner]) != without[parts.owner]
        try:
            inputs = parts.inputs(x, edge_index.size(1), kwargs)
            answers = self._ask(*inputs, keep=keep)[parts.root]
        except Exception:  # a model that knows the size of its graph; any other error will be seen on the graph, too
            return None
        found = answers[: 2 * size].unflatten(0, (2, size))
        is_local = is_close(answers[2 * size :], self.outputs[whole].double())
        return found if is_local and is_close(found[:, :1], self._on_graph(nodes[:1], others[:1])) else None

    def _on_graph(self, nodes: Tensor, others: Tensor) -> Tensor:
        r"""The answers [2, q, C] by two evaluations of the model for each pair."""
        x, edge_index, kwargs = self.graph
        ids, found = torch.arange(x.size(0), device=x.device), []
        for node, other in zip(nodes, others, strict=True):
            found.append(
                torch.stack([self._ask(x, edge_index, kwargs, keep)[node] for keep in (ids != other, ids == other)])
            )
        return torch.stack(found, dim=1)

    def _ask(self, x: Tensor, edge_index: Any, kwargs: dict[str, Any], keep: Tensor) -> Tensor:
        outputs = masked_query(self.model, x, edge_index, kwargs, keep[:, None], None)
        return to_targets(outputs, self.config, torch.float64, x.device)[0]
