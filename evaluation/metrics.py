r"""How scores are judged. Ties are shared evenly, never broken by the order of nodes.

Scores of B explained nodes are tables [B, N] over nodes or [B, E] over edges, minus infinity where a node or an edge
is no candidate.
"""

import numpy as np
import torch


def top_precision(scores, truth, size):
    r"""The share of `truth` [B, N] among the `size` highest scores of each row, [B]; on average, where scores tie."""
    least = scores.topk(min(size, scores.size(1)), dim=1).values[:, -1:]
    above, tied = scores > least, (scores == least) & scores.isfinite()
    room = size - above.sum(dim=1)
    share = (tied & truth).sum(dim=1) / tied.sum(dim=1).clamp(min=1)
    return ((above & truth).sum(dim=1) + share * torch.minimum(room, tied.sum(dim=1))) / size


def auc(scores, truth):
    r"""The area under the ROC curve: how often an edge of the truth scores above another one, ties counting half."""
    positive, negative = truth.sum(), (~truth).sum()
    above = mean_rank(scores)[truth].sum() - 0.5 * positive * (positive + 1)
    return float(above / (positive * negative)) if positive * negative > 0 else float('nan')


def highest(scores, size, seed=0):
    r"""Which candidates are the `size` highest of each row, a number or one for each, [B, N]; ties at random."""
    order = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    order = order.gather(1, scores.gather(1, order).argsort(dim=1, descending=True, stable=True))
    size = torch.as_tensor(size).expand(scores.size(0)).minimum(scores.isfinite().sum(dim=1))
    chosen = torch.arange(scores.size(1)) < size[:, None]
    return torch.zeros_like(chosen).scatter_(1, order, chosen)


def size_of(share, scores):
    r"""How many of each row's candidates a share is, [B]; at least one."""
    return (share * scores.isfinite().sum(dim=1)).round().long().clamp(min=1)


def characterization(plus, minus):
    r"""PyG's score of fidelity+ and fidelity- in one: their harmonic mean, where both are good."""
    good, plus = 1.0 - np.asarray(minus), np.asarray(plus)
    return np.divide(2.0 * plus * good, plus + good, out=np.zeros_like(plus), where=plus + good > 0)


def rank_correlation(one, other):
    r"""Spearman's correlation between two tables of scores, the mean over rows; ties have their mean rank."""
    values = []
    for a, b in zip(one, other, strict=True):
        near = a.isfinite() & b.isfinite()
        ranks = torch.stack([mean_rank(a[near]), mean_rank(b[near])])
        if near.sum() > 2 and bool((ranks.std(dim=1) > 0).all()):
            values.append(float(torch.corrcoef(ranks)[0, 1]))
    return float(np.mean(values))


def mean_rank(values):
    r"""The rank of each value from one, the mean of those that tie."""
    _, place, count = torch.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum(0) - 0.5 * (count - 1)).double()[place]
