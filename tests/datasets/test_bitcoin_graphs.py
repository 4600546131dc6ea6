r"""Networks of traders: what is made of ratings, what is downloaded or read from files, and the ground truth."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets_case import DATA, KEYS, check_split, needs_published_files, pairs, same, write_npz

from pyg_dnx.datasets import BITCOIN_GRAPHS, BitcoinDataset, edge_truth, load, node_truth
from pyg_dnx.datasets.bitcoin import node_features, node_labels

CSV = '7,1,10,5\n1,9,-3,6.5\n4,1,2,7\n9,1,1,8\n9,7,-10,8\n1,7,4,9\n20,1,-1,9\n4,7,1,9\n'  # ids: 7, 1, 9, 4, 20
RATINGS = [(0, 1, 10), (1, 2, -3), (3, 1, 2), (2, 1, 1), (2, 0, -10), (1, 0, 4), (4, 1, -1), (3, 0, 1)]


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


def test_a_network_needs_a_place():
    with pytest.raises(TypeError, match="'root' must be a folder to download to unless 'folder' is given"):
        BitcoinDataset(None, 'bitcoin_otc')


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


@pytest.mark.parametrize('predicted', [torch.ones(4), torch.ones(5, 2), [1, 0, 0, 1, 1]])
def test_bad_predictions(traders, predicted):
    for truth in (node_truth, edge_truth):
        with pytest.raises(ValueError, match=r"'predicted' must hold the class of each of the 5 nodes \(got"):
            truth(traders, 0, predicted)


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
