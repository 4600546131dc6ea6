r"""How a job runs: how much memory it may take, how much it does at a time, and what it shows of its progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from tqdm import tqdm

ENTRIES = 2**20  # numbers at a time: small enough for the processor's cache, large enough for its threads


@dataclass(frozen=True)
class Run:
    r"""Memory, chunks and progress bars of one job.

    Args:
        max_memory: About how many bytes to work in; ``None`` is half of what is free.
        progress: Whether to show progress bars; ``None`` shows them on a terminal, after a second.
        entries: About how many numbers to hold at a time in what is done chunk by chunk.
    """

    max_memory: int | None = None
    progress: bool | None = False
    entries: int = ENTRIES

    def free(self, device: torch.device) -> int:
        r"""The number of bytes that can still be allocated on ``device``."""
        if device.type == 'cuda':
            return int(torch.cuda.mem_get_info(device)[0])
        return int(psutil.virtual_memory().available)

    def bytes(self, device: torch.device) -> int:
        r"""The number of bytes to work in."""
        return self.free(device) // 2 if self.max_memory is None else self.max_memory

    def bar(self, label: str, unit: str, steps: Iterable[Any] | None = None, **options: Any) -> tqdm[Any]:
        r"""A progress bar over ``steps``, or one to be updated."""
        hidden, delay = None if self.progress is None else not self.progress, 0 if self.progress else 1
        return tqdm(steps, desc=label, unit=f' {unit}', disable=hidden, delay=delay, **options)


DEFAULT = Run()
