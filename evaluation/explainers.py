r"""The explainers under one protocol: each turns probes of a model at some nodes into scores of nodes or edges.

A further explainer is one more function here, and one more entry in `EXPLAINERS`.
"""

import copy
import warnings
from typing import NamedTuple

import numpy as np
import torch
from probes import answers, carries, logit, margin, path_gradients, probability
from recipe import distill_by_recipe
from torch_geometric.explain import Explainer, GNNExplainer, PGExplainer
from torch_geometric.explain.algorithm.utils import set_masks

from pyg_dnx import DnX, FastDnX, ProbeDnX, SurrogateWarning
from pyg_dnx.graph.operator import normalized_adjacency
from pyg_dnx.graph.rows import rows_of

warnings.simplefilter('ignore', SurrogateWarning)
NUM_ANSWERS = ProbeDnX().num_probes  # which rivals that ask the model have for each node
CONFIG = dict(mode='multiclass_classification', task_level='node', return_type='raw')


class Scores(NamedTuple):
    node: torch.Tensor | None = None  # [B, N]
    edge: torch.Tensor | None = None  # [B, E]


def connect(model, algorithm, kind='model', **masks):
    return Explainer(model, algorithm, kind, CONFIG, **masks).algorithm


def to_nodes(edge, edge_index, num_nodes):
    r"""The paper's node scores from edge scores [B, E]: the mean over the candidates among the edges at a node."""
    inside = edge.isfinite()
    total, count = (edge.new_zeros(edge.size(0), num_nodes) for _ in range(2))
    for ends in edge_index:
        total.index_add_(1, ends, edge.masked_fill(~inside, 0.0))
        count.index_add_(1, ends, inside.to(edge.dtype))
    return total / count.clamp(min=1)


def to_edges(node, edge_index):
    r"""The paper's edge scores from node scores [B, N]: the sum over the two ends."""
    return node[:, edge_index[0]] + node[:, edge_index[1]]


def random(probes, data, seed):
    generator = torch.Generator().manual_seed(seed)
    return Scores(torch.rand(probes.near.shape, generator=generator), None)


def random_edges(probes, data, seed):
    generator = torch.Generator().manual_seed(seed)
    return Scores(edge=torch.rand(probes.nodes.numel(), data.num_edges, generator=generator))


def adjacency(num_hops):
    r"""Entries of Ã, or of its power by the model's hops: a ranking that has never seen the model."""

    def explain(probes, data, seed):
        operator = normalized_adjacency(data.edge_index, None, data.num_nodes, torch.float64)
        rows = rows_of(operator, probes.nodes, num_hops or probes.num_hops)
        dense = torch.zeros(probes.near.shape, dtype=torch.float64)
        dense[torch.repeat_interleave(rows.length), rows.column.long()] = rows.value
        return Scores(dense)

    return explain


def distilled(kind, **options):
    def explain(probes, data, seed):
        algorithm = connect(probes.model, kind(**options), node_mask_type='object')
        batch = algorithm.explain_nodes(probes.model, data.x, data.edge_index, index=probes.nodes)
        return Scores(batch.scores.to_dense())

    return explain


def distilled_edges(kind, **options):
    def explain(probes, data, seed):
        algorithm = connect(probes.model, kind(**options), edge_mask_type='object')
        batch = algorithm.explain_nodes(probes.model, data.x, data.edge_index, index=probes.nodes)
        return Scores(edge=torch.stack([explanation.edge_score for explanation in batch]))

    return explain


def sizes_of(explain):
    r"""Scores by size, for what is to be kept."""

    def explain_all(probes, data, seed):
        return Scores(*(None if scores is None else scores.abs() for scores in explain(probes, data, seed)))

    return explain_all


def recipe(probes, data, seed):
    r"""FastDnX's scores of a surrogate that was distilled as in the paper."""
    student, *_ = distill_by_recipe(probes.model, data, probes.num_hops)
    power, hidden = adjacency(None)(probes, data, seed).node, data.x.double() @ student.weight.double().T
    return Scores(power * (power @ hidden @ hidden.T))


