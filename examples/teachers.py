r"""Graphs and models that several examples share."""

import os.path as osp

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid


def load(name, folder):
    r"""Cora or CiteSeer from `folder`/planetoid, downloaded if need be, or a graph of the paper from `folder`/dnx."""
    if name in {'Cora', 'CiteSeer'}:
        return Planetoid(osp.join(folder, 'planetoid'), name)[0]
    arrays = np.load(osp.join(folder, 'dnx', f'{name}.npz'))
    return Data(**{key: torch.from_numpy(arrays[key]) for key in arrays})


def train(family, data, seed):
    r"""Trains a model of two layers of one of PyG's families: GCN, GAT, GIN."""
    torch.manual_seed(seed)
    model = family(data.num_features, 20, 2, int(data.y.max()) + 1, dropout=0.5 if data.num_features > 500 else 0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(200):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
    return model.eval()
