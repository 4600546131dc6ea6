r"""Checks and reports by several processes are those of one."""

import os

import pytest
import torch
from helpers import example_graphs
from models import Teacher
from together import together
from torch_geometric.explain import Explainer

from pyg_dnx import FastDnX, check, trust_report

pytestmark = [
    pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning'),
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork'),
]


def asked(rank, group, folder, number):
    graph = example_graphs()['undirected']
    config = {'mode': 'multiclass_classification', 'task_level': 'node', 'return_type': 'raw'}
    algorithm = FastDnX(num_hops=2, cache=None)
    options = {'explanation_type': 'model', 'node_mask_type': 'object', 'model_config': config}
    explainer = Explainer(Teacher(), algorithm=algorithm, **options)
    explained = [explainer(graph.x, graph.edge_index, index=node) for node in range(number)]
    checked = check(explainer, explained, group=group, progress=False)
    report = trust_report(
        explainer, graph.x, graph.edge_index, num_checks=number, checkpoint=folder, group=group, progress=False
    )
    assert algorithm.cache is None
    assert explainer.algorithm is algorithm
    return vars(checked), report.to_dict()


@pytest.mark.parametrize('number', [1, 7])
def test_any_number_of_processes_finds_the_same(number, tmp_path):
    expected, report = asked(0, None, None, number)
    report['report'].pop('seconds')
    for checked, found in together(asked, 3, tmp_path, tmp_path / 'shared', number):
        found['report'].pop('seconds')
        torch.testing.assert_close(checked, expected)
        assert found.keys() == report.keys()
        for name in report:
            assert found[name] == report[name] if name == 'confusion' else str_of(found[name]) == str_of(report[name])


def str_of(value):
    r"""Numbers up to rounding."""
    if isinstance(value, float):
        return f'{value:.4f}'
    if isinstance(value, dict):
        return {name: str_of(each) for name, each in value.items()}
    return [str_of(each) for each in value] if isinstance(value, list) else value
