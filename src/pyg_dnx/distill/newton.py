r"""Multinomial logistic regression by Newton's method, with systems solved by conjugate gradients.

No step needs more than products with the matrix of features, so that it may stay as sparse as it is. A system is solved
in float32 where that is several times as fast, and only as well as it takes: what is left of its error is in the next
gradient, which is computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pyg_dnx.graph.design import Design
from pyg_dnx.graph.features import Features

Function = Callable[[Tensor], Tensor]

CHOLESKY_MAX_SIZE = 8192  # features; above, the preconditioner is diagonal
NUM_PROBES = 32  # that estimate a diagonal; half of them cost up to a fifth more products, and more of them no fewer
SAMPLE_SIZE = 2**15  # rows on which a large fit starts, and from which its curvature is taken
ROWS_PER_FEATURE = 16  # in a sample whose curvature is that of all rows
MAX_STEPS, MAX_PRODUCTS = 100, 500  # of Newton's method, and of conjugate gradients in each of its steps
BOUNDED = 1e-2  # the decrement down to which a bound is taken for the curvature
TOLERANCE = 1e-11  # of the squared gradient, preconditioned; evidence is then within 5e-6 (Cora, CiteSeer)
LOOSE, ROUGH = 5e-4, 5e-3  # shares of the KL that a last step gains in float32, and on the sample


def minimise_kl(
    matrix: Features | Design, probs: Tensor, ridge: float, basis: Tensor, progress: bool | None = False
) -> tuple[Tensor, bool]:
    r"""Fits soft targets ``probs`` [N, C] by a matrix of features [N, F].

    In float64 it goes on to the optimum. In float32 it ends where a step lowers the KL by less than a two-thousandth,
    and begins on a sample of the rows, where most of the way costs a part of the price.

    Args:
        matrix: The features.
        probs: The soft targets of all rows.
        ridge: The weight of the penalty.
        basis: An orthonormal basis [C, C - 1] of the zero-sum vectors, in float64.
        progress: Whether to show a progress bar; ``None`` shows it on a terminal.

    Returns:
        The weights and, below, the bias, [F + 1, C - 1] in ``basis``; and whether the tolerance was met.
    """
    is_large = matrix.dtype != torch.float64 and matrix.num_rows >= 2 * SAMPLE_SIZE
    if is_large and isinstance(matrix, Features) and matrix.num_features * ROWS_PER_FEATURE <= SAMPLE_SIZE:
        generator = torch.Generator(device='cpu').manual_seed(0)
        order = torch.randperm(matrix.num_rows, generator=generator, device='cpu')
        sample = order[:SAMPLE_SIZE].sort().values.to(probs.device)
        mine = matrix.run.share(SAMPLE_SIZE)
        sample = sample[mine.start : mine.stop]
        rows = Features([matrix.rows(sample)], matrix.run, SAMPLE_SIZE)
        problem = _Problem(rows, probs[sample], ridge, basis)
        problem.minimise(problem.matrix, problem.probs, ROUGH, progress)
    else:
        problem = _Problem(matrix, probs[matrix.mine], ridge, basis)
    converged = problem.minimise(matrix, probs[matrix.mine], LOOSE, progress)
    weight, bias = problem.theta[:-1], problem.theta[-1]
    return torch.cat([weight, (bias - problem.center @ weight)[None]]), converged


class _Problem:
    r"""The fit of :math:`(S - 1 \mu^\top) \Theta + b`, with the bias in the last row of ``theta`` [F + 1, C - 1].

    Of matrix and soft targets, a process of a group has some rows.

    The Hessian is close to :math:`M \otimes (\mathrm{Cov}(S) + \rho' I)`, where :math:`M` is the mean of
    :math:`\mathrm{diag}(p) - p p^\top` over nodes. That is the preconditioner, with the covariance or its diagonal.
    """

    def __init__(self, matrix: Features | Design, probs: Tensor, ridge: float, basis: Tensor) -> None:
        self.matrix = matrix.to(torch.float32) if isinstance(matrix, Design) else matrix
        self.run = matrix.run
        self.probs = probs.to(self.matrix.dtype)
        self.ridge = ridge
        self.basis = basis
        self.center = matrix.mean()  # the free bias absorbs it
        mean = self.run.sum(probs.sum(dim=0, dtype=torch.float64)) / matrix.num_rows
        self.theta = self.center.new_zeros(matrix.num_features + 1, basis.size(1))
        self.theta[-1] = mean.clamp(min=1e-12).log() @ basis  # the best of biases alone
        self.factor: Tensor | None = None
        if isinstance(self.matrix, Design):
            self.signs = random_signs(self.matrix)
            self.variance = self._centered(self.signs).square().mean(dim=1).double() / matrix.num_rows
        elif matrix.num_features > CHOLESKY_MAX_SIZE:
            self.variance = self.matrix.variance(self.center)
        else:
            curvature = float((mean * (1.0 - mean)).sum()) / basis.size(1) + 1e-4
            self.factor = cholesky(add_to_diagonal(self.matrix.covariance(self.center), ridge / curvature))

    def _centered(self, signal: Tensor) -> Tensor:
        r"""Returns :math:`(S - 1 \mu^\top)^\top U` for ``signal`` U [N, D]."""
        center = self.center.to(signal.dtype)
        return self.matrix.pull_back(signal) - torch.outer(center, signal.sum(dim=0))  # type: ignore[union-attr]

    def _weight_and_shift(self, theta: Tensor, basis: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        weight = theta[:-1] @ basis.T
        return weight.to(dtype), (theta[-1] @ basis.T - self.center.to(theta.dtype) @ weight).to(dtype)

    def evaluate(self, matrix: Features | Design, probs: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        r"""Returns the objective, less the entropy of ``probs``, its gradient and, on its own rows, the predictions."""
        weight, shift = self._weight_and_shift(theta, self.basis, matrix.dtype)
        loss = 0.5 * self.ridge * theta[:-1].square().sum() * float(self.run.rank == 0)
        total, predictions = torch.zeros_like(shift, dtype=loss.dtype), []

        def residual(rows: slice, logits: Tensor) -> Tensor:
            nonlocal loss
            log_probs = logits.add_(shift).log_softmax(dim=1)
            loss = loss - (probs[rows] * log_probs).sum(dtype=loss.dtype) / matrix.num_rows
            predicted = log_probs.exp_()
            if matrix.num_rows == self.matrix.num_rows:
                predictions.append(predicted.to(self.matrix.dtype, copy=True))
            predicted = predicted.sub_(probs[rows])
            total.add_(predicted.sum(dim=0, dtype=total.dtype))
            return predicted

        gradient, total, loss = self.run.sums(matrix.through(weight, residual).double(), total, loss)
        gradient = gradient - torch.outer(self.center, total)
        gradient = gradient @ self.basis / matrix.num_rows + self.ridge * theta[:-1]
        return loss, torch.cat([gradient, (total @ self.basis / matrix.num_rows)[None]]), predictions

    def predict(self) -> list[Tensor]:
        weight, shift = self._weight_and_shift(self.theta, self.basis, self.matrix.dtype)
        return [(chunk @ weight + shift).softmax(dim=1) for _, chunk in self.matrix.chunks()]  # type: ignore[union-attr]

    def step(
        self, curving: Tensor, gradient: Tensor, tolerance: float, floor: float, near: bool
    ) -> tuple[Tensor, float]:
        r"""Solves for Newton's step, and returns the square of the preconditioned gradient, too.

        Args:
            curving: The probabilities [N, C] that the curvature is that of.
            gradient: The gradient.
            tolerance: By how much to reduce the preconditioned residual.
            floor: Its square at which to end in any case.
            near: Whether the optimum is so near that a better preconditioner pays.
        """
        num_rows, dtype = self.matrix.num_rows, self.matrix.dtype
        mean = curving.sum(dim=0, dtype=torch.float64)
        second = torch.stack([(part.T @ part).double() for part in curving.split(2**16)]).sum(dim=0)
        mean, second = (part / num_rows for part in self.run.sums(mean, second))
        size, turn = torch.linalg.eigh(self.basis.T @ (mean.diag() - second) @ self.basis)
        size = size.clamp(min=1e-12)
        basis, center = (self.basis @ turn).to(dtype), self.center.to(dtype)

        if self.factor is None:
            diagonal = self.variance[:, None] * size
            if near and isinstance(self.matrix, Design):
                spread = (curving @ basis.square() - (curving @ basis).square()).clamp_(min=0.0).sqrt_()
                probes = (self._centered(spread * sign[:, None]).square() for sign in self.signs.T[: NUM_PROBES // 2])
                found = torch.zeros_like(diagonal)
                for probe in probes:
                    found += probe
                diagonal = 0.5 * (diagonal + found / (NUM_PROBES // 2 * num_rows))
            diagonal = torch.cat([diagonal + self.ridge, size[None]]).to(dtype)

        def precondition(residual: Tensor) -> Tensor:
            if self.factor is None:
                return residual / diagonal
            weight = torch.cholesky_solve(residual[:-1].double(), self.factor)
            return (torch.cat([weight, residual[-1:].double()]) / size).to(dtype)

        def curve(vector: Tensor) -> Tensor:
            weight, shift = self._weight_and_shift(vector, basis, dtype)
            total = torch.zeros_like(shift)

            def weigh(rows: slice, logits: Tensor) -> Tensor:
                part = curving[rows]
                found = logits.add_(shift).mul_(part)
                found.addcmul_(part, found.sum(dim=1, keepdim=True), value=-1.0)
                total.add_(found.sum(dim=0))
                return found

            found, total = self.run.sums(self.matrix.through(weight, weigh), total)
            found = found.to(dtype) - torch.outer(center, total)
            found = torch.cat([found, total[None]]) @ basis / num_rows
            found[:-1].add_(vector[:-1], alpha=self.ridge)
            return found

        right = gradient @ turn
        scale = right.abs().max().clamp(min=1e-100)
        goal = (right / scale).to(dtype)
        found = conjugate_gradients(curve, goal, precondition, tolerance, min(floor / float(scale) ** 2, 1e30))
        return scale * (found.double() @ turn.T), float(scale**2 * (goal * precondition(goal)).sum())

    def minimise(self, matrix: Features | Design, probs: Tensor, loose: float, progress: bool | None) -> bool:
        r"""Moves to the optimum for these rows, and tells whether it got there."""
        precise = matrix.dtype == torch.float64
        parts = [torch.special.xlogy(part, part).sum(dtype=torch.float64) for part in probs.split(2**16)]
        entropy = -float(self.run.sum(torch.stack(parts).sum())) / matrix.num_rows
        loss, gradient, predictions = self.evaluate(matrix, probs, self.theta)
        bounded, tolerance, floor = True, 0.3 if precise else 0.5, 0.25 * TOLERANCE if precise else 0.0
        run = replace(self.run, progress=progress)
        with run.bar(f'Distilling {matrix.num_rows:,} nodes', 'steps') as bar:
            for _ in range(MAX_STEPS):
                curving = torch.cat(predictions or self.predict())
                if (
                    bounded
                ):  # between predictions and targets, the curvature bounds that on the way: no step is too long
                    curving = curving.add_(self.probs).mul_(0.5)
                step, slack = self.step(curving, gradient, tolerance, floor, precise and not bounded)
                decrement, scale = float((gradient * step).sum()), 1.0
                if precise and max(slack, decrement) < TOLERANCE and not bounded:
                    self.theta = self.theta - step
                    return True
                while True:
                    candidate = self.theta - scale * step
                    after, gradient_after, predictions = self.evaluate(matrix, probs, candidate)
                    if after <= loss - 1e-4 * scale * decrement or 0.0 <= decrement < 1e-9:
                        break
                    scale /= 2.0
                    if scale < 1e-8:  # no descent left in this precision
                        return False
                gain = float(loss - after)
                self.theta, loss, gradient = candidate, after, gradient_after
                bar.update()
                bar.set_postfix_str(f'KL {float(loss) - entropy:.4g}', refresh=False)
                bounded = decrement > BOUNDED or scale < 1.0
                if precise and not bounded:  # each step now squares the error, if it is solved for that well
                    tolerance = min(0.3, max(slack**0.5, 1e-4))
                if not precise and gain <= loose * (float(loss) - entropy):
                    return True
        return False


def random_signs(matrix: Design) -> Tensor:
    r"""Columns z of random signs [N, NUM_PROBES]: the mean of :math:`(S^\top z)_f^2` is about :math:`\|S_f\|^2`."""
    generator = torch.Generator(device='cpu').manual_seed(0)
    signs = torch.randint(2, (matrix.num_rows, NUM_PROBES), generator=generator, dtype=torch.int8, device='cpu')
    return signs.to(matrix.device, matrix.dtype).mul_(2.0).sub_(1.0)


def conjugate_gradients(
    product: Function,
    right: Tensor,
    precondition: Function,
    tolerance: float,
    floor: float = 0.0,
    dim: int | None = None,
) -> Tensor:
    r"""Solves one symmetric positive definite system, or along ``dim`` one for each column of ``right`` [F, C]."""
    tiny = torch.finfo(right.dtype).tiny
    found, residual = torch.zeros_like(right), right.clone()
    search = scaled = precondition(residual)
    size = first = (residual * scaled).sum(dim=dim)
    goal = (tolerance**2 * first).clamp(min=max(floor, tiny))
    for _ in range(MAX_PRODUCTS):
        image = product(search)
        rate = size / (search * image).sum(dim=dim).clamp(min=tiny)
        found.addcmul_(search, rate)
        residual.addcmul_(image, rate, value=-1.0)
        scaled = precondition(residual)
        before, size = size, (residual * scaled).sum(dim=dim)
        if bool(
            (size * rate.clamp(min=1.0) <= goal).all()
        ):  # a rate above 1: the matrix is that much smaller than hoped
            break
        search = torch.addcmul(scaled, search, size / before.clamp(min=tiny))
    return found


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
