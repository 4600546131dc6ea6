r"""Explains a model of molecules: which atoms and bonds make one toxic?

The molecules are made up: rings and chains of carbon with some other atoms, half of them with a nitro group, which
alone makes them toxic. So one can see whether explanations find it.

    python examples/molecules.py [--num_graphs 300] [--path molecules.png]
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.explain import Explainer
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, global_add_pool
from torch_geometric.utils import to_undirected

from pyg_dnx import FastDnX, ProbeDnX, check, plot

parser = argparse.ArgumentParser()
parser.add_argument('--num_graphs', type=int, default=300)
parser.add_argument('--path', help='a file for a picture of six molecules')
args = parser.parse_args()
ATOMS = ('C', 'N', 'O', 'Cl')


def molecule(is_toxic):
    r"""A ring with a tail, a nitro group or, in its place, an amine and a chlorine, and some oxygen."""
    ring, tail = int(torch.randint(5, 7, ())), int(torch.randint(3, 7, ()))
    size = ring + tail
    bonds = [(i, (i + 1) % ring) for i in range(ring)] + [(ring - 1 + i, ring + i) for i in range(tail)]
    atoms = torch.where(torch.rand(size) < 0.1, 2, 0).tolist()
    place, n = int(torch.randint(size, ())), size
    if is_toxic:
        atoms += [1, 2, 2]
        bonds += [(place, n), (n, n + 1), (n, n + 2)]
    else:
        atoms += [1, 3]
        bonds += [(place, n), (int(torch.randint(size, ())), n + 1)]
    truth = torch.arange(len(atoms)) >= (n if is_toxic else len(atoms))
    names, x = [ATOMS[a] for a in atoms], F.one_hot(torch.tensor(atoms), len(ATOMS)).float()
    edges = to_undirected(torch.tensor(bonds).T)
    return Data(x=x, edge_index=edges, y=torch.tensor([int(is_toxic)]), node_truth=truth, node_names=names)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = GIN(len(ATOMS), 16, 3, norm='batch_norm'), torch.nn.Linear(16, 2)

    def forward(self, x, edge_index, batch=None):
        return self.head(global_add_pool(self.body(x, edge_index), batch))


seed_everything(0)
graphs = [molecule(is_toxic=g % 2 == 1) for g in range(args.num_graphs)]
train, test = graphs[: len(graphs) * 4 // 5], graphs[len(graphs) * 4 // 5 :]
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(20):
    for batch in DataLoader(train, 64, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y).backward()
        optimizer.step()
model.eval()
predicted = torch.cat([model(graph.x, graph.edge_index).argmax(dim=1) for graph in test])
right = (predicted == torch.cat([graph.y for graph in test])).float().mean()
print(f'{right:.0%} of the test molecules are told right')

# FastDnX is distilled once, over the data that the model was trained on. ProbeDnX asks the model about each molecule,
# 512 times without some of its atoms. Both explain all test molecules, each by itself.
config = dict(mode='multiclass_classification', task_level='graph', return_type='raw')
for algorithm in (FastDnX(class_names=['harmless', 'toxic']), ProbeDnX(class_names=['harmless', 'toxic'])):
    explainer = Explainer(model, algorithm, 'model', config, node_mask_type='object', edge_mask_type='object')
    if isinstance(algorithm, FastDnX):
        print(f'\n{algorithm.distill(model, train).report}')
    explained = algorithm.explain_graphs(model, test)
    toxic = [g for g, graph in enumerate(test) if graph.y == 1]
    best, _ = explained.top_k(3)
    hits = torch.stack([test[g].node_truth[best[g]] for g in toxic]).float().mean()
    print(f'\n{type(algorithm).__name__}: {hits:.0%} of the three highest scores in toxic ones are the nitro group')
    print(f'Asked without atoms and bonds, the model says:\n{check(explainer, explained)}')

explanation = explained[toxic[0]]
print('\nOne molecule, by score:')
for atom in explanation.node_score.argsort(descending=True)[:5].tolist():
    print(f'  atom {atom:2d}  {explanation.node_names[atom]:2s}  {explanation.node_score[atom]:+.2f}')
if args.path:
    plot.graphs(explained[toxic[:6]], path=args.path)
    print(f'Six molecules are in {args.path}')
