r"""What the model says of one node without another, or with it alone: of many pairs at once as of each by hand."""

import copy
import itertools
from contextlib import nullcontext

import pytest
import torch
from models import CONVS, Bare, Mean, Teacher, adjacencies, connected, evaluations
from torch.nn import BatchNorm1d, Dropout
from torch_geometric.nn import SAGEConv

from pyg_dnx import ProbeDnX
from pyg_dnx.teacher import local as pairs
from pyg_dnx.teacher.local import Pairs

TASKS = {  # what the outputs of such a model say, [N, C]
    'multiclass raw': lambda outputs: outputs.softmax(dim=1),
    'multiclass log_probs': torch.exp,
    'binary raw [N]': lambda outputs: torch.stack([1 - outputs.sigmoid(), outputs.sigmoid()], dim=1),
    'binary probs [N, 1]': lambda outputs: torch.cat([1 - outputs, outputs], dim=1),
    'binary raw [N, 2]': lambda outputs: outputs.softmax(dim=1),
    'regression [N]': lambda outputs: outputs[:, None],
    'regression [N, 2]': lambda outputs: outputs,
}
FLOWS = ['source_to_target', 'target_to_source']
N, Q = 14, 16
TOGETHER = 3  # evaluations: all pairs at once, and one of them by itself, which takes two
SINGLY, NOTICED = 2 * Q, 1 + 2 * Q


def path():
    r"""A graph that no neighbourhood covers, with loops, duplicates, edges of one direction and an isolated node."""
    generator = torch.Generator().manual_seed(4)
    steps = torch.stack([torch.arange(12), torch.arange(1, 13)])
    more = torch.tensor([[2, 2, 7, 7, 10], [2, 9, 8, 8, 10]])
    edge_index = torch.cat([steps, steps[:, 3:].flip(0), more], dim=1)
    return 3 * torch.randn(N, 3, generator=generator, dtype=torch.float64), edge_index, {}


def drawn(num_nodes):
    r"""Some pairs in any order, [2, Q]."""
    every = torch.cartesian_prod(torch.arange(num_nodes), torch.arange(num_nodes)).T
    return every[:, torch.randperm(every.size(1), generator=torch.Generator().manual_seed(0))[:Q]]


def by_hand(model, inputs, chosen, task='multiclass raw'):
    r"""By masking the whole graph for each pair, [2, Q, C]."""
    (x, edge_index, kwargs), found = inputs, []
    for node, other in chosen.T.tolist():
        alone = torch.zeros_like(x[:, :1]).index_fill(0, torch.tensor(other), 1.0)
        both = [model(x * mask, edge_index, **kwargs) for mask in (1.0 - alone, alone)]
        found.append(torch.stack([TASKS[task](outputs)[node] for outputs in both]))
    return torch.stack(found, dim=1).double()


@torch.no_grad()
def asking(model, inputs, num_hops=2, flow=FLOWS[0], task='multiclass raw'):
    outputs = TASKS[task](copy.deepcopy(model).eval()(*inputs[:2], **inputs[2]))
    return Pairs(model, *inputs, connected(ProbeDnX(), task).model_config, outputs, num_hops, flow)


@torch.no_grad()
def check(model, inputs, expected=TOGETHER, num_hops=2, flow=FLOWS[0], task='multiclass raw', chosen=None, **options):
    r"""Holds answers against those by hand, and the number of evaluations against ``expected``."""
    chosen = drawn(inputs[0].size(0)) if chosen is None else chosen
    asked = asking(model.eval(), inputs, num_hops, flow, task)
    with evaluations(model, expected):
        found = asked.answers(*chosen, **options)
    close = {} if inputs[0].dtype == torch.float64 else {'rtol': 1e-4, 'atol': 1e-6}
    torch.testing.assert_close(found, by_hand(model, inputs, chosen, task), **close)
    return found


@pytest.mark.parametrize(('task', 'num_hops'), [*((task, 2) for task in TASKS), ('multiclass raw', None)])
def test_answers_are_those_by_hand(graph, task, num_hops):
    kwargs = {} if graph.edge_weight is None else {'edge_weight': graph.edge_weight.double()}
    inputs = (graph.x.double(), graph.edge_index, kwargs)
    expected = TOGETHER if num_hops == 2 else 2 * min(Q, graph.x.size(0) ** 2)
    check(Teacher('weighted', task).double(), inputs, expected, num_hops, task=task)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('conv', CONVS)
