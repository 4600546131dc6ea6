r"""The explanations of many graphs: items, slices, tables and files."""

import numpy as np
import pytest
import torch
from graph_level_case import GraphTeacher, graph_explainer, small_graphs
from torch_geometric.loader import DataLoader

from pyg_dnx import FastDnX, GraphExplanations, ProbeDnX, SurrogateCache

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
GRAPHS = small_graphs((6, 4, 5, 3))
for place, data in enumerate(GRAPHS):
    data.node_names = [f'{"CNO"[j % 3]}{place}' for j in range(data.num_nodes)]


@pytest.fixture(scope='module', params=[FastDnX, ProbeDnX])
def explainer(request):
    found = graph_explainer(GraphTeacher('gin').eval(), request.param(cache=SurrogateCache()), node='attributes')
    if request.param is FastDnX:
        found.algorithm.distill(found.model, GRAPHS)
    return found


@pytest.fixture(scope='module')
def explained(explainer):
    return explainer.algorithm.explain_graphs(explainer.model, DataLoader(GRAPHS, 3))


def alike(one, other):
    first, second = one.to_dict(), other.to_dict()
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.equal(second[name]) if isinstance(value, torch.Tensor) else value == second[name]


def test_items_are_what_the_explainer_returns(explainer, explained):
    assert len(explained) == 4
    for number, data in enumerate(GRAPHS):
        found, expected = explained[number], explainer(data.x, data.edge_index)
        assert found.x.equal(data.x)
        assert found.edge_index.equal(data.edge_index)
        assert found.node_names == data.node_names
        for name in ('node_score', 'node_mask', 'edge_score', 'edge_mask', 'surrogate_agreement', 'target'):
            torch.testing.assert_close(found[name].double(), expected[name].double(), rtol=1e-4, atol=1e-5)
        assert found.how == expected.how == explained.how == 'nodes'
        assert found.validate(raise_on_error=True)
    alike(explained[-1], explained[3])


def test_slices(explained):
    some = explained[[2, 0]]
    assert isinstance(some, GraphExplanations)
    assert len(some) == 2
    alike(some[0], explained[2])
    alike(explained[torch.tensor([False, True, False, True])][1], explained[3])
    assert some.targets.equal(explained.targets[[2, 0]])
    nodes, scores = some.top_k(4)
    expected = explained.top_k(4)
    assert nodes.equal(expected[0][[2, 0]])
    assert scores.equal(expected[1][[2, 0]])


def test_the_highest_scores_of_each_graph(explained):
    nodes, scores = explained.top_k(5)
    for number, found in enumerate(explained):
        score = found.node_score.sum(dim=1)
        count = min(5, len(score))
        assert scores[number, :count].equal(score[nodes[number, :count]])
        torch.testing.assert_close(scores[number, :count], score.sort(descending=True).values[:count])
        assert nodes[number, count:].eq(-1).all()


def test_tables(explained, tmp_path):
    table = explained.to_pandas()
    assert len(table) == sum(data.num_nodes for data in GRAPHS)
    for number, found in enumerate(explained):
        rows = table[table.graph == number]
        assert rows.node.tolist() == list(range(GRAPHS[number].num_nodes))
        np.testing.assert_allclose(rows.score, found.node_score.sum(dim=1).numpy(), rtol=1e-6)
    explained.to_csv(tmp_path / 'table.csv')
    assert len((tmp_path / 'table.csv').read_text().splitlines()) == len(table) + 1


def test_only_the_highest_are_kept(explainer):
    found = explainer.algorithm.explain_graphs(explainer.model, GRAPHS, top_k=2)
    assert len(found.to_pandas()) == 8
    with pytest.raises(ValueError, match="'k' must be at most 2"):
        found.top_k(3)


def test_files(explained, tmp_path):
    explained[1:].save(tmp_path / 'graphs.pt')
    loaded = GraphExplanations.load(tmp_path / 'graphs.pt')
    assert len(loaded) == 3
    for one, other in zip(loaded, explained[1:], strict=True):
        alike(one, other)
        assert one._model_args == other._model_args
    assert loaded.targets.equal(explained.targets[1:])


def test_an_index_that_is_none_is_refused(explained):
    with pytest.raises(IndexError, match='there are explanations 0 to 3'):
        explained[4]
    with pytest.raises(TypeError, match='an int, a slice or a tensor'):
        explained['a']


def test_targets_of_a_phenomenon():
    explainer = graph_explainer(GraphTeacher('gin').eval(), FastDnX(), kind='phenomenon')
    found = explainer.algorithm.explain_graphs(explainer.model, GRAPHS)
    for number, data in enumerate(GRAPHS):
        expected = explainer(data.x, data.edge_index, target=data.y)
        torch.testing.assert_close(found[number].node_score, expected.node_score, rtol=1e-4, atol=1e-5)
        assert found[number].target.equal(data.y)
