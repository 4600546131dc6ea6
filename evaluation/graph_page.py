r"""Writes what `graph_level.py` measured as a page, with intervals from resampling graphs and teachers."""

import json
import os.path as osp

import numpy as np
from graph_explainers import EDGES, WAYS
from metrics import characterization
from page import made, markdown

DOCS = osp.join(osp.dirname(__file__), '..', 'docs')
REPEATS = 1000
SHOWN = {  # of node masks; {} is what was taken away when it was judged
    'random': 'random',
    'FastDnX': 'FastDnX',
    'ProbeDnX, 128, asked as judged': 'ProbeDnX, {}, 128',
    'ProbeDnX, 512, asked as judged': 'ProbeDnX, {}, 512',
    'ProbeDnX (default)': 'ProbeDnX, removed, 512',
    'GNNExplainer': 'GNNExplainer',
    'PGExplainer': 'PGExplainer',
    'IG, logit': 'IG, logit',
    'IG, probability': 'IG, probability',
    'Saliency': 'Saliency',
    'occlusion, asked as judged': 'occlusion, {}',
    'KernelSHAP, 128, asked as judged': 'KernelSHAP, {}, 128',
    'KernelSHAP, 512, asked as judged': 'KernelSHAP, {}, 512',
}
PAIRS = {  # of which one minus the other is shown, at about as many questions
    'ProbeDnX 512 − IG, logit': ('ProbeDnX, {}, 512', 'IG, logit'),
    'ProbeDnX 512 − IG, probability': ('ProbeDnX, {}, 512', 'IG, probability'),
    'ProbeDnX 512 − GNNExplainer': ('ProbeDnX, {}, 512', 'GNNExplainer'),
    'ProbeDnX 32 − occlusion': ('ProbeDnX, {}, 32', 'occlusion, {}'),
    'ProbeDnX 32 − KernelSHAP 32': ('ProbeDnX, {}, 32', 'KernelSHAP, {}, 32'),
    'ProbeDnX 128 − KernelSHAP 128': ('ProbeDnX, {}, 128', 'KernelSHAP, {}, 128'),
    'ProbeDnX 512 − KernelSHAP 512': ('ProbeDnX, {}, 512', 'KernelSHAP, {}, 512'),
    'FastDnX − GNNExplainer': ('FastDnX', 'GNNExplainer'),
}


def draws(store, graph, explainer, way, model=None):
    r"""Characterization, the mean over teachers and shares, [1 + REPEATS]; the first is that of the sample itself."""
    chosen = store.select('graphs', graph=graph, explainer=explainer, **({} if model is None else {'model': model}))
    teachers = sorted(job for job in chosen if way in chosen[job])
    if not teachers:
        return None
    found = []
    for job in teachers:
        sides = [
            np.array([row[key] for row in chosen[job][way].values()]) for key in ('fidelity_plus', 'fidelity_minus')
        ]
        size = sides[0].shape[1]
        generator = np.random.default_rng([job.seed, *job.graph.encode()])
        places = np.concatenate([np.arange(size)[None], generator.integers(size, size=(REPEATS, size))])
        plus, minus = (side[:, places].mean(axis=2) for side in sides)
        found.append(characterization(plus, minus).mean(axis=0))
    found, count = np.stack(found), len(found)
    generator = np.random.default_rng(list(graph.encode()))
    every = np.insert(generator.integers(count, size=(count, REPEATS)), 0, np.arange(count), axis=1)
    return np.take_along_axis(found, every, axis=0).mean(axis=0)


def with_interval(values):
    if values is None:
        return None
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return {'value': float(values[0]), 'low': float(low), 'high': float(high)}


def plain(values):
    return None if values is None else {'value': float(values[0])}


def area(store, graph, explainer):
    rows = [np.mean(r['auc']) for r in store.select('graphs', graph=graph, explainer=explainer).values() if r['auc']]
    return {'value': float(np.mean(rows))} if rows else None


def tables(store):
    graphs = sorted({job.graph for job in store.select('graphs')})
    nodes, edges, pairs, gin = [], [], [], []
    for name, key in SHOWN.items():
        row, one = [name], [name]
        for graph in graphs:
            row += [plain(draws(store, graph, key.format(way), way)) for way in WAYS]
            row.append(area(store, graph, key.format('removed')))
        for way in WAYS:
            one.append(with_interval(draws(store, 'Mutagenicity', key.format(way), way, 'GIN')))
        nodes.append(row)
        gin.append(one)
    for name in EDGES:
        row = [name]
        for graph in graphs:
            row += [plain(draws(store, graph, f'edges: {name}', 'dropped')), area(store, graph, f'edges: {name}')]
        edges.append(row)
    for name, (one, other) in PAIRS.items():
        for way in WAYS:
            row = [f'{name}, {way}']
            for graph in graphs:
                both = [draws(store, graph, key.format(way), way) for key in (one, other)]
                row.append(None if both[0] is None or both[1] is None else with_interval(both[0] - both[1]))
            pairs.append(row)
    dropped = [f'{graph}, {what}' for graph in graphs for what in ('dropped', 'AUC')]
    sides = [f'{graph}, {what}' for graph in graphs for what in (*WAYS, 'AUC')]
    return {
        'nodes': {'columns': ['explainer', *sides], 'rows': nodes},
        'Mutagenicity, GIN': {'columns': ['explainer', *WAYS], 'rows': gin},
        'differences': {'columns': ['difference', *graphs], 'rows': pairs},
        'edges': {'columns': ['explainer', *dropped], 'rows': edges},
    }


def accuracies(store):
    found = {}
    for job, record in store.select('graphs', explainer='random').items():
        found.setdefault(f'{job.graph} {job.model}', []).append(record['accuracy'])
    return ', '.join(f'{name} {np.mean(values):.2f}' for name, values in sorted(found.items()))


def write(store, docs=DOCS):
    r"""The page and the numbers behind it."""
    found = {'made': made(store.select('graphs')), 'tables': tables(store), 'accuracy': accuracies(store)}
    with open(osp.join(docs, 'graph_results.json'), 'w', encoding='utf-8') as file:
        json.dump(found, file, indent=1, ensure_ascii=False)
    with open(osp.join(osp.dirname(__file__), 'graph_results.md.in'), encoding='utf-8') as file:
        page = file.read()
    for key, table in found['tables'].items():
        page = page.replace(f'{{{key}}}', markdown(table))
    for key, value in {**found['made'], 'accuracy': found['accuracy']}.items():
        page = page.replace(f'{{{key}}}', str(value))
    with open(osp.join(docs, 'graph_results.md'), 'w', encoding='utf-8') as file:
        file.write(page)
