r"""What is fitted in float32, in pieces and from a sample, is as good as the optimum that Newton's method finds."""

import pytest
import torch
import torch.nn.functional as F
from models import Teacher, connected, graph
from tqdm import tqdm

from pyg_dnx import FastDnX, run
from pyg_dnx.distill import distill as distillation
from pyg_dnx.distill import newton, solvers
from pyg_dnx.distill.solvers import fit_classifier, zero_sum_basis
from pyg_dnx.graph.features import Features

RIDGE = 1e-3


def problems():
    r"""Features [N, F] and targets [N, C] in float32."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 6, generator=generator)
    logits = features @ torch.randn(6, 4, generator=generator) + torch.tensor([0.5, -1.0, 0.0, 1.0])
    logits = logits + torch.randn(400, 4, generator=generator)
    classes = torch.distributions.Categorical(logits=logits).probs.cumsum(dim=1)
    drawn = (torch.rand(400, 1, generator=generator) > classes[:, :-1]).sum(dim=1)
    return {
        'ordinary': (features, logits.softmax(dim=1)),
        'binary': (features, logits[:, :2].softmax(dim=1)),
        'confident': (features, (3.0 * logits).softmax(dim=1)),
        'hard': (features, F.one_hot(drawn, 4).float()),
        'separable': (features, F.one_hot((features @ torch.ones(6, 1) > 0).long().view(-1), 2).float()),
        'correlated': (features @ (torch.ones(6, 6) + 0.2 * torch.eye(6)) + 3.0, logits.softmax(dim=1)),
        'scaled': (features * torch.tensor([100.0, 1.0, 0.01, 1.0, 1.0, 1.0]), logits.softmax(dim=1)),
        'zero feature': (features * torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0]), logits.softmax(dim=1)),
        'rare class': (features, (logits - torch.tensor([0.0, 0.0, 0.0, 6.0])).softmax(dim=1)),
    }


def objective(problem, fit):
    features, probs = (tensor.double() for tensor in problem)
    log_probs = (features @ fit.weight + fit.bias).log_softmax(dim=1)
    return float(F.kl_div(log_probs, probs, reduction='batchmean') + 0.5 * RIDGE * fit.weight.square().sum())


@pytest.fixture
def _large(monkeypatch):
    for module in (solvers, distillation):
        monkeypatch.setattr(module, 'PRECISE_MAX_SIZE', 0)


@pytest.fixture(params=problems())
def problem(request):
    return problems()[request.param]


def as_large(problem, **kwargs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, 'PRECISE_MAX_SIZE', 0)
        return fit_classifier(*problem, RIDGE, **kwargs)


@pytest.mark.parametrize('sample', [2**15, 200, 20])
@pytest.mark.parametrize('diagonal', [False, True])
def test_reaches_the_objective_of_the_optimum(problem, sample, diagonal, monkeypatch):
    best = objective(problem, fit_classifier(*problem, RIDGE, 'newton'))
    monkeypatch.setattr(newton, 'SAMPLE_SIZE', sample)
    monkeypatch.setattr(newton, 'CHOLESKY_MAX_SIZE', 0 if diagonal else 8192)
    fit = as_large(problem)
    assert fit.solver == 'newton-cg'
    assert fit.converged
    assert best * (1 - 1e-6) <= objective(problem, fit) <= best * (1 + 1e-3)


def test_classes_sum_to_zero(problem):
    fit = as_large(problem)
    size = float(fit.weight.abs().max()) + float(fit.bias.abs().max())
    assert float(fit.weight.sum(dim=1).abs().max()) < 1e-12 * size
    assert float(fit.bias.sum().abs()) < 1e-12 * size


@pytest.mark.parametrize('widths', [[1] * 6, [2, 4], 4])
@pytest.mark.parametrize('chunk_size', [64, 2**20])
def test_blocks_and_chunks_change_nothing(problem, widths, chunk_size, monkeypatch):
    expected = as_large(problem)
    monkeypatch.setattr('pyg_dnx.graph.features.CHUNK_SIZE', chunk_size)
    fit = as_large((Features(problem[0].split(widths, dim=1)), problem[1]))
    assert objective(problem, fit) == pytest.approx(objective(problem, expected), rel=1e-3)


def test_the_sample_is_where_it_starts(monkeypatch):
    problem, sizes = problems()['ordinary'], []
    minimise = newton._Problem.minimise

    def spy(self, features, probs, loose, progress):
        sizes.append(features.num_rows)
        place = (features.rows()[:, None] == problem[0]).all(dim=2).nonzero()[:, 1]
        assert probs.equal(problem[1][place].to(probs.dtype))  # of the same nodes
        return minimise(self, features, probs, loose, progress)

    monkeypatch.setattr(newton._Problem, 'minimise', spy)
    for sample in [201, 200]:
        monkeypatch.setattr(newton, 'SAMPLE_SIZE', sample)
        as_large(problem)
    fit_classifier(*problem, RIDGE, 'newton-cg')  # in float64
    assert sizes == [400, 200, 400, 400]


@pytest.mark.parametrize('name', ['ordinary', 'hard', 'scaled'])
@pytest.mark.parametrize('chunk_size', [50, 2**20])
def test_gradient_and_curvature_equal_those_of_autograd(name, chunk_size, monkeypatch):
    monkeypatch.setattr('pyg_dnx.graph.features.CHUNK_SIZE', chunk_size)
    features, probs = (tensor.double() for tensor in problems()[name])
    basis = zero_sum_basis(probs)
    problem = newton._Problem(Features.of(features), probs, RIDGE, basis)
    theta = torch.randn(problem.theta.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def expected(theta):
        log_probs = (((features - problem.center) @ theta[:-1] + theta[-1]) @ basis.T).log_softmax(dim=1)
        return -(probs * log_probs).sum() / 400 + 0.5 * RIDGE * theta[:-1].square().sum()

    loss, gradient, predictions = problem.evaluate(problem.matrix, probs, theta)
    torch.testing.assert_close(loss, expected(theta))
    torch.testing.assert_close(gradient, torch.autograd.functional.jacobian(expected, theta))
    problem.theta = theta
    torch.testing.assert_close(torch.cat(predictions), torch.cat(problem.predict()))
    hessian = torch.autograd.functional.hessian(expected, theta).view(theta.numel(), -1)
    step, slack = problem.step(torch.cat(predictions), gradient, 1e-8, 0.0, False)
    torch.testing.assert_close(hessian @ step.flatten(), gradient.flatten(), rtol=1e-5, atol=1e-7)
    assert slack > 0.0


@pytest.mark.parametrize('name', ['ordinary', 'hard', 'correlated'])
def test_starts_with_the_best_of_biases(name):
    features, probs = (tensor.double() for tensor in problems()[name])
    problem = newton._Problem(Features.of(features), probs, RIDGE, zero_sum_basis(probs))
    _, gradient, _ = problem.evaluate(problem.matrix, probs, problem.theta)
    torch.testing.assert_close(gradient[-1], torch.zeros_like(gradient[-1]))
    assert not problem.theta[:-1].any()


def test_a_sample_too_small_for_the_features_is_not_taken(monkeypatch):
    sizes, evaluate = [], newton._Problem.evaluate
    monkeypatch.setattr(newton._Problem, 'evaluate', lambda *given: sizes.append(given[1].num_rows) or evaluate(*given))
    for sample in [6 * 16, 6 * 16 - 1]:
        sizes.clear()
        monkeypatch.setattr(newton, 'SAMPLE_SIZE', sample)
        as_large(problems()['ordinary'])
        assert set(sizes) == ({400, sample} if sample == 96 else {400})


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('dim', [None, 0])
def test_conjugate_gradients_solve_a_system(dim, dtype):
    generator = torch.Generator().manual_seed(0)
    root, right = (torch.randn(shape, generator=generator, dtype=dtype) for shape in [(12, 12), (12, 3)])
    matrix = root @ root.T + 0.1 * torch.eye(12, dtype=dtype)
    right[:, 1] *= 0.0 if dim == 0 else 1.0
    products = []

    def product(vector):
        products.append(vector)
        return matrix @ vector

    size, found = matrix.diagonal()[:, None], {}
    for tolerance in [0.3, 1e-6]:
        products.clear()
        solution = newton.conjugate_gradients(product, right, lambda vector: vector / size, tolerance, dim=dim)
        error = (matrix @ solution - right).norm() / right.norm()
        assert error < 10.0 * tolerance
        found[tolerance] = len(products)
    assert found[0.3] < found[1e-6] <= 40
    products.clear()
    newton.conjugate_gradients(product, right, lambda vector: vector / size, 1e-6, floor=1e30, dim=dim)
    assert len(products) == 1


def test_targets_are_left_alone(problem):
    features, probs = (tensor.clone() for tensor in problem)
    as_large(problem)
    assert problem[0].equal(features)
    assert problem[1].equal(probs)


@pytest.mark.parametrize('progress', [True, None, False])
def test_progress_shows_the_kl(progress, capsys, monkeypatch):
    monkeypatch.setattr(
        run, 'tqdm', lambda steps=None, **options: tqdm(steps, **{**options, 'delay': 0})
    )  # as if it took long
    as_large(problems()['ordinary'], progress=progress)
    shown = capsys.readouterr().err
    assert ('KL' in shown) == (progress is True)
    assert ('Distilling 400 nodes' in shown) == (progress is True)
    assert shown == '' or progress


@pytest.mark.usefixtures('_large')
@pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
def test_explainers_pass_progress_on(capsys):
    algorithm, inputs = connected(FastDnX(cache=None)), graph()
    surrogate = algorithm.distill(Teacher(), *inputs, progress=True)
    assert surrogate.report.solver == 'newton-cg'
    assert 'Distilling 8 nodes' in capsys.readouterr().err
    algorithm.explain_nodes(Teacher(), *inputs, progress=True)
    shown = capsys.readouterr().err
    assert 'Distilling' in shown
    assert 'Explaining' in shown
    algorithm.explain_nodes(Teacher(), *inputs)
    assert capsys.readouterr().err == ''


@pytest.mark.usefixtures('_large')
@pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
@pytest.mark.parametrize('task', ['multiclass raw', 'binary raw [N]', 'regression [N, 2]'])
def test_large_graphs_are_explained_alike(task, monkeypatch):
    algorithm, model, inputs = connected(FastDnX(cache=None, ridge=0.1), task), Teacher(task=task), graph()
    found = algorithm.explain_nodes(model, *inputs).scores.to_dense()
    monkeypatch.undo()
    expected = algorithm.explain_nodes(model, *inputs).scores.to_dense()
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.01 * float(expected.abs().max()))


@pytest.mark.parametrize(('scale', 'dtype', 'limit'), [(1e200, torch.float64, 2**24), (1e25, torch.float32, 0)])
def test_features_too_large_to_square_are_refused(scale, dtype, limit, monkeypatch):
    monkeypatch.setattr(solvers, 'PRECISE_MAX_SIZE', limit)
    features, probs = problems()['ordinary']
    with pytest.raises(ValueError, match=r"'x' must have features whose squares are finite .*: rescale them"):
        fit_classifier(scale * features.to(dtype), probs, RIDGE)


def test_one_class_needs_no_fit(monkeypatch):
    monkeypatch.setattr(solvers, 'PRECISE_MAX_SIZE', 0)
    fit = fit_classifier(torch.randn(40, 4), torch.ones(40, 1), RIDGE)
    assert not fit.weight.any()
    assert not fit.bias.any()
