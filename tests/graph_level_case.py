r"""Small models of whole graphs, untrained, and batches of small graphs."""

from __future__ import annotations

import torch
from models import CONVS, TASKS
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer
from torch_geometric.nn import global_add_pool, global_mean_pool

SIZES = (5, 3, 4)


class GraphTeacher(torch.nn.Module):
    r"""Two layers of one kind, pooled, and the output that the task asks for."""

    def __init__(
        self, conv: str = 'gcn', task: str = 'multiclass raw', pool: str = 'add', num_features: int = 3
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        _, self.return_type, self.shape = TASKS[task]
        self.conv1 = CONVS[conv](num_features, 4)
        self.conv2 = CONVS[conv](4, 4)
        self.pool = {'add': global_add_pool, 'mean': global_mean_pool}[pool]
        self.last = torch.nn.Linear(4, max(1, *self.shape, 0))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, **kwargs: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        x = self.last(self.pool(self.conv2(x, edge_index), batch).tanh())
        if self.return_type == 'raw':
            return x.view(-1, *self.shape)
        if x.size(1) == 1:
            return x.sigmoid().view(-1, *self.shape)
        return x.log_softmax(dim=1) if self.return_type == 'log_probs' else x.softmax(dim=1)


def small_graphs(sizes: tuple[int, ...] = SIZES, num_features: int = 3, dtype=torch.float32) -> list[Data]:
    r"""Rings with a chord or a tail, one with an isolated node."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for number, size in enumerate(sizes):
        x = torch.randn(size, num_features, generator=generator, dtype=torch.float64).to(dtype)
        path = torch.arange(size - (number == 0))
        edges = torch.stack([path, path.roll(-1)])
        edges = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
        found.append(Data(x=x, edge_index=edges[:, edges[0] != edges[1]], y=torch.tensor([number % 2])))
    return found


def batch_of(graphs: list[Data]) -> Batch:
    return Batch.from_data_list(graphs)


def graph_explainer(
    model, algorithm, task='multiclass raw', kind='model', node='object', edge='object', level='graph', **options
):
    mode, return_type, _ = TASKS[task]
    return Explainer(
        model,
        algorithm=algorithm,
        explanation_type=kind,
        node_mask_type=node,
        edge_mask_type=edge,
        model_config={'mode': mode, 'task_level': level, 'return_type': return_type},
        **options,
    )
