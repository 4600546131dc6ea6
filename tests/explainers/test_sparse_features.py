r"""Sparse features give what dense ones give; where they can't be taken, a sentence says so."""

import pytest
import torch
from models import Teacher, explainer

from pyg_dnx import DnX, FastDnX, ProbeDnX, Surrogate

GENERATOR = torch.Generator().manual_seed(0)
X = (torch.rand(60, 20, generator=GENERATOR) < 0.1).float()
EDGES = torch.randint(60, (2, 150), generator=GENERATOR)
LAYOUTS = {'csr': X.to_sparse_csr(), 'coo': X.to_sparse_coo()}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('algorithm', [FastDnX, DnX])
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
def test_explanations_are_those_of_dense_features(algorithm, layout, task):
    model = Teacher('gcn', task, num_features=20).eval()
    found, expected = (
        explainer(model, algorithm(distillation='paper'), task, edge='object')(x, EDGES, index=torch.tensor([3, 9]))
        for x in (LAYOUTS[layout], X)
    )
    close = {'rtol': 1e-3, 'atol': 1e-4 * float(expected.node_score.abs().max())}
    torch.testing.assert_close(found.node_score, expected.node_score, **close)
    torch.testing.assert_close(found.edge_score, expected.edge_score, **close)
    many = explainer(model, algorithm(distillation='paper'), task).algorithm
    each = [many.explain_nodes(model, x, EDGES, index=torch.arange(5)).scores.to_dense() for x in (LAYOUTS[layout], X)]
    torch.testing.assert_close(*each, rtol=1e-3, atol=1e-4 * float(each[1].abs().max()))
    surrogate = many.distill(model, LAYOUTS[layout], EDGES)
    assert isinstance(surrogate, Surrogate)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_numbers_must_be_finite(layout):
    x = X.masked_fill(X > 0, torch.nan)
    x = x.to_sparse_csr() if layout == 'csr' else x.to_sparse_coo()
    model = Teacher('gcn', num_features=20).eval()
    with pytest.raises(ValueError, match="'x' must be finite"):
        explainer(model, FastDnX(distillation='paper'))(x, EDGES, index=3)


@pytest.mark.parametrize(
    ('algorithm', 'node'),
    [(ProbeDnX, 'object'), (lambda: FastDnX(distillation='masked'), 'object'), (FastDnX, 'attributes')],
)
def test_what_needs_dense_features_says_so(algorithm, node):
    model = Teacher('gcn', num_features=20).eval()
    with pytest.raises(TypeError, match="'x' must be a dense tensor where"):
        explainer(model, algorithm(), node=node)(LAYOUTS['csr'], EDGES, index=3)
