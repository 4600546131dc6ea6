r"""A report on trust as JSON, as text and as a picture: each shows every table."""

import json
import sys
from dataclasses import replace

import pytest
from models import Bare, Teacher, explainer, graph
from trust_report_case import module, settings

from pyg_dnx import FastDnX, TrustReport, trust_report

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


@pytest.fixture(scope='module', params=['multiclass raw', 'regression [N, 2]'])
def report(request):
    explain, arguments, _, _ = settings(request.param, FastDnX(num_hops='auto', doubt=0.05))
    return trust_report(explain, **arguments, num_checks=20)


def test_numbers_go_through_json(report):
    content = report.to_dict()
    assert list(content) == [
        'report',
        'by_class',
        'by_degree',
        'by_confidence',
        'confusion',
        'reliability',
        'is_random',
    ]
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
