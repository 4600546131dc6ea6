r"""A graph that no neighbourhood covers, explanations of its nodes, and checks that must say the same of them."""

from functools import cache
from itertools import product

import pytest
import torch
from models import Teacher, evaluations, explainer
from torch_geometric.explain import GNNExplainer

from pyg_dnx import FastDnX, check

ALGORITHMS = {'FastDnX': FastDnX, 'GNNExplainer': lambda: GNNExplainer(epochs=2)}
MASKS = [pair for pair in product(['object', 'attributes', 'common_attributes', None], ['object', None]) if any(pair)]
FIELDS = ['index', 'fidelity_plus', 'fidelity_minus', 'unfaithfulness', 'gef']
N, NODES = 18, [9, 3, 17, 15]
CHUNK = 1  # evaluation: of copies without masks, to see that the model looks no farther, and under both
TOGETHER = CHUNK + 1  # one more, to see once that it does not under a mask either
edges = pytest.mark.parametrize('edge', ['object', None])


@cache
def inputs(conv='gcn'):
    r"""A graph that no neighbourhood covers, with loops, duplicates, edges of one direction and an isolated node."""
    generator = torch.Generator().manual_seed(4)
    path = torch.stack([torch.arange(16), torch.arange(1, 17)])
    more = torch.tensor([[2, 2, 7, 7, 12, 4], [2, 9, 8, 8, 12, 15]])
    edge_index = torch.cat([path, path[:, 5:].flip(0), more], dim=1)
    kwargs = {'edge_weight': torch.rand(edge_index.size(1), generator=generator)} if conv == 'weighted' else {}
    return 3 * torch.randn(N, 3, generator=generator), edge_index, kwargs


def explained(model, given=None, nodes=NODES, task='multiclass raw', kind='model', algorithm='FastDnX', **options):
    r"""An explainer of the model, and its explanations of ``nodes``, one by one."""
    x, edge_index, kwargs = inputs() if given is None else given
    explain = explainer(model, ALGORITHMS[algorithm](), task, kind, **options)
    target = torch.arange(x.size(0)) % (2 if task.startswith('binary') else 3) if kind == 'phenomenon' else None
    return explain, [explain(x, edge_index, target=target, index=node, **kwargs) for node in nodes]


def assert_same(found, parts):
    r"""Holds one check against several that say the same."""
    for name in FIELDS:
        expected = [getattr(part, name) for part in parts]
        if expected[0] is None:
            assert getattr(found, name) is None
        else:
            torch.testing.assert_close(getattr(found, name), torch.cat(expected), rtol=1e-4, atol=1e-6)


def assert_checks_each(explain, explanations, num_evaluations=TOGETHER, **options):
    with evaluations(explain.model, num_evaluations):
        found = check(explain, explanations, **options)
    assert_same(found, [check(explain, explanation) for explanation in explanations])


class Global(Teacher):
    share = 1.0

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) + self.share * x.mean(dim=0)
