r"""The evaluation where edges are dropped and features set to zero, against the model on the whole graph."""

import math
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_case import CLOSE, graph, reached
from torch_geometric.nn import GCN, GIN
from torch_geometric.utils import is_undirected

from pyg_dnx.datasets import MotifDataset

sys.path.insert(0, str(Path(__file__).parents[2] / 'evaluation'))
import explainers
import feature_explainers
import intervals
import page
import probes
import removal
import run
import store
import teachers


@pytest.fixture(params=['GCN', 'GIN, directed', 'GCN, directed, in pieces'])
def case(request, monkeypatch):
    r"""A smooth model of two layers, and its graph."""
    torch.manual_seed(1)
    data, family = graph('directed' in request.param), GCN if 'GCN' in request.param else GIN
    data.x[:, 2] *= data.x[:, 2] > 0  # so that some entries are zero
    monkeypatch.setattr(probes, 'MAX_ENTRIES', 200 if 'pieces' in request.param else 2**24)
    return family(3, 8, 2, 3, act='tanh').eval().requires_grad_(False), data


SLOW = ('PGExplainer', 'ProbeDnX', 'ProbeDnX, pairs', 'ProbeDnX, flow', 'ProbeDnX, shares', 'ProbeDnX, size')


def job_of(part):
    return store.Job(part, 'tree_cycles', 'GCN', 0, 'mine')


def candidates(data, node):
    return reached(data, node, 1)[data.edge_index[1]]  # edges that carry a message within two hops


def agree(record, start, number, before, without, only):
    r"""Whether a record has a node's answers without the highest half of the scores, and with them alone."""
    target = before.argmax()
    found = {name: values[number] for name, values in record[f'{start}0.5'].items()}
    expected = {
        'fidelity_plus': float(without.argmax() != target),
        'fidelity_minus': float(only.argmax() != target),
        'fall': float(before[target] - without[target]),
        'kept': float(only[target]),
    }
    assert found == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize('start', ['', 'pairs, '])
def test_edges_are_dropped(case, start, monkeypatch):
    model, data = case
    score = torch.rand(14, data.num_edges, generator=torch.Generator().manual_seed(0))
    monkeypatch.setitem(removal.DROPPED, 'mine', lambda found, *_: explainers.Scores(edge=score[found.nodes]))
    record = removal.measure_edges(model, data, job_of('edges'), 14)
    assert sorted(record['nodes']) == data.edge_index[1].unique().tolist()  # which the others could not explain

    def probs(edge_index):
        return model(data.x, edge_index)[node].softmax(dim=0)

    for number, node in enumerate(record['nodes']):
        inside = candidates(data, node)
        ends = [tuple(sorted(pair)) if start else number for number, pair in enumerate(data.edge_index.T.tolist())]
        total = {}
        for edge in inside.nonzero()[:, 0].tolist():
            total[ends[edge]] = total.get(ends[edge], 0.0) + float(score[node, edge])
        top = sorted(total, key=total.get)[-max(1, round(0.5 * len(total))) :]
        chosen, other = (torch.tensor([end in some for end in ends]) for some in (top, set(total) - set(top)))
        agree(record, start, number, *(probs(data.edge_index[:, keep]) for keep in (chosen | True, ~chosen, ~other)))


@pytest.mark.parametrize('start', ['', 'entries, '])
def test_features_are_set_to_zero(case, start, monkeypatch):
    model, data = case
    score = torch.rand(14, 3, generator=torch.Generator().manual_seed(0))

    def explain(found, data, seed, mask):
        for part in found.alone:
            yield score[0] if mask == 'common_attributes' else score[part.node]

    monkeypatch.setitem(removal.ZEROED, 'mine', explain)
    record = removal.measure_features(model, data, job_of('features'), 14)
    for number, node in enumerate(record['nodes']):
        inside = (data.x != 0) & reached(data, node, 2)[:, None]
        if not start:
            inside = inside.any(dim=0)
        size = max(1, round(0.5 * int(inside.sum())))
        here = (score if start else score[0]).masked_fill(~inside, -math.inf)
        chosen = here >= here.flatten().topk(size).values[-1]
        tables = (data.x, data.x * ~chosen, data.x * (chosen | ~inside))
        agree(record, start, number, *(model(x, data.edge_index)[node].softmax(dim=0) for x in tables))


