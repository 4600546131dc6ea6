r"""Graphs of several node types: packed into one graph, and unpacked where the model or the user wants dicts.

Nodes of all types are numbered through, and so are the edges of all relations. The features of each type have columns
of their own, so that a surrogate has weights for each. Nothing but this module, what calls the model, and what is
returned to the user knows of types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

Relation = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Types:
    r"""Which nodes, edges and columns of a packed graph belong to which type, and what the user passed.

    Args:
        nodes: The packed ids of each type's nodes, in their order.
        edges: The packed ids of each relation's edges, in their order.
        columns: The columns of each type's features; those without features have none.
        x: The features by type, as the model takes them.
        edge_index: The edges by relation, as the model takes them.
        kwargs: The model's further arguments, as it takes them.
        target: The type whose nodes the rows of the output are; for pairs of nodes, those of both ends.
    """

    nodes: dict[str, Tensor]
    edges: dict[Relation, Tensor]
    columns: dict[str, slice]
    x: Mapping[str, Tensor]
    edge_index: Mapping[Relation, Tensor]
    kwargs: Mapping[str, Any]
    target: str | tuple[str, str] | None = None

    def call(self, model: torch.nn.Module, x: Mapping[str, Tensor] | None = None) -> Any:
        r"""What the model returns, for other features by type if they are given."""
        return model({**(self.x if x is None else x)}, {**self.edge_index}, **self.kwargs)

    def times(self, mask: Tensor) -> dict[str, Tensor]:
        r"""The features by type, times a packed mask of shape [N, 1], [N, F] or [1, F]."""
        return {name: x * self._block(mask, name) for name, x in self.x.items()}

    def _block(self, values: Tensor, name: str) -> Tensor:
        r"""The part of packed values [N or 1, F or 1] that belongs to a type."""
        rows = values if values.size(0) == 1 else values[self.nodes[name]]
        return rows if values.size(1) == 1 else rows[:, self.columns[name]]

    def of_nodes(self, values: Tensor) -> dict[str, Tensor]:
        r"""Packed values [N] or [N, F] by type."""
        if values.dim() == 2 and values.size(1) > 1:
            return {name: self._block(values, name) for name in self.x}
        return {name: values[ids] for name, ids in self.nodes.items()}

    def of_columns(self, values: Tensor) -> dict[str, Tensor]:
        r"""Packed values [F] or [1, F] by type."""
        return {name: values[..., self.columns[name]] for name in self.x}

    def of_edges(self, values: Tensor) -> dict[Relation, Tensor]:
        r"""Packed values [E] by relation."""
        return {relation: values[ids] for relation, ids in self.edges.items()}

    @cached_property
    def node_type(self) -> Tensor:
        r"""The number of each node's type, [N]."""
        return _numbers(self.nodes.values())

    @cached_property
    def node_id(self) -> Tensor:
        r"""The number of each node within its type, [N]."""
        found = torch.empty_like(self.node_type)
        for ids in self.nodes.values():
            found[ids] = torch.arange(ids.numel(), device=ids.device)
        return found

    def own_entries(self, nodes: Tensor) -> Tensor:
        r"""Where the features of some nodes are in a packed matrix [N, F], by rows, as places in it [m]."""
        found, width = [], sum(columns.stop - columns.start for columns in self.columns.values())
        for name, ids in self.nodes.items():
            columns = self.columns[name]
            here = nodes[self.node_type[nodes] == self.node_type[ids[:1]]] if ids.numel() > 0 else ids
            every = torch.arange(columns.start, columns.stop, device=nodes.device)
            found.append((here[:, None] * width + every).flatten())
        return torch.cat(found).sort().values

    @property
    def roots(self) -> Tensor | None:
        r"""The packed ids of the nodes that the rows of the output are, if they are nodes of a type."""
        return self.nodes[self.target] if isinstance(self.target, str) else None


