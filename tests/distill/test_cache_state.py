r"""What of a model's own state the cache compares, and what it lets pass."""

import copy
import sys
import threading

import pytest
import torch
from models import Teacher, connected, evaluations, explainer, graph
from torch_geometric.nn import GCNConv, Sequential

from pyg_dnx import DnX, FastDnX, ProbeDnX, SurrogateCache, shared_cache
from pyg_dnx.distill.state import is_equal

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


class Stateful(Teacher):
    r"""Depends on a dict, a list, a sparse matrix and a function; counts its calls in an attribute and in a buffer."""

    def __init__(self):
        super().__init__()
        self.options = {'scales': [1.0, torch.ones(3)]}
        self.spare = [1, torch.ones(2)]
        self.sizes, self.depth, self.width = ['in', 'out'], 2, None
        self.register_module('absent', None)
        self.mixing = torch.eye(3).to_sparse()
        self.link = self.spare_link = torch.sin
        self.calls = 0
        self.register_buffer('seen', torch.zeros(1))

    def forward(self, x, edge_index):
        self.calls += 1
        self.seen += 1
        scale, factor = self.options['scales']
        return self.link(scale * factor * super().forward(x, edge_index) @ self.mixing.to_dense())


CHANGES = {
    'number in a container': lambda model: model.options['scales'].__setitem__(0, 3.0),
    'tensor in a container': lambda model: model.options['scales'][1].mul_(3.0),
    'function': lambda model: setattr(model, 'link', torch.tanh),
    'sparse matrix': lambda model: setattr(model, 'mixing', (2.0 * torch.eye(3)).to_sparse()),
    'layout of a matrix': lambda model: setattr(model, 'mixing', torch.eye(3)),
    'shape of a matrix': lambda model: setattr(model, 'mixing', torch.eye(4)[:3].to_sparse()),
    'more in a container': lambda model: model.options.update(more=1),
    'a container for a number': lambda model: model.spare.__setitem__(0, [1]),
    'a number for a container': lambda model: setattr(model, 'spare', 1),
    'a number for a tensor': lambda model: model.spare.__setitem__(1, 1.0),
    'an item of a list of names': lambda model: model.sizes.__setitem__(1, 'in'),
    'an item more in a list of names': lambda model: model.sizes.append('out'),
    'an item less in a list of names': lambda model: model.sizes.pop(),
    'a tuple for a list of names': lambda model: setattr(model, 'sizes', tuple(model.sizes)),
    'a list for a number': lambda model: setattr(model, 'depth', [2]),
    'a list for nothing': lambda model: setattr(model, 'width', []),
    'a list for a function': lambda model: setattr(model, 'spare_link', [torch.sin]),
    'an attribute more': lambda model: setattr(model, 'more', 1.0),
    'an attribute less': lambda model: delattr(model, 'spare'),
    'another kind of container': lambda model: setattr(model, 'options', {'scales': (1.0, torch.ones(3))}),
}


@pytest.mark.parametrize('change', CHANGES)
def test_notices_what_a_module_holds(change):
    model, inputs = Stateful().eval(), graph()
    algorithm = connected(FastDnX())
    before = algorithm.distill(model, *inputs)
    assert algorithm.distill(model, *inputs) is before
    CHANGES[change](model)
    with evaluations(model, 1):
        algorithm.distill(model, *inputs)


def test_an_object_that_can_not_be_compared_changes_nothing():
    model, inputs = Stateful().eval(), graph()
    algorithm = connected(FastDnX())
    before = algorithm.distill(model, *inputs)
    model.helper = object()
    for _ in range(2):
        assert algorithm.distill(model, *inputs) is before
    model.link = torch.tanh
    assert algorithm.distill(model, *inputs) is not before


@pytest.mark.parametrize(
    'other', [torch.ones(2, dtype=torch.int), torch.ones(2, device='meta'), torch.ones(2).to_sparse(), torch.ones(1, 2)]
)
def test_equal_tensors_are_of_one_kind(other):
    assert is_equal(torch.ones(2), torch.ones(2))
    assert not is_equal(torch.ones(2), other)


def test_what_an_evaluation_changes_is_left():
    model, inputs = Stateful().eval(), graph()
    algorithm = connected(DnX())
    with evaluations(model, 1):
        for _ in range(3):
            algorithm.distill(model, *inputs)
    assert model.calls == 0
    assert model.seen.item() == 0.0
    with pytest.raises(TypeError):
        algorithm.distill(model, inputs[0], inputs[1], unknown=1)
    assert model.seen.item() == 0.0


