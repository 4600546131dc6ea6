r"""Names, questions and numbers, as pages and pictures say them."""

import pytest
import torch
from plot_case import hetero, link, molecule, star
from torch_geometric.explain import Explanation, ModelConfig

from pyg_dnx.view.scene import scene_of
from pyg_dnx.view.words import class_of, feature_scores, feature_values, namer, names_of, number, question_of


def names_of_all(names):
    return names.node(1, None), names.feature(0, None), names.of_class(1)


def test_names_that_are_given_come_first():
    explanation = star(2)
    assert names_of_all(names_of(explanation)) == ('1', '0', 'class 1')
    explanation.node_names, explanation.feature_names = ['hub', 'b', 'c'], ['age', 'size']
    explanation.class_names = {1: 'fraud'}
    assert names_of_all(names_of(explanation)) == ('b', 'age', 'fraud')
    given = names_of(explanation, {1: 'B'}, ['AGE', 'SIZE'], ['honest', 'FRAUD'])
    assert names_of_all(given) == ('B', 'AGE', 'FRAUD')
    assert (given.node(2, None), names_of(explanation).of_class(0)) == ('2', 'class 0')
    assert (given.title(1), names_of(star(2)).title(1)) == ('1 (B)', '1')


def test_names_of_types():
    explanation = hetero()
    assert [names_of(explanation).feature(1, kind) for kind in explanation.node_types] == [
        'paper 1',
        'author 1',
        'venue 1',
    ]
    names = names_of(explanation, {'venue': list('abc'), 'paper': {3: 'Three'}}, {'paper': ['words', 'year']})
    assert [names.node(2, 'venue'), names.node(3, 'paper'), names.node(4, 'paper'), names.node(5, 'author')] == [
        'c',
        'Three',
        '4',
        '5',
    ]
    assert (names.title(2, 'venue'), names.feature(1, 'paper'), names.feature(1, 'author')) == (
        'venue 2 (c)',
        'year',
        'author 1',
    )


@pytest.mark.parametrize(
    ('options', 'text'),
    [
        ({'nodes': ['a']}, r"'node_labels' must hold 3 labels, one for each \(got 1\): pass all"),
        ({'nodes': 'abc'}, r"'node_labels' must hold 3 labels, one for each \(got 'abc'\): pass all"),
        ({'features': ['a'], 'features_argument': 'labels'}, r"'labels' must hold 2 labels"),
        ({'classes': 'ab'}, r"'class_names' must hold the labels, one for each \(got 'ab'\)"),
    ],
)
def test_bad_labels_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        names_of(star(2), **options)


def test_bad_names_of_an_explanation_are_named():
    with pytest.raises(ValueError, match=r"'node_names' must hold 3 labels, one for each \(got 1\)"):
        names_of(star(2, node_names=['a']))
    with pytest.raises(ValueError, match=r"'class_names' must have a label for each, 2 among them \(got 2\)"):
        names_of(star(2, class_names=['a', 'b'])).of_class(2)
    for labels in (['a'] * 24, {'book': ['a']}):
        with pytest.raises(
            ValueError, match=r"'node_labels' of a heterogeneous graph .* pass some of 'paper', 'author'"
        ):
            names_of(hetero(), labels)
    with pytest.raises(ValueError, match=r"'node_labels\['venue'\]' must hold 3 labels"):
        names_of(hetero(), {'venue': ['a']})


def test_numbers():
    assert (number(-0.00012345), number(1234.5), number(0.0)) == ('−0.000123', '1.23e+03', '0')
    assert namer('x', None, None, 'class {number}')(3) == 'class 3'


def regression(**values):
    explanation = star(2, target=torch.tensor([0.5, 1.25, 2.0]), **values)
    explanation._model_config = ModelConfig('regression', 'node')
    return explanation


