r"""The local fit against its formulas, dense and in float64."""

from typing import NamedTuple

import pytest
import torch

from pyg_dnx import probe_masks
from pyg_dnx.scores.local_fit import NOISES, choose_noise, solve

CLOSE = {'rtol': 1e-6, 'atol': 1e-9}


class Problem(NamedTuple):
    masks: torch.Tensor  # [P, n]
    variance: torch.Tensor  # [b, n]
    assumed: torch.Tensor  # μ, [b, n]
    answers: torch.Tensor  # [b, P], linear up to noise

    @property
    def halves(self):
        r"""H, [K, n]."""
        return self.masks[::2] - 0.5

    @property
    def given(self):
        r"""G, g, z and y."""
        gram = torch.einsum('pn,bn,qn->bpq', self.halves, self.variance, self.halves)
        size = torch.stack([self.prior(b)[1] for b in range(len(self.variance))])
        return gram, size, self.assumed @ self.halves.T, self.answers

    def effects(self, weight, multiple):
        return self.variance * (weight @ self.halves) + multiple[:, None] * self.assumed

    def prior(self, b):
        r"""The covariance of effects, and the unit of noise, at one node."""
        unit = (self.masks * self.variance[b]) @ self.masks.T
        unit = unit.trace() / len(unit)
        spread = (self.masks @ self.assumed[b]).var(correction=0)
        return self.variance[b].diag() + unit / spread * torch.outer(self.assumed[b], self.assumed[b]), unit

    def covariance(self, b, noise, intercept=0.0):
        r"""Q of one node, and what an intercept of some variance adds to it."""
        prior, unit = self.prior(b)
        identity = torch.eye(len(self.masks), dtype=torch.float64)
        return self.masks @ prior @ self.masks.T + unit * (noise * identity + intercept)


def problem(num_probes=20, num_nodes=6, batch=3, scale=1.0, noise=0.05, seed=0):
    generator = torch.Generator().manual_seed(seed)
    masks = probe_masks(num_nodes, num_probes).double()
    variance = scale * torch.rand(batch, num_nodes, generator=generator, dtype=torch.float64)
    effects = variance.sqrt() * torch.randn(batch, num_nodes, generator=generator, dtype=torch.float64)
    answers = effects @ masks.T + 0.3 * scale**0.5
    answers += noise * scale**0.5 * torch.randn(answers.shape, generator=generator, dtype=torch.float64)
    assumed = 7.0 * (effects + 0.5 * variance.sqrt() * torch.randn(effects.shape, generator=generator))
    return Problem(masks, variance, assumed, answers)


@pytest.mark.parametrize('noise', [1e-3, 0.1, 3.0])
@pytest.mark.parametrize('scale', [1e-12, 1.0, 1e6])
def test_solve_is_the_formula(noise, scale):
    case = problem(scale=scale)
    given = case.given
    before = [value.clone() for value in given]
    weight, multiple, error = solve(*given, noise)
    for b in range(3):
        inverse = case.covariance(b, noise).inverse()
        inverse -= torch.outer(inverse.sum(dim=1), inverse.sum(dim=0)) / inverse.sum()
        expected = inverse @ case.answers[b]
        by_pairs = expected[::2] - expected[1::2]  # what their sums have is in the errors alone
        torch.testing.assert_close(weight[b], by_pairs, rtol=1e-6, atol=1e-9 * float(expected.abs().max()))
        for pair in torch.arange(22).split(2):
            off = torch.linalg.solve(inverse[pair][:, pair], expected[pair])
            torch.testing.assert_close(error[b, pair], off, rtol=1e-6, atol=1e-9 * scale**0.5)
        effects = case.effects(weight, multiple)[b]
        expected = case.prior(b)[0] @ case.masks.T @ expected
        torch.testing.assert_close(effects, expected, rtol=1e-6, atol=1e-9 * scale**0.5)
    assert all(map(torch.equal, given, before))


