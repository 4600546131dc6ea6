r"""Recommendations explained: why this item for this user, and what each end brings to it.

Users and items of three tastes are made on the spot, with purchases among them. A GraphSAGE model learns to tell
purchases from other pairs. Then held-out pairs are explained: who counts for them, through the user or the item.

    python examples/recommend.py
"""

import torch
import torch.nn.functional as F
from torch_geometric.explain import Explainer
from torch_geometric.nn import SAGEConv

from pyg_dnx import ProbeDnX, check

USERS, ITEMS, TASTES = 120, 60, 3


class Recommender(torch.nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(num_features, 32), SAGEConv(32, 32)

    def forward(self, x, edge_index, edge_label_index):
        x = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return (x[edge_label_index[0]] * x[edge_label_index[1]]).sum(dim=-1)


def purchases(generator):
    r"""The taste of each node, users first, and pairs of a user and an item that were bought, [2, P]."""
    taste = torch.randint(TASTES, (USERS + ITEMS,), generator=generator)
    same = taste[:USERS, None] == taste[None, USERS:]
    bought = torch.rand(USERS, ITEMS, generator=generator) < torch.where(same, 0.2, 0.02)
    user, item = bought.nonzero().T
    return taste, torch.stack([user, item + USERS])


def train(model, x, edge_index, learn):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        others = torch.stack([torch.randint(USERS, (learn.size(1),)), torch.randint(ITEMS, (learn.size(1),)) + USERS])
        labels = torch.cat([torch.ones(learn.size(1)), torch.zeros(learn.size(1))])
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x, edge_index, torch.cat([learn, others], dim=1)), labels)
        loss.backward()
        optimizer.step()
    return model.eval()


def name(node):
    return f'user {node}' if node < USERS else f'item {node - USERS}'


def main():
    torch.manual_seed(0)
    taste, pairs = purchases(torch.Generator().manual_seed(0))
    pairs = pairs[:, torch.randperm(pairs.size(1))]
    held, learn = pairs[:, :40], pairs[:, 40:]
    edge_index = torch.cat([learn, learn.flip(0)], dim=1)
    hint = F.one_hot(taste, TASTES).float() + 0.7 * torch.randn(USERS + ITEMS, TASTES)  # noisy, so neighbours help
    x = torch.cat([hint, (torch.arange(USERS + ITEMS) < USERS).float()[:, None]], dim=1)
    model = train(Recommender(x.size(1)), x, edge_index, learn)

    explainer = Explainer(
        model,
        algorithm=ProbeDnX(),
        explanation_type='model',
        node_mask_type='object',
        edge_mask_type='object',
        model_config={'mode': 'binary_classification', 'task_level': 'edge', 'return_type': 'raw'},
    )
    batch = explainer.algorithm.explain_links(model, x, edge_index, edge_label_index=held, top_k=5)
    nodes, scores = batch.top_k(5)
    same = (taste[nodes] == taste[held[1], None])[nodes >= 0].double().mean()
    print(f'{len(batch)} held-out purchases; {same:.0%} of the top 5 nodes have the taste of the item')

    best = int(scores[:, 0].argmax())
    user, item = held[:, best].tolist()
    found = explainer(x, edge_index, edge_label_index=held, index=best)
    print(f'\nWhy {name(item)} for {name(user)}:')
    for node in found.node_score.topk(5).indices.tolist():
        total, *ends = (float(found[key][node]) for key in ('node_score', 'source_score', 'target_score'))
        print(f'  {name(node):<10} {total:+.3f}   through the user {ends[0]:+.3f}, through the item {ends[1]:+.3f}')
    print(f'\nR² of the local fit: {float(found.probe_r2):.2f}')
    print(check(explainer, found))


if __name__ == '__main__':
    main()
