r"""How well and how fast a model is distilled, beside the paper's recipe; what choosing an epoch by the truth gives."""

import time

import torch
import torch.nn.functional as F
from explainers import adjacency, connect
from measures import with_truth
from metrics import top_precision
from probes import Probes

from pyg_dnx import FastDnX, shared_cache
from pyg_dnx.adjacency import normalized_adjacency
from pyg_dnx.datasets import node_truth
from pyg_dnx.simplex import solve_adam

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
    r"""The paper's: 10,000 epochs of AdamW, here with propagation done once."""
    start = time.perf_counter()
    torch.manual_seed(0)
    with torch.no_grad():
        probs = model(data.x, data.edge_index).softmax(dim=1)
    operator = normalized_adjacency(data.edge_index, None, data.num_nodes, torch.float32)
    inputs = operator @ (operator @ (operator @ data.x))
    student = torch.nn.Linear(inputs.size(1), probs.size(1))
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.1, weight_decay=5e-6)
    for _ in range(10_000):
        optimizer.zero_grad()
        loss = F.kl_div(student(inputs).log_softmax(dim=1), probs, reduction='batchmean')
        loss.backward()
        optimizer.step()
    agreement = (student(inputs).argmax(dim=1) == probs.argmax(dim=1)).double().mean()
    return {'agreement': float(agreement), 'kl': float(loss), 'seconds': time.perf_counter() - start}


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
