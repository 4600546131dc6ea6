r"""The linear surrogate Z = Ã^L X Θ + b, and its decomposition on one graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pyg_dnx import files
from pyg_dnx import options as checks
from pyg_dnx.distill import tables
from pyg_dnx.graph.operator import Operator, normalized_adjacency

ROWS_AT_A_TIME = 2**17  # of features, which may be on disk or of another type


@dataclass(frozen=True)
class Report:
    r"""How well a surrogate follows the model it was distilled from.

    For regression, ``kl`` is half the mean squared error and ``agreement`` is R². For a surrogate that was distilled on
    masks, ``kl`` is half the mean squared error of its class probabilities, without a mask.
    """

    kl: float
    agreement: float
    seconds: float
    solver: str
    ridge: float
    converged: bool
    num_nodes: int
    mode: str
    held_out: dict[int, float] | None = None  # by number of hops, where these were chosen by distillation
    num_masks: int = 0  # under which the model was asked, too

    @property
    def is_linear(self) -> bool:
        r"""Whether the surrogate stands for the model's outputs or probabilities themselves, and not for its logits."""
        return self.mode == 'regression' or self.num_masks > 0

    def __str__(self) -> str:
        regression = self.mode == 'regression'
        rows = [
            ('half squared error' if self.is_linear else 'KL to the model', f'{self.kl:.4g}'),
            ('R2' if regression else 'agreement', f'{self.agreement:.4f}' if regression else f'{self.agreement:.1%}'),
            ('nodes', f'{self.num_nodes:,}'),
            ('solver', f'{self.solver}, {"converged" if self.converged else "not converged"}'),
            ('ridge', f'{self.ridge:g}'),
            ('seconds', f'{self.seconds:.3g}'),
        ]
        if self.num_masks > 0:
            rows.append(('masks', f'{self.num_masks}'))
        if self.held_out is not None:
            rows.append(('held-out loss', ', '.join(f'{hops}: {loss:.4g}' for hops, loss in self.held_out.items())))
        return '\n'.join(f'{name:<18} {value}' for name, value in rows)


class Surrogate:
    r"""A simple graph convolution that stands in for a model.

    Args:
        weight (Tensor): :math:`\Theta`, of shape [F, C].
        bias (Tensor): :math:`b`, of shape [C]. For classification, both sum to zero over classes.
        num_hops (int): :math:`L`.
        report (Report): How the surrogate was obtained, and how good it is.
        flow (str): The direction of messages, as in :class:`~torch_geometric.nn.MessagePassing`.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor, num_hops: int, report: Report, flow: str = 'source_to_target'
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.num_hops = num_hops
        self.report = report
        self.flow = flow

    def __call__(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        r"""Returns the logits [N, C], in the surrogate's own precision."""
        if not isinstance(x, Tensor) or x.dim() != 2 or x.size(1) != self.weight.size(0):
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"'x' must be a tensor of shape [N, {self.weight.size(0)}] (got {got}): pass the features of the graph "
                f'that the surrogate was distilled on, or of one like it'
            )
        checks.graph(x, edge_index, {'edge_weight': edge_weight})
        checks.content(x, edge_index, edge_weight)
        operator = normalized_adjacency(edge_index, edge_weight, x.size(0), self.weight.dtype, self.flow)
        return Decomposition(self, operator, x).logits

    def outputs(self, logits: Tensor) -> Tensor:
        r"""What ``logits`` [..., C] say of the model: class probabilities, or regression outputs.

        A surrogate that was distilled on masks has probabilities, less 1 / C, for logits: a linear model of them, which
        may leave [0, 1].
        """
        if self.report.mode == 'regression':
            return logits
        return logits + 1.0 / logits.size(-1) if self.report.is_linear else logits.softmax(dim=-1)

    def to(self, device: torch.device | str) -> Surrogate:
        r"""Returns the surrogate on another device."""
        return Surrogate(self.weight.to(device), self.bias.to(device), self.num_hops, self.report, self.flow)

    def save(self, path: files.Path) -> None:
        r"""Writes the surrogate to a file that :meth:`load` reads without running any code in it."""
        files.write(path, 'Surrogate', self.to_dict())

    @staticmethod
    def load(path: files.Path) -> Surrogate:
        r"""Reads a surrogate that :meth:`save` wrote, onto the CPU."""
        return files.read(path, 'Surrogate', Surrogate.from_dict)

    def to_dict(self) -> dict[str, Any]:
        r"""The surrogate as tensors, numbers and strings."""
        return {
            'weight': self.weight.cpu(),
            'bias': self.bias.cpu(),
            'num_hops': self.num_hops,
            'flow': self.flow,
            'report': asdict(self.report),
        }

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Surrogate:
        r"""Undoes :meth:`to_dict`."""
        return Surrogate(**{**content, 'report': Report(**content['report'])})

    def __repr__(self) -> str:
        num_features, num_outputs = self.weight.shape
        return f'Surrogate({num_features}, {num_outputs}, num_hops={self.num_hops})'


class Decomposition:
    r"""A surrogate on one graph: what every explanation there reads.

    The contribution of node j to node i is :math:`M_{ij} = \tilde{A}^L_{ij} \, h_j` with :math:`h = X \Theta`, and
    :math:`\sum_j M_{ij} = Z_i - b`.

    Args:
        surrogate (Surrogate): The surrogate.
        operator (Operator): :math:`\tilde{A}` of the graph.
        x (Tensor): The features [N, F], not kept.
    """

    def __init__(self, surrogate: Surrogate, operator: Operator, x: Tensor) -> None:
        self.surrogate = surrogate
        self.operator = operator
        parts = [part.to(surrogate.weight.dtype) @ surrogate.weight for part in x.detach().split(ROWS_AT_A_TIME)]
        self.hidden = parts[0] if len(parts) == 1 else torch.cat(parts)  # [N, C]

    def with_hidden(self, hidden: Tensor) -> Decomposition:
        r"""The same with another :math:`h`, of any width."""
        other = Decomposition.__new__(Decomposition)
        other.surrogate, other.operator, other.hidden = self.surrogate, self.operator, hidden
        return other

    @cached_property
    def propagated(self) -> list[Tensor]:
        r""":math:`\tilde{A}^l X \Theta` [N, C] for l = 0 … L."""
        steps = [self.hidden]
        for _ in range(self.surrogate.num_hops):
            steps.append(self.operator @ steps[-1])
        return steps

    @cached_property
    def has_tables(self) -> bool:
        r"""Whether the graph is small enough for :attr:`node_table` and :attr:`edge_table`."""
        return tables.fits(self.operator, self.surrogate.num_hops, self.hidden.size(1))

    @cached_property
    def node_table(self) -> tables.Table:
        return tables.node_table(self.operator, self.hidden, self.surrogate.num_hops)

    @cached_property
    def edge_table(self) -> tables.Table:
        return tables.edge_table(self.operator, self.propagated)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.endswith('_table')}

    @cached_property
    def evidence(self) -> Tensor:
        r""":math:`Z - b` [N, C]: the part of the logits that comes from nodes."""
        evidence = self.hidden
        for _ in range(self.surrogate.num_hops):
            evidence = self.operator @ evidence
        return evidence

    @property
    def logits(self) -> Tensor:
        r""":math:`Z` [N, C]."""
        return self.evidence + self.surrogate.bias
