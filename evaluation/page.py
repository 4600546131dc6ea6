r"""Writes what `run.py` measured as tables and pictures: docs/paper.md, docs/tables/paper.md and others.

With their JSON and images. A page keeps its tables of parts that were not measured anew.

    python evaluation/page.py --out results --data FOLDER
    python evaluation/page.py --out results --data FOLDER --pages paper recipe
"""

import argparse
import json
import os
import os.path as osp
import platform
import time
from collections.abc import Callable
from typing import NamedTuple

import intervals
import paper
import pictures
import summary
import torch
import torch_geometric
from explainers import BY_EVIDENCE, BY_RECIPE, DROPPED, EDGE_EXPLAINERS, EXPLAINERS, JUDGED, PROBED, RIVALS
from feature_explainers import ZEROED
from link_tables import link_times_table, links_tables
from run import applies
from sanity import CHECKED
from store import Store

import pyg_dnx

DOCS = osp.join(osp.dirname(__file__), '..', 'docs')
HERE = osp.dirname(__file__)
PAPER_PARTS = ('teachers', 'distillation', 'truth', 'appendix', 'edge_truth', 'epochs', 'fidelity', 'times')
TAUGHT = (*summary.PAPER_MODELS, 'plain GIN')
MOTIF_TEACHERS = {model: figures[: len(summary.MOTIF_GRAPHS)] for model, figures in paper.TEACHERS.items()}
# The paper has one edge score; the package's others are held against its figures, too.
EDGES = {m: {e: rows[e.split(',')[0]] for e in EDGE_EXPLAINERS} for m, rows in paper.EDGES.items()}


def papers_tables(store):
    r"""The paper's tables, by name; each has columns and rows of labels and cells."""
    motif, bitcoin = summary.MOTIF_GRAPHS, summary.BITCOIN_GRAPHS
    both = (*motif, *bitcoin)
    tops = [(graph, f'top {size}') for graph in bitcoin for size in (3, 4, 5)]
    labels = [f'{summary.TITLES[graph]}, {top}' for graph, top in tops]

    def precision(kind, hops, published):
        keys = [(graph, f'{kind}, {hops}-hop, {top}') for graph, top in tops]
        found = summary.by_explainer(store, 'truth', keys, published, JUDGED, labels)
        ceilings = [
            summary.cell(summary.over_seeds(store, 'truth', f'{key}, ceiling', graph=graph, explainer='FastDnX'))
            for graph, key in keys
        ]
        found['rows'].append(['', 'ceiling', *ceilings])
        return found

    accuracies = [(graph, 'accuracy') for graph in motif]
    nodes = summary.by_explainer(store, 'truth', accuracies, paper.NODES, JUDGED, motif)
    ceilings = [
        summary.cell(summary.over_seeds(store, 'truth', 'ceiling', graph=g, explainer='FastDnX')) for g in motif
    ]
    nodes['rows'].append(['', 'ceiling', *ceilings])
    edges = summary.by_explainer(store, 'truth', [(g, 'auc') for g in motif], paper.EDGES, JUDGED, motif)
    scored = summary.by_explainer(store, 'edge_truth', [(g, 'auc') for g in motif], EDGES, EDGE_EXPLAINERS, motif)
    return {
        'teachers': summary.by_model(store, 'teachers', 'accuracy', paper.TEACHERS, both, '', TAUGHT),
        'distillation': summary.by_model(store, 'distillation', 'agreement', paper.DISTILLATION, both, 'ours'),
        'distillation, time': summary.distillation_time(store, both),
        'nodes': nodes,
        'nodes, others': summary.by_explainer(
            store, 'truth', [(g, 'accuracy_others') for g in motif], {}, JUDGED, motif
        ),
        'appendix': summary.by_explainer(store, 'appendix', accuracies, paper.NODES, ('FastDnX', 'DnX'), motif),
        'appendix, teachers': summary.by_model(store, 'appendix', 'test', MOTIF_TEACHERS, motif, 'FastDnX'),
        'epochs': summary.epochs_table(store),
        'bitcoin, 1-hop': precision('published', 1, paper.BITCOIN_FIRST_HOP),
        'bitcoin, 3-hop': precision('published', 3, paper.BITCOIN_NODES),
        'bitcoin, corrected': precision('corrected', 3, {}),
        'edges': {'columns': edges['columns'], 'rows': edges['rows'] + scored['rows']},
        'bitcoin, edges': summary.by_explainer(
            store, 'truth', [(g, 'auc') for g in bitcoin], paper.BITCOIN_EDGES, JUDGED, bitcoin
        ),
        **summary.fidelity_tables(store, JUDGED),
        'times': summary.times_table(store),
    }


