r"""Importance as bars: of features, and of nodes for each of many explained ones."""

from __future__ import annotations

import textwrap
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch_geometric.data import Data, HeteroData

from pyg_dnx import options
from pyg_dnx.plot import many
from pyg_dnx.plot.theme import Theme, dress, new_figure, saved, theme_of
from pyg_dnx.results.node_explanations import NodeExplanations
from pyg_dnx.view.words import Labels, feature_values, names_of, number, question_of

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
    kind: str = 'bar',
    by_class: bool = False,
    labels: Labels = None,
    class_names: Labels = None,
    title: str | None = None,
    theme: str = 'light',
    path: str | PathLike[str] | None = None,
) -> Figure:
    r"""Draws the features that matter most: of one explanation, or over the explanations of many nodes.

    Of one, signed scores as bars, beside names and values at the explained node. Of many, by ``kind``: the mean
    ``|score|`` as bars, a beeswarm with a point for each node, or a matrix of the mean score by class.

    Args:
        explanation (Explanation, NodeExplanations or iterable of Explanation): Any explainer's explanations with
            ``feature_score`` [F], ``node_score`` [N, F] or ``node_mask`` [N, F] or [1, F], of which the first is taken
            and summed over nodes. For many, ``node_mask_type='common_attributes'`` is best.
        top_k (int): How many features to show; the others of one explanation are summed up in a line. (default:
            ``10``)
        kind (str): Of many explanations, ``'bar'``, ``'beeswarm'`` or ``'matrix'``. (default: ``'bar'``)
        by_class (bool): Bars and beeswarms in a panel for each class, on one scale. (default: ``False``)
        labels (list or dict, optional): What to call features. (default: the explanation's ``feature_names``, or else
            numbers)
        class_names (list or dict, optional): What to call classes. (default: its ``class_names``, or else numbers)
        title (str, optional): The title. (default: what is explained)
        theme (str): ``'light'`` or ``'dark'``. (default: ``'light'``)
        path (str, optional): Where to save the picture. (default: nowhere)
    """
    options.choice('kind', kind, ('bar', 'beeswarm', 'matrix'))
    options.count('top_k', top_k)
    colors = theme_of(theme)
    if not isinstance(explanation, (Data, HeteroData)):
        look = many.Look(labels, class_names, title, colors)
        return saved(many.features(explanation, top_k, kind, by_class, look), path)
    if kind != 'bar' or by_class:
        raise ValueError(
            f"'kind' must be 'bar', and 'by_class' False, for a single explanation (got {kind!r} and {by_class}): pass "
            f'those of many nodes'
        )
    named, values = names_of(explanation, None, labels, class_names, 'labels'), feature_values(explanation)
    score, name, keys = many.known_scores(explanation)
    is_signed = name != 'node_mask' or bool((score < 0).any())
    order = score.abs().argsort(descending=True, stable=True)
    order = order[score[order] != 0]
    shown, rest = order[:top_k], score.numel() - min(top_k, order.numel())
    names = [named.feature(*keys[j]) for j in shown.tolist()]
    if values is not None:
        names = [f'{name} = {number(float(values[j]))}' for name, j in zip(names, shown.tolist(), strict=True)]
    names = [textwrap.fill(name, MAX_LINE) for name in names]
    num_lines = sum(text.count('\n') + 1 for text in names)
    longest = max((len(line) for text in names for line in text.split('\n')), default=0)

    figure = new_figure(colors, 4.6 + 0.07 * longest, 1.5 + 0.2 * num_lines + 0.06 * len(names), is_tidy=True)
    axes = dress(figure.subplots(), colors)
    widths = score[shown].tolist()
    bars = draw_bars(axes, widths, names, is_signed, colors)
    axes.bar_label(bars, [number(width) for width in widths], padding=3, fontsize=8, color=colors.muted)
    axes.margins(x=0.24 if min(widths, default=0.0) < 0.0 else 0.14)  # for the numbers
    axes.set_ylabel('' if named.has_features else 'feature', fontsize=9)
    meaning = 'pushes away from / toward the prediction' if is_signed else 'importance (node mask)'
    axes.set_xlabel(f'score: {meaning}' if name != 'node_mask' else meaning, fontsize=9)
    figure.suptitle(title or question_of(explanation, named)[0], color=colors.text, fontsize=13)
    if rest > 0:
        what = 'score' if name != 'node_mask' else 'mask'
        text = f'+ {rest:,} more feature{"s" * (rest > 1)}, {what} sum {number(float(score[order[top_k:]].sum()))}'
        figure.supxlabel(text, color=colors.muted, fontsize=8.5, x=0.02, ha='left')
    return saved(figure, path)


