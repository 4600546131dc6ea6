r"""Graphs with motifs: what is generated, what is read from files, and the ground truth of both."""

from collections import Counter

import pytest
import torch
from datasets_case import DATA, check_split, needs_published_files, pairs, same, write_npz
from torch_geometric.data import Data
from torch_geometric.utils import contains_self_loops, is_undirected

from pyg_dnx.datasets import MOTIF_GRAPHS, MotifDataset, edge_truth, load, node_truth
from pyg_dnx.datasets.generate import unlinked_pairs

HOUSE = {(0, 1), (1, 2), (2, 3), (0, 3), (0, 4), (1, 4)}
GRID = {(0, 1), (1, 2), (3, 4), (4, 5), (6, 7), (7, 8), (0, 3), (3, 6), (1, 4), (4, 7), (2, 5), (5, 8)}
CYCLE = {(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)}
BOTTLE = {(0, 1), (0, 2), (1, 2), (0, 3), (0, 4)}
EXPECTED = {  # template, nodes, edges, where motifs start, labels in a motif, size of the base
    'ba_house': (HOUSE, 700, 4110, range(300, 700, 5), [1, 1, 2, 2, 3], 300),
    'ba_community': (HOUSE, 1400, 8920, [*range(300, 700, 5), *range(1000, 1400, 5)], [1, 1, 2, 2, 3], 300),
    'ba_grids': (GRID, 1020, 5080, range(300, 1020, 9), [1] * 9, 300),
    'tree_cycles': (CYCLE, 871, None, range(511, 871, 6), [1] * 6, 511),
    'tree_grids': (GRID, 1231, 3410, range(511, 1231, 9), [1] * 9, 511),
    'ba_bottle': (BOTTLE, 700, 3948, range(300, 700, 5), [1, 2, 2, 3, 3], 300),
}


def check_motif_graph(name, data):
    template, num_nodes, num_edges, starts, labels, base = EXPECTED[name]
    edges, size = pairs(data), len(labels)
    motif = [-1] * num_nodes
    for number, start in enumerate(starts):
        motif[start : start + size] = [number] * size
    assert data.node_motif.tolist() == motif
    assert data.edge_motif.tolist() == [motif[u] if motif[u] == motif[v] else -1 for u, v in edges]
    assert len(set(edges)) == len(edges)
    assert is_undirected(data.edge_index)
    assert not contains_self_loops(data.edge_index)
    assert len(edges) == num_edges or (num_edges is None and abs(len(edges) - 1946) < 30)
    inside = {
        (motif[u], u - starts[motif[u]], v - starts[motif[u]]) for u, v in edges if u < v and motif[u] == motif[v]
    }
    inside = {edge for edge in inside if edge[0] >= 0}
    assert inside == {(number, u, v) for number in range(len(starts)) for u, v in template}

    y = [0] * num_nodes if name != 'ba_community' else [0] * 700 + [4] * 700
    for start in starts:
        y[start : start + size] = [label + y[start] for label in labels]
    assert data.y.tolist() == y
    count = Counter(u for u, _ in edges)
    degree = [count[node] for node in range(num_nodes)]
    assert data.x.shape == (num_nodes, max(degree) + 1)
    assert data.x.dtype == torch.float32
    assert data.x.nonzero().tolist() == list(map(list, enumerate(degree)))
    assert data.x.max() == 1.0
    check_split(data, num_nodes)

    spacing = base // (len(starts) if name != 'ba_community' else len(starts) // 2)
    for number, start in enumerate(starts):
        anchor = number * spacing if number < 80 else 700 + (number - 80) * spacing
        assert (anchor, start) in edges


@pytest.mark.parametrize('seed', [0, 7])
@pytest.mark.parametrize('name', MOTIF_GRAPHS)
def test_generated_graphs_are_like_the_published_ones(name, seed):
    dataset = MotifDataset(name, seed=seed)
    assert len(dataset) == 1
    assert dataset.num_classes == {'ba_house': 4, 'ba_community': 8, 'ba_bottle': 4}.get(name, 2)
    check_motif_graph(name, dataset[0])


@pytest.mark.parametrize('name', ['ba_house', 'ba_grids', 'ba_bottle'])
def test_new_nodes_of_the_base_have_five_distinct_earlier_neighbours(name):
    data = MotifDataset(name)[0]
    earlier = Counter(u for u, v in pairs(data) if v < u < 300)
    assert sum(earlier.values()) - 5 * 295 in range(25)  # the random extra edges
    assert min(earlier[node] for node in range(5, 300)) == 5
    assert data.x.argmax(dim=1)[:300].max() > 30  # rich nodes get richer


