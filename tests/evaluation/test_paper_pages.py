r"""The pages of the evaluation: from records to tables and text."""

import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest

from pyg_dnx import ProbeDnX
from pyg_dnx.datasets import MotifDataset

sys.path.insert(0, str(Path(__file__).parents[2] / 'evaluation'))
import explainers
import page
import run
import store
import summary
import teachers
from recipe import distill_by_recipe

DOCS = Path(__file__).parents[2] / 'docs'


@pytest.mark.parametrize('name', [name for name in page.PAGES if (DOCS / f'{name}.json').exists()])
def test_pages_are_those_that_their_data_make(name, tmp_path):
    page.write(name, json.loads((DOCS / f'{name}.json').read_text(encoding='utf-8')), tmp_path)
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob(f'{name}.*')]
    assert {str(path) for path in written} >= {f'{name}.md', f'{name}.json'}
    for path in written:
        expected = (DOCS / path).read_text(encoding='utf-8')
        assert (tmp_path / path).read_text(encoding='utf-8') == expected, f'change {name}.md.in as well'


def test_fidelity_on_real_graphs_is_how_far_accuracy_falls_on_what_is_kept(tmp_path):
    found = store.Store(tmp_path)
    record = {share: {'right_on_subgraph': [1, 0, 0, 1]} for share in ('0.3', '0.5')} | {'right': [1, 1, 0, 1]}
    record['0.7'] = {'right_on_subgraph': [1, 1, 0, 1]}
    found.add(store.Job('fidelity', 'Cora', 'GCN', 0, 'DnX'), record)
    rows = summary.fidelity_tables(found, ['DnX'])['fidelity, real graphs']['rows']
    assert [(row[0], row[4]['value']) for row in rows] == [('30%', 0.25), ('50%', 0.25), ('70%', 0.0)]


def test_records_of_models_that_a_part_no_longer_has_stay_off_its_page():
    jobs = [store.Job('faithfulness', 'ba_house', model, 0, 'Ã^L') for model in ('GIN', 'plain GIN')]
    assert [run.applies(job) for job in jobs] == [True, False]
    assert not run.applies(jobs[0]._replace(part='a part that is no more'))


def test_a_run_goes_on_where_it_stopped_and_becomes_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(run, 'load', lambda name, folder: MotifDataset(name)[0])
    rates = []

    def teacher(kind, name, data, seed, epochs, folder, rate):
        rates.append(rate)
        return teachers.build(kind, name, data).eval()

    monkeypatch.setattr(run, 'teacher', teacher)
    command = ['run.py', '--quick', '--graphs', 'tree_cycles', '--models', 'GCN', 'SGC', '--out', str(tmp_path)]
    monkeypatch.setattr(explainers, 'distill_by_recipe', partial(distill_by_recipe, epochs=20))
    monkeypatch.setitem(explainers.EXPLAINERS, 'ProbeDnX', explainers.distilled(ProbeDnX, num_probes=8))
    rival = 'GNNExplainer, node mask'
    monkeypatch.setitem(explainers.EXPLAINERS, rival, explainers.random)  # which takes no time
    wanted = ['--explainers', '', 'FastDnX', 'FastDnX, recipe', 'ProbeDnX', rival, 'Ã^L', 'default', '1e-05', '--parts']
    parts = ['teachers', 'truth', 'faithfulness', 'probes', 'recipe', 'options', 'ridge', 'sanity', 'planted', 'times']
    parts += ['appendix']
    monkeypatch.setattr(sys, 'argv', [*command, *wanted, *parts])
    run.main()
    records = store.Store(tmp_path / 'quick').records
    assert {job.part for job in records} == set(parts)
    assert sum(job.part == 'truth' for job in records) == 3
    assert rates[-1] == 0.001  # the appendix's
    assert set(rates[:-1]) == {0.01}
    monkeypatch.setattr(run, 'measure', None)
    run.main()  # with nothing left to do

    folders = ['--out', str(tmp_path / 'quick'), '--data', str(tmp_path), '--docs', str(tmp_path / 'docs')]
    monkeypatch.setattr(sys, 'argv', ['page.py', *folders, '--pages', 'rivals'])
    page.main()
    assert {path.name for path in (tmp_path / 'docs').glob('*.md')} == {'rivals.md'}
    monkeypatch.setattr(sys, 'argv', ['page.py', *folders])
    page.main()
    names = ('beyond', 'rivals', 'recipe', 'results', 'paper')
    found = {path.stem: path.read_text() for path in (tmp_path / 'docs' / 'tables').iterdir()}
    assert sorted(found) == sorted(names)
    pages = [(tmp_path / 'docs' / f'{name}.md').read_text() + found[name] for name in names]
    beyond, rivals, recipe, results, text = pages
    assert not re.search(r'\{[A-Za-z]', beyond + rivals + recipe + results + text)  # all is in its place
    assert re.search(r'\n\| GCN \| FastDnX, recipe \| –( \| –){2} \| \**\d+\.\d\** \(87.3\)', recipe)
    assert re.search(r'\n\| FastDnX, recipe \| -?0\.\d+ \[', recipe)  # minus FastDnX
    assert re.search(r'\n\| ProbeDnX \| 1 \| \d\.\d+ \[.+\] \| -?\d\.\d+ \[.+\] \| \d / \d \|', rivals)
    assert re.search(r'\n\| FastDnX \| -?0\.\d+ \[', beyond)  # ProbeDnX minus it
    truth = records[store.Job('truth', 'tree_cycles', 'GCN', 0, 'FastDnX')]
    assert f'| GCN | FastDnX | – | – | – | {100 * truth["accuracy"]:.1f} (87.3) |' in text.replace('**', '')
    appendix = records[store.Job('appendix', 'tree_cycles', 'GCN', 0, 'FastDnX')]
    assert f'| GCN | FastDnX | – | – | – | {100 * appendix["accuracy"]:.1f} (87.3) |' in text.replace('**', '')
    assert f'| GCN | – | – | – | {100 * appendix["test"]:.1f} (97.8) |' in text.replace('**', '')
    assert {path.name for path in (tmp_path / 'docs' / 'images').iterdir()} == {
        'fidelity.png',
        'times.png',
        'degrees.png',
    }


