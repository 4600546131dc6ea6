r"""A model that is asked under masks and, dense and in float64, all that ProbeDnX makes of its answers."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from helpers import dense_adjacency, dense_local_fit, dense_sums, example_graphs
from models import Teacher, connected, explainer

from pyg_dnx import ProbeDnX, probe_masks
from pyg_dnx.scores.local_fit import NOISES
from pyg_dnx.scores.probed import LIKENESSES, Prior
from pyg_dnx.teacher.outputs import to_targets


class ProbeCase:
    def __init__(self, name='weighted', task='multiclass raw', num_hops=2, num_probes=16, model=None, **options):
        example = example_graphs()[name]
        self.graph, self.task = example._replace(x=example.x.double()), task
        self.x, self.edge_index, weight = self.graph
        self.kwargs = {} if weight is None else {'edge_weight': weight.double()}
        self.model = (Teacher('weighted', task) if model is None else model).double().eval()
        self.options = {'num_hops': num_hops, 'num_probes': num_probes, **options}
        adjacency = dense_adjacency(self.edge_index, weight, self.x.size(0))
        sums = dense_sums(self.edge_index, weight, self.x.size(0))
        matrices = {'normalised': adjacency, 'means': sums / sums.sum(dim=1, keepdim=True), 'sums': sums}
        self.sizes = {name: torch.linalg.matrix_power(matrix, num_hops) for name, matrix in matrices.items()}
        self.power, self.traits = self.sizes['normalised'], self.x
        self.masks = probe_masks(self.x.size(0), num_probes)
        with torch.no_grad():
            self.raw = torch.stack([self.ask(mask[:, None]) for mask in self.masks])
        config = connected(ProbeDnX(), task).model_config
        self.outputs = torch.stack([to_targets(raw, config, torch.float64, raw.device)[0] for raw in self.raw])

    def ask(self, mask):
        return self.model(self.x * mask, self.edge_index, **self.kwargs)

    def toward(self, goal=None, other=None):
        r"""The directions of targets, by default the model's own, [N, C]."""
        if 'regression' in self.task:
            goal = self.outputs[0] if goal is None else goal
            return F.normalize(goal - self.outputs[1], dim=1)
        num_classes = self.outputs.size(2)
        goal = F.one_hot(self.outputs[0].argmax(dim=1) if goal is None else goal, num_classes).double()
        return goal - (1.0 / num_classes if other is None else F.one_hot(other, num_classes).double())

    def answers(self, *goal):
        r"""What the model says along these directions, [P, N]."""
        values = self.outputs.log() if self.options.get('answer') == 'logit' else self.outputs
        return (values * self.toward(*goal)).sum(dim=2)

    def assumed(self, *goal):
        r"""What the surrogate says of each node's effect (columns) on the answers at each (rows), [N, N]."""
        surrogate = self.algorithm().distill(self.model, self.x, self.edge_index, **self.kwargs)
        return self.power * (self.toward(*goal) @ (self.x @ surrogate.weight).T)

    def losses(self):
        r"""How far answers are off under all priors, at all nodes, of which there are fewer than are drawn."""
        every = [Prior(*prior) for prior in product(self.sizes, LIKENESSES, NOISES)]
        return {prior: float(self.fit(prior=prior).error.square().sum()) for prior in every}

    def prior(self):
        r"""As chosen; to choose it well has a test of its own."""
        found = self.explain_nodes(model=None, given={'probe_outputs': self.raw}, cache=None)
        return found._request.state.prior

    def fit(self, *goal, prior=None):
        sizes, *numbers = self.prior() if prior is None else prior
        given = self.sizes[sizes], self.traits, self.masks, self.answers(*goal)
        return dense_local_fit(*given, *numbers, self.assumed(*goal))

    def algorithm(self, explanation_type='model', **options):
        return connected(ProbeDnX(**{**self.options, **options}), self.task, explanation_type)

    def explain_nodes(self, explanation_type='model', model=False, target=None, index=None, given=None, **options):
        r"""Explanations of all nodes; ``given`` are further arguments of ``explain_nodes``."""
        inputs = (self.model if model is False else model, self.x, self.edge_index)
        algorithm = self.algorithm(explanation_type, **options)
        return algorithm.explain_nodes(*inputs, target=target, index=index, **(given or {}), **self.kwargs)

    def explainer(self, explanation_type='model', node='object', edge=None, **options):
        return explainer(self.model, ProbeDnX(**{**self.options, **options}), self.task, explanation_type, node, edge)

    def explain(self, index=None, target=None, **options):
        return self.explainer(**options)(self.x, self.edge_index, index=index, target=target, **self.kwargs)
