import pytest
import torch
from faithfulness_case import FIELDS, NODES, Global, assert_same, explained, inputs
from models import Teacher, explainer, graph
from torch.nn import BatchNorm1d
from torch_geometric.explain import GNNExplainer
from torch_geometric.nn import LayerNorm
from torch_geometric.utils import add_self_loops

from pyg_dnx import FastDnX, check

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


def assert_each(explain, explanations):
    assert_same(check(explain, explanations), [check(explain, explanation) for explanation in explanations])


def x_of(num_nodes, seed=0):
    return 3 * torch.randn(num_nodes, 3, generator=torch.Generator().manual_seed(seed))


def path(num_nodes):
    nodes = torch.arange(num_nodes - 1)
    edges = torch.stack([nodes, nodes + 1])
    return torch.cat([edges, edges.flip(0)], dim=1)


def ring(num_nodes):
    nodes = torch.arange(num_nodes)
    edges = torch.stack([nodes, (nodes + 1) % num_nodes])
    return torch.cat([edges, edges.flip(0)], dim=1)


def test_gnn_explainer_leaves_a_slot_that_a_check_fills():
    model, (x, edge_index) = Teacher().eval(), graph()
    explain = explainer(model, GNNExplainer(epochs=2), edge='object')
    explanation = explain(x, edge_index, index=0)  # registers `_edge_mask` as a parameter, None afterwards
    before = list(model.state_dict())
    check(explain, explanation)
    assert list(model.state_dict()) == before


@pytest.mark.parametrize('conv', ['gcn', 'gat'])
def test_edge_masks_where_every_node_has_a_loop_at_the_end_of_the_edges(conv):
    # PyG's explain_message takes the mask as it is if there are as many messages as edges; GCN moves loops to the end.
    # On the graph the order is the same. With several parts, each part's loops are in the middle.
    given = x_of(12), add_self_loops(path(12))[0], {}
    assert_each(*explained(Teacher(conv).eval(), given, range(12), node=None, edge='object'))


def test_edge_masks_where_every_node_of_a_part_has_a_loop():
    # On the graph, loops are taken out of the mask. In the part, there are as many loops as nodes.
    explain, (explanation,) = explained(
        Teacher().eval(), (x_of(3), torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]]), {}), [0], node=None, edge='object'
    )
    explanation.edge_mask = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert_each(explain, [explanation])


def test_a_graph_of_one_edge():
    given = x_of(3), torch.tensor([[0], [1]]), {}
    assert_each(*explained(Teacher().eval(), given, range(3), node=None, edge='object'))


class Normalised(Teacher):
    def __init__(self, norm):
        super().__init__()
        self.act = norm


@pytest.mark.parametrize(
    'create',
    [
        Global,
        lambda: Normalised(LayerNorm(4)),
        lambda: Normalised(BatchNorm1d(4, track_running_stats=False)),
    ],
)
def test_statistics_of_the_graph_where_each_neighbourhood_is_the_graph(create):
    # The copies have the statistics of the graph; only under masks, they are mixed.
    assert_each(*explained(create().eval(), (x_of(6), ring(6), {}), range(6)))


class Saturated(Global):
    def forward(self, x, edge_index):
        return 50 * super().forward(x, edge_index)


def test_a_confident_model_that_looks_farther():
    # Its probabilities, all 0 or 1, would not tell.
    assert_each(*explained(Saturated().eval(), (x_of(12), path(12), {}), range(12)))


class Small(Teacher):
    def forward(self, x, edge_index):
        return 1e-5 * (super().forward(x, edge_index) + x.mean())


def test_small_outputs_of_regression():
    # The tolerance must be smaller, too.
    task = 'regression [N]'
    explain, explanations = explained(Small(task=task).eval(), (x_of(12), path(12), {}), range(12), task)
    alone = torch.cat([check(explain, explanation).unfaithfulness for explanation in explanations])
    torch.testing.assert_close(check(explain, explanations).unfaithfulness, alone, rtol=1e-3, atol=0)


def test_node_masks_and_edge_masks_mixed():
    model = Teacher().eval()
    explain, first = explained(model, inputs(), [9])
    _, second = explained(model, inputs(), [15], node=None, edge='object')
    assert_each(explain, first + second)


def test_masks_of_nodes_and_of_attributes_mixed():
    model = Teacher().eval()
    explain, first = explained(model, inputs(), [9])
    _, second = explained(model, inputs(), [15], node='attributes')
    assert_each(explain, first + second)


def test_targets_in_a_column():
    x, edge_index = graph()
    explain = explainer(Teacher().eval(), FastDnX(), explanation_type='phenomenon')
    target = (torch.arange(8) % 3)[:, None]
    found = check(explain, explain(x, edge_index, index=torch.tensor([1, 2]), target=target))
    assert all(getattr(found, name).shape == (2,) for name in FIELDS)


def test_num_hops_of_one_explanation_is_checked():
    explain, (explanation,) = explained(Teacher().eval(), nodes=[9])
    with pytest.raises(ValueError, match='num_hops'):
        check(explain, explanation, num_hops=-1)


@pytest.mark.parametrize('many', [True, False])
def test_arguments_that_are_none(many):
    # Explanation drops attributes that are None, so explanation['edge_weight'] is a KeyError (in PyG's metrics, too).
    x, edge_index, _ = inputs()
    explain, explanations = explained(Teacher().eval(), (x, edge_index, {'edge_weight': None}))
    check(explain, explanations if many else explanations[0])


@pytest.mark.parametrize('bad', [None, 5, [None], {'a': 1}])
def test_what_is_no_explanation(bad):
    explain, _ = explained(Teacher().eval(), nodes=[9])
    with pytest.raises(TypeError, match="'explanations' must"):
        check(explain, bad)


def test_progress_counts_explanations(capsys):
    explain, explanations = explained(Teacher().eval(), nodes=[torch.tensor(NODES)])
    check(explain, explanations, progress=True)
    assert '1/1' in capsys.readouterr().err
