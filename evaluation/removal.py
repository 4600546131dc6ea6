r"""What the model answers where edges are really dropped, and features really set to zero.

The measures move where predictions rarely change: how far the class's probability falls without the highest scores of
a node, and how much of it is kept with them alone.
"""

import time

import torch
from explainers import DROPPED
from feature_explainers import COLUMNS, ENTRIES, ZEROED
from measures import SHARES, listed, sample
from metrics import highest, size_of
from probes import Probes, answers, carries

from pyg_dnx import shared_cache


def measure_edges(model, data, job, size):
    r"""Edges that carry a message to a node are dropped; each by itself, or, for keys 'pairs, ...', both directions."""
    nodes = sample(data.edge_index[1].unique(), size, seed=job.seed)
    probes = Probes(model, data, nodes)
    shared_cache.clear()
    start = time.perf_counter()
    scores = DROPPED[job.explainer](probes, data, job.seed).edge
    record = {'nodes': nodes.tolist(), 'seconds': (time.perf_counter() - start) / nodes.numel()}
    for name, group_of in (('', one_by_one), ('pairs, ', in_pairs)):
        found = []
        for part, score in zip(probes.alone, scores, strict=True):
            x, group = data.x[part.node], group_of(part.edge_index)
            inside = carries(part.edge_index, part.root, probes.num_hops, part.node.numel())
            total = score.new_zeros(group.shape).index_add_(0, group[inside], score[part.edge][inside])
            candidate = torch.isin(torch.arange(group.numel()), group[inside])
            keep = sides(total[candidate], candidate)[:, group]
            found.append(answers(model, x[None], part.edge_index, part.root, keep))
        record |= record_of(probes, found, name)
    return record


def one_by_one(edge_index):
    return torch.arange(edge_index.size(1))


def in_pairs(edge_index):
    r"""Which pair of nodes each edge connects, whatever its direction, [T]."""
    return edge_index.sort(dim=0).values.unique(dim=1, return_inverse=True)[1]


def measure_features(model, data, job, size):
    r"""Columns are set to zero at all nodes; or, for keys 'entries, ...', entries at the nodes that the model sees."""
    nodes = sample(torch.arange(data.num_nodes), size, seed=job.seed)
    probes = Probes(model, data, nodes)
    tables = [data.x[part.node] for part in probes.alone]
    parts = zip(probes.near, probes.alone, tables, strict=True)
    seen = [(x != 0) & near[part.node][:, None] for near, part, x in parts]
    record = {'nodes': nodes.tolist()}
    for name, mask in (('', COLUMNS), ('entries, ', ENTRIES)):
        inside = [table.any(dim=0) if mask == COLUMNS else table for table in seen]
        shared_cache.clear()
        start, found = time.perf_counter(), []
        explained = ZEROED[job.explainer](probes, data, job.seed, mask)
        scores = [score[at].float() for score, at in zip(explained, inside, strict=True)]
        record[f'{name}seconds'] = (time.perf_counter() - start) / nodes.numel()
        for part, x, score, at in zip(probes.alone, tables, scores, inside, strict=True):
            keep = sides(score, at)
            every = torch.ones(len(keep), part.edge.numel(), dtype=torch.bool)
            kept = x * (keep[:, None] if mask == COLUMNS else keep)
            found.append(answers(model, kept, part.edge_index, part.root, every))
        record |= record_of(probes, found, name)
    return record


def sides(scores, inside):
    r"""What is kept without the highest of `scores` [P], and with them alone, where `inside` [...] has P candidates."""
    top = torch.cat([highest(scores[None], size_of(share, scores[None])) for share in SHARES])
    keep = torch.ones(2 * len(SHARES), *inside.shape, dtype=torch.bool)
    keep[:, inside] = torch.cat([~top, top])
    return keep


def record_of(probes, found, name):
    r"""For each share and node: whether the prediction changed, and the class's probability.

    Attributes:
        fall: How far it falls without the highest scores.
        kept: What it is with them alone.
    """
    target, record = probes.target, {}
    before = probes.probs.gather(1, target[:, None])[:, 0]
    removed, kept = torch.stack(found, dim=1).chunk(2)  # [shares, B, C]
    for share, without, only in zip(SHARES, removed, kept, strict=True):
        columns = {
            'fidelity_plus': without.argmax(dim=1) != target,
            'fidelity_minus': only.argmax(dim=1) != target,
            'fall': before - without.gather(1, target[:, None])[:, 0],
            'kept': only.gather(1, target[:, None])[:, 0],
        }
        record[f'{name}{share:g}'] = {key: listed(values) for key, values in columns.items()}
    return record
