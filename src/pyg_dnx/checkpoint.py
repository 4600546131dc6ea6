r"""Keeps finished work in a folder, so that it outlives an interruption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Checkpoint:
    r"""Pieces of a result, each written to a file as soon as it is there.

    Args:
        folder: The folder, which is created where there is none.
        request: What the pieces answer: tensors, numbers and strings. A folder of another request is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], request: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.count = 0
        known = self._read('request')
        if known is None:
            if any(path.suffix != '.tmp' for path in self.folder.iterdir()):
                raise ValueError(
                    f"'checkpoint' must name an empty folder, or one of the same explanations (got {str(folder)!r}, "
                    f'which holds something else): pass another folder'
                )
            self._write('request', request)
        elif not _is_same(known, request):
            raise ValueError(
                f"'checkpoint' must name a folder of the same explanations (got {str(folder)!r}, which was written for "
                f'another model, graph, index or option): pass another folder, or delete this one'
            )

    def pieces(self) -> list[tuple[Tensor, ...]]:
        r"""The pieces that are there."""
        pieces = []
        while (piece := self._read(f'{self.count:06d}')) is not None:
            pieces.append(tuple(piece))
            self.count += 1
        return pieces

    def add(self, piece: tuple[Tensor, ...]) -> None:
        r"""Writes one more piece."""
        self._write(f'{self.count:06d}', list(piece))
        self.count += 1

    def _read(self, name: str) -> Any:
        path = self.folder / f'{name}.pt'
        if not path.exists():
            return None
        try:
            return torch.load(path, map_location='cpu', weights_only=True)
        except Exception as error:  # what a damaged file makes the unpickler raise has no end
            raise ValueError(
                f"'checkpoint' must name a folder that only this package writes to (got {str(self.folder)!r}, whose "
                f'{path.name} is damaged): delete it, and start anew'
            ) from error

    def _write(self, name: str, content: Any) -> None:
        path = self.folder / f'{name}.pt'
        unfinished = path.with_suffix('.tmp')
        torch.save(content, unfinished)
        unfinished.replace(path)  # a file is there in full, or not at all


def _is_same(old: Any, new: dict[str, Any]) -> bool:
    return isinstance(old, dict) and old.keys() == new.keys() and all(_is_close(old[name], new[name]) for name in old)


def _is_close(old: Any, new: Any) -> bool:
    r"""Whether two answers agree, up to the rounding of another run."""
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        return type(old) is type(new) and bool(old == new)
    if old.shape != new.shape or old.dtype != new.dtype:
        return False
    return torch.allclose(old, new.cpu(), rtol=1e-4, atol=1e-6) if old.is_floating_point() else old.equal(new.cpu())
