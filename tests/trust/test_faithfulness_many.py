r"""What the model answers under many explanations at once: as under each alone, however far it looks."""

import copy

import pytest
import torch
from faithfulness_case import (
    CHUNK,
    MASKS,
    NODES,
    TOGETHER,
    Global,
    assert_checks_each,
    assert_same,
    edges,
    explained,
    inputs,
)
from models import CONVS, TASKS, Mean, Teacher, adjacencies, evaluations, explainer, graph
from torch.nn import BatchNorm1d
from torch_geometric.explain.metric import fidelity
from torch_geometric.nn import DirGNNConv, GCNConv, LayerNorm, SGConv

from pyg_dnx import FastDnX, check
from pyg_dnx.run import Run
from pyg_dnx.trust.measure import checks, join

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


@pytest.mark.parametrize('conv', CONVS)
def test_many_are_checked_as_each_alone(conv):
    model = Teacher(conv).eval()
    for node, edge in MASKS:
        assert_checks_each(*explained(model, inputs(conv), node=node, edge=edge))


@pytest.mark.parametrize(('kind', 'num_evaluations'), [('model', TOGETHER), ('phenomenon', 1 + TOGETHER)])
@pytest.mark.parametrize('task', [task for task in TASKS if not task.startswith('regression')])
def test_many_of_every_task(task, kind, num_evaluations):
    assert_checks_each(*explained(Teacher(task=task).eval(), None, [3, 0, 17, 3, 9], task, kind), num_evaluations)


@edges
@pytest.mark.parametrize('kind', ['model', 'phenomenon'])
def test_every_kind_of_collection(kind, edge):
    model, (x, edge_index, _) = Teacher().eval(), inputs()
    explain, explanations = explained(model, (x, edge_index, {}), kind=kind, edge=edge)
    alone = [check(explain, explanation) for explanation in explanations]
    target = None if kind == 'model' else explanations[0].target
    many = explain.algorithm.explain_nodes(model, x, edge_index, index=NODES, target=target)
    for collection in (many, iter(many), tuple(many)):
        with evaluations(model, 1 + TOGETHER):  # none of these holds the model's prediction
            found = check(explain, collection)
        assert_same(found, alone)


def test_several_graphs_and_several_nodes_in_any_order():
    model, (x, edge_index, kwargs), heavy = Teacher('weighted').eval(), inputs('weighted'), torch.linspace(0, 9, 33)
    explain, ours = explained(model, (x, edge_index, kwargs), [0, 1, torch.tensor([5, 1]), 2, 8])
    _, others = explained(model, (*graph(), {}), [7, 1, None, 0])
    _, larger = explained(model, (2 * x, edge_index, kwargs), [6, 8])
    _, heavier = explained(model, (x, edge_index, {'edge_weight': heavy}), [8])
    _, turned = explained(model, (x, edge_index.flip(0), {'edge_weight': heavy}), [8])
    mixed = [ours[0], *others[:2], *ours[1:4], others[2], others[3], *larger, ours[4], *heavier, *turned]
    assert check(explain, mixed).index.tolist() == [0, 7, 1, 1, 5, 1, 2, *range(8), 0, 6, 8, 8, 8, 8]
    assert_checks_each(explain, mixed, 9 * CHUNK + 8 + 2 * 2)  # chunks, graphs, and explanations of several nodes
    assert check(explain, mixed).unfaithfulness[-4:].unique().numel() == 4


class Attributed(Teacher):
    def forward(self, x, edge_index, edge_attr, position, scale, offset):
        x = x + position.index_add(0, edge_index[1], edge_attr)
        return scale * super().forward(x, edge_index) + offset


def test_further_arguments():
    x, edge_index, _ = inputs()
    edge_attr = torch.arange(3.0 * edge_index.size(1)).view(-1, 3).cos()
    kwargs = {'edge_attr': edge_attr, 'position': 2 * x.sin(), 'scale': 2.0, 'offset': torch.tensor([0.5, 0.0, -0.5])}
    assert_checks_each(*explained(Attributed().eval(), (x, edge_index, kwargs), edge='object'))


class Changed(Teacher):
    def __init__(self, conv1=None, act=None, flow='source_to_target'):
        super().__init__()
        self.conv1, self.act = conv1() if conv1 else self.conv1, act or self.act
        self.conv1.flow = self.conv2.flow = flow


