r"""Files that are written whole or not at all, verified when they are read, and never run as code.

A file of a kind starts with a line, ``pyg_dnx.<kind>/2 <SHA-256>``, and goes on in PyTorch's format. The checksum is of
the line's first word and all that follows the line. Files of format 1 are in PyTorch's format alone, whose archive has
CRC-32s.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from typing import IO, Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

Path = str | PathLike[str]
T = TypeVar('T')
UNFINISHED = '.pyg_dnx-'  # how the names of files begin that are not whole yet
CHUNK = 2**22  # bytes at a time
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, 'EDQUOT', errno.ENOSPC)})


def write(path: Path, kind: str, content: dict[str, Any]) -> None:
    r"""Writes tensors, numbers, strings and containers of these, as a file of a ``kind``."""
    name = f'pyg_dnx.{kind}/2'.encode()
    with replacing(path) as file:
        _write(file, name + b' ' + b'0' * 64 + b'\n')
        hashed = _Hashed(file, name)
        try:
            torch.save(content, cast(IO[bytes], hashed))
        except Exception as error:
            raise hashed.error or error from None  # PyTorch's writer hides why it failed
        file.seek(len(name) + 1)
        _write(file, hashed.sha.hexdigest().encode())


def read(path: Path, kind: str, build: Callable[[dict[str, Any]], T]) -> T:
    r"""Builds an object from a file of this ``kind``, on the CPU."""
    with open(path, 'rb') as file:
        try:
            is_old = _verify(file, kind)
            content = torch.load(file, map_location='cpu', weights_only=True)
            if is_old and content.pop('format') != f'pyg_dnx.{kind}/1':
                raise ValueError('another format')
            return build(content)
        except OSError:
            raise
        except Exception as error:  # what a damaged file makes the unpickler raise has no end
            if is_out_of_memory(error):
                raise MemoryError(
                    f"'path' must name a file that fits into memory (got {str(path)!r} of "
                    f'{os.fstat(file.fileno()).st_size / 2**30:.2f} GB): free some memory, and read it again'
                ) from error
            raise ValueError(
                f"'path' must name a file written by '{kind}.save' (got {str(path)!r}, which is damaged or holds "
                f'something else): save it again'
            ) from error


def is_out_of_memory(error: BaseException) -> bool:
    r"""Whether there was too little memory, as far as PyTorch's words tell."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ('allocate memory', 'enough memory', 'out of memory')
    )


def write_text(path: Path, text: str | Iterable[str]) -> None:
    r"""Writes a text, or its parts one after the other."""
    with replacing(path) as file:
        for part in [text] if isinstance(text, str) else text:
            _write(file, part.encode())


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    r"""A file to write that takes the place of ``path`` when all is written and on the disk; else nothing changes."""
    path = pathlib.Path(os.path.realpath(path))
    unfinished = unfinished_name(path)
    try:
        if path.is_file() or path.is_dir():
            path.open('r+b').close()  # raises an error if it is a folder, or must not be written
        if path.exists() and not path.is_file():  # a pipe or a device
            with path.open('wb') as file:
                yield file
            return
        with unfinished.open('xb') as file:
            yield file
            file.flush()
            _sync(file.fileno())
        with suppress(FileNotFoundError):
            shutil.copymode(path, unfinished)
        _rename(unfinished, path)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise no_room(error, 'path', path, 'or pass another path; what was there is unchanged') from error
        if error.filename == str(unfinished):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    with suppress(OSError, AttributeError):  # not every system can synchronise a folder
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync(folder)
        finally:
            os.close(folder)


def unfinished_name(path: pathlib.Path) -> pathlib.Path:
    r"""A new name in the same folder."""
    return path.with_name(f'{UNFINISHED}{secrets.token_hex(8)}')


def no_room(error: OSError, name: str, path: Path, remedy: str) -> OSError:
    r"""The same error, in a sentence."""
    reason = os.strerror(error.errno or 0)
    return OSError(
        error.errno, f"'{name}' must be where there is room to write (got {str(path)!r}: {reason}): free some, {remedy}"
    )


class _Hashed:
    r"""A file that knows the checksum of what is written to it, and why writing failed."""

    def __init__(self, file: IO[bytes], start: bytes) -> None:
        self.file, self.sha = file, hashlib.sha256(start)
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            count = _write(self.file, data)
        except OSError as error:
            self.error = self.error or error
            raise
        self.sha.update(data)
        return count

    def flush(self) -> None:
        pass


def _verify(file: IO[bytes], kind: str) -> bool:
    r"""Checks all of a file, and leaves it where PyTorch's format starts. Returns whether it is of format 1."""
    name = f'pyg_dnx.{kind}/2'.encode()
    if file.read(8) != b'pyg_dnx.':
        try:
            with zipfile.ZipFile(file) as archive:
                if archive.testzip() is not None:
                    raise ValueError('damaged')
        except OSError as error:
            if error.errno == errno.EINVAL:  # an entry that would be before the start of the file
                raise ValueError('damaged') from error
            raise
        file.seek(0)
        return True
    file.seek(0)
    header, sha = file.read(len(name) + 66), hashlib.sha256(name)
    while chunk := file.read(CHUNK):
        sha.update(chunk)
    if header != name + b' ' + sha.hexdigest().encode() + b'\n':
        raise ValueError('damaged')
    file.seek(len(header))
    return False


def digest(*values: Any) -> str:
    r"""The SHA-256 of tensors, arrays, matrices, numbers, strings and containers of these, which are read in chunks."""
    sha = hashlib.sha256()
    for part in _parts(values):
        sha.update(part)
    return sha.hexdigest()


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor) and value.layout != torch.strided:
        if value.layout == torch.sparse_coo:
            parts: tuple[Tensor, ...] = (value._indices(), value._values())
        elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = value.crow_indices(), value.col_indices(), value.values()
        else:
            parts = value.ccol_indices(), value.row_indices(), value.values()
        yield from _parts((str(value.layout), list(value.shape), *parts))
    elif isinstance(value, (Tensor, np.ndarray)):
        yield f'{str(value.dtype).removeprefix("torch.")} {list(value.shape)};'.encode()
        value = value if isinstance(value, np.ndarray) else value.detach().as_subclass(Tensor)
        value = value.reshape(1) if value.ndim == 0 else value
        step = max(1, CHUNK * len(value) // max(1, value.nbytes))
        for first in range(0, len(value), step):
            part = value[first : first + step]
            if isinstance(part, Tensor):
                part = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
                part = part.cpu().contiguous().flatten().view(torch.uint8).numpy()
            yield part.tobytes()
    elif hasattr(value, 'coo'):  # torch_sparse.SparseTensor
        yield from _parts(('SparseTensor', list(value.sizes()), *value.coo()))
    elif isinstance(value, (list, tuple, dict)):
        yield f'{type(value).__name__} {len(value)};'.encode()
        for item in [*value.keys(), *value.values()] if isinstance(value, dict) else value:
            yield from _parts(item)
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        content = repr(value).encode()
        yield f'{type(value).__name__} {len(content)};'.encode() + content
    else:
        raise TypeError(f'a digest must be of tensors, arrays, numbers, strings or containers of these (got {value!r})')


# The only calls that change a disk.


def _write(file: IO[bytes], data: Any) -> int:
    return file.write(data)


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def _rename(old: pathlib.Path, new: pathlib.Path) -> None:
    os.replace(old, new)


def _link(old: pathlib.Path, new: pathlib.Path) -> None:
    os.link(old, new)
