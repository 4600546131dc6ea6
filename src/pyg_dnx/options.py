r"""Checks of options that are numbers or words. Bad input gets one sentence: argument, rule, value, remedy."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

import torch


def choice(name: str, value: Any, options: tuple[str, ...]) -> str:
    if value not in options:
        raise ValueError(f"'{name}' must be one of {', '.join(map(repr, options))} (got {value!r}): choose one of them")
    return str(value)


def positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"'{name}' must be a positive number (got {value!r}): leave it out for the default")
    if not (math.isfinite(value) and float(value) > 0):
        raise ValueError(f"'{name}' must be positive and finite (got {value!r}): leave it out for the default")
    return float(value)


def count(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"'{name}' must be an int (got {value!r}): pass a whole number from {least} on")
    if value < least:
        raise ValueError(f"'{name}' must be at least {least} (got {value}): pass a whole number from {least} on")
    return int(value)


def even(name: str, value: Any) -> int:
    if count(name, value, least=0) % 2 == 1:
        raise ValueError(f"'{name}' must be even, as masks come in complementary pairs (got {value}): pass {value + 1}")
    return int(value)


def number_from_zero(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"'{name}' must be a number from 0 on (got {value!r}): pass 0 for none")
    if not (math.isfinite(value) and float(value) >= 0):
        raise ValueError(f"'{name}' must be finite and not negative (got {value!r}): pass 0 for none")
    return float(value)


def probability(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"'{name}' must be a number between 0 and 1 (got {value!r}): pass 0.95, say")
    if not 0.0 < float(value) < 1.0:
        raise ValueError(f"'{name}' must be between 0 and 1 (got {value!r}): pass 0.95, say")
    return float(value)


def hops(value: Any) -> int | str | None:
    if value is None or value == 'auto':
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"'num_hops' must be an int, None or 'auto' (got {value!r}): pass the number of hops to look")
    if value < 0:
        raise ValueError(f"'num_hops' must not be negative (got {value}): pass 0 to explain a node by itself alone")
    return int(value)


def contrast(value: Any) -> int | str | None:
    if value is None or value == 'runner_up':
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"'contrast' must be a class, None or 'runner_up' (got {value!r}): pass the class as an int")
    if value < 0:
        raise ValueError(f"'contrast' must be a class from 0 on (got {value}): pass the class to compare with")
    return int(value)


def names(argument: str, value: Any) -> Any:
    r"""Names by number: a sequence, a dict, or ``None``; of a heterogeneous graph, a dict of these by node type."""
    if value is None or (isinstance(value, (Mapping, Sequence)) and not isinstance(value, str)):
        return value
    if hasattr(value, 'tolist'):  # of NumPy and pandas
        return [str(item) for item in value.tolist()]
    raise TypeError(
        f"'{argument}' must be a list or a dict of names (got {_short(value)}): pass a name for each number"
    )


def known(explainer: type, given: dict[str, Any]) -> None:
    r"""Refuses arguments of a constructor that are no options of its class, and names the nearest one."""
    taken: set[str] = set()
    for one in explainer.__mro__[:2]:
        taken |= {p.name for p in inspect.signature(one).parameters.values() if p.kind != p.VAR_KEYWORD}
    for name, value in given.items():
        near, public = get_close_matches(name, sorted(taken), 1), explainer.__name__.removesuffix('Algorithm')
        raise TypeError(
            f"{name!r} must be an option of '{public}' (got {name}={_short(value)}): "
            + (f'did you mean {near[0]!r}?' if near else 'leave it out')
        )


def arguments(given: dict[str, Any], model: Any, method: Callable[..., Any]) -> None:
    r"""Checks that each further keyword argument of a ``method`` is one that the model takes, or the surrogate."""
    read = {'edge_weight'}
    if given and model is not None:
        try:
            parameters = inspect.signature(model.forward).parameters.values()
        except (TypeError, ValueError):
            return
        if type(model).__call__ is not torch.nn.Module.__call__ or any(p.kind == p.VAR_KEYWORD for p in parameters):
            return
        read = {p.name for p in parameters if p.kind != p.POSITIONAL_ONLY}
    for name in given.keys() - read:
        options = {p.name for p in inspect.signature(method).parameters.values() if p.kind == p.KEYWORD_ONLY}
        near = get_close_matches(name, sorted(options | read), 1)
        owner = f"an argument of {type(model).__name__}'s 'forward'" if model is not None else "'edge_weight'"
        raise TypeError(
            f"{name!r} must be an option of '{method.__name__}', or {owner} (got {name}={_short(given[name])}): "
            + (f'did you mean {near[0]!r}?' if near else 'leave it out')
        )


def _short(value: Any) -> str:
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def group(value: Any) -> Any:
    r"""Checks a group of processes, of which this is one; ``None`` is none."""
    if value is None:
        return None
    if not torch.distributed.is_available() or not isinstance(value, torch.distributed.ProcessGroup):
        raise TypeError(
            f"'group' must be a process group of torch.distributed or None (got {value!r}): pass "
            f'torch.distributed.group.WORLD'
        )
    if torch.distributed.get_rank(value) < 0:
        raise ValueError("'group' must be one that this process is in (got another): let its members call alone")
    return value


def processes(given: Any, part: Any, checkpoint: Any) -> None:
    r"""Checks how several processes share the work."""
    if group(given) is not None and part is not None:
        raise ValueError(f"'part' must be None with a 'group', which shares all parts (got {part!r}): leave it out")
    if part is not None:
        pair: Any = part if isinstance(part, (tuple, list)) and len(part) == 2 else (None, None)
        if not all(isinstance(number, Integral) for number in pair) or not 0 <= pair[0] < pair[1]:
            raise ValueError(f"'part' must be (k, n), part k of n from 0 on (got {part!r}): pass (0, 4), say")
    if checkpoint is None:
        raise ValueError(
            "'checkpoint' must name a folder that all processes share, with a 'group' or a 'part' (got None): pass one"
        )
