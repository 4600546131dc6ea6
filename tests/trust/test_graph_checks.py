r"""Checks of explanations of whole graphs, by blanking and by removing."""

import pytest
import torch
from graph_level_case import GraphTeacher, batch_of, graph_explainer, small_graphs
from torch_geometric.explain import GNNExplainer

from pyg_dnx import FastDnX, ProbeDnX, bound, certify, check, explain_graphs, refine, trust_report

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
GRAPHS = small_graphs((6, 4, 5))
MODEL = GraphTeacher('gin').eval()


def answers(x, edge_index):
    with torch.no_grad():
        return MODEL(x, edge_index, torch.zeros(len(x), dtype=torch.long)).double().softmax(dim=1)


def by_hand(data, explanation, how):
    r"""What is left of a graph with nothing but the explanation."""
    if how == 'features':
        return answers(data.x * explanation.node_mask, data.edge_index)
    keep = explanation.node_mask[:, 0] > 0.5
    left = data.subgraph(keep)
    return answers(left.x, left.edge_index)


@pytest.mark.parametrize('how', ['features', 'nodes'])
def test_what_is_taken_away_is_what_was_asked(how):
    explainer = graph_explainer(MODEL, ProbeDnX(num_probes=16, how=how), edge=None)
    explained = explainer.algorithm.explain_graphs(MODEL, GRAPHS)
    for asked, found in ((how, check(explainer, explained)), ('nodes', check(explainer, explained, how='nodes'))):
        for number, data in enumerate(GRAPHS):
            left = by_hand(data, explained[number], asked)
            before = answers(data.x, data.edge_index)
            torch.testing.assert_close(found.unfaithfulness[number], (before - left).norm(), rtol=1e-4, atol=1e-6)
            assert float(found.fidelity_minus[number]) == float(before.argmax() != left.argmax())
    batch = batch_of(GRAPHS)
    together = check(explainer, explainer(batch.x, batch.edge_index, batch=batch.batch))
    torch.testing.assert_close(together.unfaithfulness, check(explainer, explained).unfaithfulness)


def test_edges_are_dropped_where_nodes_are_removed():
    explainer = graph_explainer(MODEL, ProbeDnX(num_probes=16), node=None)
    data = GRAPHS[0]
    explanation = explainer(data.x, data.edge_index)
    found = check(explainer, explanation)
    left = answers(data.x, data.edge_index[:, explanation.edge_mask > 0.5])
    before = answers(data.x, data.edge_index)
    torch.testing.assert_close(found.unfaithfulness[0], (before - left).norm(), rtol=1e-4, atol=1e-6)


def test_another_explainers_explanations_are_multiplied_by_masks():
    explainer, data = graph_explainer(MODEL, GNNExplainer(epochs=2), edge=None), GRAPHS[1]
    explanation = explainer(data.x, data.edge_index)
    found = check(explainer, explanation)
    expected = (answers(data.x, data.edge_index) - by_hand(data, explanation, 'features')).norm()
    torch.testing.assert_close(found.unfaithfulness[0], expected, rtol=1e-4, atol=1e-6)


def test_bad_words_get_a_sentence():
    explainer = graph_explainer(MODEL, ProbeDnX(num_probes=16))
    explained = explainer.algorithm.explain_graphs(MODEL, GRAPHS)
    with pytest.raises(ValueError, match="'how' must be one of 'features', 'nodes'"):
        check(explainer, explained, how='edges')


def test_verdicts_and_refinement_take_graphs():
    explainer = graph_explainer(MODEL, ProbeDnX(num_probes=16), edge=None)
    explained = explainer.algorithm.explain_graphs(MODEL, GRAPHS)
    assert len(certify(explainer, explained[0]).index) == 1
    better = refine(explainer, explained, size=2)
    assert len(better) == 3
    assert (better.gap >= better.gap_before).all()


