r"""Where there is nothing to explain by, or too little to judge by, no verdict says trustworthy."""

import pytest
import torch
from helpers import example_graphs
from models import Teacher, connected, evaluations

from pyg_dnx import DnX, FastDnX, ProbeDnX, SurrogateWarning, probe_masks
from pyg_dnx.results.certificate import NOT_EXPLAINED, TRUSTWORTHY

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
GRAPHS = {'zero': 0.0, 'tiny': 1e-30, 'small': 1e-12}
KINDS = {
    'FastDnX': lambda: FastDnX(num_hops=2),
    'target': lambda: FastDnX(num_hops=2, score='target'),
    'masked': lambda: FastDnX(num_hops=2, distillation='masked', num_masks=8),
    'DnX': lambda: DnX(num_hops=2),
    'ProbeDnX': lambda: ProbeDnX(num_hops=2, num_probes=16),
}


class Scaled(Teacher):
    r"""A model that sees large features, whatever size they have."""

    def __init__(self, scale, task='multiclass raw'):
        super().__init__(task=task)
        self.scale = scale
        with torch.no_grad():
            self.conv2.bias[:1].add_(0.1)  # the class that zeros are of, where an argmax without evidence ends, too

    def forward(self, x, edge_index):
        return super().forward(x / self.scale if self.scale > 0.0 else x, edge_index)


def judged(kind, x, edge_index, model, task='multiclass raw'):
    r"""The verdicts, from what the model answered before."""
    masks = probe_masks(x.size(0), 16)
    with torch.no_grad():
        answers = torch.stack([model(x * mask[:, None], edge_index) for mask in masks])
    algorithm = connected(kind(), task)
    given = {'teacher_outputs': answers[0]} if algorithm._num_probes == 0 else {'probe_outputs': answers}
    return algorithm.explain_nodes(None, x, edge_index, top_k=3, progress=False, **given)


@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N]', 'binary raw [N]'])
@pytest.mark.parametrize('scale', GRAPHS)
@pytest.mark.parametrize('kind', ['FastDnX', 'target', 'masked', 'DnX'])
def test_scores_that_are_rounding_are_not_trustworthy(kind, scale, task):
    x, edge_index, _ = example_graphs()['undirected']
    model = Scaled(GRAPHS[scale], task).eval()
    found = judged(KINDS[kind], x * GRAPHS[scale], edge_index, model, task)
    assert found.certificate.bias_decides.all()
    assert (found.certificate.verdict != TRUSTWORTHY).all()
    large = judged(KINDS[kind], x, edge_index, Scaled(1.0, task).eval(), task)
    assert not large.certificate.bias_decides.all()


@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N]'])
@pytest.mark.parametrize('scale', GRAPHS)
def test_answers_that_never_change_are_not_trustworthy(scale, task):
    x, edge_index, _ = example_graphs()['undirected']
    found = judged(KINDS['ProbeDnX'], x * GRAPHS[scale], edge_index, Scaled(0.0, task).eval(), task)
    assert (found.certificate.verdict != TRUSTWORTHY).all()


@pytest.mark.parametrize('num_probes', [2, 4, 6])
def test_few_probes_do_not_judge_themselves(num_probes):
    x, edge_index, _ = example_graphs()['undirected']
    found = connected(ProbeDnX(num_hops=2, num_probes=num_probes)).explain_nodes(
        Teacher().eval(), x, edge_index, top_k=3, progress=False
    )
    trust = found._trust
    assert (trust.probe_r2 <= 0.0).all()
    assert not trust.surrogate_agreement.any()
    many = connected(ProbeDnX(num_hops=2, num_probes=64)).explain_nodes(
        Teacher().eval(), x, edge_index, top_k=3, progress=False
    )
    assert many._trust.surrogate_agreement.all()


class Random(Teacher):
    r"""A model whose dropout is always on, if it is to."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x, edge_index):
        return super().forward(torch.nn.functional.dropout(x, self.rate, training=True), edge_index)


@pytest.mark.parametrize('kind', KINDS)
def test_a_model_that_answers_at_random_is_never_trustworthy(kind):
    x, edge_index, _ = example_graphs()['undirected']
    algorithm, model = connected(KINDS[kind]()), Random(0.5).eval()
    state = torch.get_rng_state()
    with pytest.warns(SurrogateWarning, match='evaluated again'):
        found = algorithm.explain_nodes(model, x, edge_index, top_k=3, progress=False)
    assert found.certificate.verdict.eq(NOT_EXPLAINED).all()
    assert 'the model answers at random' in found.certificate.sentence(0)
    assert torch.get_rng_state().equal(state)


def test_a_model_that_draws_without_effect_is_asked_once_more():
    x, edge_index, _ = example_graphs()['undirected']
    model = Random(0.0).eval()  # which draws nothing
    with evaluations(model, 1):
        connected(FastDnX()).distill(model, x, edge_index)
    model.rate = 1e-12
    with evaluations(model, 2):
        found = connected(FastDnX(num_hops=2)).explain_nodes(model, x, edge_index, top_k=3)
    assert not found.certificate.is_random
