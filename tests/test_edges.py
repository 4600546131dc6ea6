r"""Edges in files as a sparse matrix in files, without a sort of all of them."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import example_graphs

from pyg_dnx.edges import edges_to_csr, load_csr


def dense(graph):
    matrix = torch.zeros(8, 8, dtype=torch.float64)
    weight = torch.ones(graph.edge_index.size(1)) if graph.edge_weight is None else graph.edge_weight
    for (source, target), value in zip(graph.edge_index.T.tolist(), weight.tolist(), strict=True):
        matrix[target, source] += value
    return matrix


@pytest.mark.parametrize('entries', [1, 3, 1000])  # that fit into memory
@pytest.mark.parametrize('name', example_graphs())
def test_matrix_is_that_of_the_edges(name, entries, tmp_path):
    graph = example_graphs()[name]
    found = edges_to_csr(graph.edge_index, tmp_path, 8, graph.edge_weight, max_memory=64 * entries)
    torch.testing.assert_close(found.to_dense().double(), dense(graph))
    for first, last in zip(found.crow_indices()[:-1].tolist(), found.crow_indices()[1:].tolist(), strict=True):
        columns = found.col_indices()[first:last]
        assert bool((columns.diff() > 0).all())
    assert found.col_indices().dtype == torch.int32
    assert sorted(path.name for path in tmp_path.iterdir()) == ['col.npy', 'rowptr.npy', 'value.npy']


def test_edges_on_disk_by_a_command(tmp_path):
    graph = example_graphs()['weighted']
    np.save(tmp_path / 'edges.npy', graph.edge_index.numpy())
    np.save(tmp_path / 'weight.npy', graph.edge_weight.numpy())
    given = [tmp_path / 'edges.npy', tmp_path / 'csr', '--num-nodes', '8', '--edge-weight', tmp_path / 'weight.npy']
    shown = subprocess.run([sys.executable, '-m', 'pyg_dnx.edges', *given], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f'{tmp_path / "csr"}: 8 nodes, ')
    torch.testing.assert_close(load_csr(tmp_path / 'csr').to_dense().double(), dense(graph))


def test_bad_edges_are_named(tmp_path):
    with pytest.raises(IndexError, match=r'node ids from 0 to 3 \(got ids from 0 to 5\)'):
        edges_to_csr(torch.tensor([[0, 5], [1, 2]]), tmp_path, 4)
    with pytest.raises(ValueError, match=r"'edge_index' must have shape \[2, E\] \(got \[4, 3\]\)"):
        edges_to_csr(torch.zeros(4, 3), tmp_path, 4)
