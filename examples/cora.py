r"""Swaps GNNExplainer for FastDnX on Cora, and compares what they cost and how true to the model they are.

Both explain the same nodes, and both keep the same number of them.

    python examples/cora.py [--data data] [--num_nodes 10]
    python examples/cora.py --quick  # a small random graph instead, nothing to download
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.explain.metric import fidelity
from torch_geometric.nn import GCN
from torch_geometric.utils import stochastic_blockmodel_graph

from pyg_dnx import FastDnX, certify

parser = argparse.ArgumentParser()
parser.add_argument('--data', default='data', help='the root of Planetoid, which is downloaded if it is not there')
parser.add_argument('--quick', action='store_true')
parser.add_argument('--num_nodes', type=int, default=10, help='to explain')
parser.add_argument('--top_k', type=int, default=5, help='nodes that an explanation keeps')
args = parser.parse_args()

seed_everything(0)
if args.quick:
    y = torch.arange(4).repeat_interleave(100)
    x = torch.bernoulli(0.02 + 0.1 * F.one_hot(y).repeat_interleave(25, dim=1))  # each class has words of its own
    edge_index = stochastic_blockmodel_graph([100] * 4, 0.003 + 0.03 * torch.eye(4))
    data = Data(x=x, edge_index=edge_index, y=y, train_mask=torch.rand(400) < 0.2, test_mask=torch.rand(400) < 0.5)
else:
    data = Planetoid(args.data, 'Cora')[0]

model = GCN(data.num_features, hidden_channels=16, num_layers=2, out_channels=int(data.y.max()) + 1, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _ in range(100):
    optimizer.zero_grad()
    F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()
model.eval()
predicted = model(data.x, data.edge_index).argmax(dim=1)
accuracy = (predicted == data.y)[data.test_mask].float().mean()
print(f'GCN on {data.num_nodes} nodes, test accuracy {accuracy:.1%}\n')

surrogates = {'FastDnX()': FastDnX(), "FastDnX(score='target')": FastDnX(score='target')}
nodes = data.test_mask.nonzero().view(-1)[: args.num_nodes].tolist()
print(f'Of {args.num_nodes} explanations by {args.top_k} nodes each, in how many does the prediction …')
print(f'{"":<28}{"change without":>16}{"stay with them":>16}{"seconds each":>16}')
for name, algorithm in {'GNNExplainer(epochs=100)': GNNExplainer(epochs=100), **surrogates}.items():
    explainer = Explainer(
        model,
        algorithm=algorithm,  # all that changes
        explanation_type='model',
        node_mask_type='object',
        model_config=dict(mode='multiclass_classification', task_level='node', return_type='raw'),
    )
    if name in surrogates:
        surrogate = algorithm.distill(model, data.x, data.edge_index)  # as the first call would, and no later one
    started = time.perf_counter()
    explanations = [explainer(data.x, data.edge_index, index=node) for node in nodes]
    seconds = (time.perf_counter() - started) / len(nodes)
    # PyG's fidelity, one node at a time, on masks that keep as many nodes for each explainer.
    explanations = [explanation.threshold('topk_hard', args.top_k) for explanation in explanations]
    changed, lost = torch.tensor([fidelity(explainer, explanation) for explanation in explanations]).mean(dim=0)
    print(f'{name:<28}{changed:>16.0%}{1 - lost:>16.0%}{seconds:>16.4f}')
    if name in surrogates:
        verdicts = [certify(explainer, explanation) for explanation in explanations]

trusted, report = sum(int(verdict.verdict) == 0 for verdict in verdicts), surrogate.report
print(
    f'\nDistilled once, in {report.seconds:.2f} s; the surrogate predicts what the model does at {report.agreement:.1%}'
)
print(f'{trusted} of the last {len(nodes)} explanations are trustworthy. The first verdicts:')
for node, verdict in zip(nodes[:3], verdicts, strict=False):
    print(f'  node {node}: {verdict}')
