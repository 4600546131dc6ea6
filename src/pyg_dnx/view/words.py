r"""What pages and pictures say of an explanation: names, questions, numbers and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.explain.config import ModelMode

from pyg_dnx.results.certificate import Certificate
from pyg_dnx.results.measured import DOUBTFUL, NOT_EXPLAINED
from pyg_dnx.view.scene import Scene, explained_index, level_of, pairs_of, sizes_of, target_type_of

MINUS = '\N{MINUS SIGN}'
ASKED = {'features': ' Their features were blanked to find out.', 'nodes': ' They were removed to find out.'}
PLACES = {'node': 'at node', 'edge': 'for the link', 'graph': 'for graph'}
NAMES = ('Trustworthy', 'Doubtful', 'Not explained')
NONE, MIXED = -1, -2  # beside the codes of verdicts
NUMBERS = {
    'surrogate_agreement': 'the surrogate agrees with the model',
    'distillation_error': 'distillation error',
    'bias_decides': 'the bias decides',
    'bias_evidence': 'evidence in the bias',
    'probe_r2': 'R² of probes',
    'expected_unfaithfulness': 'expected unfaithfulness',
    'mask_bound': 'mask bound',
}
MEASURED = {
    'before': 'probability of the class',
    'kept': 'with the explanation alone',
    'removed': 'without it',
    'kept_above': 'random masks that keep less',
    'removed_above': 'random masks that take less',
}
UNKNOWN = (
    "no verdict is known, as this explanation doesn't say how far it stands for the model. Measure it on the model "
    'with pyg_dnx.check.'
)
UNJUDGED = (
    'the surrogate agrees with the model here, but the masks were not judged. For a verdict, pass '
    'certificate=certify(explainer, explanation).'
)
Labels = Sequence[Any] | Mapping[Any, Any] | None


@dataclass(frozen=True)
class Names:
    r"""What to call nodes and features, by number and, in heterogeneous graphs, type; and classes."""

    node: Callable[[int, str | None], str]
    feature: Callable[[int, str | None], str]
    of_class: Callable[[int], str]
    has_nodes: bool  # or else nodes have ids only
    has_features: bool  # or else numbers only

    def title(self, node: int, kind: str | None = None) -> str:
        r"""A node in a sentence, by its id and, where there is one, its name."""
        name = f' ({self.node(node, kind)})' if self.has_nodes else ''
        return f'{node}{name}' if kind is None else f'{kind} {node}{name}'


def names_of(
    explanation: Any,
    nodes: Labels = None,
    features: Labels = None,
    classes: Labels = None,
    features_argument: str = 'feature_labels',
) -> Names:
    r"""The names that are given here, else those that the explanation, or a batch of them, has, else numbers."""
    sizes, x = sizes_of(explanation), None
    if not sizes and isinstance(getattr(explanation, 'x', None), Tensor):
        x = explanation.x
    widths = {name: getattr(explanation[name].get('x'), 'shape', (None, None))[1] for name in sizes}
    node_argument, nodes = _given(explanation, 'node_labels', nodes, 'node_names')
    feature_argument, features = _given(explanation, features_argument, features, 'feature_names')
    class_argument, classes = _given(explanation, 'class_names', classes, 'class_names')
    num_nodes, num_features = (None, None) if x is None else (x.size(0), x.size(1))
    return Names(
        node=_typed(node_argument, nodes, sizes or num_nodes, '{number}'),
        feature=_typed(feature_argument, features, widths or num_features, '{kind} {number}'),
        of_class=namer(class_argument, classes, None, 'class {number}'),
        has_nodes=nodes is not None,
        has_features=features is not None,
    )


def _given(explanation: Any, argument: str, labels: Labels, own: str) -> tuple[str, Labels]:
    return (own, getattr(explanation, own, None)) if labels is None else (argument, labels)


def _typed(
    argument: str, labels: Any, count: Mapping[str, int | None] | int | None, default: str
) -> Callable[[int, str | None], str]:
    if not isinstance(count, Mapping):
        name = namer(argument, labels, count)
        return lambda i, _: name(i)
    if labels is not None and not (isinstance(labels, Mapping) and set(labels) <= set(count)):
        raise ValueError(
            f"'{argument}' of a heterogeneous graph must be a dict from node types to labels (got {labels!r:.60}): "
            f'pass some of {", ".join(map(repr, count))}'
        )
    by_kind = {
        kind: namer(f'{argument}[{kind!r}]', (labels or {}).get(kind), size, default.replace('{kind}', kind))
        for kind, size in count.items()
    }
    return lambda i, kind: by_kind[str(kind)](i)


def namer(argument: str, labels: Labels, count: int | None = None, default: str = '{number}') -> Callable[[int], str]:
    r"""Returns what names things by number: their labels, ``count`` of them if it is a list; or else the default."""
    if labels is None:
        return lambda i: default.replace('{number}', str(i))
    if isinstance(labels, Mapping):
        return lambda i: str(labels[i]) if i in labels else default.replace('{number}', str(i))
    if isinstance(labels, str) or (count is not None and len(labels) != count):
        got = repr(labels) if isinstance(labels, str) else len(labels)
        raise ValueError(
            f"'{argument}' must hold {'the' if count is None else count} labels, one for each (got {got}): pass all of "
            f'them, or a dict of some'
        )

    def name(i: int) -> str:
        if i >= len(labels):
            raise ValueError(
                f"'{argument}' must have a label for each, {i} among them (got {len(labels)}): pass all of them, or a "
                f'dict of some'
            )
        return str(labels[i])

    return name


def number(value: float) -> str:
    r"""A number to read: three digits, with a minus that is as wide as a plus."""
    return f'{value:.3g}'.replace('-', MINUS)


def hop_name(hop: int | None) -> str:
    if hop is None:
        return 'no path'
    return 'explained' if hop == 0 else '1 hop' if hop == 1 else f'{hop} hops'


def question_of(explanation: Any, names: Names, scene: Scene | None = None, index: Any = None) -> tuple[str, str]:
    r"""A title and a sentence: what is explained."""
    level, ids = level_of(explanation), explained_ids(explanation, scene, index)
    what = {'node': 'nodes', 'edge': 'links', 'graph': 'graphs'}[level]
    kind = target_type_of(explanation) if isinstance(explanation, HeteroData) else None
    kind = scene.types[0] if scene is not None and scene.types and scene.explained > 0 else kind
    if level == 'graph' and _is_single(explanation):
        number = explanation.get('graph_number')
        ids, where = [0], 'for the graph' if number is None else f'for graph {number}'
    elif len(ids) == 1 and level == 'edge':
        ends = pairs_of(explanation)[:, ids[0]].tolist()
        where = f'for the link {" – ".join(names.title(end) for end in ends)}'
    elif len(ids) == 1:
        where = f'{PLACES[level]} {names.title(ids[0], kind) if level == "node" else ids[0]}'
        where = where if kind is None else where.replace('at node ', 'at ', 1)
    elif ids:
        titles = [names.title(i, kind) if level == 'node' else str(i) for i in ids[:5]]
        rest = f' and {len(ids) - 5:,} more' if len(ids) > 5 else ''
        return (
            f'Explanation of {len(ids):,} {what}',
            f'What matters {"at" if level == "node" else "for"} {what} {", ".join(titles)}{rest}, explained together.',
        )
    else:
        return f'Explanation of all {what}', f'What matters for the prediction of all {what}, explained together.'
    outcome = _outcome(explanation, names, level, ids[0], kind)
    if outcome is None:
        return f'Explanation of {where.split(" ", 1)[1]}', f'What matters {where}.'
    is_predicted = getattr(explanation, 'prediction', None) is not None
    say = f'The model predicts {outcome}' if is_predicted else f'What is explained is {outcome}'
    total = 0 if scene is None else len(scene.nodes) + scene.folded.num_nodes
    verb = ('is in it' if total == 1 else 'are in it') if level == 'graph' else f'contribute{"s" * (total == 1)}'
    asked = ASKED.get(explanation.get('how', ''), '') if level == 'graph' else ''
    return f'Why {outcome} {where}?', f'{say} {where}: {total:,} node{"s" * (total != 1)} {verb}.{asked}'


def _is_single(explanation: Any) -> bool:
    r"""Whether a model of graphs was given one."""
    batch = getattr(explanation, 'batch', None)
    return batch is None or (isinstance(batch, Tensor) and int(batch.max()) == 0)


def explained_ids(explanation: Any, scene: Scene | None = None, index: Any = None) -> list[int]:
    r"""The numbers of the explained nodes, links or graphs; none if it is of all."""
    if scene is not None and scene.level == 'node':
        return scene.nodes[: scene.explained]
    index = explained_index(explanation, index)
    if index is None:
        return []
    index = torch.as_tensor(index, device='cpu')
    ids = (index.nonzero() if index.dtype == torch.bool else index).reshape(-1).tolist()
    kind = target_type_of(explanation) if isinstance(explanation, HeteroData) else None
    size = _num_rows(explanation, level_of(explanation), kind)
    return [i + size if i < 0 else i for i in ids]


def _outcome(explanation: Any, names: Names, level: str, row: int, kind: str | None) -> str | None:
    r"""What is explained: a class, or the values of a regression; ``None`` where it isn't known."""
    values = _target(explanation, level, row, kind)
    if values is None:
        return None
    if values.is_floating_point():
        return ' and '.join(f'{value:.4g}' for value in values.tolist())
    return names.of_class(int(values) if values.numel() == 1 else int(values.argmax()))


