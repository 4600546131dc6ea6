r"""Measures explainers of links against the model itself: what it answers when features around a pair are blanked.

Results go to `--out`, one line of JSON for each explainer of a model; an interrupted run goes on where it stopped. Then
`page.py --pages links_results` writes docs/links_results.md.

    python evaluation/links.py --data FOLDER
    python evaluation/links.py --data FOLDER --graphs Cora --models "GCN dot" --seeds 0 --size 10
    python evaluation/links.py --data FOLDER --times
"""

import argparse
import time
import warnings
from functools import lru_cache
from itertools import product

import numpy as np
import scipy.sparse
import torch
from link_teachers import GRAPHS, MODELS, teach
from store import Job, Store
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from tqdm import tqdm

from pyg_dnx import FastDnX, ProbeDnX, shared_cache
from pyg_dnx.graph.operator import normalized_adjacency

SHARES = (0.05, 0.1, 0.3, 0.5)
HOPS, STEPS, GNN_PAIRS = 2, 50, 20
MOVED = 0.5  # standard deviations by which a rating must move to count as another prediction


class Around:
    r"""What the model sees of a pair, and no more of the graph: it gives the same answers, in less time.

    Features are embedded once, as a mask of nodes commutes with that.
    """

    def __init__(self, case, matrix, embedded, pair):
        self.model, self.is_binary = case.model, case.mode != 'regression'
        first = np.union1d(matrix[pair].indices, pair)
        nodes = np.union1d(matrix[first].indices, first)
        self.steps = [
            (sparse(matrix[first][:, nodes]), torch.from_numpy(np.searchsorted(nodes, first))),
            (sparse(matrix[pair][:, first]), torch.from_numpy(np.searchsorted(first, pair))),
        ]
        self.nodes = torch.from_numpy(nodes).long()
        self.x = embedded[self.nodes]

    def answers(self, masks):
        r"""What the model says under masks of nodes [P, n], as numbers [P]."""
        return self.of(masks.T[..., None] * self.x[:, None])

    def of(self, x):
        r"""What it says of embedded features [n, P, D], as numbers [P]."""
        for (matrix, own), conv in zip(self.steps, (self.model.conv1, self.model.conv2), strict=True):
            spread = (matrix @ x.flatten(1)).view(-1, *x.shape[1:])
            if isinstance(conv, GCNConv):
                x = spread @ conv.lin.weight.T + conv.bias
            else:
                x = spread @ conv.lin_l.weight.T + conv.lin_l.bias + x[own] @ conv.lin_r.weight.T
            x = x.relu() if conv is self.model.conv1 else x
        return self.model.decode(x[0], x[1])


def sparse(matrix):
    matrix = matrix.tocoo()
    places = torch.from_numpy(np.stack([matrix.row, matrix.col])).long()
    return torch.sparse_coo_tensor(places, torch.from_numpy(matrix.data).float(), matrix.shape).coalesce()


def messages(case):
    r"""By what a layer multiplies the features of neighbours, [N, N]: as GCN normalises, or means."""
    size, (source, target) = case.x.size(0), case.edge_index
    if isinstance(case.model.conv1, GCNConv):
        (source, target), weight = gcn_norm(case.edge_index, None, size)
    else:
        weight = 1.0 / torch.bincount(target, minlength=size)[target].float()
    return scipy.sparse.csr_matrix((weight.numpy(), (target.numpy(), source.numpy())), (size, size))


