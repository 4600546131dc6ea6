r"""DnX of `"Distill n' Explain" <https://arxiv.org/abs/2303.10139>`_, for PyG's explain API."""

from __future__ import annotations

from typing import Any

from torch_geometric.explain.config import MaskType

from pyg_dnx import options
from pyg_dnx.distill.cache import SurrogateCache, shared_cache
from pyg_dnx.explainers.base import DistillAndExplain
from pyg_dnx.results.certificate import DEFAULT_DOUBT
from pyg_dnx.scores.rules import Mixture
from pyg_dnx.teacher.teacher import Teacher


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
        num_hops, ridge, score, contrast, edge_score, mask, cache, max_memory, doubt: See :class:`FastDnXAlgorithm`.
        epsilon (float): The weight of the entropy, as a share of :math:`\|Z_i - b\|^2` (where contributions cancel,
            of a hundredth of the largest of their squares). (default: ``0.01``)
        prior (str): What the entropy pulls toward: ``'uniform'`` over the neighbourhood, or ``'propagation'``, in
            proportion to :math:`\tilde{A}^L_{ij}`. (default: ``'uniform'``)
        solver (str): ``'newton'`` finds the optimum. ``'adam'`` is the published iterate, a softmax optimised by Adam
            with its last epoch kept, for comparisons only. (default: ``'newton'``)
        epochs (int): The epochs of ``'adam'``. (default: ``100``)
        lr (float): The learning rate of ``'adam'``. (default: ``0.1``)
        **shared: The other options of :class:`FastDnXAlgorithm`.
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
        **shared: Any,
    ) -> None:
        first = (num_hops, ridge, score, contrast, edge_score, mask, cache, max_memory, doubt)
        super().__init__(*first, **shared)
        self.epsilon = options.positive('epsilon', epsilon)
        self.prior = options.choice('prior', prior, ('uniform', 'propagation'))
        self.solver = options.choice('solver', solver, ('newton', 'adam'))
        self.epochs = options.count('epochs', epochs)
        self.lr = options.positive('lr', lr)

    def _rule(self, teacher: Teacher) -> Mixture:
        return Mixture(self.epsilon, self.prior, self.solver, self.epochs, self.lr)

    def _check_many(self, level: str, what: str, top_k: int | None) -> None:
        super()._check_many(level, what, top_k)
        if self.solver == 'adam':
            raise ValueError("'solver' must be 'newton' to explain many nodes (got 'adam'): explain one node at a time")

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
