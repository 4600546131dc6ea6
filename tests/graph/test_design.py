r"""Products with a matrix of features that is never formed, and fits by them, against the dense matrix."""

import pytest
import torch
import torch.nn.functional as F
from helpers import dense_adjacency
from torch.testing import assert_close

from pyg_dnx.distill import newton, solvers
from pyg_dnx.distill.solvers import fit_classifier, fit_masked, fit_regressor
from pyg_dnx.graph.design import Design, Sparse
from pyg_dnx.graph.features import Features, as_sparse, propagate
from pyg_dnx.graph.operator import normalized_adjacency

TAPS = {
    'one hop': [[0.0, 1.0]],
    'two hops': [[0.0, 0.0, 1.0]],
    'no hop': [[1.0]],
    'mixed': [[0.2, 0.3, 0.5]],
    'identity': [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    'a zero row': [[0.5, 0.0, 2.0], [0.0, 0.0, 0.0]],
    'first only': [[0.0, 2.0, 0.0]],
}
FORMS = {
    'entries': Sparse.of,
    'coo': lambda x: Sparse.of(x.to_sparse()),
    'csr': lambda x: Sparse.of(x.to_sparse_csr()),
    'csc': lambda x: Sparse.of(x.to_sparse_csc()),
    'dense': lambda x: x,
}


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Case:
    r"""A design on a graph, and the same matrix, dense."""

    def __init__(self, graph, taps='two hops', form='entries', readout=False, masks=None, num_features=5):
        num_nodes, taps = graph.x.size(0), TAPS[taps]
        self.x = random(num_nodes, num_features).clamp(min=0.0)
        self.operator = normalized_adjacency(graph.edge_index, graph.edge_weight, num_nodes, torch.float64)
        adjacency = dense_adjacency(graph.edge_index, graph.edge_weight, num_nodes)
        powers = [torch.linalg.matrix_power(adjacency, k) for k in range(len(taps[0]))]
        rows = random(12, num_nodes, seed=1).clamp(min=0.0) if readout else torch.eye(num_nodes, dtype=torch.float64)
        self.design = Design(
            self.operator, FORMS[form](self.x), torch.tensor(taps), Sparse.of(rows) if readout else None
        )
        parts = []
        for mask in [None] if masks is None else masks:
            x = self.x if mask is None else mask[:, None] * self.x
            blocks = [sum(tap * power @ x for tap, power in zip(row, powers, strict=True)) for row in taps]
            parts.append(rows @ torch.cat(blocks, dim=1))
        self.parts = parts
        self.dense = torch.stack(parts, dim=1).flatten(0, 1)
        self.design = self.design if masks is None else self.design.masked(masks)


@pytest.mark.parametrize('taps', TAPS)
@pytest.mark.parametrize('readout', [False, True])
@pytest.mark.parametrize('num_masks', [None, 1, 3])
def test_products_equal_those_of_the_dense_matrix(graph, taps, readout, num_masks):
    masks = None if num_masks is None else random(num_masks, graph.x.size(0), seed=2)
    for form in FORMS if num_masks is None else ['entries', 'dense']:
        case = Case(graph, taps, form, readout, masks)
        design, dense = case.design, case.dense
        weight, signal = random(dense.size(1), 3), random(dense.size(0), 3)
        product, pulled = design @ weight, design.pull_back(signal)
        assert (design.num_rows, design.num_features) == dense.shape
        assert_close(product, dense @ weight)
        assert_close(pulled, dense.T @ signal)
        assert_close(design.dense(), dense)
        assert_close(design.mean(), dense.mean(dim=0))
        assert abs(float((signal * product).sum() - (pulled * weight).sum())) < 1e-12 * float(product.norm() * 10 + 1)
        through = design.through(weight, lambda rows, logits: logits[rows].square())
        assert_close(through, dense.T @ (dense @ weight).square())
        light = design.to(torch.float32)
        assert_close((light @ weight.float()).double(), dense @ weight, rtol=1e-4, atol=1e-5)
        assert_close(light.pull_back(signal.float()).double(), dense.T @ signal, rtol=1e-4, atol=1e-5)
        assert light.dtype == torch.float32


@pytest.mark.parametrize('readout', [False, True])
def test_rows_are_those_of_the_dense_matrix(graph, readout):
    case = Case(graph, 'mixed', readout=readout)
    index = torch.arange(case.dense.size(0)).repeat(2)[::3]
    found, weight, signal = case.design.rows(index), random(5, 2), random(index.numel(), 2)
    assert found.num_rows == index.numel()
    assert_close(found @ weight, case.dense[index] @ weight)
    assert_close(found.pull_back(signal), case.dense[index].T @ signal)


@pytest.mark.parametrize('name', ['one_hot', 'dense', 'csr'])
def test_x_with_many_zeros_is_taken_as_sparse(name):
    num_nodes, num_features = 300, 400
    x = random(num_nodes, num_features) if name == 'dense' else torch.eye(num_nodes, num_features)
    x = x.to_sparse_csr() if name == 'csr' else x
    operator = normalized_adjacency(torch.tensor([[0, 1], [1, 2]]), None, num_nodes, torch.float32)
    found = as_sparse(operator, x, 2)
    assert isinstance(found, Sparse) == (name != 'dense')
    matrix = propagate(operator, found, 2, torch.float64, 2**40)
    assert isinstance(matrix, Design) == (name != 'dense')
    weight = random(num_features, 2)
    expected = propagate(operator, x.to_dense(), 2, torch.float64, 2**40)
    assert_close(matrix @ weight, expected.rows() @ weight, rtol=1e-4, atol=1e-5)
    assert isinstance(as_sparse(operator, torch.ones(num_nodes, 2), 2), torch.Tensor)
    many = torch.stack([torch.arange(num_nodes).repeat(40), torch.randint(num_nodes, (40 * num_nodes,))])
    dense_graph = normalized_adjacency(many, None, num_nodes, torch.float32)
    assert isinstance(as_sparse(dense_graph, torch.eye(num_nodes, num_features), 2), torch.Tensor)  # its hops cost more


def targets(name, num_rows):
    logits = 2.0 * random(num_rows, 3, seed=5)
    if name == 'hard':
        return F.one_hot(logits.argmax(dim=1), 3).double()
    if name == 'one class':
        return torch.ones(num_rows, 1, dtype=torch.float64)
    return logits[:, : 2 if name == 'binary' else 3].softmax(dim=1)


@pytest.mark.parametrize('num_features', [5, 20])  # fewer, and more than rows
@pytest.mark.parametrize(('taps', 'readout'), [('two hops', False), ('identity', False), ('mixed', True)])
@pytest.mark.parametrize('name', ['soft', 'binary', 'hard', 'one class'])
def test_classifier_reaches_the_dense_optimum(graph, name, taps, readout, num_features):
    case = Case(graph, taps, readout=readout, num_features=num_features)
    probs = targets(name, case.dense.size(0))
    expected = fit_classifier(case.dense, probs, 1e-3, 'newton')
    found = fit_classifier(case.design, probs, 1e-3)
    assert found.converged
    assert found.solver == ('closed form' if name == 'one class' else 'newton-cg')
    close = {'rtol': 1e-4, 'atol': 1e-4}
    assert_close(case.dense @ found.weight, case.dense @ expected.weight, **close)
    assert_close(found.weight, expected.weight, rtol=1e-3, atol=1e-3)
    if name != 'hard' or bool((probs.sum(dim=0) > 0.0).all()):  # else the bias has no optimum
        assert_close(found.bias, expected.bias, **close)
    assert float(found.weight.sum(dim=1).abs().max()) < 1e-9 or name == 'one class'


def wide_graph(num_nodes=80, num_features=60):
    r"""Rare features, duplicates of some, and some that are always zero."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(num_nodes, num_features, generator=generator) < 0.1).double()
    x[:, 10:13], x[:, 20] = 0.0, x[:, 21]
    edges = torch.randint(num_nodes, (2, 150), generator=generator)
    operator = normalized_adjacency(edges, None, num_nodes, torch.float64)
    return x, operator, Design(operator, Sparse.of(x), torch.tensor([[0.0, 0.0, 1.0]]))


@pytest.mark.parametrize('ridge', [1e-5, 1e-2])
@pytest.mark.parametrize('name', ['soft', 'hard'])
def test_duplicates_and_features_that_are_always_zero(ridge, name):
    design = wide_graph()[2]
    probs = targets(name, 80)
    found, expected = (fit_classifier(matrix, probs, ridge) for matrix in (design, design.dense()))
    assert found.converged
    evidence = design @ expected.weight
    assert float((design @ found.weight - evidence).norm()) < 1e-4 * float(evidence.norm())
    assert_close(found.weight[20], found.weight[21], rtol=1e-4, atol=1e-5)
    assert not found.weight[10:13].abs().gt(1e-9).any()
    again = fit_classifier(design, probs, ridge)
    assert again.weight.equal(found.weight)  # probes are the same in every run


def test_it_says_if_it_ran_out_of_steps(monkeypatch):
    design, probs = wide_graph()[2], targets('soft', 80)
    monkeypatch.setattr(newton, 'MAX_STEPS', 2)
    assert not fit_classifier(design, probs, 1e-5).converged
    monkeypatch.setattr(solvers, 'MAX_REFINEMENTS', 1)
    assert not fit_regressor(design, probs, 1e-5).converged


@pytest.mark.parametrize('ridge', [1e-5, 1e-2])
@pytest.mark.parametrize('offset', [0.0, 1e3])
def test_regression_reaches_the_dense_optimum(graph, ridge, offset):
    for taps, readout in [('two hops', False), ('identity', True)]:
        case = Case(graph, taps, readout=readout)
        outputs = torch.cat([random(case.dense.size(0), 2, seed=4), torch.ones(case.dense.size(0), 1)], dim=1) + offset
        expected, found = (fit_regressor(matrix, outputs, ridge) for matrix in (case.dense, case.design))
        assert found.converged
        assert found.solver == 'conjugate gradients'
        assert_close(case.dense @ found.weight, case.dense @ expected.weight, rtol=1e-4, atol=1e-4)
        assert_close(found.bias, expected.bias, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize('size', [2**24, 1])
@pytest.mark.parametrize('pairs', [True, False])
def test_masked_fit_is_least_squares_on_all_masks(graph, size, pairs, monkeypatch):
    monkeypatch.setattr(solvers, 'MASKED_SIZE', size)
    num_nodes, kept = graph.x.size(0), (random(3, graph.x.size(0), seed=6) > 0.0).double()
    masks = torch.cat([torch.ones(1, num_nodes), kept, 1.0 - kept] if pairs else [kept])
    for taps, readout in [('two hops', False), ('identity', True)]:
        case = Case(graph, taps, readout=readout, masks=masks.double())
        answers = random(len(masks), case.parts[0].size(0), 2, seed=7) + 3.0
        design = Case(graph, taps, readout=readout).design
        found = fit_masked(design, masks, iter(answers), 1e-3)
        expected = fit_regressor(torch.cat(case.parts), answers.flatten(0, 1), 1e-3)
        assert found.converged
        assert_close(case.dense @ found.weight, case.dense @ expected.weight, rtol=1e-4, atol=1e-5)
        assert_close(found.bias, expected.bias, rtol=1e-4, atol=1e-5)


def test_complementary_masks_are_half_as_many(monkeypatch):
    design, kept, seen = wide_graph()[2], (random(4, 80) > 0.0).double(), []
    masked = Design.masked
    monkeypatch.setattr(Design, 'masked', lambda self, masks: seen.append(len(masks)) or masked(self, masks))
    masks = torch.cat([torch.ones_like(kept[:1]), kept, 1.0 - kept])
    fit_masked(design, masks, random(9, 80, 2), 1e-3)
    assert seen == [5]


def test_features_by_blocks_give_the_same_products():
    matrix = random(11, 5)
    features = Features(matrix.split([2, 3], dim=1))
    weight = random(5, 3)
    assert_close(features @ weight, matrix @ weight)
    assert_close(features.through(weight, lambda rows, part: part.exp()), matrix.T @ (matrix @ weight).exp())