def test_every_family(conv, dtype):
    x, edge_index, _ = path()
    kwargs = {'edge_weight': torch.linspace(0.2, 3.0, edge_index.size(1), dtype=dtype)} if conv == 'weighted' else {}
    assert check(Teacher(conv).to(dtype), (x.to(dtype), edge_index, kwargs)).diff(dim=0).abs().max() > 0.1


@pytest.mark.parametrize('told', FLOWS)
@pytest.mark.parametrize('flow', FLOWS)
def test_flow(flow, told):
    model = Teacher().double()
    model.conv1.flow = model.conv2.flow = flow
    check(model, path(), TOGETHER if told == flow else NOTICED, flow=told)


@pytest.mark.parametrize('name', ['coo', 'csr', 'csc', 'SparseTensor'])
def test_matrices(name):
    x, edge_index, _ = path()
    matrix = adjacencies(edge_index, torch.linspace(0.5, 2.0, edge_index.size(1)).double(), N).get(name)
    if matrix is None:
        pytest.skip('torch_sparse is not installed')
    check((Teacher() if name == 'SparseTensor' else Mean()).double(), (x, matrix, {}), SINGLY)


class Global(Teacher):
    share = 1.0

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) + self.share * x.mean(dim=0)


class Rounded(Global):
    share = 1e-7


class Embedded(Teacher):  # fails on any other graph
    def forward(self, x, edge_index):
        return super().forward(x + path()[0].sin(), edge_index)


class Pooled(Teacher):  # has a row too many on any other graph
    def forward(self, x, edge_index):
        x = super().forward(x, edge_index)
        return x if x.size(0) == N else torch.cat([x, x.mean(dim=0, keepdim=True)])


class Shy(Teacher):  # looks at all nodes as soon as a neighbour is blank
    def forward(self, x, edge_index):
        blank = (x == 0).all(dim=1, keepdim=True).to(x.dtype)
        blank = blank.index_add(0, edge_index[1], blank[edge_index[0]]).clamp(max=1.0)
        return super().forward(x, edge_index) + blank * x.mean(dim=0)


class Twice(Teacher):  # looks a hop farther than its layers tell
    def forward(self, x, edge_index):
        return super().forward(self.conv1(x, edge_index)[:, :3], edge_index)


class Last(Teacher):  # looks at all nodes from one of them
    def forward(self, x, edge_index):
        return super().forward(x, edge_index) + (x == path()[0][12]) * x.mean(dim=0)


REACHES = [  # how far the model looks, what is told, and how it is asked
    ('global mean', Global, 2, NOTICED),
    ('global mean, hardly', Rounded, 2, TOGETHER),
    ('embedding', Embedded, 2, SINGLY),
    ('other shape', Pooled, 2, NOTICED),
    ('once masked', Shy, 2, TOGETHER + SINGLY),
    ('a layer twice', Twice, 2, NOTICED),
    ('a layer twice', Twice, 3, TOGETHER),
    ('too few hops', Teacher, 1, NOTICED),
    ('one more for degrees', lambda: Teacher('sage'), 1, TOGETHER),
    ('more hops than needed', Teacher, 50, TOGETHER),
    ('no graph', Bare, None, SINGLY),
    ('no graph', Bare, 0, TOGETHER),
]


@pytest.mark.parametrize(('name', 'create', 'num_hops', 'expected'), REACHES)
def test_how_far_a_model_looks(name, create, num_hops, expected):
    check(create().double(), path(), expected, num_hops)


CHUNKS = [  # numbers in the features at a time, the model, and evaluations: each chunk takes three
    (1, Teacher, 3 * Q),
    (2**24, Teacher, TOGETHER),
    (1, Global, NOTICED),
]


