r"""Compares explainers by what the model itself says of their explanations, on the same nodes and at the same sizes.

If an explanation is true to the model, the prediction changes without it, and stays if nothing else is left.
Characterization is the harmonic mean of the two; unfaithfulness is how far probabilities move in the second case.

    python examples/compare.py [--graph tree_grids] [--path compare.png]
    python examples/compare.py --graph Cora --data FOLDER  # downloaded to FOLDER/planetoid if it is not there
"""

import argparse
import time
import warnings

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.explain import CaptumExplainer, DummyExplainer, Explainer, GNNExplainer
from torch_geometric.explain.metric import characterization_score
from torch_geometric.nn import GCN

from pyg_dnx import DnX, FastDnX, ProbeDnX, SurrogateWarning, check
from pyg_dnx.datasets import load

parser = argparse.ArgumentParser()
parser.add_argument('--graph', default='tree_grids')
parser.add_argument('--data', default='data', help='a folder for graphs that are downloaded')
parser.add_argument('--num_nodes', type=int, default=20, help='to explain')
parser.add_argument('--top_k', type=int, default=5, help='nodes that an explanation keeps')
parser.add_argument('--path', help='where to save a picture of the table')
args = parser.parse_args()
warnings.simplefilter('ignore', SurrogateWarning)  # what it says is measured below

seed_everything(0)
data = load(args.graph, args.data)
model = GCN(data.num_features, hidden_channels=20, num_layers=3, out_channels=int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _ in range(300):
    optimizer.zero_grad()
    F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()
predicted = model(data.x, data.edge_index).argmax(dim=1)
print(f'GCN on {args.graph}, test accuracy {(predicted == data.y)[data.test_mask].float().mean():.1%}')
nodes = torch.randperm(data.num_nodes)[: args.num_nodes]

algorithms = {
    'random': DummyExplainer(),
    'FastDnX()': FastDnX(),
    'DnX()': DnX(),
    "FastDnX(score='target')": FastDnX(score='target'),
    "FastDnX(distillation='masked')": FastDnX(distillation='masked'),
    'ProbeDnX()': ProbeDnX(),
    'GNNExplainer(epochs=100)': GNNExplainer(epochs=100),
}
try:
    algorithms['Integrated Gradients'] = CaptumExplainer('IntegratedGradients')
except ImportError:
    print('Integrated Gradients is left out: it needs captum')


def explainer_of(algorithm):
    kind = 'attributes' if isinstance(algorithm, CaptumExplainer) else 'object'
    config = dict(mode='multiclass_classification', task_level='node', return_type='raw')
    return Explainer(model, algorithm, 'model', config, node_mask_type=kind)


# The model is distilled here, once, which is not counted below.
explanations = list(explainer_of(FastDnX()).algorithm.explain_nodes(model, data.x, data.edge_index, index=nodes))
is_near = torch.stack([explanation.node_mask[:, 0] > 0 for explanation in explanations])  # what the model looks at

COLUMNS = 'change without', 'stay with them', 'characterization', 'unfaithfulness', 'ms each'
table = {}
print('\n{:<32}{:>16}{:>16}{:>18}{:>16}{:>10}'.format('', *COLUMNS))
for name, algorithm in algorithms.items():
    explainer, started = explainer_of(algorithm), time.perf_counter()
    if hasattr(algorithm, 'explain_nodes'):
        score = algorithm.explain_nodes(model, data.x, data.edge_index, index=nodes).scores.to_dense()
    else:
        score = torch.stack([explainer(data.x, data.edge_index, index=int(n)).node_mask.sum(dim=1) for n in nodes])
    milliseconds = (time.perf_counter() - started) / len(nodes) * 1000
    top = score.masked_fill(~is_near, -torch.inf).topk(args.top_k).indices
    for explanation, ids in zip(explanations, top, strict=True):
        explanation.node_mask = torch.zeros(data.num_nodes, 1).index_fill_(0, ids, 1)
    checked = check(explainer, explanations)
    without, lost = checked.fidelity_plus.mean(), checked.fidelity_minus.mean()
    row = without, 1 - lost, characterization_score(without, lost), checked.unfaithfulness.mean()
    table[name] = list(map(float, row))
    print('{:<32}{:>16.0%}{:>16.0%}{:>18.2f}{:>16.2f}{:>10.1f}'.format(name, *table[name], milliseconds))

print('\nThis is one graph and one model. For many, see docs/results.md and docs/beyond.md')
if args.path:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout='constrained')
    names = sorted(table, key=lambda name: table[name][2])
    axes.barh(
        names, [table[name][2] for name in names], color=['#0072B2' if 'DnX' in name else '0.6' for name in names]
    )
    axes.set(xlabel='characterization, higher is better', xlim=(0, 1), title=f'{args.num_nodes} nodes of {args.graph}')
    figure.savefig(args.path, dpi=120)
