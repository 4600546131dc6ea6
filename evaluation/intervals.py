r"""Tables of faithfulness, with intervals from resampling, paired where explainers are compared."""

import numpy as np
from heterophilous import HETEROPHILOUS
from metrics import characterization
from options import CHOSEN_ON, EDGE_OPTIONS, MASK_OPTIONS, NODE_OPTIONS
from summary import GRAPHS

SHARES = ('0.05', '0.1', '0.3', '0.5', '0.7')
REPEATS = 1000
ROUNDING = 1e-12
ANY_TEACHER = (
    'faithfulness',
    'edges',
    'features',
    'links',
)  # parts whose intervals resample teachers, too; others, nodes only
KEYS = ('characterization', 'fidelity_plus', 'fidelity_minus', 'unfaithfulness', 'total_variation')


class Faithfulness:
    r"""Records of one explainer on one graph, by job, and means over its teachers, resampled."""

    def __init__(self, records, size=None, shares=SHARES):
        self.jobs = sorted(records)  # so that the same teachers are drawn for all explainers
        self.groups = [
            {key: np.array([records[job][share][key] for share in shares])[:, :size] for key in records[job][shares[0]]}
            for job in self.jobs
        ]

    def draws(self, key):
        r"""Means over nodes for each teacher and share, [T, S, 1 + REPEATS]; the first is that of the sample itself.

        Teachers from one seed were asked about the same nodes, so that these are drawn for all of them at once.
        """
        found = []
        for job, group in zip(self.jobs, self.groups, strict=True):
            size = group[key].shape[1]
            generator = np.random.default_rng([job.seed, *job.graph.encode()])
            places = np.concatenate([np.arange(size)[None], generator.integers(size, size=(REPEATS, size))])
            found.append(group[key][:, places].mean(axis=2))
        return np.stack(found)

    def of(self, key):
        r"""The mean over teachers and shares, [1 + REPEATS]."""
        if key == 'characterization':
            values = characterization(self.draws('fidelity_plus'), self.draws('fidelity_minus')).mean(axis=1)
        else:
            values = self.draws(key).mean(axis=1)
        count, first = len(self.jobs), self.jobs[0]
        if first.part in ANY_TEACHER:
            generator = np.random.default_rng(list(first.graph.encode()))
            teachers = generator.integers(count, size=(count, REPEATS))
            values = np.take_along_axis(values, np.insert(teachers, 0, np.arange(count), axis=1), axis=0)
        return values.mean(axis=0)


def with_interval(draws):
    low, high = np.quantile(draws[1:], [0.025, 0.975])
    return {'value': float(draws[0]), 'low': float(low), 'high': float(high)}


def matched(store, part, graph, one, other, shares=SHARES, model=None, seed=None):
    r"""Two explainers on the same teachers, of one kind or seed if it is given, and nodes of a graph, or `None`."""
    only = {name: value for name, value in (('model', model), ('seed', seed)) if value is not None}
    pairs = [store.select(part, graph=graph, explainer=name, **only) for name in (one, other)]
    teachers = {job[2:4] for job in pairs[0]} & {job[2:4] for job in pairs[1]}
    if not teachers:
        return None
    found = [{job: record for job, record in pair.items() if job[2:4] in teachers} for pair in pairs]
    size = min(len(record[shares[0]]['fidelity_plus']) for side in found for record in side.values())
    return [Faithfulness(side, size, shares) for side in found]


def faithfulness_tables(store, explainers):
    r"""Over all graphs and by graph: each explainer, and paired differences from it of both directions of FastDnX."""
    overall, by_graph = [], []
    for name in explainers:
        found = {graph: store.select('faithfulness', graph=graph, explainer=name) for graph in GRAPHS}
        every = {graph: Faithfulness(records) for graph, records in found.items() if records}
        if every:
            means = (np.mean([one.of(key) for one in every.values()], axis=0) for key in KEYS)
            overall.append([name, sum(len(one.jobs) for one in every.values()), *map(with_interval, means)])
            cells = (with_interval(every[graph].of(KEYS[0])) if graph in every else None for graph in GRAPHS)
            by_graph.append([name, *cells])
    return {
        'faithfulness': {'columns': ['explainer', 'teachers', *KEYS], 'rows': overall},
        'faithfulness by graph': {'columns': ['explainer', *GRAPHS], 'rows': by_graph},
        'faithfulness, FastDnX': differences(store, 'FastDnX', explainers),
        'faithfulness, target': differences(store, 'FastDnX, target', explainers),
    }


