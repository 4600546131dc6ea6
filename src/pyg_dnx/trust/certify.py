r"""How far to trust an explanation that is at hand."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.explain import Explainer, Explanation

from pyg_dnx import options as checks
from pyg_dnx.distill.distill import Distilled
from pyg_dnx.distill.surrogate import Decomposition
from pyg_dnx.explainers.base import DistillAndExplain, Inputs, algorithm_of
from pyg_dnx.graph.rows import pull_back
from pyg_dnx.results.certificate import Certificate, certificate
from pyg_dnx.scores.local_attribution import LocalAttribution
from pyg_dnx.scores.probe_rule import Probing
from pyg_dnx.trust.measure import inputs_of


def certify(explainer: Explainer, explanation: Explanation) -> Certificate:
    r"""Says what an explanation is worth, from the surrogate alone: the model is not evaluated if it is cached.

    The exception is ProbeDnX with a ``shortlist``, about which the model is asked again.

    It judges the masks that the explanation has now, after a threshold say, and both if there are two.

    Args:
        explainer (Explainer): An explainer with an algorithm of this package.
        explanation (Explanation): What it returned, or an item of what ``explain_nodes`` did.
    """
    algorithm = algorithm_of(explainer)
    inputs = Inputs(explainer.model, *inputs_of(explanation))
    return certificate_of(explanation, algorithm, inputs, algorithm._distill(inputs))


def certificate_of(
    explanation: Explanation, algorithm: DistillAndExplain, inputs: Inputs, distilled: Distilled
) -> Certificate:
    r"""The same, given the distilled model."""
    x, masks = explanation.x, checks.masks(explanation)
    nodes = checks.index(explanation.get('index'), x)
    decomposition, target = distilled.decomposition, explanation.get('target')
    with torch.no_grad():
        toward = algorithm._toward(distilled, nodes, target)
        rule = algorithm._rule(inputs, distilled, nodes, toward, target)
        if not isinstance(rule, Probing):
            return certificate(distilled, nodes, masked_evidence(decomposition, nodes, x, *masks), algorithm.doubt)
        directions = rule(decomposition, nodes, toward)
        local = LocalAttribution(decomposition, nodes, directions.direction, *cast(Any, directions.local))
        kept, trust = local.masked(x, *masks), cast(dict[str, Tensor], directions.trust)
        return rule.judge(distilled, nodes, decomposition.evidence[nodes], kept, trust, algorithm.doubt)


def masked_evidence(
    decomposition: Decomposition, nodes: Tensor, x: Tensor, node_mask: Tensor | None, edge_mask: Tensor | None
) -> Tensor:
    r"""The surrogate's :math:`Z - b` at some nodes, [B, C], if features and messages are multiplied by masks.

    Args:
        decomposition: The surrogate on the graph.
        nodes: The nodes [B].
        x: The features [N, F].
        node_mask: Of shape [N, 1], [N, F] or [1, F].
        edge_mask: Of shape [E].
    """
    operator, surrogate = decomposition.operator, decomposition.surrogate
    if edge_mask is not None:
        operator = operator.masked(edge_mask)
    if nodes.numel() > 1:
        signal = _masked_hidden(decomposition, x, node_mask, slice(None))
        for _ in range(surrogate.num_hops):
            signal = operator @ signal
        return signal[nodes]
    one = decomposition.hidden.new_ones(1, 1)
    last = pull_back(operator, nodes, one, surrogate.num_hops)[-1]  # the node's row of Ã^L
    return last.signal.T @ _masked_hidden(decomposition, x, node_mask, last.nodes)


def _masked_hidden(decomposition: Decomposition, x: Tensor, node_mask: Tensor | None, nodes: Tensor | slice) -> Tensor:
    hidden = decomposition.hidden[nodes]
    if node_mask is None:
        return hidden
    mask = node_mask if node_mask.size(0) == 1 else node_mask[nodes]
    if node_mask.size(1) == 1:
        return hidden * mask.to(hidden.dtype)
    return (x[nodes].detach() * mask).to(hidden.dtype) @ decomposition.surrogate.weight