def class_of(explanation: Any, names: Names) -> str | None:
    r"""The explained class, of a single node, link or graph."""
    level, ids = level_of(explanation), explained_ids(explanation)
    ids = [0] if level == 'graph' and not ids else ids
    kind = target_type_of(explanation) if isinstance(explanation, HeteroData) else None
    values = _target(explanation, level, ids[0], kind) if len(ids) == 1 else None
    return None if values is None or values.is_floating_point() else _outcome(explanation, names, level, ids[0], kind)


def _num_rows(explanation: Any, level: str, kind: str | None) -> int:
    r"""How many outputs the model has; 0 if nobody knows."""
    if level == 'edge':
        return pairs_of(explanation).size(1)
    if level == 'graph':
        is_typed = isinstance(explanation, HeteroData)
        parts = explanation.collect('batch', True).values() if is_typed else [getattr(explanation, 'batch', None)]
        return 1 + max((int(part.max()) for part in parts if part is not None and part.numel() > 0), default=0)
    if kind is not None:
        return sizes_of(explanation)[kind]
    return 0 if getattr(explanation, 'x', None) is None else explanation.x.size(0)


def _target(explanation: Any, level: str, row: int, kind: str | None) -> Tensor | None:
    target, config = getattr(explanation, 'target', None), getattr(explanation, '_model_config', None)
    if not isinstance(target, Tensor) or target.numel() == 0:
        return None
    num_rows = _num_rows(explanation, level, kind)
    if num_rows == 0 or target.numel() % num_rows != 0:
        return None
    values = target.detach().cpu().reshape(num_rows, -1)[row]  # two a node for binary models with two columns
    return values.double() if config is not None and config.mode == ModelMode.regression else values


