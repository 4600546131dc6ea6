r"""Tables in a folder, each a file of numbers, that several processes fill in parts and read mapped."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_dnx import files
from pyg_dnx.checkpoint import Claim


class Tables:
    r"""The tables of one folder, which processes on other machines may share.

    A part is written to its place, and then a file says that it is there: what a process had not finished when it ended
    is written again. Two processes may write the same part, as they write the same.

    Args:
        folder: The folder, which is created where there is none.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder)

    def is_done(self, name: str, number: int) -> bool:
        return self.mark(name, number).exists()

    def mark(self, name: str, number: int) -> Path:
        r"""The file that says that a part is there, and what tables it has rows of."""
        return self.path / f'{name}.{number}.json'

    def write(self, name: str, number: int, rows: slice, num_rows: int, tensors: Sequence[Tensor]) -> None:
        r"""Writes some rows of each table, [n, ...], of ``num_rows`` in all."""
        about = []
        self.path.mkdir(parents=True, exist_ok=True)
        for place, tensor in enumerate(tensors):
            content, size = tensor.detach().contiguous(), max(1, tensor[:1].nbytes)
            with open(self._path(name, place), 'ab') as file:
                file.truncate(num_rows * size)
            with open(self._path(name, place), 'r+b') as file:
                file.seek(rows.start * size)
                file.write(content.flatten().view(torch.uint8).numpy().data)
                file.flush()
                os.fsync(file.fileno())
            about.append({'dtype': str(tensor.dtype).removeprefix('torch.'), 'shape': list(tensor.shape[1:])})
        files.write_text(self.mark(name, number), json.dumps(about))

    def read(self, name: str, num_rows: int) -> list[Tensor]:
        r"""All of the tables, mapped: what is changed in memory is not changed in the files."""
        about: list[dict[str, Any]] = json.loads(next(self.path.glob(f'{name}.*.json')).read_text())
        found = []
        for place, kind in enumerate(about):
            shape, dtype = [num_rows, *kind['shape']], getattr(torch, kind['dtype'])
            size, path = torch.Size(shape).numel(), self._path(name, place)
            if not path.exists() or path.stat().st_size != size * dtype.itemsize:
                raise ValueError(
                    f"'checkpoint' must name a folder that only this package writes to (got {str(self.path)!r}, "
                    f'whose {path.name} is missing or cut): delete the folder, and start anew'
                )
            flat = torch.from_file(str(path), shared=False, size=size, dtype=dtype, device='cpu')
            found.append(flat.view(shape))
        return found

    def claim(self, name: str, number: int) -> Claim | None:
        r"""The right to make a part; ``None`` if another process has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            return Claim(self.path / f'{name}.{number}.claim', 'checkpoint')
        except ValueError:
            return None

    def remove(self, name: str) -> None:
        r"""Removes tables that are needed no longer; where they are mapped, they are there until that ends."""
        for path in [*self.path.glob(f'{name}.*.json'), *self.path.glob(f'{name}.*.table')]:
            path.unlink(missing_ok=True)

    def _path(self, name: str, place: int) -> Path:
        return self.path / f'{name}.{place}.table'
