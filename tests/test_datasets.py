r"""Graphs with known explanations: what is generated, what is read from files, and the ground truth of both."""

import gzip
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import contains_self_loops, is_undirected

from pyg_dnx.datasets import BITCOIN_GRAPHS, MOTIF_GRAPHS, BitcoinDataset, MotifDataset, edge_truth, load, node_truth
from pyg_dnx.datasets.bitcoin import node_features, node_labels
from pyg_dnx.datasets.generate import unlinked_pairs
from pyg_dnx.datasets.seeding import seeded

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
KEYS = ('x', 'edge_index', 'y', 'train_mask', 'val_mask', 'test_mask')
DATA = os.environ.get('PYG_DNX_DATA')  # the folder that holds `dnx/*.npz`
needs_published_files = pytest.mark.skipif(DATA is None, reason='PYG_DNX_DATA does not name the published files')
CSV = '7,1,10,5\n1,9,-3,6.5\n4,1,2,7\n9,1,1,8\n9,7,-10,8\n1,7,4,9\n20,1,-1,9\n4,7,1,9\n'  # ids: 7, 1, 9, 4, 20
RATINGS = [(0, 1, 10), (1, 2, -3), (3, 1, 2), (2, 1, 1), (2, 0, -10), (1, 0, 4), (4, 1, -1), (3, 0, 1)]


def pairs(data):
    return list(map(tuple, data.edge_index.t().tolist()))


def write_npz(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{key: data[key].numpy() for key in KEYS})


def same(one, other):
    return all(one[key].equal(other[key]) for key in {*one.keys(), *other.keys()})


@pytest.fixture
def download(monkeypatch):
    r"""Stands in for the download: writes the rows above, and lists what was asked for."""
    urls = []

    def write(url, folder, **_):
        urls.append(url)
        Path(folder).mkdir(parents=True, exist_ok=True)
        with gzip.open(Path(folder) / url.rpartition('/')[2], 'wt') as file:
            file.write(CSV)

    monkeypatch.setattr('pyg_dnx.datasets.bitcoin.download_url', write)
    return urls


@pytest.fixture
def traders(download, tmp_path):
    return BitcoinDataset(tmp_path, 'bitcoin_otc')[0]


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


def check_split(data, num_nodes):
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert masks.sum(dim=0).eq(1).all()
    assert data.train_mask.sum() == num_nodes * 8 // 10
    assert 0 <= int(data.val_mask.sum() - data.test_mask.sum()) <= 1


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


@pytest.mark.parametrize('name', [*MOTIF_GRAPHS, 'infection'])
def test_a_graph_follows_from_its_seed_alone(name, tmp_path):
    one = load(name, tmp_path, seed=3)
    torch.rand(3)
    np.random.rand(3)  # noqa: NPY002
    assert same(load(name, tmp_path, seed=3), one)
    assert not load(name, tmp_path, seed=4).edge_index.equal(one.edge_index)
    assert not load(name, tmp_path, seed=4).train_mask.equal(one.train_mask)


def random_states():
    return random.getstate(), [*map(str, np.random.get_state())], torch.get_rng_state().tolist()  # noqa: NPY002


@pytest.mark.parametrize('name', ['ba_community', 'tree_cycles', 'infection'])
def test_the_global_random_state_stays_as_it_was(name, tmp_path):
    before = random_states()
    load(name, tmp_path)
    assert random_states() == before


def test_the_global_random_state_comes_back_after_an_error():
    def draw():
        return random.random(), np.random.rand(), float(torch.rand(1))  # noqa: NPY002

    def fail():
        with seeded(0):
            drawn.append(draw())
            raise RuntimeError('out of memory')

    drawn = []
    for _ in range(2):
        draw()
        before = random_states()
        with pytest.raises(RuntimeError):
            fail()
        assert random_states() == before
    assert drawn[0] == drawn[1]