class Seen(torch.nn.Module):
    r"""The model around one pair, for explainers that take a model."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def forward(self, x, edge_index):
        return self.place.of(x[:, None])


def explainer(case, algorithm, model=None):
    mode = {'mode': case.mode, 'task_level': 'edge', 'return_type': 'raw'}
    return Explainer(
        model or case.model, algorithm, explanation_type='model', node_mask_type='object', model_config=mode
    )


def ours(algorithm):
    def explain(case, places, seed):
        found = explainer(case, algorithm()).algorithm.explain_links(
            case.model, case.x, case.edge_index, edge_label_index=case.pairs[:, : len(places)]
        )
        scores, report = found.scores.to_dense(), found.surrogate.report
        told = {'held_out_r2': report.held_out_r2, 'masked_r2': report.masked_r2, 'majority': report.majority}
        told |= {'agreement': report.agreement, 'r2': None if found.probe_r2 is None else found.probe_r2.tolist()}
        return [row[place.nodes] for row, place in zip(scores, places, strict=True)], told

    return explain


def integrated_gradients(of_probability):
    def explain(case, places, seed):
        found = []
        for place in places:
            share = ((torch.arange(STEPS) + 0.5) / STEPS)[:, None].expand(-1, place.nodes.numel()).clone()
            answers = place.answers(share.requires_grad_())
            if of_probability and case.mode != 'regression':
                answers = answers.sigmoid()
            (gradient,) = torch.autograd.grad(answers.sum(), share)
            found.append(gradient.mean(dim=0) * side(place))
        return found, {}

    return explain


def saliency(case, places, seed):
    r"""The sum of the sizes of the gradient at each node's features."""
    found = []
    for place in places:
        x = place.x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(place.of(x[:, None]).sum(), x)
        found.append((gradient @ place.model.embed.weight).detach().abs().sum(dim=1))
    return found, {}


def side(place):
    r"""Toward what the model predicts: a link or none; a rating above what it says of blank features, or below."""
    with torch.no_grad():
        full, blank = place.answers(torch.stack([torch.ones(place.nodes.numel()), torch.zeros(place.nodes.numel())]))
    return 1.0 if float(full) > (0.0 if place.is_binary else float(blank)) else -1.0


def gnn_explainer(case, places, seed):
    found = []
    for place in places[:GNN_PAIRS]:
        torch.manual_seed(seed)
        explain = explainer(case, GNNExplainer(epochs=100), Seen(place))
        no_edges = torch.zeros(2, 0, dtype=torch.long)
        found.append(explain(place.x, no_edges).node_mask[:, 0])
    return found, {}


def walks(case, places, seed):
    operator = normalized_adjacency(case.edge_index, None, case.x.size(0), torch.float64)
    found = []
    for place, pair in zip(places, case.pairs.T, strict=True):
        reached = torch.zeros(case.x.size(0), 1, dtype=torch.float64)
        reached[pair[0]] += 1.0
        reached[pair[1]] += 1.0
        for _ in range(HOPS):
            reached = operator.transposed @ reached
        found.append(reached[place.nodes, 0])
    return found, {}


def chance(case, places, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(place.nodes.numel(), generator=generator) for place in places], {}


EXPLAINERS = {
    'FastDnX': ours(FastDnX),
    'ProbeDnX': ours(ProbeDnX),
    'GNNExplainer': gnn_explainer,
    'IG, logit': integrated_gradients(False),
    'IG, probability': integrated_gradients(True),
    'Saliency': saliency,
    'walks of both ends': walks,
    'random': chance,
}


