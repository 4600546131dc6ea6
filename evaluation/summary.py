r"""Records → tables of means over teachers beside the paper's figures; `page.py` writes them down."""

from itertools import product

import numpy as np
import paper
from options import CHOSEN_ON
from sanity import PLANTED

from pyg_dnx.datasets import BITCOIN_GRAPHS, MOTIF_GRAPHS
from pyg_dnx.datasets.motif import LAYOUTS

GRAPHS = (*MOTIF_GRAPHS, *BITCOIN_GRAPHS, 'Cora', 'CiteSeer')
PAPER_MODELS = ('GCN', 'ARMA', 'GATED', 'GIN')
TITLES = {
    'ba_house': 'BA-House',
    'ba_community': 'BA-Community',
    'ba_grids': 'BA-Grids',
    'tree_cycles': 'Tree-Cycles',
    'tree_grids': 'Tree-Grids',
    'ba_bottle': 'BA-Bottle',
    'bitcoin_alpha': 'Bitcoin-Alpha',
    'bitcoin_otc': 'Bitcoin-OTC',
    'chameleon': 'Chameleon',
    'texas': 'Texas',
    'wisconsin': 'Wisconsin',
    'fidelity_plus': 'fidelity+',
    'fidelity_minus': 'fidelity−',
    'unfaithfulness': "PyG's unfaithfulness",
    'total_variation': 'total variation',
}

EVIDENCE = {  # columns, by what they say: the graph and the key of its records
    'Community': ('community', 'right'),
    'edges that help': ('community', 'helps'),
    'edges that harm': ('community', 'harms'),
    'Negative evidence': ('negative_evidence', 'told'),
    'in order': ('negative_evidence', 'ordered'),
    'Infection': ('infection', 'precision'),
}


def cell(values, published=None, scale=100.0, **more):
    r"""The mean over seeds, its spread, and the paper's figure."""
    if not values:
        return None
    found = {'value': scale * float(np.mean(values)), 'digits': 1 if scale == 100.0 else 3, **more}
    if len(values) > 1:
        found['spread'] = scale * float(np.std(values, ddof=1))
    if published is not None:
        found['paper'] = published
        if scale == 100.0:
            found['met'] = round(found['value'], 1) >= round(min(published, found.get('ceiling', published)), 1)
        else:  # a fall in accuracy, which should be close to zero
            found['met'] = abs(round(found['value'], 3)) <= abs(published)
    return found


def over_seeds(store, part, key, **fields):
    found = (record[key] for record in store.select(part, **fields).values() if key in record)
    return [value for value in found if not np.isnan(value)]


def by_model(store, part, key, published, graphs, explainer, models=PAPER_MODELS):
    r"""A table of models by graphs."""
    rows = []
    for model in models:
        cells = [
            cell(over_seeds(store, part, key, graph=graph, model=model, explainer=explainer), figure)
            for graph, figure in zip(graphs, published.get(model, [None] * len(graphs)), strict=True)
        ]
        rows.append([model, *cells])
    return {'columns': ['model', *graphs], 'rows': rows}


def by_explainer(store, part, keys, published, explainers, labels):
    r"""A table of models and explainers by columns, each a graph and a key of its records."""
    ceilings = {'accuracy': 'ceiling', **{key: f'{key}, ceiling' for _, key in keys if 'top' in key}}
    rows = []
    for model in PAPER_MODELS:
        for name in explainers:
            figures = published.get(model, {}).get(name, [None] * len(keys))
            cells = []
            for (graph, key), figure in zip(keys, figures, strict=True):
                fields = dict(graph=graph, model=model, explainer=name)
                highest = [100.0 * value for value in over_seeds(store, part, ceilings.get(key, ''), **fields)]
                ceiling = {'ceiling': float(np.mean(highest))} if highest else {}
                cells.append(cell(over_seeds(store, part, key, **fields), figure, **ceiling))
            if any(cells):
                rows.append([model, name, *cells])
    return {'columns': ['model', 'explainer', *labels], 'rows': rows}


