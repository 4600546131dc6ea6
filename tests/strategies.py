r"""Graphs, features, models and options of every kind, for what must hold for all of them."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any, NamedTuple

import torch
from helpers import Graph, dense_adjacency
from hypothesis import strategies as st
from models import TASKS, Bare, Masked, Probes, explainer
from torch import Tensor
from torch.nn import Linear, ReLU, Sequential
from torch_geometric.nn import APPNP, ChebConv, GATConv, GCNConv, GINConv, SAGEConv, SGConv, TransformerConv

from pyg_dnx import DnX, FastDnX

SEEDS = st.integers(0, 2**16)
ONE_SIZE = ['dense', 'one-hot', 'sparse', 'constant', 'zero', 'copies']
FEATURES = [*ONE_SIZE, 'huge', 'tiny', 'mixed']


def edges_of(shape: str, size: int) -> list[tuple[int, int]]:
    r"""The edges of a graph of ``size`` nodes, one way."""
    return {
        'none': [],
        'star': [(i, 0) for i in range(1, size)],
        'chain': [(i - 1, i) for i in range(1, size)],
        'ring': [(i, (i + 1) % size) for i in range(size)],
        'clique': [*permutations(range(min(size, 8)), 2)],
        'parts': [(i - 1, i) for i in range(1, size) if i % 4],
    }[shape]


@st.composite
def edge_indices(draw: st.DrawFn, num_nodes: int, random: Random) -> Tensor:
    r"""Edges of any kind: with self-loops, duplicates, isolated nodes and parts, one way or both ways."""
    size = draw(st.integers(1, num_nodes))  # the nodes from here on may be isolated
    edges = edges_of(draw(st.sampled_from(['none', 'star', 'chain', 'ring', 'clique', 'parts'])), size)
    edges += [(random.randrange(num_nodes), random.randrange(num_nodes)) for _ in range(draw(st.integers(0, 2 * size)))]
    edges += [(random.randrange(num_nodes),) * 2 for _ in range(draw(st.integers(0, 2)))]
    edges += random.choices(edges, k=draw(st.integers(0, 4))) if edges else []
    if draw(st.booleans()):
        edges += [(target, source) for source, target in edges]
    return torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T.contiguous()


def features(kind: str, num_nodes: int, num_features: int, generator: torch.Generator) -> Tensor:
    r"""Features of any kind: dense, one-hot, sparse, constant, of huge, tiny and mixed scales, rank-deficient."""
    x = torch.randn(num_nodes, num_features, generator=generator, dtype=torch.float64)
    if kind == 'one-hot':
        return torch.nn.functional.one_hot(torch.arange(num_nodes) % num_features, num_features).double()
    if kind == 'sparse':
        return (x > 1.0).double()
    if kind == 'constant':
        return x.index_fill(1, torch.tensor([0]), 3.0)
    if kind == 'copies':
        return x[:, torch.arange(num_features) // 2]
    exponent = {'dense': 0, 'zero': -torch.inf, 'huge': 6, 'tiny': -6, 'mixed': torch.arange(num_features) % 5 - 2}
    return x * 10.0 ** torch.as_tensor(exponent[kind])


@st.composite
def graphs(
    draw: st.DrawFn,
    kinds: Any = ('dense',),
    max_nodes: int = 60,
    max_features: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Graph:
    r"""Any small graph, with features of these ``kinds``. What has no shape is drawn by seed: to draw it costs more."""
    num_nodes, seed = draw(st.integers(1, max_nodes)), draw(SEEDS)
    edge_index, generator = draw(edge_indices(num_nodes, Random(seed))), torch.Generator().manual_seed(seed)
    x = features(draw(st.sampled_from(kinds)), num_nodes, draw(st.integers(1, max_features)), generator)
    weight = torch.rand(edge_index.size(1), generator=generator, dtype=torch.float64) + 0.1
    return Graph(x.to(dtype), edge_index, weight.to(dtype) if draw(st.booleans()) else None)


class Two(torch.nn.Module):
    r"""Two layers; edge weights go to those that take them."""

    weighted = True

    def __init__(self, first: torch.nn.Module, second: torch.nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        weight = (edge_weight,) if self.weighted else ()
        return self.second(self.first(x, edge_index, *weight).relu(), edge_index, *weight)


class Unweighted(Two):
    weighted = False


class Predict(torch.nn.Module):
    r"""A linear layer, and its outputs propagated."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.lin, self.propagate = Linear(num_features, num_outputs), APPNP(K=3, alpha=0.2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.propagate(self.lin(x), edge_index, edge_weight)


class Table(torch.nn.Module):
    r"""A model that has learnt its answers by heart: other features, the same answers."""

    def __init__(self, num_rows: int, num_outputs: int) -> None:
        super().__init__()
        self.row = torch.nn.Parameter(torch.randn(num_rows, num_outputs))

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.row[torch.arange(x.size(0)) % self.row.size(0)]


class Ignores(Bare):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return super().forward(x, edge_index)


def gin(inputs: int, outputs: int) -> GINConv:
    return GINConv(Sequential(Linear(inputs, outputs), ReLU(), Linear(outputs, outputs)))


