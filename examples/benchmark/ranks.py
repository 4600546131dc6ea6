r"""Several processes on one graph: processor time, memory of its own and bytes of sums of each, against one process.

A process computes in one thread. It is started anew for each measurement, on features, a CSR matrix and outputs that
are memory-mapped.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from common import connected, say
from graphs import power_law
from products import map_file, teacher

from pyg_dnx import FastDnX
from pyg_dnx.distill.solvers import fit_classifier, fit_regressor, fit_stacked
from pyg_dnx.edges import edges_to_csr, load_csr
from pyg_dnx.graph.features import propagate_together
from pyg_dnx.graph.operator import shared_adjacency
from pyg_dnx.run import Run
from pyg_dnx.tables import Tables

GRAPH = {'num_nodes': 200_000, 'num_edges': 3_200_000, 'num_features': 32, 'num_classes': 8}
QUICK = {'num_nodes': 50_000, 'num_edges': 600_000, 'num_features': 32, 'num_classes': 8}
PRODUCTS = {'num_nodes': 2_400_000, 'num_edges': 126_000_000, 'num_features': 100, 'num_classes': 47}
QUICK_PRODUCTS = {'num_nodes': 120_000, 'num_edges': 3_000_000, 'num_features': 100, 'num_classes': 47}


class Meter:
    r"""Processor seconds, seconds and the peak of anonymous memory of each stage."""

    def __init__(self):
        self.stages, self.peak, self.own = {}, 0, 0.0
        self.base = self.anonymous()
        threading.Thread(target=self.watch, daemon=True).start()

    @staticmethod
    def anonymous():
        line = next(line for line in Path('/proc/self/status').read_text().splitlines() if line.startswith('RssAnon'))
        return 1024 * int(line.split()[1])

    def watch(self):
        while True:
            self.peak = max(self.peak, self.anonymous())
            self.own = time.thread_time()  # which is not the stage's
            time.sleep(0.02)

    def stage(self, name, function):
        self.peak, cpu, start = 0, time.process_time() - self.own, time.perf_counter()
        found = function()
        self.stages[name] = {
            'cpu': time.process_time() - self.own - cpu,
            'seconds': time.perf_counter() - start,
            'memory': max(0, self.peak - self.base),
        }
        return found


def inputs(folder, sizes):
    x = map_file(folder / 'x', (sizes['num_nodes'], sizes['num_features']), torch.float32)
    outputs = map_file(folder / 'outputs', (sizes['num_nodes'], sizes['num_classes']), torch.float32)
    return x, load_csr(folder / 'csr'), outputs


def by_stages(folder, shared, sizes, group):
    r"""Each stage by itself: in float64, two hops, all nodes explained."""
    x, adjacency, outputs = inputs(folder, sizes)
    warm = torch.rand(64, 4, dtype=torch.float64)  # libraries are loaded when they are called first
    for solver in ('newton', 'newton-cg'):
        fit_classifier(warm, warm / warm.sum(dim=1, keepdim=True), 1e-5, solver)
    run, meter = Run(group=group, tables=Tables(shared / 'stages')), Meter()
    run.wait()
    operator = meter.stage('operator', lambda: shared_adjacency(adjacency, torch.float32, run))
    sgc = ((0.0, 0.0, 1.0),)
    features = meter.stage('propagate', lambda: propagate_together(operator, x, sgc, torch.float64, run, 'features'))
    probs = outputs.double().softmax(dim=1)
    before = run.counted['summed']
    fit = meter.stage('distil', lambda: fit_classifier(features, probs, 1e-5))
    summed = run.counted['summed'] - before
    meter.stage('distil, regression', lambda: fit_regressor(features, probs, 1e-5))
    rows = 2 * len(x)
    both = lambda: fit_stacked(((part, probs[part.mine]) for part in (features, features)), rows, 1e-5)  # noqa: E731
    meter.stage('distil, two masks', both)
    algorithm = connected(FastDnX(num_hops=2, cache=None))
    given = {'teacher_outputs': outputs, 'checkpoint': shared / 'whole', 'group': group, 'progress': False}
    meter.stage('all before explaining', lambda: algorithm.distill(None, x, adjacency, **given))
    meter.stage('all', lambda: algorithm.explain_nodes(None, x, adjacency, top_k=10, **given))
    meter.stage('all, read', lambda: algorithm.explain_nodes(None, x, adjacency, top_k=10, **given))
    explained = meter.stages['all']['cpu'] - meter.stages['all, read']['cpu']
    meter.stages['explain'] = {**meter.stages['all'], 'cpu': explained}
    return {'stages': meter.stages, 'summed': summed, 'weight': fit.weight.flatten().tolist()}


def in_all(folder, shared, sizes, group):
    r"""Everything as a user calls it."""
    x, adjacency, outputs = inputs(folder, sizes)
    algorithm, meter = connected(FastDnX(num_hops=2, cache=None)), Meter()
    nodes = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[:4000]
    given = {'teacher_outputs': outputs, 'index': nodes, 'top_k': 10, 'progress': False}
    if group is not None:
        given |= {'checkpoint': shared, 'group': group}
    meter.stage('all', lambda: algorithm.explain_nodes(None, x, adjacency, **given))
    return {'stages': meter.stages}


def start(task, folder, sizes, num_processes, threads=1):
    r"""What a task measured in each of some processes, of a group if there are several or it is named so."""
    with tempfile.TemporaryDirectory() as shared:
        environment = {**os.environ, 'OMP_NUM_THREADS': str(threads)}
        command = [sys.executable, '-W', 'ignore', __file__, task, str(folder), shared, json.dumps(sizes)]
        processes = [
            subprocess.Popen([*command, str(rank), str(num_processes)], env=environment, stdout=subprocess.PIPE)
            for rank in range(num_processes)
        ]
        return [json.loads(process.communicate()[0]) for process in processes]


def prepare(folder, sizes):
    x, edge_index, _ = power_law(**sizes)
    outputs = teacher(x, edge_index, sizes['num_classes'])
    for label, tensor in (('x', x), ('outputs', outputs)):
        map_file(folder / label, tensor.shape, tensor.dtype).copy_(tensor)
    edges_to_csr(edge_index, folder / 'csr', sizes['num_nodes'])


def run(args):
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), QUICK if args.quick else GRAPH)
        found = {number: start('by_stages', name, QUICK if args.quick else GRAPH, number) for number in (1, 2, 4)}
    print('Several processes of one thread each, against one')
    first = found[1][0]
    for stage in ('operator', 'propagate', 'distil', 'distil, regression', 'distil, two masks', 'explain'):
        most = max(each['stages'][stage]['cpu'] for each in found[2])
        say(
            f'processor seconds of each of two / of one, {stage}',
            f'{most / first["stages"][stage]["cpu"]:.2f}x',
            '<= 0.6',
        )
    for stage in ('propagate', 'distil', 'explain', 'all before explaining'):
        most = max(each['stages'][stage]['memory'] for each in found[4])
        say(f'own memory, four / one, {stage}', f'{most / max(1, first["stages"][stage]["memory"]):.2f}x', '<= 0.5')
        say(f'own memory of one, {stage}', f'{first["stages"][stage]["memory"] / 2**20:.0f} MB')
    say('sums of each of four, distillation', f'{max(each["summed"] for each in found[4]) / 1e6:.2f} MB', '<= 5 MB')
    errors = [
        max(abs(one - other) for one, other in zip(each['weight'], first['weight'], strict=True))
        for number in (2, 4)
        for each in found[number]
    ]
    say('largest difference of a weight', f'{max(errors):.1e}', '<= 1e-10 in float64')
    sizes = QUICK_PRODUCTS if args.quick else PRODUCTS
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), sizes)
        alone, together = start('in_all', name, sizes, 1, threads=2), start('in_all', name, sizes, 2)
    seconds = [max(each['stages']['all']['seconds'] for each in each_of) for each_of in (together, alone)]
    say('like ogbn-products: two processes / one of two threads', f'{seconds[0] / seconds[1]:.2f}x', '<= 1')
    return {'processes': found, 'products': {'together': together, 'alone': alone}}


if __name__ == '__main__':
    task, folder, shared, sizes, rank, num_processes = sys.argv[1:]
    group = None
    if task == 'by_stages' or int(num_processes) > 1:
        torch.distributed.init_process_group(
            'gloo', init_method=f'file://{shared}/store', rank=int(rank), world_size=int(num_processes)
        )
        group = torch.distributed.group.WORLD
    measured = {'by_stages': by_stages, 'in_all': in_all}[task](
        Path(folder), Path(shared) / 'shared', json.loads(sizes), group
    )
    print(json.dumps(measured))
