r"""Bad input gets a sentence that names it, and leaves everything as it was."""

import copy

import pytest
import torch
from checks_case import EDGES, INF, NAN, X, poke, refused
from models import ALGORITHMS, TASKS, Masked, Probes, Teacher, adjacencies, connected, explainer, graph
from torch_geometric.explain import Explainer

from pyg_dnx import DnX, FastDnX, Surrogate, shared_cache

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

WEIGHT = torch.ones(EDGES.size(1))
MATRIX = adjacencies(*graph('undirected')[1:], torch.ones(12), 8)

INPUTS = [  # what is given instead of good inputs, and what the error says
    ({'x': poke(X, NAN)}, "'x' must be finite (got NaN or infinity at 1 of 8 nodes)"),
    ({'x': poke(X, INF)}, "'x' must be finite (got NaN or infinity at 1 of 8 nodes)"),
    ({'x': X[:, 0]}, "'x' must have shape [N, F] with at least one node and one feature (got [8])"),
    ({'x': X[:0]}, '(got [0, 3])'),
    ({'x': X[:, :0]}, '(got [8, 0])'),
    ({'x': X[None]}, '(got [1, 8, 3])'),
    ({'x': X.tolist()}, "'x' must be a dense tensor of real numbers (got list)"),
    ({'x': X.numpy()}, '(got ndarray)'),
    ({'x': X.to_sparse_csc()}, 'torch.sparse_csc'),
    ({'x': X.cfloat()}, 'torch.complex64'),
    ({'x': {'paper': X}}, "'x' and 'edge_index' must both be dicts"),
    ({'edge_index': {('a', 'to', 'a'): EDGES}}, 'by node type and by relation, for a heterogeneous graph'),
    ({'edge_index': EDGES.T}, "'edge_index' must have shape [2, E] (got [15, 2])"),
    ({'edge_index': EDGES[0]}, "'edge_index' must have shape [2, E] (got [15])"),
    ({'edge_index': EDGES.float()}, "'edge_index' must hold node ids (got torch.float32)"),
    ({'edge_index': EDGES.bool()}, 'got torch.bool'),
    ({'edge_index': EDGES.tolist()}, "'edge_index' must be a tensor [2, E] or a sparse adjacency matrix (got list)"),
    ({'edge_index': None}, 'got NoneType'),
    ({'edge_index': poke(EDGES, 8)}, "'edge_index' must hold node ids from 0 to 7"),
    ({'edge_index': poke(EDGES, -1)}, 'got ids from -1 to 6'),
    ({'edge_index': torch.eye(5).to_sparse()}, "'edge_index' must be a matrix of shape [8, 8], as 'x' has it (got [5"),
    ({'edge_index': MATRIX['csr'], 'edge_weight': WEIGHT}, "'edge_weight' must be None if 'edge_index' is a matrix"),
    ({'edge_index': EDGES.to('meta')}, "'edge_index' must be on the device of 'x', cpu (got meta)"),
    ({'edge_weight': WEIGHT[:-1]}, "'edge_weight' must be a tensor of shape [15], one number an edge (got [14])"),
    ({'edge_weight': WEIGHT[:, None].expand(-1, 2)}, 'got [15, 2]'),
    ({'edge_weight': 1.0}, 'got float'),
    ({'edge_weight': poke(WEIGHT, NAN)}, "'edge_weight' must be finite (got NaN or infinity)"),
    ({'edge_weight': poke(WEIGHT, INF)}, "'edge_weight' must be finite (got NaN or infinity)"),
    ({'edge_weight': -2 * WEIGHT}, "'edge_weight' must give every node a positive in-degree"),
]
INDEXES = [
    (torch.tensor([], dtype=torch.long), "'index' must name at least one node (got none)"),
    (torch.zeros(8, dtype=torch.bool), "'index' must name at least one node (got none)"),
    (torch.tensor([0.0]), "'index' must hold node ids or be a boolean mask (got torch.float32)"),
    (1.5, 'got torch.float'),
    ('first', "'index' must be an int, a tensor of ids or a boolean mask (got 'first')"),
    (8, "'index' must hold node ids from -8 to 7, as 'x' has 8 nodes (got ids from 8 to 8)"),
    (torch.tensor([0, -9]), 'got ids from -9 to 0'),
    (torch.ones(5, dtype=torch.bool), "'index' must have shape [8] as a boolean mask"),
    (torch.ones(8, 1, dtype=torch.bool), '(got [8, 1])'),
]
TARGETS = [
    ('multiclass raw', torch.full((8,), 3), "'target' must hold classes from 0 to 2"),
    ('multiclass raw', torch.full((8,), -1), 'got classes from -1 to -1'),
    ('multiclass raw', torch.full((8,), 0.5), "'target' must hold one class a node, a whole number (got [0.5"),
    ('multiclass raw', torch.zeros(8, 3, dtype=torch.long), 'in 3 columns'),
    ('multiclass raw', torch.zeros(7, dtype=torch.long), "'target' must be a tensor with an entry for each of the 8"),
    ('multiclass raw', torch.tensor(1), 'got []'),
    ('multiclass raw', [0] * 8, 'got list'),
    ('multiclass raw', torch.full((8,), NAN), "'target' must hold one class a node"),
    ('binary raw [N, 1]', torch.full((8,), 2), "'target' must hold classes from 0 to 1"),
    ('regression [N, 2]', torch.zeros(8, 3), "'target' must be finite and of shape [8, 2]"),
    ('regression [N]', torch.full((8,), NAN), "'target' must be finite"),
]


