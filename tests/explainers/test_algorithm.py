r"""What the options of FastDnX and DnX mean, by hand, on dense matrices."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers import dense_adjacency, dense_scores, example_graphs, is_overwritten
from models import ALGORITHMS, Bare, Ring, Teacher, connected, explainer, graph
from torch_geometric.explain.config import ExplainerConfig, ModelConfig
from torch_geometric.nn import SGConv

from pyg_dnx import DnX, DnXAlgorithm, FastDnX, FastDnXAlgorithm, SurrogateWarning
from pyg_dnx.graph.graph import Graph
from pyg_dnx.scores.masks import SCALINGS
from pyg_dnx.teacher.teacher import Teacher as Asked

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

NODE = 1
CLOSE = {'rtol': 1e-4, 'atol': 1e-6}


class Case:
    r"""A teacher, its graph and, dense, all that an explanation is made of."""

    def __init__(self, name='weighted', task='multiclass raw'):
        example = example_graphs()[name]
        self.task, self.x, self.edge_index = task, example.x, example.edge_index
        self.kwargs = {} if example.edge_weight is None else {'edge_weight': example.edge_weight}
        self.model = Teacher('weighted', task).eval()
        self.surrogate = connected(FastDnX(), task).distill(self.model, self.x, self.edge_index, **self.kwargs)
        self.adjacency = dense_adjacency(example.edge_index, example.edge_weight, 8)
        self.power = torch.linalg.matrix_power(self.adjacency, 2)
        self.hidden = self.x.double() @ self.surrogate.weight.double()
        asked = Asked(self.model, connected(FastDnX(), task).model_config)
        self.outputs = asked.outputs(Graph(self.x, self.edge_index, self.kwargs)).values

    def carries(self):
        r"""The edges over which a message can reach the explained node."""
        overwritten = torch.tensor([is_overwritten(self.edge_index, e) for e in range(self.edge_index.size(1))])
        return (self.adjacency[NODE] > 0)[self.edge_index[1]] & ~overwritten

    def explain(self, algorithm, index=NODE, explanation_type='model', target=None, **masks):
        explain = explainer(self.model, algorithm, self.task, explanation_type, **masks)
        return explain(self.x, self.edge_index, index=index, target=target, **self.kwargs)

    def scores(self, direction, node=NODE):
        return (self.power[node] * (self.hidden @ direction.double())).float()


def one_hot(label):
    return F.one_hot(torch.as_tensor(label), 3).double()


def test_projection_is_the_paper_s_score(graph):
    model = Teacher('weighted').eval()
    algorithm = connected(FastDnX())
    surrogate = algorithm.distill(model, graph.x, graph.edge_index, edge_weight=graph.edge_weight)
    adjacency = dense_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0))
    expected = dense_scores(adjacency, graph.x, surrogate.weight, 2)
    batch = algorithm.explain_nodes(model, graph.x, graph.edge_index, edge_weight=graph.edge_weight)
    torch.testing.assert_close(batch.scores.to_dense(), expected.float(), **CLOSE)
    for node, explanation in enumerate(batch):
        torch.testing.assert_close(explanation.node_score, expected[node].float(), **CLOSE)


@pytest.mark.parametrize('node', range(8))
def test_target_is_evidence_for_the_models_class(node):
    case = Case()
    direction = one_hot(case.outputs[node].argmax()) - 1 / 3
    found = case.explain(FastDnX(score='target'), node).node_score
    torch.testing.assert_close(found, case.scores(direction, node), **CLOSE)


@pytest.mark.parametrize('contrast', [0, 1, 2, 'runner_up'])
@pytest.mark.parametrize('explanation_type', ['model', 'phenomenon'])
def test_contrast_is_why_this_class_rather_than_that(contrast, explanation_type):
    case = Case()
    target = case.outputs.argmin(dim=1) if explanation_type == 'phenomenon' else None
    label = int(case.outputs[NODE].argmax() if target is None else target[NODE])
    if contrast == label:
        with pytest.raises(ValueError, match="'contrast' must differ"):
            case.explain(FastDnX(contrast=contrast), NODE, explanation_type, target)
        return
    others = case.outputs[NODE].clone()
    others[label] = -1
    other = int(others.argmax()) if contrast == 'runner_up' else contrast
    found = case.explain(FastDnX(contrast=contrast), NODE, explanation_type, target).node_score
    torch.testing.assert_close(found, case.scores(one_hot(label) - one_hot(other)), **CLOSE)


@pytest.mark.parametrize('label', [0, 1, 2])
@pytest.mark.parametrize('score', ['projection', 'target'])
def test_phenomenon_is_evidence_for_the_given_class(label, score):
    case = Case()
    found = case.explain(FastDnX(score=score), NODE, 'phenomenon', torch.full((8,), label)).node_score
    torch.testing.assert_close(found, case.scores(one_hot(label) - 1 / 3), **CLOSE)


@pytest.mark.parametrize('explanation_type', ['model', 'phenomenon'])
def test_regression_goes_from_the_bias_to_the_target(explanation_type):
    case = Case(task='regression [N, 2]')
    target = torch.randn(8, 2) if explanation_type == 'phenomenon' else None
    goal = case.outputs[NODE] if target is None else target[NODE]
    found = case.explain(FastDnX(score='target'), NODE, explanation_type, target).node_score
    torch.testing.assert_close(found, case.scores(goal - case.surrogate.bias), **CLOSE)


@pytest.mark.parametrize('label', [0, 1])
def test_binary_target_counts_the_second_column_as_the_positive_class(label):
    case = Case(task='binary raw [N, 1]')
    found = case.explain(FastDnX(), NODE, 'phenomenon', torch.full((8,), label)).node_score
    torch.testing.assert_close(found, case.scores(torch.tensor([-0.5, 0.5]) * (1 if label else -1)), **CLOSE)


@pytest.mark.parametrize('label', [0, 1, 2])
@pytest.mark.parametrize('node', range(6))
def test_dnx_scores_evidence_for_the_given_class_too(node, label):
    case = Case()
    found = case.explain(DnX(), node, 'phenomenon', torch.full((8,), label)).node_score
    expected = case.scores(one_hot(label) - 1 / 3, node)
    assert F.cosine_similarity(found, expected, dim=0) > 1 - 1e-4


@pytest.mark.parametrize('kind', [FastDnX, DnX])
@pytest.mark.parametrize('options', [{}, {'score': 'target'}, {'contrast': 'runner_up'}])
def test_joint_is_the_sum_of_singles(kind, options):
    case, nodes = Case(), torch.tensor([0, 2, 3, 6])
    single = [case.explain(kind(**options), int(node), node='attributes') for node in nodes]
    joint = case.explain(kind(**options), nodes, node='attributes')
    torch.testing.assert_close(joint.node_score, sum(one.node_score for one in single), **CLOSE)
    assert joint.distillation_error.equal(torch.cat([one.distillation_error for one in single]))
    if kind is DnX:
        weights = torch.stack([one.node_weight for one in single])
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(4))
        torch.testing.assert_close(joint.node_weight, weights.mean(dim=0))
        torch.testing.assert_close(joint.duality_gap, torch.cat([one.duality_gap for one in single]))
        assert joint.duality_gap.max() < 1e-6


@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_views_of_one_function(kind):
    case = Case()
    nodes, attributes = case.explain(kind()), case.explain(kind(), node='attributes')
    features = case.explain(kind(), node='common_attributes')
    torch.testing.assert_close(attributes.node_score.sum(dim=1), nodes.node_score, **CLOSE)
    torch.testing.assert_close(attributes.node_score.sum(dim=0), features.feature_score, **CLOSE)
    assert features.node_score.equal(nodes.node_score)


def rank_of(values):
    below, equal = (values[:, None] > values).sum(dim=1), (values[:, None] == values).sum(dim=1)
    return (below + 0.5 * (equal + 1)) / values.numel()


@pytest.mark.parametrize('mask', SCALINGS)
@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_mask_options(kind, mask):
    case = Case()
    found = case.explain(kind(mask=mask, score='target'), edge='object')
    inside = case.power[NODE] > 0
    carries = case.carries()
    for score, part, got in [
        (found.node_score, inside, found.node_mask[:, 0]),
        (found.edge_score, carries, found.edge_mask),
    ]:
        inner = score[part]
        by_hand = {
            'rank': rank_of(inner),
            'size': rank_of(inner.abs()),
            'positive': inner.clamp(min=0) / inner.max(),
            'minmax': (inner - inner.min()) / (inner.max() - inner.min()),
        }[mask]
        torch.testing.assert_close(got[part], by_hand.float())
        assert not got[~part].any()


@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_edge_score_options(kind):
    case = Case('undirected')
    case.kwargs = {}
    found = {name: case.explain(kind(edge_score=name), edge='object') for name in ('endpoints', 'geometric', 'flow')}
    source, target = case.edge_index
    carries = case.carries()
    score = found['flow'].node_score
    ends = torch.where(carries, score[source] + score[target], 0.0)
    torch.testing.assert_close(found['endpoints'].edge_score, ends)
    mean = torch.where(carries, (score[source].clamp(min=0) * score[target].clamp(min=0)).sqrt(), 0.0)
    torch.testing.assert_close(found['geometric'].edge_score, mean)

    # Ã_vu Σ_l (row i of Ã^(L-1-l))_v ⟨(Ã^l XΘ)_u, d⟩, and d is known for FastDnX
    if kind is FastDnX:
        direction = (case.power @ case.hidden)[NODE]
        rows = [torch.linalg.matrix_power(case.adjacency, power)[NODE] for power in (1, 0)]
        signal = [case.hidden @ direction, case.adjacency @ case.hidden @ direction]
        flow = sum(row[target] * values[source] for row, values in zip(rows, signal, strict=True))
        flow = flow * case.adjacency[target, source]
        torch.testing.assert_close(found['flow'].edge_score, flow.float(), **CLOSE)


def test_adam_is_the_published_iterate():
    case = Case()
    found = case.explain(DnX(solver='adam', epochs=5, edge_score='endpoints'), edge='object')
    assert found.node_score.equal(found.node_weight)
    torch.testing.assert_close(found.node_score.sum(), torch.tensor(1.0))
    assert (found.node_score > 0).equal(case.power[NODE] > 0)
    assert found.duality_gap.isnan().all()
    longer = case.explain(DnX(solver='adam', epochs=50)).node_score
    total = (case.power @ case.hidden)[NODE]

    def loss(weight):
        return (weight.double() @ (case.power[NODE, :, None] * case.hidden) - total).norm()

    assert loss(longer) < loss(found.node_score)
    other = case.explain(DnX(solver='adam', epochs=5, lr=0.01)).node_score
    assert not other.equal(found.node_score)


@pytest.mark.parametrize(
    ('options', 'masks', 'match'),
    [
        ({}, {'node': 'attributes'}, "'node_mask_type'.*'adam'.*attributes.*'newton'"),
        ({}, {'node': 'common_attributes'}, "'node_mask_type'.*'adam'.*common_attributes.*'newton'"),
        ({'edge_score': 'flow'}, {'edge': 'object'}, "'edge_score'.*'adam'.*'flow'.*'newton'"),
    ],
)
def test_adam_refuses_what_weights_cannot_tell(options, masks, match):
    with pytest.raises(ValueError, match=match):
        connected(DnX(solver='adam', **options), **masks)
    connected(DnX(**options), **masks)
    with pytest.raises(ValueError, match=r"'solver'.*'adam'"):
        connected(DnX(solver='adam')).explain_nodes(Teacher().eval(), *graph())


def test_repr_and_names():
    options = "num_hops=2, ridge=None, score='target', contrast=None, edge_score='flow', mask='rank', max_memory=None"
    options += ", doubt=0.2, distillation='paper', num_masks=8"
    assert repr(FastDnX(num_hops=2, score='target')) == f'FastDnXAlgorithm({options})'
    more = "epsilon=0.1, prior='uniform', solver='newton', epochs=100, lr=0.1"
    assert repr(DnX(num_hops=2, score='target', epsilon=0.1)) == f'DnXAlgorithm({options}, {more})'
    assert (FastDnX, DnX) == (FastDnXAlgorithm, DnXAlgorithm)


@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_supports(kind):
    algorithm = kind()
    with pytest.raises(ValueError, match='not yet connected'):
        algorithm.supports()
    config = ExplainerConfig('model', 'object')
    algorithm.connect(config, ModelConfig('multiclass_classification', 'node', 'raw'))
    assert algorithm.supports()
    for level in ('edge', 'graph', 'node'):
        algorithm = kind()
        algorithm.connect(config, ModelConfig('multiclass_classification', level, 'raw'))
        assert algorithm.supports()
    kind(how='nodes').connect(config, ModelConfig('multiclass_classification', 'graph', 'raw'))
    for level in ('node', 'edge'):
        by_removal = kind(how='nodes')
        with pytest.raises(ValueError, match=f"'how' must be 'features' at task level '{level}' .got 'nodes'"):
            by_removal.connect(config, ModelConfig('multiclass_classification', level, 'raw'))
        assert not by_removal.supports()
    with pytest.raises(ValueError, match=r"'contrast'.*regression"):
        kind(contrast=1).connect(config, ModelConfig('regression', 'node'))


@pytest.mark.parametrize('other', [{'node': 'attributes'}, {'edge': 'object'}, {'task': 'regression [N]'}])
@pytest.mark.parametrize('kind', ALGORITHMS)
def test_an_algorithm_given_to_two_explainers_says_so(kind, other):
    algorithm, model = kind(), Teacher().eval()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        explainer(model, algorithm)
        explainer(model, algorithm)  # of the same configuration
        explainer(model, copy.copy(algorithm), **other)
        explainer(model, pickle.loads(pickle.dumps(algorithm)), **other)
    with pytest.warns(UserWarning, match=r'connected with another configuration .* a \w+\(\) of its own') as caught:
        explainer(model, algorithm, **other)
    assert caught[0].filename.endswith('models.py')  # the user's line


@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_warns_where_the_surrogate_disagrees(kind):
    x, edge_index = torch.linspace(-1, 1, 8)[:, None], graph()[1]
    explain = explainer(Ring(), kind(num_hops=0, score='target', doubt=4.0))  # which leave nothing else to warn of
    agreement = explain.algorithm.explain_nodes(Ring(), x, edge_index).surrogate_agreement
    assert 0 < agreement.sum() < 8
    for node in range(8):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            explanation = explain(x, edge_index, index=node)
        assert explanation.surrogate_agreement.item() == agreement[node]
        assert [warning.category for warning in caught] == [SurrogateWarning] * (not agreement[node])
        assert all(f'disagrees with the model at node {node},' in str(warning.message) for warning in caught)
    with pytest.warns(SurrogateWarning, match=f"{8 - agreement.sum()} of 8 nodes.*'pyg_dnx.certify'"):
        explain(x, edge_index)


def test_does_not_warn_where_it_agrees():
    x, edge_index = graph()
    torch.manual_seed(0)
    model = SGConv(3, 2, K=2).eval()
    torch.nn.init.zeros_(model.lin.bias)  # it may decide the class otherwise, of which there is a warning, too
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        explanation = explainer(model, FastDnX())(x, edge_index)
    assert explanation.surrogate_agreement.all()
    assert not explanation.bias_decides.any()
    assert explanation.distillation_error.max() < 1e-2


@pytest.mark.parametrize(
    ('model', 'given', 'candidates'),
    [
        (Teacher(), None, None),
        (Teacher(), 1, None),
        (Teacher(), 0, None),
        (Teacher(), 5, None),
        (Teacher(), 'auto', [0, 1, 2]),
        (SGConv(3, 2, K=3), None, None),
        (SGConv(3, 2, K=3), 'auto', [0, 1, 2, 3]),
        (Bare(3, 2), 2, None),
        (Ring(), None, [0, 1, 2, 3]),
        (Ring(), 'auto', [0, 1, 2, 3]),
    ],
)
def test_num_hops(model, given, candidates):
    surrogate = connected(FastDnX(num_hops=given)).distill(model.eval(), *graph())
    if candidates is None:
        assert surrogate.num_hops == (given if given is not None else {Teacher: 2, SGConv: 3}[type(model)])
        assert surrogate.report.held_out is None
    else:
        held_out = surrogate.report.held_out
        assert list(held_out) == candidates
        assert held_out[surrogate.num_hops] == min(held_out.values())
