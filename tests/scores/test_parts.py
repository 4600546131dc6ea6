r"""Scores of edges and features: what the model answers without them, fitted as answers to masks of nodes are."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from graph_level_case import GraphTeacher, batch_of, graph_explainer, small_graphs
from helpers import dense_adjacency, dense_local_fit, example_graphs
from models import Teacher, connected, evaluations, explainer
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCNConv
from torch_geometric.utils import scatter

from pyg_dnx import NodeExplanations, ProbeDnX, probe_edge_masks, probe_masks
from pyg_dnx.scores.probed import Prior

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

CLOSE = {'rtol': 1e-4, 'atol': 1e-6}
MASKS = {'edges': (None, 'object'), 'columns': ('common_attributes', None), 'entries': ('attributes', None)}
NUM_PROBES, NUM_HOPS = 16, 2


def algorithm_of(kind, task='multiclass raw', **options):
    options = {'num_hops': NUM_HOPS, 'num_probes': NUM_PROBES, 'cache': None, **options}
    node, edge = MASKS['edges' if kind == 'pairs' else kind]
    if kind == 'pairs':
        options['edge_score'] = 'pairs'
    return connected(ProbeDnX(**options), task, node=node, edge=edge)


class Case:
    r"""A model, its answers without edges or features, and all that follows from them, dense and in float64."""

    def __init__(self, name, kind):
        graph = example_graphs()[name]
        self.kind, self.x, self.edge_index = kind, graph.x.double(), graph.edge_index
        self.x[:, 1] *= self.x[:, 1] > 0  # some entries are zero
        self.kwargs = {} if graph.edge_weight is None else {'edge_weight': graph.edge_weight.double()}
        self.model = Teacher('weighted').double().eval()
        self.adjacency = dense_adjacency(self.edge_index, graph.edge_weight, self.x.size(0))
        self.many = algorithm_of(kind).explain_nodes(self.model, self.x, self.edge_index, **self.kwargs)
        self.masks = self.masks_of()
        with torch.no_grad():
            self.outputs = torch.stack([self.without(mask).softmax(dim=1) for mask in self.masks])

    def masks_of(self):
        if self.kind in ('edges', 'pairs'):
            return probe_edge_masks(self.edge_index, NUM_PROBES, pairs=self.kind == 'pairs')
        return probe_masks(self.x.size(1) if self.kind == 'columns' else int((self.x != 0).sum()), NUM_PROBES)

    def without(self, mask):
        x, edge_index, kwargs = self.x, self.edge_index, self.kwargs
        if self.kind == 'columns':
            x = x * mask
        elif self.kind == 'entries':
            x = x.clone()
            x[x != 0] *= mask
        else:
            edge_index, kwargs = edge_index[:, mask], {name: value[mask] for name, value in kwargs.items()}
        return self.model(x, edge_index, **kwargs)

    def expected(self):
        r"""The sizes of effects and those of the surrogate, [N, E], [N, F] or [N, N * F]."""
        hidden = self.x @ self.many.surrogate.weight.double()
        toward = F.one_hot(self.outputs[0].argmax(dim=1), 3).double() - 1 / 3
        power = torch.linalg.matrix_power(self.adjacency, NUM_HOPS)
        if self.kind in ('edges', 'pairs'):
            size, flow = torch.zeros(2, self.x.size(0), self.edge_index.size(1), dtype=torch.float64)
            scale = self.edge_values()
            for k in range(NUM_HOPS):
                walk = torch.linalg.matrix_power(self.adjacency, k)[:, self.edge_index[1]] * scale
                state = torch.linalg.matrix_power(self.adjacency, NUM_HOPS - 1 - k) @ hidden
                size += walk
                flow += walk * (toward @ state[self.edge_index[0]].T)
            return size, flow
        value = self.x.T @ power.T  # [F, N]
        effect = toward @ self.many.surrogate.weight.double().T  # [N, F]
        if self.kind == 'columns':
            return self.x.abs().T @ power.T, value * effect.T
        inside = (self.x != 0).nonzero().T
        size = power[:, inside[0]] * self.x[inside[0], inside[1]].abs()
        return size, power[:, inside[0]] * self.x[inside[0], inside[1]] * effect[:, inside[1]]

    def edge_values(self):
        r"""The entry of Ã that each edge makes; of parallel ones, its share."""
        plain = dense_adjacency(self.edge_index, self.kwargs.get('edge_weight'), self.x.size(0))
        weight = self.kwargs.get('edge_weight', torch.ones(self.edge_index.size(1), dtype=torch.float64))
        source, target = self.edge_index
        key = target * self.x.size(0) + source
        total = torch.zeros(self.x.size(0) ** 2, dtype=torch.float64).index_add_(0, key, weight)
        share = weight / total[key]
        for loop in (source == target).nonzero().view(-1).tolist():  # the last of them counts
            share[loop] = float(not ((key == key[loop]).nonzero().view(-1) > loop).any())
        return plain[target, source] * share

    def scores(self):
        r"""By the definition, under the prior that was chosen."""
        size, effect = self.expected()
        if self.kind == 'columns':
            size, effect = size.T, effect.T
        masks, number = self.masks, None
        if self.kind == 'pairs':
            number = self.edge_index.sort(dim=0).values.unique(dim=1, return_inverse=True)[1]
            size, effect = (scatter(table, number, dim=1) for table in (size, effect))
            masks = torch.stack([masks[:, number == n][:, 0] for n in range(int(number.max()) + 1)], dim=1)
        prior = self.many._request.state.asked[self.kind].probed.prior
        power = {'normalised': 1.0, 'roots': 0.5, 'flat': 0.0}[prior.sizes]
        size = torch.where(size > 0, size**power, 0.0)
        toward = F.one_hot(self.outputs[0].argmax(dim=1), 3).double() - 1 / 3
        answers = (self.outputs * toward).sum(dim=2)
        traits = torch.ones(size.size(1), 1, dtype=torch.float64)
        some = size.any(dim=1)  # an isolated node has no edges
        given = size[some], traits, masks, answers[:, some], prior.likeness, prior.noise, effect[some]
        found = torch.zeros_like(size)
        found[some] = dense_local_fit(*given).score
        return found if number is None else found[:, number] / number.bincount()[number]

    def found(self):
        if self.kind == 'entries':
            return torch.stack([item.node_score[self.x != 0] for item in self.many])
        name = 'feature_score' if self.kind == 'columns' else 'edge_score'
        return torch.stack([item[name] for item in self.many])


@pytest.mark.parametrize('kind', ['edges', 'pairs', 'columns', 'entries'])
@pytest.mark.parametrize('name', ['undirected', 'directed', 'weighted', 'duplicated'])
def test_scores_are_those_of_the_definition(name, kind):
    case = Case(name, kind)
    torch.testing.assert_close(case.found(), case.scores(), **CLOSE)


@pytest.mark.parametrize('kind', ['edges', 'pairs', 'columns', 'entries'])
def test_one_explanation_and_many_agree(kind):
    case = Case('weighted', kind)
    node, edge = MASKS['edges' if kind == 'pairs' else kind]
    one = explainer(case.model, algorithm_of(kind), node=node, edge=edge)
    for index in (0, 5):
        single = one(case.x, case.edge_index, index=index, **case.kwargs)
        for name in ('node_score', 'feature_score', 'edge_score', 'node_mask', 'edge_mask'):
            if single.get(name) is not None:
                torch.testing.assert_close(single[name], case.many[index][name])
    both = one(case.x, case.edge_index, index=torch.tensor([0, 5]), **case.kwargs)
    for name in ('feature_score', 'edge_score'):
        if both.get(name) is not None:
            torch.testing.assert_close(both[name], case.many[0][name] + case.many[5][name])


class Sum(torch.nn.Module):
    r"""Regression, linear in edges and in features: each node sums over neighbours what ``weight`` makes of them."""

    def __init__(self, num_features):
        super().__init__()
        weight = torch.randn(num_features, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x, edge_index):
        return scatter(x[edge_index[0]] @ self.weight, edge_index[1], dim_size=x.size(0))[:, 0]


@pytest.mark.parametrize('kind', ['edges', 'columns', 'entries'])
def test_linear_models_are_exact_without_a_prior(kind):
    x, edge_index, _ = example_graphs()['undirected']
    x, model = x.double(), Sum(3)
    many = algorithm_of(kind, 'regression [N]', num_probes=120, num_hops=1).explain_nodes(model, x, edge_index)
    state = many._request.state
    asked = state.asked[kind]
    bare = replace(asked, probed=replace(asked.probed, prior=Prior('flat', 0.0, 1e-9)))
    many._request.state.asked[kind] = bare
    share = (x[edge_index[0]] @ model.weight)[:, 0].detach()
    for node, item in enumerate(many):
        sign = asked.probed.answer_direction[node, 0]
        inside = edge_index[1] == node
        if kind == 'edges':
            found, expected = item.edge_score, sign * share * inside
        elif kind == 'columns':
            found = item.feature_score
            expected = sign * (x[edge_index[0, inside]] * model.weight[:, 0]).sum(dim=0).detach()
        else:
            found, counts = item.node_score, edge_index[0, inside].bincount(minlength=len(x))
            expected = sign * (counts[:, None] * x * model.weight[:, 0]).detach()
        torch.testing.assert_close(found, expected.to(found.dtype), rtol=0.0, atol=1e-5)


class Planted(torch.nn.Module):
    r"""A model that goes by one edge of each node, by one column, or by one feature of one neighbour of each node."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x, edge_index, mark):
        source, target = edge_index
        if self.what == 'edges':
            found = scatter(mark.double(), target, dim_size=len(x))
        elif self.what == 'columns':
            found = scatter(x[source, 2], target, dim_size=len(x), reduce='mean').abs()
        else:
            found = scatter(x[source, 2].abs() * mark, target, dim_size=len(x))
        return torch.stack([torch.zeros_like(found), 8.0 * found - 1.0], dim=1)


