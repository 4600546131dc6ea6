r"""What each node of a small graph gets from every node and over every edge around it, all listed once.

An explanation of one node is a slice of these lists times a direction then, in place of many small operations, each of
which costs more than what it computes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyg_dnx.graph.operator import Operator
from pyg_dnx.graph.rows import Rows, rows_of

MAX_SIZE = 2**22  # numbers in the tables of one graph


class Table(NamedTuple):
    offsets: list[int]  # [N + 1], where the part of each node starts and the last one ends
    id: Tensor  # [m], the nodes, ascending, or edges that it gets something from
    share: Tensor  # [m, C], what it gets from each of them

    def ids(self, node: int) -> Tensor:
        r"""What one node gets something from, [n]."""
        return self.id.narrow(0, self.offsets[node], self.offsets[node + 1] - self.offsets[node])

    def shares(self, node: int) -> Tensor:
        r"""What it gets from each of them, [n, C]."""
        return self.share.narrow(0, self.offsets[node], self.offsets[node + 1] - self.offsets[node])


def fits(operator: Operator, num_hops: int, num_outputs: int) -> bool:
    r"""Whether both tables are small enough to be kept; walks bound the number of their entries."""
    most = MAX_SIZE / (2 * num_outputs)
    # Counting walks takes products with Ã, which a large graph is spared.
    return operator.col.numel() <= most and float(operator.walks(num_hops).sum()) <= most


def node_table(operator: Operator, hidden: Tensor, num_hops: int) -> Table:
    r"""Lists :math:`\tilde{A}^L_{ij} h_j`, given h [N, C]: what node i gets from node j."""
    rows = _rows(operator, num_hops)
    column = rows.column.long()
    return Table(rows.offsets().tolist(), column, hidden[column].mul_(rows.value[:, None]))


def edge_table(operator: Operator, propagated: list[Tensor]) -> Table:
    r"""Lists :math:`\tilde{A}_{vu} \sum_k \tilde{A}^k_{iv} (\tilde{A}^{L-1-k} h)_u`: what i gets over the edge u → v.

    Args:
        operator: The operator, of a graph whose edges have an order.
        propagated: :math:`\tilde{A}^l h` [N, C] for l = 0 … L.
    """
    num_nodes, num_hops = operator.num_nodes, len(propagated) - 1
    if num_hops == 0:
        return Table([0] * (num_nodes + 1), operator.col[:0].long(), propagated[0][:0])
    rows = [_rows(operator, k) for k in range(num_hops)]
    every = torch.arange(num_nodes, device=operator.col.device)
    keys = [every.repeat_interleave(row.length) * num_nodes + row.column for row in rows]  # of pairs (i, v), ascending
    entry, pair = operator.entries(rows[-1].column.long())  # all that carry something, since Ã has every self-loop
    is_edge = operator.edge_id[entry] >= 0
    entry, pair = entry[is_edge], pair[is_edge]
    source = operator.col[entry]
    share = propagated[0].new_zeros(entry.numel(), propagated[0].size(1))
    for leaving, row, key in zip(propagated[-2::-1], rows, keys, strict=True):
        value = row.value.new_zeros(keys[-1].numel()).index_copy_(0, torch.searchsorted(keys[-1], key), row.value)
        share.addcmul_(leaving[source], value[pair, None])
    length = torch.bincount(keys[-1][pair] // num_nodes, minlength=num_nodes)
    offsets = Rows(length, source, source).offsets().tolist()
    return Table(offsets, operator.edge_id[entry].long(), share.mul_(operator.value[entry, None]))


def _rows(operator: Operator, num_hops: int) -> Rows:
    every = torch.arange(operator.num_nodes, device=operator.col.device)
    return rows_of(operator, every, num_hops).sorted(operator.num_nodes)
