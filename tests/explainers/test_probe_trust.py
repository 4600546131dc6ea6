r"""What explanations by probes are worth, by hand, and that odd input gets sane ones."""

import warnings
from dataclasses import replace

import pytest
import torch
from helpers import dense_masked_adjacency, random_masks
from models import Teacher, connected, explainer, graph
from probe_case import ProbeCase

from pyg_dnx import ProbeDnX, SurrogateWarning, bound, certify, check, shared_cache, trust_report
from pyg_dnx.results.measured import VERDICTS

quiet = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
CLOSE = {'rtol': 1e-5, 'atol': 1e-8}
NODES = torch.tensor([5, 0, 6, 0])


def dense_kept(case, nodes, node_mask, edge_mask):
    r"""What masks leave of the sum of scores of each node, [B]: those of a surrogate of its own, θ_j = s_j / Ã^L_ij."""
    power = torch.linalg.matrix_power(dense_masked_adjacency(case.graph, edge_mask), case.options['num_hops'])
    score, kept = case.fit().score, []
    surrogate = case.algorithm().distill(case.model, case.x, case.edge_index, **case.kwargs)
    for node in nodes:
        theta = torch.where(case.power[node] > 0, score[node] / case.power[node], 0.0)
        if node_mask is not None and node_mask.size(1) == 1:
            theta = theta * node_mask[:, 0]
        elif node_mask is not None:  # features share a score by the size of the surrogate's evidence for the target
            toward = case.toward()[node] if 'regression' not in case.task else case.outputs[0, node] - surrogate.bias
            size = (case.x * (surrogate.weight @ toward)).abs()
            theta = theta * (size / size.sum(dim=1, keepdim=True) * node_mask).sum(dim=1)
        kept.append(power[node] @ theta)
    return torch.stack(kept)


@quiet
@pytest.mark.parametrize('task', ['multiclass raw', 'binary probs [N, 2]', 'regression [N, 2]'])
@pytest.mark.parametrize('number', range(1, 8))
@pytest.mark.parametrize('index', [torch.tensor([1]), NODES])
def test_certify_judges_the_masks_by_the_local_fit(task, number, index):
    case = ProbeCase(task=task, num_probes=12)
    node_mask, edge_mask = random_masks(case.graph)[number]
    explain, nodes = case.explainer(edge='object', doubt=0.1), index.tolist()
    explanation = explain(case.x, case.edge_index, index=index, **case.kwargs)
    del explanation.node_mask, explanation.edge_mask
    explanation.update(
        {name: mask for name, mask in (('node_mask', node_mask), ('edge_mask', edge_mask)) if mask is not None}
    )
    found, fit = certify(explain, explanation), case.fit()
    distance = 1.0 / case.toward()[nodes].norm(dim=1)
    moved = (fit.score.sum(dim=1)[nodes] - dense_kept(case, nodes, node_mask, edge_mask)).abs() * distance
    error = fit.error[nodes].square().mean(dim=1).sqrt() * distance
    torch.testing.assert_close(found.mask_bound, moved, **CLOSE)
    torch.testing.assert_close(found.expected_unfaithfulness, moved + error, **CLOSE)
    torch.testing.assert_close(found.bias_evidence, case.answers()[1, nodes], **CLOSE)
    unit = float(case.outputs[0].var(dim=0, correction=0).sum().sqrt()) if 'regression' in task else 1.0
    assert found.doubt == pytest.approx(0.1 * unit)
    doubtful = (moved + error > 0.1 * unit) | (fit.score.sum(dim=1)[nodes] <= 0)
    assert found.estimate.equal(torch.where(found.probe_r2 > 0, doubtful.long(), 2))
    assert found.probe_r2.equal(explanation.probe_r2)


@quiet
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N]'])
def test_top_k_is_certified_as_the_mask_that_leaves_it(task):
    case = ProbeCase(task=task, num_probes=12)
    batch = case.explain_nodes(index=NODES, given={'top_k': 3})
    for b, node in enumerate(NODES.tolist()):
        explanation = case.explain(node)
        explanation.node_mask = torch.zeros(8, 1, dtype=torch.float64)
        explanation.node_mask[batch.top_k(3)[0][b].clamp(min=0)] = 1.0
        found = certify(case.explainer(), explanation)
        for name in ('expected_unfaithfulness', 'mask_bound', 'probe_r2', 'bias_evidence'):
            torch.testing.assert_close(getattr(batch.certificate, name)[b : b + 1], getattr(found, name), **CLOSE)
        assert batch.certificate.estimate[b] == found.estimate
        assert VERDICTS[int(found.verdict)].split()[0].lower() in str(found).lower()
        estimated = replace(found, measured=None)
        assert 'R²' in str(estimated) or found.estimate == 1


