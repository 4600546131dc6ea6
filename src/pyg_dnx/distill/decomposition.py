r"""A surrogate on one graph: what every explanation there reads.

With hidden signals :math:`h_t = X \Theta_t`, tap k takes :math:`H_k = \sum_t \mathrm{taps}[t, k] \, h_t`. By Horner's
rule, the states :math:`S_L = H_L`, :math:`S_k = H_k + \tilde{A} S_{k+1}` lead to the evidence :math:`R S_0 = Z - b`.
The contribution of node j to output o is :math:`M_{oj} = \sum_k (R \tilde{A}^k)_{oj} H_k[j]`; all of them sum to the
evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_dnx.graph.filters import Taps
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.operator import Operator
from pyg_dnx.graph.readout import Readout
from pyg_dnx.graph.rows import Rows, Step, inner_products, pull_back, rows_of, runs
from pyg_dnx.run import DEFAULT, Run

if TYPE_CHECKING:
    from pyg_dnx.distill.surrogate import Bilinear, Surrogate

MAX_TABLE_SIZE = 2**22  # numbers in the tables of one graph
ROWS_AT_A_TIME = 2**17  # of features, which may be on disk or of another type


class Table(NamedTuple):
    r"""What each output gets from nodes or over edges, all listed once, output by output.

    An explanation of one output is a slice of it times a direction then, in place of many small operations.
    """

    offsets: list[int]  # [O + 1], where the part of each output starts and the last one ends
    id: Tensor  # [m], the nodes, ascending, or edges that it gets something from
    share: Tensor  # [m, C], what it gets from each of them

    def ids(self, output: int) -> Tensor:
        r"""What one output gets something from, [n]."""
        return self.id.narrow(0, self.offsets[output], self.offsets[output + 1] - self.offsets[output])

    def shares(self, output: int) -> Tensor:
        r"""What it gets from each of them, [n, C]."""
        return self.share.narrow(0, self.offsets[output], self.offsets[output + 1] - self.offsets[output])


@dataclass(frozen=True, eq=False)
class Decomposition:
    r"""A surrogate on one graph.

    Args:
        surrogate: The surrogate.
        operator: :math:`\tilde{A}` of the graph.
        readout: Which nodes its outputs are made from.
        taps: How much each tap takes of each hidden signal, [T, L + 1].
        hidden: These signals, [N, C] each.
        known_evidence: :math:`Z - b`, if it is known.
        decoder: Of links, how logits come from both ends; else these are summed.
    """

    surrogate: Surrogate
    operator: Operator
    readout: Readout
    taps: Taps
    hidden: tuple[Tensor, ...]
    known_evidence: Tensor | None = None
    decoder: Bilinear | None = None

    @property
    def num_hops(self) -> int:
        return len(self.taps[0]) - 1

    @property
    def is_plain(self) -> bool:
        r"""Whether a row of :math:`\tilde{A}^L` is all that each output sees of the graph."""
        return len(self.taps) == 1 and self.readout.ends == 1 and not any(self.taps[0][:-1])

    def with_effects(self, hidden: Tensor) -> Decomposition:
        r"""The same walks with another hidden signal [N, D], which all taps share."""
        total = tuple(sum(column) for column in zip(*self.taps, strict=True))
        return replace(self, taps=(total,), hidden=(hidden,), known_evidence=None, decoder=None)

    def states(self, operator: Operator | None = None, hidden: tuple[Tensor, ...] | None = None) -> Iterator[Tensor]:
        r"""Yields :math:`S_L` to :math:`S_0`, [N, C] each, with another operator or other signals if they are given."""
        operator, hidden = operator or self.operator, hidden or self.hidden
        state: Tensor | None = None
        for column in reversed(list(zip(*self.taps, strict=True))):
            if state is not None:
                state = operator @ state
            for factor, signal in zip(column, hidden, strict=True):
                if factor != 0.0:
                    part = signal if factor == 1.0 else factor * signal
                    state = part if state is None else state + part
            yield torch.zeros_like(hidden[0]) if state is None else state

    def tap(self, k: int) -> Tensor:
        r""":math:`H_k`, [N, C]."""
        parts = [row[k] * signal for row, signal in zip(self.taps, self.hidden, strict=True)]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)

    @cached_property
    def all_states(self) -> list[Tensor]:
        r""":math:`S_0` to :math:`S_L`, [N, C] each."""
        return list(self.states())[::-1]

    def read(self, state: Tensor) -> Tensor:
        r"""The outputs' evidence [O, C], given :math:`S_0` [N, C]."""
        return self._decode(self.readout.apply(state))

    def _decode(self, ends: list[Tensor]) -> Tensor:
        if self.decoder is not None:
            return self.decoder.decode(*ends)
        return ends[0] if len(ends) == 1 else torch.stack(ends).sum(dim=0)

    @cached_property
    def _at_ends(self) -> list[Tensor]:
        r"""The signals at each end of all outputs, [O, r] each."""
        *_, state = self.states()
        return self.readout.apply(state)

    def at_ends(self, outputs: Tensor, direction: Tensor) -> list[Tensor]:
        r"""By what the signals at each end of some outputs are multiplied, given directions [B, C] or [B, K, C]."""
        if self.decoder is None:
            return [direction] * self.readout.ends
        first, second = self._at_ends
        return self.decoder.directions(first[outputs], second[outputs], direction)

    @cached_property
    def evidence(self) -> Tensor:
        r""":math:`Z - b` [O, C]: the part of the logits that comes from nodes."""
        if self.known_evidence is not None:
            return self.known_evidence
        *_, state = self.states()
        return self.read(state)

    @property
    def logits(self) -> Tensor:
        r""":math:`Z` [O, C]."""
        return self.evidence + self.surrogate.bias

    def weights(self, num_features: int, nodes: Tensor) -> Iterator[tuple[int, Tensor | None, Tensor]]:
        r"""Yields which hidden signal each block of weights makes, the scale of its features [n, 1], and it, [F, C]."""
        scale, copies = self.readout.scale, self.readout.num_copies
        for n, weight in enumerate(self.surrogate.weight.split(num_features)):
            yield n // copies, None if scale is None else scale[nodes, n % copies, None].to(weight.dtype), weight

    def one_end(self, end: int) -> Decomposition:
        r"""The same with nothing but one end of the outputs, whose signals are taken as they are."""
        rows = self.readout.of(torch.arange(self.readout.num_outputs, device=self.operator.col.device), end)
        readout = Readout(self.readout.num_outputs, rows)
        return replace(self, readout=readout, known_evidence=None, decoder=None)

    def start(self, outputs: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        r"""Where the walks back from some outputs start: nodes [n], ascending, and :math:`B_0 = R^\top D` there."""
        return self.readout.start(outputs, self.at_ends(outputs, direction))

    def pull_back(self, nodes: Tensor, signal: Tensor) -> list[Step]:
        r""":math:`B_k = (\tilde{A}^\top)^k B_0` for k = 0 … L, given the rows of :math:`B_0` at some nodes."""
        return pull_back(self.operator, nodes, signal, self.num_hops)

    def tapped(self, signals: list[Tensor]) -> list[Tensor]:
        r"""What is pulled back to each hidden signal: :math:`\sum_k \mathrm{taps}[t, k] B_k`, given all :math:`B_k`."""
        found = []
        for row in self.taps:
            parts = [signal if c == 1.0 else c * signal for c, signal in zip(row, signals, strict=True) if c != 0.0]
            found.append(parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0))
        return found

    def rows(self, outputs: Tensor) -> Rows:
        r"""Which nodes some outputs [B] are made from, and by how much.

        ``value`` is a row of :math:`R \tilde{A}^L`, [nnz]; where there are several taps or ends, one column for each
        hidden signal at each end, [nnz, ends · T].
        """
        if self.is_plain:
            return rows_of(
                self.operator, outputs if self.readout.rows is None else self.readout.of(outputs), self.num_hops
            )
        parts: list[tuple[Tensor, Tensor, int]] = []
        num_nodes, num_taps = self.operator.num_nodes, len(self.taps)
        first = torch.arange(outputs.numel(), device=outputs.device) * num_nodes
        for end in range(self.readout.ends):
            rows, hops = self.readout.of(outputs, end), 0
            for k, factors in enumerate(zip(*self.taps, strict=True)):
                if any(factors):
                    rows, hops = rows_of(self.operator, rows, k - hops), k
                    key = first.repeat_interleave(rows.length) + rows.column
                    for t, factor in enumerate(factors):
                        if factor != 0.0:
                            parts.append((key, factor * rows.value, end * num_taps + t))
        every, place = torch.unique(torch.cat([key for key, *_ in parts]), return_inverse=True)
        value = parts[0][1].new_zeros(every.numel(), self.readout.ends * num_taps)
        for (_, values, column), at in zip(parts, place.split([key.numel() for key, *_ in parts]), strict=True):
            value[:, column].index_add_(0, at, values)
        length = torch.bincount(every // num_nodes, minlength=outputs.numel())
        return Rows(length, every % num_nodes, value[:, 0] if value.size(1) == 1 else value)

    def scores(self, outputs: Tensor, rows: Rows, direction: Tensor) -> Tensor:
        r""":math:`\langle M_{oj}, D_o \rangle` for each entry of ``rows``, given a direction for each row, [B, C]."""
        if rows.value.dim() == 1:
            return inner_products(rows, direction, self.hidden[0]).mul_(rows.value)
        pattern, ends = rows._replace(value=rows.value[:, 0].contiguous()), self.at_ends(outputs, direction)
        parts = [inner_products(pattern, end, hidden) for end in ends for hidden in self.hidden]
        return (torch.stack(parts, dim=1) * rows.value).sum(dim=1)

    def contributions(self, outputs: Tensor, column: Tensor, value: Tensor) -> Tensor:
        r""":math:`M_{oj}` for outputs [b], nodes j [b, m], and their values [b, m] or [b, m, ends · T]: [b, m, C]."""
        hidden = [signal[column].to(value.dtype) for signal in self.hidden]
        if self.decoder is not None:
            eye = torch.eye(self.surrogate.bias.numel(), dtype=self.hidden[0].dtype, device=column.device)
            ends = self.at_ends(outputs, eye.expand(outputs.numel(), -1, -1))  # [b, C, r] each
            signals = [torch.einsum('bmr,bcr->bmc', hidden[0], end.to(value.dtype)) for end in ends]
        else:
            signals = hidden * self.readout.ends
        if len(signals) == 1:
            return value[..., None] * signals[0]
        return torch.stack([value[..., c, None] * signal for c, signal in enumerate(signals)]).sum(dim=0)

    def mixtures(self, nodes: Tensor, value: Tensor) -> Tensor:
        r"""The sum of the contributions of some nodes [B, k], by values [B, k] or [B, k, ends · T]: [B, C]."""
        value = value if value.dim() == 3 else value[:, :, None]
        parts = [
            F.embedding_bag(nodes, hidden, mode='sum', per_sample_weights=value[:, :, column].contiguous())
            for column, hidden in enumerate(list(self.hidden) * self.readout.ends)
        ]
        size = len(self.hidden)
        ends = [
            parts[n] if size == 1 else torch.stack(parts[n : n + size]).sum(dim=0) for n in range(0, len(parts), size)
        ]
        return self._decode(ends)

    def chunks(self, outputs: Tensor, most: int) -> list[Tensor]:
        r"""Cuts ``outputs`` [B] into runs whose rows have about ``most`` entries at most, as positions in them."""
        position = torch.arange(outputs.numel(), device=outputs.device)
        if outputs.numel() == 1 or outputs.numel() * self.operator.num_nodes <= most:
            return [position]
        return runs(self.sizes[outputs], most)

    @cached_property
    def sizes(self) -> Tensor:
        r"""About how many entries the row of each output has, [O]; it has no more."""
        walks = self.operator.walks(self.num_hops).double()
        if self.readout.rows is not None:
            rows = self.readout.rows
            walks = rows._replace(value=torch.ones_like(rows.value)).apply(walks[:, None])[:, 0]
            walks = walks.view(self.readout.ends, -1).sum(dim=0)
        return walks.clamp(max=self.operator.num_nodes)

    @cached_property
    def has_tables(self) -> bool:
        r"""Whether the graph is small enough for :attr:`node_table` and :attr:`edge_table`; walks bound their size."""
        most = MAX_TABLE_SIZE / (2 * self.hidden[0].size(1))
        # Counting walks takes products with Ã, which a large graph is spared.
        if not self.is_plain or self.operator.col.numel() > most:
            return False
        return float(self.operator.walks(self.num_hops).sum()) <= most

    @cached_property
    def node_table(self) -> Table:
        r"""What each output gets from each node."""
        rows = self._all_rows(self.num_hops)
        column = rows.column.long()
        return Table(rows.offsets().tolist(), column, self.hidden[0][column].mul_(rows.value[:, None]))

    @cached_property
    def edge_table(self) -> Table:
        r"""What each output gets over each edge: :math:`\tilde{A}_{vu} \sum_k (R \tilde{A}^k)_{ov} S_{k+1}[u]`."""
        operator, num_nodes, states = self.operator, self.operator.num_nodes, self.all_states
        if self.num_hops == 0:
            return Table([0] * (self.readout.num_outputs + 1), operator.col[:0].long(), states[0][:0])
        rows = [self._all_rows(k) for k in range(self.num_hops)]
        every = torch.arange(self.readout.num_outputs, device=operator.col.device)
        keys = [every.repeat_interleave(row.length) * num_nodes + row.column for row in rows]  # of (o, v), ascending
        entry, pair = operator.entries(rows[-1].column.long())  # all that carry something, since Ã has every self-loop
        is_edge = operator.edge_id[entry] >= 0
        entry, pair = entry[is_edge], pair[is_edge]
        source = operator.col[entry]
        share = states[0].new_zeros(entry.numel(), states[0].size(1))
        for leaving, row, key in zip(states[1:], rows, keys, strict=True):
            value = row.value.new_zeros(keys[-1].numel()).index_copy_(0, torch.searchsorted(keys[-1], key), row.value)
            share.addcmul_(leaving[source], value[pair, None])
        length = torch.bincount(keys[-1][pair] // num_nodes, minlength=every.numel())
        offsets = F.pad(length.cumsum(0), (1, 0)).tolist()
        return Table(offsets, operator.edge_id[entry].long(), share.mul_(operator.value[entry, None]))

    def _all_rows(self, num_hops: int) -> Rows:
        every = torch.arange(self.readout.num_outputs, device=self.operator.col.device)
        start = every if self.readout.rows is None else self.readout.rows
        return rows_of(self.operator, start, num_hops).sorted(self.operator.num_nodes)

    def masked(self, outputs: Tensor, x: Tensor, node_mask: Tensor | None, edge_mask: Tensor | None) -> Tensor:
        r"""The evidence of some outputs [B] if features and messages are multiplied by masks, [B, C].

        Args:
            outputs: The outputs.
            x: The features [N, F].
            node_mask: Of shape [N, 1], [N, F] or [1, F].
            edge_mask: Of shape [E].
        """
        operator = self.operator if edge_mask is None else self.operator.masked(edge_mask)
        if outputs.numel() == 1 and self.is_plain:
            rows = self.readout.of(outputs)
            start = rows.value.to(self.hidden[0].dtype)[:, None]
            last = pull_back(operator, rows.column.long(), start, self.num_hops)[-1]  # the output's row of R Ã^L
            return last.signal.T @ self._masked_hidden(x, node_mask, last.nodes)[0]
        *_, state = self.states(operator, self._masked_hidden(x, node_mask, slice(None)))
        return self.read(state)[outputs]

    def _masked_hidden(self, x: Tensor, node_mask: Tensor | None, nodes: Tensor | slice) -> tuple[Tensor, ...]:
        if node_mask is None:
            return tuple(hidden[nodes] for hidden in self.hidden)
        mask = node_mask if node_mask.size(0) == 1 else node_mask[nodes]
        if node_mask.size(1) == 1:
            return tuple(hidden[nodes] * mask.to(hidden.dtype) for hidden in self.hidden)
        scale = self.readout.scale
        encoded, categories = self.surrogate.encode(x[nodes].detach()), self.surrogate.categories
        mask = mask if categories is None else categories.expand(mask)
        return hidden_signals(encoded * mask, self.surrogate, None if scale is None else scale[nodes])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.endswith('_table')}


def decompose(
    surrogate: Surrogate, graph: Graph, readout: Readout, evidence: Tensor | None = None, run: Run = DEFAULT
) -> Decomposition:
    r"""The surrogate on one graph; ``evidence`` is :math:`Z - b`, if it is known."""
    operator = graph.operator(surrogate.flow, surrogate.weight.dtype)

    def hidden_of(rows: slice) -> tuple[Tensor, ...]:
        scale = None if readout.scale is None else readout.scale[rows]
        return hidden_signals(surrogate.encode(graph.features(rows)), surrogate, scale)

    hidden = tuple(run.rows('hidden', graph.num_nodes, hidden_of, surrogate.weight.numel()))
    return Decomposition(surrogate, operator, readout, surrogate.taps, hidden, evidence, surrogate.decoder)


def hidden_signals(x: Tensor, surrogate: Surrogate, scale: Tensor | None = None) -> tuple[Tensor, ...]:
    r""":math:`X \Theta_t` for each t, [N, C] each, summed over copies of features if these have a ``scale`` [N, P]."""
    weights, copies = surrogate.weight.split(x.size(1)), 1 if scale is None else scale.size(1)
    x = x.detach()
    parts_of = x.split(ROWS_AT_A_TIME) if x.layout == torch.strided else (x,)
    parts = [[part.to(weight.dtype) @ weight for weight in weights] for part in parts_of]
    signals = [column[0] if len(column) == 1 else torch.cat(column) for column in zip(*parts, strict=True)]
    if scale is not None:
        signals = [signal * scale[:, n % copies, None].to(signal.dtype) for n, signal in enumerate(signals)]
        signals = [torch.stack(signals[n : n + copies]).sum(dim=0) for n in range(0, len(signals), copies)]
    return tuple(signals)
