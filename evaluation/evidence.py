r"""Graphs on which it is known what a model must go by (Faber et al., KDD 2021), and how explanations are judged there.

The paper reports two of them in its discussion, Community and Negative evidence, for a GCN of two layers.
"""

import torch
import torch.nn.functional as F
from explainers import connect
from measures import explain, sample
from metrics import top_precision
from probes import Probes
from teachers import accuracy
from torch_geometric.data import Data
from torch_geometric.utils import erdos_renyi_graph, stochastic_blockmodel_graph, to_dense_adj, to_undirected

from pyg_dnx import FastDnX
from pyg_dnx.datasets import load
from pyg_dnx.datasets.seeding import add_split, seeded

MOVED = 50  # edges at a time
MAX_MOVED_FOR = 30  # nodes
BLUE, RED, WHITE = range(3)


def community(seed=0):
    r"""Ten communities of 100 nodes, denser inside; a node has the colour of its own, or, half of them, of any."""
    with seeded(seed):
        density = torch.full((10, 10), 0.04).fill_diagonal_(0.15)
        edge_index = stochastic_blockmodel_graph(torch.full((10,), 100), density, directed=True)
        y = torch.arange(10).repeat_interleave(100)
        color = y.clone()
        color[torch.randperm(1000)[:500]] = torch.randint(10, (500,))
    return add_split(Data(x=F.one_hot(color, 10).float(), edge_index=edge_index, y=y), seed)


def negative_evidence(seed=0):
    r"""Ten blue nodes, ten red, and 1,980 white ones, whose class is of which colour they have more neighbours.

    A white node has from one to ten neighbours of either colour, never as many of both, and 30 white ones.
    """
    with seeded(seed):
        pairs = torch.cartesian_prod(torch.arange(1, 11), torch.arange(1, 11))
        count = pairs[pairs[:, 0] != pairs[:, 1]][torch.arange(1980) % 90]  # of blue and red ones
        chosen = torch.rand(1980, 2, 10).argsort(dim=2).argsort(dim=2) < count[:, :, None]
        node, hue, number = chosen.nonzero().T
        colored = torch.stack([10 * hue + number, 20 + node])
        edge_index = to_undirected(torch.cat([20 + erdos_renyi_graph(1980, 0.015), colored], dim=1))
    own = torch.tensor([BLUE, RED]).repeat_interleave(10)
    x = F.one_hot(torch.cat([own, torch.full((1980,), WHITE)])).float()
    y = torch.cat([own, count.argmax(dim=1)])
    return add_split(Data(x=x, edge_index=edge_index, y=y, count=count), seed)


EVIDENCE_GRAPHS = {
    'community': community,
    'negative_evidence': negative_evidence,
    'infection': lambda: load('infection'),
}


def measure_evidence(model, data, job, size):
    judge = {'community': judge_community, 'negative_evidence': judge_negative, 'infection': judge_infection}
    record = judge[job.graph](model, data, job, size)
    return {'test': accuracy(model, data, data.test_mask), **record}


def share(found):
    return float(torch.as_tensor(found, dtype=torch.float64).mean())  # of none, not a number


def judge_community(model, data, job, size):
    r"""How often edges are thought more of once they are moved where they help the model, and less where they harm.

    For each node, 50 edges are moved in either way, and the explainer is asked on both graphs. It counts if the model
    is right before and after, and surer of the class, or less sure, afterwards.
    """
    right_at = model(data.x, data.edge_index).argmax(dim=1) == data.y
    nodes = sample(right_at.nonzero()[:, 0], min(size, MAX_MOVED_FOR), seed=0)
    before = Probes(model, data, nodes)
    scores = explain(job.explainer, before, data, job.seed)[1]
    generator, right = torch.Generator().manual_seed(0), {'helps': [], 'harms': []}
    for row, node in enumerate(nodes):
        for effect, sign, move in (('helps', 1.0, move_inside), ('harms', -1.0, move_towards)):
            moved, edge_index = move(data, node, generator)
            edited, label = Data(x=data.x, edge_index=edge_index, y=data.y), data.y[node]
            after = Probes(model, edited, node[None])
            if sign * (after.probs[0, label] - before.probs[row, label]) > 0 and after.target[0] == label:
                found = explain(job.explainer, after, edited, job.seed)[1][0]
                common = moved[(scores[row].isfinite() & found.isfinite())[moved]]
                if common.numel() > 0:
                    right[effect].append(bool(sign * (found[common].mean() - scores[row, common].mean()) > 0))
    right['right'] = right['helps'] + right['harms']
    return {'nodes': len(nodes), 'moves': len(right['right']), **{key: share(found) for key, found in right.items()}}


