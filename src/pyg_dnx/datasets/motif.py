r"""The six synthetic graphs: a base graph with planted motifs, which are what explains the labels of their nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.utils import degree

from pyg_dnx import files, options
from pyg_dnx.datasets.generate import generate
from pyg_dnx.datasets.published import read_graph
from pyg_dnx.datasets.seeding import add_split, check_seed, seeded


class Layout(NamedTuple):
    r"""Where the motifs are: runs of nodes from start to stop, cut into motifs of equal size."""

    num_nodes: int
    runs: tuple[tuple[int, int], ...]
    size: int


LAYOUTS = {
    'ba_house': Layout(700, ((300, 700),), 5),
    'ba_community': Layout(1400, ((300, 700), (1000, 1400)), 5),
    'ba_grids': Layout(1020, ((300, 1020),), 9),
    'tree_cycles': Layout(871, ((511, 871),), 6),
    'tree_grids': Layout(1231, ((511, 1231),), 9),
    'ba_bottle': Layout(700, ((300, 700),), 5),
}
MOTIF_GRAPHS = tuple(LAYOUTS)


def node_motifs(layout: Layout) -> Tensor:
    r"""The motif [N] of each node, counted from 0; -1 for nodes of the base graph."""
    motif = torch.full((layout.num_nodes,), -1, device='cpu')
    first = 0
    for start, stop in layout.runs:
        motif[start:stop] = first + torch.arange(stop - start, device='cpu') // layout.size
        first += (stop - start) // layout.size
    return motif


def add_motifs(data: Data, layout: Layout) -> Data:
    data.node_motif = node_motifs(layout)
    row, col = data.node_motif[data.edge_index]
    data.edge_motif = torch.where(row == col, row, -1)
    return data


def read_published(path: files.Path, layout: Layout) -> Data:
    data = read_graph(path)
    if data.y.numel() != layout.num_nodes:
        raise ValueError(
            f"'folder' must hold the published graph, of {layout.num_nodes} nodes (got {data.y.numel()} nodes in "
            f'{str(path)!r}): copy the published file again'
        )
    return add_motifs(data, layout)


def generate_graph(name: str, seed: int) -> Data:
    with seeded(seed):
        graph = generate(name)
    graph.x = one_hot(degree(graph.edge_index[0], graph.y.numel(), dtype=torch.long)).float()
    return add_split(graph, seed)


class MotifDataset(InMemoryDataset):
    r"""A synthetic graph with planted motifs, from the `"GNNExplainer: Generating Explanations for Graph Neural
    Networks" <https://arxiv.org/abs/1903.03894>`__ paper, or, with bottles, from the `"PGM-Explainer: Probabilistic
    Graphical Model Explanations for Graph Neural Networks" <https://arxiv.org/abs/2010.05788>`__ paper, in the form
    the `"Distill n' Explain: explaining graph neural networks using simple surrogates"
    <https://arxiv.org/abs/2303.10139>`__ paper uses it.

    ``dataset[0]`` has the one-hot degree ``x``, ``edge_index``, ``y``, ``train_mask``, ``val_mask``, ``test_mask``
    (80%, 10% and 10% of the nodes), and the ground truth: ``node_motif`` [N], the motif a node is part of, and
    ``edge_motif`` [E], the motif that both ends of an edge are part of; -1 for all other nodes and edges. An edge
    between two nodes of a motif would count as part of it even if it had been added at random, but there is none: in
    the published graphs as in generated ones, the edges inside a motif are those of its template.

    A generated graph has the nodes, the labels and the motifs of the published one in the same places, and as many
    edges (tree_cycles, where each cycle has a second link to the tree with probability 1/2: about as many). Its base
    graph, extra edges and split are its own.

    Args:
        name: ``'ba_house'``, ``'ba_community'``, ``'ba_grids'``, ``'tree_cycles'``, ``'tree_grids'`` or
            ``'ba_bottle'``.
        folder: Where the published graphs are, in files ``{name}.npz``. If ``None``, a graph like it is generated.
        seed: What a generated graph follows from. The global random state is neither used nor changed.
        transform: A function that takes and returns a :class:`~torch_geometric.data.Data` object, at every access.
    """

    def __init__(
        self,
        name: str,
        folder: files.Path | None = None,
        seed: int = 0,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.name, self.seed = options.choice('name', name, MOTIF_GRAPHS), check_seed(seed)
        super().__init__(root=None, transform=transform)
        layout = LAYOUTS[self.name]
        if folder is None:
            data = add_motifs(generate_graph(self.name, self.seed), layout)
        else:
            data = read_published(Path(folder) / f'{self.name}.npz', layout)
        self.data, self.slices = self.collate([data])

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.name!r})'
