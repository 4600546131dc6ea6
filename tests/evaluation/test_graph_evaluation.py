r"""How explainers of graphs are measured, on small graphs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_level_case import GraphTeacher, small_graphs

sys.path.insert(0, str(Path(__file__).parents[2] / 'evaluation'))
import graph_explainers
import graph_level
import graph_page
from store import Job, Store

GRAPHS = small_graphs()


@pytest.fixture(scope='module')
def model():
    return GraphTeacher('gin', 'binary raw [N, 2]').eval()


@pytest.mark.parametrize('way', ['blanked', 'removed', 'dropped'])
def test_answers_are_those_of_each_copy(model, way):
    graph = GRAPHS[0]
    size = graph.num_edges if way == 'dropped' else graph.num_nodes
    keep = torch.rand(4, size, generator=torch.Generator().manual_seed(0)) < 0.6
    found = graph_explainers.answers(model, graph, keep, way)
    for row, mask in zip(found, keep, strict=True):
        x, edges = graph.x, graph.edge_index
        if way == 'blanked':
            x = x * mask[:, None]
        elif way == 'dropped':
            edges = edges[:, mask]
        else:
            one = graph.subgraph(mask)
            x, edges = one.x, one.edge_index
        expected = model(x, edges, torch.zeros(len(x), dtype=torch.long)).double().softmax(dim=1)[0]
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)


def test_answers_where_nothing_is_left(model):
    keep = torch.zeros(2, GRAPHS[1].num_nodes, dtype=torch.bool)
    assert graph_explainers.answers(model, GRAPHS[1], keep, 'removed').shape == (2, 2)


@pytest.mark.parametrize('name', ['random', 'FastDnX', 'ProbeDnX, removed, 32', 'IG, logit', 'KernelSHAP, removed, 32'])
def test_nodes_are_scored(model, name):
    record = graph_level.measure(graph_explainers.NODES[name], model, GRAPHS, GRAPHS, 0, ('blanked', 'removed'))
    assert set(record['removed']) == {'0.1', '0.3', '0.5'}
    assert all(len(record[way][share]['fidelity_plus']) == 3 for way in ('blanked', 'removed') for share in record[way])


@pytest.mark.parametrize('name', ['FastDnX', 'occlusion, dropped', 'KernelSHAP, dropped, 512'])
def test_edges_are_scored(model, name):
    scores = graph_explainers.EDGES[name](model, GRAPHS, GRAPHS, 0)
    assert [len(score) for score in scores] == [graph.num_edges for graph in GRAPHS]


def test_kernel_shap_adds_up_and_is_exact_where_the_model_is_linear():
    class Sum(torch.nn.Module):
        def forward(self, x, edge_index, batch):
            total = x.new_zeros(int(batch.max()) + 1).index_add_(0, batch, x[:, 0])
            return torch.stack([total, -total], dim=1) * 1e-3

    found = graph_explainers.kernel_shap('blanked', 128)(Sum(), GRAPHS, GRAPHS, 0)
    for graph, score in zip(GRAPHS, found, strict=True):
        sign = 1.0 if graph.x[:, 0].sum() > 0 else -1.0
        torch.testing.assert_close(score, sign * graph.x[:, 0].double() * 5e-4, rtol=0.05, atol=1e-6)


def test_the_area_is_the_share_of_pairs_in_order():
    truth = torch.tensor([True, False, True, False])
    assert graph_level.area(torch.tensor([3.0, 1.0, 1.0, 2.0]), truth) == pytest.approx(0.625)


@pytest.fixture
def store(tmp_path):
    found, generator = Store(tmp_path), np.random.default_rng(0)
    for model in ('GCN', 'GIN'):
        for name in (*graph_explainers.NODES, *(f'edges: {name}' for name in graph_explainers.EDGES)):
            ways = ('dropped',) if name.startswith('edges') else ('blanked', 'removed')
            sides = {'fidelity_plus': generator.integers(2, size=6).tolist(), 'fidelity_minus': [0, 1, 0, 0, 1, 0]}
            record = {way: dict.fromkeys(('0.1', '0.3'), sides) for way in ways}
            record |= {'auc': [0.5, 0.7], 'accuracy': 0.8, 'seconds': 0.1}
            found.add(Job('graphs', 'Mutagenicity', model, 0, name), record)
    return found


def test_a_page_is_written(store, tmp_path):
    graph_page.write(store, tmp_path)
    page = (tmp_path / 'graph_results.md').read_text()
    assert '{' not in page
    assert 'Mutagenicity GIN 0.80' in page
    found = json.loads((tmp_path / 'graph_results.json').read_text())['tables']
    assert found['nodes']['columns'][1:] == ['Mutagenicity, blanked', 'Mutagenicity, removed', 'Mutagenicity, AUC']
    assert found['nodes']['rows'][0][3] == {'value': pytest.approx(0.6)}


def test_differences_are_paired(store):
    r"""An explainer minus itself is zero whatever is drawn, and the first of the draws is the sample itself."""
    one = graph_page.draws(store, 'Mutagenicity', 'FastDnX', 'blanked')
    assert (one - graph_page.draws(store, 'Mutagenicity', 'FastDnX', 'blanked') == 0).all()
    expected = []
    for model in ('GCN', 'GIN'):
        row = store.records[Job('graphs', 'Mutagenicity', model, 0, 'FastDnX')]['blanked']['0.1']
        plus, good = np.mean(row['fidelity_plus']), 1 - np.mean(row['fidelity_minus'])
        expected.append(0.0 if plus == 0 else 2 * plus * good / (plus + good))
    assert one[0] == pytest.approx(np.mean(expected))
