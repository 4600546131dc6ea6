r"""What the first explanation costs, with nothing kept from before: one node, distillation and probes included.

    python examples/benchmark/run.py --parts first

Distillation is also compared with that of an earlier version, a commit of this repository, in turns of two processes.
"""

import io
import json
import multiprocessing
import os
import resource
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
from common import MODEL_CONFIG, connected, ratio, say
from torch_geometric.datasets import Planetoid
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GCN, GIN

from pyg_dnx import FastDnX, ProbeDnX, shared_cache

ROOT = Path(__file__).resolve().parents[2]
BEFORE = '8e36778'  # the version whose solver formed Ã^L X
KINDS = {'GCN': GCN, 'GIN': GIN}
FIRST = {
    'FastDnX': (FastDnX, '<= 0.15x'),
    'FastDnX, masked': (lambda: FastDnX(distillation='masked'), '<= 0.3x'),
    'ProbeDnX': (ProbeDnX, '<= 0.5x'),
}
SOLVED = {('Cora', 'GCN'): '>= 4x', ('Cora', 'GIN'): '>= 8x', ('CiteSeer', 'GCN'): '>= 30x'}


def train(data, kind):
    torch.manual_seed(0)
    model = KINDS[kind](data.num_features, 16, 2, int(data.y.max()) + 1, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(100):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
    return model.eval()


def first_calls(data, model, nodes, every):
    r"""The median seconds of a first call of each explainer, and of GNNExplainer's on each ``every``-th node."""
    options = {'explanation_type': 'model', 'node_mask_type': 'object', 'edge_mask_type': 'object'}
    makers = {**{name: maker for name, (maker, _) in FIRST.items()}, 'GNNExplainer': lambda: GNNExplainer(epochs=100)}
    seconds = {name: [] for name in makers}
    for number, node in enumerate(nodes):
        for name, maker in makers.items():
            if name == 'GNNExplainer' and number % every:
                continue
            shared_cache.clear()
            explain = Explainer(model, maker(), model_config=MODEL_CONFIG, **options)
            start = time.perf_counter()
            explain(data.x, data.edge_index, index=node)
            if number > 0:  # the first of all loads libraries
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def distil(root, name, kind, path):
    r"""A worker: distils once for each line of standard input, and writes the seconds it took, and the evidence."""
    warnings.simplefilter('ignore')
    data = Planetoid(root, name)[0]
    model = KINDS[kind](data.num_features, 16, 2, int(data.y.max()) + 1, dropout=0.5)
    model.load_state_dict(torch.load(path, weights_only=True))
    algorithm = connected(FastDnX(num_hops=2, ridge=1e-5, distillation='paper'))
    for _ in sys.stdin:
        shared_cache.clear()
        start = time.perf_counter()
        surrogate = algorithm.distill(model.eval(), data.x, data.edge_index)
        seconds = time.perf_counter() - start
        evidence = surrogate(data.x, data.edge_index) - surrogate.bias
        torch.save(evidence, f'{path}.{os.getpid()}')
        print(json.dumps([seconds, f'{path}.{os.getpid()}']), flush=True)


def refined(data, model, evidence):
    r"""The optimum's evidence in float64, from that of a start, by L-BFGS on dense propagated features."""
    from pyg_dnx.graph.operator import normalized_adjacency  # which the earlier version has elsewhere

    operator = normalized_adjacency(data.edge_index, None, data.num_nodes, torch.float64)
    features = operator @ (operator @ data.x.double())
    with torch.no_grad():
        probs = model(data.x, data.edge_index).double().softmax(dim=1)
    weight = torch.linalg.lstsq(features, evidence, driver='gelsd').solution.contiguous().requires_grad_()
    bias = (probs.clamp(min=1e-9).log() - evidence).mean(dim=0).requires_grad_()
    tight = {'tolerance_grad': 1e-12, 'tolerance_change': 1e-18, 'line_search_fn': 'strong_wolfe'}
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=2000, history_size=50, **tight)

    def objective():
        optimizer.zero_grad()
        loss = F.cross_entropy(features @ weight + bias, probs) + 0.5e-5 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(objective)
    return (features @ weight).detach()


