r"""A small graph for the tests of the evaluation."""

import torch
from torch_geometric.data import Data
from torch_geometric.utils import k_hop_subgraph

CLOSE = dict(atol=1e-5, rtol=1e-4)


def graph(directed=False):
    r"""A ring of 12 nodes with a chord, a self-loop and, if directed, an edge twice, and two nodes on their own."""
    edge_index = torch.tensor([[*range(12), 0, 3, 5], [*range(1, 12), 0, 3, 4, 5]])
    edge_index = edge_index if directed else torch.cat([edge_index, edge_index.flip(0)], dim=1).unique(dim=1)
    x, every = torch.randn(14, 3, generator=torch.Generator().manual_seed(0)), torch.ones(14, dtype=torch.bool)
    return Data(x=x, edge_index=edge_index, y=(x[:, :2] > 0).sum(dim=1), train_mask=every, val_mask=every)


def reached(data, node, num_hops):
    nodes = k_hop_subgraph(int(node), num_hops, data.edge_index, num_nodes=data.num_nodes)[0]
    return torch.isin(torch.arange(data.num_nodes), nodes)
