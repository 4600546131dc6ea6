r"""Explainers of heterogeneous graphs under one protocol: each scores all nodes, and maybe all edges, for some papers.

Nodes of all types are numbered through, as the package packs them.
"""

import torch
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer
from torch_geometric.explain.config import ExplainerConfig, ModelConfig

from pyg_dnx import DnX, FastDnX, ProbeDnX
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.subgraphs import Neighbourhoods, Subgraphs
from pyg_dnx.teacher.teacher import Teacher

CONFIG = {'mode': 'multiclass_classification', 'task_level': 'node', 'return_type': 'raw'}
TYPES = ExplainerConfig('model', 'object', 'object'), ModelConfig(**CONFIG)


def graph_of(model, x, edge_index, kwargs):
    r"""The packed graph, and the model as one that is asked."""
    return Graph.of(x, edge_index, kwargs).aimed((), 'paper'), Teacher(model, TYPES[1])


def around(graph, nodes, num_hops):
    r"""Which nodes are within some hops of each paper, [B, N]."""
    found = Neighbourhoods(graph.edge_index, graph.num_nodes).around(graph.roots[nodes], num_hops)
    near = torch.zeros(len(nodes), graph.num_nodes, dtype=torch.bool)
    near[found.owner, found.node] = True
    return near


def packed(graph, values):
    r"""Values by node type, packed; zero where a type has none."""
    parts = [values.get(name, torch.zeros(ids.numel())) for name, ids in graph.types.nodes.items()]
    return torch.cat([part.reshape(part.size(0), -1).sum(dim=1) for part in parts])


def at_random(model, teacher, graph, nodes, seed):
    return torch.rand(len(nodes), graph.num_nodes, generator=torch.Generator().manual_seed(seed)), None


def walks(model, teacher, graph, nodes, seed):
    r"""Rows of the powers of the union's operator."""
    operator = graph.operator('source_to_target', torch.float64)
    signal = torch.zeros(graph.num_nodes, len(nodes), dtype=torch.float64)
    signal[graph.roots[nodes], torch.arange(len(nodes))] = 1.0
    for _ in range(teacher.reach):
        signal = operator.transposed @ signal
    return signal.T, None


def walks_along_relations(model, teacher, graph, nodes, seed):
    r"""The same with means over each relation's neighbours, all relations into a type alike, and the node itself."""
    size, share = graph.num_nodes, torch.ones(graph.num_nodes)
    parts = []
    for ids in graph.types.edges.values():
        source, target = graph.edge_index[:, ids]
        degree = torch.bincount(target, minlength=size)
        share += (degree > 0).float()
        parts.append((source, target, 1.0 / degree[target]))
    signal = torch.zeros(len(nodes), size)
    signal[torch.arange(len(nodes)), graph.roots[nodes]] = 1.0
    for _ in range(teacher.reach):
        signal = signal / share
        following = signal.clone()
        for source, target, weight in parts:
            following.index_add_(1, source, signal[:, target] * weight)
        signal = following
    return signal, None


def ours(kind, **options):
    def explain(model, teacher, graph, nodes, seed):
        explainer = Explainer(model, kind(**options), 'model', CONFIG, 'object', 'object')
        x, edge_index, kwargs = graph.arguments
        many = explainer.algorithm.explain_nodes(model, x, edge_index, index=nodes, **kwargs)
        edges = [torch.cat([one[name].edge_score for name in graph.types.edges]) for one in many]
        return many.scores.to_dense(), torch.stack(edges)

    return explain


def one_by_one(algorithm, node_mask_type):
    r"""PyG's, each paper on all that the model sees of it, one hop larger, where it answers as on the graph."""

    def explain(model, teacher, graph, nodes, seed):
        found, torch_state = torch.zeros(len(nodes), graph.num_nodes), torch.random.get_rng_state()
        torch.manual_seed(seed)
        finder = Neighbourhoods(graph.edge_index, graph.num_nodes)
        for row, node in zip(found, graph.roots[nodes], strict=True):
            part = finder.around(node[None], teacher.reach + 1)
            if any(ids.numel() == 0 for ids in graph.types.take(part.node, part.edge).edges.values()):
                part = Subgraphs.of(graph, node[None])  # PyG's don't take relations without edges
            one = part.graph(graph)
            x, edge_index, kwargs = one.arguments
            explainer = Explainer(model, algorithm(), 'model', CONFIG, node_mask_type)
            explanation = explainer(x, edge_index, index=int(one.rows_of(part.root)[0]), **kwargs)
            score = torch.zeros(one.num_nodes)
            for name, mask in explanation.collect('node_mask').items():
                score[one.types.nodes[name]] = mask.sum(dim=1).float()
            row[part.node] = score
        torch.random.set_rng_state(torch_state)
        return found, None

    return explain


EXPLAINERS = {
    'random': at_random,
    'walks over the union': walks,
    'walks along relations': walks_along_relations,
    'FastDnX': ours(FastDnX),
    'FastDnX, target': ours(FastDnX, score='target'),
    'FastDnX, masked': ours(FastDnX, distillation='masked'),
    'DnX': ours(DnX),
    'ProbeDnX, 256 probes': ours(ProbeDnX, num_probes=256),
    'ProbeDnX': ours(ProbeDnX),
    'GNNExplainer': one_by_one(GNNExplainer, 'object'),
    'IG': one_by_one(lambda: CaptumExplainer('IntegratedGradients'), 'attributes'),
}
