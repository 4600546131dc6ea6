r"""Explanations to draw, small and crowded, and where texts are in a picture."""

import numpy as np
import torch
from torch_geometric.explain import Explanation
from torch_geometric.utils import to_undirected


def star(num_leaves, scale=1.0, **values):
    generator = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.arange(1, num_leaves + 1), torch.zeros(num_leaves, dtype=torch.long)])
    score = scale * torch.randn(num_leaves + 1, generator=generator)
    given = {'edge_index': to_undirected(edges), 'node_score': score, 'index': torch.tensor([0])}
    return Explanation(x=torch.zeros(num_leaves + 1, 2), **{**given, **values})


def bush(num_nodes, num_edges=None):
    r"""A random graph with masks of nodes and edges, around node 0."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(0, num_nodes, (num_edges or 2 * num_nodes,), generator=generator)
    edges = to_undirected(torch.stack([source, (source * source + 1) % num_nodes]))
    score = torch.randn(num_nodes, generator=generator)
    values = {'node_score': score, 'edge_mask': torch.rand(edges.size(1), generator=generator)}
    return Explanation(x=torch.zeros(num_nodes, 2), edge_index=edges, index=torch.tensor([0]), **values)


def directed():
    edges = torch.tensor([[1, 2, 3, 1, 4], [0, 0, 1, 2, 3]])
    return Explanation(
        x=torch.zeros(6, 2), edge_index=edges, node_score=torch.arange(6.0) - 2.5, index=torch.tensor([0])
    )


CASES = {
    'star': star(12),
    'crowded star': star(299),
    'bush': bush(30),
    'large bush': bush(300),
    'directed': directed(),
    'several': star(12, index=torch.tensor([0, 3, 5])),
    'all': star(12, index=None),
    'one node': star(0),
    'no edges': star(8, edge_index=torch.zeros(2, 0, dtype=torch.long)),
    'unsigned': star(12, node_score=None, node_mask=torch.linspace(0.1, 1.0, 13)[:, None]),
    'nothing': star(12, node_score=torch.zeros(13), node_mask=torch.ones(13, 1)),
}


def boxes(figure, texts):
    renderer = figure.canvas.get_renderer()
    return np.array([text.get_window_extent(renderer).extents for text in texts])
