r"""What pictures show of an explanation, against plain Python on small graphs."""

import pytest
import torch
from helpers import example_graphs
from models import Teacher, adjacencies, explainer
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explanation, GNNExplainer, HeteroExplanation, ModelConfig
from torch_geometric.nn import GCN
from torch_geometric.utils import to_undirected

from pyg_dnx import FastDnX
from pyg_dnx.view.scene import Folded, scene_of

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
PATH = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])  # messages flow from 0 to 4; node 5 is isolated


def explain(edge_index=PATH, num_nodes=6, **values):
    return Explanation(x=torch.zeros(num_nodes, 2), edge_index=edge_index, **values)


def by_hand(explanation, root, num_hops=None):
    r"""Hops and edges by breadth-first search, one edge at a time."""
    edges = explanation.edge_index.T.tolist()
    hops, frontier = {root: 0}, [root]
    for step in range(num_hops if num_hops is not None else 99):
        frontier = {u for u, v in edges if v in frontier and u not in hops}
        hops.update(dict.fromkeys(frontier, step + 1))
    masks = {}
    for (u, v), mask in zip(edges, explanation.edge_mask.tolist(), strict=True):
        if u != v and u in hops and v in hops:
            masks.setdefault(frozenset((u, v)), []).append(mask)
    both = {frozenset((u, v)): [v, u] in edges for u, v in edges}
    return hops, {pair: (max(values), both[pair]) for pair, values in masks.items()}


@pytest.mark.parametrize('name', example_graphs())
@pytest.mark.parametrize('num_hops', [None, 0, 1, 2])
def test_scenes_are_neighbourhoods(name, num_hops):
    x, edge_index, _ = example_graphs()[name]
    explanation = explainer(Teacher(), FastDnX(num_hops=2), edge='object')(x, edge_index, index=0)
    hops, edges = by_hand(explanation, 0, 2 if num_hops is None else num_hops)
    scene = scene_of(explanation, num_hops=num_hops)
    assert dict(zip(scene.nodes, scene.hops, strict=True)) == hops
    assert scene.nodes[0] == 0
    assert scene.scores == [pytest.approx(float(explanation.node_score[node])) for node in scene.nodes]
    found = {
        frozenset((scene.nodes[u], scene.nodes[v])): (pytest.approx(weight), both)
        for (u, v), weight, both in zip(scene.edges, scene.edge_weights, scene.both_ways, strict=True)
    }
    assert found == edges
    assert len(scene.edges) == len(scene.edge_scores) == len(edges)
    assert (scene.is_signed, scene.score_name, scene.has_edge_mask) == (True, 'node_score', True)
    assert (scene.explained, scene.folded) == (1, Folded(0, 0.0))


def test_order_and_folding():
    score = torch.tensor([0.5, -3.0, 2.0, -2.0, 0.1, 1.0])
    explanation = explain(node_score=score, index=torch.tensor([4]))
    scene = scene_of(explanation, max_nodes=3)
    assert scene.nodes == [4, 1, 2]
    assert scene.hops == [0, 3, 2]
    assert scene.edges == [(1, 2)]
    assert scene.folded == (3, pytest.approx(-0.5))
    assert scene_of(explanation).nodes == [4, 1, 2, 3, 5, 0]
    assert scene_of(explanation).hops[4] is None  # no way from the isolated node
    assert scene_of(explanation, max_nodes=1).folded == (5, pytest.approx(-1.5))


def test_edges_keep_their_direction():
    explanation = explain(node_score=torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.0]), index=torch.tensor([4]))
    scene = scene_of(explanation)
    assert [(scene.nodes[u], scene.nodes[v]) for u, v in scene.edges] == [(3, 4), (0, 1), (1, 2), (2, 3)]
    assert not any(scene.both_ways)
    assert scene_of(explain(to_undirected(PATH), node_score=torch.ones(6))).both_ways == [True] * 4