class Fixed(torch.nn.Module):
    r"""A model that returns what it is told to."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, x, edge_index, edge_weight=None):
        return self.outputs


OUTPUTS = [
    ('multiclass raw', torch.zeros(3), "'model' must return outputs of shape [8] or [8, C], one row a node of 'x'"),
    ('multiclass raw', torch.zeros(1, 3), '(got [1, 3])'),
    ('multiclass raw', torch.zeros(8, 3, 1), '(got [8, 3, 1])'),
    ('multiclass raw', torch.tensor(1.0), '(got [])'),
    ('multiclass raw', (torch.zeros(8, 3), None), "'model' must return one tensor of node outputs (got tuple)"),
    ('multiclass raw', None, 'got NoneType'),
    (
        'multiclass raw',
        poke(torch.zeros(8, 3), NAN),
        "'model' must return finite outputs (got NaN or infinity at 1 of 8",
    ),
    ('multiclass raw', poke(torch.zeros(8, 3), -INF), "'model' must return finite outputs"),
    ('multiclass probs', torch.zeros(8, 3), "'model' must return rows that sum to 1 for return type 'probs'"),
    ('multiclass probs', torch.tensor([[1.5, -0.5, 0.0]]).expand(8, 3), 'got values between -0.5 and 1.5'),
    ('multiclass log_probs', torch.zeros(8, 3), "'model' must return rows that sum to 1 for return type 'log_probs'"),
    ('binary probs [N, 1]', torch.full((8, 1), 1.5), 'got values between -0.5 and 1.5'),
    ('binary raw [N, 2]', torch.zeros(8, 3), "'model' must return one or two columns"),
    ('regression [N]', poke(torch.zeros(8), INF), "'model' must return finite outputs"),
]


@pytest.fixture(params=ALGORITHMS)
def kind(request):
    return request.param


@pytest.fixture
def model():
    r"""A model, and a check that neither it nor good inputs were changed, and that they can be explained still."""
    model, x, edge_index = Teacher('weighted').train(), X.clone(), EDGES.clone()
    state = copy.deepcopy(model.state_dict())
    yield model
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert X.equal(x)
    assert EDGES.equal(edge_index)
    assert explainer(model, DnX(), edge='object')(X, EDGES, index=1).validate()


@pytest.mark.parametrize(('bad', 'text'), INPUTS)
def test_inputs(kind, model, bad, text):
    given = {'x': X, 'edge_index': EDGES, **bad}
    tensors = [value for value in given.values() if isinstance(value, torch.Tensor) and value.is_cpu]
    kept = [tensor.clone() for tensor in tensors]
    algorithm = connected(kind())
    target = torch.zeros(8, dtype=torch.long)
    refused(lambda: algorithm.distill(model, **given), text)
    refused(lambda: algorithm.explain_nodes(model, **given), text)
    refused(lambda: algorithm(model, **given, target=target, index=1), text)
    assert len(shared_cache) == 0
    for tensor, copied in zip(tensors, kept, strict=True):
        torch.testing.assert_close(tensor, copied, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(('index', 'text'), INDEXES)
def test_index(kind, model, index, text):
    algorithm = connected(kind())
    refused(lambda: algorithm.explain_nodes(model, X, EDGES, index=index), text)
    refused(lambda: algorithm(model, X, EDGES, target=torch.zeros(8, dtype=torch.long), index=index), text)
    model.eval()
    refused(lambda: explainer(model, kind())(X, EDGES, index=index), text)
    model.train()


@pytest.mark.parametrize(('task', 'target', 'text'), TARGETS)
def test_target(kind, task, target, text):
    model = Teacher(task=task).eval()
    explain = explainer(model, kind(), task, 'phenomenon')
    refused(lambda: explain(X, EDGES, target=target, index=1), text)
    refused(lambda: explain.algorithm.explain_nodes(model, X, EDGES, target=target), text)
    refused(lambda: explain.algorithm.explain_nodes(model, X, EDGES), "'target' must be a tensor")
    columns = torch.zeros(8, *TASKS[task][2])
    assert explain(X, EDGES, target=columns if 'regression' in task else columns.view(8, -1)[:, 0], index=1).validate()


@pytest.mark.parametrize(('task', 'outputs', 'text'), OUTPUTS)
def test_outputs(kind, task, outputs, text):
    algorithm, model = connected(kind(), task), Fixed(outputs)
    refused(lambda: algorithm.distill(model, X, EDGES), text)
    refused(lambda: algorithm.explain_nodes(model, X, EDGES), text)
    assert len(shared_cache) == 0
    assert algorithm.distill(Teacher(task=task), X, EDGES).num_hops == 2


class Dividing(Teacher):
    r"""A model that can't take blank features."""

    def forward(self, x, edge_index):
        return super().forward(x / x.abs().sum(dim=1, keepdim=True), edge_index)


