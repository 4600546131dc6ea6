r"""Data sets of whole graphs whose evidence is known: BA-2motif, and molecules."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import ExplainerDataset, TUDataset
from torch_geometric.datasets.graph_generator import BAGraph
from torch_geometric.datasets.motif_generator import CycleMotif, HouseMotif

from pyg_dnx import files, options
from pyg_dnx.datasets.seeding import check_seed, seeded

#: The names of atoms, in the order of their features, by data set.
ATOMS = {
    'MUTAG': ('C', 'N', 'O', 'F', 'I', 'Cl', 'Br'),
    'Mutagenicity': ('C', 'O', 'Cl', 'H', 'N', 'F', 'Br', 'S', 'P', 'I', 'Na', 'K', 'Li', 'Ca'),
}


def ba_2motif(num_graphs: int = 1000, seed: int = 0) -> list[Data]:
    r"""Draws BA-2motif anew: Barabási-Albert trees of 20 nodes with a house (class 0) or a five-node cycle (class 1).

    As in PyG's :class:`~torch_geometric.datasets.BA2MotifDataset`, all features are alike. Nodes and edges of the motif
    are marked in ``node_truth`` [N] and ``edge_truth`` [E].

    Args:
        num_graphs (int): How many graphs to draw, half of them of each class.
        seed (int): What they follow from. The random state of PyTorch is not touched.
    """
    options.count('num_graphs', num_graphs, least=2)
    with seeded(check_seed(seed)):
        drawn = [
            ExplainerDataset(BAGraph(20, 1), motif, num_motifs=1, num_graphs=(num_graphs + 1 - y) // 2)
            for y, motif in enumerate((HouseMotif(), CycleMotif(5)))
        ]
    return [
        Data(
            x=torch.full((graph.num_nodes, 10), 0.1),
            edge_index=graph.edge_index,
            y=torch.tensor([y]),
            node_truth=graph.node_mask > 0,
            edge_truth=graph.edge_mask > 0,
        )
        for y, graphs in enumerate(drawn)
        for graph in graphs
    ]


def molecules(name: str, folder: files.Path = 'data') -> list[Data]:
    r"""Loads MUTAG or Mutagenicity, by PyG's :class:`~torch_geometric.datasets.TUDataset` in ``{folder}/molecules``.

    A node is an atom, one-hot by ``ATOMS[name]`` in ``x``, and ``edge_attr`` is the type of a bond. Where there is a
    file ``{name}_edge_gt.txt`` among the raw ones, with a number for each line of ``{name}_A.txt``, edges where it is
    not 0 are marked in ``edge_truth`` [E], and the atoms that they link in ``node_truth`` [N]. Of Mutagenicity these
    are the groups NO2 and NH2.

    Args:
        name (str): ``'MUTAG'`` or ``'Mutagenicity'``.
        folder: Where downloaded files are, or go.
    """
    options.choice('name', name, tuple(ATOMS))
    dataset = TUDataset(str(Path(folder) / 'molecules'), name)
    graphs, truth = list(dataset), Path(dataset.raw_dir) / f'{name}_edge_gt.txt'
    if not truth.is_file():
        return graphs
    pairs = _read(Path(dataset.raw_dir) / f'{name}_A.txt') - 1
    starts = dataset.slices['x']
    marked = torch.zeros(pairs.size(0), dtype=torch.bool)
    marked[_read(truth).view(-1).nonzero().view(-1)] = True
    size = int(starts[-1])
    known = torch.unique(pairs[marked, 0] * size + pairs[marked, 1])
    for graph, (first, _) in zip(graphs, pairwise(starts.tolist()), strict=True):
        source, target = graph.edge_index + first
        graph.edge_truth = torch.isin(source * size + target, known)
        graph.node_truth = torch.zeros(graph.num_nodes, dtype=torch.bool)
        graph.node_truth[graph.edge_index[:, graph.edge_truth].flatten()] = True
    return graphs


def _read(path: Path) -> Tensor:
    text = path.read_text('utf-8').replace(',', ' ')
    return torch.from_numpy(np.array(text.split(), dtype=np.int64)).view(len(text.splitlines()), -1)
