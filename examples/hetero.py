r"""Which author had a paper put into its field? A graph of two node types, with the cause planted in one relation.

Three authors wrote each paper, and its field is theirs. Others reviewed it, and papers cite one another: that has
nothing to do with the field, though reviewers are authors of other papers.

    python examples/hetero.py [--num_papers 400]
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explainer
from torch_geometric.nn import HeteroConv, SAGEConv

from pyg_dnx import ProbeDnX, check

parser = argparse.ArgumentParser()
parser.add_argument('--num_papers', type=int, default=400)
args = parser.parse_args()

seed_everything(0)
N = args.num_papers
field = torch.arange(2 * N) % 3  # of authors
label = torch.randint(3, (N,))
papers = torch.arange(N).repeat_interleave(3)
writers = 3 * torch.randint(2 * N // 3, (3 * N,)) + label[papers]
data = HeteroData()
data['paper'].x = torch.randn(N, 4)
data['author'].x = F.one_hot(field).float() + 0.2 * torch.randn(2 * N, 3)
data['author', 'writes', 'paper'].edge_index = torch.stack([writers, papers])
data['author', 'reviews', 'paper'].edge_index = torch.stack([torch.randint(2 * N, (3 * N,)), papers])
data['paper', 'cites', 'paper'].edge_index = torch.randint(N, (2, 2 * N))
data['paper', 'by', 'author'].edge_index = data['author', 'writes', 'paper'].edge_index.flip(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        convs = [{relation: SAGEConv((-1, -1), 32) for relation in data.edge_types} for _ in range(2)]
        self.layers = torch.nn.ModuleList([HeteroConv(conv) for conv in convs])
        self.lin = torch.nn.Linear(32, 3)

    def forward(self, x_dict, edge_index_dict):
        for layer in self.layers:
            x_dict = {name: x.relu() for name, x in layer(x_dict, edge_index_dict).items()}
        return self.lin(x_dict['paper'])


model = Model()
model(data.x_dict, data.edge_index_dict)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    F.cross_entropy(model(data.x_dict, data.edge_index_dict), label).backward()
    optimizer.step()
accuracy = (model(data.x_dict, data.edge_index_dict).argmax(dim=1) == label).float().mean()
print(f'The model names the field of {accuracy:.0%} of the papers.')

explainer = Explainer(
    model,
    ProbeDnX(num_probes=512),
    explanation_type='model',
    node_mask_type='object',
    edge_mask_type='object',
    model_config=dict(mode='multiclass_classification', task_level='node', return_type='raw'),
)
explanation = explainer(data.x_dict, data.edge_index_dict, index=0)
print('The highest scores at paper 0:')
scores = [(float(s), kind, j) for kind in data.node_types for j, s in enumerate(explanation[kind].node_score)]
for score, kind, j in sorted(scores, reverse=True)[:4]:
    role = 'wrote it' if kind == 'author' and j in writers[:3] else 'did not'
    print(f'  {kind} {j:<5} {score:+.3f}  {role}')
print('Over each relation into it came:')
for relation in data.edge_types:
    into = data[relation].edge_index[1] == 0
    print(f'  {" ".join(relation):<22} {float(explanation[relation].edge_score[into].sum()):+.3f}')

nodes = torch.arange(20)
many = explainer.algorithm.explain_nodes(model, data.x_dict, data.edge_index_dict, index=nodes)
ids = many.top_k(1)[0][:, 0] - N  # authors are numbered after papers
hits = sum(int(j) in writers[3 * i : 3 * i + 3] for i, j in enumerate(ids.tolist()))
print(f'At {hits} of 20 papers the highest score is that of an author who wrote it.')
print(check(explainer, explanation))
