r"""Several processes on one folder, killed anywhere: what is there is right, and whoever comes next goes on."""

import errno
import itertools
import json
import os
import shutil
import signal
import socket
import threading

import pytest
import torch

from pyg_dnx import checkpoint as checkpoints
from pyg_dnx import files
from pyg_dnx.checkpoint import Checkpoint, Claim

pytestmark = pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
INDEX = torch.tensor([5, 3, 8, 1, 9, 2])
REQUEST = {'graph': 'one', 'model': torch.linspace(0.0, 1.0, 12).view(6, 2)}
HELD = (
    r"'checkpoint' must name a folder that no other call writes to \(got '.*', to which process {} on {} has been writ"
)
CHANGES = ('_write', '_sync', '_rename', '_link')


def work(folder, index=INDEX, request=REQUEST, size=2):
    r"""Squares the numbers in ``index``, some at a time, and returns them all."""
    with Checkpoint(folder, index, request) as checkpoint:
        pieces = checkpoint.pieces()
        for first in range(checkpoint.done, len(index), size):
            part = index[first : first + size]
            pieces.append((part**2, part.double().sqrt()))
            checkpoint.add(pieces[-1])
    return [torch.cat(tensors) for tensors in zip(*pieces, strict=True)]


def is_right(found, index=INDEX):
    return found[0].equal(index**2) and found[1].equal(index.double().sqrt())


