r"""One cache for everything that is distilled once and explained many times.

An entry is found again only if nothing that the distillation saw has changed:

- the model: the same object, with modules of the same types and, in each, equal parameters, buffers and other tensors
  (a copy is compared, since a hash that ignores order would miss a permuted weight), equal numbers, strings and
  containers of these, and the same functions. Hooks, and other objects that it holds, are not looked at;
- ``x``, ``edge_index`` and tensors in ``kwargs``: the same objects, unmodified since, by PyTorch's version counter.
  Writes that bypass the counter (``x.data[...] = …``, a shared NumPy array) are not seen: call :meth:`clear`;
- NumPy arrays: equal; memory-mapped ones: the same objects;
- numbers, strings and containers of these in ``kwargs``: equal. With other objects, nothing is cached.

Neither a model nor a graph is kept alive: an entry is emptied when one of them is collected.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from operator import is_
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

# What every module has: parameters, buffers and submodules are gone through by themselves, the rest is bookkeeping.
_HANDLED = frozenset(vars(torch.nn.Module()))
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device})


class SurrogateCache:
    r"""A bounded, thread-safe cache of distilled models.

    Args:
        max_size (int): The number of entries to keep; the one unused for longest goes first.
    """

    def __init__(self, max_size: int = 32) -> None:
        if isinstance(max_size, bool) or not isinstance(max_size, int):
            raise TypeError(f"'max_size' must be an int (got {max_size!r}): pass the number of entries to keep")
        if max_size < 1:
            raise ValueError(f"'max_size' must be at least 1 (got {max_size}): to turn caching off, pass 'cache=None'")
        self.max_size = max_size
        self.hits = 0
        self.misses = 0
        self._entries: list[_Entry] = []  # the most recently used last
        self._lock = threading.RLock()
        self._creating = WeakIdKeyDictionary()  # the lock of each model

    def get_or_create(
        self,
        model: torch.nn.Module,
        inputs: Any,
        settings: Any,
        create: Callable[[], Any],
        accept: Callable[[Any], bool] = lambda value: True,
    ) -> Any:
        r"""Returns the cached value for these arguments if ``accept`` agrees, else a new one from ``create``."""
        if (value := self._get(model, inputs, settings, accept)) is not None:
            return value
        with self._lock:
            creating = self._creating.setdefault(model, threading.RLock())
        with creating:  # one thread distils a model, and the others wait for it; other models go on
            if (value := self._get(model, inputs, settings, accept)) is not None:
                return value
            self.misses += 1
            entry = _Entry(model, inputs, settings)
            value = create()
            entry.keep(value, model)
            with self._lock:
                # Not so if an input can't be compared, or if another thread has trained the model meanwhile.
                if entry.is_for(model, inputs, settings) and entry.has_state_of(model):
                    self._entries.append(entry)
                for old in self._entries[: -self.max_size]:
                    old.clear()
            return value

    def get(self, model: torch.nn.Module, inputs: Any, settings: Any) -> Any:
        r"""Returns the cached value for these arguments; ``None`` if there is none, or the model has changed since."""
        return self._get(model, inputs, settings, lambda value: True)

    def put(self, model: torch.nn.Module, inputs: Any, settings: Any, value: Any) -> None:
        r"""Keeps a value for these arguments, in place of the one before."""
        with self._lock:
            self._entries = [entry for entry in self._entries if not entry.is_for(model, inputs, settings)]
        self.get_or_create(model, inputs, settings, lambda: value)

    def _get(self, model: torch.nn.Module, inputs: Any, settings: Any, accept: Callable[[Any], bool]) -> Any:
        with self._lock:
            entry = self._find(model, inputs, settings)
            if entry is None or (value := entry.value) is None or not accept(value):
                return None
            self._entries.append(entry)
            self.hits += 1
            return value

    def _find(self, model: torch.nn.Module, inputs: Any, settings: Any) -> _Entry | None:
        r"""Takes the entry for these arguments out of the list, and forgets it if the model has changed since."""
        self._entries = [entry for entry in self._entries if entry.value is not None]
        for entry in self._entries:
            if entry.is_for(model, inputs, settings):
                self._entries.remove(entry)
                return entry if entry.has_state_of(model) else None
        return None

    def values_on(self, graph: Any) -> list[Any]:
        r"""The values of any model and settings whose inputs are ``(graph, ...)``, unmodified."""
        with self._lock:
            entries = [entry for entry in self._entries if len(entry.inputs[1]) == 3]  # not those of data sets
            values = [entry.value for entry in entries if _is_same(entry.inputs[1][0], graph)]
        return [value for value in values if value is not None]

    def clear(self) -> None:
        r"""Empties the cache."""
        with self._lock:
            for entry in self._entries:
                entry.clear()
            self._entries = []

    def __len__(self) -> int:
        return sum(entry.value is not None for entry in list(self._entries))

    def __reduce__(self) -> tuple[Callable[..., SurrogateCache], tuple[Any, ...]]:
        # The shared cache stays the shared one in a pickled or copied algorithm; any other starts empty.
        return (_shared, ()) if self is shared_cache else (SurrogateCache, (self.max_size,))

    def __repr__(self) -> str:
        name = 'shared_cache' if self is shared_cache else 'SurrogateCache'
        return f'<{name}: {len(self)} of {self.max_size} entries, {self.hits} hits, {self.misses} misses>'


class _Entry:
    def __init__(self, model: torch.nn.Module, inputs: Any, settings: Any) -> None:
        self.model = weakref.ref(model, self.clear)
        self.state: list[_Module] | None = list(map(_Module, _modules(model)))
        self.inputs = _record(inputs, self.clear)
        self.settings = settings
        self.value: Any = None

    def keep(self, value: Any, model: torch.nn.Module) -> None:
        self.value = value
        for state, module in zip(self.state or [], _modules(model), strict=False):
            state.keep_attributes(module)

    def clear(self, _: Any = None) -> None:
        # Also the callback of weak references: no lock, so that it can run at any point of any thread.
        self.value = self.state = None

    def is_for(self, model: torch.nn.Module, inputs: Any, settings: Any) -> bool:
        return self.model() is model and self.settings == settings and _is_same(self.inputs, inputs)

    def has_state_of(self, model: torch.nn.Module) -> bool:
        state, modules = self.state, _modules(model)
        return state is not None and len(state) == len(modules) and all(map(_Module.is_same, state, modules))


def _modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    r"""The modules of a model, each once: as ``model.modules()``, which takes several times as long."""
    found, seen = [model], {id(model)}
    for module in found:  # grows as it is gone through
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found


class _Module:
    r"""Recognises a module in which nothing has changed that can be compared and that outputs may depend on."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.type = type(module)
        self.names = [tuple(part) for part in _parts(module)]
        others = ({name: _copy(item) for name, item in _comparable(part)} for part in _parts(module)[1:])
        self.values = [vars(module).copy(), *others]

    def keep_attributes(self, module: torch.nn.Module) -> None:
        before, self.values[0] = self.values[0], {name: _copy(item) for name, item in _comparable(vars(module))}
        self.names[0], own = tuple(vars(module)), self.values[0].items()
        # What an evaluation of the model changes by itself, a counter of calls say, is not what its outputs depend on.
        self.ignored = {name for name, item in own if type(item) in _PLAIN and not _is_equal(item, before.get(name))}
        for name in self.ignored:
            del self.values[0][name]

    def is_same(self, module: torch.nn.Module) -> bool:
        if type(module) is not self.type:
            return False
        for number, part in enumerate(_parts(module)):
            values = self.values[number]
            if (names := tuple(part)) != self.names[number]:
                if {name for name, _ in _comparable(part)} - self.ignored != values.keys():
                    return False
                self.names[number] = names  # PyG's metrics leave a method behind
            for name, item in values.items():
                value = part[name]
                if item is not value and not _has_items(value, item) and not _is_equal(item, _freeze(value)):
                    return False
        return True


