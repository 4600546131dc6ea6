r"""A surrogate that is distilled on masks, too: by hand, on dense matrices."""

import pytest
import torch
from helpers import dense_adjacency, dense_masked_adjacency, example_graphs
from models import Teacher, Versatile, connected, evaluations, explainer, graph

from pyg_dnx import DnX, FastDnX, Surrogate, bound, certify, probe_masks, shared_cache, trust_report
from pyg_dnx.distill.solvers import fit_regressor, fit_stacked
from pyg_dnx.graph.features import Features
from pyg_dnx.graph.graph import Graph
from pyg_dnx.teacher.outputs import to_targets
from pyg_dnx.teacher.teacher import Teacher as Asked

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

TASKS = ['multiclass raw', 'multiclass log_probs', 'binary raw [N]', 'binary probs [N, 2]', 'regression [N]']
TASKS += ['regression [N, 2]']
CLOSE = {'rtol': 1e-6, 'atol': 1e-8}


def masked(kind=FastDnX, num_masks=8, **options):
    return kind(distillation='masked', num_masks=num_masks, **options)


class Case:
    r"""A model, and what it answers under masks."""

    def __init__(self, name='weighted', task='multiclass raw', num_features=3, dtype=torch.float64):
        example = example_graphs()[name]
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(example.x.size(0), num_features, generator=generator, dtype=torch.float64)
        self.x, self.edge_index, self.task = x.to(dtype), example.edge_index, task
        self.kwargs = {} if example.edge_weight is None else {'edge_weight': example.edge_weight.to(dtype)}
        self.model = Teacher('weighted', task, num_features).to(dtype).eval()
        self.adjacency = dense_adjacency(example.edge_index, example.edge_weight, x.size(0))
        self.graph = example._replace(x=self.x)

    def raw(self, num_masks=8):
        masks = probe_masks(self.x.size(0), num_masks)
        asked = Asked(self.model, connected(FastDnX(), self.task).model_config)
        given = Graph(self.x, self.edge_index, self.kwargs)
        return torch.stack([asked.query(given, self.x * mask[:, None]) for mask in masks])

    def targets(self, num_masks=8):
        r"""The model's outputs less 1 / C for the whole graph and each mask, [1 + K, N, C]."""
        config = connected(FastDnX(), self.task).model_config
        found = [to_targets(raw, config, torch.float64, raw.device)[0] for raw in self.raw(num_masks)]
        targets = torch.stack([found[0], *found[2:]])
        return targets if 'regression' in self.task else targets - 1.0 / targets.size(2)

    def by_hand(self, num_hops=2, num_masks=8, ridge=1e-5):
        masks = probe_masks(self.x.size(0), num_masks)
        masks = torch.cat([masks[:1], masks[2:]]).double()
        power = torch.linalg.matrix_power(self.adjacency, num_hops)
        stacked = torch.cat([power @ (mask[:, None] * self.x.double()) for mask in masks])
        inputs = torch.cat([stacked, torch.ones(len(stacked), 1)], dim=1)
        penalty = torch.full((inputs.size(1),), ridge, dtype=torch.float64)
        penalty[-1] = 0.0
        gram = inputs.T @ inputs / len(inputs) + penalty.diag()
        theta = torch.linalg.solve(gram, inputs.T @ self.targets(num_masks).flatten(0, 1) / len(inputs))
        return theta[:-1], theta[-1]

    def distill(self, algorithm=None, model=False, **given):
        algorithm = masked(num_hops=2) if algorithm is None else algorithm
        model = self.model if model is False else model
        return connected(algorithm, self.task).distill(model, self.x, self.edge_index, **given, **self.kwargs)

    def explain(self, algorithm, index, explanation_type='model', target=None, **masks):
        explain = explainer(self.model, algorithm, self.task, explanation_type, **masks)
        return explain(self.x, self.edge_index, index=index, target=target, **self.kwargs)


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize('name', example_graphs())
def test_it_is_least_squares_on_all_masks(name, task):
    case = Case(name, task)
    found, (weight, bias) = case.distill(), case.by_hand()
    torch.testing.assert_close(found.weight, weight, **CLOSE)
    torch.testing.assert_close(found.bias, bias, **CLOSE)
    if 'regression' not in task:
        assert found.weight.sum(dim=1).abs().max() < 1e-9
        assert found.bias.sum().abs() < 1e-9


