r"""The evaluation, against slow definitions that can be checked by eye."""

import copy
import math
import sys
from itertools import pairwise, permutations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_case import CLOSE, graph, reached
from torch_geometric.explain import CaptumExplainer, DummyExplainer, Explainer, metric
from torch_geometric.explain.algorithm.utils import set_masks
from torch_geometric.nn import GCN, GIN, SGConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_dense_adj

from pyg_dnx.datasets import MotifDataset, node_truth

sys.path.insert(0, str(Path(__file__).parents[2] / 'evaluation'))
import explainers
import intervals
import measures
import metrics
import probes
import store
import teachers
from recipe import distill_by_recipe

INF, NODES = math.inf, torch.tensor([4, 12, 0, 9, 5, 7, 2])
TIED = torch.tensor([[1, 2, 2, 2, 0, -INF], [1, 1, 1, 1, 1, 1], [-INF, 3, -INF, 3, -INF, -INF], [5, 1, 4, 2, 3, 0]])
TRUTH = torch.tensor([[1, 1, 0, 0, 1, 1], [1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0], [0, 1, 1, 0, 0, 0]]).bool()


@pytest.fixture(params=['GCN', 'GIN, directed', 'GIN, in pieces', 'GCN, directed, in pieces'])
def case(request, monkeypatch):
    r"""A smooth model of two layers, its graph and its probes."""
    torch.manual_seed(1)
    data, family = graph('directed' in request.param), GCN if 'GCN' in request.param else GIN
    model = family(3, 8, 2, 3, act='tanh').eval().requires_grad_(False)
    monkeypatch.setattr(probes, 'MAX_ENTRIES', 1000 if 'pieces' in request.param else 2**24)
    found = probes.Probes(model, data, NODES)
    assert (len(found.parts) > 1) == ('pieces' in request.param)
    return model, data, found


def on_subgraph(model, data, keep, node):
    r"""What a model answers for a node without the edges that lead to, or come from, others than those kept."""
    pairs = [(s, t) for s, t in data.edge_index.T.tolist() if (keep[s] or s == node) and (keep[t] or t == node)]
    return model(data.x, torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T)[node].softmax(dim=0)


def test_ties_are_shared_evenly():
    for size, (row, (scores, truth)) in product((1, 2, 3, 4, 6, 8), enumerate(zip(TIED, TRUTH, strict=True))):
        orders = [o for o in permutations(range(6)) if all(scores[i] >= scores[j] for i, j in pairwise(o))]
        hits = [sum(bool(truth[i]) for i in order[:size] if scores[i] > -INF) for order in orders]
        assert float(metrics.top_precision(TIED, TRUTH, size)[row]) == pytest.approx(np.mean(hits) / size)
        pairs = [(a > b) + 0.5 * (a == b) for a, b in product(scores[truth].tolist(), scores[~truth].tolist())]
        assert metrics.auc(scores, truth) == pytest.approx(np.mean(pairs))
    assert all(math.isnan(metrics.auc(scores, torch.full((6,), same))) for same in (True, False))


def test_highest():
    for size, seed in product((1, 3, 6, torch.tensor([4, 2, 3, 1])), range(20)):
        sizes = torch.as_tensor(size).expand(4)
        for scores, chosen, wanted in zip(TIED, metrics.highest(TIED, size, seed), sizes, strict=True):
            assert int(chosen.sum()) == min(int(wanted), int((scores > -INF).sum()))
            assert not bool(chosen[scores == -INF].any())
            assert chosen.all() or scores[chosen].min() >= scores[~chosen].max()
    draws = torch.stack([metrics.highest(torch.zeros(50, 4), 1, seed).float() for seed in range(40)])
    assert (draws.mean(dim=(0, 1)) - 0.25).abs().max() < 0.05  # ties go by lot, whatever the place,
    assert draws.mean(dim=1).min() > 0  # in each row anew
    assert draws.std(dim=0).min() > 0  # and for each seed
    assert [metrics.size_of(share, TIED).tolist() for share in (0.05, 0.6)] == [[1, 1, 1, 1], [3, 4, 1, 4]]


