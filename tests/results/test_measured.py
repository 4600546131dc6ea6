r"""Verdicts by asking the model: held against asking it on the whole graph, and against planted answers."""

import re
from statistics import mean

import pytest
import torch
from faithfulness_case import NODES, explained, inputs
from models import Teacher, explainer
from torch import nn
from torch_geometric.explain import DummyExplainer
from torch_geometric.nn import GCNConv, MessagePassing

from pyg_dnx import DnX, FastDnX, ProbeDnX, certify, refine
from pyg_dnx.results.measured import NUM_RANDOM

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
CONV = ['gcn', 'gat']


def asked(model, x, edges, node, mask):
    with torch.no_grad():
        return model(x * mask, edges)[node].softmax(dim=-1).tolist()


def draws(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(size, NUM_RANDOM, generator=generator, dtype=torch.float64)


def share_below(own, others):
    return mean(1.0 if other < own - 1e-6 else 0.5 if other <= own + 1e-6 else 0.0 for other in others)


def neighbourhood(edges, node, hops=2):
    near = {node}
    for _ in range(hops):
        near |= {source for source, target in edges.T.tolist() if target in near}
    return sorted(near)


@pytest.mark.parametrize('conv', CONV)
@pytest.mark.parametrize('size', [None, 3])
def test_what_is_measured_is_what_the_whole_graph_answers(conv, size):
    explain, explanations = explained(Teacher(conv).eval())
    x, edges, _ = inputs(conv)
    verdicts = set()
    for node, explanation in zip(NODES, explanations, strict=True):
        if size is not None:
            explanation = explanation.threshold('topk_hard', size)
        found = certify(explain, explanation).measured
        mask, near = explanation.node_mask, neighbourhood(edges, node)
        before, kept, removed = (asked(explain.model, x, edges, node, part) for part in (mask**0, mask, 1 - mask))
        label = before.index(max(before))
        keeps, changes = kept.index(max(kept)) == label, removed.index(max(removed)) != label
        random = []
        for order in draws(len(near), node).argsort(dim=0).T:
            other = torch.zeros_like(mask)
            other[near] = mask[near][order]
            random.append([asked(explain.model, x, edges, node, part)[label] for part in (other, 1 - other)])
        above = share_below(kept[label], [one for one, _ in random])
        below = share_below(-removed[label], [-one for _, one in random])
        for name, value in (('before', before), ('kept', kept), ('removed', removed)):
            assert float(getattr(found, name)) == pytest.approx(value[label], abs=1e-5)
        assert (bool(found.keeps), bool(found.changes), int(found.label)) == (keeps, changes, label)
        assert (float(found.kept_above), float(found.removed_above)) == pytest.approx((above, below))
        assert (found.size.tolist(), found.room.tolist()) == ([[int((mask[near] > 0).sum())]], [[len(near)]])
        verdict = 0 if keeps and min(above, below) >= 0.95 else 1
        if (not keeps and not changes) or max(above, below) <= 0.5:
            verdict = 2
        assert int(found.verdict) == verdict
        verdicts.add(verdict)
    assert len(verdicts) > 1 or size is None


@pytest.mark.parametrize('edge', [None, 'object'])
def test_edges_and_both_masks(edge):
    explain, explanations = explained(Teacher('gcn').eval(), node='object' if edge is None else None, edge='object')
    found = certify(explain, explanations[0])
    assert found.measured.kinds == (('node', 'edge') if edge is None else ('edge',))
    assert 'edges' in str(found)
    assert ('nodes' in str(found)) == (edge is None)


def test_several_outputs_that_are_explained_jointly():
    explain = explainer(Teacher('gcn').eval(), FastDnX())
    x, edges, _ = inputs()
    explanation = explain(x, edges, index=torch.tensor(NODES))
    found = certify(explain, explanation)
    assert found.verdict.shape == (4,)
    for node, kept in zip(NODES, found.measured.kept.tolist(), strict=True):
        before, after = (
            asked(explain.model, x, edges, node, part) for part in (torch.ones(18, 1), explanation.node_mask)
        )
        assert kept == pytest.approx(after[before.index(max(before))], abs=1e-5)


@pytest.mark.parametrize('top_k', [None, 2])
@pytest.mark.parametrize('algorithm', [FastDnX, DnX, lambda: ProbeDnX(num_probes=12)])
def test_many_are_measured_at_once_as_one_by_one(top_k, algorithm):
    explain = explainer(Teacher('gat').eval(), algorithm())
    x, edges, _ = inputs()
    many = explain.algorithm.explain_nodes(
        explain.model, x, edges, index=torch.tensor(NODES), top_k=top_k, certify=True
    )
    for b, item in enumerate(many):
        if top_k is not None:
            nodes = many.top_k(top_k)[0][b]
            item.node_mask = torch.zeros_like(item.node_mask).index_fill_(0, nodes[nodes >= 0], 1.0)
        alone, together = certify(explain, item), many.certificate
        assert alone.sentence(0) == together.sentence(b)
        assert alone.verdict == together.verdict[b]


def test_a_batch_that_was_measured_is_saved_and_filtered(tmp_path):
    explain = explainer(Teacher('gat').eval(), FastDnX())
    x, edges, _ = inputs()
    many = explain.algorithm.explain_nodes(explain.model, x, edges, top_k=2, certify=True)
    many.save(tmp_path / 'many.pt')
    loaded = type(many).load(tmp_path / 'many.pt', x, edges)
    assert str(loaded.certificate) == str(many.certificate)
    assert [loaded.certificate.sentence(b) for b in range(18)] == [many.certificate.sentence(b) for b in range(18)]
    chosen = many.with_verdict('trustworthy')
    assert chosen.index.tolist() == many.index[many.certificate.verdict == 0].tolist()
    assert 'keeping preserves' in str(many.certificate)
    assert {'kept', 'removed'} <= set(many.to_pandas().columns)


def test_explanations_of_other_algorithms_are_measured():
    explain = explainer(Teacher('gcn').eval(), DummyExplainer())
    x, edges, _ = inputs()
    torch.manual_seed(1)
    found = certify(explain, explain(x, edges, index=9))
    assert found.estimate is None
    assert str(found).startswith(('Trustworthy: ', 'Doubtful: ', 'Not explained: '))


class EdgesOnly(MessagePassing):
    r"""A model that looks at the attributes of edges alone."""

    def __init__(self):
        super().__init__(aggr='add')

    def forward(self, x, edge_index, edge_attr):
        found = self.propagate(edge_index, edge_attr=edge_attr, size=(x.size(0), x.size(0)))
        return torch.cat([found, -found], dim=1)

    def message(self, edge_attr):
        return edge_attr


class Dropping(nn.Module):
    r"""A model whose dropout is always on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = GCNConv(3, 3)

    def forward(self, x, edge_index):
        return nn.functional.dropout(3 * self.conv(x, edge_index), 0.5, training=True)


ALGORITHMS = {
    'FastDnX': FastDnX,
    'masked': lambda: FastDnX(distillation='masked'),
    'DnX': DnX,
    'ProbeDnX': lambda: ProbeDnX(num_probes=12),
}
every = pytest.mark.parametrize('name', ALGORITHMS)


@every
def test_a_model_of_attributes_of_edges_alone_is_not_explained_by_nodes(name):
    x, edges, _ = inputs()
    edge_attr = torch.randn(edges.size(1), 1, generator=torch.Generator().manual_seed(0))
    explain = explainer(EdgesOnly(), ALGORITHMS[name]())
    many = explain.algorithm.explain_nodes(
        explain.model, x, edges, index=torch.tensor(NODES), top_k=5, certify=True, edge_attr=edge_attr
    )
    assert many.certificate.verdict.tolist() == [2] * 4
    assert 'whatever nodes are kept' in many.certificate.sentence(0)
    assert 'ask about edges' in many.certificate.sentence(0)  # which leads somewhere:
    by_edges = explainer(EdgesOnly(), DummyExplainer(), node=None, edge='object')
    refined = refine(by_edges, by_edges(x, edges, index=9, edge_attr=edge_attr), size=1)
    assert certify(by_edges, refined[0]).measured.is_moved


@every
@pytest.mark.parametrize('scale', [0.0, 1e-30])
def test_features_that_say_nothing_explain_nothing(name, scale):
    x, edges, _ = inputs()
    explain = explainer(Teacher('gcn').eval(), ALGORITHMS[name]())
    explanation = explain(scale * x, edges, index=9)
    assert certify(explain, explanation).verdict.tolist() == [2]


@every
def test_a_model_that_answers_at_random_is_named(name):
    x, edges, _ = inputs()
    explain = explainer(Dropping(), ALGORITHMS[name]())
    found = certify(explain, explain(x, edges, index=9))
    assert found.verdict.tolist() == [2]
    assert re.match(r'Not explained: the model answers at random \(p .*, and p .* when asked again\): ', str(found))
    many = explain.algorithm.explain_nodes(explain.model, x, edges, top_k=3, certify=True)
    assert many.certificate.verdict.tolist() == [2] * 18
    assert 'answers at random' in str(many.certificate)


def test_random_numbers_are_left_as_they_were():
    x, edges, _ = inputs()
    explain = explainer(Dropping(), FastDnX())
    explanation, state = explain(x, edges, index=9), torch.get_rng_state()
    certify(explain, explanation)
    assert torch.get_rng_state().equal(state)


class Sum(MessagePassing):
    r"""The class is 1 if the first features of a node's neighbours add up to something positive."""

    def __init__(self):
        super().__init__(aggr='add')

    def forward(self, x, edge_index):
        found = self.propagate(edge_index, x=x[:, :1]) + x[:, :1]
        return torch.cat([-found, found], dim=1)


def judged(values, kept, **options):
    r"""The certificate of node 0, all of whose neighbours are kept that are listed."""
    size = len(values)
    edges = torch.stack([torch.arange(1, size), torch.zeros(size - 1, dtype=torch.long)])
    explain = explainer(Sum(), DummyExplainer())
    explanation = explain(torch.tensor(values)[:, None], edges, index=0)
    explanation.node_mask = torch.zeros(size, 1)
    explanation.node_mask[kept] = 1.0
    return explain, explanation, certify(explain, explanation)


def test_the_three_words():
    strong = [0.0, 3.0, 3.0, *[-0.1] * 30]
    assert str(judged(strong, [1, 2])[2]) == (
        'Trustworthy: keeping the 2 nodes preserves class 1 (p 1.00 → 1.00); removing them changes it (p .00); of 20 '
        'random masks of this size, none keeps as much and none takes as much.'
    )
    found = judged(strong, [5, 6])[2]
    assert found.verdict.tolist() == [2]
    assert str(found).startswith('Not explained: keeping the 2 nodes loses class 1')
    assert str(found).endswith("Improve it with 'refine'.")
    half = judged([0.0, *[0.5] * 14, *[-0.1] * 10], [1, 2])[2]
    assert half.verdict.tolist() == [1]
    assert 'where at most 1 may' in str(half)


def test_the_remedy_leads_somewhere():
    explain, explanation, found = judged([0.0, 3.0, 3.0, *[-0.1] * 30], [5, 6])
    refined = refine(explain, explanation)
    assert certify(explain, refined[0]).verdict.tolist() == [0]
    explain, explanation, found = judged([0.5] * 20, [5])  # where no one node is better than another
    found = certify(explain, refine(explain, explanation)[0])
    assert str(found).endswith("pass a larger 'size' to 'refine'.")
    found = judged([0.5] * 5, list(range(5)))[2]
    assert str(found).endswith('It keeps all that the model sees: keep fewer.')


def test_regression_is_told_in_standard_deviations():
    explain, explanations = explained(Teacher('sage', 'regression [N]').eval(), task='regression [N]')
    text = str(certify(explain, explanations[0]))
    assert re.search(r'(preserves|loses) the output \(off by [\d.]+\); removing them .* \(off by [\d.]+\);', text)


def test_only_answers_are_estimated():
    x, edges, _ = inputs()
    explain = explainer(Teacher('gcn').eval(), FastDnX())
    with torch.no_grad():
        outputs = explain.model(x, edges)
    found = explain.algorithm.explain_nodes(None, x, edges, top_k=3, teacher_outputs=outputs, certify=True)
    assert found.certificate.measured is None
    assert '(estimated): ' in found.certificate.sentence(0)
