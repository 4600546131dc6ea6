r"""Every picture of one explanation, and a page to send to a colleague. Papers of three fields cite each other.

The last picture is of an explanation by GNNExplainer: these functions take any explanation of PyG's.

    python examples/pictures.py [--folder pictures] [--theme dark]
"""

import argparse
import os

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GCN
from torch_geometric.utils import stochastic_blockmodel_graph

from pyg_dnx import FastDnX, certify, plot, to_html, trust_report

parser = argparse.ArgumentParser()
parser.add_argument('--folder', default='pictures')
parser.add_argument('--theme', default='light', choices=['light', 'dark'])
args = parser.parse_args()
os.makedirs(args.folder, exist_ok=True)


def look(name):
    return dict(path=os.path.join(args.folder, name), theme=args.theme)


FIELDS = ['machine learning', 'statistics', 'biology']
WORDS = ['data', 'gradient', 'variance', 'cell']
USES = torch.tensor([[0.8, 0.7, 0.1, 0.1], [0.8, 0.1, 0.7, 0.1], [0.1, 0.1, 0.1, 0.8]])  # [fields, words]
seed_everything(0)
edge_index = stochastic_blockmodel_graph([150] * 3, 0.003 + 0.02 * torch.eye(3))
y = torch.arange(3).repeat_interleave(150)
x = torch.bernoulli(USES[y])
names = [f'{FIELDS[field][:4]}. {node}' for node, field in enumerate(y.tolist())]

model = GCN(len(WORDS), hidden_channels=16, num_layers=2, out_channels=3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    F.cross_entropy(model(x, edge_index), y).backward()
    optimizer.step()


def explainer_of(algorithm, node_mask_type='object', edge_mask_type='object'):
    config = dict(mode='multiclass_classification', task_level='node', return_type='raw')
    return Explainer(model, algorithm, 'model', config, node_mask_type, edge_mask_type)


node = 42
explainer = explainer_of(FastDnX(score='target'))
explanation = explainer(x, edge_index, index=node)
certificate = certify(explainer, explanation)
print(f'Why is paper {node} on {FIELDS[int(explanation.target[node])]}?\n{certificate}')
plot.neighborhood(explanation, node_labels=names, **look('neighborhood.png'))

words = explainer_of(FastDnX(score='target'), 'common_attributes', None)(x, edge_index, index=node)
plot.features(words, labels=WORDS, **look('features.png'))

batch = explainer.algorithm.explain_nodes(model, x, edge_index, index=torch.tensor([42, 200, 400]))
plot.batch(batch, node_labels=names, **look('batch.png'))

plot.report(trust_report(explainer, x, edge_index), **look('report.png'))

other = explainer_of(GNNExplainer(epochs=50))(x, edge_index, index=node)
plot.neighborhood(other, node_labels=names, title='The same by GNNExplainer', **look('gnn_explainer.png'))

page = os.path.join(args.folder, 'page.html')
to_html(explanation, page, node_labels=names, feature_labels=WORDS, certificate=certificate)
print(f'Pictures saved to {args.folder}; open {page} in a browser')
