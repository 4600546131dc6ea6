r"""Asking on copies: of nodes, pairs and graphs, under masks of every kind, as of each by hand on the whole graph."""

import copy
import itertools
from contextlib import nullcontext

import pytest
import torch
from models import CONVS, Bare, Mean, adjacencies, evaluations
from models import Teacher as Model
from torch.nn import BatchNorm1d, Dropout
from torch_geometric.explain.config import ModelConfig
from torch_geometric.nn import GCNConv, SAGEConv, global_mean_pool

from pyg_dnx.graph.graph import Graph
from pyg_dnx.run import Run
from pyg_dnx.teacher.local import Local, Masks
from pyg_dnx.teacher.teacher import Teacher

N, F = 14, 3
BATCH = torch.tensor([0] * 4 + [1] * 5 + [2] * 1 + [3] * 4)
ONCE = 3  # evaluations: all copies at once, and what one mask does to the graph


class Told(torch.nn.Module):
    r"""Predicts something of nodes, pairs or graphs, and is told something of each of them."""

    def __init__(self, level, hops=2):
        super().__init__()
        torch.manual_seed(0)
        self.level = level
        self.convs = torch.nn.ModuleList([GCNConv(F, F) for _ in range(hops)])

    def forward(self, x, edge_index, edge_weight, position, pairs=None, strength=None, batch=None, size=None):
        x = x + position
        for conv in self.convs:
            x = conv(x, edge_index, edge_weight).tanh()
        if self.level == 'node':
            return x
        if self.level == 'graph':
            return global_mean_pool(x, batch) * (1.0 if size is None else size[:, None])
        source, target = edge_index if pairs is None else pairs
        return x[source] * x[target].roll(1, dims=1) * (1.0 if strength is None else strength[:, None])


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def edges_within(batch=None):
    r"""Edges with loops, duplicates, edges of one direction and an isolated node; none between graphs, if there are."""
    steps = torch.stack([torch.arange(12), torch.arange(1, 13)])
    more = torch.tensor([[2, 2, 7, 7, 10], [2, 9, 8, 8, 10]])
    edge_index = torch.cat([steps, steps[:, 3:].flip(0), more], dim=1)
    return edge_index if batch is None else edge_index[:, batch[edge_index[0]] == batch[edge_index[1]]]


def graph_of(level):
    edge_index = edges_within(BATCH if level == 'graph' else None)
    kwargs = {'edge_weight': drawn(edge_index.size(1)).abs() + 0.2, 'position': drawn(N, F, seed=1)}
    if level == 'pair':
        pairs = torch.tensor([[0, 5, 5, 12, 13, 3], [1, 5, 9, 2, 4, 0]])
        kwargs |= {'pairs': pairs, 'strength': drawn(6, seed=2)}
    if level == 'graph':
        kwargs |= {'batch': BATCH, 'size': drawn(4, seed=3)}
    return Graph(drawn(N, F, seed=4), edge_index, kwargs, 'pairs')


def local_of(model, graph, level='node', num_hops=2):
    config = ModelConfig('regression', level, 'raw')
    with torch.no_grad():
        outputs = copy.deepcopy(model).eval()(graph.x, graph.edge_index, **graph.kwargs).double()
    return Local(Teacher(model, config), graph, outputs.view(outputs.size(0), -1), num_hops)


@torch.no_grad()
def by_hand(model, graph, output, nodes=None, edges=None, how='features', level='node'):
    r"""One answer of the whole graph, whose parts are taken away one by one."""
    kwargs, x, (source, target) = dict(graph.kwargs), graph.x, graph.edge_index.tolist()
    keeps = [True] * len(source) if edges is None else edges.tolist()
    if nodes is not None and how == 'features':
        x, alive = x * nodes, [True] * N
    else:
        alive = [True] * N if nodes is None else (nodes > 0).view(-1).tolist()
    ends = {'node': [output], 'graph': []}.get(level)
    if level == 'pair':
        ends = kwargs['pairs'][:, output].tolist()
    if level == 'edge':
        ends = [source[output], target[output]]
    if level == 'graph':
        for number in range(4):
            inside = [node for node in range(N) if BATCH[node] == number]
            ends += [] if any(alive[node] for node in inside) else inside[:1]
    left = [node for node in range(N) if alive[node] or node in ends]
    kept = [
        e for e in range(len(source))
        if (keeps[e] and alive[source[e]] and alive[target[e]]) or (level == 'edge' and e == output)
    ]  # fmt: skip
    x = torch.stack([x[node] * alive[node] for node in left])
    edge_index = torch.tensor([[left.index(source[e]) for e in kept], [left.index(target[e]) for e in kept]]).long()
    kwargs |= {'edge_weight': kwargs['edge_weight'][kept], 'position': kwargs['position'][left]}
    row = {'node': left.index(output) if level == 'node' else 0, 'edge': kept.index(output) if level == 'edge' else 0}
    if level == 'pair':
        kwargs |= {'pairs': torch.tensor([[left.index(end)] for end in ends]), 'strength': kwargs['strength'][[output]]}
    if level == 'graph':
        kwargs |= {'batch': BATCH[left]}
    return model(x, edge_index, **kwargs)[{**row, 'pair': 0, 'graph': output}[level]]


