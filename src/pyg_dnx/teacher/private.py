r"""Copies of models that share their weights, so that an evaluation leaves the user's model as it is."""

from __future__ import annotations

import copy
import os
import threading
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn import MessagePassing

_asking = WeakIdKeyDictionary()  # the lock of each model: PyTorch's random state is put back by one thread at a time
_asking_lock = threading.Lock()
_MISSING = object()
_OWN = frozenset({'training', '_parameters', '_buffers', '_modules'})
_written = WeakIdKeyDictionary()  # of each module, the attributes that evaluations set


def copied(module: torch.nn.Module, copies: dict[int, Any]) -> torch.nn.Module:
    r"""A copy of a module; ``copies`` has what stands in it for what, by id."""
    module = getattr(module, '_orig_mod', module)
    if isinstance(module, torch.jit.ScriptModule):
        return EvaluationMode(module)
    if (found := copies.get(id(module))) is not None:
        return found
    clone = copies[id(module)] = object.__new__(type(module))
    state = clone.__dict__
    state.update(module.__dict__)
    state['training'] = False
    state['_parameters'] = module._parameters.copy()
    for kind in ('_buffers', '_modules'):
        state[kind] = {name: _detached(value, copies) for name, value in getattr(module, kind).copy().items()}
    for name, value in list(state.items()):
        if name == 'inspector' and isinstance(module, MessagePassing):
            state[name] = value = copy.copy(value)  # which PyG writes to when it sets masks
            vars(value).update({key: it.copy() for key, it in vars(value).items() if type(it) is dict})
        elif name not in _OWN and not name.endswith('_hooks'):
            state[name] = _detached(value, copies)
    return clone


def _detached(value: Any, copies: dict[int, Any]) -> Any:
    r"""What a copy of a module has in place of a value: what may be written to is copied, and all else shared."""
    if (found := copies.get(id(value))) is not None:
        return found
    if isinstance(value, torch.nn.Module):
        return copied(value, copies)
    if isinstance(value, MethodType) and id(value.__self__) in copies:
        return MethodType(value.__func__, copies[id(value.__self__)])
    if isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter):
        found = copies[id(value)] = value.detach().clone()
    elif type(value) is list:
        found = copies[id(value)] = []  # known before it is filled, as it may hold itself
        found += [_detached(item, copies) for item in value]
    elif type(value) is dict:
        found = copies[id(value)] = {}
        found.update({key: _detached(item, copies) for key, item in value.copy().items()})
    elif type(value) is set:
        found = copies[id(value)] = value.copy()
    return value if found is None else found


class EvaluationMode(torch.nn.Module):
    r"""A module that can't be copied, evaluated in evaluation mode, and put back."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        training = [part for part in self.module.modules() if part.training]
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()]
        try:
            for part in training:
                part.training = False
            return self.module(*args, **kwargs)
        finally:
            for part in training:
                part.training = True
            for buffer, before in buffers:
                if not buffer.equal(before):
                    buffer.copy_(before)


def note_written(model: torch.nn.Module, copies: dict[int, Any], before: dict[int, dict[str, Any]]) -> bool:
    r"""Keeps which attributes of its own an evaluation has set, and to which number; returns if there are any."""
    has_written = False
    for module in model.modules():
        if (known := before.get(id(module))) is None:
            continue
        attributes = vars(copies[id(module)])
        found = {
            name: value if type(value) is int else None
            for name, value in attributes.items()
            if value is not known.get(name, _MISSING)
            or not _is_untouched(value, vars(module).get(name), copies, seen=set())
        }
        if found:
            has_written = True
            with _asking_lock:
                _written.setdefault(module, {}).update(found)
    return has_written


def _is_untouched(value: Any, original: Any, copies: dict[int, Any], seen: set[int]) -> bool:
    r"""Whether what stands in a copy for something holds what that held; ``seen`` are those looked at."""
    if value is original or id(original) not in copies or id(value) in seen:
        return True
    seen.add(id(value))
    if isinstance(value, Tensor):
        return value.is_inference() or value._version == 0
    if type(value) in (list, dict) and type(original) is type(value):
        one, other = (list(it.values()) if type(it) is dict else list(it) for it in (value, original))
        pairs = list(zip(one, other, strict=False))
        is_same = len(one) == len(other) and all(new is copies.get(id(old), old) for new, old in pairs)
        return is_same and all(_is_untouched(*pair, copies, seen) for pair in pairs)
    return type(value) is not set or value == original


def written(module: torch.nn.Module) -> dict[str, int | None]:
    r"""The attributes that evaluations of a module are known to set, and the whole numbers that they set them to."""
    with _asking_lock:
        return dict(_written.get(module, {}))


def lock_of(model: torch.nn.Module) -> threading.RLock:
    with _asking_lock:
        return _asking.setdefault(model, threading.RLock())


def _start_anew() -> None:
    r"""In a new process, where the threads are gone that hold the locks."""
    global _asking, _asking_lock
    _asking, _asking_lock = WeakIdKeyDictionary(), threading.Lock()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_start_anew)
