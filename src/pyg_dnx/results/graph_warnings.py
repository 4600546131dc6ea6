r"""What is said of models of graphs that a surrogate, or any explanation, can't do justice to."""

from __future__ import annotations

from torch import Tensor

from pyg_dnx.distill.surrogate import Report
from pyg_dnx.results.warnings import SHARE_TO_WARN, _warn

MUCH = 0.1  # by which the model's answers move


def warn_about_graphs(report: Report) -> None:
    r"""Warns of what distillation has shown: of arguments the surrogate can't see, of chance, and of saturation."""
    found = report.graphs
    if found is None:
        return
    for name, moved in found.unseen.items():
        if moved > MUCH:
            _warn(
                f"The model goes by '{name}', which the surrogate can't see: shuffled among edges, it moves "
                f"answers by {moved:.0%} on average. Use ProbeDnX with how='nodes', which asks the model itself."
            )
    if report.agreement <= found.most_frequent < 1.0:
        _warn(
            f'The surrogate agrees with the model on {report.agreement:.0%} of the graphs, and the most frequent class '
            f'alone on {found.most_frequent:.0%}, so that FastDnX and DnX do not explain this model. Use ProbeDnX.'
        )
    if found.moved == 0.0:
        warn_about_saturation()


def is_saturated(moved: Tensor | None) -> bool:
    r"""Whether more than a tenth of explained graphs are never moved, given the share of probes that move each, [G]."""
    return moved is not None and float((moved == 0.0).double().mean()) > SHARE_TO_WARN


def warn_about_saturation() -> None:
    r"""Warns that nothing that was taken away changes what the model predicts."""
    _warn(
        'The model is saturated: it predicts the same whatever nodes were taken away. Scores show what moves its '
        "answer, and no explanation changes its prediction. Try the other 'how', or explain the output before the "
        'softmax as a regression.'
    )


def warn_about_mixing() -> None:
    r"""Warns that the model does not answer for each graph of a batch by itself."""
    _warn(
        "'model' answers otherwise for a graph in a batch than for the graph alone, so that graphs are asked about one "
        'by one, which takes longer: see that no layer mixes the graphs of a batch in evaluation mode'
    )
