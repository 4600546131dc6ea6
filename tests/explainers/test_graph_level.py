r"""Explanations of whole graphs: complete, and the same whatever stands beside a graph and however it is numbered."""

from functools import partial

import pytest
import torch
from graph_level_case import GraphTeacher, batch_of, graph_explainer, small_graphs
from helpers import dense_adjacency
from torch_geometric.data import Data

from pyg_dnx import DnX, FastDnX, ProbeDnX, certify, to_html
from pyg_dnx.view.words import names_of, question_of

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

ALGORITHMS = {
    'FastDnX': FastDnX,
    'FastDnX, features': partial(FastDnX, how='features'),
    'DnX': DnX,
    'ProbeDnX': partial(ProbeDnX, num_probes=16),
    'ProbeDnX, features': partial(ProbeDnX, num_probes=16, how='features'),
}
GRAPHS = small_graphs((6, 4, 5), dtype=torch.float64)
CLOSE = {'rtol': 1e-7, 'atol': 1e-9}


def model_of(task='multiclass raw', **options):
    return GraphTeacher('gin', task, **options).double().eval()


def explain(explainer, graphs, **options) -> object:
    batch = batch_of(graphs)
    return explainer(batch.x, batch.edge_index, batch=batch.batch, **options)


@pytest.mark.parametrize('filter', ['sgc', 'sign', 'ppr'])
def test_scores_add_up_to_the_dense_surrogate(filter):
    model = model_of()
    explainer = graph_explainer(model, FastDnX(filter=filter, num_hops=2))
    surrogate = explainer.algorithm.distill(model, GRAPHS)
    for number, data in enumerate(GRAPHS):
        adjacency = dense_adjacency(data.edge_index, None, data.num_nodes)
        copies = torch.cat([data.x, data.num_nodes * data.x], dim=1)
        weights = surrogate.weight.split(copies.size(1))
        taps = zip(*surrogate.taps, strict=True)
        logits = sum(
            c * (torch.linalg.matrix_power(adjacency, k) @ copies @ weight).mean(dim=0)
            for k, column in enumerate(taps)
            for c, weight in zip(column, weights, strict=True)
        )
        found = explain(explainer, GRAPHS, index=number)
        predicted = int(model(data.x, data.edge_index, torch.zeros(data.num_nodes, dtype=torch.long)).argmax())
        direction = torch.eye(3, dtype=torch.float64)[predicted] - 1 / 3
        torch.testing.assert_close(found.node_score.sum(), logits @ direction, rtol=1e-10, atol=1e-10)
        last = taps_flow(adjacency, copies, weights, surrogate, direction)
        if filter == 'sgc':
            loops = last.diagonal().sum()
            torch.testing.assert_close(found.edge_score.sum() + loops, 2 * (logits @ direction), rtol=1e-10, atol=1e-10)


def taps_flow(adjacency, copies, weights, surrogate, direction):
    r"""What each entry of the dense Ã carries over both hops, [N, N]."""
    size, hidden = len(adjacency), copies @ weights[-1] @ direction
    row, total = torch.full((size,), 1.0 / size, dtype=torch.float64), torch.zeros_like(adjacency)
    for k in range(2):
        before = row @ torch.linalg.matrix_power(adjacency, k)
        after = torch.linalg.matrix_power(adjacency, 1 - k) @ hidden
        total += before[:, None] * adjacency * after
    return total


@pytest.mark.parametrize('has_data_set', [True, False])
@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_a_graph_is_explained_the_same_alone_and_in_a_batch(algorithm, has_data_set):
    model = model_of()
    explainer = graph_explainer(model, ALGORITHMS[algorithm]())
    if has_data_set:
        explainer.algorithm.distill(model, GRAPHS)
    batch = batch_of(GRAPHS)
    together, each = explain(explainer, GRAPHS), explainer.algorithm.explain_graphs(model, GRAPHS)
    for number, data in enumerate(GRAPHS):
        inside = batch.batch == number
        alone = explainer(data.x, data.edge_index)
        one = explain(explainer, GRAPHS, index=number)
        for found in (together, one):
            torch.testing.assert_close(found.node_score[inside], alone.node_score, **CLOSE)
            torch.testing.assert_close(found.edge_score[inside[batch.edge_index[0]]], alone.edge_score, **CLOSE)
            torch.testing.assert_close(found.node_mask[inside], alone.node_mask, **CLOSE)
        assert not one.node_mask[~inside].any()
        torch.testing.assert_close(each[number].node_score, alone.node_score, **CLOSE)
        torch.testing.assert_close(each[number].edge_score, alone.edge_score, **CLOSE)


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_the_order_of_graphs_does_not_matter(algorithm):
    explainer = graph_explainer(model_of(), ALGORITHMS[algorithm]())
    order = [2, 0, 1]
    before, after = explain(explainer, GRAPHS), explain(explainer, [GRAPHS[number] for number in order])
    first, second = batch_of(GRAPHS).batch, batch_of([GRAPHS[number] for number in order]).batch
    for place, number in enumerate(order):
        torch.testing.assert_close(after.node_score[second == place], before.node_score[first == number], **CLOSE)


def test_nodes_in_no_order_of_their_graphs():
    r"""PyG allows a batch vector that is not sorted."""
    batch = batch_of(GRAPHS)
    order = torch.randperm(batch.num_nodes, generator=torch.Generator().manual_seed(0))
    place = order.argsort()
    mixed = Data(x=batch.x[order], edge_index=place[batch.edge_index], batch=batch.batch[order])
    explainer = graph_explainer(model_of(), FastDnX(num_hops=2))
    explainer.algorithm.distill(explainer.model, GRAPHS)
    expected = explain(explainer, GRAPHS)
    found = explainer(mixed.x, mixed.edge_index, batch=mixed.batch)
    torch.testing.assert_close(found.node_score, expected.node_score[order], **CLOSE)
    torch.testing.assert_close(found.edge_score, expected.edge_score, **CLOSE)


def test_each_of_several_graphs_has_ranks_of_its_own():
    found, batch = explain(graph_explainer(model_of(), FastDnX()), GRAPHS), batch_of(GRAPHS).batch
    for number, data in enumerate(GRAPHS):
        ranks = found.node_mask[batch == number, 0].sort().values
        expected = torch.arange(1, data.num_nodes + 1, dtype=torch.float64) / data.num_nodes
        torch.testing.assert_close(ranks, expected)


def test_pages_count_graphs_from_the_end(tmp_path):
    model, batch = model_of(), batch_of(GRAPHS)
    explainer = graph_explainer(model, FastDnX())
    last = explainer(batch.x, batch.edge_index, batch=batch.batch, index=-1)
    to_html(last, tmp_path / 'page.html', certificate=certify(explainer, last))
    assert question_of(last, names_of(last))[0].endswith('for graph 2?')
