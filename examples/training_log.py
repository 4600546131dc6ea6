r"""Explanations in a training log: every fifty epochs, a picture of one, and how faithful a sample is.

python examples/training_log.py [--folder runs]
tensorboard --logdir runs
"""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.tensorboard import SummaryWriter
from torch_geometric import seed_everything
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCN
from torch_geometric.utils import stochastic_blockmodel_graph

from pyg_dnx import FastDnX, check, plot

parser = argparse.ArgumentParser()
parser.add_argument('--folder', default='runs')
parser.add_argument('--epochs', type=int, default=150)
args = parser.parse_args()

seed_everything(0)
y = torch.arange(4).repeat_interleave(75)
edge_index = stochastic_blockmodel_graph([75] * 4, 0.004 + 0.03 * torch.eye(4))
x = torch.bernoulli(torch.where(y[:, None] == torch.arange(32) // 8, 0.25, 0.08))

model = GCN(in_channels=32, hidden_channels=16, num_layers=2, out_channels=4, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
explainer = Explainer(
    model,
    algorithm=FastDnX(distillation='masked'),  # nine evaluations of the model, whenever it has changed
    explanation_type='model',
    node_mask_type='object',
    model_config=dict(mode='multiclass_classification', task_level='node', return_type='raw'),
)

with SummaryWriter(args.folder) as log:
    for epoch in range(1, args.epochs + 1):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edge_index), y)
        loss.backward()
        optimizer.step()
        log.add_scalar('loss', loss.item(), epoch)
        if epoch % 50 == 0:
            model.eval()
            log.add_figure('why paper 10', plot.neighborhood(explainer(x, edge_index, index=10)), epoch)
            batch = explainer.algorithm.explain_nodes(model, x, edge_index, index=torch.arange(0, 300, 10), top_k=5)
            found = check(explainer, batch, progress=False)
            changed, lost = float(found.fidelity_plus.mean()), float(found.fidelity_minus.mean())
            log.add_scalar('fidelity/without the top 5', changed, epoch)
            log.add_scalar('fidelity/with them alone', lost, epoch)
            print(f'epoch {epoch}: loss {loss:.2f}, the class changes without the top 5 at {changed:.0%} of the nodes')
print(f'tensorboard --logdir {args.folder} shows the pictures')