def fidelity_tables(store, explainers):
    r"""Tables 4 and 5: how much accuracy falls on the subgraph that an explanation induces, for GCN."""
    motif = []
    for name in explainers:
        cells = [
            cell(over_seeds(store, 'truth', 'fidelity', graph=g, model='GCN', explainer=name), p, scale=1.0)
            for g, p in zip(MOTIF_GRAPHS, paper.FIDELITY.get(name, [None] * 6), strict=True)
        ]
        motif.append([name, *cells])
    real, graphs = [], (*BITCOIN_GRAPHS, 'Cora', 'CiteSeer', 'PubMed')
    for share in (0.3, 0.5, 0.7):
        for name in explainers:
            cells = []
            for graph, figure in zip(graphs, paper.REAL_FIDELITY[share].get(name, [None] * 5), strict=True):
                records = store.select('fidelity', graph=graph, model='GCN', explainer=name).values()
                falls = [np.mean(r['right']) - np.mean(r[f'{share:g}']['right_on_subgraph']) for r in records]
                cells.append(cell(falls, figure, scale=1.0))
            if any(cells):
                real.append([f'{share:.0%}', name, *cells])
    return {
        'fidelity': {'columns': ['explainer', *MOTIF_GRAPHS], 'rows': motif},
        'fidelity, real graphs': {'columns': ['kept', 'explainer', *graphs], 'rows': real},
    }


def distillation_time(store, graphs):
    r"""Seconds of ours, how many times that the paper's recipe takes on the same machine, and whose KL is lower."""
    rows = []
    for model in PAPER_MODELS:
        sides = [
            [store.select('distillation', graph=g, model=model, seed=0, explainer=name) for g in graphs]
            for name in ('ours', 'recipe')
        ]
        ours, recipe = ([next(iter(found.values()), None) for found in side] for side in sides)
        rows.append([model, 'ours, s', *({'value': o['seconds'], 'digits': 3} if o else None for o in ours)])
        for label, key, digits in (('recipe / ours, time', 'seconds', 0), ('ours / recipe, KL', 'kl', 2)):
            cells = []
            for one, other in zip(ours, recipe, strict=True):
                top, bottom = (other, one) if key == 'seconds' else (one, other)
                cells.append({'value': top[key] / bottom[key], 'digits': digits} if one and other else None)
            rows.append([model, label, *cells])
        figures = ({'value': seconds, 'digits': 1} for seconds in paper.DISTILLATION_SECONDS[model])
        rows.append([model, "the paper's, s", *figures])
    return {'columns': ['model', '', *graphs], 'rows': rows}


def epochs_table(store):
    rows = []
    for model in PAPER_MODELS:
        for label, key in (('last epoch', 'last'), ("each node's best by ground truth", 'chosen')):
            rows.append(
                [model, label, *(cell(over_seeds(store, 'epochs', key, graph=g, model=model)) for g in MOTIF_GRAPHS)]
            )
    return {'columns': ['model', 'DnX by Adam, keeps', *MOTIF_GRAPHS], 'rows': rows}


def ridge_table(store):
    r"""The total variation between surrogate and model where nodes are blanked, over teachers that have all."""
    names = sorted({job.explainer for job in store.select('ridge')}, key=float)
    sides = [{job[1:4]: record for job, record in store.select('ridge', explainer=name).items()} for name in names]
    teachers = set.intersection(*map(set, sides)) if sides else set()
    rows = []
    for name, side in zip(names, sides, strict=True):
        cells = []
        for chosen in (True, False):
            records = [side[teacher] for teacher in teachers if (teacher[0] in CHOSEN_ON) == chosen]
            for keys in (('0.25', '0.5', '0.75'), ('1',)):
                values = [record[key] for record in records for key in keys]
                cells.append({'value': float(np.mean(values)), 'digits': 4} if values else None)
        rows.append([name, *cells])
    columns = ['ridge', 'chosen on, blanked', 'chosen on, as it is', 'confirmed on, blanked', 'confirmed on, as it is']
    return {'columns': columns, 'rows': rows}


