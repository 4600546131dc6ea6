r"""A model and a graph with everything that an explanation may depend on, and ways to change each."""

from __future__ import annotations

import copy
import itertools
import threading

import numpy as np
import torch
from models import Versatile, graph
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

COUNTING = threading.Lock()
numbers, names = itertools.count(), WeakIdKeyDictionary()  # see number_of


class Subject(Versatile):
    r"""Depends on a container and on all kinds of ``extra``, and counts its calls."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.options = {'gains': [1.0, torch.ones(1)]}
        self.calls = 0
        self.eval()

    def forward(self, x, edge_index, edge_weight=None, extra=None):
        with COUNTING:  # else a thread may put back the number that another has just counted on
            self.calls += 1
        gain, gains = self.options['gains']
        if isinstance(extra, (list, dict)):
            first, second = extra.values() if isinstance(extra, dict) else extra
            extra = first * second
        extra = torch.as_tensor(extra) if isinstance(extra, (float, np.ndarray)) else extra
        return gain * gains * super().forward(x, edge_index, edge_weight, extra)


class Squared(torch.nn.LeakyReLU):
    def forward(self, x):
        return x.square()


def step(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()


def swap_biases(model):
    model.conv.bias, model.norm.bias = model.norm.bias, model.conv.bias


def new_head(model):
    model.head = torch.nn.Linear(4, 3).to(model.head.weight.dtype).train(model.training)


def assign(owner, name, change):
    return lambda model: setattr(model.get_submodule(owner), name, change(getattr(model.get_submodule(owner), name)))


MODEL_CHANGES = {
    'optimizer.step': step,
    'load_state_dict': lambda model: model.load_state_dict(Subject(1).state_dict()),
    'its own load_state_dict': lambda model: model.load_state_dict(copy.deepcopy(model.state_dict())),
    'write through .data': lambda model: model.head.weight.data[0].add_(0.5),
    'weight permuted': lambda model: model.head.weight.data.copy_(model.head.weight.data.flip(0)),
    'parameters swapped': swap_biases,
    'parameter replaced by an equal one': assign('head', 'bias', lambda bias: torch.nn.Parameter(bias.data.clone())),
    'parameter replaced': assign('head', 'bias', lambda bias: torch.nn.Parameter(bias.detach() + 0.5)),
    'buffer edited': lambda model: model.norm.running_mean.add_(0.5),
    'buffer permuted through .data': lambda model: model.norm.running_var.data.mul_(torch.linspace(0.5, 2.0, 4)),
    'buffer replaced': assign('norm', 'running_mean', lambda mean: mean.flip(0) + 0.1),
    'mode': lambda model: model.train(not model.training),
    'requires_grad': lambda model: model.requires_grad_(not model.head.weight.requires_grad),
    'hook': lambda model: model.act.register_forward_hook(lambda *_: None),
    'head replaced': new_head,
    'activation of another type': assign('', 'act', lambda act: Squared(0.1).train(act.training)),
    'activation': assign('', 'act', lambda act: torch.nn.LeakyReLU(0.1).train(act.training)),
    'option of a layer': assign('act', 'negative_slope', lambda slope: 0.9 - slope),
    'number': assign('', 'scale', lambda scale: 1.0 if scale < 0 else -1.5),
    'int for float': assign('', 'scale', lambda scale: 1),
    'function': assign('', 'link', lambda link: torch.neg if link is torch.clone else torch.clone),
    'lambda': assign('', 'link', lambda link: lambda x: 0.5 * x),
    'number in a container': lambda model: model.options['gains'].__setitem__(0, model.options['gains'][0] + 0.5),
    'tensor in a container': lambda model: model.options['gains'][1].mul_(1.5),
    'tensor attribute edited through .data': lambda model: model.shift.data.add_(torch.arange(3.0)),
    'tensor attribute replaced by an equal one': assign('', 'shift', torch.clone),
    '.double()': lambda model: model.double(),
    '.float()': lambda model: model.float(),
}


def edited(value):
    r"""Another value, or the same object with something else in it."""
    if isinstance(value, Tensor):
        return value.mul_(1.5)
    if isinstance(value, (list, dict)):
        name = min(value) if isinstance(value, dict) else 0
        value[name] = edited(value[name])
        return value
    if isinstance(value, np.ndarray):
        value[0] += 0.25
    return value + 0.25 if isinstance(value, float) else value


def other_edge(edge_index):
    edge_index[1, 0] = (edge_index[1, 0] + 1) % 8
    return edge_index


GRAPH_CHANGES = {  # of what is under a name
    'x edited': ('x', edited),
    'row of x edited': ('x', lambda x: (x[0].neg_(), x)[1]),
    'x replaced by an equal one': ('x', torch.clone),
    'x replaced': ('x', lambda x: x.flip(0)),
    'x.double()': ('x', torch.Tensor.double),
    'x.float()': ('x', torch.Tensor.float),
    'edge_index edited': ('edge_index', other_edge),
    'edge_index replaced by an equal one': ('edge_index', torch.clone),
    'edge_weight edited': ('edge_weight', edited),
    'edge_weight replaced': ('edge_weight', lambda weight: torch.linspace(0.1, 1.0, 15)),
    'edge_weight dropped': ('edge_weight', lambda weight: None),
    'extra left': ('extra', lambda extra: extra),
    'extra replaced by an equal one': ('extra', copy.deepcopy),
    'extra is a number': ('extra', lambda extra: 0.5),
    'extra is a tensor': ('extra', lambda extra: torch.tensor([0.1, 0.2])),
    'extra is a list': ('extra', lambda extra: [torch.tensor([0.1]), 0.5]),
    'extra is a dict': ('extra', lambda extra: {'first': 0.5, 'second': torch.tensor([0.1])}),
    'extra is an array': ('extra', lambda extra: np.full(2, 0.1)),
    'extra is unknown': ('extra', lambda extra: object()),
    'extra dropped': ('extra', lambda extra: None),
}


def new_graph():
    x, edge_index = graph()
    return {'x': x, 'edge_index': edge_index, 'edge_weight': torch.linspace(0.1, 1.0, 15), 'extra': None}


def number_of(value):
    r"""Tells objects apart, also from those that are gone; an id may come again."""
    return names.setdefault(value, next(numbers))


def content(tensor):
    return str(tensor.dtype), (tensor.detach() + 0).numpy().tobytes()  # -0.0 equals 0.0


def state_of(model):
    r"""What a model's outputs depend on."""
    numbers = [
        (type(module), name, repr(value))
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, (int, float, str)) and name not in ('training', 'calls')
    ]
    gain, gains = model.options['gains']
    tensors = {**model.state_dict(), 'shift': model.shift, 'gains': gains}
    return numbers, gain, number_of(model.link), {name: content(value) for name, value in tensors.items()}


