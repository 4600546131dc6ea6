r"""Multinomial logistic regression by L-BFGS, in variables in which the Hessian is close to the identity."""

from __future__ import annotations

import torch
from torch import Tensor
from tqdm import tqdm

from pyg_dnx.graph.features import Features

CHOLESKY_MAX_SIZE = 8192  # features; above, the preconditioner is diagonal
DAMPING = 1.0  # how much of the mean prediction's curvature is added to that of the predictions
SMALLEST_PROB = 1e-5  # whose logarithm the first guess takes in earnest
SAMPLE_SIZE = 2**15  # nodes on which a large fit starts
MAX_ROUNDS, ROUND = 200, 5  # iterations between two looks at the progress


def minimise_kl(
    features: Features, probs: Tensor, ridge: float, basis: Tensor, progress: bool | None = False
) -> tuple[Tensor, bool]:
    r"""Fits soft targets ``probs`` [N, C] by ``features`` [N, F], with one pass over all rows for each evaluation.

    In float64 it goes on to the optimum. In float32 it ends where a round lowers the KL by less than a two-thousandth,
    and begins on a sample of the rows, where most of the way costs a part of the price.

    Args:
        features: The features.
        probs: The soft targets.
        ridge: The weight of the penalty.
        basis: An orthonormal basis [C, C - 1] of the zero-sum vectors, in float64.
        progress: Whether to show a progress bar; ``None`` shows it on a terminal.

    Returns:
        The weights and, below, the bias, [F + 1, C - 1] in ``basis``; and whether the tolerance was met.
    """
    problem = _Problem(features, probs, ridge, basis)
    if features.dtype != torch.float64 and features.num_nodes >= 2 * SAMPLE_SIZE:
        generator = torch.Generator(device='cpu').manual_seed(0)
        order = torch.randperm(features.num_nodes, generator=generator, device='cpu')
        sample = order[:SAMPLE_SIZE].sort().values.to(probs.device)
        problem.minimise(Features.of(features.rows(sample)), probs[sample], progress)
    converged = problem.minimise(features, probs, progress)
    weight, bias = problem.weight_and_bias()
    return torch.cat([weight, bias[None]]), converged


