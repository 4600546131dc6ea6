r"""Measures explainers on the paper's graphs: against its ground truth, and against the model itself.

Results go to `--out`, one line of JSON each; an interrupted run goes on where it stopped. Then `page.py` makes the
tables and pictures of docs/paper.md, results.md and others.

    python evaluation/run.py --data FOLDER --quick
    python evaluation/run.py --data FOLDER --parts truth --graphs ba_house --models GCN
"""

import argparse
import os.path as osp
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from itertools import product
from typing import NamedTuple

import measures
from distillation import measure_distillation, measure_epochs
from evidence import EVIDENCE_GRAPHS, measure_evidence
from explainers import BY_EVIDENCE, BY_RECIPE, DROPPED, EDGE_EXPLAINERS, EXPLAINERS, JUDGED, PROBED, UNTAUGHT
from feature_explainers import ZEROED
from heterophilous import HETEROPHILOUS, load_heterophilous
from options import OPTIONS, RIDGES, measure_option, measure_ridge
from removal import measure_edges, measure_features
from sanity import CHECKED, PLANTED, measure_planted, measure_sanity
from store import Job, Store
from teachers import APPENDIX_RATE, CITATION, EPOCHS, RATE, accuracy, teacher
from times import TIMED, measure_time
from tqdm import tqdm

from pyg_dnx.datasets import BITCOIN_GRAPHS, MOTIF_GRAPHS, load

REAL = (*BITCOIN_GRAPHS, 'Cora', 'CiteSeer')
PAPER_MODELS = ('GCN', 'ARMA', 'GATED', 'GIN')
MODELS = ('GCN', 'GAT', 'GIN')  # for faithfulness
EARLIER = ('GCN', 'GAT', 'plain GIN')  # of parts that were last measured before GIN had normalisation
REMOVED = ('edges', 'features')  # parts
PROBED_ON = ('Cora', 'CiteSeer', 'bitcoin_alpha', 'ba_community', 'tree_cycles', 'tree_grids')
SLOW = {  # how many nodes are explained, with how many teachers of a kind
    'DnX, published': (50, 3),
    'GNNExplainer': (30, 2),
    'GNNExplainer, node mask': (30, 3),
    'PGExplainer': (30, 1),
    'PGMExplainer': (20, 1),
    'IG, logit': (60, 3),
    'IG, probability': (60, 3),
    'IG, margin': (60, 3),
    'IG, edges': (60, 3),
    'Saliency': (100, 3),
}
SLOW_TO_REMOVE = ('GNNExplainer', 'PGExplainer', 'occlusion', 'KernelSHAP')  # for 20 nodes, not 50
NODES = {
    'evidence': 100,
    'faithfulness': 30,
    'fidelity': 60,
    'probes': 100,
    'recipe': 60,
    'options': 40,
    'sanity': 30,
}  # at most; else all that have a ground truth


class Part(NamedTuple):
    models: tuple
    explainers: tuple  # or options
    measure: Callable  # of the model, the data, the job and the number of nodes


def measure_teacher(model, data, job, size):
    return {'accuracy': accuracy(model, data, data.test_mask), 'validation': accuracy(model, data, data.val_mask)}


def measure_appendix(model, data, job, size):
    return {'test': accuracy(model, data, data.test_mask), **measures.measure_truth(model, data, job, size)}


PARTS = {
    'teachers': Part((*PAPER_MODELS, 'plain GIN', 'GAT'), ('',), measure_teacher),
    'distillation': Part(PAPER_MODELS, ('ours', 'recipe'), measure_distillation),
    'truth': Part(PAPER_MODELS, JUDGED, measures.measure_truth),
    'appendix': Part(PAPER_MODELS, ('FastDnX', 'DnX'), measure_appendix),
    'edge_truth': Part(PAPER_MODELS, tuple(EDGE_EXPLAINERS), measures.measure_edge_truth),
    'epochs': Part(PAPER_MODELS, ('DnX, published',), measure_epochs),
    'fidelity': Part(('GCN',), JUDGED, measures.measure_faithfulness),
    'faithfulness': Part(MODELS, tuple(EXPLAINERS), measures.measure_faithfulness),
    'edges': Part((*MODELS, 'SAGE'), tuple(DROPPED), measure_edges),
    'features': Part((*MODELS, 'SAGE'), tuple(ZEROED), measure_features),
    'evidence': Part(('GCN',), BY_EVIDENCE, measure_evidence),
    'probes': Part((*EARLIER, 'SAGE'), PROBED, measures.measure_faithfulness),
    'recipe': Part(PAPER_MODELS, BY_RECIPE, measures.measure_recipe),
    'options': Part(MODELS, tuple(OPTIONS), measure_option),
    'ridge': Part(MODELS, tuple(f'{ridge:g}' for ridge in RIDGES), measure_ridge),
    'sanity': Part(EARLIER, CHECKED, measure_sanity),
    'planted': Part(('SGC',), tuple(PLANTED), measure_planted),
    'times': Part(('GCN',), TIMED, measure_time),
}