def batch(
    explanations: NodeExplanations,
    top_k: int = 5,
    *,
    node_labels: Labels = None,
    class_names: Labels = None,
    title: str | None = None,
    theme: str = 'light',
    path: str | PathLike[str] | None = None,
) -> Figure:
    r"""Draws, for each of the first twelve explained nodes, the nodes with the highest scores as bars, on one scale.

    Args:
        explanations (NodeExplanations): What ``explain_nodes`` returns.
        top_k (int): How many nodes to show for each. (default: ``5``)
        node_labels (list or dict, optional): What to call nodes. (default: their ``node_names``, or else ids)
        class_names (list or dict, optional): What to call classes. (default: their ``class_names``, or else numbers)
        title (str, optional): The title. (default: how many nodes are explained)
        theme (str): ``'light'`` or ``'dark'``. (default: ``'light'``)
        path (str, optional): Where to save the picture. (default: nowhere)
    """
    many.check_batch('explanations', explanations)
    colors, size = theme_of(theme), min(MAX_PANELS, len(explanations))
    nodes, scores = (values[:size].cpu() for values in explanations.top_k(top_k))
    num_columns = min(PANELS_IN_A_ROW, size)
    num_rows = -(-size // num_columns)
    named = names_of(explanations, node_labels, None, class_names)
    names = [[_short(named.node(j, None)) for j in row if j >= 0] for row in nodes.tolist()]
    others = scores[nodes != explanations.index[:size].cpu()[:, None]]  # an own score may dwarf all
    others = others if bool((others != 0.0).any()) else scores
    low, high = min(0.0, 1.08 * float(others.min())), max(0.0, 1.08 * float(others.max()))
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
        draw_bars(axes, row, names[b], True, colors, num_slots=top_k)
        axes.set_xlim(low, high if high > low else 1.0)
        for place, score in enumerate(row):
            if not low <= score <= max(high, low):
                text, end = (f'{number(score)} ›', high) if score > 0 else (f'‹ {number(score)}', low)
                side, color = 'right' if score > 0 else 'left', colors.ink(colors.toward if score > 0 else colors.away)
                axes.text(end, place, text, ha=side, va='center', fontsize=7, color=color)
        axes.locator_params(axis='x', nbins=3)
        for tick, other in zip(axes.get_yticklabels(), nodes[b].tolist(), strict=False):
            tick.set_fontweight('bold' if other == node else 'normal')
        doubt = '' if bool(explanations.surrogate_agreement[b]) else ' *'
        has_doubt = has_doubt or doubt != ''
        name = _short(named.node(node, None)) if named.has_nodes else f'node {node}'
        target = '' if targets is None else _short(named.of_class(int(targets[b])))
        axes.set_title(
            ('\n' if named.has_nodes or len(target) > 9 else ', ').join(filter(None, [name, target])) + doubt,
            fontsize=9,
        )
    of = f'{size}' if size == len(explanations) else f'the first {size} of {len(explanations):,}'
    figure.suptitle(
        title or f'Highest scores for {of} explained node{"s" * (len(explanations) > 1)}', color=colors.text
    )
    note = '* the surrogate disagrees with the model here' if has_doubt else ''
    figure.supxlabel(note, color=colors.muted, fontsize=8.5, x=0.02, ha='left')
    return saved(figure, path)


def draw_bars(
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
