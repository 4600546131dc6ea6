r"""Explains one prediction of a GNN: train, swap in FastDnX, print, draw.

python examples/quickstart.py [--path quickstart.png]
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.datasets import ExplainerDataset
from torch_geometric.datasets.graph_generator import BAGraph
from torch_geometric.explain import Explainer
from torch_geometric.explain.metric import fidelity
from torch_geometric.nn import GCN
from torch_geometric.utils import degree

from pyg_dnx import FastDnX, plot

parser = argparse.ArgumentParser()
parser.add_argument('--path', default='quickstart.png')
args = parser.parse_args()

# A random graph with 40 houses attached to it. The task: roof, middle or ground floor of a house, or none of them.
seed_everything(0)
dataset = ExplainerDataset(BAGraph(num_nodes=150, num_edges=3), motif_generator='house', num_motifs=40)
data = dataset[0]
data.x = F.one_hot(degree(data.edge_index[0], data.num_nodes).long().clamp(max=9)).float()

model = GCN(data.num_features, hidden_channels=20, num_layers=3, out_channels=4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(500):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data.x, data.edge_index), data.y)
    loss.backward()
    optimizer.step()
accuracy = (model(data.x, data.edge_index).argmax(dim=1) == data.y).float().mean()
print(f'{model.__class__.__name__} trained, accuracy {accuracy:.1%}')

explainer = Explainer(
    model,
    algorithm=FastDnX(),  # in place of GNNExplainer(epochs=200)
    explanation_type='model',
    node_mask_type='object',
    edge_mask_type='object',
    model_config=dict(mode='multiclass_classification', task_level='node', return_type='raw'),
)
node = int((data.y == 1).nonzero()[0])
explanation = explainer(data.x, data.edge_index, index=node)

print(f'\nDistilled once:\n{explainer.algorithm.distill(model, data.x, data.edge_index).report}')
print(f'\nWhy does the model predict class {int(explanation.target[node])} for node {node}?')
for score, j in zip(*explanation.node_score.topk(5), strict=True):
    print(
        f'  node {int(j):3d}  score {score:8.2f}  {"same house" if j >= 150 and j // 5 == node // 5 else "elsewhere"}'
    )
removed, kept = fidelity(explainer, explanation.threshold('topk_hard', 12))  # a house has 12 directed edges
print(f'The prediction changes without the top 12 edges and nodes: {bool(removed)}, with them alone: {bool(kept)}')
print(f'The surrogate agrees with the model here: {bool(explanation.surrogate_agreement)}')

plot.neighborhood(explanation, path=args.path)
print(f'\nPicture saved to {args.path}')
