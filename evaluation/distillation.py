r"""How well and how fast a model is distilled, beside the paper's recipe; what choosing an epoch by the truth gives."""

import time

import torch
from explainers import adjacency, connect
from measures import with_truth
from metrics import top_precision
from probes import Probes
from recipe import distill_by_recipe

from pyg_dnx import FastDnX, shared_cache
from pyg_dnx.datasets import node_truth
from pyg_dnx.scores.simplex import solve_adam

EPOCHS = range(5, 101, 5)


def measure_distillation(model, data, job, size):
    if job.explainer == 'recipe':
        return by_recipe(model, data)
    shared_cache.clear()
    algorithm = connect(model, FastDnX(), node_mask_type='object')
    start = time.perf_counter()
    report = algorithm.distill(model, data.x, data.edge_index).report
    return {'agreement': report.agreement, 'kl': report.kl, 'seconds': time.perf_counter() - start}


def by_recipe(model, data):
    start = time.perf_counter()
    student, inputs, probs, kl = distill_by_recipe(model, data)
    agreement = (student(inputs).argmax(dim=1) == probs.argmax(dim=1)).double().mean()
    return {'agreement': float(agreement), 'kl': kl, 'seconds': time.perf_counter() - start}


def measure_epochs(model, data, job, size):
    r"""DnX's accuracy by Adam if each node keeps the epoch that suits its ground truth best, and if the last."""
    probes = Probes(model, data, with_truth(data, job, size))
    truth = node_truth(data, probes.nodes)
    surrogate = connect(model, FastDnX(), node_mask_type='object').distill(model, data.x, data.edge_index)
    power = adjacency(None)(probes, data, 0).node
    contributions = power[:, :, None] * (data.x.double() @ surrogate.weight.double())
    prior = torch.zeros_like(power).masked_fill(~probes.near, -torch.inf)
    total = contributions.sum(dim=1)
    each = []
    for epochs in EPOCHS:
        weight = solve_adam(contributions, total, prior, epochs, lr=0.1).weight.masked_fill(~probes.near, -torch.inf)
        each.append(top_precision(weight, truth, int(truth[0].sum())))
    best = torch.stack(each).max(dim=0).values
    return {'nodes': probes.nodes.numel(), 'chosen': float(best.mean()), 'last': float(each[-1].mean())}
