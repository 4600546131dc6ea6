r"""How far `explain_nodes` and propagation are from the bare kernels they are made of."""

import warnings

import torch
from calls import train
from common import connected, ratio, say, side_by_side
from graphs import power_law
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GCN

from pyg_dnx import DnX, FastDnX
from pyg_dnx.graph.operator import normalized_adjacency
from pyg_dnx.graph.rows import Rows


def load(name, args):
    r"""A model, its inputs and the nodes to explain."""
    if name == 'Cora':
        data = Planetoid(args.root, 'Cora')[0]
        return train(data, 7), data.x, data.edge_index, torch.arange(data.num_nodes)
    x, edge_index, _ = power_law(170_000, 2_400_000, 128, 40)
    torch.manual_seed(0)
    return GCN(128, 64, 2, 40).eval(), x, edge_index, torch.randperm(170_000)[:1000]


def batches(name, num_hops, model, x, edge_index, nodes, args):
    r"""The batch path against the sparse products and the sampled inner products alone."""
    fast, dnx = connected(FastDnX(num_hops=num_hops)), connected(DnX(num_hops=num_hops))
    surrogate = fast.distill(model, x, edge_index)
    operator = normalized_adjacency(edge_index, None, x.size(0), torch.float32)
    hidden = x @ surrogate.weight
    direction = (surrogate(x, edge_index) - surrogate.bias)[nodes]
    chosen = Rows(torch.ones_like(nodes), nodes, torch.ones(nodes.numel())).matrix(x.size(0))

    def kernels():
        rows = chosen
        for _ in range(num_hops):
            rows = rows @ operator.csr
        return torch.sparse.sampled_addmm(rows, direction, hidden.T, beta=0.0)

    functions = {
        'kernels': kernels,
        'scores': lambda: fast.explain_nodes(model, x, edge_index, index=nodes),
        'top 10': lambda: fast.explain_nodes(model, x, edge_index, index=nodes, top_k=10),
        'DnX': lambda: dnx.explain_nodes(model, x, edge_index, index=nodes),
    }
    seconds = side_by_side(functions, max(3, args.repeats // 20))
    for label, base, bar in (
        ('scores', 'kernels', '<= 2x'),
        ('top 10', 'kernels', '<= 3x'),
        ('DnX', 'scores', '<= 30x'),
    ):
        say(f'{name}, L = {num_hops}, {label} / {base}', ratio(seconds[label] / seconds[base]), bar)
    return seconds


def products(x, edge_index, args):
    r"""One product with Ã against PyTorch's, and against reading as much from memory."""
    operator = normalized_adjacency(edge_index, None, x.size(0), torch.float32)
    block = torch.empty_like(x)
    functions = {
        'ours': lambda: operator @ x,
        'torch CSR @ dense': lambda: operator.csr @ x,
        'copy of x': lambda: block.copy_(x),
    }
    seconds = side_by_side(functions, max(3, args.repeats // 20))
    say('arxiv-like, Ã x: torch CSR @ dense / ours', ratio(seconds['torch CSR @ dense'] / seconds['ours']), '>= 2x')
    gathered = operator.col.numel() * x.size(1) * 4
    copied = 2 * x.nbytes / seconds['copy of x']
    say('arxiv-like, Ã x: bytes gathered a second / copied', ratio(gathered / seconds['ours'] / copied))
    return {**seconds, 'bytes gathered': gathered, 'bytes copied': 2 * x.nbytes}


def run(args):
    warnings.simplefilter('ignore')
    print('The batch path against its bare kernels')
    results = {}
    for name in ('Cora', 'arxiv-like'):
        inputs = load(name, args)
        for num_hops in (2, 3):
            results[f'{name}, L = {num_hops}'] = batches(name, num_hops, *inputs, args)
    results['product'] = products(inputs[1], inputs[2], args)
    return results
