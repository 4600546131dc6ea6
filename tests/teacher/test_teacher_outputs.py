r"""A model whose outputs are known need not be evaluated, nor be there at all."""

import warnings

import numpy as np
import pytest
import torch
from helpers import example_graphs
from models import TASKS, Mean, Teacher, adjacencies, connected, evaluations, graph, in_chunks

from pyg_dnx import DnX, FastDnX, shared_cache

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


def as_array(outputs, folder):
    return outputs.numpy().copy()


def as_memmap(outputs, folder):
    r"""An array on disk that can't be written to."""
    np.save(folder / 'outputs.npy', outputs.numpy())
    return np.load(folder / 'outputs.npy', mmap_mode='r')


def as_graph_output(outputs, folder):
    return outputs.clone().requires_grad_()


WAYS = {'tensor': lambda outputs, folder: outputs, 'array': as_array, 'memmap': as_memmap, 'grad': as_graph_output}


def outputs_of(model, *inputs):
    with torch.no_grad():
        return model.eval()(*inputs)


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('task', TASKS)
def test_outputs_stand_for_the_model(task, way, tmp_path):
    model, inputs = Teacher(task=task), graph()
    algorithm = connected(FastDnX(cache=None, num_hops=2), task)
    expected = algorithm.explain_nodes(model, *inputs)
    outputs = WAYS[way](outputs_of(model, *inputs), tmp_path)
    doubt = 'The surrogate disagrees|Explanations are doubtful'
    with evaluations(model, 0), warnings.catch_warnings():
        warnings.filterwarnings('error', category=UserWarning, message=f'(?!{doubt})')  # as on read-only arrays
        found = algorithm.explain_nodes(model, *inputs, teacher_outputs=outputs)
        alone = algorithm.explain_nodes(None, *inputs, teacher_outputs=outputs)
        surrogate = algorithm.distill(None, *inputs, teacher_outputs=outputs)
    for other in (found, alone):
        assert other.scores.values().equal(expected.scores.values())
        assert other.distillation_error.equal(expected.distillation_error)
        assert other[3].target.equal(expected[3].target)
    assert surrogate.weight.equal(expected.surrogate.weight)


@pytest.mark.parametrize('kind', [FastDnX, DnX])
@pytest.mark.parametrize('options', [{'score': 'target'}, {'contrast': 'runner_up'}, {}])
def test_targets_come_from_the_outputs(kind, options):
    model, inputs = Teacher(), graph()
    algorithm = connected(kind(cache=None, num_hops=2, **options))
    expected = algorithm.explain_nodes(model, *inputs, top_k=3)
    found = algorithm.explain_nodes(None, *inputs, top_k=3, teacher_outputs=outputs_of(model, *inputs))
    assert found.top_k(3)[0].equal(expected.top_k(3)[0])
    assert found.top_k(3)[1].equal(expected.top_k(3)[1])


@pytest.mark.parametrize('way', ['tensor', 'memmap'])
@pytest.mark.parametrize('task', ['multiclass log_probs', 'binary raw [N]', 'regression [N, 2]'])
@pytest.mark.parametrize('rows', [1, 3, 8])
def test_reading_in_pieces_changes_nothing(task, way, rows, tmp_path):
    model, inputs = Teacher(task=task), graph()
    algorithm = connected(FastDnX(cache=None, num_hops=2), task)
    outputs = WAYS[way](outputs_of(model, *inputs), tmp_path)
    expected = algorithm.explain_nodes(None, *inputs, teacher_outputs=outputs)
    found = in_chunks(algorithm, rows * 3).explain_nodes(None, *inputs, teacher_outputs=outputs)
    assert found.scores.values().equal(expected.scores.values())
    assert found[0].target.equal(expected[0].target)


def test_an_unknown_model_looks_up_to_three_hops():
    model, inputs = Teacher(), graph()
    surrogate = connected(FastDnX()).distill(None, *inputs, teacher_outputs=outputs_of(model, *inputs))
    assert list(surrogate.report.held_out) == [0, 1, 2, 3]
    with evaluations(model, 0):  # of a known one, the layers are looked at
        known = connected(FastDnX()).distill(model, *inputs, teacher_outputs=outputs_of(Teacher(), *inputs))
    assert (known.num_hops, known.report.held_out) == (2, None)


@pytest.mark.parametrize('way', WAYS)
def test_surrogates_without_a_model_are_cached(way, tmp_path):
    inputs, algorithm = graph(), connected(FastDnX())
    outputs = WAYS[way](outputs_of(Teacher(), *inputs), tmp_path)
    first = algorithm.distill(None, *inputs, teacher_outputs=outputs)
    assert algorithm.explain_nodes(None, *inputs, teacher_outputs=outputs).surrogate is first
    assert connected(DnX()).distill(None, *inputs, teacher_outputs=outputs) is first
    assert len(shared_cache) == 1
    assert algorithm.distill(Teacher(), *inputs) is not first
    assert algorithm.distill(None, *inputs, teacher_outputs=outputs_of(Teacher('sage'), *inputs)) is not first