@pytest.mark.parametrize('num_features', [3, 200])  # with fewer, and more of them than rows
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize(('num_hops', 'num_masks', 'ridge'), [(1, 8, 1e-5), (3, 1, 1e-2), (0, 9, 1e-3)])
def test_any_size(num_features, dtype, num_hops, num_masks, ridge):
    case = Case(num_features=num_features, dtype=dtype)
    found = case.distill(masked(num_hops=num_hops, num_masks=num_masks, ridge=ridge))
    weight, bias = case.by_hand(num_hops, num_masks, ridge)
    close = CLOSE if dtype == torch.float64 else {'rtol': 1e-2, 'atol': 1e-4}
    torch.testing.assert_close(found.weight.double(), weight, **close)
    torch.testing.assert_close(found.bias.double(), bias, **close)
    assert found.weight.dtype == dtype
    propagated = torch.linalg.matrix_power(case.adjacency, num_hops) @ case.x.double()
    error = propagated @ weight + bias - case.targets(num_masks)[0]
    assert found.report.kl == pytest.approx(0.5 * float(error.square().sum(dim=1).mean()), rel=1e-2, abs=1e-6)


@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
def test_features_on_disk_change_nothing(task):
    case = Case(task=task)
    found = case.distill(masked(num_hops=2, max_memory=1, cache=None))
    torch.testing.assert_close(found.weight, case.distill().weight)


@pytest.mark.parametrize('sizes', [[5, 5], [3, 40, 1, 7], [60]])
@pytest.mark.parametrize('num_features', [1, 4, 25, 80])
def test_parts_are_as_good_as_all_rows_at_once(sizes, num_features):
    generator = torch.Generator().manual_seed(0)
    features = 3 + torch.randn(sum(sizes), num_features, generator=generator, dtype=torch.float64)
    outputs = torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64) - 5
    parts = [(Features.of(part), out) for part, out in zip(features.split(sizes), outputs.split(sizes), strict=True)]
    found, expected = fit_stacked(iter(parts), sum(sizes), 1e-3), fit_regressor(features, outputs, 1e-3)
    torch.testing.assert_close(found.weight, expected.weight, **CLOSE)
    torch.testing.assert_close(found.bias, expected.bias, **CLOSE)
    assert (found.solver, found.converged) == ('closed form', True)


@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
@pytest.mark.parametrize('num_masks', [1, 8])
def test_evaluations(task, num_masks):
    case = Case(task=task)
    with evaluations(case.model, 1 + num_masks):
        first = case.distill(masked(num_masks=num_masks))
        assert case.distill(masked(DnX, num_masks, mask='minmax')) is first
    with evaluations(case.model, 1):
        assert case.distill(FastDnX(num_masks=num_masks)) is not first
    with evaluations(case.model, 2 + num_masks):
        other = case.distill(masked(num_masks=num_masks + 1))
    assert not other.weight.equal(first.weight)
    with evaluations(case.model, 0):
        assert case.distill(masked(num_masks=num_masks)) is first
    with evaluations(case.model, 1 + num_masks):
        case.distill(masked(num_masks=num_masks, cache=None))


def test_what_has_changed_is_distilled_again():
    model, (x, edge_index), algorithm = Versatile().eval(), graph(), connected(masked())
    changes = [lambda: model.head.weight.data[0].add_(1), lambda: x[0].mul_(2), lambda: edge_index[1, :1].fill_(4)]
    for change in changes:
        before = algorithm.distill(model, x, edge_index)
        change()
        with evaluations(model, 9):
            after = algorithm.distill(model, x, edge_index)
        assert after.weight.equal(connected(masked(cache=None)).distill(model, x, edge_index).weight)
        assert not after.weight.equal(before.weight)


