r"""Odd but good input works, and nothing outside the explanation changes."""

import ast
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from models import ALGORITHMS, DEVICES, Bare, Mean, Teacher, adjacencies, connected, explainer, graph
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, GCNConv

import pyg_dnx
from pyg_dnx import FastDnX, SurrogateWarning, certify, shared_cache

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

every = pytest.mark.parametrize('kind', ALGORITHMS)


def masks_of(explanation):
    return {key: explanation[key] for key in explanation.available_explanations}


def explain_all(kind, model, x, edge_index, **options):
    r"""Explains in every way, and returns the explanations."""
    found = []
    for node, edge in [('object', 'object'), ('attributes', None), ('common_attributes', 'object')]:
        explain = explainer(model, kind(**options), node=node, edge=edge)
        for index in (0, torch.arange(x.size(0)), None):
            found.append(explain(x, edge_index, index=index))
        found.append(explain.algorithm.explain_nodes(model, x, edge_index)[-1])
    for explanation in found:
        assert explanation.validate(raise_on_error=True)
        for mask in masks_of(explanation).values():
            assert mask.isfinite().all()
            assert mask.numel() == 0 or (mask.min() >= 0 and mask.max() <= 1)
        assert explanation.node_score.isfinite().all()
    return found


class Constant(torch.nn.Module):
    def forward(self, x, edge_index):
        return x.new_tensor([1.0, 2.0, 0.0]).expand(x.size(0), 3)


ODD = {
    'no edges': lambda x, edge_index: (x, edge_index[:, :0]),
    'one node': lambda x, edge_index: (x[:1], edge_index[:, :0]),
    'one node with a loop': lambda x, edge_index: (x[:1], torch.zeros(2, 1, dtype=torch.long)),
    'one feature': lambda x, edge_index: (x[:, :1], edge_index),
    'zero features': lambda x, edge_index: (torch.zeros_like(x), edge_index),
    'constant features': lambda x, edge_index: (torch.ones_like(x), edge_index),
    'non-contiguous': lambda x, edge_index: (x.T.contiguous().T, edge_index.T.contiguous().T),
    'strided': lambda x, edge_index: (x.repeat_interleave(2, dim=0)[::2], edge_index.repeat_interleave(2, 1)[:, ::2]),
    'requires grad': lambda x, edge_index: (x.requires_grad_(), edge_index),
    'huge features': lambda x, edge_index: (x * 1e12, edge_index),
    'tiny features': lambda x, edge_index: (x * 1e-12, edge_index),
    'one-hot features': lambda x, edge_index: (torch.eye(8), edge_index),
    'every edge twice': lambda x, edge_index: (x, edge_index.repeat(1, 2)),
}


@every
@pytest.mark.parametrize('name', ODD)
def test_odd_graphs(kind, name):
    x, edge_index = ODD[name](*graph())
    for model in (Teacher(num_features=x.size(1)).eval(), Constant()):
        explain_all(kind, model, x, edge_index, num_hops=2)


def test_strides_do_not_matter():
    model, (x, edge_index) = Teacher().eval(), graph()
    expected = explain_all(FastDnX, model, x, edge_index)
    for name in ('non-contiguous', 'strided', 'requires grad'):
        for found, explanation in zip(explain_all(FastDnX, model, *ODD[name](*graph())), expected, strict=True):
            torch.testing.assert_close(found.node_score, explanation.node_score)
            assert not found.node_score.requires_grad


@every
def test_integer_features(kind):
    class Cast(Teacher):
        def forward(self, x, edge_index):
            return super().forward(x.float(), edge_index)

    x, edge_index = graph()
    x = (3 * x).long()
    found = explain_all(kind, Cast().eval(), x, edge_index)
    expected = explain_all(kind, Teacher().eval(), x.float(), edge_index)
    for one, other in zip(found, expected, strict=True):
        assert all(mask.dtype == torch.float32 for mask in masks_of(one).values())
        torch.testing.assert_close(one.node_score, other.node_score)


@every
@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize('conv', ['gcn', 'gat'])
def test_precisions(kind, dtype, conv):
    x, edge_index = graph()
    model = Teacher(conv).eval().to(dtype)
    for explanation in explain_all(kind, model, x.to(dtype), edge_index):
        assert all(mask.dtype == dtype for mask in masks_of(explanation).values())
        assert explanation.node_score.dtype == (dtype if dtype == torch.float64 else torch.float32)


