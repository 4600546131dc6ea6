r"""Graphs on which it is known what a model must go by, and how the evaluation judges explanations there."""

import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SGConv
from torch_geometric.utils import contains_self_loops, degree, is_undirected

sys.path.insert(0, str(Path(__file__).parents[2] / 'evaluation'))
import evidence
import explainers
import page
import run
import store
import summary
import teachers


@pytest.fixture
def judge(monkeypatch):
    r"""What a graph's judge says of edge scores, which are a function of the probes and the graph."""

    def judged(graph, model, data, score, size=12):
        monkeypatch.setitem(explainers.EXPLAINERS, 'scored', lambda *a: explainers.Scores(edge=score(*a[:2])))
        return evidence.measure_evidence(model, data, store.Job('evidence', graph, 'GCN', 0, 'scored'), size)

    return judged


def mean_colors(data, weight, num_hops=1):
    r"""A model that goes by the colours around."""
    model = SGConv(data.num_features, weight.size(0), K=num_hops, bias=False)
    model.lin.weight.data = weight
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize('make', [evidence.community, evidence.negative_evidence])
def test_graphs_follow_from_the_seed_alone(make):
    state = torch.get_rng_state()
    one, same, other = make(), make(0), make(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.edge_index, same.edge_index)
    assert torch.equal(one.x, same.x)
    assert one.edge_index.shape != other.edge_index.shape or not torch.equal(one.edge_index, other.edge_index)
    assert int(one.train_mask.sum()) == 0.8 * one.num_nodes


def test_models_have_two_layers_where_the_papers_have():
    data = evidence.community()
    layers = {graph: len(teachers.build('GCN', graph, data).convs) for graph in evidence.EVIDENCE_GRAPHS}
    assert layers == {'community': 2, 'negative_evidence': 2, 'infection': 3}


def test_communities_are_denser_inside_and_half_of_the_colors_are_drawn():
    data = evidence.community()
    source, target = data.edge_index
    inside = int((data.y[source] == data.y[target]).sum())
    assert inside / (10 * 100 * 99) == pytest.approx(0.15, abs=0.005)
    assert (data.num_edges - inside) / (1000 * 900) == pytest.approx(0.04, abs=0.001)
    assert not is_undirected(data.edge_index)
    assert not contains_self_loops(data.edge_index)
    assert data.x.sum(dim=1).eq(1).all()
    assert float((data.x.argmax(dim=1) != data.y).float().mean()) == pytest.approx(0.45, abs=0.04)


def test_white_nodes_have_the_class_of_the_color_they_have_more_neighbours_of():
    data = evidence.negative_evidence()
    assert is_undirected(data.edge_index)
    found = torch.zeros(2000, 3).index_add_(0, data.edge_index[1], data.x[data.edge_index[0]])
    assert torch.equal(found[20:, :2].long(), data.count)
    assert data.count.min() == 1
    assert data.count.max() == 10
    assert (data.count[:, 0] != data.count[:, 1]).all()
    assert torch.equal(data.y[20:], found[20:, :2].argmax(dim=1))
    assert float(found[20:, 2].mean()) == pytest.approx(0.015 * 1979, rel=0.03)
    assert degree(data.edge_index[0])[:20].min() > 900
    assert found[:20, :2].sum() == 0


@pytest.mark.parametrize('helps', [True, False])
def test_moved_edges(helps):
    data, node = evidence.community(), torch.tensor(250)
    move, kept = (evidence.move_inside, 1) if helps else (evidence.move_towards, 0)
    own, generator = data.y == data.y[node], torch.Generator().manual_seed(0)
    for _ in range(5):
        moved, edges = move(data, node, generator)
        changed = (edges != data.edge_index).any(dim=0).nonzero()[:, 0]
        assert changed.tolist() == sorted(moved.tolist())
        assert own[data.edge_index[:, moved]].tolist() == [[False] * 50, [helps] * 50]
        assert own[edges[:, moved]].tolist() == [[helps] * 50, [True] * 50]
        assert torch.equal(edges[kept], data.edge_index[kept])
        assert edges.unique(dim=1).size(1) == data.num_edges
        assert not contains_self_loops(edges)


def test_no_edge_is_moved_where_another_was_moved(monkeypatch):
    monkeypatch.setattr(evidence, 'MOVED', 30)
    y, node = torch.arange(16) // 8, torch.tensor(3)
    into, between = torch.cartesian_prod(torch.arange(8, 16), torch.arange(8)), torch.combinations(torch.arange(8, 16))
    for move, edges in ((evidence.move_inside, into), (evidence.move_towards, torch.cat([between, between.flip(1)]))):
        _, found = move(Data(edge_index=edges.T, y=y, num_nodes=16), node, torch.Generator().manual_seed(0))
        assert found.unique(dim=1).size(1) == len(edges)


