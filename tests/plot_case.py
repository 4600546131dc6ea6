r"""Explanations to draw, small and crowded, and where texts are in a picture."""

import numpy as np
import torch
from torch_geometric.explain import Explanation, HeteroExplanation, ModelConfig
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


ATOMS = ['N', 'C', 'N', 'C', 'C', 'C', 'N', 'C', 'N', 'O', 'O', 'C', 'C', 'C']  # caffeine
BONDS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (3, 6), (6, 7), (7, 8), (8, 4), (1, 9), (5, 10), (0, 11)]


def molecule(**values):
    r"""A graph as a whole, with scores of atoms and bonds."""
    generator = torch.Generator().manual_seed(3)
    edges = to_undirected(torch.tensor([*BONDS, (2, 12), (8, 13)]).T)
    given = {
        'node_score': torch.randn(14, generator=generator),
        'edge_mask': torch.rand(edges.size(1), generator=generator),
        'edge_score': torch.randn(edges.size(1), generator=generator),
        'target': torch.tensor([1]),
        'prediction': torch.tensor([[0.1, 0.9]]),
        'node_names': ATOMS,
        'class_names': ['harmless', 'stimulant'],
    }
    explanation = Explanation(x=torch.zeros(14, 3), edge_index=edges, **{**given, **values})
    explanation._model_config = ModelConfig('multiclass_classification', 'graph', 'raw')
    return explanation


def link(**values):
    r"""The first of two links of a random graph."""
    explanation = bush(40, 50)
    explanation.update({'edge_label_index': torch.tensor([[0, 3], [7, 9]]), 'target': torch.tensor([1, 0]), **values})
    explanation._model_config = ModelConfig('binary_classification', 'edge', 'raw')
    return explanation


def hetero(**values):
    r"""Paper 2 of a graph of papers, authors and venues."""
    generator = torch.Generator().manual_seed(0)
    explanation = HeteroExplanation()
    sizes = {'paper': 12, 'author': 9, 'venue': 3}
    for name, size in sizes.items():
        explanation[name].x = torch.randn(size, 2, generator=generator)
        explanation[name].node_score = torch.randn(size, generator=generator)
        explanation[name].node_mask = torch.rand(size, 1, generator=generator)
    relations = [('author', 'writes', 'paper'), ('paper', 'at', 'venue'), ('venue', 'has', 'paper')]
    for one, name, other in [*relations, ('paper', 'cites', 'paper')]:
        ends = [torch.randint(sizes[kind], (14,), generator=generator) for kind in (one, other)]
        explanation[one, name, other].edge_index = torch.stack(ends)
        explanation[one, name, other].edge_mask = torch.rand(14, generator=generator)
    given = {'index': torch.tensor([2]), 'target': torch.arange(12) % 3, **values}
    for name, value in given.items():
        setattr(explanation, name, value)
    explanation._model_config = ModelConfig('multiclass_classification', 'node', 'raw')
    return explanation


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
    'molecule': molecule(),
    'link': link(),
    'hetero': hetero(),
}


def boxes(figure, texts):
    renderer = figure.canvas.get_renderer()
    return np.array([text.get_window_extent(renderer).extents for text in texts])
