r"""The paper's theory on explanations at hand, by recording what the model was asked and redoing the sums."""

import copy
import math

import pytest
import torch
from helpers import dense_adjacency, example_graphs
from hypothesis import given
from hypothesis import strategies as st
from models import Mean, Teacher, Versatile, adjacencies, evaluations, explainer, graph
from strategies import graphs
from torch.testing import assert_close
from torch_geometric.explain import GNNExplainer
from torch_geometric.nn import SGConv

from pyg_dnx import Bounds, DnX, FastDnX, bound
from pyg_dnx import bounds as formulas

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

ROUNDING = 1e-5  # of a model in single precision
FIELDS = ('unfaithfulness', 'surrogate_unfaithfulness', 'alpha', 'errors')
LEMMAS = ('lemma', 'probable_lemma', 'tight_lemma', 'tight_probable_lemma')
THEOREMS = ('theorem', 'probable_theorem', 'tight_theorem', 'tight_probable_theorem')
TASKS = ['multiclass raw', 'multiclass log_probs', 'binary raw [N]', 'binary probs [N, 1]', 'binary raw [N, 2]']
TASKS += ['regression [N]', 'regression [N, 2]']
NODES = torch.tensor([0, 3, 7])


def keywords(example):
    return {} if example.edge_weight is None else {'edge_weight': example.edge_weight}


def in_double(example):
    weight = None if example.edge_weight is None else example.edge_weight.double()
    return example._replace(x=example.x.double(), edge_weight=weight)


def explained(model, task='multiclass raw', name='looped', index=NODES, kind=FastDnX, **options):
    r"""An explainer, and its explanation of some nodes of an example graph in double precision."""
    example = in_double(example_graphs()[name])
    explain = explainer(model.double(), kind(**options), task)
    return explain, explain(example.x, example.edge_index, index=index, **keywords(example))


def values_of(bounds, names=FIELDS + LEMMAS + THEOREMS):
    return {name: getattr(bounds, name) for name in names}


def as_answers(outputs, task):
    r"""What distances are between: class probabilities [N, C], or outputs."""
    outputs = outputs.double().reshape(outputs.size(0), -1)
    if task.startswith('regression'):
        return outputs
    if 'log_probs' in task:
        return outputs.exp()
    if 'binary' in task and outputs.size(1) == 1:
        one = outputs if 'probs' in task else outputs.sigmoid()
        return torch.cat([1.0 - one, one], dim=1)
    return outputs if 'probs' in task else outputs.softmax(dim=1)


def assert_in_order(bounds):
    for name, value in values_of(bounds).items():
        assert value.shape == bounds.index.shape, name
        assert bool(value.isfinite().all()), name
        assert bool((value >= 0.0).all()), name
    ordered = [
        ('surrogate_unfaithfulness', 'tight_lemma'),
        ('surrogate_unfaithfulness', 'lemma'),
        ('tight_lemma', 'lemma'),
        ('tight_probable_lemma', 'probable_lemma'),
        ('unfaithfulness', 'tight_theorem'),
        ('unfaithfulness', 'theorem'),
        ('tight_theorem', 'theorem'),
        ('tight_probable_theorem', 'probable_theorem'),
    ]
    for low, high in ordered:
        assert bool((getattr(bounds, low) <= getattr(bounds, high) + ROUNDING).all()), (low, high)


@pytest.mark.parametrize('kind', [FastDnX, DnX])
@pytest.mark.parametrize('conv', ['gcn', 'gin', 'gat'])
def test_bounds_hold_on_example_graphs(conv, kind, graph):
    if graph.edge_weight is not None and conv != 'gcn':
        graph = graph._replace(edge_weight=None)
    explain = explainer(Teacher(conv).eval(), kind())
    index = NODES % graph.x.size(0)
    explanation = explain(graph.x, graph.edge_index, index=index, **keywords(graph))
    assert_in_order(bound(explain, explanation, num_perturbations=4))


@given(
    example=graphs(),
    conv=st.sampled_from(['gcn', 'gin', 'gat']),
    task=st.sampled_from(TASKS),
    mask=st.sampled_from(['rank', 'positive', 'minmax']),
    num_perturbations=st.integers(0, 3),
    noise=st.sampled_from([0.0, 0.1, 3.0]),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
)
def test_bounds_hold_on_any_graph(example, conv, task, mask, num_perturbations, noise, scale):
    if conv != 'gcn':
        example = example._replace(edge_weight=None)
    explain = explainer(Teacher(conv, task, example.x.size(1)).eval(), FastDnX(mask=mask, cache=None), task)
    index = torch.arange(0, example.x.size(0), 2)
    explanation = explain(scale * example.x, example.edge_index, index=index, **keywords(example))
    assert_in_order(bound(explain, explanation, num_perturbations=num_perturbations, noise=noise))


