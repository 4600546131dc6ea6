r"""Random draws that follow from a seed, and leave the user's own random state as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data


def check_seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"'seed' must be an int (got {value!r}): pass a whole number from 0 on")
    if not 0 <= int(value) < 2**32:
        raise ValueError(f"'seed' must be from 0 to 2**32 - 1 (got {value}): pass another one")
    return int(value)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    r"""Seeds the global generators that PyG's graph generators draw from, and puts their states back afterwards."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed the GPUs, too
        with torch.device('cpu'):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


def add_split(data: Data, seed: int) -> Data:
    r"""Adds random masks of 80% of the nodes to train on, 10% to validate and 10% to test."""
    num_nodes = data.y.numel()
    num_train = num_nodes * 8 // 10
    num_test = (num_nodes - num_train) // 2
    place = torch.randperm(num_nodes, generator=torch.Generator('cpu').manual_seed(seed), device='cpu')
    train, test = place < num_train, place >= num_nodes - num_test
    data.train_mask, data.val_mask, data.test_mask = train, ~(train | test), test
    return data