@quiet
@pytest.mark.parametrize('task', ['multiclass raw', 'binary raw [N]', 'regression [N, 2]'])
@pytest.mark.parametrize('options', [{}, {'max_memory': 1}, {'cache': None}, {'answer': 'logit'}])
def test_reports_and_bounds_run(task, options):
    case = ProbeCase(task=task, num_probes=12)
    explain = case.explainer(**options)
    report = trust_report(explain, case.x, case.edge_index, num_checks=8, **case.kwargs)
    assert sum(row.num_checked for row in report.reliability) == 8
    assert 'verdict' in str(report)
    explanation = explain(case.x, case.edge_index, index=NODES, **case.kwargs)
    found = bound(explain, explanation, num_perturbations=2)
    assert (found.unfaithfulness <= found.tight_theorem + 1e-9).all()
    measured = check(explain, case.explain_nodes(**options))
    assert measured.unfaithfulness.isfinite().all()


class Constant(torch.nn.Module):
    def forward(self, x, edge_index):
        return x.new_tensor([1.0, 2.0, 0.0]).expand(x.size(0), 3)


ODD = {
    'as it is': lambda x, edge_index: (x, edge_index),
    'no edges': lambda x, edge_index: (x, edge_index[:, :0]),
    'one node': lambda x, edge_index: (x[:1], edge_index[:, :0]),
    'one node with a loop': lambda x, edge_index: (x[:1], torch.zeros(2, 1, dtype=torch.long)),
    'zero features': lambda x, edge_index: (torch.zeros_like(x), edge_index),
    'constant features': lambda x, edge_index: (torch.ones_like(x), edge_index),
    'strided': lambda x, edge_index: (x.repeat_interleave(2, dim=0)[::2], edge_index.repeat_interleave(2, 1)[:, ::2]),
    'requires grad': lambda x, edge_index: (x.requires_grad_(), edge_index),
    'huge features': lambda x, edge_index: (x * 1e12, edge_index),
    'tiny features': lambda x, edge_index: (x * 1e-12, edge_index),
    'double': lambda x, edge_index: (x.double(), edge_index),
    'half': lambda x, edge_index: (x.half(), edge_index),
    'bfloat16': lambda x, edge_index: (x.bfloat16(), edge_index),
}


def finite(explanation):
    assert explanation.validate(raise_on_error=True)
    for key, value in explanation.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert value.isfinite().all(), key
    for name in explanation.available_explanations:
        mask = explanation[name]
        assert mask.numel() == 0 or (mask.min() >= 0 and mask.max() <= 1)


@quiet
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
@pytest.mark.parametrize('name', ODD)
@pytest.mark.parametrize('options', [{}, {'max_memory': 1, 'answer': 'logit'}])
def test_odd_input_gives_no_nan(name, task, options):
    x, edge_index = ODD[name](*graph())
    for model in (Teacher(task=task).to(x.dtype).eval(), Constant()):
        for node, edge, index in [('object', 'object', 0), ('attributes', None, None)]:
            explain = explainer(model, ProbeDnX(num_hops=2, num_probes=6, **options), task, node=node, edge=edge)
            explanation = explain(x, edge_index, index=index)
            finite(explanation)
            certificate = certify(explain, explanation)
            assert certificate.expected_unfaithfulness.isfinite().all()
            assert certificate.probe_r2.isfinite().all()
        batch = explain.algorithm.explain_nodes(model, x, edge_index, top_k=3)
        assert batch.probe_r2.isfinite().all()
        assert batch.probe_r2.max() <= 1.0


@quiet
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
@pytest.mark.parametrize('name', ['as it is', 'no edges', 'one node'])
def test_a_constant_model_has_no_scores_and_is_foretold(name, task):
    x, edge_index = ODD[name](*graph())
    found = connected(ProbeDnX(num_hops=2), task).explain_nodes(Constant(), x, edge_index, top_k=2)
    assert found.top_k(1)[1].abs().max() < 1e-9
    assert found.probe_r2.equal(torch.ones_like(found.probe_r2))
    assert found.distillation_error.max() < 1e-9
    assert found.certificate.estimate.max() < 2
    torch.testing.assert_close(found.certificate.expected_unfaithfulness, torch.zeros(x.size(0)))


