r"""Pages, as far as they can be told without a browser."""

import json
import math
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from helpers import example_graphs
from models import TASKS, Teacher, explainer, graph
from plot_case import hetero, link, molecule
from torch_geometric.explain import Explanation, GNNExplainer, HeteroExplanation, ModelConfig

from pyg_dnx import FastDnX, ProbeDnX, certify, to_html
from pyg_dnx.view import html as page_data
from pyg_dnx.view.html import batch_html, notebook_html

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
NASTY = [
    '</script><script>alert(1)</script>',
    '<img src=x onerror=alert(1)>',
    '"\'&amp;$data ${title} $$',
    'naïve ☃ \U0001f600 \u2028\u2029\x00',
    '\ud800',  # half a character
    '<!--<script>',
    'a\nb',
    '',
]


class Parts(HTMLParser):
    r"""The elements of a page or of a piece of one, as a browser sees them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.cells = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ('td', 'th'):
            self.cells.append('')

    def handle_data(self, text):
        if self.tags:
            tag, attributes = self.tags[-1]
            self.texts.setdefault(attributes.get('id', tag), text)
        if self.cells:
            self.cells[-1] += text


class Page(Parts):
    r"""A page taken apart."""

    def __init__(self, path):
        super().__init__(path if isinstance(path, str) else path.read_text('utf-8'))
        self.title, self.heading, self.sentence = (self.texts[name].strip() for name in ('title', 'h1', 'p'))
        self.data = json.loads(self.texts['data'], parse_constant=pytest.fail)  # which is called for NaN and Infinity


def explain(algorithm=None, task='multiclass raw', name='looped', index=0, **kwargs):
    x, edge_index = graph(name)
    found = explainer(Teacher('gcn', task), algorithm or FastDnX(), task, edge=kwargs.pop('edge', 'object'), **kwargs)
    return found, found(x, edge_index, index=index)


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'page.html'


def test_a_page_holds_the_scores(path):
    _, explanation = explain()
    assert to_html(explanation, str(path)) == path
    page = Page(path)
    nodes, score = page.data['nodes'], explanation.node_score
    assert nodes['score'] == [pytest.approx(float(score[node]), rel=1e-5) for node in nodes['id']]
    assert set(nodes['id']) == set(score.nonzero().view(-1).tolist())
    by_size = sorted(nodes['id'], key=lambda node: -abs(float(score[node])))
    assert [by_size[rank - 1] for rank in nodes['rank']] == nodes['id']
    assert (nodes['id'][0], nodes['hops'][0], page.data['explained']) == (0, 0, 1)
    assert page.data['isSigned']
    edges = [page.data['edges'][name] for name in ('source', 'target', 'weight')]
    for source, target, weight in zip(*edges, strict=True):
        ends = {nodes['id'][source], nodes['id'][target]}
        at = [e for e, edge in enumerate(explanation.edge_index.T.tolist()) if set(edge) == ends and len(ends) == 2]
        assert weight == pytest.approx(float(explanation.edge_mask[at].max()), abs=1e-3)
    predicted = int(explanation.prediction[0].argmax())
    assert page.title == page.heading == f'Why class {predicted} at node 0?'
    assert page.sentence.startswith(f'The model predicts class {predicted} at node 0:')
    assert sorted(os.listdir(path.parent)) == ['page.html']


def test_a_page_loads_nothing(path):
    _, explanation = explain(node='attributes')
    text = to_html(explanation, path).read_text('utf-8')
    page = Page(path)
    assert not {'src', 'href', 'onclick', 'style'} & {name for _, attributes in page.tags for name in attributes}
    assert not re.search(r'https?:|//[a-z]|@import|url\(|fetch\(|XMLHttp', text)
    policy = next(attributes['content'] for tag, attributes in page.tags if 'http-equiv' in attributes)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert 'unsafe' not in policy


def test_the_same_explanation_gives_the_same_bytes(path, tmp_path):
    _, explanation = explain()
    before = {name: value.clone() for name, value in explanation.items() if isinstance(value, torch.Tensor)}
    state = torch.get_rng_state()
    other = to_html(explanation, tmp_path / 'other.html')
    assert to_html(explanation, path).read_bytes() == other.read_bytes()
    assert torch.get_rng_state().equal(state)
    assert all(explanation[name].equal(value) for name, value in before.items())


def test_default_device_is_not_used(tmp_path):
    found, explanation = explain(node='attributes')
    _, several = explain(index=torch.tensor([1, 2]))
    cases = [(explanation, {'certificate': certify(found, explanation)}), (explanation, {'index': 3}), (several, {})]

    def pages():
        return [
            to_html(given, tmp_path / f'{number}.html', **options).read_text('utf-8')
            for number, (given, options) in enumerate(cases)
        ]

    expected = pages()
    torch.set_default_device('meta')
    try:
        assert pages() == expected
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize('text', NASTY)
def test_text_stays_text(path, text):
    _, explanation = explain(node='attributes')
    labels = [f'{text}{i}' for i in range(8)]
    to_html(explanation, path, title=f'{text}.', node_labels=labels, feature_labels=labels[:3])
    page, plain = Page(path), Page(to_html(explanation, path.with_name('plain.html')))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]  # no label makes an element
    assert page.data['nodes']['label'] == [labels[node] for node in page.data['nodes']['id']]
    assert sorted(page.data['features']['name']) == sorted(labels[:3])
    if text.isprintable() and text.strip():
        assert page.title == page.heading == f'{text}.'


@pytest.mark.parametrize('task', TASKS)
def test_outcomes_are_named(path, task):
    _, explanation = explain(task=task, index=2)
    page, (mode, _, _) = Page(to_html(explanation, path)), TASKS[task]
    values = explanation.prediction.reshape(8, -1)[2]
    if mode == 'regression':
        assert page.title == f'Why {" and ".join(f"{value:.4g}" for value in values.tolist())} at node 2?'
    else:
        target = explanation.target.reshape(8, -1)[2]
        assert page.title == f'Why class {int(target) if target.numel() == 1 else int(target.argmax())} at node 2?'


def test_targets_that_are_no_predictions(path):
    x, edge_index = graph()
    found = explainer(Teacher(), FastDnX(), explanation_type='phenomenon')
    explanation = found(x, edge_index, index=1, target=torch.full((8,), 2))
    assert Page(to_html(explanation, path)).sentence.startswith('What is explained is class 2 at node 1:')


@pytest.mark.parametrize(
    ('index', 'title'),
    [
        (None, 'Explanation of all nodes'),
        (torch.tensor([3, 1]), 'Explanation of 2 nodes'),
        (torch.arange(8) < 6, 'Explanation of 6 nodes'),
        (-8, 'Why class 2 at node 0?'),
    ],
)
def test_several_nodes(path, index, title):
    _, explanation = explain(index=index)
    assert Page(to_html(explanation, path)).title == title


def test_other_levels(path):
    edge_index = torch.tensor([[0, 1], [1, 2]])
    explanation = Explanation(x=torch.ones(3, 1), edge_index=edge_index, edge_mask=torch.tensor([0.2, 0.9]))
    explanation._model_config = ModelConfig('multiclass_classification', 'graph', 'raw')
    page = Page(to_html(explanation, path))
    assert page.title == 'Explanation of the graph'
    assert (page.data['nodes']['id'], page.data['nodes']['score']) == ([1, 2, 0], [0.9, 0.9, 0.2])
    assert page.data['edges']['oneWay'] == [1, 1]
    assert (page.data['isSigned'], page.data['scoreName']) == (False, 'Mask')


def test_another_node_in_the_middle(path):
    _, explanation = explain()
    page = Page(to_html(explanation, path, index=1))
    assert page.data['nodes']['id'][0] == 1
    assert page.data['nodes']['hops'][0] == 0


@pytest.mark.parametrize('name', example_graphs())
@pytest.mark.parametrize('node', ['object', 'attributes', 'common_attributes'])
def test_all_graphs_and_masks(path, name, node):
    _, explanation = explain(name=name, node=node)
    page = Page(to_html(explanation, path))
    features = page.data['features']
    if node == 'object':
        assert features is None
        return
    score = explanation.node_score.sum(dim=0) if node == 'attributes' else explanation.feature_score
    order = score.abs().argsort(descending=True).tolist()
    assert features['name'] == [str(f) for f in order]
    assert features['score'] == pytest.approx(score[order].tolist(), rel=1e-4, abs=1e-6)
    assert (features['isSigned'], features['note']) == (True, '')


@pytest.mark.parametrize('node', ['object', 'attributes', None])
def test_explanations_by_gnnexplainer(path, node):
    _, explanation = explain(GNNExplainer(epochs=2), node=node)
    page = Page(to_html(explanation, path))
    assert (page.data['isSigned'], page.data['scoreName']) == (False, 'Mask')
    assert page.data['verdict']['name'] == 'No verdict'
    assert 'no verdict is known' in page.data['verdict']['sentence'].lower()
    assert page.data['verdict']['numbers'] == []
    if node == 'attributes':
        total = explanation.node_mask.sum(dim=0)
        assert page.data['features']['score'] == pytest.approx(total.sort(descending=True).values.tolist(), rel=1e-4)
        assert not page.data['features']['isSigned']


@pytest.mark.parametrize('algorithm', [FastDnX(), ProbeDnX(num_probes=8)])
@pytest.mark.parametrize('code', [0, 1, 2])
def test_verdicts_of_certificates(path, algorithm, code):
    found, explanation = explain(algorithm)
    certificate = replace(certify(found, explanation), measured=None, estimate=torch.tensor([code]))
    verdict = Page(to_html(explanation, path, certificate=certificate)).data['verdict']
    assert (verdict['code'], verdict['name']) == (code, ['Trustworthy', 'Doubtful', 'Not explained'][code])
    assert certificate.sentence(0).lower().endswith(verdict['sentence'].lower())
    numbers = dict(verdict['numbers'])
    assert numbers['expected unfaithfulness'] == f'{float(certificate.expected_unfaithfulness):.3g}'
    assert ('R² of probes' in numbers) == isinstance(algorithm, ProbeDnX)


def test_the_verdict_is_that_of_the_explained_node(path):
    x, edge_index = graph()
    found = explainer(Teacher(), FastDnX())
    batch = found.algorithm.explain_nodes(found.model, x, edge_index, top_k=3)
    certificate = replace(batch.certificate, estimate=torch.tensor([0, 0, 0, 2, 0, 0, 0, 0]))
    assert Page(to_html(batch[3], path, certificate=certificate)).data['verdict']['code'] == 2
    assert Page(to_html(batch[4], path, certificate=certificate)).data['verdict']['code'] == 0


def test_the_verdict_on_several_nodes(path):
    found, explanation = explain(index=torch.tensor([1, 4, 5]))
    certificate = replace(certify(found, explanation), measured=None, estimate=torch.tensor([0, 2, 0]))
    verdict = Page(to_html(explanation, path, certificate=certificate)).data['verdict']
    assert verdict['name'] == 'Mixed'
    assert '3 nodes are explained together: 2 trustworthy, 1 not explained. The worst, node 4:' in verdict['sentence']
    same = replace(certificate, estimate=torch.ones(3, dtype=torch.long))
    assert Page(to_html(explanation, path, certificate=same)).data['verdict']['name'] == 'Doubtful'


@pytest.mark.parametrize(
    ('agreement', 'bias', 'name', 'said'),
    [
        ([True], [False], 'No verdict', 'pass certificate=certify'),
        ([True], [True], 'Doubtful', 'the bias decides, which is in no node, at this node'),
        ([False], [True], 'Not explained', 'disagrees with it at this node'),
        ([False, True], [False, False], 'Mixed', 'disagrees with it at 1 of 2 nodes'),
        ([True, True], [False, True], 'Mixed', 'at 1 of 2 nodes'),
    ],
)
def test_what_is_known_without_a_certificate(path, agreement, bias, name, said):
    _, explanation = explain()
    explanation.surrogate_agreement, explanation.bias_decides = torch.tensor(agreement), torch.tensor(bias)
    explanation.distillation_error = torch.full((len(bias),), 0.125)
    verdict = Page(to_html(explanation, path)).data['verdict']
    assert verdict['name'] == name
    assert said in verdict['sentence'].lower()
    assert dict(verdict['numbers'])['distillation error'].startswith('0.125')


def test_the_tail_is_folded(path):
    score = torch.tensor([1.0, 0.5, -3.0, 0.25, 0.125])
    explanation = Explanation(x=torch.ones(5, 1), edge_index=torch.zeros(2, 0).long(), node_score=score)
    explanation.index = torch.tensor([0])
    page = Page(to_html(explanation, path, max_nodes=2))
    assert page.data['nodes']['id'] == [0, 2]
    assert page.data['note'] == '3 nodes that matter less are left out; their scores sum to 0.875.'
    assert Page(to_html(explanation, path)).data['note'] == ''


def test_edges_and_features_are_folded(path, monkeypatch):
    monkeypatch.setattr(page_data, 'MAX_EDGES', 2)
    monkeypatch.setattr(page_data, 'MAX_FEATURES', 2)
    edge_index, mask = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0.5, 0.1, 0.9])
    explanation = Explanation(x=torch.ones(4, 3), edge_index=edge_index, edge_mask=mask)
    explanation.node_score, explanation.index = torch.tensor([[1.0, -4.0, 2.0]] * 4), torch.tensor([0])
    page = Page(to_html(explanation, path))
    assert page.data['edges']['weight'] == [0.9, 0.5]
    assert page.data['note'] == '1 edges with the lowest masks are not drawn.'
    assert (page.data['features']['name'], page.data['features']['score']) == (['1', '2'], [-16.0, 8.0])
    assert page.data['features']['note'] == '1 features that matter less are left out; their scores sum to 4.'


def test_numbers_that_json_lacks(path):
    _, explanation = explain(node='common_attributes')
    explanation.feature_score = torch.tensor([1.0, math.nan, -math.inf])
    explanation.distillation_error = torch.tensor([math.nan])
    explanation.edge_mask[0] = math.nan
    page = Page(to_html(explanation, path))
    assert sorted(page.data['features']['score'], key=str) == [1.0, None, None]


def test_labels_of_some_nodes(path):
    _, explanation = explain()
    page = Page(to_html(explanation, path, node_labels={0: 'zero'}, feature_labels={}))
    labels = dict(zip(page.data['nodes']['id'], page.data['nodes']['label'], strict=True))
    assert (labels[0], labels[1]) == ('zero', '1')
    assert page.title.endswith(' at node 0 (zero)?')


@pytest.mark.parametrize(
    ('error', 'said', 'options'),
    [
        (ValueError, r"'node_labels' must hold 8 labels, one for each \(got 3\)", {'node_labels': list('abc')}),
        (ValueError, r"'node_labels' must hold 8 labels, one for each \(got 'abcdefgh'\)", {'node_labels': 'abcdefgh'}),
        (
            ValueError,
            r"'feature_labels' must hold 3 labels, one for each \(got 8\)",
            {'feature_labels': list('abcdefgh')},
        ),
        (ValueError, "'max_nodes' must be at least 1", {'max_nodes': 0}),
        (TypeError, "'max_nodes' must be an int", {'max_nodes': 2.0}),
        (TypeError, r"'certificate' must be a Certificate or None \(got str\)", {'certificate': 'good'}),
        (IndexError, "'index' must hold node ids", {'index': 99}),
    ],
)
def test_bad_options(path, error, said, options):
    _, explanation = explain()
    with pytest.raises(error, match=said):
        to_html(explanation, path, **options)
    assert not path.exists()


def test_bad_explanations(path):
    x, edge_index = graph()
    found = explainer(Teacher(), FastDnX())
    batch = found.algorithm.explain_nodes(found.model, x, edge_index)
    with pytest.raises(TypeError, match=r'got NodeExplanations.*index it, as in explanations\[0\]'):
        to_html(batch, path)
    with pytest.raises(TypeError, match=r'must be a PyG Explanation \(got dict\)'):
        to_html({}, path)
    with pytest.raises(ValueError, match="'explanation' must have its graph's 'edge_index'"):
        to_html(HeteroExplanation(), path)
    with pytest.raises(ValueError, match="'explanation' must say something of nodes or edges"):
        to_html(Explanation(x=x, edge_index=edge_index), path)
    with pytest.raises(ValueError, match=r"'certificate' must be of the explained nodes \[1\] \(got one of \[0\]\)"):
        to_html(batch[1], path, certificate=certify(found, batch[0]))


def test_bad_paths(tmp_path):
    _, explanation = explain()
    with pytest.raises(FileNotFoundError, match="'path' must be in a folder that exists"):
        to_html(explanation, tmp_path / 'missing' / 'page.html')
    with pytest.raises(IsADirectoryError, match="'path' must name a file"):
        to_html(explanation, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_page_replaces_the_one_before(path, monkeypatch):
    _, explanation = explain()
    before = to_html(explanation, path).read_bytes()
    monkeypatch.setattr('pyg_dnx.files._rename', lambda *_: (_ for _ in ()).throw(OSError('disk full')))
    with pytest.raises(OSError, match='disk full'):
        to_html(explanation, path, title='new')
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == ['page.html']


def test_names_of_an_explanation_are_on_its_page(path):
    _, explanation = explain(node='attributes')
    explanation.node_names = [f'person {j}' for j in range(8)]
    explanation.feature_names, explanation.class_names = list('abc'), {2: 'fraud'}
    page = Page(to_html(explanation, path))
    assert page.title == 'Why fraud at node 0 (person 0)?'
    assert page.data['nodes']['label'] == [f'person {j}' for j in page.data['nodes']['id']]
    assert page.data['hasLabels']
    x = dict(zip('abc', explanation.x[0].tolist(), strict=True))
    assert page.data['features']['value'] == [
        pytest.approx(x[name], rel=1e-3) for name in page.data['features']['name']
    ]
    given = Page(to_html(explanation, path, node_labels={0: 'me'}, feature_labels=list('xyz'), class_names={2: 'fake'}))
    assert given.title == 'Why fake at node 0 (me)?'
    assert sorted(given.data['features']['name']) == list('xyz')


def test_pages_of_graphs_show_all_of_it(path):
    explanation = molecule()
    page = Page(to_html(explanation, path))
    assert page.title == 'Why stimulant for the graph?'
    data = page.data
    assert (sorted(data['nodes']['id']), data['initial'], data['isGraph'], data['rings']) == (
        [*range(14)],
        14,
        True,
        [],
    )
    score = {}
    for (u, v), value in zip(explanation.edge_index.T.tolist(), explanation.edge_score.tolist(), strict=True):
        score[frozenset((u, v))] = score.get(frozenset((u, v)), 0.0) + value
    edges = [data['edges'][name] for name in ('source', 'target', 'score')]
    found = {
        frozenset((data['nodes']['id'][u], data['nodes']['id'][v])): value for u, v, value in zip(*edges, strict=True)
    }
    assert found == pytest.approx(score, rel=1e-4)
    assert data['nodes']['type'] is None


def test_pages_of_links_mark_both_ends(path):
    page = Page(to_html(link(), path))
    assert page.title == 'Why class 1 for the link 0 – 7?'
    assert {page.data['nodes']['id'][place] for place in page.data['links'][0]} == {0, 7}
    assert (page.data['explained'], page.data['edges']['score']) == (2, None)
    assert [ring['name'] for ring in page.data['rings']][:2] == ['explained', '1 hop']


def test_pages_of_types_tell_them_apart(path):
    explanation = hetero(node_names={'paper': {2: '</script>'}})
    page = Page(to_html(explanation, path))
    assert page.title == 'Why class 2 at paper 2 (</script>)?'
    assert page.data['types'] == ['paper', 'author', 'venue']
    kinds = [page.data['types'][kind] for kind in page.data['nodes']['type']]
    by_hand = {(kind, i): float(explanation[kind].node_score[i]) for kind in page.data['types'] for i in range(3)}
    found = dict(zip(zip(kinds, page.data['nodes']['id'], strict=True), page.data['nodes']['score'], strict=True))
    assert {key: found[key] for key in by_hand} == pytest.approx(by_hand, rel=1e-4)


def test_all_that_is_on_a_page_is_inside_its_rings(path):
    for explanation in (explain()[1], hetero(), link()):
        data = Page(to_html(explanation, path)).data
        outer = {ring['name']: ring['radius'] for ring in data['rings']}
        radii = [0.0, *sorted(outer.values())]
        for x, y, hop in zip(data['nodes']['x'], data['nodes']['y'], data['nodes']['hops'], strict=True):
            name = 'no path' if hop is None else '1 hop' if hop == 1 else f'{hop} hops'
            if hop != 0:
                inner = max(radius for radius in radii if radius < outer[name])
                assert inner * (hop != 1) < math.hypot(x, y) < outer[name]


@pytest.mark.parametrize('text', NASTY)
def test_frames_for_notebooks_hold_the_page(path, text):
    found, explanation = explain(node='attributes')
    labels = [f'{text}{i}' for i in range(8)]
    explanation.node_names, explanation.feature_names, explanation.class_names = labels, labels[:3], labels
    certificate = certify(found, explanation)
    frame = Parts(notebook_html(explanation, certificate))
    assert [tag for tag, _ in frame.tags] == ['iframe']
    attributes = frame.tags[0][1]
    assert set(attributes) == {'srcdoc', 'sandbox', 'title', 'style'}
    assert attributes['sandbox'] == 'allow-scripts'  # and nothing of the notebook's
    assert attributes['srcdoc'] == to_html(explanation, path, certificate=certificate).read_text('utf-8')
    assert Page(attributes['srcdoc']).data['nodes']['label'][0] == labels[0]
    notebook_html(explanation, certificate).encode()  # without half characters


def many(**options):
    x, edge_index = graph()
    found = explainer(Teacher('gcn'), FastDnX(score='target'))
    return found.algorithm.explain_nodes(found.model, x, edge_index, **options)


@pytest.mark.parametrize('options', [{}, {'top_k': 3}, {'top_k': 1}])
def test_batches_are_tables_of_bars(options):
    batch = many(**options)
    table, kept = Parts(batch_html(batch)), min(options.get('top_k', 5), 5)
    head = ['node', 'explained', f'{kept} highest scores', 'surrogate agrees', 'distillation error']
    head += ['expected unfaithfulness', 'verdict'] if options else []
    rows = [table.cells[at : at + len(head)] for at in range(0, len(table.cells), len(head))]
    assert rows[0] == head
    nodes, scores = batch.top_k(kept)
    assert len(rows) == 1 + len(batch)
    for b, row in enumerate(rows[1:]):
        agrees = 'yes' if batch.surrogate_agreement[b] else 'no'
        assert row[:2] + row[3:4] == [str(b), f'class {int(batch.targets[b])}', agrees]
        shown = [(int(j), float(score)) for j, score in zip(nodes[b], scores[b], strict=True) if j >= 0]
        assert row[2] == ''.join(f'{j}: {score:.3g}'.replace('-', '−') for j, score in shown)
        if options:
            verdict = ['Trustworthy', 'Doubtful', 'Not explained'][int(batch.certificate.verdict[b])]
            assert row[-1] == verdict
    styles = [attributes.get('style', '') for _, attributes in table.tags]
    widths = [float(width) for style in styles for width in re.findall(r'height: 5px; width: ([\d.]+)px', style)]
    rows = zip(range(len(batch)), nodes.tolist(), scores.tolist(), strict=True)
    bars = [(b, j, abs(score)) for b, row, of in rows for j, score in zip(row, of, strict=True) if j >= 0]
    limit = max((size for b, j, size in bars if b != j), default=0.0) or max(size for _, _, size in bars)
    expected = [100 * min(1.0, size / limit) for _, _, size in bars]
    assert widths == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize('text', NASTY)
def test_names_in_batches_stay_text(text):
    batch = many()
    plain = [tag for tag, _ in Parts(batch_html(batch)).tags]
    batch.node_names, batch.class_names = [f'{text}{j}' for j in range(8)], [f'{text}{c}' for c in range(4)]
    shown = Parts(batch_html(batch))
    assert [tag for tag, _ in shown.tags] == plain
    assert not {'id', 'class', 'onclick', 'onerror', 'src'} & {name for _, found in shown.tags for name in found}
    if text.isprintable() and text.strip():
        assert shown.cells[5] == f'0 ({text}0)'


def test_long_batches_show_the_first(monkeypatch):
    monkeypatch.setattr(page_data, 'MAX_ROWS', 3)
    shown = batch_html(many())
    assert '8 explained nodes; the first 3 are shown' in shown
    assert len([tag for tag, _ in Parts(shown).tags if tag == 'tr']) == 4
