r"""What charts of features, of many explanations and of a report show: bars, labels and titles."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import example_graphs
from models import Bare, Teacher, explainer
from plot_case import boxes
from torch_geometric.explain import Explanation

from pyg_dnx import FastDnX, plot, trust_report
from pyg_dnx.plot import theme as themes
from pyg_dnx.plot.labels import overlaps

matplotlib = pytest.importorskip('matplotlib')
pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
LIGHT = themes.THEMES['light']


@pytest.fixture(scope='module')
def batch():
    x, edge_index, _ = example_graphs()['looped']
    model = Bare(3, 4)
    return FastDnX(num_hops=1), model, x, edge_index


def test_features():
    score = torch.tensor([0.5, -3.0, 0.0, 2.0, 1.5])
    figure = plot.features(Explanation(feature_score=score), top_k=3)
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [-3.0, 2.0, 1.5]
    assert [bar.get_y() for bar in axes.patches] == sorted(bar.get_y() for bar in axes.patches)
    assert axes.yaxis_inverted()
    colors = [matplotlib.colors.to_hex(bar.get_facecolor()).upper() for bar in axes.patches]
    assert colors == [LIGHT.away, LIGHT.toward, LIGHT.toward]
    assert [label.get_text() for label in axes.get_yticklabels()] == ['1', '3', '4']
    assert [text.get_text() for text in axes.texts] == ['−3', '2', '1.5']
    assert figure.get_supxlabel() == '+ 2 more features, score sum 0.5'
    everything = plot.features(Explanation(feature_score=score), theme='dark', labels=list('abcde'), title='Mine')
    assert [label.get_text() for label in everything.axes[0].get_yticklabels()] == ['b', 'd', 'e', 'a']
    assert everything.get_suptitle() == 'Mine'


@pytest.mark.parametrize(
    ('values', 'widths', 'color'),
    [
        ({'node_score': torch.tensor([[1.0, -4.0], [2.0, 0.5]])}, [-3.5, 3.0], LIGHT.away),
        ({'node_score': torch.ones(2), 'node_mask': torch.tensor([[0.5, 1.0]])}, [1.0, 0.5], LIGHT.unsigned),
        ({'node_mask': torch.tensor([[0.5, 0.25], [1.0, 0.0]])}, [1.5, 0.25], LIGHT.unsigned),
        ({'node_mask': torch.tensor([[0.5, -2.0]])}, [-2.0, 0.5], LIGHT.away),
        ({'node_mask': torch.zeros(2, 2)}, [], None),
    ],
)
def test_where_feature_scores_come_from(values, widths, color):
    figure = plot.features(Explanation(**values))
    assert [bar.get_width() for bar in figure.axes[0].patches] == widths
    if color is not None:
        assert matplotlib.colors.to_hex(figure.axes[0].patches[0].get_facecolor()).upper() == color


@pytest.mark.parametrize('length', [5, 40, 200])
def test_long_labels_of_features_are_not_cut_off(length):
    labels = [f'{j} ' + 'long ' * (length // 5) for j in range(6)]
    figure = plot.features(Explanation(feature_score=torch.arange(6.0) - 2), labels=labels)
    figure.draw_without_rendering()
    ticks = figure.axes[0].get_yticklabels()
    assert ''.join(ticks[0].get_text().split()) == ''.join(labels[5].split())
    found, page = boxes(figure, ticks), figure.bbox.extents
    assert (found[:, :2] >= page[:2]).all()
    assert (found[:, 2:] <= page[2:]).all()
    for j, box in enumerate(found[:-1]):
        assert not overlaps(box, found[j + 1 :])
    assert figure.axes[0].get_window_extent().width > 0.3 * page[2]


@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_batch(batch, theme):
    algorithm, model, x, edge_index = batch
    explanations = explainer(model, algorithm).algorithm.explain_nodes(model, x, edge_index, index=torch.tensor([1, 6]))
    explanations.surrogate_agreement = torch.tensor([True, False])
    figure = plot.batch(explanations, top_k=2, theme=theme)
    nodes, scores = explanations.top_k(2)
    target = model(x, edge_index).argmax(dim=1)
    assert len(figure.axes) == 2
    for axes, node, row, score in zip(figure.axes, [1, 6], nodes.tolist(), scores.tolist(), strict=True):
        row = [j for j in row if j >= 0]
        assert [label.get_text() for label in axes.get_yticklabels()] == [str(j) for j in row]
        assert [bar.get_width() for bar in axes.patches] == pytest.approx(score[: len(row)])
        weights = [label.get_fontweight() for label in axes.get_yticklabels()]
        assert weights == ['bold' if j == node else 'normal' for j in row]
        assert axes.get_title().rstrip(' *') == f'node {node}, class {int(target[node])}'
    assert [axes.get_title().endswith(' *') for axes in figure.axes] == [False, True]
    assert figure.get_supxlabel() == '* the surrogate disagrees with the model here'
    assert figure.get_suptitle() == 'Highest scores for 2 explained nodes'


def test_batches_of_many_nodes_show_the_first(batch):
    algorithm, model, _, _ = batch
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    edge_index = torch.stack([torch.arange(40), torch.arange(40).roll(1)])
    explanations = explainer(model, algorithm).algorithm.explain_nodes(model, x, edge_index)
    figure = plot.batch(explanations, node_labels=[f'the node that is called {j}' for j in range(40)])
    assert len(figure.axes) == 12
    assert figure.get_suptitle() == 'Highest scores for the first 12 of 40 explained nodes'
    assert figure.axes[3].get_title().startswith('the node that is ca…\nclass ')
    figure.draw_without_rendering()
    titles = boxes(figure, [axes.title for axes in figure.axes])
    for j, box in enumerate(titles[:-1]):
        assert not overlaps(box, titles[j + 1 :])


@pytest.mark.parametrize('task', ['regression [N]', 'regression [N, 2]', 'binary raw [N, 2]'])
def test_batches_without_a_class_a_node(task):
    x, edge_index, _ = example_graphs()['looped']
    model = Teacher('weighted', task)
    explain = explainer(model, FastDnX(num_hops=1), task)
    explanations = explain.algorithm.explain_nodes(model, x, edge_index, index=torch.tensor([1]))
    assert explanations.targets is None
    assert plot.batch(explanations).axes[0].get_title().rstrip(' *') == 'node 1'


@pytest.mark.parametrize('num_classes', [2, 12, 13, 100])
def test_reports_of_many_classes(num_classes):
    x, edge_index, _ = example_graphs()['looped']
    report = trust_report(explainer(Bare(3, 3), FastDnX(num_hops=1)), x, edge_index)
    confusion = (torch.eye(num_classes) * 7).long().tolist()
    figure = plot.report(replace(report, confusion=confusion))
    figure.draw_without_rendering()
    for axes in figure.axes:
        for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
            found = boxes(figure, [tick for tick in ticks if tick.get_text()])
            others = [other.get_window_extent().extents for other in figure.axes if other is not axes]
            assert not any(overlaps(box, np.array(others)) for box in found)
            for j, box in enumerate(found[:-1]):
                assert not overlaps(box, found[j + 1 :])
    assert len(figure.axes[0].texts) == (num_classes if num_classes <= 12 else 0)