def measure(job, case, places, unit):
    r"""For each share and pair: whether the prediction changed, and how far it moved, without the share and with it."""
    shared_cache.clear()
    start = time.perf_counter()
    scores, told = EXPLAINERS[job.explainer](case, places, job.seed)
    record = {'seconds': (time.perf_counter() - start) / len(scores), 'worth': case.worth, **told}
    for share in SHARES:
        record[f'{share:g}'] = {'fidelity_plus': [], 'fidelity_minus': [], 'fall': [], 'moved': []}
    generator = torch.Generator().manual_seed(job.seed)
    for place, score in zip(places, scores, strict=False):
        score = score.detach().double()
        score = score + 1e-9 * score.abs().max() * torch.rand(score.shape, generator=generator, dtype=torch.float64)
        rank, count = score.argsort(descending=True).argsort(), score.numel()
        top = torch.stack([(rank < max(1, round(share * count))).float() for share in SHARES])
        with torch.no_grad():
            found = place.answers(torch.cat([torch.ones_like(top[:1]), 1.0 - top, top]))
        if case.mode == 'regression':
            gap = (found[1:] - found[0]) / unit
            changed, moved = gap.abs() > MOVED, gap.abs()
        else:
            changed, moved = (found[1:] > 0) != (found[0] > 0), (found[1:].sigmoid() - found[0].sigmoid()).abs()
        for way, name in ((changed, ('fidelity_plus', 'fidelity_minus')), (moved, ('fall', 'moved'))):
            for key, values in zip(name, way.double().view(2, -1).tolist(), strict=True):
                for share, value in zip(SHARES, values, strict=True):
                    record[f'{share:g}'][key].append(round(value, 5))
    return record


@lru_cache(maxsize=1)
def learnt(graph, model, seed, folder, size):
    case = teach(graph, model, seed, folder, size)
    matrix = messages(case)
    with torch.no_grad():
        embedded, known = case.model.embed(case.x), case.model(case.x, case.edge_index, case.pairs)
        places = [Around(case, matrix, embedded, pair.numpy()) for pair in case.pairs.T]
        found = torch.cat([place.answers(torch.ones(1, place.nodes.numel())) for place in places])
    torch.testing.assert_close(found, known, rtol=1e-3, atol=1e-3)
    return case, places, float(known.std())


def times(args, store):
    r"""Seconds for each pair: many at once, the distillation and the probes included, and GNNExplainer's call."""
    case, _, _ = learnt('Cora', 'GCN dot', 0, args.data, args.size)
    pairs = torch.randint(case.x.size(0), (2, 10_000), generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    calls = 3
    for pair in case.pairs.T[:calls]:
        explainer(case, GNNExplainer(epochs=100))(case.x, case.edge_index, edge_label_index=pair[:, None])
    rival = (time.perf_counter() - start) / calls
    store.add(Job('link_times', 'Cora', 'GCN dot', 0, 'GNNExplainer'), {'seconds': rival})
    for name, algorithm in (('FastDnX', FastDnX()), ('ProbeDnX', ProbeDnX())):
        shared_cache.clear()
        explain, inputs = explainer(case, algorithm).algorithm, (case.model, case.x, case.edge_index)
        start = time.perf_counter()
        explain.distill(*inputs, edge_label_index=pairs)
        distilled = time.perf_counter()
        explain.explain_links(*inputs, edge_label_index=pairs, top_k=10)
        end = time.perf_counter()
        each = (end - distilled) / pairs.size(1)
        record = {'seconds': each, 'distillation': distilled - start, 'pairs': pairs.size(1), 'times': rival / each}
        store.add(Job('link_times', 'Cora', 'GCN dot', 0, name), record)
        print(name, record)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', default='data')
    parser.add_argument('--out', default='results')
    parser.add_argument('--graphs', nargs='+', default=GRAPHS, choices=GRAPHS)
    parser.add_argument('--models', nargs='+', default=MODELS, choices=MODELS)
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--size', type=int, default=100, help='how many pairs are explained')
    parser.add_argument('--explainers', nargs='+', default=list(EXPLAINERS), choices=list(EXPLAINERS))
    parser.add_argument('--times', action='store_true', help='measures times alone')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    store = Store(args.out)
    if args.times:
        return times(args, store)
    jobs = [Job('links', *cell) for cell in product(args.graphs, args.models, args.seeds, args.explainers)]
    for job in (bar := tqdm([job for job in jobs if job not in store.records])):
        bar.set_postfix_str(' '.join(map(str, job[1:])))
        store.add(job, measure(job, *learnt(*job[1:4], args.data, args.size)))


if __name__ == '__main__':
    main()
