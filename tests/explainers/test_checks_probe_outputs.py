r"""Bad outputs of probes, given in the model's place, get a sentence that names them."""

import numpy as np
import pytest
import torch
from checks_case import EDGES, NAN, X, poke, refused
from models import Probes, Teacher, connected

from pyg_dnx import FastDnX

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

GOOD = torch.zeros(8, 8, 3)  # under the first two masks and six more
PROBE_OUTPUTS = [
    (GOOD.tolist(), "'probe_outputs' must be a tensor or a NumPy array (got list): stack what the model returns"),
    (Teacher(), '(got Teacher)'),
    (GOOD[:7], "'probe_outputs' must have shape [8, 8] or [8, 8, C], what the model returns under each of"),
    (GOOD[:7], '(got [7, 8, 3]): ask it under all of them'),
    (GOOD[:, :5], '(got [8, 5, 3])'),
    (GOOD[0, 0], '(got [3])'),
    (GOOD[None], '(got [1, 8, 8, 3])'),
    (GOOD[:, :, :0], '(got [8, 8, 0])'),
    (GOOD[:0], '(got [0, 8, 3])'),
    (GOOD.cfloat(), "'probe_outputs' must hold real numbers, densely (got torch.complex64): convert them"),
    (GOOD.numpy().astype('complex128'), "'probe_outputs' must hold real numbers, densely (got complex128)"),
    (GOOD.to_sparse(), "'probe_outputs' must hold real numbers, densely"),
    (np.array([[['a'] * 3] * 8] * 8), "'probe_outputs' must hold real numbers, densely"),
    (poke(GOOD, NAN), 'must return finite outputs (got NaN or infinity at 1 of 8 rows)'),
    (poke(GOOD.flip(0), NAN).flip(0), 'must return finite outputs (got NaN or infinity at 1 of 8 rows)'),
]


@pytest.mark.parametrize(('outputs', 'text'), PROBE_OUTPUTS)
@pytest.mark.parametrize('known', [Teacher().eval(), None])
def test_probe_outputs(outputs, text, known):
    for algorithm in (Probes(), Probes(max_memory=1), FastDnX(distillation='masked', num_masks=6)):
        explain = connected(algorithm).explain_nodes
        refused(lambda explain=explain: explain(known, X, EDGES, probe_outputs=outputs), text)
        assert explain(known, X, EDGES, probe_outputs=GOOD).scores.values().isfinite().all()


@pytest.mark.parametrize('columns', [1, 2, 4])
def test_probe_outputs_are_of_the_model_of_the_teacher_outputs(columns):
    given = {'teacher_outputs': torch.zeros(8, 3), 'probe_outputs': torch.zeros(8, 8, columns)}
    text = f"'probe_outputs' must have the shape of 'teacher_outputs', [8, 3], under each mask (got [8, {columns}]): "
    for algorithm in (Probes(), Probes(max_memory=1), FastDnX(distillation='masked', num_masks=6)):
        refused(lambda algorithm=algorithm: connected(algorithm).distill(None, X, EDGES, **given), text)


def test_probe_outputs_begin_with_the_teacher_outputs():
    outputs = torch.randn(8, 8, 3, generator=torch.Generator().manual_seed(0))
    for known in (outputs[0].flip(0), outputs[0].flip(0).numpy()):
        given = {'teacher_outputs': known, 'probe_outputs': outputs}
        refused(lambda given=given: connected(Probes()).distill(None, X, EDGES, **given), "must begin with 'teacher_")
    given = {'teacher_outputs': outputs[0].numpy() * (1 + 1e-5), 'probe_outputs': outputs}
    for device in (None, 'meta'):  # which is not used
        torch.set_default_device(device)
        try:
            assert connected(Probes(cache=None)).distill(None, X, EDGES, **given).num_hops >= 0
        finally:
            torch.set_default_device(None)
