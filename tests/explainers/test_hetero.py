r"""Explanations of models of heterogeneous graphs, through PyG."""

import pytest
import torch
from hetero_case import CITES, CONFIG, MODELS, WRITES, WRITTEN, ByRelation, dense, explained, small_data
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explainer, HeteroExplanation
from torch_geometric.nn import SAGEConv

from pyg_dnx import DnX, FastDnX, ProbeDnX
from pyg_dnx.teacher.reach import receptive_field

ALGORITHMS = {
    'FastDnX': lambda **options: FastDnX(**options),
    'DnX': lambda **options: DnX(**options),
    'ProbeDnX': lambda **options: ProbeDnX(num_probes=16, **options),
}
pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
PAPERS, AUTHORS = slice(0, 7), slice(7, 12)


@pytest.fixture(scope='module')
def data():
    return small_data()


@pytest.fixture(scope='module')
def model(data):
    torch.manual_seed(0)
    return ByRelation(data)


def surrogate_of(algorithm, model, data, **kwargs):
    Explainer(model, algorithm, 'model', node_mask_type='object', model_config=CONFIG)
    return algorithm.distill(model, data.x_dict, data.edge_index_dict, **kwargs)


def test_scores_are_those_of_the_definition_on_the_union_of_relations(model, data):
    algorithm = FastDnX()
    explanation = explained(model, algorithm, data, 2)
    surrogate = surrogate_of(algorithm, model, data)
    x, adjacency = dense(data)
    power = adjacency @ adjacency
    direction = (power @ x @ surrogate.weight)[2]
    scores = power[2] * (x @ surrogate.weight @ direction)
    torch.testing.assert_close(explanation['paper'].node_score, scores[PAPERS], rtol=0, atol=1e-10)
    torch.testing.assert_close(explanation['author'].node_score, scores[AUTHORS], rtol=0, atol=1e-10)
    total = sum(explanation[name].node_score.sum() for name in ('paper', 'author'))
    assert abs(float(total - direction @ direction)) < 1e-10  # completeness


def test_the_surrogate_is_the_optimum_over_the_rows_of_the_target_type(model, data):
    surrogate = surrogate_of(FastDnX(ridge=1e-3), model, data)
    x, adjacency = dense(data)
    features = (adjacency @ adjacency @ x)[PAPERS]
    outputs = model(data.x_dict, data.edge_index_dict).detach().softmax(dim=1)
    error = (features @ surrogate.weight + surrogate.bias).softmax(dim=1) - outputs
    gradient = features.T @ error / 7 + 1e-3 * surrogate.weight
    assert float(gradient.abs().max()) < 1e-7


def test_attributes_and_features_sum_to_nodes(model, data):
    nodes, attributes, features = (
        explained(model, FastDnX(), data, torch.tensor([2, 4]), node_mask_type=kind)
        for kind in ('object', 'attributes', 'common_attributes')
    )
    for name in ('paper', 'author'):
        assert attributes[name].node_mask.shape == data[name].x.shape
        assert features[name].node_mask.shape == (1, data[name].x.size(1))
        torch.testing.assert_close(attributes[name].node_score.sum(dim=1), nodes[name].node_score)
        torch.testing.assert_close(attributes[name].node_score.sum(dim=0), features[name].feature_score)


@pytest.mark.parametrize('kind', ['object', 'attributes', 'common_attributes'])
def test_ranks_are_over_all_types_together(model, data, kind):
    explanation = explained(model, FastDnX(), data, 2, node_mask_type=kind)
    source = 'feature_score' if kind == 'common_attributes' else 'node_score'
    stores = [explanation[name] for name in ('paper', 'author')]
    scores, masks = (torch.cat([store[key].flatten() for store in stores]) for key in (source, 'node_mask'))
    inside = masks > 0
    values = scores[inside]
    shares = ((values[:, None] > values).sum(dim=1) + 0.5 * (values[:, None] == values).sum(dim=1) + 0.5) / len(values)
    torch.testing.assert_close(masks[inside], shares, check_dtype=False)
    assert bool((scores[~inside] == 0).all())


