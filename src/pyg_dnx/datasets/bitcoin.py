r"""The two trust networks: who rated whom on a Bitcoin trading platform."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset, download_url
from torch_geometric.utils import remove_self_loops, to_undirected

from pyg_dnx import files, options
from pyg_dnx.datasets.published import read_arrays, read_graph
from pyg_dnx.datasets.seeding import add_split, check_seed

BITCOIN_GRAPHS = ('bitcoin_alpha', 'bitcoin_otc')


def read_published(folder: files.Path, name: str) -> Data:
    data = read_graph(Path(folder) / f'{name}.npz')
    ratings = read_arrays(Path(folder) / f'{name}_ratings.npz', ('source', 'target', 'rating'))
    data.rating_index, data.rating = torch.stack([ratings['source'], ratings['target']]), ratings['rating']
    return data


def read_ratings(path: files.Path) -> tuple[Tensor, Tensor]:
    r"""Reads ``rating_index`` [2, R] and ``rating`` [R] from rows of source, target, rating and time.

    Nodes are numbered in the order in which the file first names them, in a row the source before the target.
    """
    try:
        rows = np.loadtxt(path, delimiter=',', usecols=(0, 1, 2), dtype=np.int64, ndmin=2)
        if rows.size == 0:
            raise ValueError('no rows')
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"'root' must hold the downloaded ratings (got {str(path)!r}, which is damaged or holds something else): "
            f'delete that file, and it is downloaded again'
        ) from error
    _, first, node = np.unique(rows[:, :2], return_index=True, return_inverse=True)
    number = first.argsort().argsort()[node.reshape(-1, 2)]
    return torch.from_numpy(number).t().contiguous(), torch.from_numpy(rows[:, 2].copy())


def node_features(rating_index: Tensor, rating: Tensor, num_nodes: int) -> Tensor:
    r"""The 8 features [N, 8] of each node, from the ratings it gave; see :class:`BitcoinDataset`."""
    source, target = rating_index
    given, received = (torch.bincount(nodes, minlength=num_nodes).double() for nodes in (source, target))
    trust, distrust = (
        torch.bincount(source, weights=part.double() / 10, minlength=num_nodes)
        for part in (rating.clamp(min=0), -rating.clamp(max=0))
    )
    share = trust / (trust + distrust).clamp(min=0.1)
    trust, distrust = trust / given.clamp(min=1), distrust / given.clamp(min=1)
    columns = [trust, distrust, share, trust - distrust]
    for count in (received, given):
        columns += [trust * count / count.max(), distrust * count / count.max()]
    return (torch.stack(columns, dim=1) / 1.01 + 0.001).float()


def node_labels(rating_index: Tensor, rating: Tensor, num_nodes: int) -> Tensor:
    r"""The class [N] of each node, from the ratings it received; see :class:`BitcoinDataset`."""
    received = torch.bincount(rating_index[1], minlength=num_nodes)
    positive = torch.bincount(rating_index[1, rating > 0], minlength=num_nodes)
    return ((received >= 3) & (20 * positive > 13 * received)).long()


class BitcoinDataset(InMemoryDataset):
    r"""A trust network of Bitcoin traders, Bitcoin-Alpha or Bitcoin-OTC, from the `"Edge Weight Prediction in Weighted
    Signed Networks" <https://doi.org/10.1109/ICDM.2016.0033>`__ paper, in the form the `"Distill n' Explain:
    explaining graph neural networks using simple surrogates" <https://arxiv.org/abs/2303.10139>`__ paper uses it.

    ``dataset[0]`` has ``x``, the undirected ``edge_index`` of who rated or was rated by whom, ``y``, ``train_mask``,
    ``val_mask``, ``test_mask`` (80%, 10% and 10% of the nodes), and the ratings themselves: ``rating_index`` [2, R],
    from who rated to who was rated, and ``rating`` [R], from -10 to 10.

    A downloaded network has the nodes, edges, features and labels of the published one. Only the split is another one.
    The rules for features and labels were recovered from the published files, which they reproduce exactly:

    * A node is of class 1 (trusted) if it received at least 3 ratings, and more than 65% of them are positive; of
      class 0 otherwise.
    * The features come from the ratings a node gave. With the sums :math:`p` of its positive ones and :math:`n` of its
      negative ones without their sign, both over 10, with the number :math:`g` of ratings given and :math:`r`
      received, and with :math:`p' = p / g` and :math:`n' = n / g`, they are

      .. math::
        p',\; n',\; \frac{p}{p + n},\; p' - n',\; \frac{p' r}{\max r},\; \frac{n' r}{\max r},\;
        \frac{p' g}{\max g},\; \frac{n' g}{\max g},

      each divided by 1.01, plus 0.001, with a quotient of zeros being 0.

    Args:
        root: Where to download to: the network is kept in ``{root}/{name}``. Not used if ``folder`` is given.
        name: ``'bitcoin_alpha'`` or ``'bitcoin_otc'``.
        folder: Where the published networks are, in files ``{name}.npz`` and ``{name}_ratings.npz``. If ``None``,
            the network is downloaded.
        seed: What the split of a downloaded network follows from.
        transform: A function that takes and returns a :class:`~torch_geometric.data.Data` object, at every access.
        pre_transform: The same, applied once before a downloaded network is stored.
        force_reload: Whether to process a downloaded network again.
    """

    url = 'https://snap.stanford.edu/data'

    def __init__(
        self,
        root: files.Path | None,
        name: str,
        folder: files.Path | None = None,
        seed: int = 0,
        transform: Callable[[Any], Any] | None = None,
        pre_transform: Callable[[Any], Any] | None = None,
        force_reload: bool = False,
    ) -> None:
        self.name, self.seed = options.choice('name', name, BITCOIN_GRAPHS), check_seed(seed)
        self.is_published = folder is not None
        if root is None and folder is None:
            raise TypeError("'root' must be a folder to download to unless 'folder' is given (got None): pass one")
        path = None if root is None else fspath(root)
        super().__init__(path, transform, pre_transform, force_reload=force_reload)
        if folder is None:
            with torch.serialization.safe_globals([Data]):  # which PyG 2.5 does not tell torch by itself
                self.load(self.processed_paths[0])
        else:
            self.data, self.slices = self.collate([read_published(folder, self.name)])

    @property
    def has_download(self) -> bool:
        return not self.is_published

    @property
    def has_process(self) -> bool:
        return not self.is_published

    @property
    def raw_dir(self) -> str:
        return str(Path(self.root) / self.name / 'raw')

    @property
    def processed_dir(self) -> str:
        return str(Path(self.root) / self.name / 'processed')

    @property
    def raw_file_names(self) -> str:
        return f'soc-sign-{self.name.replace("_", "")}.csv.gz'

    @property
    def processed_file_names(self) -> str:
        return f'data_{self.seed}.pt'

    def download(self) -> None:
        download_url(f'{self.url}/{self.raw_file_names}', self.raw_dir)

    def process(self) -> None:
        rating_index, rating = read_ratings(self.raw_paths[0])
        num_nodes = int(rating_index.max()) + 1
        data = Data(
            x=node_features(rating_index, rating, num_nodes),
            edge_index=to_undirected(remove_self_loops(rating_index)[0], num_nodes=num_nodes),
            y=node_labels(rating_index, rating, num_nodes),
            rating_index=rating_index,
            rating=rating,
        )
        data = add_split(data, self.seed)
        self.save([data if self.pre_transform is None else self.pre_transform(data)], self.processed_paths[0])

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.name!r})'
