r"""What explanations are worth, by hand: dense matrices, and plain Python for the rest."""

import math
import pickle
import re
import statistics
import warnings
from dataclasses import fields, replace

import pytest
import torch
from helpers import Graph, dense_masked_adjacency, example_graphs, random_decomposition, random_masks
from hypothesis import given
from hypothesis import strategies as st
from models import Ring, Teacher, evaluations, explainer, graph
from strategies import graphs
from torch_geometric.explain import DummyExplainer
from torch_geometric.nn import SGConv

from pyg_dnx import (
    Certificate,
    DnX,
    FastDnX,
    NodeExplanations,
    SurrogateWarning,
    batch,
    certify,
    directions,
    propagation,
)
from pyg_dnx import shared_cache as cache
from pyg_dnx.adjacency import normalized_adjacency
from pyg_dnx.certificate import VERDICTS, certificate
from pyg_dnx.distillation import Distilled
from pyg_dnx.explanation import warn_if_doubtful
from pyg_dnx.surrogate import Decomposition, Surrogate
from pyg_dnx.teacher import query, to_targets
from pyg_dnx.trust import masked_evidence

quiet = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
CLOSE = {'rtol': 1e-6, 'atol': 1e-9}
ROUNDED = {'rtol': 1e-4, 'atol': 1e-5}
FLOWS = ['source_to_target', 'target_to_source']
NUMBERS = ['distillation_error', 'bias_evidence', 'mask_bound', 'expected_unfaithfulness']
FLAGS = ['surrogate_agreement', 'bias_decides', 'verdict']


def dense_masked_evidence(graph, surrogate, node_mask, edge_mask):
    r"""Z − b of all nodes under masks, [N, C], in float64."""
    power = torch.linalg.matrix_power(dense_masked_adjacency(graph, edge_mask, surrogate.flow), surrogate.num_hops)
    x = graph.x.double() if node_mask is None else node_mask.double() * graph.x.double()
    return power @ x @ surrogate.weight.double()


def compare_evidence(graph, decomposition, index, masks, rtol=1e-5, atol=1e-6):
    r"""Holds the evidence at each of several lists of nodes against the dense one."""
    dense = dense_masked_evidence(graph, decomposition.surrogate, *masks)
    for nodes in index:
        found = masked_evidence(decomposition, torch.tensor(nodes), graph.x, *masks)
        assert found.dtype == decomposition.surrogate.weight.dtype
        torch.testing.assert_close(found.double(), dense[nodes], rtol=rtol, atol=atol)


@pytest.mark.parametrize('num_hops', [0, 1, 2, 3])
@pytest.mark.parametrize('flow', FLOWS)
def test_masked_evidence_equals_the_dense_definition(graph, num_hops, flow):
    decomposition, every_node = random_decomposition(graph, num_hops, flow=flow), range(graph.x.size(0))
    index = [*([node] for node in every_node), [every_node[-1], 0, every_node[-1]], [*every_node]]
    for masks in random_masks(graph):
        compare_evidence(graph, decomposition, index, masks)


@given(graph=graphs(), num_hops=st.integers(0, 3), flow=st.sampled_from(FLOWS), data=st.data())
def test_masked_evidence_on_any_graph(graph, num_hops, flow, data):
    nodes = data.draw(st.lists(st.integers(0, graph.x.size(0) - 1), min_size=1, max_size=3))
    masks = data.draw(st.sampled_from(random_masks(graph)))
    compare_evidence(graph, random_decomposition(graph, num_hops, flow=flow), [nodes], masks)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float16, torch.int64])
def test_features_of_other_types(dtype):
    example = example_graphs()['weighted']
    example = example._replace(x=(3 * example.x).to(dtype))
    decomposition = random_decomposition(example, 2, dtype=torch.float32)
    for masks in random_masks(example):
        compare_evidence(example, decomposition, [[1], [1, 0]], masks, **ROUNDED)


