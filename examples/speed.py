r"""What a call costs on Cora, against PyG's own explainers, side by side in one run.

python examples/speed.py [--root data/planetoid]
"""

import argparse
import statistics
import time
import warnings

import torch
import torch.nn.functional as F
from torch_geometric.datasets import Planetoid
from torch_geometric.explain import DummyExplainer, Explainer, GNNExplainer
from torch_geometric.nn import GCN

from pyg_dnx import DnX, FastDnX, SurrogateWarning

parser = argparse.ArgumentParser()
parser.add_argument('--root', default='data/planetoid', help='where Planetoid is, or is downloaded to')
parser.add_argument('--repeats', type=int, default=200)
args = parser.parse_args()
warnings.simplefilter('ignore', SurrogateWarning)

data = Planetoid(args.root, 'Cora')[0]
torch.manual_seed(0)
model = GCN(data.num_features, 16, num_layers=2, out_channels=7, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _ in range(200):
    optimizer.zero_grad()
    F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()
model.eval()

explainers = {
    label: Explainer(
        model,
        algorithm=algorithm,
        explanation_type='model',
        node_mask_type='object',
        edge_mask_type='object',
        model_config=dict(mode='multiclass_classification', task_level='node', return_type='raw'),
    )
    for label, algorithm in {
        'DummyExplainer': DummyExplainer(),
        'FastDnX': FastDnX(),
        'DnX': DnX(),
        'GNNExplainer, 100 epochs': GNNExplainer(epochs=100),
    }.items()
}
fast = explainers['FastDnX'].algorithm
print(f'distilled once:\n{fast.distill(model, data.x, data.edge_index).report}\n')

times = {label: [] for label in explainers}
for repeat in range(args.repeats):
    for label, explainer in explainers.items():
        if label.startswith('GNN') and repeat % 20:
            continue  # a few calls of the slow one are enough
        start = time.perf_counter()
        explainer(data.x, data.edge_index, index=(13 * repeat) % data.num_nodes)
        times[label].append(time.perf_counter() - start)
for label in ('FastDnX', 'DnX'):
    algorithm, times[f'{label}.explain_nodes, a node'] = explainers[label].algorithm, []
    for _ in range(5):
        start = time.perf_counter()
        algorithm.explain_nodes(model, data.x, data.edge_index)
        times[f'{label}.explain_nodes, a node'].append((time.perf_counter() - start) / data.num_nodes)

base = statistics.median(times['DummyExplainer'])
print(f'{"":<28}{"ms":>10}{"x Dummy":>12}')
for label, values in times.items():
    median = statistics.median(values)
    print(f'{label:<28}{1e3 * median:>10.4f}{median / base:>12.5f}')
