r"""What the model itself answers under explanations: as PyG measures it, and by hand."""

import copy
import itertools
import math
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from faithfulness_case import FIELDS, MASKS, NODES, N, assert_checks_each, edges, explained, inputs
from models import CONVS, Teacher, evaluations, graph
from torch.nn import BatchNorm1d, Dropout
from torch_geometric.explain.metric import fidelity, unfaithfulness
from torch_geometric.nn import MessagePassing, SAGEConv

from pyg_dnx import check, shared_cache
from pyg_dnx.graph.graph import Graph
from pyg_dnx.teacher.teacher import Teacher as Asked
from pyg_dnx.trust.measure import graph_unfaithfulness

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

CLASSES = ['multiclass raw', 'binary raw [N, 1]', 'multiclass probs', 'multiclass log_probs']


@pytest.mark.parametrize('kind', ['model', 'phenomenon'])
@pytest.mark.parametrize(
    ('algorithm', 'task'), [*product(['FastDnX'], CLASSES), *product(['GNNExplainer'], CLASSES[:2])]
)
def test_fidelity_is_pygs(algorithm, task, kind):
    model, nodes = Teacher(task=task).eval(), [8, torch.tensor([9, 3])]
    for node, edge in MASKS:
        explain, explanations = explained(model, None, nodes, task, kind, algorithm, node=node, edge=edge)
        for explanation in explanations:
            with evaluations(model, 2 if kind == 'model' else 3):  # explanations of a phenomenon hold no prediction
                found = check(explain, explanation)
            assert found.index.equal(explanation.index)
            assert (found.fidelity_plus.mean(), found.fidelity_minus.mean()) == fidelity(explain, explanation)
            for b, explanation.index in enumerate(found.index.split(1)):
                assert (found.fidelity_plus[b], found.fidelity_minus[b]) == fidelity(explain, explanation)
            assert all(getattr(found, name).shape == found.index.shape for name in FIELDS)
            assert all(getattr(found, name).dtype == torch.float64 for name in FIELDS[1:])


@pytest.mark.parametrize('kind', ['model', 'phenomenon'])
@pytest.mark.parametrize('task', CLASSES)
def test_the_examples_are_not_all_alike(task, kind):
    found = check(*explained(Teacher(task=task).eval(), None, range(N), task, kind, edge='object'))
    assert found.fidelity_plus.unique().tolist() == found.fidelity_minus.unique().tolist() == [0, 1]
    assert not found.fidelity_plus.equal(found.fidelity_minus)
    means = [f'{name:<18} {float(getattr(found, name).mean()):.3f}' for name in FIELDS[1:]]
    assert str(found).splitlines() == ['explained nodes    18', *means]


@pytest.mark.parametrize('index', [-8, torch.tensor(6), torch.tensor([2, -5]), torch.arange(8) > 5, None])
def test_every_kind_of_index(index):
    explain, explanations = explained(Teacher().eval(), (*graph(), {}), [index])
    for given in (explanations[0], explanations):
        found, (plus, minus) = check(explain, given), fidelity(explain, explanations[0])
        assert found.index.tolist() == torch.arange(8)[slice(None) if index is None else index].view(-1).tolist()
        assert (found.fidelity_plus.mean(), found.fidelity_minus.mean()) == pytest.approx((plus, minus))


def probabilities(outputs, task):
    if task == 'binary raw [N, 1]':
        return torch.cat([1.0 - outputs.double().sigmoid(), outputs.double().sigmoid()], dim=1).tolist()
    outputs = outputs.double().log_softmax(dim=1) if task == 'multiclass raw' else outputs.double()
    return (outputs if task == 'multiclass probs' else outputs.exp()).tolist()