LEVELS = ['node', 'pair', 'edge', 'graph']
QUESTIONS = {'node': range(N), 'pair': range(6), 'edge': range(0, 20, 3), 'graph': range(4)}
KINDS = {  # what masks of nodes [N, .] and of edges [E] may be
    'blanked nodes': lambda draw, e: ({'node': draw(N) > 0}, 'features'),
    'softly': lambda draw, e: ({'node': draw(N).sigmoid()}, 'features'),
    'single features': lambda draw, e: ({'node': draw(N, F) > 0}, 'features'),
    'removed nodes': lambda draw, e: ({'node': draw(N) > 0}, 'nodes'),
    'no nodes': lambda draw, e: ({'node': draw(N) > 9}, 'nodes'),
    'dropped edges': lambda draw, e: ({'edge': draw(e) > 0}, 'features'),
    'no edges': lambda draw, e: ({'edge': draw(e) > 9}, 'features'),
    'removed nodes, dropped edges': lambda draw, e: ({'node': draw(N) > -1, 'edge': draw(e) > 0}, 'nodes'),
    'single features, dropped edges': lambda draw, e: ({'node': draw(N, F) > 0, 'edge': draw(e) > 0}, 'features'),
    'nothing': lambda draw, e: ({}, 'features'),
}


def masks_of(kind, num_edges, count):
    r"""A mask for each of ``count`` questions: as functions, and one by one."""
    each = [KINDS[kind](lambda *shape, s=s: drawn(*shape, seed=s), num_edges) for s in range(count)]
    how = each[0][1]
    tables = {name: torch.stack([one[name] for one, _ in each]) for name in each[0][0]}
    masks = Masks(**{name: (lambda ids, at, of=of: of[at, ids]) for name, of in tables.items()}, how=how)
    single = [
        {'nodes': one['node'].view(N, -1) if 'node' in one else None, 'edges': one.get('edge'), 'how': how}
        for one, _ in each
    ]
    return masks, Masks(**tables, how=how), single


@pytest.mark.parametrize('is_local', [True, False])
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('level', LEVELS)
def test_answers_are_those_by_hand(level, kind, is_local):
    task, graph = {'pair': 'edge'}.get(level, level), graph_of(level)
    model, outputs = Told(task).double(), torch.tensor(QUESTIONS[level]).repeat(2).flip(0)
    local = local_of(model, graph, task, 2 if is_local or level == 'graph' else None)
    masks, tables, single = masks_of(kind, graph.edge_index.size(1), outputs.numel())
    expected = torch.stack(
        [by_hand(model, graph, o, **one, level=level) for o, one in zip(outputs.tolist(), single, strict=True)]
    )
    with evaluations(model, 2 if is_local or level == 'graph' else outputs.numel()):
        found = local.at(outputs, masks)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(local.at(outputs, tables), expected)


