r"""Explains one prediction of a GNN: train, explain, print, draw, and ask the model whether the explanation holds.

300 papers on four topics mostly cite papers on their own topic. Words 0 to 7 are more likely on topic 0, and so on.

python examples/quickstart.py [--path quickstart.png]
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCN
from torch_geometric.utils import stochastic_blockmodel_graph

from pyg_dnx import ProbeDnX, certify, plot

parser = argparse.ArgumentParser()
parser.add_argument('--path', default='quickstart.png')
args = parser.parse_args()

seed_everything(0)
topic = torch.arange(4).repeat_interleave(75)
links = stochastic_blockmodel_graph([75] * 4, 0.004 + 0.03 * torch.eye(4))
words = torch.bernoulli(torch.where(topic[:, None] == torch.arange(32) // 8, 0.25, 0.08))
data = Data(x=words, edge_index=links, y=topic)

model = GCN(in_channels=32, hidden_channels=16, num_layers=2, out_channels=4, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _ in range(200):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data.x, data.edge_index), data.y)
    loss.backward()
    optimizer.step()

explainer = Explainer(
    model,
    algorithm=ProbeDnX(class_names=[f'topic {number}' for number in range(4)]),  # in place of GNNExplainer()
    explanation_type='model',
    node_mask_type='object',
    model_config=dict(mode='multiclass_classification', task_level='node', return_type='raw'),
)
explanation = explainer(data.x, data.edge_index, index=10)

print(f'Why does the model take paper 10 to be about topic {int(explanation.target[10])}?')
for score, paper in zip(*explanation.node_score.topk(5), strict=True):
    print(f'  paper {int(paper):3d}, on topic {int(topic[paper])}: score {score:+.2f}')

five = explanation.threshold('topk_hard', 5)
print(f'\nDoes it hold?\n{certify(explainer, five)}')

plot.neighborhood(explanation, path=args.path)
print(f'\nPicture saved to {args.path}')