def test_edges_carry_all_evidence(model, data):
    algorithm = FastDnX(num_hops=1)
    explanation = explained(model, algorithm, data, 2)
    x, adjacency = dense(data)
    hidden = x @ surrogate_of(algorithm, model, data).weight
    direction = (adjacency @ hidden)[2]
    expected = {CITES: [0, adjacency[2, 1] * hidden[1] @ direction, 0, adjacency[2, 2] * hidden[2] @ direction, 0, 0]}
    expected[WRITES] = [0, 0, adjacency[2, 8] * hidden[8] @ direction, 0, 0]
    for relation, scores in expected.items():
        torch.testing.assert_close(explanation[relation].edge_score, torch.tensor(scores, dtype=torch.float64))
    assert float(explanation[WRITTEN].edge_score.abs().max()) == 0.0


@pytest.mark.parametrize('name', ALGORITHMS)
@pytest.mark.parametrize('kind', MODELS)
def test_each_kind_of_model_is_explained(name, kind, data):
    torch.manual_seed(0)
    model = MODELS[kind](data)
    assert receptive_field(model) == 2
    explanation = explained(model, ALGORITHMS[name](), data, 3)
    assert isinstance(explanation, HeteroExplanation)
    assert explanation.validate()
    assert explanation.target_type == 'paper'
    assert {key: explanation[key].node_mask.shape for key in data.node_types} == {'paper': (7, 1), 'author': (5, 1)}
    assert all(explanation[key].edge_mask.shape == (data[key].num_edges,) for key in data.edge_types)
    assert float(explanation['author'].node_mask[4]) == 0.0  # without any edge
    assert max(float(explanation[key].node_mask.max()) for key in data.node_types) == 1.0


@pytest.mark.parametrize('name', ALGORITHMS)
def test_one_type_and_one_relation_is_a_homogeneous_graph(name):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    data = HeteroData()
    data['node'].x = torch.randn(9, 4, generator=generator)
    data['node', 'to', 'node'].edge_index = torch.randint(9, (2, 20), generator=generator)

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = torch.nn.ModuleList([SAGEConv(4, 8), SAGEConv(8, 3)])

        def forward(self, x, edge_index):
            if isinstance(x, dict):
                x, edge_index = x['node'], edge_index['node', 'to', 'node']
            return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)

    model = Plain()
    for kind in ('object', 'attributes', 'common_attributes'):
        explainer = Explainer(
            model, ALGORITHMS[name](), 'model', node_mask_type=kind, edge_mask_type='object', model_config=CONFIG
        )
        for index in (None, 2):
            one = explainer(data['node'].x, data['node', 'node'].edge_index, index=index)
            other = explainer(data.x_dict, data.edge_index_dict, index=index)
            assert one.node_mask.equal(other['node'].node_mask)
            assert one.node_score.equal(other['node'].node_score)
            assert one.edge_mask.equal(other['node', 'node'].edge_mask)


def test_probes_blank_nodes_of_all_types(data):
    r"""The answers of a linear model are explained exactly."""

    class Linear(torch.nn.Module):
        def forward(self, x_dict, edge_index_dict):
            source, target = edge_index_dict[WRITES]
            sums = x_dict['paper'].sum(dim=1).index_add(0, target, 0.5 * x_dict['author'][source, 0])
            return torch.stack([sums, -sums], dim=1)

    config = {'mode': 'regression', 'task_level': 'node', 'return_type': 'raw'}
    algorithm = ProbeDnX(num_hops=1, num_probes=64)
    explanation = explained(Linear(), algorithm, data, 4, model_config=config)
    single = explained(Linear(), algorithm, data, 4, model_config=config, node_mask_type='attributes')
    values = 2**0.5 * torch.stack([data['paper'].x[4, 0], 0.5 * data['author'].x[2, 0]])
    values = values * explanation.prediction[4, 0].sign()
    found = torch.stack([single['paper'].node_score[4, 0], single['author'].node_score[2, 0]])
    torch.testing.assert_close(found, values, rtol=1e-6, atol=1e-8)
    assert float(single['author'].node_score[2, 1].abs()) < 1e-8
    direction = explanation.prediction[4] / explanation.prediction[4].norm()
    paper, author = data['paper'].x[4].sum(), 0.5 * data['author'].x[2, 0]
    for name, place, value in (('paper', 4, paper), ('author', 2, author)):
        expected = value * (direction[0] - direction[1])
        torch.testing.assert_close(explanation[name].node_score[place], expected, rtol=1e-6, atol=1e-8)
    assert float(explanation.probe_r2) > 0.999999


