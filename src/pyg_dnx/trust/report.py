r"""How far to trust an explanation at hand, and where a surrogate stands for its model."""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.explain import Explainer, Explanation
from torch_geometric.explain.config import ExplanationType, ModelMode, ModelTaskLevel

from pyg_dnx import options
from pyg_dnx.distill.cache import SurrogateCache
from pyg_dnx.distill.distill import Distilled
from pyg_dnx.distill.surrogate import Report
from pyg_dnx.explainers.base import DistillAndExplain, algorithm_of
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import num_outputs
from pyg_dnx.results.by_type import packed
from pyg_dnx.results.certificate import Certificate, judge
from pyg_dnx.results.measured import VERDICTS, Asker, measure, tables_of
from pyg_dnx.results.warnings import one_warning
from pyg_dnx.run import Run
from pyg_dnx.scores.attribution import attribute
from pyg_dnx.scores.question import Question, outputs_of
from pyg_dnx.teacher.teacher import Teacher
from pyg_dnx.trust.measure import check_own, graph_of, masks_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEGREES = (0, 1, 2, 4, 8, 16, 64)  # where the bins start
SIZES = (1, 10, 20, 30, 50, 100)  # of graphs
CONFIDENCES = (0.0, 0.5, 0.7, 0.9, 0.99)
_NORMAL_95 = 1.959964


@one_warning()
def certify(explainer: Explainer, explanation: Explanation) -> Certificate:
    r"""Says what an explanation is worth, by asking the model.

    The model is asked with what the masks keep and without it, and the same of 20 random masks of the same size, on
    copies of the neighbourhood. The explanation is

    - **trustworthy** if keeping preserves the prediction, and the probability of the class that is kept, and that
      removing takes, are above those of at least 19 random masks (ties count half);
    - **not explained** if keeping loses the prediction and removing does not change it, or neither probability is above
      that of half of the random masks, or the model answers at random;
    - **doubtful** otherwise.

    It judges the masks that the explanation has now, after a threshold say, and both if there are two. What the
    surrogate says of them is there beside.

    Args:
        explainer (Explainer): The explainer of the model, with any algorithm.
        explanation (Explanation): What it returned, or an item of what ``explain_nodes`` did.
    """
    explanation = packed(explanation, explainer.model)
    graph, masks = graph_of(explanation), masks_of(explanation)
    if not isinstance(explainer.algorithm, DistillAndExplain):
        return _of_any(explainer, explanation, graph, masks)
    plan = explainer.algorithm.plan
    teacher, run = plan.teacher(explainer.model, graph), Run(explainer.algorithm.max_memory)
    distilled = plan.distilled(teacher, graph, run)
    outputs = outputs_of(explanation.get('index'), num_outputs(graph, plan.level), graph.x.device)
    with torch.no_grad():
        question = plan.goal.question(distilled, outputs, explanation.get('target'))
        rule = plan.rule_of(teacher)
        state = rule.prepare(teacher, graph, distilled, question, run)
        effects = rule.effects(distilled.decomposition, state, question, run=run)
        kept = attribute(distilled.decomposition, question, effects, run).masked(graph.x, *masks)
        trust = effects.trust or distilled.trust(outputs)
        change = rule.change(distilled, state, question, trust, kept)
        asker = Asker.of(teacher, graph, distilled.outputs, distilled.memo)
        measured = measure(asker, question, tables_of(asker, outputs, *masks), plan.recipe.how, run)
    measured = replace(measured, **_known(explanation))
    return replace(judge(distilled, question, trust, change, plan.doubt), measured=measured)


def _of_any(
    explainer: Explainer, explanation: Explanation, graph: Graph, masks: tuple[Tensor | None, Tensor | None]
) -> Certificate:
    r"""What an explanation of another algorithm is worth."""
    teacher = Teacher(explainer.model, explainer.model_config)
    is_given = explainer.explanation_type == ExplanationType.phenomenon
    with torch.no_grad():
        answers = teacher.outputs(graph).values
        outputs = outputs_of(explanation.get('index'), answers.size(0), graph.x.device)
        asker = Asker.of(teacher, graph, answers)
        question = Question(outputs, target=explanation.target if is_given else None)
        measured = measure(asker, question, tables_of(asker, outputs, *masks))
    return Certificate(outputs, replace(measured, **_known(explanation)))


def _known(explanation: Explanation) -> dict[str, Any]:
    r"""What an explanation says that sentences about it need."""
    return {
        'is_refined': explanation.get('num_evaluations') is not None,
        'class_names': explanation.get('class_names'),
    }


