r"""What is measured of one explainer on one model: against the ground truth, and against the model itself."""

import time
from itertools import product

import torch
from explainers import EDGE_EXPLAINERS, EDGE_VARIANTS, EXPLAINERS, VARIANTS, to_edges, to_nodes
from metrics import auc, highest, size_of, top_precision
from probes import Probes

from pyg_dnx import shared_cache
from pyg_dnx.datasets import MOTIF_GRAPHS, edge_truth, node_truth

SHARES = (0.05, 0.1, 0.3, 0.5, 0.7)  # of a neighbourhood, that a mask keeps
SIZES = (3, 4, 5)  # of the explanations of trust networks


def listed(values):
    return [round(value, 5) for value in values.double().tolist()]


def sample(nodes, size, seed):
    return nodes[torch.randperm(nodes.numel(), generator=torch.Generator().manual_seed(seed))[:size]]


def explain(name, probes, data, seed):
    r"""Node scores [B, N] over what the model sees, edge scores [B, E] there, and seconds for each node."""
    shared_cache.clear()
    start = time.perf_counter()
    node, edge = {**EXPLAINERS, **VARIANTS, **EDGE_EXPLAINERS, **EDGE_VARIANTS}[name](probes, data, seed)
    seconds = (time.perf_counter() - start) / probes.nodes.numel()
    inside = probes.near[:, data.edge_index[0]] & probes.near[:, data.edge_index[1]]
    edge = (to_edges(node, data.edge_index) if edge is None else edge).masked_fill(~inside, -torch.inf)
    node = to_nodes(edge, data.edge_index, data.num_nodes) if node is None else node
    return node.masked_fill(~probes.near, -torch.inf), edge, seconds


def edge_record(edge, truth):
    r"""The AUC over the edges of all neighbourhoods together, as in the paper, and the mean over neighbourhoods."""
    inside = edge.isfinite()
    each = torch.tensor([auc(row[at], true[at]) for row, true, at in zip(edge, truth, inside, strict=True)])
    return {'auc': auc(edge[inside], truth[inside]), 'auc_mean': float(each.nanmean())}


def with_truth(data, job, size):
    r"""At most `size` of the nodes of motifs, or of users whose ground truth has three nodes or more."""
    if job.graph in MOTIF_GRAPHS:
        nodes = data.node_motif >= 0
    else:
        nodes = node_truth(data, torch.arange(data.num_nodes)).sum(dim=1) >= min(SIZES)
    return sample(nodes.nonzero()[:, 0], size, seed=0)


def measure_truth(model, data, job, size):
    r"""Accuracy, precision and AUC against the ground truth, on at most `size` nodes that have one."""
    probes = Probes(model, data, with_truth(data, job, size))
    node, edge, seconds = explain(job.explainer, probes, data, job.seed)
    record = {'nodes': probes.nodes.numel(), 'seconds': seconds}
    record |= motif_record(probes, node) if job.graph in MOTIF_GRAPHS else trust_record(probes, node)
    return record | edge_record(edge, edge_truth(data, probes.nodes))


def motif_record(probes, node):
    r"""How much of its motif is among a node's highest scores, with and without itself; and the paper's fidelity-."""
    model, data, nodes = probes.model, probes.data, probes.nodes
    own = torch.zeros_like(probes.near).scatter_(1, nodes[:, None], True)
    truth = node_truth(data, nodes)
    count = int(truth[0].sum())
    others = top_precision(node.masked_fill(own, -torch.inf), truth & ~own, count - 1)
    few = Probes(model, data, nodes[:100])
    label, kept = data.y[few.nodes], few.cut(highest(node[:100], count)).argmax(dim=1)
    return {
        'accuracy': float(top_precision(node, truth, count).mean()),
        'accuracy_others': float(others.mean()),
        'ceiling': float((truth & probes.near).sum(dim=1).double().mean()) / count,
        'fidelity': float((few.target == label).double().mean() - (kept == label).double().mean()),
    }


def trust_record(probes, node):
    r"""The precision of a user's highest scores, by either ground truth, among neighbours or all within reach."""
    data, nodes, record = probes.data, probes.nodes, {}
    around = probes.finder.around(nodes, 1)
    first = torch.zeros_like(probes.near)
    first[around.owner, around.node] = True
    predicted = probes.model(data.x, data.edge_index).argmax(dim=1)
    for kind, classes in (('published', None), ('corrected', predicted)):
        truth = node_truth(data, nodes, classes)
        for (hops, near), count in product(((1, first), (3, probes.near)), SIZES):
            key, possible = f'{kind}, {hops}-hop, top {count}', (truth & near).sum(dim=1).clamp(max=count)
            record[key] = float(top_precision(node.masked_fill(~near, -torch.inf), truth, count).mean())
            record[f'{key}, ceiling'] = float(possible.double().mean()) / count
    return record


def measure_edge_truth(model, data, job, size):
    r"""The AUC of the package's own edge scores."""
    probes = Probes(model, data, with_truth(data, job, size))
    _, edge, _ = explain(job.explainer, probes, data, job.seed)
    return {'nodes': probes.nodes.numel()} | edge_record(edge, edge_truth(data, probes.nodes))


def measure_faithfulness(model, data, job, size):
    r"""What the model answers if a share of a neighbourhood is left, or taken away, for some nodes of any kind."""
    probes = Probes(model, data, sample(torch.arange(data.num_nodes), size, seed=job.seed))
    node, _, seconds = explain(job.explainer, probes, data, job.seed)
    return {'nodes': probes.nodes.tolist(), 'seconds': seconds} | faithfulness(probes, node, data.y)


def measure_recipe(model, data, job, size):
    r"""Accuracy on all nodes that have a ground truth, and faithfulness on some of any kind, by one surrogate."""
    judged, asked = with_truth(data, job, data.num_nodes), sample(torch.arange(data.num_nodes), size, seed=job.seed)
    probes = Probes(model, data, torch.cat([judged, asked]))
    node, _, _ = explain(job.explainer, probes, data, job.seed)
    found, rest = node.split([judged.numel(), asked.numel()])
    truth = node_truth(data, judged)
    count = int(truth[0].sum())
    return {
        'accuracy': float(top_precision(found, truth, count).mean()),
        'ceiling': float((truth & found.isfinite()).sum(dim=1).double().mean()) / count,
        **faithfulness(Probes(model, data, asked), rest, data.y),
    }


def faithfulness(probes, node, y):
    r"""For each share and node: whether the prediction changed, how far probabilities moved, whether it is right."""
    label = y[probes.nodes]
    record = {'right': listed(probes.target == label)}
    for share in SHARES:
        hard = highest(node, size_of(share, node))
        kept, removed = probes.masked(hard.float()), probes.masked(1.0 - hard.float())
        divergence = (torch.xlogy(kept, kept) - torch.xlogy(kept, probes.probs)).sum(dim=1).clamp(min=0.0)
        columns = {
            'fidelity_plus': removed.argmax(dim=1) != probes.target,
            'fidelity_minus': kept.argmax(dim=1) != probes.target,
            'unfaithfulness': 1.0 - (-divergence).exp(),  # as PyG has it, of each node
            'total_variation': 0.5 * (kept - probes.probs).abs().sum(dim=1),
        }
        if share >= 0.3:  # the paper's fidelity: accuracy on the subgraph that the explanation induces
            columns['right_on_subgraph'] = probes.cut(hard).argmax(dim=1) == label
        record[f'{share:g}'] = {name: listed(values) for name, values in columns.items()}
    return record
