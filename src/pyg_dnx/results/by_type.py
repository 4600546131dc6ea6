r"""Explanations of heterogeneous graphs: by node type and by relation, and packed as those of a homogeneous graph."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain import Explanation, HeteroExplanation
from torch_geometric.explain.config import MaskType

from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import at_level
from pyg_dnx.graph.types import Types

PER_COLUMN = ('feature_score',)
PER_NODE = ('node_score', 'node_mask', 'node_weight', 'source_score', 'target_score')
PER_EDGE = ('edge_score', 'edge_mask')


def fill(
    explanation: HeteroExplanation, found: Mapping[str, Any], types: Types, node_mask_type: MaskType | None
) -> HeteroExplanation:
    r"""Adds what was found on the packed graph, by node type and by relation."""
    for name, value in found.items():
        if not _set(explanation, name, value, types, node_mask_type == MaskType.common_attributes):
            explanation[name] = value
    if (kind := types.target or types.link) is not None:
        explanation.target_type = kind
    explanation._model_args = list(types.kwargs)
    return explanation


def _set(explanation: HeteroExplanation, name: str, value: Any, types: Types, is_common: bool) -> bool:
    r"""Sets a packed value by node type or by relation; returns whether it is such a value."""
    if name in PER_COLUMN or (name == 'node_mask' and is_common):
        explanation.set_value_dict(name, types.of_columns(value))
    elif name in PER_NODE:
        parts = types.of_nodes(value)
        if name == 'node_mask':  # as the model takes features, so that they can be multiplied
            parts = {kind: part for kind, part in parts.items() if kind in types.dtypes}
        explanation.set_value_dict(name, parts)
    elif name in PER_EDGE:
        explanation.set_value_dict(name, types.of_edges(value))
    return name in (*PER_COLUMN, *PER_NODE, *PER_EDGE)


def set_inputs(explanation: HeteroExplanation, graph: Graph) -> None:
    r"""Adds the arguments of the model, as PyG does."""
    x, edge_index, kwargs = graph.arguments
    for name, value in {'x': x, 'edge_index': edge_index, **kwargs}.items():
        if isinstance(value, Mapping):
            explanation.set_value_dict(name.removesuffix('_dict'), value)
        else:
            explanation[name] = value


class Packed(Explanation):
    r"""The same as an explanation of the packed graph."""

    graph: Graph
    original: HeteroExplanation


def packed(explanation: Any, model: torch.nn.Module, before: Graph | None = None) -> Any:
    r"""Any explainer's explanation of a heterogeneous graph, packed; one of a homogeneous graph is left as it is.

    Args:
        explanation: The explanation.
        model: The model, whose arguments are among its values.
        before: The packed graph of another explanation, which is taken if it is the same.
    """
    if not isinstance(explanation, HeteroExplanation):
        return explanation
    kwargs = {}
    for name in _names(explanation, model):
        value = explanation.collect(name.removesuffix('_dict'), True) or explanation.get(name)
        if value is not None:
            kwargs[name] = value
    source = explanation.collect('x', True), explanation.collect('edge_index', True), kwargs
    if before is None or not before.has_source(*source):
        before = Graph.of(*source)
    config, target = explanation._model_config, explanation.get('target')
    rows = explanation.get('prediction')
    rows = target if rows is None else rows
    _, graph = at_level(before, str(config.task_level.value), {rows.size(0)}, explanation.get('target_type'))
    found = Packed(index=explanation.get('index'), prediction=explanation.get('prediction'), target=target)
    types = graph.types
    assert types is not None
    for name in PER_COLUMN:
        if parts := explanation.collect(name, True):
            found[name] = torch.cat([parts[kind] for kind in types.dtypes])
    for name in PER_NODE:
        if parts := explanation.collect(name, True):
            found[name] = _nodes(parts, types, graph.num_nodes)
    for name in PER_EDGE:
        if parts := explanation.collect(name, True):
            like = next(iter(parts.values()))
            found[name] = torch.cat([parts.get(key, like.new_ones(ids.numel())) for key, ids in types.edges.items()])
    found.__dict__.update(graph=graph, original=explanation)  # beside the values, so that copies share them
    found._model_config, found._model_args = config, list(kwargs)
    return found


def unpacked(found: Any) -> Any:
    r"""What was packed, with the masks that it has now; anything else is left as it is."""
    if not isinstance(found, Packed):
        return found
    result, types = copy.copy(found.original), found.graph.types
    assert types is not None
    for name in ('node_mask', 'edge_mask'):
        value = found.get(name)
        if value is not None:
            _set(result, name, value, types, value.size(0) == 1 and value.dim() == 2)
        else:
            for store in (*result.node_stores, *result.edge_stores):
                store.pop(name, None)
    return result


def _names(explanation: HeteroExplanation, model: torch.nn.Module) -> list[str]:
    r"""The names of the model's further arguments."""
    known = getattr(explanation, '_model_args', None)
    return list(inspect.signature(model.forward).parameters)[2:] if known is None else known


def _nodes(parts: dict[str, Tensor], types: Types, num_nodes: int) -> Tensor:
    r"""Values of nodes by type, packed; masks of types that have none keep them."""
    like = next(iter(parts.values()))
    if like.dim() == 1:
        return torch.cat([parts.get(kind, like.new_zeros(ids.numel())) for kind, ids in types.nodes.items()])
    if all(part.size(0) == 1 for part in parts.values()) and any(ids.numel() > 1 for ids in types.nodes.values()):
        return torch.cat([parts[kind] for kind in types.dtypes], dim=1)
    if all(part.size(1) == 1 for part in parts.values()):
        return torch.cat([parts.get(kind, like.new_ones(ids.numel(), 1)) for kind, ids in types.nodes.items()])
    width = sum(columns.stop - columns.start for columns in types.columns.values())
    found = like.new_zeros(num_nodes, width)
    for kind, part in parts.items():
        found[types.nodes[kind], types.columns[kind]] = part
    return found
