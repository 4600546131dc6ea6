r"""What holds for every distillation, and for every program of DnX."""

import pytest
import torch
import torch.nn.functional as F
from helpers import dense_adjacency, dense_scores
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEATURES, ONE_SIZE, SEEDS, Case, Shaped, cases, graphs
from torch_geometric.nn import SGConv

from pyg_dnx.distill.solvers import fit_classifier
from pyg_dnx.graph.operator import normalized_adjacency
from pyg_dnx.graph.rows import rows_of
from pyg_dnx.scores.simplex import solve

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

RIDGES = st.sampled_from([1e-5, 1e-3, 0.1])
CLASSES = ['multiclass raw', 'binary raw [N]', 'binary raw [N, 2]']


def random_like(tensor, seed, size=1.0):
    random = torch.Generator().manual_seed(seed)
    return size * torch.randn(tensor.shape, generator=random, dtype=torch.float64)


def propagated(case, num_hops):
    power = torch.linalg.matrix_power(dense_adjacency(*case.graph[1:], case.graph.x.size(0)), num_hops)
    return power @ case.graph.x


def answers(case):
    r"""What is distilled: class probabilities [N, C], or outputs."""
    with torch.no_grad():
        outputs = case.model(*case.inputs, **case.kwargs)
    outputs = outputs.view(outputs.size(0), -1)
    if 'regression' in case.task:
        return outputs
    return (torch.cat([torch.zeros_like(outputs), outputs], dim=1) if outputs.size(1) == 1 else outputs).softmax(dim=1)


def objective(case, features, theta, ridge):
    r"""By definition, of the weights and, in the last row, the bias."""
    found, goal = features @ theta[:-1] + theta[-1], answers(case)
    if 'regression' in case.task:
        loss = 0.5 * (found - goal).square().sum(dim=1).mean()
    else:
        loss = F.kl_div(found.log_softmax(dim=1), goal, reduction='batchmean')
    return loss + 0.5 * ridge * theta[:-1].square().sum()


@given(case=cases(['FastDnX']), ridge=RIDGES, seed=SEEDS)
def test_nothing_is_better_than_the_surrogate(case, ridge, seed):
    case.options['ridge'] = ridge
    surrogate = case.surrogate()
    features = propagated(case, surrogate.num_hops)
    theta = torch.cat([surrogate.weight, surrogate.bias[None]]).requires_grad_()
    best = objective(case, features, theta, ridge)
    best.backward()
    # In units in which each feature has the size 1, as both the objective and its rounding are small for tiny ones.
    unit = torch.cat([features, torch.ones_like(features[:, :1])], dim=1).abs().amax(dim=0).clamp(min=1e-3)[:, None]
    size = max(1.0, float(answers(case).abs().max()))
    assert float((theta.grad / unit).abs().max()) < 1e-5 * size
    with torch.no_grad():
        starts = [torch.zeros_like(theta), random_like(theta, seed) / unit]
        steps = [theta + random_like(theta, seed + 1, scale) / unit for scale in (1e-4, 1e-2, 1.0)]
        for other in (*starts, *steps, 0.99 * theta, 1.01 * theta):
            assert float(objective(case, features, other, ridge)) >= float(best) - 1e-9 * size**2


@given(case=cases(['FastDnX'], tasks=CLASSES), ridge=RIDGES)
def test_another_solver_finds_no_better_one(case, ridge):
    features, probs = propagated(case, 1), answers(case)
    newton, other = (fit_classifier(features, probs, ridge, solver) for solver in ('newton', 'newton-cg'))
    losses = [objective(case, features, torch.cat([fit.weight, fit.bias[None]]), ridge) for fit in (newton, other)]
    assert newton.converged
    assert float(losses[0]) <= float(losses[1]) + 1e-7
    if other.converged:
        assert float(losses[1]) <= float(losses[0]) + 1e-6