@pytest.mark.parametrize('algorithm', [FastDnX, ProbeDnX])
def test_a_report_on_a_data_set(algorithm, tmp_path):
    graphs = small_graphs((6, 4, 5, 12, 3, 7))
    explainer = graph_explainer(MODEL, algorithm(), edge=None)
    if algorithm is FastDnX:
        explainer.algorithm.distill(MODEL, graphs)
    report = trust_report(explainer, graphs, num_checks=4)
    assert [(group.name, group.num_nodes) for group in report.by_degree] == [('1 to 9', 5), ('10 to 19', 1)]
    assert sum(group.num_nodes for group in report.by_class) == 6
    assert sum(row.num_checked for row in report.reliability) == 4
    assert 'graphs' in str(report)
    assert 'in-degree' not in str(report)
    report.plot(tmp_path / 'report.png')


@pytest.mark.parametrize('node', ['attributes', 'common_attributes'])
def test_masks_of_features_blank_features_where_nodes_would_be_removed(node):
    explainer, data = graph_explainer(MODEL, ProbeDnX(num_probes=16), node=node, edge=None), GRAPHS[0]
    explanation = explainer(data.x, data.edge_index)
    assert explanation.how == 'nodes'
    explanation.node_mask = (explanation.node_mask > 0.5).float()
    before = answers(data.x, data.edge_index)[0]
    kept, removed = (
        answers(data.x * mask, data.edge_index)[0] for mask in (explanation.node_mask, 1 - explanation.node_mask)
    )
    label = before.argmax()
    measured, refined = certify(explainer, explanation).measured, refine(explainer, explanation)
    close = {'rtol': 1e-4, 'atol': 1e-6}
    torch.testing.assert_close(measured.kept[0], kept[label], **close)
    torch.testing.assert_close(measured.removed[0], removed[label], **close)
    torch.testing.assert_close(refined.gap_before[0], kept[label] - removed[label], **close)
    torch.testing.assert_close(check(explainer, explanation).unfaithfulness[0], (before - kept).norm(), **close)


@pytest.mark.parametrize('algorithm', [FastDnX, ProbeDnX])
def test_a_mask_of_the_only_feature_is_none_of_a_node(algorithm):
    model, data = GraphTeacher('gin', num_features=1).eval(), small_graphs(num_features=1)[0]
    explainer = graph_explainer(model, algorithm(), node='common_attributes', edge=None)
    explanation = explainer(data.x, data.edge_index)
    explanation.node_mask = torch.ones(1, 1)
    blank = model(data.x * 0, data.edge_index).double().softmax(dim=1)[0]
    label = model(data.x, data.edge_index).argmax()
    measured = certify(explainer, explanation).measured
    torch.testing.assert_close(measured.removed[0], blank[label].detach(), rtol=1e-4, atol=1e-6)
    assert refine(explainer, explanation, size=1)[0].node_mask.tolist() == [[1.0]]


@pytest.mark.parametrize('node', ['object', 'attributes', 'common_attributes'])
def test_graphs_that_lack_edges_or_features(node):
    explainer, whole = graph_explainer(MODEL, ProbeDnX(num_probes=16), node=node), GRAPHS[0]
    lone, blank = whole.subgraph(torch.tensor([0])), whole.clone()
    blank.x = torch.zeros_like(whole.x)
    assert lone.edge_index.size(1) == 0
    for data, explanation in zip((whole, lone, blank), explain_graphs(explainer, [whole, lone, blank]), strict=True):
        assert explanation.validate()
        alone = explainer(data.x, data.edge_index)
        for name in ('node_mask', 'edge_mask', 'node_score', 'edge_score'):
            torch.testing.assert_close(explanation[name], alone[name], rtol=1e-4, atol=1e-6)
        assert (certify(explainer, alone).index == 0).all()


@pytest.mark.parametrize(('level', 'said'), [('graph', "'x' must be a data set"), ('edge', 'distill')])
def test_reports_are_on_nodes_or_on_data_sets(level, said):
    explainer, data = graph_explainer(MODEL, ProbeDnX(num_probes=16), level=level), GRAPHS[0]
    with pytest.raises(ValueError, match=said):
        trust_report(explainer, data.x, data.edge_index)


def test_bounds_are_about_nodes():
    explainer, data = graph_explainer(MODEL, FastDnX(), edge=None), GRAPHS[0]
    explanation = explainer(data.x, data.edge_index)
    with pytest.raises(ValueError, match="'task_level' must be 'node' to compute the paper's bounds"):
        bound(explainer, explanation)
