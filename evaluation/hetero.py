r"""Measures explainers of heterogeneous graphs against the model itself, and on a graph whose truth is planted.

Results go to `--out`, one line of JSON for each explainer of a model; an interrupted run goes on where it stopped. Then
the means are printed, and differences from Integrated Gradients with 95% intervals over nodes and teachers.

    python evaluation/hetero.py --data FOLDER                 # has 'hetero/acm'
    python evaluation/hetero.py --data FOLDER --quick
"""

import argparse
import os
import os.path as osp
import time
import warnings

import numpy as np
import torch
from hetero_explainers import EXPLAINERS, TYPES, around, graph_of
from measures import listed
from metrics import highest, size_of
from store import Job, Store
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HeteroConv, HGTConv, SAGEConv, to_hetero
from tqdm import tqdm

from pyg_dnx import FastDnX, probe_masks, shared_cache
from pyg_dnx.teacher.local import Local, Masks
from pyg_dnx.trust.measure import graph_unfaithfulness

WIDTH, NUM_HOPS, SHARES = 64, 2, (0.1, 0.3, 0.5)


def acm(folder):
    r"""Papers of three classes, their authors, and subjects without features."""
    from scipy.sparse import load_npz

    path, data = osp.join(folder, 'hetero', 'acm'), HeteroData()
    data['paper'].x, data['author'].x = (
        torch.from_numpy(load_npz(osp.join(path, name)).toarray()).float() for name in ('p_feat.npz', 'a_feat.npz')
    )
    data['paper'].y = torch.from_numpy(np.load(osp.join(path, 'labels.npy'))).long()
    data['subject'].num_nodes = 60
    for other, name in (('author', 'pa.txt'), ('subject', 'ps.txt')):
        pairs = torch.from_numpy(np.loadtxt(osp.join(path, name), dtype=np.int64)).T.contiguous()
        data['paper', 'to', other].edge_index, data[other, 'of', 'paper'].edge_index = pairs, pairs.flip(0)
    return data


def planted(folder=None):
    r"""Papers whose class is that of the authors who wrote them, and has nothing to do with who reviews or quotes them.

    All relations are between the same types, and authors have features of one distribution.
    """
    generator, data = torch.Generator().manual_seed(0), HeteroData()
    num_papers, num_authors = 1000, 3000
    kind = torch.randint(3, (num_authors,), generator=generator)
    data['author'].x = torch.eye(3)[kind] + 0.3 * torch.randn(num_authors, 3, generator=generator)
    data['paper'].x = torch.randn(num_papers, 4, generator=generator)
    data['paper'].y = torch.randint(3, (num_papers,), generator=generator)
    papers = torch.arange(num_papers).repeat_interleave(3)
    authors = [(kind == c).nonzero()[:, 0] for c in range(3)]
    own = torch.stack([authors[c][torch.randint(len(authors[c]), (1,), generator=generator)][0]
                       for c in data['paper'].y[papers].tolist()])  # fmt: skip
    data['author', 'writes', 'paper'].edge_index = torch.stack([own, papers])
    for name in ('reviews', 'quotes'):
        some = torch.randint(num_authors, (papers.numel(),), generator=generator)
        data['author', name, 'paper'].edge_index = torch.stack([some, papers])
    data['paper', 'by', 'author'].edge_index = data['author', 'writes', 'paper'].edge_index.flip(0)
    cited = torch.randint(num_papers, (2, 2000), generator=generator)
    data['paper', 'cites', 'paper'].edge_index = cited
    return data


GRAPHS = {'ACM': acm, 'planted': planted}


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GATConv((-1, -1), WIDTH, add_self_loops=False)
        self.second = GATConv((-1, -1), WIDTH, add_self_loops=False)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Model(torch.nn.Module):
    r"""Two layers of a kind, from features of each type, or embeddings where a type has none."""

    def __init__(self, data, kind):
        super().__init__()
        widths = {name: data[name].num_features if 'x' in data[name] else 0 for name in data.node_types}
        self.inputs = torch.nn.ModuleDict({n: torch.nn.Linear(w, WIDTH) for n, w in widths.items() if w > 0})
        missing = {n: torch.nn.Embedding(data[n].num_nodes, WIDTH) for n, w in widths.items() if w == 0}
        self.missing, metadata = torch.nn.ModuleDict(missing), data.metadata()
        self.kind, self.lin = kind, torch.nn.Linear(WIDTH, int(data['paper'].y.max()) + 1)
        if kind == 'GAT':
            self.layers = to_hetero(Layers(), metadata)
        elif kind == 'SAGE':
            convs = [{edge: SAGEConv((-1, -1), WIDTH) for edge in metadata[1]} for _ in range(NUM_HOPS)]
            self.layers = torch.nn.ModuleList([HeteroConv(conv) for conv in convs])
        else:
            self.layers = torch.nn.ModuleList([HGTConv(WIDTH, WIDTH, metadata, heads=2) for _ in range(NUM_HOPS)])

    def forward(self, x_dict, edge_index_dict, node_id_dict=None):
        x_dict = {name: self.inputs[name](x).relu() for name, x in x_dict.items()}
        for name, every in self.missing.items():
            x_dict[name] = every.weight if node_id_dict is None else every(node_id_dict[name])
        if self.kind == 'GAT':
            return self.lin(self.layers(x_dict, edge_index_dict)['paper'])
        for layer in self.layers:
            found = layer(x_dict, edge_index_dict)
            x_dict = {**x_dict, **{name: x.relu() for name, x in found.items() if x is not None}}
        return self.lin(x_dict['paper'])


