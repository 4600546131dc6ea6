r"""The pages of the evaluation in examples/paper: from records to tables and text."""

import copy
import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest

from pyg_dnx import ProbeDnX
from pyg_dnx.datasets import MotifDataset

sys.path.insert(0, str(Path(__file__).parents[1] / 'examples' / 'paper'))
import explainers
import keeping
import page
import run
import store
import summary
import teachers
from recipe import distill_by_recipe


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
    beyond, rivals, recipe, results, text = ((tmp_path / 'docs' / f'{name}.md').read_text() for name in names)
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


def cell(value):
    return {'value': value, 'digits': 1}


OLD = {
    'columns': ['model', 'explainer', 'Cora', 'CiteSeer'],
    'rows': [
        ['GCN', 'FastDnX', cell(1), None],
        ['GCN', 'Saliency', cell(2), cell(3)],
        ['GIN', 'FastDnX', None, cell(4)],
        ['', 'ceiling', cell(5), cell(6)],
    ],
}


def test_cells_that_were_not_measured_anew_are_kept():
    rows = [
        ['GCN', 'FastDnX', None, cell(10)],
        ['GCN', 'Saliency', cell(20), None],
        ['', 'ceiling', None, None],
    ]
    before, new = copy.deepcopy(OLD), {'columns': OLD['columns'], 'rows': rows}
    found = keeping.by_cell(new, OLD)
    assert before == OLD
    assert found['columns'] == OLD['columns']
    assert found['rows'] == [
        ['GCN', 'FastDnX', cell(1), cell(10)],
        ['GCN', 'Saliency', cell(20), cell(3)],
        *OLD['rows'][2:],
    ]
    more = [['GCN', 'GNNExplainer', cell(7), None], ['ARMA', 'DnX', None, cell(8)]]
    found = keeping.by_cell({'columns': OLD['columns'], 'rows': more}, OLD)['rows']
    expected = [OLD['rows'][0], more[0], OLD['rows'][1], more[1], *OLD['rows'][2:]]
    assert found == expected  # as if all had been measured at once
    other = {'columns': ['model', 'explainer', 'Cora', 'PubMed'], 'rows': rows}
    assert keeping.by_cell(other, OLD) is other


def test_tables_of_which_nothing_was_measured_anew_are_kept():
    empty = {'columns': OLD['columns'], 'rows': [['GCN', 'FastDnX', None, None]]}
    some = {'columns': OLD['columns'], 'rows': [['GCN', 'FastDnX', None, cell(9)]]}
    assert keeping.whole(empty, OLD) is OLD
    assert keeping.whole({'columns': [], 'rows': []}, OLD) is OLD
    assert keeping.whole(some, OLD) is some


def test_a_page_says_when_what_it_keeps_was_made(tmp_path):
    found = store.Store(tmp_path)
    found.add(store.Job('planted', 'Cora', 'SGC', 3, 'FastDnX'), {'error': 0.25, 'agreement': 1.0})
    before = {'date': '2001-02-03', 'seeds': '0, 10', 'machine': 'one', 'versions': 'torch 1 and torch 2'}
    tables = {'ridge': OLD, 'planted': OLD, 'options': OLD, 'sanity': OLD}
    (tmp_path / 'results.json').write_text(json.dumps({'made': before, 'tables': tables, 'curves': 'these'}))
    new = page.contents('results', found, found.records, tmp_path)
    assert {name: table == OLD for name, table in new['tables'].items() if name in tables} == {
        'ridge': True,
        'planted': False,
        'options': True,
        'sanity': True,
    }
    assert new['curves'] == 'these'
    today = page.made(found.records)
    assert new['made'] == {
        'date': f'2001-02-03 and {today["date"]}',
        'seeds': '0, 3, 10',
        'machine': f'one and {today["machine"]}',
        'versions': f'torch 1 and torch 2 and {today["versions"]}',
    }
    assert page.contents('results', found, found.records, tmp_path / 'elsewhere')['made'] == today


def test_one_cell_of_the_papers_tables_can_be_measured_by_itself(tmp_path):
    docs = Path(__file__).parents[1] / 'docs'
    old, found = json.loads((docs / 'paper.json').read_text(encoding='utf-8')), store.Store(tmp_path)
    found.add(store.Job('truth', 'bitcoin_otc', 'GCN', 0, 'Saliency'), {'auc': 0.125})
    new = page.contents('paper', found, found.records, docs)
    assert new['bars'] == old['bars']
    changed = {key for key in old['tables'] if new['tables'][key] != old['tables'][key]}
    assert changed == {'bitcoin, edges'}
    pairs = zip(old['tables']['bitcoin, edges']['rows'], new['tables']['bitcoin, edges']['rows'], strict=True)
    ((_, row),) = ((before, after) for before, after in pairs if before != after)
    assert row[:2] == ['GCN', 'Saliency']
    assert row[3]['value'] == 12.5
