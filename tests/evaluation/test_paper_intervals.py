r"""Intervals of the evaluation, and the tables that they stand in."""

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.explain import metric

sys.path.insert(0, str(Path(__file__).parents[2] / 'evaluation'))
import intervals
import metrics
import store


def record_of(seed, size, shift=0.0):
    random, keys = np.random.default_rng(seed), ('fidelity_plus', 'fidelity_minus', 'unfaithfulness', 'total_variation')
    return {share: {key: (random.random(60)[:size] + shift).tolist() for key in keys} for share in intervals.SHARES}


def test_means_and_intervals():
    plus, minus = torch.tensor([0.1, 0.9, 1.0, 0.0, 0.5, 0.0]), torch.tensor([0.8, 0.9, 0.0, 0.3, 1.0, 1.0])
    assert metrics.characterization(plus, minus) == pytest.approx(metric.characterization_score(plus, minus).numpy())
    job = store.Job('probes', 'Cora', 'GCN', 0, 'FastDnX')
    records = {job._replace(seed=seed): record_of(seed, 40 + seed) for seed in range(3)}
    groups = [record[share] for record in records.values() for share in intervals.SHARES]
    found = intervals.Faithfulness(records)
    assert found.of('unfaithfulness')[0] == pytest.approx(np.mean([np.mean(g['unfaithfulness']) for g in groups]))
    pairs = [(np.mean(group['fidelity_plus']), 1 - np.mean(group['fidelity_minus'])) for group in groups]
    assert found.of('characterization')[0] == pytest.approx(np.mean([2 * a * b / (a + b) for a, b in pairs]))
    assert intervals.with_interval(np.array([7.0, *range(1001)])) == {'value': 7.0, 'low': 25.0, 'high': 975.0}
    record = records[job]
    one = intervals.Faithfulness({job: record}, shares=('0.3',)).of('unfaithfulness')[1:]
    assert one.std() == pytest.approx(np.std(record['0.3']['unfaithfulness']) / np.sqrt(40), rel=0.1)
    twice = intervals.Faithfulness({job: record, job._replace(model='GAT'): record}, shares=('0.3',))
    assert twice.of('unfaithfulness')[1:] == pytest.approx(one)  # nodes of one seed are the same for all its teachers


def test_differences_are_between_the_same_teachers_and_nodes(tmp_path):
    records, explained = store.Store(tmp_path), {'FastDnX': ('102', 30, 0.0), 'higher': ('012', 30, 0.25)}
    for name, (seeds, *rest) in {**explained, 'slow': ('421', 12, 0.5), 'other': ('5', 12, 0.0)}.items():
        for seed in map(int, seeds):
            records.add(store.Job('faithfulness', 'Cora', 'GCN', seed, name), record_of(seed, *rest))
    for name, gap in (('FastDnX', 0.0), ('higher', -0.25), ('slow', -0.5)):
        one, other = intervals.matched(records, 'faithfulness', 'Cora', 'FastDnX', name)
        interval = intervals.with_interval(one.of('unfaithfulness') - other.of('unfaithfulness'))
        assert interval == pytest.approx(dict.fromkeys(('value', 'low', 'high'), gap), abs=1e-12 * (gap < 0))
    plain = [record_of(seed, 12)[share]['unfaithfulness'] for seed in (1, 2) for share in intervals.SHARES]
    assert one.of('unfaithfulness')[0] == pytest.approx(np.mean(plain))
    assert intervals.matched(records, 'faithfulness', 'Cora', 'FastDnX', 'other') is None
    tables = intervals.faithfulness_tables(records, ('FastDnX', 'slow', 'other', 'missing'))
    assert [row[0] for row in tables['faithfulness']['rows']] == ['FastDnX', 'slow', 'other']
    gap = intervals.with_interval(one.of('characterization') - other.of('characterization'))
    assert tables['faithfulness, FastDnX']['rows'][0][:2] == ['slow', gap]


def test_intervals_of_faithfulness_are_for_other_teachers_too():
    job, levels = store.Job('faithfulness', 'Cora', 'GCN', 0, 'FastDnX'), np.linspace(0.0, 0.5, 6)
    teachers = [job._replace(model=model, seed=seed) for model in ('GCN', 'GAT', 'GIN') for seed in (0, 1)]
    flat = {
        other: {share: dict.fromkeys(record_of(0, 1)['0.1'], [level] * 8) for share in intervals.SHARES}
        for other, level in zip(teachers, levels, strict=True)
    }  # where nodes don't differ
    draws = intervals.Faithfulness(flat).of('unfaithfulness')
    assert draws[0] == pytest.approx(levels.mean())
    assert draws[1:].mean() == pytest.approx(levels.mean(), abs=0.01)
    assert draws[1:].std() == pytest.approx(levels.std() / np.sqrt(6), rel=0.1)
    same = {other._replace(explainer='DnX'): record for other, record in flat.items()}
    assert (
        intervals.Faithfulness(same).of('unfaithfulness').tolist() == draws.tolist()
    )  # so that differences are paired
    other_part = {other._replace(part='probes'): record for other, record in flat.items()}
    assert intervals.Faithfulness(other_part).of('unfaithfulness')[1:] == pytest.approx(levels.mean())


