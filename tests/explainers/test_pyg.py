r"""Every combination that PyG's explain API offers, through PyG's own ``Explainer``, metrics and plots."""

from functools import partial
from itertools import product

import pytest
import torch
from helpers import dense_adjacency, example_graphs, is_overwritten
from models import CONVS, TASKS, Teacher, explainer, graph
from torch_geometric.explain import GNNExplainer
from torch_geometric.explain.metric import characterization_score, fidelity, unfaithfulness

from pyg_dnx import DnX, FastDnX, ProbeDnX

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

ALGORITHMS = {
    'FastDnX': FastDnX,
    'DnX': DnX,
    'masked FastDnX': partial(FastDnX, distillation='masked'),
    'ProbeDnX': partial(ProbeDnX, num_probes=8),
}
MASKS = [pair for pair in product(['object', 'attributes', 'common_attributes', None], ['object', None]) if any(pair)]
INDEXES = {
    'int': (4, [4]),
    'negative': (-8, [0]),
    '0-d': (torch.tensor(6), [6]),
    '1-d': (torch.tensor([2, -5, 7]), [2, 3, 7]),
    'bool': (torch.tensor([True, False, False, True, False, False, False, False]), [0, 3]),
    'None': (None, list(range(8))),
}
TARGETS = {  # of explanations of a phenomenon
    'multiclass': torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]),
    'binary': torch.tensor([0, 1, 1, 0, 1, 0, 0, 1]),
    'regression': torch.linspace(-1, 1, 8),
}
NUM_HOPS = 2
ADJACENCY = dense_adjacency(example_graphs()['looped'].edge_index, None, 8)
REACH = {num_hops: torch.linalg.matrix_power(ADJACENCY, num_hops) > 0 for num_hops in range(NUM_HOPS + 1)}


def inputs(conv):
    example = example_graphs()['weighted' if conv == 'weighted' else 'looped']
    return example.x, example.edge_index, {} if example.edge_weight is None else {'edge_weight': example.edge_weight}


def target_of(task, explanation_type):
    if explanation_type == 'model':
        return None
    target = TARGETS[task.split()[0]]
    return target[:, None].expand(-1, 2) if task == 'regression [N, 2]' else target


def field(nodes, num_hops=NUM_HOPS):
    r"""The nodes that ``nodes`` see within ``num_hops``, as a boolean mask."""
    return REACH[num_hops][nodes].any(dim=0)


def check(explanation, x, edge_index, nodes, node_mask_type, edge_mask_type):
    assert explanation.validate(raise_on_error=True)
    expected = {'object': (8, 1), 'attributes': (8, 3), 'common_attributes': (1, 3), None: None}[node_mask_type]
    inside = field(nodes)
    assert ('node_mask' in explanation) == (expected is not None)
    if expected is not None:
        mask = explanation.node_mask
        assert mask.shape == expected
        assert mask.dtype == x.dtype
        assert mask.isfinite().all()
        assert mask.min() >= 0
        assert mask.max() <= 1
        if node_mask_type != 'common_attributes':  # ranks are positive inside the neighbourhood, and there only
            assert (mask > 0).equal(inside[:, None].expand_as(mask))
    score = explanation.node_score
    assert score.shape == ((8, 3) if node_mask_type == 'attributes' else (8,))
    assert score.isfinite().all()
    assert not score[~inside].any()

    assert ('edge_mask' in explanation) == ('edge_score' in explanation) == (edge_mask_type is not None)
    if edge_mask_type is not None:
        overwritten = torch.tensor([is_overwritten(edge_index, e) for e in range(edge_index.size(1))])
        carries = field(nodes, NUM_HOPS - 1)[edge_index[1]] & ~overwritten
        assert explanation.edge_mask.shape == explanation.edge_score.shape == (edge_index.size(1),)
        assert explanation.edge_mask.max() <= 1
        assert (explanation.edge_mask > 0).equal(carries)
        assert explanation.edge_score.isfinite().all()
        assert not explanation.edge_score[~carries].any()

    assert explanation.surrogate_agreement.shape == explanation.bias_decides.shape == (len(nodes),)
    assert explanation.surrogate_agreement.dtype == explanation.bias_decides.dtype == torch.bool
    assert explanation.distillation_error.shape == (len(nodes),)
    assert (explanation.distillation_error >= 0).all()


def check_metrics(explain, explanation):
    for share in fidelity(explain, explanation):
        assert 0 <= share <= 1
    assert unfaithfulness(explain, explanation) <= 1
    assert characterization_score(*map(torch.tensor, fidelity(explain, explanation))) <= 1


