r"""How much memory there is to work in."""

from __future__ import annotations

import psutil
import torch


def free_memory(device: torch.device) -> int:
    r"""The number of bytes that can still be allocated on ``device``."""
    if device.type == 'cuda':
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def budget(max_memory: int | None, device: torch.device) -> int:
    r"""The number of bytes to work in: ``max_memory``, or half of what is free."""
    return free_memory(device) // 2 if max_memory is None else max_memory
