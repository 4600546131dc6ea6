r"""A process that dies loses what it was at: the others say which one it was, and a rerun goes on."""

import itertools
import os
import signal

import pytest
import torch
from test_together import NUM_NODES, Case, explained, parts
from together import together

from pyg_dnx.distill import distill
from pyg_dnx.run import LostProcessError, Run

pytestmark = [
    pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning'),
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork'),
]


@pytest.fixture(scope='module')
def case():
    return Case()


@pytest.fixture(scope='module')
def expected(case):
    return parts(case.explain('FastDnX'))


def dies(rank, group, case, folder, victim, stage):
    r"""Explains, but one process is killed in a stage: as it is to make a part, or to send a message."""
    if rank == victim:
        count, make, exchange = itertools.count(), Run.make, Run._exchanged

        def killing(self, name, *args):
            if name.startswith(stage):
                os.kill(os.getpid(), signal.SIGKILL)
            make(self, name, *args)

        def last_message(self, tensor):
            if stage == 'sum' and next(count) == 12:
                os.kill(os.getpid(), signal.SIGKILL)
            return exchange(self, tensor)

        Run.make, Run._exchanged = killing, last_message
    return explained(rank, group, case, 'FastDnX', folder)


def marks(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob('*.json')}


@pytest.mark.parametrize(
    ('stage', 'victim', 'then'),
    [('degrees', 0, 2), ('operator', 0, 1), ('features', 1, 3), ('sum', 0, 2), ('sum', 1, 1), ('explanations', 1, 3)],
)
def test_killed_in_a_stage_the_others_say_so_and_a_rerun_goes_on(stage, victim, then, case, expected, tmp_path):
    num_processes, folder = 3, tmp_path / 'shared'
    answers = together(dies, num_processes, tmp_path, case, folder, victim, stage)
    assert answers.pop(victim) is None
    for answer in answers:
        assert isinstance(answer, LostProcessError), answer
        assert f'process {victim} of 3 has ended or failed' in str(answer)
        assert 'make the same call again, with any number of processes' in str(answer)
    kept = marks(folder)
    for found in together(explained, then, tmp_path, case, 'FastDnX', folder):
        assert not isinstance(found, Exception), found
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    assert kept.items() <= marks(folder).items()  # what was finished was not made again


@pytest.mark.parametrize('failing', [0, 1, 2])
def test_a_process_that_raises_an_error_tells_the_others(failing, case, tmp_path):
    def task(rank, group, folder):
        run = Run(group=group)
        with run.together():
            for number in range(5):
                if rank == failing and number == 3:
                    raise ValueError('mine alone')
                run.sum(torch.ones(number))

    answers = together(task, 3, tmp_path, tmp_path / 'shared')
    assert str(answers.pop(failing)) == 'mine alone'
    for answer in answers:
        assert isinstance(answer, LostProcessError)
        assert f'process {failing} of 3' in str(answer)


def test_a_rerun_does_not_solve_again(case, expected, tmp_path, monkeypatch):
    case.explain('FastDnX', checkpoint=tmp_path, part=(0, 2))
    monkeypatch.setattr(distill, 'fit_classifier', None)
    torch.testing.assert_close(parts(case.explain('FastDnX', checkpoint=tmp_path, part=(0, 1))), expected)


def test_what_others_explained_is_not_explained_again(case, expected, tmp_path):
    folder, number = tmp_path / 'shared', 1
    case.explain('FastDnX', checkpoint=folder, part=(0, 3))
    before = marks(folder)
    assert len(list((folder / 'explained').glob('*.json'))) == 1
    found = together(explained, 2, tmp_path, case, 'FastDnX', folder)[number]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    assert before.items() <= marks(folder).items()


def test_a_folder_of_other_explanations_is_refused(case, tmp_path):
    case.explain('FastDnX', checkpoint=tmp_path / 'one', part=(0, 1))
    for name in ('target', 'DnX'):
        with pytest.raises(ValueError, match='written for another rule'):
            case.explain(name, checkpoint=tmp_path / 'one', part=(0, 1))
    with pytest.raises(ValueError, match='written for another distillation'):
        case.explain('auto', checkpoint=tmp_path / 'one', part=(0, 1))
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / 'notes.txt').write_text('mine')
    with pytest.raises(ValueError, match=r"'checkpoint' must name an empty folder, .* \(got '.*other', which holds"):
        case.explain('FastDnX', checkpoint=tmp_path / 'other', part=(0, 1))


@pytest.mark.parametrize(
    ('how', 'error', 'text'),
    [
        ({'part': (0, 1)}, ValueError, "'checkpoint' must name a folder that all processes share"),
        ({'part': (2, 2), 'checkpoint': 'c'}, ValueError, r"'part' must be \(k, n\), .* \(got \(2, 2\)\)"),
        ({'part': 3, 'checkpoint': 'c'}, ValueError, r"'part' must be \(k, n\), .* \(got 3\)"),
        ({'group': 'all', 'checkpoint': 'c'}, TypeError, r"'group' must be a process group .* \(got 'all'\)"),
    ],
)
def test_bad_ways_to_share_are_named(how, error, text, case, tmp_path):
    if 'checkpoint' in how:
        how = {**how, 'checkpoint': tmp_path / 'c'}
    with pytest.raises(error, match=text):
        case.explain('FastDnX', **how)
    assert not (tmp_path / 'c').exists()


def test_a_damaged_table_is_named(case, tmp_path):
    case.explain('FastDnX', checkpoint=tmp_path, part=(0, 1))
    os.truncate(tmp_path / 'distilled' / 'evidence.0.table', 8 * NUM_NODES)
    with pytest.raises(ValueError, match=r'whose evidence.0.table is missing or cut\): delete the folder'):
        case.explain('FastDnX', checkpoint=tmp_path, part=(0, 1))