@pytest.mark.parametrize('noise', [1e-2, 1.0])
@pytest.mark.parametrize('num_probes', [2, 8, 20])
def test_errors_are_those_of_leaving_a_pair_out(noise, num_probes):
    case = problem(num_probes)
    error = solve(*case.given, noise).error
    for b in range(3):
        full, answers = case.covariance(b, noise, intercept=1e7), case.answers[b]  # it may be anything
        for k in range(num_probes + 2):
            others = [p for p in range(num_probes + 2) if p // 2 != k // 2]
            said = full[k, others] @ torch.linalg.solve(full[others][:, others], answers[others])
            torch.testing.assert_close(error[b, k], answers[k] - said, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('noise', [1e-9, 1e-3, 0.1, 3.0])
@pytest.mark.parametrize(('num_nodes', 'spare'), [(1, 0), (6, 0), (6, 2), (10, 1)])
def test_a_basis_of_what_neighbours_can_do_changes_nothing(noise, num_nodes, spare):
    r"""Though it may have directions to spare, where rows are padded."""
    case = problem(num_nodes=num_nodes, noise=0.0 if noise == 1e-9 else 0.05)
    gram, size, account, answers = case.given
    span = torch.cat([case.halves, torch.zeros(len(case.halves), spare, dtype=torch.float64)], dim=1)
    basis = torch.linalg.qr(span).Q.expand(3, -1, -1)
    inner = basis.mT @ gram @ basis, size, (basis.mT @ account[:, :, None])[:, :, 0]
    found, expected = solve(*inner, answers, noise, basis), solve(gram, size, account, answers, noise)
    effects = case.effects(*expected[:2])
    scale = float(effects.abs().max())
    torch.testing.assert_close(case.effects(*found[:2]), effects, rtol=1e-6, atol=1e-6 * scale)
    torch.testing.assert_close(found.error, expected.error, rtol=1e-5, atol=1e-6 * scale)


def test_the_effects_expected_are_those_of_the_prior():
    r"""Ridge regression in the primal: the same posterior mean, by the effects and the intercept themselves."""
    case, noise = problem(), 0.1
    weight, multiple, _ = solve(*case.given, noise)
    for b in range(3):
        prior, unit = case.prior(b)
        design = torch.cat([case.masks, torch.ones(len(case.masks), 1)], dim=1)
        precision = torch.block_diag(prior.inverse(), torch.zeros(1, 1))  # none for the intercept
        system = design.T @ design / (noise * unit) + precision
        effects = torch.linalg.solve(system, design.T @ case.answers[b] / (noise * unit))
        torch.testing.assert_close(case.effects(weight, multiple)[b], effects[:-1], **CLOSE)
    shifted = solve(*case.given[:3], case.answers + 5.0, noise)  # whatever is added to all answers changes nothing
    torch.testing.assert_close(shifted.weight, weight)
    torch.testing.assert_close(shifted.error, solve(*case.given, noise).error)


@pytest.mark.parametrize('noise', [0.0, 0.02, 0.3, 3.0])
@pytest.mark.parametrize('num_nodes', [3, 30])
@pytest.mark.parametrize('seed', range(4))
def test_noise_is_the_best_of_all(noise, num_nodes, seed):
    gram, size, account, answers = problem(num_nodes=num_nodes, noise=noise, seed=seed).given
    losses = [float(solve(gram, size, account, answers, candidate).error.square().sum()) for candidate in NOISES]
    found, loss = choose_noise(gram, size, account, answers)
    assert found in NOISES
    assert loss == pytest.approx(losses[NOISES.index(found)], rel=1e-5, abs=1e-12)
    assert losses[NOISES.index(found)] <= min(losses) * (1 + 1e-5) + 1e-12
    assert choose_noise(gram * 1e4, size * 1e4, account, answers * 1e2)[0] == found or noise == 0.0


def test_more_noise_is_found_where_there_is_more():
    found = [choose_noise(*problem(60, 10, 8, noise=noise).given)[0] for noise in (0.0, 0.1, 1.0, 10.0)]
    assert found == sorted(found)
    assert found[0] < 1e-6
    assert found[-1] >= 1.0


def test_neighbours_without_effect_leave_the_intercept():
    answers = torch.tensor([[1.0, 1.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    nothing = [torch.zeros(2, *shape, dtype=torch.float64) for shape in ((2, 2), (), (2,))]
    weight, multiple, error = solve(*nothing, answers, 0.1)
    assert weight.isfinite().all()
    assert not multiple.any()
    others = answers.unflatten(1, (2, 2)).flip(1).mean(dim=2).repeat_interleave(2, dim=1)  # the mean of the other pair
    torch.testing.assert_close(error, answers - others)
    assert choose_noise(*nothing, answers)[0] in NOISES


def test_few_nodes_and_no_noise_are_recovered():
    case = problem(noise=0.0)
    weight, multiple, error = solve(*case.given, min(NOISES))
    effects = case.effects(weight, multiple)
    expected = case.answers[:, 0] - case.answers[:, 1]
    torch.testing.assert_close(effects.sum(dim=1), expected, rtol=1e-4, atol=1e-6)
    assert error.abs().max() < 1e-5


@pytest.mark.parametrize('factor', [1e-100, 1e-9, -3.0, 1e9, 1e200])
def test_only_the_direction_of_what_the_surrogate_says_matters(factor):
    case = problem(noise=0.5)
    gram, size, account, answers = case.given
    one, other = (solve(gram, size, by * account, answers, 0.1) for by in (1.0, factor))
    torch.testing.assert_close(one.error, other.error, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(one.multiple, factor * other.multiple, rtol=1e-6, atol=1e-9)
    assert solve(gram, size, 1e-200 * account, answers, 0.1).weight.isfinite().all()


def test_a_surrogate_that_says_the_same_of_all_probes_is_not_heard():
    gram, size, account, answers = problem().given
    found = solve(gram, size, 0.0 * account, answers, 0.1)
    assert not found.multiple.any()
    noise = 0.05 * size[:, None, None] * torch.eye(11, dtype=torch.float64)
    differences = 0.5 * (answers[:, ::2] - answers[:, 1::2])
    torch.testing.assert_close(found.weight, torch.linalg.solve(gram + noise, differences))


def test_a_surrogate_that_knows_the_effects_makes_up_for_few_probes():
    generator = torch.Generator().manual_seed(0)
    case = problem(num_probes=10, num_nodes=60, noise=0.01)
    truth = case.variance.sqrt() * torch.randn(3, 60, generator=generator, dtype=torch.float64)
    for assumed, is_known in ((truth, True), (torch.randn(3, 60, generator=generator, dtype=torch.float64), False)):
        told = case._replace(assumed=3.0 * assumed, answers=truth @ case.masks.T)
        weight, multiple, _ = solve(*told.given, 0.01)
        found = told.effects(weight, multiple)
        close = torch.nn.functional.cosine_similarity(found, truth)
        assert (close > 0.99).all() if is_known else (close < 0.9).all()
