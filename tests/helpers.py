r"""Dense float64 references that can be checked by eye, and small graphs to hold the package against them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_dnx import Report, Surrogate
from pyg_dnx.distill.decomposition import Decomposition
from pyg_dnx.graph.graph import Graph as Inputs


class Graph(NamedTuple):
    x: Tensor  # [N, F]
    edge_index: Tensor  # [2, E]
    edge_weight: Tensor | None  # [E]


def dense_sums(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> Tensor:
    r"""The weights of messages, dense: targets in rows, self-loops of weight 1 where the graph has none."""
    weight = torch.ones(edge_index.size(1)) if edge_weight is None else edge_weight
    matrix = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    loops = torch.ones(num_nodes, dtype=torch.float64)
    for (source, target), value in zip(edge_index.T.tolist(), weight.tolist(), strict=True):
        if source == target:
            loops[target] = value  # the last of duplicate self-loops counts
        else:
            matrix[target, source] += value
    return matrix + loops.diag()


def dense_adjacency(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> Tensor:
    r"""Ã of the definition, dense."""
    matrix = dense_sums(edge_index, edge_weight, num_nodes)
    degree = matrix.sum(dim=1)
    scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
    return scale[:, None] * matrix * scale


def dense_masked_adjacency(graph: Graph, edge_mask: Tensor | None, flow: str = 'source_to_target') -> Tensor:
    r"""Ã, dense, where each of parallel edges passes on its share by weight, times its mask.

    Self-loops are left, unless each node has exactly one of its own: then PyG has a mask for every message.
    """
    edges = graph.edge_index if flow == 'source_to_target' else graph.edge_index.flip(0)
    matrix = dense_adjacency(edges, graph.edge_weight, graph.x.size(0))
    if edge_mask is None:
        return matrix
    weight = torch.ones(edges.size(1)) if graph.edge_weight is None else graph.edge_weight
    total, kept = torch.zeros_like(matrix), torch.zeros_like(matrix)
    loops = edges[0, edges[0] == edges[1]].sort().values
    own_loops = loops.tolist() == list(range(graph.x.size(0)))
    for (source, target), value, factor in zip(edges.T.tolist(), weight.tolist(), edge_mask.tolist(), strict=True):
        if source != target or own_loops:
            total[target, source] += value
            kept[target, source] += value * factor
    return torch.where(total > 0, matrix * kept / total, matrix)


def is_overwritten(edge_index: Tensor, edge: int) -> bool:
    r"""Whether an edge is a self-loop in whose place PyG takes a later duplicate, so that it carries nothing."""
    source, target = edge_index[:, edge].tolist()
    return source == target and [source, target] in edge_index[:, edge + 1 :].T.tolist()


def dense_scores(adjacency: Tensor, x: Tensor, weight: Tensor, num_hops: int) -> Tensor:
    r"""FastDnX by its definition: score[i, j] = Ã^L_ij X_j Θ · (Z_i − b), dense [N, N]."""
    power = torch.linalg.matrix_power(adjacency, num_hops)
    hidden = x.double() @ weight.double()
    return power * (power @ hidden @ hidden.T)


class LocalFit(NamedTuple):
    score: Tensor  # [N, N], of each node (columns) for each (rows)
    error: Tensor  # [N, P], what each answer is off from what all but its pair say of it


def dense_local_fit(
    size: Tensor, traits: Tensor, masks: Tensor, answers: Tensor, likeness: float, noise: float, assumed: Tensor
) -> LocalFit:
    r"""ProbeDnX by its definition, for each node i.

    Effects have the prior covariance S = diag(q²) + τ g₀ / s UUᵀ + g / σ² μμᵀ. Here q_j are their sizes ``size``
    [N, N]; U = diag(q) T with traits T; μ are the surrogate's effects ``assumed`` [N, N]; g₀ is the mean of
    diag(M diag(q²) Mᵀ); s and σ² are the variances of MU, all traits together, and of Mμ; and g = (1 + τ) g₀. Given the
    answers y, of covariance Q = M S Mᵀ + ρ g I around an unknown c, they are S Mᵀ B y, where
    B = Q⁻¹ - Q⁻¹11ᵀQ⁻¹ / 1ᵀQ⁻¹1.
    """
    design, score, error = masks.double(), [], []
    identity = torch.eye(len(design), dtype=torch.float64)
    for row, own, y in zip(size, assumed, answers.T, strict=True):
        scale = ((design * row.square()) @ design.T).diagonal().mean()
        alike = row[:, None] * traits
        spread = (design @ alike).var(dim=0, correction=0).sum()
        if likeness > 0.0 and spread > 1e-20 * (design @ alike).square().mean(dim=0).sum():
            alike = (likeness * scale / spread).sqrt() * alike
            scale = (1.0 + likeness) * scale
        else:
            alike = 0.0 * alike
        spread = (design @ own).var(correction=0)
        multiple = scale / spread if spread > 1e-20 * (design @ own).square().mean() else 0.0
        prior = row.square().diag() + alike @ alike.T + multiple * torch.outer(own, own)

        inverse = (design @ prior @ design.T + scale * noise * identity).inverse()
        inverse -= torch.outer(inverse.sum(dim=1), inverse.sum(dim=0)) / inverse.sum()
        score.append(prior @ design.T @ inverse @ y)
        pairs = [torch.linalg.solve(inverse[p][:, p], (inverse @ y)[p]) for p in torch.arange(len(y)).split(2)]
        error.append(torch.cat(pairs))
    return LocalFit(torch.stack(score), torch.stack(error))


def example_graphs() -> dict[str, Graph]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, generator=generator)
    ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])  # nodes 6 and 7 are isolated
    both = torch.cat([ring, ring.flip(0)], dim=1)
    looped = torch.cat([both, torch.tensor([[2, 2, 6], [2, 2, 6]])], dim=1)
    return {
        'undirected': Graph(x, both, None),
        'directed': Graph(x, ring, None),
        'looped': Graph(x, looped, None),
        'duplicated': Graph(x, torch.cat([both, both[:, :4]], dim=1), None),
        'weighted': Graph(x, looped, torch.rand(looped.size(1), generator=generator) + 0.1),
        'no_edges': Graph(x, ring[:, :0], None),
        'one_node': Graph(x[:1], ring[:, :0], None),
    }


def random_masks(graph: Graph, seed: int = 0) -> list[tuple[Tensor | None, Tensor | None]]:
    r"""All kinds of masks, with zeros and ones among them."""
    generator, (num_nodes, num_features) = torch.Generator().manual_seed(seed), graph.x.shape

    def draw(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) * 1.6 - 0.3).clamp(0.0, 1.0)

    shapes = {'object': (num_nodes, 1), 'attributes': (num_nodes, num_features), 'common_attributes': (1, num_features)}
    node_masks = {None: None, **{name: draw(*shape) for name, shape in shapes.items()}}
    return [(mask, edge) for mask in node_masks.values() for edge in (None, draw(graph.edge_index.size(1)))]


def relabelled(graph: Graph, permutation: Tensor) -> Graph:
    r"""The same graph, where node ``permutation[j]`` takes the place j."""
    place = permutation.argsort()
    return Graph(graph.x[permutation], place[graph.edge_index], graph.edge_weight)


def random_surrogate(
    num_features: int, num_hops: int, num_outputs: int = 3, dtype: torch.dtype = torch.float64, flow: str | None = None
) -> Surrogate:
    r"""A surrogate with zero-sum random weights, as if distilled."""
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(num_features + 1, num_outputs, generator=generator, dtype=torch.float64)
    theta = (theta - theta.mean(dim=1, keepdim=True)).to(dtype)
    report = Report(0.1, 0.9, 0.01, 'newton', 1e-5, True, 8, 'multiclass_classification')
    return Surrogate(theta[:-1], theta[-1], num_hops, report, flow or 'source_to_target')


def random_decomposition(graph: Graph, num_hops: int, **kwargs: Any) -> Decomposition:
    r"""A random surrogate on ``graph``."""
    surrogate = random_surrogate(graph.x.size(1), num_hops, **kwargs)
    return surrogate.on(Inputs(graph.x, graph.edge_index, {'edge_weight': graph.edge_weight}))