@pytest.fixture(scope='module')
def marked():
    r"""A graph where one edge into each node is marked, and no feature is zero."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(120, (2, 500), generator=generator)
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    edges = edges[:, torch.randperm(edges.size(1), generator=generator)]
    first = torch.full((120,), edges.size(1)).scatter_reduce_(0, edges[1], torch.arange(edges.size(1)), 'amin')
    mark = torch.zeros(edges.size(1)).index_fill_(0, first[first < edges.size(1)], 1.0)
    x = 0.5 + torch.rand(120, 6, generator=generator)
    return x.double(), edges, mark.double(), (first < edges.size(1)).nonzero().view(-1)


@pytest.mark.parametrize('kind', ['edges', 'columns', 'entries'])
def test_what_decides_ranks_first(kind, marked):
    x, edge_index, mark, nodes = marked
    algorithm = algorithm_of(kind, 'multiclass raw', num_probes=256, num_hops=1)
    many = algorithm.explain_nodes(Planted(kind), x, edge_index, index=nodes, mark=mark)
    hits = []
    for node, item in zip(nodes.tolist(), many, strict=True):
        own = ((edge_index[1] == node) & (mark > 0)).nonzero().view(-1)
        if kind == 'edges':
            hits.append(item.edge_score.argmax() == own[0])
        elif kind == 'columns':
            hits.append(item.feature_score.argmax() == 2)
        else:
            hits.append(item.node_score.flatten().argmax() == edge_index[0, own[0]] * x.size(1) + 2)
    assert sum(map(int, hits)) >= 0.99 * len(hits)


def test_edges_are_asked_about_only_where_a_mask_of_them_is_wanted():
    x, edge_index, _ = example_graphs()['undirected']
    model = Teacher().eval()
    for edge, expected in ((None, 0), ('object', NUM_PROBES + 1)):
        options = {'num_probes': NUM_PROBES, 'distillation': 'paper', 'cache': None, 'num_hops': 2}
        algorithm = connected(ProbeDnX(**options), edge=edge)
        with evaluations(model, NUM_PROBES + 2 + expected):
            algorithm.explain_nodes(model, x, edge_index)
    with evaluations(model, NUM_PROBES + 2):
        connected(ProbeDnX(**options, edge_score='flow'), edge='object').explain_nodes(model, x, edge_index)


@pytest.mark.parametrize('kind', ['edges', 'pairs'])
def test_outputs_stand_for_the_model(kind):
    case = Case('weighted', kind)
    masks = probe_edge_masks(case.edge_index, NUM_PROBES, pairs=kind == 'pairs')
    with torch.no_grad():
        edge_probes = torch.stack([case.without(mask) for mask in masks])
        probes = torch.stack([case.model(case.x * mask[:, None], case.edge_index, **case.kwargs)
                              for mask in probe_masks(len(case.x), NUM_PROBES)])  # fmt: skip
    inputs, given = (None, case.x, case.edge_index), {'probe_outputs': probes, 'edge_probe_outputs': edge_probes}
    many = algorithm_of(kind).explain_nodes(*inputs, **given, **case.kwargs)
    torch.testing.assert_close(many[3].edge_score, case.many[3].edge_score)
    flow = algorithm_of('edges', edge_score='flow').explain_nodes(*inputs, probe_outputs=probes, **case.kwargs)
    without = algorithm_of(kind).explain_nodes(*inputs, probe_outputs=probes, **case.kwargs)
    torch.testing.assert_close(without[3].edge_score, flow[3].edge_score)
    with pytest.raises(ValueError, match="'edge_probe_outputs' must have shape"):
        algorithm_of(kind).explain_nodes(*inputs, probe_outputs=probes, edge_probe_outputs=probes[:4], **case.kwargs)
    wrong = {'probe_outputs': probes, 'edge_probe_outputs': edge_probes + 3.0}
    with pytest.raises(ValueError, match="'edge_probe_outputs' must begin with"):
        algorithm_of(kind).explain_nodes(*inputs, **wrong, **case.kwargs)


@pytest.mark.parametrize('kind', ['edges', 'pairs', 'columns', 'entries'])
def test_saved_explanations_keep_them(kind, tmp_path):
    case = Case('weighted', kind)
    case.many.save(tmp_path / 'many.zip')
    loaded = NodeExplanations.load(tmp_path / 'many.zip', case.x, case.edge_index, **case.kwargs)
    for name, value in case.many[2].items():
        if name.endswith(('_score', '_mask')):
            torch.testing.assert_close(loaded[2][name], value)


def test_both_directions_share_what_they_have_together():
    many = Case('undirected', 'pairs').many
    edge_index = example_graphs()['undirected'].edge_index
    score = many[0].edge_score
    place = {tuple(edge): score[n] for n, edge in enumerate(edge_index.T.tolist())}
    assert all(float(value) == float(place[edge[::-1]]) for edge, value in place.items())
    assert float(score.abs().max()) > 0.0


def test_masks_of_edges():
    edge_index = torch.tensor([[0, 1, 2, 0, 2], [1, 0, 1, 2, 2]])
    masks = probe_edge_masks(edge_index, 12)
    assert masks.shape == (14, 5)
    assert bool(masks[0].all())
    assert not bool(masks[1].any())
    assert torch.equal(masks[2::2], ~masks[3::2])
    together = probe_edge_masks(edge_index, 12, pairs=True)
    assert torch.equal(together[:, 0], together[:, 1])
    assert not torch.equal(masks[:, 0], masks[:, 1])
    assert probe_edge_masks(edge_index[:, :0], 4).shape == (6, 0)
    with pytest.raises(ValueError, match="'edge_index' must be a tensor of shape"):
        probe_edge_masks(edge_index.T)


def test_models_that_normalise_are_asked_with_the_degrees_that_are_left():
    seen = []

    class Degrees(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GCNConv(3, 2)

        def forward(self, x, edge_index):
            seen.append(edge_index.size(1))
            return self.conv(x, edge_index)

    x, edge_index, _ = example_graphs()['undirected']
    model = Degrees().eval()
    algorithm_of('edges', distillation='paper').explain_nodes(model, x, edge_index)
    kept = probe_edge_masks(edge_index, NUM_PROBES).sum(dim=1).tolist()
    assert seen[-NUM_PROBES:] == kept[2:]


@pytest.mark.parametrize('kind', ['edges', 'pairs', 'columns', 'entries'])
def test_graphs_have_the_same_scores_alone_and_in_a_batch(kind):
    graphs = small_graphs(dtype=torch.float64)
    model, (node, edge) = GraphTeacher().double().eval(), MASKS['edges' if kind == 'pairs' else kind]
    options = {'num_probes': NUM_PROBES, 'cache': None, 'edge_score': 'pairs' if kind == 'pairs' else 'probes'}
    explain = graph_explainer(model, ProbeDnX(**options), node=node, edge=edge)
    batch, first = batch_of(graphs), 0
    for number, one in enumerate(graphs):
        alone = explain(one.x, one.edge_index)
        found = explain(batch.x, batch.edge_index, batch=batch.batch, index=number)
        if edge is not None:
            inside = slice(first, first + one.num_edges)
            torch.testing.assert_close(found.edge_score[inside], alone.edge_score)
            assert float(found.edge_score.abs().sum()) == pytest.approx(float(alone.edge_score.abs().sum()))
            assert float(alone.edge_score.abs().sum()) > 0.0
            first += one.num_edges
        elif kind == 'columns':
            torch.testing.assert_close(found.feature_score, alone.feature_score)
        else:
            torch.testing.assert_close(found.node_score[batch.batch == number], alone.node_score)


class Pairs(torch.nn.Module):
    r"""Whether there is a link: by the ends' inner product after one layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = GCNConv(3, 4)

    def forward(self, x, edge_index, edge_label_index=None):
        hidden = self.conv(x, edge_index)
        source, target = edge_index if edge_label_index is None else edge_label_index.view(2, -1)
        return (hidden[source] * hidden[target]).sum(dim=1)


