r"""Masks of graphs and of links, improved by swaps: held against asking about each by itself."""

import pytest
import torch
from graph_level_case import GraphTeacher, graph_explainer, small_graphs
from helpers import example_graphs
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCNConv

from pyg_dnx import FastDnX, explain_graphs, explain_links, refine

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


def without(explanation, keep):
    r"""The features and edges of what is kept of a graph."""
    place, edges = keep.cumsum(0) - 1, explanation.edge_index
    return explanation.x[keep], place[edges[:, keep[edges].all(dim=0)]]


def test_graphs_are_refined_by_removing_nodes():
    model = GraphTeacher('gin').eval()
    explain = graph_explainer(model, FastDnX(), edge=None)
    explanations = list(explain_graphs(explain, small_graphs()))
    found = refine(explain, explanations, size=2)
    for g, refined in enumerate(found):
        kept = refined.node_mask[:, 0] == 1
        assert int(kept.sum()) == 2
        with torch.no_grad():
            whole, only, rest = (
                model(*without(refined, keep)).softmax(dim=1)[0] for keep in (kept | True, kept, ~kept)
            )
        label = int(whole.argmax())
        assert float(found.gap[g]) == pytest.approx(float(only[label] - rest[label]), abs=1e-5)
        assert bool(found.keeps[g]) == (int(only.argmax()) == label)
        assert bool(found.changes[g]) == (int(rest.argmax()) != label)
    assert bool((found.gap >= found.gap_before - 1e-6).all())
    assert bool((found.gain > 0).any())


class Links(torch.nn.Module):
    r"""A number for each pair: the inner product of what two layers make of its ends."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.conv1, self.conv2 = GCNConv(3, 4), GCNConv(4, 4)

    def forward(self, x, edge_index, edge_label_index):
        x = self.conv2(self.conv1(x, edge_index).tanh(), edge_index)
        return 5.0 * (x[edge_label_index[0]] * x[edge_label_index[1]]).sum(dim=1)


@pytest.mark.parametrize('edge', [None, 'object'])
def test_links_are_refined(edge):
    graph, pairs, model = example_graphs()['looped'], torch.tensor([[0, 3, 2], [1, 5, 2]]), Links().eval()
    config = {'mode': 'binary_classification', 'task_level': 'edge', 'return_type': 'raw'}
    node = None if edge else 'object'
    explain = Explainer(model, FastDnX(), 'model', config, node_mask_type=node, edge_mask_type=edge)
    explanations = list(explain_links(explain, graph.x, graph.edge_index, edge_label_index=pairs))
    found = refine(explain, explanations, size=2)
    for q, refined in enumerate(found):
        with torch.no_grad():
            before = torch.sigmoid(model(graph.x, graph.edge_index, pairs)[q])
            sides = []
            for removes in (False, True):
                if edge:
                    kept = (refined.edge_mask == 1) ^ removes
                    one = model(graph.x, graph.edge_index[:, kept], pairs)[q]
                else:
                    one = model(graph.x * ((refined.node_mask == 1) ^ removes), graph.edge_index, pairs)[q]
                sides.append(torch.sigmoid(one))
        sign = 1.0 if before > 0.5 else -1.0
        assert float(found.gap[q]) == pytest.approx(float(sign * (sides[0] - sides[1])), abs=1e-5)
    assert bool((found.gap >= found.gap_before - 1e-6).all())
    assert bool((found.gain > 0).any())
