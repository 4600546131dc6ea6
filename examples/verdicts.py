r"""How far verdicts and bounds can be relied on, measured on the model itself.

Verdicts are by asking the model; beside them are the surrogate's own estimates, whose threshold was chosen on the
paper's synthetic graphs (docs/trust.md).

    python examples/verdicts.py --data FOLDER --graphs Cora CiteSeer bitcoin_alpha bitcoin_otc --seeds 2 3
    python examples/verdicts.py --data FOLDER --graphs Cora bitcoin_alpha --seeds 0 --nodes 100 --bounds
    python examples/verdicts.py --data FOLDER --graphs Cora CiteSeer --seeds 4 --explainer ProbeDnX
"""

import argparse
import json
import warnings
from collections import defaultdict
from itertools import product

import numpy as np
import torch
from teachers import load, train
from torch_geometric.explain import Explainer
from torch_geometric.nn import GAT, GCN, GIN

from pyg_dnx import FastDnX, ProbeDnX, SurrogateWarning, bound, certify, check, shared_cache
from pyg_dnx.results.measured import VERDICTS

parser = argparse.ArgumentParser()
parser.add_argument('--data', default='data', help="has 'planetoid' and 'dnx' folders; Planetoid is downloaded if not")
parser.add_argument('--graphs', nargs='+', default=['Cora', 'CiteSeer', 'bitcoin_alpha', 'bitcoin_otc'])
parser.add_argument('--seeds', nargs='+', type=int, default=[2, 3])
parser.add_argument('--nodes', type=int, default=150)
parser.add_argument('--doubts', nargs='+', type=float, default=[0.2], help='thresholds to compare')
parser.add_argument('--explainer', default='FastDnX', choices=['FastDnX', 'masked', 'ProbeDnX'])
parser.add_argument('--ridge', type=float, help='of the distillation; the default if left out')
parser.add_argument('--bounds', action='store_true', help='compare bounds with what they bound')
parser.add_argument('--out', help='a JSON file for all that was measured')
args = parser.parse_args()
warnings.simplefilter('ignore', SurrogateWarning)
CONFIG = dict(mode='multiclass_classification', task_level='node', return_type='raw')


def harden(explanation, share):
    r"""Keeps a share of the nodes in the neighbourhood, those with the highest scores, and no others."""
    mask = explanation.node_mask[:, 0]
    size = int((mask > 0).sum())
    explanation.node_mask = torch.zeros_like(explanation.node_mask)
    explanation.node_mask[mask.topk(max(1, round(share * size))).indices] = 1.0
    return explanation


def explanations(name, family, seed):
    r"""An explainer, and its explanations of some nodes by soft masks (ranks) and by hard ones (the top 30%)."""
    data = load(name, args.data)
    model = train(family, data, seed)
    nodes = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(seed))[: args.nodes]
    kind = ProbeDnX if args.explainer == 'ProbeDnX' else FastDnX
    algorithm = kind(ridge=args.ridge, distillation='paper' if args.explainer == 'FastDnX' else 'masked')
    explainer = Explainer(model, algorithm, 'model', CONFIG, node_mask_type='object')
    batch = explainer.algorithm.explain_nodes(model, data.x, data.edge_index, index=nodes)
    return explainer, {'ranks': list(batch), 'top 30%': [harden(explanation, 0.3) for explanation in batch]}


def interval(values):
    r"""The mean and its 95% interval, by bootstrap."""
    values, generator = np.asarray(values), np.random.default_rng(0)
    means = [generator.choice(values, values.size).mean() for _ in range(1000)]
    return values.mean(), *np.quantile(means, [0.025, 0.975])


def spearman(one, other):
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]  # ties are rare
    return np.corrcoef(*ranks)[0, 1]


