r"""The explainers of `"Distill n' Explain" <https://arxiv.org/abs/2303.10139>`_, for PyG's explain API."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.explain.config import MaskType

from pyg_dnx import options as checks
from pyg_dnx.distill.cache import SurrogateCache, shared_cache
from pyg_dnx.distill.distill import Distilled
from pyg_dnx.explainers.base import DistillAndExplain, Inputs
from pyg_dnx.results.certificate import DEFAULT_DOUBT
from pyg_dnx.results.explanation import View
from pyg_dnx.scores.rules import Mixture, Projection


class FastDnXAlgorithm(DistillAndExplain):
    r"""FastDnX of `"Distill n' Explain: explaining graph neural networks using simple surrogates"
    <https://arxiv.org/abs/2303.10139>`_, a closed form.

    The model is distilled, once, into a linear surrogate :math:`Z = \tilde{A}^L X \Theta + b`. Then node :math:`j`
    scores :math:`\tilde{A}^L_{ij} X_j \Theta (Z_i - b)^\top` for node :math:`i`. Several nodes at once are explained
    jointly, by the sum of their scores.

    Args:
        num_hops (int or str, optional): How many hops the surrogate looks. ``None`` is the receptive field of the
            model's PyG layers. ``'auto'`` decides on held-out nodes between 0 and that; so does ``None``, between 0
            and 3, for a model without such layers. (default: ``None``)
        ridge (float, optional): The weight of the penalty on :math:`\Theta`; ``None`` is 1e-5. (default: ``None``)
        score (str): ``'projection'`` scores nodes by their part in the surrogate's logits, as in the paper,
            ``'target'`` by their evidence for the model's class (for regression, toward its output). Explanations of
            type ``'phenomenon'`` always go by the given target. (default: ``'projection'``, and ``'target'`` for
            distillation ``'masked'``)
        contrast (int or str, optional): Scores nodes by why the model's class (or the given target) rather than this
            one; ``'runner_up'`` is the model's second choice. (default: ``None``)
        edge_score (str): ``'endpoints'`` is the paper's sum of the scores of both ends, ``'geometric'`` the geometric
            mean of their positive parts, ``'flow'`` what the edge carries in the surrogate, exactly.
            (default: ``'flow'``)
        mask (str): How scores become masks in [0, 1]: by ``'rank'`` within the neighbourhood, the ``'positive'`` part
            over its maximum, or ``'minmax'``. (default: ``'rank'``)
        cache (SurrogateCache, optional): Where distilled models are kept; ``None`` turns caching off.
            (default: one cache, shared by all explainers)
        max_memory (int, optional): About how many bytes to work in, beyond what goes in and out; ``None`` is half of
            what is free. Propagated features that take more are kept in temporary files. (default: ``None``)
        doubt (float): The expected unfaithfulness above which an explanation is called doubtful, as a distance between
            class probabilities; for regression, in standard deviations of the outputs. (default: ``0.2``)
        distillation (str): ``'paper'`` distils the model's class probabilities through a softmax, from one evaluation.
            ``'masked'`` fits these probabilities themselves, by least squares, also where the features of random nodes
            are blanked, which takes an evaluation for each mask. Hops are chosen as for ``'paper'``. For regression,
            the two differ in the masks only. (default: ``'paper'``)
        num_masks (int): The number of masks for ``'masked'``. (default: ``8``)
    """

    def _rule(
        self, inputs: Inputs, distilled: Distilled, nodes: Tensor, toward: Tensor | None, target: Tensor | None
    ) -> Projection:
        return Projection()


class DnXAlgorithm(DistillAndExplain):
    r"""DnX of `"Distill n' Explain: explaining graph neural networks using simple surrogates"
    <https://arxiv.org/abs/2303.10139>`_, a convex program.

    The model is distilled as for :class:`FastDnXAlgorithm`. Then, for each explained node, the weights on the simplex
    whose mix of contributions comes closest to the surrogate's logits are found: the unique optimum of the paper's
    program with a small entropy term (:mod:`pyg_dnx.scores.simplex`). The explanation also has ``node_weight``, these
    weights, and ``duality_gap``, which certifies the optimum.

    With a target, contributions are projected on its direction first, where all directions give one order: scores are
    those of :class:`FastDnXAlgorithm` then.

    Args:
        num_hops, ridge, score, contrast, edge_score, mask, cache, max_memory, doubt, distillation, num_masks: See
            :class:`FastDnXAlgorithm`.
        epsilon (float): The weight of the entropy, as a share of :math:`\|Z_i - b\|^2` (where contributions cancel,
            of a hundredth of the largest of their squares). (default: ``0.01``)
        prior (str): What the entropy pulls toward: ``'uniform'`` over the neighbourhood, or ``'propagation'``, in
            proportion to :math:`\tilde{A}^L_{ij}`. (default: ``'uniform'``)
        solver (str): ``'newton'`` finds the optimum. ``'adam'`` is the published iterate, a softmax optimised by Adam
            with its last epoch kept, for comparisons only. (default: ``'newton'``)
        epochs (int): The epochs of ``'adam'``. (default: ``100``)
        lr (float): The learning rate of ``'adam'``. (default: ``0.1``)
    """

    _options = (*DistillAndExplain._options, 'epsilon', 'prior', 'solver', 'epochs', 'lr')

    def __init__(
        self,
        num_hops: int | str | None = None,
        ridge: float | None = None,
        score: str | None = None,
        contrast: int | str | None = None,
        edge_score: str = 'flow',
        mask: str = 'rank',
        cache: SurrogateCache | None = shared_cache,
        max_memory: int | None = None,
        doubt: float = DEFAULT_DOUBT,
        *,
        epsilon: float = 0.01,
        prior: str = 'uniform',
        solver: str = 'newton',
        epochs: int = 100,
        lr: float = 0.1,
        distillation: str = 'paper',
        num_masks: int = 8,
    ) -> None:
        options = (num_hops, ridge, score, contrast, edge_score, mask, cache, max_memory, doubt)
        super().__init__(*options, distillation=distillation, num_masks=num_masks)
        self.epsilon = checks.positive('epsilon', epsilon)
        self.prior = checks.choice('prior', prior, ('uniform', 'propagation'))
        self.solver = checks.choice('solver', solver, ('newton', 'adam'))
        self.epochs = checks.count('epochs', epochs)
        self.lr = checks.positive('lr', lr)

    def _rule(
        self, inputs: Inputs, distilled: Distilled, nodes: Tensor, toward: Tensor | None, target: Tensor | None
    ) -> Mixture:
        return Mixture(self.epsilon, self.prior, self.solver, self.epochs, self.lr)

    def _refusal(self) -> str | None:
        config = self.explainer_config
        if self.solver == 'adam' and config.node_mask_type not in (None, MaskType.object):
            return (
                f"'node_mask_type' must be 'object' or None for solver 'adam', which weighs nodes only (got "
                f"'{config.node_mask_type.value}'): use solver 'newton'"
            )
        if self.solver == 'adam' and self.edge_score == 'flow' and config.edge_mask_type is not None:
            return (
                "'edge_score' must be 'endpoints' or 'geometric' for solver 'adam', which weighs nodes only (got "
                "'flow'): pass one of these, or use solver 'newton'"
            )
        return super()._refusal()

    def _view(self, **changes: Any) -> View:
        return super()._view(**{'by_weight': self.solver == 'adam', **changes})
