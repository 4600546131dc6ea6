r"""What is measured of refined masks and of verdicts, on a small graph."""

import sys
from pathlib import Path

import pytest
import torch
from evaluation_case import graph
from torch_geometric.nn import GCN

sys.path.insert(0, str(Path(__file__).parents[2] / 'evaluation'))
import refined
import verdicts
from store import Job, Store

pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.fixture(scope='module')
def setting():
    torch.manual_seed(2)
    data = graph()
    return GCN(3, 4, 2, 3).eval(), data


def test_refined_masks_are_recorded_beside_the_first_ones(setting, tmp_path, capsys):
    model, data = setting
    records = refined.measure(model, data, 'IG, logit', 0, 14)
    for share in ('0.05', '0.1', '0.5'):
        before, after = (record[share] for record in records)
        pairs = zip(before['fidelity_plus'], after['fidelity_plus'], strict=True)
        assert all(one <= other for one, other in pairs)
        assert all(one >= other for one, other in zip(before['fidelity_minus'], after['fidelity_minus'], strict=True))
    assert max(records[1]['evaluations']) <= 300
    store = Store(tmp_path)
    for base in refined.BASES:
        for name, record in zip((base, f'{base}, refined'), records, strict=True):
            store.add(Job('refined', 'texas', 'GCN', 0, name), record)
    refined.tables(store)
    text = capsys.readouterr().out
    assert '| ProbeDnX, refined minus | all |' in text
    assert 'of 1 teachers' in text


def test_verdicts_are_judged_by_other_questions(setting, tmp_path, monkeypatch, capsys):
    model, data = setting
    monkeypatch.setattr(verdicts, 'FRESH', 20)
    monkeypatch.setattr(verdicts, 'TOP', 2)
    store = Store(tmp_path)
    for name in ('FastDnX', 'DnX'):
        record = verdicts.measure(model, data, name, 0, 14)
        assert {len(record[key]) for key in verdicts.KEYS} == {14}
        with torch.no_grad():  # keeping everything changes nothing, whatever is asked
            probes = verdicts.Probes(model, data, torch.arange(14))
            assert verdicts.under_noise(probes, probes.near, 0).allclose(probes.probs, atol=1e-5)
            assert verdicts.fresh(probes, probes.near, 0).allclose(torch.tensor(0.5).double())
        store.add(Job('verdicts', 'texas', 'GCN', 0, name), record)
    verdicts.tables(store)
    assert 'Cells in which the order is reversed' in capsys.readouterr().out