@pytest.mark.parametrize('num_hops', [1, 3])
@pytest.mark.parametrize('flow', FLOWS)
def test_masked_evidence_is_what_pyg_makes_of_a_linear_model(graph, num_hops, flow):
    torch.manual_seed(0)
    model = SGConv(3, 2, K=num_hops, flow=flow).eval()
    weight, bias = model.lin.weight.T.detach(), model.lin.bias.detach()
    surrogate = Surrogate(weight, bias, num_hops, random_decomposition(graph, 0).surrogate.report, flow)
    operator = normalized_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0), torch.float32, flow)
    decomposition = Decomposition(surrogate, operator, graph.x)
    explain = explainer(model, FastDnX())
    for masks in random_masks(graph):
        outputs = explain.get_masked_prediction(graph.x, graph.edge_index, *masks, edge_weight=graph.edge_weight)
        for nodes in [torch.tensor([0]), torch.arange(graph.x.size(0))]:
            found = masked_evidence(decomposition, nodes, graph.x, *masks) + bias
            torch.testing.assert_close(found, outputs[nodes], **ROUNDED)


@pytest.mark.parametrize('flow', FLOWS)
def test_masked_operator_leaves_self_loops_and_itself_alone(graph, flow):
    operator = random_decomposition(graph, 1, flow=flow).operator
    before = operator.value.clone()
    for mask in [
        random_masks(graph)[1][1],
        torch.zeros(graph.edge_index.size(1)),
        torch.ones(graph.edge_index.size(1)),
    ]:
        found = operator.masked(mask)
        dense = dense_masked_adjacency(graph, mask, flow)
        torch.testing.assert_close(found.csr.to_dense(), dense, **CLOSE)
        torch.testing.assert_close(found.transposed.csr.to_dense(), dense.T, **CLOSE)
        assert found.edge_id.equal(operator.edge_id)
        assert found.value.dtype == operator.value.dtype
    assert found.value.equal(before)  # by a mask of ones
    assert operator.value.equal(before)


def softmax(values):
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def by_hand(logits, bias, outputs, masked, doubt, regression, unit=1.0):
    r"""What is known of one node, from lists: Z, b, the model's output, and Z − b under the mask."""
    evidence, after = (
        [z - b for z, b in zip(logits, bias, strict=True)],
        [m + b for m, b in zip(masked, bias, strict=True)],
    )
    change = math.dist(logits, after)
    if regression:
        error, agrees, by_bias = math.dist(logits, outputs), math.dist(logits, outputs) <= unit, False
        bound, moved, in_bias = change, change, math.hypot(*bias)
    else:
        label = outputs.index(max(outputs))
        error, agrees = math.dist(softmax(logits), outputs), logits.index(max(logits)) == label
        by_bias = evidence.index(max(evidence)) != logits.index(max(logits))
        bound, moved, in_bias = change / 2, math.dist(softmax(logits), softmax(after)), bias[label]
        assert moved <= bound + 1e-12
    expected = moved + 2 * error
    verdict = 2 if not agrees else 1 if by_bias or expected > doubt * unit else 0
    return {
        'surrogate_agreement': agrees,
        'distillation_error': error,
        'bias_decides': by_bias,
        'bias_evidence': in_bias,
        'mask_bound': bound,
        'expected_unfaithfulness': expected,
        'verdict': verdict,
    }


def spread(outputs):
    r"""The standard deviation of the rows of a table, over all columns."""
    return math.sqrt(sum(statistics.pvariance(column) for column in outputs.T.tolist()))


def compare(found, nodes, rows, rtol=1e-6, atol=1e-9):
    assert found.index.tolist() == nodes
    for name in NUMBERS:
        values = torch.tensor([row[name] for row in rows], dtype=torch.float64)
        torch.testing.assert_close(getattr(found, name).double(), values, rtol=rtol, atol=atol)
    for name in FLAGS:
        assert getattr(found, name).tolist() == [row[name] for row in rows]


