r"""What masks leave of a surrogate's evidence: by hand, on dense matrices, and as PyG has it."""

import pytest
import torch
from certificate_case import ROUNDED, dense_masked_evidence
from helpers import dense_masked_adjacency, example_graphs, random_decomposition, random_masks
from hypothesis import given
from hypothesis import strategies as st
from models import explainer
from strategies import graphs
from torch_geometric.nn import SGConv

from pyg_dnx import FastDnX, certify
from pyg_dnx.distill.surrogate import Surrogate
from pyg_dnx.graph.graph import Graph

CLOSE = {'rtol': 1e-6, 'atol': 1e-9}
FLOWS = ['source_to_target', 'target_to_source']


def compare_evidence(graph, decomposition, index, masks, rtol=1e-5, atol=1e-6):
    r"""Holds the evidence at each of several lists of nodes against the dense one."""
    dense = dense_masked_evidence(graph, decomposition.surrogate, *masks)
    for nodes in index:
        found = decomposition.masked(torch.tensor(nodes), graph.x, *masks)
        assert found.dtype == decomposition.surrogate.weight.dtype
        torch.testing.assert_close(found.double(), dense[nodes], rtol=rtol, atol=atol)


@pytest.mark.parametrize('num_hops', [0, 1, 2, 3])
@pytest.mark.parametrize('flow', FLOWS)
def test_masked_evidence_equals_the_dense_definition(graph, num_hops, flow):
    decomposition, every_node = random_decomposition(graph, num_hops, flow=flow), range(graph.x.size(0))
    index = [*([node] for node in every_node), [every_node[-1], 0, every_node[-1]], [*every_node]]
    for masks in random_masks(graph):
        compare_evidence(graph, decomposition, index, masks)


@given(graph=graphs(), num_hops=st.integers(0, 3), flow=st.sampled_from(FLOWS), data=st.data())
def test_masked_evidence_on_any_graph(graph, num_hops, flow, data):
    nodes = data.draw(st.lists(st.integers(0, graph.x.size(0) - 1), min_size=1, max_size=3))
    masks = data.draw(st.sampled_from(random_masks(graph)))
    compare_evidence(graph, random_decomposition(graph, num_hops, flow=flow), [nodes], masks)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float16, torch.int64])
def test_features_of_other_types(dtype):
    example = example_graphs()['weighted']
    example = example._replace(x=(3 * example.x).to(dtype))
    decomposition = random_decomposition(example, 2, dtype=torch.float32)
    for masks in random_masks(example):
        compare_evidence(example, decomposition, [[1], [1, 0]], masks, **ROUNDED)


@pytest.mark.parametrize('num_hops', [1, 3])
@pytest.mark.parametrize('flow', FLOWS)
def test_masked_evidence_is_what_pyg_makes_of_a_linear_model(graph, num_hops, flow):
    torch.manual_seed(0)
    model = SGConv(3, 2, K=num_hops, flow=flow).eval()
    weight, bias = model.lin.weight.T.detach(), model.lin.bias.detach()
    surrogate = Surrogate(weight, bias, num_hops, random_decomposition(graph, 0).surrogate.report, flow)
    decomposition = surrogate.on(Graph(graph.x, graph.edge_index, {'edge_weight': graph.edge_weight}))
    explain = explainer(model, FastDnX())
    for masks in random_masks(graph):
        outputs = explain.get_masked_prediction(graph.x, graph.edge_index, *masks, edge_weight=graph.edge_weight)
        for nodes in [torch.tensor([0]), torch.arange(graph.x.size(0))]:
            found = decomposition.masked(nodes, graph.x, *masks) + bias
            torch.testing.assert_close(found, outputs[nodes], **ROUNDED)


@pytest.mark.parametrize('flow', FLOWS)
def test_masked_operator_leaves_self_loops_and_itself_alone(graph, flow):
    operator = random_decomposition(graph, 1, flow=flow).operator
    before = operator.value.clone()
    for mask in [
        random_masks(graph)[1][1],
        torch.zeros(graph.edge_index.size(1)),
        torch.ones(graph.edge_index.size(1)),
    ]:
        found = operator.masked(mask)
        dense = dense_masked_adjacency(graph, mask, flow)
        torch.testing.assert_close(found.csr.to_dense(), dense, **CLOSE)
        torch.testing.assert_close(found.transposed.csr.to_dense(), dense.T, **CLOSE)
        assert found.edge_id.equal(operator.edge_id)
        assert found.value.dtype == operator.value.dtype
    assert found.value.equal(before)  # by a mask of ones
    assert operator.value.equal(before)


def test_loops_of_every_node_are_masked_as_pyg_does():
    edge_index = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [1, 2, 3, 0, 1, 2, 3]])
    torch.manual_seed(0)
    model, x = SGConv(3, 2, K=2).eval(), torch.randn(4, 3)
    explain = explainer(model, FastDnX(num_hops=2, ridge=1e-9), node=None, edge='object')
    explanation = explain(x, edge_index, index=3)
    explanation.edge_mask = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    before, after = (
        explain.get_prediction(x, edge_index),
        explain.get_masked_prediction(x, edge_index, None, explanation.edge_mask),
    )
    change = (before - after)[3]
    assert float(change.norm()) > 1e-3
    expected = 0.5 * float((change - change.mean()).norm())
    assert float(certify(explain, explanation).mask_bound) == pytest.approx(expected, rel=1e-3)