# What asks under masks only evaluates the model more often: two layers stand for all.
FEW = ('gat', 'weighted')
PAIRS = [(name, conv) for name in ALGORITHMS for conv in CONVS if name in ('FastDnX', 'DnX') or conv in FEW]


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize(('algorithm', 'conv'), PAIRS)
def test_every_combination(algorithm, conv, task):
    model = Teacher(conv, task).eval()
    x, edge_index, kwargs = inputs(conv)
    # PyG flattens the predictions of a binary model with two columns, which its metrics can't compare
    measured = conv in ('gcn', 'weighted') and task.split()[0] != 'regression' and task[-2] != '2'
    for (node, edge), explanation_type in product(MASKS, ['model', 'phenomenon']):
        explain = explainer(model, ALGORITHMS[algorithm](), task, explanation_type, node, edge)
        for name, (index, nodes) in INDEXES.items():
            try:
                target = target_of(task, explanation_type)
                explanation = explain(x, edge_index, target=target, index=index, **kwargs)
                check(explanation, x, edge_index, nodes, node, edge)
                if name == '1-d' and measured:
                    check_metrics(explain, explanation)
            except Exception as error:
                where = f'{algorithm}, {conv}, {task}, {explanation_type}, masks {node}/{edge}, index {name}'
                raise AssertionError(where) from error


def test_there_are_enough_combinations():
    assert len(CONVS) * len(TASKS) * len(MASKS) * len(INDEXES) * 2 >= 1176


@pytest.mark.parametrize(('node', 'edge'), MASKS)
@pytest.mark.parametrize('algorithm', ALGORITHMS.values())
def test_thresholds(algorithm, node, edge):
    x, edge_index = graph()
    explain = explainer(Teacher().eval(), algorithm(), node=node, edge=edge)
    explanation = explain(x, edge_index, index=1)
    masks = {key: explanation[key] for key in explanation.available_explanations}
    for key, mask in masks.items():
        soft, hard = explanation.threshold('topk', 3)[key], explanation.threshold('topk_hard', 2)[key]
        assert soft.count_nonzero() == min(3, mask.count_nonzero())
        assert soft.max() == mask.max()
        assert hard.count_nonzero() == 2
        assert explanation.threshold('hard', 0.5)[key].equal((mask > 0.5).float())
    config = ('topk', 3)
    direct = explainer(Teacher().eval(), algorithm(), node=node, edge=edge, threshold_config=config)
    for key in masks:
        assert direct(x, edge_index, index=1)[key].equal(explanation.threshold(*config)[key])


@pytest.mark.parametrize(('node', 'edge'), [pair for pair in MASKS if pair[0] != 'common_attributes'])
@pytest.mark.parametrize('algorithm', ALGORITHMS.values())
def test_subgraphs(algorithm, node, edge):
    x, edge_index = graph()
    explanation = explainer(Teacher().eval(), algorithm(), node=node, edge=edge)(x, edge_index, index=0)
    inside = field([0])
    carries = field([0], NUM_HOPS - 1)[edge_index[1]]
    both = inside[edge_index].all(dim=0) if node else torch.ones_like(carries)
    neither = ~inside[edge_index].any(dim=0) if node else torch.ones_like(carries)

    part, rest = explanation.get_explanation_subgraph(), explanation.get_complement_subgraph()
    assert part.num_nodes == (inside.sum() if node else 8)
    assert rest.num_nodes == ((~inside).sum() if node else 8)
    assert part.num_edges == (both & carries if edge else both).sum()
    assert rest.num_edges == (neither & ~carries if edge else neither).sum()
    assert part.node_score.size(0) == part.num_nodes
    assert part.validate(raise_on_error=True)
    if node:
        assert part.x.equal(x[inside])
        assert rest.x.equal(x[~inside])


@pytest.mark.parametrize('algorithm', ALGORITHMS.values())
def test_visualize_graph(algorithm, tmp_path):
    x, edge_index = graph()
    explanation = explainer(Teacher().eval(), algorithm(), node=None, edge='object')(x, edge_index, index=0)
    explanation.visualize_graph(str(tmp_path / 'graph.png'), backend='networkx')
    assert (tmp_path / 'graph.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize('node', ['attributes', 'common_attributes'])
@pytest.mark.parametrize('algorithm', ALGORITHMS.values())
def test_visualize_feature_importance(algorithm, node, tmp_path):
    x, edge_index = graph()
    explanation = explainer(Teacher().eval(), algorithm(), node=node)(x, edge_index, index=0)
    path = tmp_path / 'features.png'
    explanation.visualize_feature_importance(str(path), feat_labels=['a', 'b', 'c'], top_k=2)
    assert path.read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize(('node', 'edge'), MASKS)
def test_swaps_with_gnn_explainer(node, edge):
    x, edge_index = graph()

    def script(algorithm):
        explain = explainer(Teacher().eval(), algorithm, node=node, edge=edge)
        explanation = explain(x, edge_index, index=torch.tensor([1, 2]))
        check_metrics(explain, explanation)
        masks = {key: explanation[key] for key in explanation.available_explanations}
        return {key: (mask.shape, mask.dtype, mask.requires_grad) for key, mask in masks.items()}

    expected = script(GNNExplainer(epochs=2))
    assert script(FastDnX()) == expected
    assert script(DnX()) == expected
