r"""Measures explainers of graphs against the model itself, and against the ground truth where there is one.

Results go to `--out`, one line of JSON for each explainer of a model; an interrupted run goes on where it stopped. Then
it writes docs/graph_results.md.

    python evaluation/graph_level.py --data FOLDER
    python evaluation/graph_level.py --data FOLDER --graphs MUTAG --models GIN --seeds 0 --on validation
"""

import argparse
import os.path as osp
import time
import warnings

import graph_page
import torch
from graph_explainers import EDGES, NODES, answers, units
from graph_teachers import accuracy, data_of, split, teacher
from store import Job, Store
from tqdm import tqdm

from pyg_dnx import shared_cache

GRAPHS, MODELS = ('MUTAG', 'Mutagenicity', 'BA-2motif'), ('GCN', 'GIN', 'GAT')
SHARES = (0.1, 0.3, 0.5)


def measure(explain, model, graphs, learn, seed, ways):
    r"""For each way, share and graph: whether the prediction changed; and the area under ROC by the truth."""
    shared_cache.clear()
    start = time.perf_counter()
    scores = explain(model, graphs, learn, seed)
    record = {'seconds': (time.perf_counter() - start) / len(graphs), 'auc': []}
    for way in ways:
        record[way] = {f'{share:g}': {'fidelity_plus': [], 'fidelity_minus': []} for share in SHARES}
    for graph, score in zip(graphs, scores, strict=True):
        for way in ways:
            unit = units(graph, way)
            total = torch.zeros(int(unit.max()) + 1, dtype=torch.float64).index_add_(0, unit, score.detach().double())
            total += 1e-12 * torch.rand(total.shape, generator=torch.Generator().manual_seed(seed))  # ties
            rank = total.argsort(descending=True).argsort()
            top = torch.stack([rank < max(1, round(share * len(rank))) for share in SHARES])[:, unit]
            found = answers(model, graph, torch.cat([torch.ones_like(top[:1]), ~top, top]), way).argmax(dim=1)
            changed = (found[1:] != found[0]).int().view(2, -1)
            for share, plus, minus in zip(SHARES, *changed.tolist(), strict=True):
                record[way][f'{share:g}']['fidelity_plus'].append(plus)
                record[way][f'{share:g}']['fidelity_minus'].append(minus)
        truth = graph.get('edge_truth' if 'dropped' in ways else 'node_truth')
        if truth is not None and bool(truth.any()) and not bool(truth.all()):
            record['auc'].append(area(score, truth))
    return record


def area(score, truth):
    r"""The share of pairs of one inside the truth and one outside that are in order."""
    inside, outside = score[truth].double(), score[~truth].double()
    gap = inside[:, None] - outside
    return float((gap > 0).double().mean() + 0.5 * (gap == 0).double().mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', default='data', help="has, or gets, a folder 'molecules'")
    parser.add_argument('--out', default='results')
    parser.add_argument('--graphs', nargs='+', default=GRAPHS, choices=GRAPHS)
    parser.add_argument('--models', nargs='+', default=MODELS, choices=MODELS)
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--size', type=int, default=24, help='how many graphs are explained')
    parser.add_argument(
        '--on', default='test', choices=('test', 'validation'), help='defaults are chosen on the latter'
    )
    parser.add_argument('--docs', default=graph_page.DOCS, help='where the page goes')
    parser.add_argument('--explainers', nargs='+', help='names of node masks; edge masks begin with "edges: "')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    store = Store(args.out)
    named = {**NODES, **{f'edges: {name}': explain for name, explain in EDGES.items()}}
    part = 'graphs' if args.on == 'test' else 'graphs, validation'
    cells = [(g, m, s) for g in args.graphs for m in args.models for s in args.seeds]
    jobs = [Job(part, *cell, name) for cell in cells for name in args.explainers or named]
    known = None
    for job in (bar := tqdm([job for job in jobs if job not in store.records])):
        bar.set_postfix_str(' '.join(map(str, job[1:])))
        if known != job[1:4]:
            known, every = job[1:4], data_of(job.graph, args.data)
            model = teacher(job.model, job.graph, every, job.seed, osp.join(args.out, 'teachers'))
            learn, choose, test = split(every, job.seed)
            correct = accuracy(model, test)
        graphs = (test if args.on == 'test' else choose)[: args.size]
        ways = ('dropped',) if job.explainer.startswith('edges: ') else ('blanked', 'removed')
        record = measure(named[job.explainer], model, graphs, learn[:1000], job.seed, ways)
        store.add(job, {'accuracy': correct, **record})
    if args.on == 'test' and not args.explainers:
        graph_page.write(store, args.docs)


if __name__ == '__main__':
    main()