@quiet
def test_integer_features():
    class Cast(Teacher):
        def forward(self, x, edge_index):
            return super().forward(x.float(), edge_index)

    x, edge_index = graph()
    x = (3 * x).long()
    found = connected(ProbeDnX(num_probes=12)).explain_nodes(Cast().eval(), x, edge_index)
    expected = connected(ProbeDnX(num_probes=12)).explain_nodes(Teacher().eval(), x.float(), edge_index)
    torch.testing.assert_close(found.scores.to_dense(), expected.scores.to_dense())
    finite(explainer(Cast().eval(), ProbeDnX(num_probes=12), node='attributes')(x, edge_index, index=1))


@quiet
def test_inference_mode():
    expected = connected(ProbeDnX(num_probes=12)).explain_nodes(Teacher().eval(), *graph())
    with torch.inference_mode():
        inputs, model = graph(), Teacher().eval()
        inside = connected(ProbeDnX(num_probes=12)).explain_nodes(model, *inputs)
        finite(inside[1])
    outside = connected(ProbeDnX(num_probes=12)).explain_nodes(model, *inputs)
    for found in (inside, outside):
        torch.testing.assert_close(found.scores.values().clone(), expected.scores.values())
        finite(found[1])


@quiet
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
@pytest.mark.parametrize(
    'options', [{}, {'cache': None}, {'max_memory': 1}, {'distillation': 'masked', 'num_hops': 'auto'}]
)
def test_default_device_is_not_used(task, options):
    model, (x, edge_index), index = Teacher(task=task).eval(), graph(), torch.tensor([1])

    def found():
        shared_cache.clear()
        for node, edge in [('object', 'object'), ('attributes', None), ('common_attributes', None)]:
            explain = explainer(model, ProbeDnX(num_probes=6, **options), task, node=node, edge=edge)
            for given in (index, None):
                explanation = explain(x, edge_index, index=given)
                yield from (explanation.node_mask, certify(explain, explanation).verdict)
            batch = explain.algorithm.explain_nodes(model, x, edge_index, top_k=2)
            yield from (batch.top_k(2)[1], batch[2].node_score)

    expected = list(found())
    torch.set_default_device('meta')
    try:
        actual = list(found())
    finally:
        torch.set_default_device(None)
    for one, other in zip(actual, expected, strict=True):
        assert one.is_cpu
        assert one.equal(other)


@quiet
def test_global_state_is_unchanged():
    def state():
        return [*warnings.filters], torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()

    explain = explainer(Teacher().eval(), ProbeDnX(num_probes=12), node='attributes', edge='object')
    before, random = state(), torch.get_rng_state()
    certify(explain, explain(*graph(), index=NODES))
    assert state() == before
    assert torch.get_rng_state().equal(random)


class Noise(torch.nn.Module):
    r"""Answers that no function of a few neighbours foretells."""

    def forward(self, x, edge_index):
        value = (1e4 * x).sum().sin() * 6 * torch.arange(1.0, 9.0).sin()
        return torch.stack([value, torch.zeros_like(value), -value], dim=1)


def test_warns_where_probes_do_not_foretell_one_another():
    explain = explainer(Noise(), ProbeDnX(num_hops=1, num_probes=40))
    with pytest.warns(SurrogateWarning, match=r"Probes don't explain .*'probe_r2' is not positive.*'pyg_dnx.certify'"):
        explanation = explain(*graph(), index=None)
    assert (explanation.probe_r2 <= 0).sum() > 1
    found = certify(explain, explanation)
    assert (found.estimate == 2).equal(explanation.probe_r2 <= 0)
    node = int((found.estimate == 2).nonzero()[0])
    estimated = replace(found, measured=None).sentence(node)
    assert estimated.startswith('Not explained (estimated): the local fit (R² ')


def test_errors_that_no_mask_can_mend_are_warned_of():
    case = ProbeCase(num_probes=100)
    with pytest.warns(SurrogateWarning, match=r"doubtful where 'distillation_error' is above 1e-06. Ask the model"):
        found = case.explain_nodes(doubt=1e-6)
    assert (found.probe_r2 > 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter('error', SurrogateWarning)
        case.explain_nodes(doubt=float(found.distillation_error.max()) * 1.01)
