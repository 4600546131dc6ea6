r"""What a model's outputs mean: class probabilities, or regression outputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.explain.config import ModelConfig, ModelMode, ModelReturnType

from pyg_dnx.run import ENTRIES


def to_targets(
    outputs: Tensor | np.ndarray,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    entries: int = ENTRIES,
) -> tuple[Tensor, Tensor]:
    r"""Turns model outputs, [N] or [N, C], into what the surrogate is distilled from and compared with.

    Returns:
        Class probabilities [N, C], C = 2 for binary models, or regression outputs [N, C]; and the target that
        :class:`~torch_geometric.explain.Explainer` derives from the same outputs.
    """
    targets, predicted = [], []
    step = max(1, entries // outputs.shape[1]) if len(outputs.shape) == 2 else outputs.shape[0]
    for first in range(0, outputs.shape[0], step):  # an array on disk is never read as a whole
        part = outputs[first : first + step]
        if not isinstance(part, Tensor):
            part = torch.from_numpy(np.array(part, dtype=part.dtype.newbyteorder('=')))
        part = part.detach().to(device)
        targets.append(_to_targets(part, config).to(dtype))
        predicted.append(_predicted_target(part, config))
    # Several classes in a single column have, in PyG, one target for all nodes.
    return torch.cat(targets), torch.cat(predicted) if predicted[0].dim() > 0 else predicted[0]


def _to_targets(outputs: Tensor, config: ModelConfig) -> Tensor:
    outputs = outputs.double() if outputs.dim() == 2 else outputs.double().view(-1, 1)
    if config.mode == ModelMode.regression:
        return _finite(outputs)
    if config.mode == ModelMode.binary_classification:
        if outputs.size(1) > 2:
            raise ValueError(
                f"'model' must return one or two columns in mode 'binary_classification' (got {outputs.size(1)}): "
                f"use 'multiclass_classification', or wrap the model to return the one label to explain"
            )
        if outputs.size(1) == 1 and config.return_type == ModelReturnType.raw:
            outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
        elif outputs.size(1) == 1:
            outputs = torch.cat([1.0 - outputs, outputs], dim=1)
    if config.return_type == ModelReturnType.raw:
        return _finite(outputs).softmax(dim=1)
    outputs = _finite(outputs.exp() if config.return_type == ModelReturnType.log_probs else outputs)
    total = outputs.sum(dim=1, keepdim=True)
    if bool((outputs < -1e-4).any()) or bool(((total - 1.0).abs() > 1e-2).any()):
        raise ValueError(
            f"'model' must return rows that sum to 1 for return type '{config.return_type.value}' (got values between "
            f'{float(outputs.min()):.4g} and {float(outputs.max()):.4g}, row sums between {float(total.min()):.4g} and '
            f"{float(total.max()):.4g}): set 'return_type' to what the model returns"
        )
    probs = outputs.clamp(min=0.0)
    return probs / probs.sum(dim=1, keepdim=True)


def _predicted_target(outputs: Tensor, config: ModelConfig) -> Tensor:
    if config.mode == ModelMode.regression:
        return outputs
    if config.mode == ModelMode.multiclass_classification:
        return outputs.argmax(dim=-1)
    threshold = 0.0 if config.return_type == ModelReturnType.raw else 0.5
    return (outputs > threshold).long().view(-1)


def _finite(values: Tensor) -> Tensor:
    if not bool(values.isfinite().all()):
        bad = int((~values.isfinite()).any(dim=1).sum())
        raise ValueError(
            f"'model' must return finite outputs (got NaN or infinity at {bad} of {values.size(0)} rows): check its "
            f'weights and inputs'
        )
    return values
