r"""Distil and explain where the model is, save, and go on explaining where it is not.

The second half of this script has the graph and three files, and never sees the model.

    python examples/save_load.py [--folder saved]
"""

import argparse
import os
import os.path as osp

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCN
from torch_geometric.utils import stochastic_blockmodel_graph

from pyg_dnx import FastDnX, NodeExplanations, Surrogate, shared_cache

parser = argparse.ArgumentParser()
parser.add_argument('--folder', default='saved')
args = parser.parse_args()
os.makedirs(args.folder, exist_ok=True)
surrogate_file, explanations_file, outputs_file = (
    osp.join(args.folder, name) for name in ('surrogate.pt', 'explanations.pt', 'outputs.pt')
)

# Four communities of 100 nodes, each with a feature that is a bit higher there.
seed_everything(0)
edge_index = stochastic_blockmodel_graph([100] * 4, 0.01 + 0.05 * torch.eye(4))
y = torch.arange(4).repeat_interleave(100)
x = torch.randn(400, 4) + F.one_hot(y)

model = GCN(4, hidden_channels=16, num_layers=2, out_channels=4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    F.cross_entropy(model(x, edge_index), y).backward()
    optimizer.step()
config = dict(mode='multiclass_classification', task_level='node', return_type='raw')
masks = dict(node_mask_type='object', edge_mask_type='object')

# First process. The surrogate is distilled once; the first 100 nodes are explained.
explainer = Explainer(model, FastDnX(score='target'), 'model', config, **masks)
surrogate = explainer.algorithm.distill(model, x, edge_index)
batch = explainer.algorithm.explain_nodes(model, x, edge_index, index=torch.arange(100))
surrogate.save(surrogate_file)
batch.save(explanations_file)
torch.save(model(x, edge_index).detach(), outputs_file)
for file in (surrogate_file, explanations_file, outputs_file):
    print(f'Saved {file}, {osp.getsize(file):,} bytes')

logits, explanation = surrogate(x, edge_index), explainer(x, edge_index, index=250)
del model, explainer, surrogate
shared_cache.clear()

# Second process. The explanations as they were: tables without the graph, and PyG's explanations with it.
table = NodeExplanations.load(explanations_file)
print(f'\nLoaded {table}, equal to the saved: {torch.equal(table.scores.to_dense(), batch.scores.to_dense())}')
print(f'  Node 3, highest scores: {table.top_k(3)[0][3].tolist()}')
loaded = NodeExplanations.load(explanations_file, x, edge_index)
print(f'  {loaded[3]}')
print(f'  Masks equal: {torch.equal(loaded[3].node_mask, batch[3].node_mask)}')

# The surrogate as it was: a linear model that stands in for the other, here or on a graph that has grown.
surrogate = Surrogate.load(surrogate_file)
agreement = (surrogate(x, edge_index).argmax(dim=1) == torch.load(outputs_file).argmax(dim=1)).float().mean()
print(f'\nLoaded {surrogate}, same logits: {torch.equal(surrogate(x, edge_index), logits)}')
print(f'  It predicts what the model does at {agreement:.1%} of the nodes')

# Other nodes than those explained before, from the model's outputs alone. There is no model to count layers of, and so
# the number of hops is named.
algorithm = FastDnX(num_hops=surrogate.num_hops, score='target')
Explainer(None, algorithm, 'model', config, **masks)  # tells the algorithm what the outputs are
outputs = torch.load(outputs_file)
more = algorithm.explain_nodes(None, x, edge_index, index=torch.arange(200, 300), teacher_outputs=outputs)
print(f'\nWithout the model: {more}')
is_same = torch.allclose(more[50].node_score, explanation.node_score, atol=1e-5)
print(f'  Node 250 is explained as it was with the model: {is_same}')
