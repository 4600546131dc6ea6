r"""A budget of memory is kept to, or refused with the least that can be."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import Teacher, connected

from pyg_dnx import FastDnX, ProbeDnX
from pyg_dnx.run import Run

TASK = """
import sys, threading, time, warnings
import torch
from models import connected
from pyg_dnx import FastDnX

def resident():
    with open('/proc/self/status') as file:
        return next(int(line.split()[1]) for line in file if line.startswith('RssAnon'))

def watch():
    while not ended:
        peaks.append(resident())
        time.sleep(0.001)

def explain(size, max_memory):
    generator = torch.Generator().manual_seed(0)
    x, outputs = torch.randn(size, 64, generator=generator), torch.randn(size, 5, generator=generator)
    edge_index = torch.randint(size, (2, 5 * size), generator=generator)
    algorithm = connected(FastDnX(num_hops=2, cache=None, max_memory=max_memory))
    given = {'index': torch.arange(500), 'top_k': 5, 'progress': False}
    before = resident()
    peaks.append(before)
    found = algorithm.explain_nodes(None, x, edge_index, teacher_outputs=outputs, **given)
    return (max(peaks) - max(before, resident())) / 1024

warnings.simplefilter('ignore')
torch.set_num_threads(1)
ended, peaks = [], []
explain(1000, None)
peaks.clear()
thread = threading.Thread(target=watch)
thread.start()
try:
    print(explain(int(sys.argv[1]), eval(sys.argv[2])))
finally:
    ended.append(1)
    thread.join()
"""


@pytest.mark.skipif(not Path('/proc/self/status').exists(), reason='needs Linux')
def test_a_budget_is_kept_to():
    environment = {'MALLOC_TRIM_THRESHOLD_': '65536', 'MALLOC_MMAP_THRESHOLD_': '65536'}  # what is freed is given back
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / 'src')]
    command = [sys.executable, '-c', f'import sys; sys.path[:0] = {paths}\n{TASK}', '25000', '2**24']
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0.0 < float(done.stdout) <= 16.0  # MB


@pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
def test_a_budget_that_can_not_be_kept_to_is_refused_with_the_least_that_can():
    x, outputs = torch.randn(20_000, 2), torch.randn(20_000, 3)
    edge_index = torch.randint(20_000, (2, 100_000))

    def explain(max_memory):
        algorithm = connected(FastDnX(num_hops=1, cache=None, max_memory=max_memory))
        given = {'index': 0, 'top_k': 5, 'progress': False}
        return algorithm.explain_nodes(None, x, edge_index, teacher_outputs=outputs, **given)

    with pytest.raises(
        ValueError, match=r"'max_memory' must be at least 2,4\d\d,\d{3} bytes for .* \(got 2,000,000\): pass"
    ):
        explain(2_000_000)
    explain(2_500_000)
    explain(None)


@pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
def test_answers_to_probes_that_do_not_fit_are_refused():
    model, x, edge_index = Teacher().eval(), torch.randn(3000, 3), torch.randint(3000, (2, 6000))
    algorithm = connected(ProbeDnX(num_hops=1, num_probes=98, max_memory=1_100_000))
    with pytest.raises(ValueError, match=r'at least 1,200,000 bytes for the answers to 98 probes \(got 1,100,000\)'):
        algorithm.explain_nodes(model, x, edge_index, top_k=3, progress=False)


def test_little_is_taken_whatever_the_budget():
    Run(1).need(2**20, 'little')
    Run(None).need(2**60, 'much')
    with pytest.raises(ValueError, match='must be at least 1,048,577 bytes for more'):
        Run(1).need(2**20 + 1, 'more')
