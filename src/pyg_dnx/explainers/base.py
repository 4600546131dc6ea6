r"""What all explainers share: inputs, distillation, one explanation and many, for PyG's explain API."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from os import PathLike
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch
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
from pyg_dnx.checkpoint import Checkpoint, sketch
from pyg_dnx.distill.cache import SurrogateCache, shared_cache
from pyg_dnx.distill.distill import (
    DEFAULT_RIDGE,
    DEFAULT_RIDGE_OF_GRAPHS,
    Distilled,
    Recipe,
    distill,
    distill_graphs,
    no_surrogate,
    place,
)
from pyg_dnx.distill.links import distill_links
from pyg_dnx.distill.surrogate import Surrogate
from pyg_dnx.files import digest
from pyg_dnx.graph.copies import part
from pyg_dnx.graph.filters import FILTERS
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import num_outputs
from pyg_dnx.graph.rows import Rows
from pyg_dnx.results.certificate import DEFAULT_DOUBT, judge
from pyg_dnx.results.explanation import View, build, join_parts
from pyg_dnx.results.graph_explanations import GraphExplanations, ScoredGraphs, arguments_of, batches_of
from pyg_dnx.results.node_explanations import LinkExplanations, NodeExplanations, Place, Request
from pyg_dnx.results.warnings import warn_about_randomness, warn_if_doubtful, warn_if_not_converged
from pyg_dnx.run import Run
from pyg_dnx.scores.batch import score
from pyg_dnx.scores.masks import SCALINGS
from pyg_dnx.scores.question import Goal, Question, outputs_of
from pyg_dnx.scores.rules import Rule
from pyg_dnx.teacher.probes import NUM_FIXED_MASKS
from pyg_dnx.teacher.teacher import Teacher

_data_sets = SurrogateCache()  # surrogates of data sets, where other caching is turned off
_NO_MODEL = torch.nn.Module()  # the cache's key where only the outputs of a model are known


class DistillAndExplain(ExplainerAlgorithm):
    r"""What all explainers share: distil once, explain many times. For the arguments, see FastDnX."""

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
        distillation: str | None = None,
        num_masks: int = 8,
        how: str | None = None,
        pair_argument: str = 'edge_label_index',
        filter: str = 'sgc',
    ) -> None:
        super().__init__()
        self.filter = options.choice('filter', filter, tuple(FILTERS))
        if not isinstance(pair_argument, str):
            raise TypeError(
                f"'pair_argument' must be the name of the model's argument that holds pairs (got {pair_argument!r}): "
                f"pass 'edge_label_index', say"
            )
        self.pair_argument = pair_argument
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
        self.edge_score = options.choice('edge_score', edge_score, ('endpoints', 'geometric', 'flow'))
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
        graph = Graph.of(x, edge_index, kwargs, self.pair_argument)
        if self.explainer_config.edge_mask_type is not None and not graph.has_edge_order:
            raise ValueError(
                f"'edge_index' must be a tensor of shape [2, E] for an edge mask, since only there edges have an order "
                f"(got {type(edge_index).__name__}): pass such a tensor, or drop 'edge_mask_type'"
            )
        teacher, run = self._teacher(model, graph), self._run()
        outputs = outputs_of(index, num_outputs(graph, teacher.level), x.device)
        if self._explains_parts(teacher) and graph.kwargs.get('batch') is not None:
            return self._explain_parts(teacher, graph, outputs, target, run)
        explanation = self._explain(teacher, graph, outputs, target, run)
        if teacher.level == 'graph':
            explanation.how = self.how
        return explanation

    def _explain(self, teacher: Teacher, graph: Graph, outputs: Tensor, target: Tensor, run: Run) -> Explanation:
        distilled = self._distill(teacher, graph, run, target)
        with torch.no_grad():
            question, rule = self._goal.question(distilled, outputs, target), self._rule(teacher)
            state = rule.prepare(teacher, graph, distilled, question, run)
            effects = rule.effects(distilled.decomposition, state, question, run=run)
            trust = effects.trust or distilled.trust(outputs)
            explanation = build(distilled.decomposition, question, effects, trust, graph, self._view())
        warn_if_doubtful(trust, distilled, outputs, self.doubt, question.direction is not None)
        return explanation

    def _explain_parts(self, teacher: Teacher, graph: Graph, outputs: Tensor, target: Tensor, run: Run) -> Explanation:
        r"""Explains some graphs of a batch, each by a surrogate of its own, distilled from copies of it."""
        found, size = [], num_outputs(graph, teacher.level)
        for number in outputs.unique().tolist():
            one, nodes, edges = part(graph, number, size)
            goal = target.reshape(size, -1)[number : number + 1]
            goal = goal if self.model_config.mode == ModelMode.regression and target.dim() > 1 else goal.view(-1)
            first = torch.zeros(1, dtype=torch.long, device=nodes.device)
            found.append((self._explain(teacher, one, first, goal, run), nodes, edges))
        explanation = join_parts(found, graph, self._view())
        explanation.how = self.how
        return explanation

    def _explains_parts(self, teacher: Teacher) -> bool:
        r"""Whether each graph of a batch is explained by itself, as there is no surrogate of a data set."""
        return teacher.level == 'graph' and self._needs_surrogate and self._data_set_surrogate(teacher) is None

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
            checkpoint (path, optional): A folder to write finished nodes to as they come. After an interruption, the
                same call goes on from there.
            progress (bool, optional): Whether to show progress bars. ``None`` shows them on a terminal, if it takes
                more than a second.
            **kwargs: Further arguments of the model. The surrogate uses ``edge_weight``, and no other.
        """
        self._check_level('node', 'explain_nodes')
        self._check_arguments(model, kwargs, self.explain_nodes)
        graph = Graph.of(x, edge_index, kwargs, self.pair_argument)
        teacher = self._teacher(model, graph, teacher_outputs, probe_outputs)
        return self._explain_many(teacher, graph, index, target, top_k, checkpoint, self._run(progress))

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
        checkpoint: str | PathLike[str] | None = None,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> LinkExplanations:
        r"""Explains each pair of nodes by itself; the model is asked once for all pairs.

        The pairs are those of ``edge_label_index``, or of another argument, named as ``pair_argument``; ``index`` picks
        some of them. For the other arguments, see :meth:`explain_nodes`.
        """
        self._check_level('edge', 'explain_links')
        self._check_arguments(model, kwargs, self.explain_links)
        graph = Graph.of(x, edge_index, kwargs, self.pair_argument)
        teacher = self._teacher(model, graph, teacher_outputs, probe_outputs)
        found = self._explain_many(teacher, graph, index, target, top_k, checkpoint, self._run(progress))
        return cast(LinkExplanations, found)

    def _explain_many(
        self,
        teacher: Teacher,
        graph: Graph,
        index: Any,
        target: Tensor | None,
        top_k: int | None,
        checkpoint: str | PathLike[str] | None,
        run: Run,
    ) -> NodeExplanations:
        if top_k is not None:
            options.count('top_k', top_k)
        self._check_many()
        outputs = outputs_of(index, num_outputs(graph, teacher.level), graph.x.device)
        distilled = self._distill(teacher, graph, run)
        decomposition = distilled.decomposition
        with torch.no_grad():
            question, rule = self._goal.question(distilled, outputs, target), self._rule(teacher)
            state = rule.prepare(teacher, graph, distilled, question, run)
            with ExitStack() as stack:
                kept = None
                if checkpoint is not None:
                    identity = self._identity(teacher, graph, distilled, question, state)
                    identity |= {'rule': repr(rule), 'top_k': top_k}
                    kept = stack.enter_context(Checkpoint(checkpoint, outputs, identity))
                found = score(decomposition, question, rule, state, top_k, run, kept)
        trust = found.trust or distilled.trust(outputs)
        warn_if_doubtful(trust, distilled, outputs, self.doubt, question.direction is not None)
        view = self._view() if graph.has_edge_order else self._view()._replace(edge_mask_type=None)
        target = distilled.answers.target if target is None else target
        size = graph.num_nodes
        request = Request(distilled.surrogate, rule, state, question, view, self.model_config, size, target)
        kind = LinkExplanations if teacher.level == 'edge' else NodeExplanations
        place = Place(decomposition, graph)
        if found.top is None:
            return kind(cast(Rows, found.rows).matrix(size), None, trust, None, request, place)
        change = rule.change(distilled, state, question, trust, found.top[2])
        certificate = judge(distilled, question, trust, change, self.doubt)
        return kind(None, found.top[:2], trust, certificate, request, place)

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
        self._check_level('graph', 'explain_graphs')
        if top_k is not None:
            options.count('top_k', top_k)
        self._check_many()
        found = []
        for batch in self._run(progress).bar('Explaining', 'batches', batches_of(data)):
            graph = arguments_of(model, batch)
            teacher = self._teacher(model, graph)
            size = num_outputs(graph, 'graph')
            each = [graph]
            if self._explains_parts(teacher):
                each = [part(graph, number, size)[0] for number in range(size)]
            found += [self._explain_all(teacher, one, batch.get('y'), top_k) for one in each]
        return GraphExplanations(found, data, self._view(), self.model_config)

    def _explain_all(self, teacher: Teacher, graph: Graph, target: Tensor | None, top_k: int | None) -> ScoredGraphs:
        r"""Scores all graphs of a batch, each by itself."""
        run = self._run()
        distilled = self._distill(teacher, graph, run)
        outputs = torch.arange(distilled.outputs.size(0), device=graph.x.device)
        with torch.no_grad():
            question, rule = self._goal.question(distilled, outputs, target), self._rule(teacher)
            state = rule.prepare(teacher, graph, distilled, question, run)
            rows = distilled.decomposition.rows(outputs)
            effects = rule.effects(distilled.decomposition, state, question, rows, run)
            scores = effects.scores(distilled.decomposition, outputs, rows)
        trust = effects.trust or distilled.trust(outputs)
        return ScoredGraphs(graph, distilled, question, effects, rows._replace(value=scores), trust, top_k)

    def distill(
        self,
        model: torch.nn.Module | None,
        x: Any,
        edge_index: Any = None,
        *,
        teacher_outputs: Tensor | np.ndarray | None = None,
        probe_outputs: Tensor | np.ndarray | None = None,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> Surrogate:
        r"""Returns the surrogate that explanations of these inputs use, and distils it if it is not cached.

        ``distill(model, loader)`` distils a model of graphs once, over a data set: a ``DataLoader``, a ``Dataset`` or a
        list of ``Data``. The latest one serves all graphs, until the model changes.

        For the arguments, see :meth:`explain_nodes`.
        """
        if edge_index is None:
            return self._distill_data_set(model, x, self._run(progress))
        self._check_arguments(model, kwargs, self.distill)
        graph = Graph.of(x, edge_index, kwargs, self.pair_argument)
        teacher = self._teacher(model, graph, teacher_outputs, probe_outputs)
        return self._distill(teacher, graph, self._run(progress)).surrogate

    def _distill_data_set(self, model: torch.nn.Module | None, data: Any, run: Run) -> Surrogate:
        self._check_level('graph', 'distill over a data set')
        if model is None:
            raise TypeError("'model' must be a module to be distilled over a data set (got None): pass it")
        graph = arguments_of(
            model, Batch.from_data_list([item for one in batches_of(data) for item in one.to_data_list()])
        )
        graph.check_content()
        teacher = self._teacher(model, graph)
        with torch.no_grad():
            surrogate = distill_graphs(teacher, graph, self._recipe, run)
        self._data_sets.put(model, ('data set',), self._data_set_key, surrogate)
        return surrogate

    @property
    def _data_sets(self) -> SurrogateCache:
        return _data_sets if self.cache is None else self.cache

    @property
    def _data_set_key(self) -> tuple[Any, ...]:
        return ('data set', self.model_config.mode, self.model_config.return_type, self._recipe)

    def _data_set_surrogate(self, teacher: Teacher) -> Surrogate | None:
        r"""The latest surrogate that was distilled over a data set, unless the model has changed since."""
        if teacher.model is None:
            return None
        return self._data_sets.get(teacher.model, ('data set',), self._data_set_key)

    def connect(self, explainer_config: ExplainerConfig, model_config: ModelConfig) -> None:
        r"""Takes the configuration of an :class:`~torch_geometric.explain.Explainer`, or says why it can't."""
        self._explainer_config = ExplainerConfig.cast(explainer_config)
        self._model_config = ModelConfig.cast(model_config)
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

    def _check_many(self) -> None:
        r"""Refuses options that explain no more than one node at a time."""

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

    def _run(self, progress: bool | None = False) -> Run:
        return Run(self.max_memory, progress)

    def _teacher(
        self,
        model: torch.nn.Module | None,
        graph: Graph,
        teacher_outputs: Tensor | np.ndarray | None = None,
        probe_outputs: Tensor | np.ndarray | None = None,
    ) -> Teacher:
        teacher = Teacher(model, self.model_config, teacher_outputs, probe_outputs)
        teacher.check(graph, self._num_probes + NUM_FIXED_MASKS, self._num_masks > 0)
        return teacher

    def _identity(
        self, teacher: Teacher, graph: Graph, distilled: Distilled, question: Question, state: Any
    ) -> dict[str, Any]:
        r"""By what these explanations differ from others: what was given exactly, what was computed up to rounding."""
        outputs, evidence, config = distilled.outputs, distilled.decomposition.evidence, self.model_config
        known = {} if state is None else {'answers': state.answers}
        pairs = graph.kwargs.get(graph.pair_argument)
        return {
            'graph': digest(graph.x, graph.edge_index, graph.kwargs.get('edge_weight'), pairs),
            'teacher_outputs': digest(teacher.given),
            'probe_outputs': digest(teacher.given_probes),
            'mode': f'{config.task_level.value} {config.mode.value} {config.return_type.value}',
            'num_hops': distilled.decomposition.num_hops,
            'target': question.direction,
            'model': outputs[question.outputs],
            'surrogate': evidence[question.outputs],
            'model (all nodes)': sketch(outputs),
            'surrogate (all nodes)': sketch(evidence),
            **known,
        }

    @property
    def _recipe(self) -> Recipe:
        default = DEFAULT_RIDGE if self.model_config.task_level == ModelTaskLevel.node else DEFAULT_RIDGE_OF_GRAPHS
        ridge = default if self.ridge is None else self.ridge
        return Recipe(self.num_hops, ridge, self.filter, self._num_masks, self.how)

    def _distill(self, teacher: Teacher, graph: Graph, run: Run, target: Tensor | None = None) -> Distilled:
        config, model = self.model_config, _NO_MODEL if teacher.model is None else teacher.model
        recipe, known = self._recipe, None
        if teacher.level == 'graph' and self._needs_surrogate:
            known = self._data_set_surrogate(teacher)
        inputs = (graph.x, graph.edge_index, graph.kwargs)

        def is_current(distilled: Distilled, is_certain: bool = True) -> bool:
            if not is_certain and teacher.given is None and teacher.given_probes is None:
                with torch.no_grad():
                    outputs = teacher.outputs(graph, distilled.outputs.dtype).values
                if not distilled.is_as(outputs):
                    return False
            # PyG has just evaluated the model: if it now predicts otherwise, it is not the one that was distilled.
            by_model = self.explainer_config.explanation_type == ExplanationType.model
            return target is None or not by_model or distilled.predicts(target)

        def create() -> Distilled:
            graph.check_content()
            for other in [] if self.cache is None else self.cache.values_on(inputs):
                operator = other.decomposition.operator
                graph.operators[other.surrogate.flow, operator.value.dtype] = operator
            with torch.no_grad():
                distilled = self._distil(teacher, graph, recipe, run, known)
            warn_if_not_converged(distilled)
            if not is_current(distilled):
                warn_about_randomness()
            return distilled

        if self.cache is None:
            return create()
        seen = (inputs, teacher.given, teacher.given_probes)
        key = (config.task_level, config.mode, config.return_type, recipe, self._needs_surrogate, known)
        return self.cache.get_or_create(model, seen, key, create, is_current)

    def _distil(self, teacher: Teacher, graph: Graph, recipe: Recipe, run: Run, known: Surrogate | None) -> Distilled:
        if teacher.level == 'node':
            return distill(teacher, graph, recipe, run)
        if known is None and not self._needs_surrogate:
            known = no_surrogate(teacher, graph, recipe, teacher.outputs(graph).values.size(1))
        elif known is None and teacher.level == 'graph':
            known = distill_graphs(teacher, graph, recipe, run)
        elif known is None:
            num_hops = recipe.candidates(teacher.reach)[-1]
            known = distill_links(teacher, graph, num_hops, recipe.num_masks, self.ridge, run)
        return place(known, teacher, graph)

    def _view(self) -> View:
        config = self.explainer_config
        return View(config.node_mask_type, config.edge_mask_type, self.edge_score, self.mask)

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