@pytest.mark.parametrize('as_array', [True, False])
@pytest.mark.parametrize('task', TASKS)
def test_outputs_stand_for_the_model(task, as_array):
    case = Case(task=task)
    outputs = case.raw(10).numpy() if as_array else case.raw(10)
    for model in (case.model, None):
        with evaluations(case.model, 0):
            found = case.distill(model=model, probe_outputs=outputs)
        torch.testing.assert_close(found.weight, case.distill().weight)
        torch.testing.assert_close(found.bias, case.distill().bias)


def test_known_outputs_save_their_evaluation():
    case = Case()
    outputs = case.raw()[0]
    with evaluations(case.model, 8):
        found = case.distill(teacher_outputs=outputs)
    torch.testing.assert_close(found.weight, case.by_hand()[0], **CLOSE)


@pytest.mark.parametrize('given', [{}, {'teacher_outputs': torch.zeros(8, 3)}])
def test_without_a_model_it_takes_outputs_under_masks(given):
    case = Case()
    text = r"'model' must be .* unless 'probe_outputs' .*'masked' \(got None\): .*, or distillation 'paper'"
    for call in ('distill', 'explain_nodes'):
        with pytest.raises(TypeError, match=text):
            getattr(connected(masked()), call)(None, case.x, case.edge_index, **given)
    assert len(shared_cache) == 0


@pytest.mark.parametrize('task', ['multiclass raw', 'binary raw [N]', 'regression [N, 2]'])
@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_scores_are_complete(task, kind):
    case = Case(task=task)
    surrogate = case.distill(masked(kind))
    logits = surrogate(case.x, case.edge_index, **case.kwargs) - surrogate.bias
    config = connected(masked(), task).model_config
    output = to_targets(case.raw()[0], config, torch.float64, case.x.device)[0][1]
    if 'regression' in task:
        toward = output - surrogate.bias
    else:
        toward = torch.nn.functional.one_hot(output.argmax(), output.numel()).double() - 1.0 / output.numel()
    nodes, attributes, features = (
        case.explain(masked(kind), 1, node=node, edge='object')
        for node in ('object', 'attributes', 'common_attributes')
    )
    total = logits[1] @ toward
    torch.testing.assert_close(nodes.node_score.sum(), total, **CLOSE)
    torch.testing.assert_close(attributes.node_score.sum(dim=1), nodes.node_score, **CLOSE)
    torch.testing.assert_close(features.feature_score.sum(), total, **CLOSE)
    power, hidden = case.adjacency @ case.adjacency, case.x @ surrogate.weight
    torch.testing.assert_close(nodes.node_score, power[1] * (hidden @ toward), **CLOSE)
    one_hop = case.explain(masked(kind, num_hops=1), 3, edge='object')  # where node 3 has no loop of its own
    torch.testing.assert_close(one_hop.edge_score.sum() + one_hop.node_score[3], one_hop.node_score.sum(), **CLOSE)


@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_batch_equals_single(kind):
    case = Case()
    batch = connected(masked(kind)).explain_nodes(case.model, case.x, case.edge_index, **case.kwargs)
    for node in range(8):
        alone = case.explain(masked(kind), node)
        torch.testing.assert_close(batch.scores.to_dense()[node], alone.node_score, **CLOSE)
        torch.testing.assert_close(batch[node].node_mask, alone.node_mask)


def test_scores_go_by_the_class_unless_told_otherwise():
    assert [masked().score, masked(score='projection').score, FastDnX().score] == ['target', 'projection', 'projection']
    case = Case()
    for options in ({'score': 'projection'}, {'contrast': 'runner_up'}):
        found = case.explain(masked(**options), 1).node_score
        assert not found.allclose(case.explain(masked(), 1).node_score)


