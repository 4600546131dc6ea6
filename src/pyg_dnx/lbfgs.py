r"""Multinomial logistic regression by L-BFGS, in variables in which the Hessian is close to the identity."""

from __future__ import annotations

import torch
from torch import Tensor
from tqdm import tqdm

from pyg_dnx.features import Features

CHOLESKY_MAX_SIZE = 8192  # features; above, the preconditioner is diagonal
SAMPLE_SIZE = 2**15  # nodes on which a large fit starts
MAX_ROUNDS, ROUND = 100, 10  # iterations between two looks at the progress


def minimise_kl(
    features: Features, probs: Tensor, ridge: float, basis: Tensor, progress: bool | None = False
) -> tuple[Tensor, bool]:
    r"""Fits soft targets ``probs`` [N, C] by ``features`` [N, F], with one pass over all rows for each evaluation.

    In float64 it goes on to the optimum. In float32 it ends where a round lowers the KL by less than a ten-thousandth,
    and begins on a sample of the rows, where most of the way costs a part of the price.

    Args:
        features: The features.
        probs: The soft targets.
        ridge: The weight of the penalty.
        basis: An orthonormal basis [C, C - 1] of the zero-sum vectors, in float64.
        progress: Whether to show a progress bar; ``None`` shows it on a terminal.

    Returns:
        The weights and, below, the bias, [F + 1, C - 1] in ``basis``; and whether this is the optimum.
    """
    problem = _Problem(features, ridge, basis)
    if features.dtype != torch.float64 and features.num_nodes >= 2 * SAMPLE_SIZE:
        generator = torch.Generator(device='cpu').manual_seed(0)
        order = torch.randperm(features.num_nodes, generator=generator, device='cpu')
        sample = order[:SAMPLE_SIZE].sort().values.to(probs.device)
        problem.minimise(Features.of(features.rows(sample)), probs[sample], progress)
    converged = problem.minimise(features, probs, progress)
    weight, bias = problem.weight_and_bias()
    return torch.cat([weight, bias[None]]), converged


class _Problem:
    r"""The fit in preconditioned variables: S is centred, and scaled by the Cholesky factor of ½ its covariance."""

    def __init__(self, features: Features, ridge: float, basis: Tensor) -> None:
        self.ridge = ridge
        self.basis = basis
        self.center = features.mean()  # the free bias absorbs it
        if features.num_features <= CHOLESKY_MAX_SIZE:
            self.factor = cholesky(add_to_diagonal(0.5 * features.covariance(self.center), ridge))
        else:
            self.factor = (0.5 * features.variance(self.center) + ridge).sqrt()[:, None]
        self.variable = self.center.new_zeros(features.num_features + 1, basis.size(1))

    def precondition(self, matrix: Tensor, transposed: bool = False) -> Tensor:
        if self.factor.size(1) == 1:
            return matrix / self.factor
        factor = self.factor.T if transposed else self.factor
        return torch.linalg.solve_triangular(factor, matrix, upper=transposed)

    def weight_and_bias(self) -> tuple[Tensor, Tensor]:
        weight = self.precondition(self.variable[:-1], transposed=True)
        return weight, self.variable[-1] - self.center @ weight

    def evaluate(self, features: Features, probs: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the objective, without the entropy of ``probs``, and its gradient."""
        weight, bias = self.weight_and_bias()
        theta, shift = (weight @ self.basis.T).to(features.dtype), (bias @ self.basis.T).to(features.dtype)
        loss = 0.5 * self.ridge * weight.square().sum()
        gradient, residual_sum = (
            torch.zeros_like(theta.T, dtype=weight.dtype),
            torch.zeros_like(shift, dtype=weight.dtype),
        )
        for rows, chunk in features.chunks():
            log_probs = torch.addmm(shift, chunk, theta).log_softmax(dim=1)
            loss -= (probs[rows] * log_probs).sum(dtype=loss.dtype) / features.num_nodes
            residual = log_probs.exp_().sub_(probs[rows]).T
            residual_sum += residual.sum(dim=1, dtype=loss.dtype)
            gradient += residual @ chunk  # a wide product is six times faster than a tall one
        bias_gradient = self.basis.T @ residual_sum / features.num_nodes
        weight_gradient = (self.basis.T @ gradient).T / features.num_nodes + self.ridge * weight
        weight_gradient = self.precondition(weight_gradient - torch.outer(self.center, bias_gradient))
        return loss, torch.cat([weight_gradient, bias_gradient[None]])

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
            tolerance_grad=1e-6,
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
                if float(self.variable.grad.abs().max()) <= 1e-6:  # type: ignore[union-attr]
                    return True
                if features.dtype != torch.float64 and before - loss <= 1e-4 * (loss - entropy):
                    return True
        return float(self.variable.grad.abs().max()) <= 1e-5  # type: ignore[union-attr]


def add_to_diagonal(matrix: Tensor, value: Tensor | float) -> Tensor:
    matrix.diagonal().add_(value)
    return matrix


def cholesky(matrix: Tensor) -> Tensor:
    r"""Factors a positive semi-definite matrix, with as little added to its diagonal as it takes."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    jitter = torch.finfo(matrix.dtype).eps * matrix.diagonal().mean().clamp(min=1e-30)
    while bool(info.any()):
        factor, info = torch.linalg.cholesky_ex(add_to_diagonal(matrix.clone(), jitter))
        jitter = 10.0 * jitter
    return factor
