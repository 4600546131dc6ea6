r"""Masks improved by `refine`, beside ProbeDnX and both kinds of Integrated Gradients at equal size.

Results go to `--out`, one line of JSON for each cell; an interrupted run goes on where it stopped. Then come tables.

    python evaluation/refined.py --data FOLDER
    python evaluation/refined.py --data FOLDER --graphs Cora texas --models SAGE --seeds 0 --nodes 20
"""

import argparse
import os.path as osp
import time
import warnings
from itertools import product

import numpy as np
import torch
from explainers import CONFIG
from heterophilous import HETEROPHILOUS
from intervals import Faithfulness, matched, with_interval
from measures import explain, listed, sample
from metrics import highest, size_of
from probes import Probes
from run import PROBED_ON, graph_of
from store import Job, Store
from summary import TITLES
from teachers import EPOCHS, teacher
from torch_geometric.explain import Explainer, Explanation

from pyg_dnx import FastDnX, refine
from pyg_dnx.datasets import BITCOIN_GRAPHS

SHARES = (0.05, 0.1, 0.5)  # of what the model sees, as in docs/beyond.md
BASES = ('ProbeDnX', 'IG, logit', 'IG, probability')
MODELS = ('GCN', 'GAT', 'GIN', 'SAGE')
TOLD = ('characterization', 'fidelity_minus', 'unfaithfulness')
HELD_OUT = tuple(HETEROPHILOUS)  # graphs on which nothing was chosen
RIVALS = (*BASES[1:], *(f'{name}, refined' for name in BASES[1:]))


def measure(model, data, base, seed, size):
    r"""Records before and after: for each share and node whether predictions change, evaluations and seconds."""
    probes = Probes(model, data, sample(torch.arange(data.num_nodes), size, seed))
    node, _, _ = explain(base, probes, data, seed)
    hard = {share: highest(node, size_of(share, node)) for share in SHARES}
    explainer = Explainer(model, FastDnX(), 'model', CONFIG, node_mask_type='object')
    with torch.no_grad():
        prediction = model(data.x, data.edge_index)
    before, after = {'nodes': probes.nodes.tolist()}, {'seconds': 0.0, 'evaluations': []}
    for share, masks in hard.items():
        given = []
        for row, mask in enumerate(masks):
            score = node[row].masked_fill(~probes.near[row], 0.0)
            one = Explanation(x=data.x, edge_index=data.edge_index, node_mask=mask[:, None].float(), node_score=score)
            one.index, one.prediction, one._model_args = probes.nodes[row], prediction, []
            given.append(one)
        start = time.perf_counter()
        found = refine(explainer, given, progress=False)
        after['seconds'] += time.perf_counter() - start
        after['evaluations'] += found.num_evaluations.tolist()
        better = torch.stack([one.node_mask[:, 0] > 0 for one in found])
        before[f'{share:g}'], after[f'{share:g}'] = answers(probes, masks), answers(probes, better)
    return before, after


def answers(probes, hard):
    kept, removed = probes.masked(hard.float()), probes.masked(1.0 - hard.float())
    divergence = (torch.xlogy(kept, kept) - torch.xlogy(kept, probes.probs)).sum(dim=1).clamp(min=0.0)
    return {
        'fidelity_plus': listed(removed.argmax(dim=1) != probes.target),
        'fidelity_minus': listed(kept.argmax(dim=1) != probes.target),
        'unfaithfulness': listed(1.0 - (-divergence).exp()),
    }


def gap(store, graphs, one, other, key='characterization', **only):
    r"""The paired difference over graphs and teachers, resampled, [1 + REPEATS]; `None` if nothing was measured."""
    shares = [f'{share:g}' for share in SHARES]
    pairs = [matched(store, 'refined', graph, one, other, shares, **only) for graph in graphs]
    found = [a.of(key) - b.of(key) for a, b in filter(None, pairs)]
    return np.mean(found, axis=0) if found else None


def shown(draws):
    if draws is None:
        return ''
    cell = with_interval(draws)
    return f'{cell["value"]:.3f} [{cell["low"]:.3f}, {cell["high"]:.3f}]'


def tables(store):
    graphs = [graph for graph in (*PROBED_ON, *HELD_OUT) if store.select('refined', graph=graph)]
    shares, name = [f'{share:g}' for share in SHARES], f'{BASES[0]}, refined'
    print('| explainer | characterization | fidelity- | unfaithfulness | evaluations: mean, most |')
    print('|---|---|---|---|---|')
    for label in (*BASES, *(f'{base}, refined' for base in BASES)):
        cells = (store.select('refined', graph=graph, explainer=label) for graph in graphs)
        every = [Faithfulness(records, shares=shares) for records in cells if records]
        cells = [shown(np.mean([one.of(key) for one in every], axis=0)) for key in TOLD]
        records = store.select('refined', explainer=label).values()
        spent = [count for record in records for count in record.get('evaluations', ())]
        print(f'| {label} | {" | ".join(cells)} | {f"{np.mean(spent):.0f}, {max(spent)}" if spent else ""} |')
    print(f'\n| {name} minus | all | its fidelity- | {" | ".join(TITLES.get(g, g) for g in graphs)} |')
    print('|---' * (len(graphs) + 3) + '|')
    for rival in (BASES[0], *RIVALS):
        every = [shown(gap(store, graphs, name, rival)), shown(gap(store, graphs, name, rival, 'fidelity_minus'))]
        print(f'| {rival} | {" | ".join(every + [shown(gap(store, [g], name, rival)) for g in graphs])} |')
    teachers = sorted({(job.graph, job.model, job.seed) for job in store.select('refined', explainer=name)})
    print(f'\nWholly below zero, of {len(teachers)} teachers:')
    for rival in RIVALS:
        found = {t: gap(store, [t[0]], name, rival, model=t[1], seed=t[2]) for t in teachers}
        below = [t for t, draws in found.items() if draws is not None and np.quantile(draws[1:], 0.975) < 0]
        above = sum(draws is not None and np.quantile(draws[1:], 0.025) > 0 for draws in found.values())
        print(f'- {rival}: {len(below)} (wholly above: {above}) {below or ""}')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', default='data')
    parser.add_argument('--out', default='results')
    parser.add_argument('--graphs', nargs='+', default=[*PROBED_ON, *HELD_OUT], choices=[*PROBED_ON, *HELD_OUT])
    parser.add_argument('--models', nargs='+', default=list(MODELS), choices=MODELS)
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1])
    parser.add_argument('--nodes', type=int, default=40, help='a quarter of them on Bitcoin-Alpha')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    store = Store(args.out)
    for graph, kind, seed, base in product(args.graphs, args.models, args.seeds, BASES):
        names = (base, f'{base}, refined')
        done = all(Job('refined', graph, kind, seed, name) in store.records for name in names)
        if done or (graph in BITCOIN_GRAPHS and kind == 'GAT'):
            continue
        data = graph_of(graph, args.data)
        model = teacher(kind, graph, data, seed, EPOCHS.get(graph, 1000), osp.join(args.out, 'teachers'))
        start, size = time.perf_counter(), args.nodes // 4 if graph in BITCOIN_GRAPHS else args.nodes
        for name, record in zip(names, measure(model, data, base, seed, size), strict=True):
            store.add(Job('refined', graph, kind, seed, name), record)
        print(f'{graph}, {kind}, {seed}, {base}: {time.perf_counter() - start:.0f} s', flush=True)
    tables(store)


if __name__ == '__main__':
    main()