def test_explained_edges_are_not_dropped():
    x, edge_index, _ = example_graphs()['undirected']
    x, model = x.double(), Pairs().double().eval()
    config = {'mode': 'binary_classification', 'task_level': 'edge', 'return_type': 'raw'}

    def explained(edge_score, **kwargs):
        options = {'num_probes': NUM_PROBES, 'num_hops': 1, 'cache': None, 'edge_score': edge_score}
        explain = Explainer(model, ProbeDnX(**options), 'model', config, None, 'object')
        return explain(x, edge_index, index=2, **kwargs).edge_score

    pairs = {'edge_label_index': torch.tensor([[0, 1, 3], [2, 4, 5]])}
    assert not torch.allclose(explained('probes', **pairs), explained('flow', **pairs))
    torch.testing.assert_close(explained('probes'), explained('flow'))


@pytest.mark.parametrize('kind', ['edges', 'entries'])
def test_masks_that_take_too_much_memory_are_not_drawn(kind):
    x, edge_index, _ = example_graphs()['undirected']
    model, rest = Teacher().eval(), {'edge_score': 'flow', 'feature_score': 'shares'}
    few = algorithm_of(kind, max_memory=200).explain_nodes(model, x, edge_index)
    plain = algorithm_of(kind, **rest).explain_nodes(model, x, edge_index)
    name = 'edge_score' if kind == 'edges' else 'node_score'
    torch.testing.assert_close(few[0][name], plain[0][name])
