r"""Bounds under any option, index and kind of graph: nothing else changes, and bad input is named."""

import copy
import math

import pytest
import torch
from helpers import example_graphs
from models import Mean, Teacher, Versatile, adjacencies, evaluations, explainer, graph
from theory_case import FIELDS, LEMMAS, NODES, THEOREMS, assert_in_order, explained, values_of
from torch.testing import assert_close
from torch_geometric.explain import GNNExplainer

from pyg_dnx import Bounds, FastDnX, bound

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


def test_seeds():
    explain, explanation = explained(Teacher('gcn').eval())
    torch.manual_seed(5)
    first = values_of(bound(explain, explanation, seed=3))
    torch.manual_seed(6)
    again, other = (values_of(bound(explain, explanation, seed=seed)) for seed in (3, 4))
    assert all(value.equal(first[name]) for name, value in again.items())
    drawn = {name for name, value in other.items() if not value.equal(first[name])}
    assert drawn == {*FIELDS, *LEMMAS, *THEOREMS} - {'probable_lemma', 'tight_probable_lemma'}
    assert values_of(bound(explain, explanation, seed=0))['lemma'].equal(bound(explain, explanation).lemma)


def test_options_move_what_they_should():
    explain, explanation = explained(Teacher('gcn').eval())

    def moved(**options):
        usual, found = (values_of(bound(explain, explanation, **given)) for given in ({}, options))
        return {name for name, value in found.items() if not value.equal(usual[name])}

    everything = {*FIELDS, *LEMMAS, *THEOREMS}
    assert moved(noise=0.1, probability=0.95, num_perturbations=10, seed=0) == set()  # the documented defaults
    assert moved(probability=0.9) == {name for name in everything if 'probable' in name}
    assert moved(noise=0.2) == everything
    assert everything - moved(num_perturbations=9) <= {'alpha', 'lemma', 'theorem'}  # a maximum may stay
    still = values_of(bound(explain, explanation, noise=0.0))
    for name, value in values_of(bound(explain, explanation, num_perturbations=0)).items():
        assert_close(still[name], value, msg=name)


