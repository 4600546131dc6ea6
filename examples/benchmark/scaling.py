r"""The cost of a batch as the explained nodes double, and as the graph doubles; and a picture of it."""

from itertools import pairwise
from pathlib import Path

import torch
from common import connected, say, side_by_side
from graphs import power_law

from pyg_dnx import DnX, FastDnX
from pyg_dnx.graph.operator import normalized_adjacency
from pyg_dnx.graph.rows import inner_products, rows_of, runs
from pyg_dnx.run import ENTRIES

GROWING = {  # names and colours of what grows with the graph
    'FastDnX': ('FastDnX, one graph, neighbours anywhere in it', '#0072B2'),
    'copies': ('FastDnX, copies of the smallest graph', '#D55E00'),
    'walks': ('walks of two steps', '#56B4E9'),
    'kernels': ('the kernels of the first alone', '#009E73'),
    'product': ('one product with Ã of it', '#E69F00'),
}


def make(num_nodes, num_edges):
    x, edge_index, _ = power_law(num_nodes, num_edges, 32, 8)
    torch.manual_seed(0)
    return x, edge_index, 3.0 * torch.tanh(x @ torch.randn(32, 8) / 6.0)


def cost(num_nodes, num_edges, counts, algorithms, repeats):
    x, edge_index, outputs = make(num_nodes, num_edges)
    order = torch.randperm(num_nodes)
    functions = {}
    for name, algorithm in algorithms.items():
        algorithm.distill(None, x, edge_index, teacher_outputs=outputs)
        for count in counts:
            functions[name, count] = lambda a=algorithm, c=count: a.explain_nodes(
                None, x, edge_index, index=order[:c], top_k=10, teacher_outputs=outputs
            )
    return side_by_side(functions, repeats)


def copies(count, x, edge_index, outputs):
    r"""So many copies of a graph side by side: as much more work, on neighbourhoods that stay as near in memory."""
    shift = len(x) * torch.arange(count)[:, None, None]
    return x.repeat(count, 1), (edge_index + shift).transpose(0, 1).reshape(2, -1), outputs.repeat(count, 1)


def cost_of_copies(count, num_nodes, num_edges, algorithm, repeats):
    x, edge_index, outputs = copies(count, *make(num_nodes, num_edges))
    algorithm.distill(None, x, edge_index, teacher_outputs=outputs)
    explain = lambda: algorithm.explain_nodes(None, x, edge_index, top_k=10, teacher_outputs=outputs)  # noqa: E731
    return side_by_side({'copies': explain}, repeats)


def cost_of_all(num_nodes, num_edges, algorithm, repeats):
    r"""The cost of all nodes; of the kernels alone that it is made of; and of one product with Ã, linear if any is."""
    x, edge_index, outputs = make(num_nodes, num_edges)
    surrogate = algorithm.distill(None, x, edge_index, teacher_outputs=outputs)
    operator = normalized_adjacency(edge_index, None, num_nodes, torch.float32)
    hidden, direction = x @ surrogate.weight, surrogate(x, edge_index) - surrogate.bias

    def kernels():
        size = operator.walks(2).clamp(max=num_nodes)
        for nodes in runs(size, max(ENTRIES, num_nodes)):
            inner_products(rows_of(operator, nodes, 2), direction[nodes], hidden)

    functions = {
        'FastDnX': lambda: algorithm.explain_nodes(None, x, edge_index, top_k=10, teacher_outputs=outputs),
        'kernels': kernels,
        'product': lambda: operator @ hidden,
    }
    seconds = side_by_side(functions, repeats)
    return {**seconds, 'walks': float(operator.walks(2).double().sum())}


def run(args):
    algorithms = {'FastDnX': connected(FastDnX(num_hops=2)), 'DnX': connected(DnX(num_hops=2))}
    repeats = 3 if args.quick else 7
    counts = [500 * 2**k for k in range(4 if args.quick else 6)]
    by_nodes = cost(100_000, 1_000_000, counts, algorithms, repeats)
    least, fast = 50_000, algorithms['FastDnX']  # all nodes, at the same mean degree: both double
    by_edges = {}
    for times in (2**k for k in range(3 if args.quick else 6)):
        size = least * times
        by_copies = cost_of_copies(times, least, 10 * least, fast, 3)
        by_edges[10 * size] = {**cost_of_all(size, 10 * size, fast, 3), **by_copies}
    print('The cost of a batch, as it doubles')
    for name in algorithms:
        for few, many in pairwise(counts):
            change = by_nodes[name, many] / by_nodes[name, few]
            say(f'{name}, {few:,} to {many:,} nodes of one graph', f'x {change:.2f}', 'x 2 is linear')
    for few, many in pairwise(by_edges):
        change = {name: by_edges[many][name] / by_edges[few][name] for name in by_edges[few]}
        label = f'FastDnX, all nodes, {few / 1e6:g}M to {many / 1e6:g}M edges'
        say(f'{label}, copies', f'x {change["copies"]:.2f}', 'x 2 is linear')
        others = ', '.join(f'{GROWING[name][0]} x {change[name]:.2f}' for name in ('walks', 'kernels', 'product'))
        say(f'{label}, anywhere', f'x {change["FastDnX"]:.2f}', others)
    for edges, seconds in by_edges.items():
        say(f'all nodes, {edges / 1e6:g}M edges, FastDnX / kernels', f'{seconds["FastDnX"] / seconds["kernels"]:.2f}x')
    draw(args.out, counts, by_nodes, by_edges)
    nodes = {name: {count: by_nodes[name, count] for count in counts} for name in algorithms}
    return {'seconds by explained nodes': nodes, 'seconds by edges': by_edges}


def draw(folder, counts, by_nodes, by_edges):
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.2), layout='constrained')
    for name, color in (('FastDnX', '#0072B2'), ('DnX', '#D55E00')):
        seconds = [by_nodes[name, count] for count in counts]
        left.loglog(counts, seconds, 'o-', color=color, label=name)
        left.loglog(counts, [seconds[-1] * count / counts[-1] for count in counts], ':', color=color, linewidth=1)
    left.set(xlabel='explained nodes', ylabel='seconds', title='One graph of 1,000,000 edges, top 10')
    left.plot([], [], ':', color='grey', label='linear')
    left.legend(frameon=False)
    edges = list(by_edges)
    for name, (label, color) in GROWING.items():
        growth = [by_edges[count][name] / by_edges[edges[0]][name] for count in edges]
        right.loglog(edges, growth, 'o-', color=color, label=label)
    right.loglog(edges, [count / edges[0] for count in edges], ':', color='grey', label='linear')
    right.set(xlabel='edges', ylabel='times the smallest graph', title='All nodes, top 10, two hops, mean degree 10')
    right.legend(frameon=False, fontsize=8)
    for axes, ticks in ((left, counts), (right, edges)):
        axes.spines[['top', 'right']].set_visible(False)
        axes.set_xticks(ticks, [f'{tick / 1e6:g}M' if tick >= 1e5 else f'{tick:,}' for tick in ticks])
        axes.minorticks_off()
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / 'scaling.png', dpi=150)