def test_weights_by_relation_are_the_operators(data):
    generator = torch.Generator().manual_seed(0)
    weight = {
        relation: torch.rand(edges.size(1), generator=generator, dtype=torch.float64)
        for relation, edges in data.edge_index_dict.items()
    }

    class Weighted(ByRelation):
        def forward(self, x_dict, edge_index_dict, edge_weight_dict=None):
            return super().forward(x_dict, edge_index_dict)

    model, algorithm = Weighted(data), FastDnX(num_hops=1)
    explanation = explained(model, algorithm, data, 2, kwargs={'edge_weight_dict': weight})
    x, adjacency = dense(data, weight)
    surrogate = surrogate_of(algorithm, model, data, edge_weight_dict=weight)
    hidden = x @ surrogate.weight
    scores = adjacency[2] * (hidden @ (adjacency @ hidden)[2])
    torch.testing.assert_close(explanation['author'].node_score, scores[AUTHORS], rtol=0, atol=1e-10)
    assert explanation[WRITES].edge_weight is weight[WRITES]


def test_types_without_features_have_edges_but_no_mask(data):
    class Embedded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.venues = torch.nn.Embedding(2, 3)
            self.inner = None

        def forward(self, x_dict, edge_index_dict):
            return self.inner({**x_dict, 'venue': self.venues.weight}, edge_index_dict)

    other, whole = data.clone(), data.clone()
    at, of = ('paper', 'at', 'venue'), ('venue', 'of', 'paper')
    for one in (other, whole):
        one[at].edge_index = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])
        one[of].edge_index = one[at].edge_index.flip(0)
    model = Embedded().double()
    whole['venue'].x = model.venues.weight.detach()
    model.inner = ByRelation(whole)
    explanation = explained(model, FastDnX(), other, 2)
    assert explanation.validate()
    assert 'node_mask' not in explanation['venue']
    assert explanation['venue'].node_score.tolist() == [0.0, 0.0]
    assert float(explanation[at].edge_mask.max()) > 0.0
    kept = Explainer(model, FastDnX(), 'model', node_mask_type='object', model_config=CONFIG).get_masked_prediction(
        other.x_dict, other.edge_index_dict, explanation.collect('node_mask')
    )
    assert kept.shape == (7, 3)


@pytest.mark.parametrize('name', ALGORITHMS)
def test_a_type_without_edges_scores_nothing(name, model, data):
    other = data.clone()
    other['venue'].x = torch.ones(3, 2, dtype=torch.float64)
    one, two = (explained(model, ALGORITHMS[name](), each, 2) for each in (data, other))
    assert two['venue'].node_score.tolist() == [0.0, 0.0, 0.0]
    assert two['venue'].node_mask.tolist() == [[0.0], [0.0], [0.0]]
    if name != 'ProbeDnX':  # whose masks are drawn for all nodes
        torch.testing.assert_close(one['author'].node_score, two['author'].node_score)


def test_a_type_that_the_model_does_not_read_scores_nothing(data):
    class Papers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = SAGEConv(3, 3).double()

        def forward(self, x_dict, edge_index_dict):
            return self.conv(x_dict['paper'], edge_index_dict[CITES])

    explanation = explained(Papers(), ProbeDnX(num_probes=64, num_hops=2), data, 2)
    assert float(explanation['author'].node_score.abs().max()) < 0.05 * float(
        explanation['paper'].node_score.abs().max()
    )