class Restless(Versatile):
    r"""Draws random numbers and moves its buffers, and does so even in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer('count', torch.zeros(()))

    def forward(self, x, edge_index, edge_weight=None):
        self.count += torch.rand(()) + 1.0
        return super().forward(x, edge_index, edge_weight)


def test_leaves_everything_as_found():
    model, example = Restless(), example_graphs()['weighted']
    x, kwargs = example.x.clone(), {'edge_weight': example.edge_weight.clone()}
    explain = explainer(model, FastDnX())
    explanation = explain(x, example.edge_index, index=NODES, **kwargs)
    model.train()
    model.conv.eval()
    training, state = [module.training for module in model.modules()], copy.deepcopy(model.state_dict())
    random, before = torch.get_rng_state(), copy.deepcopy(explanation.to_dict())
    bounds = bound(explain, explanation)
    assert float(bounds.unfaithfulness.max()) > 0.0
    assert [module.training for module in model.modules()] == training
    assert len(set(training)) == 2
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert torch.get_rng_state().equal(random)
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert x.equal(example.x)
    assert kwargs['edge_weight'].equal(example.edge_weight)
    assert explanation.x is x
    assert explanation.to_dict().keys() == before.keys()
    for name, value in explanation.to_dict().items():
        assert value.equal(before[name]) if isinstance(value, torch.Tensor) else value == before[name]


def test_is_in_evaluation_mode():
    model = Versatile().eval()
    explain, explanation = explained(model)
    expected = values_of(bound(explain, explanation))
    model.train()
    for name, value in values_of(bound(explain, explanation)).items():
        assert value.equal(expected[name]), name


@pytest.mark.parametrize('num_perturbations', [0, 1, 4])
def test_evaluates_the_model_twice_for_each_draw(num_perturbations):
    model = Teacher('gcn').eval()
    explain, explanation = explained(model)
    with evaluations(model, 2 * (num_perturbations + 1)):
        bound(explain, explanation, num_perturbations=num_perturbations)


def test_joint_explanations_hold_what_each_node_would():
    explain, explanation = explained(Teacher('gcn').eval(), name='undirected', index=NODES)
    joint = bound(explain, explanation, num_perturbations=0)
    assert joint.index.equal(NODES)
    singles = []
    for node in NODES.tolist():
        explanation.index = node  # under the same mask
        singles.append(bound(explain, explanation, num_perturbations=0))
        assert singles[-1].index.tolist() == [node]
    for name in (*FIELDS, 'tight_lemma', 'tight_theorem', 'tight_probable_lemma'):
        assert_close(getattr(joint, name), torch.cat([getattr(single, name) for single in singles]), msg=name)
    for name in ('lemma', 'theorem'):  # the features of all neighbourhoods together have the larger norm
        assert bool((getattr(joint, name) >= torch.cat([getattr(single, name) for single in singles])).all())


@pytest.mark.parametrize(
    ('index', 'nodes'),
    [
        (None, list(range(8))),
        (-1, [7]),
        (torch.tensor([5, -5, 5]), [5, 3, 5]),
        (torch.arange(8) % 4 == 1, [1, 5]),
    ],
)
def test_any_index(index, nodes):
    explain, explanation = explained(Teacher('gcn').eval(), index=index)
    bounds = bound(explain, explanation)
    assert bounds.index.tolist() == nodes
    assert_in_order(bounds)
    for value in values_of(bounds).values():
        assert value.shape == (len(nodes),)
        assert value.dtype == torch.float64


def test_explanations_of_many_nodes_are_bounded_one_by_one():
    model, (x, edge_index) = Teacher('gcn').eval(), graph()
    explain = explainer(model, FastDnX())
    item = explain.algorithm.explain_nodes(model, x, edge_index)[2]
    expected = values_of(bound(explain, explain(x, edge_index, index=2)))
    for name, value in values_of(bound(explain, item)).items():
        assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize('kind', ['coo', 'csr', 'csc', 'SparseTensor'])
def test_any_adjacency_matrix(kind):
    x, edge_index = graph('undirected')
    matrices = adjacencies(edge_index, torch.ones(edge_index.size(1)), 8)
    if kind not in matrices:
        pytest.skip('needs torch_sparse')
    explain = explainer(Mean().eval(), FastDnX(num_hops=2))
    found = []
    for matrix in (matrices['coo'], matrices[kind]):
        found.append(bound(explain, explain(x, matrix, index=1)))
        assert_in_order(found[-1])
    assert_close(found[0].theorem, found[1].theorem)


def test_an_edge_mask_is_left_out():
    model, (x, edge_index) = Teacher('gcn').eval(), graph()
    both, alone = (explainer(model, FastDnX(), edge=edge) for edge in ('object', None))
    found, expected = (bound(explain, explain(x, edge_index, index=1)) for explain in (both, alone))
    for name, value in values_of(found).items():
        assert value.equal(getattr(expected, name)), name


@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
def test_default_device_is_not_used(task):
    model, (x, edge_index), index = Teacher('gcn', task).eval(), graph(), NODES.clone()
    explain = explainer(model, FastDnX(), task)
    expected = values_of(bound(explain, explain(x, edge_index, index=index)))
    torch.set_default_device('meta')
    try:
        found = values_of(bound(explain, explain(x, edge_index, index=index)))
    finally:
        torch.set_default_device(None)
    for name, value in found.items():
        assert value.device.type == 'cpu', name
        assert value.equal(expected[name]), name


def test_other_algorithms_have_no_surrogate():
    x, edge_index = graph()
    explain = explainer(Teacher('gcn').eval(), GNNExplainer(epochs=1))
    with pytest.raises(TypeError) as caught:
        bound(explain, explain(x, edge_index, index=1))
    assert "'explainer' must have an algorithm with a surrogate (got GNNExplainer)" in str(caught.value)
    assert 'use FastDnX, DnX or ProbeDnX' in str(caught.value)


@pytest.mark.parametrize(
    ('node', 'edge', 'got'),
    [('attributes', None, '[8, 3]'), ('common_attributes', None, '[1, 3]'), (None, 'object', 'none')],
)
def test_other_masks_have_no_bound(node, edge, got):
    x, edge_index = graph()
    explain = explainer(Teacher('gcn').eval(), FastDnX(), node=node, edge=edge)
    with pytest.raises(ValueError, match='must have a node mask') as caught:
        bound(explain, explain(x, edge_index, index=1))
    assert f'of shape [8, 1] (got {got})' in str(caught.value)
    assert "pass node_mask_type='object'" in str(caught.value)


@pytest.mark.parametrize(
    ('name', 'value', 'error', 'text'),
    [
        ('num_perturbations', -1, ValueError, 'got -1'),
        ('num_perturbations', 2.0, TypeError, 'got 2.0'),
        ('num_perturbations', True, TypeError, 'got True'),
        ('num_perturbations', None, TypeError, 'got None'),
        ('noise', -0.1, ValueError, 'must be finite and not negative (got -0.1): pass 0 for none'),
        ('noise', math.nan, ValueError, 'got nan'),
        ('noise', math.inf, ValueError, 'got inf'),
        ('noise', 'little', TypeError, "got 'little'"),
        ('probability', 0, ValueError, 'must be between 0 and 1 (got 0)'),
        ('probability', 1, ValueError, 'must be between 0 and 1 (got 1)'),
        ('probability', 2.0, ValueError, 'must be between 0 and 1 (got 2.0)'),
        ('probability', math.nan, ValueError, 'got nan'),
        ('probability', True, TypeError, 'got True'),
        ('probability', '95%', TypeError, "got '95%'"),
    ],
)
def test_bad_options(name, value, error, text):
    model = Teacher('gcn').eval()
    explain, explanation = explained(model)
    with evaluations(model, 0), pytest.raises(error) as caught:
        bound(explain, explanation, **{name: value})
    assert str(caught.value).startswith(f"'{name}' must be ")
    assert text in str(caught.value)
    assert '\n' not in str(caught.value)


def test_prints_a_table_of_medians():
    values = {name: torch.tensor([10.0, 1.0, 2.0]) + i for i, name in enumerate(FIELDS + LEMMAS)}
    bounds = Bounds(index=torch.tensor([4, 1, 2]), **values)
    table = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in str(bounds).splitlines()}
    assert table == {
        'unfaithfulness': '2',
        'surrogate_unfaithfulness': '3',
        'alpha': '4',
        'errors': '5',
        'lemma': '6, tight 8',
        'probable_lemma': '7, tight 9',
        'theorem': '14, tight 8',
        'probable_theorem': '15, tight 14',
    }
    starts = {line.index(line.split(maxsplit=1)[1]) for line in str(bounds).splitlines()}
    assert len(starts) == 1  # values in one column
    assert list(table)[:4] == list(FIELDS)
