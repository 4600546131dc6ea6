r"""One golden case: how it is explained, from what is stored of it, through the public API alone."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Sequential, Tanh
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCNConv, GINConv, SAGEConv

import pyg_dnx

CONVS = {
    'gcn': GCNConv,
    'gin': lambda inputs, outputs: GINConv(Sequential(Linear(inputs, outputs), Tanh(), Linear(outputs, outputs))),
    'sage': SAGEConv,
}
TASKS = {  # the mode, the return type, and the shape of a node's output
    'multiclass raw': ('multiclass_classification', 'raw', (3,)),
    'multiclass probs': ('multiclass_classification', 'probs', (3,)),
    'multiclass log_probs': ('multiclass_classification', 'log_probs', (3,)),
    'binary raw [N]': ('binary_classification', 'raw', ()),
    'binary raw [N, 1]': ('binary_classification', 'raw', (1,)),
    'binary raw [N, 2]': ('binary_classification', 'raw', (2,)),
    'binary probs [N, 1]': ('binary_classification', 'probs', (1,)),
    'binary probs [N, 2]': ('binary_classification', 'probs', (2,)),
    'regression [N]': ('regression', 'raw', ()),
    'regression [N, 2]': ('regression', 'raw', (2,)),
}
OF_EXPLANATION = ('node_mask', 'edge_mask', 'node_score', 'feature_score', 'edge_score', 'node_weight')
OF_TRUST = ('surrogate_agreement', 'distillation_error', 'bias_decides', 'probe_r2')
OF_CERTIFICATE = ('estimate', 'bias_evidence', 'mask_bound', 'expected_unfaithfulness')
OF_CHECK = ('fidelity_plus', 'fidelity_minus', 'unfaithfulness', 'gef')
OF_BOUNDS = ('unfaithfulness', 'surrogate_unfaithfulness', 'alpha', 'errors', 'lemma', 'tight_lemma')


class Teacher(torch.nn.Module):
    r"""Two layers of one kind, and the output that the task asks for. No unit is dead, so that no outputs are tied."""

    def __init__(self, conv: str, task: str) -> None:
        super().__init__()
        _, self.return_type, self.shape = TASKS[task]
        self.conv1 = CONVS[conv](3, 4)
        self.conv2 = CONVS[conv](4, max(1, *self.shape, 0))

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        weight = () if edge_weight is None else (edge_weight,)
        x = self.conv2(self.conv1(x, edge_index, *weight).tanh(), edge_index, *weight)
        if self.return_type == 'raw':
            return x.view(-1, *self.shape)
        if x.size(1) == 1:
            return x.sigmoid()
        return x.log_softmax(dim=1) if self.return_type == 'log_probs' else x.softmax(dim=1)


def target_of(case: dict[str, Any], num_nodes: int) -> Tensor | None:
    r"""What an explanation of type ``'phenomenon'`` is of."""
    if case['explanation_type'] == 'model':
        return None
    mode, _, shape = TASKS[case['task']]
    if mode == 'regression':
        return torch.linspace(-1.0, 2.0, num_nodes * max(1, *shape, 0)).view(num_nodes, *shape).to(case['dtype'])
    return torch.arange(num_nodes) % max(2, *shape, 0)


def explain(case: dict[str, Any], graphs: dict[str, Any], teachers: dict[str, Any]) -> dict[str, list[Any]]:
    r"""What the package finds in a case, by name: a list with an entry for each explanation."""
    x, edge_index, edge_weight = (graphs[case['graph']][name] for name in ('x', 'edge_index', 'edge_weight'))
    x, kwargs = x.to(case['dtype']), {} if edge_weight is None else {'edge_weight': edge_weight.to(case['dtype'])}
    model = Teacher(case['conv'], case['task'])
    model.load_state_dict(teachers[f'{case["conv"]}, {case["task"]}'])
    model = model.to(case['dtype']).eval()
    mode, return_type, _ = TASKS[case['task']]
    options = {**case['options'], **({'feature_score': 'shares'} if case['explainer'] == 'ProbeDnX' else {})}
    explainer = Explainer(
        model,
        getattr(pyg_dnx, case['explainer'])(**options, cache=pyg_dnx.SurrogateCache()),
        explanation_type=case['explanation_type'],
        node_mask_type=case['node_mask_type'],
        edge_mask_type=case['edge_mask_type'],
        model_config={'mode': mode, 'task_level': 'node', 'return_type': return_type},
    )
    target, found = target_of(case, x.size(0)), {}
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', pyg_dnx.SurrogateWarning)
        if case['call'] == 'explain_nodes':
            inputs = (model, x, edge_index)
            options = {
                'index': torch.tensor(case['index']),
                'top_k': case['top_k'],
                'target': target,
                'progress': False,
            }
            many = explainer.algorithm.explain_nodes(*inputs, **options, **kwargs)
            return of_many(many, case['items'])
        for index in case['index']:
            index = index if isinstance(index, int) else torch.tensor(index)
            explanation = explainer(x, edge_index, target=target, index=index, **kwargs)
            add(found, '', {name: explanation.get(name) for name in (*OF_EXPLANATION, *OF_TRUST)})
            if 'certificate' in case['also']:
                add(found, 'certificate', pyg_dnx.certify(explainer, explanation), OF_CERTIFICATE)
            if 'check' in case['also']:
                add(found, 'check', pyg_dnx.check(explainer, explanation, num_hops=2, progress=False), OF_CHECK)
            if 'bounds' in case['also']:
                bounds = pyg_dnx.bound(explainer, explanation, num_perturbations=0, noise=0.1, probability=0.95, seed=0)
                add(found, 'bounds', bounds, OF_BOUNDS)
    return found


def of_many(many: pyg_dnx.NodeExplanations, items: list[int]) -> dict[str, list[Any]]:
    r"""What there is in the explanations of many nodes, and in some of their items."""
    found: dict[str, list[Any]] = {}
    add(found, '', many, ('index', *OF_TRUST))
    add(found, 'surrogate', many.surrogate, ('weight', 'bias'))
    if many.scores is not None:
        add(found, '', {'scores': many.scores.to_dense()})
    if many.certificate is not None:
        add(found, 'certificate', many.certificate, OF_CERTIFICATE)
    add(found, '', dict(zip(('top_nodes', 'top_scores'), many.top_k(3), strict=True)))
    for item in items:
        add(found, 'item', {name: many[item].get(name) for name in (*OF_EXPLANATION, *OF_TRUST)})
    return found


def add(found: dict[str, list[Any]], prefix: str, values: Any, names: tuple[str, ...] = ()) -> None:
    for name in names or values:
        value = values[name] if isinstance(values, dict) else getattr(values, name)
        if value is not None:
            name = 'verdict' if name == 'estimate' else name  # as it was called then
            found.setdefault(f'{prefix}.{name}'.lstrip('.'), []).append(value.tolist())


def compare(found: dict[str, list[Any]], expected: dict[str, list[Any]], case: dict[str, Any]) -> None:
    r"""Checks that what was found is what is stored, and ranks are so wherever scores are not tied.

    Scores may differ by 1e-5 of the largest, what is said of the surrogate and the masks by as much of 1; in float32 by
    ten times that.
    """
    missing = expected.keys() - found.keys()
    assert not missing, f'no longer there: {missing}'
    share = 1e-5 if case['dtype'] == torch.float64 else 1e-4
    for name, stored in expected.items():
        assert len(found[name]) == len(stored), name
        for place, (one, other) in enumerate(zip(found[name], stored, strict=True)):
            where, one, other = f'{name}, explanation {place}', torch.tensor(one), torch.tensor(other)
            assert one.shape == other.shape, where
            if name.endswith('_mask') and case['options']['mask'] == 'rank':
                compare_ranks(one, other, scores_of(expected, name, place), share, where)
            elif name == 'top_nodes':
                if 'scores' in expected:
                    compare_nodes(
                        one, *(torch.tensor(expected[key][0]) for key in ('scores', 'top_scores')), share, where
                    )
            elif one.is_floating_point():
                is_score = name.endswith(('_score', '_weight', '.weight', 'scores'))
                compare_values(one, other, share * (float(other.abs().max()) if is_score else 1.0), where)
            else:
                assert one.equal(other), where


def compare_values(found: Tensor, expected: Tensor, atol: float, where: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=atol, equal_nan=True, msg=lambda m: f'{where}: {m}')


def scores_of(expected: dict[str, list[Any]], mask: str, place: int) -> Tensor:
    r"""The scores that a mask ranks."""
    prefix, _, kind = mask.rpartition('.')
    prefix = f'{prefix}.' if prefix else ''
    names = [f'{prefix}edge_score'] if kind == 'edge_mask' else [f'{prefix}feature_score', f'{prefix}node_score']
    return torch.tensor(next(expected[name] for name in names if name in expected)[place])


def compare_ranks(found: Tensor, expected: Tensor, scores: Tensor, share: float, where: str) -> None:
    flat = scores.flatten()
    apart = (flat[:, None] - flat).abs().fill_diagonal_(torch.inf).amin(dim=1) > 2 * share * flat.abs().max()
    compare_values(found.flatten()[apart], expected.flatten()[apart], 1e-5, where)


def compare_nodes(found: Tensor, scores: Tensor, top: Tensor, share: float, where: str) -> None:
    r"""Nodes must have the scores of the top k, and each must be listed once; which of tied ones come is left open."""
    listed = found >= 0
    assert all(len(set(row[keep].tolist())) == int(keep.sum()) for row, keep in zip(found, listed, strict=True)), where
    values = scores.gather(1, found.clamp(min=0)).masked_fill(~listed, 0.0)
    compare_values(values, top, 2 * share * float(scores.abs().max()), where)