def two(kind: type[Two], conv: Any) -> Any:
    return lambda inputs, outputs: kind(conv(inputs, 4), conv(4, outputs))


MODELS = {
    'gcn': two(Two, GCNConv),
    'sg': lambda inputs, outputs: SGConv(inputs, outputs, K=2),
    'appnp': Predict,
    'cheb': two(Two, lambda inputs, outputs: ChebConv(inputs, outputs, K=2)),
    'gat': two(Unweighted, GATConv),
    'gin': two(Unweighted, gin),
    'sage': two(Unweighted, SAGEConv),
    'transformer': two(Unweighted, TransformerConv),
    'mlp': Ignores,
    'constant': lambda inputs, outputs: Table(1, outputs),
    'table': lambda inputs, outputs: Table(7, outputs),
}
WEIGHTED = ['gcn', 'sg', 'appnp', 'mlp', 'constant', 'table']  # of which parallel edges are as one of their sum
EQUIVARIANT = [name for name in MODELS if name != 'table']
RAW = [task for task in TASKS if 'raw' in task or 'regression' in task]


class Shaped(torch.nn.Module):
    r"""A model whose outputs have the shape of a task."""

    def __init__(self, model: torch.nn.Module, task: str) -> None:
        super().__init__()
        self.model, self.shape = model, TASKS[task][2]

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.model(x, edge_index, edge_weight).view(x.size(0), *self.shape)


KINDS = {'FastDnX': FastDnX, 'DnX': DnX, 'masked FastDnX': Masked, 'ProbeDnX': Probes}


@st.composite
def options(draw: st.DrawFn, kind: str, task: str) -> dict[str, Any]:
    r"""Options of an algorithm, of every name that scores depend on."""
    found = {
        'num_hops': draw(st.sampled_from([None, 'auto', 0, 1, 2, 3])),
        'ridge': draw(st.sampled_from([None, 1e-4, 1e-2])),
        'edge_score': draw(st.sampled_from(['flow', 'endpoints', 'geometric', 'drop'])),
        'mask': draw(st.sampled_from(['rank', 'size', 'positive', 'minmax'])),
        'max_memory': draw(st.sampled_from([None, 2000])),
    }
    if 'regression' not in task:
        found['contrast'] = draw(st.sampled_from([None, 'runner_up']))
    if kind == 'ProbeDnX':
        found['answer'] = draw(st.sampled_from(['probability', 'logit']))
        found['feature_score'] = 'shares'
    else:
        found['score'] = draw(st.sampled_from(['projection', 'target']))
    if kind == 'DnX':
        found['epsilon'] = draw(st.sampled_from([1e-3, 0.01, 1.0]))
        found['prior'] = draw(st.sampled_from(['uniform', 'propagation']))
    return found


class Case(NamedTuple):
    r"""A model, a graph, and how it is to be explained."""

    model: torch.nn.Module
    graph: Graph
    task: str
    kind: str
    options: dict[str, Any]

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        return self.graph.x, self.graph.edge_index

    @property
    def kwargs(self) -> dict[str, Tensor]:
        return {} if self.graph.edge_weight is None else {'edge_weight': self.graph.edge_weight}

    def explainer(self, node: str | None = 'object', edge: str | None = 'object') -> Any:
        return explainer(self.model, KINDS[self.kind](**self.options), self.task, node=node, edge=edge)

    def explain(self, index: Any, node: str | None = 'object', edge: str | None = 'object') -> Any:
        return self.explainer(node, edge)(*self.inputs, index=index, **self.kwargs)

    def explain_nodes(self, **given: Any) -> Any:
        return self.explainer().algorithm.explain_nodes(self.model, *self.inputs, **given, **self.kwargs)

    def surrogate(self) -> Any:
        return self.explainer().algorithm.distill(self.model, *self.inputs, **self.kwargs)

    def reach(self, nodes: list[int], num_hops: int) -> Tensor:
        r"""Whether each node is within ``num_hops`` of ``nodes``, [N]."""
        adjacency = (dense_adjacency(*self.graph[1:], self.graph.x.size(0)) > 0).double()
        return torch.linalg.matrix_power(adjacency, num_hops)[nodes].sum(dim=0) > 0


@st.composite
def cases(
    draw: st.DrawFn,
    kinds: Any = tuple(KINDS),
    models: Any = tuple(MODELS),
    tasks: Any = tuple(RAW),
    features: Any = tuple(FEATURES),
    **fixed: Any,
) -> Case:
    r"""Any model on any graph, with any options but those that are ``fixed``."""
    graph, task, kind = (
        draw(graphs(features, dtype=torch.float64)),
        draw(st.sampled_from(tasks)),
        draw(st.sampled_from(kinds)),
    )
    with torch.random.fork_rng():
        torch.manual_seed(draw(SEEDS))
        model = MODELS[draw(st.sampled_from(models))](graph.x.size(1), max(1, *TASKS[task][2], 0))
    return Case(Shaped(model, task).double().eval(), graph, task, kind, {**draw(options(kind, task)), **fixed})


@st.composite
def indices(draw: st.DrawFn, num_nodes: int, max_size: int = 4) -> list[int]:
    r"""Nodes to explain; some may be named twice."""
    return draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=max_size))