def test_ranks():
    assert metrics.mean_rank(torch.tensor([0.0, 3, -1, 3, 0, 3])).tolist() == [2.5, 5, 1, 5, 2.5, 5]
    other = torch.tensor([[2.0, 2, 1, 5, -INF, 4], [9] * 6, [4, 4, *4 * [-INF]], [1, 2, 3, 4, 5, 9]])
    ranks = ([1, 3, 3, 3], [2.5, 2.5, 1, 4]), ([6, 2, 5, 3, 4, 1], [1, 2, 3, 4, 5, 6])  # the other rows have none
    assert metrics.rank_correlation(TIED, other) == pytest.approx(np.mean([np.corrcoef(*row)[0, 1] for row in ranks]))


def test_probes_answer_as_the_model_on_the_whole_graph(case):
    model, data, found = case
    assert found.near.equal(torch.stack([reached(data, node, 2) for node in NODES]))
    torch.testing.assert_close(found.probs, model(data.x, data.edge_index).softmax(dim=1)[NODES], **CLOSE)
    keep = torch.rand(7, 14, generator=torch.Generator().manual_seed(2))
    masked, cut = found.masked(keep), found.cut(keep < 0.6)
    for row, node in enumerate(NODES):
        expected = model(data.x * keep[row, :, None], data.edge_index)[node].softmax(dim=0)
        torch.testing.assert_close(masked[row], expected, **CLOSE)
        torch.testing.assert_close(cut[row], on_subgraph(model, data, keep[row] < 0.6, node), **CLOSE)


def test_gradients(case):
    model, data, found = case
    for row, node in enumerate(NODES):
        x = data.x.clone().requires_grad_()
        model(x, data.edge_index)[node, found.target[row]].backward()
        torch.testing.assert_close(found.gradients(probes.logit)[row], x.grad.abs().sum(dim=1), **CLOSE)
    ends = [model(x, data.edge_index)[NODES] for x in (data.x, 0 * data.x)]
    for of, slow, atol in (
        (probes.logit, lambda out, t: out[t], 1e-3),
        (probes.probability, lambda out, t: out[t].exp() / out.exp().sum(), 1e-3),
        (probes.margin, lambda out, t: out[t] - max(out[c] for c in range(3) if c != t), 1e-2),  # has kinks
    ):
        values = [torch.stack(list(map(slow, end, found.target))) for end in ends]
        torch.testing.assert_close(found.gradients(of, 50).sum(dim=1), values[0] - values[1], atol=atol, rtol=0.0)


def test_integrated_gradients_are_those_of_captum(case):
    pytest.importorskip('captum')
    model, data, found = case
    explainer = Explainer(model, CaptumExplainer('IntegratedGradients'), 'model', explainers.CONFIG, 'attributes')
    masks = [explainer(data.x, data.edge_index, index=int(node)).node_mask.sum(dim=1) for node in NODES]
    torch.testing.assert_close(found.gradients(probes.logit, 50), torch.stack(masks), **CLOSE)


@pytest.mark.parametrize('left', [1, 10, -5, -3, -2, -1])
def test_a_line_cut_short_is_all_that_is_lost(tmp_path, left):
    records = {store.Job('truth', 'Cora', 'GCN', n, 'Ã'): {'auc': n / 3, '1': {'a': [n]}, 'b': {}} for n in range(4)}
    for job in list(records)[:2]:
        store.Store(tmp_path).add(job, records[job])
    path = tmp_path / 'records.jsonl'
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + second[:left])
    resumed = store.Store(tmp_path)
    assert next(iter(records)) in resumed.records
    for job in records.keys() - resumed.records.keys():
        resumed.add(job, records[job])
    found = store.Store(tmp_path)
    assert found.records == resumed.records == records
    assert found.select('truth', graph='Cora', seed=3) == dict([*records.items()][3:])
    assert found.select('edges') == found.select('truth', model='GIN') == {}