@pytest.mark.parametrize(
    'index',
    [torch.tensor([4, 2]), torch.tensor([False, False, True, False, True, False]), [2, -2], torch.tensor([2, 4, 2])],
    ids=['ids', 'mask', 'list', 'twice'],
)
def test_several_explained_nodes(index):
    explanation = explain(node_score=torch.tensor([9.0, 8.0, 1.0, 7.0, 2.0, 0.0]), index=torch.tensor([0]))
    scene = scene_of(explanation, index)
    assert scene.nodes == [4, 2, 0, 1, 3]
    assert scene.hops == [0, 0, 2, 1, 1]
    assert scene.explained == 2
    explanation.index = torch.as_tensor(index)
    assert scene_of(explanation) == scene
    assert scene_of(explanation, max_nodes=1).explained == 1


def test_no_index_shows_all_nodes_with_a_mask():
    scene = scene_of(explain(node_mask=torch.tensor([[0.0], [0.5], [1.0], [0.0], [0.2], [0.0]]), index=None))
    assert (scene.nodes, scene.explained) == ([2, 1, 4], 0)
    assert scene.hops == [None] * 3
    assert scene == scene_of(explain(node_mask=torch.tensor([[0.0], [0.5], [1.0], [0.0], [0.2], [0.0]])), num_hops=1)


def test_negative_masks_count():
    scene = scene_of(explain(edge_mask=torch.tensor([0.0, -1.0, 0.0, 0.0]), index=torch.tensor([4])))
    assert scene.nodes == [4, 1, 2]
    assert scene.edge_weights == [1.0]


def test_explained_nodes_are_there_even_without_a_mask():
    mask = torch.tensor([[0.0], [0.5], [1.0], [0.0], [0.0], [0.0]])
    scene = scene_of(explain(node_mask=mask, index=torch.tensor([4])))
    assert (scene.nodes, scene.hops, scene.scores) == ([4, 2, 1], [0, 2, 3], [0.0, 1.0, 0.5])


def test_the_index_of_a_graph_is_not_a_node():
    explanation = explain(node_mask=torch.ones(6, 1), index=torch.tensor([0]))
    explanation._model_config = ModelConfig('regression', 'graph')
    assert scene_of(explanation).explained == 0


@pytest.mark.parametrize(
    ('values', 'scores', 'name', 'is_signed'),
    [
        ({'node_mask': torch.ones(6, 1)}, [1.0] * 6, 'node_mask', False),
        ({'node_mask': torch.full((6, 2), 0.3)}, [0.6] * 6, 'node_mask', False),
        ({'node_mask': torch.full((6, 2), -0.3)}, [-0.6] * 6, 'node_mask', True),
        ({'node_score': torch.full((6, 2), 0.3)}, [0.6] * 6, 'node_score', True),
        ({'edge_mask': torch.tensor([0.1, 0.4, 0.2, 0.3])}, [0.3, 0.4, 0.4, 0.3, 0.1], 'edge_mask', False),
        (
            {'node_mask': torch.ones(1, 2), 'edge_mask': torch.tensor([0.1, 0.4, 0.2, 0.3])},
            [0.3, 0.4, 0.4, 0.3, 0.1],
            'edge_mask',
            False,
        ),
    ],
    ids=['object', 'attributes', 'signed mask', 'attribute scores', 'edges', 'common'],
)
def test_where_scores_come_from(values, scores, name, is_signed):
    scene = scene_of(explain(index=torch.tensor([4]), **values))
    assert scene.scores == pytest.approx(scores)
    assert (scene.score_name, scene.is_signed, scene.edge_scores) == (name, is_signed, None)


