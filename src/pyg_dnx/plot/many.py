r"""What matters to many explained nodes: features over all of them, and neighbours that many share."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_dnx import options
from pyg_dnx.plot.theme import Theme, dress, new_figure, saved, theme_of
from pyg_dnx.results.node_explanations import NodeExplanations
from pyg_dnx.view.words import Labels, class_of, feature_scores, feature_values, names_of, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LINE = 26  # letters of a name in one line
MAX_PANELS = 8  # classes side by side
MAX_TO_NUMBER = 120  # cells of a matrix
BINS = 100  # of a beeswarm, whose points are stacked in each
WHAT = 'explained nodes'


class Look(NamedTuple):
    r"""How to write and draw."""

    labels: Labels
    class_names: Labels
    title: str | None
    theme: Theme


class Collected(NamedTuple):
    r"""Scores of features [B, F], features of the explained nodes [B, F], and what is explained at each."""

    scores: np.ndarray
    values: np.ndarray | None
    classes: list[str | None]
    source: str
    names: list[str]

    def of(self, kind: str) -> Collected:
        rows = np.array([name == kind for name in self.classes])
        values = None if self.values is None else self.values[rows]
        return self._replace(scores=self.scores[rows], values=values, classes=[kind] * int(rows.sum()))


def known_scores(explanation: Any) -> tuple[Tensor, str, list[tuple[int, str | None]]]:
    r"""Returns the score of each feature [F], what it comes from, and its number and type."""
    known = feature_scores(explanation)
    if known is None:
        raise ValueError(
            "'explanation' must say something of features (got masks of whole nodes or edges alone): pass "
            "node_mask_type='attributes' or 'common_attributes' to the Explainer"
        )
    if not bool(known[0].isfinite().all()):
        raise ValueError(f"'{known[1]}' of the explanation must be finite (got NaN or infinity): explain another")
    return known


def features(
    explanations: Iterable[Any],
    top_k: int,
    kind: str,
    by_class: bool,
    look: Look,
) -> Figure:
    r"""Draws features over many explanations: see :func:`pyg_dnx.plot.features`."""
    found, theme = _collected(explanations, look.labels, look.class_names), look.theme
    order = np.argsort(-np.abs(found.scores).mean(axis=0), kind='stable')[:top_k]
    names = [textwrap.fill(found.names[f], MAX_LINE) for f in order]
    found = found._replace(
        scores=found.scores[:, order], values=None if found.values is None else found.values[:, order], names=names
    )
    classes = sorted(set(filter(None, found.classes)))
    if (kind == 'matrix' or by_class) and not classes:
        raise ValueError(
            "'explanations' must be of classes for a matrix, or panels by class (got none): pass kind='bar' or "
            "'beeswarm', and by_class=False"
        )
    heading = look.title or f'Features that matter at {len(found.scores):,} {WHAT}'
    if kind == 'matrix':
        return _matrix(found, classes, heading, theme)
    parts = {name: found.of(name) for name in classes[:MAX_PANELS]} if by_class else {'': found}
    longest = max((len(line) for name in names for line in name.split('\n')), default=0)
    height = 1.4 + (0.24 if kind == 'bar' else 0.36) * len(names)
    figure = new_figure(theme, 1.6 + 0.07 * longest + 2.9 * len(parts), height, is_tidy=True)
    panels = figure.subplots(1, len(parts), squeeze=False, sharex=True, sharey=True)[0]
    for axes, (name, part) in zip(panels, parts.items(), strict=True):
        dress(axes, theme)
        if kind == 'bar':
            size = np.abs(part.scores).mean(axis=0)
            bars = axes.barh(range(len(size)), size, color=theme.unsigned, height=0.72)
            axes.bar_label(bars, [number(value) for value in size], padding=3, fontsize=8, color=theme.muted)
            axes.margins(x=0.18)
        else:
            points = _swarm(axes, [*part.scores.T], None if part.values is None else [*part.values.T], theme)
        axes.tick_params(axis='y', length=0)
        axes.set_title(f'{name} ({len(part.scores):,})' if name else '', fontsize=9)
    _rows(panels[0], names)
    what = 'mask' if found.source == 'node_mask' else 'score'
    figure.supxlabel(f'mean |{what}|' if kind == 'bar' else what, color=theme.text, fontsize=9)
    figure.suptitle(heading, color=theme.text, fontsize=12)
    if kind == 'beeswarm' and found.values is not None:
        scale = figure.colorbar(points, ax=list(panels), shrink=0.8, aspect=30, ticks=[0.0, 1.0], pad=0.02)
        scale.outline.set_visible(False)
        dress(scale.ax, theme).set_yticklabels(['low', 'high'])
        scale.ax.set_ylabel("the node's own feature", fontsize=9)
    return figure


def neighbours(
    batch: NodeExplanations,
    top_k: int = 10,
    *,
    among: int = 5,
    node_labels: Labels = None,
    title: str | None = None,
    theme: str = 'light',
    path: str | PathLike[str] | None = None,
) -> Figure:
    r"""Draws the nodes that matter to many: how many explained nodes have each among their highest scores, and which.

    Args:
        batch (NodeExplanations): What ``explain_nodes`` returns.
        top_k (int): How many nodes to show. (default: ``10``)
        among (int): A node matters to another if it is among so many with the highest scores there, apart from the
            explained node itself. (default: ``5``)
        node_labels (list or dict, optional): What to call nodes. (default: the batch's ``node_names``, or else ids)
        title (str, optional): The title. (default: how many nodes are explained)
        theme (str): ``'light'`` or ``'dark'``. (default: ``'light'``)
        path (str, optional): Where to save the picture. (default: nowhere)
    """
    check_batch('batch', batch)
    options.count('top_k', top_k)
    colors = theme_of(theme)
    nodes, scores = (values.detach().cpu() for values in batch.top_k(among))
    is_other = (nodes >= 0) & (nodes != batch.index.cpu()[:, None])
    found, place = nodes[is_other].unique(return_inverse=True)
    counts, size = place.bincount(), torch.zeros(len(found), dtype=torch.float64, device='cpu')
    size.index_add_(0, place, scores[is_other].double().abs())
    order = sorted(range(len(found)), key=lambda i: (-int(counts[i]), -float(size[i])))[:top_k]
    by_node = [scores[is_other][place == i].numpy() for i in order]
    named = names_of(batch, node_labels)
    names = [textwrap.fill(named.node(int(found[i]), None), MAX_LINE) for i in order]
    figure = new_figure(colors, 8.2, 1.4 + 0.36 * max(1, len(names)), is_tidy=True)
    left, right = figure.subplots(1, 2, sharey=True)
    bars = dress(left, colors).barh(range(len(order)), counts[order].tolist(), color=colors.unsigned, height=0.72)
    left.bar_label(bars, [f'{int(counts[i]):,}' for i in order], padding=3, fontsize=8, color=colors.muted)
    left.margins(x=0.14)
    left.locator_params(axis='x', nbins=4, integer=True)
    left.set_xlabel(f'explained nodes that have it in their top {among}', fontsize=9)
    _swarm(dress(right, colors), by_node, None, colors)
    right.tick_params(axis='y', length=0)
    right.set_xlabel('its scores there', fontsize=9)
    _rows(left, names)
    heading = title or f'Nodes that matter to others, of {len(batch):,} {WHAT}'
    figure.suptitle(heading, color=colors.text, fontsize=12)
    return saved(figure, path)


def check_batch(argument: str, value: Any) -> None:
    if not isinstance(value, NodeExplanations):
        raise TypeError(
            f"'{argument}' must be what 'explain_nodes' returns (got {type(value).__name__}): draw a single "
            f"explanation with 'plot.neighborhood'"
        )


def _collected(explanations: Iterable[Any], labels: Labels, class_names: Labels) -> Collected:
    scores, values, classes, found = [], [], [], None
    if not isinstance(explanations, Iterable):
        raise TypeError(
            f"'explanation' must be an Explanation, or those of many nodes (got {type(explanations).__name__}): pass "
            f"what an Explainer or 'explain_nodes' returned"
        )
    own = {name: getattr(explanations, name, None) for name in ('feature_names', 'class_names')}
    labels = own['feature_names'] if labels is None else labels
    class_names = own['class_names'] if class_names is None else class_names
    for explanation in explanations:
        names = names_of(explanation, None, labels, class_names, 'labels')
        found = (names, *known_scores(explanation))
        scores.append(found[1].numpy())
        values.append(feature_values(explanation))
        classes.append(class_of(explanation, names))
    if found is None or len({len(row) for row in scores}) > 1:
        got = 'none' if found is None else 'several numbers of features'
        raise ValueError(
            f"'explanation' must hold explanations of the same features (got {got}): pass those of a graph"
        )
    is_known = all(value is not None for value in values)
    names_of_features = [found[0].feature(*key) for key in found[3]]
    known = np.stack([value.numpy() for value in values if value is not None]) if is_known else None
    return Collected(np.stack(scores), known, classes, found[2], names_of_features)


def _matrix(found: Collected, classes: list[str], heading: str, theme: Theme) -> Figure:
    r"""The mean score of each feature in each class."""
    mean = np.stack([found.of(name).scores.mean(axis=0) for name in classes])
    counts = [found.classes.count(name) for name in classes]
    limit, longest = float(np.abs(mean).max()) or 1.0, max(map(len, classes))
    size = (2.4 + 0.07 * longest + 0.52 * mean.shape[1], 1.9 + 0.36 * len(classes))
    figure = new_figure(theme, *size, is_tidy=True)
    axes = dress(figure.subplots(), theme)
    is_signed = found.source != 'node_mask' or bool((mean < 0).any())
    image = axes.imshow(
        mean, cmap=theme.colors(is_signed), vmin=-limit if is_signed else 0.0, vmax=limit, aspect='auto'
    )
    axes.set_xticks(range(mean.shape[1]), found.names, rotation=40, ha='right', rotation_mode='anchor')
    axes.set_yticks(range(len(classes)), [f'{name} ({count:,})' for name, count in zip(classes, counts, strict=True)])
    axes.spines[['left', 'bottom']].set_visible(False)
    if mean.size <= MAX_TO_NUMBER:
        for (i, j), value in np.ndenumerate(mean):
            color = theme.ink(image.cmap(image.norm(value)))
            axes.text(j, i, f'{value:.2g}'.replace('-', '−'), ha='center', va='center', fontsize=7, color=color)
    scale = figure.colorbar(image, ax=axes, shrink=0.9)
    scale.outline.set_visible(False)
    dress(scale.ax, theme).set_ylabel('mean mask' if found.source == 'node_mask' else 'mean score', fontsize=9)
    figure.suptitle(heading, color=theme.text, fontsize=12)
    return figure


def _swarm(axes: Any, rows: list[np.ndarray], values: list[np.ndarray] | None, theme: Theme) -> Any:
    r"""A row of points for each of ``rows``, coloured by ``values`` from low to high, or else by sign."""
    from matplotlib.colors import LinearSegmentedColormap

    axes.axvline(0.0, color=theme.muted, linewidth=0.8, zorder=0)
    axes.spines['left'].set_visible(False)
    low, high = (end(row.min() if end is min else row.max() for row in rows) if rows else 0.0 for end in (min, max))
    shades = LinearSegmentedColormap.from_list('values', [theme.line, theme.unsigned])
    points = None
    for place, row in enumerate(rows):
        style: dict[str, Any] = {'s': 11, 'linewidths': 0.0, 'alpha': 0.85, 'zorder': 2}
        if values is None:
            style['c'] = [theme.toward if value >= 0 else theme.away for value in row]
        else:
            near, far = np.quantile(values[place], [0.05, 0.95])
            near, far = (near, far) if near < far else (values[place].min(), values[place].max())
            style.update(c=np.clip((values[place] - near) / (far - near or 1.0), 0.0, 1.0), cmap=shades, vmin=0, vmax=1)
        points = axes.scatter(row, place + stacked(row, low, high), **style)
    return points


def stacked(row: np.ndarray, low: float, high: float) -> np.ndarray:
    r"""Shifts of points [n] that are close together, up and down in turn, within 0.42."""
    near = np.round(BINS * (row - low) / ((high - low) or 1.0))
    order = np.argsort(near, kind='stable')
    starts = np.searchsorted(near[order], near[order])
    layer = np.empty(len(row))
    layer[order] = np.arange(len(row)) - starts
    shift = np.ceil(layer / 2) * np.where(layer % 2 == 1, 1.0, -1.0)
    return shift * min(0.07, 0.42 / max(1.0, np.abs(shift).max(initial=0.0)))


def _rows(axes: Any, names: list[str]) -> None:
    r"""Names rows, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(1, len(names)) - 0.5, -0.5)
    axes.tick_params(axis='y', length=0)