class Group(NamedTuple):
    r"""Nodes that have something in common."""

    name: str
    num_nodes: int
    agreement: float  # the share at which the surrogate agrees with the model
    distillation_error: float  # its mean there


class Reliability(NamedTuple):
    r"""What was measured of explanations with one verdict."""

    verdict: str
    num_checked: int
    faithful: float  # the share under whose mask alone the model predicts as before
    low: float  # the 95% interval of this share (Wilson)
    high: float
    unfaithfulness: float  # its mean
    unfaithfulness_low: float  # the 95% interval of this mean (normal)
    unfaithfulness_high: float


@dataclass(frozen=True)
class TrustReport:
    r"""Where a surrogate stands for its model. Printed, it is a page of tables; :meth:`plot` draws it.

    Attributes:
        report (Report): The surrogate's own.
        by_class, by_degree, by_confidence (list): A :class:`Group` for each of the model's classes, for nodes of
            similar in-degree, and for nodes where the model is similarly confident; for regression, by degree only.
        confusion (list, optional): How many nodes of each of the model's classes (rows) the surrogate puts in each.
        reliability (list): A :class:`Reliability` for each verdict, measured on a sample of nodes.
        is_random (bool): Whether the model answers otherwise when it is asked again.
        level (str): What it is about; of whole graphs, ``by_degree`` has graphs of similar size.
    """

    report: Report
    by_class: list[Group]
    by_degree: list[Group]
    by_confidence: list[Group]
    confusion: list[list[int]] | None
    reliability: list[Reliability]
    is_random: bool = False
    level: str = 'node'

    def to_dict(self) -> dict[str, Any]:
        r"""The report as numbers, strings, lists and dictionaries, for JSON say."""
        tables = {'by_class': self.by_class, 'by_degree': self.by_degree, 'by_confidence': self.by_confidence}
        rows = {name: [group._asdict() for group in groups] for name, groups in tables.items()}
        reliability = [row._asdict() for row in self.reliability]
        confusion = self.confusion and [list(row) for row in self.confusion]
        return {
            'report': asdict(self.report),
            **rows,
            'confusion': confusion,
            'reliability': reliability,
            'is_random': self.is_random,
        }

    def plot(self, path: str | PathLike[str] | None = None, *, theme: str = 'light') -> Figure:
        r"""Draws the report with matplotlib, and returns the figure: see :func:`pyg_dnx.plot.report`."""
        from pyg_dnx import plot

        return plot.report(self, theme=theme, path=path)

    def __str__(self) -> str:
        lines = [str(self.report)]
        if self.is_random:
            lines.append('The model answers at random: make it deterministic in evaluation mode.')
        size, noun = ('size', 'graphs') if self.level == 'graph' else ('in-degree', 'nodes')
        tables = {'class': self.by_class, size: self.by_degree, 'confidence': self.by_confidence}
        for title, groups in tables.items():
            if groups:
                lines.append(f'\n{title:<34} {noun:>9} {"agreement":>10} {"error":>7}')
            for group in groups:
                agreement, error = f'{group.agreement:.1%}', f'{group.distillation_error:.3f}'
                lines.append(f'{group.name:<34} {group.num_nodes:>9,} {agreement:>10} {error:>7}')
        lines.append(f'\n{"verdict":<34} {"checked":>9} {"faithful":>10} {"95%":>16}   unfaithfulness')
        for row in self.reliability:
            faithful, interval = f'{row.faithful:.1%}', f'{row.low:.1%} to {row.high:.1%}'
            mean = f'{row.unfaithfulness:.3f} ({row.unfaithfulness_low:.3f} to {row.unfaithfulness_high:.3f})'
            lines.append(f'{row.verdict:<34} {row.num_checked:>9,} {faithful:>10} {interval:>16}   {mean}')
        return '\n'.join(lines)


