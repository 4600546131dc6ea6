import os
import pickle

import pytest
import torch
from helpers import dense_adjacency, random_decomposition, random_surrogate

from pyg_dnx import Report, Surrogate


class Intruder:
    r"""Creates a folder when it is unpickled carelessly."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize('num_hops', [0, 1, 3])
@pytest.mark.parametrize('flow', ['source_to_target', 'target_to_source'])
def test_call_equals_the_formula(graph, num_hops, flow):
    surrogate = random_surrogate(graph.x.size(1), num_hops, flow=flow)
    edges = graph.edge_index if flow == 'source_to_target' else graph.edge_index.flip(0)
    power = torch.linalg.matrix_power(dense_adjacency(edges, graph.edge_weight, graph.x.size(0)), num_hops)
    expected = power @ graph.x.double() @ surrogate.weight + surrogate.bias
    found = surrogate(graph.x, graph.edge_index, graph.edge_weight)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_decomposition_holds_every_step(graph):
    decomposition = random_decomposition(graph, num_hops=3)
    adjacency = dense_adjacency(graph.edge_index, graph.edge_weight, graph.x.size(0))
    hidden = graph.x.double() @ decomposition.surrogate.weight
    states = decomposition.all_states
    assert len(states) == 4
    for hops, step in enumerate(reversed(states)):
        expected = torch.linalg.matrix_power(adjacency, hops) @ hidden
        torch.testing.assert_close(step, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(decomposition.evidence + decomposition.surrogate.bias, decomposition.logits)


@pytest.mark.parametrize('shape', [(8,), (8, 2), (8, 4), (1, 8, 3)])
def test_call_refuses_other_features(shape):
    with pytest.raises(ValueError, match=r"'x' must .*shape \[N, 3\] \(got \["):
        random_surrogate(3, 1)(torch.zeros(shape), torch.zeros(2, 0, dtype=torch.long))


@pytest.mark.parametrize('held_out', [None, {0: 0.5, 1: 0.25}])
@pytest.mark.parametrize('flow', ['source_to_target', 'target_to_source'])
def test_save_and_load(tmp_path, flow, held_out):
    saved = random_surrogate(3, 2, flow=flow, dtype=torch.float32)
    saved.report = Report(0.1, 0.9, 0.01, 'lbfgs', 1e-5, False, 8, 'multiclass_classification', held_out)
    saved.save(tmp_path / 'surrogate.pt')
    loaded = Surrogate.load(str(tmp_path / 'surrogate.pt'))
    assert loaded.weight.equal(saved.weight)
    assert loaded.bias.equal(saved.bias)
    assert loaded.weight.dtype == torch.float32
    assert (loaded.num_hops, loaded.flow, loaded.report) == (2, flow, saved.report)


@pytest.mark.parametrize(
    'content',
    [
        {'weight': torch.zeros(2, 2)},
        {'format': 'pyg_dnx.Surrogate/0', 'weight': torch.zeros(2, 2)},
        {'format': 'pyg_dnx.Surrogate/1', 'weight': torch.zeros(2, 2)},
        [1, 2, 3],
        torch.zeros(3),
    ],
    ids=['state dict', 'other format', 'incomplete', 'list', 'tensor'],
)
def test_load_refuses_other_content(tmp_path, content):
    torch.save(content, tmp_path / 'other.pt')
    with pytest.raises(ValueError, match=r"'path' must name a file written by 'Surrogate.save' \(got .*other.pt"):
        Surrogate.load(tmp_path / 'other.pt')


@pytest.mark.parametrize(
    'content',
    [b'', b'no surrogate', b'\x80\x02.', b'\x80\x02K', b'Ju', b']K\x01b.', b'PK\x03\x04 cut short', b'\x00' * 64],
)
def test_load_refuses_garbage(tmp_path, content):
    (tmp_path / 'garbage.pt').write_bytes(content)
    with pytest.raises(ValueError, match=r"'path' must name a file written by 'Surrogate.save' \(got .*garbage.pt"):
        Surrogate.load(tmp_path / 'garbage.pt')


def test_load_refuses_a_file_cut_short(tmp_path):
    path = tmp_path / 'cut.pt'
    random_surrogate(3, 2).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"'path' must name a file written by 'Surrogate.save'"):
        Surrogate.load(path)


def test_load_of_a_missing_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        Surrogate.load(tmp_path / 'missing.pt')


@pytest.mark.parametrize('kind', ['plain pickle', 'torch file', 'hidden in a surrogate'])
def test_load_runs_no_code(tmp_path, kind):
    path, trace = tmp_path / 'intruder.pt', tmp_path / 'trace'
    if kind == 'plain pickle':
        path.write_bytes(pickle.dumps(Intruder(trace), protocol=2))
    elif kind == 'torch file':
        torch.save(Intruder(trace), path)
    else:
        surrogate = random_surrogate(3, 2)
        surrogate.flow = Intruder(trace)
        surrogate.save(path)
    with pytest.raises(ValueError, match=r"'path' must name a file written by 'Surrogate.save'"):
        Surrogate.load(path)
    assert not trace.exists()
    if kind == 'plain pickle':
        pickle.loads(path.read_bytes())
    else:
        with open(path, 'rb') as file:
            if kind == 'hidden in a surrogate':
                file.readline()
            torch.load(file, weights_only=False)
    assert trace.exists()  # the file is as dangerous as it has to be for this test to mean anything


def test_to_moves_to_a_device():
    surrogate = random_surrogate(3, 2, flow='target_to_source')
    moved = surrogate.to('meta')
    assert (moved.weight.device.type, moved.bias.device.type) == ('meta', 'meta')
    assert (moved.num_hops, moved.flow, moved.report) == (2, 'target_to_source', surrogate.report)
    assert surrogate.weight.device.type == 'cpu'


def test_repr():
    assert repr(random_surrogate(5, 2, num_outputs=3)) == 'Surrogate(5, 3, num_hops=2)'


def test_report_prints_as_a_table():
    report = Report(0.01234, 0.975, 0.25, 'newton', 1e-5, True, 12345, 'multiclass_classification', {0: 0.5, 1: 0.25})
    assert str(report).splitlines() == [
        'KL to the model    0.01234',
        'agreement          97.5%',
        'nodes              12,345',
        'solver             newton, converged',
        'ridge              1e-05',
        'seconds            0.25',
        'held-out loss      0: 0.5, 1: 0.25',
    ]


def test_report_of_a_regression_prints_its_own_names():
    report = Report(0.5, -0.125, 0.25, 'lbfgs', 1e-5, False, 10, 'regression')
    assert str(report).splitlines()[:2] == ['half squared error 0.5', 'R2                 -0.1250']
    assert 'lbfgs, not converged' in str(report)
    assert 'held-out' not in str(report)


def test_call_names_node_ids_that_do_not_exist(graph):
    surrogate = random_surrogate(graph.x.size(1), 3, 2)
    with pytest.raises(IndexError, match=r"'edge_index' must hold node ids from 0 to .*got ids from 0 to 99"):
        surrogate(graph.x, torch.tensor([[0], [99]]))
