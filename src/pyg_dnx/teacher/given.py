r"""What the user says that a model returns, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import num_outputs

Given = Tensor | np.ndarray | None


def check_outputs(value: Any, size: int) -> None:
    if not isinstance(value, (Tensor, np.ndarray)):
        raise TypeError(
            f"'teacher_outputs' must be a tensor or a NumPy array (got {type(value).__name__}): pass what the model "
            f'returns for all nodes'
        )
    _check_real('teacher_outputs', value)
    if len(value.shape) not in (1, 2) or value.shape[0] != size or 0 in value.shape:
        raise ValueError(
            f"'teacher_outputs' must have shape [{size}] or [{size}, C], one row a node of 'x' (got "
            f'{list(value.shape)}): pass what the model returns for all nodes'
        )


def _check_real(name: str, value: Tensor | np.ndarray) -> None:
    if isinstance(value, Tensor):
        is_plain = value.layout == torch.strided and not value.is_complex()
    else:
        is_plain = value.dtype.kind in 'biuf'
    if not is_plain:
        raise TypeError(f"'{name}' must hold real numbers, densely (got {value.dtype}): convert them")


def check_probes(name: str, value: Any, unmasked: Given, graph: Graph, num_masks: int) -> None:
    masks = 'probe_masks' if name == 'probe_outputs' else 'probe_edge_masks'
    if not isinstance(value, (Tensor, np.ndarray)):
        raise TypeError(
            f"'{name}' must be a tensor or a NumPy array (got {type(value).__name__}): stack what the model "
            f"returns under each of '{masks}'"
        )
    _check_real(name, value)
    size = num_outputs(graph, 'node')
    if len(value.shape) not in (2, 3) or value.shape[0] < num_masks or value.shape[1] != size or 0 in value.shape:
        raise ValueError(
            f"'{name}' must have shape [{num_masks}, {size}] or [{num_masks}, {size}, C], what the model "
            f"returns under each of '{masks}' (got {list(value.shape)}): ask it under all of them"
        )
    if unmasked is None:
        return
    if tuple(unmasked.shape) != tuple(value.shape[1:]):
        raise ValueError(
            f"'{name}' must have the shape of 'teacher_outputs', {list(unmasked.shape)}, under each mask (got "
            f"{list(value.shape[1:])}): leave out 'teacher_outputs', which are the first of them"
        )
    first, other = (torch.from_numpy(np.array(v)) if isinstance(v, np.ndarray) else v for v in (value[0], unmasked))
    first, other = first.detach().double(), other.detach().to(first.device).double()
    if not torch.allclose(first, other, rtol=1e-2, atol=1e-2 * float(other.abs().max()), equal_nan=True):
        raise ValueError(
            f"'{name}' must begin with 'teacher_outputs' (got values that differ by up to "
            f'{float((first - other).abs().max()):.4g}): leave these out, or take both from one model'
        )