@one_warning()
def trust_report(
    explainer: Explainer,
    x: Any,
    edge_index: Any = None,
    *,
    num_checks: int = 200,
    seed: int = 0,
    target: Tensor | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | None = None,
    group: Any = None,
    **kwargs: Any,
) -> TrustReport:
    r"""Reports where the surrogate agrees with the model, and checks a sample of explanations on the model.

    ``trust_report(explainer, loader)`` reports on a model of whole graphs, over a data set, loader or list of graphs.

    Args:
        explainer (Explainer): An explainer with an algorithm of this package.
        x (Tensor): The node features [N, F].
        edge_index: The graph, as the model takes it.
        num_checks (int): How many nodes to explain, certify and check. (default: ``200``)
        seed (int): Which nodes. The random state of PyTorch is not touched. (default: ``0``)
        target (Tensor, optional): The target of each node, [N], for explanations of type ``'phenomenon'``.
        checkpoint (path, optional): The folder that processes share, as in ``explain_nodes``.
        progress (bool, optional): Whether to show progress bars; ``None`` shows them on a terminal.
        group (ProcessGroup, optional): The processes of ``torch.distributed`` that make this same call together.
        **kwargs: Further arguments of the model.
    """
    algorithm = algorithm_of(explainer)
    options.count('num_checks', num_checks)
    if edge_index is None:
        return _report_on_graphs(explainer, x, _Sample(num_checks, seed, None), progress)
    _check_level(algorithm.model_config.task_level)
    algorithm, graph = algorithm._asked(explainer.model, algorithm._graph(x, edge_index, kwargs), None, None)
    run = algorithm._together(progress, checkpoint, group)
    if run.tables is not None:  # what they distil is what each goes on with by itself
        explainer = copy(explainer)
        explainer.algorithm = algorithm = copy(algorithm)
        algorithm.cache = SurrogateCache()
    plan = algorithm.plan
    teacher = plan.teacher(explainer.model, graph)
    with run.together():
        distilled = plan.distilled(teacher, graph, run)
        if run.tables is not None:
            plan.keep(teacher, graph, distilled)
        return _report(explainer, graph, distilled, _Sample(num_checks, seed, target), run)


def _check_level(level: ModelTaskLevel) -> None:
    if level == ModelTaskLevel.graph:
        raise ValueError(
            "'x' must be a data set, a loader or a list of graphs at task level 'graph' (got one graph): pass these"
        )
    if level == ModelTaskLevel.edge:
        raise ValueError(
            "'task_level' must be 'node' or 'graph' for a report (got 'edge'): see "
            'explainer.algorithm.distill(...).report, and check a sample of links'
        )


class _Sample(NamedTuple):
    num_checks: int
    seed: int
    target: Tensor | None


def _report(explainer: Explainer, graph: Graph, distilled: Distilled, wanted: _Sample, run: Run) -> TrustReport:
    algorithm, num_nodes = algorithm_of(explainer), num_outputs(graph, 'node')
    mine = run.share(num_nodes)
    nodes = torch.arange(mine.start, mine.stop, device=graph.x.device)
    trust, regression = distilled.trust(nodes), explainer.model_config.mode == ModelMode.regression
    values = trust.surrogate_agreement.double(), trust.distillation_error.double()

    in_degree = distilled.decomposition.operator.length[graph.nodes_of(nodes)] - 1  # without the self-loop
    by_degree = _groups(_bins(in_degree, DEGREES), [_span(DEGREES, b) for b in range(len(DEGREES))], *values, run)
    by_class, by_confidence, confusion = [], [], None
    if not regression:
        confidence, label = distilled.outputs[mine.start : mine.stop].max(dim=1)
        num_classes = distilled.outputs.size(1)
        by_class = _groups(label, [str(c) for c in range(num_classes)], *values, run)
        ends = [*CONFIDENCES[1:], 1.0]
        names = [f'{low:g} to {high:g}' for low, high in zip(CONFIDENCES, ends, strict=True)]
        by_confidence = _groups(_bins(confidence, CONFIDENCES), names, *values, run)
        logits = distilled.decomposition.evidence[mine.start : mine.stop] + distilled.surrogate.bias
        pairs = torch.bincount(label * num_classes + logits.argmax(dim=1), minlength=num_classes**2)
        confusion = run.sum(pairs).view(num_classes, num_classes).tolist()

    generator = torch.Generator(device='cpu').manual_seed(wanted.seed)
    sample = torch.randperm(num_nodes, generator=generator, device='cpu')[: wanted.num_checks].to(graph.x.device)
    own = run.share(sample.numel())
    found, parts, certificates = torch.zeros(0, dtype=torch.long, device=sample.device), [], []
    if len(own) > 0:
        x, edge_index, kwargs = graph.arguments
        explained = algorithm.explain_nodes(
            explainer.model,
            x,
            edge_index,
            index=sample[own.start : own.stop],
            target=wanted.target,
            progress=run.progress if run.rank == 0 else False,
            **kwargs,
        )
        parts = list(explained)
        certificates = [certify(explainer, explanation) for explanation in parts]
        found = torch.cat([certificate.verdict for certificate in certificates])
    verdict = run.cat(found).long()
    measured = check_own(explainer, parts, run)
    if measured.fidelity_minus is None:
        kept = measured.unfaithfulness <= distilled.unit
    else:
        kept = measured.fidelity_minus == 0.0
    reliability = [
        _reliability(name, kept[verdict == number], measured.unfaithfulness[verdict == number])
        for number, name in enumerate(VERDICTS)
        if bool((verdict == number).any())
    ]
    is_random = any(certificate.measured.is_random for certificate in certificates if certificate.measured is not None)
    tables = by_class, by_degree, by_confidence, confusion, reliability
    return TrustReport(distilled.surrogate.report, *tables, is_random=is_random)