@every
def test_inference_mode(kind):
    x, edge_index = graph()
    expected = explain_all(kind, Teacher().eval(), x, edge_index)
    with torch.inference_mode():
        model = Teacher().eval()
        found = explain_all(kind, model, x.clone(), edge_index.clone())
        found += explain_all(kind, model, x, edge_index)
    for one, other in zip(found, expected * 2, strict=True):
        torch.testing.assert_close(one.node_score, other.node_score)


@every
@pytest.mark.parametrize('sort_order', [None, 'row', 'col'])
def test_edge_index_class(kind, sort_order):
    x, edge_index = graph('directed')
    if sort_order is not None:
        edge_index = edge_index[:, edge_index[0 if sort_order == 'row' else 1].argsort()]
    typed = EdgeIndex(edge_index, sparse_size=(8, 8), sort_order=sort_order)
    model = Teacher().eval()
    expected = explain_all(kind, model, x, edge_index)
    for one, other in zip(explain_all(kind, model, x, typed), expected, strict=True):
        torch.testing.assert_close(one.node_score, other.node_score)
        for name, mask in masks_of(one).items():
            assert type(mask) is torch.Tensor
            torch.testing.assert_close(mask, other[name])
    explain = explainer(model, kind(), edge='object')
    kept, others = (certify(explain, explain(x, edges, index=0)).measured.kept for edges in (typed, edge_index))
    torch.testing.assert_close(kept, others)


@every
@pytest.mark.parametrize('layout', ['coo', 'csr', 'csc', 'SparseTensor'])
@pytest.mark.parametrize('conv', [GCNConv, GATConv, None])
def test_matrices_equal_edge_lists(kind, layout, conv):
    if layout == 'SparseTensor':
        pytest.importorskip('torch_sparse')
    if layout == 'csc' and conv is not None:
        conv = None  # PyG's layers don't take it
    x, edge_index = graph('directed')
    weight = torch.ones(edge_index.size(1))
    matrices = adjacencies(edge_index, weight, 8)
    torch.manual_seed(0)
    model = Mean() if conv is None else conv(3, 3).eval()
    if conv is None:  # by hand, on both kinds of input
        model.forward = lambda x, graph: Mean.forward(model, x, graph if graph.size(0) == 8 else matrices['coo'])
    for node in ('object', 'attributes', 'common_attributes'):
        explain = explainer(model, kind(num_hops=1), node=node)
        for index in (1, torch.tensor([2, 6]), None):
            expected = explain(x, edge_index, index=index)
            found = explain(x, matrices[layout], index=index)
            torch.testing.assert_close(found.node_mask, expected.node_mask)
            torch.testing.assert_close(found.node_score, expected.node_score, rtol=1e-3, atol=1e-6)


@every
def test_flow(kind):
    class Flow(torch.nn.Module):
        def __init__(self, flow):
            super().__init__()
            torch.manual_seed(0)
            self.conv = GCNConv(3, 3, flow=flow)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)

    x, edge_index = graph('directed')
    explain = explainer(Flow('target_to_source').eval(), kind(edge_score='flow'), edge='object')
    mirrored = explainer(Flow('source_to_target').eval(), kind(edge_score='flow'), edge='object')
    for node in range(8):
        found, expected = explain(x, edge_index, index=node), mirrored(x, edge_index.flip(0), index=node)
        torch.testing.assert_close(found.node_score, expected.node_score)
        torch.testing.assert_close(found.edge_score, expected.edge_score)
    assert explain(x, edge_index, index=0).node_mask.view(-1).nonzero().view(-1).tolist() == [0, 1]  # the edge 0 -> 1


@every
def test_models_without_pyg_layers(kind):
    x, edge_index = graph()
    explain_all(kind, Bare().eval(), x, edge_index)
    adjacency = adjacencies(edge_index, torch.ones(edge_index.size(1)), 8)['coo']
    surrogate = connected(kind(num_hops=0)).distill(Bare().eval(), x, edge_index)
    assert surrogate.num_hops == 0
    found = explainer(Mean(), kind())(x, adjacency, index=0)
    assert found.validate_masks()
    assert found.node_score.isfinite().all()


