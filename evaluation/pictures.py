r"""The pictures of docs/paper.md and results.md. Colours are Okabe and Ito's, for colour-blind readers, too."""

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np
from intervals import SHARES
from summary import GRAPHS, MOTIF_GRAPHS, TITLES

from pyg_dnx.datasets import load

COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#999999')
DRAWN = ('FastDnX', 'FastDnX, masked', 'GNNExplainer, node mask', 'IG, logit', 'ProbeDnX', 'Ã^L', 'random')


def draw_curves(curves, path):
    names = [name for name in DRAWN if name in curves]
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout='constrained')
    shares = [100 * float(share) for share in SHARES]
    titles = {
        'fidelity_plus': 'prediction changes if it is taken away\n(fidelity+, higher is better)',
        'fidelity_minus': 'prediction changes if nothing else is left\n(fidelity−, lower is better)',
        'total_variation': 'how far probabilities move then\n(total variation, lower is better)',
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for name, color, marker in zip(names, COLORS, 'osD^vPx', strict=False):
            axis.plot(shares, curves[name][key], color=color, marker=marker, markersize=5, label=name)
        axis.set(title=title, xlabel='share of the neighbourhood, %', ylim=(0, None))
        axis.spines[['top', 'right']].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=len(names), frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_times(table, path):
    graphs = [g for g, cell in zip(GRAPHS, table['rows'][0][1:], strict=True) if cell] if table['rows'] else []
    figure, axis = plt.subplots(figsize=(12, 4), layout='constrained')
    width = 0.85 / max(len(table['rows']), 1)
    hatches = ('', '//', '', '//', '', '', '', '', '')
    for number, (name, *cells) in enumerate(table['rows']):
        values = [
            cell['value'] if cell else np.nan for graph, cell in zip(GRAPHS, cells, strict=True) if graph in graphs
        ]
        color = COLORS[number - 2 if number > 3 else number // 2]
        place = np.arange(len(graphs)) + width * (number - 0.5 * len(table['rows']) + 0.5)
        axis.bar(place, values, width, color=color, hatch=hatches[number], edgecolor='white', linewidth=0.3, label=name)
    axis.set_yscale('log')
    axis.set_xticks(range(len(graphs)), [TITLES.get(graph, graph) for graph in graphs])
    axis.set_ylabel('ms for one node')
    axis.spines[['top', 'right']].set_visible(False)
    figure.legend(loc='outside lower center', ncols=5, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_degrees(folder, path):
    r"""Where motif nodes can be told from others by their degree alone."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 5), layout='constrained')
    for axis, name in zip(axes.flat, MOTIF_GRAPHS, strict=True):
        data = load(name, folder)
        degree = data.edge_index[0].bincount(minlength=data.num_nodes)
        most = int(min(degree.max(), 20))
        for inside, label, color in ((True, 'in a motif', COLORS[1]), (False, 'others', COLORS[0])):
            count = degree[(data.node_motif >= 0) == inside].clamp(max=most).bincount(minlength=most + 1)
            shift = 0.2 if inside else -0.2
            axis.bar(np.arange(most + 1) + shift, count / count.sum(), 0.4, color=color, label=label)
        axis.set(title=TITLES[name], xlabel=f'degree ({most}: or more)' if most == 20 else 'degree')
        axis.spines[['top', 'right']].set_visible(False)
    axes[0, 0].set_ylabel('share of nodes')
    axes[1, 0].set_ylabel('share of nodes')
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc='outside lower center', ncols=2, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
