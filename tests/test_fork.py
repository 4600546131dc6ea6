r"""A process that is forked while another thread explains can explain, too, and has the model as it was."""

import os
import threading

import pytest
import torch
from models import Teacher, connected, graph

from pyg_dnx import FastDnX, ProbeDnX, shared_cache
from pyg_dnx.graph.graph import Graph
from pyg_dnx.teacher import private, teacher

pytestmark = [
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork'),
    pytest.mark.filterwarnings('ignore'),  # of threads beside a fork
]


def in_child(task):
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            code = 0 if task() else 1
        finally:
            os._exit(code)
    return pid


def ended_well(pid, timeout=20):
    r"""Whether a child ended by itself, without an error."""
    ended = threading.Event()
    codes = []

    def wait():
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    if not ended.wait(timeout):
        os.kill(pid, 9)
    ended.wait()
    return codes == [0]


class Held:
    r"""A thread that stops in the middle of something until it is let go."""

    def __init__(self, work):
        self.entered, self.go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=work, args=(self,))

    def __enter__(self):
        self.thread.start()
        assert self.entered.wait(20)

    def __exit__(self, *_):
        self.go.set()
        self.thread.join(20)

    def stop(self, *_):
        self.entered.set()
        assert self.go.wait(60)


def explain(model, inputs, algorithm=FastDnX):
    options = {'num_probes': 2} if algorithm is ProbeDnX else {}
    return connected(algorithm(**options)).explain_nodes(model, *inputs, progress=False).scores.to_dense()


def in_cache(held):
    with shared_cache._lock:
        held.stop()


def while_locks_are_made(held):
    with private._asking_lock:
        held.stop()


@pytest.mark.parametrize('work', [in_cache, while_locks_are_made])
@pytest.mark.parametrize('algorithm', [FastDnX, ProbeDnX])
def test_locks_of_other_threads_are_not_waited_for(algorithm, work):
    model, inputs = Teacher().eval(), graph()
    expected = explain(model, inputs, algorithm)
    with Held(work):
        pid = in_child(lambda: explain(model, inputs, algorithm).equal(expected))
        assert ended_well(pid)
        pid = in_child(lambda: explain(Teacher().eval(), inputs, algorithm).equal(expected))
        assert ended_well(pid)


@pytest.mark.parametrize('algorithm', [FastDnX, ProbeDnX])
def test_while_a_model_is_distilled_or_asked(algorithm):
    model, inputs = Teacher().eval(), graph()
    expected = explain(Teacher().eval(), inputs, algorithm)

    def work(held):
        handle = model.conv2.register_forward_hook(held.stop)
        explain(model, inputs, algorithm)
        handle.remove()

    def task():
        model.conv2._forward_hooks.clear()
        return explain(model, inputs, algorithm).equal(expected)

    with Held(work):
        assert ended_well(in_child(task))


def test_while_probes_are_asked():
    model, inputs = Teacher().eval(), graph()
    expected = explain(model, inputs, ProbeDnX)
    (distilled,) = [entry.value for entry in shared_cache._entries]

    def work(held):
        distilled.memo.get('probes of another kind', held.stop)

    with Held(work):
        assert ended_well(in_child(lambda: explain(model, inputs, ProbeDnX).equal(expected)))


def test_the_model_is_as_it_was():
    model, (x, edge_index) = Teacher().train(), graph()
    model.conv2.eval()
    kept = [(module.training, set(vars(module))) for module in model.modules()]
    asked = teacher.Teacher(model, connected(FastDnX()).model_config)

    def is_kept():
        return [(module.training, set(vars(module))) for module in model.modules()] == kept

    def work(held):
        handle = model.conv2.register_forward_hook(held.stop)
        asked.under(Graph(x, edge_index, {}), edge_mask=torch.zeros(edge_index.size(1)))
        handle.remove()

    def task():
        model.conv2._forward_hooks.clear()
        outputs = asked.under(Graph(x, edge_index, {}))
        return is_kept() and outputs.equal(expected)

    expected = asked.under(Graph(x, edge_index, {}))
    with Held(work):
        assert is_kept()
        assert ended_well(in_child(task))
    assert is_kept()
