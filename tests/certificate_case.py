r"""A model, its explainer, and what its explanations are worth, from dense matrices and in plain Python."""

import math
import statistics
from dataclasses import fields, replace

import pytest
import torch
from helpers import Graph, dense_masked_adjacency, example_graphs, random_decomposition
from models import Teacher, explainer, graph

from pyg_dnx.distill.distill import Distilled
from pyg_dnx.graph.graph import Graph as Inputs
from pyg_dnx.results.certificate import judge
from pyg_dnx.results.measured import Measured
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.rules import Projection
from pyg_dnx.teacher.teacher import Answers
from pyg_dnx.teacher.teacher import Teacher as Asked

quiet = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
ROUNDED = {'rtol': 1e-4, 'atol': 1e-5}
NUMBERS = ['distillation_error', 'bias_evidence', 'mask_bound', 'expected_unfaithfulness']
FLAGS = ['surrogate_agreement', 'bias_decides', 'estimate']


def dense_masked_evidence(graph, surrogate, node_mask, edge_mask):
    r"""Z − b of all nodes under masks, [N, C], in float64."""
    power = torch.linalg.matrix_power(dense_masked_adjacency(graph, edge_mask, surrogate.flow), surrogate.num_hops)
    x = graph.x.double() if node_mask is None else node_mask.double() * graph.x.double()
    return power @ x @ surrogate.weight.double()


def softmax(values):
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def by_hand(logits, bias, outputs, masked, doubt, regression, unit=1.0):
    r"""What is known of one node, from lists: Z, b, the model's output, and Z − b under the mask."""
    evidence, after = (
        [z - b for z, b in zip(logits, bias, strict=True)],
        [m + b for m, b in zip(masked, bias, strict=True)],
    )
    change = math.dist(logits, after)
    if regression:
        error, agrees, by_bias = math.dist(logits, outputs), math.dist(logits, outputs) <= unit, False
        bound, moved, in_bias = change, change, math.hypot(*bias)
    else:
        label = outputs.index(max(outputs))
        error, agrees = math.dist(softmax(logits), outputs), logits.index(max(logits)) == label
        by_bias = evidence.index(max(evidence)) != logits.index(max(logits))
        bound, moved, in_bias = change / 2, math.dist(softmax(logits), softmax(after)), bias[label]
        assert moved <= bound + 1e-12
    expected = moved + 2 * error
    verdict = 2 if not agrees else 1 if by_bias or expected > doubt * unit else 0
    return {
        'surrogate_agreement': agrees,
        'distillation_error': error,
        'bias_decides': by_bias,
        'bias_evidence': in_bias,
        'mask_bound': bound,
        'expected_unfaithfulness': expected,
        'estimate': verdict,
    }


def spread(outputs):
    r"""The standard deviation of the rows of a table, over all columns."""
    columns = torch.as_tensor(outputs, dtype=torch.float64).T.tolist()
    return math.sqrt(sum(statistics.pvariance(column) for column in columns))


def compare(found, nodes, rows, rtol=1e-6, atol=1e-9):
    assert found.index.tolist() == nodes
    for name in NUMBERS:
        values = torch.tensor([row[name] for row in rows], dtype=torch.float64)
        torch.testing.assert_close(getattr(found, name).double(), values, rtol=rtol, atol=atol)
    for name in FLAGS:
        assert getattr(found, name).tolist() == [row[name] for row in rows]


def judged(mode='multiclass_classification', noise=0.3, scale=1.0):
    r"""A surrogate with random errors on 40 nodes, and what masks leave of its evidence."""
    generator = torch.Generator().manual_seed(4)
    x, edges = torch.randn(40, 3, generator=generator), torch.randint(40, (2, 100), generator=generator)
    decomposition = random_decomposition(Graph(x, edges, None), 2)
    surrogate = decomposition.surrogate
    surrogate.report = replace(surrogate.report, mode=mode)
    surrogate.weight, surrogate.bias = scale * surrogate.weight, scale * surrogate.bias
    decomposition = surrogate.on(Inputs(x, edges, {}))
    errors, changes = (torch.randn(40, 3, generator=generator, dtype=torch.float64) * scale * noise for _ in range(2))
    outputs = decomposition.logits + errors
    outputs = outputs if mode == 'regression' else outputs.softmax(dim=1)
    return Distilled(decomposition, Answers(outputs, outputs.argmax(dim=1))), decomposition.evidence + changes


def certificate(distilled, nodes, evidence, doubt):
    r"""What explanations of some nodes are worth whose masks leave this ``evidence`` [B, C]."""
    question, trust = Question(nodes), distilled.trust(nodes)
    change = Projection().change(distilled, None, question, trust, evidence)
    return judge(distilled, question, trust, change, doubt)


def uneven_graph():
    r"""A graph whose neighbourhoods have many sizes; nodes 6 and 7 are alone."""
    links = {0: [1, 2, 3, 4, 5], 1: [0], 2: [0, 1], 3: [0, 1, 2], 4: [3, 3], 5: [4, 5]}  # the sources for each target
    edges = torch.tensor([(source, target) for target, sources in links.items() for source in sources]).T
    return Graph(graph()[0], edges, torch.linspace(0.5, 2.0, edges.size(1)))


class Case:
    r"""A model, its explainer, and what explanations of it are worth, from dense matrices."""

    def __init__(self, algorithm, task='multiclass raw', name='weighted', **options):
        self.graph, self.task = {**example_graphs(), 'uneven': uneven_graph()}[name], task
        self.model = Teacher('weighted', task).eval()
        self.explainer = explainer(self.model, algorithm, task, **options)
        weight = self.graph.edge_weight
        self.inputs, self.kwargs = self.graph[:2], {} if weight is None else {'edge_weight': weight}

    def explain(self, index, **options):
        return self.explainer(*self.inputs, index=index, **options, **self.kwargs)

    def by_hand(self, nodes, node_mask, edge_mask):
        algorithm = self.explainer.algorithm
        surrogate = algorithm.distill(self.model, *self.inputs, **self.kwargs)
        asked = Asked(self.model, algorithm.model_config)
        outputs = asked.outputs(Inputs(*self.inputs, self.kwargs)).values
        regression = 'regression' in self.task
        unit = spread(outputs) if regression else 1.0
        before, after = (
            dense_masked_evidence(self.graph, surrogate, *masks) for masks in [(None, None), (node_mask, edge_mask)]
        )
        bias, logits = surrogate.bias.double(), before + surrogate.bias.double()
        return [
            by_hand(*(part.tolist() for part in parts), algorithm.doubt, regression, unit)
            for parts in ((logits[i], bias, outputs[i], after[i]) for i in nodes)
        ]


def is_same(found, expected, **close):
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, Measured):
            assert is_same(one, other, **close)
        elif not isinstance(other, torch.Tensor):
            assert (type(one), one) == (type(other), other)
        elif close and other.is_floating_point():
            torch.testing.assert_close(one, other, **close)
        else:
            assert one.dtype == other.dtype
            assert one.equal(other)
    return True