def pack(x: Any, edge_index: Any, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any], Types]:
    r"""Packs the arguments of a model of a heterogeneous graph, once their types, shapes and ids are checked.

    Returns:
        Features [N, F], edges [2, E] and those further arguments that are read apart from the model: ``edge_weight``,
        ``batch``; and the types.
    """
    _check(x, edge_index)
    sizes = _sizes(x, edge_index, kwargs)
    nodes, first = {}, 0
    device = next(iter(x.values())).device
    for name, size in sizes.items():
        nodes[name] = torch.arange(first, first + size, device=device)
        first += size
    columns, width = {}, 0
    for name in sizes:
        count = x[name].size(1) if name in x else 0
        columns[name] = slice(width, width + count)
        width += count
    edges, start = {}, 0
    for relation, ends in edge_index.items():
        edges[relation] = torch.arange(start, start + ends.size(1), device=device)
        start += ends.size(1)
    types = Types(nodes, edges, columns, x, edge_index, kwargs)
    if len(sizes) == 1 and len(edge_index) == 1:  # the graph that it is
        packed, ends = next(iter(x.values())), next(iter(edge_index.values()))
    else:
        dtype = torch.promote_types(torch.float32, next(iter(x.values())).dtype)
        for part in x.values():
            dtype = torch.promote_types(dtype, part.dtype)
        packed = torch.zeros(first, width, dtype=dtype, device=device)
        for name, part in x.items():
            packed[nodes[name], columns[name]] = part.detach().to(dtype)
        shift = {name: ids[0] if ids.numel() > 0 else 0 for name, ids in nodes.items()}
        parts = [
            torch.stack([ends[0].long() + shift[source], ends[1].long() + shift[target]])
            for (source, _, target), ends in edge_index.items()
        ]
        ends = torch.cat(parts, dim=1) if parts else torch.zeros(2, 0, dtype=torch.long, device=device)
    return packed, ends, _packed_arguments(kwargs, types), types


def _packed_arguments(kwargs: dict[str, Any], types: Types) -> dict[str, Any]:
    r"""The further arguments that the package reads itself: edge weights by relation, and the graph of each node."""
    found = {}
    weights = _first(kwargs, 'edge_weight', 'edge_weight_dict')
    if isinstance(weights, Mapping):
        for relation, weight in weights.items():
            expected = [types.edges[relation].numel()] if relation in types.edges else 'none'
            if not isinstance(weight, Tensor) or list(weight.shape) != expected:
                got = _shape(weight)
                raise ValueError(
                    f"'edge_weight' must have shape {expected} for the relation {relation}, one number an edge (got "
                    f"{got}): pass what has several numbers an edge as 'edge_attr_dict'"
                )
        like = next((weight for weight in weights.values()), None)
        if like is not None:
            parts = [weights.get(relation, like.new_ones(ids.numel())) for relation, ids in types.edges.items()]
            found['edge_weight'] = parts[0] if len(parts) == 1 else torch.cat(parts)
    batch = _first(kwargs, 'batch', 'batch_dict')
    if isinstance(batch, Mapping):
        missing = [name for name in types.nodes if name not in batch]
        if missing:
            raise ValueError(
                f"'batch' must name the graph of each node of all types (got none for {missing}): pass it for these"
            )
        found['batch'] = torch.cat([batch[name] for name in types.nodes])
    return found


def _first(kwargs: dict[str, Any], *names: str) -> Any:
    return next((kwargs[name] for name in names if kwargs.get(name) is not None), None)


def aimed(types: Types, num_rows: Iterable[int], target_type: Any = None) -> Types:
    r"""The same, with the type whose nodes the output's rows are.

    Args:
        types: The types.
        num_rows: How many rows the output has, or may have.
        target_type: The type, if the user gave it.
    """
    rows = set(num_rows)
    counts = {name: ids.numel() for name, ids in types.nodes.items()}
    if target_type is not None:
        if target_type not in counts:
            raise ValueError(
                f"'target_type' must be one of the node types {list(counts)} (got {target_type!r}): pass one of them"
            )
        return replace(types, target=target_type)
    fitting = [name for name, count in counts.items() if count in rows]
    if len(fitting) != 1:
        got = f'{sorted(rows)[0]} rows, as many as each of {fitting} has' if fitting else f'{sorted(rows)[0]} rows'
        raise ValueError(
            f"'target_type' must be given where the type of the output's rows can't be told by their number (got "
            f"{got}; nodes by type: {counts}): pass 'target_type' to the algorithm's constructor"
        )
    return replace(types, target=fitting[0])


