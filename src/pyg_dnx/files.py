r"""Files that are read without running any code in them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from os import PathLike
from typing import Any, TypeVar

import torch

Path = str | PathLike[str]
T = TypeVar('T')


def write(path: Path, kind: str, content: dict[str, Any]) -> None:
    r"""Writes tensors, numbers, strings and containers of these, as a file of a ``kind``."""
    torch.save({'format': f'pyg_dnx.{kind}/1', **content}, path)


def read(path: Path, kind: str, build: Callable[[dict[str, Any]], T]) -> T:
    r"""Builds an object from a file of this ``kind``, on the CPU."""
    try:
        content = torch.load(path, map_location='cpu', weights_only=True)
        if content.pop('format') != f'pyg_dnx.{kind}/1':
            raise ValueError('another format')
        return build(content)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # what a damaged file makes the unpickler raise has no end
        raise ValueError(
            f"'path' must name a file written by '{kind}.save' (got {str(path)!r}, which is damaged or holds something "
            f'else): save it again'
        ) from error


def write_text(path: pathlib.Path, text: str) -> None:
    r"""Writes a text, so that the file is there in full, or not at all."""
    unfinished = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        unfinished.write_text(text, encoding='utf-8', newline='\n')
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
