r"""What a model's answers may depend on, to tell later whether it has changed.

Compared are, for each module that can be reached: its type; its parameters, buffers and other tensors (as copies, since
a hash that ignores order would miss a permuted weight); numbers, strings, arrays, and containers of these; functions
with what they close over; modules in containers; and what classes hold that are not PyTorch's or PyG's. Whether other
objects have changed can't be told. Hooks, and what functions read from their globals, are not looked at.
"""

from __future__ import annotations

import dataclasses
import logging
import weakref
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cached_property, partial
from operator import is_
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    NoneType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from pyg_dnx.teacher.private import written

PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.layout}
)
MAX_DEPTH = 8  # of containers in containers
# What every module has: parameters, buffers and submodules are gone through by themselves, the rest is bookkeeping.
_HANDLED = frozenset(vars(torch.nn.Module()))
_DEFINITIONS = (FunctionType, property, cached_property, classmethod, staticmethod, type)
_MISSING = object()


class State:
    r"""The state of a model. ``None`` for an answer means that it can't be told."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.roots: list[tuple[weakref.ref[torch.nn.Module], list[_Module]]] = []
        self.classes: list[_Class] = []
        self._add([model])

    def is_current(self) -> bool | None:
        r"""Whether the model is still in this state."""
        answer: bool | None = True
        for ref, states in self.roots:
            modules = [] if (root := ref()) is None else modules_of(root)
            if len(modules) != len(states):
                return False
            if (answer := _both(answer, _all_same(map(_Module.is_same, states, modules)))) is False:
                return False
        return answer if all(map(_Class.is_same, self.classes)) else None

    def after_evaluation(self) -> None:
        r"""Takes attributes as the evaluation of the model left them."""
        found: list[torch.nn.Module] = []
        for state, module in self._each():
            state.keep_attributes(module, found)
        self._add(found)
        classes = dict.fromkeys(kind for _, module in self._each() for kind in type(module).__mro__)
        self.classes = [_Class(kind) for kind in classes if _is_users(kind)]

    def accept(self) -> None:
        r"""Takes classes, and what evaluations change, as they are now, since the answers are the same."""
        self.classes = [_Class(known.kind) for known in self.classes]
        found: list[torch.nn.Module] = []
        for state, module in self._each():
            state.settle(module, found)
        self._add(found)

    def _each(self) -> list[tuple[_Module, torch.nn.Module]]:
        roots = [(root, states) for ref, states in self.roots if (root := ref()) is not None]
        return [pair for root, states in roots for pair in zip(states, modules_of(root), strict=False)]

    def _add(self, found: list[torch.nn.Module]) -> None:
        r"""Adds modules that are not known, and those in the containers that they hold, and so on."""
        known = {id(module) for _, module in self._each()}
        for root in found:  # grows as it is gone through
            if id(root) not in known:
                modules = modules_of(root)
                known.update(map(id, modules))
                self.roots.append((weakref.ref(root), [_Module(module, found) for module in modules]))


class _Module:
    r"""A module, and what its outputs may depend on."""

    def __init__(self, module: torch.nn.Module, found: list[torch.nn.Module]) -> None:
        self.type = type(module)
        self.names = [tuple(part) for part in _parts(module)]
        self.values = [_records(part, module, found) for part in _parts(module)]
        self.objects = vars(module).copy()
        self.changing: dict[str, Any] = {}  # what evaluations change
        self.counters: dict[str, int] = {}  # what they count up, which the outputs are taken not to depend on
        self.is_settled = True

    def keep_attributes(self, module: torch.nn.Module, found: list[torch.nn.Module]) -> None:
        before, objects, part = self.values[0], self.objects, vars(module).copy()
        self.names[0], self.values[0], self.objects = tuple(part), _records(part, module, found), {}
        in_copies = written(module)  # which is where models are evaluated
        for name, record in list(self.values[0].items()):
            is_kept = objects.get(name, _MISSING) is part[name] or type(record) in PLAIN
            is_kept = is_kept and name in before and _same(before[name], part[name]) is not False
            if is_kept and name not in in_copies:
                continue
            del self.values[0][name]
            count = in_copies.get(name) if is_kept else record
            if type(count) is int and type(before.get(name)) is int and count > before[name]:
                self.counters[name] = record
            else:
                self.changing[name] = record
                self.is_settled &= is_kept
        self.changing |= dict.fromkeys(in_copies.keys() - part.keys(), _MISSING)

    def settle(self, module: torch.nn.Module, found: list[torch.nn.Module]) -> None:
        others = {name: value for name, value in vars(module).copy().items() if name not in self.values[0]}
        for name in self.counters:
            others.pop(name, None)
        self.names[0], self.is_settled = tuple(vars(module)), True
        self.changing = {**dict.fromkeys(self.changing, _MISSING), **_records(others, module, found)}

    def is_same(self, module: torch.nn.Module) -> bool | None:
        if type(module) is not self.type:
            return False
        answer: bool | None = True
        for number, part in enumerate(_parts(module)):
            values = self.values[number]
            if (names := tuple(part)) != self.names[number]:
                others = {*self.changing, *self.counters} if number == 0 else set()
                now = {name: record for name, record in _records(part, module, []).items() if name not in others}
                if values.keys() - now.keys() or any(now[name] is not _UNKNOWN for name in now.keys() - values.keys()):
                    return False
                if now.keys() == values.keys():
                    self.names[number] = names  # PyG's metrics leave a method behind
                else:
                    answer = None
            for name, record in values.items():
                value = part.get(name, _MISSING)
                if value is not record and (answer := _both(answer, _same(record, value))) is False:
                    return False
        if not self.is_settled or self.counters or self.changing:
            attributes = vars(module)
            counts = [(attributes.get(name), count) for name, count in self.counters.items()]
            is_less = any(type(value) is not int or value < count for value, count in counts)
            known = (_same(was, attributes.get(name, _MISSING)) for name, was in self.changing.items())
            if not self.is_settled or is_less or not all(known):
                answer = None
        return answer


class _Class:
    r"""A class, and what it holds."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.names = tuple(vars(kind))
        self.definitions = {name: value for name, value in vars(kind).items() if isinstance(value, _DEFINITIONS)}
        self.values = {
            name: _record(value, None, [])
            for name, value in vars(kind).items()
            if name not in self.definitions and not name.startswith(('__', '_abc_'))
        }

    def is_same(self) -> bool:
        part = vars(self.kind)
        if tuple(part) != self.names:
            return False
        if any(part[name] is not known for name, known in self.definitions.items()):
            return False
        return all(known is part[name] or _same(known, part[name]) is True for name, known in self.values.items())