class Embedded(Teacher):  # fails on any other graph
    def forward(self, x, edge_index):
        return super().forward(x + inputs()[0].sin(), edge_index)


class Twice(Teacher):  # looks a hop farther than its layers tell
    def forward(self, x, edge_index):
        return super().forward(self.conv1(x, edge_index)[:, :3], edge_index)


class Sums(torch.nn.Module):  # looks four hops far
    def forward(self, x, edge_index):
        for _ in range(4):
            x = x.index_add(0, edge_index[1], x[edge_index[0]]) / 4
        return x


# Each node that a copy is wrong about takes two evaluations of the graph.
NOTICED, SINGLY = 1 + 2 * len(NODES), 2 * len(NODES)
REACHES = [  # how far the model looks, what it is told, and how its explanations are checked
    ('global mean', Global, None, NOTICED),
    ('global mean, hardly', type('Rounded', (Global,), {'share': 1e-7}), None, TOGETHER),
    ('embedding', Embedded, None, SINGLY),
    ('layer norm', lambda: Changed(act=LayerNorm(4)), None, NOTICED),
    ('batch norm', lambda: Changed(act=BatchNorm1d(4, track_running_stats=False)), None, NOTICED),
    ('both directions', lambda: Changed(lambda: DirGNNConv(GCNConv(3, 4))), None, TOGETHER + 2 * 3),
    ('against the edges', lambda: Changed(flow='target_to_source'), None, TOGETHER),
    ('a layer twice', Twice, None, TOGETHER + 2 * 2),
    ('a layer twice', Twice, 3, TOGETHER),
    ('too few hops', Teacher, 1, TOGETHER + 2 * 3),
    ('more hops than needed', Teacher, 50, TOGETHER),
    ('no PyG layer', Sums, None, SINGLY),
    ('no PyG layer', Sums, 2, TOGETHER + 2 * 2),
    ('no PyG layer', Sums, 4, TOGETHER),
]


@pytest.mark.parametrize(('name', 'create', 'num_hops', 'num_evaluations'), REACHES)
def test_how_far_a_model_looks(name, create, num_hops, num_evaluations):
    assert_checks_each(*explained(create().eval(), edge='object'), num_evaluations, num_hops=num_hops)


@pytest.mark.parametrize(('create', 'entries'), [(Teacher, 1), (Teacher, 8), (Teacher, 2**20), (Global, 1)])
def test_chunks_change_nothing(create, entries):
    (explain, explanations), calls = explained(create().eval(), edge='object'), []
    handle = explain.model.register_forward_hook(lambda *_: calls.append(1))
    found = list(checks(explain, explanations, 2, Run(entries=entries)))
    handle.remove()
    assert (len(calls) > TOGETHER) == (entries < 2**20)
    assert_same(join(found), [check(explain, explanation) for explanation in explanations])


@pytest.mark.parametrize('progress', [True, False, None])
def test_progress_is_shown_when_asked_for(progress, capsys):
    assert_checks_each(*explained(Teacher().eval(), edge='object'), progress=progress)
    assert ('4/4' in capsys.readouterr().err) == (progress is True)


@pytest.mark.parametrize('name', ['coo', 'csr', 'csc', 'SparseTensor'])
def test_matrices(name):
    x, edge_index = graph('undirected')
    matrix = adjacencies(edge_index, torch.linspace(0.5, 2.0, edge_index.size(1)), 8).get(name)
    if matrix is None:
        pytest.skip('torch_sparse is not installed')
    model = Teacher() if name == 'SparseTensor' else Mean()
    explain, explanations = explained(model.eval(), (x, matrix, {}), [0, 3, 7])
    assert_checks_each(explain, explanations, 6)
    for explanation in explanations:
        found = check(explain, explanation)
        assert (float(found.fidelity_plus), float(found.fidelity_minus)) == fidelity(explain, explanation)


def test_layers_that_keep_what_they_computed():
    plain = Changed(lambda: SGConv(3, 4)).eval()
    cached = copy.deepcopy(plain)
    cached.conv1.cached = cached.conv2.cached = True
    (_, expected), (explain, explanations) = explained(plain, edge='object'), explained(cached, edge='object')
    assert_checks_each(explain, explanations)
    assert_same(check(explain, explanations), [check(explainer(plain, FastDnX()), expected)])