def test_the_target_type_is_told_by_the_number_of_rows_or_named(data):
    model = ByRelation(data, type='author')
    assert explained(model, FastDnX(), data, 0).target_type == 'author'
    alike = small_data()
    alike['author'].x = torch.cat([alike['author'].x, alike['author'].x[:2]])
    torch.manual_seed(0)
    model = ByRelation(alike, type='author')
    with pytest.raises(ValueError, match=r"'target_type' must be given .*got 7 rows, as many as each of .*'author'"):
        explained(model, FastDnX(), alike, 0)
    assert explained(model, FastDnX(target_type='author'), alike, 0).target_type == 'author'
    with pytest.raises(ValueError, match=r"'target_type' must be one of the node types .*got 'venue'"):
        explained(model, FastDnX(target_type='venue'), alike, 0)


def test_binary_models_with_two_columns_have_a_target_type(data):
    config = {'mode': 'binary_classification', 'task_level': 'node', 'return_type': 'raw'}
    for num_columns in (1, 2):
        explanation = explained(ByRelation(data, num_columns), FastDnX(), data, 1, model_config=config)
        assert explanation.target_type == 'paper'


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda x, e: (x, e[CITES]), "'x' and 'edge_index' must both be dicts"),
        (lambda x, e: (x['paper'], e), "'x' and 'edge_index' must both be dicts"),
        (
            lambda x, e: ({**x, 'paper': x['paper'][:6]}, e),
            r"'edge_index' must hold ids of 'paper' from 0 to 5 for .*6",
        ),
        (lambda x, e: ({**x, 'paper': x['paper'][0]}, e), r"'x' must hold a dense tensor .*got \[3\] for 'paper'"),
        (lambda x, e: (x, {**e, 'cites': e[CITES]}), r"'edge_index' must be by relation.* .got the key 'cites'\)"),
        (lambda x, e: (x, {**e, CITES: e[CITES].double()}), r"'edge_index' must hold node ids \(got torch.float64 for"),
        (lambda x, e: (x, {**e, CITES: e[CITES].T}), r"'edge_index' must hold a tensor \[2, E\] .*\[6, 2\] for"),
        (lambda x, e: ({}, e), "'x' must hold the features of at least one node type"),
    ],
)
def test_bad_dicts_are_refused_by_a_sentence(model, data, change, message):
    algorithm = FastDnX()
    Explainer(model, algorithm, 'model', node_mask_type='object', model_config=CONFIG)
    with pytest.raises((TypeError, ValueError, IndexError), match=message):
        algorithm.forward(model, *change(data.x_dict, data.edge_index_dict), target=torch.zeros(7, dtype=torch.long))


def test_weights_of_the_wrong_shape_are_refused(model, data):
    algorithm = FastDnX()
    Explainer(model, algorithm, 'model', node_mask_type='object', model_config=CONFIG)
    with pytest.raises(ValueError, match=r"'edge_weight' must have shape \[6\] for the relation"):
        algorithm.forward(
            model,
            data.x_dict,
            data.edge_index_dict,
            target=torch.zeros(7, dtype=torch.long),
            edge_weight_dict={CITES: torch.ones(5)},
        )


def test_a_graph_is_distilled_once_and_anew_when_it_changes(model):
    from pyg_dnx import SurrogateCache

    data, cache = small_data(), SurrogateCache()
    explained(model, FastDnX(cache=cache), data, 2)
    misses = cache.misses
    first = explained(model, FastDnX(cache=cache), data, 3)
    assert cache.misses == misses
    data['author'].x[1] += 1.0
    second = explained(model, FastDnX(cache=cache), data, 3)
    assert cache.misses > misses
    assert not first['paper'].node_score.equal(second['paper'].node_score)


def test_nothing_of_the_graph_is_kept_alive(model):
    import gc
    import weakref

    from pyg_dnx import SurrogateCache

    data, cache = small_data(), SurrogateCache()
    explained(model, FastDnX(cache=cache), data, 2)
    alive = weakref.ref(data['paper'].x)
    del data
    gc.collect()
    assert alive() is None
    assert len(cache) == 0
