import models
import pytest
import torch
from models import Masked, Probes, connected, evaluations, graph
from torch_geometric.nn import GCNConv, SGConv

from pyg_dnx import FastDnX, probe_masks
from pyg_dnx.graph.graph import Graph
from pyg_dnx.run import Run
from pyg_dnx.teacher.probes import Bits
from pyg_dnx.teacher.teacher import Teacher


@pytest.mark.parametrize('num_nodes', [1, 8, 100])
@pytest.mark.parametrize('num_probes', [0, 1, 2, 7, 128])
def test_masks_come_in_complementary_pairs(num_nodes, num_probes):
    masks = probe_masks(num_nodes, num_probes)
    assert masks.shape == (num_probes + 2, num_nodes)
    assert masks.dtype == torch.bool
    assert masks[0].all()
    assert not masks[1].any()
    for first in range(2, num_probes + 1, 2):
        assert masks[first].equal(~masks[first + 1])


def test_pairs_keep_as_many_nodes_as_they_should():
    num_nodes = 40_000
    for pair, mask in enumerate(probe_masks(num_nodes, 64)[2::2]):
        rate = 0.1 + 0.8 * ((0.618034 * pair + 0.5) % 1.0)
        deviation = (rate * (1 - rate) / num_nodes) ** 0.5
        assert float(mask.double().mean()) == pytest.approx(rate, abs=5 * deviation)


def test_nodes_and_pairs_are_independent():
    masks = probe_masks(20_000, 32)[2::2].double()
    correlation = torch.corrcoef(masks) - torch.eye(16, dtype=torch.float64)
    assert correlation.abs().max() < 5 / 20_000**0.5
    within = (masks - masks.mean(dim=1, keepdim=True)) / masks.std(dim=1, keepdim=True)
    assert (within[:, 1:] * within[:, :-1]).mean(dim=1).abs().max() < 5 / 20_000**0.5


@pytest.mark.parametrize('fewer', [0, 1, 5, 64, 127])
def test_fewer_probes_are_the_first_of_more(fewer):
    assert probe_masks(50, fewer).equal(probe_masks(50)[: fewer + 2])
    assert probe_masks(50).shape == (1026, 50)


def test_they_are_the_same_in_every_call():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = probe_masks(30, 9)
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(6)
    assert probe_masks(30, 9).equal(first)


def test_default_device_is_not_used():
    torch.set_default_device('meta')
    try:
        masks = probe_masks(5, 3)
        assert masks.is_cpu
        assert Bits.of(masks).bytes.is_cpu
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize('num_masks', [1, 7, 8, 9, 16, 130])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.bool])
def test_bits_keep_masks(num_masks, dtype):
    masks = torch.rand(num_masks, 11, generator=torch.Generator().manual_seed(0)) < 0.5
    bits = Bits.of(masks)
    assert bits.num_pairs == num_masks
    assert (bits.bytes.dtype, bits.bytes.shape) == (torch.uint8, (11, (num_masks + 7) // 8))
    for nodes in (torch.arange(11), torch.tensor([3, 3, 0]), torch.tensor([[1, 2], [10, 4]])):
        found = bits.at(nodes, dtype)
        assert found.dtype == dtype
        assert found.equal(masks.T[nodes].to(dtype))


class Cached(torch.nn.Module):
    r"""Layers that keep what they computed for the features, or the edges, that they saw first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = SGConv(3, 4, K=1, cached=True)
        self.conv2 = GCNConv(4, 3, cached=True)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def twin(model):
    r"""The same model, without what it keeps."""
    other = Cached().eval()
    other.load_state_dict(model.state_dict())
    for layer in (other.conv1, other.conv2):
        layer.cached = False
    return other


@pytest.mark.parametrize('warm', [True, False])
def test_layers_that_keep_things_are_asked_anew(warm):
    model, (x, edge_index) = Cached().eval(), graph()
    if warm:
        model(x, edge_index)
    kept = [vars(layer).copy() for layer in (model.conv1, model.conv2)]
    config, masks = connected(FastDnX()).model_config, probe_masks(8, 5)
    found = list(Teacher(model, config).probe(Graph(x, edge_index, {}), masks, Run(), first=0))
    with torch.no_grad():
        expected = [twin(model)(x * mask[:, None], edge_index).softmax(dim=1) for mask in masks]
    torch.testing.assert_close(torch.stack(found).float(), torch.stack(expected))
    assert all(vars(layer) == before for layer, before in zip((model.conv1, model.conv2), kept, strict=True))


@pytest.mark.parametrize('algorithm', [FastDnX, Masked, Probes])
def test_layers_that_have_kept_nothing_yet_keep_nothing(algorithm):
    model, (x, edge_index) = Cached().eval(), graph()
    kept = [vars(layer).copy() for layer in (model.conv1, model.conv2)]
    connected(algorithm()).explain_nodes(model, x, edge_index, progress=False)
    assert all(vars(layer) == before for layer, before in zip((model.conv1, model.conv2), kept, strict=True))
    other = torch.tensor([[0, 1, 2], [1, 2, 3]])
    with torch.no_grad():
        assert model(x.flip(0), other).equal(twin(model)(x.flip(0), other))  # not as of the graph that was explained


@pytest.mark.parametrize('task', ['multiclass raw', 'binary raw [N]', 'binary probs [N, 2]', 'regression [N]'])
@pytest.mark.parametrize('first', [0, 1, 2])
def test_outputs_stand_for_the_model(task, first):
    model, (x, edge_index), run = models.Teacher(task=task).eval(), graph(), Run()
    config, masks, inputs = connected(FastDnX(), task).model_config, probe_masks(8, 5), Graph(x, edge_index, {})
    with torch.no_grad():
        outputs = torch.stack([model(x * mask[:, None], edge_index) for mask in probe_masks(8, 6)])
    with evaluations(model, 7 - first):
        expected = list(Teacher(model, config).probe(inputs, masks, run, first))
    with evaluations(model, 0):
        found = list(Teacher(model, config, given_probes=outputs).probe(inputs, masks, run, first))
    assert len(found) == len(expected) == 7 - first
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float64
        assert one.shape == (8, {'multiclass raw': 3, 'regression [N]': 1}.get(task, 2))
        assert one.equal(other)
    with evaluations(model, 1):  # and it is asked as it goes
        next(Teacher(model, config).probe(inputs, masks, run, first))


def test_masks_do_not_depend_on_the_default_type():
    masks = probe_masks(50, 8)
    torch.set_default_dtype(torch.float64)
    try:
        assert probe_masks(50, 8).equal(masks)
    finally:
        torch.set_default_dtype(torch.float32)
