r"""This version's calls against another's: ratios of the processor's seconds, measured in turns.

Each round starts a process of each version. Both do the same work, a few calls at a time, old and new in turns; while
one works, the other waits. A row's ratio is that of the medians in a round. The median over rounds is printed, with an
interval that holds the true median in 95 of 100 cases. Workers use only the public API, which both versions have, and
one thread each. Seconds are the processor's, not the clock's, so that it matters less what else runs on the machine.
"""

import gc
import io
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from graphs import power_law
from torch_geometric.data import Data
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCN

import pyg_dnx
from pyg_dnx.datasets import MotifDataset

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1.03  # a row whose interval is above this is slower
LEAST_ROUNDS = 6  # fewer have no interval
SECONDS = 0.05  # of calls at a time, about
HIDDEN = 16
GRAPHS = 'like Cora', 'ba_house'
SHARED = {'num_hops': 2, 'ridge': 1e-5, 'edge_score': 'flow', 'mask': 'rank', 'num_masks': 8}
ALGORITHMS = {
    'FastDnX': lambda: pyg_dnx.FastDnX(**SHARED, score='projection', distillation='paper'),
    'DnX': lambda: pyg_dnx.DnX(**SHARED, score='projection', distillation='paper', epsilon=0.01, prior='uniform'),
    'masked': lambda: pyg_dnx.FastDnX(**SHARED, score='target', distillation='masked'),
    'ProbeDnX': lambda: pyg_dnx.ProbeDnX(**SHARED, distillation='masked', num_probes=64, answer='probability'),
}
ROWS = (
    *ALGORITHMS,
    *(f'{name}.explain_nodes{kept}' for name in ('FastDnX', 'DnX', 'masked') for kept in ('', '(top_k=10)')),
    *('ProbeDnX.explain_nodes, 200 nodes', 'certify', 'check'),
    *(COLD := ('distil', 'distil, masked')),  # last, as they empty the cache
)


def make_graphs(path):
    r"""Writes a graph like Cora and a small one with motifs, each with a model trained for it."""
    x, edge_index, y = power_law(2708, 10556, 1, 7)
    generator = torch.Generator().manual_seed(0)
    words = torch.rand(7, 1433, generator=generator).pow(8)  # how often each class uses each word
    x = torch.zeros(2708, 1433).scatter_(1, torch.multinomial(words[y], 18, generator=generator), 1.0)
    motifs, found = MotifDataset('ba_house')[0], {}
    for name, data in zip(GRAPHS, (Data(x, edge_index, y=y), motifs), strict=True):
        torch.manual_seed(0)
        num_classes = int(data.y.max()) + 1
        model = GCN(data.num_features, HIDDEN, 2, num_classes)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(30):
            optimizer.zero_grad()
            F.cross_entropy(model(data.x, data.edge_index), data.y).backward()
            optimizer.step()
        graph = {'x': data.x, 'edge_index': data.edge_index, 'num_classes': num_classes}
        found[name] = {**graph, 'model': model.state_dict()}
    torch.save(found, path)


def calls(graph):
    r"""What is measured on a graph, by row."""
    x, edge_index = graph['x'], graph['edge_index']
    model = GCN(x.size(1), HIDDEN, 2, graph['num_classes'])
    model.load_state_dict(graph['model'])
    model.eval()
    config = {'mode': 'multiclass_classification', 'task_level': 'node', 'return_type': 'raw'}
    masks = {'explanation_type': 'model', 'node_mask_type': 'object', 'edge_mask_type': 'object'}
    explainers = {
        name: Explainer(model, algorithm(), model_config=config, **masks) for name, algorithm in ALGORITHMS.items()
    }
    inputs, quiet, node = (model, x, edge_index), {'progress': False}, 0

    def explain(name):
        nonlocal node
        node = (node + 13) % x.size(0)
        return explainers[name](x, edge_index, index=node)

    def distil(name):
        pyg_dnx.shared_cache.clear()
        return explainers[name].algorithm.distill(*inputs, **quiet)

    def many(name, **options):
        return explainers[name].algorithm.explain_nodes(*inputs, **options, **quiet)

    few, explanation, fast = torch.arange(200), explain('FastDnX'), explainers['FastDnX']
    functions = [
        *(lambda name=name: explain(name) for name in ALGORITHMS),
        *(lambda n=name, k=top_k: many(n, top_k=k) for name in ('FastDnX', 'DnX', 'masked') for top_k in (None, 10)),
        lambda: many('ProbeDnX', index=few),
        lambda: pyg_dnx.certify(fast, explanation),
        lambda: pyg_dnx.check(fast, explanation),
        lambda: distil('FastDnX'),
        lambda: distil('masked'),
    ]
    return dict(zip(ROWS, functions, strict=True))


