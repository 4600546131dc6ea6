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
        columns: The columns of each type's features.
        dtypes: What features are, of types that have them.
        kwargs: The model's further arguments, as it takes them.
        packed: Those further arguments that were packed, as they were then.
        source: The features by type and the edges by relation, as they were packed; ``None`` if they have changed.
        target: The type whose nodes the rows of the output are, if that is what they are.
        link: The types of both ends of the pairs of which the model predicts something, if that is what it does.
    """

    nodes: dict[str, Tensor]
    edges: dict[Relation, Tensor]
    columns: dict[str, slice]
    dtypes: dict[str, torch.dtype]
    kwargs: Mapping[str, Any]
    packed: dict[str, Tensor]
    source: tuple[Mapping[str, Tensor], Mapping[Relation, Tensor]] | None
    target: str | None = None
    link: tuple[str, str] | None = None

    def x(self, packed: Tensor) -> dict[str, Tensor]:
        r"""Features by type, as the model takes them, given the packed ones."""
        if self.source is not None:
            return dict(self.source[0])
        return {name: self._block(packed, name).to(dtype) for name, dtype in self.dtypes.items()}

    def edge_index(self, packed: Tensor) -> dict[Relation, Tensor]:
        r"""Edges by relation, as the model takes them, given the packed ones."""
        if self.source is not None:
            return dict(self.source[1])
        return {relation: self.node_id[packed[:, ids]] for relation, ids in self.edges.items()}

    def arguments(self, packed: dict[str, Any], pair_argument: str) -> dict[str, Any]:
        r"""The further arguments as the model takes them, given the packed ones, some of which may have changed."""
        found = dict(self.kwargs)
        for name, value in packed.items():
            if value is self.packed.get(name):
                continue
            if name == pair_argument:
                found[name] = self._like(self.node_id[value], found.get(name))
            else:
                by_type = self.of_nodes(value) if name == 'batch' else self.of_edges(value)
                key = name if found.get(name) is not None else f'{name}_dict'
                found[key] = {kind: part for kind, part in by_type.items() if kind in self.kwargs.get(key, by_type)}
        return found

    def _like(self, pairs: Tensor, given: Any) -> Any:
        return dict.fromkeys(given, pairs) if isinstance(given, Mapping) else pairs

    def times(self, packed: Tensor, mask: Tensor) -> dict[str, Tensor]:
        r"""The features by type, times a packed mask of shape [N, 1], [N, F] or [1, F]."""
        return {name: x * self._block(mask, name) for name, x in self.x(packed).items()}

    def take(self, nodes: Tensor, edges: Tensor) -> Types:
        r"""The same of a graph that has some of these nodes and edges, in any order and as often as each is named."""
        of_nodes = {name: (self.node_type[nodes] == k).nonzero().view(-1) for k, name in enumerate(self.nodes)}
        of_edges = {name: (self.edge_type[edges] == k).nonzero().view(-1) for k, name in enumerate(self.edges)}
        rows: dict[Any, Tensor] = {name: self.node_id[nodes[ids]] for name, ids in of_nodes.items()}
        rows |= {name: self.edge_id[edges[ids]] for name, ids in of_edges.items()}
        sizes: dict[Any, int] = {name: ids.numel() for name, ids in self.nodes.items()}
        sizes |= {name: ids.numel() for name, ids in self.edges.items()}

        def follow(name: Any, value: Any) -> Any:
            is_by_row = isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == sizes.get(name)
            return value[rows[name]] if is_by_row else value

        kwargs = {
            name: {kind: follow(kind, part) for kind, part in value.items()} if isinstance(value, Mapping) else value
            for name, value in self.kwargs.items()
        }
        return replace(self, nodes=of_nodes, edges=of_edges, kwargs=kwargs, packed={}, source=None)

    def _block(self, values: Tensor, name: str) -> Tensor:
        r"""The part of packed values [N or 1, F or 1] that belongs to a type."""
        rows = values if values.size(0) == 1 else values[self.nodes[name]]
        return rows if values.size(1) == 1 else rows[:, self.columns[name]]

    def of_nodes(self, values: Tensor) -> dict[str, Tensor]:
        r"""Packed values [N] or [N, F] by type."""
        if values.dim() == 2 and values.size(1) > 1:
            return {name: self._block(values, name) for name in self.dtypes}
        return {name: values[ids] for name, ids in self.nodes.items()}

    def of_columns(self, values: Tensor) -> dict[str, Tensor]:
        r"""Packed values [F] or [1, F] by type."""
        return {name: values[..., self.columns[name]] for name in self.dtypes}

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
        return _places(self.nodes.values())

    @cached_property
    def edge_type(self) -> Tensor:
        r"""The number of each edge's relation, [E]."""
        return _numbers(self.edges.values())

    @cached_property
    def edge_id(self) -> Tensor:
        r"""The number of each edge within its relation, [E]."""
        return _places(self.edges.values())

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
    def ends(self) -> tuple[Tensor, Tensor] | None:
        r"""The packed ids of the nodes that may be the first and the second end of pairs."""
        return None if self.link is None else (self.nodes[self.link[0]], self.nodes[self.link[1]])

    @property
    def roots(self) -> Tensor | None:
        r"""The packed ids of the nodes that the rows of the output are, if they are nodes of a type."""
        return None if self.target is None else self.nodes[self.target]


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
    arguments = _packed_arguments(kwargs, nodes, edges)
    dtypes = {name: part.dtype for name, part in x.items()}
    types = Types(nodes, edges, columns, dtypes, kwargs, arguments, (x, edge_index))
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
    return packed, ends, {**arguments}, types


