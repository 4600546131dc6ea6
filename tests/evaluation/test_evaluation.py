r"""The scripts in evaluation/, on a folder of tests that stands for PyG's."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
import torch
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GCNConv, HeteroConv

x, edge_index = torch.randn(4, 3), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


class GNN(torch.nn.Module):
    def __init__(self, level, is_hetero):
        super().__init__()
        self.level, self.conv = level, GCNConv(3, 2)
        if is_hetero:
            self.conv = HeteroConv({('paper', 'to', 'paper'): self.conv})

    def forward(self, x, edge_index):
        out = self.conv(x, edge_index)
        out = out['paper'] if isinstance(out, dict) else out
        return out.sum(dim=0, keepdim=True) if self.level == 'graph' else out


@pytest.mark.parametrize('is_hetero', [False, True])
@pytest.mark.parametrize('level', ['node', 'graph'])
def test_explanation(level, is_hetero):
    explainer = Explainer(
        GNN(level, is_hetero),
        algorithm=GNNExplainer(epochs=1, lr=0.1, edge_size=0.1),
        explanation_type='model',
        node_mask_type='object',
        edge_mask_type='object',
        model_config={'mode': 'multiclass_classification', 'task_level': level, 'return_type': 'raw'},
    )
    inputs = ({'paper': x}, {('paper', 'to', 'paper'): edge_index}) if is_hetero else (x, edge_index)
    explanation = explainer(*inputs)
    assert explainer.algorithm.node_mask is None
    assert explanation.validate(raise_on_error=True)


def test_that_fails_for_all():
    assert GNNExplainer is None


def test_that_passes_for_gnn_explainer_alone():
    assert hasattr(GNNExplainer(), 'coeffs')
"""


def test_pyg_tests_are_counted_by_level_and_kind(tmp_path):
    folder, out = tmp_path / 'explain' / 'algorithm', tmp_path / 'outcomes.json'
    folder.mkdir(parents=True)
    (folder / 'test_gnn_explainer.py').write_text(TESTS)
    (folder / 'test_another.py').write_text('def test_another():\n    assert False\n')
    script = [sys.executable, ROOT / 'evaluation' / 'pyg_tests.py']
    options = ['--tests', tmp_path / 'explain', '--algorithms', 'FastDnX', '--jobs', '2', '--json', out]
    environment = {**os.environ, 'PYTEST_ADDOPTS': '-n 2'}  # which must not matter
    done = subprocess.run([*script, *options], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [' '.join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == 'GNNExplainer FastDnX'
    places = ['homogeneous, node', 'homogeneous, graph', 'heterogeneous, node', 'heterogeneous, graph']
    counts = ['2 of 2', '1 of 1', '1 of 1', '1 of 1']
    for line, place, count in zip(lines[1:5], places, counts, strict=True):
        assert line.startswith(f'{place} {count} ')
    assert lines[1].endswith(' 1 of 2')
    assert lines[5].startswith('all 5 of 5 ')

    cases = {name.partition('::')[2]: case for name, case in json.loads(out.read_text())['cases'].items()}
    assert len(cases) == 6
    assert cases['test_explanation[node-False]']['outcomes'] == {'GNNExplainer': 'passed', 'FastDnX': 'passed'}
    assert cases['test_that_fails_for_all']['outcomes'] == {'GNNExplainer': 'failed', 'FastDnX': 'failed'}
    alone = cases['test_that_passes_for_gnn_explainer_alone']
    assert alone['outcomes'] == {'GNNExplainer': 'passed', 'FastDnX': 'failed'}
    assert alone['reasons']['FastDnX'].startswith('AssertionError')


def test_a_folder_without_such_tests_is_refused(tmp_path):
    script = runpy.run_path(str(ROOT / 'evaluation' / 'pyg_tests.py'))
    with pytest.raises(ValueError, match=r"'--tests' must be a folder with tests of GNNExplainer \(got "):
        script['files_to_run'](tmp_path)