def test_parts_of_the_same_pair_of_nodes():
    edge_index = torch.tensor([[0, 1, 2, 0, 3, 0], [1, 0, 2, 1, 0, 3]])
    assert removal.in_pairs(edge_index).tolist() == [0, 0, 2, 0, 1, 1]
    assert removal.one_by_one(edge_index).tolist() == [*range(6)]


def test_occlusion_is_how_far_the_probability_falls_without_an_edge(case):
    model, data = case
    found = probes.Probes(model, data, torch.tensor([4, 12, 0]))
    scores = explainers.DROPPED['occlusion'](found, data, 0).edge
    for row, node in enumerate((4, 12, 0)):
        inside, before = candidates(data, node), found.probs[row]
        assert not bool(scores[row, ~inside].any())
        for edge in inside.nonzero()[:, 0]:
            keep = torch.arange(data.num_edges) != edge
            after = model(data.x, data.edge_index[:, keep])[node].softmax(dim=0)
            assert float(scores[row, edge]) == pytest.approx(float((before - after)[before.argmax()]), abs=1e-5)


@pytest.mark.parametrize(('count', 'rows'), [(0, 0), (3, 3), (4, 4), (11, 4)])
def test_many_edges_are_occluded_in_blocks(count, rows, monkeypatch):
    monkeypatch.setattr(explainers, 'NUM_ANSWERS', 4)
    kept = explainers.blocks(count, torch.Generator().manual_seed(0))
    assert kept.shape == (rows, count)
    assert (~kept).sum(dim=0).tolist() == [1] * count  # each edge is left out once
    assert set((~kept).sum(dim=1).tolist()) <= {1, 2, 3}