def _parts(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    return vars(module), module._parameters, module._buffers


def _comparable(part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in list(part.items()):  # a copy: other threads may evaluate the model
        if name not in _HANDLED and '_hooks' not in name and (item := _freeze(value)) is not _Unknown:
            yield name, item


def _freeze(value: Any) -> Any:
    r"""Returns what a part of a model is compared by: itself, its items, or, for a function, a reference to it."""
    if type(value) in _PLAIN or isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple, set, dict)):
        return type(value), *map(_freeze, [*value.keys(), *value.values()] if isinstance(value, dict) else value)
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return weakref.ref(value)
    return _Unknown


def _has_items(value: Any, item: Any) -> bool:
    r"""Whether ``item`` is, item by item, what ``value`` freezes to: quickly, and only for lists and tuples."""
    if type(item) is not tuple or type(value) not in (list, tuple):
        return False
    return item[0] is type(value) and len(item) == len(value) + 1 and all(map(is_, item[1:], value))


def _copy(item: Any) -> Any:
    if isinstance(item, Tensor):
        return _Unknown if is_lazy(item) else item.detach().clone()
    return tuple(map(_copy, item)) if isinstance(item, tuple) else item


def _is_equal(old: Any, new: Any) -> bool:
    if type(old) in _PLAIN:
        return type(old) is type(new) and bool(old == new)
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(a is b or _is_equal(a, b) for a, b in zip(old, new, strict=True))
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        return type(old) is type(new) and bool(old == new)
    if old.dtype != new.dtype or old.device != new.device or old.layout != new.layout or old.shape != new.shape:
        return False
    return old.equal(new) if old.layout == torch.strided else old.to_dense().equal(new.detach().to_dense())