def feature_scores(explanation: Any) -> tuple[Tensor, str, list[tuple[int, str | None]]] | None:
    r"""The score of each feature [F], summed over nodes, where it comes from, and each one's number and type."""
    types: list[str | None] = list(sizes_of(explanation))
    stores = {name: explanation[name] for name in types} if types else {None: explanation}
    for source in ('feature_score', 'node_score', 'node_mask'):  # scores before masks
        found = {kind: store.get(source) for kind, store in stores.items()}
        scores = {
            kind: value.detach().cpu().double().reshape(-1, value.size(-1)).sum(dim=0)
            for kind, value in found.items()
            if value is not None and (source == 'feature_score' or (value.dim() == 2 and value.size(1) > 1))
        }
        if scores:
            keys = [(f, kind) for kind, score in scores.items() for f in range(score.numel())]
            return torch.cat(list(scores.values())), source, keys
    return None


def feature_values(explanation: Any, index: Any = None) -> Tensor | None:
    r"""The features of the explained node [F], if it is a single one and they are known."""
    x, ids = getattr(explanation, 'x', None), explained_ids(explanation, None, index)
    if isinstance(explanation, HeteroData) or len(ids) != 1 or level_of(explanation) != 'node':
        return None
    if not isinstance(x, Tensor) or x.layout != torch.strided or x.dim() != 2:
        return None
    return x[ids[0]].detach().cpu().double()


