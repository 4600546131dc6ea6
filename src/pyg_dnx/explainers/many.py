r"""Many explanations at once: each output of a model by itself, or each graph of a data set."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch_geometric.explain.config import MaskType

from pyg_dnx import files
from pyg_dnx.checkpoint import Checkpoint, sketch
from pyg_dnx.distill.distill import Distilled, Trust
from pyg_dnx.explainers.plan import Plan
from pyg_dnx.files import digest
from pyg_dnx.graph.copies import part
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import num_outputs
from pyg_dnx.graph.rows import Rows
from pyg_dnx.results.certificate import Certificate, judge
from pyg_dnx.results.graph_explanations import ExplainedGraphs, GraphExplanations, arguments_of, batches_of
from pyg_dnx.results.graph_warnings import is_saturated, warn_about_saturation
from pyg_dnx.results.measured import Asker, measure_each
from pyg_dnx.results.node_explanations import LinkExplanations, NodeExplanations, Place, Request, TypeNames
from pyg_dnx.results.warnings import warn_if_doubtful
from pyg_dnx.run import Run, parts_of
from pyg_dnx.scores.batch import score
from pyg_dnx.scores.question import Goal, Question, outputs_of
from pyg_dnx.teacher.teacher import Teacher

LEAST_ENTRIES = 2**16
ENTRIES_PER_OUTPUT = 2**10  # about, by which it is decided how many outputs a process explains at a time
KNOWN_OF_SURROGATE = ('surrogate_agreement', 'distillation_error', 'bias_decides')
JUDGED = ('estimate', 'bias_evidence', 'mask_bound', 'expected_unfaithfulness')


class Wanted(NamedTuple):
    r"""Which outputs to explain, each by itself, and what to keep."""

    index: Any = None
    target: Tensor | None = None
    top_k: int | None = None
    checkpoint: str | PathLike[str] | None = None
    certify: bool = False  # by asking the model


def explain_each(plan: Plan, teacher: Teacher, graph: Graph, wanted: Wanted, run: Run) -> NodeExplanations:
    r"""Explains some outputs of one graph, each by itself."""
    outputs = outputs_of(wanted.index, num_outputs(graph, teacher.level), graph.x.device, teacher.level)
    distilled, target, top_k = plan.distilled(teacher, graph, run), wanted.target, wanted.top_k
    with torch.no_grad():
        question, rule = plan.goal.question(distilled, outputs, target), plan.rule_of(teacher)
        state = rule.prepare(teacher, graph, distilled, question, run)
        with ExitStack() as stack:
            kept = None
            if wanted.checkpoint is not None:
                identity = _identity(teacher, graph, distilled, question)
                identity |= {} if state is None else {'answers': state.answers}
                identity |= {'rule': repr(rule), 'top_k': top_k}
                kept = stack.enter_context(Checkpoint(wanted.checkpoint, outputs, identity))
            try:
                found = score(distilled.decomposition, question, rule, state, top_k, run, kept)
            except (MemoryError, RuntimeError) as error:
                raise _explained(error, outputs.numel(), None if kept is None else kept.done) from error
    trust = found.trust or distilled.trust(outputs)
    warn_if_doubtful(trust, distilled, outputs, plan.doubt, question.direction is not None)
    view = plan.view if graph.has_edge_order else plan.view._replace(edge_mask_type=None)
    target = distilled.answers.target if target is None else target
    how = (rule, state, question, view, plan.config, graph.num_nodes, target, TypeNames.of(graph))
    request = Request(distilled.surrogate, *how)
    kind = LinkExplanations if teacher.level == 'edge' else NodeExplanations
    place = Place(distilled.decomposition, graph)
    scores, certificate, top = found.rows, None, None if found.top is None else found.top[:2]
    if found.top is not None:
        change = rule.change(distilled, state, question, trust, found.top[2])
        certificate = judge(distilled, question, trust, change, plan.doubt)
    if wanted.certify and teacher.model is not None:
        asker = Asker.of(teacher, graph, distilled.outputs, distilled.memo)
        scored = cast(Rows, scores) if top is None else _listed(*top)
        measured = measure_each(asker, question, scored, plan.view.mask if top is None else 'top', run)
        measured = replace(measured, class_names=plan.view.class_names)
        certificate = replace(certificate or Certificate(outputs), measured=measured)
    matrix = None if scores is None else scores.matrix(graph.num_nodes)
    return kind(matrix, top, trust, certificate, request, place)


def _explained(error: Exception, size: int, done: int | None) -> Exception:
    r"""An error of PyTorch's that there is too little memory, in a sentence; any other as it is."""
    if str(error).startswith("'") or not files.is_out_of_memory(error):
        return error
    remedy = "pass a smaller 'max_memory', 'top_k', or fewer nodes at a time"
    if done is not None:
        remedy += f"; the same 'checkpoint' goes on after the {done} nodes that are kept"
    return MemoryError(
        f"'index' must name nodes that there is memory to explain (got {size}, which took too much): {remedy}"
    )


def _listed(nodes: Tensor, scores: Tensor) -> Rows:
    r"""Rows of the nodes [B, k] that are not padding."""
    return Rows((nodes >= 0).sum(dim=1), nodes[nodes >= 0], scores[nodes >= 0])


