r"""Models in the wrappers that people train and serve them in: Lightning modules, and models that are compiled."""

import pytest
import torch
from models import Teacher, explainer, graph

from pyg_dnx import FastDnX, ProbeDnX

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning', 'ignore::DeprecationWarning')
ALGORITHMS = [FastDnX, lambda: ProbeDnX(num_probes=6)]


def same_explanations(model, wrapped, algorithms=ALGORITHMS):
    x, edge_index = graph()
    for algorithm in algorithms:
        expected, found = (
            explainer(each, algorithm(), edge='object')(x, edge_index, index=1) for each in (model, wrapped)
        )
        for name in ('node_mask', 'edge_mask', 'node_score', 'edge_score'):
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_lightning_modules_are_explained_as_they_are():
    lightning = pytest.importorskip('lightning')

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Teacher()

        def forward(self, x, edge_index):
            return self.model(x, edge_index)

        def training_step(self, batch, batch_idx):
            raise AssertionError('nobody trains here')

    same_explanations(Teacher().eval(), Lit().eval())


@pytest.mark.parametrize('backend', ['eager', 'inductor'])
def test_compiled_models_are_explained_as_they_are(backend):
    model = Teacher().eval()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    try:
        compiled(*graph())
    except torch._dynamo.exc.BackendCompilerFailed as error:
        pytest.skip(f'{backend} does not run here: {error}')
    same_explanations(model, compiled, ALGORITHMS if backend == 'eager' else ALGORITHMS[:1])
    torch._dynamo.reset()