@pytest.mark.parametrize(
    ('cell', 'expected'),
    [
        (None, '–'),
        ({'value': 99.96, 'digits': 1}, '100.0'),
        ({'value': 85.04, 'digits': 1, 'spread': 0.7, 'paper': 85.0, 'met': True}, '**85.0 ±0.7** (85)'),
        ({'value': 0.5, 'low': 0.25, 'high': 0.75}, '0.500 [0.250, 0.750]'),
    ],
)
def test_cells(cell, expected):
    assert page.text(cell) == expected


@pytest.mark.parametrize(('value', 'ceiling', 'met'), [(84.96, 100.0, True), (84.94, 100.0, False), (84.0, 84.0, True)])
def test_met_is_at_or_above_the_papers_figure_or_the_ceiling(value, ceiling, met):
    assert summary.cell([value / 100], 85.0, ceiling=ceiling)['met'] == met


def test_a_page_keeps_the_tables_of_parts_that_were_not_measured_anew(tmp_path, monkeypatch):
    found, old = store.Store(tmp_path), {'columns': ['option', 'value'], 'rows': [['ridge', {'value': 0.5}]]}
    assert page.contents('results', found, tmp_path) is None
    found.add(store.Job('planted', 'Cora', 'SGC', 3, 'FastDnX'), {'error': 0.25, 'agreement': 1.0})
    alone = page.contents('results', found, tmp_path)
    assert 'made_before' not in alone
    assert alone['made']['seeds'] == '3'
    names = set(alone['tables']) - {'planted'}
    assert names == {'ridge', 'options', 'sanity', *(name for name in names if name.startswith('faithfulness'))}

    before = {'date': '2001-02-03', 'seeds': '0, 10', 'machine': 'one', 'versions': 'Ã'}
    json_of = {'made': before, 'tables': dict.fromkeys(alone['tables'], old), 'curves': 'these'}
    for _ in range(2):  # the second time from its own result
        (tmp_path / 'results.json').write_text(json.dumps(json_of, ensure_ascii=False), encoding='utf-8')
        json_of = page.contents('results', found, tmp_path)
        assert json_of['tables'] == {**dict.fromkeys(names, old), 'planted': alone['tables']['planted']}
        assert json_of['curves'] == 'these'
        assert json_of['made'] == alone['made']
        assert json_of['made_before'] == before
    page.write('results', json_of, tmp_path)
    text = (tmp_path / 'results.md').read_text(encoding='utf-8')
    assert {'2001-02-03', alone['made']['date']} <= set(re.findall(r'\d{4}-\d\d-\d\d', text))
    assert page.contents('rivals', found, tmp_path) is None
    monkeypatch.setitem(page.PAGES, 'results', page.Page({('planted',): page.PAGES['results'].tables['planted',]}))
    assert 'made_before' not in page.contents('results', found, tmp_path)  # where all is new