def test_scores_of_edges_and_nodes():
    edge_index = torch.tensor([[0, 1, 2, 2, 1], [1, 0, 2, 1, 3]])  # with a self-loop; node 4 has no edge
    edge, node = torch.tensor([[1.0, 2, 3, 4, 5], [0, -1, 7, 2, -torch.inf]]), torch.arange(10.0).reshape(2, 5)
    for row, v in product(range(2), range(5)):
        at = [float(edge[row, e]) for e in range(5) for end in edge_index[:, e] if end == v and edge[row, e].isfinite()]
        assert float(explainers.to_nodes(edge, edge_index, 5)[row, v]) == pytest.approx(sum(at) / max(len(at), 1))
    slow = [[float(row[source] + row[target]) for source, target in edge_index.T] for row in node]
    assert explainers.to_edges(node, edge_index).tolist() == slow


def test_rows_of_powers(case):
    _, data, found = case
    edge_index, weight = gcn_norm(data.edge_index, None, 14, dtype=torch.float64)
    dense = to_dense_adj(edge_index, edge_attr=weight, max_num_nodes=14)[0].T
    for name, expected in (('Ã', dense), ('Ã^L', dense @ dense)):
        torch.testing.assert_close(explainers.EXPLAINERS[name](found, data, 0).node, expected[NODES])


@pytest.mark.parametrize('name', [n for n in explainers.EXPLAINERS if n not in ('PGExplainer', 'PGMExplainer')])
def test_explainers_fill_tables(name):
    torch.manual_seed(0)
    data, slow = graph(), name.startswith('GNNExplainer')
    model = teachers.build('GCN', 'tree_cycles', data).eval()
    found = probes.Probes(model, data, NODES[1:3] if slow else NODES)
    scores = explainers.EXPLAINERS[name](found, data, 0)
    near = found.near if scores.edge is None else found.near[:, data.edge_index].all(dim=1)
    (table,) = (table for table in scores if table is not None)
    assert table.shape == near.shape
    assert bool(table.isfinite().all() and table[-1][near[-1]].any())
    assert name == 'random' or not bool(table[~near].any())
    if not slow:
        row = explainers.EXPLAINERS[name](probes.Probes(model, data, NODES[:1]), data, 0).node[0]
        torch.testing.assert_close(row, table[0], **CLOSE)  # whatever else is explained


def test_node_by_node_puts_scores_in_their_places(case):
    _, data, found = case
    data.x[:, 0] = torch.arange(14)

    def explain(x, edges, root):
        return dict(node_mask=x[:, :2] + x[root, 0], edge_mask=x[edges[0], 0] + 20 * x[edges[1], 0] + x[root, 0])

    for center, node, edge in zip(NODES.tolist(), *explainers.node_by_node(explain, found, data), strict=True):
        seen = reached(data, center, 3)
        torch.testing.assert_close(node, (data.x[:, :2] + center).sum(dim=1) * seen)
        assert edge.tolist() == [(s + 20 * t + center) * bool(seen[s] & seen[t]) for s, t in data.edge_index.T.tolist()]


