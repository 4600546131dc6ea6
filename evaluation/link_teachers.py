r"""Models of links, and the pairs that are explained: edges of Cora and CiteSeer, ratings of users."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.utils import negative_sampling, to_undirected

from pyg_dnx.datasets import load

GRAPHS, MODELS = ('Cora', 'CiteSeer', 'bitcoin_alpha'), ('GCN dot', 'GCN MLP', 'SAGE dot', 'SAGE MLP')
HIDDEN, EPOCHS = 32, 100
CONVS = {'GCN': GCNConv, 'SAGE': SAGEConv}


class Links(torch.nn.Module):
    r"""Two layers on a linear embedding, and a dot product of both ends, or a multilayer perceptron of both."""

    def __init__(self, name, num_features):
        super().__init__()
        conv, self.decoder = name.split()
        self.embed = torch.nn.Linear(num_features, HIDDEN, bias=False)
        self.drop = torch.nn.Dropout(0.5)
        self.conv1, self.conv2 = CONVS[conv](HIDDEN, HIDDEN), CONVS[conv](HIDDEN, HIDDEN)
        self.head = torch.nn.Sequential(
            torch.nn.Linear(2 * HIDDEN, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1)
        )
        self.scale, self.shift = torch.nn.Parameter(torch.ones(())), torch.nn.Parameter(torch.zeros(()))

    def forward(self, x, edge_index, edge_label_index):
        x = self.drop(self.embed(x))
        x = self.conv2(self.drop(self.conv1(x, edge_index).relu()), edge_index)
        return self.decode(x[edge_label_index[0]], x[edge_label_index[1]])

    def decode(self, first, second):
        if self.decoder == 'MLP':
            return self.head(torch.cat([first, second], dim=-1))[..., 0]
        return self.scale * (first * second).sum(dim=-1) / HIDDEN**0.5 + self.shift


class Case(NamedTuple):
    model: Links
    x: torch.Tensor
    edge_index: torch.Tensor  # along which messages go
    pairs: torch.Tensor  # to explain, [2, Q]
    mode: str
    worth: float  # how well the model does on held-out pairs: area under ROC, or R²


def pairs_of(graph, folder, seed):
    r"""Features, and pairs with labels: to learn from, and held out; edges that are held out carry no messages."""
    generator = torch.Generator().manual_seed(seed)
    data = load(graph, folder)
    if graph == 'bitcoin_alpha':
        pairs, rating = data.rating_index, data.rating.float()
        order = torch.randperm(rating.numel(), generator=generator)
        learn, held = order[: int(0.85 * order.numel())], order[int(0.85 * order.numel()) :]
        held = pairs[:, held], rating[held]
        return data.x, to_undirected(pairs[:, learn]), (pairs[:, learn], rating[learn]), held
    each = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    order = torch.randperm(each.size(1), generator=generator)
    learn, held = each[:, order[: int(0.85 * order.numel())]], each[:, order[int(0.85 * order.numel()) :]]
    torch.manual_seed(seed)
    others = negative_sampling(data.edge_index, data.num_nodes, held.size(1))
    labels = torch.cat([torch.ones(held.size(1)), torch.zeros(others.size(1))])
    mix = torch.randperm(labels.numel(), generator=generator)
    held = torch.cat([held, others], dim=1)[:, mix], labels[mix]
    x = data.x / data.x.sum(dim=1, keepdim=True).clamp(min=1.0)
    return x, to_undirected(learn), (learn, None), held


def teach(graph, name, seed, folder, size):
    r"""A trained model, and `size` held-out pairs."""
    x, edge_index, (learn, rating), (held, label) = pairs_of(graph, folder, seed)
    torch.manual_seed(seed)
    model = Links(name, x.size(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    unit = 1.0 if rating is None else float(rating.std())
    for _ in range(EPOCHS):
        model.train()
        optimizer.zero_grad()
        if rating is None:
            others = negative_sampling(edge_index, x.size(0), learn.size(1))
            labels = torch.cat([torch.ones(learn.size(1)), torch.zeros(others.size(1))])
            loss = F.binary_cross_entropy_with_logits(model(x, edge_index, torch.cat([learn, others], dim=1)), labels)
        else:
            loss = F.mse_loss(model(x, edge_index, learn), rating / unit)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        found = model(x, edge_index, held)
    if rating is None:
        ranks = found.argsort().argsort().double()
        yes = label > 0
        count = int(yes.sum())
        worth = float((ranks[yes].sum() - count * (count - 1) / 2) / (count * (label.numel() - count)))
        return Case(model, x, edge_index, held[:, :size], 'binary_classification', worth)
    error = (found - label / unit).square().mean() / (label / unit).var()
    return Case(model, x, edge_index, held[:, :size], 'regression', 1.0 - float(error))
