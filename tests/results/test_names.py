r"""Names, lookups and what notebooks show: explainers take names once, and everything that is shown has them."""

import copy

import pytest
import torch
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCN

import pyg_dnx
from pyg_dnx import DnX, FastDnX, ProbeDnX

CLASSES, FEATURES = ['cat', 'dog', 'owl'], ['tail', 'wing', 'fur', 'eyes']


def graph(num_nodes=9):
    torch.manual_seed(0)
    ring = torch.arange(num_nodes)
    edge_index = torch.stack([torch.cat([ring, ring.roll(1)]), torch.cat([ring.roll(1), ring])])
    return torch.rand(num_nodes, 4), edge_index


def explainer_of(algorithm, node_mask_type='object'):
    torch.manual_seed(1)
    config = dict(mode='multiclass_classification', task_level='node', return_type='raw')
    options = dict(explanation_type='model', node_mask_type=node_mask_type, edge_mask_type='object')
    return Explainer(GCN(4, 8, 2, 3), algorithm=algorithm, model_config=config, **options)


@pytest.fixture
def named():
    names = [f'animal {i}' for i in range(9)]
    return explainer_of(FastDnX(class_names=CLASSES, feature_names=FEATURES, node_names=names), 'attributes')


def test_an_explanation_has_the_names_of_its_explainer(named):
    page = named(*graph(), index=2)._repr_html_()
    assert 'animal 2' in page
    assert any(name in page for name in CLASSES)
    assert any(name in page for name in FEATURES)


@pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
@pytest.mark.parametrize('names', [CLASSES, {0: 'cat', 1: 'dog', 2: 'owl'}])
def test_verdicts_call_classes_by_their_names(names):
    explainer = explainer_of(FastDnX(class_names=names))
    explanation = explainer(*graph(), index=2)
    name = names[int(explanation.target[2])]
    assert f' {name} (p ' in pyg_dnx.certify(explainer, explanation).sentence(0)
    many = explainer.algorithm.explain_nodes(explainer.model, *graph(), index=torch.tensor([2]), certify=True)
    assert f' {name} (p ' in many.certificate.sentence(0)


def test_names_of_nodes_follow_into_a_subgraph(named):
    explanation = named(*graph(), index=2)
    part = explanation.get_explanation_subgraph()
    kept = (explanation.node_mask.sum(dim=1) > 0).nonzero().view(-1).tolist()
    assert part.node_names == [f'animal {i}' for i in kept]


def test_a_batch_has_the_names_of_its_explainer(named):
    assert 'animal 3' in pyg_dnx.explain_nodes(named, *graph())._repr_html_()


def test_names_are_saved(named, tmp_path):
    pyg_dnx.explain_nodes(named, *graph()).save(tmp_path / 'batch.pt')
    loaded = pyg_dnx.NodeExplanations.load(tmp_path / 'batch.pt', *graph())
    assert loaded.class_names == CLASSES
    assert loaded[1].node_names[1] == 'animal 1'


def test_hostile_names_are_escaped():
    explainer = explainer_of(FastDnX(node_names=['<script>alert(1)</script>'] * 9))
    batch = pyg_dnx.explain_nodes(explainer, *graph())
    assert '<script>alert' not in batch._repr_html_()
    assert '<script>alert' not in batch[0]._repr_html_()


@pytest.mark.parametrize('argument', ['class_names', 'feature_names', 'node_names'])
def test_names_must_be_names(argument):
    with pytest.raises(TypeError, match=f"'{argument}' must be a list or a dict of names"):
        FastDnX(**{argument: 'cat'})


@pytest.mark.parametrize('top_k', [None, 1, 3])
@pytest.mark.parametrize('create', [FastDnX, DnX, lambda: ProbeDnX(num_probes=8)])
def test_parts_of_a_batch_are_as_explained_alone(create, top_k):
    explainer = explainer_of(create())
    batch = pyg_dnx.explain_nodes(explainer, *graph(), top_k=top_k)
    for places in (slice(2, 5), [4, 0], torch.tensor([7]), torch.arange(9) > 6):
        part, expected = batch[places], torch.arange(9)[places]
        assert part.index.equal(expected)
        for ours, theirs in zip(part.top_k(1), batch.top_k(1), strict=True):
            assert ours.equal(theirs[expected])
        assert part[0].node_score.equal(batch[int(expected[0])].node_score)
        if top_k is not None:
            assert part.certificate.verdict.equal(batch.certificate.verdict[expected])
            assert part.certificate.ridge == batch.certificate.ridge


def test_an_explanation_by_its_node():
    explainer = explainer_of(FastDnX())
    batch = pyg_dnx.explain_nodes(explainer, *graph(), index=torch.tensor([5, 2]))
    assert batch.for_node(2).node_score.equal(batch[1].node_score)
    with pytest.raises(KeyError, match=r"'node' must be one of the 2 explained nodes \(got 3\)"):
        batch.for_node(3)


def test_explanations_by_their_verdict():
    batch = pyg_dnx.explain_nodes(explainer_of(FastDnX()), *graph(), top_k=2)
    batch.certificate.verdict[:] = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 0])
    assert batch.with_verdict('doubtful', 'not explained').index.tolist() == [1, 2, 4, 5]
    with pytest.raises(ValueError, match="'verdicts' must be one of 'trustworthy', 'doubtful', 'not explained'"):
        batch.with_verdict('good')


def test_a_printed_batch_says_what_matters():
    batch = pyg_dnx.explain_nodes(explainer_of(FastDnX()), *graph(), top_k=2)
    nodes, scores = batch.top_k(2)
    first = str(batch).splitlines()[1]
    assert first.startswith(f'  node 0: {int(nodes[0, 0])} ({float(scores[0, 0]):+.3g})')
    assert str(batch).endswith('… and 4 more')


def test_the_explainer_brings_its_model():
    explainer = explainer_of(FastDnX())
    ours = pyg_dnx.explain_nodes(explainer, *graph(), top_k=2)
    theirs = explainer.algorithm.explain_nodes(explainer.model, *graph(), top_k=2)
    assert all(map(torch.equal, ours.top_k(2), theirs.top_k(2)))


def test_an_explanation_is_copied_with_its_names(named):
    assert copy.copy(named(*graph(), index=2)).class_names == dict(enumerate(CLASSES))


def test_unknown_options_of_a_constructor_are_refused_by_its_public_name():
    with pytest.raises(TypeError, match=r"'epochs' must be an option of 'FastDnX' \(got epochs=200\): leave it out"):
        FastDnX(epochs=200)
    with pytest.raises(TypeError, match=r"'num_prob' must be an option of 'ProbeDnX' .* did you mean 'num_probes'\?"):
        ProbeDnX(num_prob=8)
