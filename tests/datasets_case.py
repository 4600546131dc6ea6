r"""What graphs with known explanations have in common, and where the published ones are."""

import os

import numpy as np
import pytest
import torch

KEYS = ('x', 'edge_index', 'y', 'train_mask', 'val_mask', 'test_mask')
DATA = os.environ.get('PYG_DNX_DATA')  # the folder that holds `dnx/*.npz`
needs_published_files = pytest.mark.skipif(DATA is None, reason='PYG_DNX_DATA does not name the published files')


def pairs(data):
    return list(map(tuple, data.edge_index.t().tolist()))


def write_npz(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{key: data[key].numpy() for key in KEYS})


def same(one, other):
    return all(one[key].equal(other[key]) for key in {*one.keys(), *other.keys()})


def check_split(data, num_nodes):
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert masks.sum(dim=0).eq(1).all()
    assert data.train_mask.sum() == num_nodes * 8 // 10
    assert 0 <= int(data.val_mask.sum() - data.test_mask.sum()) <= 1
