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
from pyg_dnx.graph.types import Types
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


def join_parts(found: list[tuple[Explanation, Tensor, Tensor]], graph: Graph, view: View) -> Explanation:
    r"""One explanation of a batch, of those of its graphs, given the ids of their nodes and edges in it."""
    joined: dict[str, Tensor] = {}
    for name in found[0][0].to_dict().keys() - view.names.keys():
        values = [explanation[name] for explanation, *_ in found]
        if name == 'feature_score' or (name == 'node_mask' and view.node_mask_type == MaskType.common_attributes):
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
    return ShownExplanation().update({**joined, **view.names})


def _attribute_mask(
    scores: Tensor, inside: Tensor, scaling: str, dtype: torch.dtype, parts: Tensor | None, graph: Graph
) -> Tensor:
    r"""The mask of the features of nodes, [N, F]; those of other types' columns are none."""
    if graph.types is None:
        return to_mask(scores, inside, scaling, dtype, parts)
    parts = None if parts is None else parts.repeat_interleave(scores.size(1))
    own = graph.types.own_entries(inside)
    return to_mask(scores.flatten(), own, scaling, dtype, parts).view_as(scores)


def _by_type(found: dict[str, Any], types: Types, view: View) -> HeteroExplanation:
    r"""What was found, by node type and by relation."""
    explanation = ShownHeteroExplanation()
    for name, value in found.items():
        if name == 'feature_score' or (name == 'node_mask' and view.node_mask_type == MaskType.common_attributes):
            explanation.set_value_dict(name, types.of_columns(value))
        elif name.startswith('node_') or name in ('source_score', 'target_score'):
            by_type = types.of_nodes(value)
            if name == 'node_mask':  # as the model takes features, so that they can be multiplied
                by_type = {name: part for name, part in by_type.items() if name in types.dtypes}
            explanation.set_value_dict(name, by_type)
        elif name.startswith('edge_'):
            explanation.set_value_dict(name, types.of_edges(value))
        else:
            explanation[name] = value
    if types.target is not None:
        explanation.target_type = types.target
    for name, value in view.names.items():
        explanation[name] = value
    return explanation


def build(
    decomposition: Decomposition, question: Question, effects: Effects, trust: Trust, graph: Graph, view: View
) -> Explanation | HeteroExplanation:
    r"""Explains outputs jointly, by masks and signed scores, and says how far to trust what stands for the model."""
    attribution, x = attribute(decomposition, question, effects), graph.x
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
        attribute_scores = attribution.attribute_scores(x.detach())
        found['node_score'] = attribute_scores.new_zeros(x.shape).index_copy_(0, inside, attribute_scores)
        found['node_mask'] = _attribute_mask(found['node_score'], inside, view.mask, dtype, parts, graph)
    elif view.node_mask_type == MaskType.common_attributes:
        found['feature_score'] = attribution.feature_scores(x.detach())
        found['node_mask'] = to_mask(found['feature_score'], None, view.mask, dtype)[None]

    if view.edge_mask_type is not None:
        found['edge_score'], inside = attribution.edge_scores(graph.edge_index, view.edge_score, node_score)
        edge_parts = None if parts is None else parts[graph.edge_index[0]]
        found['edge_mask'] = to_mask(found['edge_score'], inside, view.mask, dtype, edge_parts)
    if graph.types is not None:
        return _by_type(found, graph.types, view)
    # As ShownExplanation(**found, **names), in half the time.
    return ShownExplanation().update({**found, **view.names})
