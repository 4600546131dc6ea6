r"""The convex problems behind distillation, solved to their optimum on plain tensors.

Classification minimises, over zero-sum :math:`\Theta` and :math:`b`,

.. math::
    \frac{1}{N} \sum_i \mathrm{KL}(Y_i \,\|\, \mathrm{softmax}(S_i \Theta + b)) + \frac{\rho}{2} \|\Theta\|_F^2,

and regression :math:`\frac{1}{2N} \|S \Theta + b - Y\|_F^2 + \frac{\rho}{2} \|\Theta\|_F^2`. The bias is free.
Features come as column blocks of S, which may be on disk: besides these, only a chunk of rows is held at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_dnx.distill.newton import add_to_diagonal, cholesky, conjugate_gradients, minimise_kl, random_signs
from pyg_dnx.graph.design import Design
from pyg_dnx.graph.features import Features

NEWTON_MAX_SIZE = 768  # variables; the Hessian is square in them
NEWTON_MAX_WORK = (
    1.5e7  # products to assemble one Hessian; above, conjugate gradients took less time than Newton's dense steps
)
PRECISE_MAX_SIZE = 2**24  # features times nodes; above, float32 and a looser tolerance, which explanations don't feel


MASKED_SIZE = 2**24  # numbers in a product under several masks
BYTES_PER_ENTRY = 48  # of dense features: in float64, with a column of ones, and transposed, and as much again
MAX_REFINEMENTS = 10  # of least squares, each by REFINEMENT, until one gains no more than a share of the first
REFINEMENT, RESIDUAL = 1e-4, 1e-11  # evidence is then within 2e-6 (Cora, CiteSeer)


class Fit(NamedTuple):
    weight: Tensor  # [F, C]
    bias: Tensor  # [C]
    solver: str
    converged: bool


def fit_classifier(
    features: Tensor | Features | Design,
    probs: Tensor,
    ridge: float,
    solver: str | None = None,
    progress: bool | None = False,
) -> Fit:
    r"""Fits the multinomial logistic regression of soft targets ``probs`` [N, C] on ``features`` [N, F].

    Up to ``PRECISE_MAX_SIZE`` features in all, or by a :class:`Design` of any size, it is solved to its optimum in
    float64, above to a thousandth of the KL. Features that don't fit into their ``max_bytes`` are gone through chunk
    by chunk.
    """
    matrix, basis = _matrix(features), zero_sum_basis(probs.double())
    if basis.size(1) == 0:
        return Fit(basis.new_zeros(matrix.num_features, 1), basis.new_zeros(1), 'closed form', True)
    num_entries = matrix.num_rows * matrix.num_features
    if isinstance(matrix, Design) or num_entries > min(PRECISE_MAX_SIZE, matrix.max_bytes // BYTES_PER_ENTRY):
        return _finish(*minimise_kl(matrix, probs.to(matrix.dtype), ridge, basis, progress), basis, 'newton-cg')
    dense, run = matrix.rows(matrix.mine).double(), matrix.run
    used = run.sum(dense.any(dim=0))
    used[0] |= ~used.any()  # one is left if all are zero
    if not bool(used.all()):  # as in one-hot degrees: the weights of a feature that is always zero are zero
        kept = Features([dense[:, used]], run, matrix.num_rows)
        fit = fit_classifier(kept, probs[matrix.mine], ridge, solver, progress)
        weight = dense.new_zeros(used.numel(), probs.size(1))
        weight[used] = fit.weight
        return fit._replace(weight=weight)
    size, pairs = dense.size(1) + 1, basis.size(1) * (basis.size(1) + 1) // 2
    small = size * basis.size(1) <= NEWTON_MAX_SIZE and matrix.num_rows * pairs * size**2 <= NEWTON_MAX_WORK
    mine = Features([dense], run, matrix.num_rows)
    if solver == 'newton' or (solver is None and small):
        return _newton(mine, probs[matrix.mine].double(), ridge, basis)
    return _finish(*minimise_kl(mine, probs[matrix.mine].double(), ridge, basis, progress), basis, 'newton-cg')


def fit_regressor(features: Tensor | Features | Design, outputs: Tensor, ridge: float) -> Fit:
    r"""Fits the ridge regression of ``outputs`` [N, C] on ``features`` [N, F]."""
    matrix = _matrix(features)
    if isinstance(matrix, Design):
        ones = outputs.new_ones(matrix.num_rows)
        return _least_squares(
            [(matrix, outputs.double(), ones.double())], outputs.double().mean(dim=0), outputs.size(0), ridge
        )
    return fit_stacked([(matrix, outputs[matrix.mine])], matrix.num_rows, ridge)


def fit_masked(design: Design, masks: Tensor, answers: Iterable[Tensor], ridge: float) -> Fit:
    r"""Fits ridge regression of ``answers`` [P][O, C] on the features under each of ``masks`` [P, N], stacked.

    Where :math:`m` is a combination of other masks, :math:`S_m` is that of theirs. So Q, the eigenvectors of the masks'
    inner products, turns all P parts into fewer without a change of the squared error: of masks that come in
    complementary pairs, about half.
    """
    masks, outputs = masks.double(), torch.stack([answer.double() for answer in answers])
    size, turn = torch.linalg.eigh(masks @ masks.T)
    turn = turn[:, size > 1e-9 * size[-1]]
    masks, weight, mean = turn.T @ masks, turn.sum(dim=0), outputs.mean(dim=(0, 1))
    at_a_time = max(1, MASKED_SIZE // (outputs[0].numel() + 1))
    parts = []
    for one in torch.arange(turn.size(1), device=turn.device).split(at_a_time):
        answer = torch.einsum('pa,pnc->nac', turn[:, one], outputs).flatten(0, 1)
        parts.append((design.masked(masks[one]), answer, weight[one].repeat(outputs.size(1))))
    return _least_squares(parts, mean, outputs.size(0) * outputs.size(1), ridge)


def _least_squares(parts: list[tuple[Design, Tensor, Tensor]], mean: Tensor, num_rows: int, ridge: float) -> Fit:
    r"""Minimises :math:`\frac{1}{2n} \sum_a \|S_a \Theta + w_a b^\top - Y_a\|_F^2 + \frac{\rho}{2} \|\Theta\|_F^2`.

    As in Newton's method for classes, conjugate gradients run in float32, and residuals are computed in float64.

    Args:
        parts: :math:`S_a`, :math:`Y_a` [n_a, C] and :math:`w_a` [n_a].
        mean: The mean of all outputs [C].
        num_rows: The number of rows n; of those that are no combination of others, too.
        ridge: The weight of the penalty.
    """
    parts = [(part.to(torch.float64), answer, ones) for part, answer, ones in parts]
    center = torch.stack([part.pull_back(ones[:, None])[:, 0] for part, _, ones in parts]).sum(dim=0) / num_rows
    light = [(part.to(torch.float32), ones.float()[:, None]) for part, _, ones in parts]
    center_light = center.float()
    variance = torch.zeros_like(center)
    for part, ones in light:
        signs = random_signs(part)
        found = part.pull_back(signs) - torch.outer(center_light, (ones * signs).sum(dim=0))
        variance += found.double().square().mean(dim=1) / num_rows
    diagonal = (variance + ridge).float()[:, None]

    def gram(vector: Tensor) -> Tensor:
        found, level = ridge * vector, center_light @ vector
        for part, ones in light:
            found += part.pull_back((part @ vector).addcmul_(ones, level, value=-1.0)) / num_rows
        return found

    weight = center.new_zeros(center.numel(), mean.numel())
    goal, converged = torch.zeros_like(mean), False
    for number in range(MAX_REFINEMENTS):
        residual, level = -ridge * weight, mean - center @ weight
        for part, answer, ones in parts:
            residual += part.pull_back(answer - torch.outer(ones, level) - part @ weight) / num_rows
        scale = residual.abs().amax(dim=0).clamp(min=1e-100)
        floor = min(float(0.25 * (goal / scale.square()).min()), 1e30)
        step = conjugate_gradients(gram, (residual / scale).float(), lambda r: r / diagonal, REFINEMENT, floor, dim=0)
        weight += scale * step
        gain = (residual * scale * step).sum(dim=0)  # of the objective, twice
        if number == 0:
            goal = RESIDUAL * gain
        elif bool((gain <= goal).all()):
            converged = True
            break
    return Fit(weight, mean - center @ weight, 'conjugate gradients', converged)


def _matrix(features: Tensor | Features | Design) -> Features | Design:
    return features if isinstance(features, Design) else Features.of(features)


def fit_stacked(parts: Iterable[tuple[Features, Tensor]], num_rows: int, ridge: float) -> Fit:
    r"""The same for features and outputs that come in parts, of ``num_rows`` in all, and are gone through once.

    Of each part, a process of a group has some rows of features, and the outputs of these.
    """
    parts = iter(parts)
    first = next(parts)
    num_features, outputs, run = first[0].num_features, first[1].double(), first[0].run
    if num_features > num_rows and run.size == 1:
        every = [(part.rows().double(), answers.double()) for part, answers in chain([first], parts)]
        dense, outputs = map(torch.cat, zip(*every, strict=True))
        center, mean = dense.mean(dim=0), outputs.mean(dim=0)
        centered = dense - center
        gram = add_to_diagonal(centered @ centered.T / num_rows, ridge)
        weight = centered.T @ _solve(gram, (outputs - mean) / num_rows)
        return Fit(weight, mean - center @ weight, 'closed form', True)
    # Moments about the means of the first part, which are near those of all, so that little is lost to rounding.
    origin, level = first[0].mean(), run.mean(outputs, first[0].num_rows)
    gram, moment = origin.new_zeros(num_features, num_features), origin.new_zeros(num_features, level.numel())
    center, mean = torch.zeros_like(origin), torch.zeros_like(level)
    for part, answers in chain([first], parts):
        for rows, chunk in part.chunks():
            centered, answer = chunk.double() - origin, answers[rows].double() - level
            gram += centered.T @ centered / num_rows
            moment += centered.T @ answer / num_rows
            center += centered.sum(dim=0) / num_rows
            mean += answer.sum(dim=0) / num_rows
    gram, moment, center, mean = run.sums(gram, moment, center, mean)
    gram, moment = gram - torch.outer(center, center), moment - torch.outer(center, mean)
    weight = _solve(add_to_diagonal(gram, ridge), moment)
    return Fit(weight, level + mean - (origin + center) @ weight, 'closed form', True)


def kl_divergence(probs: Tensor, logits: Tensor) -> Tensor:
    r"""Returns KL(probs || softmax(logits)) for each row, [N]."""
    return (torch.special.xlogy(probs, probs) - probs * logits.log_softmax(dim=1)).sum(dim=1)


def zero_sum_basis(probs: Tensor) -> Tensor:
    r"""An orthonormal basis [C, C - 1] of the vectors over classes that sum to zero."""
    num_classes = probs.size(1)
    eye = torch.eye(num_classes, dtype=probs.dtype, device=probs.device)
    return torch.linalg.qr(eye[:, :-1] - 1.0 / num_classes).Q


def _newton(features: Tensor | Features, probs: Tensor, ridge: float, basis: Tensor, max_iter: int = 100) -> Fit:
    matrix = Features.of(features)
    features, run, num_nodes, num_features = matrix.rows(), matrix.run, matrix.num_rows, matrix.num_features
    size = basis.size(1)
    inputs = torch.cat([features, features.new_ones(features.size(0), 1)], dim=1)
    transposed = inputs.T.contiguous()
    penalty = torch.full_like(inputs[0], ridge)
    penalty[-1] = 0.0
    first, second = torch.triu_indices(size, size, device=inputs.device)

    def objective(theta: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = (inputs @ theta @ basis.T).log_softmax(dim=1)
        loss = run.sum(-(probs * log_probs).sum() / num_nodes) + 0.5 * (penalty[:, None] * theta.square()).sum()
        return loss, log_probs

    theta = inputs.new_zeros(num_features + 1, size)
    loss, log_probs = objective(theta)
    for _ in range(max_iter):
        predicted = log_probs.exp()
        gradient = transposed @ ((predicted - probs) @ basis) / num_nodes
        # Curvature of node i in the basis: Q^T (diag p_i - p_i p_i^T) Q, one block for each pair of columns.
        mean = predicted @ basis
        curvature = predicted @ (basis[:, first] * basis[:, second]) - mean[:, first] * mean[:, second]
        weighted = (inputs[:, None] * (curvature[:, :, None] / num_nodes)).flatten(1)
        blocks, gradient = run.sums(transposed @ weighted, gradient)
        blocks = blocks.view(num_features + 1, -1, num_features + 1).transpose(0, 1)
        gradient = gradient + penalty[:, None] * theta
        hessian = inputs.new_empty(size, size, num_features + 1, num_features + 1)
        hessian[first, second] = blocks
        hessian[second, first] = blocks
        hessian = hessian.transpose(1, 2).reshape(theta.numel(), theta.numel())
        hessian = add_to_diagonal(hessian, (penalty + 1e-12).repeat(size))
        step = _solve(hessian, gradient.T.reshape(-1, 1)).view(size, -1).T
        decrement = float((gradient * step).sum())
        if decrement < 1e-9:  # each step now squares the error, so that this one is the last
            return _finish(theta - step, True, basis, 'newton')
        scale = 1.0
        while scale > 1e-8:
            candidate = theta - scale * step
            new_loss, new_log_probs = objective(candidate)
            if new_loss <= loss - 1e-4 * scale * decrement:
                break
            scale /= 2.0
        else:  # no descent left in this precision
            break
        theta, loss, log_probs = candidate, new_loss, new_log_probs
    return _finish(theta, False, basis, 'newton')


def _finish(theta: Tensor, converged: bool, basis: Tensor, solver: str) -> Fit:
    theta = theta @ basis.T
    return Fit(theta[:-1], theta[-1], solver, converged)


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    return torch.cholesky_solve(right, cholesky(matrix))