class _Record:
    r"""What a value is compared by, unless it is plain."""

    def same(self, value: Any) -> bool | None:
        raise NotImplementedError


class _Items(_Record):
    r"""A container, or another object that is known by a few of its parts."""

    def __init__(self, value: Any, items: Iterable[Any], record: Callable[[Any], Any]) -> None:
        self.type = type(value)
        self.records = [record(item) for item in items]

    def same(self, value: Any) -> bool | None:
        if type(value) is not self.type:
            return False
        items = value if self.type in (list, tuple) else _items(value)
        if len(items) != len(self.records):
            return False
        return all(map(is_, self.records, items)) or _all_same(map(_same, self.records, items))


class _Copy(_Record):
    r"""A tensor or an array."""

    def __init__(self, value: Any) -> None:
        self.value = copied(value)

    def same(self, value: Any) -> bool | None:
        return is_equal(self.value, value)


class _Object(_Record):
    r"""An object that is known by its identity."""

    def __init__(self, value: Any) -> None:
        self.ref = weakref.ref(value)

    def same(self, value: Any) -> bool | None:
        return self.ref() is value


class _Function(_Object):
    r"""A function, with what it closes over, and its defaults."""

    def __init__(self, value: Any, record: Callable[[Any], Any]) -> None:
        super().__init__(value)
        self.records = [record(item) for item in _held(value)]

    def same(self, value: Any) -> bool | None:
        if self.ref() is not value:
            return False
        held = _held(value)
        return len(held) == len(self.records) and _all_same(map(_same, self.records, held))


