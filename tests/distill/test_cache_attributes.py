r"""The cache sees each attribute that a model's answers depend on, or asks the model once more."""

import argparse
import collections
import copy
import dataclasses
import enum
import functools
import gc
import types
import weakref

import numpy as np
import pytest
import torch
from models import Teacher, connected, evaluations, explainer, graph
from torch.nn import Linear

from pyg_dnx import FastDnX, shared_cache
from pyg_dnx.distill import state as states
from pyg_dnx.distill.state import State

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


@dataclasses.dataclass
class Config:
    gain: float = 1.0


class Opaque:
    def __init__(self):
        self.gain = 1.0


def scaling(gains):
    return lambda value: gains[0] * value


class Holder(Teacher):
    r"""Its answers depend on ``self.held``, in a way of each test's own."""

    classwide = 1.0

    def __init__(self, held, gain_of):
        super().__init__()
        self.held, self.gain_of = held, gain_of

    def forward(self, x, edge_index):
        return self.gain_of(self.held) * self.classwide * self.gain * self.bonus() * super().forward(x, edge_index)

    @property
    def gain(self):
        return 1.0

    @staticmethod
    def bonus():
        return 1.0

    @classmethod
    def named(cls):
        return cls.__name__


def item_of(value):
    return value[0]


def first_of(value):
    return min(value)


def plain(value):
    return float(value)


def length_of(value):
    return 1.0 + len(value)


def gain_in(value):
    return value.gain


def value_in(value):
    return value.value


def call(value):
    return value(2.0)


def weigh(value):
    return value[0].weight.mean() + 2.0


def new(make):
    return lambda model: setattr(model, 'held', make())


def edit(change):
    return lambda model: change(model.held)


def method(model):
    return model.double_of


CASES = {  # what is held, how it counts, how it changes; and whether a change can be told without asking the model
    'NumPy number': (lambda: np.float64(1.0), plain, new(lambda: np.float64(3.0)), True),
    'NumPy array': (lambda: np.ones(2), item_of, edit(lambda held: held.__setitem__(0, 3.0)), True),
    'enum': (lambda: Kind.ONE, value_in, new(lambda: Kind.TWO), True),
    'frozenset': (lambda: frozenset({1, 2}), first_of, new(lambda: frozenset({3, 2})), True),
    'set': (lambda: {2}, first_of, edit(lambda held: held.add(1)), True),
    'deque': (lambda: collections.deque([1.0]), item_of, edit(lambda held: held.appendleft(3.0)), True),
    'range': (lambda: range(2), length_of, new(lambda: range(3)), True),
    'partial': (lambda: functools.partial(pow, 2.0), call, new(lambda: functools.partial(pow, 3.0)), True),
    'namespace': (
        lambda: argparse.Namespace(gain=1.0),
        gain_in,
        edit(lambda held: setattr(held, 'gain', 3.0)),
        True,
    ),
    'dataclass': (Config, gain_in, edit(lambda held: setattr(held, 'gain', 3.0)), True),
    'modules in a list': (
        lambda: [Linear(2, 2)],
        weigh,
        edit(lambda held: held[0].weight.data.add_(3.0)),
        True,
    ),
    'modules in a dict in a list': (
        lambda: [{0: Linear(2, 2)}],
        lambda held: weigh(held[0]),
        edit(lambda held: held[0][0].weight.data.add_(3.0)),
        True,
    ),
    'another module in a list': (
        lambda: [Linear(2, 2)],
        weigh,
        edit(lambda held: held.__setitem__(0, Linear(1, 1))),
        True,
    ),
    'closure': (lambda: scaling([1.0]), call, new(lambda: scaling([3.0])), True),
    'what a function closes over': (
        lambda: scaling([1.0]),
        call,
        edit(lambda held: held.__closure__[0].cell_contents.__setitem__(0, 3.0)),
        True,
    ),
    'method of another object': (
        lambda: [3.0, 2.0, 5.0].index,
        call,
        edit(lambda held: held.__self__.insert(0, 7.0)),
        False,
    ),
    'unknown object': (Opaque, gain_in, edit(lambda held: setattr(held, 'gain', 3.0)), False),
    'array of objects': (
        lambda: np.array([1.0, 'a'], dtype=object),
        item_of,
        edit(lambda held: held.__setitem__(0, 3.0)),
        False,
    ),
}


def holder(name):
    make, gain_of, change, is_seen = CASES[name]
    torch.manual_seed(0)
    return Holder(make(), gain_of).eval(), change, is_seen


def distilled(model, inputs, cache=shared_cache):
    return connected(FastDnX(cache=cache)).distill(model, *inputs)


@pytest.mark.parametrize('name', CASES)
def test_goes_stale_with_what_a_model_holds(name):
    (model, change, is_seen), inputs = holder(name), graph()
    before = distilled(model, inputs)
    for _ in range(2):
        with evaluations(model, 0 if is_seen else 1):
            assert distilled(model, inputs) is before
    change(model)
    after = distilled(model, inputs)
    assert after.weight.equal(distilled(model, inputs, None).weight)
    assert not after.weight.equal(before.weight)
    assert distilled(model, inputs) is after


def twice(self, x, edge_index):
    return 2.0 * Teacher.forward(self, x, edge_index)


CLASS_CHANGES = {
    'class attribute': ('classwide', 3.0),
    'method of a class': ('forward', twice),
    'property': ('gain', property(lambda self: 2.0)),
    'static method': ('bonus', staticmethod(lambda: 2.0)),
}


