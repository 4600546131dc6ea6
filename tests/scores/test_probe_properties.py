r"""What holds for ProbeDnX on any graph, and what it comes to for models whose effects are known."""

import itertools

import pytest
import torch
from helpers import example_graphs, is_overwritten
from hypothesis import given
from hypothesis import strategies as st
from models import Teacher, connected, explainer, in_chunks
from probe_case import ProbeCase
from strategies import graphs
from torch_geometric.nn import GCNConv, SGConv

from pyg_dnx import ProbeDnX
from pyg_dnx.scores import local_fit
from pyg_dnx.scores.attribution import PulledBack, attribute
from pyg_dnx.teacher.probes import GOLDEN

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

CLOSE = {'rtol': 1e-6, 'atol': 1e-9}


def planted(num_hops, num_outputs=1):
    torch.manual_seed(0)
    return SGConv(3, num_outputs, K=num_hops)


@pytest.mark.parametrize('num_outputs', [1, 2])
@pytest.mark.parametrize('num_hops', [1, 2, 3])
@pytest.mark.parametrize('name', example_graphs())
def test_a_planted_linear_model_is_recovered(name, num_hops, num_outputs):
    case = ProbeCase(name, 'regression [N, 2]', num_hops, num_probes=60, model=planted(num_hops, num_outputs))
    found = case.explain_nodes()
    hidden = case.x @ case.model.lin.weight.detach().T  # the effect of node j on node i is Ã^L_ij h_j
    expected = case.power * (case.toward() @ hidden.T)
    torch.testing.assert_close(found.scores.to_dense(), expected, rtol=1e-4, atol=1e-6)
    if num_outputs == 1:
        assert found.probe_r2.min() > 1 - 1e-6
        assert found.surrogate_agreement.all()
    torch.testing.assert_close(found._trust.probe_bias, case.answers()[1])


class Gate(torch.nn.Module):
    r"""A model of six nodes whose probabilities depend on products of what is seen."""

    def __init__(self):
        super().__init__()
        self.conv = GCNConv(3, 3)

    def forward(self, x, edge_index):
        a, b, c, d, e, f = x[:, 0].sign()
        logit = 2.5 * a * b - c + 0.7 * b * c * d + 0.4 * d + (1 - a) * e - 2 * e * f
        return torch.stack([logit, torch.zeros_like(logit)]).expand(x.size(0), 2)