def test_weights_of_edges():
    edges = torch.tensor([[0, 1, 0, 2, 2], [1, 0, 1, 1, 2]])
    values = {'edge_mask': torch.tensor([0.1, 0.2, 0.3, 0.0, 1.0]), 'edge_score': torch.tensor([-1.0, 3, 2, -4, 9])}
    scene = scene_of(explain(edges, 3, **values))
    assert scene.nodes == [2, 0, 1]
    assert scene.edges == [(0, 2), (1, 2)]
    assert scene.edge_weights == pytest.approx([0.0, 0.3])
    assert scene.edge_scores == [-4.0, 4.0]
    assert scene.both_ways == [False, True]
    assert scene_of(explain(edges, 3, node_score=torch.ones(3))).edge_weights == [1.0, 1.0]
    assert scene_of(explain(edges, 3, edge_mask=10 * values['edge_mask'])).edge_weights == pytest.approx([0.0, 1.0])


def test_thresholds_leave_nodes_out():
    x, edge_index, _ = example_graphs()['undirected']
    explanation = explainer(Teacher(), FastDnX(num_hops=2), edge='object')(x, edge_index, index=0)
    left = explanation.threshold('topk_hard', 2)
    kept = left.node_mask.view(-1).nonzero().view(-1).tolist() + edge_index[:, left.edge_mask > 0].view(-1).tolist()
    assert set(scene_of(left).nodes) == {0, *kept}
    assert len(scene_of(left).nodes) < len(scene_of(explanation).nodes)
    assert len(scene_of(left, num_hops=2).nodes) == len(scene_of(explanation).nodes)
    assert set(scene_of(left).edge_weights) <= {0.0, 1.0}


@pytest.mark.parametrize('node_mask_type', ['object', 'attributes', 'common_attributes', None])
@pytest.mark.parametrize('edge_mask_type', ['object', None])
def test_gnn_explainer(node_mask_type, edge_mask_type):
    x, edge_index, _ = example_graphs()['undirected']
    if node_mask_type is None and edge_mask_type is None:
        return
    torch.manual_seed(0)
    masks = {'node': node_mask_type, 'edge': edge_mask_type}
    explanation = explainer(GCN(3, 4, 2, 3), GNNExplainer(epochs=2), **masks)(x, edge_index, index=1)
    if node_mask_type == 'common_attributes' and edge_mask_type is None:
        with pytest.raises(ValueError, match="'explanation' must say something of nodes or edges"):
            scene_of(explanation)
        return
    scene = scene_of(explanation)
    assert set(scene.nodes) <= {1, 0, 2, 3, 5}
    assert (scene.nodes[0], scene.is_signed, scene.has_edge_mask) == (1, False, edge_mask_type is not None)
    assert min(scene.scores) >= 0


@pytest.mark.parametrize('kind', adjacencies(PATH, torch.ones(4), 6))
def test_sparse_matrices(kind):
    matrix = adjacencies(PATH, torch.ones(4), 6)[kind]
    values = {'node_score': torch.arange(6.0), 'index': torch.tensor([3])}
    assert scene_of(explain(matrix, **values)) == scene_of(explain(**values))
    with pytest.raises(ValueError, match=r"'explanation' must have its edges as a tensor .* \(got a sparse matrix\): "):
        scene_of(explain(matrix, edge_mask=torch.ones(4), **values))


def test_nothing_is_changed():
    values = {'node_score': torch.randn(6), 'node_mask': torch.rand(6, 1), 'edge_mask': torch.rand(4)}
    explanation = explain(index=torch.tensor([3]), **{name: value.clone() for name, value in values.items()})
    scene_of(explanation, index=2, num_hops=1)
    assert all(explanation[name].equal(value) for name, value in values.items())
    assert explanation.index.tolist() == [3]


def of_level(level, **values):
    explanation = explain(to_undirected(PATH), **values)
    explanation._model_config = ModelConfig('multiclass_classification', level, 'raw')
    return explanation