def judged(mode='multiclass_classification', noise=0.3, scale=1.0):
    r"""A surrogate with random errors on 40 nodes, and what masks leave of its evidence."""
    generator = torch.Generator().manual_seed(4)
    x, edges = torch.randn(40, 3, generator=generator), torch.randint(40, (2, 100), generator=generator)
    decomposition = random_decomposition(Graph(x, edges, None), 2)
    surrogate = decomposition.surrogate
    surrogate.report = replace(surrogate.report, mode=mode)
    surrogate.weight, surrogate.bias = scale * surrogate.weight, scale * surrogate.bias
    decomposition.hidden = scale * decomposition.hidden
    errors, changes = (torch.randn(40, 3, generator=generator, dtype=torch.float64) * scale * noise for _ in range(2))
    outputs = decomposition.logits + errors
    outputs = outputs if mode == 'regression' else outputs.softmax(dim=1)
    return Distilled(decomposition, outputs, outputs.argmax(dim=1)), decomposition.evidence + changes


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
    assert set(found.verdict.tolist()) == {0, 1, 2}
    if mode != 'regression':
        is_above = (found.expected_unfaithfulness > doubt).tolist()
        reasons = {*zip(found.bias_decides.tolist(), is_above, found.verdict.tolist(), strict=True)}
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
    distilled = Distilled(decomposition, outputs, outputs.argmax(dim=1))
    found = certificate(distilled, torch.arange(8), decomposition.evidence + change, 0.2)
    moved = found.expected_unfaithfulness - 2 * found.distillation_error
    assert bool((moved <= found.mask_bound + 1e-12).all())
    assert bool((moved >= -1e-12).all())


def uneven_graph():
    r"""A graph whose neighbourhoods have many sizes; nodes 6 and 7 are alone."""
    links = {0: [1, 2, 3, 4, 5], 1: [0], 2: [0, 1], 3: [0, 1, 2], 4: [3, 3], 5: [4, 5]}  # the sources for each target
    edges = torch.tensor([(source, target) for target, sources in links.items() for source in sources]).T
    return Graph(graph()[0], edges, torch.linspace(0.5, 2.0, edges.size(1)))


class Case:
    r"""A model, its explainer, and what explanations of it are worth, from dense matrices."""

    def __init__(self, algorithm, task='multiclass raw', name='weighted', **options):
        self.graph, self.task = {**example_graphs(), 'uneven': uneven_graph()}[name], task
        self.model = Teacher('weighted', task).eval()
        self.explainer = explainer(self.model, algorithm, task, **options)
        weight = self.graph.edge_weight
        self.inputs, self.kwargs = self.graph[:2], {} if weight is None else {'edge_weight': weight}

    def explain(self, index, **options):
        return self.explainer(*self.inputs, index=index, **options, **self.kwargs)

    def by_hand(self, nodes, node_mask, edge_mask):
        algorithm = self.explainer.algorithm
        surrogate = algorithm.distill(self.model, *self.inputs, **self.kwargs)
        outputs = query(self.model, *self.inputs, self.kwargs)
        outputs = to_targets(outputs, algorithm.model_config, torch.float64, outputs.device)[0]
        regression = 'regression' in self.task
        unit = spread(outputs) if regression else 1.0
        before, after = (
            dense_masked_evidence(self.graph, surrogate, *masks) for masks in [(None, None), (node_mask, edge_mask)]
        )
        bias, logits = surrogate.bias.double(), before + surrogate.bias.double()
        return [
            by_hand(*(part.tolist() for part in parts), algorithm.doubt, regression, unit)
            for parts in ((logits[i], bias, outputs[i], after[i]) for i in nodes)
        ]


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
        verdicts[doubt] = found.verdict
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
    assert found.verdict.equal(explanation.bias_decides.long())
    assert 0 < found.verdict.sum() < 8
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
    assert found.verdict.tolist() == [0] * 8
    assert found.expected_unfaithfulness.max() < 1e-3
    torch.testing.assert_close(found.bias_evidence, model.lin.bias.detach().abs().expand(8), rtol=1e-3, atol=1e-3)


