r"""Interruptions cost only what was being worked on."""

import re
from itertools import accumulate

import pytest
import torch
from helpers import example_graphs, relabelled
from models import Teacher, connected, in_chunks

from pyg_dnx import DnX, FastDnX, ProbeDnX
from pyg_dnx.checkpoint import Checkpoint
from pyg_dnx.files import UNFINISHED
from pyg_dnx.scores.rules import Mixture, Projection

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
FAILURES = [KeyboardInterrupt(), RuntimeError('out of ideas')]
ENTRIES, CHUNKS = 14, 4  # with so few entries at a time, the eight nodes below take so many chunks


def explain(kind=FastDnX, seed=0, name='weighted', entries=ENTRIES, **options):
    x, edge_index, edge_weight = example_graphs()[name]
    model = Teacher()
    with torch.no_grad():
        model.conv2.bias.add_(seed * torch.arange(3))
    given = {name: options.pop(name, None) for name in ('index', 'top_k', 'checkpoint', 'progress')}
    given |= {} if edge_weight is None else {'edge_weight': edge_weight}
    algorithm = connected(kind(**{'num_hops': 2, 'cache': None, **options}))
    return in_chunks(algorithm, entries).explain_nodes(model, x, edge_index, **given)


def parts(explanations):
    if explanations.scores is None:
        return explanations._top
    scores = explanations.scores
    return scores.crow_indices(), scores.col_indices(), scores.values()


def compare(found, expected, kind=FastDnX):
    for one, other in zip(parts(found), parts(expected), strict=True):
        exact = {'rtol': 0.0, 'atol': 0.0} if kind is FastDnX else {'rtol': 1e-5, 'atol': 1e-7}
        torch.testing.assert_close(one, other, **exact)


class Chunks:
    r"""Lists how many nodes each chunk had that a rule was asked about, and fails at one if told to."""

    def __init__(self):
        self.sizes, self.fails_at, self.failure = [], None, None

    def watch(self, effects):
        def counted(rule, decomposition, state, question, *args):
            self.sizes.append(question.outputs.numel())
            if len(self.sizes) == self.fails_at:
                raise self.failure
            return effects(rule, decomposition, state, question, *args)

        return counted


@pytest.fixture
def chunks(monkeypatch):
    chunks = Chunks()
    for rule in (Projection, Mixture):
        monkeypatch.setattr(rule, 'effects', chunks.watch(rule.effects))
    return chunks


def interrupt(chunks, folder, failure=FAILURES[0], chunk=3, **options):
    r"""Stops at a chunk, and tells how many nodes were finished."""
    chunks.sizes, chunks.fails_at, chunks.failure = [], chunk, failure
    with pytest.raises(type(failure)):
        explain(checkpoint=folder, **options)
    done = sum(chunks.sizes[:-1])
    chunks.sizes, chunks.fails_at = [], None
    return done


@pytest.mark.parametrize('failure', FAILURES, ids=['KeyboardInterrupt', 'RuntimeError'])
@pytest.mark.parametrize('top_k', [None, 3])
@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_goes_on_where_it_was_interrupted(kind, top_k, failure, chunks, tmp_path):
    expected = explain(kind, top_k=top_k)
    assert len(chunks.sizes) == CHUNKS
    chunks.sizes.clear()
    done = interrupt(chunks, tmp_path / 'c', failure, kind=kind, top_k=top_k)
    found = explain(kind, top_k=top_k, checkpoint=tmp_path / 'c')
    assert 0 < done < 8
    assert sum(chunks.sizes) == 8 - done
    compare(found, expected, kind)
    chunks.sizes.clear()
    again = explain(kind, top_k=top_k, checkpoint=tmp_path / 'c')
    assert len(chunks.sizes) == 0
    compare(again, expected, kind)


@pytest.mark.parametrize(
    'failure',
    [MemoryError(), RuntimeError('[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: not enough memory')],
)
def test_too_little_memory_says_how_to_go_on(failure, chunks, tmp_path):
    chunks.fails_at, chunks.failure = 3, failure
    with pytest.raises(
        MemoryError, match=r"'index' must name .* \(got 8, .* the same 'checkpoint' goes on after the \d n"
    ):
        explain(checkpoint=tmp_path / 'c')
    chunks.sizes.clear()
    with pytest.raises(
        MemoryError, match=r"'index' must name .*: pass a smaller 'max_memory', 'top_k', or fewer nodes at"
    ):
        explain()
    chunks.fails_at = None
    compare(explain(checkpoint=tmp_path / 'c'), explain())