def jobs(args):
    r"""All that the command line asks for, where there is such a model and such a ground truth."""
    for part in args.parts:
        models, explainers, _ = PARTS[part]
        for job in (Job(part, *cell) for cell in product(args.graphs, models, args.seeds, explainers)):
            wanted = job.model in (args.models or models) and job.explainer in (args.explainers or explainers)
            if wanted and applies(job):
                yield job


def applies(job):
    if job.part not in PARTS or job.model not in PARTS[job.part].models:
        return False
    if (job.part == 'evidence') != (job.graph in EVIDENCE_GRAPHS):
        return False
    if job.part in REMOVED:
        return True
    if job.graph in HETEROPHILOUS:
        return False
    if job.graph in CITATION and job.model in ('ARMA', 'GATED'):
        return False
    if job.part == 'truth' and (job.graph in CITATION or (job.explainer in UNTAUGHT and job.model != 'GCN')):
        return False
    if job.part in ('appendix', 'edge_truth', 'epochs', 'recipe') and job.graph not in MOTIF_GRAPHS:
        return False
    if job.part == 'fidelity' and job.graph in MOTIF_GRAPHS:
        return False
    if job.part == 'probes':
        return job.graph in PROBED_ON
    if job.part == 'times' or (job.part == 'distillation' and job.explainer == 'recipe'):
        return job.seed == 0
    return job.explainer not in SLOW or job.seed < SLOW[job.explainer][1]


@lru_cache(maxsize=2)
def graph_of(name, folder):
    if name in HETEROPHILOUS:
        return load_heterophilous(name, folder)
    return EVIDENCE_GRAPHS[name]() if name in EVIDENCE_GRAPHS else load(name, folder)


@lru_cache(maxsize=2)
def model_of(graph, model, seed, rate, data, out, quick):
    epochs = 200 if quick else EPOCHS.get(graph, 1000)
    return teacher(model, graph, graph_of(graph, data), seed, epochs, osp.join(out, 'teachers'), rate)


def size_of(job, quick, most=1000):
    r"""How many nodes are explained, at ``most``."""
    sizes = [NODES.get(job.part, 1000), 10 if quick else most]
    if job.part in REMOVED:
        sizes.append(20 if job.explainer in SLOW_TO_REMOVE else 50)
    elif job.part != 'probes':
        if job.graph in BITCOIN_GRAPHS:  # where each sees most of the graph
            sizes.append(200 if job.part == 'truth' and job.explainer not in SLOW else 30)
        if job.explainer in SLOW:
            sizes.append(SLOW[job.explainer][0])
    return min(sizes)


def measure(job, args):
    where = APPENDIX_RATE if job.part == 'appendix' else RATE, args.data, args.out, args.quick
    model = None if job.part == 'planted' else model_of(job.graph, job.model, job.seed, *where)
    more = [model_of(job.graph, job.model, job.seed + 1, *where)] if job.part == 'sanity' else []
    return PARTS[job.part].measure(
        model, graph_of(job.graph, args.data), job, size_of(job, args.quick, args.nodes), *more
    )


def needed(job):
    r"""The package that a job can't be done without, if there is one."""
    if job.explainer == 'PGMExplainer':
        return 'pgmpy'
    if job.graph == 'negative_evidence':
        return 'scipy'
    return 'captum' if job.part == 'times' and job.explainer in ('Integrated Gradients', 'Saliency') else None


def check_names(parser, args):
    for option in ('models', 'explainers'):
        known = {name for part in args.parts for name in getattr(PARTS[part], option)}
        for name in getattr(args, option) or ():
            if name not in known:
                parser.error(f"--{option} must be of {', '.join(sorted(known))} (got '{name}')")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--data', default='data', help="may have folders 'dnx', with published files, 'planetoid' and 'heterophilous'"
    )
    parser.add_argument('--out', default='results')
    parser.add_argument('--parts', nargs='+', default=list(PARTS), choices=list(PARTS))
    parser.add_argument('--graphs', nargs='+', default=[*MOTIF_GRAPHS, *REAL, *HETEROPHILOUS, *EVIDENCE_GRAPHS])
    parser.add_argument('--models', nargs='+')
    parser.add_argument('--explainers', nargs='+')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--nodes', type=int, default=1000, help='how many nodes to explain at most')
    parser.add_argument('--minutes', type=float, default=float('inf'), help='when to begin no further measurement')
    parser.add_argument('--quick', action='store_true', help='ten nodes, one seed, teachers of 200 epochs')
    args = parser.parse_args()
    if args.quick:  # which must not pass for the real thing
        args.seeds, args.out = args.seeds[:1], osp.join(args.out, 'quick')
    check_names(parser, args)
    warnings.simplefilter('ignore')
    store = Store(args.out)
    todo = [job for job in jobs(args) if job not in store.records]
    for package in {needed(job) for job in todo} - {None}:
        if find_spec(package) is None:
            print(f'Leaves out what needs {package}: install it to measure that, too')
            todo = [job for job in todo if needed(job) != package]
    start = time.monotonic()
    for job in (bar := tqdm(todo)):
        if time.monotonic() - start > 60.0 * args.minutes:
            print('Out of time: the same command goes on from here')
            break
        bar.set_postfix_str(' '.join(map(str, job)))
        store.add(job, measure(job, args))


if __name__ == '__main__':
    main()
