r"""What surrogates of one graph have in common is there once, and what is on disk is not read to be compared."""

import gc

import numpy as np
import pytest
import torch
from models import Teacher, Versatile, connected, evaluations, explainer, graph

from pyg_dnx import DnX, FastDnX, SurrogateCache, shared_cache

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


def operator_of(algorithm, model, *inputs, **kwargs):
    return connected(algorithm).explain_nodes(model, *inputs, **kwargs)._place.decomposition.operator


def backward(model):
    for conv in (model.conv1, model.conv2):
        conv.flow = 'target_to_source'
    return model


def test_a_graph_has_one_operator():
    model, inputs, weight = Teacher().eval(), graph(), torch.linspace(0.1, 1.0, 15)
    first = operator_of(FastDnX(num_hops=1), model, *inputs, edge_weight=weight)
    assert operator_of(FastDnX(num_hops=2), model, *inputs, edge_weight=weight) is first
    other = Teacher('sage').eval()
    assert operator_of(DnX(ridge=1.0), Teacher().eval(), *inputs, edge_weight=weight) is first
    outputs = other(*inputs).detach()
    assert operator_of(FastDnX(), None, *inputs, edge_weight=weight, teacher_outputs=outputs) is first


@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_single_explanations_share_it_too(kind):
    inputs, models = graph(), [Teacher().eval(), Teacher('gin').eval()]
    for num_hops in [1, 2]:
        for model in models:
            explainer(model, kind(num_hops=num_hops))(*inputs, index=1)
    assert len(shared_cache) == 4
    assert len({id(entry.value.decomposition.operator) for entry in shared_cache._entries}) == 1


def test_another_graph_has_another_operator():
    model, (x, edge_index), weight = Teacher().eval(), graph(), torch.linspace(0.1, 1.0, 15)
    first = operator_of(FastDnX(), model, x, edge_index)
    assert operator_of(FastDnX(num_hops=1), model, x, edge_index) is first
    assert operator_of(FastDnX(num_hops=1), model, x, edge_index.clone()) is not first
    assert operator_of(FastDnX(num_hops=1), model, x.clone(), edge_index) is not first
    assert operator_of(FastDnX(num_hops=1), model, x, edge_index, edge_weight=weight) is not first
    assert operator_of(FastDnX(num_hops=1, cache=SurrogateCache()), model, x, edge_index) is not first
    assert operator_of(FastDnX(num_hops=1, cache=None), model, x, edge_index) is not first


@pytest.mark.parametrize('name', ['x', 'edge_index', 'edge_weight'])
def test_an_edited_graph_has_another_operator(name):
    model, (x, edge_index) = Teacher().eval(), graph()
    inputs = {'x': x, 'edge_index': edge_index, 'edge_weight': torch.linspace(0.1, 1.0, 15)}
    first = operator_of(FastDnX(), model, **inputs)
    inputs[name][0].copy_(inputs[name][1])
    found = operator_of(FastDnX(num_hops=1), model, **inputs)
    assert found is not first
    assert found.value.equal(operator_of(FastDnX(cache=None), model, **inputs).value)


def test_each_flow_has_its_own_operator():
    one, two, inputs = Teacher().eval(), backward(Teacher().eval()), graph('directed')
    forth, back = (operator_of(FastDnX(), model, *inputs) for model in (one, two))
    assert back is not forth
    torch.testing.assert_close(back.csr.to_dense(), forth.csr.to_dense().T)
    assert operator_of(FastDnX(num_hops=1), one, *inputs) is forth
    assert operator_of(FastDnX(num_hops=1), two, *inputs) is back


def test_values_on_a_graph():
    cache, models, (x, edge_index) = SurrogateCache(), [Teacher(), Teacher()], graph()
    given = (x, edge_index, {'scale': 2.0})
    for number, (model, extra) in enumerate(zip([*models, models[0]], [None, x, None], strict=True)):
        cache.get_or_create(model, (given, extra, None), number, lambda number=number: f'value {number}')
    cache.get_or_create(models[0], ((x.clone(), edge_index, {}), None, None), 0, lambda: 'gone with its graph')
    assert cache.values_on(given) == ['value 0', 'value 1', 'value 2']
    assert cache.values_on((x, edge_index, {'scale': 2.0})) == ['value 0', 'value 1', 'value 2']
    assert cache.values_on((x, edge_index, {'scale': 3.0})) == []
    assert cache.values_on((x, edge_index, {})) == []
    assert cache.values_on((x.clone(), edge_index, {'scale': 2.0})) == []
    assert cache.values_on((x.detach(), edge_index, {'scale': 2.0})) == []  # of the same data, but not the same
    assert (cache.hits, cache.misses) == (0, 4)  # looking is not using
    del models[1], model
    gc.collect()
    assert cache.values_on(given) == ['value 0', 'value 2']
    edge_index[0, 0] = 5
    assert cache.values_on(given) == []
    cache.clear()
    assert cache.values_on(given) == []


def test_arrays_on_disk_are_compared_by_identity(tmp_path):
    np.save(tmp_path / 'extra.npy', np.zeros(3))
    first, second = (np.load(tmp_path / 'extra.npy', mmap_mode='r') for _ in range(2))
    model, inputs, algorithm = Versatile().eval(), graph(), connected(FastDnX())
    with evaluations(model, 2):
        known = algorithm.distill(model, *inputs, extra=first)
        assert algorithm.distill(model, *inputs, extra=first) is known
        other = algorithm.distill(model, *inputs, extra=second)  # of the same file: equal, but not the same
        assert other is not known
        assert algorithm.distill(model, *inputs, extra=second) is other
    del first
    gc.collect()
    assert len(shared_cache) == 1  # and none is kept alive
    assert algorithm.distill(model, *inputs, extra=second) is other
