r"""What explanations are worth, by hand: dense matrices, and plain Python for the rest."""

import pytest
import torch
from certificate_case import (
    FLAGS,
    NUMBERS,
    ROUNDED,
    Case,
    by_hand,
    certificate,
    compare,
    is_same,
    judged,
    quiet,
    spread,
)
from helpers import example_graphs, random_decomposition
from hypothesis import given
from hypothesis import strategies as st
from models import explainer, graph
from torch_geometric.nn import SGConv

from pyg_dnx import FastDnX, certify
from pyg_dnx import shared_cache as cache
from pyg_dnx.distill.distill import Distilled
from pyg_dnx.teacher.teacher import Answers


@pytest.mark.parametrize('doubt', [0.05, 0.2, 0.5, 5.0])
@pytest.mark.parametrize('scale', [0.01, 1.0, 10.0])
@pytest.mark.parametrize('mode', ['multiclass_classification', 'regression'])
def test_numbers_and_verdicts_by_hand(mode, scale, doubt):
    distilled, masked = judged(mode, scale=scale)
    logits, bias, outputs = distilled.decomposition.logits, distilled.surrogate.bias.tolist(), distilled.outputs
    regression = mode == 'regression'
    unit = spread(outputs) if regression else 1.0
    nodes = [*range(39, -1, -2), 4, 4, *range(0, 40, 2)]
    rows = [
        by_hand(logits[i].tolist(), bias, outputs[i].tolist(), masked[i].tolist(), doubt, regression, unit)
        for i in nodes
    ]
    found = certificate(distilled, torch.tensor(nodes), masked[nodes], doubt)
    compare(found, nodes, rows)
    assert (found.num_hops, found.ridge) == (2, distilled.surrogate.report.ridge)
    assert found.doubt == pytest.approx(doubt * unit)


@pytest.mark.parametrize(('mode', 'doubt'), [('multiclass_classification', 0.2), ('regression', 0.5)])
def test_the_data_above_has_every_verdict_and_every_reason(mode, doubt):
    distilled, masked = judged(mode)
    found = certificate(distilled, torch.arange(40), masked, doubt)
    assert set(found.estimate.tolist()) == {0, 1, 2}
    if mode != 'regression':
        is_above = (found.expected_unfaithfulness > doubt).tolist()
        reasons = {*zip(found.bias_decides.tolist(), is_above, found.estimate.tolist(), strict=True)}
        assert reasons >= {(False, False, 0), (False, True, 1), (True, False, 1), (True, True, 1), (True, True, 2)}


@pytest.mark.parametrize('mode', ['multiclass_classification', 'regression'])
def test_doubt_is_above_the_limit_and_not_at_it(mode):
    distilled, masked = judged(mode, noise=0.01)
    every_node = torch.arange(40)
    first = certificate(distilled, every_node, masked, 10.0)
    node = int((first.verdict == 0).nonzero()[0])
    limit = float(first.expected_unfaithfulness[node]) / distilled.unit
    for doubt, verdict in [(limit * (1 - 1e-9), 1), (limit * (1 + 1e-9), 0)]:
        assert certificate(distilled, every_node, masked, doubt).verdict[node] == verdict


@given(seed=st.integers(0, 2**16), size=st.sampled_from([1e-3, 1.0, 30.0]), num_classes=st.integers(1, 5))
def test_the_bound_holds(seed, size, num_classes):
    generator = torch.Generator().manual_seed(seed)
    example = example_graphs()['undirected']
    decomposition = random_decomposition(example, 1, num_outputs=num_classes)
    outputs = torch.rand(8, num_classes, generator=generator, dtype=torch.float64).softmax(dim=1)
    change = size * torch.randn(8, num_classes, generator=generator, dtype=torch.float64)
    distilled = Distilled(decomposition, Answers(outputs, outputs.argmax(dim=1)))
    found = certificate(distilled, torch.arange(8), decomposition.evidence + change, 0.2)
    moved = found.expected_unfaithfulness - 2 * found.distillation_error
    assert bool((moved <= found.mask_bound + 1e-12).all())
    assert bool((moved >= -1e-12).all())


TASKS = ['multiclass raw', 'binary raw [N, 1]', 'binary probs [N, 2]', 'regression [N]', 'regression [N, 2]']
MASKS = [('object', None), ('attributes', 'object'), ('common_attributes', None), (None, 'object')]
INDICES = [(1, [1]), (torch.tensor([5, 0, -2, 0]), [5, 0, 6, 0]), (torch.arange(8) > 5, [6, 7]), (None, [*range(8)])]


@quiet
@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize(('node', 'edge'), MASKS)
@pytest.mark.parametrize('num_hops', [0, 2])
def test_certify_judges_the_masks_of_an_explanation(task, node, edge, num_hops):
    case = Case(FastDnX(num_hops=num_hops), task, node=node, edge=edge)
    for index, nodes in INDICES:
        explanation = case.explain(index)
        found = certify(case.explainer, explanation)
        rows = case.by_hand(nodes, explanation.get('node_mask'), explanation.get('edge_mask'))
        compare(found, nodes, rows, **ROUNDED)
        for name in ['surrogate_agreement', 'distillation_error', 'bias_decides']:
            assert getattr(found, name).equal(explanation[name])
        assert (found.num_hops, found.ridge) == (num_hops, 1e-5)


