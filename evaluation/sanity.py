r"""Whether an explanation depends on what it must depend on, and not on what it must not."""

import copy

import torch
from explainers import adjacency, connect
from measures import explain, sample
from metrics import rank_correlation
from probes import Probes
from torch_geometric.nn import SGConv

from pyg_dnx import FastDnX

PLANTED = {'FastDnX': None, 'FastDnX, ridge=1e-12': 1e-12}  # the ridge
CHECKED = ('FastDnX', 'DnX', 'IG, logit', 'Saliency', 'Ã^L')


def scores_of(name, model, data, nodes):
    return explain(name, Probes(model, data, nodes), data, 0)[0]


def measure_sanity(model, data, job, size, other):
    r"""Rank correlations of a node's scores with those for a random model, another teacher, and noisy features."""
    nodes = sample(torch.arange(data.num_nodes), size, seed=job.seed)
    torch.manual_seed(job.seed)
    fresh = copy.deepcopy(model)
    for module in fresh.modules():
        if module is not fresh and hasattr(module, 'reset_parameters'):
            module.reset_parameters()
    noisy = copy.copy(data)
    noisy.x = data.x + 0.05 * torch.randn(data.x.shape)
    scores = scores_of(job.explainer, model, data, nodes)
    return {
        'random model': rank_correlation(scores, scores_of(job.explainer, fresh, data, nodes)),
        'other seed': rank_correlation(scores, scores_of(job.explainer, other, data, nodes)),
        'noise': rank_correlation(scores, scores_of(job.explainer, model, noisy, nodes)),
    }


def measure_planted(_, data, job, size):
    r"""How far scores are from those of the planted SGC itself, relative to their size; the median over some nodes."""
    torch.manual_seed(job.seed)
    classes = int(data.y.max()) + 1
    model = SGConv(data.num_features, classes, K=3)
    torch.nn.init.normal_(model.lin.weight)  # large enough for confident predictions
    algorithm = connect(model, FastDnX(ridge=PLANTED[job.explainer]), node_mask_type='object')
    nodes = sample(torch.arange(data.num_nodes), min(size, 100), job.seed)
    batch = algorithm.explain_nodes(model, data.x, data.edge_index, index=nodes)
    weight = model.lin.weight.detach().T.double()
    hidden = data.x.double() @ (weight - weight.mean(dim=1, keepdim=True))
    power = adjacency(3)(Probes(model, data, batch.index), data, 0).node
    exact = power * (power @ hidden @ hidden.T)  # zero-sum, as the surrogate is
    error = (batch.scores.to_dense() - exact).norm(dim=1) / exact.norm(dim=1)
    return {'error': float(error.median()), 'agreement': batch.surrogate.report.agreement}
