r"""Warnings where an explanation is not to be trusted, at most one a call."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from pyg_dnx.distill.distill import Distilled, Trust

SHARE_TO_WARN = 0.1  # of explained outputs
AGREEMENT = {'node': 'on the whole graph', 'edge': 'on held-out pairs', 'graph': 'on all graphs'}
REMEDY = "Ask the model what an explanation is worth, with 'pyg_dnx.certify'."
_NOT_THE_USER = {'pyg_dnx', 'torch', 'torch_geometric', 'contextlib'}
_shown: ContextVar[list[str] | None] = ContextVar('shown', default=None)  # in the present call


class SurrogateWarning(UserWarning):
    r"""The surrogate does not stand for the model here."""


def _level_of_user() -> int:
    r"""The stack level, for the caller's warning, of the first frame that is the user's."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get('__name__', '').split('.')[0] in _NOT_THE_USER:
        frame, level = frame.f_back, level + 1
    return level


@contextmanager
def one_warning() -> Iterator[None]:
    r"""Within it, the first warning is shown and no further one."""
    if _shown.get() is not None:
        yield
        return
    token = _shown.set([])
    try:
        yield
    finally:
        _shown.reset(token)


def warn_if_not_converged(distilled: Distilled) -> None:
    r"""Warns if the solver stopped short of the optimum."""
    report = distilled.surrogate.report
    if not report.converged:
        _warn(
            f'The distillation did not converge (solver {report.solver!r}, ridge {report.ridge:g}), so that scores may '
            f"change with the slightest change of the model: pass a larger 'ridge'"
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


def warn_about_sharing(name: str) -> None:
    r"""Warns that what another explainer is configured to show has changed."""
    _warn(
        f"This {name} was connected with another configuration before, which the earlier 'Explainer' loses: its masks "
        f"and targets are those of this one from now on. Give each 'Explainer' a {name}() of its own",
        UserWarning,
    )


def warn_if_doubtful(trust: Trust, distilled: Distilled, nodes: Tensor, doubt: float, has_target: bool) -> None:
    r"""Warns if more than a tenth of the explanations are not explained, or doubtful whatever their masks are."""
    weakness = distilled.surrogate.report.weakness
    if weakness is not None and trust.probe_r2 is None:
        _warn(
            f"Explanations of links are doubtful: the surrogate predicts little of the model's answers about held-out "
            f'pairs (R² {weakness:.2f}). Use ProbeDnX.'
        )
        return
    agreement, bias_decides, error = trust.surrogate_agreement, trust.bias_decides, trust.distillation_error
    limit = (0.5 if trust.probe_r2 is None else 1.0) * doubt * distilled.unit
    # Most explanations are of one node, where reductions would only cost time.
    worst = (agreement, bias_decides, error)
    if nodes.numel() > 1:
        worst = (agreement.all(), bias_decides.any(), error.max())
    if bool(worst[0]) and not bool(worst[1]) and float(worst[2]) <= limit:
        return
    disagrees, report = ~agreement, distilled.surrogate.report
    if _share(disagrees) > SHARE_TO_WARN:
        if trust.probe_r2 is not None:
            _warn(f"Probes don't explain the model where 'probe_r2' is not positive. {REMEDY}")
            return
        noun = {'node': 'node', 'edge': 'pair', 'graph': 'graph'}[distilled.surrogate.level]
        where = f'{int(disagrees.sum())} of {nodes.numel()} {noun}s'
        where = f'{noun} {int(nodes[0])}' if nodes.numel() == 1 else where
        _warn(
            f'The surrogate disagrees with the model at {where}, so that this explanation may not hold for the model '
            f'(agreement {AGREEMENT[distilled.surrogate.level]}: {report.agreement:.1%}). {REMEDY}'
        )
    elif _share(error > limit) > SHARE_TO_WARN:  # no numbers of this node, so that Python shows it once
        _warn(f"Explanations are doubtful where 'distillation_error' is above {limit:g}. {REMEDY}")
    elif not has_target and trust.probe_r2 is None and _share(bias_decides) > SHARE_TO_WARN:
        _warn(
            "Explanations are doubtful where 'bias_decides': the surrogate's class comes from its bias, and scores may "
            f'point to another one. {REMEDY}'
        )


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())


def _warn(text: str, category: type[Warning] = SurrogateWarning) -> None:
    shown = _shown.get()
    if shown:
        return
    if shown is not None:
        shown.append(text)
    warnings.warn(text, category, stacklevel=_level_of_user())