@pytest.mark.parametrize('perfect', [True, False])
def test_truth(perfect, monkeypatch):
    torch.manual_seed(0)
    data, job = MotifDataset('tree_cycles')[0], store.Job('truth', 'tree_cycles', 'GCN', 0, 'mine')
    model, nodes = GCN(data.num_features, 8, 2, 2).eval(), measures.with_truth(data, job, 30)
    truth, near = node_truth(data, nodes), torch.stack([reached(data, node, 2) for node in nodes])
    model.convs[1].bias.data -= model(data.x, data.edge_index)[nodes].median(dim=0).values
    scores = explainers.Scores(truth * float(perfect) + 2.0 * ~near)  # no matter what it says of the rest
    monkeypatch.setitem(explainers.EXPLAINERS, 'mine', lambda *_: scores)
    record = measures.measure_truth(model, data, job, 30)
    shared, seen = (truth & near).sum(dim=1), near.sum(dim=1)
    expected = {'ceiling': shared / 6, 'accuracy': shared / 6, 'accuracy_others': (shared - 1) / 5}
    if not perfect:  # six, or five others, of what the model sees, by lot
        expected['accuracy'] *= seen.clamp(max=6) / seen
        expected['accuracy_others'] *= (seen - 1).clamp(max=5) / (seen - 1)
    expected |= dict.fromkeys(('auc', 'auc_mean'), torch.tensor(1.0 if perfect else 0.5))
    assert {key: record[key] for key in expected} == pytest.approx({k: float(v.mean()) for k, v in expected.items()})
    chosen = metrics.highest((truth * perfect).float().masked_fill(~near, -INF), 6)
    kept = [on_subgraph(model, data, *pair).argmax() == data.y[pair[1]] for pair in zip(chosen, nodes, strict=True)]
    right = (model(data.x, data.edge_index).argmax(dim=1) == data.y)[nodes]
    assert record['fidelity'] == pytest.approx((int(right.sum()) - sum(map(int, kept))) / 30)


def test_faithfulness_is_that_of_pyg(case, monkeypatch):
    model, data, found = case
    monkeypatch.setattr(measures, 'SHARES', (0.4, 1.0))
    scores = torch.rand(7, 14, generator=torch.Generator().manual_seed(5)).masked_fill(~found.near, -INF)
    record = measures.faithfulness(found, scores, data.y)
    assert all(record['1'][key] == [0.0] * 7 for key in ('fidelity_minus', 'unfaithfulness', 'total_variation'))
    explainer = Explainer(model, DummyExplainer(), 'model', explainers.CONFIG, node_mask_type='object')
    for row, node in enumerate(NODES):
        explanation = explainer(data.x, data.edge_index, index=node[None])
        top = scores[row].argsort(descending=True)[: max(1, round(0.4 * int(found.near[row].sum())))]
        explanation.node_mask = torch.isin(torch.arange(14), top).float()[:, None]
        here = {name: values[row] for name, values in record['0.4'].items()}
        assert (here['fidelity_plus'], here['fidelity_minus']) == metric.fidelity(explainer, explanation)
        assert here['unfaithfulness'] == pytest.approx(metric.unfaithfulness(explainer, explanation), abs=2e-5)
        answer = on_subgraph(model, data, explanation.node_mask, node).argmax()
        assert here['right_on_subgraph'] == (answer == data.y[node])


def test_edge_gradients_add_up_to_what_the_messages_do(case):
    model, data, found = case
    scores = explainers.edge_gradients(probes.logit)(found, data, 0).edge
    silent = copy.deepcopy(model)
    set_masks(silent, torch.zeros(data.num_edges), data.edge_index, apply_sigmoid=False)
    change = (model(data.x, data.edge_index) - silent(data.x, data.edge_index))[NODES]
    torch.testing.assert_close(scores.sum(dim=1), change.gather(1, found.target[:, None])[:, 0], **CLOSE)
    assert (scores != 0).any(dim=1).sum() > 4
    assert not any(conv.explain for conv in model.convs)  # which is left as it was


