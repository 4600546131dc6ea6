r"""Explainers of graphs under one protocol: each scores the nodes, or the edges, of some graphs."""

import copy
import warnings
from functools import partial

import torch
from torch_geometric.explain import Explainer, GNNExplainer, PGExplainer

from pyg_dnx import DnX, FastDnX, ProbeDnX, SurrogateWarning
from pyg_dnx.graph.copies import copies, without_edges
from pyg_dnx.graph.graph import Graph

warnings.simplefilter('ignore', SurrogateWarning)
CONFIG = dict(mode='multiclass_classification', task_level='graph', return_type='raw')
WAYS = {'blanked': 'features', 'removed': 'nodes'}


def of_data(data):
    r"""What the model takes of a graph."""
    return Graph.of(data.x, data.edge_index, {})


@torch.no_grad()
def answers(model, data, keep, way):
    r"""The model's class probabilities [K, C] where it keeps nodes [K, N], or for 'dropped' edges [K, E]."""
    found = []
    for part in keep.split(256):
        if way == 'dropped':
            batch = copies(of_data(data), torch.ones(len(part), data.num_nodes, dtype=torch.bool), 'features', 1)
            batch = without_edges(batch, part.flatten())
        else:
            batch = copies(of_data(data), part, WAYS[way], 1)
        if way == 'removed':  # a copy without any node, at the end, would have no row
            alone = torch.zeros(1, data.num_features)
            batch = Graph.of(
                torch.cat([batch.x, alone]),
                batch.edge_index,
                {'batch': torch.cat([batch.batch, torch.tensor([len(part)])])},
            )
        rows = model(batch.x, batch.edge_index, batch.batch)
        found.append(rows[: len(part)].double().softmax(dim=1))
    return torch.cat(found)


def ours(kind, edges=False, **options):
    def explain(model, graphs, learn, seed):
        explainer = Explainer(model, kind(**options), 'model', CONFIG, 'object', 'object' if edges else None)
        algorithm = explainer.algorithm
        if kind is not ProbeDnX:
            algorithm.distill(model, learn)
        return [found.edge_score if edges else found.node_score for found in algorithm.explain_graphs(model, graphs)]

    return explain


def one_by_one(score):
    def explain(model, graphs, learn, seed):
        generator = torch.Generator().manual_seed(seed)
        target = [
            int(answers(model, g, torch.ones(1, g.num_nodes, dtype=torch.bool), 'blanked').argmax()) for g in graphs
        ]
        return [score(model, graph, t, generator) for graph, t in zip(graphs, target, strict=True)]

    return explain


def gnn_explainer(model, graphs, learn, seed, edges=False):
    torch.manual_seed(seed)
    model = copy.deepcopy(model)
    masks = {'edge_mask_type': 'object'} if edges else {'node_mask_type': 'object'}
    explainer = Explainer(model, GNNExplainer(epochs=100), 'model', CONFIG, **masks)
    found = [explainer(graph.x, graph.edge_index) for graph in graphs]
    return [one.edge_mask if edges else one.node_mask[:, 0] for one in found]


def pg_explainer(model, graphs, learn, seed):
    r"""Three epochs on 60 of the graphs that the model was trained on."""
    torch.manual_seed(seed)
    model, algorithm = copy.deepcopy(model), PGExplainer(epochs=3)
    explainer = Explainer(model, algorithm, 'phenomenon', CONFIG, edge_mask_type='object')

    def target(graph):
        return model(graph.x, graph.edge_index).argmax(dim=1)

    for epoch in range(3):
        for graph in learn[:60]:
            algorithm.train(epoch, model, graph.x, graph.edge_index, target=target(graph))
    return [explainer(graph.x, graph.edge_index, target=target(graph)).edge_mask for graph in graphs]


def to_nodes(explain):
    r"""The mean over the edges at a node."""

    def explain_nodes(model, graphs, learn, seed):
        found = []
        for graph, edge in zip(graphs, explain(model, graphs, learn, seed), strict=True):
            total, count = torch.zeros(2, graph.num_nodes)
            for ends in graph.edge_index:
                total.index_add_(0, ends, edge)
                count.index_add_(0, ends, torch.ones_like(edge))
            found.append(total / count.clamp(min=1))
        return found

    return explain_nodes


