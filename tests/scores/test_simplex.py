import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyg_dnx.scores.simplex import _line_search, solve, solve_adam

EPSILONS = [1e-4, 1e-2, 1.0]


def program(num_neighbours, num_outputs, seed=0, prior='uniform', scale=1.0):
    r"""Contributions [1, m, C], their sum [1, C], and the log-prior [1, m] of one explained node."""
    generator = torch.Generator().manual_seed(seed)
    contributions = torch.randn(1, num_neighbours, num_outputs, generator=generator, dtype=torch.float64)
    mass = torch.rand(1, num_neighbours, generator=generator, dtype=torch.float64) + 0.1
    mass = torch.ones_like(mass) if prior == 'uniform' else mass
    return scale * contributions, scale * contributions.sum(dim=1), (mass / mass.sum()).log()


def smoothing(contributions, target, epsilon):
    size = contributions.square().sum(dim=2).amax(dim=1)
    return epsilon * torch.maximum(target.square().sum(dim=1), 1e-2 * size)


def primal(weight, contributions, target, log_prior, epsilon):
    mixture = (weight[..., None] * contributions).sum(dim=-2)
    divergence = (torch.special.xlogy(weight, weight) - weight * log_prior).sum(dim=-1)
    return 0.5 * (mixture - target).square().sum(dim=-1) + smoothing(contributions, target, epsilon) * divergence


@pytest.fixture(params=[(1, 2), (2, 2), (6, 1), (6, 3), (40, 3), (5, 8)], ids=str)
def shape(request):
    return request.param


@pytest.mark.parametrize('prior', ['uniform', 'uneven'])
@pytest.mark.parametrize('epsilon', EPSILONS)
@pytest.mark.parametrize('scale', [1e-4, 1.0, 1e4])
def test_conditions_of_the_optimum(shape, epsilon, prior, scale):
    contributions, target, log_prior = program(*shape, prior=prior, scale=scale)
    solution = solve(contributions, target, log_prior, epsilon)
    weight, direction = solution.weight, solution.direction
    assert bool((weight >= 0.0).all())
    torch.testing.assert_close(weight.sum(dim=1), torch.ones(1, dtype=torch.float64))
    mixture = (weight[:, :, None] * contributions).sum(dim=1)
    torch.testing.assert_close(direction / scale, (target - mixture) / scale, rtol=1e-4, atol=1e-4)
    scores = (contributions * direction[:, None]).sum(dim=2) / smoothing(contributions, target, epsilon)
    torch.testing.assert_close(weight, (scores + log_prior).softmax(dim=1), rtol=1e-3, atol=1e-6)


@given(
    num_neighbours=st.integers(2, 12),
    num_outputs=st.integers(1, 5),
    seed=st.integers(0, 2**16),
    epsilon=st.sampled_from([1e-4, 1e-3, *EPSILONS]),
    cancel=st.sampled_from([0.0, 0.9, 0.999, 1.0]),
    tolerance=st.sampled_from([1e-10, 0.1]),
)
def test_duality_gap_is_reached_and_honest(num_neighbours, num_outputs, seed, epsilon, cancel, tolerance):
    contributions, target, log_prior = program(num_neighbours, num_outputs, seed)
    contributions = contributions - cancel * contributions.mean(dim=1, keepdim=True)  # they may well cancel out
    target = contributions.sum(dim=1)
    solution = solve(contributions, target, log_prior, epsilon, tolerance)
    assert float(solution.gap) <= tolerance
    strength = smoothing(contributions, target, epsilon)
    scale = 0.5 * torch.maximum(target.square().sum(dim=1), strength)
    scores = (contributions * solution.direction[:, None]).sum(dim=2) / strength + log_prior
    dual = 0.5 * solution.direction.square().sum() - (solution.direction * target).sum()
    gap = primal(solution.weight, contributions, target, log_prior, epsilon) + dual + strength * scores.logsumexp(dim=1)
    torch.testing.assert_close(solution.gap, gap / scale, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ('contributions', 'epsilon'),
    [
        ([[0.769, -0.174], [-0.66, -0.389]], 0.001),
        ([[-1.266, 1.288, 1.896], [0.702, -3.53, 0.691], [0.7, 2.114, -2.764]], 0.01),
    ],
)
def test_the_gap_is_reached_across_kinks(contributions, epsilon):
    # Full steps overshoot from one vertex to the next here, and short ones take forever.
    contributions = torch.tensor([contributions], dtype=torch.float64)
    log_prior = torch.zeros_like(contributions[:, :, 0]).log_softmax(dim=1)
    assert float(solve(contributions, contributions.sum(dim=1), log_prior, epsilon).gap) <= 1e-10