def recipe(store):
    return {'nodes': summary.recipe_table(store, BY_RECIPE), **intervals.recipe_tables(store, BY_RECIPE)}


def recipe_bars(found):
    return {f'{name}, met': summary.met_by(found['nodes'], name) for name in BY_RECIPE}


def beyond_bars(found):
    families = ('by kind', 'by teacher')
    return {f'{each}, {key}': n for each in families for key, n in intervals.counts(found[f'probes, {each}']).items()}


def removal_bars(found):
    return {f'teachers of {part}': max((row[1] for row in found[key]['rows']), default=0)
            for part, key in (('edges', 'edges'), ('features', 'columns'))}  # fmt: skip


class Page(NamedTuple):
    tables: dict  # from parts to what makes tables of them, by name; each has columns and rows of labels and cells
    bars: Callable = lambda found: {}  # what the page says of its tables in numbers


PAGES = {
    'paper': Page({PAPER_PARTS: papers_tables}, summary.bars),
    'results': Page(
        {
            ('faithfulness',): lambda store: intervals.faithfulness_tables(store, EXPLAINERS),
            ('ridge',): lambda store: {'ridge': summary.ridge_table(store)},
            ('options',): lambda store: {'options': intervals.options_table(store)},
            ('sanity',): lambda store: {'sanity': summary.sanity_table(store, CHECKED)},
            ('planted',): lambda store: {'planted': summary.planted_table(store)},
        }
    ),
    'beyond': Page({('probes',): lambda store: intervals.probes_tables(store, PROBED)}, beyond_bars),
    'rivals': Page({('faithfulness',): lambda store: intervals.rivals_tables(store, RIVALS)}),
    'recipe': Page({('recipe',): recipe}, recipe_bars),
    'edges_and_features': Page(
        bars=removal_bars,
        tables={
            ('edges',): lambda store: intervals.removal_tables(
                store, 'edges', DROPPED, {'edges': '', 'pairs': 'pairs, '}
            ),
            ('features',): lambda store: intervals.removal_tables(
                store, 'features', ZEROED, {'columns': '', 'entries': 'entries, '}
            ),
        },
    ),
    'links_results': Page({('links',): links_tables, ('link_times',): link_times_table}),
    'evidence': Page(
        {
            ('evidence',): lambda store: {
                'evidence': summary.evidence_table(store, BY_EVIDENCE),
                'doubts': summary.doubts_table(store),
            }
        }
    ),
}


def text(value):
    r"""A cell as it is printed: value, ± spread or [interval], (the paper's); bold if not below the paper's."""
    if value is None:
        return '–'
    if not isinstance(value, dict):
        return str(value)
    digits = value.get('digits', 3)
    found = f'{value["value"]:.{digits}f}'
    if 'spread' in value:
        found += f' ±{value["spread"]:.{digits}f}'
    if 'low' in value:
        found += f' [{value["low"]:.{digits}f}, {value["high"]:.{digits}f}]'
    if value.get('sure'):
        found += ' \\*'
    if value.get('paper') is not None:
        found = f'**{found}**' if value.get('met') else found
        found += f' ({value["paper"]:g})'
    return found