def test_graphs_are_built_on_the_cpu_whatever_the_default_device(tmp_path):
    with torch.device('meta'):
        for name in ('ba_house', 'tree_cycles', 'infection'):
            assert {value.device.type for value in load(name, tmp_path).to_dict().values()} == {'cpu'}


def test_published_motif_graphs_are_read(tmp_path):
    expected = MotifDataset('tree_cycles', seed=5)[0]
    write_npz(tmp_path / 'dnx' / 'tree_cycles.npz', expected)
    assert same(MotifDataset('tree_cycles', tmp_path / 'dnx')[0], expected)
    assert same(load('tree_cycles', tmp_path), expected)
    assert same(load('ba_house', tmp_path), MotifDataset('ba_house')[0])
    seen = MotifDataset('tree_cycles', tmp_path / 'dnx', transform=lambda data: data.update({'seen': True}))[0]
    assert seen.seen


def test_ratings_are_numbered_by_first_appearance(traders):
    assert traders.rating_index.t().tolist() == [[u, v] for u, v, _ in RATINGS]
    assert traders.rating.tolist() == [rating for _, _, rating in RATINGS]
    linked = sorted({(u, v) for u, v, _ in RATINGS} | {(v, u) for u, v, _ in RATINGS})
    assert pairs(traders) == linked
    check_split(traders, 5)


def test_ratings_given_are_the_features_and_ratings_received_the_label(traders):
    for node in range(5):
        given = [rating / 10 for u, _, rating in RATINGS if u == node]
        received = [rating for _, v, rating in RATINGS if v == node]
        assert traders.y[node] == int(len(received) >= 3 and sum(r > 0 for r in received) / len(received) > 0.65)
        trust, distrust = sum(r for r in given if r > 0), -sum(r for r in given if r < 0)
        rows = [trust / len(given), distrust / len(given)]
        by_in, by_out = len(received) / 4, len(given) / 2  # the most received, by node 1, and given, by nodes 1, 2, 3
        rows += [trust / (trust + distrust), rows[0] - rows[1]]
        rows += [rows[0] * by_in, rows[1] * by_in, rows[0] * by_out, rows[1] * by_out]
        torch.testing.assert_close(traders.x[node], torch.tensor(rows) / 1.01 + 0.001)
    assert traders.y.tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(('received', 'label'), [('++', 0), ('+++', 1), ('++-', 1), ('+' * 13 + '-' * 7, 0), ('', 0)])
def test_labels(received, label):
    target = torch.zeros(len(received), dtype=torch.long)
    rating = torch.tensor([5 if sign == '+' else -1 for sign in received], dtype=torch.long)
    assert node_labels(torch.stack([target + 1, target]), rating, 2).tolist() == [label, 0]


def test_traders_who_rated_nobody_have_features():
    x = node_features(torch.tensor([[0], [1]]), torch.tensor([10]), 3)
    torch.testing.assert_close(x[1:], torch.full((2, 8), 0.001))
    top, zero = 1 / 1.01 + 0.001, 0.001
    torch.testing.assert_close(x[0], torch.tensor([top, zero, top, top, zero, zero, top, zero]))


def test_networks_are_downloaded_once_and_split_anew_for_each_seed(download, tmp_path):
    many = [BitcoinDataset(tmp_path, 'bitcoin_alpha', seed=seed)[0] for seed in (0, 0, *range(1, 20))]
    assert download == ['https://snap.stanford.edu/data/soc-sign-bitcoinalpha.csv.gz']
    assert (tmp_path / 'bitcoin_alpha' / 'raw' / 'soc-sign-bitcoinalpha.csv.gz').is_file()
    assert same(many[0], many[1])
    assert len({tuple(data.train_mask.tolist()) for data in many}) > 1
    assert same(load('bitcoin_alpha', tmp_path, seed=7), many[8])
    load('bitcoin_otc', tmp_path)
    assert download[1:] == ['https://snap.stanford.edu/data/soc-sign-bitcoinotc.csv.gz']


