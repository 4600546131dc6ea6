r"""What a model answers for many nodes at once: on copies of their neighbourhoods, masked, cut or followed back.

A neighbourhood is one hop larger than the model looks, so that the degrees that matter are the graph's own.
"""

from functools import cached_property

import numpy as np
import torch
from torch_geometric.utils import k_hop_subgraph

from pyg_dnx.graph.subgraphs import Neighbourhoods
from pyg_dnx.teacher.teacher import receptive_field

MAX_ENTRIES = 2**21  # features of the copies at a time; a few at once stay in the caches


class Probes:
    r"""A model at some nodes of a graph.

    Attributes:
        near: Which nodes the model sees from each of them, [B, N].
        probs: Its class probabilities there, [B, C].
    """

    def __init__(self, model, data, nodes):
        self.model, self.data, self.nodes = model, data, nodes
        self.num_hops = receptive_field(model)
        self.finder = Neighbourhoods(data.edge_index, data.num_nodes)
        inner = self.finder.around(nodes, self.num_hops)
        self.near = torch.zeros(nodes.numel(), data.num_nodes, dtype=torch.bool)
        self.near[inner.owner, inner.node] = True
        with torch.no_grad():
            self.probs = model(data.x, data.edge_index)[nodes].softmax(dim=1)
        self.target = self.probs.argmax(dim=1)

    @cached_property
    def parts(self):
        r"""The rows of some of the nodes at a time, and copies of their neighbourhoods."""
        cost = self.finder.sizes(self.num_hops + 1)[self.nodes] * (self.data.num_features + 64)
        pieces = (cost.cumsum(0) / MAX_ENTRIES).long().unique_consecutive(return_counts=True)[1].tolist()
        rows = torch.arange(self.nodes.numel()).split(pieces)
        return [(piece, self.finder.around(self.nodes[piece], self.num_hops + 1)) for piece in rows]

    @cached_property
    def alone(self):
        r"""The neighbourhood of each node by itself."""
        return [self.finder.around(node[None], self.num_hops + 1) for node in self.nodes]

    @torch.no_grad()
    def masked(self, keep):
        r"""The probabilities if features are multiplied by `keep` [B, N]: [B, C]."""
        answers = []
        for rows, part in self.parts:
            x = self.data.x[part.node] * keep[rows][part.owner, part.node, None]
            answers.append(self.model(x, part.edge_index)[part.root].softmax(dim=1))
        return torch.cat(answers)

    @torch.no_grad()
    def cut(self, keep):
        r"""The probabilities on the subgraph that `keep` [B, N], boolean, and the node itself induce: [B, C]."""
        keep = keep.clone()
        keep[torch.arange(self.nodes.numel()), self.nodes] = True
        answers = []
        for rows, part in self.parts:
            inside = keep[rows][part.owner, part.node]
            edge_index = part.edge_index[:, inside[part.edge_index].all(dim=0)]
            answers.append(self.model(self.data.x[part.node], edge_index)[part.root].softmax(dim=1))
        return torch.cat(answers)

    def gradients(self, of, steps=None):
        r"""Saliency for no `steps`, else Integrated Gradients from zero features, summed over features: [B, N].

        `of` turns outputs [B, C] and target classes [B] into what is explained [B]. The steps are those of captum.
        """
        scores = torch.zeros(self.near.shape)
        for rows, part in self.parts:

            def explained(x, rows=rows, part=part):
                return of(self.model(x, part.edge_index)[part.root], self.target[rows])

            score = path_gradients(explained, self.data.x[part.node], steps)
            scores[rows[part.owner], part.node] = score.sum(dim=1)
        return scores


def path_gradients(explained, x, steps=50):
    r"""Integrated Gradients of a function from zero to `x`, by entry; for no `steps`, the gradient's magnitudes."""
    total = 0.0
    for point, weight in along(steps) if steps else [(1.0, 1.0)]:
        inputs = (point * x).requires_grad_()
        total = total + weight * torch.autograd.grad(explained(inputs).sum(), inputs)[0]
    return total * x if steps else total.abs()


@torch.no_grad()
def answers(model, x, edge_index, root, keep):
    r"""Class probabilities [K, C] at one node of copies of a graph, whose edges are those kept in `keep` [K, T].

    Features `x` are those of each copy, [K, S, F], or of all, [1, S, F].
    """
    found, size = [], x.size(1)
    at_a_time = max(1, MAX_ENTRIES // (size * (x.size(2) + 64)))
    for features, kept in zip(x.expand(len(keep), -1, -1).split(at_a_time), keep.split(at_a_time), strict=True):
        offset = size * torch.arange(len(kept))
        edges = (edge_index[:, None] + offset[:, None])[:, kept]
        found.append(model(features.reshape(-1, x.size(2)), edges)[root + offset].softmax(dim=1))
    return torch.cat(found)


def carries(edge_index, root, num_hops, num_nodes):
    r"""Which edges carry a message to a node within some hops, [T]."""
    nodes = k_hop_subgraph(root, num_hops - 1, edge_index, num_nodes=num_nodes)[0]
    return torch.isin(edge_index[1], nodes)


def along(steps):
    r"""Points from zero to one and their weights, by Gauss and Legendre."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    return list(zip((0.5 * (points + 1.0)).tolist(), (0.5 * weights).tolist(), strict=True))


def logit(outputs, target):
    return outputs.gather(1, target[:, None])[:, 0]


def probability(outputs, target):
    return logit(outputs.softmax(dim=1), target)


def margin(outputs, target):
    r"""Over the runner-up."""
    others = outputs.scatter(1, target[:, None], -torch.inf)
    return logit(outputs, target) - others.max(dim=1).values