@pytest.fixture
def calls(monkeypatch):
    r"""Has an entry for each time that weights are computed, which is what all work is made of."""
    calls, softmax = [], torch.Tensor.softmax
    monkeypatch.setattr(torch.Tensor, 'softmax', lambda scores, dim: calls.append(dim) or softmax(scores, dim))
    return calls


# With one neighbour, the slope at a rate is that rate minus the offset: downward at 1, small there, or neither.
SEARCHES = {2.0: (1.0, 2), 0.95: (1.0, 2), 1.05: (1.0, 2), 0.85: (0.875, 5), 0.5: (0.5, 3), 0.3: (0.3125, 6)}


@pytest.mark.parametrize('offset', SEARCHES)
@pytest.mark.parametrize('solved', [False, True])
def test_the_line_search_halves_until_the_slope_is_a_tenth(offset, solved, calls):
    zeros, ones = torch.zeros(1, 1), torch.ones(1, 1)
    rate = _line_search(zeros, zeros, ones[0], offset * ones, ones, torch.tensor([solved]))
    assert (float(rate), len(calls)) == ((0.0, 2) if solved else SEARCHES[offset])


def test_what_is_solved_does_not_move_with_the_batch():
    offset, solved = torch.tensor([[0.3], *([value] for value in SEARCHES)]), torch.tensor([True] + [False] * 6)
    zeros, ones = torch.zeros(7, 1), torch.ones(7, 1)
    rate = _line_search(zeros, zeros, ones[:, 0], offset, ones, solved)
    assert rate.tolist() == [0.0, *(value for value, _ in SEARCHES.values())]


def test_a_solved_program_takes_no_steps(calls):
    zeros = torch.zeros(1, 2, 3, dtype=torch.float64)
    solve(zeros, zeros[:, 0], zeros[:, :, 0], 0.01, tolerance=0.0)
    assert len(calls) == 1


@pytest.mark.parametrize('prior', ['uniform', 'uneven'])
@pytest.mark.parametrize('epsilon', EPSILONS)
def test_no_point_of_the_simplex_is_better(shape, epsilon, prior):
    contributions, target, log_prior = program(*shape, prior=prior)
    weight = solve(contributions, target, log_prior, epsilon).weight
    best = primal(weight, contributions, target, log_prior, epsilon)
    generator = torch.Generator().manual_seed(0)
    far = (4.0 * torch.randn(500, shape[0], generator=generator, dtype=torch.float64)).softmax(dim=1)
    near = weight + 1e-3 * (far - weight)
    others = torch.cat([far, near, torch.eye(shape[0], dtype=torch.float64), log_prior.exp()])
    found = primal(others, contributions, target, log_prior, epsilon)
    assert float(found.min()) >= float(best - 1e-9 * target.square().sum())


@pytest.mark.parametrize('epsilon', EPSILONS)
def test_padded_batches_equal_single_programs(epsilon):
    programs = [program(size, 3, seed=size, prior='uneven', scale=10.0 ** (size % 3)) for size in [1, 2, 5, 9]]
    contributions = torch.zeros(4, 9, 3, dtype=torch.float64)
    log_prior = torch.full((4, 9), -torch.inf, dtype=torch.float64)
    for b, (own, _, prior) in enumerate(programs):
        contributions[b, : own.size(1)], log_prior[b, : own.size(1)] = own[0], prior[0]
    batch = solve(contributions, contributions.sum(dim=1), log_prior, epsilon)
    for b, (own, target, prior) in enumerate(programs):
        single = solve(own, target, prior, epsilon)
        size = own.size(1)
        torch.testing.assert_close(batch.weight[b, :size], single.weight[0], rtol=1e-4, atol=1e-6)
        assert not bool(batch.weight[b, size:].any())
        norm = float(target.norm())
        torch.testing.assert_close(batch.direction[b] / norm, single.direction[0] / norm, rtol=0.0, atol=1e-5)
        assert float(batch.gap[b]) <= 1e-10