class _Unknown(_Record):
    r"""An object of which it can't be told whether it has changed."""

    def same(self, value: Any) -> bool | None:
        return None if _record(value, None, []) is _UNKNOWN else False


_UNKNOWN = _Unknown()


def modules_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    r"""The modules of a model, each once: as ``model.modules()``, which takes several times as long."""
    found, seen = [model], {id(model)}
    for module in found:  # grows as it is gone through
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found


def _parts(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    return vars(module), module._parameters, module._buffers


def _records(part: dict[str, Any], module: torch.nn.Module, found: list[torch.nn.Module]) -> dict[str, Any]:
    items = list(part.items())  # a copy: other threads may evaluate the model
    return {name: _record(value, module, found) for name, value in items if not _is_ignored(name, value, module)}


def _is_ignored(name: str, value: Any, module: torch.nn.Module) -> bool:
    r"""Whether this is bookkeeping, of PyTorch, PyG or logging, or a method that is the class's own anyway."""
    if name in _HANDLED or '_hooks' in name or isinstance(value, (RemovableHandle, logging.Logger)):
        return True
    if isinstance(value, MethodType) and value.__self__ is module:
        return any(value.__func__ is vars(kind).get(name) for kind in type(module).__mro__)
    return type(value).__module__ == 'torch_geometric.inspector'


def _is_users(kind: type) -> bool:
    return kind.__module__.partition('.')[0] not in ('torch', 'torch_geometric', 'builtins', 'abc', 'typing')


def _record(value: Any, module: torch.nn.Module | None, found: list[torch.nn.Module], depth: int = 0) -> Any:
    r"""What a part of a model is compared by. Modules in it are added to those that were ``found``."""

    def record(item: Any) -> Any:
        return _record(item, module, found, depth + 1)

    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.nn.Module):
        if value is not module:
            found.append(value)
        return _Object(value)
    if isinstance(value, Tensor):
        return _UNKNOWN if is_lazy(value) else _Copy(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return _UNKNOWN if isinstance(value, np.memmap) or value.dtype.hasobject else _Copy(value)
    if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, (ModuleType, type, NoneType)):
        return _UNKNOWN  # a method of an object
    if isinstance(value, (type, BuiltinFunctionType, CodeType, Enum, np.ufunc)):
        return _Object(value)
    if depth < MAX_DEPTH and isinstance(value, FunctionType):
        return _Function(value, record)
    if depth < MAX_DEPTH and (items := _items(value)) is not None:
        return _Items(value, items, record)
    return _UNKNOWN


def _items(value: Any) -> Any:
    r"""What a container holds; ``None`` of what is none."""
    if isinstance(value, (list, tuple, deque)):
        return value
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, (Namespace, SimpleNamespace)) or (
        dataclasses.is_dataclass(value) and hasattr(value, '__dict__')
    ):
        return [*vars(value).keys(), *vars(value).values()]
    return None


def _held(function: Any) -> list[Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    return [function.__code__, function.__defaults__, function.__kwdefaults__, *cells]


def _same(record: Any, value: Any) -> bool | None:
    if isinstance(record, _Record):
        return record.same(value)
    return type(record) is type(value) and bool(record == value)


def _both(one: bool | None, other: bool | None) -> bool | None:
    return False if one is False or other is False else one and other


def _all_same(answers: Iterable[bool | None]) -> bool | None:
    result: bool | None = True
    for answer in answers:
        if answer is False:
            return False
        result = result and answer
    return result


def copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value.copy()


def is_equal(old: Any, new: Any) -> bool:
    r"""Whether two tensors or arrays are equal, and of one kind."""
    if isinstance(old, (np.ndarray, np.generic)):
        return type(old) is type(new) and old.dtype == new.dtype and np.array_equal(old, new, old.dtype.kind in 'fc')
    if not isinstance(new, Tensor):
        return False
    if old.dtype != new.dtype or old.device != new.device or old.layout != new.layout or old.shape != new.shape:
        return False
    return old.equal(new) if old.layout == torch.strided else old.to_dense().equal(new.detach().to_dense())