@pytest.mark.parametrize('name', ['tree_cycles', 'tree_grids'])
def test_base_trees_are_numbered_level_by_level(name):
    edges = set(pairs(MotifDataset(name)[0]))
    assert {((node - 1) // 2, node) for node in range(1, 511)} <= edges


def test_some_cycles_have_a_second_link_nearby():
    edges, size = pairs(MotifDataset('tree_cycles')[0]), 6
    second = []
    for u, v in edges:
        if u < 511 <= v:
            number, place = divmod(v - 511, size)
            second += [number] if 1 <= place <= 3 and 1 <= u - 8 * number <= 3 else []
    assert 15 < len(set(second)) < 45


def test_extra_edges_link_what_has_no_edge_and_is_not_in_one_motif():
    edge_index, part = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]), torch.tensor([0, 1, 2, 9, 9, 9])
    found = [tuple(sorted(pair)) for pair in unlinked_pairs(edge_index, part, 100).t().tolist()]
    assert sorted(found) == [(0, 2), (0, 3), (0, 4), (0, 5), (1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]
    assert unlinked_pairs(edge_index, part, 3).shape == (2, 3)


def test_communities_have_random_edges_between():
    edges = pairs(MotifDataset('ba_community')[0])
    assert sum(u < 700 <= v for u, v in edges) == 350
    assert sum(v < 700 for u, v in edges if u < 700) == 4110


def test_published_motif_graphs_are_read(tmp_path):
    expected = MotifDataset('tree_cycles', seed=5)[0]
    write_npz(tmp_path / 'dnx' / 'tree_cycles.npz', expected)
    assert same(MotifDataset('tree_cycles', tmp_path / 'dnx')[0], expected)
    assert same(load('tree_cycles', tmp_path), expected)
    assert same(load('ba_house', tmp_path), MotifDataset('ba_house')[0])
    seen = MotifDataset('tree_cycles', tmp_path / 'dnx', transform=lambda data: data.update({'seen': True}))[0]
    assert seen.seen


def test_motif_truth_by_eye():
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 0, 3, 3, 4], [1, 0, 2, 1, 3, 2, 3, 0, 4, 3]])
    data = Data(x=torch.ones(5, 1), edge_index=edges, node_motif=torch.tensor([-1, 0, 0, 1, 1]))
    data.edge_motif = torch.tensor([-1, -1, 0, 0, -1, -1, -1, -1, 1, 1])
    index = torch.tensor([4, 1, 4])
    nodes, links = node_truth(data, index), edge_truth(data, index)
    assert nodes.dtype == links.dtype == torch.bool
    assert nodes.int().tolist() == [[0, 0, 0, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1]]
    assert [row.nonzero().view(-1).tolist() for row in links] == [[8, 9], [2, 3], [8, 9]]
    assert node_truth(data, data.node_motif == 0).equal(nodes[[1, 1]])
    assert edge_truth(data, -1).equal(links[:1])
    assert node_truth(data, 4, predicted=torch.zeros(5)).equal(nodes[:1])


@pytest.mark.parametrize('name', MOTIF_GRAPHS)
def test_motif_truth_of_generated_graphs(name):
    template, _, _, starts, labels, _ = EXPECTED[name]
    data, size = MotifDataset(name)[0], len(labels)
    for start in (starts[0], starts[1], starts[-1]):
        for node in (start, start + size - 1):
            assert node_truth(data, node)[0].nonzero().view(-1).tolist() == [*range(start, start + size)]
            found = data.edge_index[:, edge_truth(data, node)[0]].t() - start
            assert set(map(tuple, found.tolist())) == template | {(v, u) for u, v in template}


def test_a_published_graph_of_another_size(tmp_path):
    write_npz(tmp_path / 'ba_house.npz', MotifDataset('ba_grids')[0])
    with pytest.raises(ValueError, match=r"'folder' must hold the published graph, of 700 nodes \(got 1020 nodes"):
        MotifDataset('ba_house', tmp_path)


def test_nodes_without_a_motif():
    data = MotifDataset('ba_house')[0]
    for truth in (node_truth, edge_truth):
        with pytest.raises(ValueError, match=r"'index' must name nodes of motifs.*\(got 2 others, 7 first\)"):
            truth(data, torch.tensor([300, 7, 299]))
        with pytest.raises(IndexError, match="'index' must hold node ids from -700 to 699"):
            truth(data, 700)


@needs_published_files
@pytest.mark.parametrize('name', MOTIF_GRAPHS)
def test_published_motif_graphs(name):
    check_motif_graph(name, load(name, DATA))
