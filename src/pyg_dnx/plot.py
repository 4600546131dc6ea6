r"""Pictures, with matplotlib where it is installed."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyg_dnx.trust_report import Group, TrustReport

BLUE, ORANGE, GREY = '#0072B2', '#D55E00', '#999999'  # told apart by colour-blind readers, too
MAX_CLASSES_TO_NUMBER = 12  # in a confusion matrix


def draw_report(report: TrustReport, path: str | PathLike[str] | None = None) -> Any:
    r"""Draws where a surrogate agrees with its model, and how reliable the verdicts are."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need 'matplotlib', which is not installed: pip install matplotlib") from error

    panels = [report.by_degree, report.by_confidence]
    panels = [groups for groups in panels if groups]
    titles = ['in-degree', 'confidence of the model']
    width = 2 + len(panels) if report.confusion is not None else 1 + len(panels)
    figure = Figure(figsize=(3.6 * width, 3.6), layout='constrained')
    axes = figure.subplots(1, width)
    if report.confusion is not None:
        _draw_confusion(axes[0], report.confusion)
    for axis, groups, title in zip(axes[-1 - len(panels) : -1], panels, titles, strict=False):
        _draw_groups(axis, groups, title)
    _draw_reliability(axes[-1], report)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _draw_confusion(axes: Any, confusion: list[list[int]]) -> None:
    shares = [[count / max(1, sum(row)) for count in row] for row in confusion]
    axes.imshow(shares, cmap='Blues', vmin=0.0, vmax=1.0)
    size = len(confusion)
    if size <= MAX_CLASSES_TO_NUMBER:
        for i in range(size):
            for j in range(size):
                color = 'white' if shares[i][j] > 0.6 else 'black'
                if confusion[i][j] > 0:
                    axes.text(j, i, _short(confusion[i][j]), ha='center', va='center', color=color, fontsize=7)
        axes.set_xticks(range(size))
        axes.set_yticks(range(size))
    axes.set(xlabel="surrogate's class", ylabel="model's class", title='Nodes by class')


def _draw_groups(axes: Any, groups: list[Group], title: str) -> None:
    place = range(len(groups))
    axes.bar(place, [group.agreement for group in groups], color=BLUE)
    axes.set_xticks(place, [f'{group.name}\n({_short(group.num_nodes)})' for group in groups], fontsize=7, rotation=30)
    axes.set(ylim=(0.0, 1.05), xlabel=f'{title} (nodes)', title='Agreement with the model')
    axes.spines[['top', 'right']].set_visible(False)


def _draw_reliability(axes: Any, report: TrustReport) -> None:
    rows = report.reliability
    place, means = range(len(rows)), [row.unfaithfulness for row in rows]
    low = [row.unfaithfulness - row.unfaithfulness_low for row in rows]
    high = [row.unfaithfulness_high - row.unfaithfulness for row in rows]
    colors = {'trustworthy': BLUE, 'doubtful': ORANGE}
    axes.bar(place, means, color=[colors.get(row.verdict, GREY) for row in rows])
    axes.errorbar(place, means, yerr=[low, high], fmt='none', ecolor='black', capsize=3)
    names = [row.verdict.replace(' by this surrogate', '') for row in rows]
    labels = [
        f'{name}\n{row.num_checked} checked,\n{row.faithful:.0%} kept' for name, row in zip(names, rows, strict=True)
    ]
    axes.set_xticks(place, labels, fontsize=7)
    axes.set(xlabel='verdict', title='Measured unfaithfulness')
    axes.spines[['top', 'right']].set_visible(False)


def _short(count: int) -> str:
    return f'{count / 1e6:.1f}M' if count >= 1e6 else f'{count / 1e3:.1f}k' if count >= 1e4 else str(count)
