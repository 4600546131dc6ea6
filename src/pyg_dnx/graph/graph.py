r"""A graph with the arguments that the model takes, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import is_torch_sparse_tensor

from pyg_dnx import files
from pyg_dnx.graph.operator import Operator, is_edge_list, normalized_adjacency
from pyg_dnx.graph.types import Types, aimed, pack, paired
from pyg_dnx.run import DEFAULT, ENTRIES, Run

LAYOUTS = (torch.strided, torch.sparse_csr, torch.sparse_coo)  # of features


@dataclass(frozen=True, eq=False)
class Graph:
    r"""The arguments of a model: ``model(x, edge_index, **kwargs)``.

    Args:
        x: The features [N, F].
        edge_index: The edges [2, E], or a sparse adjacency matrix.
        kwargs: Further arguments of the model; ``edge_weight`` is the only one that the operator takes.
        pair_argument: The argument that names the pairs [2, Q] of which a model of links predicts something.
        types: Of a heterogeneous graph, which is packed into ``x`` and ``edge_index``, what belongs to which type.
    """

    x: Tensor
    edge_index: Any
    kwargs: dict[str, Any]
    pair_argument: str = 'edge_label_index'
    operators: dict[tuple[str, torch.dtype], Operator] = field(default_factory=dict, repr=False)  # those known
    types: Types | None = None

    @staticmethod
    def of(x: Any, edge_index: Any, kwargs: dict[str, Any], pair_argument: str = 'edge_label_index') -> Graph:
        r"""Checks shapes and types, in constant time; dicts are packed, in one pass over them."""
        if isinstance(x, Mapping) or isinstance(edge_index, Mapping):
            x, edge_index, packed, types = pack(x, edge_index, kwargs)
            return Graph(x, edge_index, packed, pair_argument, types=types)
        _check_shapes(x, edge_index, kwargs)
        return Graph(x, edge_index, kwargs, pair_argument)

    @property
    def arguments(self) -> tuple[Any, Any, dict[str, Any]]:
        r"""The arguments as the model takes them."""
        if self.types is None:
            return self.x, self.edge_index, self.kwargs
        kwargs = self.types.arguments(self.kwargs, self.pair_argument)
        return self.types.x(self.x), self.types.edge_index(self.edge_index), kwargs

    @property
    def identity(self) -> tuple[Any, Any, Any]:
        r"""The objects by which the graph is known: the user's own where there are, else those it is made of."""
        if self.types is not None and self.types.source is not None:
            return self.arguments
        return self.x, self.edge_index, self.kwargs

    def with_source(self, x: Any, edge_index: Any, kwargs: dict[str, Any]) -> Graph:
        r"""A packed graph with what it was packed from."""
        types = None if self.types is None else replace(self.types, source=(x, edge_index), kwargs=kwargs)
        return replace(self, types=types)

    def without_source(self) -> Graph:
        r"""A packed graph that keeps nothing of what it was packed from alive."""
        return self.with_source({}, {}, {})

    def has_source(self, x: Any, edge_index: Any, kwargs: dict[str, Any]) -> bool:
        r"""Whether it was packed from the same objects."""
        return all(map(_is_same, self.arguments, (x, edge_index, kwargs)))

    def paired(self, target_type: Any = None) -> Graph:
        r"""The same, with the pairs of nodes packed of which the model predicts something, if it is told of any."""
        if self.types is None or self.types.kwargs.get(self.pair_argument) is None:
            return self
        pairs, types = paired(self.types, self.pair_argument, target_type)
        return replace(self, kwargs={**self.kwargs, self.pair_argument: pairs}, types=types)

    @property
    def ends(self) -> tuple[Tensor, Tensor] | None:
        r"""The nodes that may be the first and the second end of pairs, if not all may."""
        return None if self.types is None else self.types.ends

    def aimed(self, num_rows: Iterable[int], target_type: Any = None) -> Graph:
        r"""The same, with the type whose nodes the output's rows are; their number tells it, if the user doesn't."""
        return self if self.types is None else replace(self, types=aimed(self.types, num_rows, target_type))

    @property
    def target(self) -> Any:
        r"""The type whose nodes the rows of the output are, if there are types."""
        return None if self.types is None else self.types.target

    @property
    def roots(self) -> Tensor | None:
        r"""The nodes [O] that the outputs of a model of nodes are of; all of them, in their order, if ``None``."""
        return None if self.types is None else self.types.roots

    def nodes_of(self, outputs: Tensor) -> Tensor:
        r"""The nodes that some outputs of a model of nodes are of."""
        return outputs if self.roots is None else self.roots[outputs]

    def rows_of(self, nodes: Tensor) -> Tensor:
        r"""The rows of the output that some of its nodes are."""
        return nodes if self.types is None else self.types.node_id[nodes]

    def times(self, node_mask: Tensor) -> Any:
        r"""The features, as the model takes them, times a mask of shape [N, 1], [N, F] or [1, F]."""
        return self.x * node_mask if self.types is None else self.types.times(self.x, node_mask)

    def features(self, rows: slice) -> Tensor:
        r"""The features of some nodes, as sparse as they are."""
        if rows == slice(0, self.num_nodes) or self.x.layout == torch.strided:
            return self.x[rows] if self.x.layout == torch.strided else self.x
        return self.x.index_select(0, torch.arange(rows.start, rows.stop, device=self.x.device))

    @property
    def num_nodes(self) -> int:
        return self.x.size(0)

    @property
    def has_edge_order(self) -> bool:
        r"""Whether the edges have an order, so that an edge mask can be given for them."""
        return is_edge_list(self.edge_index)

    @property
    def batch(self) -> Tensor:
        r"""The graph that each node is part of, [N]; all are part of one if the model isn't told otherwise."""
        batch = self.kwargs.get('batch')
        return torch.zeros(self.num_nodes, dtype=torch.long, device=self.x.device) if batch is None else batch

    def groups(self, nodes: Tensor, graphs: Tensor) -> Tensor:
        r"""A number for each graph and node type that some nodes are of, given the graphs that they are part of."""
        return graphs if self.types is None else graphs * len(self.types.nodes) + self.types.node_type[nodes]

    def taken(self, how: str) -> str:
        r"""What masks of the nodes of whole graphs take away: categories aren't blanked, since 0 is one of them."""
        return 'nodes' if how == 'features' and not self.x.dtype.is_floating_point else how

    @property
    def names_pairs(self) -> bool:
        r"""Whether the model is told of which pairs to predict something."""
        return self.kwargs.get(self.pair_argument) is not None

    @property
    def is_one_pair(self) -> bool:
        r"""Whether the model is told of a single pair, [2]."""
        return self.names_pairs and self.kwargs[self.pair_argument].dim() == 1

    @property
    def pairs(self) -> Tensor:
        r"""The pairs of which a model of links predicts something, [2, Q]: all edges, if it isn't told."""
        pairs = self.kwargs.get(self.pair_argument)
        if pairs is None:
            if not self.has_edge_order:
                raise ValueError(
                    f"'{self.pair_argument}' must be given where edges have no order (got a sparse matrix): pass the "
                    f'pairs to explain'
                )
            return self.edge_index
        is_pairs = isinstance(pairs, Tensor) and pairs.dim() in (1, 2) and pairs.size(0) == 2
        if not is_pairs or pairs.is_floating_point() or pairs.is_complex() or pairs.dtype == torch.bool:
            got = f'{list(pairs.shape)} of {pairs.dtype}' if isinstance(pairs, Tensor) else type(pairs).__name__
            raise ValueError(
                f"'{self.pair_argument}' must hold pairs of nodes, of shape [2, Q] (got {got}): transpose it, say"
            )
        return pairs.view(2, -1)

    def with_pairs(self, pairs: Tensor) -> Graph:
        r"""The same graph, asked about other pairs."""
        return replace(self, kwargs={**self.kwargs, self.pair_argument: pairs})

    def kind_of(self, name: str, num_graphs: int | None = None) -> str | None:
        r"""What each row of an argument is about, ``'node'``, ``'edge'``, ``'graph'`` or ``'pair'``; else ``None``."""
        value = self.kwargs[name]
        if not isinstance(value, Tensor) or value.dim() == 0:
            return None
        size, num_edges = value.size(0), self.edge_index.size(1)
        if name == self.pair_argument:
            return None
        if size == num_edges and (num_edges != self.num_nodes or 'edge' in name):
            return 'edge'
        if size == self.num_nodes:
            return 'node'
        if size == num_graphs:
            return 'graph'
        return 'pair' if self.names_pairs and size == self.pairs.size(1) else None

    def call(self, model: torch.nn.Module, x: Any = None) -> Any:
        r"""What the model returns, for other features ``x`` if they are given."""
        own, edge_index, kwargs = self.arguments
        return model(own if x is None else x, edge_index, **kwargs)

    def operator(self, flow: str, dtype: torch.dtype) -> Operator:
        r"""The operator of the graph, built once."""
        if (flow, dtype) not in self.operators:
            weight = self.kwargs.get('edge_weight')
            built = normalized_adjacency(self.edge_index, weight, self.num_nodes, dtype, flow)
            self.operators[flow, dtype] = built
        return self.operators[flow, dtype]

    def digest(self) -> str:
        r"""The SHA-256 of what explanations depend on: features, edges, their weights, and pairs."""
        others = [self.kwargs.get(name) for name in ('edge_weight', self.pair_argument)]
        return files.digest(self.x, self.edge_index, *others)

    def is_same(self, other: Graph) -> bool:
        r"""Whether all arguments are the same objects."""
        return all(map(_is_same, self.arguments, other.arguments))

    def check_batch(self) -> None:
        r"""Checks that graphs of a batch are numbered from 0 on, and that none is empty."""
        batch = self.kwargs.get('batch')
        if batch is None:
            return
        if not isinstance(batch, Tensor) or batch.shape != (self.num_nodes,) or batch.is_floating_point():
            got = f'{list(batch.shape)} of {batch.dtype}' if isinstance(batch, Tensor) else type(batch).__name__
            raise ValueError(
                f"'batch' must hold the number of each node's graph, of shape [{self.num_nodes}] (got {got}): pass "
                f"that of PyG's Batch"
            )
        if int(batch.min()) < 0:
            raise ValueError(f"'batch' must hold numbers from 0 on (got {int(batch.min())}): number graphs from 0")
        size = torch.bincount(batch)
        if int(size.min()) == 0:
            raise ValueError(
                f"'batch' must give each graph at least one node (got none for graph {int(size.argmin())}): drop empty "
                f'graphs, and number the others anew'
            )

    def check_content(self, run: Run = DEFAULT) -> None:
        r"""Checks the contents, in one pass over them, of which each process has a share of the features."""
        x, edge_index, edge_weight = self.x, self.edge_index, self.kwargs.get('edge_weight')
        mine = run.share(x.size(0))
        if x.layout == torch.strided:
            parts = x[mine.start : mine.stop].split(max(1, ENTRIES // (8 * x.size(1))))
        else:
            parts = ((x if x.layout == torch.sparse_csr else x.coalesce()).values()[:, None],)
        # A sum is finite only if all numbers are; it costs a tenth of looking at each.
        bad = sum(int((~part.isfinite()).any(dim=1).sum()) for part in parts if not bool(part.sum().isfinite()))
        bad = int(run.sum(torch.tensor(bad, device=x.device)))
        if bad > 0:
            raise ValueError(
                f"'x' must be finite (got NaN or infinity at {bad} of {x.size(0)} nodes): impute or drop them"
            )
        if not self.has_edge_order:
            return
        if edge_index.size(1) > 0:
            low, high = int(edge_index.min()), int(edge_index.max())
            if low < 0 or high >= x.size(0):
                raise IndexError(
                    f"'edge_index' must hold node ids from 0 to {x.size(0) - 1}, as 'x' has {x.size(0)} nodes (got ids "
                    f'from {low} to {high}): pass the features of all nodes'
                )
        self.check_batch()
        if self.names_pairs and self.pairs.numel() > 0:
            low, high = int(self.pairs.min()), int(self.pairs.max())
            if low < 0 or high >= x.size(0):
                raise IndexError(
                    f"'{self.pair_argument}' must hold node ids from 0 to {x.size(0) - 1}, as 'x' has {x.size(0)} "
                    f'nodes (got ids from {low} to {high}): pass pairs of nodes in this graph'
                )
        if edge_weight is None:
            return
        if not isinstance(edge_weight, Tensor) or edge_weight.numel() != edge_index.size(1) or edge_weight.is_complex():
            got = list(edge_weight.shape) if isinstance(edge_weight, Tensor) else type(edge_weight).__name__
            raise ValueError(
                f"'edge_weight' must be a tensor of shape [{edge_index.size(1)}], one number an edge (got {got}): pass "
                f"what has several numbers an edge as 'edge_attr'"
            )
        if not bool(edge_weight.isfinite().all()):
            raise ValueError("'edge_weight' must be finite (got NaN or infinity): drop those edges")


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(_is_same(value[name], other[name]) for name in value)
    return value is other


def _check_shapes(x: Any, edge_index: Any, kwargs: dict[str, Any]) -> None:
    if not isinstance(x, Tensor) or x.layout not in LAYOUTS or x.is_complex():
        kind = f'{x.layout} of {x.dtype}' if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"'x' must be a dense tensor of real numbers (got {kind}): pass x.to_dense(), say")
    if x.dim() != 2 or x.size(0) == 0 or x.size(1) == 0:
        raise ValueError(
            f"'x' must have shape [N, F] with at least one node and one feature (got {list(x.shape)}): pass x[:, None] "
            f'for a single feature, and constant features if there are none'
        )
    if is_edge_list(edge_index):
        if edge_index.dim() != 2 or edge_index.size(0) != 2:
            raise ValueError(f"'edge_index' must have shape [2, E] (got {list(edge_index.shape)}): transpose it, say")
        if edge_index.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"'edge_index' must hold node ids (got {edge_index.dtype}): pass edge_index.long()")
    elif is_torch_sparse_tensor(edge_index) or hasattr(edge_index, 'coo'):
        if (edge_index.size(0), edge_index.size(1)) != (x.size(0), x.size(0)):
            size = [edge_index.size(0), edge_index.size(1)]
            raise ValueError(
                f"'edge_index' must be a matrix of shape {[x.size(0)] * 2}, as 'x' has it (got {size}): pass the "
                f'features and the matrix of one graph'
            )
        if kwargs.get('edge_weight') is not None:
            raise ValueError("'edge_weight' must be None if 'edge_index' is a matrix (got both): put it in the matrix")
    else:
        raise TypeError(
            f"'edge_index' must be a tensor [2, E] or a sparse adjacency matrix (got {type(edge_index).__name__}): "
            f"see the documentation's table of inputs"
        )
    if isinstance(edge_index, Tensor) and edge_index.device != x.device:
        raise ValueError(
            f"'edge_index' must be on the device of 'x', {x.device} (got {edge_index.device}): move one of them"
        )