def test_the_recipe(case, monkeypatch):
    _, data, found = case
    student = torch.nn.Linear(3, 3)
    monkeypatch.setattr(explainers, 'distill_by_recipe', lambda *_: (student, None, None, None))
    scores = explainers.recipe(found, data, 0).node
    edge_index, weight = gcn_norm(data.edge_index, num_nodes=14, dtype=torch.float64)
    power = to_dense_adj(edge_index, edge_attr=weight, max_num_nodes=14)[0].T.matrix_power(2)
    logits = power @ data.x.double() @ student.weight.double().T  # less the bias
    for row, i in enumerate(NODES.tolist()):
        expected = [power[i, j] * (data.x[j].double() @ student.weight.double().T) @ logits[i] for j in range(14)]
        torch.testing.assert_close(scores[row], torch.stack(expected))
    planted = SGConv(3, 3, K=3).requires_grad_(False)
    student, inputs, probs, kl = distill_by_recipe(planted, data, epochs=1500)
    torch.testing.assert_close(student(inputs).softmax(dim=1), probs, atol=1e-2, rtol=0.0)
    assert abs(kl) < 1e-4


def test_one_surrogate_of_the_recipe_serves_both_measures():
    torch.manual_seed(0)
    data, job = MotifDataset('tree_cycles')[0], store.Job('recipe', 'tree_cycles', 'GCN', 0, 'FastDnX')
    model = teachers.build('GCN', 'tree_cycles', data).eval()
    found, truth = measures.measure_recipe(model, data, job, 12), measures.measure_truth(model, data, job, 1000)
    assert {key: found[key] for key in ('accuracy', 'ceiling')} == {key: truth[key] for key in ('accuracy', 'ceiling')}
    asked = measures.measure_faithfulness(model, data, job, 12)
    assert all(found[share] == asked[share] for share in intervals.SHARES)


def test_a_dead_model_is_started_anew(monkeypatch):
    started = []

    def train_once(model, data, epochs, rate):
        started.append(model.convs[0].lin.weight.clone())
        model.head[2].weight.data *= len(started) == epochs  # the others die
        model.head[2].bias.data.zero_()
        return model.eval()

    monkeypatch.setattr(teachers, 'train_once', train_once)
    model = teachers.train('GCN', 'tree_cycles', graph(), seed=0, epochs=3)
    assert not started[0].equal(started[1])
    assert [weight.equal(model.convs[0].lin.weight) for weight in started] == [False, False, True]


@pytest.mark.parametrize(('kind', 'name'), [('ARMA', 'ba_house'), ('GATED', 'ba_house'), ('GAT', 'Cora')])
def test_teachers_are_kept_on_disk(kind, name, tmp_path, monkeypatch):
    data = graph()
    models = [teachers.teacher(kind, name, data, seed, 2, tmp_path / 'new') for seed in (0, 1)]
    monkeypatch.setattr(teachers, 'train', None)
    models.append(teachers.teacher(kind, name, data, 0, 2, tmp_path / 'new'))
    outputs = [model(data.x, data.edge_index) for model in models]
    assert outputs[0].equal(outputs[2])
    assert not outputs[0].equal(outputs[1])
    monkeypatch.undo()
    slow, again = (teachers.teacher(kind, name, data, 0, 2, tmp_path / 'new', rate) for rate in (1e-3, 1e-2))
    assert not slow(data.x, data.edge_index).equal(outputs[0])  # kept under another name
    assert again(data.x, data.edge_index).equal(outputs[0])


def test_gin_is_normalised_where_it_stands_for_the_papers():
    data = graph()
    norms = [
        sum(isinstance(module, torch.nn.BatchNorm1d) for module in teachers.build(kind, name, data).modules())
        for kind, name in (('GIN', 'ba_house'), ('plain GIN', 'ba_house'), ('GIN', 'Cora'), ('plain GIN', 'Cora'))
    ]
    assert norms[0] > 0
    assert norms[1:] == [0, 0, 0]


def test_gnn_explainer_leaves_nothing_behind_for_pg_explainer():
    torch.manual_seed(0)
    data, model = graph(), GCN(3, 8, 2, 3).eval()
    found = probes.Probes(model, data, NODES[:2])
    scores = explainers.EXPLAINERS['PGExplainer'](found, data, 0).edge
    explainers.EXPLAINERS['GNNExplainer'](found, data, 0)
    assert explainers.EXPLAINERS['PGExplainer'](found, data, 0).edge.equal(scores)
