r"""What every filter and every task level must hold, on dense float64 matrices: a new one inherits its suite.

A surrogate's logits are :math:`\sum_e R_e \sum_k \tilde{A}^k X \Theta_k + b`, where
:math:`\Theta_k = \sum_t \mathrm{taps}[t, k] \Theta_t`. A suite names the taps by hand, or the matrices :math:`R_e`.
"""

from __future__ import annotations

import pytest
import torch
from helpers import dense_adjacency, dense_masked_adjacency, example_graphs, random_masks
from torch import Tensor

from pyg_dnx import Report, Surrogate
from pyg_dnx.graph.graph import Graph
from pyg_dnx.scores.attribution import attribute
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.rules import Directed

CLOSE = {'rtol': 1e-10, 'atol': 1e-10}
NAMES = ('undirected', 'directed', 'looped', 'duplicated', 'weighted', 'no_edges')


class SurrogateSuite:
    r"""A filter and a level together: each suite below fixes one, and takes the usual other one."""

    filter = 'sgc'
    level = 'node'

    @staticmethod
    def taps(num_hops: int) -> list[list[float]]:
        r"""How much each tap takes of each weight, [T][L + 1]."""
        return [[float(k == num_hops) for k in range(num_hops + 1)]]

    @staticmethod
    def ends(num_nodes: int) -> list[Tensor]:
        r"""How much each node counts for each output, [O, N], for each of its ends."""
        return [torch.eye(num_nodes, dtype=torch.float64)]

    @staticmethod
    def copies(x: Tensor) -> Tensor:
        r"""The features that weights stand for, [N, F']."""
        return x

    @staticmethod
    def kwargs() -> dict[str, Tensor]:
        r"""What the level needs besides the graph, of eight nodes."""
        return {}

    @pytest.fixture(params=NAMES)
    def case(self, request):
        return SuiteCase(self, request.param)

    def test_logits_are_the_definition(self, case):
        torch.testing.assert_close(case.decomposition.logits, case.dense() + case.bias, **CLOSE)

    def test_scores_are_complete_and_equal_the_definition(self, case):
        for outputs in case.questions():
            direction = case.directions(outputs)
            found = case.attribute(outputs, direction)
            scores = torch.zeros(8, dtype=torch.float64)
            scores[found.neighbourhood] = found.node_scores()
            expected = torch.stack([(case.only(node)[outputs] * direction).sum() for node in range(8)])
            torch.testing.assert_close(scores, expected, **CLOSE)
            torch.testing.assert_close(scores.sum(), (case.dense()[outputs] * direction).sum(), **CLOSE)
            torch.testing.assert_close(found.attribute_scores(case.x).sum(dim=1), found.node_scores(), **CLOSE)
            by_feature = found.attribute_scores(case.x).sum(dim=0)
            torch.testing.assert_close(found.feature_scores(case.x), by_feature, **CLOSE)
            torch.testing.assert_close(sum(found.end_scores()), found.node_scores(), **CLOSE)

    def test_edges_carry_what_the_definition_says(self, case):
        r"""An edge carries the change of the logits with its own weight, where all messages are a factor apart."""
        for outputs in case.questions():
            direction = case.directions(outputs)
            found = case.attribute(outputs, direction)
            flow = found.edge_flow(case.graph.edge_index)
            expected = case.gradient_of_messages(outputs, direction)
            torch.testing.assert_close(flow, expected, **CLOSE)

    def test_rows_and_their_scores_are_the_definition(self, case):
        outputs = case.questions()[-1]
        direction = case.directions(outputs)
        rows = case.decomposition.rows(outputs)
        scores = case.decomposition.scores(outputs, rows, direction)
        found = torch.zeros(len(outputs), 8, dtype=torch.float64)
        owner = torch.repeat_interleave(rows.length)
        found.index_put_((owner, rows.column.long()), scores, accumulate=True)
        expected = torch.stack([(case.only(node)[outputs] * direction).sum(dim=1) for node in range(8)], dim=1)
        torch.testing.assert_close(found, expected, **CLOSE)

    def test_masks_leave_what_the_definition_says(self, case):
        for node_mask, edge_mask in random_masks(case.example):
            for outputs in case.questions():
                found = case.decomposition.masked(outputs, case.x, node_mask, edge_mask)
                torch.testing.assert_close(found, case.dense(node_mask, edge_mask)[outputs], **CLOSE)