class Shifted(torch.nn.Module):
    r"""A model whose logits are all higher, by another number at each node."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, edge_index, edge_weight=None):
        return self.model(x, edge_index, edge_weight) + 3.0 * torch.arange(x.size(0)).sin()[:, None]


@given(case=cases(tasks=['multiclass raw', 'binary raw [N, 2]'], features=ONE_SIZE, num_hops=2))
def test_a_shift_of_all_classes_changes_nothing(case):
    shifted = case._replace(model=Shifted(case.model))
    one, two = case.surrogate(), shifted.surrogate()
    torch.testing.assert_close(two.weight, one.weight, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(two.bias, one.bias, rtol=1e-4, atol=1e-4)
    assert one.weight.sum(dim=1).abs().max() < 1e-9 * (1 + one.weight.abs().max())
    assert one.bias.sum().abs() < 1e-9 * (1 + one.bias.abs().max())


@given(graph=graphs(ONE_SIZE, dtype=torch.float64), num_hops=st.integers(1, 3), regression=st.booleans(), seed=SEEDS)
def test_a_linear_model_is_recovered_and_explained_exactly(graph, num_hops, regression, seed):
    model = SGConv(graph.x.size(1), 2 if regression else 3, K=num_hops).double().eval()
    with torch.no_grad():
        model.lin.weight.copy_(random_like(model.lin.weight, seed))
        model.lin.bias.copy_(random_like(model.lin.bias, seed + 1))
        largest = model(graph.x, *graph[1:]).abs().max()
        for parameter in model.parameters():  # where a class is all but certain, its logit is not
            parameter.mul_(min(1.0, 3.0 / float(largest)))
        task = 'regression [N, 2]' if regression else 'multiclass raw'
        case = Case(Shaped(model, task), graph, task, 'FastDnX', {'ridge': 1e-10, 'num_hops': num_hops, 'cache': None})
        surrogate = case.surrogate()
        found, goal = surrogate(*case.inputs, **case.kwargs), model(*case.inputs, **case.kwargs)
    if not regression:
        found, goal = (logits - logits.mean(dim=1, keepdim=True) for logits in (found, goal))
    torch.testing.assert_close(found, goal, rtol=0.0, atol=1e-2)
    inputs = torch.cat([propagated(case, num_hops), torch.ones(graph.x.size(0), 1)], dim=1)
    if torch.linalg.matrix_rank(inputs, atol=0.5) > graph.x.size(1):  # else several fit as well, or nearly so
        weight = model.lin.weight.detach().T
        weight = weight if regression else weight - weight.mean(dim=1, keepdim=True)
        adjacency = dense_adjacency(*graph[1:], graph.x.size(0))
        expected = dense_scores(adjacency, graph.x, weight, num_hops)
        batch = case.explain_nodes().scores.to_dense()
        torch.testing.assert_close(batch, expected, rtol=0.0, atol=1e-3 * max(1.0, float(expected.abs().max())))


def program(num_neighbours, num_outputs, seed):
    contributions = random_like(torch.empty(1, num_neighbours, num_outputs), seed)
    mass = random_like(torch.empty(1, num_neighbours), seed + 1).abs() + 0.1
    return contributions, contributions.sum(dim=1), (mass / mass.sum()).log()


@given(shape=st.tuples(st.integers(1, 30), st.integers(1, 4)), epsilon=st.sampled_from([1e-3, 1e-2, 1.0]), seed=SEEDS)
def test_the_program_is_solved(shape, epsilon, seed):
    contributions, target, log_prior = program(*shape, seed)
    solution = solve(contributions, target, log_prior, epsilon)
    weight = solution.weight[0]
    assert float(weight.min()) >= 0.0
    assert float(weight.sum()) == pytest.approx(1.0)
    assert float(solution.gap) <= 1e-10
    strength = epsilon * torch.maximum(target.square().sum(), 1e-2 * contributions.square().sum(dim=2).max())

    def primal(weights):
        entropy = (torch.special.xlogy(weights, weights) - weights * log_prior[0]).sum(dim=1)
        return 0.5 * (weights @ contributions[0] - target).square().sum(dim=1) + strength * entropy

    others = random_like(torch.empty(50, shape[0]), seed + 2, 3.0).softmax(dim=1)
    points = torch.cat([others, weight + 1e-3 * (others - weight), torch.eye(shape[0]), log_prior.exp()])
    slack = 1e-9 * max(1.0, float(target.square().sum()))
    assert float(primal(points).min()) >= float(primal(weight[None])) - slack

    def descend(direction):
        r"""The dual's minimum by another method, from another starting point."""
        direction.requires_grad_()
        optimizer = torch.optim.LBFGS(
            [direction], max_iter=1000, tolerance_grad=1e-9, tolerance_change=1e-15, line_search_fn='strong_wolfe'
        )

        def dual():
            optimizer.zero_grad()
            scores = contributions[0] @ direction / strength + log_prior[0]
            loss = (0.5 * direction - target[0]) @ direction + strength * scores.logsumexp(dim=0)
            loss.backward()
            return loss

        optimizer.step(dual)
        return direction.detach()

    for start in (torch.zeros_like(target[0]), random_like(target[0], seed + 3, 5.0)):
        torch.testing.assert_close(descend(start), solution.direction[0], rtol=0.0, atol=1e-4 * float(target.norm()))