class _Tensor:
    r"""Recognises a tensor that is the same object, unmodified; or, without a version counter, an equal one."""

    def __init__(self, tensor: Tensor, on_death: Callable[[Any], None]) -> None:
        self.ref = weakref.ref(tensor, on_death)
        self.version = _version(tensor)
        self.copy = _copy(tensor) if self.version is None else None

    def is_same(self, tensor: Any) -> bool:
        if not isinstance(tensor, Tensor) or self.ref() is not tensor or _version(tensor) != self.version:
            return False
        return self.copy is None or _is_equal(self.copy, tensor)


class _Unknown:
    r"""Stands for an object that can't be compared."""


def _version(tensor: Tensor) -> tuple[int, ...] | None:
    if tensor.is_inference():
        return None
    place = tensor.data_ptr() if tensor.layout == torch.strided else 0
    return tensor._version, place, *tensor.shape


def _record(value: Any, on_death: Callable[[Any], None]) -> Any:
    r"""Returns what is needed to tell later, with :func:`_is_same`, whether an input is unchanged."""
    if isinstance(value, Tensor):
        return _Tensor(value, on_death)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.memmap):
        return weakref.ref(value, on_death)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, tuple)):
        return type(value), [_record(item, on_death) for item in value]
    if isinstance(value, dict):
        return dict, [_record(item, on_death) for pair in value.items() for item in pair]
    if hasattr(value, 'coo'):  # torch_sparse.SparseTensor
        return type(value), [_record(item, on_death) for item in value.coo()]
    return _Unknown()


def _is_same(record: Any, value: Any) -> bool:
    if isinstance(record, _Tensor):
        return record.is_same(value)
    if isinstance(record, weakref.ref):
        return record() is value
    if isinstance(record, np.ndarray):
        return isinstance(value, np.ndarray) and record.dtype == value.dtype and np.array_equal(record, value)
    if isinstance(record, tuple):
        kind, items = record
        if type(value) is not kind:
            return False
        if kind is dict:
            value = [item for pair in value.items() for item in pair]
        elif hasattr(value, 'coo'):
            value = value.coo()
        return len(items) == len(value) and all(map(_is_same, items, value))
    return type(record) is type(value) and not isinstance(record, _Unknown) and bool(record == value)


def _shared() -> SurrogateCache:
    return shared_cache


shared_cache = SurrogateCache()