def markdown(table):
    lines = [table['columns'], ['---'] * len(table['columns']), *([text(c) for c in row] for row in table['rows'])]
    return '\n'.join('| ' + ' | '.join(summary.TITLES.get(word, word) for word in line) + ' |' for line in lines)


def made(records):
    r"""On what, with what, from which seeds and when."""
    packages = {'torch': torch, 'torch_geometric': torch_geometric, 'pyg_dnx': pyg_dnx}
    return {
        'machine': f'{platform.machine()}, {os.cpu_count()} cores, no GPU',
        'versions': ', '.join(f'{name} {module.__version__}' for name, module in packages.items()),
        'seeds': ', '.join(map(str, sorted({job.seed for job in records}))),
        'date': time.strftime('%Y-%m-%d'),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--out', default='results', help='the folder that run.py wrote')
    parser.add_argument('--data', default='data')
    parser.add_argument('--docs', default=DOCS)
    parser.add_argument('--pages', nargs='+', default=list(PAGES), choices=list(PAGES))
    args = parser.parse_args()
    images = osp.join(args.docs, 'images')
    os.makedirs(images, exist_ok=True)
    store = Store(args.out)
    links = ('links', 'link_times')
    store.records = {job: r for job, r in store.records.items() if job.part in links or applies(job)}
    for name in args.pages:
        found = contents(name, store, args.docs)
        if found is None:
            continue
        if name == 'results' and (curves := intervals.curves(store, EXPLAINERS)):
            found['curves'] = curves
            pictures.draw_curves(curves, osp.join(images, 'fidelity.png'))
        if name == 'paper':
            pictures.draw_times(found['tables']['times'], osp.join(images, 'times.png'))
            pictures.draw_degrees(args.data, osp.join(images, 'degrees.png'))
        write(name, found, args.docs)


def contents(name, store, docs):
    r"""The tables of a page and what is said of them, or `None` if there is nothing new.

    Of parts that were not measured anew, its JSON has the tables, and `made_before` says when they were made.
    """
    path, before = osp.join(docs, f'{name}.json'), {}
    if osp.exists(path):
        with open(path, encoding='utf-8') as file:
            before = json.load(file)
    tables, records, kept = {}, [], False
    for parts, make in PAGES[name].tables.items():
        found, here = make(store), [job for job in store.records if job.part in parts]
        if not here and before:
            found, kept = {key: before['tables'][key] for key in found}, True
        tables, records = {**tables, **found}, records + here
    if not records:
        return None
    earlier = before.pop('made_before', before.get('made'))
    dates = {'made': made(records), **({'made_before': earlier} if kept else {})}
    return {**before, **dates, 'tables': tables, 'bars': PAGES[name].bars(tables)}


def write(name, found, docs):
    r"""Fills in the page of this name; what follows ``<!-- tables -->`` goes to the folder of full tables."""
    with open(osp.join(docs, f'{name}.json'), 'w', encoding='utf-8') as file:
        json.dump(found, file, indent=1, ensure_ascii=False)
    with open(osp.join(HERE, f'{name}.md.in'), encoding='utf-8') as file:
        page = file.read()
    for key, table in found['tables'].items():
        page = page.replace(f'{{{key}}}', markdown(table))
    before = {f'{key} before': value for key, value in found.get('made_before', found['made']).items()}
    for key, value in {**found['made'], **before, **found['bars']}.items():
        page = page.replace(f'{{{key}}}', str(value))
    short, _, full = page.partition('<!-- tables -->\n')
    for folder, content in ((docs, short), (osp.join(docs, 'tables'), full)):
        if content:
            os.makedirs(folder, exist_ok=True)
            with open(osp.join(folder, f'{name}.md'), 'w', encoding='utf-8') as file:
                file.write(content)


if __name__ == '__main__':
    main()
