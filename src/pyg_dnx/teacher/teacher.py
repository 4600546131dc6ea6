r"""What is asked of the user's model: its outputs, and how far it looks.

The model is only ever called, as ``model(x, edge_index, **kwargs)``, and is left exactly as it was found.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric import nn
from torch_geometric.explain.algorithm.utils import set_masks
from torch_geometric.explain.config import ModelConfig, ModelMode, ModelReturnType
from torch_geometric.nn import MessagePassing

# Layers that do not reach one hop, and how far they do. Names, since not every PyG release has all of them.
_HOPS: dict[str, Callable[[Any], int | None]] = {
    'SGConv': lambda layer: layer.K,
    'SSGConv': lambda layer: layer.K,
    'APPNP': lambda layer: layer.K,
    'TAGConv': lambda layer: layer.K,
    'ChebConv': lambda layer: len(layer.lins) - 1,
    'MixHopConv': lambda layer: max(layer.powers),
    'ARMAConv': lambda layer: layer.num_layers,
    'GatedGraphConv': lambda layer: layer.num_layers,
    'PANConv': lambda layer: layer.filter_size,
    'AntiSymmetricConv': lambda layer: layer.num_iters * (receptive_field(layer.phi) or 0),
    'DirGNNConv': lambda layer: receptive_field(layer.conv_in),
    'HypergraphConv': lambda layer: 2,
    'LabelPropagation': lambda layer: layer.num_layers,
    'PMLP': lambda layer: layer.num_layers,
}
ROWS_AT_A_TIME = 2**18
_asking = WeakIdKeyDictionary()  # the lock of each model: what one thread puts back, another must not have seen changed
_asking_lock = threading.Lock()
_restoring: dict[object, tuple[int, Callable[[], None]]] = {}  # how to put back what threads have changed, and which
_LAYERS = [(getattr(nn, name), hops) for name, hops in _HOPS.items() if hasattr(nn, name)]


def query(model: torch.nn.Module, x: Tensor, edge_index: Any, kwargs: dict[str, Any]) -> Tensor:
    r"""Evaluates the model once, without gradients and in evaluation mode, and checks the shape of what it returns."""
    devices = [x.device] if x.device.type == 'cuda' else []
    with _lock_of(model), _evaluation_mode(model), torch.random.fork_rng(devices), torch.no_grad():
        outputs = model(x, edge_index, **kwargs)
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"'model' must return one tensor of node outputs (got {type(outputs).__name__}): wrap it in a module "
            f'that returns only the output to explain'
        )
    if outputs.dim() not in (1, 2) or outputs.size(0) != x.size(0):
        raise ValueError(
            f"'model' must return outputs of shape [{x.size(0)}] or [{x.size(0)}, C], one row a node of 'x' (got "
            f'{list(outputs.shape)}): use a node-level model'
        )
    return outputs.detach()


def masked_query(
    model: torch.nn.Module,
    x: Tensor,
    edge_index: Any,
    kwargs: dict[str, Any],
    node_mask: Tensor | None,
    edge_mask: Tensor | None,
) -> Tensor:
    r"""Evaluates the model once under masks, as PyG's metrics do: features and messages are multiplied by them.

    Layers that keep what they computed for another input (``cached=True``) compute it anew.

    Args:
        model, x, edge_index, kwargs: As for :func:`query`.
        node_mask: Of shape [N, 1], [N, F] or [1, F].
        edge_mask: Of shape [E]; only layers that are PyG's look at it.
    """
    with _lock_of(model), _as_it_was(model):
        for layer in model.modules():
            if isinstance(layer, MessagePassing):
                kept = {name: None for name in vars(layer) if name.startswith('_cached')}
                vars(layer).update(kept, **({'cached': False} if 'cached' in vars(layer) else {}))
        if edge_mask is not None:
            set_masks(model, edge_mask, edge_index, apply_sigmoid=False)
        return query(model, x if node_mask is None else x * node_mask, edge_index, kwargs)


def to_targets(
    outputs: Tensor | np.ndarray, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    r"""Turns model outputs, [N] or [N, C], into what the surrogate is distilled from and compared with.

    Returns:
        Class probabilities [N, C], C = 2 for binary models, or regression outputs [N, C]; and the target that
        :class:`~torch_geometric.explain.Explainer` derives from the same outputs.
    """
    targets, predicted = [], []
    step = ROWS_AT_A_TIME if len(outputs.shape) == 2 else outputs.shape[0]
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


def receptive_field(model: torch.nn.Module) -> int | None:
    r"""The number of hops that the model's PyG layers look, or ``None`` if it has no such layer.

    A layer that is applied several times counts once.
    """
    seen: set[int] = set()

    def hops(module: torch.nn.Module) -> int | None:
        if id(module) in seen:
            return None
        seen.add(id(module))
        for layer, count in _LAYERS:
            if isinstance(module, layer):
                return count(module)
        if isinstance(module, MessagePassing):
            return 1
        reaches = [reach for child in module.children() if (reach := hops(child)) is not None]
        return sum(reaches) if reaches else None

    return hops(model)


def _finite(values: Tensor) -> Tensor:
    if not bool(values.isfinite().all()):
        bad = int((~values.isfinite()).any(dim=1).sum())
        raise ValueError(
            f"'model' must return finite outputs (got NaN or infinity at {bad} of {values.size(0)} nodes): check its "
            f'weights and inputs'
        )
    return values


def _lock_of(model: torch.nn.Module) -> threading.RLock:
    with _asking_lock:
        return _asking.setdefault(model, threading.RLock())


@contextmanager
def _as_it_was(model: torch.nn.Module) -> Iterator[None]:
    r"""Puts back what every module holds, what it keeps of its last evaluation among it."""
    modules = list(model.modules())
    before = [(vars(module).copy(), module._parameters.copy()) for module in modules]

    def restore() -> None:
        for module, (state, parameters) in zip(modules, before, strict=True):
            _put_back(vars(module), state)
            _put_back(module._parameters, parameters)  # GNNExplainer leaves an empty one, into which PyG puts the mask

    with _at_the_end(restore):
        yield


def _put_back(values: dict[str, Any], before: dict[str, Any]) -> None:
    values.update(before)  # not emptied first: other threads may be looking at the model
    for name in values.keys() - before.keys():
        del values[name]


@contextmanager
def _evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    r"""Puts every module in evaluation mode, and puts back each one's mode and buffers."""
    training = [module for module in model.modules() if module.training]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    def restore() -> None:
        for module in training:
            module.training = True
        with torch.no_grad():
            for buffer, before in buffers:
                if not buffer.equal(before):
                    buffer.copy_(before)

    with _at_the_end(restore):
        for module in training:
            module.training = False
        yield


@contextmanager
def _at_the_end(restore: Callable[[], None]) -> Iterator[None]:
    r"""Calls ``restore`` at the end, and in a process that is forked before."""
    key = object()
    _restoring[key] = threading.get_ident(), restore
    try:
        yield
    finally:
        restore()
        del _restoring[key]


def _start_anew() -> None:
    r"""In a new process: does what threads would have done that are gone, and makes the locks anew that they hold."""
    global _asking, _asking_lock
    _asking, _asking_lock = WeakIdKeyDictionary(), threading.Lock()
    for key, (thread, restore) in reversed(list(_restoring.items())):
        if thread != threading.get_ident():
            restore()
            del _restoring[key]


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_start_anew)
