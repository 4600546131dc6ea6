r"""Graphs whose neighbours tend to differ (Platonov et al., ICLR 2023), by their first split."""

import os.path as osp

import numpy as np
import torch
from torch_geometric.data import Data, download_url
from torch_geometric.datasets import HeterophilousGraphDataset
from torch_geometric.utils import to_undirected

HETEROPHILOUS = {'chameleon': 'chameleon_filtered', 'texas': 'texas', 'wisconsin': 'wisconsin'}  # their files


def load_heterophilous(name, folder):
    r"""The undirected graph, from a file in the folder 'heterophilous', which is downloaded unless it is there."""
    url = f'{HeterophilousGraphDataset.url}/{HETEROPHILOUS[name]}.npz'
    with np.load(download_url(url, osp.join(folder, 'heterophilous'), log=False), allow_pickle=False) as arrays:
        table = {key: torch.from_numpy(arrays[key]) for key in arrays}
    masks = {f'{kind}_mask': table[f'{kind}_masks'][0] for kind in ('train', 'val', 'test')}
    x = table['node_features']
    return Data(x=x, edge_index=to_undirected(table['edges'].T, num_nodes=len(x)), y=table['node_labels'], **masks)
