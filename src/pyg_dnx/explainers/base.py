r"""What all algorithms share: inputs, distillation, one explanation and many, for PyG's explain API."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.explain import Explainer, Explanation
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.config import (
    ExplainerConfig,
    ExplanationType,
    ModelConfig,
    ModelMode,
    ModelTaskLevel,
)

from pyg_dnx import options as checks
from pyg_dnx.checkpoint import Checkpoint, sketch
from pyg_dnx.distill.cache import SurrogateCache, shared_cache
from pyg_dnx.distill.distill import DEFAULT_RIDGE, Distilled, Settings, distill
from pyg_dnx.distill.surrogate import Surrogate
from pyg_dnx.files import digest
from pyg_dnx.graph.operator import is_edge_list
from pyg_dnx.graph.rows import Rows
from pyg_dnx.results.certificate import DEFAULT_DOUBT
from pyg_dnx.results.explanation import (
    View,
    to_explanation,
    warn_about_randomness,
    warn_if_doubtful,
    warn_if_not_converged,
)
from pyg_dnx.results.node_explanations import Graph, NodeExplanations, Request
from pyg_dnx.run import budget
from pyg_dnx.scores.batch import score_nodes
from pyg_dnx.scores.masks import SCALINGS
from pyg_dnx.scores.rules import Rule, toward_target
from pyg_dnx.teacher.probes import UNDRAWN
from pyg_dnx.teacher.teacher import query, receptive_field, to_targets

MAX_HOPS_OF_UNKNOWN_MODEL = 3
_NO_MODEL = torch.nn.Module()  # stands for one of which only the outputs are known


class Inputs(NamedTuple):
    r"""A model and its arguments, or what it returns for them."""

    model: torch.nn.Module | None
    x: Tensor
    edge_index: Any
    kwargs: dict[str, Any]
    teacher_outputs: Tensor | np.ndarray | None = None
    probe_outputs: Tensor | np.ndarray | None = None
    progress: bool | None = False


class DistillAndExplain(ExplainerAlgorithm):
    r"""What all algorithms share: distil once, explain many times. For the arguments, see FastDnX."""

    _options: tuple[str, ...] = (
        *('num_hops', 'ridge', 'score', 'contrast', 'edge_score', 'mask', 'max_memory', 'doubt'),
        *('distillation', 'num_masks'),
    )

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
        distillation: str = 'paper',
        num_masks: int = 8,
    ) -> None:
        super().__init__()
        self.distillation = checks.choice('distillation', distillation, ('paper', 'masked'))
        self.num_masks = checks.count('num_masks', num_masks)
        self.num_hops = checks.hops(num_hops)
        self.ridge = None if ridge is None else checks.positive('ridge', ridge)
        if score is None:
            score = 'projection' if distillation == 'paper' else 'target'
        self.score = checks.choice('score', score, ('projection', 'target'))
        self.contrast = checks.contrast(contrast)
        self.edge_score = checks.choice('edge_score', edge_score, ('endpoints', 'geometric', 'flow'))
        self.mask = checks.choice('mask', mask, tuple(SCALINGS))
        self.cache = checks.cache(cache)
        self.max_memory = None if max_memory is None else checks.count('max_memory', max_memory)
        self.doubt = checks.positive('doubt', doubt)

    @abstractmethod
    def _rule(
        self, inputs: Inputs, distilled: Distilled, nodes: Tensor, toward: Tensor | None, target: Tensor | None
    ) -> Rule:
        r"""How nodes are scored for ``nodes`` [B], whose targets are in the directions ``toward`` [B, C], if any."""

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
        inputs = Inputs(model, x, edge_index, kwargs)
        distilled = self._distill(inputs, target)
        with torch.no_grad():
            toward = self._toward(distilled, nodes, target)
            rule = self._rule(inputs, distilled, nodes, toward, target)
            directions = rule(distilled.decomposition, nodes, toward)
            trust = {**distilled.trust(nodes), **(directions.trust or {})}
            explanation = to_explanation(distilled.decomposition, nodes, directions, trust, x, edge_index, self._view())
        warn_if_doubtful(trust, distilled, nodes, self.doubt, toward is not None)
        return explanation

    def explain_nodes(
        self,
        model: torch.nn.Module | None,
        x: Tensor,
        edge_index: Any,
        *,
        index: int | Tensor | None = None,
        top_k: int | None = None,
        target: Tensor | None = None,
        teacher_outputs: Tensor | np.ndarray | None = None,
        probe_outputs: Tensor | np.ndarray | None = None,
        checkpoint: str | PathLike[str] | None = None,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> NodeExplanations:
        r"""Explains each node of ``index`` by itself, with at most one evaluation of the model in all.

        Masks and probes take one each besides, once for all nodes, and a shortlist two for each node on it.

        Args:
            model (torch.nn.Module): The model to explain; ``None`` if only its ``teacher_outputs`` are known.
            x (Tensor): The node features [N, F]; they may be memory-mapped.
            edge_index: The graph, as the model takes it. A ``torch.sparse_csr`` matrix saves sorting it, and may be
                memory-mapped.
            index (int or Tensor, optional): The nodes to explain: an id, ids, or a boolean mask. ``None`` is all.
            top_k (int, optional): Keeps only so many scores a node, the highest, which bounds the memory.
            target (Tensor, optional): The target of each node, [N], for explanations of type ``'phenomenon'``.
            teacher_outputs (Tensor or numpy.ndarray, optional): What the model returns for all nodes, [N] or [N, C],
                if it is known already, from a ``NeighborLoader`` say: the model is not evaluated then. It may be
                memory-mapped.
            probe_outputs (Tensor or numpy.ndarray, optional): What the model returns under each of
                :func:`~pyg_dnx.probe_masks`, [P, N] or [P, N, C], for algorithms that ask for that: the model is not
                evaluated then. The first are its ``teacher_outputs``. It may be memory-mapped.
            checkpoint (path, optional): A folder to write finished nodes to as they come. After an interruption, the
                same call goes on from there.
            progress (bool, optional): Whether to show progress bars. ``None`` shows them on a terminal, if it takes
                more than a second.
            **kwargs: Further arguments of the model. The surrogate uses ``edge_weight``, and no other.
        """
        checks.graph(x, edge_index, kwargs)
        checks.model(model)
        checks.arguments(kwargs, model, self.explain_nodes)
        if top_k is not None:
            checks.count('top_k', top_k)
        if self._view().by_weight:
            raise ValueError("'solver' must be 'newton' to explain many nodes (got 'adam'): explain one node at a time")
        inputs = self._inputs(model, x, edge_index, kwargs, teacher_outputs, probe_outputs, progress)
        nodes = checks.index(index, x)
        distilled = self._distill(inputs)
        view = self._view() if is_edge_list(edge_index) else self._view(edge_mask_type=None)
        decomposition, surrogate = distilled.decomposition, distilled.surrogate
        with torch.no_grad():
            toward = self._toward(distilled, nodes, target)
            rule = self._rule(inputs, distilled, nodes, toward, target)
            with ExitStack() as stack:
                kept = None
                if checkpoint is not None:
                    identity = self._identity(inputs, distilled, nodes, toward, rule, top_k)
                    kept = stack.enter_context(Checkpoint(checkpoint, nodes, identity))
                found, more = score_nodes(decomposition, nodes, toward, rule, top_k, self.max_memory, progress, kept)
        trust = {**distilled.trust(nodes), **more}
        warn_if_doubtful(trust, distilled, nodes, self.doubt, toward is not None)
        target = distilled.target if target is None else target
        request = Request(surrogate, rule, view, self.model_config, x.size(0), target, toward)
        graph = Graph(decomposition, x, edge_index, kwargs)
        if top_k is None:
            return NodeExplanations(nodes, Rows(*found).matrix(x.size(0)), None, trust, None, request, graph)
        *top, evidence = found
        certified = rule.judge(distilled, nodes, evidence, top[1].sum(dim=1), trust, self.doubt)
        return NodeExplanations(nodes, None, tuple(top), trust, certified, request, graph)

    def distill(
        self,
        model: torch.nn.Module | None,
        x: Tensor,
        edge_index: Any,
        *,
        teacher_outputs: Tensor | np.ndarray | None = None,
        probe_outputs: Tensor | np.ndarray | None = None,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> Surrogate:
        r"""Returns the surrogate that explanations of these inputs use, and distils it if it is not cached.

        For the arguments, see :meth:`explain_nodes`.
        """
        checks.graph(x, edge_index, kwargs)
        checks.model(model)
        checks.arguments(kwargs, model, self.distill)
        return self._distill(
            self._inputs(model, x, edge_index, kwargs, teacher_outputs, probe_outputs, progress)
        ).surrogate

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

    @property
    def _num_masks(self) -> int:
        r"""How many masks the model is distilled under."""
        return self.num_masks if self.distillation == 'masked' else 0

    @property
    def _num_probes(self) -> int:
        r"""How many masks the model is asked under at most."""
        return self._num_masks

    def _inputs(
        self,
        model: torch.nn.Module | None,
        x: Tensor,
        edge_index: Any,
        kwargs: dict[str, Any],
        teacher_outputs: Tensor | np.ndarray | None,
        probe_outputs: Tensor | np.ndarray | None,
        progress: bool | None,
    ) -> Inputs:
        checks.model(model)
        if teacher_outputs is not None:
            checks.teacher_outputs(teacher_outputs, model, x)
        if probe_outputs is not None:
            checks.probe_outputs(probe_outputs, x, self._num_probes + UNDRAWN, teacher_outputs)
        elif model is None and self._num_masks > 0:
            raise TypeError(
                "'model' must be a module unless 'probe_outputs' is given, as the model is asked under masks for "
                "distillation 'masked' (got None): pass one of them, or distillation 'paper'"
            )
        elif teacher_outputs is None:
            checks.teacher_outputs(None, model, x)
        return Inputs(model, x, edge_index, kwargs, teacher_outputs, probe_outputs, progress)

    def _identity(
        self, inputs: Inputs, distilled: Distilled, nodes: Tensor, toward: Tensor | None, rule: Rule, top_k: int | None
    ) -> dict[str, Any]:
        r"""What tells these explanations from others: what was given exactly, what was computed up to rounding."""
        outputs, evidence, config = distilled.outputs, distilled.decomposition.evidence, self.model_config
        return {
            'graph': digest(inputs.x, inputs.edge_index, inputs.kwargs.get('edge_weight')),
            'teacher_outputs': digest(inputs.teacher_outputs),
            'probe_outputs': digest(inputs.probe_outputs),
            'mode': f'{config.mode.value} {config.return_type.value}',
            'top_k': top_k,
            'num_hops': distilled.surrogate.num_hops,
            'target': toward,
            'model': outputs[nodes],
            'surrogate': evidence[nodes],
            'model (all nodes)': sketch(outputs),
            'surrogate (all nodes)': sketch(evidence),
            **rule.identity(),
        }

    def _distill(self, inputs: Inputs, target: Tensor | None = None) -> Distilled:
        config, x, edge_index, kwargs = self.model_config, inputs.x, inputs.edge_index, inputs.kwargs
        model = _NO_MODEL if inputs.model is None else inputs.model
        ridge = DEFAULT_RIDGE if self.ridge is None else self.ridge
        options = (config.mode, config.return_type, self.num_hops, ridge, self._num_masks)

        def is_current(distilled: Distilled, is_certain: bool = True) -> bool:
            if not is_certain and inputs.teacher_outputs is None and inputs.probe_outputs is None:
                with torch.no_grad():
                    outputs = to_targets(query(model, *graph), config, distilled.outputs.dtype, x.device)[0]
                if not distilled.answers(outputs):
                    return False
            # PyG has just evaluated the model: if it now predicts otherwise, it is not the one that was distilled.
            by_model = self.explainer_config.explanation_type == ExplanationType.model
            return target is None or not by_model or distilled.predicts(target)

        graph = (x, edge_index, kwargs)

        def create() -> Distilled:
            checks.content(x, edge_index, kwargs.get('edge_weight'))
            settings = Settings(self._hops(model), ridge, self._flow(model), self._num_masks)
            known = [] if self.cache is None else self.cache.values_on(graph)
            operators = [other.decomposition.operator for other in known if other.surrogate.flow == settings.flow]
            outputs = inputs.teacher_outputs
            if outputs is None and inputs.probe_outputs is not None:
                outputs = inputs.probe_outputs[0]
            with torch.no_grad():
                distilled = distill(
                    model,
                    *graph,
                    config,
                    settings,
                    operator=operators[0] if operators else None,
                    teacher_outputs=outputs,
                    probe_outputs=inputs.probe_outputs,
                    max_bytes=budget(self.max_memory, x.device),
                    progress=inputs.progress,
                )
            warn_if_not_converged(distilled)
            if not is_current(distilled):
                warn_about_randomness()
            return distilled

        if self.cache is None:
            return create()
        seen = (graph, inputs.teacher_outputs, inputs.probe_outputs)
        return self.cache.get_or_create(model, seen, options, create, is_current)

    def _hops(self, model: torch.nn.Module) -> tuple[int, ...]:
        r"""The candidates for the number of hops."""
        if isinstance(self.num_hops, int):
            return (self.num_hops,)
        reach = receptive_field(model)
        if self.num_hops is None and reach is not None:
            return (reach,)
        return tuple(range((MAX_HOPS_OF_UNKNOWN_MODEL if reach is None else reach) + 1))

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


def algorithm_of(explainer: Explainer) -> DistillAndExplain:
    r"""The algorithm of an explainer, which must be one of this package's."""
    algorithm = explainer.algorithm
    if not isinstance(algorithm, DistillAndExplain):
        raise TypeError(
            f"'explainer' must have an algorithm with a surrogate (got {type(algorithm).__name__}): use FastDnX, DnX "
            f'or ProbeDnX'
        )
    return algorithm