@pytest.mark.parametrize('task', CLASSES)
def test_distances_by_hand(task):
    model, (x, edge_index, _), nodes = Teacher(task=task).eval(), inputs(), [9, 15]
    for node, edge in MASKS:
        explain, (explanation,) = explained(model, None, [torch.tensor(nodes)], task, node=node, edge=edge)
        kept = explain.get_masked_prediction(x, edge_index, explanation.get('node_mask'), explanation.get('edge_mask'))
        before, after = probabilities(explanation.prediction[nodes], task), probabilities(kept[nodes], task)
        found = check(explain, explanation)
        for b in range(2):
            distance = math.sqrt(sum((p - q) ** 2 for p, q in zip(before[b], after[b], strict=True)))
            divergence = sum(p * math.log(p / q) for p, q in zip(before[b], after[b], strict=True))
            assert float(found.unfaithfulness[b]) == pytest.approx(distance, rel=1e-4, abs=1e-7)
            assert float(found.gef[b]) == pytest.approx(1 - math.exp(-divergence), rel=1e-4, abs=1e-7)
        assert found.gef.max() > 1e-4


def test_gef_is_not_what_pyg_has():
    for task in CLASSES[:2]:
        explain, (explanation,) = explained(Teacher(task=task).eval(), nodes=[9], task=task)
        explanation.node_mask = torch.zeros(N, 1)
        found, of_pyg = float(check(explain, explanation).gef), unfaithfulness(explain, explanation)
        assert (of_pyg == 0) == (task == 'binary raw [N, 1]')  # a softmax of one logit
        assert abs(found - of_pyg) > 0.05 * found > 1e-3  # else the divergence the other way round


def test_graph_unfaithfulness_by_hand():
    before = [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]
    after = [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5], [0.25, 0.75, 0.0], [0.2, 0.3, 0.5]]
    found = graph_unfaithfulness(*(torch.tensor(table, dtype=torch.float64) for table in (before, after)))
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, 0.5, 0.75, 0.0], dtype=torch.float64))


@pytest.mark.parametrize('task', ['regression [N]', 'regression [N, 2]'])
def test_regression(task):
    explain, explanations = explained(Teacher(task=task).eval(), task=task, edge='object')
    found, (x, edge_index, _) = check(explain, explanations), inputs()
    for b, explanation in enumerate(explanations):
        after = explain.get_masked_prediction(x, edge_index, explanation.node_mask, explanation.edge_mask)
        distance = (explanation.prediction - after)[NODES[b]].view(-1).double().square().sum().sqrt()
        assert float(found.unfaithfulness[b]) == pytest.approx(float(distance), rel=1e-4, abs=1e-6)
    assert found.unfaithfulness.mean() > 0.05
    assert found.fidelity_plus is found.fidelity_minus is found.gef is None
    assert_checks_each(explain, explanations)
    assert str(found) == f'explained nodes    4\nunfaithfulness     {float(found.unfaithfulness.mean()):.3f}'


@pytest.mark.parametrize('conv', CONVS)
def test_a_masked_query_is_pygs(conv):
    model, (x, edge_index, kwargs) = Teacher(conv).eval(), inputs(conv)
    model.conv2.explain = False if conv == 'sage' else None  # which keeps masks from a layer
    for node, edge in MASKS:
        explain, (explanation,) = explained(model, inputs(conv), [8], node=node, edge=edge)
        pair = explanation.get('node_mask'), explanation.get('edge_mask')
        found = Asked(model, explain.model_config).under(Graph.of(x, edge_index, kwargs), *pair)
        masked = explain.get_masked_prediction(x, edge_index, *pair, **kwargs)
        torch.testing.assert_close(found, masked.double().softmax(dim=1), rtol=0.0, atol=1e-7)
        assert not found.allclose(explanation.prediction.double().softmax(dim=1), atol=1e-3)


class Moody(Teacher):
    r"""A model in training, with a frozen layer, which draws numbers, and fails or is interrupted."""

    def __init__(self, failure=None, fails_at=math.inf):
        super().__init__()
        self.norm, self.drop, self.conv2 = BatchNorm1d(3), Dropout(0.5), SAGEConv(4, 3).eval()
        self.register_buffer('seen', torch.zeros(1))
        self.conv1.cached = True
        self.count, self.failure, self.fails_at = itertools.count(1), failure, fails_at

    def forward(self, x, edge_index):
        assert not any(module.training for module in self.modules())
        call = next(self.count)
        self.seen += torch.rand(1)
        x = self.norm(self.drop(super().forward(x, edge_index)))
        if call == self.fails_at or (call > self.fails_at and isinstance(self.failure, Exception)):
            raise self.failure
        return x


