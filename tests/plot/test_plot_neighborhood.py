r"""What pictures of a neighbourhood show: circles, colours, labels, edges and texts."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import example_graphs
from models import explainer
from plot_case import ATOMS, CASES, boxes, bush, directed, hetero, link, molecule, star
from torch_geometric.explain import Explanation, GNNExplainer
from torch_geometric.nn import GCN

from pyg_dnx import plot
from pyg_dnx.plot import theme as themes
from pyg_dnx.plot.draw import MAX_RADIUS, scale_of
from pyg_dnx.plot.labels import overlaps
from pyg_dnx.view.scene import scene_of

matplotlib = pytest.importorskip('matplotlib')
pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


def mixed():
    explanation = directed()
    explanation.edge_index = torch.cat([explanation.edge_index, torch.tensor([[0], [1]])], dim=1)
    return explanation


@cache
def picture(name, theme='light', is_long=False):
    node_labels = {j: f'a node with a long name, {j}' for j in range(400)} if is_long else None
    if is_long and name == 'hetero':
        node_labels = dict.fromkeys(('paper', 'author', 'venue'), node_labels)
    return plot.neighborhood(CASES[name], max_nodes=300, theme=theme, node_labels=node_labels)


def parts(figure):
    r"""What was drawn: nodes, circles around explained ones, labels, and texts by their use."""
    axes = figure.axes[0]
    found = {part.get_gid(): part for part in axes.collections}
    labels = [text for text in axes.texts if text.get_gid() == 'label']
    rings = [text.get_text() for text in axes.texts if text.get_gid() != 'label']
    texts = {text.get_gid(): text.get_text() for text in figure.texts}
    return SimpleNamespace(nodes=found['nodes'], explained=found.get('explained'), labels=labels, rings=rings, **texts)


@pytest.mark.parametrize(('name', 'theme'), [*((name, 'light') for name in CASES), ('bush', 'dark'), ('all', 'dark')])
def test_what_is_drawn(name, theme):
    scene, figure = scene_of(CASES[name], max_nodes=300), picture(name, theme)
    drawn = parts(figure)
    assert drawn.nodes.get_offsets().shape == (len(scene.nodes), 2)
    assert drawn.nodes.get_array().tolist() == pytest.approx(scene.scores)
    assert (0 if drawn.explained is None else len(drawn.explained.get_offsets())) == scene.explained
    limits = (-drawn.nodes.norm.vmax if scene.is_signed else 0.0, scale_of([scene]).limit)
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
    assert parts(plot.neighborhood(CASES['all'])).title == 'Explanation of all nodes'
    explanation.target = torch.tensor([3, 1, 1, 1, 1])
    assert parts(plot.neighborhood(explanation)).title == 'Why class 3 at node 0?'
    explanation.target = 0.5 * explanation.target
    assert parts(plot.neighborhood(explanation)).title == 'Why 1.5 at node 0?'


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


def skewed(num_nodes, num_edges=None):
    r"""A random graph, most of whose nodes have scores near zero."""
    explanation = bush(num_nodes, num_edges)
    explanation.node_score = explanation.node_score**3
    explanation.node_score[explanation.node_score.abs() < 0.3] *= 0.01
    return explanation


@pytest.mark.parametrize('theme', themes.THEMES)
@pytest.mark.parametrize('num_nodes', [10, 60, 300])
@pytest.mark.parametrize('is_long', [False, True])
def test_labels_are_written_by_rank(num_nodes, theme, is_long):
    explanation = skewed(num_nodes)
    labels = [f'person {j}' for j in range(num_nodes)] if is_long else [str(j) for j in range(num_nodes)]
    figure = plot.neighborhood(explanation, max_nodes=num_nodes, node_labels=labels, theme=theme)
    scene, written = scene_of(explanation, max_nodes=num_nodes), {t.get_text() for t in parts(figure).labels}
    size = {labels[node]: abs(score) for node, score in zip(scene.nodes[1:], scene.scores[1:], strict=True)}
    left_out = max((score for name, score in size.items() if name not in written), default=0.0)
    assert all(size[name] >= 0.5 * left_out for name in written - {'0', 'person 0'})
    assert {labels[node] for node in scene.nodes[:10]} <= written
    found = boxes(figure, figure.axes[0].texts)
    for j, box in enumerate(found[:-1]):
        assert not overlaps(box, found[j + 1 :])
    axes = figure.axes[0]
    centers = axes.transData.transform(parts(figure).nodes.get_offsets())
    for text, box in zip(axes.texts, found, strict=True):
        inside = ((centers > box[:2]) & (centers < box[2:])).all(axis=1).nonzero()[0]
        own = [labels[scene.nodes[j]] for j in inside]
        assert own in ([], [text.get_text()]) or text.get_gid() == 'ring'


def test_labels_that_stand_apart_have_a_line_to_their_node():
    explanation = skewed(208, 260)
    figure = plot.neighborhood(explanation, max_nodes=208, node_labels=[f'person {j}' for j in range(208)])
    lines = [line for line in figure.axes[0].lines if line.get_gid() == 'leader']
    assert lines
    places = parts(figure).nodes.get_offsets()
    texts = np.array([text.get_position() for text in parts(figure).labels])
    transform = figure.axes[0].transData.transform
    ends = {tuple(line.get_xydata()[1]) for line in lines}
    radii = 0.5 * np.sqrt(parts(figure).nodes.get_sizes()) * figure.dpi / 72
    alone = [text for text in parts(figure).labels if text.get_position() not in ends]
    for text, box in zip(alone, boxes(figure, alone), strict=True):
        j = [f'person {node}' for node in scene_of(explanation, max_nodes=208).nodes]
        x, y = transform(places[j.index(text.get_text())])
        away = np.maximum([box[0] - x, box[1] - y], [x - box[2], y - box[3]])
        assert away.max() < radii[j.index(text.get_text())] + (8 if text is alone[0] else 3)  # pixels
    for line in lines:
        start, end = line.get_xydata()
        assert np.abs(places - start).sum(axis=1).min() < 1e-9
        assert np.abs(texts - end).sum(axis=1).min() < 1e-9


def test_graphs_are_drawn_as_a_whole():
    explanation = molecule(node_score=torch.eye(14)[0], edge_score=None)
    figure = plot.neighborhood(explanation)
    drawn = parts(figure)
    assert drawn.title == 'Why stimulant for the graph?'
    assert sorted(text.get_text() for text in drawn.labels) == sorted(ATOMS)
    assert (drawn.explained, drawn.rings) == (None, [])
    assert len(parts(plot.neighborhood(molecule(), max_nodes=5)).nodes.get_array()) == 5


@pytest.mark.parametrize('theme', themes.THEMES)
def test_edges_of_graphs_have_the_colours_of_their_scores(theme):
    explanation, colors = molecule(), themes.THEMES[theme]
    figure = plot.neighborhood(explanation, theme=theme)
    (lines,) = [part for part in figure.axes[0].collections if isinstance(part, matplotlib.collections.LineCollection)]
    score = np.array(scene_of(explanation).edge_scores)
    limit = np.abs(score).max()
    assert lines.get_colors() == pytest.approx(colors.edge_colors()(0.5 + 0.5 * score / limit), abs=1e-6)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[-2:] == ['edge score below 0', 'above 0']


def test_links_have_both_ends_in_the_middle():
    figure = plot.neighborhood(link())
    drawn = parts(figure)
    assert drawn.title == 'Why class 1 for the link 0 – 7?'
    places = np.asarray(drawn.nodes.get_offsets())
    radii = np.linalg.norm(places, axis=1)
    assert radii[:2] == pytest.approx(np.full(2, radii[0]))
    assert (radii[2:] > radii[0]).all()
    assert len(drawn.explained.get_offsets()) == 2
    (dashes,) = [part for part in figure.axes[0].collections if part.get_gid() == 'links']
    assert np.allclose(dashes.get_paths()[0].vertices, places[list(scene_of(link()).links[0])])
    assert parts(plot.neighborhood(link(), index=1)).title == 'Why class 0 for the link 3 – 9?'
    assert parts(plot.neighborhood(link(index=None))).title == 'Explanation of all links'


def test_types_have_shapes():
    explanation, figure = hetero(), plot.neighborhood(hetero(), class_names=['Theory', 'Vision', 'Speech'])
    drawn, scene = parts(figure), scene_of(explanation)
    assert drawn.title == 'Why Speech at paper 2?'
    corners = {'paper': [], 'author': [], 'venue': []}
    for kind, path in zip(scene.types, drawn.nodes.get_paths(), strict=True):
        corners[kind].append(len(path.vertices))
    assert all(len(set(found)) == 1 for found in corners.values())
    assert corners['paper'][0] > corners['author'][0]
    assert [text.get_text() for text in figure.legends[0].get_texts()][:4] == ['explained', 'paper', 'author', 'venue']
    names = {'paper': {2: 'Attention'}, 'venue': list('abc')}
    figure = plot.neighborhood(explanation, node_labels=names)
    assert parts(figure).title == 'Why class 2 at paper 2 (Attention)?'
    assert 'Attention' in [text.get_text() for text in parts(figure).labels]


def test_legend_and_tail_do_not_overlap():
    figure = plot.neighborhood(link(), max_nodes=5)
    (folded,) = [text for text in figure.texts if text.get_gid() == 'folded']
    assert folded.get_text()
    legend = figure.legends[0].get_window_extent(figure.canvas.get_renderer()).extents
    assert boxes(figure, [folded])[0, 3] <= legend[1]
    assert figure.axes[0].get_window_extent().y0 >= legend[1]