@pytest.mark.parametrize(
    ('index', 'nodes'),
    [(None, [0, 1, 2, 3, 4, 5]), (torch.tensor([0]), [0, 1, 2]), (torch.tensor([0, 2]), [0, 1, 2, 5]), (-1, [5])],
    ids=['all', 'one', 'two', 'last'],
)
def test_graphs_are_shown_as_a_whole(index, nodes):
    score = torch.tensor([3.0, 0.0, -4.0, 2.0, 0.0, 1.0])
    scene = scene_of(of_level('graph', node_score=score, batch=torch.tensor([0, 0, 0, 1, 1, 2]), index=index))
    assert sorted(scene.nodes) == nodes
    assert [abs(score) for score in scene.scores] == sorted(map(abs, scene.scores), reverse=True)
    assert (scene.level, scene.explained, scene.links, set(scene.hops)) == ('graph', 0, [], {None})


def test_large_graphs_are_cut_later_than_neighbourhoods():
    values = {'num_nodes': 300, 'node_score': torch.linspace(1.0, 0.1, 300)}
    assert len(scene_of(explain(**values)).nodes) == 30
    explanation = explain(**values)
    explanation._model_config = ModelConfig('regression', 'graph')
    assert len(scene_of(explanation).nodes) == 200
    assert scene_of(explanation, max_nodes=7).folded.num_nodes == 293


@pytest.mark.parametrize(
    ('pairs', 'own', 'index', 'ends'),
    [
        ([[4, 0], [3, 5]], torch.tensor([0]), None, [(4, 3)]),
        ([[4, 0], [3, 5]], 0, 1, [(0, 5)]),
        ([[4, 0], [3, 5]], None, None, [(4, 3), (0, 5)]),
        ([4, 3], None, None, [(4, 3)]),
        ([[4, 0], [3, 5]], torch.tensor([False, True]), None, [(0, 5)]),
    ],
)
def test_links_are_explained_by_their_ends(pairs, own, index, ends):
    values = {'node_score': torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]), 'edge_label_index': torch.tensor(pairs)}
    explanation = of_level('edge', index=own, **values)
    scene = scene_of(explanation, index)
    assert [(scene.nodes[u], scene.nodes[v]) for u, v in scene.links] == ends
    explained = sorted({node for pair in ends for node in pair})
    assert sorted(scene.nodes[: scene.explained]) == explained
    hops = dict(zip(scene.nodes, scene.hops, strict=True))
    expected = {j: min(abs(j - end) for end in explained if end < 5) for j in range(5)}
    assert {j: hops[j] for j in range(5)} == expected
    assert hops[5] == (0 if 5 in explained else None)
    explanation._model_config = None
    assert scene_of(explanation, index) == scene


def test_links_whose_ends_are_left_out_are_not_drawn():
    values = {'node_score': torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]), 'edge_label_index': torch.tensor([4, 3])}
    scene = scene_of(of_level('edge', **values), max_nodes=1)
    assert (scene.nodes, scene.links, scene.explained) == ([3], [], 1)


def typed(split=3, **values):
    r"""The path, its first nodes of type 'a' and the others of type 'b', and the same without types."""
    flat = explain(
        **{'node_score': torch.tensor([6.0, -5.0, 4.0, -3.0, 2.0, 1.0]), 'edge_mask': torch.rand(4), **values}
    )
    explanation, sizes = HeteroExplanation(), {'a': split, 'b': 6 - split}
    first = {'a': 0, 'b': split}
    for kind, size in sizes.items():
        explanation[kind].x = torch.zeros(size, 2)
        explanation[kind].node_score = flat.node_score[first[kind] : first[kind] + size]
    kinds = ['a' if node < split else 'b' for node in range(6)]
    for one in sizes:
        for other in sizes:
            kept = [kinds[u] == one and kinds[v] == other for u, v in PATH.T.tolist()]
            store = explanation[one, 'to', other]
            store.edge_index = PATH[:, kept] - torch.tensor([[first[one]], [first[other]]])
            store.edge_mask = flat.edge_mask[kept]
    return explanation, flat