@pytest.mark.parametrize('way', ['tensor', 'array'])
def test_changed_outputs_are_noticed(way, tmp_path):
    inputs, algorithm = graph(), connected(FastDnX())
    outputs = WAYS[way](outputs_of(Teacher(), *inputs), tmp_path)
    before, hits = algorithm.distill(None, *inputs, teacher_outputs=outputs), shared_cache.hits
    outputs[:3] *= -1.0
    after = algorithm.distill(None, *inputs, teacher_outputs=outputs)
    assert shared_cache.hits == hits
    assert not after.weight.equal(before.weight)
    assert after is algorithm.distill(None, *inputs, teacher_outputs=outputs)
    assert shared_cache.hits == hits + 1


BAD = {
    'list': ([[0.0] * 3] * 8, TypeError, r"'teacher_outputs' must be a tensor or a NumPy array \(got list\): "),
    'model': (Teacher(), TypeError, r"'teacher_outputs' must be .* \(got Teacher\): "),
    'a row short': (torch.zeros(7, 3), ValueError, r"'teacher_outputs' must have shape \[8\] or .*\(got \[7, 3\]\): "),
    'too deep': (np.zeros((8, 3, 1)), ValueError, r"'teacher_outputs' must have shape .*\(got \[8, 3, 1\]\): "),
    'a number': (torch.tensor(1.0), ValueError, r"'teacher_outputs' must have shape .*\(got \[\]\): "),
    'nothing': (None, TypeError, r"'model' must be a module unless 'teacher_outputs' is given \(got None\): "),
    'not finite': (torch.full((8, 3), torch.nan), ValueError, r'finite outputs \(got NaN or infinity at 8 of 8 rows'),
}


@pytest.mark.parametrize('name', BAD)
@pytest.mark.parametrize('call', ['explain_nodes', 'distill'])
def test_bad_outputs_are_named(name, call):
    outputs, error, text = BAD[name]
    with pytest.raises(error, match=text):
        getattr(connected(FastDnX()), call)(None, *graph(), teacher_outputs=outputs)
    assert len(shared_cache) == 0


def mapped(tensor, path):
    r"""The same tensor, in a file."""
    tensor.contiguous().numpy().tofile(path)
    return torch.from_file(str(path), shared=True, size=tensor.numel(), dtype=tensor.dtype).view(tensor.shape)


@pytest.mark.parametrize('kind', [FastDnX, DnX])
@pytest.mark.parametrize('top_k', [None, 3])
@pytest.mark.parametrize('max_memory', [None, 1])
def test_a_graph_on_disk_is_explained_alike(kind, top_k, max_memory, tmp_path):
    x, edge_index, _ = example_graphs()['directed']
    weight = torch.rand(edge_index.size(1), generator=torch.Generator().manual_seed(0)) + 0.1
    matrix = adjacencies(edge_index, weight, 8)['csr']
    outputs = outputs_of(Mean(), x, matrix)
    parts = {'x': x, 'rowptr': matrix.crow_indices(), 'col': matrix.col_indices(), 'value': matrix.values()}
    files = {name: mapped(part, tmp_path / name) for name, part in parts.items()}
    content = {name: (tmp_path / name).read_bytes() for name in parts}
    adjacency = torch.sparse_csr_tensor(files['rowptr'], files['col'], files['value'], (8, 8), check_invariants=True)

    algorithm = connected(kind(cache=None, num_hops=2, max_memory=max_memory))
    found = algorithm.explain_nodes(None, files['x'], adjacency, top_k=top_k, teacher_outputs=outputs)
    given = {'edge_weight': weight, 'teacher_outputs': outputs}
    expected = connected(kind(cache=None, num_hops=2)).explain_nodes(None, x, edge_index, top_k=top_k, **given)
    for one, other in zip(found.top_k(3), expected.top_k(3), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    if top_k is None:
        torch.testing.assert_close(found.scores.to_dense(), expected.scores.to_dense(), rtol=1e-4, atol=1e-6)
    assert {name: (tmp_path / name).read_bytes() for name in parts} == content


NO_NUMBERS = {
    'complex': torch.ones(8, 3, dtype=torch.complex64),
    'sparse': torch.eye(8).to_sparse_coo(),
    'no column': torch.ones(8, 0),
    'words': np.array([['a'] * 3] * 8),
}


@pytest.mark.parametrize('outputs', NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_outputs_that_are_no_numbers_are_refused(outputs):
    with pytest.raises((TypeError, ValueError), match=r"'teacher_outputs' must .*\(got .*\): "):
        connected(FastDnX(num_hops=1)).distill(None, *graph(), teacher_outputs=outputs)


def test_arrays_of_another_byte_order():
    outputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).numpy()
    algorithm = connected(FastDnX(num_hops=1))
    expected = algorithm.distill(None, *graph(), teacher_outputs=outputs)
    found = algorithm.distill(None, *graph(), teacher_outputs=outputs.astype(outputs.dtype.newbyteorder()))
    torch.testing.assert_close(found.weight, expected.weight)


def test_one_column_of_classes():
    outputs = torch.randn(8, generator=torch.Generator().manual_seed(0))
    surrogate = connected(FastDnX(num_hops=1)).distill(None, *graph(), teacher_outputs=outputs)
    assert surrogate.weight.shape == (3, 1)
