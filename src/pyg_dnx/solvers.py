r"""The convex problems behind distillation, solved to their optimum on plain tensors.

Classification minimises, over zero-sum :math:`\Theta` and :math:`b`,

.. math::
    \frac{1}{N} \sum_i \mathrm{KL}(Y_i \,\|\, \mathrm{softmax}(S_i \Theta + b)) + \frac{\rho}{2} \|\Theta\|_F^2,

and regression :math:`\frac{1}{2N} \|S \Theta + b - Y\|_F^2 + \frac{\rho}{2} \|\Theta\|_F^2`. The bias is free.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NEWTON_MAX_SIZE = 768  # variables; the Hessian is square in them
NEWTON_MAX_WORK = 2e8  # products to assemble one Hessian; above, L-BFGS is faster and smaller
CHOLESKY_MAX_SIZE = 8192  # features; above, the preconditioner is diagonal


class Fit(NamedTuple):
    weight: Tensor  # [F, C]
    bias: Tensor  # [C]
    solver: str
    converged: bool


def fit_classifier(features: Tensor, probs: Tensor, ridge: float, solver: str | None = None) -> Fit:
    r"""Fits the multinomial logistic regression of soft targets ``probs`` [N, C] on ``features`` [N, F]."""
    used = features.any(dim=0)
    if not bool(used.all()):  # as in one-hot degrees: the weights of a feature that is always zero are zero
        fit = fit_classifier(features[:, used], probs, ridge, solver)
        weight = features.new_zeros(features.size(1), probs.size(1))
        weight[used] = fit.weight
        return fit._replace(weight=weight)
    basis = zero_sum_basis(probs)
    if basis.size(1) == 0:
        return Fit(features.new_zeros(features.size(1), 1), features.new_zeros(1), 'closed form', True)
    size, pairs = features.size(1) + 1, basis.size(1) * (basis.size(1) + 1) // 2
    small = size * basis.size(1) <= NEWTON_MAX_SIZE and features.size(0) * pairs * size**2 <= NEWTON_MAX_WORK
    solve = {'newton': _newton, 'lbfgs': _lbfgs}[solver or ('newton' if small else 'lbfgs')]
    return solve(features, probs, ridge, basis)


def fit_regressor(features: Tensor, outputs: Tensor, ridge: float) -> Fit:
    r"""Fits the ridge regression of ``outputs`` [N, C] on ``features`` [N, F] in closed form."""
    center, mean = features.mean(dim=0), outputs.mean(dim=0)
    features, outputs = features - center, outputs - mean
    num_nodes, num_features = features.shape
    if num_features <= num_nodes:
        gram = _add_to_diagonal(features.T @ features / num_nodes, ridge)
        weight = _solve(gram, features.T @ outputs / num_nodes)
    else:
        gram = _add_to_diagonal(features @ features.T / num_nodes, ridge)
        weight = features.T @ _solve(gram, outputs / num_nodes)
    return Fit(weight, mean - center @ weight, 'closed form', True)


def kl_divergence(probs: Tensor, logits: Tensor) -> Tensor:
    r"""Returns KL(probs || softmax(logits)) for each row, [N]."""
    return (torch.special.xlogy(probs, probs) - probs * logits.log_softmax(dim=1)).sum(dim=1)


def zero_sum_basis(probs: Tensor) -> Tensor:
    r"""An orthonormal basis [C, C - 1] of the vectors over classes that sum to zero."""
    num_classes = probs.size(1)
    eye = torch.eye(num_classes, dtype=probs.dtype, device=probs.device)
    return torch.linalg.qr(eye[:, :-1] - 1.0 / num_classes).Q


def _newton(features: Tensor, probs: Tensor, ridge: float, basis: Tensor, max_iter: int = 100) -> Fit:
    num_nodes, num_features = features.shape
    size = basis.size(1)
    inputs = torch.cat([features, features.new_ones(num_nodes, 1)], dim=1)
    transposed = inputs.T.contiguous()
    penalty = torch.full_like(inputs[0], ridge)
    penalty[-1] = 0.0
    first, second = torch.triu_indices(size, size, device=inputs.device)

    def objective(theta: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = (inputs @ theta @ basis.T).log_softmax(dim=1)
        loss = -(probs * log_probs).sum() / num_nodes + 0.5 * (penalty[:, None] * theta.square()).sum()
        return loss, log_probs

    theta = inputs.new_zeros(num_features + 1, size)
    loss, log_probs = objective(theta)
    for _ in range(max_iter):
        predicted = log_probs.exp()
        gradient = transposed @ ((predicted - probs) @ basis) / num_nodes + penalty[:, None] * theta
        # Curvature of node i in the basis: Q^T (diag p_i - p_i p_i^T) Q, one block for each pair of columns.
        mean = predicted @ basis
        curvature = predicted @ (basis[:, first] * basis[:, second]) - mean[:, first] * mean[:, second]
        weighted = (inputs[:, None] * (curvature[:, :, None] / num_nodes)).view(num_nodes, -1)
        blocks = (transposed @ weighted).view(num_features + 1, -1, num_features + 1).transpose(0, 1)
        hessian = inputs.new_empty(size, size, num_features + 1, num_features + 1)
        hessian[first, second] = blocks
        hessian[second, first] = blocks
        hessian = hessian.transpose(1, 2).reshape(theta.numel(), theta.numel())
        hessian = _add_to_diagonal(hessian, (penalty + 1e-12).repeat(size))
        step = _solve(hessian, gradient.T.reshape(-1, 1)).view(size, -1).T
        decrement = float((gradient * step).sum())
        if decrement < 1e-9:  # each step now squares the error, so that this one is the last
            return _finish(theta - step, basis, 'newton', True)
        scale = 1.0
        while scale > 1e-8:
            candidate = theta - scale * step
            new_loss, new_log_probs = objective(candidate)
            if new_loss <= loss - 1e-4 * scale * decrement:
                break
            scale /= 2.0
        else:  # no descent left in this precision
            return _finish(theta, basis, 'newton', decrement < 1e-8)
        theta, loss, log_probs = candidate, new_loss, new_log_probs
    return _finish(theta, basis, 'newton', False)


def _lbfgs(features: Tensor, probs: Tensor, ridge: float, basis: Tensor, max_iter: int = 1000) -> Fit:
    num_nodes, num_features = features.shape
    center = features.mean(dim=0)  # the free bias absorbs it, and the preconditioner is sharper without it
    if num_features <= CHOLESKY_MAX_SIZE:
        second_moment = features.T @ features / num_nodes - torch.outer(center, center)
        factor = _cholesky(_add_to_diagonal(0.5 * second_moment, ridge))
    else:
        factor = (0.5 * features.var(dim=0, correction=0) + ridge).sqrt()[:, None]

    def precondition(matrix: Tensor, transposed: bool) -> Tensor:
        if factor.size(1) == 1:
            return matrix / factor
        return torch.linalg.solve_triangular(factor.T if transposed else factor, matrix, upper=transposed)

    variable = features.new_zeros(num_features + 1, basis.size(1))

    def unpack(variable: Tensor) -> tuple[Tensor, Tensor]:
        weight = precondition(variable[:-1], transposed=True)
        return weight, variable[-1] - center @ weight

    def objective() -> Tensor:
        weight, bias = unpack(variable)
        log_probs = ((features @ weight + bias) @ basis.T).log_softmax(dim=1)
        residual = (
            basis.T @ (log_probs.exp() - probs).T / num_nodes
        )  # a wide product is six times faster than a tall one
        bias_gradient = residual.sum(dim=1)
        gradient = (residual @ features).T + ridge * weight - torch.outer(center, bias_gradient)
        gradient = precondition(gradient, transposed=False)
        variable.grad = torch.cat([gradient, bias_gradient[None]])
        return -(probs * log_probs).sum() / num_nodes + 0.5 * ridge * weight.square().sum()

    optimizer = torch.optim.LBFGS(
        [variable],
        max_iter=max_iter,
        max_eval=2 * max_iter,
        tolerance_grad=1e-6,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn='strong_wolfe',
    )
    optimizer.step(objective)
    objective()
    converged = bool(variable.grad.abs().max() <= 1e-5)  # type: ignore[union-attr]
    weight, bias = unpack(variable)
    return _finish(torch.cat([weight, bias[None]]), basis, 'lbfgs', converged)


def _finish(theta: Tensor, basis: Tensor, solver: str, converged: bool) -> Fit:
    theta = theta @ basis.T
    return Fit(theta[:-1], theta[-1], solver, converged)


def _add_to_diagonal(matrix: Tensor, value: Tensor | float) -> Tensor:
    matrix.diagonal().add_(value)
    return matrix


def _cholesky(matrix: Tensor) -> Tensor:
    r"""Factors a positive semi-definite matrix, with as little added to its diagonal as it takes."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    jitter = torch.finfo(matrix.dtype).eps * matrix.diagonal().mean().clamp(min=1e-30)
    while bool(info.any()):
        factor, info = torch.linalg.cholesky_ex(_add_to_diagonal(matrix.clone(), jitter))
        jitter = 10.0 * jitter
    return factor


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    return torch.cholesky_solve(right, _cholesky(matrix))
