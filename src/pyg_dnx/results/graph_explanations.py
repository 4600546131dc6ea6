r"""The explanations of many graphs, each by itself: to index, tabulate, and show."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.explain import Explanation
from torch_geometric.explain.config import ModelConfig
from torch_geometric.loader import DataLoader

from pyg_dnx import files, options
from pyg_dnx.distill.distill import Trust
from pyg_dnx.graph.copies import part
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import Rows
from pyg_dnx.results.explanation import ShownExplanation
from pyg_dnx.scores.batch import highest

if TYPE_CHECKING:
    import pandas as pd

BATCH_SIZE = 64  # graphs at a time, where the user gives no loader


def batches_of(data: Any) -> Iterator[Batch]:
    r"""The batches of a loader, or of a data set or list of graphs."""
    if not isinstance(data, torch.utils.data.DataLoader):
        if isinstance(data, (Data, Tensor, str)) or not isinstance(data, Iterable):
            raise TypeError(
                f"'data' must be a DataLoader, a Dataset or a list of Data (got {type(data).__name__}): put a single "
                f'graph into a list'
            )
        data = list(data)
        if not data:
            raise ValueError("'data' must hold at least one graph (got none): pass some")
        wrong = next((item for item in data if not isinstance(item, Data)), None)
        if wrong is not None:
            raise TypeError(f"'data' must hold graphs as Data (got {type(wrong).__name__}): {_remedy(wrong)}")
        if (empty := next((g for g, item in enumerate(data) if item.num_nodes == 0), None)) is not None:
            raise ValueError(f"'data' must hold graphs with at least one node (got none in graph {empty}): drop it")
        is_batched = all(isinstance(item, Batch) for item in data)
        widths = sorted({0 if item.x is None else item.x.size(-1) for item in data})
        if len(widths) > 1 or widths[0] == 0:
            raise ValueError(
                f"'data' must hold graphs with the same number of features (got {widths}): pad or drop some"
            )
        data = data if is_batched else DataLoader(data, batch_size=BATCH_SIZE)
    for batch in data:
        if isinstance(batch, HeteroData):
            raise TypeError(f"'data' must give batches of Data (got those of HeteroData): {_remedy(batch)}")
        if not isinstance(batch, Batch):
            raise TypeError(
                f"'data' must give batches of graphs (got {type(batch).__name__}): use PyG's DataLoader, in "
                f"'torch_geometric.loader'"
            )
        if bool((batch.ptr.diff() == 0).any()):
            raise ValueError("'data' must hold graphs with at least one node (got none in some): drop these")
        yield batch


def _remedy(data: Any) -> str:
    if isinstance(data, HeteroData):
        return "pass 'x_dict', 'edge_index_dict' and 'batch_dict' of each batch to the explainer itself"
    return 'convert them'


def arguments_of(model: torch.nn.Module, batch: Batch) -> Graph:
    r"""What the model takes of a batch: features, edges, and its further arguments by name."""
    names = list(inspect.signature(model.forward).parameters)[2:]
    kwargs = {name: batch[name] for name in names if name != 'batch' and batch.get(name) is not None}
    return Graph.of(batch.x, batch.edge_index, {**kwargs, 'batch': batch.batch})


def all_of(model: torch.nn.Module, data: Any) -> Graph:
    r"""All graphs of a data set, batch by batch, as one batch with what the model takes."""
    graphs = [arguments_of(model, batch) for batch in batches_of(data)]
    widths = sorted({graph.x.size(1) for graph in graphs})
    if len(widths) > 1:
        raise ValueError(f"'data' must hold graphs with the same number of features (got {widths}): pad or drop some")
    sizes = torch.tensor([[graph.num_nodes, int(graph.batch.max()) + 1] for graph in graphs], device='cpu')
    starts = (sizes.cumsum(0) - sizes).tolist()

    def joined(name: str, values: list[Any]) -> Any:
        if not isinstance(values[0], Tensor):
            return values[0]
        if 'index' in name:  # numbers of nodes, as PyG has it
            return torch.cat([value + first for value, (first, _) in zip(values, starts, strict=True)], dim=-1)
        return torch.cat(values)

    kwargs = {name: joined(name, [graph.kwargs[name] for graph in graphs]) for name in graphs[0].kwargs}
    kwargs['batch'] = torch.cat([graph.batch + first for graph, (_, first) in zip(graphs, starts, strict=True)])
    edges = joined('edge_index', [graph.edge_index for graph in graphs])
    return Graph.of(torch.cat([graph.x for graph in graphs]), edges, kwargs)


@dataclass(frozen=True, eq=False)
class ExplainedGraphs:
    r"""What explains the graphs of one batch, each by itself, joined in one explanation."""

    graph: Graph
    explanation: Explanation
    trust: Trust
    target: Tensor  # [G], or [G, C] for regression
    takes_batch: bool = True
    node_names: list[Any] | None = None  # of each graph, where the data have them

    def names_of(self, b: int) -> Any:
        return None if self.node_names is None else self.node_names[b]


class GraphExplanations:
    r"""The explanations of many graphs, each by itself. ``explanations[g]`` is that of graph g, for PyG.

    Attributes:
        surrogate_agreement (Tensor): Whether what stands for the model predicts its class, [G].
        distillation_error (Tensor): How far its prediction is from the model's, [G].
        bias_decides (Tensor): Whether its class comes from the bias and not from nodes, [G].
        probe_r2 (Tensor, optional): For ProbeDnX, R² of the local fit, each pair of probes predicted from the others.
        targets (Tensor): The class that each explanation is of, [G]; the outputs for regression, [G, C].
    """

    def __init__(
        self,
        parts: list[ExplainedGraphs],
        model_config: ModelConfig,
        top_k: int | None = None,
        places: Tensor | None = None,
    ) -> None:
        self._parts, self._model_config, self._top_k = parts, model_config, top_k
        sizes = [one.trust.surrogate_agreement.numel() for one in parts]
        self._start = np.cumsum([0, *sizes])
        self._places = torch.arange(int(self._start[-1]), device='cpu') if places is None else places.cpu()
        device = parts[0].target.device
        self.trust = Trust.cat([one.trust for one in parts]).at(self._places.to(device))
        self.surrogate_agreement = self.trust.surrogate_agreement
        self.distillation_error = self.trust.distillation_error
        self.bias_decides = self.trust.bias_decides
        self.probe_r2 = self.trust.probe_r2
        self.targets = torch.cat([one.target for one in parts])[self._places.to(device)]

    @property
    def how(self) -> str:
        r"""What masks of nodes took away: ``'features'`` or ``'nodes'``."""
        return str(self._parts[0].explanation.how)

    @property
    def sizes(self) -> Tensor:
        r"""The number of nodes of each graph, [G]."""
        return self._scores().length

    def _scores(self) -> Rows:
        r"""The scores of the nodes of each graph, numbered within it."""
        lengths, columns, values = [], [], []
        for one in self._parts:
            score, batch = one.explanation.node_score, one.graph.batch
            order, length = batch.argsort(stable=True), torch.bincount(batch)
            first = (length.cumsum(0) - length).repeat_interleave(length)
            lengths.append(length)
            columns.append(torch.arange(batch.numel(), device=batch.device) - first)
            values.append((score if score.dim() == 1 else score.sum(dim=1))[order])
        return Rows(torch.cat(lengths), torch.cat(columns), torch.cat(values)).take(self._places.to(values[0].device))

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        r"""Returns, for each graph, its ``k`` nodes with the highest scores, and these scores.

        Nodes are numbered within their graph. Both are [G, k], highest first; where a graph is smaller, padded with
        node -1 and score 0.
        """
        options.count('k', k)
        if self._top_k is not None and k > self._top_k:
            raise ValueError(
                f"'k' must be at most {self._top_k}, as many as were kept (got {k}): explain the graphs with a larger "
                f"'top_k'"
            )
        return highest(self._scores(), k)

    @overload
    def __getitem__(self, g: int) -> Explanation: ...

    @overload
    def __getitem__(self, g: slice | list[int] | Tensor) -> GraphExplanations: ...

    def __getitem__(self, g: int | slice | list[int] | Tensor) -> Explanation | GraphExplanations:
        if isinstance(g, (slice, list, Tensor)):
            chosen = self._places[g.cpu() if isinstance(g, Tensor) else g].view(-1)
            return GraphExplanations(self._parts, self._model_config, self._top_k, chosen)
        if not isinstance(g, int):
            raise TypeError(f'explanations are indexed by an int, a slice or a tensor (got {g!r}): pass one of these')
        if not -len(self) <= g < len(self):
            raise IndexError(f'there are explanations 0 to {len(self) - 1} (got {g}): see their number by len()')
        place = int(self._places[g])
        number = int(np.searchsorted(self._start, place, side='right')) - 1
        one, b = self._parts[number], place - int(self._start[number])
        graph, nodes, edges = part(one.graph, b, int(self._start[number + 1] - self._start[number]))
        if not one.takes_batch:
            graph.kwargs.pop('batch')
        explanation = ShownExplanation()
        for name, value in one.explanation.to_dict().items():
            if not isinstance(value, Tensor) or name == 'feature_score' or (name == 'node_mask' and value.size(0) == 1):
                explanation[name] = value
            elif name.startswith('node_'):
                explanation[name] = value[nodes]
            elif name.startswith('edge_'):
                explanation[name] = value[edges]
            else:
                explanation[name] = value[b : b + 1]
        explanation.graph_number = place
        if (names := one.names_of(b)) is not None:
            explanation.node_names = names
        explanation._model_config = self._model_config
        explanation._model_args = list(graph.kwargs)
        index = torch.zeros(1, dtype=torch.long, device=nodes.device)
        inputs = {'x': graph.x, 'edge_index': graph.edge_index, 'index': index, 'prediction': None}
        explanation.update({**inputs, **graph.kwargs, 'target': one.target[b : b + 1]})
        return explanation

    def __iter__(self) -> Iterator[Explanation]:
        return (self[g] for g in range(len(self)))

    def __len__(self) -> int:
        return self._places.numel()

    def __repr__(self) -> str:
        return f'GraphExplanations({len(self)} graphs)'

    def _table(self) -> dict[str, np.ndarray]:
        rows = self._scores().sorted(max(one.graph.num_nodes for one in self._parts))
        if self._top_k is not None:
            nodes, scores = highest(rows, self._top_k)
            rows = Rows((nodes >= 0).sum(dim=1), nodes[nodes >= 0], scores[nodes >= 0])
        graph = torch.arange(len(self), device=rows.length.device).repeat_interleave(rows.length)
        table = {'graph': graph, 'node': rows.column, 'score': rows.value}
        table |= {name: value.repeat_interleave(rows.length) for name, value in self.trust.to_dict().items()}
        return {name: value.cpu().numpy() for name, value in table.items()}

    def to_pandas(self) -> pd.DataFrame:
        r"""Returns a table with a row for each score: ``graph``, ``node``, ``score``, and the trust in ``graph``."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("'to_pandas' needs pandas: install it, or write a file with 'to_csv'") from error
        return pd.DataFrame(self._table())

    def to_csv(self, path: files.Path) -> None:
        r"""Writes the table of :meth:`to_pandas` to a file, which does not take pandas."""
        table = self._table()
        columns = [(value.astype(int) if value.dtype == bool else value).astype(str) for value in table.values()]
        lines = (','.join(line) + '\n' for line in zip(*columns, strict=True))
        files.write_text(path, chain([','.join(table) + '\n'], lines))

    def save(self, path: files.Path) -> None:
        r"""Writes the explanations with their graphs to a file that :meth:`load` reads without running code."""
        parts = [
            {
                'x': one.graph.x,
                'edge_index': one.graph.edge_index,
                'kwargs': one.graph.kwargs,
                'explanation': one.explanation.to_dict(),
                'trust': one.trust.to_dict(),
                'target': one.target,
                'takes_batch': one.takes_batch,
                'node_names': one.node_names,
            }
            for one in self._parts
        ]
        config = {name: value.value for name, value in vars(self._model_config).items() if isinstance(value, Enum)}
        content = {'parts': parts, 'model_config': config, 'top_k': self._top_k, 'places': self._places}
        files.write(path, 'GraphExplanations', content)

    @staticmethod
    def load(path: files.Path) -> GraphExplanations:
        r"""Reads explanations that :meth:`save` wrote, onto the CPU."""
        return files.read(path, 'GraphExplanations', _from_dict)


def _from_dict(content: dict[str, Any]) -> GraphExplanations:
    parts = [
        ExplainedGraphs(
            Graph.of(one['x'], one['edge_index'], one['kwargs']),
            ShownExplanation().update(one['explanation']),
            Trust(**one['trust']),
            one['target'],
            one['takes_batch'],
            one['node_names'],
        )
        for one in content['parts']
    ]
    config = ModelConfig(**content['model_config'])
    return GraphExplanations(parts, config, content['top_k'], content['places'])
