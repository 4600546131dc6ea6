import pytest
import torch
import torch.nn.functional as F

from pyg_dnx.distill.solvers import _newton, fit_classifier, fit_regressor, kl_divergence, zero_sum_basis

RIDGE = 1e-3


def problems():
    r"""Features [N, F] and soft targets [N, C], from friendly to hostile."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    logits = features @ torch.randn(4, 3, generator=generator, dtype=torch.float64) + torch.tensor([0.5, -1.0, 0.0])
    logits = logits + 0.3 * torch.randn(40, 3, generator=generator, dtype=torch.float64)
    probs = logits.softmax(dim=1)
    wide = torch.randn(6, 15, generator=generator, dtype=torch.float64)
    return {
        'ordinary': (features, probs),
        'binary': (features, logits[:, :2].softmax(dim=1)),
        'saturated': (features, (100.0 * logits).softmax(dim=1)),
        'one_hot': (features, F.one_hot(logits.argmax(dim=1), 3).double()),
        'same_targets': (features, probs[:1].repeat(40, 1)),
        'uniform_targets': (features, torch.full_like(probs, 1.0 / 3.0)),
        'rank_deficient': (torch.cat([features, features[:, :2], torch.zeros(40, 1)], dim=1), probs),
        'zero_features': (torch.zeros_like(features), probs),
        'constant_feature': (torch.cat([features, torch.full((40, 1), 7.0)], dim=1), probs),
        'shifted': (features + 1e3, probs),
        'huge': (1e6 * features, probs),
        'tiny': (1e-6 * features, probs),
        'mixed_scales': (features * torch.tensor([1e4, 1.0, 1e-4, 1.0]), probs),
        'outliers': (  # at which a full step of Newton overshoots
            features * torch.logspace(-3.0, 3.0, 40, dtype=torch.float64)[:, None],
            F.one_hot(logits.argmax(dim=1), 3).double(),
        ),
        'wide': (wide, probs[:6]),
        'one_node': (features[:1], probs[:1]),
    }


def objective(features, probs, weight, bias, ridge=RIDGE):
    log_probs = (features @ weight + bias).log_softmax(dim=1)
    return F.kl_div(log_probs, probs, reduction='batchmean') + 0.5 * ridge * weight.square().sum()


@pytest.fixture(params=problems())
def problem(request):
    return problems()[request.param]


@pytest.mark.parametrize('solver', ['newton', 'newton-cg'])
def test_gradient_of_the_objective_is_zero(problem, solver):
    features, probs = problem
    fit = fit_classifier(features, probs, RIDGE, solver)
    assert fit.solver == solver
    assert fit.converged
    weight, bias = fit.weight.requires_grad_(), fit.bias.requires_grad_()
    objective(features, probs, weight, bias).backward()
    size = features.abs().amax(dim=0).clamp(min=1.0)  # a gradient has the unit of its feature
    assert float((weight.grad / size[:, None]).abs().max()) < 1e-6
    assert float(bias.grad.abs().max()) < 1e-6


@pytest.mark.parametrize('solver', ['newton', 'newton-cg'])
def test_no_perturbation_is_better(problem, solver):
    features, probs = problem
    fit = fit_classifier(features, probs, RIDGE, solver)
    generator = torch.Generator().manual_seed(0)
    best = float(objective(features, probs, fit.weight, fit.bias))
    for size in [1e-3, 1e-2, 0.1, 1.0]:
        for _ in range(5):
            weight = fit.weight + size * torch.randn(fit.weight.shape, generator=generator, dtype=torch.float64)
            bias = fit.bias + size * torch.randn(fit.bias.shape, generator=generator, dtype=torch.float64)
            assert float(objective(features, probs, weight, bias)) > best - 1e-11


def test_solvers_agree(problem):
    newton = fit_classifier(*problem, RIDGE, 'newton')
    lbfgs = fit_classifier(*problem, RIDGE, 'newton-cg')
    size = problem[0].abs().amax(dim=0).clamp(min=1.0)[:, None]
    torch.testing.assert_close(size * lbfgs.weight, size * newton.weight, rtol=1e-3, atol=1e-3)
    probs = (problem[0] @ newton.weight + newton.bias).softmax(dim=1)
    torch.testing.assert_close((problem[0] @ lbfgs.weight + lbfgs.bias).softmax(dim=1), probs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('solver', ['newton', 'newton-cg'])
def test_classes_sum_to_zero(problem, solver):
    fit = fit_classifier(*problem, RIDGE, solver)
    size = 1.0 + float(fit.weight.abs().max())
    assert float(fit.weight.sum(dim=1).abs().max()) < 1e-12 * size
    assert float(fit.bias.sum().abs()) < 1e-12 * (1.0 + float(fit.bias.abs().max()))


@pytest.mark.parametrize('solver', ['newton', 'newton-cg'])
@pytest.mark.parametrize('ridge', [1e-9, 1e-5])
def test_a_class_that_never_occurs_does_not_fail(solver, ridge):
    # The free bias has no finite optimum here: the loss has to get close to its infimum, zero.
    features = problems()['ordinary'][0]
    probs = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).repeat(40, 1)
    fit = fit_classifier(features, probs, ridge, solver)
    assert bool(fit.weight.isfinite().all())
    assert bool(fit.bias.isfinite().all())
    assert float(objective(features, probs, fit.weight, fit.bias, ridge)) < 1e-4


@pytest.mark.parametrize('solver', ['newton', 'newton-cg'])
@pytest.mark.parametrize('name', ['one_hot', 'saturated', 'wide', 'huge'])
def test_separable_targets_with_a_weak_ridge_do_not_fail(name, solver):
    features, probs = problems()[name]
    fit = fit_classifier(features, probs, 1e-9, solver)
    assert bool(fit.weight.isfinite().all())
    start = objective(features, probs, torch.zeros_like(fit.weight), torch.zeros_like(fit.bias), 1e-9)
    assert float(objective(features, probs, fit.weight, fit.bias, 1e-9)) < 0.1 * float(start)


def test_one_class_needs_no_weights():
    features = problems()['ordinary'][0]
    fit = fit_classifier(features, torch.ones(40, 1, dtype=torch.float64), RIDGE)
    assert fit.weight.equal(torch.zeros(4, 1, dtype=torch.float64))
    assert fit.bias.equal(torch.zeros(1, dtype=torch.float64))
    assert fit.converged


def test_equal_targets_are_carried_by_the_bias():
    features, probs = problems()['same_targets']
    fit = fit_classifier(features, probs, RIDGE)
    torch.testing.assert_close(fit.weight, torch.zeros(4, 3, dtype=torch.float64), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(fit.bias.softmax(dim=0), probs[0], atol=1e-6, rtol=0.0)


@pytest.mark.parametrize(
    ('name', 'limit'),
    [
        ('NEWTON_MAX_SIZE', 5 * 3),  # weights and a bias, for three of four classes
        ('NEWTON_MAX_WORK', 40 * 6 * 5**2),  # nodes, pairs of classes, products for each
        ('PRECISE_MAX_SIZE', 40 * 4),
    ],
)
def test_solver_follows_the_size(name, limit, monkeypatch):
    features, _ = problems()['ordinary']
    probs = features.softmax(dim=1)
    for room, solver in [(0, 'newton'), (-1, 'newton-cg')]:
        monkeypatch.setattr(f'pyg_dnx.distill.solvers.{name}', limit + room)
        assert fit_classifier(features, probs, RIDGE).solver == solver


def test_newton_says_if_it_ran_out_of_steps():
    features, probs = problems()['ordinary']
    found = [_newton(features, probs, RIDGE, zero_sum_basis(probs), max_iter) for max_iter in (6, 7)]
    assert [fit.converged for fit in found] == [False, True]  # whole steps soon square the error


def test_newton_stops_where_no_step_descends(monkeypatch):
    features, probs = problems()['ordinary']
    monkeypatch.setattr(
        'pyg_dnx.distill.solvers._solve', lambda matrix, right: 1e30 * right
    )  # as of a matrix near singular
    fit = fit_classifier(features, probs, RIDGE, 'newton')
    assert not fit.converged
    assert not fit.weight.any()  # where it began


@pytest.mark.parametrize('name', ['ordinary', 'one_hot', 'shifted', 'mixed_scales', 'wide'])
def test_diagonal_preconditioner_finds_the_same_optimum(name, monkeypatch):
    features, probs = problems()[name]
    expected = fit_classifier(features, probs, RIDGE, 'newton')
    monkeypatch.setattr('pyg_dnx.distill.newton.CHOLESKY_MAX_SIZE', 0)
    fit = fit_classifier(features, probs, RIDGE, 'newton-cg')
    size = features.abs().amax(dim=0).clamp(min=1.0)[:, None]
    torch.testing.assert_close(size * fit.weight, size * expected.weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('num_outputs', [1, 3])
@pytest.mark.parametrize('ridge', [1e-6, 0.1])
@pytest.mark.parametrize('shape', [(30, 4), (5, 5), (5, 12), (1, 3)])
def test_regression_equals_dense_ridge_with_a_free_bias(shape, ridge, num_outputs):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(shape, generator=generator, dtype=torch.float64) + 3.0
    outputs = torch.randn(shape[0], num_outputs, generator=generator, dtype=torch.float64) - 2.0
    inputs = torch.cat([features, torch.ones(shape[0], 1)], dim=1)
    penalty = torch.full((shape[1] + 1,), ridge, dtype=torch.float64)
    penalty[-1] = 0.0
    gram = inputs.T @ inputs / shape[0] + penalty.diag()
    expected = torch.linalg.solve(gram, inputs.T @ outputs / shape[0])
    fit = fit_regressor(features, outputs, ridge)
    torch.testing.assert_close(fit.weight, expected[:-1], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(fit.bias, expected[-1], rtol=1e-6, atol=1e-8)
    assert (fit.solver, fit.converged) == ('closed form', True)


@pytest.mark.parametrize('shape', [(30, 4), (5, 12)])
def test_regression_on_degenerate_features_is_finite(shape):
    features = torch.ones(shape, dtype=torch.float64)
    outputs = torch.arange(float(shape[0]), dtype=torch.float64)[:, None]
    fit = fit_regressor(features, outputs, 1e-12)
    torch.testing.assert_close(features @ fit.weight + fit.bias, outputs.mean().expand(shape[0], 1))


def test_kl_divergence():
    probs = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]], dtype=torch.float64)
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, -1.0]], dtype=torch.float64)
    expected = F.kl_div(logits.log_softmax(dim=1), probs, reduction='none').sum(dim=1)
    torch.testing.assert_close(kl_divergence(probs, logits), expected)
    torch.testing.assert_close(expected[:2], torch.tensor([0.0, 2.0], dtype=torch.float64).clamp(min=1.0).log())


@pytest.mark.parametrize('num_classes', [1, 2, 7])
def test_zero_sum_basis_is_orthonormal(num_classes):
    basis = zero_sum_basis(torch.zeros(1, num_classes, dtype=torch.float64))
    torch.testing.assert_close(basis.T @ basis, torch.eye(num_classes - 1, dtype=torch.float64))
    torch.testing.assert_close(basis.sum(dim=0), torch.zeros(num_classes - 1, dtype=torch.float64))


@pytest.mark.parametrize('solver', ['newton', 'newton-cg'])
def test_features_that_are_always_zero_change_nothing(solver):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    features[0] = 0.0  # a node without any is no such feature
    probs = torch.randn(20, 3, generator=generator, dtype=torch.float64).softmax(dim=1)
    expected = fit_classifier(features, probs, 1e-3, solver)
    padded = torch.zeros(20, 7, dtype=torch.float64)
    padded[:, [1, 2, 4, 6]] = features
    found = fit_classifier(padded, probs, 1e-3, solver)
    torch.testing.assert_close(found.weight[[1, 2, 4, 6]], expected.weight)
    torch.testing.assert_close(found.bias, expected.bias)
    assert not found.weight[[0, 3, 5]].any()


def test_regression_of_single_precision_is_solved_in_double():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5000, 6, generator=generator)
    x = 30.0 * torch.cat([x, x + 1e-4 * torch.randn(5000, 6, generator=generator)], dim=1)  # nearly copies
    y = x.double() @ torch.randn(12, 2, generator=generator, dtype=torch.float64)
    one, other = fit_regressor(x, y, 1e-5), fit_regressor(x.double(), y, 1e-5)
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-6, atol=1e-8)
