r"""How much of a known explanation is found: houses planted on a random graph, as in the papers.

A node's class is its place in a house, and so the house's five nodes are the ground truth. It is known who is right
there, but see what a ranking that has never seen the model gets.

    python examples/ba_shapes.py [--num_nodes 100] [--graph ba_house]
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GCN
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_dense_adj

from pyg_dnx import DnX, FastDnX, ProbeDnX, check
from pyg_dnx.datasets import MotifDataset, node_truth

parser = argparse.ArgumentParser()
parser.add_argument('--graph', default='ba_house', help='ba_house, ba_grids, tree_cycles, tree_grids, ba_bottle …')
parser.add_argument('--num_nodes', type=int, default=100, help='to explain')
parser.add_argument('--num_slow', type=int, default=10, help='of these, how many by GNNExplainer')
args = parser.parse_args()

seed_everything(0)
data = MotifDataset(args.graph)[0]
model = GCN(data.num_features, hidden_channels=20, num_layers=3, out_channels=int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(300):
    optimizer.zero_grad()
    F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()
predicted = model(data.x, data.edge_index).argmax(dim=1)
print(f'GCN on {args.graph}, test accuracy {(predicted == data.y)[data.test_mask].float().mean():.1%}\n')

in_motif = (data.node_motif >= 0).nonzero().view(-1)
nodes = in_motif[torch.randperm(in_motif.numel())[: args.num_nodes]]
truth = node_truth(data, nodes)  # [B, N]
size = int(truth[0].sum())


def explainer_of(algorithm):
    config = dict(mode='multiclass_classification', task_level='node', return_type='raw')
    return Explainer(model, algorithm, 'model', config, node_mask_type='object')


explainer = explainer_of(FastDnX())
batch = explainer.algorithm.explain_nodes(model, data.x, data.edge_index, index=nodes)
is_near = torch.stack([explanation.node_mask[:, 0] > 0 for explanation in batch])  # what the model looks at


def show(name, score):
    r"""Keeps the highest scores [B, N], as many as a motif has nodes: are they it, and what does the model say?"""
    top = score.masked_fill(~is_near[: len(score)], -torch.inf).topk(size).indices
    found = truth[: len(score)].gather(1, top).float().mean()
    explanations = list(zip(batch, top, strict=False))
    for explanation, ids in explanations:
        explanation.node_mask = torch.zeros(data.num_nodes, 1).index_fill_(0, ids, 1)
    checked = check(explainer, [explanation for explanation, _ in explanations])
    without, alone = checked.fidelity_plus.mean(), 1 - checked.fidelity_minus.mean()
    print(f'{name:<40}{found:>14.1%}{without:>16.0%}{alone:>16.0%}')


print(f'{"":<40}{"motif found":>14}{"change without":>16}{"stay with them":>16}')
for algorithm in (FastDnX(), DnX(), FastDnX(score='target'), ProbeDnX()):
    scores = explainer_of(algorithm).algorithm.explain_nodes(model, data.x, data.edge_index, index=nodes).scores
    show(f"{algorithm.__class__.__name__.removesuffix('Algorithm')}, score '{algorithm.score}'", scores.to_dense())
slow = explainer_of(GNNExplainer(epochs=100))
masks = [slow(data.x, data.edge_index, index=int(node)).node_mask[:, 0] for node in nodes[: args.num_slow]]
show(f'GNNExplainer, {len(masks)} nodes', torch.stack(masks))
edge_index, weight = gcn_norm(data.edge_index, num_nodes=data.num_nodes)
show('Ã³, which has never seen the model', to_dense_adj(edge_index, edge_attr=weight)[0].T.matrix_power(3)[nodes])
show('random neighbours', torch.rand(len(nodes), data.num_nodes))

print("""
The graph alone gives the motif away: walks that start in it end in it. So this benchmark can't show that an explainer
explains the model. The model's answers, to the right, can; and there the order is another one.""")