@pytest.mark.parametrize('level', LEVELS)
@pytest.mark.parametrize('num_hops', [2, None])
def test_masks_that_several_share(level, num_hops):
    task, graph = {'pair': 'edge'}.get(level, level), graph_of(level)
    model, outputs = Told(task).double(), torch.tensor(QUESTIONS[level])
    masks, _, single = masks_of('dropped edges', graph.edge_index.size(1), 3)
    asked, number = outputs.repeat(3), torch.arange(3).repeat_interleave(outputs.numel())
    local = local_of(model, graph, task, num_hops)
    if level == 'edge':  # whose own edge is not dropped: not even for the others, on the graph
        asked, number = asked[::7], number[::7]
    with evaluations(model, 2 if num_hops or level == 'graph' else 3):
        found = local.at(asked, masks, number)
    expected = [
        by_hand(model, graph, o, **single[n], level=level) for o, n in zip(asked.tolist(), number.tolist(), strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize('conv', CONVS)
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_every_family_under_soft_masks_of_messages(conv, dtype):
    edge_index = edges_within()
    kwargs = {'edge_weight': torch.linspace(0.2, 3.0, edge_index.size(1), dtype=dtype)} if conv == 'weighted' else {}
    graph, model = Graph(drawn(N, F).to(dtype), edge_index, kwargs), Model(conv).to(dtype)
    weight = drawn(N, edge_index.size(1)).sigmoid().to(dtype)
    nodes = torch.arange(N)
    on_copies, on_graph = (local_of(model, graph, num_hops=hops).at(nodes, Masks(edge=weight)) for hops in (2, None))
    torch.testing.assert_close(on_copies, on_graph, rtol=1e-4, atol=1e-5)
    assert (on_copies - local_of(model, graph).outputs).abs().max() > 0.01


class Global(Model):
    share = 1.0

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) + self.share * x.mean(dim=0)


class Rounded(Global):
    share = 1e-7


class Embedded(Model):  # fails on any other graph
    def forward(self, x, edge_index):
        return super().forward(x + drawn(N, F), edge_index)


class Pooled(Model):  # has a row too many on any other graph
    def forward(self, x, edge_index):
        x = super().forward(x, edge_index)
        return x if x.size(0) == N else torch.cat([x, x.mean(dim=0, keepdim=True)])


class Shy(Model):  # looks at all nodes as soon as a neighbour is blank
    def forward(self, x, edge_index):
        blank = (x == 0).all(dim=1, keepdim=True).to(x.dtype)
        blank = blank.index_add(0, edge_index[1], blank[edge_index[0]]).clamp(max=1.0)
        return super().forward(x, edge_index) + blank * x.mean(dim=0)


class Twice(Model):  # looks a hop farther than its layers tell
    def forward(self, x, edge_index):
        return super().forward(self.conv1(x, edge_index)[:, :3], edge_index)


class Last(Model):  # looks at all nodes from one of them
    def forward(self, x, edge_index):
        return super().forward(x, edge_index) + (x == drawn(N, F, seed=4)[12]) * x.mean(dim=0)


Q = 2 * N
REACHES = [  # how far the model looks, what is told, and how often it is asked
    (Global, 2, 1 + Q),
    (Rounded, 2, 2),
    (Embedded, 2, Q),
    (Pooled, 2, 1 + Q),
    (Shy, 2, 2 + Q),
    (Twice, 3, 2),
    (lambda: Model('sage'), 1, None),  # one more for degrees, which is enough
    (Model, 50, 2),
    (Bare, None, Q),
    (Bare, 0, 2),
    (Last, 2, 2 + 2),
]


@pytest.mark.parametrize(('create', 'num_hops', 'expected'), REACHES)
def test_how_far_a_model_looks(create, num_hops, expected):
    model, graph = create().double(), Graph(drawn(N, F, seed=4), edges_within(), {})
    nodes, blank = torch.arange(N).repeat(2), drawn(Q, N) > 0
    local = local_of(model, graph, num_hops=num_hops)
    with evaluations(model, expected) if expected else nullcontext():
        found = local.at(nodes, Masks(blank))
    answers = [model(graph.x * mask[:, None], graph.edge_index)[node] for node, mask in zip(nodes, blank, strict=True)]
    torch.testing.assert_close(found, torch.stack(answers).detach())


def test_too_few_hops_are_noticed():
    graph, nodes = Graph(drawn(N, F), edges_within(), {}), torch.arange(N)
    found = local_of(Twice().double(), graph, num_hops=2).at(nodes, Masks(drawn(N, N) > 0))
    torch.testing.assert_close(
        found, local_of(Twice().double(), graph, num_hops=None).at(nodes, Masks(drawn(N, N) > 0))
    )


@pytest.mark.parametrize('entries', [1, 40, 2**20])
@pytest.mark.parametrize('level', LEVELS)
def test_chunks_change_nothing(level, entries, capsys):
    task, graph = {'pair': 'edge'}.get(level, level), graph_of(level)
    model, outputs = Told(task).double(), torch.tensor(QUESTIONS[level])
    masks, _, _ = masks_of('removed nodes', graph.edge_index.size(1), outputs.numel())
    expected = local_of(model, graph, task).at(outputs, masks)
    found = local_of(model, graph, task).at(outputs, masks, run=Run(progress=True, entries=entries), label='Test')
    torch.testing.assert_close(found, expected)
    shown = capsys.readouterr().err
    assert 'Test' in shown
    assert f'{outputs.numel()}/{outputs.numel()}' in shown


def test_the_graph_is_asked_where_that_costs_less():
    graph = Graph(drawn(2_000, 200), torch.stack([torch.arange(2_000), torch.arange(2_000).roll(1)]), {})
    model = Model('gcn', num_features=200).double()
    local, nodes = local_of(model, graph), torch.arange(1_000)
    mask = (drawn(2, 2_000) > 0).double()
    for count, expected in ((2, 2), (1_000, 2)):  # 2 · 1,000 copies of 7 nodes are more than the graph twice
        with evaluations(model, expected):
            local.at(nodes[:count].repeat(2), Masks(mask), torch.arange(2).repeat_interleave(count))


def test_what_is_known_of_an_output_is_not_asked_again():
    model, graph = Last().double(), Graph(drawn(N, F, seed=4), edges_within(), {})
    local, mask = local_of(model, graph), Masks(drawn(1, N) > 0)
    one, another = torch.tensor([3]), torch.tensor([12])
    for nodes, expected in ((one, 2), (one, 1), (another, 2), (another, 1)):
        with evaluations(model, expected):
            local.at(nodes, mask)


@pytest.mark.parametrize('name', ['coo', 'csr', 'csc', 'SparseTensor'])
def test_matrices(name):
    matrix = adjacencies(edges_within(), torch.linspace(0.5, 2.0, 26).double()[: edges_within().size(1)], N).get(name)
    if matrix is None:
        pytest.skip('torch_sparse is not installed')
    model, x, mask = Mean().double(), drawn(N, F), drawn(N, N) > 0
    found = local_of(model, Graph(x, matrix, {})).at(torch.arange(N), Masks(mask))
    torch.testing.assert_close(found, torch.stack([model(x * mask[i][:, None], matrix)[i] for i in range(N)]).detach())
    with pytest.raises(ValueError, match='sparse matrix'):
        local_of(model, Graph(x, matrix, {})).at(torch.arange(N), Masks(mask, how='nodes'))


@pytest.mark.parametrize('how', ['features', 'nodes'])
def test_the_node_that_stands_for_the_rest_counts_as_all_of_them(how):
    r"""Node 3 sees node 2, at whose degree many others count."""
    hub = torch.stack([torch.arange(4, N), torch.tensor([2]).expand(N - 4)])
    edge_index = torch.cat([torch.tensor([[0, 1, 2], [1, 2, 3]]), hub, hub.flip(0)], dim=1)
    graph, model = Graph(drawn(N, F, seed=4), edge_index, {}), GCNConv(F, 2).double()
    masks = Masks(drawn(60, N) > 0, drawn(60, edge_index.size(1)) > 0, how=how)
    asked, expected = torch.full((60,), 3), local_of(model, graph, num_hops=None).at(torch.full((60,), 3), masks)
    local = local_of(model, graph, num_hops=1)
    with evaluations(model, 2):
        torch.testing.assert_close(local.at(asked, masks), expected)


@pytest.mark.parametrize('level', LEVELS)
def test_no_questions(level):
    task = {'pair': 'edge'}.get(level, level)
    local, none = local_of(Told(task).double(), graph_of(level), task), torch.tensor([], dtype=torch.long)
    assert local.at(none, Masks(drawn(1, N) > 0)).shape == (0, F)


class Moody(Model):
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
        (RuntimeError('out of ideas'), range(99), True),
        (KeyboardInterrupt(), (1,), True),
    ],
)
def test_everything_is_left_as_found(failure, fails, reaches):
    model, graph, nodes = Moody(failure, fails).double(), Graph(drawn(N, F), edges_within(), {}), torch.arange(N)
    local, mask = local_of(Moody().double(), graph), drawn(N, N) > 0
    local = Local(Teacher(model, local.teacher.config), graph, local.outputs, 2)
    kept, before, random = (graph.x.clone(), graph.edge_index.clone()), copy.deepcopy(model), torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    with pytest.raises(type(failure)) if reaches else nullcontext():
        local.at(nodes, Masks(mask))
    assert [module.training for module in model.modules()] == modes
    for name, value in before.state_dict().items():
        assert model.state_dict()[name].equal(value)
    assert vars(model.conv1).keys() == vars(before.conv1).keys()
    assert model.conv1.cached
    assert torch.get_rng_state().equal(random)
    assert all(map(torch.equal, (graph.x, graph.edge_index), kept))


def test_what_is_kept_in_inference_mode_serves_outside_of_it():
    model = Model('gcn').eval()
    x, edge_index = drawn(N, F).float(), edges_within()
    teacher = Teacher(model, ModelConfig('multiclass_classification', 'node', 'raw'))
    with torch.inference_mode():
        graph = Graph.of(x.clone(), edge_index, {})
        local = Local(teacher, graph, teacher.outputs(graph).values, 2)
        nothing = Masks(lambda ids, numbers: torch.ones_like(ids, dtype=x.dtype)[:, None])
        inside = local.at(torch.tensor([3]), nothing)
    torch.testing.assert_close(local.at(torch.tensor([3, 5]), nothing)[:1], inside)