def in_child(task):
    r"""What becomes of a task in a process of its own: its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = task() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die_at(number, task):
    r"""Ends the process at a change of the disk: a write is done by half, others not at all."""
    count = itertools.count()

    def killing(change):
        def act(*args):
            if next(count) == number:
                if change is write:
                    change(args[0], memoryview(args[1]).cast('B')[: len(args[1]) // 2])
                    args[0].flush()
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args)

        return act

    write = files._write
    for name in CHANGES:
        setattr(files, name, killing(getattr(files, name)))
    task()


def changes_of(task):
    r"""The changes of the disk that a task makes, in order."""
    names = []
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            known = getattr(files, name)
            patch.setattr(files, name, lambda *args, name=name, known=known: (names.append(name), known(*args))[1])
        task()
    return names


def test_killed_at_each_change_of_the_disk_it_goes_on(tmp_path):
    names = changes_of(lambda: work(tmp_path / 'whole'))
    assert [names.count(name) for name in CHANGES[1:]] == [8, 4, 1]  # of a file and of its folder, each time
    for number, name in enumerate(names):
        if name == '_write' and number % 9 > 0:
            continue
        folder = tmp_path / str(number)
        code = in_child(lambda number=number, folder=folder: die_at(number, lambda: work(folder)))
        assert code == -signal.SIGKILL
        assert is_right(work(folder))
        found = sorted(path.name for path in folder.iterdir())
        assert found == [*(f'{first:09d}.pt' for first in (0, 2, 4)), 'request.pt']


def test_killed_again_and_again_it_ends(tmp_path):
    for number in itertools.cycle([5, 18, 40, 55, 70]):
        if in_child(lambda number=number: die_at(number, lambda: work(tmp_path, size=1))) == 0:
            break
    assert is_right(work(tmp_path))


def race(folder, number):
    r"""Several processes start at once; returns how each ended: 0 for right, 1 for refused, 2 for wrong."""
    start, go = os.pipe()

    def task():
        os.close(go)
        os.read(start, 1)  # until the other end is closed
        try:
            return 0 if is_right(work(folder, size=1)) else 2
        except ValueError as error:
            return 1 if 'no other call writes to' in str(error) else 3

    pids = []
    for _ in range(number):
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = task()
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(start)
    os.close(go)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def test_of_processes_that_start_at_once_one_writes(tmp_path):
    for number in range(10):
        found = race(tmp_path / str(number), 3)
        assert set(found) <= {0, 1}
        assert 0 in found
        assert is_right(work(tmp_path / str(number)))


def test_a_second_writer_is_told_of_the_first(tmp_path):
    with (
        Checkpoint(tmp_path, INDEX, REQUEST),
        pytest.raises(ValueError, match=HELD.format(os.getpid(), socket.gethostname())) as caught,
    ):
        work(tmp_path)
    assert str(caught.value).endswith('make the same call again when that has ended, or pass another folder')
    assert is_right(work(tmp_path))


def test_a_folder_that_another_process_has_just_begun_is_none_of_something_else(tmp_path, monkeypatch):
    def listdir(path):
        monkeypatch.undo()
        work(tmp_path)
        return [name for name in os.listdir(path) if name != 'request.pt']  # which was not there yet

    monkeypatch.setattr(os, 'listdir', listdir)
    assert is_right(work(tmp_path))


def test_threads_write_one_at_a_time(tmp_path):
    found, barrier = [], threading.Barrier(4)

    def task():
        barrier.wait()
        try:
            found.append(is_right(work(tmp_path)))
        except ValueError as error:
            found.append('no other call writes to' in str(error))

    threads = [threading.Thread(target=task) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_a_claim_of_a_dead_process_is_taken_over(tmp_path):
    def die():
        Claim(tmp_path / 'claim', 'checkpoint')
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == -signal.SIGKILL
    assert json.loads((tmp_path / 'claim').read_text())['pid'] != os.getpid()
    assert is_right(work(tmp_path))
    assert not (tmp_path / 'claim').exists()


def test_a_claim_of_another_host_is_left(tmp_path):
    owner = {'host': 'elsewhere', 'pid': 12, 'since': '2026-01-01 00:00:00'}
    (tmp_path / 'claim').write_text(json.dumps(owner))
    with pytest.raises(
        ValueError, match=HELD.format(12, 'elsewhere') + r".* \(if it has ended, delete '.*claim' first\)"
    ):
        work(tmp_path)
    assert json.loads((tmp_path / 'claim').read_text()) == owner
    (tmp_path / 'claim').unlink()
    assert is_right(work(tmp_path))


@pytest.mark.parametrize('content', ['', '{"host": ', '[]'])
def test_a_claim_that_was_never_finished_is_taken_over(content, tmp_path):
    (tmp_path / 'claim').write_text(content)
    assert is_right(work(tmp_path))


def test_a_child_neither_keeps_nor_gives_up_the_claim_of_its_parent(tmp_path):
    claim = Claim(tmp_path / 'claim', 'checkpoint')
    assert in_child(claim.release) == 0
    assert (tmp_path / 'claim').exists()
    ready, go = os.pipe()
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.write(tell, b'1')
        os.read(ready, 1)
        os._exit(0)
    os.read(told, 1)
    claim.file.close()  # as if the parent were killed, while the child lives on
    Claim(tmp_path / 'claim', 'checkpoint').release()
    for end in (go, ready, told, tell):
        os.close(end)
    os.waitpid(pid, 0)


def test_file_systems_without_links_have_claims(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, 'no links')

    monkeypatch.setattr(files, '_link', refuse)
    with Checkpoint(tmp_path, INDEX, REQUEST), pytest.raises(ValueError, match='no other call'):
        work(tmp_path)
    assert is_right(work(tmp_path))


def test_where_files_can_not_be_locked_an_old_claim_is_not_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, '_lock', lambda file: None)
    with (
        Checkpoint(tmp_path, INDEX, REQUEST),
        pytest.raises(ValueError, match=r"if it has ended, delete '.*claim' first"),
    ):
        work(tmp_path)
    assert is_right(work(tmp_path))


def copy_over(folder):
    shutil.copy(folder / '000000000.pt', folder / '000000002.pt')


def foreign(folder):
    files.write(folder / '000000002.pt', 'Surrogate', {'weight': torch.ones(2)})


def of_another_run(folder):
    work(folder / 'other', request={**REQUEST, 'graph': 'two'})
    shutil.move(folder / 'other' / '000000002.pt', folder / '000000002.pt')
    shutil.rmtree(folder / 'other')


def incomplete(folder):
    files.write(folder / '000000002.pt', 'Piece', {'number': 2})


def cut(folder):
    os.truncate(folder / '000000002.pt', 700)


@pytest.mark.parametrize('change', [copy_over, foreign, of_another_run, incomplete, cut])
def test_a_piece_of_something_else_is_refused(change, tmp_path):
    work(tmp_path)
    change(tmp_path)
    with pytest.raises(ValueError, match=r'000000002.pt is .*delete that file, and make the same call again'):
        work(tmp_path)
    (tmp_path / '000000002.pt').unlink()
    assert is_right(work(tmp_path))


def altered(value):
    model = REQUEST['model'].clone()
    model[3] = value
    return model


@pytest.mark.parametrize(
    ('request_', 'told'),
    [
        ({**REQUEST, 'graph': 'two'}, 'graph'),
        ({**REQUEST, 'model': REQUEST['model'].flip(1)}, 'model'),
        ({**REQUEST, 'model': altered(REQUEST['model'][3] * torch.tensor([1.001, 1.0]))}, 'model'),
        ({**REQUEST, 'more': 1}, 'more'),
        ({'graph': 'two'}, 'graph, model'),
    ],
)
def test_another_request_is_refused_by_name(request_, told, tmp_path):
    work(tmp_path)
    with pytest.raises(ValueError, match=rf'written for another {told}\): pass another folder'):
        work(tmp_path, request=request_)
    with pytest.raises(ValueError, match='written for another index'):
        work(tmp_path, index=INDEX.flip(0))


def test_wide_rows_are_compared_too(tmp_path):
    torch.manual_seed(0)
    wide = torch.randn(6, 1000)
    work(tmp_path, request={'answers': wide})
    assert (tmp_path / 'request.pt').stat().st_size < 4000
    work(tmp_path, request={'answers': wide * (1.0 + 1e-7)})
    order = torch.randperm(1000)
    for other in [wide[:, order], wide + 0.1 * torch.eye(6, 1000)]:
        with pytest.raises(ValueError, match='written for another answers'):
            work(tmp_path, request={'answers': other})


def test_sketches_see_each_row():
    values = torch.linspace(-1.0, 1.0, 300).view(100, 3)
    known = checkpoints.sketch(values)
    assert known.shape == (8, 3)
    swapped = values.clone()
    swapped[[10, 11]] = values[[11, 10]]
    assert not torch.allclose(checkpoints.sketch(swapped), known, rtol=1e-3)
    torch.testing.assert_close(checkpoints.sketch(values), known)


@pytest.mark.parametrize('name', ['_write', '_sync', '_rename'])
def test_a_full_disk_says_how_to_go_on(name, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        change = getattr(files, name)
        calls = itertools.count()
        with Checkpoint(tmp_path, INDEX, REQUEST) as checkpoint:
            checkpoint.add((INDEX[:2] ** 2, INDEX[:2].double().sqrt()))

            def fail(*args):
                if next(calls) == (1 if name == '_write' else 0):
                    raise OSError(errno.ENOSPC, 'No space left on device')
                return change(*args)

            patch.setattr(files, name, fail)
            with pytest.raises(OSError, match=r"'checkpoint' must be where there is room .* goes on after the 2 nodes"):
                checkpoint.add((INDEX[2:4] ** 2, INDEX[2:4].double().sqrt()))
    assert is_right(work(tmp_path))