@given(case=cases(['DnX'], score='projection', contrast=None, epsilon=1e4, prior='uniform'), data=st.data())
def test_with_much_entropy_dnx_is_fastdnx(case, data):
    node = data.draw(st.integers(0, case.graph.x.size(0) - 1))
    found = case.explain(node)
    plain = {name: case.options[name] for name in ('num_hops', 'ridge')}
    fast = case._replace(kind='FastDnX', options=plain).explain(node).node_score
    surrogate = case.surrogate()
    size = int(case.reach([node], surrogate.num_hops).sum())
    share = 1 - 1 / size if size > 1 else 1.0  # a node that is alone takes FastDnX's direction
    hidden = (case.graph.x @ surrogate.weight).norm(dim=1).max()
    evidence = (propagated(case, surrogate.num_hops)[node] @ surrogate.weight).norm()
    # The gap is of the entropy's size, so that the direction is met to its root; where evidence cancels, of its parts.
    scale = float(hidden * torch.maximum(evidence, 0.1 * hidden))
    torch.testing.assert_close(found.node_score, share * fast, rtol=0.0, atol=2e-3 * scale + 1e-300)


@given(case=cases(['DnX'], score='projection', contrast=None), data=st.data())
def test_weights_of_an_explanation_are_on_the_simplex(case, data):
    node = data.draw(st.integers(0, case.graph.x.size(0) - 1))
    found = case.explain(node)
    assert float(found.node_weight.min()) >= 0.0
    assert float(found.node_weight.sum()) == pytest.approx(1.0)
    assert float(found.duality_gap.max()) <= 1e-10
    assert not found.node_weight[~case.reach([node], case.surrogate().num_hops)].any()


@given(graph=graphs(FEATURES, dtype=torch.float64), num_hops=st.integers(0, 3))
def test_torch_sparse_agrees(graph, num_hops):
    sparse = pytest.importorskip('torch_sparse')
    num_nodes = graph.x.size(0)
    operator = normalized_adjacency(*graph[1:], num_nodes, torch.float64)
    matrix = sparse.SparseTensor(
        rowptr=operator.rowptr, col=operator.col.long(), value=operator.value, sparse_sizes=(num_nodes, num_nodes)
    )
    features, power = graph.x, sparse.SparseTensor.eye(num_nodes, dtype=torch.float64)
    for _ in range(num_hops):
        features, power = matrix @ features, power @ matrix
    found = graph.x
    for _ in range(num_hops):
        found = operator @ found
    torch.testing.assert_close(found, features, rtol=1e-9, atol=1e-9 * float(features.abs().max()) + 1e-300)
    rows = rows_of(operator, torch.arange(num_nodes), num_hops).sorted(num_nodes)
    rowptr, column, value = power.csr()
    assert rows.length.equal(rowptr.diff())
    assert rows.column.long().equal(column)
    torch.testing.assert_close(rows.value, value)
