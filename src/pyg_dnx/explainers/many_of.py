r"""Many explanations at once, from an explainer that has the model already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch_geometric.explain import Explainer

from pyg_dnx.explainers.base import algorithm_of
from pyg_dnx.results.graph_explanations import GraphExplanations
from pyg_dnx.results.node_explanations import LinkExplanations, NodeExplanations


def explain_nodes(explainer: Explainer, x: Any, edge_index: Any, **options: Any) -> NodeExplanations:
    r"""Explains each node of a graph by itself: :meth:`FastDnXAlgorithm.explain_nodes` with the explainer's model.

    Args:
        explainer (Explainer): An explainer with an algorithm of this package.
        x (Tensor): The node features [N, F].
        edge_index: The graph, as the model takes it.
        **options: Options of :meth:`FastDnXAlgorithm.explain_nodes` (``index``, ``top_k``, ``target``, ``checkpoint``,
            …), and further arguments of the model.
    """
    return algorithm_of(explainer).explain_nodes(explainer.model, x, edge_index, **options)


def explain_links(explainer: Explainer, x: Any, edge_index: Any, **options: Any) -> LinkExplanations:
    r"""Explains each pair of nodes by itself: :meth:`FastDnXAlgorithm.explain_links` with the explainer's model.

    For the arguments, see :func:`explain_nodes`; the pairs are ``edge_label_index``, as for the model.
    """
    return algorithm_of(explainer).explain_links(explainer.model, x, edge_index, **options)


def explain_graphs(explainer: Explainer, data: Iterable[Any], **options: Any) -> GraphExplanations:
    r"""Explains each graph of a data set by itself: :meth:`FastDnXAlgorithm.explain_graphs` with the explainer's model.

    Args:
        explainer (Explainer): An explainer with an algorithm of this package.
        data (DataLoader, Dataset or list): The graphs.
        **options: Options of :meth:`FastDnXAlgorithm.explain_graphs`.
    """
    return algorithm_of(explainer).explain_graphs(explainer.model, data, **options)
