r"""Tables of what `links.py` measured."""

import numpy as np
from intervals import Faithfulness, matched, with_interval
from link_teachers import GRAPHS, MODELS
from links import EXPLAINERS, SHARES

KEYS = ('characterization', 'fall', 'moved')
FRACTIONS = tuple(f'{share:g}' for share in SHARES)
DOT = tuple(name for name in MODELS if name.endswith('dot'))


def links_tables(store):
    return {
        'links': _means(store),
        'links, ProbeDnX': _gaps(store, 'ProbeDnX'),
        'links, FastDnX': _gaps(store, 'FastDnX'),
        'links, surrogates': _surrogates(store),
    }


def link_times_table(store):
    rows = [
        [job.explainer, {'value': r['seconds'], 'digits': 6}, r.get('pairs'), f'1/{r.get("times", 1.0):,.0f}']
        for job, r in store.select('link_times').items()
    ]
    return {'link times': {'columns': ['explainer', 'seconds a pair', 'pairs', 'of a GNNExplainer call'], 'rows': rows}}


def _cells(models=MODELS):
    return [(graph, model) for graph in GRAPHS for model in models]


def _means(store):
    r"""The mean over all kinds of models of all graphs, and over those with a dot product."""
    rows = []
    for name in EXPLAINERS:
        row = [name]
        for key, models in ((KEYS[0], MODELS), (KEYS[0], DOT), (KEYS[1], MODELS), (KEYS[2], MODELS)):
            found = [store.select('links', graph=g, model=m, explainer=name) for g, m in _cells(models)]
            values = [Faithfulness(records, shares=FRACTIONS).of(key) for records in found if records]
            row.append(with_interval(np.mean(values, axis=0)) if values else None)
        rows.append(row)
    return {'columns': ['explainer', 'characterization', 'dot products only', 'fall', 'moved'], 'rows': rows}


def _gaps(store, reference):
    r"""Paired differences in characterization: over all, over dot products, and for each kind of model."""
    rows = []
    for name in EXPLAINERS:
        if name == reference:
            continue
        row = [name]
        for models in (MODELS, DOT, *((model,) for model in MODELS)):
            pairs = [matched(store, 'links', g, reference, name, FRACTIONS, m) for g, m in _cells(models)]
            gaps = [one.of(KEYS[0]) - other.of(KEYS[0]) for one, other in filter(None, pairs)]
            row.append(with_interval(np.mean(gaps, axis=0)) if gaps else None)
        rows.append(row)
    return {'columns': [f'{reference} minus', 'all', 'dot products', *MODELS], 'rows': rows}


def _surrogates(store):
    r"""What is known of the bilinear surrogates from held-out pairs, means over seeds."""
    rows = []
    for graph, model in _cells():
        found = list(store.select('links', graph=graph, model=model, explainer='FastDnX').values())
        if not found:
            continue
        probed = store.select('links', graph=graph, model=model, explainer='ProbeDnX').values()
        row = [graph, model]
        for key in ('worth', 'agreement', 'majority', 'held_out_r2', 'masked_r2'):
            values = [record[key] for record in found if record[key] is not None]
            row.append({'value': float(np.mean(values)), 'digits': 2} if values else None)
        r2 = [np.median(record['r2']) for record in probed]
        rows.append([*row, {'value': float(np.mean(r2)), 'digits': 2} if r2 else None])
    columns = [
        'graph',
        'model',
        'AUC or R²',
        'agreement',
        'largest class',
        'R²',
        'R² under masks',
        "R² of ProbeDnX's fit",
    ]
    return {'columns': columns, 'rows': rows}