@pytest.mark.parametrize('name', CLASS_CHANGES)
def test_goes_stale_with_what_a_class_holds(name, monkeypatch):
    (model, *_), inputs = holder('range'), graph()
    before = distilled(model, inputs)
    monkeypatch.setattr(Holder, *CLASS_CHANGES[name])
    after = distilled(model, inputs)
    assert not after.weight.equal(before.weight)
    assert after.weight.equal(distilled(model, inputs, None).weight)
    with evaluations(model, 0):
        assert distilled(model, inputs) is after


def test_a_class_that_changes_without_effect_is_asked_about_once(monkeypatch):
    (model, *_), inputs = holder('range'), graph()
    before = distilled(model, inputs)
    monkeypatch.setattr(Holder, 'other', 1, raising=False)
    for count in (1, 0):
        with evaluations(model, count):
            assert distilled(model, inputs) is before


@pytest.mark.parametrize(
    'bind', [lambda model: types.MethodType(twice, model), lambda model: functools.partial(twice, model)]
)
def test_goes_stale_when_forward_is_replaced(bind):
    model, inputs = Teacher().eval(), graph()
    before = distilled(model, inputs)
    model.forward = bind(model)
    assert not distilled(model, inputs).weight.equal(before.weight)
    known = distilled(model, inputs)
    model.forward = bind(model)
    assert distilled(model, inputs).weight.equal(known.weight)
    del model.forward
    assert distilled(model, inputs).weight.equal(before.weight)


@pytest.mark.filterwarnings('ignore')
def test_goes_stale_with_quantised_weights():
    class Quantised(Teacher):
        def __init__(self):
            super().__init__()
            self.last = Linear(3, 3)

        def forward(self, x, edge_index):
            return self.last(super().forward(x, edge_index))

    model, inputs = Quantised().eval(), graph()
    try:
        model = torch.ao.quantization.quantize_dynamic(model, {Linear}, dtype=torch.qint8)
    except (RuntimeError, AttributeError) as error:  # without such an engine, or in later releases of PyTorch
        pytest.skip(str(error))
    before = distilled(model, inputs)
    assert distilled(model, inputs) is before
    weight, bias = model.last._weight_bias()
    model.last.set_weight_bias(torch.quantize_per_tensor(weight.dequantize().flip(0), 0.01, 0, torch.qint8), bias)
    after = distilled(model, inputs)
    assert not after.weight.equal(before.weight)
    assert after.weight.equal(distilled(model, inputs, None).weight)


class Lazy(Teacher):
    r"""Sets an attribute in its first evaluation, which the user may set later; keeps its last answer."""

    gain = steps = None

    def __init__(self, keeps=False):
        super().__init__()
        self.gain, self.calls, self.keeps, self.kept = None, 0, keeps, None

    def forward(self, x, edge_index):
        self.calls += 1
        self.gain = 1.0 if self.gain is None else self.gain
        outputs = self.gain * (-1.0 if self.calls < 0 else 1.0) * super().forward(x, edge_index)
        self.kept = outputs if self.keeps else None
        return outputs


@pytest.mark.parametrize('change', [{'gain': 3.0}, {'calls': -100}])
def test_goes_stale_with_what_an_evaluation_sets(change):
    model, inputs = Lazy().eval(), graph()
    before = distilled(model, inputs)
    assert (model.gain, model.calls) == (None, 0)
    with evaluations(model, 0):
        assert distilled(model, inputs) is before
    with torch.no_grad():
        model(*inputs)  # which sets it
    for count in (1, 0, 0):
        with evaluations(model, count):
            assert distilled(model, inputs) is before
    vars(model).update(change)
    after = distilled(model, inputs)
    assert not after.weight.equal(before.weight)
    assert after.weight.equal(distilled(copy.deepcopy(model).eval(), inputs, None).weight)


def test_a_model_that_keeps_its_last_answer_is_asked_about_not_distilled_anew():
    model, (x, edge_index) = Lazy(keeps=True).eval(), graph()
    explain = explainer(model, FastDnX())
    explain(x, edge_index, index=1)
    misses = shared_cache.misses
    for _ in range(2):
        with torch.no_grad():
            model(2.0 * x, edge_index)
        connected(FastDnX()).distill(model, x, edge_index)
    assert shared_cache.misses == misses


@pytest.mark.parametrize('name', ['closure', 'modules in a list', 'unknown object', 'partial'])
def test_keeps_no_model_alive(name):
    (model, *_), inputs = holder(name), graph()
    model.itself, model.by = [model], functools.partial(twice, model)
    model.around = lambda model=model: model
    distilled(model, inputs)
    distilled(model, inputs)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert len(shared_cache) == 0


def test_a_list_that_holds_itself_is_unknown():
    model, inputs = Teacher().eval(), graph()
    model.list = [1.0]
    model.list.append(model.list)
    with evaluations(model, 2):
        assert distilled(model, inputs) is distilled(model, inputs)


def test_layers_of_pyg_need_no_asking():
    r"""Else each explanation would take one more evaluation."""
    from torch_geometric import nn

    for make in (nn.GCN, nn.GAT, nn.GIN, nn.GraphSAGE, nn.EdgeCNN):
        model, inputs = make(3, 4, 2, 3, norm='batch').eval(), graph()
        distilled(model, inputs)
        for _ in range(2):
            with evaluations(model, 0):
                distilled(model, inputs)
            explainer(model, FastDnX(), edge='object')(*inputs, index=1)


def test_answers_of_parts():
    assert [states._both(one, other) for one in (True, None, False) for other in (True, None, False)] == [
        *(True, None, False, None, None, False, False, False, False)
    ]
    state = State(Teacher())
    assert state.is_current() is False  # as its model is gone