def differences(store, reference, explainers):
    rows = []
    for name in explainers:
        pairs = {graph: matched(store, 'faithfulness', graph, reference, name) for graph in GRAPHS}
        gaps = {graph: pair[0].of(KEYS[0]) - pair[1].of(KEYS[0]) for graph, pair in pairs.items() if pair}
        if gaps and name != reference:
            mean = with_interval(np.mean(list(gaps.values()), axis=0))
            rows.append([name, mean, *(with_interval(gaps[graph]) if graph in gaps else None for graph in GRAPHS)])
    return {'columns': [f'{reference} minus', 'all', *GRAPHS], 'rows': rows}


def curves(store, explainers):
    r"""Fidelity+ and fidelity- against the share that a mask keeps, over all graphs."""
    found = {}
    for name in explainers:
        every = [Faithfulness(r) for g in GRAPHS if (r := store.select('faithfulness', graph=g, explainer=name))]
        if every:
            found[name] = {
                key: np.mean([one.draws(key)[:, :, 0].mean(axis=0) for one in every], axis=0).tolist()
                for key in ('fidelity_plus', 'fidelity_minus', 'total_variation')
            }
    return found


def options_table(store):
    r"""The paired difference of each option from the default, on the graphs that chose it and on the others."""
    defaults = {**dict.fromkeys(NODE_OPTIONS, 'default'), **dict.fromkeys(MASK_OPTIONS, "mask='rank'")}
    defaults |= dict.fromkeys(EDGE_OPTIONS, "edge_score='flow'")
    rows = []
    for name, default in defaults.items():
        shares = ('soft',) if name in MASK_OPTIONS else SHARES
        cells = []
        for graphs in (CHOSEN_ON, [graph for graph in GRAPHS if graph not in CHOSEN_ON]):
            pairs = [pair for graph in graphs if (pair := matched(store, 'options', graph, name, default, shares))]
            if not pairs:
                cells += [None, None]
                continue
            values = [
                np.mean([side.of('characterization') for side in sides], axis=0) for sides in zip(*pairs, strict=True)
            ]
            cells += [with_interval(values[0]), with_interval(values[0] - values[1]) if name != default else None]
        rows.append([name, *cells])
    columns = ['option', 'chosen on', 'difference from the default', 'confirmed on', 'difference from the default']
    return {'columns': columns, 'rows': rows}


FEW = ('0.05', '0.1', '0.5')  # the shares at which methods beyond the paper are compared
TOLD = ('characterization', 'unfaithfulness')


def probes_tables(store, explainers):
    r"""Methods beyond the paper: means over all teachers, paired differences, and these for each teacher."""
    graphs = [graph for graph in GRAPHS if store.select('probes', graph=graph)]

    def gaps_of(name):
        return gaps(store, 'probes', graphs, [(other, name, other) for other in explainers], f'{name} minus', FEW)

    return {
        'probes': means(store, 'probes', graphs, explainers, FEW),
        **{f'probes, {name}': gaps_of(name) for name in ('ProbeDnX', 'FastDnX, masked')},
        'probes, by kind': by_teacher(store, graphs),
        'probes, by teacher': by_teacher(store, graphs, each=True),
    }


def rivals_tables(store, explainers, rival='GNNExplainer, node mask'):
    r"""Each explainer on the teachers that GNNExplainer was run for, and what it is ahead by, in all and by graph."""
    part = 'faithfulness'
    graphs = [graph for graph in GRAPHS if store.select(part, graph=graph, explainer=rival)]
    pairs = [(name, name, rival) for name in explainers]
    found = {key: gaps(store, part, graphs, pairs, f'minus {rival}', SHARES, (key,)) for key in TOLD}
    rows = []
    for name in explainers:
        sides = [pair[0] for graph in graphs if (pair := matched(store, part, graph, name, rival))]
        if sides:
            row = [name, sum(len(side.jobs) for side in sides)]
            for key, table in found.items():
                row.append(with_interval(np.mean([side.of(key) for side in sides], axis=0)))
                ahead = next((gap for label, *gap in table['rows'] if label == name), None)
                row += [ahead[0], above_and_below(ahead[1:])] if ahead else [None, None]
            rows.append(row)
    columns = ['explainer', 'teachers']
    for key in TOLD:
        columns += [key, "minus GNNExplainer's", 'graphs above / below']
    return {'rivals': {'columns': columns, 'rows': rows}, **{f'rivals, {key}': table for key, table in found.items()}}


def above_and_below(cells):
    r"""On how many graphs a difference is above zero, and below, by its interval."""
    return f'{sum(c["low"] > 0 for c in cells if c)} / {sum(c["high"] < 0 for c in cells if c)}'


def recipe_tables(store, explainers):
    r"""Faithfulness, and what the paper's recipe for distillation changes in it."""
    graphs, (default, other) = [graph for graph in GRAPHS if store.select('recipe', graph=graph)], explainers
    pairs = [(other, other, default)]
    return {
        'recipe': means(store, 'recipe', graphs, explainers, SHARES),
        **{f'recipe, {key}': gaps(store, 'recipe', graphs, pairs, f'minus {default}', SHARES, (key,)) for key in TOLD},
    }