def test_a_pre_transform_is_stored(download, tmp_path):
    dataset = BitcoinDataset(tmp_path, 'bitcoin_otc', pre_transform=lambda data: data.update({'y': 1 - data.y}))
    assert dataset[0].y.tolist() == [0, 0, 1, 1, 1]


def test_published_networks_are_read(traders, tmp_path, monkeypatch):
    monkeypatch.setattr('pyg_dnx.datasets.bitcoin.download_url', None)
    folder = tmp_path / 'dnx'
    traders.train_mask, traders.val_mask = traders.val_mask, traders.train_mask
    write_npz(folder / 'bitcoin_alpha.npz', traders)
    source, target = traders.rating_index.numpy()
    np.savez(folder / 'bitcoin_alpha_ratings.npz', source=source, target=target, rating=traders.rating.numpy())
    assert same(BitcoinDataset(None, 'bitcoin_alpha', folder)[0], traders)
    assert same(load('bitcoin_alpha', tmp_path), traders)


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


@pytest.mark.parametrize('predicted', [None, [1, 0, 0, 1, 1], [0, 1, 1, 0, 0]])
def test_trust_truth_against_loops(traders, predicted):
    index = [1, 0, 2, 1, 4]
    given = None if predicted is None else torch.tensor(predicted)
    nodes, links = node_truth(traders, index, given), edge_truth(traders, index, given)
    for row, node in enumerate(index):
        trusted = predicted is None or predicted[node] == 1
        truth = {u for u, v, rating in RATINGS if v == node and (rating > 0) == trusted}
        assert set(nodes[row].nonzero().view(-1).tolist()) == truth | {node}
        assert links[row].tolist() == [
            (u == node and v in truth) or (v == node and u in truth) for u, v in pairs(traders)
        ]
    assert node_truth(traders, 1).nonzero()[:, 1].tolist() == [0, 1, 2, 3]  # all but 4, whose rating is negative


def test_citation_graphs_come_from_pyg(monkeypatch, tmp_path):
    graph = Data()
    monkeypatch.setattr('pyg_dnx.datasets.loading.Planetoid', lambda root, name: [(root, name, graph)])
    for name in ('Cora', 'CiteSeer', 'PubMed'):
        assert load(name, tmp_path) == (str(tmp_path / 'planetoid'), name, graph)


def test_infection_labels_are_distances(tmp_path):
    data = load('infection', tmp_path)
    assert data.x.shape == (500, 2)
    assert data.x.sum(dim=1).eq(1).all()
    infected = data.x[:, 1] == 1
    assert infected.sum() == 50
    distance = torch.where(infected, 0, 4)
    for step in range(1, 4):
        near = data.edge_index[1, distance[data.edge_index[0]] == step - 1]
        distance[near] = distance[near].clamp(max=step)
    assert data.y.equal(distance)
    assert data.edge_mask.shape == (data.num_edges,)
    check_split(data, 500)
    with pytest.raises(ValueError, match=r"'data' must have known motifs or ratings .*edge_mask"):
        edge_truth(data, 0)


@pytest.mark.parametrize('call', [MotifDataset, lambda name: BitcoinDataset('data', name), load])
def test_unknown_names(call):
    with pytest.raises(ValueError, match=r"'name' must be one of '.*' \(got 'karate'\): choose"):
        call('karate')


@pytest.mark.parametrize(
    ('seed', 'error'), [(-1, ValueError), (2**32, ValueError), (0.5, TypeError), (True, TypeError)]
)
def test_bad_seeds(seed, error, tmp_path):
    for call in (
        lambda: MotifDataset('ba_house', seed=seed),
        lambda: BitcoinDataset(tmp_path, 'bitcoin_otc', seed=seed),
        lambda: load('infection', tmp_path, seed),
    ):
        with pytest.raises(error, match=r"'seed' must be .*got"):
            call()


def test_a_network_needs_a_place():
    with pytest.raises(TypeError, match="'root' must be a folder to download to unless 'folder' is given"):
        BitcoinDataset(None, 'bitcoin_otc')