def adam(probes, data, seed):
    r"""DnX as published, its last iterate."""
    explainer = Explainer(probes.model, DnX(solver='adam'), 'model', CONFIG, node_mask_type='object')
    scores = [explainer(data.x, data.edge_index, index=int(node)).node_score for node in probes.nodes]
    return Scores(torch.stack(scores))


def gradients(of, steps):
    return lambda probes, data, seed: Scores(probes.gradients(of, steps))


def node_by_node(explain, probes, data):
    r"""Runs a slow explainer on the part of the graph that each node's prediction depends on, true degrees included."""
    node, edge = torch.zeros(probes.near.shape), torch.zeros(probes.nodes.numel(), data.num_edges)
    for row, part in enumerate(probes.alone):
        found = explain(data.x[part.node], part.edge_index, part.root)
        if (mask := found.get('node_mask')) is not None:
            node[row, part.node] = mask.float().sum(dim=1)
        if (mask := found.get('edge_mask')) is not None:
            edge[row, part.edge] = mask
    return node, edge


def gnn_explainer(kind):
    r"""100 epochs on a mask of nodes, or of edges as in the paper."""

    def explain(probes, data, seed):
        torch.manual_seed(seed)
        model = copy.deepcopy(probes.model)  # where it leaves a parameter that PGExplainer could not train through
        explainer = Explainer(model, GNNExplainer(epochs=100), 'model', CONFIG, **{f'{kind}_mask_type': 'object'})
        node, edge = node_by_node(lambda x, edges, root: explainer(x, edges, index=root), probes, data)
        return Scores(node) if kind == 'node' else Scores(edge=edge)

    return explain


def edge_gradients(of):
    r"""Integrated Gradients from no messages to all of them, by PyG's masks of edges."""

    def explain_all(probes, data, seed):
        model = copy.deepcopy(probes.model)  # which keeps the last mask

        def explain(x, edge_index, root):
            target = probes.model(x, edge_index)[root].argmax(dim=1)

            def explained(mask):
                set_masks(model, mask, edge_index, apply_sigmoid=False)
                return of(model(x, edge_index)[root], target)

            return {'edge_mask': path_gradients(explained, torch.ones(edge_index.size(1)))}

        return Scores(edge=node_by_node(explain, probes, data)[1])

    return explain_all


def by_coalitions(draw, solve):
    r"""Scores the edges that carry messages by the class's probability where some are dropped, and on all of them.

    `draw` says which of P edges are kept, [K, P], and `solve` turns that and the K + 1 answers into P scores.
    """

    def explain_all(probes, data, seed):
        generator = torch.Generator().manual_seed(seed)

        def explain(x, edge_index, root):
            inside = carries(edge_index, root, probes.num_hops, x.size(0))
            kept, scores = draw(int(inside.sum()), generator), torch.zeros(inside.shape)
            keep = torch.ones(len(kept) + 1, *inside.shape, dtype=torch.bool)
            keep[:-1, inside] = kept
            found = answers(probes.model, x[None], edge_index, root, keep).double()
            scores[inside] = solve(kept, found[:, found[-1].argmax()]).float()
            return {'edge_mask': scores}

        return Scores(edge=node_by_node(explain, probes, data)[1])

    return explain_all


def blocks(count, generator):
    r"""All but one edge; or, where there are more edges than ProbeDnX has probes, all but as many random blocks."""
    block = torch.randperm(count, generator=generator) % NUM_ANSWERS
    return block != torch.arange(min(count, NUM_ANSWERS))[:, None]


