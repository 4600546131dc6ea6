r"""The local fit against its formulas, dense and in float64."""

import pytest
import torch

from pyg_dnx import probe_masks
from pyg_dnx.local_fit import NOISES, choose_noise, solve

CLOSE = {'rtol': 1e-6, 'atol': 1e-9}


def problem(num_probes=20, num_nodes=6, batch=3, scale=1.0, noise=0.05, seed=0):
    r"""Masks [P, n], prior variances [b, n], and answers [b, P] that are linear up to noise."""
    generator = torch.Generator().manual_seed(seed)
    masks = probe_masks(num_nodes, num_probes).double()
    variance = scale * torch.rand(batch, num_nodes, generator=generator, dtype=torch.float64)
    effects = variance.sqrt() * torch.randn(batch, num_nodes, generator=generator, dtype=torch.float64)
    answers = effects @ masks.T + 0.3 * scale**0.5
    answers += noise * scale**0.5 * torch.randn(answers.shape, generator=generator, dtype=torch.float64)
    return masks, variance, answers, torch.einsum('pn,bn,qn->bpq', masks, variance, masks)


def covariance(gram, noise):
    r"""Q = G + ρ g I + 10 g 11ᵀ of one node."""
    mean = gram.trace() / len(gram)
    return gram + noise * mean * torch.eye(len(gram), dtype=torch.float64) + 10 * mean


@pytest.mark.parametrize('noise', [1e-3, 0.1, 3.0])
@pytest.mark.parametrize('scale', [1e-12, 1.0, 1e6])
def test_solve_is_the_formula(noise, scale):
    _, _, answers, gram = problem(scale=scale)
    before = gram.clone(), answers.clone()
    weight, error = solve(gram, answers, noise)
    for b in range(3):
        inverse = covariance(gram[b], noise).inverse()
        torch.testing.assert_close(weight[b], inverse @ answers[b], rtol=1e-6, atol=0.0)
        expected = inverse @ answers[b] / inverse.diagonal()
        torch.testing.assert_close(error[b], expected, rtol=1e-6, atol=1e-12 * scale**0.5)
    assert gram.equal(before[0])
    assert answers.equal(before[1])


@pytest.mark.parametrize('noise', [1e-2, 1.0])
@pytest.mark.parametrize('num_probes', [1, 2, 9, 20])
def test_errors_are_those_of_leaving_one_out(noise, num_probes):
    _, _, answers, gram = problem(num_probes)
    error = solve(gram, answers, noise).error
    for b in range(3):
        full = covariance(gram[b], noise)
        for k in range(num_probes + 2):
            others = [p for p in range(num_probes + 2) if p != k]
            said = full[k, others] @ torch.linalg.solve(full[others][:, others], answers[b, others])
            torch.testing.assert_close(error[b, k], answers[b, k] - said, **CLOSE)


def test_the_effects_expected_are_those_of_the_prior():
    r"""Ridge regression in the primal: the same posterior mean, by the effects and the intercept themselves."""
    masks, variance, answers, gram = problem()
    noise = 0.1
    weight = solve(gram, answers, noise).weight
    for b in range(3):
        mean = gram[b].trace() / len(masks)
        design = torch.cat([masks, torch.ones(len(masks), 1)], dim=1)
        precision = torch.cat([1 / variance[b], 1 / (10 * mean)[None]])
        system = design.T @ design / (noise * mean) + precision.diag()
        effects = torch.linalg.solve(system, design.T @ answers[b] / (noise * mean))
        torch.testing.assert_close(variance[b] * (masks.T @ weight[b]), effects[:-1], **CLOSE)
        torch.testing.assert_close(10 * mean * weight[b].sum(), effects[-1], **CLOSE)


@pytest.mark.parametrize('noise', [0.0, 0.02, 0.3, 3.0])
@pytest.mark.parametrize('num_nodes', [3, 30])
@pytest.mark.parametrize('seed', range(4))
def test_noise_is_the_best_of_all(noise, num_nodes, seed):
    _, _, answers, gram = problem(num_nodes=num_nodes, noise=noise, seed=seed)
    losses = [float(solve(gram, answers, candidate).error.square().sum()) for candidate in NOISES]
    found = choose_noise(gram, answers)
    assert found in NOISES
    assert losses[NOISES.index(found)] <= min(losses) * (1 + 1e-5) + 1e-16
    assert choose_noise(gram * 1e4, answers * 1e2) == pytest.approx(found, rel=1e-9) or noise == 0.0


def test_more_noise_is_found_where_there_is_more():
    found = [choose_noise(*problem(60, 10, 8, noise=noise)[:1:-1]) for noise in (0.0, 0.1, 1.0, 10.0)]
    assert found == sorted(found)
    assert found[0] < 1e-6
    assert found[-1] >= 1.0


def test_neighbours_without_effect_leave_the_intercept():
    answers = torch.tensor([[1.0, 1.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    weight, error = solve(torch.zeros(2, 4, 4, dtype=torch.float64), answers, 0.1)
    assert weight.isfinite().all()
    others = (answers.sum(dim=1, keepdim=True) - answers) / 3  # but for the prior on the intercept
    torch.testing.assert_close(error, answers - others, rtol=0.0, atol=0.02)
    assert choose_noise(torch.zeros(2, 4, 4, dtype=torch.float64), answers) in NOISES


def test_few_nodes_and_no_noise_are_recovered():
    masks, variance, answers, gram = problem(noise=0.0)
    weight, error = solve(gram, answers, min(NOISES))
    effects = variance * (weight @ masks)
    torch.testing.assert_close(effects.sum(dim=1), answers[:, 0] - answers[:, 1], rtol=1e-5, atol=1e-7)
    assert error.abs().max() < 1e-5
