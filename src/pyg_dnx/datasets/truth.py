r"""The nodes and edges that a good explanation of a node finds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_dnx.scores.question import outputs_of


def node_truth(data: Data, index: Any, predicted: Tensor | None = None) -> Tensor:
    r"""The nodes [B, N] that explain each of the nodes ``index``.

    In a motif graph these are the nodes of the node's own motif. In a trust network they are the node :math:`v` itself
    and every :math:`u` with :math:`\text{rating}(u \to v) > 0`, as published. That holds for distrusted nodes too;
    with ``predicted`` given, the nodes :math:`u` that explain one of class 0 (distrusted) are those with
    :math:`\text{rating}(u \to v) \leq 0` instead.

    Args:
        data: A graph of :class:`MotifDataset` or :class:`BitcoinDataset`.
        index: The explained nodes: an int, ids [B], or a boolean mask [N].
        predicted: The predicted class [N] of every node, in a trust network. Motifs do not depend on it.
    """
    nodes = outputs_of(index, data.num_nodes, data.x.device)
    if 'node_motif' in data:
        return data.node_motif == motif_of(data, nodes)[:, None]
    if 'rating' not in data:
        raise ValueError(
            f"'data' must have known motifs or ratings (got the attributes {', '.join(data.keys())}): pass a graph of "
            f'MotifDataset or BitcoinDataset'
        )
    num_nodes = data.x.size(0)
    source, target = data.rating_index
    counts = data.rating > 0
    if predicted is not None:
        if not isinstance(predicted, Tensor) or predicted.shape != (num_nodes,):
            got = list(predicted.shape) if isinstance(predicted, Tensor) else type(predicted).__name__
            raise ValueError(
                f"'predicted' must hold the class of each of the {num_nodes} nodes (got {got}): pass "
                f'model(...).argmax(dim=-1)'
            )
        counts = counts == (predicted.to(target.device) != 0)[target]
    rows = torch.full((num_nodes,), -1, device=target.device)
    explained, rows_of_nodes = nodes.unique(return_inverse=True)
    rows[explained] = torch.arange(explained.numel(), device=target.device)
    counts = counts & (rows[target] >= 0)
    truth = torch.zeros(explained.numel(), num_nodes, dtype=torch.bool, device=target.device)
    truth[rows[target[counts]], source[counts]] = True
    truth[rows[explained], explained] = True
    return truth[rows_of_nodes]


def edge_truth(data: Data, index: Any, predicted: Tensor | None = None) -> Tensor:
    r"""The edges [B, E] that explain each of the nodes ``index``.

    In a motif graph these are the edges between nodes of the node's own motif; in a trust network those between the
    node and the others of its :meth:`node_truth`, in both directions.

    Args:
        data: A graph of :class:`MotifDataset` or :class:`BitcoinDataset`.
        index: The explained nodes: an int, ids [B], or a boolean mask [N].
        predicted: The predicted class [N] of every node, as in :meth:`node_truth`.
    """
    nodes = outputs_of(index, data.num_nodes, data.x.device)
    if 'edge_motif' in data:
        return data.edge_motif == motif_of(data, nodes)[:, None]
    truth = node_truth(data, nodes, predicted)
    row, col = data.edge_index
    return ((row == nodes[:, None]) & truth[:, col]) | ((col == nodes[:, None]) & truth[:, row])


def motif_of(data: Data, nodes: Tensor) -> Tensor:
    motif = data.node_motif[nodes]
    outside = nodes[motif < 0]
    if outside.numel() > 0:
        raise ValueError(
            f"'index' must name nodes of motifs, as no other has a ground truth (got {outside.numel()} others, "
            f'{int(outside[0])} first): pass data.node_motif >= 0 for all of them'
        )
    return motif
