r"""Keeps finished work in a folder, so that it outlives an interruption."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from weakref import WeakSet

import torch
from torch import Tensor

from pyg_dnx import files

WIDTH = 8  # numbers kept of each row, to compare it by
ROWS_AT_A_TIME = 2**16
OWNER_BYTES = 512


class Checkpoint:
    r"""Pieces of a result, each written to a file as soon as it is there; the context of one writer at a time.

    A piece is known by its first place in ``index`` and by the nodes there, and by the request that it belongs to.

    Args:
        folder: The folder, which is created where there is none.
        index: The nodes [B], in whose order the pieces are.
        request: What the pieces answer: numbers, strings, digests, and tensors. Floating-point tensors are compared
            element by element up to rounding; of rows wider than 8, random projections are. A folder of another request
            is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], index: Tensor, request: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self.index = index.cpu()
        self.done = 0
        self._request = {'index': files.digest(self.index), **{name: _kept(value) for name, value in request.items()}}

    def __enter__(self) -> Checkpoint:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._check_folder()
            self._claim = Claim(self.folder / 'claim', 'checkpoint')
        except OSError as error:
            raise self._explained(error) from error
        try:
            for path in self.folder.glob(f'{files.UNFINISHED}*'):  # of a process that has ended
                path.unlink(missing_ok=True)
            self._check_folder()
            self._token = self._open()
        except BaseException:
            self._claim.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._claim.release()

    def join(self) -> None:
        r"""Compares the request with the folder's, without a claim: of several processes that write tables there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_folder()
        self._open()

    def pieces(self) -> list[tuple[Tensor, ...]]:
        r"""The pieces that are there, one after the other."""
        pieces = []
        while self.done < self.index.numel() and (path := self._path(self.done)).exists():
            number, nodes, token, tensors = self._read(path, 'Piece', ('number', 'nodes', 'token', 'tensors'))
            if token != self._token or nodes != [self.done, self._nodes(number)]:
                raise ValueError(
                    f"'checkpoint' must name a folder that only this package writes to (got {str(self.folder)!r}, "
                    f'whose {path.name} is of other nodes or explanations): delete that file, and make the same '
                    f'call again'
                )
            pieces.append(tuple(tensors))
            self.done += number
        return pieces

    def add(self, piece: tuple[Tensor, ...]) -> None:
        r"""Writes one more piece, of as many nodes as its first tensor has rows."""
        number = piece[0].size(0)
        content = {'number': number, 'nodes': [self.done, self._nodes(number)], 'token': self._token}
        self._write(self._path(self.done), 'Piece', {**content, 'tensors': list(piece)})
        self.done += number

    def _path(self, first: int) -> Path:
        return self.folder / f'{first:09d}.pt'

    def _nodes(self, number: int) -> str:
        return files.digest(self.index[self.done : self.done + number])

    def _check_folder(self) -> None:
        names = os.listdir(self.folder)
        is_other = any(name != 'claim' and not name.startswith(files.UNFINISHED) for name in names)
        if is_other and not (self.folder / 'request.pt').exists():  # asked last: another process may just have begun
            raise ValueError(
                f"'checkpoint' must name an empty folder, or one of the same explanations (got {str(self.folder)!r}, "
                f'which holds something else): pass another folder'
            )

    def _open(self) -> str:
        r"""Compares the request with the one in the folder, or writes it there, and returns its token."""
        path = self.folder / 'request.pt'
        if not path.exists():
            token = secrets.token_hex(16)
            self._write(path, 'Request', {'token': token, 'request': self._request})
            return token
        token, known = self._read(path, 'Request', ('token', 'request'))
        names = dict.fromkeys([*self._request, *known])
        others = [n for n in names if not (n in known and n in self._request and _is_close(known[n], self._request[n]))]
        if others:
            raise ValueError(
                f"'checkpoint' must name a folder of the same explanations (got {str(self.folder)!r}, which was "
                f'written for another {", ".join(others)}): pass another folder, or delete this one'
            )
        return str(token)

    def _read(self, path: Path, kind: str, names: tuple[str, ...]) -> Any:
        try:
            return files.read(path, kind, itemgetter(*names))
        except ValueError as error:
            remedy = 'that file, and make the same call again' if kind == 'Piece' else 'the folder, and start anew'
            raise ValueError(
                f"'checkpoint' must name a folder that only this package writes to (got {str(self.folder)!r}, whose "
                f'{path.name} is damaged, or of another version): delete {remedy}'
            ) from error

    def _write(self, path: Path, kind: str, content: dict[str, Any]) -> None:
        try:
            files.write(path, kind, content)
        except OSError as error:
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> OSError:
        if error.errno not in files.NO_ROOM:
            return error
        remedy = f'and make the same call again, which goes on after the {self.done} nodes that are kept'
        return files.no_room(error, 'checkpoint', self.folder, remedy)


def sketch(values: Tensor) -> Tensor:
    r"""Eight sums of the rows of ``values`` [N, C] with random signs, [8, C], to compare all of them by."""
    generator = torch.Generator(device='cpu').manual_seed(0)
    total = torch.zeros(WIDTH, values.size(1), dtype=torch.float64, device='cpu')
    for part in values.detach().split(ROWS_AT_A_TIME):
        signs = torch.randint(2, (WIDTH, len(part)), generator=generator, device='cpu') * 2.0 - 1.0
        total += signs.double() @ part.double().cpu()
    return total


def _kept(value: Any) -> Any:
    r"""What is kept of a value, to compare it by."""
    if not isinstance(value, Tensor):
        return value
    if not value.is_floating_point():
        return files.digest(value)
    kind, value = f'{value.dtype} {list(value.shape)}', value.detach().reshape(len(value), -1)
    if value.size(1) > WIDTH:
        generator = torch.Generator(device='cpu').manual_seed(0)
        mix = torch.randn(value.size(1), WIDTH, generator=generator, dtype=torch.float64, device='cpu')
        value = torch.cat([part.double().cpu() @ mix for part in value.split(ROWS_AT_A_TIME)])
    return kind, value.float().cpu()


def _is_close(old: Any, new: Any) -> bool:
    r"""Whether two of them agree, up to the rounding of another run."""
    if not isinstance(old, tuple) or not isinstance(new, tuple):
        return type(old) is type(new) and bool(old == new)
    if old[0] != new[0]:
        return False
    if old[1].numel() == 0:
        return True
    size = new[1].abs()
    return bool(((old[1] - new[1]).abs() <= 1e-4 * size.amax(dim=1, keepdim=True) + 1e-6 * (1.0 + size.max())).all())


class Claim:
    r"""The right to write to a folder, of one process at a time, which loses it when it ends.

    A claim is a file that is made with its owner's name in it, and that the owner keeps locked. One that is not locked
    is taken over, unless its owner is on another host, whose locks may not be seen here.

    Args:
        path: The file, in the folder.
        name: Of the argument, for errors.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.owner = {'host': socket.gethostname(), 'pid': os.getpid(), 'since': time.strftime('%Y-%m-%d %H:%M:%S')}
        file = None
        while file is None:
            file = self._create() or self._take_over()
        self.file = file
        _claims.add(self)

    def release(self) -> None:
        if not self.file.closed:  # as in a child process
            with suppress(OSError):
                self.path.unlink()
            self.file.close()

    def _create(self) -> IO[bytes] | None:
        unfinished = files.unfinished_name(self.path)
        file = unfinished.open('xb+', buffering=0)
        try:
            _lock(file)
            self._sign(file)
            try:
                files._link(unfinished, self.path)
            except FileExistsError:
                raise
            except FileNotFoundError:  # another process has it now, and has tidied up
                file.close()
                return None
            except OSError:  # a file system without links
                file.close()
                file = self.path.open('xb+', buffering=0)
                if _lock(file) is False:
                    file.close()
                    return None
                self._sign(file)
            return file
        except FileExistsError:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        finally:
            unfinished.unlink(missing_ok=True)

    def _take_over(self) -> IO[bytes] | None:
        try:
            file = self.path.open('rb+', buffering=0)
        except FileNotFoundError:  # released meanwhile
            return None
        try:
            is_locked, owner = _lock(file), self._read(file)
            if is_locked and not _is_at(file, self.path):  # released meanwhile
                file.close()
                return None
            if is_locked and owner.get('host', self.owner['host']) == self.owner['host']:
                self._sign(file)
                return file
            told = 'process {pid} on {host} has been writing since {since}'.format_map(
                {'pid': '?', 'host': '?', **owner}
            )
            hint = '' if is_locked is False else f' (if it has ended, delete {str(self.path)!r} first)'
            raise ValueError(
                f"'{self.name}' must name a folder that no other call writes to (got {str(self.path.parent)!r}, to "
                f'which {told}): make the same call again when that has ended{hint}, or pass another folder'
            )
        except BaseException:
            file.close()
            raise

    def _sign(self, file: IO[bytes]) -> None:
        file.seek(0)
        files._write(file, json.dumps(self.owner).encode().ljust(OWNER_BYTES))  # at once, over another's

    def _read(self, file: IO[bytes]) -> dict[str, Any]:
        file.seek(0)
        with suppress(ValueError):
            owner = json.loads(file.read(OWNER_BYTES))
            if isinstance(owner, dict):
                return owner
        return {}


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


if sys.platform == 'win32':
    import msvcrt

    def _lock(file: IO[bytes]) -> bool | None:
        r"""Locks a file until it is closed, or the process ends; ``None`` where files can't be locked."""
        file.seek(2**30)  # a locked part can't be read
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _lock(file: IO[bytes]) -> bool | None:
        r"""Locks a file until it is closed, or the process ends; ``None`` where files can't be locked."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True


_claims: WeakSet[Claim] = WeakSet()


def _leave_claims() -> None:
    r"""In a new process: they are its parent's, which must lose them when it ends."""
    for claim in list(_claims):
        claim.file.close()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_leave_claims)
