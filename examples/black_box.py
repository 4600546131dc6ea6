r"""Explains a model that is no GNN and has no gradients: a rule of thumb about infections, written in NumPy.

Anything that maps features and edges to one row of outputs a node can be explained: wrap it in a module. The rule is
known here, so that one can see whether the explanations are right.

    python examples/black_box.py [--num_nodes 500]
"""

import argparse

import numpy as np
import torch
from torch_geometric import seed_everything
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.utils import erdos_renyi_graph, to_dense_adj

from pyg_dnx import FastDnX, ProbeDnX, check

parser = argparse.ArgumentParser()
parser.add_argument('--num_nodes', type=int, default=500)
args = parser.parse_args()


class Rule(torch.nn.Module):
    r"""The risk of having been infected by a contact: each one that is infected and wears no mask passes it on."""

    def forward(self, x, edge_index):
        infected, masked = x.detach().numpy().T
        passed = 0.6 * infected * (1 - 0.9 * masked)
        escaped = np.ones(len(x))
        np.multiply.at(escaped, edge_index[1].numpy(), 1 - passed[edge_index[0].numpy()])
        return torch.from_numpy(np.stack([escaped, 1 - escaped], axis=1)).float()  # class probabilities


seed_everything(0)
N = args.num_nodes
edge_index = erdos_renyi_graph(N, edge_prob=8 / N)
x = torch.stack([torch.rand(N) < 0.1, torch.rand(N) < 0.5], dim=1).float()
model = Rule()
risk = model(x, edge_index)[:, 1]
print(f'{int((risk > 0.5).sum())} of {N} people are at risk')

# Gradients don't pass through NumPy, so that explainers that need them fail: GNNExplainer, and captum's Saliency or
# Integrated Gradients likewise.
config = dict(mode='multiclass_classification', task_level='node', return_type='probs')
print(f'Do its outputs have gradients? {model(x.clone().requires_grad_(), edge_index).requires_grad}')
try:
    Explainer(model, GNNExplainer(), 'model', config, node_mask_type='object')(x, edge_index, index=0)
except RuntimeError as error:
    print(f'GNNExplainer: {error}')

# The rule says who is the cause: contacts that are infected and wear no mask. How many of an explanation's highest
# scores, as many as there are causes, name one? There are no PyG layers to count, and so we say how far the rule looks.
# FastDnX's surrogate takes means over contacts, where the rule counts them, and warns that it can't follow.
is_cause = to_dense_adj(edge_index, max_num_nodes=N)[0].T.bool() & (x[:, 0] > 0) & (x[:, 1] == 0)
nodes = (risk > 0.5).nonzero().view(-1)
for algorithm in (FastDnX(num_hops=1), ProbeDnX(num_hops=1)):
    explainer = Explainer(model, algorithm, 'model', config, node_mask_type='object')
    batch = algorithm.explain_nodes(model, x, edge_index, index=nodes, top_k=10)
    found = []
    for node, ranked in zip(nodes, batch.top_k(10)[0], strict=True):
        found.append(is_cause[node, ranked[: int(is_cause[node].sum())]].float().mean())
    print(f'\n{algorithm.__class__.__name__}: {torch.stack(found).mean():.1%} of the causes found')
    print(f'{batch.certificate}\nAsked itself, the model says:\n{check(explainer, batch, num_hops=1)}')

node = int(nodes[0])
score = explainer(x, edge_index, index=node).node_score
print(f'\nWhy is person {node} at risk ({risk[node]:.0%})?')
for j in score.topk(4).indices.tolist():
    print(f'  contact {j:3d}  {score[j]:+.2f}  infected: {bool(x[j, 0])}, mask: {bool(x[j, 1])}')
