r"""Several processes that work together, started and ended by a test."""

from __future__ import annotations

import os
import traceback

import torch
from torch.multiprocessing import get_context


def together(task, num_processes, folder, *args):
    r"""What ``task(rank, group, *args)`` returns, or raises, in each process of a group; ``None`` of a killed one."""
    context, number = get_context('fork'), len(list(folder.glob('store-*')))
    store = folder / f'store-{number}'
    processes = [
        context.Process(target=_process, args=(task, rank, num_processes, store, args)) for rank in range(num_processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        process.kill()
    answers = [store.with_name(f'{store.name}.{rank}') for rank in range(num_processes)]
    return [torch.load(path, weights_only=False) if path.exists() else None for path in answers]


def _process(task, rank, num_processes, store, args):
    torch.set_num_threads(1)
    group = None
    if num_processes > 0:
        method = f'file://{store}'
        torch.distributed.init_process_group('gloo', init_method=method, rank=rank, world_size=num_processes)
        group = torch.distributed.group.WORLD
    try:
        answer = task(rank, group, *args)
    except Exception as error:
        if 'TRACES' in os.environ:
            traceback.print_exc()
        answer = error
    torch.save(answer, store.with_name(f'{store.name}.{rank}'))