def against(args, data, name, kind, repeats):
    r"""The seconds of distillation, before and now, and how far the evidence of each is from the optimum's."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(['git', 'archive', BEFORE, 'src'], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as file:
            file.extractall(folder, filter='data')
        path = str(Path(folder) / 'model.pt')
        torch.save(train(data, kind).state_dict(), path)
        workers = []
        for source in (Path(folder) / 'src', ROOT / 'src'):
            command = [sys.executable, __file__, args.root, name, kind, path]
            environment = {**os.environ, 'PYTHONPATH': str(source)}
            pipe = subprocess.PIPE
            workers.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True))
        seconds, evidence = ([], []), [None, None]
        for number in range(repeats + 1):
            for place, worker in enumerate(workers):
                worker.stdin.write('\n')
                worker.stdin.flush()
                taken, where = json.loads(worker.stdout.readline())
                evidence[place] = torch.load(where, weights_only=True).double()
                if number > 0:
                    seconds[place].append(taken)
        for worker in workers:
            worker.stdin.close()
            worker.stdout.close()
            worker.wait()
    best = refined(data, train(data, kind), evidence[1])
    old, new = map(statistics.median, seconds)
    return old, new, *(float((found - best).abs().max() / best.abs().max()) for found in evidence)


def memory(num_nodes, num_features):
    r"""A worker: distils on sparse features, 50 set in each row, and prints the peak memory over theirs."""
    warnings.simplefilter('ignore')
    generator = torch.Generator().manual_seed(0)
    column = torch.randint(num_features, (num_nodes, 50), generator=generator).sort(dim=1).values.flatten()
    offsets = torch.arange(0, column.numel() + 1, 50)
    x = torch.sparse_csr_tensor(offsets, column, torch.ones(column.numel()), (num_nodes, num_features))
    edge_index, model = torch.randint(num_nodes, (2, 5 * num_nodes), generator=generator), GCN(num_features, 16, 2, 5)
    with torch.no_grad():
        model.eval()(x, edge_index)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    connected(FastDnX(num_hops=2, distillation='paper')).distill(model, x, edge_index)
    peak = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(peak / sum(part.nbytes for part in (x.values(), x.col_indices(), x.crow_indices())))


def multiply():
    matrix = torch.randn(2000, 2000)
    while True:
        matrix = torch.tanh(matrix @ matrix)


def run(args):
    results, repeats = {}, 2 if args.quick else 5
    for name in ('Cora', 'CiteSeer'):
        data = Planetoid(args.root, name)[0]
        generator = torch.Generator().manual_seed(0)
        nodes = torch.randperm(data.num_nodes, generator=generator)[: 5 if args.quick else 21].tolist()
        seconds = results[name] = first_calls(data, train(data, 'GCN'), nodes, 2 if args.quick else 5)
        print(f'The first explanation on {name}, GCN, over one call of GNNExplainer(epochs=100)')
        say('GNNExplainer', f'{seconds["GNNExplainer"]:.2f} s')
        for label, (_, bar) in FIRST.items():
            say(label, f'{seconds[label]:.2f} s')
            say(f'{label} / GNNExplainer', ratio(seconds[label] / seconds['GNNExplainer']), bar)
    print(f"Distillation to the same optimum, against {BEFORE}'s")
    for (name, kind), bar in SOLVED.items():
        data = Planetoid(args.root, name)[0]
        old, new, off, apart = results[f'{name} {kind}'] = against(args, data, name, kind, repeats)
        say(f'{name} {kind}, before / now', ratio(old / new), bar)
        say(f"{name} {kind}, evidence off the optimum's, before", f'{off:.1e}')
        say(f"{name} {kind}, evidence off the optimum's, now", f'{apart:.1e}', '<= 1e-5')
    busy = multiprocessing.get_context('spawn').Process(target=multiply, daemon=True)
    busy.start()
    try:
        data = Planetoid(args.root, 'Cora')[0]
        old, new, *_ = results['Cora GCN, busy'] = against(args, data, 'Cora', 'GCN', repeats)
    finally:
        busy.terminate()
    say('Cora GCN, beside matrix products on all cores, before / now', ratio(old / new), '>= 4x')
    size = ('10000', '5000') if args.quick else ('100000', '50000')
    command = [sys.executable, __file__, *size]
    results['memory'] = float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    say(f'peak memory / sparse features, {" x ".join(size)}', ratio(results['memory']), '<= 10x')
    return results


if __name__ == '__main__':
    if len(sys.argv) == 3:
        memory(*map(int, sys.argv[1:]))
    else:
        distil(*sys.argv[1:])