def _report_on_graphs(explainer: Explainer, data: Any, wanted: _Sample, progress: bool | None) -> TrustReport:
    algorithm, run = algorithm_of(explainer), Run()
    explained = algorithm.explain_graphs(explainer.model, data, progress=progress)
    trust, regression = explained.trust, explainer.model_config.mode == ModelMode.regression
    values = trust.surrogate_agreement.double(), trust.distillation_error.double()
    names = [_span(SIZES, b) for b in range(len(SIZES))]
    by_size, by_class = _groups(_bins(explained.sizes, SIZES), names, *values, run), []
    if not regression:
        label = explained.targets
        by_class = _groups(label, [str(c) for c in range(int(label.max()) + 1)], *values, run)

    generator = torch.Generator(device='cpu').manual_seed(wanted.seed)
    parts = list(explained[torch.randperm(len(explained), generator=generator, device='cpu')[: wanted.num_checks]])
    certificates = [certify(explainer, explanation) for explanation in parts]
    verdict, measured = torch.cat([one.verdict for one in certificates]), check_own(explainer, parts, run)
    if measured.fidelity_minus is None:
        kept = measured.unfaithfulness <= float(explained.targets.double().var(dim=0, correction=0).sum().sqrt())
    else:
        kept = measured.fidelity_minus == 0.0
    reliability = [
        _reliability(name, kept[verdict == number], measured.unfaithfulness[verdict == number])
        for number, name in enumerate(VERDICTS)
        if bool((verdict == number).any())
    ]
    plan = algorithm.plan
    known = plan.of_data_set(Teacher(explainer.model, plan.config)) if plan.needs_surrogate else None
    agreement, nan = float(values[0].mean()), float('nan')
    own = Report(
        nan, agreement, 0.0, 'none', plan.recipe.ridge, True, int(explained.sizes.sum()), plan.config.mode.value
    )
    report = own if known is None else known.report
    is_random = any(one.measured.is_random for one in certificates if one.measured is not None)
    return TrustReport(report, by_class, by_size, [], None, reliability, is_random, 'graph')


def _bins(values: Tensor, starts: tuple[float, ...]) -> Tensor:
    edges = torch.tensor(starts, dtype=torch.float64, device=values.device)
    return torch.searchsorted(edges, values.double(), right=True) - 1


def _span(starts: tuple[int, ...], b: int) -> str:
    if b + 1 == len(starts):
        return f'{starts[b]} or more'
    last = starts[b + 1] - 1
    return str(last) if last == starts[b] else f'{starts[b]} to {last}'


def _groups(place: Tensor, names: list[str], agreement: Tensor, error: Tensor, run: Run) -> list[Group]:
    r"""The groups that have nodes, given the group of each."""
    counted = (torch.bincount(place, values, minlength=len(names)) for values in (None, agreement, error))
    size, *sums = run.sums(*counted)
    shares, errors = (each / size for each in sums)
    rows = zip(names, size.tolist(), shares.tolist(), errors.tolist(), strict=True)
    return [Group(*row) for row in rows if row[1] > 0]


def _reliability(verdict: str, faithful: Tensor, unfaithfulness: Tensor) -> Reliability:
    size, share, z = faithful.numel(), float(faithful.double().mean()), _NORMAL_95
    middle = (share + z * z / (2 * size)) / (1 + z * z / size)
    half = z * (share * (1 - share) / size + z * z / (4 * size * size)) ** 0.5 / (1 + z * z / size)
    low, high = max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
    mean, error = float(unfaithfulness.mean()), z * float(unfaithfulness.std(correction=0)) / size**0.5
    return Reliability(verdict, size, share, low, high, mean, max(0.0, mean - error), mean + error)
