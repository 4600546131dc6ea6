r"""From an attribution to a PyG :class:`~torch_geometric.explain.Explanation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.explain import Explanation, HeteroExplanation
from torch_geometric.explain.config import MaskType

from pyg_dnx.distill.decomposition import Decomposition
from pyg_dnx.distill.distill import Trust
from pyg_dnx.graph.graph import Graph
from pyg_dnx.results.by_type import fill, set_inputs
from pyg_dnx.scores.attribution import attribute
from pyg_dnx.scores.masks import to_mask
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.rules import Effects


class ShownExplanation(Explanation):
    r"""PyG's explanation, shown as its page in a notebook."""

    def _repr_html_(self) -> str:
        from pyg_dnx.view.html import notebook_html

        return notebook_html(self)


class ShownHeteroExplanation(HeteroExplanation):
    r"""The same of a heterogeneous graph."""

    def _repr_html_(self) -> str:
        from pyg_dnx.view.html import notebook_html

        return notebook_html(self)


class View(NamedTuple):
    r"""What the user wants to see, and by which names."""

    node_mask_type: MaskType | None
    edge_mask_type: MaskType | None
    edge_score: str
    mask: str
    class_names: Sequence[str] | Mapping[Any, Any] | None = None
    feature_names: Sequence[str] | Mapping[Any, Any] | None = None
    node_names: Sequence[str] | Mapping[Any, Any] | None = None

    @property
    def names(self) -> dict[str, Any]:
        r"""The names that are given; of classes and features by number, as lists might be taken for those of nodes."""
        found: dict[str, Any] = {}
        for name in ('class_names', 'feature_names', 'node_names'):
            value = getattr(self, name)
            if value is not None:
                is_list = name != 'node_names' and not isinstance(value, Mapping)
                found[name] = dict(enumerate(value)) if is_list else value
        return found


def join_parts(found: list[tuple[dict[str, Any], Tensor, Tensor]], graph: Graph, view: View) -> dict[str, Any]:
    r"""What is shown of a batch, given that of its graphs and the ids of their nodes and edges in it."""
    joined: dict[str, Any] = {}
    for name in found[0][0]:
        values = [part[name] for part, *_ in found]
        if not isinstance(values[0], Tensor):
            joined[name] = values[0]
        elif name == 'feature_score' or (name == 'node_mask' and view.node_mask_type == MaskType.common_attributes):
            joined[name] = torch.stack(values).sum(dim=0)
        elif name.startswith(('node_', 'edge_')):
            ids = [nodes if name.startswith('node_') else edges for _, nodes, edges in found]
            size = graph.num_nodes if name.startswith('node_') else graph.edge_index.size(1)
            whole = values[0].new_zeros(size, *values[0].shape[1:])
            joined[name] = whole.index_copy_(0, torch.cat(ids), torch.cat(values))
        else:
            joined[name] = torch.cat(values)
    if view.node_mask_type == MaskType.common_attributes:
        joined['node_mask'] = to_mask(joined['feature_score'], None, view.mask, joined['node_mask'].dtype)[None]
    return joined


def _attribute_mask(
    scores: Tensor, inside: Tensor, scaling: str, dtype: torch.dtype, parts: Tensor | None, graph: Graph
) -> Tensor:
    r"""The mask of the features of nodes, [N, F]; those of other types' columns are none."""
    if graph.types is None:
        return to_mask(scores, inside, scaling, dtype, parts)
    parts = None if parts is None else parts.repeat_interleave(scores.size(1))
    own = graph.types.own_entries(inside)
    return to_mask(scores.flatten(), own, scaling, dtype, parts).view_as(scores)


def build(
    decomposition: Decomposition, question: Question, effects: Effects, trust: Trust, graph: Graph, view: View
) -> Explanation | HeteroExplanation:
    r"""Explains outputs jointly, by masks and signed scores, and says how far to trust what stands for the model."""
    return shown(scored(decomposition, question, effects, trust, graph, view), graph, view)


def shown(found: dict[str, Tensor], graph: Graph, view: View) -> Explanation | HeteroExplanation:
    r"""What was found, as an explanation; of a heterogeneous graph, by node type and by relation."""
    if graph.types is not None:
        return fill(ShownHeteroExplanation(), {**found, **view.names}, graph.types, view.node_mask_type)
    explanation = ShownExplanation()
    explanation._pair_argument = graph.pair_argument
    # As ShownExplanation(**found, **names), in half the time.
    return explanation.update({**found, **view.names})


def scored(
    decomposition: Decomposition, question: Question, effects: Effects, trust: Trust, graph: Graph, view: View
) -> dict[str, Tensor]:
    r"""The masks and signed scores of outputs that are explained jointly, and how far to trust them."""
    attribution, x = attribute(decomposition, question, effects), graph.x
    categories, features = decomposition.surrogate.categories, decomposition.surrogate.encode(x.detach())
    inside, parts = attribution.neighbourhood, decomposition.readout.parts
    if question.outputs.numel() == 1:
        parts = None
    dtype = x.dtype if x.dtype.is_floating_point else torch.float32
    scores = attribution.node_scores()
    node_score = scores.new_zeros(x.size(0)).index_copy_(0, inside, scores)
    found = {'node_score': node_score, **trust.to_dict(), **effects.extra}
    node_score = found['node_score']
    if decomposition.readout.ends == 2:
        for name, part in zip(('source_score', 'target_score'), attribution.end_scores(), strict=True):
            found[name] = part.new_zeros(x.size(0)).index_copy_(0, inside, part)

    if view.node_mask_type == MaskType.object:
        found['node_mask'] = to_mask(found['node_score'], inside, view.mask, dtype, parts)[:, None]
    elif view.node_mask_type == MaskType.attributes:
        attribute_scores = attribution.attribute_scores(features)
        attribute_scores = attribute_scores if categories is None else categories.collapse(attribute_scores)
        found['node_score'] = attribute_scores.new_zeros(x.shape).index_copy_(0, inside, attribute_scores)
        found['node_mask'] = _attribute_mask(found['node_score'], inside, view.mask, dtype, parts, graph)
    elif view.node_mask_type == MaskType.common_attributes:
        scores = attribution.feature_scores(features)
        found['feature_score'] = scores if categories is None else categories.collapse(scores)
        found['node_mask'] = to_mask(found['feature_score'], None, view.mask, dtype)[None]

    if view.edge_mask_type is not None:
        found['edge_score'], inside = attribution.edge_scores(graph.edge_index, view.edge_score, node_score)
        edge_parts = None if parts is None else parts[graph.edge_index[0]]
        found['edge_mask'] = to_mask(found['edge_score'], inside, view.mask, dtype, edge_parts)
    return found


def with_inputs(explanation: Any, graph: Graph, **values: Any) -> Any:
    r"""An explanation with the arguments of the model and other values, as PyG adds them."""
    if graph.types is not None:
        set_inputs(explanation, graph)
        for name, value in values.items():
            explanation[name] = value
        return explanation
    explanation._model_args = list(graph.kwargs)
    return explanation.update({'x': graph.x, 'edge_index': graph.edge_index, **graph.kwargs, **values})
