r"""Draws the pictures of the method, the modules and the quickstart: python docs/figures.py [--out docs/images]."""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from pyg_dnx import plot

INK, GREY = '#222222', '#666666'
BLUE, GREEN, ORANGE, GREY_FILL = '#DCEBF7', '#E1F2E5', '#FBE9D9', '#F0F0F0'
SIGNED = LinearSegmentedColormap.from_list('signed', ['#0072B2', '#F7F7F7', '#D55E00'])

EDGES = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]
X = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
THETA = torch.tensor([[2.0, -2.0], [-1.0, 1.0]])  # zero-sum over classes
PLACES = {0: (0.0, 1.0), 1: (0.0, 0.0), 2: (0.9, 0.5), 3: (1.9, 0.5), 4: (2.9, 0.5)}


class Worked(NamedTuple):
    propagation: Tensor  # Ã² [5, 5]
    hidden: Tensor  # XΘ [5, 2]
    contribution: Tensor  # to node 0, [5, 2]
    evidence: Tensor  # Z - b of node 0, [2]
    score: Tensor  # [5]


def worked_example() -> Worked:
    r"""The method by hand, dense: two hops around node 0 of five."""
    adjacency = torch.eye(5)
    for u, v in EDGES:
        adjacency[u, v] = adjacency[v, u] = 1.0
    scale = adjacency.sum(dim=1).rsqrt()
    propagation = torch.linalg.matrix_power(scale[:, None] * adjacency * scale, 2)
    hidden = X @ THETA
    contribution = propagation[0, :, None] * hidden
    evidence = contribution.sum(dim=0)
    return Worked(propagation, hidden, contribution, evidence, contribution @ evidence)


class Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    color: str
    title: str
    text: str


WAY = [
    Box(0.2, 2.7, 2.1, 1.4, BLUE, 'graph', 'features $X$, edges;\npropagated:\n$\\tilde{A}^L X$'),
    Box(2.9, 2.7, 2.1, 1.4, BLUE, 'your model', 'asked once:\npredictions $\\hat{Y}$\nof all nodes'),
    Box(
        5.6,
        2.7,
        4.4,
        1.4,
        BLUE,
        'distil',
        'solve  softmax$(\\tilde{A}^L X \\Theta + b) \\approx \\hat{Y}$\nfor '
        '$\\Theta$ and $b$; kept in a cache\nuntil model or graph change',
    ),
    Box(
        0.2,
        0.2,
        2.3,
        1.6,
        GREEN,
        'contributions',
        '$M_{ij} = \\tilde{A}^L_{ij}\\, X_j \\Theta$\nof nodes, features\nand edges',
    ),
    Box(2.9, 0.2, 2.1, 1.6, GREEN, 'scores', '$\\langle M_{ij}, d_i \\rangle$, signed;\nexplainers differ\nin $d_i$'),
    Box(5.4, 0.2, 1.9, 1.6, GREEN, 'masks', 'ranks of scores,\nin [0, 1],\nas PyG expects'),
    Box(7.7, 0.2, 2.3, 1.6, ORANGE, 'explanation', 'scores, masks, how\nfar the surrogate\nspeaks for the model'),
]


def module_map() -> list[tuple[str, list[str]]]:
    r"""The packages in the table of docs/modules.md, in its order, with their modules."""
    docs = Path(__file__).parent
    table = (docs / 'modules.md').read_text(encoding='utf-8').split('| folder |')[0]
    names = re.findall(r'^\| `?(\w+)`? \| ', table, re.MULTILINE)[1:]
    folders = {name: docs.parent / 'src' / 'pyg_dnx' / ('' if name == 'top' else name) for name in names}
    return [(name, sorted(path.stem for path in folders[name].glob('[!_]*.py'))) for name in names]


def draw_boxes(axes: Axes, boxes: list[Box]) -> None:
    style = 'round,pad=0,rounding_size=0.08'
    for x, y, width, height, color, title, text in boxes:
        axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=color, edgecolor=GREY))
        axes.text(x + width / 2, y + height - 0.12, title, ha='center', va='top', fontsize=11, weight='bold', color=INK)
        axes.text(
            x + width / 2, y + height - 0.42, text, ha='center', va='top', fontsize=9.5, color=INK, linespacing=1.5
        )


def draw_path(axes: Axes, *points: tuple[float, float]) -> None:
    r"""A line through points, with an arrow at its end."""
    axes.plot(*zip(*points[:-1], strict=True), color=GREY, linewidth=1.5)
    axes.annotate('', points[-1], points[-2], arrowprops={'arrowstyle': '-|>', 'color': GREY, 'linewidth': 1.5})


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    r"""A figure whose unit is an inch."""
    figure = Figure(figsize=(width, height), facecolor='white')
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis('off')
    return figure, axes