def test_models_that_cannot_take_blank_features(kind):
    explain = explainer(Dividing().eval(), kind())
    if kind in (Masked, Probes):
        text = "'model' must answer where features are blanked (got: 'model' must return finite outputs"
        refused(lambda: explain(X, EDGES, index=0), text)
        refused(lambda: explain(X, EDGES, index=0), "use FastDnX with distillation 'paper'")
    else:
        assert explain(X, EDGES, index=0).node_score.isfinite().all()


def test_a_target_outside_the_explained_nodes_may_be_unknown(kind):
    target = torch.tensor([0, 1, 2, -1, -1, -1, -1, -1])
    explain = explainer(Teacher().eval(), kind(), explanation_type='phenomenon')
    assert explain(X, EDGES, target=target, index=torch.tensor([0, 1, 2])).validate()


def test_contrast(kind, model):
    refused(lambda: connected(kind(contrast=3)).explain_nodes(model, X, EDGES), "model's classes, 0 to 2 (got 3)")
    label = int(model.eval()(X, EDGES)[1].argmax())
    model.train()
    text = f"'contrast' must differ from the target class (got {label} for both)"
    refused(lambda: connected(kind(contrast=label)).explain_nodes(model, X, EDGES, index=1), text)


@pytest.mark.parametrize('layout', ['coo', 'csr', 'csc', 'SparseTensor'])
def test_edge_masks_need_ordered_edges(kind, model, layout):
    if layout == 'SparseTensor':
        pytest.importorskip('torch_sparse')
    algorithm = connected(kind(), edge='object')
    text = "'edge_index' must be a tensor of shape [2, E] for an edge mask"
    refused(lambda: algorithm(model, X, MATRIX[layout], target=torch.zeros(8), index=1), text)


@pytest.mark.parametrize('level', ['edge', 'graph'])
def test_methods_of_other_task_levels(kind, model, level):
    config = {'mode': 'multiclass_classification', 'task_level': level, 'return_type': 'raw'}
    algorithm = Explainer(model, kind(), 'model', config, 'object').algorithm
    text = f"'task_level' must be 'node' to explain nodes (got '{level}'): pass it in 'model_config'"
    refused(lambda: algorithm.explain_nodes(model, X, EDGES), text)


@pytest.mark.parametrize('other', [Surrogate(torch.ones(3, 2), torch.ones(2), 1, None), len, 'model'])
def test_models_that_are_no_modules(kind, other):
    algorithm = connected(kind())
    text = f"'model' must be a torch.nn.Module or None (got {type(other).__name__}): wrap it in one whose 'forward'"
    for call in (algorithm.distill, algorithm.explain_nodes):
        refused(lambda call=call: call(other, X, EDGES), text)


def test_unconnected(kind, model):
    for call in (kind().distill, kind().explain_nodes):
        refused(lambda call=call: call(model, X, EDGES), f"'{kind.__name__}' is not yet connected")
    refused(lambda: kind()(model, X, EDGES, target=torch.zeros(8)), f"'{kind.__name__}' is not yet connected")


@pytest.mark.parametrize(('k', 'text'), [(0, 'got 0'), (-1, 'got -1'), (2.0, 'got 2.0'), (True, 'got True')])
def test_top_k(kind, model, k, text):
    algorithm = connected(kind())
    refused(lambda: algorithm.explain_nodes(model, X, EDGES, top_k=k), "'top_k' must be")
    refused(lambda: algorithm.explain_nodes(model, X, EDGES, top_k=k), text)
    batch = algorithm.explain_nodes(model, X, EDGES, top_k=2)
    refused(lambda: batch.top_k(k), text)
    refused(lambda: batch.top_k(3), "'k' must be at most 2, as many as were kept (got 3)")
    with pytest.raises(IndexError):
        batch[8]


@pytest.mark.parametrize('content', [b'', b'not a surrogate', {'format': 'other'}, [1, 2], torch.zeros(2)])
def test_load(tmp_path, content):
    path = tmp_path / 'surrogate.pt'
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    refused(lambda: Surrogate.load(path), "'path' must name a file written by 'Surrogate.save'")
    surrogate = connected(FastDnX()).distill(Teacher(), X, EDGES)
    surrogate.save(path)
    assert Surrogate.load(path).weight.equal(surrogate.weight)


@pytest.mark.parametrize('x', [X[:, :2], X[0], X.tolist()])
def test_surrogate_call(x):
    surrogate = connected(FastDnX()).distill(Teacher(), X, EDGES)
    refused(lambda: surrogate(x, EDGES), "'x' must")
    assert surrogate(X, EDGES).shape == (8, 3)