def explain_together(plan: Plan, teacher: Teacher, graph: Graph, wanted: Wanted, run: Run) -> NodeExplanations:
    r"""The same by several processes, of a group or not, each of which explains some of the outputs at a time.

    What is found stays in the files of a folder.
    """
    index, target, top_k = wanted.index, wanted.target, cast(int, wanted.top_k)
    outputs = outputs_of(index, num_outputs(graph, teacher.level), graph.x.device)
    asked = teacher.asked(graph, run)
    distilled, rule = plan.distilled(asked, graph, run), plan.rule_of(asked)
    plan.keep(teacher, graph, distilled)
    told = run.within('explained')
    with torch.no_grad():
        rule_state = partial(rule.prepare, asked, graph, distilled)
        rule_state(_question(plan.goal, distilled, target, outputs[:1]), run.within('distilled'))
    request = {
        'distilled model': distilled.memo.get('identity', lambda: plan.identity(asked, graph, run)),
        'index': run.digest(outputs),
        'target': run.digest(target),
        'rule': f'{rule} {plan.goal} {plan.doubt} {top_k} {run.entries}',
    }
    Checkpoint(told.folder.path, torch.zeros(0, device='cpu'), request).join()
    alone = Run(run.max_memory, False, run.entries, tables=run.within('distilled').tables)
    one = Run(run.max_memory, False, max(LEAST_ENTRIES, run.entries // run.size))  # as each process holds so many

    def ask(nodes: Tensor) -> tuple[Question, Any]:
        question = _question(plan.goal, distilled, target, nodes)
        return question, rule_state(question, alone)

    def explain(places: slice) -> list[Tensor]:
        question, state = ask(outputs[places])
        found = score(distilled.decomposition, question, rule, state, top_k, one)
        trust, (nodes, scores, kept) = found.trust or distilled.judge(question.outputs), cast(Any, found.top)
        change = rule.change(distilled, state, question, trust, kept)
        certificate = judge(distilled, question, trust, change, plan.doubt)
        return [nodes, scores, *trust.to_dict().values(), *(getattr(certificate, name) for name in JUDGED)]

    parts = parts_of(outputs.numel(), max(1, run.entries // ENTRIES_PER_OUTPUT))
    with torch.no_grad():
        columns, rows = told.tasks('explanations', parts, explain)
    nodes, scores, *others = (column[rows].to(graph.x.device) for column in columns)
    outputs, names = outputs[rows], rule.facts or KNOWN_OF_SURROGATE
    trust = Trust(**dict(zip(names, others, strict=False)))
    judged: dict[str, Any] = dict(zip(JUDGED, others[len(names) :], strict=True))
    surrogate = distilled.surrogate
    about: dict[str, Any] = {name: getattr(trust, name) for name in (*KNOWN_OF_SURROGATE, 'probe_r2')}
    about |= {'num_hops': surrogate.num_hops, 'ridge': surrogate.report.ridge}
    certificate = Certificate(index=outputs, **judged, **about, doubt=plan.doubt * distilled.unit)
    if run.rank == 0:
        warn_if_doubtful(trust, distilled, outputs, plan.doubt, plan.goal.has_direction)
    view = plan.view if graph.has_edge_order else plan.view._replace(edge_mask_type=None)
    target = distilled.answers.target if target is None else target
    question = Question(outputs)
    how = (rule, None, question, view, plan.config, graph.num_nodes, target, TypeNames.of(graph))
    known = Request(surrogate, *how, ask)
    place = Place(distilled.decomposition, graph)
    return NodeExplanations(None, (nodes, scores), trust, certificate, known, place)


def _question(goal: Goal, distilled: Distilled, target: Tensor | None, nodes: Tensor) -> Question:
    return goal.question(distilled, nodes, target, is_part=True)


def _identity(teacher: Teacher, graph: Graph, distilled: Distilled, question: Question) -> dict[str, Any]:
    r"""By what these explanations differ from others: what was given exactly, what was computed up to rounding."""
    outputs, evidence, config = distilled.outputs, distilled.decomposition.evidence, teacher.config
    return {
        'graph': graph.digest(),
        'teacher_outputs': digest(teacher.given),
        'probe_outputs': digest(teacher.given_probes),
        **({} if teacher.given_edge_probes is None else {'edge_probe_outputs': digest(teacher.given_edge_probes)}),
        'mode': f'{config.task_level.value} {config.mode.value} {config.return_type.value}',
        'num_hops': distilled.decomposition.num_hops,
        'target': question.direction,
        'model': outputs[question.outputs],
        'surrogate': evidence[question.outputs],
        'model (all nodes)': sketch(outputs),
        'surrogate (all nodes)': sketch(evidence),
    }


def explain_data_set(
    plan: Plan, model: torch.nn.Module, data: Iterable[Any], top_k: int | None, run: Run
) -> GraphExplanations:
    r"""Explains each graph of a data set by itself, batch by batch."""
    found: list[ExplainedGraphs] = []
    asked: Teacher | None = None
    for batch in run.bar('Explaining', 'batches', batches_of(data)):
        graph, names = arguments_of(model, batch), batch.get('node_names')
        asked = asked or plan.teacher_of_graphs(model, graph)
        size, target = num_outputs(graph, 'graph'), batch.get('y') if plan.goal.by_target else None
        each = [slice(0, size)]
        if plan.explains_parts(asked) or plan.view.node_mask_type == MaskType.common_attributes:
            each = [slice(number, number + 1) for number in range(size)]
        for at in each:
            one = graph if len(each) == 1 else part(graph, at.start, size)[0]
            goal, quiet = None if target is None else target[at], Run(run.max_memory)
            explanation, trust, goal, distilled = plan.explain_all(asked, one, goal, quiet)
            of_nodes = None if names is None else names[at]
            found.append(ExplainedGraphs(one, explanation, trust, goal, asked.takes_batch, of_nodes))
    result = GraphExplanations(found, plan.config, top_k)
    moved = [one.explanation.probes_moved for one in found if 'probes_moved' in one.explanation]
    if is_saturated(torch.cat(moved) if moved else None):
        warn_about_saturation()
    every = torch.arange(len(result), device=distilled.outputs.device)
    warn_if_doubtful(result.trust, distilled, every, plan.doubt, True)
    return result
