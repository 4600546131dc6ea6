r"""Synthetic graphs with planted motifs, drawn as those behind the paper's tables were.

Of PyG come the motifs, their labels and the assembly, in :class:`ExplainerDataset`. Added here is what the published
graphs have and PyG's have not: Barabási-Albert graphs in which every new node gets as many *distinct* neighbours as
asked for, trees numbered level by level, motifs that hang at regular intervals by their first node, random extra
edges, the bottle motif, and two communities.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import ExplainerDataset
from torch_geometric.datasets.graph_generator import GraphGenerator
from torch_geometric.datasets.motif_generator import CustomMotif, CycleMotif, GridMotif, HouseMotif, MotifGenerator
from torch_geometric.utils import to_undirected

EDGES_BETWEEN_COMMUNITIES = 350


class DistinctBAGraph(GraphGenerator):
    r"""Barabási-Albert graphs: each node from ``num_edges`` on is linked to that many distinct earlier nodes."""

    def __init__(self, num_nodes: int, num_edges: int) -> None:
        self.num_nodes, self.num_edges = num_nodes, num_edges

    def __call__(self) -> Data:
        degree = torch.zeros(self.num_nodes)
        neighbors = [torch.arange(self.num_edges)]
        for node in range(self.num_edges, self.num_nodes):
            degree[neighbors[-1]] += 1
            degree[node] = self.num_edges
            neighbors.append(torch.multinomial(degree, self.num_edges))
        new = torch.arange(self.num_edges, self.num_nodes).repeat_interleave(self.num_edges)
        edge_index = to_undirected(torch.stack([new, torch.cat(neighbors[:-1])]), num_nodes=self.num_nodes)
        return Data(num_nodes=self.num_nodes, edge_index=edge_index)


class LevelTree(GraphGenerator):
    r"""The complete binary tree, numbered level by level."""

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes

    def __call__(self) -> Data:
        child = torch.arange(1, self.num_nodes)
        edge_index = to_undirected(torch.stack([(child - 1) // 2, child]), num_nodes=self.num_nodes)
        return Data(num_nodes=self.num_nodes, edge_index=edge_index)


class BottleMotif(CustomMotif):
    r"""The bottle: a triangle with two more nodes at one corner."""

    def __init__(self) -> None:
        edge_index = to_undirected(torch.tensor([[0, 0, 0, 0, 1], [1, 2, 3, 4, 2]]))
        super().__init__(Data(num_nodes=5, edge_index=edge_index, y=torch.tensor([1, 2, 2, 3, 3])))


class Recipe(NamedTuple):
    base: GraphGenerator
    motif: MotifGenerator
    num_motifs: int
    extra: float = 0.01
    has_roles: bool = True  # whether the label says which part of the motif a node is
    has_second_links: bool = False


BA, TREE = DistinctBAGraph(300, 5), LevelTree(511)
RECIPES = {
    'ba_house': Recipe(BA, HouseMotif(), 80),
    'ba_community': Recipe(BA, HouseMotif(), 80),
    'ba_grids': Recipe(BA, GridMotif(), 80, has_roles=False),
    'tree_cycles': Recipe(TREE, CycleMotif(6), 60, has_roles=False, has_second_links=True),
    'tree_grids': Recipe(TREE, GridMotif(), 80, extra=0.1, has_roles=False),
    'ba_bottle': Recipe(BA, BottleMotif(), 80),
}


def generate(name: str) -> Data:
    r"""Draws ``edge_index`` and ``y`` of a graph from PyTorch's global generator."""
    graph = plant(RECIPES[name])
    if name != 'ba_community':
        return graph
    other, num_nodes = plant(RECIPES[name]), graph.y.numel()
    pairs = torch.randperm(num_nodes**2)[:EDGES_BETWEEN_COMMUNITIES]
    between = torch.stack([pairs // num_nodes, pairs % num_nodes + num_nodes])
    edge_index = torch.cat([graph.edge_index, other.edge_index + num_nodes, between], dim=1)
    y = torch.cat([graph.y, other.y + graph.y.max() + 1])
    return Data(edge_index=to_undirected(edge_index, num_nodes=2 * num_nodes), y=y)


def plant(recipe: Recipe) -> Data:
    r"""A base graph with motifs, each linked to it by its first node, and random extra edges."""
    num_motifs = recipe.num_motifs
    graph = ExplainerDataset(recipe.base, recipe.motif, num_motifs)[0]
    y, num_nodes = graph.y, graph.y.numel()
    num_base = int((graph.node_mask == 0).sum())
    in_base = graph.edge_index < num_base
    edge_index = graph.edge_index[:, in_base[0] == in_base[1]]  # without PyG's links, which are to random motif nodes

    size, spacing = (num_nodes - num_base) // num_motifs, num_base // num_motifs
    anchor, first = torch.arange(num_motifs) * spacing, torch.arange(num_base, num_nodes, size)
    links = torch.stack([anchor, first])
    if recipe.has_second_links:
        second = links + torch.randint(1, 4, links.shape)
        links = torch.cat([links, second[:, torch.rand(num_motifs) < 0.5]], dim=1)
    edge_index = to_undirected(torch.cat([edge_index, links], dim=1), num_nodes=num_nodes)

    part = torch.arange(num_nodes)
    part[num_base:] = num_nodes + (part[num_base:] - num_base) // size
    extra = unlinked_pairs(edge_index, part, int(edge_index.size(1) // 2 * recipe.extra))
    edge_index = to_undirected(torch.cat([edge_index, extra], dim=1), num_nodes=num_nodes)
    return Data(edge_index=edge_index, y=y if recipe.has_roles else y.clamp(max=1))


def unlinked_pairs(edge_index: Tensor, part: Tensor, num_pairs: int) -> Tensor:
    r"""Draws pairs [2, num_pairs] of nodes that have no edge yet and are of different parts [N]."""
    is_free = (part[:, None] != part).triu()
    is_free[edge_index[0], edge_index[1]] = False
    free = is_free.nonzero()
    return free[torch.randperm(free.size(0))[:num_pairs]].t()
