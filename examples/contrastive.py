r"""Why this class rather than that one? Papers of three fields that cite each other, and the words they use.

'data' is a word of both machine learning and statistics, by construction: it tells why a paper is not biology, and
does not tell machine learning from statistics. A contrastive explanation has to know the difference.

    python examples/contrastive.py [--num_nodes 1500]
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCN
from torch_geometric.utils import stochastic_blockmodel_graph

from pyg_dnx import FastDnX

parser = argparse.ArgumentParser()
parser.add_argument('--num_nodes', type=int, default=1500)
args = parser.parse_args()

FIELDS = ['machine learning', 'statistics', 'biology']
WORDS = ['data', 'gradient', 'variance', 'cell']
USES = torch.tensor([[0.8, 0.7, 0.1, 0.1], [0.8, 0.1, 0.7, 0.1], [0.1, 0.1, 0.1, 0.8]])  # [fields, words]

seed_everything(0)
size = args.num_nodes // 3
within, across = 6 / size, 1 / size  # six citations in one's own field, and one in each other
edge_index = stochastic_blockmodel_graph([size] * 3, across + (within - across) * torch.eye(3))
y = torch.arange(3).repeat_interleave(size)
x = torch.bernoulli(USES[y])

model = GCN(len(WORDS), hidden_channels=16, num_layers=2, out_channels=3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x, edge_index), y)
    loss.backward()
    optimizer.step()
probability = model(x, edge_index).detach().softmax(dim=1)
print(f'GCN trained, accuracy {(probability.argmax(dim=1) == y).float().mean():.1%}')

# A paper of machine learning that the model all but takes for one of statistics.
is_ml = (probability.argmax(dim=1) == 0) & (y == 0)
node = int(probability[:, 1].masked_fill(~is_ml, -1).argmax())
print(f'\nPaper {node}: ' + ', '.join(f'{p:.0%} {name}' for name, p in zip(FIELDS, probability[node], strict=True)))


def explain(node_mask_type, **options):
    explainer = Explainer(
        model,
        algorithm=FastDnX(score='target', **options),
        explanation_type='model',
        node_mask_type=node_mask_type,
        model_config=dict(mode='multiclass_classification', task_level='node', return_type='raw'),
    )
    return explainer(x, edge_index, index=node)


questions = {
    'Why machine learning?': {},
    'Why machine learning rather than statistics?': {'contrast': 1},  # here the same as contrast='runner_up'
    'Why machine learning rather than biology?': {'contrast': 2},
}
for question, options in questions.items():
    print(f'\n{question}')
    score = explain('common_attributes', **options).feature_score
    print('  words:  ' + ', '.join(f'{WORDS[f]} {score[f]:+.1f}' for f in score.argsort(descending=True).tolist()))
    score = explain('object', **options).node_score
    print('  papers: ' + ', '.join(f'{j} ({FIELDS[y[j]]}) {score[j]:+.2f}' for j in score.topk(3).indices.tolist()))
    print('  against: ' + ', '.join(f'{j} ({FIELDS[y[j]]}) {score[j]:+.2f}' for j in (-score).topk(3).indices.tolist()))
