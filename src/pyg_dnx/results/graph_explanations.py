r"""The explanations of many graphs, each by itself: to index, tabulate, and show."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explanation
from torch_geometric.explain.config import ModelConfig
from torch_geometric.loader import DataLoader

from pyg_dnx import files, options
from pyg_dnx.distill.distill import Distilled, Trust
from pyg_dnx.graph.copies import part
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.rows import Rows
from pyg_dnx.results.explanation import View, build
from pyg_dnx.scores.batch import highest
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.rules import Directed, Effects, Fitted

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
            raise TypeError(f"'data' must hold graphs as Data (got {type(wrong).__name__}): convert them")
        widths = sorted({0 if item.x is None else item.x.size(-1) for item in data})
        if len(widths) > 1 or widths[0] == 0:
            raise ValueError(
                f"'data' must hold graphs with the same number of features (got {widths}): pad or drop some"
            )
        data = DataLoader(data, batch_size=BATCH_SIZE)
    for batch in data:
        if not isinstance(batch, Batch):
            raise TypeError(
                f"'data' must give batches of graphs (got {type(batch).__name__}): use PyG's DataLoader, in "
                f"'torch_geometric.loader'"
            )
        yield batch


def arguments_of(model: torch.nn.Module, batch: Batch) -> Graph:
    r"""What the model takes of a batch: features, edges, and its further arguments by name."""
    names = list(inspect.signature(model.forward).parameters)[2:]
    kwargs = {name: batch[name] for name in names if name != 'batch' and batch.get(name) is not None}
    return Graph.of(batch.x, batch.edge_index, {**kwargs, 'batch': batch.batch})


@dataclass(frozen=True, eq=False)
class ScoredGraphs:
    r"""The scores of the graphs of one batch."""

    graph: Graph
    distilled: Distilled
    question: Question
    effects: Effects
    rows: Rows  # the scores of each graph's nodes
    trust: Trust
    top_k: int | None


class GraphExplanations:
    r"""The explanations of many graphs, each by itself. ``explanations[g]`` is that of graph g, for PyG.

    Attributes:
        surrogate_agreement (Tensor): Whether what stands for the model predicts its class, [G].
        distillation_error (Tensor): How far its prediction is from the model's, [G].
        bias_decides (Tensor): Whether its class comes from the bias and not from nodes, [G].
        probe_r2 (Tensor, optional): For ProbeDnX, R² of the local fit, each pair of probes predicted from the others.
        targets (Tensor): The class that each explanation is of, [G]; the outputs for regression, [G, C].
    """

    def __init__(self, parts: list[ScoredGraphs], data: Any, view: View, model_config: ModelConfig) -> None:
        self._parts, self._view, self._model_config = parts, view, model_config
        self._start = np.cumsum([0, *(one.question.outputs.numel() for one in parts)])
        trust = Trust.cat([one.trust for one in parts])
        self.surrogate_agreement = trust.surrogate_agreement
        self.distillation_error = trust.distillation_error
        self.bias_decides = trust.bias_decides
        self.probe_r2 = trust.probe_r2
        self.targets = torch.cat([one.distilled.answers.target for one in parts])
        self._trust = trust

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        r"""Returns, for each graph, its ``k`` nodes with the highest scores, and these scores.

        Nodes are numbered within their graph. Both are [G, k], highest first; where a graph is smaller, padded with
        node -1 and score 0.
        """
        options.count('k', k)
        found = []
        for one in self._parts:
            nodes, scores = highest(one.rows, k)
            first = torch.zeros(len(one.rows.length) + 1, dtype=torch.long, device=nodes.device)
            first[1:] = torch.bincount(one.graph.batch, minlength=len(one.rows.length)).cumsum(0)
            found.append((torch.where(nodes < 0, nodes, nodes - first[:-1, None]), scores))
        every = list(zip(*found, strict=True))
        return torch.cat(every[0]), torch.cat(every[1])

    def __getitem__(self, g: int) -> Explanation:
        if not isinstance(g, int):
            raise TypeError(f'explanations are indexed by an int (got {g!r}): loop over the graphs you want')
        if not -len(self) <= g < len(self):
            raise IndexError(f'there are explanations 0 to {len(self) - 1} (got {g}): see their number by len()')
        g %= len(self)
        number = int(np.searchsorted(self._start, g, side='right')) - 1
        one, b = self._parts[number], g - int(self._start[number])
        graph, nodes, _ = part(one.graph, b, one.question.outputs.numel())
        effects, surrogate = one.effects, one.distilled.surrogate
        with torch.no_grad():
            decomposition, first = surrogate.on(graph), torch.zeros(1, dtype=torch.long, device=nodes.device)
            direction = effects.direction[b : b + 1]
            if isinstance(effects, Fitted):
                rows = effects.rows.take(one.question.outputs[b : b + 1])
                entry = slice(*one.rows.offsets()[b : b + 2].tolist())
                rows = rows._replace(column=torch.searchsorted(nodes, rows.column.long()))
                effects = Fitted(rows, effects.effect[entry], direction, effects.trust.at(slice(b, b + 1)))
            else:
                effects = Directed(direction)
            trust = self._trust.at(slice(g, g + 1))
            explanation = build(decomposition, Question(first, direction), effects, trust, graph, self._view)
        explanation._model_config = self._model_config
        explanation._model_args = list(graph.kwargs)
        inputs = {'x': graph.x, 'edge_index': graph.edge_index, 'index': first, 'prediction': None}
        explanation.update({**inputs, **graph.kwargs, 'target': self.targets[g : g + 1]})
        return explanation

    def __iter__(self) -> Iterator[Explanation]:
        return (self[g] for g in range(len(self)))

    def __len__(self) -> int:
        return int(self._start[-1])

    def __repr__(self) -> str:
        return f'GraphExplanations({len(self)} graphs)'

    def _table(self) -> dict[str, np.ndarray]:
        graphs, nodes, scores, lengths = [], [], [], []
        for first, one in zip(self._start.tolist(), self._parts, strict=False):
            rows = one.rows.sorted(one.graph.num_nodes)
            start = torch.bincount(one.graph.batch, minlength=len(rows.length)).cumsum(0)
            start = start - torch.bincount(one.graph.batch, minlength=len(rows.length))
            graphs.append((torch.arange(len(rows.length), device='cpu') + first).repeat_interleave(rows.length.cpu()))
            nodes.append((rows.column.long() - start.repeat_interleave(rows.length)).cpu())
            scores.append(rows.value.cpu())
            lengths.append(rows.length.cpu())
        table = {'graph': torch.cat(graphs), 'node': torch.cat(nodes), 'score': torch.cat(scores)}
        length = torch.cat(lengths)
        table |= {name: value.cpu().repeat_interleave(length) for name, value in self._trust.to_dict().items()}
        return {name: value.numpy() for name, value in table.items()}

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
        lines = [','.join(table), *(','.join(line) for line in zip(*columns, strict=True))]
        with open(path, 'w', encoding='utf-8') as file:
            file.write('\n'.join(lines) + '\n')
