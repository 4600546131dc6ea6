r"""Each filter and each task level by its definition, and a level that exists here alone: groups of nodes."""

import pytest
import torch
from suites import FilterSuite, LevelSuite

from pyg_dnx.graph import filters, readout
from pyg_dnx.graph.rows import Rows

BATCH = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
SIZE = torch.tensor([3, 4, 1])
MEMBER = torch.nn.functional.one_hot(BATCH).T.double()


class TestSGC(FilterSuite):
    filter = 'sgc'


class TestSIGN(FilterSuite):
    filter = 'sign'

    @staticmethod
    def taps(num_hops):
        return torch.eye(num_hops + 1).tolist()


class TestPPR(FilterSuite):
    filter = 'ppr'

    @staticmethod
    def taps(num_hops):
        return [[0.15 * 0.85**k for k in range(num_hops + 1)]]


class TestGraphs(LevelSuite):
    level = 'graph'

    @staticmethod
    def ends(num_nodes):
        return [MEMBER / SIZE[:, None]]

    @staticmethod
    def copies(x):
        return torch.cat([x, SIZE[BATCH, None] * x], dim=1)  # the means of both are means and sums

    @staticmethod
    def kwargs():
        return {'batch': BATCH}


class TestLinks(LevelSuite):
    level = 'edge'
    pairs = torch.tensor([[0, 3, 3, 7], [1, 3, 5, 0]])  # a node with itself is one of them

    @staticmethod
    def ends(num_nodes):
        return list(torch.nn.functional.one_hot(TestLinks.pairs, 8).double())

    @staticmethod
    def kwargs():
        return {'edge_label_index': TestLinks.pairs}


class TestGroups(LevelSuite):
    r"""The sum over some nodes, which may share members: nothing of it is known outside this file."""

    level = 'groups'

    @pytest.fixture(autouse=True)
    def _known(self, monkeypatch):
        def groups(graph, num_outputs):
            member = TestGroups.ends(graph.num_nodes)[0]
            output, column = member.nonzero().T
            return readout.Readout(2, Rows(torch.bincount(output), column, member[output, column]))

        monkeypatch.setitem(readout.READOUTS, 'groups', groups)

    @staticmethod
    def ends(num_nodes):
        return [
            torch.tensor([[1.0, 2.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]]).double()
        ]

    @staticmethod
    def kwargs():
        return {'batch': torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])}


def test_every_filter_and_level_has_its_suite():
    tested = [suite for name, suite in globals().items() if name.startswith('Test')]
    assert {suite.filter for suite in tested} == set(filters.FILTERS)
    assert {suite.level for suite in tested} == {*readout.READOUTS, 'groups'}