def verdict_on(explanation: Any, certificate: Certificate | None, nodes: list[int]) -> dict[str, Any]:
    r"""A verdict's code (negative if there is none), name, sentence and numbers, on an explanation of ``nodes``."""
    if certificate is None:
        return _from_explanation(explanation)
    index = certificate.index.detach().cpu()
    is_meant = torch.isin(index, torch.tensor(nodes, device='cpu')) if nodes else torch.ones_like(index)
    rows = is_meant.nonzero().view(-1)
    if rows.numel() == 0:
        raise ValueError(
            f"'certificate' must be of the explained nodes {nodes[:5]} (got one of {index[:5].tolist()}): pass "
            f'certify(explainer, explanation)'
        )
    verdicts = certificate.verdict.detach().cpu()[rows]
    worst = int(rows[verdicts.argmax()])
    code, sentence = int(verdicts.max()), certificate.sentence(worst)
    sentence = sentence.partition(': ')[2]
    if rows.numel() > 1:
        counts = torch.bincount(verdicts, minlength=len(NAMES)).tolist()
        tally = ', '.join(f'{count:,} {name.lower()}' for count, name in zip(counts, NAMES, strict=True) if count > 0)
        sentence = (
            f'{rows.numel():,} nodes are explained together: {tally}. The worst, node {int(index[worst])}: {sentence}'
        )
        code = code if max(counts) == rows.numel() else MIXED
    measured = certificate.measured
    numbers = [] if measured is None else _numbers({name: getattr(measured, name) for name in MEASURED}, rows)
    numbers += _numbers({name: getattr(certificate, name) for name in NUMBERS}, rows)
    return _verdict(code, sentence, numbers)


def _from_explanation(explanation: Any) -> dict[str, Any]:
    r"""What can be said without a certificate: where the surrogate disagrees or the bias decides, no mask helps."""
    known = {name: getattr(explanation, name, None) for name in NUMBERS}
    agreement, bias_decides = known['surrogate_agreement'], known['bias_decides']
    if agreement is None or bias_decides is None:
        return _verdict(NONE, UNKNOWN, [])
    numbers = _numbers(known, torch.arange(agreement.numel(), device='cpu'))
    if not bool(agreement.all()):
        code = MIXED if bool(agreement.any()) else NOT_EXPLAINED
        return _verdict(code, f'what stands for the model disagrees with it at {_count(~agreement)}.', numbers)
    if bool(bias_decides.any()):
        code = DOUBTFUL if bool(bias_decides.all()) else MIXED
        return _verdict(code, f'the bias decides, which is in no node, at {_count(bias_decides)}.', numbers)
    return _verdict(NONE, UNJUDGED, numbers)


def _count(flags: Tensor) -> str:
    return 'this node' if flags.numel() == 1 else f'{int(flags.sum()):,} of {flags.numel():,} nodes'


def _numbers(values: dict[str, Tensor | None], rows: Tensor) -> list[tuple[str, str]]:
    found = {name: value.detach().cpu()[rows] for name, value in values.items() if value is not None}
    return [({**NUMBERS, **MEASURED}[name], _summary(value)) for name, value in found.items()]


def _summary(value: Tensor) -> str:
    if value.dtype == torch.bool:
        return ('yes' if bool(value) else 'no') if value.numel() == 1 else f'{int(value.sum()):,} of {value.numel():,}'
    return number(float(value.double().median())) + (' (median)' if value.numel() > 1 else '')


def _verdict(code: int, sentence: str, numbers: list[tuple[str, str]]) -> dict[str, Any]:
    name = {NONE: 'No verdict', MIXED: 'Mixed'}.get(code) or NAMES[code]
    return {'code': code, 'name': name, 'sentence': sentence[:1].upper() + sentence[1:], 'numbers': numbers}
