r"""What all explainers share: inputs, distillation, one explanation and many, for PyG's explain API."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

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

from pyg_dnx import options
from pyg_dnx.distill.cache import SurrogateCache, shared_cache
from pyg_dnx.distill.distill import DEFAULT_RIDGE, DEFAULT_RIDGE_OF_GRAPHS, Recipe
from pyg_dnx.distill.surrogate import Surrogate
from pyg_dnx.explainers.many import Wanted, explain_data_set, explain_each, explain_together
from pyg_dnx.explainers.plan import Plan
from pyg_dnx.graph.filters import FILTERS
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import at_level, num_outputs
from pyg_dnx.results.certificate import DEFAULT_DOUBT
from pyg_dnx.results.explanation import View
from pyg_dnx.results.graph_explanations import GraphExplanations, all_of
from pyg_dnx.results.node_explanations import LinkExplanations, NodeExplanations
from pyg_dnx.results.warnings import one_warning, warn_about_sharing
from pyg_dnx.run import Run
from pyg_dnx.scores.masks import SCALINGS
from pyg_dnx.scores.question import Goal, outputs_of
from pyg_dnx.scores.rules import Rule
from pyg_dnx.tables import Tables
from pyg_dnx.teacher.given import Given
from pyg_dnx.teacher.teacher import ANY_NUMBER, Teacher

_PACKED = torch.nn.Module()  # the cache's key for graphs that are packed, whatever the model
SHARED = ('asked', 'distilled', 'explained')  # in a folder that processes share
Names = Sequence[str] | Mapping[Any, Any] | None


class DistillAndExplain(ExplainerAlgorithm):
    r"""What all explainers share: distil once, explain many times. For the arguments, see FastDnX."""

    _options: tuple[str, ...] = (
        *('num_hops', 'ridge', 'score', 'contrast', 'edge_score', 'mask', 'max_memory', 'doubt'),
        *('distillation', 'num_masks'),
    )
    _edge_scores: tuple[str, ...] = ('endpoints', 'geometric', 'flow', 'drop')

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
        distillation: str | None = None,
        num_masks: int = 8,
        how: str | None = None,
        pair_argument: str = 'edge_label_index',
        target_type: str | None = None,
        filter: str = 'sgc',
        class_names: Names = None,
        feature_names: Names = None,
        node_names: Names = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        options.known(type(self), unknown)
        self.class_names = options.names('class_names', class_names)
        self.feature_names = options.names('feature_names', feature_names)
        self.node_names = options.names('node_names', node_names)
        self.filter = options.choice('filter', filter, tuple(FILTERS))
        if not isinstance(pair_argument, str):
            raise TypeError(
                f"'pair_argument' must be the name of the model's argument that holds pairs (got {pair_argument!r}): "
                f"pass 'edge_label_index', say"
            )
        self.pair_argument = pair_argument
        self.target_type = target_type
        if distillation is not None:
            options.choice('distillation', distillation, ('paper', 'masked'))
        if how is not None:
            options.choice('how', how, ('features', 'nodes'))
        if score is not None:
            options.choice('score', score, ('projection', 'target'))
        self._given: dict[str, Any] = {'distillation': distillation, 'score': score, 'how': how}
        self._take_defaults('node')
        self.num_masks = options.count('num_masks', num_masks)
        self.num_hops = options.hops(num_hops)
        self.ridge = None if ridge is None else options.positive('ridge', ridge)
        self.contrast = options.contrast(contrast)
        self.edge_score = options.choice('edge_score', edge_score, self._edge_scores)
        self.mask = options.choice('mask', mask, tuple(SCALINGS))
        if cache is not None and not isinstance(cache, SurrogateCache):
            raise TypeError(f"'cache' must be a SurrogateCache or None (got {cache!r}): None turns caching off")
        self.cache = cache
        self.max_memory = None if max_memory is None else options.count('max_memory', max_memory)
        self.doubt = options.positive('doubt', doubt)

    def _take_defaults(self, level: str) -> None:
        r"""Sets the options that were left out to what suits a task level."""
        paper = 'paper' if level == 'node' else 'masked'
        self.distillation = self._given['distillation'] or paper
        self.score = self._given['score'] or ('projection' if self.distillation == 'paper' else 'target')
        self.how = self._given['how'] or ('nodes' if level == 'graph' else 'features')

    @abstractmethod
    def _rule(self, teacher: Teacher) -> Rule:
        r"""How outputs are explained."""

    @one_warning()
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
        graph = self._graph(x, edge_index, kwargs)
        if self.explainer_config.edge_mask_type is not None and not graph.has_edge_order:
            raise ValueError(
                f"'edge_index' must be a tensor of shape [2, E] for an edge mask, since only there edges have an order "
                f"(got {type(edge_index).__name__}): pass such a tensor, or drop 'edge_mask_type'"
            )
        explainer, graph = self._at_level_of(graph, self._num_rows(target, graph))
        plan = explainer.plan
        graph.check_batch()
        size, level = num_outputs(graph, plan.level), plan.level
        teacher, outputs = plan.teacher(model, graph), outputs_of(index, size, graph.x.device, level)
        return plan.explain(teacher, graph, outputs, target, self._run())

    def _at_level_of(self, graph: Graph, num_rows: set[int]) -> tuple[DistillAndExplain, Graph]:
        r"""This explainer for what the rows of the output are of, and the graph with their type."""
        before = str(self.model_config.task_level.value)
        level, graph = at_level(graph, before, num_rows, self.target_type)
        return self if level == before else self._at_level(ModelTaskLevel(level)), graph

    def _at_level(self, level: ModelTaskLevel) -> DistillAndExplain:
        found, config = copy.copy(self), copy.copy(self.model_config)
        config.task_level = level
        found.connect(self.explainer_config, config)
        return found

    @one_warning()
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
        edge_probe_outputs: Tensor | np.ndarray | None = None,
        checkpoint: str | PathLike[str] | None = None,
        certify: bool = False,
        progress: bool | None = None,
        group: Any = None,
        part: tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> NodeExplanations:
        r"""Explains each node of ``index`` by itself, with at most one evaluation of the model in all.

        Each mask or probe adds one model evaluation, once for all nodes; a shortlist adds two per listed node.

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
            edge_probe_outputs (Tensor or numpy.ndarray, optional): The same under
                :func:`~pyg_dnx.probe_edge_masks`, for edge masks. Without a model or these, edges go by 'flow'.
            checkpoint (path, optional): A folder to write finished nodes to as they come. After an interruption, the
                same call goes on from there.
            certify (bool): Whether to ask the model what each explanation is worth, as :func:`~pyg_dnx.certify` does:
                if nothing but its ``top_k`` is left, or else of its mask of nodes. (default: ``False``)
            progress (bool, optional): Whether to show progress bars. ``None`` shows them on a terminal, if it takes
                more than a second.
            group (ProcessGroup, optional): The processes that make this same call together, of
                ``torch.distributed``. They share the folder ``checkpoint``, and keep a ``top_k``. Without it, a
                process works by itself.
            part (tuple, optional): ``(k, n)`` explains part k of n, from 0 on, of an array of jobs that share the
                folder ``checkpoint``. ``(0, 1)`` reads all parts, and explains what is missing.
            **kwargs: Further arguments of the model. The surrogate uses ``edge_weight``, and no other.
        """
        self._check_many('node', 'explain_nodes', top_k)
        self._check_arguments(model, kwargs, self.explain_nodes)
        given = teacher_outputs, probe_outputs
        explainer, graph = self._asked(model, self._graph(x, edge_index, kwargs), *given)
        plan, wanted = explainer.plan, Wanted(index, target, top_k, checkpoint, certify)
        teacher, run = (
            plan.teacher(model, graph, *given, edge_probe_outputs),
            self._together(progress, checkpoint, group, part),
        )
        if run.tables is None:
            return explain_each(plan, teacher, graph, wanted, run)
        if top_k is None:
            raise ValueError("'top_k' must be given where several processes share a folder (got None): pass 10, say")
        if certify:
            raise ValueError(
                "'certify' must be False where several processes share a folder (got True): pass each explanation to "
                'pyg_dnx.certify'
            )
        with run.together():
            return explain_together(plan, teacher, graph, wanted, run)

    @one_warning()
    def explain_links(
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
        edge_probe_outputs: Tensor | np.ndarray | None = None,
        checkpoint: str | PathLike[str] | None = None,
        certify: bool = False,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> LinkExplanations:
        r"""Explains each pair of nodes by itself; the model is asked once for all pairs.

        The pairs are those of ``edge_label_index``, or of another argument, named as ``pair_argument``; ``index`` picks
        some of them. For the other arguments, see :meth:`explain_nodes`.
        """
        self._check_many('edge', 'explain_links', top_k)
        self._check_arguments(model, kwargs, self.explain_links)
        given = teacher_outputs, probe_outputs
        explainer, graph = self._asked(model, self._graph(x, edge_index, kwargs), *given)
        plan, wanted = explainer.plan, Wanted(index, target, top_k, checkpoint, certify)
        found = explain_each(
            plan, plan.teacher(model, graph, *given, edge_probe_outputs), graph, wanted, self._run(progress)
        )
        return cast(LinkExplanations, found)

    @one_warning()
    def explain_graphs(
        self,
        model: torch.nn.Module,
        data: Iterable[Any],
        *,
        top_k: int | None = None,
        progress: bool | None = None,
    ) -> GraphExplanations:
        r"""Explains each graph of a data set by itself, batch by batch.

        Args:
            model (torch.nn.Module): The model to explain.
            data (DataLoader, Dataset or list): The graphs. The model gets ``x``, ``edge_index``, ``batch`` and those
                of its further arguments that the data have.
            top_k (int, optional): Keeps only so many scores a graph, the highest.
            progress (bool, optional): Whether to show a progress bar. ``None`` shows it on a terminal, if it takes more
                than a second.
        """
        self._check_many('graph', 'explain_graphs', top_k)
        return explain_data_set(self.plan, model, data, top_k, self._run(progress))

    @one_warning()
    def distill(
        self,
        model: torch.nn.Module | None,
        x: Any,
        edge_index: Any = None,
        *,
        teacher_outputs: Tensor | np.ndarray | None = None,
        probe_outputs: Tensor | np.ndarray | None = None,
        checkpoint: str | PathLike[str] | None = None,
        progress: bool | None = None,
        group: Any = None,
        **kwargs: Any,
    ) -> Surrogate:
        r"""Returns the surrogate that explanations of these inputs use, and distils it if it is not cached.

        ``distill(model, loader)`` distils a model of graphs once, over a data set: a ``DataLoader``, a ``Dataset`` or a
        list of ``Data``. The latest one serves all graphs, until the model changes.

        For the arguments, see :meth:`explain_nodes`.
        """
        if edge_index is None and not isinstance(x, Tensor):
            return self._distill_data_set(model, x, self._run(progress))
        self._check_arguments(model, kwargs, self.distill)
        given = teacher_outputs, probe_outputs
        explainer, graph = self._asked(model, self._graph(x, edge_index, kwargs), *given)
        plan = explainer.plan
        run = self._together(progress, checkpoint, group, None if checkpoint is None or group is not None else (0, 1))
        with run.together():
            return plan.distilled(plan.teacher(model, graph, *given), graph, run).surrogate

    def _distill_data_set(self, model: torch.nn.Module | None, data: Any, run: Run) -> Surrogate:
        self._check_level('graph', 'distill over a data set')
        if model is None:
            raise TypeError("'model' must be a module to be distilled over a data set (got None): pass it")
        return self.plan.distil_data_set(model, all_of(model, data), run)

    def connect(self, explainer_config: ExplainerConfig, model_config: ModelConfig) -> None:
        r"""Takes the configuration of an :class:`~torch_geometric.explain.Explainer`, or says why it can't.

        Another configuration than before takes its place, with a warning.
        """
        known = getattr(self, '_connected', None)  # which a copy has, too, with another id
        self._explainer_config = ExplainerConfig.cast(explainer_config)
        self._model_config = ModelConfig.cast(model_config)
        self._connected = (id(self), copy.copy(self._explainer_config), copy.copy(self._model_config))
        if known is not None and known[0] == id(self) and known != self._connected:
            warn_about_sharing(type(self).__name__.removesuffix('Algorithm'))
        self._take_defaults(str(self._model_config.task_level.value))
        if (reason := self._refusal()) is not None:
            raise ValueError(reason)

    def supports(self) -> bool:
        r"""Whether the connected configuration is supported; :meth:`connect` says why not."""
        return self._refusal() is None

    def _refusal(self) -> str | None:
        level, mode = self.model_config.task_level, self.model_config.mode
        if self.how == 'nodes' and level != ModelTaskLevel.graph:
            return (
                f"'how' must be 'features' at task level '{level.value}' (got 'nodes'), as the explained nodes would "
                f'be removed, too: leave it out'
            )
        if self.contrast is not None and mode == ModelMode.regression:
            return f"'contrast' needs classes (got contrast={self.contrast!r} in mode 'regression'): leave it out"
        return None

    def _check_arguments(self, model: Any, kwargs: dict[str, Any], method: Callable[..., Any]) -> None:
        Teacher(model, self.model_config).check_model()
        options.arguments(kwargs, model, method)

    def _check_level(self, level: str, what: str) -> None:
        if self.model_config.task_level.value != level:
            raise ValueError(
                f"'task_level' must be '{level}' to {what.replace('_', ' ')} (got "
                f"'{self.model_config.task_level.value}'): pass it in 'model_config'"
            )

    @property
    def _needs_surrogate(self) -> bool:
        r"""Whether scores at graph level are made from a surrogate."""
        return True

    @property
    def _takes_given_pairs(self) -> bool:
        r"""Whether a model of links may answer about the given pairs alone."""
        return False

    def _check_many(self, level: str, what: str, top_k: int | None) -> None:
        r"""Refuses what explains no more than one output at a time, and another task level."""
        self._check_level(level, what)
        if top_k is not None:
            options.count('top_k', top_k)

    @property
    def _num_masks(self) -> int:
        r"""How many masks the model is distilled under."""
        return self.num_masks if self.distillation == 'masked' else 0

    @property
    def _num_probes(self) -> int:
        r"""How many masks the model is asked under at most."""
        return self._num_masks

    @property
    def _goal(self) -> Goal:
        by_target = self.explainer_config.explanation_type == ExplanationType.phenomenon
        return Goal(self.model_config, by_target, self.score == 'target', self.contrast)

    def _check_sparse(self, x: Tensor) -> None:
        r"""Sparse features are refused where the model is asked under masks, or features are scored."""
        mask_type = self.explainer_config.node_mask_type
        scores_features = mask_type is not None and mask_type.value != 'object'
        asks = self._num_probes > 0 or self.plan.recipe.num_masks > 0
        if asks or scores_features or self.plan.level != 'node':
            raise TypeError(
                f"'x' must be a dense tensor where a model is asked under masks or features are scored (got {x.layout})"
                f": pass x.to_dense(), or take FastDnX or DnX with distillation='paper' and node_mask_type='object'"
            )

    def _graph(self, x: Any, edge_index: Any, kwargs: dict[str, Any]) -> Graph:
        r"""The arguments of the model; those of a heterogeneous graph are packed once."""
        if isinstance(x, Tensor) and x.layout != torch.strided:
            self._check_sparse(x)
        is_typed = isinstance(x, Mapping) and isinstance(edge_index, Mapping)
        if self.cache is None or not is_typed or len(x) == len(edge_index) == 1:
            return Graph.of(x, edge_index, kwargs, self.pair_argument)
        inputs = (dict(x), dict(edge_index), kwargs, 'packed')

        def create() -> Graph:
            return Graph.of(x, edge_index, kwargs, self.pair_argument).without_source()

        packed = self.cache.get_or_create(_PACKED, inputs, ('packed', self.pair_argument), create)
        return packed.with_source(x, edge_index, kwargs)

    def _asked(
        self, model: torch.nn.Module | None, graph: Graph, outputs: Given, probes: Given
    ) -> tuple[DistillAndExplain, Graph]:
        r"""The same as :meth:`_at_level_of` where nothing but the model tells how many rows the output has."""
        if graph.types is None:
            return self, graph
        if outputs is not None or probes is not None:
            size = outputs.shape[0] if outputs is not None else cast(Tensor, probes).shape[1]
        else:
            size = Teacher(model, self.model_config).query(graph, num_rows=ANY_NUMBER).size(0)
        return self._at_level_of(graph, {size})

    def _num_rows(self, target: Any, graph: Graph) -> set[int]:
        r"""How many rows the output may have, given its target: one number each, or one for each of two columns."""
        size = target.size(0) if isinstance(target, Tensor) and target.dim() > 0 else graph.num_nodes
        is_binary = self.model_config.mode == ModelMode.binary_classification
        return {size, size // 2} if is_binary and size % 2 == 0 and graph.types is not None else {size}

    def _run(self, progress: bool | None = None) -> Run:
        return Run(self.max_memory, progress)

    def _together(
        self,
        progress: bool | None,
        checkpoint: str | PathLike[str] | None,
        group: Any,
        part: tuple[int, int] | None = None,
    ) -> Run:
        r"""How a call runs that several processes may make: with tables in a folder, if they do."""
        run = self._run(progress)
        folder = None if checkpoint is None else Path(checkpoint)
        if group is None and part is None and (folder is None or not (folder / SHARED[1]).exists()):
            return run
        options.processes(group, part, checkpoint)
        if folder is not None and folder.exists() and any(path.name not in SHARED for path in folder.iterdir()):
            raise ValueError(
                f"'checkpoint' must name an empty folder, or one that processes share with the same explanations (got "
                f'{str(checkpoint)!r}, which holds something else): pass another folder'
            )
        return replace(run, group=group, part=part, tables=Tables(cast(Path, folder)))

    @property
    def plan(self) -> Plan:
        r"""What this explainer does, by its options and its configuration."""
        level = self.model_config.task_level
        default = DEFAULT_RIDGE if level == ModelTaskLevel.node else DEFAULT_RIDGE_OF_GRAPHS
        ridge, chooses = (default, level == ModelTaskLevel.edge) if self.ridge is None else (self.ridge, False)
        return Plan(
            config=self.model_config,
            recipe=Recipe(
                self.num_hops, ridge, self.filter, self._num_masks, self.how, chooses, self._takes_given_pairs
            ),
            goal=self._goal,
            rule_of=self._rule,
            view=self._view(),
            cache=self.cache,
            doubt=self.doubt,
            num_probes=self._num_probes,
            needs_surrogate=self._needs_surrogate,
        )

    def _view(self) -> View:
        config = self.explainer_config
        names = (self.class_names, self.feature_names, self.node_names)
        return View(config.node_mask_type, config.edge_mask_type, self.edge_score, self.mask, *names)

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
