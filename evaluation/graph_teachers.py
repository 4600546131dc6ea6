r"""Data sets of graphs, and the models of graphs to explain, trained once and kept on disk."""

import os
import os.path as osp
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT, GCN, GIN, global_add_pool, global_mean_pool

from pyg_dnx.datasets import ba_2motif, molecules

EPOCHS = {'MUTAG': 60, 'Mutagenicity': 20, 'BA-2motif': 20}
SIZE = 32


class GraphTeacher(nn.Module):
    r"""Three layers with batch normalisation, pooled (GIN by sum, the others by mean), and a perceptron."""

    def __init__(self, kind, in_channels, out_channels):
        super().__init__()
        self.body = {'GCN': GCN, 'GIN': GIN, 'GAT': GAT}[kind](in_channels, SIZE, 3, norm='batch_norm')
        self.pool = global_add_pool if kind == 'GIN' else global_mean_pool
        self.head = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, out_channels))

    def forward(self, x, edge_index, batch=None):
        return self.head(self.pool(self.body(x, edge_index), batch))


@lru_cache(maxsize=1)
def data_of(name, folder):
    r"""All graphs of a data set, with what the models take."""
    if name == 'BA-2motif':
        return ba_2motif()
    graphs = molecules(name, folder)
    for graph in graphs:
        graph.edge_attr = None
    return graphs


def split(graphs, seed):
    r"""80% to train on, 10% to choose on, 10% to test."""
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed)).tolist()
    first, second = int(0.8 * len(order)), int(0.9 * len(order))
    return tuple([graphs[i] for i in part] for part in (order[:first], order[first:second], order[second:]))


def train(kind, name, graphs, seed):
    r"""Keeps the last of the epochs that are best on the validation graphs."""
    torch.manual_seed(seed)
    learn, choose, _ = split(graphs, seed)
    model = GraphTeacher(kind, graphs[0].num_features, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    best, state = -1.0, {}
    for _ in range(EPOCHS[name]):
        model.train()
        for batch in DataLoader(learn, 64, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y).backward()
            optimizer.step()
        correct = accuracy(model, choose)
        if correct >= best:
            best, state = correct, {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def accuracy(model, graphs):
    batch = next(iter(DataLoader(graphs, len(graphs))))
    predicted = model.eval()(batch.x, batch.edge_index, batch.batch).argmax(dim=1)
    return float((predicted == batch.y).float().mean())


def teacher(kind, name, graphs, seed, folder):
    r"""The trained model, from `folder` if it has been trained before."""
    os.makedirs(folder, exist_ok=True)
    path = osp.join(folder, f'{name}-{kind}-{seed}.pt')
    if osp.exists(path):
        model = GraphTeacher(kind, graphs[0].num_features, 2)
        model.load_state_dict(torch.load(path, weights_only=True))
        return model.eval()
    model = train(kind, name, graphs, seed)
    torch.save(model.state_dict(), f'{path}.{os.getpid()}')
    os.replace(f'{path}.{os.getpid()}', path)
    return model
