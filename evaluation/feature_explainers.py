r"""Explainers of features: each yields scores for one node after the other, whose neighbourhood has S nodes.

With masks of type `common_attributes` these are of columns, [F], and with `attributes` of entries, [S, F].
"""

import copy

import torch
from explainers import CONFIG, connect
from probes import logit, path_gradients, probability
from torch_geometric.explain import Explainer, GNNExplainer

from pyg_dnx import DnX, FastDnX, ProbeDnX

COLUMNS, ENTRIES = 'common_attributes', 'attributes'


def distilled(kind, **options):
    def explain(probes, data, seed, mask):
        algorithm = connect(probes.model, kind(**options), node_mask_type=mask)
        batch = algorithm.explain_nodes(probes.model, data.x, data.edge_index, index=probes.nodes)
        for explanation, part in zip(batch, probes.alone, strict=True):
            yield explanation.feature_score if mask == COLUMNS else explanation.node_score[part.node]

    return explain


def sizes_of(explain):
    r"""Scores by size, for what is to be kept."""
    return lambda *inputs: (scores.abs() for scores in explain(*inputs))


def gradients(of):
    r"""Integrated Gradients from features of zero; a column has the sum of its entries."""

    def explain(probes, data, seed, mask):
        for part, target in zip(probes.alone, probes.target, strict=True):

            def explained(x, part=part, target=target):
                return of(probes.model(x, part.edge_index)[part.root], target[None])

            score = path_gradients(explained, data.x[part.node])
            yield score.sum(dim=0) if mask == COLUMNS else score

    return explain


def gnn_explainer(probes, data, seed, mask):
    torch.manual_seed(seed)
    explainer = Explainer(copy.deepcopy(probes.model), GNNExplainer(epochs=100), 'model', CONFIG, node_mask_type=mask)
    for part in probes.alone:
        found = explainer(data.x[part.node], part.edge_index, index=part.root).node_mask
        yield found[0] if mask == COLUMNS else found


def random(probes, data, seed, mask):
    generator = torch.Generator().manual_seed(seed)
    for part in probes.alone:
        shape = data.x[part.node].shape
        yield torch.rand(shape[1:] if mask == COLUMNS else shape, generator=generator)


ZEROED = {
    'FastDnX': distilled(FastDnX),
    'FastDnX, masked': distilled(FastDnX, distillation='masked'),
    'DnX': distilled(DnX),
    'ProbeDnX': distilled(ProbeDnX),
    'ProbeDnX, shares': distilled(ProbeDnX, feature_score='shares'),
    'ProbeDnX, size': sizes_of(distilled(ProbeDnX)),
    'IG, logit': gradients(logit),
    'IG, probability': gradients(probability),
    'GNNExplainer': gnn_explainer,
    'random': random,
}
