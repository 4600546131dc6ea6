r"""The user's model, which is only ever called, as ``model(x, edge_index, **kwargs)``, and never written to."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.algorithm.utils import clear_masks, set_hetero_masks, set_masks
from torch_geometric.explain.config import ModelConfig
from torch_geometric.nn import MessagePassing

from pyg_dnx.checkpoint import WIDTH, Checkpoint, sketch
from pyg_dnx.graph.copies import copies, only_entries, part, without_edges
from pyg_dnx.graph.graph import Graph
from pyg_dnx.graph.readout import num_outputs
from pyg_dnx.graph.subgraphs import whole_graphs
from pyg_dnx.run import DEFAULT, Run
from pyg_dnx.teacher.given import Given, check_outputs, check_probes
from pyg_dnx.teacher.outputs import to_targets
from pyg_dnx.teacher.private import EvaluationMode, copied, lock_of, note_written
from pyg_dnx.teacher.probes import NUM_FIXED_MASKS
from pyg_dnx.teacher.reach import receptive_field

MAX_COPIES = 512  # of a graph, asked about in one batch
ANY_NUMBER = -1  # of rows


class Answers(NamedTuple):
    r"""What the model says of a graph."""

    values: Tensor  # class probabilities or regression outputs [O, C], C = 2 for binary models
    target: Tensor  # the target that PyG derives from the same outputs


@dataclass(frozen=True, eq=False)
class Teacher:
    r"""A model and what it returns, or only what it returned.

    Args:
        model: The model; ``None`` if only its answers are known.
        config: What it returns.
        given: What it returns for all nodes, [N] or [N, C], if it is known.
        given_probes: What it returns under each of ``probe_masks``, [P, N] or [P, N, C], if it is known.
        given_edge_probes: What it returns under each of ``probe_edge_masks``, if it is known.
        one_by_one: Whether a model of graphs is asked about one graph of a batch at a time.
    """

    model: torch.nn.Module | None
    config: ModelConfig
    given: Given = None
    given_probes: Given = None
    given_edge_probes: Given = None
    one_by_one: bool = False
    drawn: set[bool] = field(default_factory=set, repr=False)  # whether evaluations drew random numbers
    _clean: dict[bool, torch.nn.Module] = field(default_factory=dict, repr=False)  # copies that stay as they are

    @cached_property
    def reach(self) -> int | None:
        r"""How many hops the model looks, as far as its PyG layers tell."""
        return None if self.model is None else receptive_field(self.model)

    @cached_property
    def flow(self) -> str:
        r"""The direction of messages."""
        return ExplainerAlgorithm._flow(torch.nn.Module() if self.model is None else self.model)

    @property
    def can_be_asked(self) -> bool:
        r"""Whether answers under masks can be had."""
        return self.model is not None or self.given_probes is not None

    def check_model(self) -> None:
        if self.model is not None and not isinstance(self.model, torch.nn.Module):
            raise TypeError(
                f"'model' must be a torch.nn.Module or None (got {type(self.model).__name__}): wrap it in one whose "
                f"'forward' calls it, or pass None and what it returns as 'teacher_outputs'"
            )

    def check(self, graph: Graph, num_masks: int, needs_masks: bool) -> None:
        r"""Checks the model, or what it returned for ``graph`` and under ``num_masks`` masks."""
        self.check_model()
        if self.given is not None:
            check_outputs(self.given, num_outputs(graph, self.level))
        if self.given_edge_probes is not None:
            known = self.given if self.given_probes is None else self.given_probes[0]
            check_probes('edge_probe_outputs', self.given_edge_probes, known, graph, num_masks)
        if self.given_probes is not None:
            check_probes('probe_outputs', self.given_probes, self.given, graph, num_masks)
        elif self.model is None and needs_masks:
            raise TypeError(
                "'model' must be a module unless 'probe_outputs' is given, as the model is asked under masks for "
                "distillation 'masked' (got None): pass one of them, or distillation 'paper'"
            )
        elif self.model is None and self.given is None:
            raise TypeError("'model' must be a module unless 'teacher_outputs' is given (got None): pass one of them")

    def outputs(self, graph: Graph, dtype: torch.dtype = torch.float64, run: Run = DEFAULT) -> Answers:
        r"""What the model says of all nodes."""
        given = self.given
        if given is None:
            given = self.query(graph) if self.given_probes is None else self.given_probes[0]
        one = None if run.tables is None else to_targets(given[:1], self.config, dtype, graph.x.device)[1]
        if one is None or one.dim() == 0:
            return Answers(*to_targets(given, self.config, dtype, graph.x.device, run.entries))
        size, shape = given.shape[0], one.shape[1:] if one.size(0) == 1 else one.shape  # binary models have two a node

        def answers(rows: slice) -> list[Tensor]:
            values, target = to_targets(given[rows], self.config, dtype, graph.x.device, run.entries)
            return [values, target.view(-1, *shape)]

        values, target = run.rows('answers', size, answers, 1 if len(given.shape) == 1 else given.shape[1])
        return Answers(values, target if one.size(0) == 1 else target.flatten())

    def asked(self, graph: Graph, run: Run) -> Teacher:
        r"""The same with what it returns for ``graph``, which the first of several processes asks and keeps."""
        if self.given is not None or self.given_probes is not None:
            return self
        run = run.within('asked')
        found = self.query(graph) if run.rank == 0 else None
        width = int(run.first(0 if found is None else found[:1].numel()))
        about = torch.zeros(WIDTH, width, dtype=torch.float64, device='cpu')
        about = run.sum(about if found is None else sketch(found.view(-1, width)))
        Checkpoint(run.folder.path, torch.zeros(0, device='cpu'), {'model': about}).join()
        tables = run.each('outputs', 1, num_outputs(graph, self.level), lambda _: [cast(Tensor, found)])
        return replace(self, given=tables[0][0])

    def answers_at_random(self, graph: Graph, outputs: Tensor) -> bool:
        r"""Whether the model draws random numbers and, asked once more, says something else than ``outputs`` [O, C]."""
        if True not in self.drawn:
            return False
        return not torch.allclose(self.redrawn(graph, 1), outputs.double(), rtol=1e-4, atol=1e-4)

    def redrawn(self, graph: Graph, seed: int) -> Tensor:
        r"""What the model says of all outputs if random numbers start from a ``seed``, [O, C]."""
        devices = [graph.x.device] if graph.x.device.type == 'cuda' else []
        with torch.random.fork_rng(devices):
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed(seed)
            return to_targets(self.query(graph), self.config, torch.float64, graph.x.device)[0]

    @property
    def level(self) -> str:
        r"""What the model predicts something of."""
        return str(self.config.task_level.value)

    def under(
        self, graph: Graph, node_mask: Tensor | None = None, edge_mask: Tensor | None = None, how: str = 'features'
    ) -> Tensor:
        r"""What the model says under masks, [O, C].

        As in PyG's metrics, features and messages are multiplied by them; or nodes outside the mask are removed. Layers
        that keep what they computed for another input (``cached=True``) compute it anew.

        Args:
            graph: The graph.
            node_mask: Of shape [N, 1], [N, F] or [1, F].
            edge_mask: Of shape [E]; only layers that are PyG's look at it.
            how: ``'features'`` or ``'nodes'``.
        """
        if node_mask is not None and how == 'nodes' and node_mask.size(0) == graph.num_nodes:
            keep = (node_mask > 0.0).any(dim=1)
            source, target = graph.edge_index
            edge_mask = None if edge_mask is None else edge_mask[keep[source] & keep[target]]
            size = num_outputs(graph, self.level)
            return self._answers(copies(graph, keep[None], how, size), None, edge_mask, size)
        return self._answers(graph, None if node_mask is None else graph.times(node_mask), edge_mask)

    def _answers(
        self, graph: Graph, x: Any = None, edge_mask: Tensor | None = None, num_rows: int | None = None
    ) -> Tensor:
        outputs = self.query(graph, x, edge_mask, is_masked=True, num_rows=num_rows)
        return to_targets(outputs, self.config, torch.float64, graph.x.device)[0]

    def probe(
        self,
        graph: Graph,
        masks: Tensor,
        run: Run,
        first: int = NUM_FIXED_MASKS,
        how: str = 'features',
        known: Tensor | None = None,
    ) -> Iterator[Tensor]:
        r"""Yields what the model says where each of ``masks`` [P, N], from ``first`` on, takes nodes away, [O, C].

        Models of graphs are asked about many copies in one batch, if they take batches and answer row by row: as is
        ``known`` of the graph as it is, [O, C].
        """
        if (given := self._given(how)) is not None:
            name = 'edge_probe_outputs' if how == 'edges' else 'probe_outputs'
            rule, remedy = f"'{name}' must hold what a model may return", 'check them'
        elif how == 'edges':
            rule, remedy = "'model' must answer where edges are dropped", "score edges by 'flow'"
        else:
            rule, remedy = "'model' must answer where features are blanked", "use FastDnX with distillation 'paper'"
        try:
            if run.tables is not None:
                yield from self._probe_together(graph, masks, run, first, how)
            elif given is not None:
                for step in given[first : masks.size(0)]:
                    yield to_targets(step, self.config, torch.float64, graph.x.device)[0]
            elif self.level == 'graph':
                yield from self._probe_copies(graph, masks[first:].to(graph.x.device), run, graph.taken(how), known)
            else:
                for step in run.bar('Probing', 'probes', masks[first:]):
                    yield self._without(graph, step.to(graph.x.device), how)
        except ValueError as error:
            raise ValueError(f'{rule} (got: {error}): {remedy}') from error

    def _probe_together(self, graph: Graph, masks: Tensor, run: Run, first: int, how: str) -> Iterator[Tensor]:
        given = self._given(how)

        def answers(place: slice) -> list[Tensor]:
            number = first + place.start
            if given is not None:
                return [to_targets(given[number], self.config, torch.float64, graph.x.device, run.entries)[0]]
            return [self._without(graph, masks[number].to(graph.x.device), how)]

        size = num_outputs(graph, self.level)
        for tables in run.each(f'{how} probe{first}', masks.size(0) - first, size, answers):
            yield tables[0].to(graph.x.device)

    def knows(self, how: str) -> bool:
        r"""Whether it is known what it returns under masks."""
        return self._given(how) is not None

    def _given(self, how: str) -> Given:
        r"""What it returns under masks, if it is known."""
        if how in ('columns', 'entries'):
            return None
        return self.given_edge_probes if how == 'edges' else self.given_probes

    def _without(self, graph: Graph, keep: Tensor, how: str) -> Tensor:
        r"""What the model says where only some nodes, edges or features are left."""
        if how == 'edges':
            return self._answers(without_edges(graph, keep))
        if how == 'columns':
            return self.under(graph, keep[None])
        if how == 'entries':
            return self.under(graph, only_entries(graph.x, keep))
        return self.under(graph, keep[:, None], None, how)

    def _probe_copies(self, graph: Graph, masks: Tensor, run: Run, how: str, known: Tensor | None) -> Iterator[Tensor]:
        known = self.outputs(graph).values if known is None else known
        size = known.size(0)
        width = 2 * run.entries // (graph.num_nodes * (graph.x.size(1) + 16) + graph.edge_index.size(1))
        width, is_known = max(1, min(width, MAX_COPIES)) if self.takes_batches(graph) else 0, self.one_by_one
        with run.bar('Probing', 'probes', total=masks.size(0)) as bar:
            while masks.size(0) > 0:
                chunk, masks = masks.tensor_split([max(1, width)])
                found = None
                if width > 0:  # and at first one whole copy at the end, whose answer is known
                    whole = torch.ones_like(chunk[: int(not is_known)])
                    found = self._in_one_batch(copies(graph, torch.cat([chunk, whole]), how, size), known, len(chunk))
                    if found is not None and not is_known:  # and the most unlike copy is asked about alone
                        unlike = int((found - known).abs().flatten(1).sum(dim=1).argmax())
                        is_known = _is_near(found[unlike], self._one_copy(graph, chunk[unlike], how, size))
                        found = found if is_known else None
                if found is None:
                    width = 0
                    found = torch.stack([self._one_copy(graph, mask, how, size) for mask in chunk])
                bar.update(chunk.size(0))
                yield from found

    def _in_one_batch(self, batch: Graph, known: Tensor, count: int) -> Tensor | None:
        r"""The answers [k, O, C] to k copies; ``None`` if that to a whole one after them is not as ``known``."""
        try:
            outputs = self.query(batch, is_masked=True, num_rows=int(batch.batch[-1]) + 1)
            found = to_targets(outputs, self.config, torch.float64, batch.x.device)[0]
        except Exception:  # a model that takes one graph at a time
            return None
        found = found.unflatten(0, (-1, known.size(0)))
        return found[:count] if len(found) == count or _is_near(found[-1], known) else None

    def _one_copy(self, graph: Graph, mask: Tensor, how: str, size: int) -> Tensor:
        one = copies(graph, mask[None], how, size)
        if graph.kwargs.get('batch') is None:
            one.kwargs.pop('batch')
            one.kwargs.update({name: value for name, value in graph.kwargs.items() if name == 'batch'})
        return self._answers(one, num_rows=size)

    def takes_batches(self, graph: Graph) -> bool:
        r"""Whether the model can be told which graph each node is part of."""
        if not graph.has_edge_order or self.model is None:
            return False
        if 'batch' in graph.kwargs:
            return True
        try:
            return 'batch' in inspect.signature(self.model.forward).parameters
        except (TypeError, ValueError):
            return False

    def query(
        self,
        graph: Graph,
        x: Any = None,
        edge_mask: Tensor | None = None,
        is_masked: bool = False,
        num_rows: int | None = None,
    ) -> Tensor:
        r"""Evaluates the model once, without gradients and in evaluation mode, and checks what it returns.

        Args:
            graph: The graph.
            x: Other features, as the model takes them.
            edge_mask: What multiplies messages, [E].
            is_masked: Whether layers that keep what they computed before compute it anew.
            num_rows: How many rows there must be, or ``ANY_NUMBER``; by default what the graph says.
        """
        if self.model is None:
            raise TypeError("'model' must be a module to be asked (got None): pass it")
        if self.one_by_one and self.level == 'graph' and graph.kwargs.get('batch') is not None:
            return self._each(graph, x, edge_mask, is_masked)
        if any(map(is_lazy, self.model.parameters())):  # there are no weights before the first evaluation
            graph.call(EvaluationMode(self.model))
        copies: dict[int, Any] = {}
        known = None if edge_mask is not None else self._clean.get(is_masked)
        model, devices = known or self._private(copies, is_masked), _devices(graph)
        with lock_of(self.model), torch.random.fork_rng(devices), torch.no_grad():
            if edge_mask is not None:
                graph = self._with_masks(model, graph, edge_mask)
            before = {key: vars(clone).copy() for key, clone in copies.items() if isinstance(clone, torch.nn.Module)}
            drawn = torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)
            outputs = graph.call(model, x)
            now = torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)
        if known is not None:
            return self._checked(outputs, graph, num_rows)
        self.drawn.add(not all(map(torch.equal, drawn, now)))
        is_clean = not note_written(self.model, copies, before) and not any(it._version for it in model.buffers())
        if is_clean and edge_mask is None and self.drawn == {False}:
            keeps = any(vars(layer).get('cached') for layer in self.model.modules())
            self._clean.update(dict.fromkeys((is_masked,) if keeps else (True, False), model))
        return self._checked(outputs, graph, num_rows)

    def _private(self, copies: dict[int, Any], is_masked: bool) -> torch.nn.Module:
        r"""A copy of the model that evaluations may write to, and in ``copies`` what stands in it for what."""
        model = copied(cast(torch.nn.Module, self.model), copies)
        for layer in model.modules() if is_masked else ():
            if isinstance(layer, MessagePassing):
                vars(layer).update({name: None for name in vars(layer) if name.startswith('_cached')})
                if 'cached' in vars(layer):
                    layer.cached = False
        return model

    def _with_masks(self, model: torch.nn.Module, graph: Graph, edge_mask: Tensor) -> Graph:
        r"""Has the layers of a copy multiply messages; returns the graph that they are then to be asked about."""
        if graph.types is None:
            set_masks(model, edge_mask, graph.edge_index, apply_sigmoid=False)
            return graph
        set_hetero_masks(model, graph.types.of_edges(edge_mask), graph.arguments[1], apply_sigmoid=False)
        layers = [layer for layer in model.modules() if isinstance(layer, MessagePassing)]
        if all(layer._edge_mask is not None for layer in layers):
            return graph
        clear_masks(model)  # some layer takes several relations
        return self._dropped(graph, edge_mask)

    def _each(self, graph: Graph, x: Tensor | None, edge_mask: Tensor | None, is_masked: bool) -> Tensor:
        r"""What the model returns for each graph of a batch, asked one by one."""
        single, size, found = replace(self, one_by_one=False), int(graph.batch.max()) + 1, []
        for number in range(size):
            one, nodes, edges = part(graph, number, size)
            if not self.takes_batch:
                one.kwargs.pop('batch')
            masks = (None if x is None else x[nodes], None if edge_mask is None else edge_mask[edges])
            found.append(single.query(one, *masks, is_masked, num_rows=1))
        return torch.cat(found)

    @property
    def takes_batch(self) -> bool:
        r"""Whether the model has an argument for which graph each node is part of."""
        try:
            parameters = inspect.signature(cast(torch.nn.Module, self.model).forward).parameters
        except (TypeError, ValueError):
            return True
        return 'batch' in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())

    def mixes(self, graph: Graph) -> bool:
        r"""Whether what the model says of a graph depends on which others are in the batch."""
        size = num_outputs(graph, 'graph')
        if size == 1:
            return False
        ends = torch.tensor([0, size - 1], device=graph.x.device)
        found = whole_graphs(graph.batch, graph.edge_index, ends)
        pair = found.graph(graph, None, ends, size)
        pair.kwargs['batch'] = found.owner
        alone = replace(self, one_by_one=True).outputs(pair).values
        return not _is_near(alone, self.outputs(pair).values)

    def _dropped(self, graph: Graph, edge_mask: Tensor) -> Graph:
        r"""The graph with those edges that a mask keeps."""
        if not bool(((edge_mask == 0) | (edge_mask == 1)).all()):
            raise ValueError(
                f"'edge_mask' must be 0 or 1 everywhere for {type(self.model).__name__}, whose layers take several "
                f"relations, so that PyG can't multiply their messages (got values between): pass a "
                f"'threshold_config' of type 'topk_hard', say, or a node mask"
            )
        return without_edges(graph, edge_mask > 0)

    def _checked(self, outputs: Any, graph: Graph, num_rows: int | None) -> Tensor:
        if not isinstance(outputs, Tensor):
            raise TypeError(
                f"'model' must return one tensor of {self.level} outputs (got {type(outputs).__name__}): wrap it in a "
                f'module that returns only the output to explain'
            )
        num_rows = num_outputs(graph, self.level) if num_rows is None else num_rows
        if graph.is_one_pair and self.level == 'edge' and outputs.dim() < 2:
            outputs = outputs.view(1, -1)
        if outputs.dim() not in (1, 2) or num_rows not in (ANY_NUMBER, outputs.size(0)):
            pair = f'pair of {graph.pair_argument!r}' if graph.names_pairs else "edge of 'edge_index'"
            what = {'node': "node of 'x'", 'edge': pair, 'graph': "graph of 'batch'"}[self.level]
            if graph.types is not None and self.level == 'node':
                what = f'node of type {graph.types.target!r}'
            raise ValueError(
                f"'model' must return outputs of shape [{num_rows}] or [{num_rows}, C], one row a {what} (got "
                f'{list(outputs.shape)}): use a {self.level}-level model'
            )
        return outputs.detach()


def _devices(graph: Graph) -> list[torch.device]:
    return [graph.x.device] if graph.x.device.type == 'cuda' else []


def _is_near(found: Tensor, known: Tensor) -> bool:
    return torch.allclose(found, known.double(), rtol=0.0, atol=1e-4 * float(known.abs().max()))