def recorded(model, call):
    r"""What ``call`` returns, and the features that it asked the model about and the outputs it got."""
    asked = []
    handle = model.register_forward_hook(lambda _, inputs, outputs: asked.append((inputs[0].clone(), outputs.clone())))
    found = call()
    handle.remove()
    return found, asked


@pytest.mark.parametrize(
    ('task', 'name', 'num_hops', 'num_perturbations'),
    [
        *((task, 'looped', 2, 3) for task in TASKS),
        *(('multiclass raw', name, 2, 3) for name in ('directed', 'weighted', 'duplicated', 'no_edges')),
        *(('multiclass raw', 'directed', num_hops, 3) for num_hops in (0, 1, 3)),
        *((task, 'weighted', 2, 0) for task in ('multiclass raw', 'regression [N, 2]')),
    ],
)
def test_every_number_is_as_defined(task, name, num_hops, num_perturbations):
    model, noise, probability = Teacher('gcn', task).eval(), 0.3, 0.8
    explain, explanation = explained(model, task, name, num_hops=num_hops)
    x, mask, example = explanation.x, explanation.node_mask, in_double(example_graphs()[name])
    surrogate = explain.algorithm.distill(model, x, example.edge_index, **keywords(example))
    options = {'num_perturbations': num_perturbations, 'noise': noise, 'probability': probability}
    bounds, asked = recorded(model, lambda: bound(explain, explanation, **options))
    assert bounds.index.equal(NODES)
    assert len(asked) == 2 * (num_perturbations + 1)
    (plain, outputs), (masked, masked_outputs) = (zip(*asked[first::2], strict=True) for first in (0, 1))

    row = torch.linalg.matrix_power(dense_adjacency(*example[1:], 8), num_hops)[NODES]
    inside = row.any(dim=0)
    assert plain[0].equal(x)
    for perturbed, with_mask in zip(plain, masked, strict=True):
        assert_close(with_mask, perturbed * mask, rtol=0.0, atol=0.0)
        assert perturbed[~inside].equal(x[~inside])
    if num_perturbations > 0:  # each feature by itself
        drawn = torch.stack([perturbed - x for perturbed in plain[1:]])[:, inside]
        assert drawn.unique().numel() == drawn.numel()
        assert 0.7 * noise < float(drawn.std()) < 1.3 * noise
        assert abs(float(drawn.mean())) < 4.0 * noise / math.sqrt(drawn.numel())

    def distances(first, second):
        return torch.stack([(a - b).norm(dim=1) for a, b in zip(first, second, strict=True)])

    def logits(features):
        return row @ features @ surrogate.weight + surrogate.bias

    regression = task.startswith('regression')
    link = (lambda value: value) if regression else (lambda value: value.softmax(dim=1))
    before, after = ([as_answers(value, task)[NODES] for value in part] for part in (outputs, masked_outputs))
    kept, removed = ([link(logits(features)) for features in part] for part in (plain, masked))
    error, masked_error = distances(before, kept), distances(after, removed)
    assert_close(bounds.unfaithfulness, distances(before, after).mean(dim=0))
    assert_close(bounds.surrogate_unfaithfulness, distances(kept, removed).mean(dim=0))
    assert_close(bounds.alpha, torch.maximum(error.amax(dim=0), masked_error.amax(dim=0)))
    assert_close(bounds.errors, error.mean(dim=0) + masked_error.mean(dim=0))

    change, features = (row * (1.0 - mask[:, 0]))[:, inside], torch.stack(plain)[:, inside]
    chances, lipschitz = (noise, num_perturbations, probability), 1.0 if regression else 0.5
    probable = (change, features[0], surrogate.weight, *chances)
    assert_close(bounds.lemma, formulas.paper_bound(change, features, surrogate.weight))
    local = 1.0 if regression else formulas.local_lipschitz(torch.stack(kept), torch.stack(removed))
    assert_close(bounds.tight_lemma, formulas.tight_bound(change, features, surrogate.weight, local))
    assert_close(bounds.probable_lemma, formulas.paper_probable_bound(*probable))
    assert_close(bounds.tight_probable_lemma, formulas.tight_probable_bound(*probable, lipschitz))

    assert_close(bounds.theorem, bounds.lemma + 2.0 * bounds.alpha)
    assert_close(bounds.probable_theorem, bounds.probable_lemma + 2.0 * bounds.alpha)
    assert_close(bounds.tight_theorem, bounds.surrogate_unfaithfulness + bounds.errors)
    assert_close(bounds.tight_probable_theorem, bounds.tight_probable_lemma + bounds.errors)