def everything(model, given):
    r"""All that a call must leave as it was."""
    modules = [(list(vars(module)), module.training) for module in model.modules()]
    tensors = [*model.parameters(), *model.buffers(), model.shift, *given.values()]
    exact = [(id(t), t._version, t.requires_grad, t.numpy(force=True).tobytes()) for t in tensors if torch.is_tensor(t)]
    return state_of(model), modules, exact, repr(given), [parameter.grad for parameter in model.parameters()]


def key_of(value):
    r"""What an argument is recognised by: pairs of an object's number, if identity counts, and what else does."""
    if isinstance(value, Tensor):
        return [(number_of(value), value._version)]
    if isinstance(value, (list, dict)):
        items = value.values() if isinstance(value, dict) else value
        return [(None, type(value)), *(pair for item in items for pair in key_of(item))]
    return [(None, value.tobytes() if isinstance(value, np.ndarray) else repr(value))]


def assert_same(found, expected):
    r"""Bit by bit: what is cached was computed in the same way, on one thread."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].equal(value) if isinstance(value, Tensor) else found[name] is value


def all_of(batch):
    parts = {'scores': batch.scores.values(), 'columns': batch.scores.col_indices(), **batch._trust.to_dict()}
    return {**parts, **{f'item.{name}': value for name, value in batch[2].to_dict().items()}}