class _Problem:
    r"""The fit in variables V in which the Hessian is close to the identity.

    Near the optimum it is about :math:`M \otimes (\mathrm{Cov}(S) + \rho' I)`, where :math:`M` is the mean of
    :math:`\mathrm{diag}(p) - p p^\top` over nodes. With the Cholesky factors of both, :math:`V = L_S^\top \Theta L_M`.
    """

    def __init__(self, features: Features, probs: Tensor, ridge: float, basis: Tensor) -> None:
        self.ridge = ridge
        self.basis = basis
        self.center = features.mean()  # the free bias absorbs it
        mean = probs.sum(dim=0, dtype=torch.float64) / features.num_nodes
        curvature = mean.diag()
        for part in probs.split(2**16):
            curvature -= part.T @ part / features.num_nodes
        # Hard targets have none themselves, but their surrogate will: a part of what the mean prediction has.
        curvature += DAMPING * (mean.diag() - torch.outer(mean, mean))
        curvature = add_to_diagonal(basis.T @ curvature @ basis, 1e-4)
        size = float(curvature.diagonal().mean())
        self.class_factor = cholesky(curvature)
        if features.num_features <= CHOLESKY_MAX_SIZE:
            self.factor = cholesky(add_to_diagonal(features.covariance(self.center), ridge / size))
        else:
            self.factor = (features.variance(self.center) + ridge / size).sqrt()[:, None]
        self.variable = self._least_squares(features, probs)

    def _least_squares(self, features: Features, probs: Tensor) -> Tensor:
        r"""Where the surrogate's logits come closest to those of ``probs``, not far from the optimum."""
        moment = self.center.new_zeros(features.num_features, self.basis.size(1))
        total = torch.zeros_like(moment[0])
        for rows, chunk in features.chunks():
            logits = probs[rows].clamp(min=SMALLEST_PROB).log() @ self.basis.to(probs.dtype)
            moment += (logits.T @ chunk).T
            total += logits.sum(dim=0)
        moment = (moment - torch.outer(self.center, total)) / features.num_nodes
        variable = torch.cat([self.precondition(moment), total[None] / features.num_nodes])
        return variable @ self.class_factor

    def precondition(self, matrix: Tensor, transposed: bool = False) -> Tensor:
        r"""Solves :math:`L_S X =` ``matrix``, or with the transpose of :math:`L_S`."""
        if self.factor.size(1) == 1:
            return matrix / self.factor
        factor = self.factor.T if transposed else self.factor
        return torch.linalg.solve_triangular(factor, matrix, upper=transposed)

    def weight_and_bias(self) -> tuple[Tensor, Tensor]:
        scaled = torch.linalg.solve_triangular(self.class_factor, self.variable, upper=False, left=False)
        weight = self.precondition(scaled[:-1], transposed=True)
        return weight, scaled[-1] - self.center @ weight

    def evaluate(self, features: Features, probs: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the objective, without the entropy of ``probs``, and its gradient."""
        weight, bias = self.weight_and_bias()
        theta, shift = (weight @ self.basis.T).to(features.dtype), (bias @ self.basis.T).to(features.dtype)
        loss = 0.5 * self.ridge * weight.square().sum()
        gradient, residual_sum = (torch.zeros_like(tensor, dtype=loss.dtype) for tensor in (theta.T, shift))
        for rows, chunk in features.chunks():
            log_probs = torch.addmm(shift, chunk, theta).log_softmax(dim=1)
            loss -= (probs[rows] * log_probs).sum(dtype=loss.dtype) / features.num_nodes
            residual = log_probs.exp_().sub_(probs[rows]).T
            residual_sum += residual.sum(dim=1, dtype=loss.dtype)
            gradient += residual @ chunk  # a wide product is six times faster than a tall one
        bias_gradient = self.basis.T @ residual_sum / features.num_nodes
        weight_gradient = (self.basis.T @ gradient).T / features.num_nodes + self.ridge * weight
        weight_gradient = self.precondition(weight_gradient - torch.outer(self.center, bias_gradient))
        gradient = torch.cat([weight_gradient, bias_gradient[None]])
        gradient = torch.linalg.solve_triangular(self.class_factor.T, gradient, upper=True, left=False)
        return loss, gradient.contiguous()

    def minimise(self, features: Features, probs: Tensor, progress: bool | None) -> bool:
        r"""Moves to the optimum for these rows, and tells whether it got there."""
        entropy = sum(-float(torch.special.xlogy(part, part).sum(dtype=torch.float64)) for part in probs.split(2**16))
        entropy /= features.num_nodes
        last: list[Tensor] = []

        def objective() -> Tensor:
            if not last or not last[0].equal(self.variable):  # a round begins where the one before has ended
                loss, self.variable.grad = self.evaluate(features, probs)
                last[:] = self.variable.clone(), loss
                bar.update()
                bar.set_postfix_str(f'KL {float(loss) - entropy:.4g}', refresh=False)
            return last[1]

        optimizer = torch.optim.LBFGS(
            [self.variable],
            max_iter=ROUND,
            max_eval=2 * ROUND,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            history_size=20,
            line_search_fn='strong_wolfe',
        )
        shown = None if progress is None else not progress  # None: on a terminal
        label = f'Distilling {features.num_nodes:,} nodes'
        with tqdm(desc=label, unit=' steps', disable=shown, delay=0 if progress else 1) as bar:
            loss = torch.inf
            for _ in range(MAX_ROUNDS):
                before, loss = loss, float(optimizer.step(objective))
                if self.slack() <= 1e-6:
                    return True
                if features.dtype != torch.float64 and before - loss <= 5e-4 * (loss - entropy):
                    return True
        return self.slack() <= 1e-5

    def slack(self) -> float:
        r"""About how far the objective is above its minimum: the gradient, times the way there if that is long."""
        return float(self.variable.grad.abs().max() * self.variable.abs().max().clamp(min=1.0))  # type: ignore[union-attr]


def add_to_diagonal(matrix: Tensor, value: Tensor | float) -> Tensor:
    matrix.diagonal().add_(value)
    return matrix


def cholesky(matrix: Tensor) -> Tensor:
    r"""Factors a positive semi-definite matrix, with as little added to its diagonal as it takes."""
    if not bool(matrix.isfinite().all()):
        raise ValueError(
            f"'x' must have features whose squares are finite (got an overflow in {matrix.dtype}): rescale them"
        )
    factor, info = torch.linalg.cholesky_ex(matrix)
    jitter = torch.finfo(matrix.dtype).eps * matrix.diagonal().mean().clamp(min=1e-30)
    while bool(info.any()):
        factor, info = torch.linalg.cholesky_ex(add_to_diagonal(matrix.clone(), jitter))
        jitter = 10.0 * jitter
    return factor