def _check(x: Any, edge_index: Any) -> None:
    if not isinstance(x, Mapping) or not isinstance(edge_index, Mapping):
        names = {True: 'a dict', False: 'none'}
        got = f'{names[isinstance(x, Mapping)]} and {names[isinstance(edge_index, Mapping)]}'
        raise TypeError(
            f"'x' and 'edge_index' must both be dicts, by node type and by relation, for a heterogeneous graph (got "
            f"{got}): pass 'x_dict' and 'edge_index_dict' of the data"
        )
    if not x:
        raise ValueError("'x' must hold the features of at least one node type (got none): pass 'x_dict' of the data")
    for name, part in x.items():
        if not isinstance(part, Tensor) or part.layout != torch.strided or part.is_complex() or part.dim() != 2:
            got = _shape(part)
            raise TypeError(
                f"'x' must hold a dense tensor [N, F] of real numbers for each node type (got {got} for {name!r}): "
                f'leave out types without features'
            )
    if sum(part.size(1) for part in x.values()) == 0:
        raise ValueError("'x' must hold at least one feature of some node type (got none): pass constant features, say")
    for relation, ends in edge_index.items():
        if not isinstance(relation, tuple) or len(relation) != 3:
            raise ValueError(
                f"'edge_index' must be by relation, (source type, name, target type) (got the key {relation!r}): pass "
                f"'edge_index_dict' of the data"
            )
        if not isinstance(ends, Tensor) or ends.layout != torch.strided or ends.dim() != 2 or ends.size(0) != 2:
            got = _shape(ends)
            raise TypeError(
                f"'edge_index' must hold a tensor [2, E] for each relation (got {got} for {relation}): pass tensors of "
                f'node ids, and no sparse matrices'
            )
        if ends.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"'edge_index' must hold node ids (got {ends.dtype} for {relation}): pass edge_index.long()"
            )
    devices = {part.device for part in (*x.values(), *edge_index.values())}
    if len(devices) > 1:
        raise ValueError(
            f"'x' and 'edge_index' must be on one device (got {sorted(map(str, devices))}): move some of them"
        )


def _sizes(x: Mapping[str, Tensor], edge_index: Mapping[Relation, Tensor], kwargs: dict[str, Any]) -> dict[str, int]:
    r"""How many nodes each type has; where it has no features, as many as its edges and other arguments say."""
    sizes = {name: part.size(0) for name, part in x.items()}
    others: dict[str, int] = {}
    for relation, ends in edge_index.items():
        for name, ids in ((relation[0], ends[0]), (relation[2], ends[1])):
            low, high = (int(ids.min()), int(ids.max())) if ids.numel() > 0 else (0, -1)
            if low < 0 or (name in sizes and high >= sizes[name]):
                last = sizes.get(name, high + 1) - 1
                raise IndexError(
                    f"'edge_index' must hold ids of {name!r} from 0 to {last} for {relation}, as 'x' has {last + 1} "
                    f'nodes of that type (got ids from {low} to {high}): pass the features of all nodes'
                )
            if name not in sizes:
                others[name] = max(others.get(name, 0), high + 1)
    for value in kwargs.values():
        if isinstance(value, Mapping):
            for name in others.keys() & value.keys():
                if isinstance(value[name], Tensor) and value[name].dim() > 0:
                    others[name] = max(others[name], value[name].size(0))
    return sizes | others


def _shape(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _numbers(groups: Iterable[Tensor]) -> Tensor:
    r"""The number of the group that each id is in, given a partition of all ids."""
    every = list(groups)
    found = torch.empty(sum(ids.numel() for ids in every), dtype=torch.long, device=every[0].device)
    for number, ids in enumerate(every):
        found[ids] = number
    return found
