import pytest
import torch
from torch_geometric.datasets import TUDataset

from pyg_dnx.datasets import ATOMS, ba_2motif, molecules


def test_ba_2motif_marks_its_motifs():
    before = torch.get_rng_state()
    graphs = ba_2motif(6, seed=1)
    assert torch.get_rng_state().equal(before)
    assert [int(graph.y) for graph in graphs] == [0, 0, 0, 1, 1, 1]
    for graph in graphs:
        inside = graph.node_truth
        assert graph.x.shape == (25, 10)
        assert int(inside.sum()) == 5
        assert graph.edge_truth.equal(inside[graph.edge_index].all(dim=0))
        assert int(graph.edge_truth.sum()) == (12 if graph.y == 0 else 10)  # a house has a wall more than a cycle
    again = ba_2motif(6, seed=1)
    assert all(one.edge_index.equal(other.edge_index) for one, other in zip(graphs, again, strict=True))
    assert not all(one.edge_index.equal(other.edge_index) for one, other in zip(graphs, ba_2motif(6), strict=True))


def test_ba_2motif_takes_bad_numbers_with_a_sentence():
    with pytest.raises(ValueError, match="'num_graphs' must be at least 2"):
        ba_2motif(1)


@pytest.fixture
def folder(tmp_path):
    r"""Two molecules as TUDataset has them, their bonds in no order."""
    raw = tmp_path / 'molecules' / 'Mutagenicity' / 'raw'
    raw.mkdir(parents=True)
    pairs = [(4, 5), (2, 1), (1, 2), (3, 2), (2, 3), (5, 4), (5, 6), (6, 5)]
    (raw / 'Mutagenicity_A.txt').write_text('\n'.join(f'{a}, {b}' for a, b in pairs) + '\n')
    (raw / 'Mutagenicity_edge_gt.txt').write_text('1\n0\n0\n1\n1\n1\n0\n0\n')
    (raw / 'Mutagenicity_graph_indicator.txt').write_text('1\n1\n1\n2\n2\n2\n')
    (raw / 'Mutagenicity_graph_labels.txt').write_text('0\n1\n')
    (raw / 'Mutagenicity_node_labels.txt').write_text('0\n4\n1\n1\n4\n0\n')
    return tmp_path


def test_molecules_mark_the_edges_of_the_file(folder):
    first, second = molecules('Mutagenicity', folder)
    assert first.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert first.edge_truth.tolist() == [False, False, True, True]
    assert first.node_truth.tolist() == [False, True, True]
    assert second.edge_truth.tolist() == [True, True, False, False]
    assert second.node_truth.tolist() == [True, True, False]


def test_molecules_without_a_file_are_plain(folder):
    (folder / 'molecules' / 'Mutagenicity' / 'raw' / 'Mutagenicity_edge_gt.txt').unlink()
    pairs = zip(molecules('Mutagenicity', folder), TUDataset(folder / 'molecules', 'Mutagenicity'), strict=False)
    for graph, expected in pairs:
        assert 'edge_truth' not in graph
        assert graph.edge_index.equal(expected.edge_index)


def test_molecules_are_known_by_name():
    assert ATOMS['MUTAG'][:3] == ('C', 'N', 'O')
    with pytest.raises(ValueError, match="'name' must be one of 'MUTAG', 'Mutagenicity' \\(got 'ZINC'\\)"):
        molecules('ZINC')