def sanity_table(store, explainers):
    rows = []
    for key in ('random model', 'other seed', 'noise'):
        for name in explainers:
            cells = []
            for graph in GRAPHS:
                values = over_seeds(store, 'sanity', key, graph=graph, explainer=name)
                cells.append(cell(values, scale=1.0, digits=2))
            rows.append([key, name, *cells])
    return {'columns': ['compared with', 'explainer', *GRAPHS], 'rows': rows}


def planted_table(store):
    rows = []
    for name, (key, digits) in product(PLANTED, (('error', 5), ('agreement', 4))):
        found = (over_seeds(store, 'planted', key, graph=graph, explainer=name) for graph in GRAPHS)
        rows.append([name, key, *(cell(values, scale=1.0, digits=digits) for values in found)])
    return {'columns': ['planted SGC', '', *GRAPHS], 'rows': rows}


def times_table(store):
    r"""Milliseconds for one node, without what is set up once."""
    rows = []
    for name in dict.fromkeys(job.explainer for job in store.select('times')):
        cells = []
        for graph in GRAPHS:
            found = list(store.select('times', graph=graph, explainer=name).values())
            cells.append(
                {'value': 1e3 * found[0]['seconds'], 'setup': found[0]['setup'], 'digits': 1} if found else None
            )
        rows.append([name, *cells])
        if name in ('FastDnX', 'DnX'):
            batch = (list(store.select('times', graph=graph, explainer=name).values()) for graph in GRAPHS)
            rows.append(
                [f'{name}, explain_nodes', *({'value': 1e3 * f[0]['batch'], 'digits': 3} if f else None for f in batch)]
            )
    return {'columns': ['ms a node', *GRAPHS], 'rows': rows}


def evidence_table(store, explainers):
    r"""How often explanations are right where it is known what the model must go by."""
    rows = []
    for name in explainers:
        cells = []
        for graph, key in EVIDENCE.values():
            values = over_seeds(store, 'evidence', key, graph=graph, explainer=name)
            cells.append(cell(values, paper.EVIDENCE.get(name, {}).get(key)))
        rows.append([name, *cells])
    return {'columns': ['explainer', *EVIDENCE], 'rows': rows}


def doubts_table(store):
    r"""How often FastDnX doubts its surrogate where its order of evidence is right, and where it is wrong."""
    fields = dict(graph='negative_evidence', explainer='FastDnX')
    keys = ('doubted right', 'doubted wrong')
    cells = [cell(over_seeds(store, 'evidence', key, **fields)) for key in keys]
    return {'columns': ['FastDnX on Negative evidence', 'in order', 'not in order'], 'rows': [['doubted, %', *cells]]}


def recipe_table(store, explainers):
    r"""Node accuracy, all held against the paper's figures for FastDnX."""
    published = {model: dict.fromkeys(explainers, rows['FastDnX']) for model, rows in paper.NODES.items()}
    keys = [(graph, 'accuracy') for graph in MOTIF_GRAPHS]
    return by_explainer(store, 'recipe', keys, published, explainers, MOTIF_GRAPHS)


def met_by(table, name):
    r"""In how many cells of a table an explainer is at or above the paper's figure."""
    cells = [c for row in table['rows'] if row[1] == name for c in row[2:] if c and 'paper' in c]
    return f'{sum(c["met"] for c in cells)} of {len(cells)}'


def bars(found):
    r"""What the page says of its tables in numbers."""
    counts = {}
    for table, name in product(('nodes', 'appendix', 'edges'), ('FastDnX', 'DnX')):
        counts[f'{table}, {name}, met'] = met_by(found[table], name)
    counts['edges, FastDnX, flow, met'] = met_by(found['edges'], 'FastDnX, flow')
    for name in ('FastDnX', 'DnX'):
        met = []
        for all_nodes, others in zip(found['nodes']['rows'], found['nodes, others']['rows'], strict=False):
            if all_nodes[1] == name:
                for graph, cell, other in zip(MOTIF_GRAPHS, all_nodes[2:], others[2:], strict=True):
                    size = LAYOUTS[graph].size
                    if other:
                        met.append(round((100.0 + (size - 1) * other['value']) / size, 1) >= cell['paper'])
        counts[f'nodes, {name} first, met'] = f'{sum(met)} of {len(met)}'
    return counts
