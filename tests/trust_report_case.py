r"""A teacher that is sure of some nodes, on a graph with nodes of many degrees, and what it answers."""

import importlib

import torch
from helpers import Graph
from models import Teacher, explainer

from pyg_dnx import FastDnX

module = importlib.import_module('pyg_dnx.trust.report')
IN_DEGREES = [1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 71]  # of the first nodes of a graph of 72; the rest have none


class Sharp(torch.nn.Module):
    r"""A teacher that is sure of some nodes."""

    def __init__(self, task='multiclass raw'):
        super().__init__()
        self.teacher = Teacher('weighted', task)

    def forward(self, x, edge_index, edge_weight=None):
        return 8.0 * self.teacher(x, edge_index, edge_weight)


def graph_of_many_degrees():
    edges = [(j, i) for i, degree in enumerate(IN_DEGREES) for j in [*range(i), *range(i + 1, 72)][:degree]]
    edges += [(0, 20), (0, 20), (3, 3), (30, 30), (30, 30)]  # two parallel edges count, self-loops don't
    generator = torch.Generator().manual_seed(0)
    edge_weight = torch.rand(len(edges), generator=generator) + 0.5
    return Graph(torch.randn(72, 3, generator=generator), torch.tensor(edges).T, edge_weight)


def settings(task='multiclass raw', algorithm=None, model=None, **options):
    r"""An explainer, the arguments of its model, and what the model and the surrogate answer, as lists."""
    x, edge_index, edge_weight = graph_of_many_degrees()
    explain = explainer(model or Sharp(task).eval(), algorithm or FastDnX(), task, **options)
    arguments = {'x': x, 'edge_index': edge_index, 'edge_weight': edge_weight}
    with torch.no_grad():
        outputs = explain.model(**arguments).double().view(72, -1).tolist()
    surrogate = explain.algorithm.distill(explain.model, **arguments)
    return explain, arguments, outputs, surrogate(x, edge_index, edge_weight).double().tolist()