def test_community_is_about_which_way_scores_go_when_edges_move(judge, monkeypatch):
    data = evidence.community()
    model = mean_colors(data, 20.0 * torch.eye(10), num_hops=2)

    def ideal(probes, data):
        own = data.y == data.y[probes.nodes[:, None]]
        source, target = own[:, data.edge_index[0]], own[:, data.edge_index[1]]
        return target * (2.0 * source - 1.0)

    found = judge('community', model, data, ideal)
    assert found['right'] == found['helps'] == found['harms'] == 1.0
    assert (found['nodes'], found['moves']) == (12, 24)
    assert judge('community', Knowing(10), data, ideal)['moves'] == 0  # which don't touch it
    assert judge('community', Swayed(data.edge_index), data, ideal)['moves'] == 0  # which is wrong afterwards
    monkeypatch.setattr(evidence, 'MAX_MOVED_FOR', 3)
    assert judge('community', model, data, ideal)['nodes'] == 3
    assert judge('community', model, data, lambda *a: -ideal(*a))['right'] == 0.0
    only_source = judge('community', model, data, lambda p, d: (d.y[d.edge_index[0]] == d.y[p.nodes[:, None]]).float())
    assert (only_source['helps'], only_source['harms']) == (1.0, 0.0)


@pytest.fixture(scope='module')
def colored():
    r"""White nodes with blue and red neighbours, and a model that counts these."""
    data = evidence.negative_evidence()
    return data, mean_colors(data, torch.tensor([[500.0, -500.0, 0.0], [-500.0, 500.0, 0.0]]))


def for_and_against(probes, data):
    blue, red = data.count[probes.nodes - 20].T
    assert ((blue - red).abs().minimum(blue.minimum(red)) > 1).all()  # which are clear cases
    color, y = data.x.argmax(dim=1)[data.edge_index[0]], data.y[probes.nodes][:, None]
    return torch.where(color == y, 1.0, torch.where(color == evidence.WHITE, 0.0, -1.0))


def test_negative_evidence_is_told_from_white_nodes_and_counts_against(judge, colored):
    data, model = colored

    def shares(score):
        found = judge('negative_evidence', model, data, score)
        assert found['nodes'] == 12
        return found['told'], found['ordered']

    assert shares(for_and_against) == (1.0, 1.0)
    assert shares(lambda *a: -for_and_against(*a)) == (1.0, 0.0)
    for sign in (1.0, -1.0):
        assert shares(lambda *a, sign=sign: sign * for_and_against(*a).abs()) == (1.0, 0.0)
    assert shares(lambda *a: 0.0 * for_and_against(*a)) == (0.0, 0.0)
    noise = torch.Generator().manual_seed(0)
    assert shares(lambda *a: torch.rand(for_and_against(*a).shape, generator=noise))[0] == 0.0
    asked = []
    half = mean_colors(data, torch.tensor([[500.0, -500.0, 0.0], [-500.0, 500.0, 100.0]]))  # which favours red
    judge('negative_evidence', half, data, lambda p, d: asked.extend(p.nodes) or for_and_against(p, d))
    asked = torch.stack(asked)
    assert torch.equal(half(data.x, data.edge_index).argmax(dim=1)[asked], data.y[asked])
    assert not torch.equal(half(data.x, data.edge_index).argmax(dim=1), data.y)


def test_doubts_are_told_from_where_the_order_is_right(colored, monkeypatch):
    data, model = colored
    job = store.Job('evidence', 'negative_evidence', 'GCN', 0, 'FastDnX')
    found = evidence.measure_evidence(model, data, job, 12)
    assert (found['ordered'], found['doubted right']) == (1.0, 0.0)  # a model that the surrogate can be

    def wrong_at_first(probes, data, seed):
        sign = torch.ones(probes.nodes.numel(), 1)
        sign[0] = -1.0
        return explainers.Scores(edge=sign * for_and_against(probes, data))

    monkeypatch.setitem(explainers.EXPLAINERS, 'FastDnX', wrong_at_first)
    monkeypatch.setattr(evidence, 'doubts', lambda model, data, nodes: nodes == nodes[0])
    found = evidence.measure_evidence(model, data, job, 12)
    assert found['ordered'] == pytest.approx(11 / 12)
    assert (found['doubted right'], found['doubted wrong']) == (0.0, 1.0)


