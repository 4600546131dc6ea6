r"""What pictures show: circles, colours, labels and texts, and that nothing of the user's changes."""

import subprocess
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import example_graphs
from models import Bare, Teacher, explainer, graph
from torch_geometric.explain import Explanation, GNNExplainer
from torch_geometric.nn import GCN
from torch_geometric.utils import to_undirected

from pyg_dnx import FastDnX, plot, trust_report
from pyg_dnx.plot import theme as themes
from pyg_dnx.plot.graph import MAX_RADIUS, limit_of
from pyg_dnx.plot.labels import overlaps
from pyg_dnx.scene import scene_of

matplotlib = pytest.importorskip('matplotlib')
pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
LIGHT, DARK = themes.THEMES['light'], themes.THEMES['dark']


def star(num_leaves, scale=1.0, **values):
    generator = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.arange(1, num_leaves + 1), torch.zeros(num_leaves, dtype=torch.long)])
    score = scale * torch.randn(num_leaves + 1, generator=generator)
    given = {'edge_index': to_undirected(edges), 'node_score': score, 'index': torch.tensor([0])}
    return Explanation(x=torch.zeros(num_leaves + 1, 2), **{**given, **values})


def bush(num_nodes, num_edges=None):
    r"""A random graph with masks of nodes and edges, around node 0."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(0, num_nodes, (num_edges or 2 * num_nodes,), generator=generator)
    edges = to_undirected(torch.stack([source, (source * source + 1) % num_nodes]))
    score = torch.randn(num_nodes, generator=generator)
    values = {'node_score': score, 'edge_mask': torch.rand(edges.size(1), generator=generator)}
    return Explanation(x=torch.zeros(num_nodes, 2), edge_index=edges, index=torch.tensor([0]), **values)


def directed():
    edges = torch.tensor([[1, 2, 3, 1, 4], [0, 0, 1, 2, 3]])
    return Explanation(
        x=torch.zeros(6, 2), edge_index=edges, node_score=torch.arange(6.0) - 2.5, index=torch.tensor([0])
    )


def mixed():
    explanation = directed()
    explanation.edge_index = torch.cat([explanation.edge_index, torch.tensor([[0], [1]])], dim=1)
    return explanation


CASES = {
    'star': star(12),
    'crowded star': star(299),
    'bush': bush(30),
    'large bush': bush(300),
    'directed': directed(),
    'several': star(12, index=torch.tensor([0, 3, 5])),
    'all': star(12, index=None),
    'one node': star(0),
    'no edges': star(8, edge_index=torch.zeros(2, 0, dtype=torch.long)),
    'unsigned': star(12, node_score=None, node_mask=torch.linspace(0.1, 1.0, 13)[:, None]),
    'nothing': star(12, node_score=torch.zeros(13), node_mask=torch.ones(13, 1)),
}


@cache
def picture(name, theme='light', is_long=False):
    node_labels = {j: f'a node with a long name, {j}' for j in range(400)} if is_long else None
    return plot.neighborhood(CASES[name], max_nodes=300, theme=theme, node_labels=node_labels)


def parts(figure):
    r"""What was drawn: nodes, circles around explained ones, labels, and texts by their use."""
    axes = figure.axes[0]
    found = {part.get_gid(): part for part in axes.collections}
    labels = [text for text in axes.texts if text.get_gid() == 'label']
    rings = [text.get_text() for text in axes.texts if text.get_gid() != 'label']
    texts = {text.get_gid(): text.get_text() for text in figure.texts}
    return SimpleNamespace(nodes=found['nodes'], explained=found.get('explained'), labels=labels, rings=rings, **texts)


def boxes(figure, texts):
    renderer = figure.canvas.get_renderer()
    return np.array([text.get_window_extent(renderer).extents for text in texts])


@pytest.mark.parametrize(('name', 'theme'), [*((name, 'light') for name in CASES), ('bush', 'dark'), ('all', 'dark')])
def test_what_is_drawn(name, theme):
    scene, figure = scene_of(CASES[name], max_nodes=300), picture(name, theme)
    drawn = parts(figure)
    assert drawn.nodes.get_offsets().shape == (len(scene.nodes), 2)
    assert drawn.nodes.get_array().tolist() == pytest.approx(scene.scores)
    assert (0 if drawn.explained is None else len(drawn.explained.get_offsets())) == scene.explained
    limits = (-drawn.nodes.norm.vmax if scene.is_signed else 0.0, limit_of(scene))
    assert (drawn.nodes.norm.vmin, drawn.nodes.norm.vmax) == pytest.approx(limits)
    assert figure.get_facecolor() == matplotlib.colors.to_rgba(themes.THEMES[theme].page)
    assert drawn.folded == ''


@pytest.mark.parametrize('name', CASES)
def test_nodes_do_not_overlap(name):
    figure = picture(name)
    drawn, axes = parts(figure), figure.axes[0]
    centers = axes.transData.transform(drawn.nodes.get_offsets())
    radii = 0.5 * np.sqrt(drawn.nodes.get_sizes()) * figure.dpi / 72
    distance = np.linalg.norm(centers[:, None] - centers, axis=2) + np.where(np.eye(len(centers)), np.inf, 0.0)
    assert (distance > radii[:, None] + radii).all()
    page = axes.get_window_extent()
    assert (centers - radii[:, None] >= page.min).all()
    assert (centers + radii[:, None] <= page.max).all()
    assert 2.0 < radii.max() * 72 / figure.dpi <= MAX_RADIUS


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('is_long', [False, True])
def test_labels_do_not_overlap(name, is_long):
    figure = picture(name, is_long=is_long)
    found = boxes(figure, figure.axes[0].texts)
    for j, box in enumerate(found[:-1]):
        assert not overlaps(box, found[j + 1 :])
    labels = parts(figure).labels
    assert 0 < len(labels) <= len(parts(figure).nodes.get_array())
    page = figure.bbox.extents
    extents = boxes(figure, labels)
    assert (extents[:, :2] >= page[:2]).all()
    assert (extents[:, 2:] <= page[2:]).all()


def test_labels_are_ids_or_names_the_highest_first():
    explanation = CASES['crowded star']
    by_score = [0, *(explanation.node_score[1:].abs().argsort(descending=True) + 1).tolist()]
    written = [text.get_text() for text in parts(picture('crowded star')).labels]
    assert 20 < len(written) < 300
    assert written == [str(node) for node in by_score if str(node) in written]
    assert written[0] == '0'
    names = [text.get_text() for text in parts(plot.neighborhood(star(4), node_labels={0: 'hub', 3: 'x'})).labels]
    assert sorted(names) == ['1', '2', '4', 'hub', 'x']
    assert [t.get_text() for t in parts(plot.neighborhood(star(0), node_labels=['only'])).labels] == ['only']


def test_the_tail_is_folded():
    explanation = star(1000)
    drawn = parts(plot.neighborhood(explanation))
    shown = set(scene_of(explanation).nodes)
    rest = sum(float(score) for node, score in enumerate(explanation.node_score) if node not in shown)
    assert len(drawn.nodes.get_array()) == len(shown) == 30
    assert drawn.folded == f'+ 971 more nodes, score sum {rest:.3g}'.replace('-', '−')
    one = parts(plot.neighborhood(star(4, node_score=None, node_mask=torch.full((5, 1), 0.5)), max_nodes=4))
    assert one.folded == '+ 1 more node, mask sum 0.5'


def test_rings_are_labelled_by_hops():
    path = torch.tensor([[0, 1, 2], [1, 2, 3]])
    explanation = Explanation(x=torch.zeros(5, 1), edge_index=path, node_score=torch.ones(5), index=torch.tensor([3]))
    figure = plot.neighborhood(explanation)
    assert parts(figure).rings == ['1 hop', '2 hops', '3 hops', 'no path']
    places = dict(zip(scene_of(explanation).nodes, parts(figure).nodes.get_offsets(), strict=True))
    radius = {node: np.hypot(*place) for node, place in places.items()}
    assert [radius[node] for node in (3, 2, 1, 0, 4)] == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0])
    circles = figure.axes[0].patches
    assert [circle.radius for circle in circles] == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert parts(plot.neighborhood(CASES['all'])).rings == []


def test_an_own_score_does_not_dwarf_all_others():
    score = torch.tensor([100.0, 1.0, -2.0])
    figure = plot.neighborhood(star(2, node_score=score))
    assert parts(figure).nodes.norm.vmax == 2.0
    assert parts(figure).nodes.colorbar.extend == 'max'
    assert parts(plot.neighborhood(star(2, node_score=-score))).nodes.colorbar.extend == 'min'
    assert parts(plot.neighborhood(star(2, node_score=score / score))).nodes.colorbar.extend == 'neither'


def test_widths_of_edges_are_masks():
    explanation = star(4, edge_mask=None)
    explanation.edge_mask = explanation.edge_index.sum(dim=0) / 4
    scene = scene_of(explanation)
    figure = plot.neighborhood(explanation)
    (lines,) = [part for part in figure.axes[0].collections if isinstance(part, matplotlib.collections.LineCollection)]
    order = np.argsort(scene.edge_weights)
    assert (np.diff(np.array(lines.get_linewidths())[order]) > 0.1).all()
    places = parts(figure).nodes.get_offsets()
    assert np.allclose([path.vertices for path in lines.get_paths()], places[np.array(scene.edges)])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ['explained', 'edge mask 0.2', '0.6', '1']
    assert figure.legends[0].get_lines()[-1].get_linewidth() == pytest.approx(max(lines.get_linewidths()))
    plain = plot.neighborhood(star(4))
    assert [text.get_text() for text in plain.legends[0].get_texts()] == ['explained']


@pytest.mark.parametrize(('explanation', 'count'), [(directed(), 5), (mixed(), 4), (star(4), 0)])
def test_arrows_point_where_messages_go(explanation, count):
    figure = plot.neighborhood(explanation)
    heads = [part for part in figure.axes[0].collections if type(part).__name__ == 'PolyCollection']
    assert sum(len(part.get_paths()) for part in heads) == count
    scene, places = scene_of(explanation), parts(figure).nodes.get_offsets()
    one_way = [edge for edge, both in zip(scene.edges, scene.both_ways, strict=True) if not both]
    for path, (source, target) in zip(heads[0].get_paths() if heads else [], one_way, strict=True):
        tip = path.vertices[0]
        assert np.linalg.norm(tip - places[target]) < np.linalg.norm(tip - places[source])
        assert np.linalg.norm(tip - places[target]) < np.linalg.norm(path.vertices[1] - places[target])


def test_titles():
    explanation = star(4)
    assert parts(plot.neighborhood(explanation)).title == 'Explanation of node 0'
    assert parts(plot.neighborhood(explanation, title='Mine')).title == 'Mine'
    assert parts(plot.neighborhood(explanation, index=torch.tensor([1, 2]))).title == 'Explanation of 2 nodes'
    assert parts(plot.neighborhood(CASES['all'])).title == 'Explanation'
    explanation.target = torch.tensor([3, 1, 1, 1, 1])
    assert parts(plot.neighborhood(explanation)).title == 'Why class 3 for node 0?'
    explanation.target = explanation.target.float()
    assert parts(plot.neighborhood(explanation)).title == 'Explanation of node 0'


def test_long_titles_are_not_cut_off():
    figure = plot.neighborhood(star(4), title='Why, ' * 40)
    (title,) = [text for text in figure.texts if text.get_gid() == 'title']
    assert boxes(figure, [title])[0, 2] <= figure.bbox.x1


@pytest.mark.parametrize(
    ('values', 'text'),
    [
        ({}, 'score: pushes away from / toward the prediction'),
        ({'node_score': None, 'node_mask': torch.ones(5, 1)}, 'importance (node mask)'),
        ({'node_score': None, 'edge_mask': torch.ones(8)}, "importance (highest mask of the node's edges)"),
        (
            {'node_score': None, 'node_mask': -torch.ones(5, 1)},
            'node mask: pushes away from / toward the prediction',
        ),
        ({'node_score': None, 'edge_mask': -torch.ones(8)}, "highest mask of the node's edges"),
    ],
)
def test_the_colour_bar_says_what_it_means(values, text):
    assert plot.neighborhood(star(4, **values)).axes[1].get_ylabel() == text


@pytest.mark.parametrize('masks', [('object', 'object'), ('attributes', None), (None, 'object')])
def test_gnn_explainer(masks):
    x, edge_index, _ = example_graphs()['undirected']
    torch.manual_seed(0)
    explain = explainer(GCN(3, 4, 2, 3), GNNExplainer(epochs=2), node=masks[0], edge=masks[1])
    figure = plot.neighborhood(explain(x, edge_index, index=1))
    assert parts(figure).nodes.norm.vmin == 0.0
    assert parts(figure).title.startswith('Why class ')


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


@pytest.mark.parametrize('theme', themes.THEMES)
def test_contrast(theme):
    colors = themes.THEMES[theme]
    assert themes.contrast('white', 'black') == pytest.approx(21.0)
    assert themes.contrast('#777777', 'white') == pytest.approx(4.48, abs=0.01)
    assert themes.contrast(colors.text, colors.page) > 12
    assert themes.contrast(colors.muted, colors.page) > 4.5
    for color in (colors.line, colors.toward, colors.away, colors.unsigned):
        assert themes.contrast(color, colors.page) > 3
    for is_signed in (True, False):
        for share in np.linspace(0.0, 1.0, 50):
            fill = colors.colors(is_signed)(share)
            assert themes.contrast(colors.ink(fill), fill) > 3.9


def test_nothing_of_the_users_changes():
    import matplotlib.pyplot as plt

    explanation = star(4)
    before = dict(matplotlib.rcParams), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    score = explanation.node_score.clone()
    numbers = plt.get_fignums()
    for figure in (
        plot.neighborhood(explanation, theme='dark'),
        plot.neighborhood(CASES['all']),
        plot.features(Explanation(feature_score=torch.ones(3)), theme='dark'),
    ):
        assert isinstance(figure, matplotlib.figure.Figure)
    assert (dict(matplotlib.rcParams), np.random.get_state()[1].tolist()) == before[:2]  # noqa: NPY002
    assert torch.get_rng_state().equal(before[2])
    assert plt.get_fignums() == numbers
    assert explanation.node_score.equal(score)


def test_pictures_are_the_same_each_time(tmp_path):
    for name in ('one', 'two'):
        plot.neighborhood(bush(60), max_nodes=60, path=tmp_path / f'{name}.png')
        torch.rand(3)
    first, second = ((tmp_path / f'{name}.png').read_bytes() for name in ('one', 'two'))
    assert first.startswith(b'\x89PNG')
    assert first == second


@pytest.mark.parametrize('ending', ['png', 'pdf', 'svg'])
def test_pictures_are_saved(ending, tmp_path):
    plot.neighborhood(directed(), path=tmp_path / f'a.{ending}')
    plot.features(Explanation(feature_score=torch.ones(3)), path=str(tmp_path / f'b.{ending}'))
    assert {path.name for path in tmp_path.iterdir()} == {f'a.{ending}', f'b.{ending}'}
    assert all(path.stat().st_size > 2000 for path in tmp_path.iterdir())


def test_matplotlib_is_imported_when_it_is_needed():
    code = "import sys, pyg_dnx; from pyg_dnx import plot; assert not {'matplotlib', 'networkx'} & set(sys.modules)"
    subprocess.run([sys.executable, '-c', code], check=True)


@pytest.mark.parametrize(
    'draw',
    [
        lambda: plot.neighborhood(star(4)),
        lambda: plot.neighborhood(star(4, index=None)),
        lambda: plot.features(Explanation(feature_score=torch.ones(3))),
    ],
)
def test_matplotlib_is_asked_for(draw, monkeypatch):
    for name in ('matplotlib.figure', 'matplotlib.backends.backend_agg'):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pictures need 'matplotlib', which is not installed: pip install matplotlib"):
        draw()


def test_networkx_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, 'networkx', None)
    plot.neighborhood(star(4))
    with pytest.raises(ImportError, match=r"without an explained node need 'networkx', .*: pip install networkx"):
        plot.neighborhood(star(4, index=None))


BAD = {
    'theme': (plot.neighborhood, star(4), {'theme': 'pink'}, ValueError, r"'theme' must be .* \(got 'pink'\): "),
    'nodes': (plot.neighborhood, star(4), {'max_nodes': 0}, ValueError, r"'max_nodes' must be .* \(got 0\): "),
    'labels': (plot.neighborhood, star(4), {'node_labels': ['a']}, ValueError, r"'node_labels' must .* \(got 1\): "),
    'features': (plot.features, star(4), {}, ValueError, "'explanation' must say something of features"),
    'top_k': (plot.features, star(4), {'top_k': 0}, ValueError, r"'top_k' must be at least 1 \(got 0\): "),
    'words': (
        plot.features,
        Explanation(feature_score=torch.ones(3)),
        {'labels': ['a']},
        ValueError,
        r"'labels' must have a label for each, 1 among them \(got 1\): ",
    ),
    'NaN': (plot.features, Explanation(feature_score=torch.tensor([torch.nan])), {}, ValueError, 'must be finite'),
    'batch': (plot.batch, star(4), {}, TypeError, r"'explanations' must be .* \(got Explanation\): "),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_input_is_named(name):
    draw, item, options, error, text = BAD[name]
    with pytest.raises(error, match=text):
        draw(item, **options)


def test_default_device_is_not_used():
    x, edge_index = graph()
    explain = explainer(Teacher('gcn').eval(), FastDnX(), node='attributes', edge='object')
    one, several = (explain(x, edge_index, index=index) for index in (1, torch.tensor([1, 2])))
    batch = explain.algorithm.explain_nodes(explain.model, x, edge_index)

    def pixels():
        figures = [plot.neighborhood(one), plot.neighborhood(several), plot.features(one), plot.batch(batch)]
        for figure in figures:
            figure.canvas.draw()
        return [np.asarray(figure.canvas.buffer_rgba()).tobytes() for figure in figures]

    expected = pixels()
    torch.set_default_device('meta')
    try:
        assert pixels() == expected
    finally:
        torch.set_default_device(None)
