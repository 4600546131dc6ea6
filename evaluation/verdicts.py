r"""Verdicts judged by questions that they did not ask: nodes removed, noise on what is left out, fresh random masks.

Results go to `--out`, one line of JSON for each cell; an interrupted run goes on where it stopped. Then come tables.

    python evaluation/verdicts.py --data FOLDER
    python evaluation/verdicts.py --data FOLDER --graphs texas --models GCN --nodes 20
"""

import argparse
import os.path as osp
import time
import warnings
from itertools import pairwise, product

import numpy as np
import torch
from explainers import connect
from heterophilous import HETEROPHILOUS
from measures import listed, sample
from probes import Probes
from run import graph_of
from store import Job, Store
from summary import TITLES
from teachers import EPOCHS, teacher

from pyg_dnx import DnX, FastDnX, ProbeDnX, shared_cache
from pyg_dnx.results.measured import VERDICTS

GRAPHS = ('ba_house', 'ba_bottle', *HETEROPHILOUS)  # on which no threshold was chosen
MODELS = ('GCN', 'GAT', 'GIN', 'SAGE')
TRAINED = {'': None, ', weak': 15}  # epochs
EXPLAINERS = {
    'FastDnX': FastDnX,
    'FastDnX, masked': lambda: FastDnX(distillation='masked'),
    'DnX': DnX,
    'ProbeDnX': ProbeDnX,
}
TOP, FRESH, DRAWS = 5, 200, 5
NOISE = 1.0  # in standard deviations of each feature


def measure(model, data, name, seed, size):
    r"""For each node: the verdict, whether its class is kept under each question, and the fresh masks it is above."""
    shared_cache.clear()
    probes = Probes(model, data, sample(torch.arange(data.num_nodes), size, seed))
    algorithm, start = connect(model, EXPLAINERS[name](), node_mask_type='object'), time.perf_counter()
    found = algorithm.explain_nodes(model, data.x, data.edge_index, index=probes.nodes, top_k=TOP, certify=True)
    seconds, nodes = time.perf_counter() - start, found.top_k(TOP)[0]
    keep = torch.zeros(size + 1, data.num_nodes + 1, dtype=torch.bool)[: len(nodes)]
    keep = keep.scatter(1, nodes.masked_fill(nodes < 0, data.num_nodes), True)[:, :-1] & probes.near
    target = probes.target
    noisy = torch.stack([under_noise(probes, keep, draw).argmax(dim=1) == target for draw in range(DRAWS)])
    above_kept, above_removed = fresh(probes, keep, seed)
    return {
        'seconds': seconds,
        'room': probes.near.sum(dim=1).tolist(),
        'verdict': found.certificate.verdict.tolist(),
        'blanked': listed(probes.masked(keep.float()).argmax(dim=1) == target),
        'removed': listed(probes.cut(keep).argmax(dim=1) == target),
        'noise': listed(noisy.double().mean(dim=0) > 0.5),
        'above_kept': listed(above_kept),
        'above_removed': listed(above_removed),
    }


@torch.no_grad()
def under_noise(probes, keep, seed):
    r"""The probabilities if noise takes the place of the features that are left out, [B, C]."""
    generator = torch.Generator().manual_seed(seed)
    spread, found = NOISE * probes.data.x.std(dim=0), []
    for rows, part in probes.parts:
        x = probes.data.x[part.node]
        noise = torch.randn(x.shape, generator=generator) * spread
        inside = keep[rows][part.owner, part.node, None]
        found.append(probes.model(torch.where(inside, x, noise), part.edge_index)[part.root].softmax(dim=1))
    return torch.cat(found)


def fresh(probes, keep, seed):
    r"""The share of fresh random masks of the same size that keep less, and that take less; ties count half, [B]."""
    generator, classes = torch.Generator().manual_seed(10**6 + seed), probes.target[:, None]

    def ask(mask):
        return [probes.masked(side.float()).gather(1, classes)[:, 0].double() for side in (mask, ~mask)]

    size, (kept, removed) = keep.sum(dim=1, keepdim=True), ask(keep)
    above = torch.zeros(2, len(keep), dtype=torch.float64)
    for _ in range(FRESH):
        drawn = torch.rand(keep.shape, generator=generator).masked_fill(~probes.near, -1.0)
        other = ask(drawn.argsort(dim=1, descending=True).argsort(dim=1) < size)
        for side, gap in enumerate((kept - other[0], other[1] - removed)):
            above[side] += ((gap > 1e-6).double() + 0.5 * (gap.abs() <= 1e-6).double()) / FRESH
    return above


