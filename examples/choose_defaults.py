r"""How the defaults of `ridge` and `edge_score` compare in faithfulness to the model.

For hard masks of the same size, the top 5, 10, 30 and 50% of a node's neighbourhood, this prints PyG's
characterization score (fidelity- and fidelity+ in one number, higher is better) averaged over teachers.

    python examples/choose_defaults.py --data FOLDER
"""

import argparse
import warnings
from itertools import product

import numpy as np
import torch
from teachers import load, train
from torch_geometric.explain import Explainer
from torch_geometric.explain.metric import characterization_score
from torch_geometric.nn import GAT, GCN, GIN
from torch_geometric.utils import k_hop_subgraph

from pyg_dnx import FastDnX, SurrogateWarning

parser = argparse.ArgumentParser()
parser.add_argument('--data', default='data', help="has 'planetoid' and 'dnx' folders; Planetoid is downloaded if not")
parser.add_argument('--graphs', nargs='+', default=['Cora', 'CiteSeer', 'bitcoin_alpha', 'ba_community', 'tree_grids'])
parser.add_argument('--nodes', type=int, default=60)
parser.add_argument('--seeds', type=int, default=2)
args = parser.parse_args()
warnings.simplefilter('ignore', SurrogateWarning)
SHARES = (0.05, 0.1, 0.3, 0.5)


def characterization(explainer, data, nodes, key):
    kept, removed = torch.zeros(len(SHARES), len(nodes)), torch.zeros(len(SHARES), len(nodes))
    for column, node in enumerate(nodes):
        explanation = explainer(data.x, data.edge_index, index=node)
        # Three hops hold all that a model of two layers sees, with the degrees of it.
        inner, edge_index, center, inner_edges = k_hop_subgraph(node, 3, data.edge_index, relabel_nodes=True)
        soft = explanation.node_mask[inner, 0] if key == 'node_mask' else explanation.edge_mask[inner_edges]
        order, size = soft.argsort(descending=True), int((soft > 0).sum())
        for row, share in enumerate(SHARES):
            hard = torch.zeros_like(soft)
            hard[order[: max(1, round(share * size))]] = 1.0
            for same, mask in ((kept, hard), (removed, 1.0 - hard)):
                masks = {key: mask[:, None] if key == 'node_mask' else mask}
                out = explainer.get_masked_prediction(data.x[inner], edge_index, **masks)[center]
                same[row, column] = float(out.argmax() == explanation.target[node])
    fidelity_plus, fidelity_minus = 1.0 - removed.mean(dim=1), 1.0 - kept.mean(dim=1)
    return characterization_score(fidelity_plus.clamp(min=1e-6), fidelity_minus.clamp(max=1 - 1e-6)).mean()


OPTIONS = [
    *((f'ridge {ridge:g}', 'node_mask', FastDnX(ridge=ridge)) for ridge in (1e-7, 1e-6, 1e-5, 1e-4)),
    *((f'edge score {kind}', 'edge_mask', FastDnX(edge_score=kind)) for kind in ('endpoints', 'geometric', 'flow')),
]

table = {}
for name, family, seed in product(args.graphs, (GCN, GAT, GIN), range(args.seeds)):
    data = load(name, args.data)
    model = train(family, data, seed)
    nodes = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(seed))[: args.nodes].tolist()
    for option, key, algorithm in OPTIONS:
        explainer = Explainer(
            model,
            algorithm=algorithm,
            explanation_type='model',
            **{f'{key}_type': 'object'},
            model_config=dict(mode='multiclass_classification', task_level='node', return_type='raw'),
        )
        table.setdefault(option, {}).setdefault(name, []).append(float(characterization(explainer, data, nodes, key)))
    print(
        name, family.__name__, seed, {option: round(cells[name][-1], 3) for option, cells in table.items()}, flush=True
    )

print(f'\n| option | {" | ".join(args.graphs)} | mean |\n|---|{"---|" * (len(args.graphs) + 1)}')
for option, cells in table.items():
    means = [float(np.mean(cells[name])) for name in args.graphs]
    print(f'| {option} | {" | ".join(f"{mean:.3f}" for mean in means)} | {np.mean(means):.3f} |')
