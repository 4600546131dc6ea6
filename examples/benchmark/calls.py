r"""What one explanation costs, with PyG's explainers and with this package's.

    python examples/benchmark/run.py --parts calls                # a table of both
    python examples/benchmark/calls.py --against COMMIT           # this package's calls against an earlier version's

The latter needs no data. Its exit code is 1 if a call takes more than 1.03 times as long as it did, beyond noise.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from against import GRAPHS, ROWS, compare
from common import MODEL_CONFIG, ratio, say, side_by_side
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.explain import CaptumExplainer, DummyExplainer, Explainer, GNNExplainer, PGExplainer
from torch_geometric.nn import GCN

from pyg_dnx import DnX, FastDnX, ProbeDnX, shared_cache

PAPER_GRAPHS = ('ba_house', 'ba_community', 'ba_grids', 'tree_cycles', 'tree_grids', 'ba_bottle')


def train(data, num_classes):
    torch.manual_seed(0)
    model = GCN(data.num_features, 16, 2, num_classes, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(100):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
    return model.eval()


def explainers(model, data):
    r"""Each explainer with the masks it gives; those whose packages are missing are named and left out."""
    from torch_geometric.contrib.explain import PGMExplainer  # warns

    masks = {'node_mask_type': 'object', 'edge_mask_type': 'object', 'explanation_type': 'model'}
    nodes_only, edges_only = {**masks, 'edge_mask_type': None}, {**masks, 'node_mask_type': None}
    attributes = {**nodes_only, 'node_mask_type': 'attributes'}
    algorithms = {
        'DummyExplainer': (DummyExplainer, masks),
        'FastDnX': (FastDnX, masks),
        'DnX': (DnX, masks),
        'FastDnX, masked': (lambda: FastDnX(distillation='masked'), masks),
        'ProbeDnX': (ProbeDnX, masks),
        'Saliency': (lambda: CaptumExplainer('Saliency'), attributes),
        'Integrated Gradients': (lambda: CaptumExplainer('IntegratedGradients'), attributes),
        'GNNExplainer, 100 epochs': (lambda: GNNExplainer(epochs=100), masks),
        'PGMExplainer, 100 samples': (lambda: PGMExplainer(num_samples=100), nodes_only),
        'PGExplainer, trained before': (
            lambda: PGExplainer(epochs=1),
            {**edges_only, 'explanation_type': 'phenomenon'},
        ),
    }
    found = {}
    for name, (algorithm, options) in algorithms.items():
        try:
            if name.startswith('PGM'):
                import pgmpy.estimators.CITests  # noqa: F401
            found[name] = Explainer(model, algorithm=algorithm(), model_config=MODEL_CONFIG, **options)
        except ImportError as error:
            say(f'{name}', 'left out', f'needs {error.name or error}')
    trained = found['PGExplainer, trained before']
    for node in range(20):
        trained.algorithm.train(0, model, data.x, data.edge_index, target=data.y, index=node)
    return found


def load(name, args):
    if name == 'Cora':
        return Planetoid(args.root, 'Cora')[0]
    arrays = np.load(Path(args.data) / f'{name}.npz')
    return Data(**{key: torch.from_numpy(arrays[key]) for key in arrays})


def measure(name, args):
    data = load(name, args)
    model = train(data, int(data.y.max()) + 1)
    found = explainers(model, data)
    slow = {label for label in found if label.startswith(('GNN', 'PGM', 'Integrated'))}
    number = iter(range(10**9))

    def call(label):
        target = {'target': data.y} if label.startswith('PGExplainer') else {}
        return lambda: found[label](data.x, data.edge_index, index=(13 * next(number)) % data.num_nodes, **target)

    def forward():
        with torch.no_grad():
            model(data.x, data.edge_index)

    quick = {'one forward': forward, **{label: call(label) for label in found if label not in slow}}
    seconds = side_by_side(quick, args.repeats)
    seconds |= side_by_side({label: call(label) for label in slow}, max(1, args.repeats // 40))
    fast, dnx, masked, probe = (found[name].algorithm for name in ('FastDnX', 'DnX', 'FastDnX, masked', 'ProbeDnX'))
    inputs, few = (model, data.x, data.edge_index), torch.arange(min(1000, data.num_nodes))

    def anew(algorithm):
        shared_cache.clear()
        return algorithm.explain_nodes(*inputs, index=few)

    batches = {
        'FastDnX.explain_nodes, a node': lambda: fast.explain_nodes(*inputs),
        'FastDnX.explain_nodes(top_k=10), a node': lambda: fast.explain_nodes(*inputs, top_k=10),
        'FastDnX, masked.explain_nodes, a node': lambda: masked.explain_nodes(*inputs),
        'DnX.explain_nodes, a node': lambda: dnx.explain_nodes(*inputs),
    }
    slower = {'ProbeDnX.explain_nodes, a node': lambda: probe.explain_nodes(*inputs)}
    distilling = {
        'FastDnX, masked, a node of 1,000 with distillation': lambda: anew(masked),
        'ProbeDnX, a node of 1,000 with distillation and probes': lambda: anew(probe),
    }
    of_all = side_by_side(batches, max(3, args.repeats // 10)) | side_by_side(slower, 1)
    of_few = side_by_side(distilling, 1)
    return (
        seconds
        | {label: value / data.num_nodes for label, value in of_all.items()}
        | {label: value / few.numel() for label, value in of_few.items()}
    )


def run(args):
    results = {}
    for name in ['Cora', *(PAPER_GRAPHS if args.data else [])]:
        seconds = results[name] = measure(name, args)
        print(f'One explanation on {name}, against Explainer + DummyExplainer (what PyG itself costs)')
        for label, value in sorted(seconds.items(), key=lambda item: item[1]):
            say(label, f'{1e3 * value:.4f} ms', ratio(value / seconds['DummyExplainer']))
        slowest, batch = seconds['GNNExplainer, 100 epochs'], seconds['FastDnX.explain_nodes, a node']
        ratios = {
            'Explainer + FastDnX / Explainer + DummyExplainer': seconds['FastDnX'] / seconds['DummyExplainer'],
            'GNNExplainer / Explainer + FastDnX': slowest / seconds['FastDnX'],
            'GNNExplainer / explain_nodes, a node': slowest / batch,
            'explain_nodes, DnX / FastDnX': seconds['DnX.explain_nodes, a node'] / batch,
            'explain_nodes, masked / FastDnX': seconds['FastDnX, masked.explain_nodes, a node'] / batch,
        }
        bars = ['<= 1.2x', '>= 100x', '>= 50,000x', '<= 30x', '1x']
        if 'Integrated Gradients' in seconds:
            label = 'ProbeDnX, a node of 1,000 with distillation and probes'
            ratios['Integrated Gradients / ProbeDnX, 1,000'] = seconds['Integrated Gradients'] / seconds[label]
            bars.append('>= 10x')
        bars = bars if name == 'Cora' else [''] * len(bars)
        for (label, value), bar in zip(ratios.items(), bars, strict=True):
            say(label, ratio(value), bar)
    return results


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--against', required=True, metavar='COMMIT', help='the version to compare with')
    parser.add_argument('--rounds', type=int, default=20, help='how often both versions are started')
    parser.add_argument('--rows', nargs='+', choices=ROWS, default=ROWS, metavar='ROW', help=f'among {", ".join(ROWS)}')
    parser.add_argument('--graphs', nargs='+', choices=GRAPHS, default=GRAPHS, help='to measure on')
    args = parser.parse_args()
    rows = [row for row in ROWS if row in args.rows]  # those that empty the cache last
    sys.exit(compare(args.against, args.rounds, args.graphs, rows))
