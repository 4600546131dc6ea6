r"""Measured checks: what the model itself answers when only the explanation, or all but it, is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.explain import Explainer, Explanation
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.config import ExplanationType, ModelMode
from tqdm import tqdm

from pyg_dnx import options as checks
from pyg_dnx.graph.operator import is_edge_list
from pyg_dnx.graph.subgraphs import MAX_FEATURES_AT_A_TIME, Neighbourhoods, is_close
from pyg_dnx.teacher.teacher import masked_query, receptive_field, to_targets


@dataclass(frozen=True)
class Check:
    r"""What the model answers under explanations, for each explained node. Printed, it is a short table of means.

    Attributes:
        index (Tensor): The explained nodes [B].
        fidelity_plus (Tensor, optional): Whether the prediction changes if the explanation is taken away, [B], as in
            :func:`torch_geometric.explain.metric.fidelity`. ``None`` for regression.
        fidelity_minus (Tensor, optional): Whether it changes if nothing but the explanation is left, [B].
        unfaithfulness (Tensor): The Euclidean distance between the model's class probabilities (or outputs) on the
            graph and on the explanation alone, [B].
        gef (Tensor, optional): :math:`1 - \exp(-\mathrm{KL}(y \| \hat{y}))` of the same, [B]. ``None`` for regression.
    """

    index: Tensor
    fidelity_plus: Tensor | None
    fidelity_minus: Tensor | None
    unfaithfulness: Tensor
    gef: Tensor | None

    def __str__(self) -> str:
        rows = [('explained nodes', f'{self.index.numel():,}')]
        for name in ('fidelity_plus', 'fidelity_minus', 'unfaithfulness', 'gef'):
            if (values := getattr(self, name)) is not None:
                rows.append((name, f'{float(values.double().mean()):.3f}'))
        return '\n'.join(f'{name:<18} {value}' for name, value in rows)


def check(
    explainer: Explainer,
    explanations: Explanation | Iterable[Explanation],
    *,
    num_hops: int | None = None,
    progress: bool | None = None,
) -> Check:
    r"""Asks the model itself how faithful explanations are: any explainer's, with node masks, edge masks or both.

    One explanation, of one node or several, costs two evaluations of the model, and one more where it does not hold the
    model's own prediction. Many explanations of one node each are checked together, on copies of the nodes'
    neighbourhoods, one hop larger than the model looks, so that all degrees that matter are the graph's. Where the
    model answers otherwise there than on the graph, its outputs depend on more, and each explanation is checked on the
    whole graph.

    Args:
        explainer (Explainer): The explainer of the model.
        explanations (Explanation or iterable of these): What it returned, or what ``explain_nodes`` did.
        num_hops (int, optional): How far the model looks; ``None`` is the receptive field of its PyG layers.
        progress (bool, optional): Whether to show a progress bar. ``None`` shows it on a terminal, if it takes more
            than a second.
    """
    reach = receptive_field(explainer.model) if num_hops is None else checks.count('num_hops', num_hops)
    if isinstance(explanations, Explanation):
        explanations, reach = [explanations], None  # the graph itself costs less than looking for a part of it
    if not isinstance(explanations, Iterable):
        kind = type(explanations).__name__
        raise TypeError(
            f"'explanations' must be an Explanation or several (got {kind}): pass what 'explainer' returned"
        )
    hidden = None if progress is None else not progress
    with tqdm(explanations, desc='Checking', disable=hidden, delay=0 if progress else 1) as bar, torch.no_grad():
        found = list(_check_all(explainer, bar, reach))
    if not found:
        raise ValueError("'explanations' must hold at least one explanation (got none): pass what 'explainer' returned")
    return found[0] if len(found) == 1 else _join(found)


def _check_all(explainer: Explainer, explanations: Iterable[Explanation], reach: int | None) -> Iterator[Check]:
    graph = None
    for explanation in explanations:
        inputs = inputs_of(explanation)
        if graph is None or not graph.is_for(*inputs):
            if graph is not None:
                yield from graph.flush()
            graph = _Graph(explainer, explanation, reach)
        yield from graph.add(explanation)
    if graph is not None:
        yield from graph.flush()


def inputs_of(explanation: Explanation) -> tuple[Tensor, Any, dict[str, Any]]:
    r"""The arguments that the model had."""
    if not isinstance(explanation, Explanation):
        kind = type(explanation).__name__
        raise TypeError(
            f"'explanations' must be an Explanation or several (got {kind}): pass what 'explainer' returned"
        )
    return explanation.x, explanation.edge_index, {name: explanation.get(name) for name in explanation._model_args}


class _Graph:
    r"""Checks explanations on one graph: those of one node together, those of several on the whole graph."""

    def __init__(self, explainer: Explainer, explanation: Explanation, reach: int | None) -> None:
        self.explainer = explainer
        self.x, self.edge_index, self.kwargs = inputs_of(explanation)
        checks.graph(self.x, self.edge_index, self.kwargs)
        prediction = explanation.get('prediction')
        self.raw = self._ask(*inputs_of(explanation)) if prediction is None else prediction.detach()
        self.outputs = self._as_targets(self.raw)
        self.waiting: list[tuple[Explanation, Tensor]] = []
        self.kind: tuple[Any, ...] = ()
        self.was_local = False  # whether the model was seen to answer on a part of the graph as on the whole
        self.neighbourhoods = None
        if reach is not None and is_edge_list(self.edge_index):
            flow = ExplainerAlgorithm._flow(explainer.model)
            self.num_hops = reach + 1
            self.neighbourhoods = Neighbourhoods(self.edge_index, self.x.size(0), flow)
            self.sizes = self.neighbourhoods.sizes(self.num_hops)
            self.room = MAX_FEATURES_AT_A_TIME

    def is_for(self, x: Tensor, edge_index: Any, kwargs: dict[str, Any]) -> bool:
        same = x is self.x and edge_index is self.edge_index and kwargs.keys() == self.kwargs.keys()
        return same and all(value is self.kwargs[name] for name, value in kwargs.items())

    def add(self, explanation: Explanation) -> Iterator[Check]:
        nodes = checks.index(explanation.get('index'), self.x)
        node_mask, edge_mask = checks.masks(explanation)
        alone = self.neighbourhoods is None or nodes.numel() != 1
        kind = (edge_mask is None, None if node_mask is None else node_mask.shape)
        if alone or kind != self.kind:
            yield from self.flush()
            self.kind = kind
        if alone or self.neighbourhoods is None:
            yield self._on_graph(explanation, nodes)
            return
        self.waiting.append((explanation, nodes))
        self.room -= int(self.sizes[nodes]) * self.x.size(1) + self.x.size(0) + self.edge_index.size(1)
        if self.room <= 0:
            yield from self.flush()

    def flush(self) -> Iterator[Check]:
        r"""Checks what waits to be checked together."""
        if self.waiting:
            waiting, self.waiting, self.room = self.waiting, [], MAX_FEATURES_AT_A_TIME
            check = self._on_subgraphs(waiting)
            if check is None:
                self.neighbourhoods = None
                yield from (self._on_graph(*item) for item in waiting)
            else:
                yield check

    def _on_graph(self, explanation: Explanation, nodes: Tensor) -> Check:
        inputs = (self.x, self.edge_index, self.kwargs)
        masks = checks.masks(explanation)
        kept, removed = (self._answers(*inputs, *sides)[nodes] for sides in (masks, map(_complement, masks)))
        return self._result([explanation], nodes, kept, removed)

    def _on_subgraphs(self, waiting: list[tuple[Explanation, Tensor]]) -> Check | None:
        r"""Checks explanations of one node each; ``None`` if the model answers otherwise there than on the graph."""
        explanations, nodes = [item for item, _ in waiting], torch.cat([node for _, node in waiting])
        parts = cast(Neighbourhoods, self.neighbourhoods).around(nodes, self.num_hops)
        inputs = parts.inputs(self.x, self.edge_index.size(1), self.kwargs)
        masks = [_gather(explanations, 'node_mask', parts.nodes()), _gather(explanations, 'edge_mask', parts.edges())]
        # Where there is a loop for each node, PyG takes masks by place, and that differs in parts of a graph.
        if masks[1] is not None and (_is_looped(self.edge_index, self.x) or _is_looped(parts.edge_index, parts.node)):
            return None
        try:
            clean = self._ask(*inputs)[parts.root]
        except Exception:  # a model that knows the size of its graph; any other error will be seen on the graph, too
            return None
        if not is_close(clean, self.raw[nodes]):
            return None
        masked = self._ask(*inputs, *masks)[parts.root]
        if not self._is_local(masked[:1], explanations[0], nodes[:1]):
            return None
        kept, removed = self._as_targets(masked), self._answers(*inputs, *map(_complement, masks))[parts.root]
        return self._result(explanations, nodes, kept, removed)

    def _is_local(self, masked: Tensor, explanation: Explanation, node: Tensor) -> bool:
        r"""Whether the model answers on the whole graph, under a mask, as on a part of it; asked once a graph."""
        if not self.was_local:
            inputs = (self.x, self.edge_index, self.kwargs)
            self.was_local = is_close(masked, self._ask(*inputs, *checks.masks(explanation))[node])
        return self.was_local

    def _answers(self, *inputs: Any) -> Tensor:
        return self._as_targets(self._ask(*inputs))

    def _ask(
        self,
        x: Tensor,
        edge_index: Any,
        kwargs: dict[str, Any],
        node_mask: Tensor | None = None,
        edge_mask: Tensor | None = None,
    ) -> Tensor:
        return masked_query(self.explainer.model, x, edge_index, kwargs, node_mask, edge_mask)

    def _as_targets(self, outputs: Tensor) -> Tensor:
        return to_targets(outputs, self.explainer.model_config, torch.float64, self.x.device)[0]

    def _result(self, explanations: list[Explanation], nodes: Tensor, kept: Tensor, removed: Tensor) -> Check:
        before = self.outputs[nodes]
        unfaithfulness = (before - kept).norm(dim=1)
        if self.explainer.model_config.mode == ModelMode.regression:
            return Check(nodes, None, None, unfaithfulness, None)
        predicted, target = before.argmax(dim=1), before.argmax(dim=1)
        if self.explainer.explanation_type == ExplanationType.phenomenon:
            each = nodes.split(nodes.numel() // len(explanations))
            target = torch.cat([item.target.view(-1)[ids] for item, ids in zip(explanations, each, strict=True)])
        hit = predicted == target
        plus, minus = ((hit != (side.argmax(dim=1) == target)).double() for side in (removed, kept))
        return Check(nodes, plus, minus, unfaithfulness, graph_unfaithfulness(before, kept))


def graph_unfaithfulness(before: Tensor, after: Tensor) -> Tensor:
    r"""Returns :math:`1 - \exp(-\mathrm{KL}(y \| \hat{y}))` for each row of two tables of probabilities [B, C].

    PyG's :func:`~torch_geometric.explain.metric.unfaithfulness` has the two the other way round, averages the KL over
    nodes before the exponential, and takes the softmax of a single logit, which is 1 whatever the model says.
    """
    divergence = (torch.xlogy(before, before) - torch.xlogy(before, after)).sum(dim=1)
    return 1.0 - (-divergence.clamp(min=0.0)).exp()


def _is_looped(edge_index: Tensor, nodes: Tensor) -> bool:
    return int((edge_index[0] == edge_index[1]).sum()) == nodes.size(0)


def _complement(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else 1.0 - mask


def _gather(explanations: list[Explanation], name: str, ids: Sequence[Tensor]) -> Tensor | None:
    r"""Each explanation's mask at its own ids, one after the other."""
    masks = [explanation.get(name) for explanation in explanations]
    if any(mask is None for mask in masks):
        return None
    return torch.cat(
        [
            mask.expand(i.numel(), -1) if mask.dim() == 2 and mask.size(0) == 1 else mask[i]
            for mask, i in zip(masks, ids, strict=True)
        ]
    )


def _join(parts: list[Check]) -> Check:
    def joined(name: str) -> Any:
        tensors = [getattr(part, name) for part in parts]
        return None if tensors[0] is None else torch.cat(tensors)

    return Check(*map(joined, ('index', 'fidelity_plus', 'fidelity_minus', 'unfaithfulness', 'gef')))
