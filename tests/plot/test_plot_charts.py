r"""What charts of features, of many explanations and of a report show: bars, labels and titles."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import example_graphs
from models import Bare, Teacher, explainer
from plot_case import boxes, bush, hetero, molecule
from torch_geometric.explain import Explanation

from pyg_dnx import FastDnX, plot, trust_report
from pyg_dnx.plot import theme as themes
from pyg_dnx.plot.labels import overlaps
from pyg_dnx.plot.many import stacked

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


def many_nodes(algorithm, node='common_attributes', **names):
    model = Bare(3, 4)
    x = 5.0 * torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    edge_index = torch.stack([torch.arange(40), torch.arange(40).roll(1)])
    explanations = explainer(model, algorithm, node=node, edge='object').algorithm.explain_nodes(model, x, edge_index)
    for name, values in names.items():
        setattr(explanations, name, values)
    return explanations


@pytest.fixture(scope='module')
def common(batch):
    return many_nodes(batch[0], feature_names=['age', 'size', 'dose'], class_names=list('ABCD'))


def table_of(explanations):
    return torch.stack([item.feature_score for item in explanations]).double().numpy()


def test_bars_of_many(common):
    (axes,) = plot.features(common, top_k=2).axes
    size = np.abs(table_of(common)).mean(axis=0)
    order = np.argsort(-size)[:2]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(size[order])
    assert [label.get_text() for label in axes.get_yticklabels()] == [['age', 'size', 'dose'][f] for f in order]
    listed = plot.features(list(common), labels={0: 'years'}).axes[0]
    assert {label.get_text() for label in listed.get_yticklabels()} == {'years', '1', '2'}


@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_beeswarms_have_a_point_for_each_node(common, theme):
    figure = plot.features(common, kind='beeswarm', theme=theme)
    table = table_of(common)
    order = np.argsort(-np.abs(table).mean(axis=0))
    points = figure.axes[0].collections
    assert len(points) == 3
    x = np.stack([item.x[node].numpy() for item, node in zip(common, common.index.tolist(), strict=True)])
    for place, (f, row) in enumerate(zip(order, points, strict=True)):
        assert row.get_offsets()[:, 0].tolist() == pytest.approx(table[:, f].tolist())
        assert (np.abs(row.get_offsets()[:, 1] - place) <= 0.42 + 1e-9).all()
        shade = np.asarray(row.get_array())
        assert np.corrcoef(np.argsort(np.argsort(shade)), np.argsort(np.argsort(x[:, f])))[0, 1] > 0.95
    assert figure.axes[1].get_ylabel() == "the node's own feature"


def test_points_of_a_beeswarm_do_not_lie_on_each_other():
    row = np.array([0.0, 0.0, 0.0, 1.0, 0.0])
    assert sorted(stacked(row, 0.0, 1.0)[[0, 1, 2, 4]]) == pytest.approx([-0.07, 0.0, 0.07, 0.14])
    assert stacked(row, 0.0, 1.0)[3] == 0.0
    assert np.abs(stacked(np.zeros(500), 0.0, 0.0)).max() == pytest.approx(0.42)


def test_panels_by_class_have_one_scale(common):
    targets = common.targets.tolist()
    present = sorted(set(targets))
    assert len(present) > 1
    for kind in ('bar', 'beeswarm'):
        panels = [axes for axes in plot.features(common, kind=kind, by_class=True).axes if axes.get_title()]
        assert [axes.get_title() for axes in panels] == [f'{"ABCD"[c]} ({targets.count(c)})' for c in present]
        assert len({axes.get_xlim() for axes in panels}) == 1
    sizes = np.abs(table_of(common)[np.array(targets) == present[0]]).mean(axis=0)
    first = plot.features(common, by_class=True).axes[0]
    assert sorted(bar.get_width() for bar in first.patches) == pytest.approx(sorted(sizes))


def test_matrices_have_the_mean_of_each_class(common):
    figure = plot.features(common, kind='matrix', class_names={0: 'none'})
    (image,) = figure.axes[0].images
    table, targets = table_of(common), common.targets.numpy()
    order = np.argsort(-np.abs(table).mean(axis=0))
    present = sorted(set(targets.tolist()), key=lambda c: 'none' if c == 0 else f'class {c}')
    expected = np.stack([table[targets == c].mean(axis=0)[order] for c in present])
    assert np.asarray(image.get_array()) == pytest.approx(expected)
    assert image.norm.vmax == pytest.approx(np.abs(expected).max())
    assert len(figure.axes[0].texts) == expected.size


def test_values_are_beside_the_names_of_features():
    explanation = Explanation(
        x=torch.tensor([[0.0, 0.0], [7.0, -2.5]]), feature_score=torch.tensor([1.0, 2.0]), index=torch.tensor([1])
    )
    explanation.feature_names = ['age', 'dose']
    ticks = plot.features(explanation).axes[0].get_yticklabels()
    assert [label.get_text() for label in ticks] == ['dose = −2.5', 'age = 7']
    explanation.index = None
    ticks = plot.features(explanation).axes[0].get_yticklabels()
    assert [label.get_text() for label in ticks] == ['dose', 'age']


def test_features_of_types():
    explanation = hetero()
    for name in ('node_score', 'node_mask'):
        for kind in explanation.node_types:
            del explanation[kind][name]
    explanation['paper'].node_mask = torch.tensor([[0.5, 0.25]] * 12)
    explanation['venue'].node_mask = torch.tensor([[1.0, 0.0]] * 3)
    explanation.feature_names = {'paper': ['words', 'year']}
    ticks = plot.features(explanation).axes[0].get_yticklabels()
    assert [label.get_text() for label in ticks] == ['words', 'year', 'venue 0']


def test_neighbours_that_matter_to_many(batch):
    explanations = many_nodes(batch[0], node_names=[f'person {j}' for j in range(40)])
    figure = plot.neighbours(explanations, top_k=4, among=2)
    nodes, scores = explanations.top_k(2)
    found = {}
    for own, row, values in zip(explanations.index.tolist(), nodes.tolist(), scores.tolist(), strict=True):
        for j, value in zip(row, values, strict=True):
            if j not in (own, -1):
                found.setdefault(j, []).append(value)
    order = sorted(found, key=lambda j: (-len(found[j]), -sum(map(abs, found[j])), j))[:4]
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == [f'person {j}' for j in order]
    assert [bar.get_width() for bar in left.patches] == [len(found[j]) for j in order]
    for j, points in zip(order, right.collections, strict=True):
        assert sorted(points.get_offsets()[:, 0]) == pytest.approx(sorted(found[j]))


def test_panels_of_a_batch_have_one_scale(batch):
    explanations = many_nodes(batch[0])
    figure = plot.batch(explanations, top_k=3)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    nodes, scores = (values[:12] for values in explanations.top_k(3))
    others = scores[nodes != explanations.index[:12, None]]
    assert figure.axes[0].get_xlim()[1] == pytest.approx(1.08 * float(others.max()))
    cut = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert len(cut) == int((scores > 1.08 * others.max()).sum() + (scores < min(0.0, 1.08 * float(others.min()))).sum())


@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_neighbourhoods_of_many_nodes_have_one_scale(batch, theme):
    explanations = many_nodes(batch[0], node='object', class_names=list('ABCD'))
    figure = plot.neighborhood(explanations, max_nodes=4, theme=theme)
    nodes = [part for axes in figure.axes for part in axes.collections if part.get_gid() == 'nodes']
    assert len(nodes) == 12
    assert len({(part.norm.vmin, part.norm.vmax) for part in nodes}) == 1
    titles = [axes.get_title() for axes in figure.axes[:12]]
    assert titles == [f'Why {"ABCD"[int(explanations.targets[b])]} at node {b}?' for b in range(12)]
    assert [text.get_text() for text in figure.texts][:1] == ['The first 12 of 40 explained nodes']
    found = boxes(figure, [axes.title for axes in figure.axes[:12]])
    for j, box in enumerate(found[:-1]):
        assert not overlaps(box, found[j + 1 :])


def test_graphs_side_by_side():
    second = molecule(node_score=3 * torch.ones(14), target=torch.tensor([0]))
    figure = plot.graphs(item for item in (molecule(), second))
    nodes = [part for axes in figure.axes for part in axes.collections if part.get_gid() == 'nodes']
    assert [part.norm.vmax for part in nodes] == [3.0, 3.0]
    assert [axes.get_title() for axes in figure.axes[:2]] == [
        'Why stimulant for the graph?',
        'Why harmless for the graph?',
    ]
    assert figure.texts[0].get_text() == '2 explained graphs'


ONE = Explanation(feature_score=torch.ones(3))
BAD = {
    'kind': (plot.features, ONE, {'kind': 'pie'}, ValueError, r"'kind' must be .* \(got 'pie'\): "),
    'one': (plot.features, ONE, {'kind': 'matrix'}, ValueError, r"'kind' must be 'bar'.* \(got 'matrix' and False\): "),
    'nothing': (plot.features, 3, {}, TypeError, r"'explanation' must be an Explanation.* \(got int\): "),
    'none': (plot.features, [], {}, ValueError, r'explanations of the same features \(got none\): '),
    'sizes': (plot.features, [ONE, Explanation(feature_score=torch.ones(2))], {}, ValueError, 'got several numbers of'),
    'classes': (plot.features, [ONE], {'kind': 'matrix'}, ValueError, 'must be of classes for a matrix'),
    'a node': (plot.graphs, [bush(4)], {}, ValueError, r"must be of graphs \(got one of level 'node'\): "),
    'a graph': (plot.graphs, molecule(), {}, TypeError, r'must be the explanations of many graphs \(got Explanation\)'),
    'no graphs': (plot.graphs, [], {}, ValueError, r'must hold at least one \(got none\)'),
    'neighbours': (plot.neighbours, ONE, {}, TypeError, r"'batch' must be .* \(got Explanation\): "),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_input_is_named(name):
    draw, item, options, error, text = BAD[name]
    with pytest.raises(error, match=text):
        draw(item, **options)


def test_one_node_of_many_is_asked_for(common):
    with pytest.raises(ValueError, match=r"'index' must be None for the explanations of many nodes \(got 3\): "):
        plot.neighborhood(common, index=3)
