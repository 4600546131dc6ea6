r"""The paper's theory on explanations at hand, by recording what the model was asked and redoing the sums."""

import math

import pytest
import torch
from helpers import dense_adjacency, example_graphs
from hypothesis import given
from hypothesis import strategies as st
from models import Teacher, explainer
from strategies import graphs
from theory_case import LEMMAS, NODES, assert_in_order, explained, in_double, keywords, values_of
from torch.testing import assert_close
from torch_geometric.nn import SGConv

from pyg_dnx import DnX, FastDnX, bound
from pyg_dnx.trust import theory as formulas

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

TASKS = ['multiclass raw', 'multiclass log_probs', 'binary raw [N]', 'binary probs [N, 1]', 'binary raw [N, 2]']
TASKS += ['regression [N]', 'regression [N, 2]']


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
