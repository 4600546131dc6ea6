r"""Graphs with known explanations: each follows from its seed alone, and bad names and files are refused."""

import os
import random

import numpy as np
import pytest
import torch
from datasets_case import KEYS, check_split, same
from torch_geometric.data import Data

from pyg_dnx.datasets import MOTIF_GRAPHS, BitcoinDataset, MotifDataset, edge_truth, load
from pyg_dnx.datasets.seeding import seeded


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
