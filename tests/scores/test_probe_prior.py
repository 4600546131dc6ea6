r"""What ProbeDnX expects of effects before it asks: their sizes, and what like neighbours have in common."""

import pytest
import torch
from helpers import dense_adjacency, dense_sums, example_graphs
from models import connected
from probe_case import ProbeCase

from pyg_dnx import NodeExplanations, ProbeDnX
from pyg_dnx.graph.operator import normalized_adjacency
from pyg_dnx.graph.rows import Rows
from pyg_dnx.scores import probed
from pyg_dnx.scores.probed import LIKENESSES, SIZES

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

CLOSE = {'rtol': 3e-5, 'atol': 1e-8}  # 1.1e-5 was seen with PyTorch 2.6, on a graph of one node


class Linear(torch.nn.Module):
    r"""A regression model that is linear in features, by a dense matrix."""

    def __init__(self, matrix, weight):
        super().__init__()
        self.matrix, self.weight = matrix, weight

    def forward(self, x, edge_index):
        return self.matrix.to(x) @ x @ self.weight.to(x)


def hub(num_leaves, num_features=3):
    r"""Two stars whose centres are joined, so that degrees differ, and features by which leaves are alike."""
    leaves = torch.arange(2, num_leaves + 2)
    edges = torch.cat([torch.stack([leaves, (leaves % 3 == 0).long()]), torch.tensor([[0], [1]])], dim=1)
    x = torch.randn(num_leaves + 2, num_features, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, torch.cat([edges, edges.flip(0)], dim=1)


def explain(model, x, edge_index, **options):
    algorithm = connected(ProbeDnX(num_hops=2, cache=None, **options), 'regression [N]')
    return algorithm.explain_nodes(model, x, edge_index)


@pytest.mark.parametrize(
    ('name', 'task'),
    [('undirected', 'multiclass raw'), ('directed', 'regression [N, 2]'), ('weighted', 'multiclass raw')],
)
def test_the_best_of_all_is_chosen(name, task):
    case = ProbeCase(name, task)
    losses = case.losses()
    assert len(losses) == 3 * 6 * 15
    assert losses[case.prior()] <= min(losses.values()) * (1 + 1e-5)


@pytest.mark.parametrize('likeness', LIKENESSES)
@pytest.mark.parametrize('sizes', SIZES)
@pytest.mark.parametrize('name', example_graphs())
def test_scores_under_every_prior_are_those_of_the_definition(name, sizes, likeness, monkeypatch):
    monkeypatch.setattr(probed, 'SIZES', (sizes,))
    monkeypatch.setattr(probed, 'LIKENESSES', (likeness,))
    case = ProbeCase(name)
    found, expected = case.explain_nodes(), case.fit()
    assert found._request.state.prior[:2] == (sizes, likeness)
    torch.testing.assert_close(found.scores.to_dense(), expected.score, **CLOSE)
    torch.testing.assert_close(case.explain(0).node_score, expected.score[0], **CLOSE)


@pytest.mark.parametrize('sizes', SIZES)
def test_sizes_are_those_of_the_model(sizes):
    generator = torch.Generator().manual_seed(0)
    edges = (200 * torch.rand(2, 400, generator=generator) ** 2).long()  # some nodes have many neighbours
    edge_index = torch.cat([edges, edges.flip(0)], dim=1)
    adjacency, sums = (of(edge_index, None, 200) for of in (dense_adjacency, dense_sums))
    matrix = {'normalised': adjacency, 'means': sums / sums.sum(dim=1, keepdim=True), 'sums': sums}[sizes]
    matrix = matrix @ matrix * torch.randn(200, generator=generator, dtype=torch.float64)  # no feature tells of that
    found = explain(Linear(matrix, torch.ones(1, 1)), torch.ones(200, 1).double(), edge_index, num_probes=30)
    assert found._request.state.prior.sizes == sizes


def test_neighbours_that_are_alike_make_up_for_few_probes(monkeypatch):
    x, edge_index = hub(200)
    sums = dense_sums(edge_index, None, 202)
    model = Linear(sums @ sums, torch.tensor([[1.0], [-2.0], [0.5]]))
    model.eval()
    expected = (model.matrix * (x @ model.weight.double())[:, 0])[0]
    known = explain(model, x, edge_index, num_probes=20, distillation='paper')
    monkeypatch.setattr(probed, 'LIKENESSES', (0.0,))
    unknown = explain(model, x, edge_index, num_probes=20, distillation='paper')
    sign = torch.sign(model(x, edge_index)[0] - model(0 * x, edge_index)[0])
    alike, apart = (
        torch.nn.functional.cosine_similarity(each.scores.to_dense()[0], sign * expected, dim=0)
        for each in (known, unknown)
    )
    assert known._request.state.prior.likeness >= 100.0
    assert alike > 0.9999
    assert apart < 0.99


def test_many_features_are_told_apart_by_the_surrogate(monkeypatch):
    monkeypatch.setattr(probed, 'MAX_TRAITS', 2)
    monkeypatch.setattr(probed, 'LIKENESSES', (10.0,))
    case = ProbeCase()
    found = case.explain_nodes()
    case.traits = case.x @ found.surrogate.weight
    assert found._request.state.traits.equal(case.traits)
    torch.testing.assert_close(found.scores.to_dense(), case.fit().score, **CLOSE)


@pytest.mark.parametrize('width', [1, 3])
def test_neighbours_without_traits_have_nothing_in_common(width, monkeypatch):
    monkeypatch.setattr(probed, 'LIKENESSES', (10.0,))
    x, edge_index = hub(5, width)
    found = explain(Linear(torch.zeros(7, 7), torch.ones(width, 1)), 0 * x, edge_index, num_probes=6)
    assert not found.scores.values().any()


def test_no_more_than_some_probes_choose(monkeypatch):
    monkeypatch.setattr(probed, 'MAX_PAIRS_TO_CHOOSE', 5)
    few, many = ProbeCase(num_probes=8), ProbeCase(num_probes=40)
    assert many.prior() == few.prior()
    torch.testing.assert_close(many.explain_nodes().scores.to_dense(), many.fit().score, **CLOSE)


def test_where_all_are_exact_the_first_is_taken():
    x, edge_index = hub(4)
    adjacency = dense_adjacency(edge_index, None, 6)
    found = explain(Linear(adjacency @ adjacency, torch.ones(3, 1)), x, edge_index, num_probes=60)
    assert found._request.state.prior[:2] == ('normalised', 0.0)
    assert found.probe_r2.min() > 0.999


def test_features_are_not_saved_but_taken_from_the_graph(monkeypatch, tmp_path):
    monkeypatch.setattr(probed, 'LIKENESSES', (10.0,))
    case = ProbeCase()
    found = case.explain_nodes()
    assert 'traits' not in found._request.state.to_dict()
    found.save(tmp_path / 'file')
    loaded = NodeExplanations.load(tmp_path / 'file', case.x, case.edge_index, **case.kwargs)
    assert loaded[1].node_score.equal(found[1].node_score)
    torch.testing.assert_close(loaded[1].node_score, found.scores.to_dense()[1])


def test_features_may_change_after_the_model_was_asked(monkeypatch):
    monkeypatch.setattr(probed, 'LIKENESSES', (10.0,))
    case = ProbeCase()
    found, expected = case.explain_nodes(), case.fit().score
    case.x.zero_()
    request = found._request
    effects = request.rule.effects(found._place.decomposition, request.state, request.question)
    of_node = effects.rows.column == 1
    torch.testing.assert_close((effects.rows.value * effects.effect)[of_node].sum(), expected[:, 1].sum(), **CLOSE)


@pytest.mark.parametrize('name', example_graphs())
def test_sums_undo_the_normalisation(name):
    x, edge_index, weight = example_graphs()[name]
    operator = normalized_adjacency(edge_index, weight, x.size(0), torch.float64).sums
    expected = dense_sums(edge_index, weight, x.size(0))
    assert operator.value.max() == 1.0
    torch.testing.assert_close(operator.csr.to_dense() * (expected[0, 0] / operator.csr.to_dense()[0, 0]), expected)


def test_sums_where_a_degree_is_zero():
    edge_index, weight = torch.tensor([[0, 1, 1], [1, 0, 1]]), torch.tensor([0.0, 2.0, 0.0])
    operator = normalized_adjacency(edge_index, weight, 2, torch.float64).sums
    assert operator.csr.to_dense().tolist() == [[1.0, 0.0], [0.0, 0.0]]  # what no message comes from has no effect


def test_values_in_another_order():
    length = torch.tensor([2, 3])
    one = Rows(length, torch.tensor([4, 0, 1, 3, 2]), torch.tensor([4.0, 0.0, 11.0, 13.0, 12.0]))
    other = Rows(length, torch.tensor([0, 4, 3, 2, 1]), torch.zeros(5))
    assert one.values_in(other, 5).tolist() == [0.0, 4.0, 13.0, 12.0, 11.0]
    assert one.values_in(one, 5).equal(one.value)
