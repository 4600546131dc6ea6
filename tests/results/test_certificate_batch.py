r"""What explanations of many nodes at once are worth: as of each alone, in pieces, interrupted, and saved."""

import copy
import pickle

import pytest
import torch
from certificate_case import ROUNDED, Case, compare, is_same, quiet
from models import in_chunks

from pyg_dnx import Certificate, DnX, FastDnX, NodeExplanations, certify
from pyg_dnx.distill.decomposition import Decomposition

SETTINGS = {  # the algorithm, the task, and the type of explanation
    'FastDnX': (FastDnX(), 'multiclass raw', 'model'),
    'FastDnX, 0 hops': (FastDnX(num_hops=0), 'multiclass raw', 'model'),
    'FastDnX, 3 hops': (FastDnX(num_hops=3, doubt=0.01), 'binary raw [N, 1]', 'model'),
    'FastDnX, target': (FastDnX(num_hops=1, score='target'), 'regression [N, 2]', 'model'),
    'FastDnX, phenomenon': (FastDnX(), 'multiclass raw', 'phenomenon'),
    'DnX': (DnX(), 'multiclass raw', 'model'),
    'DnX, regression': (DnX(num_hops=1), 'regression [N]', 'model'),
}
INDEX = torch.tensor([3, 5, 0, 6, 0])  # node 6 is alone


def explain_top(name, top_k, index=INDEX, entries=None, **options):
    algorithm, task, explanation_type = SETTINGS[name]
    algorithm = algorithm if entries is None else in_chunks(copy.copy(algorithm), entries)
    case = Case(algorithm, task, 'uneven', explanation_type=explanation_type, edge='object')
    target = torch.arange(8) % 3 if explanation_type == 'phenomenon' else None
    given = {'index': index, 'top_k': top_k, 'target': target, **case.kwargs, **options}
    return case, case.explainer.algorithm.explain_nodes(case.model, *case.inputs, **given)


@quiet
@pytest.mark.parametrize('name', SETTINGS)
@pytest.mark.parametrize('top_k', [1, 3, 6])
def test_certificates_of_the_top_judge_a_hard_mask(name, top_k):
    case, explained = explain_top(name, top_k, certify=True)
    nodes = explained.top_k(top_k)[0]
    assert top_k == 1 or (nodes[3] < 0).sum() == top_k - 1
    for b, item in enumerate(explained):
        item.node_mask = torch.zeros(8, 1)
        item.node_mask[[node for node in nodes[b].tolist() if node >= 0]] = 1.0
        del item.edge_mask
        single = certify(case.explainer, item)
        assert is_same(explained.certificate.at(torch.tensor([b])), single, **ROUNDED)
        rows = case.by_hand([int(item.index)], item.node_mask, None)
        compare(single, item.index.tolist(), rows, **ROUNDED)


@quiet
@pytest.mark.parametrize('name', ['FastDnX', 'DnX', 'FastDnX, phenomenon'])
def test_chunks_change_no_certificate(name, monkeypatch):
    whole = explain_top(name, 3, None)[1].certificate
    calls, rows = [], Decomposition.rows
    monkeypatch.setattr(Decomposition, 'rows', lambda *args: calls.append(1) or rows(*args))
    found = explain_top(name, 3, None, entries=12)[1].certificate
    assert len(calls) > 2
    assert is_same(found, whole, rtol=1e-3, atol=1e-6)


@quiet
@pytest.mark.parametrize('name', ['FastDnX', 'DnX'])
def test_certificates_outlive_an_interruption(name, tmp_path, monkeypatch):
    whole = explain_top(name, 3, None)[1].certificate
    calls, scores = [], Decomposition.scores

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return scores(*args)

    monkeypatch.setattr(Decomposition, 'scores', interrupted)
    with pytest.raises(KeyboardInterrupt):
        explain_top(name, 3, None, entries=12, checkpoint=tmp_path / 'folder')
    found = explain_top(name, 3, None, entries=12, checkpoint=tmp_path / 'folder')[1].certificate
    assert is_same(found, whole, rtol=1e-3, atol=1e-6)
    done = len(calls)
    again = explain_top(name, 3, None, entries=12, checkpoint=tmp_path / 'folder')[1].certificate
    assert len(calls) == done
    assert is_same(again, found)


@quiet
@pytest.mark.parametrize('name', ['FastDnX', 'DnX, regression'])
@pytest.mark.parametrize('with_graph', [True, False])
def test_certificates_are_saved_and_pickled(name, with_graph, tmp_path):
    case, explained = explain_top(name, 3, certify=True)
    assert is_same(pickle.loads(pickle.dumps(explained)).certificate, explained.certificate)
    explained.save(tmp_path / 'saved.pt')
    given = (case.inputs, case.kwargs) if with_graph else ((), {})
    loaded = NodeExplanations.load(tmp_path / 'saved.pt', *given[0], **given[1])
    assert isinstance(loaded.certificate, Certificate)
    assert is_same(loaded.certificate, explained.certificate)
    if with_graph:
        assert is_same(certify(case.explainer, loaded[1]), certify(case.explainer, explained[1]), **ROUNDED)


@quiet
def test_without_a_top_there_is_no_certificate(tmp_path):
    explained = explain_top('FastDnX', None)[1]
    explained.save(tmp_path / 'saved.pt')
    assert explained.certificate is NodeExplanations.load(tmp_path / 'saved.pt').certificate is None