@pytest.mark.parametrize(
    ('explanation', 'title', 'sentence'),
    [
        (star(2), 'Explanation of node 0', 'What matters at node 0.'),
        (
            star(2, target=torch.tensor([2, 0, 0])),
            'Why class 2 at node 0?',
            'What is explained is class 2 at node 0: 3 nodes contribute.',
        ),
        (
            star(2, target=torch.tensor([1, 0, 0]), class_names=['a', 'b'], node_names=['hub', 'x', 'y']),
            'Why b at node 0 (hub)?',
            'What is explained is b at node 0 (hub): 3 nodes contribute.',
        ),
        (regression(), 'Why 0.5 at node 0?', 'What is explained is 0.5 at node 0: 3 nodes contribute.'),
        (
            star(8, index=torch.arange(7)),
            'Explanation of 7 nodes',
            'What matters at nodes {nodes} and 2 more, explained together.',
        ),
        (
            star(2, index=None),
            'Explanation of all nodes',
            'What matters for the prediction of all nodes, explained together.',
        ),
        (
            molecule(),
            'Why stimulant for the graph?',
            'The model predicts stimulant for the graph: 14 nodes are in it.',
        ),
        (molecule(target=None), 'Explanation of the graph', 'What matters for the graph.'),
        (
            molecule(batch=torch.arange(14) // 7, target=torch.tensor([1, 0]), index=torch.tensor([1])),
            'Why harmless for graph 1?',
            'The model predicts harmless for graph 1: 7 nodes are in it.',
        ),
        (
            molecule(batch=torch.arange(14) // 7, index=None),
            'Explanation of all graphs',
            'What matters for the prediction of all graphs, explained together.',
        ),
        (
            link(edge_label_index=torch.tensor([[0, 3], [7, 9]]), index=1),
            'Why class 0 for the link 3 – 9?',
            'What is explained is class 0 for the link 3 – 9: 33 nodes contribute.',
        ),
        (
            link(index=torch.tensor([0, 1])),
            'Explanation of 2 links',
            'What matters for links 0, 1, explained together.',
        ),
        (hetero(), 'Why class 2 at paper 2?', 'What is explained is class 2 at paper 2: 24 nodes contribute.'),
        (hetero(index=torch.tensor([2, 3])), 'Explanation of 2 nodes', None),
    ],
    ids=range(14),
)
def test_questions(explanation, title, sentence):
    scene = scene_of(explanation)
    nodes = ', '.join(map(str, scene.nodes[:5]))
    found = question_of(explanation, names_of(explanation), scene)
    assert found[0] == title
    assert sentence is None or found[1] == sentence.format(nodes=nodes)
    assert question_of(explanation, names_of(explanation))[0] == title  # without a scene


def test_classes():
    assert class_of(molecule(), names_of(molecule())) == 'stimulant'
    assert class_of(hetero(), names_of(hetero())) == 'class 2'
    assert class_of(link(index=1), names_of(link())) == 'class 0'
    assert class_of(link(index=None), names_of(link())) is None
    assert class_of(regression(), names_of(regression())) is None
    assert class_of(star(2), names_of(star(2))) is None


def test_features_of_types_are_in_turn():
    explanation = hetero()
    for kind in explanation.node_types:
        del explanation[kind].node_score
        explanation[kind].node_mask = torch.tensor([[0.5, -1.0]]).repeat(explanation[kind].x.size(0), 1)
    score, source, keys = feature_scores(explanation)
    assert score.tolist() == [6.0, -12.0, 4.5, -9.0, 1.5, -3.0]
    assert (source, keys[1], keys[2]) == ('node_mask', (1, 'paper'), (0, 'author'))
    assert feature_scores(hetero()) is None


def test_values_are_those_of_a_single_node():
    x = torch.arange(6.0).view(3, 2)
    assert feature_values(Explanation(x=x, index=torch.tensor([1]))).tolist() == [2.0, 3.0]
    assert feature_values(Explanation(x=x, index=torch.tensor([False, False, True]))).tolist() == [4.0, 5.0]
    assert feature_values(Explanation(x=x, index=0), 2).tolist() == [4.0, 5.0]
    for explanation in (Explanation(x=x), Explanation(x=x, index=torch.tensor([0, 1])), Explanation(index=1), hetero()):
        assert feature_values(explanation) is None
    assert feature_values(Explanation(x=x.to_sparse(), index=1)) is None
    assert feature_values(molecule(index=0)) is None
