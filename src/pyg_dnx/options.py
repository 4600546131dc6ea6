r"""Bad input gets one clear sentence: the argument, the rule, what was received, and what to do."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.explain.config import ModelConfig, ModelMode
from torch_geometric.utils import is_torch_sparse_tensor

from pyg_dnx.distill.cache import SurrogateCache
from pyg_dnx.graph.operator import is_edge_list

ROWS_AT_A_TIME = 2**17


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


def pairs(name: str, value: Any) -> int:
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


def cache(value: Any) -> SurrogateCache | None:
    if value is not None and not isinstance(value, SurrogateCache):
        raise TypeError(f"'cache' must be a SurrogateCache or None (got {value!r}): None turns caching off")
    return value


def graph(x: Any, edge_index: Any, kwargs: dict[str, Any]) -> None:
    r"""Checks the shapes and types of a graph, in constant time."""
    if isinstance(x, dict) or isinstance(edge_index, dict):
        raise TypeError(
            "'x' and 'edge_index' must be those of a homogeneous graph (got a dict): convert the data with "
            "'HeteroData.to_homogeneous', and wrap the model accordingly"
        )
    if not isinstance(x, Tensor) or x.layout != torch.strided or x.is_complex():
        kind = f'{x.layout} of {x.dtype}' if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"'x' must be a dense tensor of real numbers (got {kind}): pass x.to_dense(), say")
    if x.dim() != 2 or x.size(0) == 0 or x.size(1) == 0:
        raise ValueError(
            f"'x' must have shape [N, F] with at least one node and one feature (got {list(x.shape)}): pass x[:, None] "
            f'for a single feature, and constant features if there are none'
        )
    if is_edge_list(edge_index):
        if edge_index.dim() != 2 or edge_index.size(0) != 2:
            raise ValueError(f"'edge_index' must have shape [2, E] (got {list(edge_index.shape)}): transpose it, say")
        if edge_index.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"'edge_index' must hold node ids (got {edge_index.dtype}): pass edge_index.long()")
    elif is_torch_sparse_tensor(edge_index) or hasattr(edge_index, 'coo'):
        if (edge_index.size(0), edge_index.size(1)) != (x.size(0), x.size(0)):
            size = [edge_index.size(0), edge_index.size(1)]
            raise ValueError(
                f"'edge_index' must be a matrix of shape {[x.size(0)] * 2}, as 'x' has it (got {size}): pass the "
                f'features and the matrix of one graph'
            )
        if kwargs.get('edge_weight') is not None:
            raise ValueError("'edge_weight' must be None if 'edge_index' is a matrix (got both): put it in the matrix")
    else:
        raise TypeError(
            f"'edge_index' must be a tensor [2, E] or a sparse adjacency matrix (got {type(edge_index).__name__}): "
            f"see the documentation's table of inputs"
        )
    if isinstance(edge_index, Tensor) and edge_index.device != x.device:
        raise ValueError(
            f"'edge_index' must be on the device of 'x', {x.device} (got {edge_index.device}): move one of them"
        )


def content(x: Tensor, edge_index: Any, edge_weight: Any) -> None:
    r"""Checks the contents of a graph, in one pass over it."""
    bad = sum(int((~part.isfinite()).any(dim=1).sum()) for part in x.split(ROWS_AT_A_TIME))
    if bad > 0:
        raise ValueError(f"'x' must be finite (got NaN or infinity at {bad} of {x.size(0)} nodes): impute or drop them")
    if not is_edge_list(edge_index):
        return
    if edge_index.size(1) > 0:
        low, high = int(edge_index.min()), int(edge_index.max())
        if low < 0 or high >= x.size(0):
            raise IndexError(
                f"'edge_index' must hold node ids from 0 to {x.size(0) - 1}, as 'x' has {x.size(0)} nodes (got ids "
                f'from {low} to {high}): pass the features of all nodes'
            )
    if edge_weight is None:
        return
    if not isinstance(edge_weight, Tensor) or edge_weight.numel() != edge_index.size(1) or edge_weight.is_complex():
        got = list(edge_weight.shape) if isinstance(edge_weight, Tensor) else type(edge_weight).__name__
        raise ValueError(
            f"'edge_weight' must be a tensor of shape [{edge_index.size(1)}], one number an edge (got {got}): pass "
            f"what has several numbers an edge as 'edge_attr'"
        )
    if not bool(edge_weight.isfinite().all()):
        raise ValueError("'edge_weight' must be finite (got NaN or infinity): drop those edges")


def model(value: Any) -> None:
    if value is not None and not isinstance(value, torch.nn.Module):
        raise TypeError(
            f"'model' must be a torch.nn.Module or None (got {type(value).__name__}): wrap it in one whose 'forward' "
            f"calls it, or pass None and what it returns as 'teacher_outputs'"
        )


def arguments(given: dict[str, Any], model: Any, method: Callable[..., Any]) -> None:
    r"""Checks that each further keyword argument of a ``method`` is one that the model takes, or the surrogate."""
    read = {'edge_weight'}
    if model is not None:
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


def teacher_outputs(value: Any, model: Any, x: Tensor) -> None:
    if value is None:
        if model is None:
            raise TypeError("'model' must be a module unless 'teacher_outputs' is given (got None): pass one of them")
        return
    if not isinstance(value, (Tensor, np.ndarray)):
        raise TypeError(
            f"'teacher_outputs' must be a tensor or a NumPy array (got {type(value).__name__}): pass what the model "
            f'returns for all nodes'
        )
    _real('teacher_outputs', value)
    if len(value.shape) not in (1, 2) or value.shape[0] != x.size(0) or 0 in value.shape:
        raise ValueError(
            f"'teacher_outputs' must have shape [{x.size(0)}] or [{x.size(0)}, C], one row a node of 'x' (got "
            f'{list(value.shape)}): pass what the model returns for all nodes'
        )


def _real(name: str, value: Tensor | np.ndarray) -> None:
    if isinstance(value, Tensor):
        is_plain = value.layout == torch.strided and not value.is_complex()
    else:
        is_plain = value.dtype.kind in 'biuf'
    if not is_plain:
        raise TypeError(f"'{name}' must hold real numbers, densely (got {value.dtype}): convert them")


def probe_outputs(value: Any, x: Tensor, num_masks: int, unmasked: Any = None) -> None:
    if not isinstance(value, (Tensor, np.ndarray)):
        raise TypeError(
            f"'probe_outputs' must be a tensor or a NumPy array (got {type(value).__name__}): stack what the model "
            f"returns under each of 'probe_masks'"
        )
    _real('probe_outputs', value)
    if len(value.shape) not in (2, 3) or value.shape[0] < num_masks or value.shape[1] != x.size(0) or 0 in value.shape:
        raise ValueError(
            f"'probe_outputs' must have shape [{num_masks}, {x.size(0)}] or [{num_masks}, {x.size(0)}, C], what the "
            f"model returns under each of 'probe_masks' (got {list(value.shape)}): ask it under all of them"
        )
    if unmasked is not None and tuple(unmasked.shape) != tuple(value.shape[1:]):
        raise ValueError(
            f"'probe_outputs' must have the shape of 'teacher_outputs', {list(unmasked.shape)}, under each mask (got "
            f"{list(value.shape[1:])}): leave out 'teacher_outputs', which are the first of them"
        )
    if unmasked is not None:
        first, other = (torch.from_numpy(np.array(v)) if isinstance(v, np.ndarray) else v for v in (value[0], unmasked))
        first, other = first.detach().double(), other.detach().to(first.device).double()
        if not torch.allclose(first, other, rtol=1e-2, atol=1e-2 * float(other.abs().max()), equal_nan=True):
            raise ValueError(
                f"'probe_outputs' must begin with 'teacher_outputs' (got values that differ by up to "
                f'{float((first - other).abs().max()):.4g}): leave these out, or take both from one model'
            )


def index(value: Any, x: Tensor) -> Tensor:
    r"""Returns the ids [B] of the nodes to explain, on the device of ``x``."""
    num_nodes = x.size(0)
    if value is None:
        return torch.arange(num_nodes, device=x.device)
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value, device=x.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"'index' must be an int, a tensor of ids or a boolean mask (got {value!r}): pass torch.tensor([...])"
            ) from error
    if value.dtype == torch.bool:
        if value.shape != (num_nodes,):
            raise ValueError(
                f"'index' must have shape [{num_nodes}] as a boolean mask, one entry a node of 'x' (got "
                f'{list(value.shape)}): pass node ids instead'
            )
        value = value.nonzero()
    elif value.is_floating_point() or value.is_complex():
        raise TypeError(f"'index' must hold node ids or be a boolean mask (got {value.dtype}): pass index.long()")
    nodes = value.to(x.device).long().reshape(-1)
    if nodes.numel() == 0:
        raise ValueError("'index' must name at least one node (got none): pass None to explain all nodes")
    low, high = [int(nodes)] * 2 if nodes.numel() == 1 else map(int, nodes.aminmax())
    if low < -num_nodes or high >= num_nodes:
        raise IndexError(
            f"'index' must hold node ids from {-num_nodes} to {num_nodes - 1}, as 'x' has {num_nodes} nodes (got ids "
            f'from {low} to {high}): pass ids of nodes in this graph'
        )
    return nodes if low >= 0 else nodes % num_nodes


def target(value: Any, nodes: Tensor, outputs: Tensor, config: ModelConfig) -> Tensor:
    r"""Returns the target of each explained node: classes [B], or values [B, C] for regression."""
    num_nodes, num_outputs = outputs.shape
    if not isinstance(value, Tensor) or value.dim() == 0 or value.size(0) != num_nodes:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"'target' must be a tensor with an entry for each of the {num_nodes} nodes (got {got}): explanations of "
            f"type 'phenomenon' need it, so pass what to explain as 'target'"
        )
    value = value.detach().to(nodes.device)[nodes].reshape(nodes.numel(), -1)
    if config.mode == ModelMode.regression:
        if value.size(1) != num_outputs or not bool(value.isfinite().all()):
            raise ValueError(
                f"'target' must be finite and of shape [{num_nodes}, {num_outputs}], as the model's outputs are (got "
                f'{value.size(1)} columns): pass the values to explain'
            )
        return value
    if value.size(1) != 1 or bool((value != value.long()).any()):
        raise ValueError(
            f"'target' must hold one class a node, a whole number (got {value.flatten()[:3].tolist()} … in "
            f'{value.size(1)} columns): pass class labels'
        )
    value = value.long().view(-1)
    if int(value.min()) < 0 or int(value.max()) >= num_outputs:
        raise ValueError(
            f"'target' must hold classes from 0 to {num_outputs - 1} at the explained nodes, as the model has "
            f'{num_outputs} (got classes from {int(value.min())} to {int(value.max())}): explain labelled nodes'
        )
    return value


def contrast_class(value: int | str | None, classes: Tensor, num_classes: int) -> None:
    r"""Checks that ``contrast`` is a class of the model, and another one than the target at some explained node."""
    if value == 'runner_up' or value is None:
        return
    if int(value) >= num_classes:
        raise ValueError(
            f"'contrast' must be one of the model's classes, 0 to {num_classes - 1} (got {value}): pass one of them"
        )
    if bool(classes.eq(int(value)).all()):
        raise ValueError(f"'contrast' must differ from the target class (got {value} for both): pass another class")


def masks(explanation: Any) -> tuple[Tensor | None, Tensor | None]:
    r"""The node mask and the edge mask of an explanation, which must have one of them."""
    node_mask, edge_mask = explanation.get('node_mask'), explanation.get('edge_mask')
    if node_mask is None and edge_mask is None:
        raise ValueError(
            "'explanation' must have a node mask or an edge mask (got neither): pass 'node_mask_type' or "
            "'edge_mask_type' to the Explainer"
        )
    return node_mask, edge_mask