class Counting(Teacher):
    def forward(self, x, edge_index):
        self.calls += 1
        return super().forward(x, edge_index)


def test_a_counter_of_calls_does_not_make_it_stale():
    model, inputs = Counting().eval(), graph()
    model.calls = 0
    explain = explainer(model, FastDnX())
    with evaluations(model, 4):  # PyG's own three, and one to distil
        for node in range(3):
            explain(*inputs, index=node)
    assert model.calls == 3


def test_a_changed_model_leaves_no_old_entry():
    model, inputs = Teacher().eval(), graph()
    explain = explainer(model, FastDnX())
    for _ in range(3):
        explain(*inputs, index=0)
        next(model.parameters()).data.add_(0.1)
    assert len(shared_cache) == 1


def test_other_models_need_not_wait():
    cache, inputs = SurrogateCache(), graph()
    slow, fast = Teacher().eval(), Teacher().eval()
    entered, release = threading.Event(), threading.Event()

    def wait(*_):
        entered.set()
        assert release.wait(timeout=20)

    slow.register_forward_hook(wait)
    thread = threading.Thread(target=connected(FastDnX(cache=cache)).distill, args=(slow, *inputs))
    thread.start()
    assert entered.wait(timeout=20)
    connected(FastDnX(cache=cache)).distill(fast, *inputs)  # would hang if the cache were held all the while
    release.set()
    thread.join(timeout=20)
    assert len(cache) == 2


class Interrupted(Teacher):
    r"""A model that is stopped, once, when all of its layers are evaluated."""

    failure: BaseException | None = KeyboardInterrupt()

    def forward(self, x, edge_index):
        self.seen += 1
        outputs = super().forward(x, edge_index)
        if self.failure is not None:
            raise self.failure
        return outputs


@pytest.mark.parametrize('call', ['distill', 'explain_nodes'])
@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_a_model_that_is_interrupted_is_left_as_it_was(kind, call):
    model, (x, edge_index) = Interrupted(), graph()
    model.register_buffer('seen', torch.zeros(1))
    model.train()
    model.conv2.eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    algorithm = connected(kind())
    with pytest.raises(KeyboardInterrupt):
        getattr(algorithm, call)(model, x, edge_index)
    assert [module.training for module in model.modules()] == modes
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert len(shared_cache) == 0
    model.failure = None
    getattr(algorithm, call)(model, x, edge_index)  # no lock is held either
    assert len(shared_cache) == 1


def test_a_model_can_be_looked_at_while_it_is_asked():
    model, inputs, seen = Teacher().eval(), graph(), []
    algorithm = connected(FastDnX())
    known = algorithm.distill(model, *inputs)

    def look(frame, *_):  # at every line, as another thread may
        if frame.f_code.co_name in ('query', 'copied', 'note_written'):
            seen.append(algorithm.distill(model, *inputs) is known)
            return look
        return None

    tracing = sys.gettrace()
    sys.settrace(look)
    try:
        connected(ProbeDnX(num_probes=2)).explain_nodes(model, *inputs)
    finally:
        sys.settrace(tracing)
    assert len(seen) > 0
    assert all(seen)


MEANWHILE = {
    'weights': lambda model, x: model.conv1.lin.weight.data.mul_(2.0),
    'buffers': lambda model, x: model.shift.add_(1.0),
    'features': lambda model, x: x.mul_(2.0),
}


@pytest.mark.parametrize('name', MEANWHILE)
def test_what_changes_during_distillation_is_not_kept(name):
    model, (x, edge_index) = Teacher().eval(), graph()
    model.register_buffer('shift', torch.zeros(1))
    algorithm, change = connected(FastDnX()), MEANWHILE[name]

    def meanwhile(*_):  # as another thread may
        change(model, x)

    handle = model.register_forward_hook(meanwhile)
    algorithm.distill(model, x, edge_index)
    handle.remove()
    assert len(shared_cache) == 0
    expected = connected(FastDnX(cache=None)).distill(model, x, edge_index)
    assert algorithm.distill(model, x, edge_index).weight.equal(expected.weight)
    assert len(shared_cache) == 1


def test_lazy_parameters():
    model, inputs = Sequential('x, edge_index', [(GCNConv(-1, 3), 'x, edge_index -> x')]), graph()
    algorithm = connected(FastDnX())
    before = [algorithm.distill(model, *inputs) for _ in range(3)]
    assert before[1] is before[2]
    next(model.parameters()).data.add_(1.0)
    assert algorithm.distill(model, *inputs) is not before[2]