def inputs_of(data):
    r"""What the model takes: features, edges, and the ids of nodes of types without features."""
    ids = {name: torch.arange(data[name].num_nodes) for name in data.node_types if 'x' not in data[name]}
    return data.x_dict, data.edge_index_dict, ({'node_id_dict': ids} if ids else {})


def teacher(graph, kind, data, seed, folder, epochs=500):
    r"""A model with the weights of its best epoch on validation papers."""
    torch.manual_seed(seed)
    model, (x, edges, kwargs) = Model(data, kind), inputs_of(data)
    model(x, edges, **kwargs)
    order = torch.randperm(data['paper'].num_nodes, generator=torch.Generator().manual_seed(seed))
    count = len(order) // 5
    parts = {'test': order[:count], 'validation': order[count : 2 * count], 'train': order[2 * count :]}
    os.makedirs(folder, exist_ok=True)
    path = osp.join(folder, f'{graph} {kind} {seed}.pt')
    if not osp.exists(path):
        optimizer, best = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4), -1.0
        y, stale = data['paper'].y, 0
        for _ in range(epochs):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x, edges, **kwargs)[parts['train']], y[parts['train']])
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                hit = model(x, edges, **kwargs).argmax(dim=1) == y
            score, stale = float(hit[parts['validation']].double().mean()), stale + 1
            if score > best:
                best, stale = score, 0
                torch.save({'model': model.state_dict(), 'test': float(hit[parts['test']].double().mean())}, path)
            if stale == 100:
                break
    known = torch.load(path, weights_only=True)
    model.load_state_dict(known['model'])
    return model.eval(), parts, known['test']


def measure(job, model, data, nodes):
    r"""Per share and node: whether the prediction changed, and how far it moved; and the ranks of planted nodes."""
    graph, teach = graph_of(model, *inputs_of(data))
    shared_cache.clear()
    known = teach.outputs(graph).values
    near = around(graph, nodes, NUM_HOPS)  # [B, N]
    has_features = torch.cat(
        [torch.full((ids.numel(),), name in data.x_dict) for name, ids in graph.types.nodes.items()]
    )
    candidates = near & has_features
    start = time.perf_counter()
    scores, edges = EXPLAINERS[job.explainer](model, teach, graph, nodes, job.seed)
    record = {'nodes': nodes.tolist(), 'seconds': (time.perf_counter() - start) / len(nodes)}
    scores = scores.double() + 1e-12 * torch.rand(scores.shape, generator=torch.Generator().manual_seed(job.seed))
    scores = scores.masked_fill(~candidates, -torch.inf)
    local, target = Local(teach, graph, known, teach.reach), known[nodes].argmax(dim=1)
    for share in SHARES:
        top = highest(scores, size_of(share, scores))
        masks = torch.cat([~(top & candidates), top | ~candidates]) | ~has_features
        removed, kept = local.at(torch.cat([nodes, nodes]), Masks(node=masks)).chunk(2)
        record[f'{share:g}'] = {
            'fidelity_plus': listed(removed.argmax(dim=1) != target),
            'fidelity_minus': listed(kept.argmax(dim=1) != target),
            'unfaithfulness': listed((known[nodes] - kept).norm(dim=1)),
            'gef': listed(graph_unfaithfulness(known[nodes], kept)),
        }
    if job.graph == 'planted':
        record |= found_again(data, graph, nodes, scores, edges)
    return record


def found_again(data, graph, nodes, scores, edges):
    r"""Whether the highest node but the paper itself is a writer of it, and the relation with the highest mean flow."""
    source, target = data['author', 'writes', 'paper'].edge_index
    first = int(graph.types.nodes['author'][0])
    scores = scores.clone()
    scores[torch.arange(len(nodes)), graph.roots[nodes]] = -torch.inf
    writers = [source[target == node] + first for node in nodes.tolist()]
    record = {'first': listed(torch.tensor([row.argmax() in w for row, w in zip(scores, writers, strict=True)]))}
    if edges is not None:
        ends, own = graph.edge_index[1], graph.types.edges['author', 'writes', 'paper']
        hit = []
        for row, node in zip(edges, graph.roots[nodes].tolist(), strict=True):
            into = row.masked_fill(ends != node, 0.0)
            totals = {name: float(into[ids].sum()) for name, ids in graph.types.edges.items()}
            hit.append(totals['author', 'writes', 'paper'] == max(totals.values()) and own.numel() > 0)
        record['relation'] = listed(torch.tensor(hit))
    return record