def written(verdict, bias_decides=(False,), expected=(0.25,)):
    r"""A certificate with a verdict on each of some nodes."""
    size = len(verdict)
    return Certificate(
        index=torch.arange(4, 4 + size),
        verdict=torch.tensor(verdict),
        surrogate_agreement=torch.tensor(verdict) < 2,
        distillation_error=torch.full((size,), 0.07),
        bias_decides=torch.tensor(bias_decides).expand(size),
        bias_evidence=torch.full((size,), -0.73),
        mask_bound=torch.full((size,), 0.31),
        expected_unfaithfulness=torch.tensor(expected).expand(size),
        doubt=0.15,
        num_hops=3,
        ridge=0.01,
    )


REMEDY = r"try another 'num_hops' \(got 3\), 'auto' among them, a lower 'ridge' \(got 0\.01\), or ProbeDnX"
SENTENCES = [
    (0, False, r'Trustworthy: the surrogate agrees with the model, and the expected unfaithfulness is 0\.25\.'),
    (1, False, rf"Doubtful: the expected unfaithfulness is 0\.25, more than 0\.15: {REMEDY}; or .*'check'\."),
    (1, True, r"Doubtful: the class comes from the bias \(-0\.73\), .*: measure .*'check', and .* score='target'\."),
    (2, False, rf'Not explained by this surrogate, which disagrees with the model: {REMEDY}\.'),
    (2, True, rf'Not explained by this surrogate, which disagrees with the model: {REMEDY}\.'),
]


@pytest.mark.parametrize(('verdict', 'bias_decides', 'sentence'), SENTENCES)
def test_one_explanation_is_a_sentence(verdict, bias_decides, sentence):
    assert re.fullmatch(sentence, str(written([verdict], (bias_decides,))))


def test_several_explanations_are_a_table_and_have_a_sentence_each():
    verdicts, by_bias = [2, 1, 0, 1, 1, 0, 1, 0, 1, 1], [False, True] * 5
    found = written(verdicts, by_bias, [0.1 * b for b in range(10)])
    for b, verdict in enumerate(verdicts):
        assert found.sentence(b).startswith(VERDICTS[verdict].capitalize())
        assert ('bias' in found.sentence(b)) == (verdict == 1 and by_bias[b])
    assert '0.4' in found.sentence(4)
    lines = dict(re.split(r' {2,}| (?=\d)', line) for line in str(found).splitlines())
    assert lines.pop('explained nodes') == '10'
    assert lines.pop('expected unfaithfulness') == '0.400 (median)'
    assert lines == {'trustworthy': '30.0%', 'doubtful': '60.0%', 'not explained by this surrogate': '10.0%'}
    one_kind = str(written([1, 1])).splitlines()
    assert [line.split()[-1] for line in one_kind[1:4]] == ['0.0%', '100.0%', '0.0%']


SETTINGS = {  # the algorithm, the task, and the type of explanation
    'FastDnX': (FastDnX(), 'multiclass raw', 'model'),
    'FastDnX, 0 hops': (FastDnX(num_hops=0), 'multiclass raw', 'model'),
    'FastDnX, 3 hops': (FastDnX(num_hops=3, doubt=0.01), 'binary raw [N, 1]', 'model'),
    'FastDnX, target': (FastDnX(num_hops=1, score='target'), 'regression [N, 2]', 'model'),
    'FastDnX, phenomenon': (FastDnX(), 'multiclass raw', 'phenomenon'),
    'DnX': (DnX(), 'multiclass raw', 'model'),
    'DnX, regression': (DnX(num_hops=1), 'regression [N]', 'model'),
}
INDEX = torch.tensor([3, 5, 0, 6, 0])  # node 6 is alone


