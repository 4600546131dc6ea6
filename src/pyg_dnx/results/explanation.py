r"""From an attribution to a PyG :class:`~torch_geometric.explain.Explanation`, with what says how far to trust it."""

from __future__ import annotations

import sys
import warnings
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch_geometric.explain import Explanation
from torch_geometric.explain.config import MaskType

from pyg_dnx.distill.distill import Distilled
from pyg_dnx.distill.surrogate import Decomposition
from pyg_dnx.scores.attribution import attribute
from pyg_dnx.scores.local_attribution import LocalAttribution
from pyg_dnx.scores.masks import to_mask
from pyg_dnx.scores.rules import Directions

SHARE_TO_WARN = 0.1  # of explained nodes
_NOT_THE_USER = {'pyg_dnx', 'torch', 'torch_geometric'}


class SurrogateWarning(UserWarning):
    r"""The surrogate does not speak for the model here."""


class View(NamedTuple):
    r"""What the user wants to see."""

    node_mask_type: MaskType | None
    edge_mask_type: MaskType | None
    edge_score: str
    mask: str
    by_weight: bool = False  # score nodes by their weights, as published for DnX


def to_explanation(
    decomposition: Decomposition,
    nodes: Tensor,
    directions: Directions,
    trust: dict[str, Tensor],
    x: Tensor,
    edge_index: Any,
    view: View,
) -> Explanation:
    r"""Explains ``nodes`` [B] jointly, by masks and signed scores, and says how far to trust the surrogate there."""
    if directions.local is None:
        attribution = attribute(decomposition, nodes, directions.direction)
    else:
        attribution = LocalAttribution(decomposition, nodes, directions.direction, *directions.local)
    inside = attribution.neighbourhood
    dtype = x.dtype if x.dtype.is_floating_point else torch.float32
    scores = attribution.node_scores()
    weight = None if directions.node_weight is None else directions.node_weight.to(scores.dtype) / nodes.numel()
    if view.by_weight and weight is not None:
        scores = weight[inside]
    node_score = scores.new_zeros(x.size(0)).index_copy_(0, inside, scores)
    found = {'node_score': node_score, **trust}
    if weight is not None:
        found.update(node_weight=weight, duality_gap=cast(Tensor, directions.duality_gap))

    if view.node_mask_type == MaskType.object:
        found['node_mask'] = to_mask(node_score, inside, view.mask, dtype)[:, None]
    elif view.node_mask_type == MaskType.attributes:
        attribute_scores = attribution.attribute_scores(x.detach())
        found['node_score'] = attribute_scores.new_zeros(x.shape).index_copy_(0, inside, attribute_scores)
        found['node_mask'] = to_mask(found['node_score'], inside, view.mask, dtype)
    elif view.node_mask_type == MaskType.common_attributes:
        found['feature_score'] = attribution.feature_scores(x.detach())
        found['node_mask'] = to_mask(found['feature_score'], None, view.mask, dtype)[None]

    if view.edge_mask_type is not None:
        found['edge_score'], inside = attribution.edge_scores(edge_index, view.edge_score, node_score)
        found['edge_mask'] = to_mask(found['edge_score'], inside, view.mask, dtype)
    return Explanation().update(found)  # as Explanation(**found), in half the time


def _level_of_user() -> int:
    r"""The stack level, for the caller's warning, of the first frame that is the user's."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get('__name__', '').split('.')[0] in _NOT_THE_USER:
        frame, level = frame.f_back, level + 1
    return level


def warn_if_not_converged(distilled: Distilled) -> None:
    r"""Warns if the solver stopped short of the optimum."""
    report = distilled.surrogate.report
    if not report.converged:
        _warn(
            f'The distillation did not converge (solver {report.solver!r}, ridge {report.ridge:g}), so that scores may '
            f"change with the slightest change of the model: pass a larger 'ridge', or rescale 'x'"
        )


def warn_about_missing_probes() -> None:
    r"""Warns that scores are not ProbeDnX's."""
    _warn(
        "ProbeDnX without probes scores nodes as FastDnX with score='target' does: pass a larger 'num_probes', and the "
        "'model' or its 'probe_outputs'"
    )


def warn_about_randomness() -> None:
    r"""Warns that the model does not repeat its predictions."""
    _warn(
        "'model' gave other predictions when it was evaluated again on the same inputs, so that its explanations "
        'describe one draw of many: make it deterministic in evaluation mode'
    )


def warn_if_doubtful(
    trust: dict[str, Tensor], distilled: Distilled, nodes: Tensor, doubt: float, has_target: bool
) -> None:
    r"""Warns if more than a tenth of the explanations are not explained, or doubtful whatever their masks are."""
    agreement, bias_decides, error = (
        trust[name] for name in ('surrogate_agreement', 'bias_decides', 'distillation_error')
    )
    limit = 0.5 * doubt * distilled.unit
    # Most explanations are of one node, where reductions would only cost time.
    worst = (agreement, bias_decides, error)
    if nodes.numel() > 1:
        worst = (agreement.all(), bias_decides.any(), error.max())
    if bool(worst[0]) and not bool(worst[1]) and float(worst[2]) <= limit:
        return
    disagrees, errs = ~agreement, error > limit
    report, num_hops = distilled.surrogate.report, distilled.surrogate.num_hops
    if 'probe_r2' in trust:
        if _share(disagrees) > SHARE_TO_WARN:
            _warn("Probes don't explain the model where 'probe_r2' is not positive. Try more 'num_probes'.")
        elif _share(error > 2.0 * limit) > SHARE_TO_WARN:
            _warn(
                f"Explanations are doubtful where 'distillation_error' is above {2.0 * limit:g}. Try more 'num_probes'."
            )
        return
    remedy = (
        f"another 'num_hops' (got {num_hops}), 'auto' among them, a lower 'ridge' (got {report.ridge:g}), or ProbeDnX"
    )
    if _share(disagrees) > SHARE_TO_WARN:
        where = f'node {int(nodes[0])}' if nodes.numel() == 1 else f'{int(disagrees.sum())} of {nodes.numel()} nodes'
        _warn(
            f'The surrogate disagrees with the model at {where}, so that this explanation may not speak for the model '
            f'(agreement on the whole graph: {report.agreement:.1%}). Try {remedy}.'
        )
    elif _share(errs) > SHARE_TO_WARN:  # no numbers of this node, so that Python shows it once
        _warn(f"Explanations are doubtful where 'distillation_error' is above {limit:g}. Try {remedy}.")
    elif not has_target and _share(bias_decides) > SHARE_TO_WARN:
        _warn(
            "Explanations are doubtful where 'bias_decides': the surrogate's class comes from its bias, and scores may "
            "point to another one. Try score='target'."
        )


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())


def _warn(text: str) -> None:
    warnings.warn(text, SurrogateWarning, stacklevel=_level_of_user())