def test_shapley_values():
    values = torch.rand(16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def game(kept):
        return values[(kept * torch.tensor([1, 2, 4, 8])).sum(dim=1)]

    exact = np.zeros(4)
    for player, others in product(range(4), product((0, 1), repeat=3)):
        size = sum(others)
        before = np.insert(others, player, 0)
        gain = values[int((before * [1, 2, 4, 8]).sum()) + 2**player] - values[int((before * [1, 2, 4, 8]).sum())]
        exact[player] += math.factorial(size) * math.factorial(3 - size) / math.factorial(4) * float(gain)
    kept = explainers.coalitions(4, torch.Generator().manual_seed(0))
    assert kept.shape == (2 + explainers.NUM_ANSWERS, 4)
    found = explainers.shapley(kept, torch.cat([game(kept), values[-1:]]))
    assert found.tolist() == pytest.approx(exact.tolist(), abs=0.02)
    assert float(found.sum()) == pytest.approx(float(values[15] - values[0]))
    for size in (0, 1, 3000):  # with more edges than coalitions, too
        kept, effect = explainers.coalitions(size, torch.Generator().manual_seed(0)), torch.arange(size).double()
        found = explainers.shapley(kept, torch.cat([kept.double() @ effect, effect.sum()[None]]))
        assert float(found.sum()) == pytest.approx(float(effect.sum()))
        assert size < 3000 or float(torch.corrcoef(torch.stack([found, effect]))[0, 1]) > 0.3


def test_coalitions_are_drawn_by_the_kernel():
    kept = explainers.coalitions(10, torch.Generator().manual_seed(0))
    assert kept[:2].float().mean(dim=1).tolist() == [0.0, 1.0]
    half, complement = kept[2:].chunk(2)
    assert torch.equal(half, ~complement)
    size = np.arange(1, 10)
    weight = 1.0 / (size * (10 - size))
    share = half.sum(dim=1).bincount(minlength=10)[1:] / len(half)
    assert share.tolist() == pytest.approx((weight / weight.sum()).tolist(), abs=0.05)
    assert half.double().mean(dim=0).tolist() == pytest.approx([0.5] * 10, abs=0.1)


@pytest.mark.parametrize('name', [name for name in explainers.DROPPED if name not in SLOW])
def test_edge_explainers_fill_tables(name):
    torch.manual_seed(0)
    data = graph(directed=True)
    model = teachers.build('GCN', 'tree_cycles', data).eval()
    nodes = torch.tensor([5, 12, 2])
    table = explainers.DROPPED[name](probes.Probes(model, data, nodes), data, 0).edge
    assert table.shape == (3, data.num_edges)
    assert bool(table.isfinite().all() and table[0].any() and table[2].any())
    if name not in ('GNNExplainer', 'occlusion', 'KernelSHAP', 'random'):
        alone = explainers.DROPPED[name](probes.Probes(model, data, nodes[2:]), data, 0).edge
        torch.testing.assert_close(alone[0], table[2], **CLOSE)  # whatever else is explained


@pytest.mark.parametrize('name', [name for name in feature_explainers.ZEROED if name not in SLOW])
def test_feature_explainers_follow_the_nodes(name):
    torch.manual_seed(1)
    data, model = graph(), GCN(3, 8, 2, 3, act='tanh').eval()
    data.x[:4] = 0.0
    found = probes.Probes(model, data, torch.tensor([5, 12, 2]))
    explain = feature_explainers.ZEROED[name]
    columns, entries = (list(explain(found, data, 0, mask)) for mask in ('common_attributes', 'attributes'))
    assert [table.shape for table in columns] == [(3,)] * 3
    assert [len(table) for table in entries] == [part.node.numel() for part in found.alone]
    if name not in ('GNNExplainer', 'random'):
        sums = [table.sum(dim=0) for table in entries]
        torch.testing.assert_close(torch.stack(sums), torch.stack(columns), check_dtype=False, **CLOSE)
        blank = found.alone[0].node < 4
        assert blank.any()
        assert not bool(entries[0][blank].any())
    if name.startswith('IG'):
        of = {'IG, logit': probes.logit, 'IG, probability': probes.probability}[name]
        ends = [of(model(x, data.edge_index)[found.nodes], found.target) for x in (data.x, 0 * data.x)]
        torch.testing.assert_close(torch.stack(columns).sum(dim=1), ends[0] - ends[1], atol=1e-3, rtol=0.0)


def test_heterophilous_graphs_are_undirected_and_have_their_first_split(tmp_path):
    (tmp_path / 'heterophilous').mkdir()
    masks = {f'{kind}_masks': np.eye(3, dtype=bool)[[n, 2]] for n, kind in enumerate(('train', 'val', 'test'))}
    arrays = dict(node_features=np.eye(3, 5, dtype=np.float32), node_labels=np.arange(3), edges=[[0, 1], [2, 1]])
    np.savez(tmp_path / 'heterophilous' / 'chameleon_filtered.npz', **arrays, **masks)
    data = run.graph_of('chameleon', str(tmp_path))
    assert data.x.shape == (3, 5)
    assert data.num_edges == 4
    assert is_undirected(data.edge_index)
    assert [data[f'{kind}_mask'].tolist().index(True) for kind in ('train', 'val', 'test')] == [0, 1, 2]
    run.graph_of.cache_clear()


def test_parts_of_edges_and_features_have_more_graphs_and_nodes():
    job = store.Job('edges', 'texas', 'SAGE', 2, 'KernelSHAP')
    jobs = (job, job._replace(part='faithfulness', model='GCN'), job._replace(graph='infection'))
    assert [run.applies(one) for one in jobs] == [True, False, False]
    assert [run.size_of(job, quick) for quick in (False, True)] == [20, 10]
    assert run.size_of(job._replace(explainer='ProbeDnX', graph='bitcoin_otc'), False) == 50


def test_a_run_becomes_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(run, 'load', lambda name, folder: MotifDataset(name)[0])
    monkeypatch.setattr(run, 'teacher', lambda kind, name, data, *_: teachers.build(kind, name, data).eval())
    monkeypatch.setitem(removal.DROPPED, 'ProbeDnX', explainers.distilled_edges(explainers.ProbeDnX, num_probes=8))
    names = ['--explainers', 'FastDnX', 'FastDnX, masked', 'ProbeDnX', 'random', '--models', 'GCN']
    monkeypatch.setitem(removal.ZEROED, 'ProbeDnX', feature_explainers.random)  # which takes no time
    command = ['run.py', '--quick', '--graphs', 'tree_cycles', '--parts', 'edges', 'features', '--out', str(tmp_path)]
    monkeypatch.setattr(sys, 'argv', [*command, *names])
    run.main()
    found = store.Store(tmp_path / 'quick')
    assert len(found.records) == 8
    folders = ['--out', str(tmp_path / 'quick'), '--docs', str(tmp_path), '--pages', 'edges_and_features']
    monkeypatch.setattr(sys, 'argv', ['page.py', *folders])
    page.main()
    text = ''.join(path.read_text(encoding='utf-8') for path in tmp_path.glob('**/edges_and_features.md'))
    assert '{' not in text
    record = found.records[store.Job('features', 'tree_cycles', 'GCN', 0, 'FastDnX')]
    for start in ('', 'entries, '):
        kept = np.mean([record[f'{start}{share}']['kept'] for share in intervals.SHARES])
        assert f' | {kept:.3f} [' in text
    assert text.count('\n| random |') == 12