def explain_top(name, top_k, index=INDEX, **options):
    algorithm, task, explanation_type = SETTINGS[name]
    case = Case(algorithm, task, 'uneven', explanation_type=explanation_type, edge='object')
    target = torch.arange(8) % 3 if explanation_type == 'phenomenon' else None
    given = {'index': index, 'top_k': top_k, 'target': target, **case.kwargs, **options}
    return case, case.explainer.algorithm.explain_nodes(case.model, *case.inputs, **given)


def is_same(found, expected, **close):
    for field in fields(Certificate):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if not isinstance(other, torch.Tensor):
            assert (type(one), one) == (type(other), other)
        elif close and other.is_floating_point():
            torch.testing.assert_close(one, other, **close)
        else:
            assert one.dtype == other.dtype
            assert one.equal(other)
    return True


@quiet
@pytest.mark.parametrize('name', SETTINGS)
@pytest.mark.parametrize('top_k', [1, 3, 6])
def test_certificates_of_the_top_judge_a_hard_mask(name, top_k):
    case, explained = explain_top(name, top_k)
    nodes = explained.top_k(top_k)[0]
    assert top_k == 1 or (nodes[3] < 0).sum() == top_k - 1
    for b, item in enumerate(explained):
        item.node_mask = torch.zeros(8, 1)
        item.node_mask[[node for node in nodes[b].tolist() if node >= 0]] = 1.0
        del item.edge_mask
        single = certify(case.explainer, item)
        for field in fields(Certificate):
            many, one = getattr(explained.certificate, field.name), getattr(single, field.name)
            torch.testing.assert_close(many[b : b + 1] if isinstance(many, torch.Tensor) else many, one, **ROUNDED)
        rows = case.by_hand([int(item.index)], item.node_mask, None)
        compare(single, item.index.tolist(), rows, **ROUNDED)


@quiet
@pytest.mark.parametrize('name', ['FastDnX', 'DnX', 'FastDnX, phenomenon'])
def test_chunks_change_no_certificate(name, monkeypatch):
    whole = explain_top(name, 3, None)[1].certificate
    calls, rows_of = [], batch.rows_of
    monkeypatch.setattr(batch, 'rows_of', lambda *args: calls.append(1) or rows_of(*args))
    monkeypatch.setattr(batch, 'MAX_CHUNK_ENTRIES', 12)
    monkeypatch.setattr(propagation, 'MAX_PADDED_SIZE', 12)
    found = explain_top(name, 3, None)[1].certificate
    assert len(calls) > 2
    assert is_same(found, whole, rtol=1e-3, atol=1e-6)


@quiet
@pytest.mark.parametrize('name', ['FastDnX', 'DnX'])
def test_certificates_outlive_an_interruption(name, tmp_path, monkeypatch):
    whole = explain_top(name, 3, None)[1].certificate
    calls, inner_products = [], directions.inner_products

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return inner_products(*args)

    monkeypatch.setattr(batch, 'MAX_CHUNK_ENTRIES', 12)
    monkeypatch.setattr(directions, 'inner_products', interrupted)
    with pytest.raises(KeyboardInterrupt):
        explain_top(name, 3, None, checkpoint=tmp_path / 'folder')
    found = explain_top(name, 3, None, checkpoint=tmp_path / 'folder')[1].certificate
    assert is_same(found, whole, rtol=1e-3, atol=1e-6)
    done = len(calls)
    again = explain_top(name, 3, None, checkpoint=tmp_path / 'folder')[1].certificate
    assert len(calls) == done
    assert is_same(again, found)