def measure_verdicts():
    found = defaultdict(lambda: defaultdict(list))
    for name, family, seed in product(args.graphs, (GCN, GAT, GIN), args.seeds):
        explainer, by_mask = explanations(name, family, seed)
        for mask, items in by_mask.items():
            measured, cell = check(explainer, items), found[name, mask]
            for b, explanation in enumerate(items):
                certificate = certify(explainer, explanation)
                for field in ('expected_unfaithfulness', 'mask_bound', 'surrogate_agreement', 'bias_decides'):
                    cell[field].append(float(getattr(certificate, field)))
                cell['verdict'].append(int(certificate.verdict))
                cell['unfaithfulness'].append(float(measured.unfaithfulness[b]))
                cell['kept'].append(1.0 - float(measured.fidelity_minus[b]))
        shared_cache.clear()
        print(f'{name}, {family.__name__}, seed {seed}', flush=True)
    print_measured(found)
    for doubt in args.doubts:
        print(f'\nestimates, doubt = {doubt:g}')
        print('| graph | mask | verdict | explanations | prediction kept | unfaithfulness |')
        print('|---|---|---|---|---|---|')
        for (name, mask), cell in found.items():
            columns = {field: np.array(values) for field, values in cell.items()}
            doubtful = (columns['expected_unfaithfulness'] > doubt) | (columns['bias_decides'] == 1.0)
            verdict = np.where(columns['surrogate_agreement'] == 1.0, doubtful, 2)
            for number, label in enumerate(VERDICTS):
                if (inside := verdict == number).any():
                    kept = '{:.1%} [{:.1%}, {:.1%}]'.format(*interval(columns['kept'][inside]))
                    moved = '{:.3f} [{:.3f}, {:.3f}]'.format(*interval(columns['unfaithfulness'][inside]))
                    print(f'| {name} | {mask} | {label} | {inside.sum()} | {kept} | {moved} |')
    print_pooled(found)
    print('\n| graph | mask | Spearman with unfaithfulness: expected_unfaithfulness | mask_bound |\n|---|---|---|---|')
    for (name, mask), cell in found.items():
        both = (spearman(cell[field], cell['unfaithfulness']) for field in ('expected_unfaithfulness', 'mask_bound'))
        print('| {} | {} | {:.2f} | {:.2f} |'.format(name, mask, *both))
    return {f'{name}, {mask}': cell for (name, mask), cell in found.items()}


def print_measured(found):
    r"""What was seen of explanations with each verdict."""
    print('\n| graph | mask | verdict | explanations | prediction kept | unfaithfulness |\n|---|---|---|---|---|---|')
    for (name, mask), cell in found.items():
        columns = {field: np.array(values) for field, values in cell.items()}
        for number, label in enumerate(VERDICTS):
            if (inside := columns['verdict'] == number).any():
                kept, moved = (columns[field][inside].mean() for field in ('kept', 'unfaithfulness'))
                print(f'| {name} | {mask} | {label} | {inside.sum()} | {kept:.1%} | {moved:.3f} |')


def print_pooled(found):
    r"""What each threshold gives over all graphs, and what it would if a deciding bias were no reason to doubt."""
    print('\n| doubt | mask | called trustworthy | of these, kept | with a bias that decides |\n|---|---|---|---|---|')
    for doubt, mask in product(args.doubts, ('ranks', 'top 30%')):
        cells = [cell for (_, kind), cell in found.items() if kind == mask]
        column = {field: np.concatenate([cell[field] for cell in cells]) for field in cells[0]}
        sure = (column['surrogate_agreement'] == 1.0) & (column['expected_unfaithfulness'] <= doubt)
        by_bias = column['bias_decides'] == 1.0
        kept = [column['kept'][sure & side].mean() for side in (~by_bias, by_bias)]
        print('| {:g} | {} | {:.0%} | {:.1%} | {:.0%} |'.format(doubt, mask, (sure & ~by_bias).mean(), *kept))


def measure_bounds():
    r"""Medians, over nodes, of what a bound is over what it bounds."""
    results = {}
    for name, family, seed in product(args.graphs, (GCN, GAT, GIN), args.seeds):
        explainer, by_mask = explanations(name, family, seed)
        for mask, items in by_mask.items():
            for noise, count in ((0.0, 0), (0.05, 5)):
                cell = results[f'{name}, {family.__name__}, {seed}, {mask}, noise {noise:g}'] = defaultdict(list)
                for explanation in items:
                    found = bound(explainer, explanation, noise=noise, num_perturbations=count)
                    for field in ('lemma', 'tight_lemma', 'probable_lemma', 'tight_probable_lemma'):
                        cell[field].append(float(getattr(found, field) / found.surrogate_unfaithfulness))
                    for field in ('theorem', 'tight_theorem'):
                        cell[field].append(float(getattr(found, field) / found.unfaithfulness))
        shared_cache.clear()
    names = list(next(iter(results.values())))
    print(f'| graph, model, seed, mask, noise | {" | ".join(names)} |\n|---|{"---|" * len(names)}')
    for label, cell in results.items():
        print(f'| {label} | {" | ".join(f"{np.nanmedian(cell[field]):,.1f}" for field in names)} |')
    return results


results = measure_bounds() if args.bounds else measure_verdicts()
if args.out:
    with open(args.out, 'w') as file:
        json.dump(results, file)
