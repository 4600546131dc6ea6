r"""The explanations of many nodes, each by itself: to index, tabulate, save and load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import numpy as np
import torch
from torch import Tensor
from torch_geometric.explain import Explanation
from torch_geometric.explain.config import MaskType, ModelConfig

from pyg_dnx import files, options
from pyg_dnx.distill.decomposition import Decomposition
from pyg_dnx.distill.distill import Trust
from pyg_dnx.distill.surrogate import Surrogate
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import Rows
from pyg_dnx.results.certificate import Certificate
from pyg_dnx.results.explanation import View, build, with_inputs
from pyg_dnx.results.measured import VERDICTS
from pyg_dnx.scores.batch import highest
from pyg_dnx.scores.probe_rule import rule_from_dict, state_from_dict
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.rules import Rule

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

_ROWS_AT_A_TIME = 2**16


@dataclass(frozen=True)
class Place:
    r"""What was explained on: the surrogate there, and the arguments of the model."""

    decomposition: Decomposition
    graph: Graph


class TypeNames(NamedTuple):
    r"""The node types of a heterogeneous graph whose nodes are numbered through."""

    sizes: dict[str, int]  # how many nodes each has, in the order of numbers
    target: str | None  # that of the explained nodes
    link: tuple[str, str] | None = None  # those of both ends of the explained pairs

    @staticmethod
    def of(graph: Graph) -> TypeNames | None:
        if graph.types is None:
            return None
        types = graph.types
        return TypeNames({name: ids.numel() for name, ids in types.nodes.items()}, types.target, types.link)

    def places(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        r"""The number of each node's type and the node's id in it; -1 for both where there is none."""
        first = torch.tensor([0, *accumulate(self.sizes.values())], device=nodes.device)
        kind = torch.bucketize(nodes, first[1:], right=True)
        return kind.masked_fill(nodes < 0, -1), (nodes - first[kind]).masked_fill(nodes < 0, -1)


@dataclass(frozen=True)
class Request:
    r"""How the nodes were explained."""

    surrogate: Surrogate
    rule: Rule
    state: Any  # what the rule asked the model before
    question: Question
    view: View
    model_config: ModelConfig
    num_nodes: int  # of the graph
    target: Tensor  # as PyG has it: [N], but [2N] for binary models with two columns
    types: TypeNames | None = None  # of a heterogeneous graph
    ask: Callable[[Tensor], tuple[Question, Any]] | None = None  # makes question and state, where they are not kept
    graph: str | None = None  # its digest, if it is not there; unknown of older files

    def about(self, places: slice) -> tuple[Question, Any]:
        r"""The question about some of the nodes, and what the rule asked the model before."""
        question = self.question.at(places)
        return (question, self.state) if self.ask is None else self.ask(question.outputs)


class NodeExplanations:
    r"""The explanations of many nodes, each by itself. ``explanations[b]`` is that of node ``index[b]``, for PyG.

    Attributes:
        index (Tensor): The explained nodes [B].
        scores (Tensor, optional): Their signed scores, a sparse CSR matrix [B, N]; ``None`` if only a ``top_k`` was
            kept.
        surrogate (Surrogate): What stands in for the model.
        surrogate_agreement (Tensor): Whether the surrogate predicts the model's class at each of them, [B].
        distillation_error (Tensor): How far its prediction is from the model's there, [B].
        bias_decides (Tensor): Whether its class comes from the bias and not from nodes, [B].
        probe_r2 (Tensor, optional): For ProbeDnX, R² of the local fit, each pair of probes predicted from the others,
            [B]. The local fit is the surrogate that the three above are about then.
        certificate (Certificate, optional): What each explanation is worth if nothing but its top k is left; ``None``
            if all scores were kept: :func:`~pyg_dnx.certify` an item then.
    """

    def __init__(
        self,
        scores: Tensor | None,
        top: tuple[Tensor, ...] | None,
        trust: Trust,
        certificate: Certificate | None,
        request: Request,
        place: Place | None,
    ) -> None:
        self.index = request.question.outputs
        self.scores = scores
        self.surrogate = request.surrogate
        self.surrogate_agreement = trust.surrogate_agreement
        self.distillation_error = trust.distillation_error
        self.bias_decides = trust.bias_decides
        self.probe_r2 = trust.probe_r2
        self.certificate = certificate
        self.class_names: Any = request.view.class_names
        self.feature_names: Any = request.view.feature_names
        self.node_names: Any = request.view.node_names
        self._top = top
        self._trust = trust
        self._request = request
        self._place = place
        self._pair_argument = 'edge_label_index' if place is None else place.graph.pair_argument

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        r"""Returns, for each explained node, the ``k`` nodes with the highest scores, and these scores.

        Both are [B, k], highest first; where a neighbourhood is smaller, padded with node -1 and score 0.
        """
        options.count('k', k)
        if self.scores is not None:
            return highest(_rows(self.scores), k)
        nodes, scores = cast(tuple[Tensor, ...], self._top)
        if k > nodes.size(1):
            raise ValueError(
                f"'k' must be at most {nodes.size(1)}, as many as were kept (got {k}): explain the nodes with a larger "
                f"'top_k'"
            )
        return nodes[:, :k], scores[:, :k]

    @property
    def node_types(self) -> list[str] | None:
        r"""The node types of a heterogeneous graph, in the order in which their nodes are numbered through."""
        return None if self._request.types is None else list(self._request.types.sizes)

    def places(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        r"""Where nodes of :meth:`top_k` are in a heterogeneous graph: in which of ``node_types``, and the ids there.

        Both are -1 for padding.
        """
        if self._request.types is None:
            raise ValueError("'places' needs a heterogeneous graph (got another): take the ids as they are")
        return self._request.types.places(nodes)

    def _names_of(self, nodes: Tensor) -> list[str]:
        r"""What to call nodes in text."""
        types = self._request.types
        if types is None:
            return [str(node) for node in nodes.tolist()]
        names, (kind, ids) = list(types.sizes), types.places(nodes)
        return [f'{names[k]} {node}' for k, node in zip(kind.tolist(), ids.tolist(), strict=True)]

    @property
    def targets(self) -> Tensor | None:
        r"""The class that each explanation is of, [B]; ``None`` for regression."""
        target = self._request.target
        if target.is_floating_point() or target.numel() != self._num_outputs:
            return None
        return target.view(-1)[self.index]

    @property
    def _num_outputs(self) -> int | None:
        r"""How many rows the model's output has, if that is known."""
        types = self._request.types
        if types is not None and types.target is not None:
            return types.sizes[types.target]
        return self._request.num_nodes

    @property
    def _of_rows(self) -> dict[str, Tensor]:
        r"""What each explanation is of, by the names of columns, [B] each."""
        return {'node': self.index}

    @property
    def ends(self) -> Tensor:
        r"""The nodes that each explanation is about, [1, B], or [2, B] for pairs."""
        return self.index[None]

    def _title(self, b: int) -> str:
        r"""What an explanation is of."""
        return f'node {int(self.index[b])}'

    def for_node(self, node: int) -> Explanation:
        r"""The explanation of a node, by its id."""
        found = (self.index == int(node)).nonzero().view(-1)
        if found.numel() == 0:
            raise KeyError(
                f"'node' must be one of the {len(self)} explained nodes (got {node!r}): see 'index', or explain it"
            )
        return cast(Explanation, self[int(found[0])])

    def with_verdict(self, *verdicts: str) -> Self:
        r"""The explanations with one of some verdicts: ``'trustworthy'``, ``'doubtful'`` or ``'not explained'``."""
        if self.certificate is None:
            raise ValueError("'certificate' must be known to filter by verdict (got None): explain with 'top_k'")
        chosen = [VERDICTS.index(options.choice('verdicts', verdict, VERDICTS)) for verdict in verdicts]
        codes = torch.tensor(chosen, device=self.index.device)
        return self._at(torch.isin(self.certificate.verdict, codes).nonzero().view(-1))

    def _at(self, places: Tensor) -> Self:
        r"""Some of the explanations."""
        scores = None
        if self.scores is not None:
            scores = _rows(self.scores).take(places).matrix(self.scores.size(1))
        top = None if self._top is None else tuple(kept[places] for kept in self._top)
        certificate = None if self.certificate is None else self.certificate.at(places)
        request = replace(self._request, question=self._request.question.at(places))
        return type(self)(scores, top, self._trust.at(places), certificate, request, self._place)

    @overload
    def __getitem__(self, b: int) -> Explanation: ...

    @overload
    def __getitem__(self, b: slice | list[int] | Tensor) -> Self: ...

    def __getitem__(self, b: int | slice | list[int] | Tensor) -> Explanation | Self:
        if isinstance(b, (slice, list, Tensor)):
            every = torch.arange(len(self), device=self.index.device)
            return self._at(every[b].view(-1))
        if not isinstance(b, int):
            raise TypeError(
                f'explanations are indexed by an int, a slice or a tensor (got {b!r}): for that of a node, use '
                f"'for_node'"
            )
        if not -len(self) <= b < len(self):
            raise IndexError(f'there are explanations 0 to {len(self) - 1} (got {b}): see their nodes in `index`')
        if self._place is None:
            raise ValueError(
                "explanations that were loaded without their graph have scores only: pass 'x' and 'edge_index' to "
                "'NodeExplanations.load'"
            )
        b, request, decomposition, graph = b % len(self), self._request, self._place.decomposition, self._place.graph
        with torch.no_grad():
            question, state = request.about(slice(b, b + 1))
            effects = request.rule.effects(decomposition, state, question)
            trust = self._trust.at(slice(b, b + 1))
            explanation = build(decomposition, question, effects, trust, graph, request.view)
        explanation._model_config = request.model_config
        return with_inputs(explanation, graph, index=question.outputs, prediction=None, target=request.target)

    def __iter__(self) -> Iterator[Explanation]:
        return (self[b] for b in range(len(self)))

    def __len__(self) -> int:
        return self.index.numel()

    def __repr__(self) -> str:
        kept = '' if self._top is None else f', top_k={self._top[0].size(1)}'
        return f'NodeExplanations({len(self)} nodes{kept})'

    def _repr_html_(self) -> str:
        from pyg_dnx.view.html import batch_html

        return batch_html(self)

    def __str__(self) -> str:
        lines, size = [repr(self)], min(5, len(self))
        certificate = self.certificate
        nodes, scores = self[:size].top_k(1 if self._top is not None and self._top[0].size(1) == 1 else 2)
        for b in range(size):
            best = ', '.join(
                f'{name} ({s:+.3g})'
                for name, j, s in zip(self._names_of(nodes[b]), nodes[b].tolist(), scores[b].tolist(), strict=True)
                if j >= 0
            )
            verdict = '' if certificate is None else f'; {VERDICTS[int(certificate.verdict[b])]}'
            lines.append(f'  {self._title(b)}: {best}{verdict}')
        if size < len(self):
            lines.append(f'  … and {len(self) - size:,} more')
        return '\n'.join(lines)

    def _tables(self) -> Iterator[dict[str, np.ndarray]]:
        r"""The table of all scores, some explained nodes at a time."""
        for first in range(0, len(self), _ROWS_AT_A_TIME):
            part = slice(first, min(len(self), first + _ROWS_AT_A_TIME))
            if self._top is not None:
                nodes, scores = (kept[part] for kept in self._top)
                count, column, scores = (nodes >= 0).sum(dim=1), nodes[nodes >= 0], scores[nodes >= 0]
            elif self.scores is not None:
                start, stop = self.scores.crow_indices()[[part.start, part.stop]].tolist()
                count = self.scores.crow_indices()[part.start : part.stop + 1].diff()
                column, scores = self.scores.col_indices()[start:stop], self.scores.values()[start:stop]
            of_node = {**self._of_rows, **self._trust.to_dict()}
            if self.certificate is not None:
                known = {name: getattr(self.certificate, name) for name in ('expected_unfaithfulness', 'verdict')}
                of_node |= {name: value for name, value in known.items() if value is not None}
                if self.certificate.measured is not None:
                    of_node |= {name: getattr(self.certificate.measured, name) for name in ('kept', 'removed')}
            repeated = {name: values[part].repeat_interleave(count) for name, values in of_node.items()}
            others: dict[str, Any] = {'neighbour': column}
            if self._request.types is not None:
                kind, column = self.places(column.long())
                others = {'neighbour_type': np.array(self.node_types)[kind.cpu().numpy()], 'neighbour': column}
            first_columns = {name: repeated.pop(name) for name in self._of_rows}
            table = {**first_columns, **others, 'score': scores, **repeated}
            yield {name: _to_numpy(values) for name, values in table.items()}

    def to_pandas(self) -> pd.DataFrame:
        r"""Returns a table with a row for each score: ``node``, ``neighbour``, ``score``, and the trust in ``node``."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("'to_pandas' needs pandas: install it, or write a file with 'to_csv'") from error
        return pd.concat([pd.DataFrame(table) for table in self._tables()], ignore_index=True)

    def to_csv(self, path: files.Path) -> None:
        r"""Writes the table of :meth:`to_pandas` to a file, which does not take pandas."""
        files.write_text(path, self._lines())

    def _lines(self) -> Iterator[str]:
        for number, table in enumerate(self._tables()):
            if number == 0:
                yield ','.join(table) + '\n'
            columns = [
                (values.astype(int) if values.dtype == bool else values).astype(str) for values in table.values()
            ]
            yield ''.join(','.join(line) + '\n' for line in zip(*columns, strict=True))

    def save(self, path: files.Path) -> None:
        r"""Writes the explanations, but not their graph, to a file that :meth:`load` reads without running code."""
        request = self._request
        question, state = request.about(slice(None))
        content = {
            'index': self.index,
            'scores': None if self.scores is None else list(_rows(self.scores)),
            'top': None if self._top is None else list(self._top),
            'trust': self._trust.to_dict(),
            'certificate': self.certificate and self.certificate.to_dict(),
            'surrogate': request.surrogate.to_dict(),
            'rule': request.rule.to_dict(),
            'state': None if state is None else state.to_dict(),
            'view': _plain(request.view._asdict()),
            'model_config': _plain(vars(request.model_config)),
            'num_nodes': request.num_nodes,
            'graph': request.graph if self._place is None else self._place.graph.digest(),
            'pair_argument': self._pair_argument,
            'types': None if request.types is None else list(request.types),
            'target': request.target,
            'direction': question.direction,
        }
        files.write(path, 'NodeExplanations', content)

    @staticmethod
    def load(path: files.Path, x: Tensor | None = None, edge_index: Any = None, **kwargs: Any) -> NodeExplanations:
        r"""Reads explanations that :meth:`save` wrote, onto the CPU.

        Args:
            path: The file.
            x (Tensor, optional): The features [N, F] of the graph. Without it, explanations have scores and tables, but
                can't be indexed.
            edge_index (optional): The graph, as the model takes it.
            **kwargs: Further arguments of the model.
        """
        explanations = files.read(path, 'NodeExplanations', _from_dict)
        if x is not None:
            request = explanations._request
            surrogate, num_nodes = request.surrogate, request.num_nodes
            graph, num_features = Graph.of(x, edge_index, kwargs, explanations._pair_argument), surrogate.num_features
            if request.types is not None and graph.types is not None and request.types.target is not None:
                graph = graph.aimed((), request.types.target)
            elif request.types is not None:
                graph = graph.paired(request.types.link)
            graph.check_content()
            if graph.x.shape != (num_nodes, num_features) or TypeNames.of(graph) != request.types:
                raise ValueError(
                    f"'x' must have shape {[num_nodes, num_features]}, as when the nodes were explained "
                    f'(got {list(graph.x.shape)}): pass the same graph'
                )
            if request.graph is not None and request.graph != graph.digest():
                raise ValueError(
                    f"'x', 'edge_index' and 'edge_weight' must be those of the explained graph (got others for "
                    f'{str(path)!r}): pass the same graph, in the same order and of the same types'
                )
            decomposition = surrogate.on(graph)
            state = None if request.state is None else request.state.on(graph, decomposition)
            explanations._request = replace(request, state=state)
            explanations._place = Place(decomposition, graph)
        return explanations


class LinkExplanations(NodeExplanations):
    r"""The explanations of many pairs of nodes, each by itself: as :class:`NodeExplanations`, by row of the output.

    Attributes:
        pairs (Tensor, optional): The explained pairs, [2, B]; ``None`` if they were loaded without their graph.
    """

    @property
    def pairs(self) -> Tensor | None:
        return None if self._place is None else self._place.graph.pairs[:, self.index]

    def for_pair(self, source: int, target: int) -> Explanation:
        r"""The explanation of a pair, by its ends."""
        ends = torch.tensor([[source], [target]], device=self.index.device)
        found = [] if self.pairs is None else (self.pairs == ends).all(dim=0).nonzero().view(-1).tolist()
        if not found:
            raise KeyError(f"'source' and 'target' must be an explained pair (got {source}, {target}): see 'pairs'")
        return cast(Explanation, self[found[0]])

    @property
    def _num_outputs(self) -> int | None:
        return None if self._place is None else self._place.graph.pairs.size(1)

    @property
    def _of_rows(self) -> dict[str, Tensor]:
        ends = {} if self.pairs is None else {'source': self.pairs[0], 'target': self.pairs[1]}
        return {'pair': self.index, **ends}

    @property
    def ends(self) -> Tensor:
        return self.index.new_full((2, len(self)), -1) if self.pairs is None else self.pairs

    def _title(self, b: int) -> str:
        return f'pair {int(self.index[b])}' if self.pairs is None else ' → '.join(map(str, self.pairs[:, b].tolist()))

    def __repr__(self) -> str:
        kept = '' if self._top is None else f', top_k={self._top[0].size(1)}'
        return f'LinkExplanations({len(self)} pairs{kept})'


def _to_numpy(values: Any) -> np.ndarray:
    return values.cpu().numpy() if isinstance(values, Tensor) else values


def _rows(scores: Tensor) -> Rows:
    return Rows(scores.crow_indices().diff(), scores.col_indices(), scores.values())


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in options.items()}


def _from_dict(content: dict[str, Any]) -> NodeExplanations:
    content = _upgraded(content)
    view, num_nodes, state = content['view'], content['num_nodes'], content['state']
    masks = {name: view[name] and MaskType(view[name]) for name in ('node_mask_type', 'edge_mask_type')}
    config = ModelConfig(**content['model_config'])
    request = Request(
        Surrogate.from_dict(content['surrogate']),
        rule_from_dict(content['rule'], config),
        None if state is None else state_from_dict(state, num_nodes),
        Question(content['index'], content['direction']),
        View(**{**view, **masks}),
        config,
        num_nodes,
        content['target'],
        None if content.get('types') is None else TypeNames(*content['types']),
        graph=content.get('graph'),
    )
    scores = None if content['scores'] is None else Rows(*content['scores']).matrix(request.num_nodes)
    top = None if content['top'] is None else tuple(content['top'])
    certificate = content['certificate'] and Certificate.from_dict(content['certificate'])
    kind = LinkExplanations if request.surrogate.level == 'edge' else NodeExplanations
    found = kind(scores, top, Trust(**content['trust']), certificate, request, None)
    found._pair_argument = content.get('pair_argument', found._pair_argument)
    return found


def _upgraded(content: dict[str, Any]) -> dict[str, Any]:
    r"""What a file of format 1 holds, by the names of now."""
    if 'toward' not in content:
        return content
    rule, state = {**content['rule']}, None
    if rule['name'] == 'Probing':
        names = {'nodes': 'outputs', 'along': 'answer_direction'}
        state = {names.get(name, name): value for name, value in rule.items() if name != 'name'}
        listed = 0 if 'listed' not in rule else rule['listed'].size(1)
        rule = {'name': 'Probing', 'num_probes': rule['num_probes'], 'answer': 'probability', 'shortlist': listed}
    view = {name: value for name, value in content['view'].items() if name != 'by_weight'}
    return {**content, 'rule': rule, 'state': state, 'view': view, 'direction': content['toward']}