class Random(torch.nn.Module):
    r"""A model that still drops in evaluation mode."""

    def forward(self, x, edge_index):
        return torch.nn.functional.dropout(torch.ones(8, 4), 0.5, training=True) + 1e-3 * x.sum()


@every
@pytest.mark.parametrize('cache', [True, False])
def test_random_models_are_reported(kind, cache):
    explain, inputs = explainer(Random(), kind(**({} if cache else {'cache': None}))), graph()
    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.warns(SurrogateWarning, match='gave other predictions'):
            explain(*inputs, index=0)


@pytest.mark.parametrize('cache', [True, False])
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
@pytest.mark.parametrize('device', DEVICES)
@every
def test_default_device_is_not_used(kind, device, task, cache):
    model, index = Teacher(task=task).eval().to(device), torch.tensor([1])
    x, edge_index = (tensor.to(device) for tensor in graph())
    options = {} if cache else {'cache': None}

    def found():
        for node, edge in [('object', 'object'), ('attributes', None), ('common_attributes', None), (None, 'object')]:
            for hops in (None, 'auto'):
                explain = explainer(model, kind(num_hops=hops, edge_score='flow', **options), task, 'model', node, edge)
                for given in (index, None):
                    yield from masks_of(explain(x, edge_index, index=given)).values()
                batch = explain.algorithm.explain_nodes(model, x, edge_index)
                few = explain.algorithm.explain_nodes(model, x, edge_index, index=3, top_k=2)
                yield from (batch.scores.to_dense(), batch[2].node_score, few.top_k(2)[1])

    expected = list(found())
    shared_cache.clear()
    torch.set_default_device('meta')
    try:
        actual = list(found())
    finally:
        torch.set_default_device(None)
    assert {tensor.device.type for tensor in actual} == {device}
    # PyTorch takes indices on 'meta' without a word, and finds anything there.
    assert all(one.equal(other) for one, other in zip(actual, expected, strict=True))


FACTORIES = [
    *('arange', 'as_tensor', 'empty', 'eye', 'full', 'linspace', 'ones', 'rand', 'randint', 'randn', 'randperm'),
    *('tensor', 'zeros'),
]


def test_every_new_tensor_names_its_device():
    for path in Path(pyg_dnx.__file__).parent.rglob('*.py'):
        if path.parent.name != 'datasets':  # which are made with the CPU as the default
            calls = [node for node in ast.walk(ast.parse(path.read_text('utf-8'))) if isinstance(node, ast.Call)]
            made = [call for call in calls if ast.unparse(call.func) in [f'torch.{name}' for name in FACTORIES]]
            missing = [call.lineno for call in made if 'device' not in [keyword.arg for keyword in call.keywords]]
            assert missing == [], path.name


SCRIPT = textwrap.dedent("""
    import hashlib, warnings, pyg_dnx
    from models import ALGORITHMS, Teacher, connected, explainer, graph
    warnings.simplefilter('ignore', pyg_dnx.SurrogateWarning)
    digest = hashlib.sha256()
    for kind in ALGORITHMS:
        model = Teacher('sage').eval()
        found = explainer(model, kind(num_hops='auto'), node='attributes', edge='object')(*graph(), index=1)
        batch = connected(kind()).explain_nodes(model, *graph())
        for tensor in (found.node_score, found.node_mask, found.edge_score, batch.scores.to_dense(), batch.top_k(3)[1]):
            digest.update(tensor.numpy().tobytes())
    print(digest.hexdigest())
""")


def test_two_processes_agree_and_neither_warns():
    command = [sys.executable, '-W', 'error::UserWarning', '-c', SCRIPT]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    processes = [subprocess.Popen(command, cwd=Path(__file__).parents[1], **pipes) for _ in range(2)]
    (first, problem), (second, _) = (process.communicate() for process in processes)
    assert len(first.strip()) == 64, problem
    assert first == second


@every
def test_global_state_is_unchanged(kind):
    def state():
        filters = [*warnings.filters]
        return filters, torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()

    model, (x, edge_index) = Teacher().eval(), graph()
    before, random = state(), torch.get_rng_state()
    explain_all(kind, model, x, edge_index, num_hops='auto')
    assert state() == before
    assert torch.get_rng_state().equal(random)
