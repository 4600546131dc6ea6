r"""Copies of graphs without some of their nodes: rows of arguments follow, and pairs of nodes stay pairs."""

import torch

from pyg_dnx.graph.copies import copies, part
from pyg_dnx.graph.graph import Graph

BATCH = torch.tensor([0, 0, 0, 1, 1, 1])
X = torch.arange(1.0, 7.0)[:, None]
EDGES = torch.tensor([[0, 1, 3, 4], [1, 2, 4, 5]])
PAIRS = torch.tensor([[0, 3, 2], [1, 5, 0]])  # told of, but used by no model of graphs


def batch():
    kwargs = {'batch': BATCH, 'edge_label_index': PAIRS, 'label': torch.arange(3), 'size': torch.tensor([10, 20])}
    return Graph(X, EDGES, kwargs)


def test_a_part_keeps_its_own_pairs():
    one, nodes, edges = part(batch(), 1, 2)
    one.check_content()
    assert nodes.tolist() == [3, 4, 5]
    assert edges.tolist() == [2, 3]
    assert one.x.view(-1).tolist() == [4, 5, 6]
    assert one.edge_index.tolist() == [[0, 1], [1, 2]]
    assert one.pairs.tolist() == [[0], [2]]
    assert one.kwargs['label'].tolist() == [1]
    assert one.kwargs['batch'].tolist() == [0, 0, 0]
    assert one.kwargs['size'].tolist() == [20]


def test_copies_of_blanked_nodes():
    keep = torch.tensor([[1, 0, 1, 1, 1, 1], [0, 0, 0, 1, 0, 1]], dtype=torch.bool)
    found = copies(batch(), keep, 'features', 2)
    assert found.x.view(-1).tolist() == [1, 0, 3, 4, 5, 6, 0, 0, 0, 4, 0, 6]
    assert found.batch.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert found.edge_index.tolist() == [[0, 1, 3, 4, 6, 7, 9, 10], [1, 2, 4, 5, 7, 8, 10, 11]]
    assert found.pairs.tolist() == [[0, 3, 2, 6, 9, 8], [1, 5, 0, 7, 11, 6]]
    assert found.kwargs['label'].tolist() == [0, 1, 2, 0, 1, 2]
    assert found.kwargs['size'].tolist() == [10, 20, 10, 20]


def test_copies_of_removed_nodes_are_never_empty():
    keep = torch.tensor([[1, 0, 1, 0, 1, 1], [0, 0, 0, 1, 0, 1]], dtype=torch.bool)
    found = copies(batch(), keep, 'nodes', 2)
    assert found.x.view(-1).tolist() == [1, 3, 5, 6, 0, 4, 6]  # the first node of an empty graph, without features
    assert found.batch.tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert found.edge_index.tolist() == [[2], [3]]
    assert found.pairs.tolist() == [[1, 5], [0, 6]]
