r"""Explains every node of a large graph: only the highest scores are kept, and finished nodes outlive an interruption.

python examples/large_graph.py [--num_nodes 100000] [--folder large]
torchrun --nproc-per-node 2 examples/large_graph.py        # the same by several processes
"""

import argparse
import os
import os.path as osp
import time

import psutil
import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCN
from torch_geometric.utils import degree, to_undirected

from pyg_dnx import FastDnX

parser = argparse.ArgumentParser()
parser.add_argument('--num_nodes', type=int, default=100_000)
parser.add_argument('--folder', default='large', help='for the checkpoint and the table')
parser.add_argument('--max_memory', type=int, default=2**30, help='bytes to work in')
args = parser.parse_args()
started, process = time.perf_counter(), psutil.Process()
group, rank = None, int(os.environ.get('RANK', 0))
if 'RANK' in os.environ:  # started by torchrun
    torch.distributed.init_process_group('gloo')
    group = torch.distributed.group.WORLD


def report(done):
    if rank > 0:
        return
    print(f'{time.perf_counter() - started:6.1f} s  {process.memory_info().rss / 2**20:6,.0f} MB  {done}', flush=True)


# A graph whose degrees follow a power law, in three communities of which each has its own features.
seed_everything(0)
N = args.num_nodes
y = torch.randint(3, (N,))
weight = torch.rand(N).clamp(min=1e-6) ** -0.4  # a few hubs, and many nodes with few neighbours
source, target = torch.multinomial(weight, 4 * N, replacement=True), torch.randint(N, (4 * N,))
is_kept = (y[source] == y[target]) | (torch.rand(4 * N) < 0.2)
edge_index = to_undirected(torch.stack([source, target])[:, is_kept], num_nodes=N)
x = torch.randn(N, 16)
x[:, :3] += F.one_hot(y)
degrees = degree(edge_index[0], N)
report(f'{N:,} nodes of degree {degrees.median():.0f} in the median and {degrees.max():.0f} at most')

model = GCN(16, hidden_channels=32, num_layers=2, out_channels=3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(20):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x, edge_index), y)
    loss.backward()
    optimizer.step()
report('a GCN trained')

algorithm = FastDnX(score='target', max_memory=args.max_memory)
Explainer(
    model,
    algorithm=algorithm,
    explanation_type='model',
    node_mask_type='object',
    model_config=dict(mode='multiclass_classification', task_level='node', return_type='raw'),
)
checkpoint = osp.join(args.folder, 'checkpoint' if group is None else 'together')
shared = {} if group is None else {'checkpoint': checkpoint, 'group': group}  # each process has a share of the work
surrogate = algorithm.distill(model, x, edge_index, **shared)
report(f'distilled; the surrogate agrees with the model at {surrogate.report.agreement:.1%} of the nodes')

shared['checkpoint'] = checkpoint
batch = algorithm.explain_nodes(model, x, edge_index, top_k=10, **shared)
report(f'all nodes explained, the 10 highest scores of each kept: {batch}')
again = algorithm.explain_nodes(model, x, edge_index, top_k=10, **shared)
same = torch.equal(batch.top_k(10)[1], again.top_k(10)[1])
report(f'the same call again, as after an interruption: read from the checkpoint, same scores: {same}')

if rank > 0:
    raise SystemExit  # the table is written by the first process
path = osp.join(args.folder, 'scores.csv')
batch.to_csv(path)
report(f'{path} written, {osp.getsize(path) / 2**20:,.0f} MB')
with open(path) as file:
    print(*[f'  {next(file).strip()}' for _ in range(3)], sep='\n')
print(f'\n{batch.certificate}')
nodes, _ = batch.top_k(10)
own = (y[nodes] == surrogate(x, edge_index).argmax(dim=1)[:, None])[nodes >= 0].float().mean()
print(f'Of the neighbours that speak most for a node, {own:.1%} are of the community it is taken for')
