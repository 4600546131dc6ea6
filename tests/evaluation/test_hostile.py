r"""What evaluation/hostile.py does thousands of times, a few times."""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / 'evaluation'))
import hostile

pytestmark = pytest.mark.filterwarnings('ignore')


def test_damaged_files_are_told_or_as_they_were(tmp_path):
    for name, found in hostile.corrupt(12, tmp_path):
        assert found[hostile.WELL] + found[hostile.TOLD] == 12, name
        assert found[hostile.TOLD] > 0, name


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
def test_of_processes_at_once_each_is_right_or_told(tmp_path):
    found, after = hostile.race(4, tmp_path)
    assert found.keys() <= {hostile.WELL, hostile.TOLD}
    assert after == {hostile.WELL: 4}


@pytest.mark.parametrize('kind', hostile.EXPLAINERS)
def test_an_interrupt_leaves_the_model_as_it_was(kind):
    assert hostile.interrupt(kind, 8) == {hostile.WELL: 9}


CHANGES = {
    'mode': lambda model: model.norm.train(False),
    'buffer': lambda model: model.seen.add_(1),
    'statistics': lambda model: model.norm.running_mean.add_(1),
    'tensor': lambda model: model.total.add_(1),
    'number': lambda model: setattr(model, 'calls', 1),
    'list in a dict': lambda model: model.kept['outputs'].append(1),
    'cache of a layer': lambda model: setattr(model.first, '_cached_edge_index', (torch.zeros(1), None)),
    'another attribute': lambda model: setattr(model, 'last', None),
    'weight': lambda model: model.second.bias.data.add_(1),
    'random state': lambda model: torch.rand(1),
}


@pytest.mark.parametrize('change', CHANGES)
def test_what_is_left_otherwise_is_seen(change):
    model = hostile.Restless()
    before = hostile.state_of(model)
    assert hostile.state_of(model) == before
    CHANGES[change](model)
    assert hostile.state_of(model) != before


def test_an_evaluation_changes_nearly_everything_that_an_interrupt_must_leave():
    model, (x, edge_index) = hostile.Restless(), hostile.graph()
    before = hostile.state_of(model)
    model(x, edge_index)
    after = hostile.state_of(model)
    assert sum(one != other for one, other in zip(before, after, strict=True)) >= 3


def test_a_line_is_stopped_at():
    call = hostile.call_of('FastDnX', hostile.Restless())
    assert hostile.lines_of(call) > 1000
    assert hostile.lines_of(call, 500) is None


def test_tables_count_each_outcome():
    rows = [('one', hostile.Counter({hostile.WELL: 2})), ('two', hostile.Counter({hostile.BARE: 1, 'killed': 3}))]
    assert list(hostile.table(rows)) == [
        '| | as it was | told | bare error | wrong | killed |',
        '|---|---|---|---|---|---|',
        '| one | 2 | 0 | 0 | 0 | 0 |',
        '| two | 0 | 0 | 1 | 0 | 3 |',
    ]
