r"""What processes write and send is what docs/cluster.md says."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from models import connected
from test_together import NUM_FEATURES, NUM_NODES, Case
from together import together

from pyg_dnx import FastDnX
from pyg_dnx.explainers.many import Wanted, explain_together
from pyg_dnx.graph.graph import Graph

pytestmark = [
    pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning'),
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork'),
]
NUM_MASKS, TOP_K = 3, 10


def documented(**sizes):
    r"""The formulas of the page, by table, for some sizes."""
    page = (Path(__file__).parents[1] / 'docs' / 'cluster.md').read_text(encoding='utf-8')
    rows = re.findall(r'^\| `(\w+)` \| ([^|]+) \|$', page, re.MULTILINE)
    return {name: value_of(formula, sizes) for name, formula in rows}


def value_of(formula, sizes):
    r"""The value of a formula as it is printed, where a product has no sign."""
    signed = re.sub(r'(?<=[\w)]) (?=[\w(])', '*', formula)
    return eval(signed, {'__builtins__': {}}, sizes)  # of our own page


def counted(rank, group, case, folder):
    algorithm = connected(FastDnX(num_hops=2, distillation='masked', num_masks=NUM_MASKS, cache=None))
    graph = Graph.of(case.x.float(), case.adjacency, {})
    teacher = algorithm.plan.teacher(None, graph, None, case.probes)
    run = algorithm._together(False, folder, group)
    explain_together(algorithm.plan, teacher, graph, Wanted(top_k=TOP_K), run)
    return dict(run.counted)


@pytest.mark.parametrize('num_processes', [1, 3])
def test_bytes_are_those_of_the_formulas(num_processes, tmp_path):
    case = Case()
    expected = documented(
        N=NUM_NODES, E=case.adjacency.values().numel(), F=NUM_FEATURES, C=3, M=NUM_MASKS, k=TOP_K, b=4, w=8
    )
    found, most = Counter(), 0
    for each in together(counted, num_processes, tmp_path, case, tmp_path / 'shared'):
        sums, summed = each.pop('sums', 0), each.pop('summed', 0)
        most = max(most, summed)
        assert summed <= sums * 8 * (NUM_FEATURES + 2) * 4 + 8 * NUM_FEATURES**2 + 600 * 256  # and digests, of 256 each
        assert (sums > 0) == (num_processes > 1)
        found.update(each)
    probes = sum(found.pop(name) for name in list(found) if 'probe' in name)
    masked = sum(found.pop(name) for name in list(found) if name.startswith('masked'))
    torch.testing.assert_close({**found, 'probes': probes, 'masked': masked}, expected)
