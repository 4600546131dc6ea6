r"""Everything on a graph of the size of ogbn-products, in one process whose peak memory is measured.

The features are memory-mapped. What a user would predict with a `NeighborLoader` is computed layer by layer.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from common import connected, say
from graphs import power_law

from pyg_dnx import DnX, FastDnX
from pyg_dnx.graph.operator import normalized_adjacency

FULL = {'num_nodes': 2_400_000, 'num_edges': 126_000_000, 'num_features': 100, 'num_classes': 47}
QUICK = {'num_nodes': 240_000, 'num_edges': 6_000_000, 'num_features': 100, 'num_classes': 47}


def map_file(path, shape, dtype):
    size = torch.Size(shape).numel()
    return torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(shape)


def teacher(x, edge_index, num_classes):
    r"""The outputs of a random GCN of two layers."""
    generator = torch.Generator().manual_seed(0)
    operator = normalized_adjacency(edge_index, None, x.size(0), torch.float32)
    hidden = (operator @ (x @ torch.randn(x.size(1), 64, generator=generator))).relu_()
    outputs = operator @ (hidden @ torch.randn(64, num_classes, generator=generator))
    return outputs.mul_(3.0 / outputs.std())  # as confident as a trained model


def measure(folder, sizes):
    num_nodes, num_edges = sizes['num_nodes'], sizes['num_edges']
    x = map_file(folder / 'x', (num_nodes, sizes['num_features']), torch.float32)
    edge_index = map_file(folder / 'edge_index', (2, num_edges), torch.long)
    outputs = map_file(folder / 'outputs', (num_nodes, sizes['num_classes']), torch.float32)
    nodes = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(1))[:1000]
    seconds = {}

    def timed(label, function):
        start = time.perf_counter()
        result = function()
        seconds[label] = time.perf_counter() - start
        return result

    inputs = {'teacher_outputs': outputs, 'progress': False}
    for num_hops, count in ((2, 1000), (3, 100)):
        fast = connected(FastDnX(num_hops=num_hops))
        distill = partial(fast.distill, None, x, edge_index, **inputs)
        surrogate = timed(f'propagate and distil, L = {num_hops}', distill)
        explain = partial(fast.explain_nodes, None, x, edge_index, index=nodes[:count], top_k=10, **inputs)
        timed(f'FastDnX, top 10 of {count:,} nodes, L = {num_hops}', explain)
        seconds[f'agreement, L = {num_hops}'] = surrogate.report.agreement
    dnx = partial(connected(DnX(num_hops=2)).explain_nodes, None, x, edge_index, index=nodes[:100], top_k=10, **inputs)
    timed('DnX, top 10 of 100 nodes, L = 2', dnx)
    seconds['peak GB'] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(seconds))


def run(args):
    sizes = QUICK if args.quick else FULL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        x, edge_index, _ = power_law(**sizes)
        for label, tensor in (('x', x), ('edge_index', edge_index), ('outputs', teacher(x, edge_index, 47))):
            map_file(folder / label, tensor.shape, tensor.dtype).copy_(tensor)
        del x, edge_index, tensor
        command = [sys.executable, '-W', 'ignore', __file__, name, json.dumps(sizes)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    results = json.loads(output)
    print(f'Like ogbn-products: {sizes["num_nodes"]:,} nodes, {sizes["num_edges"]:,} edges, 100 features, 47 classes')
    peak = results.pop('peak GB')
    for label, value in results.items():
        say(label, f'{value:.1%}' if label.startswith('agreement') else f'{value:.1f} s')
    total = sum(value for label, value in results.items() if not label.startswith('agreement'))
    say('all of it', f'{total / 60:.1f} minutes', '<= 10 minutes')
    say('peak memory, mapped files included', f'{peak:.1f} GB', '<= 12 GB')
    return {**results, 'total': total, 'peak GB': peak, 'sizes': sizes}


if __name__ == '__main__':
    measure(Path(sys.argv[1]), json.loads(sys.argv[2]))
