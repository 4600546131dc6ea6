r"""Importance as bars: of features, and of nodes for each of many explained ones."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pyg_dnx import options
from pyg_dnx.plot.theme import Theme, dress, name_of, new_figure, number, saved, theme_of, title_of
from pyg_dnx.results.node_explanations import NodeExplanations

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PANELS = 12
PANELS_IN_A_ROW = 4
MAX_LINE = 36  # letters of a feature's label in one line
MAX_LETTERS = 20  # of a node's label


def features(
    explanation: Any,
    top_k: int = 10,
    *,
    labels: Sequence[Any] | Mapping[int, Any] | None = None,
    title: str | None = None,
    theme: str = 'light',
    path: str | PathLike[str] | None = None,
) -> Figure:
    r"""Draws the features with the highest ``|score|`` as bars, signed where there are signed scores.

    Args:
        explanation (Explanation): Any explainer's explanation with ``feature_score`` [F], ``node_score`` [N, F] or
            ``node_mask`` [N, F] or [1, F], of which the first is taken and summed over nodes.
        top_k (int): How many features to show; the others are summed up in a line. (default: ``10``)
        labels (list or dict, optional): What to call features. (default: their numbers)
        title (str, optional): The title. (default: what is explained)
        theme (str): ``'light'`` or ``'dark'``. (default: ``'light'``)
        path (str, optional): Where to save the picture. (default: nowhere)
    """
    options.count('top_k', top_k)
    colors = theme_of(theme)
    score, name = _feature_scores(explanation)
    is_signed = name != 'node_mask' or bool((score < 0).any())
    order = score.abs().argsort(descending=True, stable=True)
    order = order[score[order] != 0]
    shown, rest = order[:top_k], score.numel() - min(top_k, order.numel())
    names = [textwrap.fill(name_of(labels, j, 'labels'), MAX_LINE) for j in shown.tolist()]
    num_lines = sum(text.count('\n') + 1 for text in names)
    longest = max((len(line) for text in names for line in text.split('\n')), default=0)

    figure = new_figure(colors, 4.6 + 0.07 * longest, 1.5 + 0.2 * num_lines + 0.06 * len(names), is_tidy=True)
    axes = dress(figure.subplots(), colors)
    values = score[shown].tolist()
    bars = _draw_bars(axes, values, names, is_signed, colors)
    axes.bar_label(bars, [number(value) for value in values], padding=3, fontsize=8, color=colors.muted)
    axes.margins(x=0.14)
    axes.set_ylabel('feature' if labels is None else '', fontsize=9)
    meaning = 'pushes away from / toward the prediction' if is_signed else 'importance (node mask)'
    axes.set_xlabel(f'score: {meaning}' if name != 'node_mask' else meaning, fontsize=9)
    figure.suptitle(title or title_of(explanation), color=colors.text, fontsize=13)
    if rest > 0:
        what = 'score' if name != 'node_mask' else 'mask'
        text = f'+ {rest:,} more feature{"s" * (rest > 1)}, {what} sum {number(float(score[order[top_k:]].sum()))}'
        figure.supxlabel(text, color=colors.muted, fontsize=8.5, x=0.02, ha='left')
    return saved(figure, path)


def _feature_scores(explanation: Any) -> tuple[Tensor, str]:
    r"""Returns the score of each feature [F], and what it comes from."""
    for name in ('feature_score', 'node_score', 'node_mask'):
        value = explanation.get(name)
        if value is not None and (name == 'feature_score' or (value.dim() == 2 and value.size(1) > 1)):
            value = value.detach().cpu().double()
            if not bool(value.isfinite().all()):
                raise ValueError(f"'{name}' of the explanation must be finite (got NaN or infinity): explain another")
            return value if name == 'feature_score' else value.sum(dim=0), name
    raise ValueError(
        "'explanation' must say something of features (got masks of whole nodes or edges alone): pass "
        "node_mask_type='attributes' or 'common_attributes' to the Explainer"
    )


def batch(
    explanations: NodeExplanations,
    top_k: int = 5,
    *,
    node_labels: Sequence[Any] | Mapping[int, Any] | None = None,
    title: str | None = None,
    theme: str = 'light',
    path: str | PathLike[str] | None = None,
) -> Figure:
    r"""Draws, for each of the first twelve explained nodes, the nodes with the highest scores as bars.

    Args:
        explanations (NodeExplanations): What ``explain_nodes`` returns.
        top_k (int): How many nodes to show for each. (default: ``5``)
        node_labels (list or dict, optional): What to call nodes. (default: their ids)
        title (str, optional): The title. (default: how many nodes are explained)
        theme (str): ``'light'`` or ``'dark'``. (default: ``'light'``)
        path (str, optional): Where to save the picture. (default: nowhere)
    """
    if not isinstance(explanations, NodeExplanations):
        raise TypeError(
            f"'explanations' must be what 'explain_nodes' returns (got {type(explanations).__name__}): draw a single "
            f"explanation with 'plot.neighborhood'"
        )
    colors, size = theme_of(theme), min(MAX_PANELS, len(explanations))
    nodes, scores = (values[:size].cpu() for values in explanations.top_k(top_k))
    num_columns = min(PANELS_IN_A_ROW, size)
    num_rows = -(-size // num_columns)
    names = [[_short(name_of(node_labels, j, 'node_labels')) for j in row if j >= 0] for row in nodes.tolist()]
    longest = max(len(name) for row in names for name in row)
    width, height = 1.8 + 0.06 * longest, 0.9 + 0.2 * top_k
    figure = new_figure(colors, max(4.0, num_columns * width), num_rows * height + 0.7, is_tidy=True)
    panels = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    targets, has_doubt = explanations.targets, False
    for b, axes in enumerate(panels):
        if b >= size:
            axes.set_axis_off()
            continue
        node, row = int(explanations.index[b]), scores[b, : len(names[b])].tolist()
        dress(axes, colors)
        _draw_bars(axes, row, names[b], True, colors, num_slots=top_k)
        axes.locator_params(axis='x', nbins=3)
        for tick, other in zip(axes.get_yticklabels(), nodes[b].tolist(), strict=False):
            tick.set_fontweight('bold' if other == node else 'normal')
        doubt = '' if bool(explanations.surrogate_agreement[b]) else ' *'
        has_doubt = has_doubt or doubt != ''
        name = f'node {node}' if node_labels is None else _short(name_of(node_labels, node, 'node_labels'))
        target = '' if targets is None else f'class {int(targets[b])}'
        axes.set_title((', ' if node_labels is None else '\n').join(filter(None, [name, target])) + doubt, fontsize=9)
    of = f'{size}' if size == len(explanations) else f'the first {size} of {len(explanations):,}'
    figure.suptitle(
        title or f'Highest scores for {of} explained node{"s" * (len(explanations) > 1)}', color=colors.text
    )
    note = '* the surrogate disagrees with the model here' if has_doubt else ''
    figure.supxlabel(note, color=colors.muted, fontsize=8.5, x=0.02, ha='left')
    return saved(figure, path)


def _draw_bars(
    axes: Any, scores: list[float], names: list[str], is_signed: bool, theme: Theme, num_slots: int | None = None
) -> Any:
    r"""Horizontal bars, the first on top, in colours by sign."""
    signed = [theme.toward if score >= 0 else theme.away for score in scores]
    bars = axes.barh(range(len(scores)), scores, color=signed if is_signed else theme.unsigned, height=0.72)
    axes.set_yticks(range(len(scores)), names)
    axes.set_ylim((num_slots or max(1, len(scores))) - 0.5, -0.5)
    axes.tick_params(axis='y', length=0)
    axes.axvline(0.0, color=theme.muted, linewidth=0.8)
    axes.spines['left'].set_visible(False)
    return bars


def _short(name: str) -> str:
    return name if len(name) <= MAX_LETTERS else f'{name[: MAX_LETTERS - 1].rstrip()}…'
