r"""One cache for everything that is distilled once and explained many times.

An entry is found again only if nothing that the distillation saw has changed:

- the model: the same object, with modules of the same types and, in each, what :mod:`pyg_dnx.distill.state` compares.
  Where that can't see all, ``accept`` is told, to ask the model once more;
- ``x``, ``edge_index`` and tensors in ``kwargs``: the same objects, unmodified since, by PyTorch's version counter.
  Writes that bypass the counter (``x.data[...] = …``, a shared NumPy array) are not seen: call :meth:`clear`;
- NumPy arrays: equal; memory-mapped ones: the same objects;
- numbers, strings and containers of these in ``kwargs``: equal. With other objects, nothing is cached.

Neither a model nor a graph is kept alive: an entry is emptied when one of them is collected.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pyg_dnx.distill.state import PLAIN, State, copied, is_equal

_caches: weakref.WeakSet[SurrogateCache] = weakref.WeakSet()


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
        self._renew_locks()
        _caches.add(self)

    def _renew_locks(self) -> None:
        self._lock = threading.RLock()
        self._creating = WeakIdKeyDictionary()  # the lock of each model

    def get_or_create(
        self,
        model: torch.nn.Module,
        inputs: Any,
        settings: Any,
        create: Callable[[], Any],
        accept: Callable[[Any, bool], bool] = lambda value, is_certain: True,
    ) -> Any:
        r"""Returns the cached value for these arguments if ``accept`` agrees, else a new one from ``create``.

        ``accept`` is called with the value, and whether it is certain that the model is as it was.
        """
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
            entry.keep(value)
            with self._lock:
                # Not so if an input can't be compared, or if another thread has trained the model meanwhile.
                if entry.is_for(model, inputs, settings) and entry.is_current() is not False:
                    self._entries.append(entry)
                for old in self._entries[: -self.max_size]:
                    old.clear()
            return value

    def get(self, model: torch.nn.Module, inputs: Any, settings: Any) -> Any:
        r"""Returns the cached value for these arguments; ``None`` if there is none, or the model has changed since."""
        return self._get(model, inputs, settings, lambda value, is_certain: True)

    def put(self, model: torch.nn.Module, inputs: Any, settings: Any, value: Any) -> None:
        r"""Keeps a value for these arguments, in place of the one before."""
        with self._lock:
            self._entries = [entry for entry in self._entries if not entry.is_for(model, inputs, settings)]
        self.get_or_create(model, inputs, settings, lambda: value)

    def _get(self, model: torch.nn.Module, inputs: Any, settings: Any, accept: Callable[[Any, bool], bool]) -> Any:
        with self._lock:
            self._entries = [entry for entry in self._entries if entry.value is not None]
            entry = next((entry for entry in self._entries if entry.is_for(model, inputs, settings)), None)
            if entry is None:
                return None
            is_same, value = entry.is_current(), entry.value
            if is_same is False or value is None:
                self._entries.remove(entry)
                return None
        is_accepted = accept(value, is_same is True)  # which may evaluate the model: other threads go on
        with self._lock:
            if entry in self._entries:
                self._entries.remove(entry)
                if is_accepted:
                    self._entries.append(entry)
            if not is_accepted:
                return None
            if is_same is None and entry.state is not None:
                entry.state.accept()
            self.hits += 1
            return value

    def values_on(self, graph: Any) -> list[Any]:
        r"""The values of any model and settings whose inputs are ``(graph, ...)``, unmodified."""
        with self._lock:
            entries = [entry for entry in self._entries if len(entry.inputs[1]) > 2]  # not those of data sets and parts
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
        self.state: State | None = State(model)
        self.inputs = _record(inputs, self.clear)
        self.settings = settings
        self.value: Any = None

    def keep(self, value: Any) -> None:
        self.value = value
        if self.state is not None:
            self.state.after_evaluation()

    def clear(self, _: Any = None) -> None:
        # Also the callback of weak references: no lock, so that it can run at any point of any thread.
        self.value = self.state = None

    def is_for(self, model: torch.nn.Module, inputs: Any, settings: Any) -> bool:
        return self.model() is model and self.settings == settings and _is_same(self.inputs, inputs)

    def is_current(self) -> bool | None:
        r"""Whether the model is as it was; ``None`` if that can't be told."""
        state = self.state
        return False if state is None else state.is_current()


class _Tensor:
    r"""Recognises a tensor that is the same object, unmodified; or, without a version counter, an equal one."""

    def __init__(self, tensor: Tensor, on_death: Callable[[Any], None]) -> None:
        self.ref = weakref.ref(tensor, on_death)
        self.version = _version(tensor)
        self.copy = copied(tensor) if self.version is None else None

    def is_same(self, tensor: Any) -> bool:
        if not isinstance(tensor, Tensor) or self.ref() is not tensor or _version(tensor) != self.version:
            return False
        return self.copy is None or is_equal(self.copy, tensor)


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
    if type(value) in PLAIN:
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


def _renew_locks() -> None:
    r"""In a new process, where the threads are gone that hold them."""
    for cache in list(_caches):
        cache._renew_locks()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_renew_locks)


def _shared() -> SurrogateCache:
    return shared_cache


shared_cache = SurrogateCache()