def columns(records):
    every = {key: np.concatenate([np.asarray(record[key], dtype=float) for record in records]) for key in KEYS}
    every['all'] = (every['removed'] > 0) & (every['noise'] > 0) & (every['blanked'] > 0)
    every['all'] &= (every['above_kept'] >= 0.9) & (every['above_removed'] >= 0.9)
    return every


KEYS = ('verdict', 'blanked', 'removed', 'noise', 'above_kept', 'above_removed')


def row(label, records):
    found, cells = columns(records), []
    for number in range(len(VERDICTS)):
        inside = found['verdict'] == number
        size = int(inside.sum())
        if size == 0:
            cells.append('0')
            continue
        kept = [found[key][inside].mean() for key in ('removed', 'noise')]
        above = [(found[key][inside] >= 0.9).mean() for key in ('above_kept', 'above_removed')]
        shares = ' '.join(f'{value:.0%}' for value in (*kept, *above, found['all'][inside].mean()))
        cells.append(f'{size}: {shares}')
    good = found['all'].astype(bool)
    told = f'{(found["verdict"][good] == 0).mean():.0%}' if good.any() else ''
    print(f'| {label} | {" | ".join(cells)} | {told} |')


def tables(store):
    r"""For each verdict: how many, and how many of them keep the class with nodes removed and under noise, are above
    90% of the fresh masks in what they keep and take, and all of it. Last: how many of the latter are trustworthy."""
    print(f'| | {" | ".join(VERDICTS)} | trustworthy, of those that pass all |\n|{"---|" * (len(VERDICTS) + 2)}')
    every = store.select('verdicts')
    row('all', every.values())
    for field, names in (('explainer', EXPLAINERS), ('graph', GRAPHS), ('model', None)):
        for name in names or sorted({job.model for job in every}):
            if records := [record for job, record in every.items() if getattr(job, field) == name]:
                row(TITLES.get(name, name), records)
    backwards = []
    for job, record in every.items():
        found = columns([record])
        shares = [found['all'][found['verdict'] == number] for number in (0, 1, 2)]
        shares = [share.mean() for share in shares if share.size > 4]
        if any(later > earlier for earlier, later in pairwise(shares)):
            backwards.append(' '.join(map(str, job[1:])))
    print(f'\nCells in which the order is reversed: {len(backwards)} of {len(every)} {backwards or ""}')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', default='data')
    parser.add_argument('--out', default='results')
    parser.add_argument('--graphs', nargs='+', default=['ba_house', 'ba_bottle', 'texas'], choices=GRAPHS)
    parser.add_argument('--models', nargs='+', default=list(MODELS), choices=MODELS)
    parser.add_argument('--explainers', nargs='+', default=list(EXPLAINERS), choices=EXPLAINERS)
    parser.add_argument('--seeds', nargs='+', type=int, default=[0])
    parser.add_argument('--nodes', type=int, default=20)
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    store = Store(args.out)
    for graph, kind, weak, seed, name in product(args.graphs, args.models, TRAINED, args.seeds, args.explainers):
        job = Job('verdicts', graph, f'{kind}{weak}', seed, name)
        if job in store.records:
            continue
        data, epochs = graph_of(graph, args.data), TRAINED[weak] or EPOCHS.get(graph, 1000)
        model = teacher(kind, graph, data, seed, epochs, osp.join(args.out, f'teachers{weak.replace(", ", "-")}'))
        start = time.perf_counter()
        store.add(job, measure(model, data, name, seed, args.nodes))
        print(f'{" ".join(map(str, job[1:]))}: {time.perf_counter() - start:.0f} s', flush=True)
    tables(store)


if __name__ == '__main__':
    main()