def test_the_optimum_is_unique():
    contributions, target, log_prior = program(8, 3)
    contributions[0, 3] = contributions[0, 5]
    target = contributions.sum(dim=1)
    solution = solve(contributions, target, log_prior, 0.01)
    assert solution.weight.equal(solve(contributions, target, log_prior, 0.01, tolerance=1e-10).weight)
    torch.testing.assert_close(solution.weight[0, 3], solution.weight[0, 5])  # equals are weighed equally
    order = torch.tensor([4, 2, 7, 5, 0, 1, 6, 3])
    shuffled = solve(contributions[:, order], target, log_prior[:, order], 0.01)
    torch.testing.assert_close(shuffled.weight, solution.weight[:, order])


def test_scores_tend_to_those_of_fast_dnx():
    contributions, target, log_prior = program(10, 3)
    fast = (contributions @ target[0])[0]
    solution = solve(contributions, target, log_prior, 1e6)
    slow = (contributions @ solution.direction[0])[0]
    torch.testing.assert_close(solution.weight, log_prior.exp(), rtol=1e-5, atol=1e-5)  # the entropy decides
    torch.testing.assert_close(solution.direction, target - contributions.mean(dim=1), rtol=1e-4, atol=1e-4)
    assert slow.argsort().tolist() == fast.argsort().tolist()


def test_a_small_entropy_leaves_the_paper_s_optimum():
    # The closest point to [4, -2] in the triangle lies on the side from [3, 0] to [0, -2].
    contributions = torch.tensor([[[3.0, 0.0], [0.0, -2.0], [1.0, 0.0]]], dtype=torch.float64)
    solution = solve(contributions, contributions.sum(dim=1), torch.zeros(1, 3).double().log_softmax(dim=1), 1e-6)
    expected = torch.tensor([[12.0, 1.0, 0.0]], dtype=torch.float64) / 13.0
    torch.testing.assert_close(solution.weight, expected, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize('solver', [lambda *args: solve(*args, 0.01), lambda *args: solve_adam(*args, 20, 0.1)])
def test_zero_contributions_do_not_fail(solver):
    contributions, _, log_prior = program(5, 3)
    contributions = torch.cat([torch.zeros_like(contributions), contributions])
    solution = solver(contributions, contributions.sum(dim=1), log_prior.repeat(2, 1))
    torch.testing.assert_close(solution.weight[0], torch.full((5,), 0.2, dtype=torch.float64))
    assert solution.direction[0].tolist() == [0.0, 0.0, 0.0]
    assert bool(solution.weight.isfinite().all())


def test_contributions_that_cancel_out_do_not_fail():
    contributions = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]], dtype=torch.float64)
    solution = solve(
        contributions, torch.zeros(1, 2, dtype=torch.float64), torch.full((1, 2), 0.5).double().log(), 0.01
    )
    torch.testing.assert_close(solution.weight, torch.full((1, 2), 0.5, dtype=torch.float64))
    assert float(solution.gap) <= 1e-10


@pytest.mark.parametrize('epochs', [1, 30])
@pytest.mark.parametrize('scale', [1e-4, 1.0])  # Adam's own epsilon is no less than the smaller gradients
def test_adam_is_the_published_iterate(shape, epochs, scale):
    contributions, target, log_prior = program(*shape, scale=scale)
    logits = torch.zeros(1, shape[0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(epochs):
        optimizer.zero_grad()
        mixture = (logits.softmax(dim=1)[:, :, None] * contributions).sum(dim=1)
        (mixture - target).square().sum().backward()
        optimizer.step()
    padded = torch.cat([contributions, torch.ones_like(contributions)], dim=1)
    log_prior = torch.cat([log_prior, torch.full_like(log_prior, -torch.inf)], dim=1)
    solution = solve_adam(padded, target, log_prior, epochs, 0.1)
    torch.testing.assert_close(solution.weight[:, : shape[0]], logits.detach().softmax(dim=1))
    assert not bool(solution.weight[:, shape[0] :].any())
    expected = target - (solution.weight[:, : shape[0], None] * contributions).sum(dim=1)
    torch.testing.assert_close(solution.direction, expected)
