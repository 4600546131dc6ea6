r"""Measured checks: what the model itself answers when only the explanation, or all but it, is left."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.explain import Explainer, Explanation, HeteroExplanation
from torch_geometric.explain.config import ExplanationType, ModelMode, ModelTaskLevel

from pyg_dnx import options
from pyg_dnx.graph.copies import without_edges
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import num_outputs
from pyg_dnx.results.by_type import Packed, packed
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.scores.question import outputs_of
from pyg_dnx.teacher.local import Local, MaskOf, Masks
from pyg_dnx.teacher.reach import receptive_field
from pyg_dnx.teacher.teacher import Teacher


@dataclass(frozen=True)
class Check:
    r"""What the model answers under explanations, for each explained node. Printed, it is a short table of means.

    Attributes:
        index (Tensor): The explained nodes [B].
        fidelity_plus (Tensor, optional): Whether the prediction changes if the explanation is taken away, [B], as in
            :func:`torch_geometric.explain.metric.fidelity`. ``None`` for regression.
        fidelity_minus (Tensor, optional): Whether it changes if nothing but the explanation is left, [B].
        unfaithfulness (Tensor): The Euclidean distance between the model's class probabilities (or outputs) on the
            graph and on the explanation alone, [B].
        gef (Tensor, optional): :math:`1 - \exp(-\mathrm{KL}(y \| \hat{y}))` of the same, [B]. ``None`` for regression.
    """

    index: Tensor
    fidelity_plus: Tensor | None
    fidelity_minus: Tensor | None
    unfaithfulness: Tensor
    gef: Tensor | None

    def __str__(self) -> str:
        rows = [('explained nodes', f'{self.index.numel():,}')]
        for name in ('fidelity_plus', 'fidelity_minus', 'unfaithfulness', 'gef'):
            if (values := getattr(self, name)) is not None:
                rows.append((name, f'{float(values.double().mean()):.3f}'))
        return '\n'.join(f'{name:<18} {value}' for name, value in rows)


def check(
    explainer: Explainer,
    explanations: Explanation | Iterable[Explanation],
    *,
    num_hops: int | None = None,
    how: str | None = None,
    progress: bool | None = None,
    group: Any = None,
) -> Check:
    r"""Asks the model itself how faithful explanations are: any explainer's, with node masks, edge masks or both.

    One explanation, of one node or several, costs two evaluations of the model, and one more where it does not hold the
    model's own prediction. Many explanations of one node each are checked together, on copies of the nodes'
    neighbourhoods, one hop larger than the model looks, so that all degrees that matter are the graph's. Where the
    model answers otherwise there than on the graph, its outputs depend on more, and each explanation is checked on the
    whole graph.

    Args:
        explainer (Explainer): The explainer of the model.
        explanations (Explanation or iterable of these): What it returned, or what ``explain_nodes`` did.
        num_hops (int, optional): How far the model looks; ``None`` is the receptive field of its PyG layers.
        how (str, optional): What masks take away from graphs, for models of these: ``'features'`` multiplies by masks,
            as PyG's metrics do; ``'nodes'`` removes nodes, and drops edges, whose mask is not above 1/2, if features
            have no masks of their own. ``None`` is what the explainer took away, and ``'features'`` for explainers that
            don't say.
        progress (bool, optional): Whether to show a progress bar. ``None`` shows it on a terminal, if it takes more
            than a second.
        group (ProcessGroup, optional): The processes of ``torch.distributed`` that make this same call together, with
            the same explanations. Each checks some of them, and all get the result.
    """
    reach = receptive_field(explainer.model) if num_hops is None else options.count('num_hops', num_hops)
    if isinstance(explanations, (Explanation, HeteroExplanation)):
        explanations, reach = [explanations], None  # the graph itself costs less than looking for a part of it
    if not isinstance(explanations, Iterable):
        kind = type(explanations).__name__
        raise TypeError(
            f"'explanations' must be an Explanation or several (got {kind}): pass what 'explainer' returned"
        )
    run = Run(progress=progress, group=options.group(group))
    if how is not None:
        explanations = _asked_by(how, explainer, explanations)
    if run.size > 1:
        every: Any = explanations if isinstance(explanations, Sized) else [*explanations]
        explanations = [every[b] for b in run.share(len(every))]
    with run.together():
        return check_own(explainer, explanations, run, reach)


ANY_REACH = -1  # as far as the model's layers look


def check_own(
    explainer: Explainer, explanations: Iterable[Explanation], run: Run, reach: int | None = ANY_REACH
) -> Check:
    r"""Checks the explanations of each process; all get the result."""
    reach = receptive_field(explainer.model) if reach == ANY_REACH else reach
    with run.bar('Checking', 'explanations', explanations) as bar:
        found = list(checks(explainer, bar, reach, Run()))
    if float(run.sum(torch.tensor(float(len(found)), device='cpu'))) == 0.0:
        raise ValueError("'explanations' must hold at least one explanation (got none): pass what 'explainer' returned")
    return join(found) if run.size == 1 else _gathered(found, explainer.model_config.mode, run)


def _gathered(found: list[Check], mode: ModelMode, run: Run) -> Check:
    r"""What all processes found, on each."""
    none = torch.zeros(0, dtype=torch.float64, device='cpu')
    mine = join(found) if found else Check(none, none, none, none, none)
    index, unfaithfulness = run.cat(mine.index).long(), run.cat(mine.unfaithfulness)
    if mode == ModelMode.regression:
        return Check(index, None, None, unfaithfulness, None)
    plus, minus, gef = (run.cat(cast(Tensor, value)) for value in (mine.fidelity_plus, mine.fidelity_minus, mine.gef))
    return Check(index, plus, minus, unfaithfulness, gef)


def _asked_by(how: str, explainer: Explainer, explanations: Iterable[Explanation]) -> Iterator[Explanation]:
    r"""The explanations, to be judged by what is taken away."""
    options.choice('how', how, ('features', 'nodes'))
    if how == 'nodes' and explainer.model_config.task_level != ModelTaskLevel.graph:
        raise ValueError(
            f"'how' must be 'features' at task level '{explainer.model_config.task_level.value}' (got 'nodes'): leave "
            f'it out'
        )
    for explanation in explanations:
        judged = copy.copy(explanation)
        judged.how = how
        yield judged


def graph_of(explanation: Explanation) -> Graph:
    r"""The arguments that the model had."""
    if not isinstance(explanation, Explanation):
        kind = type(explanation).__name__
        raise TypeError(
            f"'explanations' must be an Explanation or several (got {kind}): pass what 'explainer' returned"
        )
    if isinstance(explanation, Packed):
        return explanation.graph
    kwargs = {name: explanation.get(name) for name in explanation._model_args}
    pair_argument = vars(explanation._store).get('_pair_argument', 'edge_label_index')
    return Graph.of(explanation.x, explanation.edge_index, kwargs, pair_argument)


def masks_of(explanation: Explanation) -> tuple[Tensor | None, Tensor | None]:
    r"""The node mask and the edge mask of an explanation, which must have one of them."""
    node_mask, edge_mask = explanation.get('node_mask'), explanation.get('edge_mask')
    if node_mask is None and edge_mask is None:
        raise ValueError(
            "'explanation' must have a node mask or an edge mask (got neither): pass 'node_mask_type' or "
            "'edge_mask_type' to the Explainer"
        )
    return node_mask, edge_mask


@torch.no_grad()
def checks(
    explainer: Explainer, explanations: Iterable[Explanation], reach: int | None, run: Run = DEFAULT
) -> Iterator[Check]:
    r"""Checks explanations, those of one graph in chunks, for a model that looks ``reach`` hops far, or ``None``."""
    checker = None
    for given in explanations:
        explanation = packed(given, explainer.model, None if checker is None else checker.graph)
        graph = graph_of(explanation)
        if checker is None or not checker.graph.is_same(graph):
            if checker is not None:
                yield from checker.flush()
            checker = _Checker(explainer, explanation, graph, reach, run)
        yield from checker.add(explanation)
    if checker is not None:
        yield from checker.flush()


class _Checker:
    r"""Checks explanations on one graph: those of one node together, those of several on the whole graph."""

    def __init__(
        self, explainer: Explainer, explanation: Explanation, graph: Graph, reach: int | None, run: Run
    ) -> None:
        self.explainer, self.graph, self.run = explainer, graph, run
        prediction = explanation.get('prediction')
        self.teacher = Teacher(explainer.model, explainer.model_config, prediction)
        self.outputs = self.teacher.outputs(graph).values if prediction is not None else self.teacher.under(graph)
        self.local = Local(self.teacher, graph, self.outputs, reach)
        self.waiting: list[tuple[Explanation, Tensor]] = []
        self.kind: tuple[Any, ...] = ()
        self.room = 16 * run.entries  # numbers in the masks that wait

    def add(self, explanation: Explanation) -> Iterator[Check]:
        size = num_outputs(self.graph, self.teacher.level)
        nodes = outputs_of(explanation.get('index'), size, self.graph.x.device)
        node_mask, edge_mask = masks_of(explanation)
        how = explanation.get('how', 'features') if self.graph.has_edge_order else 'features'
        alone = self.local.num_hops is None or nodes.numel() != 1 or not self.graph.has_edge_order or how == 'nodes'
        kind = (edge_mask is None, None if node_mask is None else node_mask.shape)
        if alone or kind != self.kind:
            yield from self.flush()
            self.kind = kind
        if alone:
            removes = how == 'nodes' and (node_mask is None or node_mask.shape == (self.graph.num_nodes, 1))
            under = self._without if removes else self._multiplied
            kept, removed = (under(node_mask, edge_mask, is_kept)[nodes] for is_kept in (True, False))
            yield self._result([explanation], nodes, kept, removed)
            return
        self.waiting.append((explanation, nodes))
        self.room -= sum(0 if mask is None else mask.numel() for mask in (node_mask, edge_mask))
        if self.room <= 0:
            yield from self.flush()

    def _multiplied(self, node_mask: Tensor | None, edge_mask: Tensor | None, is_kept: bool) -> Tensor:
        r"""The answers where features and messages are multiplied by masks, or by what they leave."""
        masks = (node_mask, edge_mask) if is_kept else map(_complement, (node_mask, edge_mask))
        return self.teacher.under(self.graph, *masks)

    def _without(self, node_mask: Tensor | None, edge_mask: Tensor | None, is_kept: bool) -> Tensor:
        r"""The answers where nodes are removed and edges dropped."""
        graph = self.graph
        if edge_mask is not None:
            graph = without_edges(graph, (edge_mask > 0.5) == is_kept)
        if node_mask is not None:
            node_mask = ((node_mask > 0.5) == is_kept).to(torch.get_default_dtype())
        return self.teacher.under(graph, node_mask, None, 'nodes')

    def flush(self) -> Iterator[Check]:
        r"""Checks what waits to be checked together."""
        if not self.waiting:
            return
        waiting, self.waiting, self.room = self.waiting, [], 16 * self.run.entries
        explanations, nodes = [item for item, _ in waiting], torch.cat([node for _, node in waiting])
        node_mask = _masks_of_questions([item.get('node_mask') for item in explanations])
        edge_mask = _masks_of_questions([item.get('edge_mask') for item in explanations])
        answers = self.local.at(torch.cat([nodes, nodes]), Masks(node_mask, edge_mask), None, self.run, 'Checking')
        yield self._result(explanations, nodes, *answers.split(nodes.numel()))

    def _result(self, explanations: list[Explanation], nodes: Tensor, kept: Tensor, removed: Tensor) -> Check:
        before = self.outputs[nodes]
        unfaithfulness = (before - kept).norm(dim=1)
        if self.explainer.model_config.mode == ModelMode.regression:
            return Check(nodes, None, None, unfaithfulness, None)
        predicted, target = before.argmax(dim=1), before.argmax(dim=1)
        if self.explainer.explanation_type == ExplanationType.phenomenon:
            each = nodes.split(nodes.numel() // len(explanations))
            target = torch.cat([item.target.view(-1)[ids] for item, ids in zip(explanations, each, strict=True)])
        hit = predicted == target
        plus, minus = ((hit != (side.argmax(dim=1) == target)).double() for side in (removed, kept))
        return Check(nodes, plus, minus, unfaithfulness, graph_unfaithfulness(before, kept))


def graph_unfaithfulness(before: Tensor, after: Tensor) -> Tensor:
    r"""Returns :math:`1 - \exp(-\mathrm{KL}(y \| \hat{y}))` for each row of two tables of probabilities [B, C].

    PyG's :func:`~torch_geometric.explain.metric.unfaithfulness` has the two the other way round, averages the KL over
    nodes before the exponential, and takes the softmax of a single logit, which is 1 whatever the model says.
    """
    divergence = (torch.xlogy(before, before) - torch.xlogy(before, after)).sum(dim=1)
    return 1.0 - (-divergence.clamp(min=0.0)).exp()


def _complement(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else 1.0 - mask


def _masks_of_questions(masks: list[Tensor | None]) -> MaskOf | None:
    r"""What keeps each explanation, and then what takes each away, where both are asked about."""
    if masks[0] is None:
        return None

    def mask_of(ids: Tensor, questions: Tensor) -> Tensor:
        asked, count = torch.unique_consecutive(questions, return_counts=True)
        parts = [cast(Tensor, masks[0])[:0]]  # an isolated node has no edges
        for question, part in zip(asked.tolist(), ids.split(count.tolist()), strict=True):
            mask = cast(Tensor, masks[question % len(masks)])
            is_shared = mask.dim() == 2 and mask.size(0) == 1
            kept = mask.expand(part.numel(), -1) if is_shared else mask[part]
            parts.append(kept if question < len(masks) else 1.0 - kept)
        return torch.cat(parts)

    return mask_of


def join(parts: list[Check]) -> Check:
    r"""One check of what several are of."""

    def joined(name: str) -> Any:
        tensors = [getattr(part, name) for part in parts]
        return None if tensors[0] is None else torch.cat(tensors)

    return Check(*map(joined, ('index', 'fidelity_plus', 'fidelity_minus', 'unfaithfulness', 'gef')))