@quiet
@pytest.mark.parametrize('name', ['FastDnX', 'DnX, regression'])
@pytest.mark.parametrize('with_graph', [True, False])
def test_certificates_are_saved_and_pickled(name, with_graph, tmp_path):
    case, explained = explain_top(name, 3)
    assert is_same(pickle.loads(pickle.dumps(explained)).certificate, explained.certificate)
    explained.save(tmp_path / 'saved.pt')
    given = (case.inputs, case.kwargs) if with_graph else ((), {})
    loaded = NodeExplanations.load(tmp_path / 'saved.pt', *given[0], **given[1])
    assert isinstance(loaded.certificate, Certificate)
    assert is_same(loaded.certificate, explained.certificate)
    if with_graph:
        assert is_same(certify(case.explainer, loaded[1]), certify(case.explainer, explained[1]), **ROUNDED)


@quiet
def test_without_a_top_there_is_no_certificate(tmp_path):
    explained = explain_top('FastDnX', None)[1]
    explained.save(tmp_path / 'saved.pt')
    assert explained.certificate is NodeExplanations.load(tmp_path / 'saved.pt').certificate is None


@quiet
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
@pytest.mark.parametrize('index', [1, None])
def test_certify_asks_the_model_nothing_and_changes_nothing(task, index):
    case = Case(FastDnX(), task, edge='object')
    case.model.train()
    explanation = case.explain(index)
    before = {name: value for name, value in explanation.to_dict().items() if isinstance(value, torch.Tensor)}
    copies, keys = {name: value.clone() for name, value in before.items()}, explanation.keys()
    state, entries = torch.get_rng_state(), len(cache)
    with evaluations(case.model, 0):
        first = certify(case.explainer, explanation)
        assert is_same(certify(case.explainer, explanation), first)
    assert explanation.keys() == keys
    assert all(explanation[name] is before[name] and before[name].equal(copies[name]) for name in before)
    assert torch.get_rng_state().equal(state)
    assert len(cache) == entries
    assert case.model.training
    assert torch.is_grad_enabled()
    case.explainer.algorithm.cache = None
    with evaluations(case.model, 1):
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
    dummy = explainer(case.model, DummyExplainer())
    with pytest.raises(TypeError, match=r"'explainer' must .*\(got DummyExplainer\): use FastDnX, DnX or ProbeDnX"):
        certify(dummy, explanation)
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


def ring(explanation_type='model', index=None, **options):
    r"""The warnings about a model that no linear surrogate follows, at some of eight nodes.

    The surrogate disagrees at nodes 2 to 5, errs by more than 0.1 at all, and 0 to 3 are decided by its bias.
    """
    explain = explainer(Ring(), FastDnX(num_hops=0, **options), explanation_type=explanation_type)
    given = {'target': torch.arange(8) % 2} if explanation_type == 'phenomenon' else {}
    x, edge_index = torch.linspace(-1, 1, 8)[:, None], graph()[1]
    texts = {}
    for name in ['one', 'batch']:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter('always')
            if name == 'one':
                explain(x, edge_index, index=index, **given)
            else:
                explain.algorithm.explain_nodes(explain.model, x, edge_index, index=index, **given)
        found = [warning for warning in found if issubclass(warning.category, SurrogateWarning)]
        assert all(warning.filename == __file__ for warning in found)
        texts[name] = [str(warning.message) for warning in found]
    assert texts['one'] == texts['batch']
    return texts['one']


ZERO_HOPS = r"Try another 'num_hops' \(got 0\), 'auto' among them, a lower 'ridge' \(got 1e-05\), or ProbeDnX\."
DISAGREES = (
    rf'The surrogate disagrees with the model at %s, so .* \(agreement on the whole graph: 50\.0%%\)\. {ZERO_HOPS}'
)
ERRS = rf"Explanations are doubtful where 'distillation_error' is above 0\.1\. {ZERO_HOPS}"
BIAS = r"Explanations are doubtful where 'bias_decides': .* its bias, .*\. Try score='target'\."


