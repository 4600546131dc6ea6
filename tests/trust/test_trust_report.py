r"""A report on trust: its tables, in plain Python and by hand, what it asks of the model, and what it refuses."""

import math
import statistics
from collections import Counter

import pytest
import torch
from certificate_case import softmax, spread
from helpers import example_graphs
from models import Mean, Teacher, adjacencies, evaluations, explainer, graph
from torch_geometric.explain import DummyExplainer
from trust_report_case import module, settings

from pyg_dnx import DnX, FastDnX, trust_report

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


class Table(torch.nn.Module):
    r"""A model that answers the same whatever it is asked."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, x, edge_index):
        return self.outputs


def degree_name(degree):
    for low, high in [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 63)]:
        if low <= degree <= high:
            return str(low) if low == high else f'{low} to {high}'
    return '64 or more'


def confidence_name(confidence):
    return next(
        f'{low} to {high}'
        for low, high in [(0.99, 1), (0.9, 0.99), (0.7, 0.9), (0.5, 0.7), (0, 0.5)]
        if confidence >= low
    )


def compare_groups(found, names, agrees, errors):
    r"""Holds groups against the group, the agreement and the error of each node."""
    assert sum(group.num_nodes for group in found) == len(names)
    assert {group.name for group in found} == set(names)
    for group in found:
        members = [i for i, name in enumerate(names) if name == group.name]
        assert group.num_nodes == len(members)
        assert group.agreement == pytest.approx(statistics.mean(agrees[i] for i in members))
        assert group.distillation_error == pytest.approx(statistics.mean(errors[i] for i in members), abs=1e-5)


def in_degree_names(edges, num_nodes):
    r"""The group of each node, given (source, target) of each edge."""
    counts = Counter(target for source, target in edges if source != target)
    return [degree_name(counts[i]) for i in range(num_nodes)]


@pytest.mark.parametrize('kind', [FastDnX, DnX])
@pytest.mark.parametrize('num_hops', [0, 2])
def test_tables_of_a_classifier_in_plain_python(kind, num_hops):
    explain, arguments, outputs, logits = settings(algorithm=kind(num_hops=num_hops))
    report = trust_report(explain, **arguments, num_checks=3)
    outputs, guesses = [softmax(row) for row in outputs], [row.index(max(row)) for row in logits]
    labels = [row.index(max(row)) for row in outputs]
    agrees = [float(label == guess) for label, guess in zip(labels, guesses, strict=True)]
    errors = [math.dist(softmax(row), output) for row, output in zip(logits, outputs, strict=True)]
    assert 0 < statistics.mean(agrees) < 1

    compare_groups(report.by_class, [str(label) for label in labels], agrees, errors)
    names = in_degree_names(arguments['edge_index'].T.tolist(), 72)
    compare_groups(report.by_degree, names, agrees, errors)
    compare_groups(report.by_confidence, [confidence_name(max(row)) for row in outputs], agrees, errors)
    assert [group.name for group in report.by_degree] == [
        *('0', '1', '2 to 3', '4 to 7', '8 to 15', '16 to 63', '64 or more')
    ]
    assert len(report.by_confidence) >= 4
    starts = [float(group.name.split()[0]) for group in report.by_confidence]
    assert starts == sorted(starts)

    pairs = Counter(zip(labels, guesses, strict=True))
    assert report.confusion == [[pairs[i, j] for j in range(3)] for i in range(3)]
    assert [sum(row) for row in report.confusion if any(row)] == [group.num_nodes for group in report.by_class]
    assert sum(report.confusion[i][i] for i in range(3)) / 72 == pytest.approx(report.report.agreement)
    assert report.report == explain.algorithm.distill(explain.model, **arguments).report


def test_tables_of_a_regression_in_plain_python():
    explain, arguments, outputs, values = settings('regression [N, 2]', FastDnX(num_hops=0))
    report = trust_report(explain, **arguments, num_checks=3)
    assert (report.by_class, report.by_confidence, report.confusion) == ([], [], None)
    errors = [math.dist(value, output) for value, output in zip(values, outputs, strict=True)]
    agrees = [float(error <= spread(outputs)) for error in errors]
    assert 0 < statistics.mean(agrees) < 1
    compare_groups(report.by_degree, in_degree_names(arguments['edge_index'].T.tolist(), 72), agrees, errors)


def test_bins_begin_where_they_say():
    outputs = [[0.4, 0.3, 0.3], [0.5, 0.5, 0], [0.3, 0.7, 0], [0.7, 0.3, 0], [0.1, 0, 0.9], [0.01, 0.99, 0], [0, 0, 1]]
    outputs += [[0.6999, 0.3001, 0]]
    model = Table(torch.tensor(outputs, dtype=torch.float64))
    explain = explainer(model, FastDnX(num_hops=0), 'multiclass probs')
    report = trust_report(explain, *graph())
    found = [(group.name, group.num_nodes) for group in report.by_confidence]
    assert found == [('0 to 0.5', 1), ('0.5 to 0.7', 2), ('0.7 to 0.9', 2), ('0.9 to 0.99', 1), ('0.99 to 1', 2)]
    assert [row.faithful for row in report.reliability] == [1.0] * len(report.reliability)
    assert [row.unfaithfulness for row in report.reliability] == [0.0] * len(report.reliability)


def test_classes_without_nodes_are_not_listed():
    outputs = torch.eye(4)[torch.tensor([0, 0, 2, 2, 2, 0, 0, 2])]
    report = trust_report(explainer(Table(outputs), FastDnX(num_hops=0), 'multiclass probs'), *graph())
    assert [(group.name, group.num_nodes) for group in report.by_class] == [('0', 4), ('2', 4)]
    assert [sum(row) for row in report.confusion] == [4, 0, 4, 0]


@pytest.mark.parametrize('name', ['undirected', 'directed', 'duplicated', 'no_edges'])
def test_in_degrees_count_messages_that_come_in(name):
    x, edge_index, _ = example_graphs()[name]

    def sizes(model, adjacency):
        report = trust_report(explainer(model, FastDnX(num_hops=1)), x, adjacency, num_checks=1)
        return {group.name: group.num_nodes for group in report.by_degree}

    links = [*map(tuple, edge_index.T.tolist())]
    assert sizes(Teacher(), edge_index) == Counter(in_degree_names(links, 8))
    for adjacency in adjacencies(edge_index, torch.ones(edge_index.size(1)), 8).values():
        assert sizes(Mean(), adjacency) == Counter(in_degree_names(set(links), 8))
    model = Teacher()
    model.conv1.flow = model.conv2.flow = 'target_to_source'
    assert sizes(model, edge_index) == Counter(in_degree_names([link[::-1] for link in links], 8))


def test_a_sample_is_drawn_by_its_seed_alone(monkeypatch):
    seen, check = [], module.check_own

    def spy(explain, items, run):
        seen.append(torch.cat([item.index for item in items]))
        return check(explain, items, run)

    monkeypatch.setattr(module, 'check_own', spy)
    explain, arguments, _, _ = settings(algorithm=FastDnX(doubt=0.05))
    state = torch.get_rng_state()
    first = trust_report(explain, **arguments, num_checks=12)
    assert torch.get_rng_state().equal(state)
    torch.manual_seed(5)
    again, other = (trust_report(explain, **arguments, num_checks=12, seed=seed) for seed in (0, 1))
    assert again == first
    assert seen[0].equal(seen[1])
    assert other.by_class == first.by_class
    assert set(seen[2].tolist()) != set(seen[0].tolist())
    for index in seen:
        assert len(set(index.tolist())) == index.numel() == 12
        assert index.min() >= 0
    assert sum(row.num_checked for row in first.reliability) == 12


@pytest.mark.parametrize(('given', 'expected'), [({}, 72), ({'num_checks': 72}, 72), ({'num_checks': 71}, 71)])
def test_number_of_checks(given, expected):
    explain, arguments, _, _ = settings(algorithm=FastDnX(num_hops=0))
    report = trust_report(explain, **arguments, **given)
    assert sum(row.num_checked for row in report.reliability) == expected


def test_the_model_is_distilled_once():
    explain, arguments, _, _ = settings()
    explain.algorithm.cache.clear()
    calls = []
    explain.model.register_forward_hook(lambda *_: calls.append(1))
    counts = []
    for _ in range(2):
        calls.clear()
        trust_report(explain, **arguments, num_checks=3)
        counts.append(len(calls))
    assert counts[0] > counts[1]  # and asked whether it repeats itself, and answers on copies as on the graph, once


def test_phenomenon_needs_a_target():
    explain = explainer(Teacher(), FastDnX(), explanation_type='phenomenon')
    with pytest.raises(ValueError, match="'target' must be a tensor with an entry for each of the 8 nodes"):
        trust_report(explain, *graph())


X, EDGES = graph()
BAD = {
    'no checks': ((X, EDGES), {'num_checks': 0}, ValueError, r"'num_checks' must be at least 1 \(got 0\): "),
    'half a check': ((X, EDGES), {'num_checks': 2.5}, TypeError, r"'num_checks' must be an int \(got 2\.5\): "),
    'array': ((X.numpy(), EDGES), {}, TypeError, r"'x' must be a dense tensor .* \(got ndarray\): "),
    'pairs': ((X, EDGES.T), {}, ValueError, r"'edge_index' must have shape \[2, E\] \(got \[15, 2\]\): "),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_input_is_named(name):
    arguments, options, error, text = BAD[name]
    model = Teacher()
    with pytest.raises(error, match=text), evaluations(model, 0):
        trust_report(explainer(model, FastDnX()), *arguments, **options)


def test_other_explainers_have_no_surrogate_to_report_on():
    with pytest.raises(
        TypeError, match=r"'explainer' must have .*\(got DummyExplainer\): use FastDnX, DnX or ProbeDnX"
    ):
        trust_report(explainer(Teacher(), DummyExplainer()), *graph())


def test_progress_is_shown_when_asked_for(capsys):
    explain, arguments, _, _ = settings()
    trust_report(explain, **arguments, num_checks=3, progress=True)
    shown = capsys.readouterr().err
    assert 'Explaining' in shown
    assert 'Checking' in shown
    trust_report(explain, **arguments, num_checks=3, progress=False)
    assert capsys.readouterr().err == ''


@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
def test_default_device_is_not_used(task):
    explain, arguments, _, _ = settings(task)
    expected = trust_report(explain, **arguments, num_checks=5)
    torch.set_default_device('meta')
    try:
        found = trust_report(explain, **arguments, num_checks=5)
    finally:
        torch.set_default_device(None)
    assert found == expected
