r"""Processes that come and go on one folder, killed at any change of the disk, and files that others touch."""

import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from test_checkpoint_processes import INDEX, REQUEST, die_at, in_child, is_right, work

from pyg_dnx.checkpoint import Checkpoint

PLACES = st.integers(0, 2**16)


class FolderMachine(RuleBasedStateMachine):
    r"""Whoever asks gets the right answer, or is told what is wrong; and what is told to be deleted ends it."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp()) / 'folder'

    def teardown(self):
        shutil.rmtree(self.folder.parent)

    def files(self):
        return sorted(self.folder.glob('*.pt')) if self.folder.exists() else []

    @rule(size=st.integers(1, 3))
    def finish(self, size):
        for _ in range(2 + len(self.files())):
            try:
                assert is_right(work(self.folder, size=size))
                return
            except ValueError as error:
                text = str(error)
            named = [path for path in self.files() if f'whose {path.name} is' in text]
            assert len(named) == 1, text
            if 'delete that file' in text:
                named[0].unlink()
            else:
                assert 'delete the folder' in text
                shutil.rmtree(self.folder)
        raise AssertionError('it never ends')

    @rule(number=st.integers(0, 80), size=st.integers(1, 3))
    def is_killed(self, number, size):
        code = in_child(lambda: die_at(number, lambda: self.try_to_work(size)))
        assert code in (0, -signal.SIGKILL)

    def try_to_work(self, size):
        with suppress(ValueError):  # of damage, which `finish` looks at
            assert is_right(work(self.folder, size=size))

    @rule(pick=PLACES, place=PLACES, value=st.integers(1, 255))
    def a_byte_changes(self, pick, place, value):
        if found := self.files():
            path = found[pick % len(found)]
            data = bytearray(path.read_bytes())
            if data:
                data[place % len(data)] ^= value
            path.write_bytes(data)

    @rule(pick=PLACES, place=PLACES)
    def a_file_is_cut(self, pick, place):
        if found := self.files():
            os.truncate(found[pick % len(found)], place % 1000)

    @rule(pick=st.integers(0, 3), step=st.integers(1, 3))
    def two_pieces_are_swapped(self, pick, step):
        if found := self.files()[:-1]:
            one, two = found[pick % len(found)], found[(pick + step) % len(found)]
            first, second = one.read_bytes(), two.read_bytes()
            one.write_bytes(second)
            two.write_bytes(first)

    @rule(pick=PLACES)
    def a_piece_is_deleted(self, pick):
        if found := self.files()[:-1]:  # not the request, without which a folder is another's
            found[pick % len(found)].unlink()

    @rule(other=st.sampled_from([{'index': INDEX.flip(0)}, {'request': {**REQUEST, 'graph': 'two'}}]))
    def another_asks(self, other):
        if self.files():
            with pytest.raises(ValueError, match=r'written for another|is damaged'):
                work(self.folder, **other)

    @rule()
    def two_ask_at_once(self):
        self.finish(2)
        with Checkpoint(self.folder, INDEX, REQUEST), pytest.raises(ValueError, match='no other call writes to'):
            work(self.folder)

    @invariant()
    def what_is_unfinished_is_not_read(self):
        assert all(path.suffix == '.pt' for path in self.files())


FolderMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestFolderMachine = pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')(FolderMachine.TestCase)


def test_the_machine_would_see_a_piece_of_other_nodes(tmp_path):
    with Checkpoint(tmp_path, INDEX, REQUEST) as checkpoint:
        checkpoint.add((torch.zeros(2), torch.zeros(2)))  # whole, and wrong
    machine = FolderMachine()
    machine.folder = tmp_path
    with pytest.raises(AssertionError):
        machine.finish(2)