@pytest.mark.parametrize('node', [4, 3, 5])
def test_types_are_one_graph(node):
    explanation, flat = typed()
    flat.index, explanation.index, explanation.target_type = torch.tensor([node]), torch.tensor([node - 3]), 'b'
    scene, expected = scene_of(explanation), scene_of(flat)
    assert [i + 3 * (kind == 'b') for i, kind in zip(scene.nodes, scene.types, strict=True)] == expected.nodes
    assert scene.all_types == ['a', 'b']
    edges = {frozenset(edge): weight for edge, weight in zip(expected.edges, expected.edge_weights, strict=True)}
    assert {frozenset(e): w for e, w in zip(scene.edges, scene.edge_weights, strict=True)} == pytest.approx(edges)
    for name in ('hops', 'scores', 'explained', 'folded', 'is_signed', 'has_edge_mask', 'score_name'):
        assert getattr(scene, name) == getattr(expected, name)


def test_the_explained_type_is_that_of_the_targets():
    explanation, _ = typed(split=2)
    explanation.index, explanation.target = torch.tensor([1]), torch.zeros(4, dtype=torch.long)
    scene = scene_of(explanation)
    assert (scene.nodes[0], scene.types[0], scene.explained) == (1, 'b', 1)
    assert scene_of(explanation, index=-1).nodes[0] == 3
    explanation.target_type = 'a'
    assert (scene_of(explanation).nodes[0], scene_of(explanation).types[0]) == (1, 'a')
    explanation, _ = typed(split=3)
    explanation.index, explanation.target = torch.tensor([1]), torch.zeros(3, dtype=torch.long)
    assert scene_of(explanation).explained == 0  # either type has three nodes


def test_types_without_scores_have_zeros():
    explanation, _ = typed()
    explanation['a'].node_mask = torch.tensor([[0.5], [1.0], [0.0]])
    del explanation['b'].node_score, explanation['a'].node_score
    for kind in (('a', 'to', 'a'), ('a', 'to', 'b'), ('b', 'to', 'a'), ('b', 'to', 'b')):
        del explanation[kind].edge_mask
    explanation['a', 'to', 'b'].edge_mask = torch.tensor([0.7])
    scene = scene_of(explanation)
    assert dict(zip(zip(scene.types, scene.nodes, strict=True), scene.scores, strict=True)) == {
        ('a', 1): 1.0,
        ('a', 0): 0.5,
        ('a', 2): 0.0,
        ('b', 0): 0.0,
    }
    assert sorted(scene.edge_weights) == pytest.approx([0.0, 0.0, 0.7])


def test_all_nodes_are_shown_if_all_masks_are_zero():
    assert sorted(scene_of(explain(node_mask=torch.zeros(6, 1))).nodes) == list(range(6))


SCORED = {'node_score': torch.ones(6), 'index': torch.tensor([0])}
BAD = {
    'no nodes': (explain(**SCORED), {'max_nodes': 0}, ValueError, r"'max_nodes' must be at least 1 \(got 0\): "),
    'hops': (explain(**SCORED), {'num_hops': -1}, ValueError, r"'num_hops' must be at least 0 \(got -1\): "),
    'index': (explain(**SCORED), {'index': 6}, IndexError, r"'index' must hold node ids .* \(got ids from 6 to 6\): "),
    'nothing': (explain(), {}, ValueError, "'explanation' must say something of nodes or edges"),
    'no graph': (Explanation(node_mask=torch.ones(3, 1)), {}, ValueError, "'explanation' must have .* 'edge_index'"),
    'no types': (HeteroData(), {}, ValueError, "'explanation' must have .* 'edge_index'"),
    'NaN': (explain(node_score=torch.full((6,), torch.nan)), {}, ValueError, "'node_score' .* must be finite"),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_input_is_named(name):
    explanation, options, error, text = BAD[name]
    with pytest.raises(error, match=text):
        scene_of(explanation, **options)