@pytest.mark.parametrize('task', ['multiclass raw', 'binary raw [N]', 'regression [N, 2]'])
def test_it_is_a_model_of_probabilities(task):
    case, regression = Case(task=task), 'regression' in task
    surrogate, targets = case.distill(), case.targets()[0]
    logits = surrogate(case.x, case.edge_index, **case.kwargs)
    error = (logits - targets).norm(dim=1)
    assert surrogate.report.kl == pytest.approx(float(error.square().mean() / 2))
    assert surrogate.report.is_linear
    shift = 0.0 if regression else 1.0 / targets.size(1)
    torch.testing.assert_close(surrogate.outputs(logits), logits + shift)
    explain = explainer(case.model, masked(), task, edge='object')
    explanation = explain(case.x, case.edge_index, index=torch.tensor([1, 6]), **case.kwargs)
    torch.testing.assert_close(explanation.distillation_error, error[[1, 6]], **CLOSE)
    assert 'half squared error' in str(surrogate.report)
    assert 'masks              8' in str(surrogate.report)
    if not regression:
        agreement = (logits.argmax(dim=1) == targets.argmax(dim=1)).double()
        assert surrogate.report.agreement == pytest.approx(float(agreement.mean()))
        assert explanation.surrogate_agreement.tolist() == agreement[[1, 6]].bool().tolist()

    found = certify(explain, explanation)
    power = torch.linalg.matrix_power(dense_masked_adjacency(case.graph, explanation.edge_mask), 2)
    after = power @ (explanation.node_mask * case.x) @ surrogate.weight + surrogate.bias
    moved = (logits - after).norm(dim=1)[[1, 6]]
    torch.testing.assert_close(found.mask_bound, moved, **CLOSE)
    torch.testing.assert_close(found.expected_unfaithfulness, moved + 2 * error[[1, 6]], **CLOSE)
    if not regression:
        torch.testing.assert_close(found.bias_evidence, surrogate.bias[targets[[1, 6]].argmax(dim=1)])
    only_nodes = case.explain(masked(), torch.tensor([1, 6]))
    bounds = bound(explain, only_nodes, num_perturbations=3)
    assert (bounds.unfaithfulness <= bounds.tight_theorem + 1e-9).all()
    torch.testing.assert_close(bounds.surrogate_unfaithfulness, bounds.tight_lemma)  # a linear model is what it is
    report = trust_report(explain, case.x, case.edge_index, num_checks=4, **case.kwargs)
    assert report.report.num_masks == 8


def test_saved_surrogates_know_their_masks(tmp_path):
    surrogate = Case().distill(masked(num_masks=5))
    surrogate.save(tmp_path / 'surrogate.pt')
    loaded = Surrogate.load(tmp_path / 'surrogate.pt')
    assert loaded.report == surrogate.report
    assert (loaded.report.num_masks, loaded.report.is_linear) == (5, True)
    assert loaded.outputs(torch.zeros(1, 4)).tolist() == [[0.25] * 4]


def test_everything_is_left_as_it_was():
    model, (x, edge_index) = Versatile().train(), graph()
    random, kept = torch.get_rng_state(), (x.clone(), edge_index.clone())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    connected(masked(DnX)).explain_nodes(model, x, edge_index)
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert x.equal(kept[0])
    assert edge_index.equal(kept[1])
    assert torch.get_rng_state().equal(random)


class Constant(torch.nn.Module):
    def forward(self, x, edge_index):
        return x.new_tensor([1.0, 2.0, 0.0]).expand(x.size(0), 3)


@pytest.mark.parametrize('name', ['looped', 'no_edges', 'one_node'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.float16, torch.int64])
def test_odd_input(name, dtype):
    x, edge_index = graph(name)
    x = (3 * x).to(dtype)
    model = Constant() if dtype == torch.int64 else Teacher().eval().to(dtype)
    for kind in (FastDnX, DnX):
        explanation = explainer(model, masked(kind, num_hops=2), edge='object')(x, edge_index, index=0)
        assert explanation.node_score.isfinite().all()
        assert explanation.node_mask.isfinite().all()
    if dtype == torch.int64:
        assert explanation.node_score.abs().max() == 0
