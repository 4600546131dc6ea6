r"""The linear surrogate, which stands for a model on any graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_dnx import files
from pyg_dnx.distill.decomposition import Decomposition, decompose
from pyg_dnx.graph.categories import Categories
from pyg_dnx.graph.filters import FILTERS, Taps
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import num_outputs, readout_of

LEAST_R2 = 0.3  # on held-out pairs, below which explanations are doubtful


@dataclass(frozen=True)
class OfGraphs:
    r"""What distillation has shown of a model of graphs.

    Attributes:
        num_graphs: How many graphs it was distilled on; one that was distilled by itself has a surrogate of its own.
        most_frequent: The share of the model's most frequent class, which a surrogate must beat.
        moved: The share of copies without some of their nodes on which the model predicts another class; for
            regression, another value. Where it is 0, the model is saturated.
        unseen: How far answers move, on average, where an argument with a row for each edge is shuffled among
            edges, by name: the surrogate can't see such arguments.
    """

    num_graphs: int
    most_frequent: float
    moved: float
    unseen: dict[str, float]


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
    held_out_r2: float | None = None  # of links: the share of the variance of held-out answers that is predicted
    masked_r2: float | None = None  # the same under masks
    majority: float | None = None  # of links: the share of the model's largest class among held-out pairs
    agreement_by_class: dict[int, float] | None = None  # of links: the agreement on held-out pairs of each class
    graphs: OfGraphs | None = None

    @property
    def is_linear(self) -> bool:
        r"""Whether the surrogate stands for the model's outputs or probabilities themselves, and not for its logits."""
        return self.mode == 'regression' or self.num_masks > 0

    @property
    def weakness(self) -> float | None:
        r"""R² on held-out pairs, or under masks if that is less, where it is too low to rely on."""
        known = [r2 for r2 in (self.held_out_r2, self.masked_r2) if r2 is not None]
        return min(known) if known and min(known) < LEAST_R2 else None

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Report:
        r"""Undoes :func:`dataclasses.asdict`."""
        graphs = content.get('graphs')
        return Report(**{**content, 'graphs': None if graphs is None else OfGraphs(**graphs)})

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
        if self.graphs is not None:
            rows.append(('graphs', f'{self.graphs.num_graphs:,}'))
            rows.append(('copies that moved', f'{self.graphs.moved:.1%}'))
            rows += [(f'moved by {name}', f'{value:.1%}') for name, value in self.graphs.unseen.items()]
        if self.held_out_r2 is not None:
            rows.append(('held-out R2', f'{self.held_out_r2:.2f}, under masks {self.masked_r2:.2f}'))
        if self.agreement_by_class is not None:
            names = ('non-links', 'links') if self.mode == 'binary_classification' else None
            each = [(label if names is None else names[label], hit) for label, hit in self.agreement_by_class.items()]
            rows.append(('largest class', f'{self.majority:.1%}'))
            rows.append(('agreement on', ', '.join(f'{name}: {hit:.1%}' for name, hit in each)))
        if self.held_out is not None:
            rows.append(('held-out loss', ', '.join(f'{hops}: {loss:.4g}' for hops, loss in self.held_out.items())))
        return '\n'.join(f'{name:<18} {value}' for name, value in rows)


@dataclass(frozen=True, eq=False)
class Bilinear:
    r"""How the logits of a pair come from the signals at its ends, :math:`g_u^\top W g_v + a^\top g_u + c^\top g_v`."""

    both: Tensor  # W, [C, r, r]
    first: Tensor  # a, [C, r]
    second: Tensor  # c, [C, r]

    def decode(self, first: Tensor, second: Tensor) -> Tensor:
        r"""The logits without the bias, [B, C], given the signals at both ends, [B, r] each."""
        product = torch.einsum('br,crs,bs->bc', first, self.both, second)
        return product + first @ self.first.T + second @ self.second.T

    def directions(self, first: Tensor, second: Tensor, direction: Tensor) -> list[Tensor]:
        r"""By what the signals at each end are multiplied, [B, r] each, or [B, K, r] for directions [B, K, C].

        Each end has half of what both have in common, so that the two sum to the logits along the direction.
        """
        one = torch.einsum('b...c,crs,bs->b...r', direction, self.both, second)
        other = torch.einsum('b...c,crs,br->b...s', direction, self.both, first)
        return [0.5 * one + direction @ self.first, 0.5 * other + direction @ self.second]

    def to(self, target: Any) -> Bilinear:
        r"""The same in another type, or on another device."""
        return Bilinear(self.both.to(target), self.first.to(target), self.second.to(target))