def test_goes_on_with_chunks_of_another_size(chunks, tmp_path):
    expected = explain()
    chunks.sizes.clear()
    done = interrupt(chunks, tmp_path / 'c')
    found = explain(checkpoint=str(tmp_path / 'c'), entries=2**21)
    assert chunks.sizes == [8 - done]
    compare(found, expected)


def test_goes_on_after_several_interruptions(chunks, tmp_path):
    expected = explain()
    for _ in range(3):
        interrupt(chunks, tmp_path / 'c', chunk=2)
    compare(explain(checkpoint=tmp_path / 'c'), expected)


@pytest.mark.parametrize('top_k', [None, 2])
def test_results_can_be_indexed_and_saved_as_ever(top_k, chunks, tmp_path):
    expected = explain(top_k=top_k)
    interrupt(chunks, tmp_path / 'c', top_k=top_k)
    found = explain(top_k=top_k, checkpoint=tmp_path / 'c')
    assert found[7].node_mask.equal(expected[7].node_mask)
    found.save(tmp_path / 'saved.pt')


OTHERS = {
    'index': {'index': torch.tensor([1, 2])},
    'order': {'index': torch.arange(8).flip(0)},
    'top_k': {'top_k': 2},
    'model': {'seed': 1},
    'graph': {'name': 'undirected'},
    'num_hops': {'num_hops': 1},
    'score': {'score': 'target'},
    'algorithm': {'kind': DnX},
    'ridge': {'ridge': 1.0},
}


@pytest.mark.parametrize('other', OTHERS)
def test_another_request_is_refused(other, chunks, tmp_path):
    interrupt(chunks, tmp_path / 'c')
    before = {path.name: path.read_bytes() for path in (tmp_path / 'c').iterdir()}
    with pytest.raises(ValueError, match=r"'checkpoint' must name a folder of the same explanations \(got '.*c', "):
        explain(checkpoint=tmp_path / 'c', **OTHERS[other])
    assert len(chunks.sizes) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / 'c').iterdir()} == before


@pytest.mark.parametrize('option', [{'epsilon': 0.1}, {'prior': 'propagation'}])
def test_another_program_is_refused(option, tmp_path):
    explain(DnX, checkpoint=tmp_path / 'c')
    with pytest.raises(ValueError, match="'checkpoint' must name a folder of the same explanations"):
        explain(DnX, checkpoint=tmp_path / 'c', **option)


def test_what_scores_do_not_depend_on_may_change(chunks, tmp_path):
    expected = explain()
    interrupt(chunks, tmp_path / 'c')
    compare(explain(checkpoint=tmp_path / 'c', mask='positive', edge_score='endpoints', max_memory=2**20), expected)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / 'notes.txt').write_text('mine')
    with pytest.raises(ValueError, match=r"'checkpoint' must name an empty folder, or .* \(got .*: pass another"):
        explain(checkpoint=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ['notes.txt']


def test_folders_are_made(chunks, tmp_path):
    explain(checkpoint=tmp_path / 'a' / 'b')
    names = sorted(path.name for path in (tmp_path / 'a' / 'b').iterdir())
    assert names == [f'{first:09d}.pt' for first in accumulate(chunks.sizes[:-1], initial=0)] + ['request.pt']


def test_progress_begins_where_it_was(chunks, tmp_path, capsys):
    done = interrupt(chunks, tmp_path)
    capsys.readouterr()
    explain(checkpoint=tmp_path, progress=True)
    shown = re.findall(r'(\d)/8', capsys.readouterr().err)
    assert (int(shown[0]), int(shown[-1])) == (done, 8)


@pytest.mark.parametrize(
    ('old', 'new', 'agree'),
    [
        (torch.ones(2), torch.ones(2) + 1e-6, True),
        (torch.ones(2), torch.ones(2) + 1e-2, False),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), False),
        (torch.ones(2), torch.ones(1), False),
        (torch.arange(10**6, 10**6 + 2), torch.arange(10**6 + 1, 10**6 + 3), False),
        (None, torch.ones(2), False),
        (3, 3, True),
        (1, True, False),
    ],
)
def test_requests_agree_up_to_rounding(old, new, agree, tmp_path):
    with Checkpoint(tmp_path, torch.arange(3), {'what': old}):
        pass
    if agree:
        with Checkpoint(tmp_path, torch.arange(3), {'what': new}) as checkpoint:
            assert checkpoint.pieces() == []
    else:
        with (
            pytest.raises(ValueError, match='written for another what'),
            Checkpoint(tmp_path, torch.arange(3), {'what': new}),
        ):
            pass