def test_rivals_are_held_against_gnn_explainer(tmp_path):
    records, rival = store.Store(tmp_path), 'GNNExplainer, node mask'
    for graph_name, (name, shift) in product(('Cora', 'ba_house'), (('FastDnX', 0.0), (rival, 0.25), ('random', 0.5))):
        for seed in {'FastDnX': (0, 1, 2), rival: (0, 1), 'random': (0,)}[name]:
            records.add(store.Job('faithfulness', graph_name, 'GCN', seed, name), record_of(seed, 30, shift))
    tables = intervals.rivals_tables(records, ('FastDnX', rival, 'random', 'missing'))
    found = tables['rivals, unfaithfulness']
    assert found['columns'] == [f'minus {rival}', 'unfaithfulness', 'ba_house', 'Cora']
    assert [row[0] for row in found['rows']] == ['FastDnX', 'random']
    for (_, *cells), gap in zip(found['rows'], (-0.25, 0.25), strict=True):
        for cell in cells:  # over all graphs, and on each
            assert cell == pytest.approx(dict.fromkeys(('value', 'low', 'high'), gap))
    assert tables['rivals, characterization']['rows'][0][1:] != found['rows'][0][1:]
    (both,) = intervals.gaps(records, 'faithfulness', ['Cora'], [('it', 'FastDnX', rival)], '', intervals.SHARES)[
        'rows'
    ]
    assert both == ['it', tables['rivals, characterization']['rows'][0][3], found['rows'][0][3], both[1]]

    rows = tables['rivals']['rows']
    assert len(tables['rivals']['columns']) == len(rows[0])
    assert [row[:2] for row in rows] == [['FastDnX', 4], [rival, 4], ['random', 2]]  # the teachers of both
    assert [row[-1] for row in rows] == ['0 / 2', None, '2 / 0']
    assert [row[-2] for row in rows] == [found['rows'][0][1], None, found['rows'][1][1]]
    means = [np.mean(record_of(s, 30)[share]['unfaithfulness']) for s in (0, 1) for share in intervals.SHARES]
    assert [row[-3]['value'] for row in rows[:2]] == pytest.approx([np.mean(means), np.mean(means) + 0.25])
    cells = [None, *({'low': low, 'high': high} for low, high in ((0.1, 0.2), (-0.1, 0.3), (-0.3, -0.1), (0.1, 1.0)))]
    assert intervals.above_and_below(cells) == '2 / 1'


def test_many_differences_are_judged_together(tmp_path):
    generator = np.random.default_rng(1)
    chance = generator.normal(size=(60, 1001))  # as far off as resampling says, so that zero is the truth
    chance[:, 1:] += chance[:, :1]
    alone = [not cell['low'] <= 0 <= cell['high'] for cell in map(intervals.with_interval, chance)]
    assert sum(alone) >= 2
    assert not any(intervals.jointly_off_zero(list(chance)))
    zero = chance[0] - chance[0, 0]
    others = [zero - 6.0, np.zeros(1001), np.full(1001, 0.5), np.full(1001, 5e-17), zero + 2.8, zero + 4.2]
    found = intervals.jointly_off_zero([*chance, *others])
    assert [place for place, sure in enumerate(found) if sure] == [60, 62, 65]
    assert intervals.jointly_off_zero([]) == []

    records = store.Store(tmp_path)
    for seed, (name, shift) in product((0, 1), (('ProbeDnX', 0.0), ('IG, logit', 0.0), ('IG, probability', 0.3))):
        for model in ('GCN', 'GAT'):
            records.add(store.Job('probes', 'Cora', model, seed, name), record_of(seed, 30, shift * (model == 'GCN')))
    kinds, each = (intervals.by_teacher(records, ['Cora'], each) for each in (False, True))
    assert [row[:-2] for row in kinds['rows']] == [['Cora', 'GAT'], ['Cora', 'GCN']]
    assert [row[1:-2] for row in each['rows']] == [['GAT', 0], ['GAT', 1], ['GCN', 0], ['GCN', 1]]
    jobs = [store.Job('probes', 'Cora', 'GCN', 1, name) for name in ('ProbeDnX', 'IG, probability')]
    one, other = (intervals.Faithfulness({job: records.records[job]}, shares=intervals.FEW) for job in jobs)
    gap = intervals.with_interval(one.of('characterization') - other.of('characterization'))
    assert {**each['rows'][3][-1], 'sure': None} == {**gap, 'sure': None}
    expected = {'all': 4, 'above': int(kinds['rows'][1][-1]['low'] > 0), 'below': int(kinds['rows'][1][-1]['high'] < 0)}
    assert {key: intervals.counts(kinds)[key] for key in expected} == expected
    assert intervals.counts(kinds)['surely above'] + intervals.counts(kinds)['surely below'] == 1
    cells = [{'value': v, 'low': v - 1, 'high': v + 1, 'sure': abs(v) > 2} for v in (-4, -3, -1.5, 0.5, 1.5, 3)]
    found = {'all': 6, 'above': 2, 'below': 3, 'surely above': 1, 'surely below': 2}
    assert intervals.counts({'rows': [['Cora', *cells[:2]], ['Cora', *cells[2:]]]}) == found
