r"""A misspelt option is refused, and not taken for an argument that no one reads."""

import pytest
import torch
from models import Teacher, connected, graph
from torch_geometric.nn import Sequential

from pyg_dnx import FastDnX

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
WRONG = {  # and what is meant
    'topk': (5, "'topk' must be an option of 'explain_nodes', or {} .got topk=5.: did you mean 'top_k'"),
    'edge_weigth': (torch.ones(15), "'edge_weigth' must .* .got edge_weigth=Tensor.: did you mean 'edge_weight'"),
    'teacher_output': (None, "'teacher_output' must .* .got teacher_output=None.: did you mean 'teacher_outputs'"),
    'zzz': ('a', "'zzz' must .* .got zzz='a'.: leave it out"),
}


@pytest.mark.parametrize('name', WRONG)
@pytest.mark.parametrize('with_model', [True, False])
def test_unknown_options_are_refused(with_model, name):
    model, inputs = Teacher().eval(), graph()
    value, told = WRONG[name]
    outputs = model(*inputs).detach()
    owner = "an argument of Teacher's 'forward'" if with_model else "'edge_weight'"
    given = {name: value, 'teacher_outputs': outputs}
    with pytest.raises(TypeError, match=told.format(owner)):
        connected(FastDnX()).explain_nodes(model if with_model else None, *inputs, **given)
    if name != 'topk':
        with pytest.raises(TypeError, match=f"'{name}' must be an option of 'distill', or {owner}"):
            connected(FastDnX()).distill(model if with_model else None, *inputs, **given)


class Open(Teacher):
    def forward(self, x, edge_index, **kwargs):
        return kwargs['gain'] * super().forward(x, edge_index)


class Called(Teacher):
    def __call__(self, x, edge_index, gain):
        return gain * super().__call__(x, edge_index)


class Named(Teacher):
    def forward(self, x, edge_index, *, gain):
        return gain * super().forward(x, edge_index)


@pytest.mark.parametrize('kind', [Open, Called, Named])
def test_arguments_of_the_model_are_passed_on(kind):
    inputs = graph()
    found = connected(FastDnX()).distill(kind().eval(), *inputs, gain=2.0)
    assert not found.weight.equal(connected(FastDnX()).distill(kind().eval(), *inputs, gain=1.0).weight)


def test_a_signature_of_anything_takes_anything():
    model, (x, edge_index) = Sequential('x, edge_index, gain', [(lambda x, gain: x * gain, 'x, gain -> x')]), graph()
    connected(FastDnX()).distill(model, x, edge_index, gain=2.0)


def test_models_that_are_no_modules_are_named_first():
    with pytest.raises(TypeError, match=r"'model' must be a torch.nn.Module or None"):
        connected(FastDnX()).explain_nodes('model', *graph(), topk=5)