def agreement(model, data, nodes, distillation):
    r"""How often the surrogate predicts the model's class under eight masks that it was not distilled under."""
    graph, teach = graph_of(model, *inputs_of(data))
    algorithm = FastDnX(distillation=distillation, target_type='paper')
    algorithm.connect(*TYPES)
    surrogate = algorithm.distill(model, *inputs_of(data)[:2], **inputs_of(data)[2])
    decomposition, hits = surrogate.on(graph), []
    for mask in probe_masks(graph.num_nodes, 26)[-8:]:
        found = decomposition.masked(nodes, graph.x, mask[:, None], None) + surrogate.bias
        answers = teach.under(graph, mask[:, None])[nodes]
        hits.append((found.argmax(dim=1) == answers.argmax(dim=1)).double().mean())
    return float(torch.stack(hits).mean())


def characterization(plus, minus):
    r"""PyG's, of means over nodes."""
    return 2.0 / (1.0 / max(plus, 1e-9) + 1.0 / max(1.0 - minus, 1e-9))


def report(store, graphs):
    r"""Means over teachers and shares, and differences from Integrated Gradients with paired intervals."""
    for graph in graphs:
        print(f'\n{graph:<32} {"char.":>7} {"unfaith.":>9} {"gef":>7} {"first":>7} {"relation":>9}   char. - IG')
        for name in EXPLAINERS:
            found = store.select('hetero', graph=graph, explainer=name)
            if not found:
                continue
            rows = [summary(record) for record in found.values()]
            means = [np.nanmean(column) for column in zip(*rows, strict=True)]
            line = f'{name:<32} ' + ' '.join(f'{value:>8.3f}' for value in means)
            rival = {(j.model, j.seed): r for j, r in store.select('hetero', graph=graph, explainer='IG').items()}
            pairs = [(r, rival[j.model, j.seed]) for j, r in found.items() if (j.model, j.seed) in rival]
            print(line + (f'   {interval(pairs)}' if pairs and name != 'IG' else ''))


def summary(record, keep=slice(None)):
    shares = [{k: np.array(v)[keep] for k, v in record[f'{share:g}'].items()} for share in SHARES]
    char = np.mean([characterization(s['fidelity_plus'].mean(), s['fidelity_minus'].mean()) for s in shares])
    means = [np.mean([s[key].mean() for s in shares]) for key in ('unfaithfulness', 'gef')]
    planted = [np.mean(record[key]) if key in record else np.nan for key in ('first', 'relation')]
    return char, *means, *planted


def interval(pairs):
    r"""The mean difference and its 95% interval, by drawing teachers, and nodes of each, again."""
    generator, found = np.random.default_rng(0), []
    for _ in range(500):
        total = []
        for place in generator.integers(len(pairs), size=len(pairs)):
            ours, theirs = pairs[place]
            keep = generator.integers(len(ours['nodes']), size=len(ours['nodes']))
            total.append(summary(ours, keep)[0] - summary(theirs, keep)[0])
        found.append(np.mean(total))
    middle = np.mean([summary(ours)[0] - summary(theirs)[0] for ours, theirs in pairs])
    low, high = np.quantile(found, [0.025, 0.975])
    return f'{middle:+.3f} ({low:+.3f} to {high:+.3f})'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', default='data', help="has a folder 'hetero/acm'")
    parser.add_argument('--out', default='results')
    parser.add_argument('--graphs', nargs='+', default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument('--models', nargs='+', default=['SAGE', 'GAT', 'HGT'])
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--explainers', nargs='+', default=list(EXPLAINERS), choices=EXPLAINERS)
    parser.add_argument('--size', type=int, default=60, help='how many papers are explained')
    parser.add_argument('--quick', action='store_true', help='ten papers, one seed')
    args = parser.parse_args()
    if args.quick:  # which must not pass for the real thing
        args.seeds, args.size, args.out = args.seeds[:1], 10, osp.join(args.out, 'quick')
    warnings.simplefilter('ignore')
    store = Store(args.out)
    for graph in args.graphs:
        data = GRAPHS[graph](args.data)
        for kind in args.models:
            for seed in args.seeds:
                jobs = [Job('hetero', graph, kind, seed, name) for name in args.explainers]
                jobs = [job for job in jobs if job not in store.records]
                if not jobs:
                    continue
                model, parts, accuracy = teacher(graph, kind, data, seed, osp.join(args.out, 'teachers'))
                nodes = parts['test'][: args.size]
                for job in (bar := tqdm(jobs)):
                    bar.set_postfix_str(' '.join(map(str, job[1:])))
                    record = measure(job, model, data, nodes)
                    if job.explainer.startswith('FastDnX'):
                        how = 'masked' if 'masked' in job.explainer else 'paper'
                        record['agreement'] = agreement(model, data, parts['test'], how)
                        bar.write(f'{job.model} {job.seed} {job.explainer}: agreement {record["agreement"]:.3f}')
                    store.add(job, {'accuracy': accuracy, **record})
    report(store, args.graphs)


if __name__ == '__main__':
    main()