def work(source, path):
    r"""Times what is asked for on standard input, a graph, a row and a number of calls at a time."""
    if not Path(pyg_dnx.__file__).is_relative_to(source):
        raise ImportError(f'pyg_dnx must come from {source} (got {pyg_dnx.__file__}): start this by calls.py --against')
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    rows = {name: calls(graph) for name, graph in torch.load(path, weights_only=True).items()}
    for line in sys.stdin:
        name, row, repeats = json.loads(line)
        function, seconds = rows[name][row], []
        gc.collect()
        if repeats > 1:
            function()  # as the other version has just had the processor's caches
        for _ in range(repeats):
            start = time.process_time()
            function()
            seconds.append(time.process_time() - start)
        print(json.dumps(seconds), flush=True)


class Worker:
    r"""A process that measures one version."""

    def __init__(self, source, path):
        command = [sys.executable, __file__, str(source), str(path)]
        environment = {**os.environ, 'PYTHONPATH': str(source), 'OMP_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1'}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)

    def ask(self, *request):
        self.process.stdin.write(json.dumps(request) + '\n')
        self.process.stdin.flush()

    def answer(self):
        if not (line := self.process.stdout.readline()):
            sys.exit('A worker stopped: its error is above')
        return json.loads(line)

    def seconds(self, *request):
        self.ask(*request)
        return self.answer()

    def stop(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def interval(values):
    r"""The order statistics that hold the true median in 95 of 100 cases; of fewer than ``LEAST_ROUNDS``, all."""
    ordered, count = sorted(values), len(values)
    tail, below = 0.0, 0
    while below < count // 2 and (tail := tail + math.comb(count, below) / 2**count) <= 0.025:
        below += 1
    below = max(below - 1, 0)
    return ordered[below], ordered[count - 1 - below]


def warm_up(workers, key):
    r"""Lets both versions distil at the same time, if no row before has; returns how many calls to time at a time."""
    for worker in workers:
        worker.ask(*key, 1)
    for worker in workers:
        worker.answer()
    slowest = max(worker.seconds(*key, 1)[0] for worker in workers)
    return max(1, min(50, int(SECONDS / slowest)))


def measure(sources, path, rounds, graphs, rows):
    r"""For each graph and row and of each round: the ratio new / old, and the seconds of old."""
    found = {(name, row): [] for name in graphs for row in rows}
    for number in range(rounds):
        workers = [Worker(source, path) for source in sources]  # old, new
        for key in found:
            is_cold, order = key[1] in COLD, (0, 1, 1, 0) if number % 2 == 0 else (1, 0, 0, 1)
            repeats = 1 if is_cold else warm_up(workers, key)
            seconds = [], []
            for place in order[:2] if is_cold else order:
                seconds[place].extend(workers[place].seconds(*key, repeats))
            old, new = map(statistics.median, seconds)
            found[key].append((new / old, old))
        for worker in workers:
            worker.stop()
        print(f'round {number + 1} of {rounds}', end='\r', file=sys.stderr, flush=True)
    return found


def compare(commit, rounds, graphs=GRAPHS, rows=ROWS):
    r"""Prints the ratios, and returns whether some row is slower."""
    with tempfile.TemporaryDirectory() as folder:
        old, new, path = Path(folder) / 'old', Path(folder) / 'new', Path(folder) / 'graphs.pt'
        archive = subprocess.run(['git', '-C', ROOT, 'archive', commit, 'src'], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(old, filter='data')
        shutil.copytree(ROOT / 'src', new / 'src', ignore=shutil.ignore_patterns('__pycache__'))
        make_graphs(path)
        measured = measure((old / 'src', new / 'src'), path, rounds, graphs, rows)
    print(f'Milliseconds of {commit}, and this version / {commit}: median and 95% interval over {rounds} rounds')
    slower = False
    for (name, row), found in measured.items():
        ratios, seconds = zip(*found, strict=True)
        low, high = interval(ratios)
        verdict = 'slower' if low > LIMIT else 'faster' if high < 1 / LIMIT else ''
        verdict = verdict if rounds >= LEAST_ROUNDS else 'too few rounds'
        slower |= verdict == 'slower'
        figures = f'{1e3 * statistics.median(seconds):>12,.3f}{statistics.median(ratios):>8.3f}'
        print(f'  {f"{name}: {row}":<46}{figures}  [{low:.3f}, {high:.3f}]  {verdict}'.rstrip())
    return slower


if __name__ == '__main__':
    work(*sys.argv[1:])
