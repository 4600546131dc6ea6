r"""Small models of links: an encoder of nodes, and a decoder of pairs."""

from __future__ import annotations

import torch
from models import CONVS
from torch import Tensor
from torch.nn import Linear, ReLU, Sequential
from torch_geometric.explain import Explainer
from torch_geometric.nn import SGConv

PAIRS = torch.tensor([[0, 3, 3, 7, 1, 1], [1, 3, 5, 0, 0, 4]])  # edges and none, both ways, a node with itself
# The mode, the return type, and the shape of a pair's output.
TASKS = {
    'binary raw [Q]': ('binary_classification', 'raw', ()),
    'binary raw [Q, 1]': ('binary_classification', 'raw', (1,)),
    'binary raw [Q, 2]': ('binary_classification', 'raw', (2,)),
    'binary probs [Q]': ('binary_classification', 'probs', ()),
    'binary probs [Q, 2]': ('binary_classification', 'probs', (2,)),
    'multiclass raw': ('multiclass_classification', 'raw', (3,)),
    'multiclass probs': ('multiclass_classification', 'probs', (3,)),
    'multiclass log_probs': ('multiclass_classification', 'log_probs', (3,)),
    'regression [Q]': ('regression', 'raw', ()),
    'regression [Q, 2]': ('regression', 'raw', (2,)),
}


class Linker(torch.nn.Module):
    r"""Two layers, and a dot product, a multilayer perceptron or a bilinear form of both ends."""

    def __init__(self, task: str = 'binary raw [Q]', decoder: str = 'dot', conv: str = 'gcn') -> None:
        super().__init__()
        torch.manual_seed(1)
        _, self.return_type, self.shape = TASKS[task]
        size = max(1, *self.shape, 0)
        self.conv1, self.conv2, self.kind = CONVS[conv](3, 6), CONVS[conv](6, 4), decoder
        self.head = {
            'dot': lambda: torch.nn.Identity() if size == 1 else Linear(4, size),
            'mlp': lambda: Sequential(Linear(8, 6), ReLU(), Linear(6, size)),
        }[decoder]()

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor, edge_weight: Tensor | None = None):
        weight = () if edge_weight is None else (edge_weight,)
        x = self.conv2(self.conv1(x, edge_index, *weight).relu(), edge_index, *weight)
        first, second = x[edge_label_index[0]], x[edge_label_index[1]]
        if edge_label_index.dim() == 1:
            first, second = first[None], second[None]
        both = first * second if self.kind == 'dot' else torch.cat([first, second], dim=1)
        found = self.head(both)
        if self.kind == 'dot' and not isinstance(self.head, Linear):
            found = found.sum(dim=1, keepdim=True)
        if self.return_type == 'raw':
            return found.view(-1, *self.shape)
        if found.size(1) == 1:
            return found.sigmoid().view(-1, *self.shape)
        return found.log_softmax(dim=1) if self.return_type == 'log_probs' else found.softmax(dim=1)


class Planted(torch.nn.Module):
    r"""A regression that is bilinear in what the ends see: g_uᵀ W g_v + aᵀ g_u + cᵀ g_v + 1."""

    def __init__(self, num_hops: int = 2) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.conv = SGConv(3, 3, K=num_hops, bias=False)
        self.conv.lin.weight.data = torch.eye(3)
        self.both = torch.nn.Parameter(torch.randn(3, 3))
        self.first, self.second = torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        g = self.conv(x, edge_index)
        u, v = g[edge_label_index[0]], g[edge_label_index[1]]
        return ((u @ self.both) * v).sum(dim=-1) + u @ self.first + v @ self.second + 1.0


def explainer(model, algorithm, task='binary raw [Q]', explanation_type='model', node='object', edge=None):
    r"""PyG's explainer of a model of links."""
    mode, return_type, _ = TASKS[task]
    return Explainer(
        model,
        algorithm,
        explanation_type=explanation_type,
        node_mask_type=node,
        edge_mask_type=edge,
        model_config={'mode': mode, 'task_level': 'edge', 'return_type': return_type},
    )


class Renamed(Linker):
    r"""Calls its pairs by another name."""

    def forward(self, x: Tensor, edge_index: Tensor, pairs: Tensor):
        return super().forward(x, edge_index, pairs)


class Edges(Linker):
    r"""Says something of every edge, and is not told which."""

    def forward(self, x: Tensor, edge_index: Tensor):
        return super().forward(x, edge_index, edge_index)