@pytest.mark.parametrize(
    ('index', 'options', 'expected'),
    [
        (2, {}, DISAGREES % 'node 2'),
        (2, {'doubt': 4.0, 'score': 'target'}, DISAGREES % 'node 2'),
        (None, {}, DISAGREES % '4 of 8 nodes'),
        (torch.tensor([0, 5, 7]), {}, DISAGREES % '1 of 3 nodes'),
        (7, {}, ERRS),
        (0, {}, ERRS),  # decided by its bias, too
        (0, {'score': 'target'}, ERRS),
        (torch.tensor([0, 1, 6, 7]), {'doubt': 0.2}, ERRS),
        (7, {'doubt': 4.0}, None),
        (0, {'doubt': 4.0}, BIAS),
        (torch.tensor([0, 6, 7]), {'doubt': 4.0}, BIAS),
        (0, {'doubt': 4.0, 'score': 'target'}, None),
        (0, {'doubt': 4.0, 'contrast': 'runner_up'}, None),
        (0, {'doubt': 4.0, 'explanation_type': 'phenomenon'}, None),
    ],
)
def test_one_warning_says_why(index, options, expected):
    texts = ring(index=index, **options)
    assert len(texts) == (expected is not None)
    assert all(re.fullmatch(expected, text) for text in texts)


@pytest.mark.parametrize(('nodes', 'doubt'), [((6, 7), 0.2), ((0, 1), 4.0)])
def test_doubt_about_many_nodes_is_shown_once(nodes, doubt):
    assert ring(index=nodes[0], doubt=doubt) == ring(index=nodes[1], doubt=doubt)
    explain = explainer(Ring(), FastDnX(num_hops=0, doubt=doubt))
    x, edge_index = torch.linspace(-1, 1, 8)[:, None], graph()[1]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('default')
        for node in nodes * 2:
            explain(x, edge_index, index=node)
    assert [warning.category for warning in found if issubclass(warning.category, UserWarning)] == [SurrogateWarning]


@pytest.mark.parametrize('mode', ['multiclass_classification', 'regression'])
@pytest.mark.parametrize('reason', ['disagrees', "'distillation_error'", "'bias_decides'"])
@pytest.mark.parametrize(('count', 'warns'), [(0, False), (1, False), (2, True)])
def test_more_than_a_tenth_must_be_doubtful(mode, reason, count, warns):
    distilled, flags = judged(mode, scale=50.0)[0], torch.arange(10) < count
    assert (distilled.unit > 10) == (mode == 'regression')
    trust = {
        'surrogate_agreement': ~flags if reason == 'disagrees' else torch.ones(10, dtype=torch.bool),
        'distillation_error': (0.09 + 0.02 * flags * (reason == "'distillation_error'")) * distilled.unit,
        'bias_decides': flags if reason == "'bias_decides'" else torch.zeros(10, dtype=torch.bool),
    }
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        warn_if_doubtful(trust, distilled, torch.arange(10), 0.2, False)
    assert len(found) == warns
    assert all(reason in str(warning.message) for warning in found)
    if warns and reason == "'distillation_error'":
        assert f'above {0.1 * distilled.unit:g}' in str(found[0].message)


def test_loops_of_every_node_are_masked_as_pyg_does():
    edge_index = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [1, 2, 3, 0, 1, 2, 3]])
    torch.manual_seed(0)
    model, x = SGConv(3, 2, K=2).eval(), torch.randn(4, 3)
    explain = explainer(model, FastDnX(num_hops=2, ridge=1e-9), node=None, edge='object')
    explanation = explain(x, edge_index, index=3)
    explanation.edge_mask = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    before, after = (
        explain.get_prediction(x, edge_index),
        explain.get_masked_prediction(x, edge_index, None, explanation.edge_mask),
    )
    change = (before - after)[3]
    assert float(change.norm()) > 1e-3
    expected = 0.5 * float((change - change.mean()).norm())
    assert float(certify(explain, explanation).mask_bound) == pytest.approx(expected, rel=1e-3)