class Surrogate:
    r"""A simple graph convolution that stands in for a model: :math:`Z = \sum_k \tilde{A}^k X \Theta_k + b`.

    Args:
        weight (Tensor): :math:`\Theta`, of shape [F, C]; of filters with several taps one below the other, [T·F, C].
        bias (Tensor): :math:`b`, of shape [C]. For classification, both sum to zero over classes.
        num_hops (int): :math:`L`.
        report (Report): How the surrogate was obtained, and how good it is.
        flow (str): The direction of messages, as in :class:`~torch_geometric.nn.MessagePassing`.
        filter (str): Which powers of :math:`\tilde{A}` there are: ``'sgc'`` has the last one, ``'sign'`` each with
            weights of its own, ``'ppr'`` all with one weight, as personalised PageRank mixes them.
        level (str): What it has logits of, ``'node'``, ``'edge'`` or ``'graph'``. Of graphs, the weights of features'
            means are followed by those of their sums, [2·T·F, C].
        decoder (Bilinear, optional): Of edges, how logits come from the signals at both ends, [F, r] being ``weight``.
        categories (Categories, optional): What features that are whole numbers stand for, F being their number then.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        num_hops: int,
        report: Report,
        flow: str = 'source_to_target',
        *,
        filter: str = 'sgc',
        level: str = 'node',
        decoder: Bilinear | None = None,
        categories: Categories | None = None,
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.num_hops = num_hops
        self.report = report
        self.flow = flow
        self.filter = filter
        self.level = level
        self.decoder = decoder
        self.categories = categories

    @property
    def taps(self) -> Taps:
        r"""How much each tap of the filter takes of each weight, [T, L + 1]."""
        return FILTERS[self.filter](self.num_hops)

    @property
    def num_features(self) -> int:
        r"""How many features a node has."""
        if self.categories is not None:
            return len(self.categories.values)
        return self.weight.size(0) // (len(self.taps) * (2 if self.level == 'graph' else 1))

    def encode(self, x: Tensor) -> Tensor:
        r"""The features that weights stand for: ``x`` as it is, or a column for each category."""
        return x if self.categories is None else self.categories.encode(x)

    def __call__(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_label_index: Tensor | None = None,
    ) -> Tensor:
        r"""Returns the logits of nodes, of the graphs of ``batch``, or of the pairs ``edge_label_index``, [O, C]."""
        num_features = self.num_features
        if not isinstance(x, Tensor) or x.dim() != 2 or x.size(1) != num_features:
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"'x' must be a tensor of shape [N, {num_features}] (got {got}): pass the features of the graph "
                f'that the surrogate was distilled on, or of one like it'
            )
        kwargs = {'edge_weight': edge_weight, 'batch': batch, 'edge_label_index': edge_label_index}
        graph = Graph.of(x, edge_index, {name: value for name, value in kwargs.items() if value is not None})
        graph.check_content()
        return self.on(graph).logits

    def on(self, graph: Graph) -> Decomposition:
        r"""The surrogate on one graph."""
        return decompose(self, graph, readout_of(graph, self.level, num_outputs(graph, self.level)))

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
        parts = self.weight.to(device), self.bias.to(device), self.num_hops, self.report, self.flow
        decoder = None if self.decoder is None else self.decoder.to(device)
        categories = None if self.categories is None else self.categories.to(device)
        return Surrogate(*parts, filter=self.filter, level=self.level, decoder=decoder, categories=categories)

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
            'filter': self.filter,
            'level': self.level,
            'decoder': None if self.decoder is None else {k: v.cpu() for k, v in vars(self.decoder).items()},
            'categories': None if self.categories is None else [value.cpu() for value in self.categories.values],
            'report': asdict(self.report),
        }

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Surrogate:
        r"""Undoes :meth:`to_dict`."""
        decoder, categories = content.get('decoder'), content.get('categories')
        parts = {
            'report': Report.from_dict(content['report']),
            'decoder': None if decoder is None else Bilinear(**decoder),
            'categories': None if categories is None else Categories(tuple(categories)),
        }
        return Surrogate(**{**content, **parts})

    def __repr__(self) -> str:
        num_features, num_outputs = self.weight.shape
        return f'Surrogate({num_features}, {num_outputs}, num_hops={self.num_hops})'
