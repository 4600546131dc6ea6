r"""Models of graphs of every kind: categories, bonds, no batches, mixed batches; and bad input."""

import warnings

import pytest
import torch
from graph_level_case import GraphTeacher, batch_of, graph_explainer, small_graphs
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_add_pool

from pyg_dnx import DnX, FastDnX, ProbeDnX, Surrogate, SurrogateWarning
from pyg_dnx.graph.categories import Categories

GRAPHS = small_graphs((6, 4, 5))
ignore_doubt = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


class Atoms(torch.nn.Module):
    r"""Begins with an embedding of two numbers an atom, and can't be given others."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Embedding(10, 4), torch.nn.Embedding(3, 4)
        self.rest = GraphTeacher('gin', num_features=4)

    def forward(self, x, edge_index, batch=None):
        assert x.dtype == torch.long
        return self.rest(self.first(x[:, 0]) + self.second(x[:, 1]), edge_index, batch)


def atoms():
    generator, found = torch.Generator().manual_seed(0), []
    for data in GRAPHS:
        columns = [torch.randint(0, high, (data.num_nodes,), generator=generator) for high in (10, 3)]
        found.append(Data(x=torch.stack(columns, dim=1), edge_index=data.edge_index))
    return found


class Bonds(torch.nn.Module):
    r"""Goes by the type of bonds."""

    def __init__(self, size=5.0):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.size = GINEConv(torch.nn.Linear(3, 3), edge_dim=2), size

    def forward(self, x, edge_index, edge_attr, batch=None):
        return global_add_pool(self.conv(x, edge_index, self.size * edge_attr), batch)[:, :2]


class Alone(torch.nn.Module):
    r"""Takes one graph, and no batch."""

    def __init__(self):
        super().__init__()
        self.inner = GraphTeacher('gin')

    def forward(self, x, edge_index):
        return self.inner(x, edge_index)


class Mixing(GraphTeacher):
    r"""Centres features over all that it is given."""

    def forward(self, x, edge_index, batch=None):
        return super().forward(x - x.mean(dim=0), edge_index, batch)


@ignore_doubt
@pytest.mark.parametrize('node', ['object', 'attributes', 'common_attributes'])
@pytest.mark.parametrize('algorithm', [FastDnX, DnX, ProbeDnX])
def test_categories_are_never_blanked(algorithm, node):
    graphs, model = atoms(), Atoms().eval()
    explainer = graph_explainer(model, algorithm(how='features'), node=node)
    alone = explainer(graphs[0].x, graphs[0].edge_index)
    assert alone.how == 'nodes'
    assert alone.node_mask.shape == {'object': (6, 1), 'attributes': (6, 2), 'common_attributes': (1, 2)}[node]
    if algorithm is not ProbeDnX:
        surrogate = explainer.algorithm.distill(model, graphs)
        values = torch.cat([data.x for data in graphs])
        assert surrogate.categories.sizes == [column.unique().numel() for column in values.T]
        assert surrogate.num_features == 2
    found = explainer.algorithm.explain_graphs(model, graphs)
    assert [len(one.node_score) for one in found] == [6, 4, 5]


@ignore_doubt
def test_a_surrogate_of_categories_is_that_of_their_columns(tmp_path):
    graphs, model = atoms(), Atoms().eval()
    algorithm = graph_explainer(model, FastDnX()).algorithm
    surrogate = algorithm.distill(model, graphs)
    surrogate.save(tmp_path / 'surrogate.pt')
    loaded, batch = Surrogate.load(tmp_path / 'surrogate.pt'), batch_of(graphs)
    logits = surrogate(batch.x, batch.edge_index, batch=batch.batch)
    columns = surrogate.categories.encode(batch.x)
    plain = Surrogate(surrogate.weight, surrogate.bias, 2, surrogate.report, level='graph')
    torch.testing.assert_close(logits, plain(columns, batch.edge_index, batch=batch.batch))
    torch.testing.assert_close(loaded(batch.x, batch.edge_index, batch=batch.batch), logits)
    assert loaded.report == surrogate.report


def test_categories_have_a_column_each_and_unknown_ones_none():
    known = Categories.of(torch.tensor([[5, -1], [2, 0], [5, 3]]))
    assert known.encode(torch.tensor([[2, 3], [7, -1]])).tolist() == [[1, 0, 0, 0, 1], [0, 0, 1, 0, 0]]
    assert known.collapse(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).tolist() == [3.0, 12.0]
    assert known.expand(torch.tensor([[1, 0]])).tolist() == [[1, 1, 0, 0, 0]]
    assert Categories.of(torch.rand(3, 2)) is None


def with_bonds():
    graphs = small_graphs((6, 4, 5))
    for number, data in enumerate(graphs):
        generator = torch.Generator().manual_seed(number)
        data.edge_attr = torch.rand(data.num_edges, 2, generator=generator)
    return graphs


def test_what_the_surrogate_cannot_see_is_measured():
    model = Bonds().eval()
    explainer = graph_explainer(model, FastDnX(), 'regression [N, 2]')
    with pytest.warns(SurrogateWarning, match="The model goes by 'edge_attr', which the surrogate can't see"):
        surrogate = explainer.algorithm.distill(model, with_bonds())
    assert surrogate.report.graphs.unseen['edge_attr'] > 0.1
    assert 'moved by edge_attr' in str(surrogate.report)
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='.*edge_attr')
        indifferent = Bonds(0.0).eval()
        report = (
            graph_explainer(indifferent, FastDnX(), 'regression [N, 2]')
            .algorithm.distill(indifferent, with_bonds())
            .report
        )
    assert report.graphs.unseen == {'edge_attr': 0.0}


@ignore_doubt
@pytest.mark.parametrize('algorithm', [FastDnX, ProbeDnX])
def test_a_model_that_takes_no_batch_is_asked_one_by_one(algorithm):
    model, expected = Alone().eval(), Alone().inner.eval()
    first, second = (graph_explainer(one, algorithm()) for one in (model, expected))
    if algorithm is FastDnX:
        first.algorithm.distill(model, GRAPHS)
        second.algorithm.distill(expected, GRAPHS)
    found, other = first.algorithm.explain_graphs(model, GRAPHS), second.algorithm.explain_graphs(expected, GRAPHS)
    for one, two in zip(found, other, strict=True):
        torch.testing.assert_close(one.node_score, two.node_score, rtol=1e-4, atol=1e-5)
        assert 'batch' not in one


def test_a_model_that_mixes_graphs_is_asked_one_by_one():
    model = Mixing('gin').eval()
    explainer = graph_explainer(model, ProbeDnX(num_probes=16))
    with pytest.warns(SurrogateWarning, match='answers otherwise for a graph in a batch than for the graph alone'):
        found = explainer.algorithm.explain_graphs(model, DataLoader(GRAPHS, 3))
    for data, one in zip(GRAPHS, found, strict=True):
        alone = explainer(data.x, data.edge_index)
        torch.testing.assert_close(one.node_score, alone.node_score, rtol=1e-4, atol=1e-5)


class Constant(torch.nn.Module):
    def forward(self, x, edge_index, batch):
        return global_add_pool(x, batch).sigmoid() * 1e-3 + torch.tensor([1.0, 0.0, 0.0])


def test_saturation_is_said():
    model = Constant().eval()
    with pytest.warns(SurrogateWarning, match='The model is saturated'):
        graph_explainer(model, FastDnX()).algorithm.distill(model, GRAPHS)
    explainer = graph_explainer(model, ProbeDnX(num_probes=16))
    with pytest.warns(SurrogateWarning, match='The model is saturated'):
        assert explainer(BATCH.x, BATCH.edge_index, batch=BATCH.batch).probes_moved.tolist() == [0.0] * 3
    with pytest.warns(SurrogateWarning, match='The model is saturated'):
        explainer.algorithm.explain_graphs(model, GRAPHS)
    lively = GraphTeacher('gin', 'regression [N]').eval()
    found = graph_explainer(lively, ProbeDnX(num_probes=16), 'regression [N]')(
        BATCH.x, BATCH.edge_index, batch=BATCH.batch
    )
    assert (found.probes_moved > 0.5).all()


def test_a_surrogate_no_better_than_chance_is_said():
    class Ring(torch.nn.Module):
        r"""Goes by what no linear surrogate of constant features can see."""

        def forward(self, x, edge_index, batch):
            size = torch.bincount(batch)
            return torch.stack([(size % 2 == 0).float(), (size % 2 == 1).float()], dim=1) * 4

    graphs = small_graphs((6, 3, 4, 5, 8, 7, 10, 9))
    for data in graphs:
        data.x = torch.ones_like(data.x)
    model = Ring().eval()
    algorithm = graph_explainer(model, FastDnX(how='features'), 'binary raw [N, 2]').algorithm
    with pytest.warns(SurrogateWarning, match='and the most frequent class alone on 50%'):
        algorithm.distill(model, graphs)


def test_explanations_say_where_their_surrogate_is_from():
    model = GraphTeacher('gin').eval()
    explainer, data = graph_explainer(model, FastDnX(how='features')), GRAPHS[0]
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        alone = explainer(data.x, data.edge_index)
        assert (alone.how, alone.distilled_on) == ('features', 'this graph')
        explainer.algorithm.distill(model, GRAPHS)
        assert explainer(data.x, data.edge_index).distilled_on == '3 graphs'
        with torch.no_grad():
            model.last.bias.add_(1.0)  # the surrogate is of another model now
        assert explainer(data.x, data.edge_index).distilled_on == 'this graph'


BATCH = batch_of(GRAPHS)
BAD = {
    'an index beyond the batch': ({'index': 3}, IndexError, "'index' must hold graph numbers from -3 to 2"),
    'an empty graph': (
        {'batch': BATCH.batch * 2},
        ValueError,
        "'batch' must give each graph at least one node \\(got none for graph 1\\)",
    ),
}


@ignore_doubt
@pytest.mark.parametrize('case', BAD)
@pytest.mark.parametrize('algorithm', [FastDnX, ProbeDnX])
def test_bad_input_gets_a_sentence(algorithm, case):
    options, error, text = BAD[case]
    explainer = graph_explainer(GraphTeacher('gin').eval(), algorithm())
    with pytest.raises(error, match=text):
        explainer(BATCH.x, BATCH.edge_index, **{'batch': BATCH.batch, **options})


def no_nodes():
    return Data(x=torch.zeros(0, 3), edge_index=torch.zeros(2, 0, dtype=torch.long), y=torch.tensor([0]))


DATA = {
    'one graph': (GRAPHS[0], TypeError, "'data' must be a DataLoader, a Dataset or a list of Data"),
    'nothing': ([], ValueError, "'data' must hold at least one graph"),
    'tensors': ([torch.ones(3)], TypeError, "'data' must hold graphs as Data \\(got Tensor\\)"),
    'a loader of tensors': (
        torch.utils.data.DataLoader([torch.ones(3)]),
        TypeError,
        "'data' must give batches of graphs",
    ),
    'other widths': (
        [*GRAPHS, Data(x=torch.ones(2, 4), edge_index=torch.zeros(2, 0, dtype=torch.long))],
        ValueError,
        'the same number of features \\(got \\[3, 4\\]\\)',
    ),
    'an empty graph': ([GRAPHS[0], no_nodes()], ValueError, 'at least one node \\(got none in graph 1\\)'),
    'a loader with an empty graph': (DataLoader([GRAPHS[0], no_nodes()], 2), ValueError, 'at least one node'),
}


@pytest.mark.parametrize('case', DATA)
def test_bad_data_get_a_sentence(case):
    data, error, text = DATA[case]
    model = GraphTeacher('gin').eval()
    algorithm = graph_explainer(model, FastDnX()).algorithm
    for call in (algorithm.distill, algorithm.explain_graphs):
        with pytest.raises(error, match=text):
            call(model, data)


def test_a_model_of_nodes_is_refused():
    class Nodes(torch.nn.Module):
        def forward(self, x, edge_index, batch=None):
            return x

    with pytest.raises(ValueError, match='one row a graph'):
        graph_explainer(Nodes(), FastDnX()).algorithm.distill(Nodes(), GRAPHS)


def test_batches_are_not_changed():
    model, batch = GraphTeacher('gin').eval(), Batch.from_data_list(GRAPHS)
    before = batch.clone()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        graph_explainer(model, FastDnX()).algorithm.distill(model, DataLoader(GRAPHS, 2))
        graph_explainer(model, ProbeDnX(num_probes=8))(batch.x, batch.edge_index, batch=batch.batch)
    assert batch.x.equal(before.x)
    assert batch.edge_index.equal(before.edge_index)


@ignore_doubt
def test_a_data_set_is_the_same_in_any_batches():
    model = Bonds(0.1).eval()
    graphs = with_bonds()
    weights = []
    for data in (graphs, DataLoader(graphs, 2), [batch_of(graphs[:1]), batch_of(graphs[1:])]):
        algorithm = graph_explainer(model, FastDnX(), 'regression [N, 2]').algorithm
        weights.append(algorithm.distill(model, data).weight)
        assert len(algorithm.explain_graphs(model, data)) == 3
    torch.testing.assert_close(weights[0], weights[1])
    torch.testing.assert_close(weights[0], weights[2])