def coalitions(count, generator):
    r"""No edge, all, and as many sets as ProbeDnX has probes, by Kernel SHAP's weights, each beside its complement."""
    none = torch.zeros(1, count, dtype=torch.bool)
    if count < 2:
        return torch.cat([none, ~none])
    size = torch.arange(1, count)
    drawn = torch.multinomial(1.0 / (size * (count - size)), NUM_ANSWERS // 2, replacement=True, generator=generator)
    order = torch.rand(drawn.numel(), count, generator=generator).argsort(dim=1).argsort(dim=1)
    half = order < size[drawn][:, None]
    return torch.cat([none, ~none, half, ~half])


def shapley(kept, answer):
    r"""Shapley values by least squares on coalitions [K, P], the first of which is empty; they add up exactly.

    The last answer is that with all edges. The ridge of 1 matters only where there are about K edges, or more.
    """
    share = kept.double().mean(dim=1, keepdim=True)
    total, centered = answer[-1] - answer[0], kept.double() - share
    rest = (answer[:-1] - answer[0])[:, None] - share * total
    gram = centered @ centered.T + torch.eye(len(kept), dtype=torch.float64)
    return total / max(1, kept.size(1)) + (centered.T @ torch.linalg.solve(gram, rest))[:, 0]


def pg_explainer(probes, data, seed):
    r"""30 epochs on the nodes that it then explains, as its authors do."""
    torch.manual_seed(seed)
    algorithm = PGExplainer(epochs=30)
    explainer = Explainer(probes.model, algorithm, 'phenomenon', CONFIG, edge_mask_type='object')
    target = probes.model(data.x, data.edge_index).argmax(dim=1)
    for epoch in range(30):
        for part in probes.alone:
            x, target_here = data.x[part.node], target[part.node]
            algorithm.train(epoch, probes.model, x, part.edge_index, target=target_here, index=part.root)
    ask = iter(probes.alone)
    explain = lambda x, edges, root: explainer(x, edges, index=root, target=target[next(ask).node])  # noqa: E731
    return Scores(edge=node_by_node(explain, probes, data)[1])


def pgm_explainer(probes, data, seed):
    r"""Minus the p-values of its tests, with 100 samples."""
    from torch_geometric.contrib.explain import PGMExplainer  # warns that it is experimental, and needs pgmpy

    np.random.seed(seed)  # noqa: NPY002, which is where it draws from
    torch.manual_seed(seed)
    scores = torch.zeros(probes.near.shape)
    for row, part in enumerate(probes.alone):
        if int(probes.near[row].sum()) == 1:  # where PyG's raises an IndexError
            continue
        algorithm = connect(probes.model, PGMExplainer(num_samples=100), node_mask_type='attributes')
        target = probes.target[row].expand(part.node.numel())
        with torch.no_grad():
            found = algorithm(probes.model, data.x[part.node], part.edge_index, target=target, index=int(part.root))
        scores[row, part.node] = -found.pgm_stats
    return Scores(scores)


EXPLAINERS = {
    'FastDnX': distilled(FastDnX),
    'FastDnX, target': distilled(FastDnX, score='target'),
    'FastDnX, masked': distilled(FastDnX, distillation='masked'),
    'ProbeDnX': distilled(ProbeDnX),
    'DnX': distilled(DnX),
    'DnX, published': adam,
    'GNNExplainer': gnn_explainer('edge'),
    'GNNExplainer, node mask': gnn_explainer('node'),
    'PGExplainer': pg_explainer,
    'PGMExplainer': pgm_explainer,
    'IG, logit': gradients(logit, 50),
    'IG, probability': gradients(probability, 50),
    'IG, margin': gradients(margin, 50),
    'Saliency': gradients(logit, None),
    'random': random,
    'Ã': adjacency(1),
    'Ã^L': adjacency(None),
}
UNTAUGHT = ('random', 'Ã', 'Ã^L')  # which never see the model
# Against ground truth; the paper has GNNExplainer's edge masks.
JUDGED = tuple(name for name in EXPLAINERS if name not in ('GNNExplainer, node mask', 'IG, probability', 'IG, margin'))
VARIANTS = {
    'FastDnX, recipe': recipe,
    'FastDnX, 2 masks': distilled(FastDnX, distillation='masked', num_masks=2),
    'ProbeDnX, 128 probes': distilled(ProbeDnX, num_probes=128),
    'ProbeDnX, 256 probes': distilled(ProbeDnX, num_probes=256),
    'ProbeDnX, logit': distilled(ProbeDnX, answer='logit'),
    'ProbeDnX, runner-up': distilled(ProbeDnX, contrast='runner_up'),
    'ProbeDnX, shortlist of 10': distilled(ProbeDnX, shortlist=10),
    'ProbeDnX, size': sizes_of(distilled(ProbeDnX)),
    "ProbeDnX, the paper's surrogate": distilled(ProbeDnX, distillation='paper'),
}
# Held against one another on more teachers.
PROBED = ('FastDnX', 'FastDnX, target', 'FastDnX, masked', 'ProbeDnX', 'IG, logit', 'IG, probability', 'random', 'Ã^L')
PROBED = (*PROBED, *(name for name in VARIANTS if name != 'FastDnX, recipe'))
BY_RECIPE = ('FastDnX', 'FastDnX, recipe')  # which differ in how the surrogate was distilled alone
# Held against GNNExplainer on all graphs, with as many nodes as it can be asked about.
RIVALS = (
    'FastDnX',
    'FastDnX, target',
    'FastDnX, masked',
    'ProbeDnX',
    'GNNExplainer, node mask',
    'IG, logit',
    'random',
    'Ã^L',
)
EDGE_EXPLAINERS = {
    'FastDnX, geometric': distilled_edges(FastDnX, edge_score='geometric'),
    'FastDnX, flow': distilled_edges(FastDnX, edge_score='flow'),
    'DnX, geometric': distilled_edges(DnX, edge_score='geometric'),
    'DnX, flow': distilled_edges(DnX, edge_score='flow'),
}
EDGE_VARIANTS = {
    'FastDnX, target, flow': distilled_edges(FastDnX, score='target', edge_score='flow'),
    'FastDnX, masked, flow': distilled_edges(FastDnX, distillation='masked', edge_score='flow'),
    'ProbeDnX, flow': distilled_edges(ProbeDnX, edge_score='flow'),
    'IG, edges': edge_gradients(logit),
}
# Held against one another by what the model answers where edges are dropped.
DROPPED = {
    'FastDnX': distilled_edges(FastDnX),
    'FastDnX, drop': distilled_edges(FastDnX, edge_score='drop'),
    'FastDnX, masked': distilled_edges(FastDnX, distillation='masked'),
    'FastDnX, masked, drop': distilled_edges(FastDnX, distillation='masked', edge_score='drop'),
    'DnX': distilled_edges(DnX),
    'ProbeDnX': distilled_edges(ProbeDnX),
    'ProbeDnX, pairs': distilled_edges(ProbeDnX, edge_score='pairs'),
    'ProbeDnX, flow': distilled_edges(ProbeDnX, edge_score='flow'),
    'ProbeDnX, size': sizes_of(distilled_edges(ProbeDnX)),
    'IG, logit': edge_gradients(logit),
    'IG, probability': edge_gradients(probability),
    'GNNExplainer': gnn_explainer('edge'),
    'PGExplainer': pg_explainer,
    'occlusion': by_coalitions(blocks, lambda kept, answer: (~kept.T).double() @ (answer[-1] - answer[:-1])),
    'KernelSHAP': by_coalitions(coalitions, shapley),
    'random': random_edges,
}
# Where it is known what a model must go by; PGExplainer would have to be trained on every graph.
BY_EVIDENCE = (
    'FastDnX',
    'FastDnX, flow',
    'FastDnX, target',
    'FastDnX, target, flow',
    'FastDnX, masked',
    'FastDnX, masked, flow',
    'ProbeDnX',
    'ProbeDnX, flow',
    'DnX',
    'GNNExplainer',
    'IG, logit',
    'IG, edges',
    'Saliency',
    *UNTAUGHT,
)
