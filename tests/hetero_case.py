r"""A small heterogeneous graph, models on it, and the definitions to hold explanations of it against."""

from __future__ import annotations

from typing import Any

import torch
from helpers import dense_adjacency
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explainer
from torch_geometric.nn import HANConv, HeteroConv, HGTConv, RGCNConv, SAGEConv, to_hetero

CONFIG = {'mode': 'multiclass_classification', 'task_level': 'node', 'return_type': 'raw'}
CITES, WRITES, WRITTEN = ('paper', 'cites', 'paper'), ('author', 'writes', 'paper'), ('paper', 'by', 'author')


def small_data() -> HeteroData:
    r"""Papers that cite one another, authors who write and review, one of them without any edge."""
    generator, data = torch.Generator().manual_seed(0), HeteroData()
    data['paper'].x = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    data['author'].x = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    data[CITES].edge_index = torch.tensor([[0, 1, 2, 2, 4, 4], [1, 2, 0, 2, 5, 5]])
    data[WRITES].edge_index = torch.tensor([[0, 0, 1, 2, 3], [0, 1, 2, 4, 6]])
    data['author', 'reviews', 'paper'].edge_index = torch.tensor([[1, 0], [0, 3]])
    data[WRITTEN].edge_index = data[WRITES].edge_index.flip(0)
    return data


class ByRelation(torch.nn.Module):
    r"""Two layers with a convolution for each relation, and an output for one node type."""

    def __init__(self, data: HeteroData, num_classes: int = 3, type: str = 'paper') -> None:
        super().__init__()
        convs = [{relation: SAGEConv((-1, -1), 8) for relation in data.edge_types} for _ in range(2)]
        self.layers = torch.nn.ModuleList([HeteroConv(conv) for conv in convs])
        self.lin = torch.nn.Linear(8, num_classes)
        self.type = type
        self.double()
        self(data.x_dict, data.edge_index_dict)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        for layer in self.layers:
            x_dict = {name: x.relu() for name, x in layer(x_dict, edge_index_dict).items()}
        return self.lin(x_dict[self.type])


class _Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Converted(torch.nn.Module):
    r"""A homogeneous model that PyG has converted."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.layers, self.lin = to_hetero(_Layers(), data.metadata()), torch.nn.Linear(8, 3)
        self.double()
        self(data.x_dict, data.edge_index_dict)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        return self.lin(self.layers(x_dict, edge_index_dict)['paper'])


class Native(torch.nn.Module):
    r"""Two layers that take all relations at once."""

    def __init__(self, data: HeteroData, conv: type = HGTConv) -> None:
        super().__init__()
        widths = {name: x.size(1) for name, x in data.x_dict.items()}
        self.inputs = torch.nn.ModuleDict({name: torch.nn.Linear(width, 8) for name, width in widths.items()})
        self.layers = torch.nn.ModuleList([conv(8, 8, data.metadata(), heads=2) for _ in range(2)])
        self.lin = torch.nn.Linear(8, 3)
        self.double()

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        x_dict = {name: self.inputs[name](x).relu() for name, x in x_dict.items()}
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict)
        return self.lin(x_dict['paper'])


class Relational(torch.nn.Module):
    r"""Two layers on one list of edges with the number of each one's relation."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        widths = {name: x.size(1) for name, x in data.x_dict.items()}
        self.inputs = torch.nn.ModuleDict({name: torch.nn.Linear(width, 8) for name, width in widths.items()})
        self.layers = torch.nn.ModuleList([RGCNConv(8, 8, len(data.edge_types)) for _ in range(2)])
        self.lin = torch.nn.Linear(8, 3)
        self.double()

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        data = HeteroData()
        for name, x in x_dict.items():
            data[name].x = self.inputs[name](x).relu()
        for relation, edge_index in edge_index_dict.items():
            data[relation].edge_index = edge_index
        one = data.to_homogeneous()
        x = one.x
        for layer in self.layers:
            x = layer(x, one.edge_index, one.edge_type)
        return self.lin(x[: x_dict['paper'].size(0)])


MODELS = {
    'HeteroConv': ByRelation,
    'to_hetero': Converted,
    'HGTConv': Native,
    'HANConv': lambda data: Native(data, HANConv),
    'RGCNConv': Relational,
}


def explained(model: torch.nn.Module, algorithm: Any, data: Any, index: Any = None, **options: Any) -> Any:
    r"""An explanation of a model of a heterogeneous graph by an algorithm, through PyG."""
    kwargs = options.pop('kwargs', {})
    masks = {'node_mask_type': 'object', 'edge_mask_type': 'object', **options}
    config = masks.pop('model_config', CONFIG)
    explainer = Explainer(model, algorithm, masks.pop('explanation_type', 'model'), model_config=config, **masks)
    return explainer(data.x_dict, data.edge_index_dict, index=index, **kwargs)


def dense(data: HeteroData, weight: dict[Any, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    r"""The features of all types in blocks, and Ã of the union of all relations, by the definition."""
    first, ends, size = {}, [], 0
    for name, part in data.x_dict.items():
        first[name], size = size, size + part.size(0)
    for (source, _, target), edge_index in data.edge_index_dict.items():
        ends.append(edge_index + torch.tensor([[first[source]], [first[target]]]))
    x = torch.block_diag(*data.x_dict.values())
    weights = None if weight is None else torch.cat([weight[relation] for relation in data.edge_types])
    return x, dense_adjacency(torch.cat(ends, dim=1), weights, x.size(0))
