r"""How many hops a model looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_geometric import nn
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
_LAYERS = [(getattr(nn, name), hops) for name, hops in _HOPS.items() if hasattr(nn, name)]


def _is_side_by_side(module: torch.nn.Module) -> bool:
    r"""Whether a module holds layers of which each takes one relation."""
    return isinstance(module, torch.nn.ModuleDict) and all(name.count('__') >= 2 for name in module)


def receptive_field(model: torch.nn.Module) -> int | None:
    r"""The number of hops that the model's PyG layers look, or ``None`` if it has no such layer.

    A layer that is applied several times counts once; layers that work side by side, one for each relation of a
    heterogeneous graph, count as the one that looks farthest.
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
        children = list(module.children())
        if type(module).__name__ == 'HeteroBasisConv':  # PyG's, whose bases are copies of one layer
            children = list(children[0].children())[:1]
        reaches = [reach for child in children if (reach := hops(child)) is not None]
        if not reaches:
            return None
        return max(reaches) if _is_side_by_side(module) else sum(reaches)

    return hops(model)