def draw_way() -> Figure:
    r"""The data's way from a graph and a model to an explanation."""
    figure, axes = blank(10.2, 4.6)
    draw_boxes(axes, WAY)
    small = {'fontsize': 10, 'style': 'italic', 'color': GREY, 'va': 'center'}
    axes.text(0.2, 4.35, 'once for a model and its graph', **small)
    axes.text(10.0, 2.13, 'for each explained node $i$', ha='right', **small)
    axes.plot([0.1, 10.1], [2.35, 2.35], color=GREY, linewidth=0.8, linestyle=(0, (4, 4)))
    for y, ends in {3.4: ((2.3, 2.9), (5.0, 5.6)), 1.0: ((2.5, 2.9), (5.0, 5.4), (7.3, 7.7))}.items():
        for start, end in ends:
            draw_path(axes, (start, y), (end, y))
    draw_path(axes, (7.0, 2.7), (7.0, 2.13), (1.35, 2.13), (1.35, 1.8))
    return figure


def draw_modules() -> Figure:
    r"""The map of the modules: a row for each package, an arrow the way that imports may go."""
    packages = module_map()
    figure, axes = blank(10.2, 0.72 * len(packages) + 0.1)
    colors = {'graph': BLUE, 'teacher': BLUE, 'distill': BLUE, 'scores': GREEN, 'results': ORANGE, 'explainers': ORANGE}
    for number, (name, modules) in enumerate(packages):
        y = 0.72 * (len(packages) - number - 1) + 0.12
        style = {'boxstyle': 'round,pad=0,rounding_size=0.08', 'edgecolor': GREY}
        axes.add_patch(FancyBboxPatch((0.5, y), 9.5, 0.56, facecolor=colors.get(name, GREY_FILL), **style))
        axes.text(0.7, y + 0.28, name, va='center', fontsize=11, weight='bold', color=INK)
        axes.text(2.2, y + 0.28, ', '.join(modules), va='center', fontsize=9.5, color=INK)
    draw_path(axes, (0.25, 0.72 * len(packages) - 0.1), (0.25, 0.12))
    return figure


def draw_worked(worked: Worked) -> Figure:
    r"""The worked example: the graph, coloured by score, and the sum of contributions."""
    figure = Figure(figsize=(10.2, 3.6), facecolor='white')
    axes = figure.add_axes((0.01, 0.04, 0.36, 0.8))
    graph = nx.Graph(EDGES)
    limit = float(worked.score.abs().max())
    colors = SIGNED(0.5 + 0.35 * worked.score.double().numpy() / limit)
    nx.draw_networkx_edges(graph, PLACES, ax=axes, edge_color=GREY, width=1.5)
    nodes = nx.draw_networkx_nodes(graph, PLACES, nodelist=range(5), node_color=colors, node_size=900, ax=axes)
    nodes.set_edgecolor([INK] + [GREY] * 4)
    nodes.set_linewidth([3, 1, 1, 1, 1])
    nx.draw_networkx_labels(graph, PLACES, ax=axes, font_size=11, font_color=INK)
    axes.set_title('Five nodes; node 0 is explained, two hops.\nOrange: for its class. Blue: against it.', fontsize=10)
    axes.margins(0.14, 0.3)
    axes.axis('off')

    table_axes = figure.add_axes((0.39, 0.04, 0.6, 0.92))
    table_axes.axis('off')
    head = ['$j$', r'$\tilde{A}^2_{0j}$', '$X_j$', r'$X_j \Theta$', r'$M_{0j} = \tilde{A}^2_{0j} X_j \Theta$', 'score']
    rows = [
        [str(j), f'{p:.3f}', vector(x, 0), vector(h, 0), vector(m, 3), f'{s:.3f}'.replace('-', '−')]
        for j, (p, x, h, m, s) in enumerate(
            zip(worked.propagation[0], X, worked.hidden, worked.contribution, worked.score, strict=True)
        )
    ]
    rows.append(['sum', '', '', '', f'{vector(worked.evidence, 3)} $= Z_0 - b$', f'{worked.score.sum():.3f}'])
    table = table_axes.table(
        rows, colLabels=head, cellLoc='center', bbox=(0, 0, 1, 1), colWidths=[0.08, 0.11, 0.12, 0.14, 0.38, 0.17]
    )
    table.auto_set_font_size(False)
    table.set_fontsize(10)
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor('#CCCCCC')
        cell.set_facecolor(BLUE if row == 0 else GREEN if row == len(rows) else 'white')
    return figure


def draw_paper() -> Figure:
    r"""What the quickstart draws, by its own code up to there."""
    text, names = (Path(__file__).parent / 'quickstart.md').read_text(encoding='utf-8'), {}
    for code in re.findall(r'^```python\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)[:2]:
        exec(code, names)
    return plot.neighborhood(names['explanation'])


def vector(values: Tensor, digits: int) -> str:
    return '(' + ', '.join(f'{value + 0.0:.{digits}f}' for value in values.tolist()).replace('-', '−') + ')'


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--out', type=Path, default=Path(__file__).parent / 'images')
    args = parser.parse_args()
    draw_way().savefig(args.out / 'way.png', dpi=160)
    draw_modules().savefig(args.out / 'modules.png', dpi=160)
    draw_paper().savefig(args.out / 'paper.png', dpi=120)
    draw_worked(worked_example()).savefig(args.out / 'worked_example.png', dpi=160)
