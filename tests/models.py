r"""Small teachers of every family and task, untrained: what they predict does not matter, only that it is explained."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch
from helpers import example_graphs
from torch import Tensor
from torch.nn import Linear, ReLU, Sequential
from torch_geometric.explain import Explainer
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor

from pyg_dnx import DnX, FastDnX, ProbeDnX
from pyg_dnx.run import Run

CONVS = {
    'gcn': GCNConv,
    'gat': GATConv,
    'gin': lambda inputs, outputs: GINConv(Sequential(Linear(inputs, outputs), ReLU(), Linear(outputs, outputs))),
    'sage': SAGEConv,
    'weighted': GCNConv,
}

# The mode, the return type, and the shape of a node's output: () is one number without a column.
TASKS = {
    'multiclass raw': ('multiclass_classification', 'raw', (3,)),
    'multiclass probs': ('multiclass_classification', 'probs', (3,)),
    'multiclass log_probs': ('multiclass_classification', 'log_probs', (3,)),
    'binary raw [N]': ('binary_classification', 'raw', ()),
    'binary raw [N, 1]': ('binary_classification', 'raw', (1,)),
    'binary raw [N, 2]': ('binary_classification', 'raw', (2,)),
    'binary probs [N, 1]': ('binary_classification', 'probs', (1,)),
    'binary probs [N, 2]': ('binary_classification', 'probs', (2,)),
    'regression [N]': ('regression', 'raw', ()),
    'regression [N, 2]': ('regression', 'raw', (2,)),
}


class Masked(FastDnX):
    r"""FastDnX of a model that is distilled under masks."""

    def __init__(self, **options: Any) -> None:
        super().__init__(distillation='masked', num_masks=2, **options)


class Probes(ProbeDnX):
    r"""ProbeDnX with few probes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(num_probes=6, **options)


ALGORITHMS = [FastDnX, DnX, Masked, Probes]
DEVICES = ['cpu', *(['cuda'] if torch.cuda.is_available() else [])]


class Teacher(torch.nn.Module):
    r"""Two layers of one kind, and the output that the task asks for."""

    def __init__(self, conv: str = 'gcn', task: str = 'multiclass raw', num_features: int = 3) -> None:
        super().__init__()
        torch.manual_seed(1)
        _, self.return_type, self.shape = TASKS[task]
        self.act = ReLU()
        self.conv1 = CONVS[conv](num_features, 4)
        self.conv2 = CONVS[conv](4, max(1, *self.shape, 0))

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        weight = () if edge_weight is None else (edge_weight,)
        x = self.act(self.conv1(x, edge_index, *weight))
        x = self.conv2(x, edge_index, *weight)
        if self.return_type == 'raw':
            return x.view(-1, *self.shape)
        if x.size(1) == 1:
            return x.sigmoid().view(-1, *self.shape)
        return x.log_softmax(dim=1) if self.return_type == 'log_probs' else x.softmax(dim=1)


class Versatile(torch.nn.Module):
    r"""A teacher with a bit of everything that its outputs may depend on."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = GCNConv(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.act = torch.nn.LeakyReLU(0.1)
        self.head = Linear(4, 3)
        self.shift = torch.randn(3)
        self.scale, self.link = 1.0, torch.clone

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, extra: object = None) -> Tensor:
        x = self.act(self.norm(self.conv(x.to(self.head.weight.dtype), edge_index, edge_weight)))
        x = self.link(self.scale * (self.head(x) + self.shift))
        return x + extra.double().sum() * x.square() if isinstance(extra, Tensor) else x


class Mean(torch.nn.Module):
    r"""A teacher without PyG layers, for any kind of adjacency matrix: sums over neighbours, twice."""

    def __init__(self, num_features: int = 3) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.lin = Linear(num_features, 3)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        matrix = adjacency.to_dense()
        return self.lin(matrix @ (matrix @ x) + x)


class Bare(torch.nn.Module):
    r"""A model that ignores the graph."""

    def __init__(self, num_features: int = 3, num_classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = Sequential(Linear(num_features, 8), ReLU(), Linear(8, num_classes))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layers(x)


class Ring(torch.nn.Module):
    r"""A model that tells small from large features, which no linear surrogate can."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.stack([x[:, 0].abs(), torch.full_like(x[:, 0], 0.5)], dim=1) * 20


def explainer(model, algorithm, task='multiclass raw', explanation_type='model', node='object', edge=None, **kwargs):
    r"""PyG's explainer of ``model``, connected to ``algorithm``."""
    mode, return_type, _ = TASKS[task]
    return Explainer(
        model,
        algorithm,
        explanation_type=explanation_type,
        node_mask_type=node,
        edge_mask_type=edge,
        model_config={'mode': mode, 'task_level': 'node', 'return_type': return_type},
        **kwargs,
    )


def in_chunks(algorithm, entries, kind=Run):
    r"""The algorithm, with about so many numbers at a time."""
    algorithm._run = lambda progress=False: kind(algorithm.max_memory, progress, entries)
    return algorithm


def connected(algorithm, task='multiclass raw', explanation_type='model', node='object', edge=None):
    r"""``algorithm`` as PyG's explainer leaves it, to be called directly."""
    return explainer(torch.nn.Identity(), algorithm, task, explanation_type, node, edge).algorithm


def graph(name: str = 'looped') -> tuple[Tensor, Tensor]:
    r"""A fresh copy of the features and edges of an example graph."""
    example = example_graphs()[name]
    return example.x.clone(), example.edge_index.clone()


def adjacencies(edge_index: Tensor, edge_weight: Tensor, num_nodes: int) -> dict:
    r"""The graph as a matrix, targets in rows, of every kind that a model may take."""
    matrix = torch.sparse_coo_tensor(edge_index.flip(0), edge_weight, (num_nodes, num_nodes)).coalesce()
    found = {'coo': matrix, 'csr': matrix.to_sparse_csr(), 'csc': matrix.to_sparse_csc()}
    if WITH_TORCH_SPARSE:
        found['SparseTensor'] = SparseTensor.from_torch_sparse_coo_tensor(matrix)
    return found


@contextmanager
def evaluations(model: torch.nn.Module, expected: int):
    r"""Checks how often the model is evaluated."""
    calls: list[int] = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    yield
    handle.remove()
    assert len(calls) == expected