def exact_effects(answers, num_probes):
    r"""The effects of least squares on all 2⁶ masks, weighted by how often pairs draw them."""
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)), dtype=torch.float64)
    weight = torch.zeros(64, dtype=torch.float64)
    for pair in range(num_probes // 2):
        rate = 0.1 + 0.8 * ((GOLDEN * pair + 0.5) % 1)
        for keep in (rate, 1 - rate):
            weight += (keep * masks + (1 - keep) * (1 - masks)).prod(dim=1) / num_probes
    design = torch.cat([masks, torch.ones(64, 1)], dim=1)
    root = weight.sqrt()[:, None]
    return torch.linalg.lstsq(root * design, root * answers(masks)[:, None]).solution[:6, 0]


def test_scores_converge_to_the_first_order_effects():
    x, edges = torch.ones(6, 3, dtype=torch.float64), torch.tensor([*itertools.permutations(range(6), 2)]).T
    model = Gate().double().eval()

    def answers(masks):
        with torch.no_grad():
            return torch.stack([model(x * mask[:, None], edges)[0].softmax(dim=0) for mask in masks])[:, label]

    with torch.no_grad():
        label = int(model(x, edges)[0].argmax())
    errors = []
    for num_probes in (8, 64, 512):
        found = connected(ProbeDnX(num_hops=1, num_probes=num_probes)).explain_nodes(model, x, edges, index=0)
        expected = exact_effects(answers, num_probes)
        assert 0.5 < found.probe_r2 < 0.95  # it is not linear
        errors.append(float((found.scores.to_dense()[0] - expected).norm() / expected.norm()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05


def compare(found, alone):
    for key in ['node_score', 'edge_score', 'node_mask', 'edge_mask', 'probe_r2', 'distillation_error', 'probe_bias']:
        torch.testing.assert_close(found[key], alone[key], **CLOSE)
    assert found.surrogate_agreement.equal(alone.surrogate_agreement)


@pytest.mark.parametrize('name', ['directed', 'weighted', 'one_node'])
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
@pytest.mark.parametrize('options', [{}, {'num_hops': 0}, {'answer': 'logit'}])
def test_batch_equals_single(name, task, options):
    case = ProbeCase(name, task, num_probes=12)
    single = case.explainer(edge='object', **options)
    inputs = (case.x, case.edge_index)
    found = single.algorithm.explain_nodes(case.model, *inputs, **case.kwargs)
    for node, explanation in enumerate(found):
        alone = single(*inputs, index=node, **case.kwargs)
        torch.testing.assert_close(found.scores.to_dense()[node], alone.node_score, **CLOSE)
        compare(explanation, alone)
        assert found.probe_r2[node] == explanation.probe_r2


@pytest.mark.parametrize('top_k', [None, 3])
def test_chunks_change_nothing(top_k):
    case, index = ProbeCase(num_probes=12), torch.tensor([5, 0, 6, 0, 2, 3])
    whole = case.explain_nodes(index=index, given={'top_k': top_k})
    algorithm, inputs = in_chunks(case.algorithm(), 12), (case.model, case.x, case.edge_index)
    cut = algorithm.explain_nodes(*inputs, index=index, top_k=top_k, **case.kwargs)
    for one, other in zip(cut.top_k(3), whole.top_k(3), strict=True):
        torch.testing.assert_close(one, other)
    for name, values in whole._trust.to_dict().items():
        torch.testing.assert_close(cut._trust.to_dict()[name], values)
    explain = case.explainer(edge='object')
    joint = explain(case.x, case.edge_index, index=index, **case.kwargs)
    in_chunks(explain.algorithm, 12)
    parts = explain(case.x, case.edge_index, index=index, **case.kwargs)
    torch.testing.assert_close(parts.node_score, joint.node_score)
    torch.testing.assert_close(parts.edge_score, joint.edge_score)


@pytest.mark.parametrize(('num_probes', 'num_neighbours', 'num_equations'), [(16, 40, 9), (100, 40, 51), (100, 20, 20)])
def test_covariances_take_bounded_memory(num_probes, num_neighbours, num_equations, monkeypatch):
    r"""And have as many equations as pairs of probes, or as neighbours if these are few."""
    sizes, solve = [], local_fit.solve
    monkeypatch.setattr(local_fit, 'solve', lambda gram, *args: sizes.append(gram.numel()) or solve(gram, *args))
    group = torch.arange(40) // num_neighbours
    edge_index = (group[:, None] == group).nonzero().T
    x, entries = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), 3 * 51**2 // 2
    algorithm = in_chunks(connected(ProbeDnX(num_probes=num_probes)), entries)
    algorithm.explain_nodes(Teacher().eval(), x, edge_index)
    assert max(sizes) <= 2 * entries
    assert sum(sizes) == 40 * num_equations**2


@pytest.mark.parametrize('index', [torch.tensor([0, 2, 3, 6]), torch.tensor([5, 0, 5]), None])
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
def test_joint_is_the_sum_of_singles(task, index):
    case, nodes = ProbeCase(task=task, num_probes=12), range(8) if index is None else index.tolist()
    for node, edge in [('object', 'object'), ('attributes', None), ('common_attributes', None)]:
        explain = case.explainer(node=node, edge=edge)
        joint, *single = (explain(case.x, case.edge_index, index=i, **case.kwargs) for i in (index, *nodes))
        for key in {'node_score', 'edge_score', 'feature_score'} & {*joint.keys()}:
            torch.testing.assert_close(joint[key], sum(one[key] for one in single), **CLOSE)
        for key in ['probe_r2', 'probe_evidence', 'probe_bias', 'distillation_error', 'bias_decides']:
            torch.testing.assert_close(joint[key], torch.cat([one[key] for one in single]), **CLOSE)


@pytest.mark.parametrize('task', ['multiclass raw', 'binary raw [N]', 'regression [N, 2]'])
def test_features_share_the_score_of_their_node(graph, task):
    model, inputs = Teacher('weighted', task).double().eval(), (graph.x.double(), graph.edge_index)
    kwargs = {} if graph.edge_weight is None else {'edge_weight': graph.edge_weight.double()}
    options = {'num_hops': 2, 'num_probes': 12, 'feature_score': 'shares'}
    nodes, attributes, features = (
        explainer(model, ProbeDnX(**options), task, node=node)(*inputs, index=0, **kwargs)
        for node in ('object', 'attributes', 'common_attributes')
    )
    torch.testing.assert_close(attributes.node_score.sum(dim=1), nodes.node_score, **CLOSE)
    torch.testing.assert_close(attributes.node_score.sum(dim=0), features.feature_score, **CLOSE)
    assert features.node_score.equal(nodes.node_score)
    assert (attributes.node_score * nodes.node_score[:, None] >= 0).all()
    # In proportion to the surrogate's evidence for the target, by size.
    algorithm = connected(ProbeDnX(**options), task)
    toward = algorithm.explain_nodes(model, *inputs, index=0, **kwargs)._request.question.direction
    surrogate = algorithm.distill(model, *inputs, **kwargs)
    size = (inputs[0] * (surrogate.weight @ toward[0])).abs()
    known = size.sum(dim=1) > 1e-12  # a surrogate of one node is its bias
    expected = nodes.node_score[:, None] * size / size.sum(dim=1, keepdim=True)
    torch.testing.assert_close(attributes.node_score[known], expected[known], **CLOSE)


def test_features_share_alike_where_the_surrogate_has_no_evidence():
    case = ProbeCase('undirected', num_probes=12, feature_score='shares')
    case.x[1], case.x[2, :2] = 0.0, 0.0
    inputs = (case.x, case.edge_index)
    nodes = case.explain(1)
    with torch.no_grad():
        case.explainer().algorithm.distill(case.model, *inputs).weight.zero_()
    found = case.explain(1, node='attributes').node_score
    torch.testing.assert_close(found[0], nodes.node_score[0] * torch.full((3,), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(found[2], nodes.node_score[2] * torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(found[1].sum(), nodes.node_score[1])


@given(example=graphs(max_nodes=8, max_features=3), num_hops=st.integers(0, 3), data=st.data())
def test_any_graph(example, num_hops, data):
    r"""Nothing beyond L hops, and each step of the flow passes on all of the evidence."""
    x = torch.nn.functional.pad(example.x, (0, 3 - example.x.size(1)))
    given = {'index': data.draw(st.lists(st.integers(0, x.size(0) - 1), min_size=1, max_size=3))}
    given |= {} if example.edge_weight is None else {'edge_weight': example.edge_weight}
    algorithm = connected(ProbeDnX(num_hops=num_hops, num_probes=6, edge_score='flow'), edge='object')
    found = algorithm.explain_nodes(Teacher('weighted').eval(), x, example.edge_index, **given)
    decomposition, request = found._place.decomposition, found._request
    effects = request.rule.effects(decomposition, request.state, request.question)
    local = attribute(decomposition, request.question, effects)
    total = local.node_scores().sum()
    torch.testing.assert_close(total, found._trust.probe_evidence.sum(), rtol=1e-3, atol=1e-5)
    reached = torch.linalg.matrix_power(decomposition.operator.csr.to_dense().double(), num_hops)[found.index] != 0
    assert not found.scores.to_dense()[~reached].any()
    flow, _ = local.edge_scores(example.edge_index, 'flow', None)
    carried = torch.zeros_like(flow)
    for nodes, hidden in local._hidden(local.effect):
        own = torch.eye(nodes.numel())
        part = PulledBack(decomposition.with_effects(hidden), nodes, own)
        for step in part.flow():
            edge = decomposition.operator.edge_id[step[0]].long()
            carried.index_add_(0, edge[edge >= 0], step[1][edge >= 0])
        steps = [step[1].sum() for step in part.flow()]
        assert len(steps) == num_hops
        for step in steps:
            torch.testing.assert_close(step, total, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(flow, carried, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize('name', ['undirected', 'directed', 'looped', 'weighted', 'duplicated'])
def test_one_hop_of_flow_and_the_self_loop_are_the_evidence(name):
    case = ProbeCase(name, num_hops=1, num_probes=12, edge_score='flow')
    for node in range(8):
        found = case.explain(node, edge='object')
        loops = [e for e, ends in enumerate(case.edge_index.T.tolist()) if ends == [node, node]]
        own = 0.0 if any(not is_overwritten(case.edge_index, e) for e in loops) else found.node_score[node]
        torch.testing.assert_close(found.edge_score.sum() + own, found.probe_evidence[0], **CLOSE)


def test_the_order_of_edges_does_not_matter():
    case = ProbeCase(num_probes=12, edge_score='flow')
    order = torch.cat([torch.randperm(12), torch.tensor([12, 13, 14])])  # the last of two self-loops counts
    explain, weight = case.explainer(edge='object'), case.kwargs['edge_weight']
    first = explain(case.x, case.edge_index, edge_weight=weight, index=1)
    second = explain(case.x, case.edge_index[:, order], edge_weight=weight[order], index=1)
    torch.testing.assert_close(second.node_score, first.node_score, **CLOSE)
    torch.testing.assert_close(second.edge_score, first.edge_score[order], **CLOSE)
    torch.testing.assert_close(second.probe_r2, first.probe_r2)


def test_splitting_an_edge_between_duplicates_changes_nothing():
    case = ProbeCase(num_probes=12, edge_score='flow')
    explain, weight = case.explainer(edge='object'), case.kwargs['edge_weight']
    first = explain(case.x, case.edge_index, edge_weight=weight, index=1)
    edges = torch.cat([case.edge_index, case.edge_index[:, :3]], dim=1)
    split = torch.cat([weight[:3] * 0.25, weight[3:], weight[:3] * 0.75])
    second = explain(case.x, edges, edge_weight=split, index=1)
    torch.testing.assert_close(second.node_score, first.node_score, **CLOSE)
    merged = second.edge_score[:15].index_add(0, torch.arange(3), second.edge_score[15:])
    torch.testing.assert_close(merged, first.edge_score, **CLOSE)
    torch.testing.assert_close(second.edge_score[15:], 0.75 * first.edge_score[:3], **CLOSE)