def move_inside(data, node, generator):
    r"""Edges from other communities into the node's own, made to come from there: which, and all edges [2, E] then."""
    own, (source, target) = data.y == data.y[node], data.edge_index
    moved = sample_edges(own[target] & ~own[source], generator)
    taken = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0].bool().fill_diagonal_(True)
    edge_index = data.edge_index.clone()
    for edge in moved:
        edge_index[0, edge] = pick(own & ~taken[:, target[edge]], generator)
        taken[edge_index[0, edge], target[edge]] = True
    return moved, edge_index


def move_towards(data, node, generator):
    r"""Edges between other communities, made to go into the node's own: which, and all edges [2, E] then."""
    own, (source, target) = data.y == data.y[node], data.edge_index
    moved = sample_edges(~own[target] & ~own[source], generator)
    taken = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0].bool()
    edge_index = data.edge_index.clone()
    for edge in moved:
        edge_index[1, edge] = pick(own & ~taken[source[edge]], generator)
        taken[source[edge], edge_index[1, edge]] = True
    return moved, edge_index


def sample_edges(eligible, generator):
    found = eligible.nonzero()[:, 0]
    return found[torch.randperm(found.numel(), generator=generator)[:MOVED]]


def pick(eligible, generator):
    return torch.multinomial(eligible.float(), 1, generator=generator)[0]


def judge_negative(model, data, job, size):
    r"""Are neighbours of the colour that a node has fewer of told from white ones, and as evidence against its class?

    The former by a test (Kolmogorov and Smirnov's, at 1%), which asks for a difference of any kind; the latter by their
    mean score, which should be below the white ones' and that below the other colour's.
    """
    from scipy.stats import ks_2samp  # which nothing else here needs

    few, gap = data.count.min(dim=1).values, data.count.diff(dim=1)[:, 0].abs()
    clear = 20 + ((few > 1) & (gap > 1)).nonzero()[:, 0]
    predicted = model(data.x, data.edge_index).argmax(dim=1)
    nodes = sample(clear[predicted[clear] == data.y[clear]], size, seed=0)
    scores, color = explain(job.explainer, Probes(model, data, nodes), data, job.seed)[1], data.x.argmax(dim=1)
    told, ordered = [], []
    for score, node in zip(scores, nodes, strict=True):
        at = data.edge_index[1] == node
        hue = color[data.edge_index[0, at]]
        most, white, least = (score[at][hue == c] for c in (data.y[node], WHITE, 1 - data.y[node]))
        told.append(ks_2samp(white.numpy(), least.numpy()).pvalue < 0.01)
        ordered.append(bool(most.mean() > white.mean() > least.mean()))
    record = {'nodes': len(nodes), 'told': share(told), 'ordered': share(ordered)}
    if job.explainer == 'FastDnX':
        doubted, right = doubts(model, data, nodes), torch.tensor(ordered)
        record |= {'doubted right': share(doubted[right]), 'doubted wrong': share(doubted[~right])}
    return record


def doubts(model, data, nodes):
    r"""Where FastDnX says that its surrogate disagrees with the model, [B]."""
    algorithm = connect(model, FastDnX(), node_mask_type='object')
    found = algorithm.explain_nodes(model, data.x, data.edge_index, index=nodes)
    return torch.tensor([not explanation.surrogate_agreement for explanation in found])


def judge_infection(model, data, job, size):
    r"""The share of the one shortest way to an infected node among as many edges, both directions of an edge as one."""
    way, length = ways(data)
    right = (model(data.x, data.edge_index).argmax(dim=1) == data.y) & (length > 0)
    nodes = sample(right.nonzero()[:, 0], size, seed=0)
    edge = explain(job.explainer, Probes(model, data, nodes), data, job.seed)[1]
    once = data.edge_index[0] < data.edge_index[1]
    both = (edge + edge[:, reverse(data)])[:, once]
    pairs = zip(both, way[nodes][:, once], length[nodes].tolist(), strict=True)
    return {'nodes': len(nodes), 'precision': share([float(top_precision(s[None], w[None], k)) for s, w, k in pairs])}


def ways(data):
    r"""The edges [N, E] of the shortest way to an infected node, both directions, and its length [N].

    Where there are several, or there is none within reach, the length is zero, as it is at infected nodes.
    """
    source, target = data.edge_index
    way = torch.zeros(data.num_nodes, data.num_edges, dtype=torch.bool)
    count = (data.y == 0).long()  # of shortest ways
    for distance in range(1, int(data.y.max())):  # the last class is further away
        step = (data.y[target] == distance) & (data.y[source] == distance - 1)
        count.index_add_(0, target[step], count[source[step]])
        for edge in step.nonzero()[:, 0]:
            way[target[edge]] |= way[source[edge]]
            way[target[edge], edge] = True
    return way | way[:, reverse(data)], torch.where(count == 1, data.y, 0)


def reverse(data):
    r"""Where the other direction of each edge is, [E]."""
    place = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.long)
    place[tuple(data.edge_index)] = torch.arange(data.num_edges)
    return place[tuple(data.edge_index.flip(0))]