class Swayed(torch.nn.Module):
    r"""Right by the colours of 1,000 nodes of a graph, and wrong, and less sure, once an edge of it has been moved."""

    def __init__(self, edge_index):
        super().__init__()
        self.conv, self.edge_index = SGConv(10, 10, K=2), edge_index

    def forward(self, x, edge_index):
        sign = 1.0 if torch.equal(edge_index, self.edge_index) else -1.0
        return sign * x + 0.0 * self.conv(x, edge_index)


class Knowing(torch.nn.Module):
    r"""Looks three hops far, and goes by the node itself."""

    def __init__(self, size=5):
        super().__init__()
        self.conv = SGConv(size, size, K=3)

    def forward(self, x, edge_index):
        return 9.0 * x + 0.0 * self.conv(x, edge_index)


def infection():
    r"""0 and 6 are infected; the way is 1-0, 2-1-0, 3-2-1-0; 5 has two, and with it 4; 7 is too far away."""
    pairs = torch.tensor([[0, 1], [1, 2], [2, 3], [0, 5], [5, 6], [4, 5], [3, 7], [2, 8], [8, 7]]).T
    y = torch.tensor([0, 1, 2, 3, 2, 1, 0, 4, 3])
    x = torch.eye(5)[torch.where(torch.arange(9) == 8, 0, y)]  # which a model may go by, wrong at 8
    every = torch.ones(9, dtype=torch.bool)
    return Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], dim=1), y=y, test_mask=every)


def test_the_one_shortest_way():
    data = infection()
    way, length = evidence.ways(data)
    assert length.tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 3]
    for node, edges in ((1, [(0, 1)]), (2, [(0, 1), (1, 2)]), (3, [(0, 1), (1, 2), (2, 3)])):
        found = {tuple(sorted(pair)) for pair in data.edge_index[:, way[node]].T.tolist()}
        assert found == set(edges)
        assert int(way[node].sum()) == 2 * len(edges)


def test_infection_asks_for_the_edges_on_the_way(judge):
    data = infection()
    way, _ = evidence.ways(data)
    model = Knowing()
    source, target = data.edge_index
    towards = (data.y[source] < data.y[target]).float()
    assert judge('infection', model, data, lambda p, d: way[p.nodes] * towards)['precision'] == 1.0
    assert judge('infection', model, data, lambda p, d: way[p.nodes] * (1.0 - towards))['precision'] == 1.0
    first = (data.y[source] == 0) | (data.y[target] == 0)  # the part of the way next to the infected node
    third = judge('infection', model, data, lambda p, d: 2.0 * (way[p.nodes] & first) - 1.0 * way[p.nodes])['precision']
    assert third == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert judge('infection', model, data, lambda p, d: -1.0 * way[p.nodes] * towards)['precision'] < 0.2
    found = judge('infection', model, data, lambda p, d: way[p.nodes] * towards, size=2)
    assert found['nodes'] == 2
    assert judge('infection', model, data, lambda p, d: way[p.nodes] * 1.0)['nodes'] == 3


def test_known_evidence_has_graphs_of_its_own(tmp_path, monkeypatch):
    job = store.Job('evidence', 'infection', 'GCN', 0, 'FastDnX')
    others = job._replace(part='faithfulness'), job._replace(graph='Cora')
    assert [run.applies(one) for one in (job, *others)] == [True, False, False]
    names = ['--graphs', 'infection', '--explainers', 'FastDnX', 'FastDnX, flow']
    monkeypatch.setattr(sys, 'argv', ['run.py', '--quick', '--parts', 'evidence', *names, '--out', str(tmp_path)])
    run.main()
    by_ends, flow = (store.Store(tmp_path / 'quick').records[job._replace(explainer=name)] for name in names[3:])
    assert (by_ends['nodes'], flow['nodes']) == (10, 10)
    assert flow['precision'] > by_ends['precision'] > 0.3
    docs = ['--out', str(tmp_path / 'quick'), '--docs', str(tmp_path), '--pages', 'evidence']
    monkeypatch.setattr(sys, 'argv', ['page.py', *docs])
    page.main()
    assert '| FastDnX, flow | – | – | – | – | – |' in (tmp_path / 'evidence.md').read_text(encoding='utf-8')


def test_the_table_of_known_evidence(tmp_path):
    found = store.Store(tmp_path)
    job = store.Job('evidence', 'community', 'GCN', 0, 'FastDnX')
    for seed, right in ((0, 0.9), (1, 1.0), (2, float('nan'))):
        found.add(job._replace(seed=seed), {'right': right, 'helps': 1.0, 'harms': 0.0})
    table = summary.evidence_table(found, ['FastDnX'])
    [[_, right, helps, harms, *others]] = table['rows']
    assert (right['value'], right['paper'], right['met']) == (pytest.approx(95.0), 94.0, True)
    assert (helps['value'], harms['value'], others) == (100.0, 0.0, [None] * 3)