def state_of(model):
    r"""What can be compared of a model, and what its PyG layers hold."""
    names = [*model.state_dict(), *(name for name, _ in model.named_parameters())]
    tensors = [value.clone() for value in model.state_dict().values()]
    layers = [module for module in model.modules() if isinstance(module, MessagePassing)]
    return (names, [module.training for module in model.modules()]), tensors, [vars(layer).copy() for layer in layers]


@edges
@pytest.mark.parametrize('failure', [None, RuntimeError('out of ideas'), KeyboardInterrupt()])
@pytest.mark.parametrize(('many', 'fails_at'), [(False, 1), (False, 2), (True, 1), (True, 2)])
def test_everything_is_left_as_found(many, fails_at, failure, edge):
    model, (x, edge_index, _) = Moody(failure, math.inf if failure is None else fails_at), inputs()
    x = x.clone().requires_grad_()
    explain, explanations = explained(Moody().eval(), (x, edge_index, {}), NODES[:3], edge=edge)
    explain.model = model
    tensors = [value for explanation in explanations for _, value in explanation if isinstance(value, torch.Tensor)]
    copies = [tensor.detach().clone() for tensor in tensors]
    (plain, values, layers), random = state_of(model), torch.get_rng_state()
    with nullcontext() if failure is None else pytest.raises(type(failure)):
        check(explain, explanations if many else explanations[0])
    now = state_of(model)
    assert now[0] == plain
    assert all(map(torch.equal, now[1], values))
    for found, expected in zip(now[2], layers, strict=True):
        assert found.keys() == expected.keys()
        assert all(found[name] is expected[name] for name in expected)
    assert torch.get_rng_state().equal(random)
    assert all(map(torch.equal, tensors, copies))


@edges
@pytest.mark.parametrize('metric', [check, fidelity])
def test_the_surrogate_stays_cached(metric, edge):
    explain, explanations = explained(Teacher().eval(), edge=edge)
    misses, hits = shared_cache.misses, shared_cache.hits
    metric(explain, explanations[0])
    check(explain, explanations)
    explain(*inputs()[:2], index=1)
    assert (shared_cache.misses, shared_cache.hits) == (misses, hits + 1)


@edges
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N]'])
def test_default_device_is_not_used(task, edge):
    explain, explanations = explained(Teacher(task=task).eval(), task=task, edge=edge)
    with torch.device('meta'):
        assert_checks_each(explain, explanations)
        assert check(explain, explanations).unfaithfulness.is_cpu


BAD = {  # what is passed, the number of hops, and what is said
    'no mask': (lambda e: e.update({'node_mask': None}), None, ValueError, 'a node mask or an edge mask (got neither)'),
    'one without': (lambda e: [e, copy.copy(e).update({'node_mask': None})], None, ValueError, "pass 'node_mask_type'"),
    'no node': (lambda e: [e.update({'index': torch.tensor([18])})], None, IndexError, 'node ids from -18 to 17'),
    'empty list': (lambda e: [], None, ValueError, "'explanations' must hold at least one explanation (got none)"),
    'no hop': (lambda e: [e], 0, ValueError, "'num_hops' must be at least 1 (got 0)"),
    'negative hops': (lambda e: [e], -1, ValueError, "'num_hops' must be at least 1 (got -1)"),
    'auto': (lambda e: [e], 'auto', TypeError, "'num_hops' must be an int (got 'auto')"),
}


@pytest.mark.parametrize(('change', 'num_hops', 'error', 'message'), BAD.values(), ids=BAD)
def test_bad_input(change, num_hops, error, message):
    explain, (explanation,) = explained(Teacher().eval(), nodes=[3])
    with pytest.raises(error) as caught:
        check(explain, change(explanation), num_hops=num_hops)
    assert message in str(caught.value)
    assert '\n' not in str(caught.value)
