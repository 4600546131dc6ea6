r"""What pushes a predicted value up, and what pushes it down: rents in a city made of blocks.

A park nearby raises the rent and a factory lowers it, by construction, so that the explanation can be judged.

    python examples/regression.py [--size 30]
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCN
from torch_geometric.utils import grid, remove_self_loops, to_dense_adj

from pyg_dnx import FastDnX, certify

parser = argparse.ArgumentParser()
parser.add_argument('--size', type=int, default=30, help='of the city, in blocks a side')
args = parser.parse_args()

# A city of blocks with 8 neighbours each. Some are parks, some factories, all others have flats, large or small.
seed_everything(0)
edge_index, _ = remove_self_loops(grid(args.size, args.size)[0])
kind = torch.rand(args.size**2)
is_park, is_factory = (kind < 0.05).float(), (kind > 0.95).float()
area = torch.randn(args.size**2) * (1 - is_park - is_factory)
x = torch.stack([area, is_park, is_factory], dim=1)
next_to = to_dense_adj(edge_index)[0] + torch.eye(args.size**2)
nearby = 0.7 * next_to + 0.3 * (next_to @ next_to > 0)  # two blocks away it still counts a bit
rent = 10 + 0.5 * area + nearby @ (3 * is_park - 4 * is_factory) + 0.1 * torch.randn(args.size**2)

model = GCN(3, hidden_channels=64, num_layers=2, out_channels=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(300):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x, edge_index).view(-1), rent)
    loss.backward()
    optimizer.step()
print(f'GCN trained: R² {1 - loss.item() / rent.var():.2f}, rents between {rent.min():.0f} and {rent.max():.0f}')

# For regression, FastDnX() scores by what moves the output from the bias toward where it is, whichever side that is.
# To have 'up' positive for every node, ask for a target one above the bias: scores are then in units of rent.
explainer = Explainer(
    model,
    algorithm=FastDnX(),
    explanation_type='phenomenon',
    node_mask_type='object',
    model_config=dict(mode='regression', task_level='node'),
)
surrogate = explainer.algorithm.distill(model, x, edge_index)
up = (surrogate.bias + 1).float().expand(x.size(0), 1)
print(f'\nDistilled once:\n{surrogate.report}')

degree = torch.bincount(edge_index[0])
candidates = (degree == 8) & (nearby @ is_park >= 1) & (nearby @ is_factory >= 1) & (is_park + is_factory == 0)
node = int(candidates.nonzero()[0])
explanation = explainer(x, edge_index, index=node, target=up)
score = explanation.node_score
predicted = model(x, edge_index).detach().view(-1)
print(f'\nRent at block {node}: {rent[node]:.1f}, by the model: {predicted[node]:.1f}, by the surrogate: ', end='')
print(f'{surrogate.bias.item():.1f} + {score.clamp(min=0).sum():.1f} (up) - {-score.clamp(max=0).sum():.1f} (down)')


def describe(j):
    name = 'park' if is_park[j] else 'factory' if is_factory[j] else f'flats of size {area[j]:+.1f}'
    without = x.clone()
    without[j] = 0
    moved = predicted[node] - model(without, edge_index)[node].item()
    return f'  block {j:4d}  score {score[j]:+6.2f}   asked without it, the model moves by {moved:+6.2f}   {name}'


print('What pushes it up:', *[describe(j) for j in score.topk(3).indices.tolist()], sep='\n')
print('What pushes it down:', *[describe(j) for j in (-score).topk(3).indices.tolist()], sep='\n')
print(certify(explainer, explanation))

# All blocks at once: does the sign know parks from factories?
batch = explainer.algorithm.explain_nodes(model, x, edge_index, target=up)
neighbour, score = batch.scores.col_indices(), batch.scores.values()
print('\nOver all blocks and what lies around them:')
print(f'  parks that push up:      {(score[is_park[neighbour] == 1] > 0).float().mean():.1%}')
print(f'  factories that push down: {(score[is_factory[neighbour] == 1] < 0).float().mean():.1%}')
