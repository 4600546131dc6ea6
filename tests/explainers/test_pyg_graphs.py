r"""Every combination that PyG's explain API offers at graph level, through PyG's own ``Explainer``."""

from functools import partial
from itertools import product

import pytest
import torch
from graph_level_case import GraphTeacher, batch_of, graph_explainer, small_graphs
from models import TASKS
from torch_geometric.nn import AttentiveFP

from pyg_dnx import DnX, FastDnX, ProbeDnX

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

ALGORITHMS = {'FastDnX': FastDnX, 'DnX': DnX, 'ProbeDnX': partial(ProbeDnX, num_probes=8)}
MASKS = [pair for pair in product(['object', 'attributes', 'common_attributes', None], ['object', None]) if any(pair)]
INDEXES = {
    'int': (1, [1]),
    'negative': (-1, [2]),
    '0-d': (torch.tensor(2), [2]),
    '1-d': (torch.tensor([2, -3]), [0, 2]),
    'bool': (torch.tensor([True, False, True]), [0, 2]),
    'None': (None, [0, 1, 2]),
}
TARGETS = {
    'multiclass': torch.tensor([0, 2, 1]),
    'binary': torch.tensor([0, 1, 1]),
    'regression': torch.tensor([-1.0, 0.5, 1.0]),
}
BATCH = batch_of(small_graphs())
PAIRS = torch.tensor([[0, 1, 2], [3, 4, 9]])


def target_of(task, explanation_type):
    if explanation_type == 'model':
        return None
    target = TARGETS[task.split()[0]]
    return target[:, None].expand(-1, 2) if task == 'regression [N, 2]' else target


def check(explanation, graphs, node, edge):
    assert explanation.validate(raise_on_error=True)
    inside = torch.isin(BATCH.batch, torch.tensor(graphs))
    shapes = {'object': (12, 1), 'attributes': (12, 3), 'common_attributes': (1, 3)}
    assert ('node_mask' in explanation) == (node is not None)
    if node is not None:
        assert explanation.node_mask.shape == shapes[node]
        assert explanation.node_mask.min() >= 0
        assert explanation.node_mask.max() <= 1
    if node in ('object', 'attributes'):
        assert (explanation.node_mask > 0).any(dim=1).equal(inside)
    assert not explanation.node_score[~inside].any()
    assert explanation.node_score.isfinite().all()
    assert ('edge_mask' in explanation) == (edge is not None)
    if edge is not None:
        assert (explanation.edge_mask > 0).equal(inside[BATCH.edge_index[0]])
        assert explanation.edge_mask.max() <= 1
        assert not explanation.edge_score[~inside[BATCH.edge_index[0]]].any()
    assert explanation.surrogate_agreement.numel() == len(graphs)


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_every_combination(algorithm, task):
    model = GraphTeacher('gin', task).eval()
    for (node, edge), explanation_type in product(MASKS, ['model', 'phenomenon']):
        explain = graph_explainer(model, ALGORITHMS[algorithm](), task, explanation_type, node, edge)
        for name, (index, graphs) in INDEXES.items():
            try:
                target = target_of(task, explanation_type)
                explanation = explain(BATCH.x, BATCH.edge_index, target=target, index=index, batch=BATCH.batch)
                check(explanation, graphs, node, edge)
            except Exception as error:
                where = f'{algorithm}, {task}, {explanation_type}, masks {node}/{edge}, index {name}'
                raise AssertionError(where) from error


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_an_argument_with_pairs_follows_each_graph(algorithm):
    explain = graph_explainer(GraphTeacher().eval(), ALGORITHMS[algorithm]())
    arguments = {'batch': BATCH.batch, 'edge_label_index': PAIRS}
    explanation = explain(BATCH.x, BATCH.edge_index, index=1, **arguments)
    check(explanation, [1], 'object', 'object')
    plain = explain(BATCH.x, BATCH.edge_index, index=1, batch=BATCH.batch)
    assert explanation.node_score.equal(plain.node_score)


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_a_model_of_graphs_that_is_called_one_of_nodes(algorithm):
    r"""As PyG's tests do with AttentiveFP: 'batch' and the number of its outputs tell what they are of."""
    torch.manual_seed(0)
    model = AttentiveFP(3, 8, 1, edge_dim=5, num_layers=2, num_timesteps=2).eval()
    named = {'edge_attr': torch.randn(BATCH.num_edges, 5), 'batch': BATCH.batch}
    explain = [graph_explainer(model, ALGORITHMS[algorithm](), 'binary raw [N]', level=x) for x in ('graph', 'node')]
    expected, found = (one(BATCH.x, BATCH.edge_index, **named) for one in explain)
    assert found.node_mask.equal(expected.node_mask)
    assert found.edge_mask.equal(expected.edge_mask)
