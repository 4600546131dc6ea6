import time

import pytest
import torch
from helpers import dense_adjacency, dense_scores
from torch_geometric.explain.config import ModelConfig
from torch_geometric.nn import SGConv

from pyg_dnx.distill import distill as distillation
from pyg_dnx.distill.distill import Distilled, Recipe, distill
from pyg_dnx.distill.solvers import fit_classifier, fit_regressor, kl_divergence
from pyg_dnx.graph.graph import Graph
from pyg_dnx.run import Run
from pyg_dnx.scores.attribution import PulledBack
from pyg_dnx.teacher.teacher import Answers, Teacher

NUM_NODES = 60


class Function(torch.nn.Module):
    r"""A model that is any function of its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, edge_index):
        return self.function(x, edge_index)


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_NODES, 4, generator=generator, dtype=dtype)
    edge_index = torch.randint(NUM_NODES - 2, (2, 150), generator=generator)  # two nodes are isolated
    return x, edge_index, torch.rand(150, generator=generator, dtype=dtype) + 0.1


def teacher(num_hops, num_outputs, flow='source_to_target', dtype=torch.float64):
    torch.manual_seed(0)
    return SGConv(4, num_outputs, K=num_hops, flow=flow).to(dtype)


def unknown(model):
    r"""The same model, of which nobody knows how far it looks."""
    return Function(lambda *args: model(*args))


def distilled_on(x, edge_index, model, mode, hops, ridge=1e-5, num_masks=0, kwargs=None, return_type='raw', **options):
    r"""The model, distilled to a number of ``hops``, or to one that held-out nodes choose."""
    teacher = Teacher(model, ModelConfig(mode, 'node', return_type))
    recipe = Recipe(hops, ridge, num_masks=num_masks)
    return distill(teacher, Graph(x, edge_index, kwargs or {}), recipe, Run(**options))


def run(model, mode, hops, ridge=1e-9, dtype=torch.float64, **options):
    return distilled_on(*inputs(dtype)[:2], model, mode, hops, ridge, **options)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('flow', ['source_to_target', 'target_to_source'])
@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize(
    ('mode', 'num_outputs'),
    [
        ('multiclass_classification', 3),
        ('binary_classification', 1),
        ('binary_classification', 2),
        ('regression', 1),
        ('regression', 3),
    ],
)
def test_a_linear_teacher_is_recovered(mode, num_outputs, weighted, flow, dtype):
    x, edge_index, edge_weight = inputs(dtype)
    model = teacher(2, num_outputs, flow, dtype)
    kwargs = {'edge_weight': edge_weight} if weighted else {}
    distilled = run(model, mode, 2, dtype=dtype, kwargs=kwargs)
    assert distilled.surrogate.report.agreement == pytest.approx(1.0, abs=1e-6)
    assert float(distilled.trust(torch.arange(NUM_NODES)).distillation_error.max()) < 1e-3

    theta = torch.cat([model.lin.weight.detach().T, model.lin.bias.detach()[None]]).double()
    if mode == 'binary_classification' and num_outputs == 1:
        theta = torch.cat([-theta, theta], dim=1) / 2.0
    elif mode != 'regression':
        theta -= theta.mean(dim=1, keepdim=True)
    torch.testing.assert_close(distilled.surrogate.weight.double(), theta[:-1], rtol=0.0, atol=1e-3)
    torch.testing.assert_close(distilled.surrogate.bias.double(), theta[-1], rtol=0.0, atol=1e-3)

    edges = edge_index if flow == 'source_to_target' else edge_index.flip(0)
    adjacency = dense_adjacency(edges, edge_weight if weighted else None, NUM_NODES)
    expected = dense_scores(adjacency, x, theta[:-1], 2)
    for node in [0, 7, NUM_NODES - 1]:
        nodes = torch.tensor([node])
        attribution = PulledBack(distilled.decomposition, nodes, distilled.decomposition.evidence[nodes])
        found = torch.zeros(NUM_NODES, dtype=torch.float64)
        found[attribution.neighbourhood] = attribution.node_scores().double()
        torch.testing.assert_close(found, expected[node], rtol=0.0, atol=3e-3 * float(expected[node].abs().max()))


@pytest.mark.parametrize('return_type', ['probs', 'log_probs'])
def test_return_types_distil_alike(return_type):
    model = teacher(1, 3)
    activation = torch.nn.Softmax(dim=1) if return_type == 'probs' else torch.nn.LogSoftmax(dim=1)
    model.register_forward_hook(lambda module, args, output: activation(output))
    converted = run(model, 'multiclass_classification', 1, return_type=return_type)
    raw = run(teacher(1, 3), 'multiclass_classification', 1)
    torch.testing.assert_close(converted.surrogate.weight, raw.surrogate.weight)


def test_a_shift_of_all_classes_changes_nothing():
    plain = run(teacher(1, 3), 'multiclass_classification', 1, ridge=1e-4)
    model = Function(lambda x, edge_index: teacher(1, 3)(x, edge_index) + 10.0 * x[:, :1])
    shifted = run(model, 'multiclass_classification', 1, ridge=1e-4)
    torch.testing.assert_close(shifted.surrogate.weight, plain.surrogate.weight)
    torch.testing.assert_close(shifted.surrogate.bias, plain.surrogate.bias)


@pytest.mark.parametrize('chunk', [2**16, 7])
def test_report_says_how_well_classes_are_followed(chunk):
    model = Function(lambda x, edge_index: torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs(), x[:, 3].sin()], dim=1))
    start = time.perf_counter()
    distilled = run(model, 'multiclass_classification', 2, ridge=1e-2, entries=chunk)
    assert 0.0 < distilled.surrogate.report.seconds <= time.perf_counter() - start
    report, surrogate = distilled.surrogate.report, distilled.surrogate
    x, edge_index, _ = inputs()
    log_probs = surrogate(x, edge_index).log_softmax(dim=1)
    expected = (distilled.outputs * (distilled.outputs.log() - log_probs)).sum(dim=1).mean()
    assert report.kl == pytest.approx(float(expected))
    assert report.agreement == float((log_probs.argmax(dim=1) == model(x, edge_index).argmax(dim=1)).double().mean())
    assert 0.0 < report.agreement < 1.0
    assert (report.solver, report.ridge, report.converged) == ('newton', 1e-2, True)
    assert (report.num_nodes, report.mode, report.held_out) == (NUM_NODES, 'multiclass_classification', None)
    assert report.num_masks == 0


def test_report_says_how_well_values_are_followed():
    model = Function(lambda x, edge_index: x[:, :2] + x[:, 2:].abs())
    distilled = run(model, 'regression', 0, ridge=1e-2)
    x, edge_index, _ = inputs()
    error = distilled.surrogate(x, edge_index) - model(x, edge_index)
    spread = model(x, edge_index) - model(x, edge_index).mean(dim=0)
    report = distilled.surrogate.report
    assert report.kl == pytest.approx(0.5 * float(error.square().sum(dim=1).mean()))
    assert report.agreement == pytest.approx(1.0 - float(error.square().sum() / spread.square().sum()))
    assert 0.0 < report.agreement < 1.0
    assert report.solver == 'closed form'
    assert distilled.spread == pytest.approx(float((spread.square().sum() / NUM_NODES).sqrt()))


@pytest.mark.parametrize('value', [0.0, 1e3, 1e9 / 3.0])
def test_a_constant_output_is_followed(value):
    distilled = run(Function(lambda x, edge_index: torch.full_like(x[:, 0], value)), 'regression', 1)
    assert distilled.surrogate.report.agreement == pytest.approx(1.0)
    assert bool(distilled.trust(torch.arange(NUM_NODES)).surrogate_agreement.all())


@pytest.mark.parametrize('mode', ['multiclass_classification', 'regression'])
@pytest.mark.parametrize('room', [0, -1])
def test_trust_is_judged_by_outputs(mode, room, monkeypatch):
    x, edge_index, _ = inputs()
    model = Function(lambda x, edge_index: 0.1 * torch.stack([x[:, 0] ** 3, x[:, 1].exp(), x[:, 2] * x[:, 3]], dim=1))
    distilled = run(model, mode, 1, ridge=1e-2)
    monkeypatch.setattr(distillation, 'MAX_TRUST_SIZE', distilled.outputs.numel() + room)
    nodes = torch.tensor([5, 0, 59, 17, 5, 30, 31, 32, 33, 34])
    found, logits, outputs = distilled.trust(nodes), distilled.surrogate(x, edge_index), model(x, edge_index)
    assert ('_everywhere' in vars(distilled)) == (room == 0)
    if mode == 'regression':
        error = (logits - outputs).norm(dim=1)
        agreement, by_bias = error <= distilled.spread, torch.zeros(NUM_NODES, dtype=torch.bool)
        assert distilled.unit == distilled.spread != 1.0
    else:
        error = (logits.softmax(dim=1) - outputs.softmax(dim=1)).norm(dim=1)
        agreement = logits.argmax(dim=1) == outputs.argmax(dim=1)
        by_bias = (logits - distilled.surrogate.bias).argmax(dim=1) != logits.argmax(dim=1)
        assert 0 < int(by_bias[nodes].sum()) < 10
        assert distilled.unit == 1.0
    assert 0 < int(agreement[nodes].sum()) < 10
    torch.testing.assert_close(found.distillation_error, error[nodes])
    assert found.surrogate_agreement.equal(agreement[nodes])
    assert found.bias_decides.equal(by_bias[nodes])


@pytest.mark.parametrize('num_masks', [0, 2])
def test_large_problems_keep_single_precision(num_masks, monkeypatch):
    x, edge_index, _ = inputs(torch.float32)
    found = []
    for room in [0, -1]:
        monkeypatch.setattr(distillation, 'PRECISE_MAX_SIZE', (1 + num_masks) * x.numel() + room)
        distilled = distilled_on(
            x, edge_index, teacher(1, 2, dtype=torch.float32), 'regression', 1, num_masks=num_masks
        )
        found.append(distilled.outputs.dtype)
    assert found == [torch.float64, torch.float32]


@pytest.mark.parametrize(('mode', 'num_outputs'), [('multiclass_classification', 3), ('regression', 1)])
@pytest.mark.parametrize('num_hops', [0, 1, 2])
def test_held_out_nodes_find_the_number_of_hops(num_hops, mode, num_outputs):
    if num_hops:
        model = teacher(num_hops, num_outputs)
    else:
        linear = torch.nn.Linear(4, num_outputs).double()
        model = Function(lambda x, edge_index: linear(x))
    surrogate = run(unknown(model), mode, None, ridge=1e-6).surrogate
    assert surrogate.num_hops == num_hops
    assert list(surrogate.report.held_out) == [0, 1, 2, 3]
    assert min(surrogate.report.held_out, key=surrogate.report.held_out.get) == num_hops


@pytest.mark.parametrize(
    ('losses', 'expected'), [((0.9, 0.0), 0), ((1.1, 0.0), 1), ((0.0, 0.9), 0), ((2.0, 1.1, 0.0), 2)]
)
@pytest.mark.parametrize('scale', [1e-3, 1.0, 1e3])
def test_of_hops_that_are_as_good_the_fewest(scale, losses, expected, monkeypatch):
    rounding = 1e-9 * 2.0 * scale**2  # the mean square of the outputs counts
    found = {hops: rounding * loss for hops, loss in enumerate(losses)}
    monkeypatch.setattr(distillation, '_held_out_loss', lambda *arguments: found)
    model = Function(lambda x, edge_index: torch.full_like(x[:, :2], scale))
    assert run(model, 'regression', None).surrogate.num_hops == expected


def test_hops_of_a_model_that_returns_zero():
    assert run(Function(lambda x, edge_index: 0.0 * x), 'regression', None).surrogate.num_hops == 0


@pytest.mark.parametrize('mode', ['multiclass_classification', 'regression'])
@pytest.mark.parametrize('limit', [2**16, 30, 2])
def test_a_fifth_of_the_nodes_is_held_out(mode, limit, monkeypatch):
    monkeypatch.setattr(distillation, 'MAX_NODES_TO_CHOOSE_HOPS', limit)
    x, edge_index, _ = inputs()
    model = Function(lambda x, edge_index: x[:, :2] + x[:, 2:].abs())
    distilled = run(model, mode, None, ridge=1e-2)
    order = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(0))[:limit]
    held, kept = order.tensor_split([max(1, len(order) // 5)])
    for num_hops, loss in distilled.surrogate.report.held_out.items():
        features = torch.linalg.matrix_power(dense_adjacency(edge_index, None, NUM_NODES), num_hops) @ x
        outputs = distilled.outputs
        fit = (fit_regressor if mode == 'regression' else fit_classifier)(features[kept], outputs[kept], 1e-2)
        logits = features[held] @ fit.weight + fit.bias
        if mode == 'regression':
            expected = 0.5 * (logits - outputs[held]).square().sum(dim=1).mean()
        else:
            expected = kl_divergence(outputs[held], logits).mean()
        assert loss == pytest.approx(float(expected))


def test_no_progress_is_shown_unless_asked_for(capsys, monkeypatch):
    monkeypatch.setattr('pyg_dnx.distill.solvers.NEWTON_MAX_SIZE', 0)
    run(teacher(1, 3), 'multiclass_classification', 'auto')
    assert capsys.readouterr().err == ''


@pytest.mark.parametrize('num_nodes', [1, 2])
def test_few_nodes_can_choose_hops(num_nodes):
    model = teacher(1, 3)
    x, edge_index, _ = inputs()
    distilled = distilled_on(x[:num_nodes], edge_index[:, :0], model, 'multiclass_classification', 'auto')
    assert distilled.surrogate.num_hops in (0, 1)
    losses = distilled.surrogate.report.held_out.values()
    assert all((loss > 1e-3) == (num_nodes > 1) for loss in losses)  # a single node is not held out


@pytest.mark.parametrize('mode', ['multiclass_classification', 'regression'])
def test_ties_go_to_the_fewest_hops(mode):
    for first in range(12):  # of two nodes, one is held out, and all hops foretell the other's
        x, edges = inputs()[0][first : first + 2], torch.tensor([[0, 1], [1, 0]])
        assert distilled_on(x, edges, unknown(teacher(1, 3)), mode, None).surrogate.num_hops == 0


def test_distilling_leaves_random_state_alone():
    model = teacher(1, 3)
    state = torch.random.get_rng_state()
    first = run(model, 'multiclass_classification', 'auto')
    assert torch.random.get_rng_state().equal(state)
    assert run(model, 'multiclass_classification', 'auto').surrogate.weight.equal(first.surrogate.weight)


def test_integer_features_are_distilled_in_single_precision():
    model = teacher(1, 3, dtype=torch.float32)
    convert = Function(lambda x, edge_index: model(x.float(), edge_index))
    x, edge_index, _ = inputs()
    distilled = distilled_on((3.0 * x).long(), edge_index, convert, 'multiclass_classification', 1, ridge=1e-6)
    assert distilled.surrogate.weight.dtype == torch.float32
    assert distilled.surrogate.report.agreement == 1.0


CLASSES = torch.tensor([0, 1] * 500)
VALUES = torch.tensor([0.0, 1.0] * 500)


def flipped(count):
    return torch.cat([1 - CLASSES[:count], CLASSES[count:]])


@pytest.mark.parametrize(
    ('old', 'new', 'expected'),
    [
        (CLASSES, CLASSES.clone(), True),
        (CLASSES, flipped(1), True),
        (CLASSES, flipped(2), False),
        (CLASSES, flipped(1000), False),
        (CLASSES, CLASSES[:-1], False),
        (VALUES, VALUES + 1e-5, True),
        (VALUES, VALUES + 1e-2, False),
        (VALUES + 1e3, VALUES + 1000.5, True),
        (VALUES + 1e3, VALUES + 1010.0, False),
        (1e-4 * VALUES, 1e-4 * VALUES.flip(0), False),
        (VALUES, VALUES[:, None], False),
    ],
)
def test_predicts_recognises_the_distilled_model(old, new, expected):
    distilled = Distilled(None, Answers(old.double().view(-1, 1), old))
    assert distilled.predicts(new) is expected
