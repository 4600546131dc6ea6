r"""Writes edges that are larger than memory as a sparse matrix in files, to be mapped.

python -m pyg_dnx.edges edge_index.npy folder --num-nodes 1000000
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from os import PathLike, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

BYTES_PER_ENTRY = 64  # while entries are sorted
FILES = ('rowptr', 'col', 'value')


def edges_to_csr(
    edge_index: Tensor | np.ndarray,
    folder: str | PathLike[str],
    num_nodes: int,
    edge_weight: Tensor | np.ndarray | None = None,
    max_memory: int = 2**30,
) -> Tensor:
    r"""Writes the adjacency matrix, targets in rows, to a folder, and returns it mapped, as :func:`load_csr` does.

    Edges are dealt out to files of ranges of rows, each of which is sorted by itself: in ``max_memory``, about, and 16
    bytes a node. Parallel edges become one entry, whose weights are summed.

    Args:
        edge_index (Tensor or numpy.ndarray): The edges [2, E], memory-mapped for instance.
        folder (path): Where ``rowptr.npy``, ``col.npy`` and ``value.npy`` are written.
        num_nodes (int): The number of nodes N.
        edge_weight (Tensor or numpy.ndarray, optional): The weights [E]; 1 by default.
        max_memory (int): About how many bytes to work in. (default: ``2**30``)
    """
    if len(edge_index.shape) != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"'edge_index' must have shape [2, E] (got {list(edge_index.shape)}): transpose it, say")
    at_a_time = max(1, max_memory // BYTES_PER_ENTRY)
    length = np.zeros(num_nodes, dtype=np.int64)
    for source, target, _ in _chunks(edge_index, edge_weight, at_a_time):
        low, high = min(source.min(), target.min()), max(source.max(), target.max())
        if low < 0 or high >= num_nodes:
            raise IndexError(
                f"'edge_index' must hold node ids from 0 to {num_nodes - 1} (got ids from {low} to {high}): pass the "
                f"number of all nodes as 'num_nodes'"
            )
        length += np.bincount(target, minlength=num_nodes)
    ends = np.cumsum(length)
    place = (ends - length) // at_a_time  # the file of each row
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        kind = np.dtype([('row', np.int64), ('col', np.int64), ('value', np.float32)])
        for source, target, weight in _chunks(edge_index, edge_weight, at_a_time):
            entries = np.empty(len(source), dtype=kind)
            entries['row'], entries['col'], entries['value'] = target, source, weight
            where = place[target]
            order = np.argsort(where, kind='stable')
            numbers, first = np.unique(where[order], return_index=True)
            for number, part in zip(numbers, np.split(entries[order], first[1:]), strict=True):
                with open(Path(work) / f'{number}', 'ab') as file:
                    part.tofile(file)
        paths = [Path(work) / f'{number}' for number in np.unique(place) if (Path(work) / f'{number}').exists()]
        for path in paths:
            length -= _merge(path, kind, num_nodes)
        _write(Path(work), paths, kind, length)
        for name in FILES:
            replace(Path(work) / f'{name}.npy', Path(folder) / f'{name}.npy')
    return load_csr(folder)


def load_csr(folder: str | PathLike[str]) -> Tensor:
    r"""The matrix that :func:`edges_to_csr` wrote, a ``torch.sparse_csr`` tensor of mapped files."""
    rowptr, col, value = (torch.from_numpy(np.load(Path(folder) / f'{name}.npy', mmap_mode='c')) for name in FILES)
    size = rowptr.numel() - 1
    return torch.sparse_csr_tensor(rowptr, col, value, (size, size), check_invariants=False)


def _chunks(edge_index: Any, edge_weight: Any, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
    for first in range(0, edge_index.shape[1], size):
        part = slice(first, first + size)
        source, target = (np.asarray(edge_index[end, part]).astype(np.int64) for end in (0, 1))
        yield source, target, 1.0 if edge_weight is None else np.asarray(edge_weight[part])


def _merge(path: Path, kind: np.dtype[Any], num_nodes: int) -> np.ndarray:
    r"""Sorts the entries of some rows in a file, and sums those in one place; returns how many fewer each row has."""
    entries = np.fromfile(path, dtype=kind)
    entries = entries[np.lexsort((entries['col'], entries['row']))]
    is_first = np.ones(len(entries), dtype=bool)
    is_first[1:] = (np.diff(entries['row']) != 0) | (np.diff(entries['col']) != 0)
    kept = entries[is_first]
    kept['value'] = np.add.reduceat(entries['value'], is_first.nonzero()[0])
    kept.tofile(path)
    return np.bincount(entries['row'][~is_first], minlength=num_nodes)


def _write(work: Path, paths: Sequence[Path], kind: np.dtype[Any], length: np.ndarray) -> None:
    size = int(length.sum())
    index = np.int32 if max(size, len(length)) < 2**31 else np.int64  # one type for both
    rowptr = np.lib.format.open_memmap(work / 'rowptr.npy', 'w+', index, (len(length) + 1,))
    rowptr[0], rowptr[1:] = 0, np.cumsum(length)
    col, value = (
        np.lib.format.open_memmap(work / f'{name}.npy', 'w+', dtype, (size,))
        for name, dtype in (('col', index), ('value', np.float32))
    )
    first = 0
    for path in paths:
        entries = np.fromfile(path, dtype=kind)
        col[first : first + len(entries)], value[first : first + len(entries)] = entries['col'], entries['value']
        first += len(entries)
        path.unlink()
    for array in (rowptr, col, value):
        array.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('edge_index', help='a .npy file of shape [2, E]')
    parser.add_argument('folder', help='where the matrix is written')
    parser.add_argument('--num-nodes', type=int, required=True)
    parser.add_argument('--edge-weight', help='a .npy file of shape [E]')
    parser.add_argument('--max-memory', type=int, default=2**30, help='about how many bytes to work in')
    args = parser.parse_args()
    weight = None if args.edge_weight is None else np.load(args.edge_weight, mmap_mode='r')
    edge_index = np.load(args.edge_index, mmap_mode='r')
    found = edges_to_csr(edge_index, args.folder, args.num_nodes, weight, args.max_memory)
    print(f'{args.folder}: {found.size(0):,} nodes, {found.values().numel():,} entries')


if __name__ == '__main__':
    main()
