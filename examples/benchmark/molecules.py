r"""Whole graphs: one molecule against GNNExplainer, and a thousand of them against evaluations of the model."""

import torch
from common import ratio, say, side_by_side
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GIN, global_add_pool
from torch_geometric.utils import to_undirected

from pyg_dnx import FastDnX, ProbeDnX, shared_cache

CONFIG = dict(mode='multiclass_classification', task_level='graph', return_type='raw')
NUM_GRAPHS, NUM_ATOMS, BATCH_SIZE = 1000, 14, 64


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = GIN(NUM_ATOMS, 32, 3, norm='batch_norm'), torch.nn.Linear(32, 2)

    def forward(self, x, edge_index, batch=None):
        return self.head(global_add_pool(self.body(x, edge_index), batch))


def molecule():
    r"""A tree of 20 to 39 atoms with two rings closed in it: about as large as those of Mutagenicity."""
    size = int(torch.randint(20, 40, ()))
    child = torch.arange(1, size)
    bonds = torch.stack([(child - 1 - torch.randint(2, child.shape)).clamp(min=0), child])
    edges = to_undirected(torch.cat([bonds, torch.randint(size, (2, 2))], dim=1))
    return Data(x=torch.eye(NUM_ATOMS)[torch.randint(NUM_ATOMS, (size,))], edge_index=edges)


def explainer(model, algorithm):
    return Explainer(model, algorithm, 'model', CONFIG, node_mask_type='object')


def run(args):
    torch.manual_seed(0)
    graphs, model = [molecule() for _ in range(NUM_GRAPHS)], Model().eval()
    batches = [Batch.from_data_list(graphs[i : i + BATCH_SIZE]) for i in range(0, NUM_GRAPHS, BATCH_SIZE)]
    one, repeats = graphs[0], max(3, args.repeats // 40)

    def call(algorithm):
        explain = explainer(model, algorithm)

        def explained():
            shared_cache.clear()  # so that it is asked anew
            return explain(one.x, one.edge_index)

        return explained

    algorithms = {'GNNExplainer': GNNExplainer(epochs=100)}
    algorithms |= {size: ProbeDnX(num_probes=size) for size in (128, 512)}
    calls = side_by_side({name: call(algorithm) for name, algorithm in algorithms.items()}, repeats)

    fast = explainer(model, FastDnX()).algorithm
    fast.distill(model, batches)

    @torch.no_grad()
    def forwards():
        for batch in batches:
            model(batch.x, batch.edge_index, batch.batch)

    many = side_by_side(
        {
            'forwards': forwards,
            'distilled': lambda: fast.distill(model, batches),
            'explained': lambda: fast.explain_graphs(model, batches),
        },
        repeats,
    )
    print(f'Whole graphs: {NUM_GRAPHS:,} of 20 to 39 nodes, GIN of three layers')
    say('GNNExplainer(100), one graph', f'{1e3 * calls["GNNExplainer"]:.0f} ms')
    for size, bar in ((128, '>= 40x'), (512, '>= 15x')):
        say(f'GNNExplainer / ProbeDnX({size}), one graph', ratio(calls['GNNExplainer'] / calls[size]), bar)
    say('the model, all graphs in prebuilt batches', f'{1e3 * many["forwards"]:.0f} ms')
    say('distilled over all / the model', ratio(many['distilled'] / many['forwards']), '<= 20x')
    say('FastDnX of all / the model', ratio(many['explained'] / many['forwards']), '<= 5x')
    return {'calls': {str(name): value for name, value in calls.items()}, **many}