def means(store, part, graphs, explainers, shares, told=TOLD):
    r"""The means over all graphs of the explainers that were run for the most teachers; others would not compare."""
    rows = []
    for name in explainers:
        every = [Faithfulness(r, shares=shares) for g in graphs if (r := store.select(part, graph=g, explainer=name))]
        if every:
            found = (np.mean([one.of(key) for one in every], axis=0) for key in told)
            rows.append([name, sum(len(one.jobs) for one in every), *map(with_interval, found)])
    most = max((row[1] for row in rows), default=0)
    return {'columns': ['explainer', 'teachers', *told], 'rows': [row for row in rows if row[1] == most]}


def gaps(store, part, graphs, comparisons, heading, shares, told=TOLD):
    r"""Paired differences: in all that is told, over all graphs; and in the first of it, by graph.

    A comparison has a label, and the two explainers whose difference is taken.
    """
    rows = []
    for label, one, other in comparisons:
        pairs = {g: pair for g in graphs if (pair := matched(store, part, g, one, other, shares))}
        if pairs and one != other:
            found = {g: [a.of(key) - b.of(key) for key in told] for g, (a, b) in pairs.items()}
            mean = map(with_interval, np.mean(list(found.values()), axis=0))
            rows.append([label, *mean, *(with_interval(found[g][0]) if g in found else None for g in graphs)])
    return {'columns': [heading, *told, *graphs], 'rows': rows}


REMOVED = ('fall', 'kept', 'characterization')
REFERENCES = ('FastDnX, masked', 'ProbeDnX')


def removal_tables(store, part, explainers, kinds):
    r"""What the model answers where parts are removed: means, and paired differences, for each kind of parts.

    `kinds` has what the keys of each kind start with in the records.
    """
    tables, graphs = {}, [graph for graph in (*GRAPHS, *HETEROPHILOUS) if store.select(part, graph=graph)]
    for kind, start in kinds.items():
        shares = [f'{start}{share}' for share in SHARES]
        tables[kind] = means(store, part, graphs, explainers, shares, REMOVED)
        for name in REFERENCES:
            pairs = [(other, name, other) for other in explainers]
            tables[f'{kind}, {name}'] = gaps(store, part, graphs, pairs, f'{name} minus', shares, REMOVED)
    return tables


def by_teacher(store, graphs, each=False):
    r"""ProbeDnX's characterization minus that of both Integrated Gradients, for each kind of model on each graph.

    Or for each single teacher. A difference is sure if it is off zero even with all of them judged together.
    """
    others = ('IG, logit', 'IG, probability')
    found = {}
    for graph in graphs:
        jobs = store.select('probes', graph=graph, explainer='ProbeDnX')
        for fields in sorted({(job.model, job.seed) if each else (job.model,) for job in jobs}):
            pairs = [matched(store, 'probes', graph, 'ProbeDnX', other, FEW, *fields) for other in others]
            if all(pairs):
                found[(graph, *fields)] = [one.of(KEYS[0]) - other.of(KEYS[0]) for one, other in pairs]
    sure = iter(jointly_off_zero([gap for row in found.values() for gap in row]))
    rows = [[*key, *({**with_interval(gap), 'sure': next(sure)} for gap in row)] for key, row in found.items()]
    columns = ['graph', 'model', *(['seed'] if each else []), *(f'ProbeDnX minus {other}' for other in others)]
    return {'columns': columns, 'rows': rows}


def jointly_off_zero(gaps):
    r"""Whether each of some differences [1 + REPEATS] is off zero by more than chance puts the farthest of all."""
    if not gaps:
        return []
    value, draws = np.split(np.stack(gaps), [1], axis=1)
    error = draws.std(axis=1, keepdims=True)
    farthest = np.divide(np.abs(draws - value), error, out=np.zeros_like(draws), where=error > ROUNDING).max(axis=0)
    return (np.abs(value) > np.quantile(farthest, 0.95) * error + ROUNDING)[:, 0].tolist()


def counts(table):
    r"""How many differences of a table are above zero and below, by their intervals and with all judged together."""
    cells = [cell for row in table['rows'] for cell in row if isinstance(cell, dict)]
    off = {'above': [c for c in cells if c['low'] > 0], 'below': [c for c in cells if c['high'] < 0]}
    found = {'all': len(cells), **{side: len(some) for side, some in off.items()}}
    sure = [cell['value'] for cell in cells if cell['sure']]
    return found | {'surely above': sum(v > 0 for v in sure), 'surely below': sum(v < 0 for v in sure)}