def test_the_largest_error_may_be_under_the_mask_or_without():
    # Node by node, so that neither kind of error can be left out of alpha.
    larger = set()
    for conv in ('gcn', 'gin', 'gat'):
        model = Teacher(conv).eval()
        explain, explanation = explained(model, index=None)
        surrogate = explain.algorithm.distill(model, explanation.x, explanation.edge_index)
        bounds = bound(explain, explanation, num_perturbations=0)
        errors = []
        for x in (explanation.x, explanation.x * explanation.node_mask):
            answers, logits = model(x, explanation.edge_index).softmax(dim=1), surrogate(x, explanation.edge_index)
            errors.append((answers.detach() - logits.softmax(dim=1)).norm(dim=1))
        assert_close(bounds.alpha, torch.maximum(*errors))
        assert_close(bounds.errors, errors[0] + errors[1])
        larger |= set((errors[0] > errors[1]).tolist())
    assert larger == {False, True}


@pytest.mark.parametrize('flow', ['source_to_target', 'target_to_source'])
@pytest.mark.parametrize('name', ['directed', 'weighted', 'looped', 'no_edges'])
def test_a_model_that_is_its_surrogate_has_no_errors(name, flow):
    torch.manual_seed(0)
    model = SGConv(3, 3, K=2, flow=flow).double().eval()
    explain, explanation = explained(model, name=name, index=None, ridge=1e-10)
    bounds = bound(explain, explanation)
    assert float(bounds.alpha.max()) < 1e-8
    assert float(bounds.unfaithfulness.max()) > 1e-2
    assert_close(bounds.unfaithfulness, bounds.surrogate_unfaithfulness, rtol=0.0, atol=1e-8)
    assert_close(bounds.theorem, bounds.lemma, rtol=0.0, atol=1e-7)
    assert_close(bounds.tight_theorem, bounds.unfaithfulness, rtol=0.0, atol=1e-7)
    assert_in_order(bounds)


def test_errors_of_a_linear_model_leave_the_tight_lemma_exact():
    torch.manual_seed(0)
    model = SGConv(3, 2, K=2).double().eval()
    explain, explanation = explained(model, 'regression [N, 2]', 'weighted', None, ridge=1e-10)
    bounds = bound(explain, explanation, noise=1.0)
    assert float(bounds.unfaithfulness.max()) > 0.1
    assert_close(bounds.tight_lemma, bounds.surrogate_unfaithfulness, rtol=1e-9, atol=0.0)
    assert_close(bounds.tight_lemma, bounds.unfaithfulness, rtol=0.0, atol=1e-7)


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize('conv', ['gcn', 'gat'])
def test_without_perturbations_it_is_the_distance_by_hand(conv, task):
    model = Teacher(conv, task).eval()
    explain, explanation = explained(model, task)
    x, edge_index, mask = explanation.x, explanation.edge_index, explanation.node_mask
    with torch.no_grad():
        before, after = (as_answers(model(features, edge_index), task)[NODES] for features in (x, mask * x))
    found = bound(explain, explanation, num_perturbations=0).unfaithfulness
    assert_close(found, (before - after).norm(dim=1))
    assert float(found.max()) > 1e-3


def test_one_logit_is_two_probabilities():
    model = Teacher('gcn', 'binary raw [N]').eval()
    explain, explanation = explained(model, 'binary raw [N]')
    inputs = [(features, explanation.edge_index) for features in (explanation.x, explanation.x * explanation.node_mask)]
    with torch.no_grad():
        before, after = (model(*args)[NODES].sigmoid() for args in inputs)
    found = bound(explain, explanation, num_perturbations=0).unfaithfulness
    assert_close(found, math.sqrt(2.0) * (before - after).abs())


class Scaled(torch.nn.Module):
    def __init__(self, model, scale):
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, x, edge_index):
        return self.scale * self.model(x, edge_index)


def test_regression_is_in_units_of_the_outputs():
    found = []
    for scale in (1.0, 1000.0):
        model = Scaled(Teacher('gcn', 'regression [N, 2]'), scale).eval()
        found.append(values_of(bound(*explained(model, 'regression [N, 2]'))))
    for name, value in found[0].items():
        assert_close(found[1][name], 1000.0 * value, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize('keep', [0.0, 1.0])
def test_masks_of_all_or_nothing(keep):
    explain, explanation = explained(Teacher('gcn').eval(), index=NODES)
    explanation.node_mask = torch.full_like(explanation.node_mask, keep)
    bounds = bound(explain, explanation)
    is_zero = {name: not bool(value.any()) for name, value in values_of(bounds).items()}
    nothing_changes = {'unfaithfulness', 'surrogate_unfaithfulness', *LEMMAS}
    assert {name for name, zero in is_zero.items() if zero} == (nothing_changes if keep == 1.0 else set())
    assert_in_order(bounds)


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
