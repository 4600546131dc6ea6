r"""How often verdicts are right, against PyG's metrics and intervals known from the literature."""

import math
import statistics

import pytest
import torch
from certificate_case import softmax, spread
from helpers import example_graphs
from models import explainer
from torch_geometric.explain.metric import fidelity
from trust_report_case import Sharp, module

from pyg_dnx import DnX, FastDnX, certify, trust_report
from pyg_dnx.results.measured import VERDICTS

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

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
