r"""PyG's own tests of GNNExplainer, run with each of this package's explainers in its place.

    python evaluation/pyg_tests.py --tests FOLDER      # PyG's folder test/explain: README.md says how to get it

Prints, for each explainer, how many of the cases that GNNExplainer passes it passes too, by kind of graph and by level
of the task. A replacement takes GNNExplainer's arguments and ignores them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections import Counter
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch_geometric import explain
from torch_geometric.explain import GNNExplainer
from torch_geometric.explain.config import ModelConfig

from pyg_dnx import DnX, FastDnX, ProbeDnX

REFERENCE = 'GNNExplainer'
ALGORITHMS = {'FastDnX': FastDnX, 'DnX': DnX, 'ProbeDnX': partial(ProbeDnX, num_probes=16)}
KINDS, LEVELS = ('homogeneous', 'heterogeneous'), ('node', 'edge', 'graph')


class Outcomes(NamedTuple):
    outcome: dict[str, str]  # of each case: 'passed', 'failed' or 'skipped'
    reason: dict[str, str]  # why a case failed
    place: dict[str, tuple[str, str]]  # its kind of graph and its level; known of GNNExplainer's cases
    broken: list[str]  # files that can't be collected


def replacement(name: str) -> type:
    r"""The class that takes GNNExplainer's name."""
    create = ALGORITHMS[name]
    base, options = (create.func, create.keywords) if isinstance(create, partial) else (create, {})

    class Replacement(base):
        node_mask = edge_mask = None  # the tests look at these

        def __init__(self, epochs: int = 100, lr: float = 0.01, **coeffs: Any) -> None:
            super().__init__(**options)

    Replacement.__name__ = name  # as errors have it
    return Replacement


class Watched(GNNExplainer):
    r"""GNNExplainer, which notes the level and the kind of graph that it was used for."""

    level, kind = 'node', 'homogeneous'

    def connect(self, explainer_config: Any, model_config: Any) -> None:
        Watched.level = ModelConfig.cast(model_config).task_level.value
        super().connect(explainer_config, model_config)

    def forward(self, model: torch.nn.Module, x: Any, edge_index: Any, **kwargs: Any) -> Any:
        Watched.kind = KINDS[isinstance(x, dict)]
        return super().forward(model, x, edge_index, **kwargs)


class Recorder:
    r"""A pytest plugin that keeps the outcome of each case."""

    def __init__(self) -> None:
        self.found = Outcomes({}, {}, {}, [])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found.broken.append(str(report.longrepr))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        torch.manual_seed(0)
        Watched.level, Watched.kind = 'node', 'homogeneous'

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        case, known = report.nodeid, self.found.outcome.get(report.nodeid)
        if report.when != 'call' and report.passed:
            return
        if known != 'failed':
            self.found.outcome[case] = report.outcome
        self.found.place[case] = (Watched.kind, Watched.level)
        if report.failed:
            crash = getattr(report.longrepr, 'reprcrash', None)
            self.found.reason[case] = str(report.longrepr if crash is None else crash.message).splitlines()[0]


def files_to_run(folder: Path) -> list[str]:
    r"""The test files that use GNNExplainer."""
    files = [str(path) for path in sorted(folder.rglob('test_*.py')) if REFERENCE in path.read_text('utf-8')]
    if not files:
        raise ValueError(
            f"'--tests' must be a folder with tests of {REFERENCE} (got {str(folder)!r}): see "
            f'evaluation/README.md for how to get them'
        )
    return files


def run_tests(name: str, folder: str, files: list[str]) -> Outcomes:
    r"""Runs test files with ``name`` in GNNExplainer's place. To be called in a process of its own."""
    algorithm = Watched if name == REFERENCE else replacement(name)
    for module in (explain, explain.algorithm, sys.modules[GNNExplainer.__module__]):
        module.GNNExplainer = algorithm
    os.environ.pop('PYTEST_ADDOPTS', None)
    os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    torch.manual_seed(0)  # test files draw their graphs when they are imported
    warnings.simplefilter('ignore')
    recorder = Recorder()
    quiet = ['-p', 'no:terminal', '-p', 'no:cacheprovider', '-p', 'no:warnings']
    with tempfile.TemporaryDirectory() as empty:
        config = Path(empty) / 'pytest.ini'  # so that no settings of a folder above apply
        config.write_text('[pytest]\n', 'utf-8')
        pytest.main(['-c', str(config), '--rootdir', folder, *quiet, *files], plugins=[recorder])
    return recorder.found


def table(reference: Outcomes, found: dict[str, Outcomes]) -> list[str]:
    r"""Passed of total, by kind of graph and level."""
    cases = [case for case, outcome in reference.outcome.items() if outcome == 'passed']
    names = [REFERENCE, *found]

    def line(label: str, chosen: list[str]) -> str:
        passed = [sum(one.outcome.get(case) == 'passed' for case in chosen) for one in (reference, *found.values())]
        return f'{label:<22}' + ''.join(f'{f"{count} of {len(chosen)}":>16}' for count in passed)

    rows = {place: [case for case in cases if reference.place[case] == place] for place in product(KINDS, LEVELS)}
    body = [line(', '.join(place), chosen) for place, chosen in rows.items() if chosen]
    return [' ' * 22 + ''.join(f'{name:>16}' for name in names), *body, line('all', cases)]


def reasons(reference: Outcomes, found: Outcomes, most: int = 5) -> list[str]:
    r"""The errors of most failures."""
    counts = Counter(why for case, why in found.reason.items() if reference.outcome.get(case) == 'passed')
    return [f'{count:>6}  {why}' for why, count in counts.most_common(most)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--tests', required=True, metavar='FOLDER', help="PyG's folder test/explain")
    parser.add_argument('--algorithms', nargs='+', choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument('--jobs', type=int, default=os.cpu_count(), help='how many explainers are tested at a time')
    parser.add_argument('--json', metavar='OUT', help='a file for the outcome of each case')
    args = parser.parse_args()
    folder, names = Path(args.tests).resolve(), [REFERENCE, *args.algorithms]
    run = partial(run_tests, folder=str(folder), files=files_to_run(folder))
    with multiprocessing.get_context('spawn').Pool(args.jobs, maxtasksperchild=1) as pool:
        runs = pool.map(run, names, chunksize=1)
    found = dict(zip(names, runs, strict=True))
    reference = found.pop(REFERENCE)
    if reference.broken or 'passed' not in reference.outcome.values():
        sys.exit('\n'.join(reference.broken) or f'{REFERENCE} itself passes none of these tests')
    print('\n'.join(table(reference, found)))
    for name, one in found.items():
        if errors := reasons(reference, one):
            print(f'\n{name}, most frequent errors:', *errors, sep='\n')
    if args.json is not None:
        cases = {
            case: {
                'kind': reference.place[case][0],
                'level': reference.place[case][1],
                'outcomes': {name: one.outcome.get(case) for name, one in {REFERENCE: reference, **found}.items()},
                'reasons': {name: one.reason[case] for name, one in found.items() if case in one.reason},
            }
            for case in reference.outcome
        }
        content = {'torch_geometric': version('torch_geometric'), 'torch': version('torch'), 'cases': cases}
        Path(args.json).write_text(json.dumps(content, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
