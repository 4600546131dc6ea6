r"""The model is only asked, and is left exactly as it was found."""

import copy

import models
import pytest
import torch
from models import TASKS, connected, explainer, graph
from torch.nn import BatchNorm1d, Dropout, Linear, ModuleList, Sequential
from torch_geometric.explain.config import ModelConfig
from torch_geometric.nn import (
    APPNP,
    PMLP,
    AntiSymmetricConv,
    ARMAConv,
    ChebConv,
    DirGNNConv,
    GATConv,
    GatedGraphConv,
    GCNConv,
    GINConv,
    LabelPropagation,
    MixHopConv,
    SAGEConv,
    SGConv,
    SSGConv,
    TAGConv,
)
from torch_geometric.nn import Sequential as GraphSequential

from pyg_dnx import DnX, FastDnX
from pyg_dnx.graph.graph import Graph
from pyg_dnx.teacher.outputs import to_targets
from pyg_dnx.teacher.reach import receptive_field
from pyg_dnx.teacher.teacher import Teacher


class Moody(torch.nn.Module):
    r"""A model in training, with a frozen layer, whose forward pass draws numbers, and refuses gradients."""

    def __init__(self, failure=None):
        super().__init__()
        torch.manual_seed(0)
        self.conv = GCNConv(3, 4)
        self.norm, self.frozen = BatchNorm1d(4), BatchNorm1d(4)
        self.drop = Dropout(0.5)
        self.head = Linear(4, 3)
        self.failure = failure
        self.train()
        self.frozen.eval()
        self.conv.bias.requires_grad_(False)

    def forward(self, x, edge_index):
        assert not any(module.training for module in self.modules())
        assert not torch.is_grad_enabled()
        torch.rand(5)
        x = self.head(self.drop(self.frozen(self.norm(self.conv(x, edge_index)))))
        if self.failure is not None:
            raise self.failure
        return x


def snapshot(model):
    parameters = {name: (value.requires_grad, value.grad) for name, value in model.named_parameters()}
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    return [module.training for module in model.modules()], parameters, hooks, torch.is_grad_enabled()


def ask(model, x, edge_index):
    Teacher(model, config_of('multiclass raw')).query(Graph(x, edge_index, {}))


def distill(model, x, edge_index):
    connected(FastDnX(cache=None)).distill(model, x, edge_index)


def explain_nodes(model, x, edge_index):
    connected(DnX()).explain_nodes(model, x, edge_index)


def explain(model, x, edge_index):
    algorithm = connected(DnX(), explanation_type='phenomenon', node='attributes', edge='object')
    algorithm(model, x, edge_index, target=torch.zeros(8, dtype=torch.long), index=1)


@pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
@pytest.mark.parametrize('failure', [None, RuntimeError('out of ideas'), KeyboardInterrupt()])
@pytest.mark.parametrize('call', [ask, distill, explain_nodes, explain])
@pytest.mark.parametrize('grad', [True, False])
def test_leaves_the_model_and_the_process_as_found(call, failure, grad):
    model, (x, edge_index) = Moody(failure), graph()
    x.requires_grad_()
    before, state, random = snapshot(model), copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with torch.set_grad_enabled(grad):
        if failure is None:
            call(model, x, edge_index)
        else:
            with pytest.raises(type(failure)):
                call(model, x, edge_index)
        assert torch.is_grad_enabled() == grad
    assert snapshot(model) == before
    assert model.norm.training
    assert not model.frozen.training
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert torch.get_rng_state().equal(random)
    assert x.requires_grad
    assert x.grad is None
    assert graph()[0].equal(x.detach())


def test_returns_the_outputs_of_evaluation_mode():
    model, (x, edge_index) = Moody(), graph()
    outputs = Teacher(model, config_of('multiclass raw')).query(Graph(x, edge_index, {}))
    assert not outputs.requires_grad
    with torch.no_grad():
        assert outputs.equal(copy.deepcopy(model).eval()(x, edge_index))


def test_passes_keyword_arguments_on():
    model, (x, edge_index) = models.Teacher('weighted').eval(), graph()
    weight = torch.rand(edge_index.size(1))
    outputs = Teacher(model, config_of('multiclass raw')).query(Graph(x, edge_index, {'edge_weight': weight}))
    assert outputs.equal(model(x, edge_index, weight).detach())