class SuiteCase:
    r"""A random surrogate of a filter and a level, on one of the example graphs, and all of it dense."""

    def __init__(self, suite: SurrogateSuite, name: str) -> None:
        generator = torch.Generator().manual_seed(3)
        example = example_graphs()[name]
        weight = None if example.edge_weight is None else example.edge_weight.double()
        self.example, self.suite, self.num_hops = example._replace(x=example.x.double(), edge_weight=weight), suite, 2
        self.x, kwargs = self.example.x, {} if weight is None else {'edge_weight': weight}
        self.graph = Graph.of(self.x, example.edge_index, {**kwargs, **suite.kwargs()})
        self.taps, width = suite.taps(self.num_hops), suite.copies(self.x).size(1)
        draw = torch.randn(len(self.taps) * width + 1, 3, generator=generator, dtype=torch.float64)
        self.weight, self.bias = draw[:-1], draw[-1]
        report = Report(0.1, 0.9, 0.01, 'newton', 1e-5, True, 8, 'multiclass_classification')
        options = {'filter': suite.filter, 'level': suite.level}
        self.surrogate = Surrogate(self.weight, self.bias, self.num_hops, report, **options)
        self.decomposition = self.surrogate.on(self.graph)
        self.num_outputs = suite.ends(8)[0].size(0)

    def questions(self) -> list[Tensor]:
        r"""One output, and several, one of them twice."""
        return [torch.tensor([0]), torch.tensor([self.num_outputs - 1, 0, 0])]

    def directions(self, outputs: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        return torch.randn(len(outputs), 3, generator=generator, dtype=torch.float64)

    def attribute(self, outputs: Tensor, direction: Tensor):
        return attribute(self.decomposition, Question(outputs), Directed(direction))

    def dense(self, node_mask: Tensor | None = None, edge_mask: Tensor | None = None) -> Tensor:
        r"""Z - b under masks, [O, C]."""
        x = self.x if node_mask is None else self.x * node_mask
        return self.evidence(self.suite.copies(x), dense_masked_adjacency(self.example, edge_mask))

    def only(self, node: int) -> Tensor:
        r"""What a single node adds to Z, [O, C]."""
        x = torch.zeros_like(self.x)
        x[node] = self.x[node]
        adjacency = dense_adjacency(self.example.edge_index, self.example.edge_weight, 8)
        return self.evidence(self.suite.copies(x), adjacency)

    def evidence(self, x: Tensor, adjacency: Tensor) -> Tensor:
        weights, total = self.weight.split(x.size(1)), torch.zeros(8, 3, dtype=torch.float64)
        for k in range(self.num_hops + 1):
            theta = sum(row[k] * weight for row, weight in zip(self.taps, weights, strict=True))
            total = total + torch.linalg.matrix_power(adjacency, k) @ x @ theta
        return sum(end @ total for end in self.suite.ends(8))

    def gradient_of_messages(self, outputs: Tensor, direction: Tensor) -> Tensor:
        r"""By how much the evidence grows with the logarithm of each edge's message, [E]."""
        factor = torch.ones(self.graph.edge_index.size(1), dtype=torch.float64, requires_grad=True)
        adjacency = dense_adjacency(self.example.edge_index, self.example.edge_weight, 8)
        weight = self.example.edge_weight
        weight = torch.ones_like(factor) if weight is None else weight
        source, target = self.graph.edge_index
        parts = torch.zeros(8, 8, dtype=torch.float64).index_put((target, source), weight * factor, accumulate=True)
        sums = torch.zeros(8, 8, dtype=torch.float64).index_put((target, source), weight, accumulate=True)
        loops = {pair[0]: e for e, pair in enumerate(self.graph.edge_index.T.tolist()) if pair[0] == pair[1]}
        scale = torch.where(sums > 0, parts / sums.clamp(min=1e-30), 1.0)
        own = torch.ones(8, dtype=torch.float64).index_put(
            (torch.tensor([*loops], dtype=torch.long),), factor[torch.tensor([*loops.values()], dtype=torch.long)]
        )  # the last of duplicate self-loops is the one that counts
        scale = torch.where(torch.eye(8, dtype=torch.bool), own[:, None], scale)
        value = (self.evidence(self.suite.copies(self.x), adjacency * scale)[outputs] * direction).sum()
        return torch.autograd.grad(value, factor)[0]


class FilterSuite(SurrogateSuite):
    r"""Give it ``filter``, the name, and ``taps``, the table by hand."""


class LevelSuite(SurrogateSuite):
    r"""Give it ``level``, the name, ``ends``, and what else the level needs by ``kwargs`` and ``copies``."""
