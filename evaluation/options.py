r"""What the options of FastDnX are worth to faithfulness, on graphs that chose the defaults and on others."""

import torch
from explainers import CONFIG, distilled
from measures import SHARES, faithfulness, listed, sample
from metrics import highest, size_of
from probes import Probes
from torch_geometric.explain import Explainer

from pyg_dnx import FastDnX, check, shared_cache

CHOSEN_ON = ('Cora', 'CiteSeer', 'bitcoin_alpha', 'ba_community', 'tree_grids')  # docs/defaults.md
NODE_OPTIONS = {
    **{f'ridge={ridge:g}': {'ridge': ridge} for ridge in (1e-7, 1e-6, 1e-4, 1e-3)},
    "score='target'": {'score': 'target'},
    "num_hops='auto'": {'num_hops': 'auto'},
    'num_hops=1': {'num_hops': 1},
    'default': {},
}
MASK_OPTIONS = {f"mask='{kind}'": {'mask': kind} for kind in ('rank', 'positive', 'minmax')}
EDGE_OPTIONS = {f"edge_score='{kind}'": {'edge_score': kind} for kind in ('flow', 'endpoints', 'geometric')}
OPTIONS = {**NODE_OPTIONS, **MASK_OPTIONS, **EDGE_OPTIONS}


def measure_option(model, data, job, size):
    r"""Hard node masks of equal size for scores, the masks themselves for their scaling, hard edge masks for edges."""
    nodes = sample(torch.arange(data.num_nodes), size, seed=job.seed)
    if job.explainer in NODE_OPTIONS:
        probes = Probes(model, data, nodes)
        scores = distilled(FastDnX, **OPTIONS[job.explainer])(probes, data, job.seed).node
        return faithfulness(probes, scores.masked_fill(~probes.near, -torch.inf), data.y)
    kind = 'node' if job.explainer in MASK_OPTIONS else 'edge'
    algorithm = FastDnX(**OPTIONS[job.explainer])
    explainer = Explainer(model, algorithm, 'model', CONFIG, **{f'{kind}_mask_type': 'object'})
    found = list(explainer.algorithm.explain_nodes(model, data.x, data.edge_index, index=nodes))
    shared_cache.clear()
    if kind == 'node':
        return {'soft': measured(explainer, found)}
    soft = torch.stack([explanation.edge_mask for explanation in found])
    soft = soft.masked_fill(soft == 0, -torch.inf)  # what the model doesn't see from the node
    record = {}
    for share in SHARES:
        for explanation, mask in zip(found, highest(soft, size_of(share, soft)), strict=True):
            explanation.edge_mask = mask.float()
        record[f'{share:g}'] = measured(explainer, found)
    return record


def measured(explainer, explanations):
    found = check(explainer, explanations)
    return {name: listed(getattr(found, name)) for name in ('fidelity_plus', 'fidelity_minus', 'unfaithfulness')}


RIDGES = (1e-7, 1e-6, 1.5e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3)


def measure_ridge(model, data, job, size):
    r"""How well the surrogate predicts the model where nodes are blanked, which is what explanations are used for.

    The total variation between their class probabilities, the mean over nodes, for some shares of nodes that are left.
    """
    algorithm = FastDnX(ridge=float(job.explainer))
    Explainer(model, algorithm, 'model', CONFIG, node_mask_type='object')
    surrogate = algorithm.distill(model, data.x, data.edge_index)
    generator, record = torch.Generator().manual_seed(job.seed), {'kl': surrogate.report.kl}
    for keep in (0.25, 0.5, 0.75, 1.0):
        x = data.x * (torch.rand(data.num_nodes, 1, generator=generator) < keep)
        with torch.no_grad():
            probs = [ask(x, data.edge_index).double().softmax(dim=1) for ask in (model, surrogate)]
        record[f'{keep:g}'] = float(0.5 * (probs[0] - probs[1]).abs().sum(dim=1).mean())
    return record
