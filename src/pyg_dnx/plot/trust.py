r"""A report on trust as a picture."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from pyg_dnx.plot.theme import Theme, dress, new_figure, saved, theme_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyg_dnx.trust.report import Group, TrustReport

MAX_CLASSES_TO_NUMBER = 12  # in a confusion matrix


def report(report: TrustReport, *, theme: str = 'light', path: str | PathLike[str] | None = None) -> Figure:
    r"""Draws where a surrogate agrees with its model, and how reliable the verdicts are.

    Args:
        report (TrustReport): What :func:`~pyg_dnx.trust.report` returns.
        theme (str): ``'light'`` or ``'dark'``. (default: ``'light'``)
        path (str, optional): Where to save the picture. (default: nowhere)
    """
    colors = theme_of(theme)
    tables = {
        'size' if report.level == 'graph' else 'in-degree': report.by_degree,
        "model's confidence": report.by_confidence,
    }
    tables = {title: groups for title, groups in tables.items() if groups}
    num_panels = (report.confusion is not None) + len(tables) + 1
    figure = new_figure(colors, 3.7 * num_panels, 3.5, is_tidy=True)
    panels = iter(figure.subplots(1, num_panels, squeeze=False)[0])
    if report.confusion is not None:
        _draw_confusion(dress(next(panels), colors), report.confusion, colors)
    for title, groups in tables.items():
        _draw_groups(dress(next(panels), colors), groups, title, colors)
    _draw_reliability(dress(next(panels), colors), report, colors)
    return saved(figure, path)


def _draw_confusion(axes: Any, confusion: list[list[int]], theme: Theme) -> None:
    size = len(confusion)
    shares = [[count / max(1, sum(row)) for count in row] for row in confusion]
    image = axes.imshow(shares, cmap=theme.shares(), vmin=0.0, vmax=1.0)
    if size <= MAX_CLASSES_TO_NUMBER:
        axes.set(xticks=range(size), yticks=range(size))
        for i, row in enumerate(confusion):
            for j, count in enumerate(row):
                color = theme.ink(image.cmap(shares[i][j]))
                if count > 0:
                    axes.text(j, i, _short(count), ha='center', va='center', color=color, fontsize=7)
    else:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True, nbins=6)
        scale = axes.figure.colorbar(image, ax=axes, shrink=0.8)
        scale.outline.set_visible(False)
        dress(scale.ax, theme).set_ylabel("share of the model's class", fontsize=9)
    axes.spines[['left', 'bottom']].set_visible(False)
    axes.set(xlabel="surrogate's class", ylabel="model's class", title='Nodes by class')


def _draw_groups(axes: Any, groups: list[Group], title: str, theme: Theme) -> None:
    bars = axes.barh(range(len(groups)), [group.agreement for group in groups], color=theme.away)
    axes.bar_label(bars, [f'{group.agreement:.0%}' for group in groups], padding=3, fontsize=8, color=theme.muted)
    axes.set_yticks(range(len(groups)), [f'{group.name}\n({_short(group.num_nodes)})' for group in groups])
    axes.invert_yaxis()
    axes.set(xlim=(0.0, 1.18), xticks=[0.0, 0.5, 1.0], ylabel=f'{title} (nodes)', title='Agreement with the model')


def _draw_reliability(axes: Any, report: TrustReport, theme: Theme) -> None:
    rows = report.reliability
    means = [row.unfaithfulness for row in rows]
    low = [row.unfaithfulness - row.unfaithfulness_low for row in rows]
    high = [row.unfaithfulness_high - row.unfaithfulness for row in rows]
    colors = {'trustworthy': theme.away, 'doubtful': theme.toward}
    axes.barh(range(len(rows)), means, color=[colors.get(row.verdict, theme.line) for row in rows])
    axes.errorbar(means, range(len(rows)), xerr=[low, high], fmt='none', ecolor=theme.text, capsize=3)
    names = [row.verdict for row in rows]
    counts = [f'{row.num_checked} checked,\n{row.faithful:.0%} kept' for row in rows]
    axes.set_yticks(range(len(rows)), [f'{name}\n{count}' for name, count in zip(names, counts, strict=True)])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(xlabel='mean and its 95% interval', title='Measured unfaithfulness')
    axes.locator_params(axis='x', nbins=5)


def _short(count: int) -> str:
    return f'{count / 1e6:.1f}M' if count >= 1e6 else f'{count / 1e3:.1f}k' if count >= 1e4 else str(count)
