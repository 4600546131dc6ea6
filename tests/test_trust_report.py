r"""A report on trust, against plain Python, PyG's metrics and values known by hand."""

import importlib
import json
import math
import statistics
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from helpers import Graph, example_graphs
from models import Bare, Mean, Teacher, adjacencies, evaluations, explainer, graph
from torch_geometric.explain import DummyExplainer
from torch_geometric.explain.metric import fidelity

from pyg_dnx import DnX, FastDnX, TrustReport, certify, trust_report
from pyg_dnx.certificate import VERDICTS

module = importlib.import_module('pyg_dnx.trust_report')
pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
IN_DEGREES = [1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 71]  # of the first nodes of a graph of 72; the rest have none


class Sharp(torch.nn.Module):
    r"""A teacher that is sure of some nodes."""

    def __init__(self, task='multiclass raw'):
        super().__init__()
        self.teacher = Teacher('weighted', task)

    def forward(self, x, edge_index, edge_weight=None):
        return 8.0 * self.teacher(x, edge_index, edge_weight)


class Table(torch.nn.Module):
    r"""A model that answers the same whatever it is asked."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, x, edge_index):
        return self.outputs


def graph_of_many_degrees():
    edges = [(j, i) for i, degree in enumerate(IN_DEGREES) for j in [*range(i), *range(i + 1, 72)][:degree]]
    edges += [(0, 20), (0, 20), (3, 3), (30, 30), (30, 30)]  # two parallel edges count, self-loops don't
    generator = torch.Generator().manual_seed(0)
    edge_weight = torch.rand(len(edges), generator=generator) + 0.5
    return Graph(torch.randn(72, 3, generator=generator), torch.tensor(edges).T, edge_weight)


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


def softmax(values):
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def spread(outputs):
    return math.sqrt(sum(statistics.pvariance(column) for column in zip(*outputs, strict=True)))


def compare_groups(found, names, agrees, errors):
    r"""Holds groups against the group, the agreement and the error of each node."""
    assert sum(group.num_nodes for group in found) == len(names)
    assert {group.name for group in found} == set(names)
    for group in found:
        members = [i for i, name in enumerate(names) if name == group.name]
        assert group.num_nodes == len(members)
        assert group.agreement == pytest.approx(statistics.mean(agrees[i] for i in members))
        assert group.distillation_error == pytest.approx(statistics.mean(errors[i] for i in members), abs=1e-5)


def settings(task='multiclass raw', algorithm=None, model=None, **options):
    r"""An explainer, the arguments of its model, and what the model and the surrogate answer, as lists."""
    x, edge_index, edge_weight = graph_of_many_degrees()
    explain = explainer(model or Sharp(task).eval(), algorithm or FastDnX(), task, **options)
    arguments = {'x': x, 'edge_index': edge_index, 'edge_weight': edge_weight}
    with torch.no_grad():
        outputs = explain.model(**arguments).double().view(72, -1).tolist()
    surrogate = explain.algorithm.distill(explain.model, **arguments)
    return explain, arguments, outputs, surrogate(x, edge_index, edge_weight).double().tolist()


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


TASKS = {
    'FastDnX': (FastDnX(), 'multiclass raw', {}),
    'DnX, both masks': (DnX(num_hops=1), 'multiclass raw', {'edge': 'object'}),
    'FastDnX, 0 hops': (FastDnX(num_hops=0, doubt=0.5), 'multiclass raw', {'node': 'attributes'}),
    'FastDnX, phenomenon': (FastDnX(), 'multiclass raw', {'explanation_type': 'phenomenon'}),
    'FastDnX, regression': (FastDnX(num_hops=0), 'regression [N, 2]', {}),
    'DnX, regression': (DnX(doubt=0.5), 'regression [N, 2]', {'node': None, 'edge': 'object'}),
}


def report_on(name, num_checks=100):
    r"""An explainer, how it is called, and the report."""
    algorithm, task, options = TASKS[name]
    x, edge_index, edge_weight = example_graphs()['weighted']
    x = x + 2.0 if 'regression' in task else x  # so that masks change outputs by more than these are spread
    explain = explainer(Sharp(task).eval(), algorithm, task, **options)
    given = {'edge_weight': edge_weight, **({'target': torch.arange(8) % 3} if 'phenomenon' in name else {})}
    return explain, (x, edge_index), given, trust_report(explain, x, edge_index, num_checks=num_checks, **given)


@pytest.mark.parametrize('name', TASKS)
def test_reliability_is_what_pyg_measures(name):
    explain, inputs, given, report = report_on(name)
    probabilities = (lambda row: row) if 'regression' in name else softmax
    measured = {verdict: [] for verdict in VERDICTS}
    outputs = explain.get_prediction(*inputs, given['edge_weight']).double().tolist()
    for node in range(8):
        one = explain(*inputs, index=node, **given)
        masks = one.get('node_mask'), one.get('edge_mask')
        answers = explain.get_masked_prediction(*inputs, *masks, edge_weight=given['edge_weight'])
        distance = math.dist(probabilities(outputs[node]), probabilities(answers[node].tolist()))
        kept = distance <= spread(outputs) if 'regression' in name else fidelity(explain, one)[1] == 0
        measured[VERDICTS[certify(explain, one).verdict]].append((float(kept), distance))

    assert [row.verdict for row in report.reliability] == [verdict for verdict in VERDICTS if measured[verdict]]
    assert sum(row.num_checked for row in report.reliability) == 8
    for row in report.reliability:
        kept, distances = zip(*measured[row.verdict], strict=True)
        assert row.num_checked == len(kept)
        assert row.faithful == pytest.approx(statistics.mean(kept))
        assert row.unfaithfulness == pytest.approx(statistics.mean(distances), abs=1e-5)
        half = 1.96 * statistics.pstdev(distances) / math.sqrt(len(distances))
        assert row.unfaithfulness_low == pytest.approx(max(0.0, row.unfaithfulness - half), rel=1e-3, abs=1e-5)
        assert row.unfaithfulness_high == pytest.approx(row.unfaithfulness + half, rel=1e-3, abs=1e-5)
        for end in (row.low, row.high):  # by definition, they are 1.96 standard errors of their own from the share
            error = math.sqrt(end * (1 - end) / row.num_checked)
            assert abs(end - row.faithful) == pytest.approx(1.96 * error, rel=1e-3, abs=1e-6)


def test_the_cases_above_have_every_verdict_and_explanations_that_fail():
    rows = {name: report_on(name)[-1].reliability for name in TASKS}
    assert {row.verdict for group in rows.values() for row in group} == set(VERDICTS)
    for name in ['FastDnX', 'FastDnX, regression']:
        assert any(0 < row.faithful < 1 for row in rows[name])


@pytest.mark.parametrize(
    ('kept', 'size', 'low', 'high'),
    [  # Wilson's interval; the first four as in Newcombe (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (8, 10, 0.4902, 0.9433),
        (5, 5, 0.5655, 1.0),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_intervals_of_shares(kept, size, low, high):
    row = module._reliability('doubtful', torch.arange(size) < kept, torch.zeros(size, dtype=torch.float64))
    assert (row.verdict, row.num_checked) == ('doubtful', size)
    assert (row.low, row.high) == pytest.approx((low, high), abs=5.1e-5)
    assert row.low - 1e-12 <= row.faithful == kept / size <= row.high + 1e-12
    assert 0.0 <= row.low <= row.high <= 1.0


def test_intervals_of_means():
    row = module._reliability('doubtful', torch.ones(4) > 0, torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64))
    assert row.unfaithfulness == 0.25
    assert row.unfaithfulness_low == 0.0  # and not below
    assert row.unfaithfulness_high == pytest.approx(0.25 + 1.959964 * math.sqrt(3) / 4 / 2)


def test_a_sample_is_drawn_by_its_seed_alone(monkeypatch):
    seen, check = [], module.check
    monkeypatch.setattr(
        module, 'check', lambda explain, items, **kwargs: seen.append(items.index) or check(explain, items)
    )
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
    assert counts[0] == counts[1] + 1


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


@pytest.fixture(scope='module', params=['multiclass raw', 'regression [N, 2]'])
def report(request):
    explain, arguments, _, _ = settings(request.param, FastDnX(num_hops='auto', doubt=0.05))
    return trust_report(explain, **arguments, num_checks=20)


def test_numbers_go_through_json(report):
    content = report.to_dict()
    assert list(content) == ['report', 'by_class', 'by_degree', 'by_confidence', 'confusion', 'reliability']
    read = json.loads(json.dumps(content, allow_nan=False))
    assert read['report']['agreement'] == report.report.agreement
    assert read['report']['mode'] == report.report.mode
    assert read['confusion'] == report.confusion
    for name in ['by_class', 'by_degree', 'by_confidence']:
        assert [module.Group(**row) for row in read[name]] == getattr(report, name)
    assert [module.Reliability(**row) for row in read['reliability']] == report.reliability


def test_text_shows_every_table(report):
    text = str(report)
    assert text.startswith(str(report.report))
    blocks = [block.splitlines() for block in text.removeprefix(str(report.report)).strip().split('\n\n')]
    tables = {'class': report.by_class, 'in-degree': report.by_degree, 'confidence': report.by_confidence}
    tables = {title: groups for title, groups in tables.items() if groups}
    assert [block[0].split()[0] for block in blocks] == [*tables, 'verdict']
    for (header, *lines), groups in zip(blocks, tables.values(), strict=False):
        assert header.split()[1:] == ['nodes', 'agreement', 'error']
        for line, group in zip(lines, groups, strict=True):
            ending = [str(group.num_nodes), f'{100 * group.agreement:.1f}%', f'{group.distillation_error:.3f}']
            assert line.split() == group.name.split() + ending
    for line, row in zip(blocks[-1][1:], report.reliability, strict=True):
        assert line.startswith(row.verdict)
        share = f'{100 * row.faithful:.1f}%', f'{100 * row.low:.1f}%', 'to', f'{100 * row.high:.1f}%'
        interval = f'({row.unfaithfulness_low:.3f}', 'to', f'{row.unfaithfulness_high:.3f})'
        ending = [str(row.num_checked), *share, f'{row.unfaithfulness:.3f}', *interval]
        assert line.removeprefix(row.verdict).split() == ending


def labels(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_plot_draws_every_table(report, theme, tmp_path):
    figure_module = pytest.importorskip('matplotlib.figure')
    figure = report.plot(tmp_path / 'report.png', theme=theme)
    assert isinstance(figure, figure_module.Figure)
    assert (tmp_path / 'report.png').read_bytes().startswith(b'\x89PNG')
    assert (sum(figure.get_facecolor()[:3]) > 2) == (theme == 'light')
    groups = [table for table in (report.by_degree, report.by_confidence) if table]
    confusion, *panels, reliability = figure.axes if report.confusion else [None, *figure.axes]
    assert len(panels) == len(groups)
    for axes, table, title in zip(panels, groups, ['in-degree', 'confidence'], strict=False):
        assert title in axes.get_ylabel()
        assert [bar.get_width() for bar in axes.patches] == [group.agreement for group in table]
        assert labels(axes) == [f'{group.name}\n({group.num_nodes})' for group in table]
        assert [text.get_text() for text in axes.texts] == [f'{group.agreement:.0%}' for group in table]
    assert [bar.get_width() for bar in reliability.patches] == [row.unfaithfulness for row in report.reliability]
    segments = [part.get_xdata() for part in reliability.lines][:2]
    ends = [
        [row.unfaithfulness_low for row in report.reliability],
        [row.unfaithfulness_high for row in report.reliability],
    ]
    assert [list(part) for part in segments] == [pytest.approx(end) for end in ends]
    for label, row in zip(labels(reliability), report.reliability, strict=True):
        assert label.split('\n')[0] in row.verdict
        assert label.endswith(f'{row.num_checked} checked,\n{100 * row.faithful:.0f}% kept')
    if confusion is not None:
        numbers = {(text.get_position()[1], text.get_position()[0]): int(text.get_text()) for text in confusion.texts}
        assert numbers == {(i, j): n for i, row in enumerate(report.confusion) for j, n in enumerate(row) if n}
        assert (confusion.get_xlabel(), confusion.get_ylabel()) == ("surrogate's class", "model's class")


@pytest.mark.parametrize(('num_classes', 'has_numbers'), [(12, True), (14, False)])
def test_plot_of_many_classes(num_classes, has_numbers):
    pytest.importorskip('matplotlib')
    found = trust_report(explainer(Bare(3, num_classes), FastDnX(num_hops=1)), *graph())
    assert len(found.confusion) == num_classes
    confusion = found.plot().axes[0]
    assert (len(confusion.texts) > 0) == has_numbers
    assert confusion.images[0].get_array().shape == (num_classes, num_classes)


def test_plot_of_one_verdict_and_of_large_numbers(report):
    pytest.importorskip('matplotlib')
    confusion = [[12_345, 2_500_000], [0, 9_999]]
    figure = replace(report, reliability=report.reliability[:1], confusion=confusion).plot()
    assert len(figure.axes[-1].patches) == 1
    assert [text.get_text() for text in figure.axes[0].texts] == ['12.3k', '2.5M', '9999']


def test_only_the_plot_needs_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    found = trust_report(explainer(Teacher(), FastDnX()), *graph())
    assert isinstance(found, TrustReport)
    with pytest.raises(ImportError, match='matplotlib'):
        found.plot()
