r"""Graphs as the authors of the method published them, one ``.npz`` file each."""

from __future__ import annotations

import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_dnx import files

GRAPH_KEYS = ('x', 'edge_index', 'y', 'train_mask', 'val_mask', 'test_mask')


def read_arrays(path: files.Path, keys: tuple[str, ...]) -> dict[str, Tensor]:
    r"""Reads the arrays ``keys`` of a ``.npz`` file, without running any code in it."""
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"'folder' must hold the published graphs (got no file {str(path)!r}): leave it out to generate or "
            f'download the graph'
        )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {key: torch.from_numpy(arrays[key]) for key in keys}
    except (KeyError, ValueError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(
            f"'folder' must hold files with the arrays {', '.join(keys)} (got {str(path)!r}, which is damaged or holds "
            f'something else): copy the published file again'
        ) from error


def read_graph(path: files.Path) -> Data:
    return Data(**read_arrays(path, GRAPH_KEYS))