def _packed_arguments(
    kwargs: dict[str, Any], nodes: dict[str, Tensor], edges: dict[Relation, Tensor]
) -> dict[str, Tensor]:
    r"""The further arguments that the package reads itself: edge weights by relation, and the graph of each node."""
    found = {}
    weights = _first(kwargs, 'edge_weight', 'edge_weight_dict')
    if isinstance(weights, Mapping):
        for relation, weight in weights.items():
            expected = [edges[relation].numel()] if relation in edges else 'none'
            if not isinstance(weight, Tensor) or list(weight.shape) != expected:
                got = _shape(weight)
                raise ValueError(
                    f"'edge_weight' must have shape {expected} for the relation {relation}, one number an edge (got "
                    f"{got}): pass what has several numbers an edge as 'edge_attr_dict'"
                )
        like = next((weight for weight in weights.values()), None)
        if like is not None:
            parts = [weights.get(relation, like.new_ones(ids.numel())) for relation, ids in edges.items()]
            found['edge_weight'] = torch.cat(parts)  # a copy, of a single part, too
    batch = _first(kwargs, 'batch', 'batch_dict')
    if isinstance(batch, Mapping):
        missing = [name for name in nodes if name not in batch]
        if missing:
            raise ValueError(
                f"'batch' must name the graph of each node of all types (got none for {missing}): pass it for these"
            )
        found['batch'] = torch.cat([batch[name] for name in nodes])
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


def paired(types: Types, pair_argument: str, target_type: Any = None) -> tuple[Tensor, Types]:
    r"""The pairs of nodes of which a model predicts something, packed; and the types, with those of their ends.

    Args:
        types: The types.
        pair_argument: The argument that holds the pairs, [2, Q], or a dict of one relation with these.
        target_type: The types of both ends, or a relation between them, if the user gave them.
    """
    pairs = types.kwargs[pair_argument]
    if isinstance(pairs, Mapping):
        if len(pairs) != 1:
            raise ValueError(
                f"'{pair_argument}' must hold pairs of one relation (got {len(pairs)}): explain one relation at a time"
            )
        ((target_type, pairs),) = pairs.items()
    if target_type is None:
        links = {(relation[0], relation[2]) for relation in types.edges}
        links |= {(kind, kind) for kind in types.nodes if len(types.nodes) == 1}
        if len(links) != 1:
            raise ValueError(
                f"'target_type' must be given where pairs may be of several types (got {sorted(links)}): pass the "
                f"types of both ends, as target_type=('user', 'item') say, to the algorithm's constructor"
            )
        ((first, second),) = links
    elif isinstance(target_type, tuple) and len(target_type) in (2, 3):
        first, second = target_type[0], target_type[-1]
    else:
        first = second = target_type
    for place, kind in enumerate((first, second)):
        if kind not in types.nodes:
            raise ValueError(
                f"'target_type' must name node types, two for pairs, of {list(types.nodes)} (got {kind!r}): pass these"
            )
        low, high = (int(pairs[place].min()), int(pairs[place].max())) if pairs.numel() > 0 else (0, -1)
        if low < 0 or high >= types.nodes[kind].numel():
            raise IndexError(
                f"'{pair_argument}' must hold ids of {kind!r} from 0 to {types.nodes[kind].numel() - 1} (got ids from "
                f"{low} to {high}): pass pairs of nodes in this graph, or their types as 'target_type'"
            )
    found = torch.stack([types.nodes[first][pairs[0].long()], types.nodes[second][pairs[1].long()]])
    packed = {**types.packed, pair_argument: found}
    return found, replace(types, packed=packed, link=(first, second))


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


def _places(groups: Iterable[Tensor]) -> Tensor:
    r"""The place of each id in its group, given a partition of all ids."""
    every = list(groups)
    found = torch.empty(sum(ids.numel() for ids in every), dtype=torch.long, device=every[0].device)
    for ids in every:
        found[ids] = torch.arange(ids.numel(), device=ids.device)
    return found


def _shape(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _numbers(groups: Iterable[Tensor]) -> Tensor:
    r"""The number of the group that each id is in, given a partition of all ids."""
    every = list(groups)
    found = torch.empty(sum(ids.numel() for ids in every), dtype=torch.long, device=every[0].device)
    for number, ids in enumerate(every):
        found[ids] = number
    return found
