r"""How a job runs: memory, how much it does at a time, what it shows of its progress, and on how many processes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import psutil
import torch
from torch import Tensor
from tqdm import tqdm

from pyg_dnx import files
from pyg_dnx.tables import Tables

ENTRIES = 2**20  # numbers at a time: small enough for the processor's cache, large enough for its threads
SMALL = 2**20  # bytes that are taken whatever 'max_memory' is
MOST_PARTS = 4096  # of a table
DIGESTED = 2**24  # bytes at a time
_log = logging.getLogger('pyg_dnx')
_sent: list[Any] = []  # messages that a process which has failed may never take


class LostProcessError(RuntimeError):
    r"""Another process of the group has ended, or has failed."""


@dataclass(frozen=True)
class Run:
    r"""Memory, chunks, progress bars and processes of one job.

    Args:
        max_memory: About how many bytes to work in; ``None`` is half of what is free.
        progress: Whether to show progress bars; ``None`` shows them on a terminal, after a second.
        entries: About how many numbers to hold at a time in what is done chunk by chunk.
        group: The processes that do it together, a process group of ``torch.distributed``.
        tables: The folder of tables that they fill together.
        part: Which part of how many this process does, where there is no group.
        counted: How many bytes were summed, how many sums that took, and how many bytes were written to each table.
    """

    max_memory: int | None = None
    progress: bool | None = False
    entries: int = ENTRIES
    group: Any = None
    tables: Tables | None = None
    part: tuple[int, int] | None = None
    counted: Counter[str] = field(default_factory=Counter, compare=False)

    def free(self, device: torch.device) -> int:
        r"""The number of bytes that can still be allocated on ``device``."""
        if device.type == 'cuda':
            return int(torch.cuda.mem_get_info(device)[0])
        return int(psutil.virtual_memory().available)

    def bytes(self, device: torch.device) -> int:
        r"""The number of bytes to work in."""
        return self.free(device) // 2 if self.max_memory is None else self.max_memory

    def need(self, least: int, what: str) -> None:
        r"""Refuses a ``max_memory`` that is too small for ``what`` takes at least."""
        if self.max_memory is not None and least > max(self.max_memory, SMALL):
            raise ValueError(
                f"'max_memory' must be at least {least:,} bytes for {what} (got {self.max_memory:,}): pass so many, or "
                f'None for half of what is free'
            )

    def bar(self, label: str, unit: str, steps: Iterable[Any] | None = None, **options: Any) -> tqdm[Any]:
        r"""A progress bar over ``steps``, or one to be updated; of several processes, the first has it."""
        hidden, delay = None if self.progress is None else not self.progress, 0 if self.progress else 1
        hidden = True if self.rank > 0 else hidden
        return tqdm(steps, desc=label, unit=f' {unit}', disable=hidden, delay=delay, **options)

    @property
    def rank(self) -> int:
        r"""Which of the processes this is."""
        return 0 if self.group is None else torch.distributed.get_rank(self.group)

    @property
    def size(self) -> int:
        r"""How many processes there are."""
        return 1 if self.group is None else torch.distributed.get_world_size(self.group)

    def share(self, count: int) -> range:
        r"""Which of so many things are this process's; of a single one, the first process's."""
        return range(-(-count * self.rank // self.size), -(-count * (self.rank + 1) // self.size))

    def sum(self, tensor: Tensor) -> Tensor:
        r"""The sum of a tensor over all processes: the same in each, to the last bit."""
        return tensor if self.size == 1 else self._exchanged(tensor)

    def sums(self, *tensors: Tensor) -> list[Tensor]:
        r"""The sums of several tensors, in one message."""
        if self.size == 1:
            return list(tensors)
        every = self.sum(torch.cat([tensor.reshape(-1).double() for tensor in tensors]))
        parts = every.split([tensor.numel() for tensor in tensors])
        return [part.view(like.shape).to(like.dtype) for part, like in zip(parts, tensors, strict=True)]

    def mean(self, values: Tensor, num_rows: int) -> Tensor:
        r"""The mean over all rows, ``num_rows``, of which each process has some as ``values`` [n, ...]."""
        if self.size == 1:
            return values.mean(dim=0)
        return self.sum(values.sum(dim=0)) / num_rows

    def first(self, value: float) -> float:
        r"""What the first process has."""
        return float(self.sum(torch.tensor(value if self.rank == 0 else 0.0, dtype=torch.float64, device='cpu')))

    def cat(self, tensor: Tensor) -> Tensor:
        r"""The tensors [n] of all processes, one after the other; one without numbers may be of any type."""
        if self.size == 1:
            return tensor
        length = torch.zeros(self.size, dtype=torch.float64, device=tensor.device)
        length[self.rank] = tensor.numel()
        length = self.sum(length).long()
        first = int(length[: self.rank].sum())
        every = torch.zeros(int(length.sum()), dtype=torch.float64, device=tensor.device)
        every[first : first + tensor.numel()] = tensor.double()
        return self.sum(every)

    def wait(self) -> None:
        r"""Waits for all processes."""
        self.first(0.0)

    def _exchanged(self, tensor: Tensor) -> Tensor:
        r"""Sends all to the first process, which sends back the sum: so a process that ends is known by its place.

        A message starts with 1, or with minus the place of a process that has failed.
        """
        from torch import distributed

        message = torch.cat([tensor.new_ones(1, dtype=torch.float64), tensor.reshape(-1).double()]).to(self._device)
        self.counted['summed'] += message.nbytes
        self.counted['sums'] += 1
        places = [distributed.get_global_rank(self.group, place) for place in range(self.size)]
        if self.rank > 0:
            found = torch.zeros_like(message)
            try:
                sent: Any = distributed.isend(message, places[0], self.group)
                _sent.append((sent, message))
                distributed.recv(found, places[0], self.group)  # which may be that the first process has failed
                if found[0] > 0.0:
                    sent.wait()
                    _sent.pop()
            except RuntimeError as error:
                raise self._lost(0) from error
            message = found
        else:
            lost = []
            for place in range(1, self.size):
                part = torch.zeros_like(message)
                with suppress(RuntimeError):
                    distributed.recv(part, places[place], self.group)
                    message += part
                if part[0] <= 0.0:
                    lost.append(place)
            message[0] = -lost[0] if lost else 1
            for place in range(1, self.size):
                with suppress(RuntimeError):
                    _sent.append((distributed.isend(message, places[place], self.group), message))
                    if place not in lost:
                        _sent.pop()[0].wait()
        if message[0] <= 0.0:
            raise self._lost(-int(message[0]))
        return message[1:].view(tensor.shape).to(tensor.dtype).to(tensor.device)

    def _lost(self, place: int) -> LostProcessError:
        return LostProcessError(
            f'process {place} of {self.size} has ended or failed, as process {self.rank} found (see the messages of '
            f'process {place}): make the same call again, with any number of processes, which goes on from what is kept'
        )

    @contextmanager
    def together(self) -> Iterator[None]:
        r"""Tells the other processes if this one fails."""
        try:
            yield
        except LostProcessError:
            raise
        except BaseException:
            if self.size > 1:
                self._tell()
            raise

    def _tell(self) -> None:
        from torch import distributed

        message = torch.full((1,), -float(self.rank), dtype=torch.float64, device=self._device)
        _log.error('process %d of %d has failed', self.rank, self.size)
        for place in range(1, self.size) if self.rank == 0 else [0]:
            with suppress(RuntimeError):
                place = distributed.get_global_rank(self.group, place)
                _sent.append((distributed.isend(message, place, self.group), message))

    @property
    def _device(self) -> str:
        r"""Where messages of this group are."""
        return 'cuda' if torch.distributed.get_backend(self.group) == 'nccl' else 'cpu'

    def rows(
        self, name: str, num_rows: int, make: Callable[[slice], Sequence[Tensor]], width: int = 1
    ) -> Sequence[Tensor]:
        r"""Tensors with a row for each of so many things, made from all of them at once, or in parts in files.

        Args:
            name: Of the tables.
            num_rows: The number of rows.
            make: Makes some of the rows.
            width: About how many numbers a row has.
        """
        if self.tables is None:
            return make(slice(0, num_rows))
        return self.fill(name, parts_of(num_rows, self.entries // width), make)

    def fill(
        self, name: str, parts: Sequence[slice], make: Callable[[slice], Sequence[Tensor]], label: str = 'Filling'
    ) -> Sequence[Tensor]:
        r"""The tables that ``parts`` make, those of which this process has a share, and the others by the others."""
        for number in self.bar(label, 'parts', self.share(len(parts))):
            self.make(name, number, parts, make)
        self.wait()
        return self.folder.read(name, parts[-1].stop)

    def each(
        self, name: str, count: int, num_rows: int, make: Callable[[slice], Sequence[Tensor]]
    ) -> list[Sequence[Tensor]]:
        r"""So many tables, each made as a whole by one process."""
        for number in self.bar('Propagating', 'blocks', self.share(count)):
            self.make(f'{name}-{number}', 0, [slice(0, num_rows)], partial(_one, make, number))
        self.wait()
        return [self.folder.read(f'{name}-{number}', num_rows) for number in range(count)]

    def tasks(
        self, name: str, parts: Sequence[slice], make: Callable[[slice], Sequence[Tensor]]
    ) -> tuple[list[Tensor], slice]:
        r"""The same, of parts that any process can make, one at a time: its share first, and then what is left.

        It needs no group. Returned are the tables, and which rows are asked for: all, or this process's.
        """
        count, order = len(parts), [*self.share(len(parts))]
        if self.part is None:
            order += [number for number in range(count) if number not in order]
        else:
            k, n = self.part
            order = [*range(count * k // n, max(count * (k + 1) // n, count * k // n + 1))]
        with self.bar('Explaining', 'parts', total=len(order)) as bar:
            for number in order:
                claim = None if self.folder.is_done(name, number) else self.folder.claim(name, number)
                if claim is not None:
                    try:
                        self.make(name, number, parts, make)
                    finally:
                        claim.release()
                bar.update()
        self.wait()
        missing = [number for number in order if not self.folder.is_done(name, number)]
        if missing:
            raise RuntimeError(
                f"'checkpoint' must name a folder to which no process of another call still writes (got "
                f'{str(self.folder.path)!r}, where {len(missing)} of {count} parts are claimed by others): make the '
                f"same call again when they have ended; if they have died on another host, delete the files '*.claim'"
            )
        return self.folder.read(name, parts[-1].stop), slice(parts[min(order)].start, parts[max(order)].stop)

    def digest(self, *values: Any) -> str:
        r"""A digest of tensors, of which each process reads a part, and of other values."""
        pieces, about = [], []
        for value in values:
            if isinstance(value, Tensor) and value.layout == torch.sparse_csr:
                found: tuple[Any, ...] = value.crow_indices(), value.col_indices(), value.values()
            else:
                found = (value,)
            for tensor in found:
                shape = getattr(tensor, 'shape', ())
                if not shape or getattr(tensor, 'layout', torch.strided) != torch.strided:
                    about.append(files.digest(tensor))
                    continue
                about.append(f'{tensor.dtype} {list(shape)}')
                step = max(1, DIGESTED // max(1, tensor.nbytes // len(tensor)))
                pieces += [(tensor, first, first + step) for first in range(0, len(tensor), step)]
        every = torch.zeros(len(pieces), 32, dtype=torch.float64, device='cpu')
        for number in self.share(len(pieces)):
            tensor, first, last = pieces[number]
            every[number] = torch.tensor(list(bytes.fromhex(files.digest(tensor[first:last]))), device='cpu')
        return files.digest(about, self.sum(every))

    def make(self, name: str, number: int, parts: Sequence[slice], make: Callable[[slice], Sequence[Tensor]]) -> None:
        r"""Makes a part, unless it is there."""
        if self.folder.is_done(name, number):
            return
        made = [tensor.cpu() for tensor in make(parts[number])]
        self.counted[name.partition('-')[0]] += sum(tensor.nbytes for tensor in made)
        self.folder.write(name, number, parts[number], parts[-1].stop, made)
        _log.info('process %d of %d: %s, part %d of %d', self.rank, self.size, name, number, len(parts))

    def within(self, name: str) -> Run:
        r"""The same with the tables of a folder in the folder."""
        return replace(self, tables=Tables(self.folder.path / name))

    @property
    def folder(self) -> Tables:
        if self.tables is None:
            raise ValueError("'checkpoint' must name a folder that all processes share (got None): pass one")
        return self.tables


def _one(make: Callable[[slice], Sequence[Tensor]], number: int, _: slice) -> Sequence[Tensor]:
    return make(slice(number, number + 1))


def parts_of(num_rows: int, at_a_time: int) -> list[slice]:
    r"""Cuts rows into parts, by their number alone."""
    step = max(1, at_a_time, -(-num_rows // MOST_PARTS))
    return [slice(first, min(first + step, num_rows)) for first in range(0, num_rows, step)]


DEFAULT = Run()
