r"""What an explainer does: where its distilled model comes from, and one explanation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric.explain import Explanation
from torch_geometric.explain.config import ModelConfig, ModelMode

from pyg_dnx.checkpoint import Checkpoint
from pyg_dnx.distill.cache import SurrogateCache
from pyg_dnx.distill.distill import Distilled, Memo, Recipe, Trust, distill, no_surrogate, place
from pyg_dnx.distill.graphs import distill_graphs
from pyg_dnx.distill.links import distill_links
from pyg_dnx.distill.surrogate import Surrogate
from pyg_dnx.graph.copies import part
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.operator import is_csr, shared_adjacency
from pyg_dnx.graph.readout import num_outputs
from pyg_dnx.results.explanation import View, join_parts, scored, shown
from pyg_dnx.results.graph_warnings import is_saturated, warn_about_graphs, warn_about_mixing, warn_about_saturation
from pyg_dnx.results.warnings import warn_about_randomness, warn_if_doubtful, warn_if_not_converged
from pyg_dnx.run import Run
from pyg_dnx.scores.question import Goal, Question
from pyg_dnx.scores.rules import Rule
from pyg_dnx.teacher.probes import NUM_FIXED_MASKS
from pyg_dnx.teacher.teacher import Teacher

_data_sets = SurrogateCache()  # surrogates of data sets, where other caching is turned off
_NO_MODEL = torch.nn.Module()  # the cache's key where only the outputs of a model are known


@dataclass(frozen=True, eq=False)
class Plan:
    r"""What an explainer does, whatever it is asked about.

    Args:
        config: What the model returns.
        recipe: How the model is distilled.
        goal: How outputs get their directions.
        rule_of: How outputs of a model are explained.
        view: What the user wants to see.
        cache: Where distilled models are kept, if anywhere.
        doubt: The expected unfaithfulness above which an explanation is called doubtful.
        num_probes: How many masks the model is asked under at most.
        needs_surrogate: Whether scores are made from a surrogate; else it only says who is whose neighbour.
    """

    config: ModelConfig
    recipe: Recipe
    goal: Goal
    rule_of: Callable[[Teacher], Rule]
    view: View
    cache: SurrogateCache | None
    doubt: float
    num_probes: int
    needs_surrogate: bool

    @property
    def level(self) -> str:
        r"""What the model predicts something of."""
        return str(self.config.task_level.value)

    def teacher(
        self,
        model: torch.nn.Module | None,
        graph: Graph,
        teacher_outputs: Tensor | np.ndarray | None = None,
        probe_outputs: Tensor | np.ndarray | None = None,
        edge_probe_outputs: Tensor | np.ndarray | None = None,
    ) -> Teacher:
        r"""The model, checked as far as that costs nothing."""
        teacher = Teacher(model, self.config, teacher_outputs, probe_outputs, edge_probe_outputs)
        teacher.check(graph, self.num_probes + NUM_FIXED_MASKS, self.recipe.num_masks > 0)
        return teacher

    def teacher_of_graphs(self, model: torch.nn.Module, graph: Graph) -> Teacher:
        r"""The model of a data set's graphs, asked one by one if it takes no ``batch``, or mixes the graphs of one."""
        teacher = self.teacher(model, graph)
        with torch.no_grad():
            if not teacher.takes_batch:
                return replace(teacher, one_by_one=True)
            if not teacher.mixes(graph):
                return teacher
        warn_about_mixing()
        return replace(teacher, one_by_one=True)

    def distilled(
        self, teacher: Teacher, graph: Graph, run: Run, target: Tensor | None = None, keep: bool = True
    ) -> Distilled:
        r"""The distilled model, from the cache if it is there.

        Args:
            teacher: The model.
            graph: The graph.
            run: How much to do at a time.
            target: What the model predicts now, if that is known; where it differs, the model is distilled anew.
            keep: Whether it goes to the cache.
        """
        if run.tables is not None:
            return self._distil_together(teacher, graph, run)
        known = None
        if teacher.level == 'graph' and self.needs_surrogate:
            known = self.of_data_set(teacher)
        inputs = graph.identity
        target = None if self.goal.by_target else target

        def is_current(distilled: Distilled, is_certain: bool = True) -> bool:
            if not is_certain and teacher.given is None and teacher.given_probes is None:
                with torch.no_grad():
                    outputs = teacher.outputs(graph, distilled.outputs.dtype).values
                if not distilled.is_as(outputs):
                    return False
            return target is None or distilled.predicts(target)

        def create() -> Distilled:
            graph.check_content()
            for other in [] if self.cache is None else self.cache.values_on(inputs):
                operator = other.decomposition.operator
                graph.operators[other.surrogate.flow, operator.value.dtype] = operator
            with torch.no_grad():
                distilled = self._distil(teacher, graph, run, known)
                distilled = replace(distilled, is_random=teacher.answers_at_random(graph, distilled.outputs))
            if distilled.is_random or not is_current(distilled):
                warn_about_randomness()
            warn_if_not_converged(distilled)
            if known is None:
                warn_about_graphs(distilled.surrogate.report)
            return distilled

        if self.cache is None or not keep:
            return create()
        return self.cache.get_or_create(*self._place(teacher, graph, known), create, is_current)

    def keep(self, teacher: Teacher, graph: Graph, distilled: Distilled) -> None:
        r"""Keeps a distilled model in the cache, for what this process asks by itself."""
        if self.cache is not None:
            self.cache.put(*self._place(teacher, graph, None), distilled)

    def _place(self, teacher: Teacher, graph: Graph, known: Surrogate | None) -> tuple[torch.nn.Module, Any, Any]:
        r"""Where a distilled model is in the cache: the model, the inputs and the settings."""
        model = _NO_MODEL if teacher.model is None else teacher.model
        seen = (graph.identity, teacher.given, teacher.given_probes, teacher.given_edge_probes)
        return model, seen, (*self._key, self.needs_surrogate, known, graph.target)

    def _distil_together(self, teacher: Teacher, graph: Graph, run: Run) -> Distilled:
        r"""The distilled model, by tables in a folder, which several processes fill: what is there is not made anew."""
        if teacher.level != 'node' or graph.types is not None:
            raise ValueError(
                f"'group', 'part' and a 'checkpoint' of the distillation are for nodes of graphs of one type (got "
                f"level '{teacher.level}'): leave them out"
            )
        with torch.no_grad():
            teacher, run = teacher.asked(graph, run), run.within('distilled')
            identity = self.identity(teacher, graph, run)
            Checkpoint(run.folder.path, torch.zeros(0, device='cpu'), identity).join()
            graph.check_content(run)
            dtype = torch.promote_types(graph.x.dtype, torch.float32)
            if is_csr(graph.edge_index) and (teacher.flow, dtype) not in graph.operators:
                graph.operators[teacher.flow, dtype] = shared_adjacency(graph.edge_index, dtype, run)
            distilled = distill(teacher, graph, self.recipe, run)
        distilled.memo.known['identity'] = identity
        if run.rank == 0:
            warn_if_not_converged(distilled)
        return distilled

    def identity(self, teacher: Teacher, graph: Graph, run: Run) -> dict[str, Any]:
        r"""By what a distilled model differs from others, in a folder that several processes share."""
        config = teacher.config
        return {
            'graph': run.digest(graph.x, graph.edge_index, graph.kwargs.get('edge_weight')),
            'teacher_outputs': run.digest(teacher.given),
            'probe_outputs': run.digest(teacher.given_probes, teacher.given_edge_probes),
            'mode': f'{config.task_level.value} {config.mode.value} {config.return_type.value}',
            'distillation': f'{self.recipe} {teacher.reach} {teacher.flow} {run.max_memory}',
        }

    def _distil(self, teacher: Teacher, graph: Graph, run: Run, known: Surrogate | None) -> Distilled:
        recipe = self.recipe
        if teacher.level == 'node':
            return distill(teacher, graph, recipe, run)
        if known is None and not self.needs_surrogate:
            answers = teacher.outputs(graph)
            return place(no_surrogate(teacher, graph, recipe, answers.values.size(1)), teacher, graph, answers)
        if known is None:
            known = {'graph': distill_graphs, 'edge': distill_links}[teacher.level](teacher, graph, recipe, run)
        return place(known, teacher, graph)

    def distil_data_set(self, model: torch.nn.Module, graph: Graph, run: Run) -> Surrogate:
        r"""Distils a model of graphs over a data set, given as one batch; the latest one serves all graphs."""
        graph.check_content()
        with torch.no_grad():
            surrogate = distill_graphs(self.teacher_of_graphs(model, graph), graph, self.recipe, run)
        warn_about_graphs(surrogate.report)
        self._data_sets.put(model, ('data set',), ('data set', *self._key), surrogate)
        return surrogate

    def of_data_set(self, teacher: Teacher) -> Surrogate | None:
        r"""The latest surrogate that was distilled over a data set, unless the model has changed since."""
        if teacher.model is None:
            return None
        return self._data_sets.get(teacher.model, ('data set',), ('data set', *self._key))

    @property
    def _data_sets(self) -> SurrogateCache:
        return _data_sets if self.cache is None else self.cache

    @property
    def _key(self) -> tuple[Any, ...]:
        return (self.config.task_level, self.config.mode, self.config.return_type, self.recipe)

    def explains_parts(self, teacher: Teacher) -> bool:
        r"""Whether each graph of a batch is explained by itself, as there is no surrogate of a data set."""
        return teacher.level == 'graph' and self.needs_surrogate and self.of_data_set(teacher) is None

    def explain(self, teacher: Teacher, graph: Graph, outputs: Tensor, target: Tensor, run: Run) -> Any:
        r"""Explains some outputs [B] jointly, given the target of all of them."""
        in_parts = self.explains_parts(teacher) and graph.kwargs.get('batch') is not None
        found = (self._score_parts if in_parts else self._score)(teacher, graph, outputs, target, run)
        return shown(found, graph, self.view)

    def explain_all(
        self, teacher: Teacher, graph: Graph, target: Tensor | None, run: Run
    ) -> tuple[Explanation, Trust, Tensor, Distilled]:
        r"""Explains all graphs of a batch, and keeps nothing: the explanation, the trust and the target [G] of each."""
        distilled = self.distilled(teacher, graph, run, keep=False)
        outputs = torch.arange(distilled.outputs.size(0), device=graph.x.device)
        found, trust, _ = self._found(teacher, graph, distilled, outputs, target, run)
        target = self.goal.predictions(distilled, outputs) if target is None else target
        return cast(Explanation, shown(found, graph, self.view)), trust, target, distilled

    def _score(self, teacher: Teacher, graph: Graph, outputs: Tensor, target: Tensor, run: Run) -> dict[str, Any]:
        distilled = self.distilled(teacher, graph, run, target)
        found, trust, question = self._found(teacher, graph, distilled, outputs, target, run)
        if is_saturated(found.get('probes_moved')):
            warn_about_saturation()
        warn_if_doubtful(trust, distilled, outputs, self.doubt, question.direction is not None)
        return found

    def _found(
        self, teacher: Teacher, graph: Graph, distilled: Distilled, outputs: Tensor, target: Tensor | None, run: Run
    ) -> tuple[dict[str, Any], Trust, Question]:
        with torch.no_grad():
            question, rule = self.goal.question(distilled, outputs, target), self.rule_of(teacher)
            state = rule.prepare(teacher, graph, distilled, question, run)
            effects = rule.effects(distilled.decomposition, state, question, run=run)
            trust = effects.trust or distilled.trust(outputs)
            found: dict[str, Any] = scored(distilled.decomposition, question, effects, trust, graph, self.view)
        if teacher.level == 'graph':
            found['how'] = graph.taken(self.recipe.how)
            if (of_graphs := distilled.surrogate.report.graphs) is not None:
                found['distilled_on'] = f'{of_graphs.num_graphs} graphs' if of_graphs.num_graphs > 1 else 'this graph'
        return found, trust, question

    def _score_parts(self, teacher: Teacher, graph: Graph, outputs: Tensor, target: Tensor, run: Run) -> dict[str, Any]:
        r"""Explains some graphs of a batch, each by a surrogate of its own, distilled from copies of it."""
        found, size, parts = [], num_outputs(graph, teacher.level), Memo()
        if self.cache is not None and teacher.model is not None:  # the same parts each time, so that these are cached
            inputs = graph.identity
            parts = self.cache.get_or_create(teacher.model, (inputs, 'parts'), 'parts', Memo)
        for number in outputs.unique().tolist():
            one, nodes, edges = parts.get(number, partial(part, graph, number, size))
            goal = target.reshape(size, -1)[number : number + 1]
            goal = goal if self.config.mode == ModelMode.regression and target.dim() > 1 else goal.view(-1)
            first = torch.zeros(1, dtype=torch.long, device=nodes.device)
            found.append((self._score(teacher, one, first, goal, run), nodes, edges))
        return join_parts(found, graph, self.view)