shared = GCNConv(4, 4)
LAYERS = {
    'GCN': (GCNConv(3, 4), 1),
    'GAT': (GATConv(3, 4), 1),
    'GIN, with layers of its own': (GINConv(Sequential(Linear(3, 4))), 1),
    'SGConv': (SGConv(3, 4, K=3), 3),
    'SSGConv': (SSGConv(3, 4, alpha=0.1, K=4), 4),
    'APPNP': (APPNP(K=5, alpha=0.1), 5),
    'TAGConv': (TAGConv(3, 4, K=2), 2),
    'ChebConv': (ChebConv(3, 4, K=3), 2),
    'ChebConv, no hop': (ChebConv(3, 4, K=1), 0),
    'MixHopConv': (MixHopConv(3, 4, powers=[0, 1, 3]), 3),
    'ARMAConv': (ARMAConv(3, 4, num_stacks=2, num_layers=3), 3),
    'GatedGraphConv': (GatedGraphConv(4, num_layers=4), 4),
    'AntiSymmetricConv': (AntiSymmetricConv(4, SGConv(4, 4, K=2), num_iters=3), 6),
    'DirGNNConv': (DirGNNConv(SGConv(3, 4, K=3)), 3),
    'LabelPropagation': (LabelPropagation(num_layers=3, alpha=0.5), 3),
    'PMLP': (PMLP(3, 4, 4, num_layers=2), 2),
    'list': (ModuleList([GCNConv(3, 4), SGConv(4, 4, K=2)]), 3),
    'nested': (Sequential(Linear(3, 4), ModuleList([Sequential(SAGEConv(4, 4)), TAGConv(4, 4, K=3)])), 4),
    'PyG sequential': (GraphSequential('x, e', [(GCNConv(3, 4), 'x, e -> x'), (APPNP(2, 0.1), 'x, e -> x')]), 3),
    'shared layer counts once': (ModuleList([shared, shared]), 1),
    'no such layer': (Sequential(Linear(3, 4), Dropout()), None),
}


@pytest.mark.parametrize('name', LAYERS)
def test_receptive_field(name):
    model, expected = LAYERS[name]
    assert receptive_field(model) == expected


@pytest.mark.parametrize(
    'name', ['GCN', 'SGConv', 'SSGConv', 'APPNP', 'TAGConv', 'ChebConv', 'MixHopConv', 'ARMAConv', 'DirGNNConv']
)
def test_receptive_field_is_how_far_the_layer_looks(name):
    layer, expected = LAYERS[name]
    nodes = torch.arange(8)
    path = torch.stack([torch.cat([nodes[:-1], nodes[1:]]), torch.cat([nodes[1:], nodes[:-1]])])
    x = torch.ones(8, 3, requires_grad=True)
    for weight in layer.parameters():  # no unit is dead
        torch.nn.init.uniform_(weight, 0.1, 1.0)
    (gradient,) = torch.autograd.grad(layer.eval()(x, path)[0].square().sum(), x)
    assert int(gradient.abs().sum(dim=1).nonzero().max()) == expected


def config_of(task):
    mode, return_type, _ = TASKS[task]
    return ModelConfig(mode, 'node', return_type)


RAW, LOGIT, PROB = [[1.0, 2.0, 4.0], [0.0, -3.0, 0.5]], [-2.0, 0.75], [0.25, 1.0]
SOFT = [[0.25, 0.75, 0.0], [0.5, 0.25, 0.25]]


def softmax(row):
    values = torch.tensor(row, dtype=torch.float64).exp()
    return (values / values.sum()).tolist()


def sigmoid(logit):
    value = 1 / (1 + torch.tensor(-logit, dtype=torch.float64).exp())
    return [1 - float(value), float(value)]


TARGETS = [  # the task, the model's outputs, and what the surrogate is distilled from
    ('multiclass raw', RAW, [softmax(row) for row in RAW]),
    ('multiclass probs', SOFT, SOFT),
    ('multiclass log_probs', torch.tensor(SOFT).log().tolist(), SOFT),  # minus infinity is a probability of 0
    ('binary raw [N]', LOGIT, [sigmoid(logit) for logit in LOGIT]),
    ('binary raw [N, 1]', [[logit] for logit in LOGIT], [sigmoid(logit) for logit in LOGIT]),
    ('binary raw [N, 2]', [[1.0, 3.0], [0.0, -1.0]], [softmax([1.0, 3.0]), softmax([0.0, -1.0])]),
    ('binary probs [N, 1]', [[prob] for prob in PROB], [[0.75, 0.25], [0.0, 1.0]]),
    ('binary probs [N, 1]', PROB, [[0.75, 0.25], [0.0, 1.0]]),  # without a column
    ('binary probs [N, 2]', [[0.75, 0.25], [0.0, 1.0]], [[0.75, 0.25], [0.0, 1.0]]),
    ('regression [N]', LOGIT, [[-2.0], [0.75]]),
    ('regression [N, 2]', [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]),
]


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(('task', 'outputs', 'expected'), TARGETS)
def test_targets_by_hand(task, outputs, expected, dtype):
    outputs = torch.tensor(outputs, dtype=dtype)
    kept = outputs.clone()
    found, _ = to_targets(outputs, config_of(task), torch.float64, outputs.device)
    assert found.dtype == torch.float64
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance)
    found.zero_()
    assert outputs.equal(kept)  # no view of the model's outputs, which may be its own parameters


def test_rounded_probabilities_are_normalised():
    outputs = torch.tensor([[0.3, 0.703, -1e-5]])
    found, _ = to_targets(outputs, config_of('multiclass probs'), torch.float64, outputs.device)
    assert found.sum() == 1
    assert found.min() == 0


@pytest.mark.parametrize('task', TASKS)
def test_predicted_target_is_pygs(task):
    model, (x, edge_index) = models.Teacher(task=task).eval(), graph()
    explain = explainer(model, FastDnX(), task)
    outputs = explain.get_prediction(x, edge_index)
    _, predicted = to_targets(outputs, explain.model_config, torch.float64, outputs.device)
    assert predicted.equal(explain.get_target(outputs))