@pytest.mark.parametrize('progress', [True, False, None])
@pytest.mark.parametrize(('limit', 'create', 'expected'), CHUNKS)
def test_chunks_change_nothing(limit, create, expected, progress, monkeypatch, capsys):
    monkeypatch.setattr(pairs, 'MAX_FEATURES_AT_A_TIME', limit)
    monkeypatch.setattr(pairs, 'tqdm', lambda tqdm=pairs.tqdm, **options: tqdm(**{**options, 'delay': 0}))
    check(create().double(), path(), expected, progress=progress)
    shown = capsys.readouterr().err
    assert 'Checking' in shown and f'{Q}/{Q}' in shown if progress else shown == ''


def test_chunks_go_by_the_size_of_neighbourhoods(monkeypatch):
    x, edge_index, _ = path()
    chosen, size = drawn(10) + torch.tensor([[3], [0]]), 2 * 4 * (3 + 1)  # two copies of four nodes
    monkeypatch.setattr(pairs, 'MAX_FEATURES_AT_A_TIME', 100)
    num_chunks = len({size * count // 100 for count in range(1, Q + 1)})
    assert 1 < num_chunks < Q
    check(Teacher().double(), (x, edge_index[:, :12], {}), 3 * num_chunks, chosen=chosen)


def test_what_was_right_is_not_asked_again(monkeypatch):
    chosen = torch.tensor([[3, 5, 13, 12, 4, 12, 0], [4, 5, 13, 12, 5, 3, 7]])
    check(Last().double(), path(), 1 + 2 * 7, chosen=chosen)
    monkeypatch.setattr(pairs, 'MAX_FEATURES_AT_A_TIME', 1)
    check(Last().double(), path(), 3 * 3 + 1 + 2 * 4, chosen=chosen)


@pytest.mark.parametrize('num_hops', [2, None])
def test_no_pairs(num_hops):
    asked, none = asking(Teacher().double(), path(), num_hops), torch.tensor([], dtype=torch.long)
    with evaluations(asked.model, 0):
        torch.testing.assert_close(asked.answers(none, none), torch.empty(2, 0, 3).double())


class Moody(Teacher):
    r"""A model in training, with a frozen layer, which draws numbers, and fails or is interrupted."""

    def __init__(self, failure=None, fails=()):
        super().__init__()
        self.norm, self.drop, self.conv2 = BatchNorm1d(3), Dropout(0.5), SAGEConv(4, 3).eval()
        self.conv1.cached = True
        self.register_buffer('seen', torch.zeros(1))
        self.count, self.failure, self.fails = itertools.count(1), failure, fails

    def forward(self, x, edge_index):
        self.seen += torch.rand(1)
        if next(self.count) in self.fails:
            raise self.failure
        return self.norm(self.drop(super().forward(x, edge_index)))


@pytest.mark.parametrize(
    ('failure', 'fails', 'reaches'),
    [
        (None, (), False),
        (RuntimeError('out of ideas'), (1,), False),  # on copies: the graph may be all that it knows
        (RuntimeError('out of ideas'), (2,), True),
        (RuntimeError('out of ideas'), (1, 5), True),
        (RuntimeError('out of ideas'), range(99), True),
        (KeyboardInterrupt(), (1,), True),
    ],
)
def test_everything_is_left_as_found(failure, fails, reaches):
    model, (x, edge_index, _), chosen = Moody(failure, fails).double(), path(), drawn(N)
    asked, copies = asking(Moody().double(), (x, edge_index, {})), (x.clone(), edge_index.clone(), chosen.clone())
    asked.model, before, random = model, copy.deepcopy(model), torch.get_rng_state()
    modes = [module.training for module in model.modules()]  # of which older PyG's Linear tells its copies nothing
    with pytest.raises(type(failure)) if reaches else nullcontext():
        found = asked.answers(*chosen)
    assert [module.training for module in model.modules()] == modes
    for name, value in before.state_dict().items():
        assert model.state_dict()[name].equal(value)
    assert vars(model.conv1).keys() == vars(before.conv1).keys()
    assert model.conv1.cached
    assert torch.get_rng_state().equal(random)
    assert all(map(torch.equal, (x, edge_index, chosen), copies))
    if not reaches:
        torch.testing.assert_close(found, by_hand(Moody().double().eval(), (x, edge_index, {}), chosen))