def test_a_graph_with_other_names_is_another_graph(tmp_path):
    known = example_graphs()['undirected']
    renamed = relabelled(known, torch.tensor([3, 1, 4, 0, 5, 2, 7, 6]))
    algorithm = connected(FastDnX(num_hops=2))
    algorithm.explain_nodes(Teacher(), known.x, known.edge_index, checkpoint=tmp_path)
    with pytest.raises(ValueError, match='written for another graph'):
        algorithm.explain_nodes(Teacher(), renamed.x, renamed.edge_index, checkpoint=tmp_path)


def test_a_graph_whose_other_nodes_have_other_names_is_another_graph(tmp_path):
    known, index = example_graphs()['undirected'], torch.tensor([0, 1])
    renamed = relabelled(known, torch.tensor([0, 1, 2, 3, 4, 6, 5, 7]))
    algorithm = connected(FastDnX(num_hops=2, cache=None))
    before = algorithm.distill(Teacher(), known.x, known.edge_index).weight
    torch.testing.assert_close(algorithm.distill(Teacher(), renamed.x, renamed.edge_index).weight, before)
    algorithm.explain_nodes(Teacher(), known.x, known.edge_index, index=index, checkpoint=tmp_path)
    with pytest.raises(ValueError, match='written for another graph'):
        algorithm.explain_nodes(Teacher(), renamed.x, renamed.edge_index, index=index, checkpoint=tmp_path)


@pytest.mark.parametrize('kind', [FastDnX, DnX, ProbeDnX])
def test_a_model_with_its_classes_in_another_order_is_another_model(kind, tmp_path):
    x, edge_index, _ = example_graphs()['undirected']
    algorithm = connected(kind(num_hops=2, cache=None, **({'num_probes': 4} if kind is ProbeDnX else {})))
    model = Teacher()
    algorithm.explain_nodes(model, x, edge_index, checkpoint=tmp_path, progress=False)
    with torch.no_grad():
        for parameter in (model.conv2.lin.weight, model.conv2.bias):
            parameter.copy_(parameter.flip(0))
    with pytest.raises(ValueError, match=r'written for another .*model, surrogate'):
        algorithm.explain_nodes(model, x, edge_index, checkpoint=tmp_path, progress=False)


@pytest.mark.parametrize('name', ['x', 'teacher_outputs'])
def test_what_is_given_counts_to_the_last_bit(name, tmp_path):
    x, edge_index, _ = example_graphs()['undirected']
    given = {'x': x.clone(), 'teacher_outputs': Teacher()(x, edge_index).detach()}
    algorithm = connected(FastDnX(num_hops=2))
    algorithm.explain_nodes(None, edge_index=edge_index, checkpoint=tmp_path, **given)
    algorithm.explain_nodes(None, edge_index=edge_index.clone(), checkpoint=tmp_path, **given)
    given[name].view(-1)[5] *= 1.0 + 2.0**-22
    with pytest.raises(ValueError, match=f'written for another {"graph" if name == "x" else name}'):
        algorithm.explain_nodes(None, edge_index=edge_index, checkpoint=tmp_path, **given)


def test_killed_before_it_began(tmp_path):
    (tmp_path / f'{UNFINISHED}1').write_bytes(b'half')
    compare(explain(checkpoint=tmp_path), explain())
    assert not (tmp_path / f'{UNFINISHED}1').exists()


@pytest.mark.parametrize('name', ['request', '000000000'])
def test_damaged_files_are_named(name, tmp_path):
    explain(checkpoint=tmp_path)
    (tmp_path / f'{name}.pt').write_text('something else')
    with pytest.raises(ValueError, match=f"'checkpoint' must .*{name}.pt is damaged.*: delete"):
        explain(checkpoint=tmp_path)


def test_a_request_of_something_else_is_refused(tmp_path):
    torch.save([1, 2], tmp_path / 'request.pt')
    with pytest.raises(ValueError, match=r'request.pt is damaged, or of another version'):
        explain(checkpoint=tmp_path)
