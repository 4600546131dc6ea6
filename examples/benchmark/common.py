r"""What the parts of the benchmark share."""

import json
import os
import platform
import statistics
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch
from torch_geometric.explain.config import ExplainerConfig, ModelConfig

MODEL_CONFIG = ModelConfig(mode='multiclass_classification', task_level='node', return_type='raw')


def side_by_side(functions, repeats):
    r"""Calls all functions in turn, ``repeats`` times, and returns the median seconds of each."""
    for function in functions.values():
        function()
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def connected(algorithm, explanation_type='model'):
    r"""An algorithm that can be used without an Explainer."""
    algorithm.connect(ExplainerConfig(explanation_type, 'object', 'object'), MODEL_CONFIG)
    return algorithm


def say(label, value, bar=''):
    print(f'  {label:<58}{value:>16}   {bar}', flush=True)


def ratio(value):
    return f'{value:,.0f}x' if value >= 100 else f'{value:.2f}x' if value >= 0.1 else f'{value:.1g}x'


def save(folder, name, results):
    r"""Writes results with what they depend on."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    about = {
        'date': date.today().isoformat(),
        'python': platform.python_version(),
        'cores': os.cpu_count(),
        'threads': torch.get_num_threads(),
        **{package: version(package) for package in ('torch', 'torch_geometric')},
    }
    (Path(folder) / f'{name}.json').write_text(json.dumps({'about': about, 'results': results}, indent=2) + '\n')
