r"""The two explainers of `"Distill n' Explain" <https://arxiv.org/abs/2303.10139>`_, for PyG's explain API."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain import Explanation
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.config import (
    ExplainerConfig,
    ExplanationType,
    MaskType,
    ModelConfig,
    ModelMode,
    ModelTaskLevel,
)

from pyg_dnx import checks
from pyg_dnx.batch import NodeExplanations, score_nodes, to_csr
from pyg_dnx.cache import SurrogateCache, shared_cache
from pyg_dnx.directions import Directions, mixture, projection, toward_target
from pyg_dnx.distillation import DEFAULT_RIDGE, Distilled, Settings, distill
from pyg_dnx.explanation import View, to_explanation, warn_about_randomness, warn_if_doubtful, warn_if_not_converged
from pyg_dnx.masks import SCALINGS
from pyg_dnx.propagation import is_edge_list
from pyg_dnx.simplex import solve, solve_adam
from pyg_dnx.surrogate import Surrogate
from pyg_dnx.teacher import receptive_field

MAX_HOPS_OF_UNKNOWN_MODEL = 3


class DistillAndExplain(ExplainerAlgorithm):
    r"""What FastDnX and DnX share: distil once, explain many times. For the arguments, see FastDnX."""

    _options: tuple[str, ...] = ('num_hops', 'ridge', 'score', 'contrast', 'edge_score', 'mask')

    def __init__(
        self,
        num_hops: int | str | None = None,
        ridge: float | None = None,
        score: str = 'projection',
        contrast: int | str | None = None,
        edge_score: str = 'flow',
        mask: str = 'rank',
        cache: SurrogateCache | None = shared_cache,
    ) -> None:
        super().__init__()
        self.num_hops = checks.hops(num_hops)
        self.ridge = None if ridge is None else checks.positive('ridge', ridge)
        self.score = checks.choice('score', score, ('projection', 'target'))
        self.contrast = checks.contrast(contrast)
        self.edge_score = checks.choice('edge_score', edge_score, ('endpoints', 'geometric', 'flow'))
        self.mask = checks.choice('mask', mask, tuple(SCALINGS))
        self.cache = checks.cache(cache)

    @abstractmethod
    def _directions(self, distilled: Distilled, nodes: Tensor, toward: Tensor | None) -> Directions:
        r"""Returns the directions along which contributions to ``nodes`` [B] are scored.

        Args:
            distilled: The distilled model.
            nodes: The explained nodes [B].
            toward: The directions [B, C] of their targets; ``None`` explains the surrogate's own logits.
        """

    def forward(
        self,
        model: torch.nn.Module,
        x: Tensor,
        edge_index: Any,
        *,
        target: Tensor,
        index: int | Tensor | None = None,
        **kwargs: Any,
    ) -> Explanation:
        r"""Explains the model's outputs at ``index``; several nodes, or all, are explained jointly.

        Args:
            model (torch.nn.Module): The model to explain.
            x (Tensor): The node features [N, F].
            edge_index: The graph, as the model takes it. Edge masks need a tensor of shape [2, E].
            target (Tensor): The target of each node, [N]; the model's own for explanations of type ``'model'``.
            index (int or Tensor, optional): The nodes to explain: an id, ids, or a boolean mask. ``None`` is all.
            **kwargs: Further arguments of the model. The surrogate uses ``edge_weight``, and no other.
        """
        checks.graph(x, edge_index, kwargs)
        if self.explainer_config.edge_mask_type is not None and not is_edge_list(edge_index):
            raise ValueError(
                f"'edge_index' must be a tensor of shape [2, E] for an edge mask, since only there edges have an order "
                f"(got {type(edge_index).__name__}): pass such a tensor, or drop 'edge_mask_type'"
            )
        nodes = checks.index(index, x)
        distilled = self._distill(model, x, edge_index, kwargs, target)
        with torch.no_grad():
            directions = self._directions(distilled, nodes, self._toward(distilled, nodes, target))
            explanation = to_explanation(distilled, nodes, directions, x, edge_index, self._view())
        warn_if_doubtful(explanation.surrogate_agreement, distilled, nodes)
        return explanation

    def explain_nodes(
        self,
        model: torch.nn.Module,
        x: Tensor,
        edge_index: Any,
        *,
        index: int | Tensor | None = None,
        top_k: int | None = None,
        target: Tensor | None = None,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> NodeExplanations:
        r"""Explains each node of ``index`` by itself, with at most one evaluation of the model in all.

        Args:
            model (torch.nn.Module): The model to explain.
            x (Tensor): The node features [N, F].
            edge_index: The graph, as the model takes it.
            index (int or Tensor, optional): The nodes to explain: an id, ids, or a boolean mask. ``None`` is all.
            top_k (int, optional): Keeps only so many scores a node, the highest, which bounds the memory.
            target (Tensor, optional): The target of each node, [N], for explanations of type ``'phenomenon'``.
            progress (bool, optional): Whether to show a progress bar. ``None`` shows it on a terminal.
            **kwargs: Further arguments of the model. The surrogate uses ``edge_weight``, and no other.
        """
        checks.graph(x, edge_index, kwargs)
        if top_k is not None:
            checks.count('top_k', top_k)
        if self._view().by_weight:
            raise ValueError("'solver' must be 'newton' to explain many nodes (got 'adam'): explain one node at a time")
        nodes = checks.index(index, x)
        distilled = self._distill(model, x, edge_index, kwargs)
        with torch.no_grad():
            toward = self._toward(distilled, nodes, target)
            found = score_nodes(distilled, nodes, toward, self._directions, top_k, progress)
        trust = distilled.trust(nodes)
        warn_if_doubtful(trust['surrogate_agreement'], distilled, nodes)
        view = self._view() if is_edge_list(edge_index) else self._view(edge_mask_type=None)
        scores = to_csr(x.size(0), *found) if top_k is None else None

        def explain(b: int) -> Explanation:
            own = nodes[b : b + 1]
            with torch.no_grad():
                directions = self._directions(distilled, own, None if toward is None else toward[b : b + 1])
                explanation = to_explanation(distilled, own, directions, x, edge_index, view)
            explanation._model_config = self.model_config
            explanation._model_args = list(kwargs)
            given = {'x': x, 'edge_index': edge_index, 'index': own, 'prediction': None}
            explanation.update({**given, **kwargs, 'target': distilled.target if target is None else target})
            return explanation

        return NodeExplanations(nodes, scores, None if top_k is None else found, trust, explain)

    def distill(self, model: torch.nn.Module, x: Tensor, edge_index: Any, **kwargs: Any) -> Surrogate:
        r"""Returns the surrogate that explanations of these inputs use, and distils it if it is not cached."""
        checks.graph(x, edge_index, kwargs)
        return self._distill(model, x, edge_index, kwargs).surrogate

    def connect(self, explainer_config: ExplainerConfig, model_config: ModelConfig) -> None:
        r"""Takes the configuration of an :class:`~torch_geometric.explain.Explainer`, or says why it can't."""
        self._explainer_config = ExplainerConfig.cast(explainer_config)
        self._model_config = ModelConfig.cast(model_config)
        if (reason := self._refusal()) is not None:
            raise ValueError(reason)

    def supports(self) -> bool:
        r"""Whether the connected configuration is supported; :meth:`connect` says why not."""
        return self._refusal() is None

    def _refusal(self) -> str | None:
        level, mode = self.model_config.task_level, self.model_config.mode
        if level != ModelTaskLevel.node:
            return (
                f"'task_level' must be 'node' for {type(self).__name__} (got '{level.value}'): explain the nodes that "
                f'the prediction is made from, or use GNNExplainer'
            )
        if self.contrast is not None and mode == ModelMode.regression:
            return f"'contrast' needs classes (got contrast={self.contrast!r} in mode 'regression'): leave it out"
        return None

    def _distill(
        self, model: torch.nn.Module, x: Tensor, edge_index: Any, kwargs: dict[str, Any], target: Tensor | None = None
    ) -> Distilled:
        config = self.model_config
        reach = receptive_field(model)
        if isinstance(self.num_hops, int):
            hops: tuple[int, ...] = (self.num_hops,)
        elif self.num_hops is None and reach is not None:
            hops = (reach,)
        else:
            hops = tuple(range((MAX_HOPS_OF_UNKNOWN_MODEL if reach is None else reach) + 1))
        ridge = DEFAULT_RIDGE if self.ridge is None else self.ridge
        settings = Settings((config.mode.value, config.return_type.value), hops, ridge, self._flow(model))

        def is_current(distilled: Distilled) -> bool:
            # PyG has just evaluated the model: if it now predicts otherwise, it is not the one that was distilled.
            by_model = self.explainer_config.explanation_type == ExplanationType.model
            return target is None or not by_model or distilled.predicts(target)

        def create() -> Distilled:
            checks.content(x, edge_index, kwargs.get('edge_weight'))
            with torch.no_grad():
                distilled = distill(model, x, edge_index, kwargs, config, settings)
            warn_if_not_converged(distilled)
            if not is_current(distilled):
                warn_about_randomness()
            return distilled

        if self.cache is None:
            return create()
        return self.cache.get_or_create(model, (x, edge_index, kwargs), settings, create, is_current)

    def _toward(self, distilled: Distilled, nodes: Tensor, target: Tensor | None) -> Tensor | None:
        config = self.model_config
        if self.explainer_config.explanation_type == ExplanationType.phenomenon:
            goal = checks.target(target, nodes, distilled.outputs, config)
        elif self.score == 'target' or self.contrast is not None:
            goal = distilled.outputs[nodes]
            goal = goal if config.mode == ModelMode.regression else goal.argmax(dim=1)
        else:
            return None
        checks.contrast_class(self.contrast, goal, distilled.outputs.size(1))
        return toward_target(distilled, nodes, goal, self.contrast)

    def _view(self, **changes: Any) -> View:
        config = self.explainer_config
        masks = {'node_mask_type': config.node_mask_type, 'edge_mask_type': config.edge_mask_type}
        return View(edge_score=self.edge_score, mask=self.mask, **{**masks, **changes})

    def __repr__(self) -> str:
        return f'{type(self).__name__}({", ".join(f"{name}={getattr(self, name)!r}" for name in self._options)})'


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
        ridge (float, optional): The weight of the penalty on :math:`\Theta`; ``None`` is 1.5e-6. (default: ``None``)
        score (str): ``'projection'`` scores nodes by their part in the surrogate's logits, as in the paper,
            ``'target'`` by their evidence for the model's class (for regression, toward its output). Explanations of
            type ``'phenomenon'`` always go by the given target. (default: ``'projection'``)
        contrast (int or str, optional): Scores nodes by why the model's class (or the given target) rather than this
            one; ``'runner_up'`` is the model's second choice. (default: ``None``)
        edge_score (str): ``'endpoints'`` is the paper's sum of the scores of both ends, ``'geometric'`` the geometric
            mean of their positive parts, ``'flow'`` what the edge carries in the surrogate, exactly.
            (default: ``'flow'``)
        mask (str): How scores become masks in [0, 1]: by ``'rank'`` within the neighbourhood, the ``'positive'`` part
            over its maximum, or ``'minmax'``. (default: ``'rank'``)
        cache (SurrogateCache, optional): Where distilled models are kept; ``None`` turns caching off.
            (default: one cache, shared by all explainers)
    """

    def _directions(self, distilled: Distilled, nodes: Tensor, toward: Tensor | None) -> Directions:
        return Directions(projection(distilled, nodes) if toward is None else toward)


class DnXAlgorithm(DistillAndExplain):
    r"""DnX of `"Distill n' Explain: explaining graph neural networks using simple surrogates"
    <https://arxiv.org/abs/2303.10139>`_, a convex program.

    The model is distilled as for :class:`FastDnXAlgorithm`. Then, for each explained node, the weights on the simplex
    whose mix of contributions comes closest to the surrogate's logits are found: the unique optimum of the paper's
    program with a small entropy term (:mod:`pyg_dnx.simplex`). The explanation also has ``node_weight``, these
    weights, and ``duality_gap``, which certifies the optimum.

    With a target, contributions are projected on its direction first, where all directions give one order: scores are
    those of :class:`FastDnXAlgorithm` then.

    Args:
        num_hops, ridge, score, contrast, edge_score, mask, cache: See :class:`FastDnXAlgorithm`.
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
        score: str = 'projection',
        contrast: int | str | None = None,
        edge_score: str = 'flow',
        mask: str = 'rank',
        cache: SurrogateCache | None = shared_cache,
        *,
        epsilon: float = 0.01,
        prior: str = 'uniform',
        solver: str = 'newton',
        epochs: int = 100,
        lr: float = 0.1,
    ) -> None:
        super().__init__(num_hops, ridge, score, contrast, edge_score, mask, cache)
        self.epsilon = checks.positive('epsilon', epsilon)
        self.prior = checks.choice('prior', prior, ('uniform', 'propagation'))
        self.solver = checks.choice('solver', solver, ('newton', 'adam'))
        self.epochs = checks.count('epochs', epochs)
        self.lr = checks.positive('lr', lr)

    def _directions(self, distilled: Distilled, nodes: Tensor, toward: Tensor | None) -> Directions:
        if self.solver == 'adam':
            return mixture(distilled, nodes, toward, self.prior, partial(solve_adam, epochs=self.epochs, lr=self.lr))
        return mixture(distilled, nodes, toward, self.prior, partial(solve, epsilon=self.epsilon))

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