class MakesFolder:
    r"""Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize('read', [MotifDataset, lambda name, folder: BitcoinDataset(None, name, folder)])
def test_bad_files(read, tmp_path):
    name = 'ba_house' if read is MotifDataset else 'bitcoin_otc'
    with pytest.raises(FileNotFoundError, match=rf"'folder' must hold the published graphs \(got no file .*{name}.npz"):
        read(name, tmp_path)
    path = tmp_path / f'{name}.npz'
    array = {'x': np.ones(3)}
    for write in (
        lambda: path.write_bytes(b''),
        lambda: path.write_bytes(b'PK\x03\x04 not a zip file'),
        lambda: np.savez(path, **array),
        lambda: np.savez(path, **{key: np.array([MakesFolder(tmp_path / 'code ran')]) for key in KEYS}),
        lambda: np.save(path.open('wb'), np.ones(3)),
    ):
        write()
        with pytest.raises(ValueError, match=r"'folder' must hold files with the arrays x, .* damaged or holds"):
            read(name, tmp_path)
    assert not (tmp_path / 'code ran').exists()


def test_a_published_graph_of_another_size(tmp_path):
    write_npz(tmp_path / 'ba_house.npz', MotifDataset('ba_grids')[0])
    with pytest.raises(ValueError, match=r"'folder' must hold the published graph, of 700 nodes \(got 1020 nodes"):
        MotifDataset('ba_house', tmp_path)


@pytest.mark.parametrize(
    'content',
    [gzip.compress(b'1,2\n'), gzip.compress(b'a,b,c,d\n'), gzip.compress(b''), b'1,2,3'],
    ids=['columns', 'letters', 'nothing', 'not gzip'],  # what gzip writes has the time in it
)
@pytest.mark.filterwarnings('ignore:loadtxt')
def test_bad_downloads(content, tmp_path):
    path = tmp_path / 'bitcoin_otc' / 'raw' / 'soc-sign-bitcoinotc.csv.gz'
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"'root' must hold the downloaded ratings \(got .*csv.gz', which is damaged"):
        BitcoinDataset(tmp_path, 'bitcoin_otc')


def test_nodes_without_a_motif():
    data = MotifDataset('ba_house')[0]
    for truth in (node_truth, edge_truth):
        with pytest.raises(ValueError, match=r"'index' must name nodes of motifs.*\(got 2 others, 7 first\)"):
            truth(data, torch.tensor([300, 7, 299]))
        with pytest.raises(IndexError, match="'index' must hold node ids from -700 to 699"):
            truth(data, 700)


@pytest.mark.parametrize('predicted', [torch.ones(4), torch.ones(5, 2), [1, 0, 0, 1, 1]])
def test_bad_predictions(traders, predicted):
    for truth in (node_truth, edge_truth):
        with pytest.raises(ValueError, match=r"'predicted' must hold the class of each of the 5 nodes \(got"):
            truth(traders, 0, predicted)


@needs_published_files
@pytest.mark.parametrize('name', MOTIF_GRAPHS)
def test_published_motif_graphs(name):
    check_motif_graph(name, load(name, DATA))


@needs_published_files
@pytest.mark.parametrize('name', BITCOIN_GRAPHS)
def test_published_networks_follow_from_their_ratings(name, tmp_path):
    published = load(name, DATA)
    path = tmp_path / name / 'raw' / f'soc-sign-{name.replace("_", "")}.csv.gz'
    path.parent.mkdir(parents=True)
    rows = np.column_stack([1000 - published.rating_index.t(), published.rating, published.rating])
    np.savetxt(path, rows, fmt='%d', delimiter=',')
    built = BitcoinDataset(tmp_path, name)[0]
    for key in ('edge_index', 'y', 'rating_index', 'rating', 'x'):
        assert built[key].equal(published[key]), key
    assert [int(built[key].sum()) for key in KEYS[3:]] == [int(published[key].sum()) for key in KEYS[3:]]