def gradients(steps, of='logit'):
    r"""Integrated Gradients from blank features, or for no steps gradients alone; summed over features."""

    def score(model, graph, target, generator):
        share = torch.ones(1) if steps is None else (torch.arange(steps) + 0.5) / steps
        every = torch.ones(len(share), graph.num_nodes, dtype=torch.bool)
        batch = copies(of_data(graph), every, 'features', 1)
        x = (graph.x * share[:, None, None]).flatten(0, 1).requires_grad_()
        rows = model(x, batch.edge_index, batch.batch)
        rows = rows if of == 'logit' else rows.softmax(dim=1)
        slope = torch.autograd.grad(rows[:, target].sum(), x)[0].unflatten(0, (len(share), -1)).mean(dim=0)
        return slope.abs().sum(dim=1) if steps is None else (slope * graph.x).sum(dim=1)

    return one_by_one(score)


def units(graph, way):
    r"""What is taken away together, numbered: each node, or both directions of an edge."""
    if way != 'dropped':
        return torch.arange(graph.num_nodes)
    return graph.edge_index.sort(dim=0).values.unique(dim=1, return_inverse=True)[1]


def occlusion(way):
    def score(model, graph, target, generator):
        unit = units(graph, way)
        keep = unit != torch.arange(int(unit.max()) + 1)[:, None]
        found = answers(model, graph, torch.cat([torch.ones_like(keep[:1]), keep]), way)[:, target]
        return (found[0] - found[1:])[unit]

    return one_by_one(score)


def kernel_shap(way, num_answers):
    r"""Shapley values by least squares on coalitions in complementary pairs, by Kernel SHAP's weights."""

    def score(model, graph, target, generator):
        unit = units(graph, way)
        count = int(unit.max()) + 1
        if count < 2:
            return torch.zeros(unit.shape)
        size = torch.arange(1, count)
        weight = 1.0 / (size * (count - size))
        drawn = size[torch.multinomial(weight, num_answers // 2, replacement=True, generator=generator)]
        order = torch.rand(drawn.numel(), count, generator=generator).argsort(dim=1).argsort(dim=1)
        half = order < drawn[:, None]
        kept = torch.cat([torch.zeros(1, count, dtype=torch.bool), torch.ones(1, count, dtype=torch.bool), half, ~half])
        found = answers(model, graph, kept[:, unit], way)[:, target]
        share = kept.double().mean(dim=1, keepdim=True)
        total, centered = found[1] - found[0], kept.double() - share
        rest = (found - found[0])[:, None] - share * total
        gram = centered @ centered.T + 1e-2 * torch.eye(len(kept), dtype=torch.float64)
        return (total / count + (centered.T @ torch.linalg.solve(gram, rest))[:, 0])[unit]

    return one_by_one(score)


def random(size_of):
    return one_by_one(lambda model, graph, target, generator: torch.rand(size_of(graph), generator=generator))


NODES = {
    'random': random(lambda graph: graph.num_nodes),
    'FastDnX': ours(FastDnX),
    'FastDnX, blanked': ours(FastDnX, how='features'),
    'DnX': ours(DnX),
    **{
        f'ProbeDnX, {way}, {size}': ours(ProbeDnX, how=how, num_probes=size)
        for way, how in WAYS.items()
        for size in (32, 128, 512)
    },
    'GNNExplainer': gnn_explainer,
    'PGExplainer': to_nodes(pg_explainer),
    'IG, logit': gradients(50),
    'IG, probability': gradients(50, 'probability'),
    'Saliency': gradients(None),
    **{f'occlusion, {way}': occlusion(way) for way in WAYS},
    **{f'KernelSHAP, {way}, {size}': kernel_shap(way, size) for way in WAYS for size in (32, 128, 512)},
}
EDGES = {
    'random': random(lambda graph: graph.num_edges),
    'FastDnX': ours(FastDnX, edges=True),
    'ProbeDnX': ours(ProbeDnX, edges=True),
    'ProbeDnX, pairs': ours(ProbeDnX, edges=True, edge_score='pairs'),
    'ProbeDnX, flow': ours(ProbeDnX, edges=True, edge_score='flow'),
    'GNNExplainer': partial(gnn_explainer, edges=True),
    'PGExplainer': pg_explainer,
    'occlusion, dropped': occlusion('dropped'),
    'KernelSHAP, dropped, 512': kernel_shap('dropped', 512),
}