@quiet
@pytest.mark.parametrize('config', [('topk', 2), ('hard', 0.7), ('topk_hard', 3)])
@pytest.mark.parametrize('by_explainer', [True, False])
def test_certify_judges_the_mask_after_a_threshold(config, by_explainer):
    soft = Case(FastDnX(), edge='object')
    whole = soft.explain(1)
    if by_explainer:
        threshold = Case(FastDnX(), edge='object', threshold_config=config).explain(1)
    else:
        threshold = whole.threshold(config)
    assert not threshold.node_mask.equal(whole.node_mask)
    found = certify(soft.explainer, threshold)
    compare(found, [1], soft.by_hand([1], threshold.node_mask, threshold.edge_mask), **ROUNDED)
    assert not found.mask_bound.allclose(certify(soft.explainer, whole).mask_bound, rtol=0.01)


@quiet
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
def test_doubt_is_an_option_that_no_surrogate_depends_on(task):
    verdicts = {}
    for doubt in [1e-6, 0.2, 10.0]:
        case = Case(FastDnX(doubt=doubt), task)
        explanation = case.explain(None)
        found = certify(case.explainer, explanation)
        compare(found, [*range(8)], case.by_hand(range(8), explanation.node_mask, None), **ROUNDED)
        assert found.doubt == doubt or task != 'multiclass raw'
        verdicts[doubt] = found.estimate
    assert verdicts[1e-6].tolist() == torch.where(found.surrogate_agreement, 1, 2).tolist()
    explained = torch.where(found.bias_decides, 1, 0)
    assert verdicts[10.0].tolist() == torch.where(found.surrogate_agreement, explained, 2).tolist()
    assert (verdicts[10.0] == 0).any()


@quiet
@pytest.mark.parametrize('num_classes', [2, 3])
@pytest.mark.parametrize('num_hops', [1, 2])
def test_an_explanation_that_keeps_everything_of_a_planted_surrogate(num_hops, num_classes):
    torch.manual_seed(11)
    model = SGConv(3, num_classes, K=num_hops).eval()
    explain = explainer(model, FastDnX(), edge='object')
    explanation = explain(*graph(), index=None)
    explanation.node_mask, explanation.edge_mask = torch.ones(8, 1), torch.ones_like(explanation.edge_mask)
    found = certify(explain, explanation)
    assert found.expected_unfaithfulness.max() < 1e-4
    assert found.mask_bound.max() < 1e-5
    assert found.estimate.equal(explanation.bias_decides.long())
    assert 0 < found.estimate.sum() < 8
    label = model(*graph()).argmax(dim=1)
    bias = model.lin.bias.detach() - model.lin.bias.detach().mean()
    torch.testing.assert_close(found.bias_evidence, bias[label], rtol=0.01, atol=1e-3)


def test_a_planted_regression_is_trustworthy_at_all_nodes():
    torch.manual_seed(0)
    model = SGConv(3, 1, K=2).eval()
    explain = explainer(model, FastDnX(), 'regression [N]')
    explanation = explain(*graph())
    explanation.node_mask = torch.ones(8, 1)
    found = certify(explain, explanation)
    assert found.estimate.tolist() == [0] * 8
    assert found.expected_unfaithfulness.max() < 1e-3
    torch.testing.assert_close(found.bias_evidence, model.lin.bias.detach().abs().expand(8), rtol=1e-3, atol=1e-3)


@quiet
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
@pytest.mark.parametrize('index', [1, None])
def test_certify_changes_nothing(task, index):
    case = Case(FastDnX(), task, edge='object')
    case.model.train()
    explanation = case.explain(index)
    before = {name: value for name, value in explanation.to_dict().items() if isinstance(value, torch.Tensor)}
    copies, keys = {name: value.clone() for name, value in before.items()}, explanation.keys()
    state, entries = torch.get_rng_state(), len(cache)
    first = certify(case.explainer, explanation)
    assert is_same(certify(case.explainer, explanation), first)
    assert explanation.keys() == keys
    assert all(explanation[name] is before[name] and before[name].equal(copies[name]) for name in before)
    assert torch.get_rng_state().equal(state)
    assert len(cache) == entries
    assert case.model.training
    assert torch.is_grad_enabled()
    case.explainer.algorithm.cache = None
    assert is_same(certify(case.explainer, explanation), first, **ROUNDED)


@quiet
def test_certificates_have_no_gradients():
    case = Case(FastDnX())
    case.inputs = case.inputs[0].clone().requires_grad_(), case.inputs[1]
    explanation = case.explain(1)
    explanation.node_mask = explanation.node_mask.clone().requires_grad_()
    found = certify(case.explainer, explanation)
    assert not any(getattr(found, name).requires_grad for name in NUMBERS)


@quiet
def test_certify_refuses_what_it_can_not_judge():
    case = Case(FastDnX())
    explanation = case.explain(1)
    del explanation.node_mask
    with pytest.raises(ValueError, match=r"'explanation' must have a node mask or an edge mask \(got neither\): "):
        certify(case.explainer, explanation)


@quiet
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
def test_default_device_is_not_used(task):
    case = Case(FastDnX(), task, edge='object')

    def found():
        cache.clear()
        explanations = [case.explain(case.graph.edge_index[0, 1:2]), case.explain(None)]
        top = case.explainer.algorithm.explain_nodes(case.model, *case.inputs, top_k=2, **case.kwargs)
        return [*(certify(case.explainer, explanation) for explanation in explanations), top.certificate]

    expected = found()
    torch.set_default_device('meta')
    try:
        actual = found()
        texts = [str(one) for one in actual]
    finally:
        torch.set_default_device(None)
    assert texts == [str(one) for one in expected]
    for one, other in zip(actual, expected, strict=True):
        for name in NUMBERS + FLAGS:
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0.0, atol=0.0, equal_nan=True)
