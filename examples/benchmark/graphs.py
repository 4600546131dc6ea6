r"""Generated graphs of any size, with the heavy-tailed degrees and the homophily of real ones."""

import torch


def power_law(num_nodes, num_edges, num_features, num_classes, seed=0):
    r"""Returns x [N, F], edge_index [2, E] with both directions of each edge, and y [N].

    One end of an edge is drawn by weights that decay as a power law, the other from the same class in 7 of 10 cases.
    """
    generator = torch.Generator().manual_seed(seed)
    place = torch.randperm(num_nodes, generator=generator)  # so that neighbours are not neighbours in memory
    weight = (torch.arange(num_nodes, dtype=torch.float64) + 10.0).rsqrt()
    share = (weight / weight.sum()).cumsum(0)
    hub = torch.randperm(num_nodes, generator=generator)
    half = num_edges // 2
    edge_index = torch.empty(2, 2 * half, dtype=torch.long)
    for first in range(0, half, 2**22):
        size = min(2**22, half - first)
        draw = torch.rand(size, dtype=torch.float64, generator=generator)
        source = hub[torch.searchsorted(share, draw).clamp(max=num_nodes - 1)]
        label = source * num_classes // num_nodes
        width = num_nodes // num_classes
        inside = (label * num_nodes).div(num_classes, rounding_mode='floor') + torch.randint(
            width, (size,), generator=generator
        )
        anywhere = torch.randint(num_nodes, (size,), generator=generator)
        same = torch.rand(size, generator=generator) < 0.7
        target = torch.where(same, inside, anywhere)
        edge_index[0, first : first + size] = place[source]
        edge_index[1, first : first + size] = place[target]
    edge_index[:, half:] = edge_index[:, :half].flip(0)
    y = torch.empty(num_nodes, dtype=torch.long)
    y[place] = torch.arange(num_nodes) * num_classes // num_nodes
    center = torch.randn(num_classes, num_features, generator=generator)
    x = torch.randn(num_nodes, num_features, generator=generator)
    for rows in range(0, num_nodes, 2**18):
        x[rows : rows + 2**18] += 0.3 * center[y[rows : rows + 2**18]]
    return x, edge_index, y
