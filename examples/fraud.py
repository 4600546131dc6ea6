r"""Why was this account flagged? Payments between accounts, with amounts as edge weights, and a model with one output.

Mules are new accounts that are active at night. An account is fraudulent if mules sent it a lot of money, and so a good
explanation of a flagged account names its mules, by construction.

    python examples/fraud.py [--num_nodes 1000]
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCNConv
from torch_geometric.utils import coalesce, scatter

from pyg_dnx import FastDnX, certify

parser = argparse.ArgumentParser()
parser.add_argument('--num_nodes', type=int, default=1000)
args = parser.parse_args()

seed_everything(0)
N = args.num_nodes
FEATURES = ['age of the account', 'activity at night', 'logins a day', 'balance']
is_mule = torch.rand(N) < 0.1
x = torch.randn(N, 4) + 2.5 * is_mule[:, None] * torch.tensor([-1, 1, 0, 0])
edge_index, amount = coalesce(torch.randint(N, (2, 8 * N)), torch.empty(8 * N).exponential_())
received = scatter(amount, edge_index[1], dim_size=N)
dirty = scatter(amount * is_mule[edge_index[0]], edge_index[1], dim_size=N)
y = (dirty > 0.25 * received).float()
graph = dict(x=x, edge_index=edge_index, edge_weight=amount)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.conv = torch.nn.Linear(4, 32), GCNConv(32, 1)

    def forward(self, x, edge_index, edge_weight):
        return self.conv(self.lin(x).relu(), edge_index, edge_weight)  # one logit an account


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(300):
    optimizer.zero_grad()
    loss = F.binary_cross_entropy_with_logits(model(**graph).view(-1), y)
    loss.backward()
    optimizer.step()
logit = model(**graph).detach().view(-1)
flagged, accuracy = logit > 0, ((logit > 0) == y.bool()).float().mean()
print(f'{N} accounts, {int(is_mule.sum())} mules, {int(y.sum())} fraudulent; the model is right about {accuracy:.1%}')


# Most accounts are honest, which the surrogate's bias knows. An honest account's class is then in no node, and scores
# as in the paper would support fraud: score='target' asks for what supports the class itself.
def explainer_of(explanation_type, **masks):
    config = dict(mode='binary_classification', task_level='node', return_type='raw')
    return Explainer(model, FastDnX(score='target'), explanation_type, config, **masks)


# Why is this account flagged? Who paid it, and which payments count. Edge weights are passed by name.
account = int(logit.argmax())
explainer = explainer_of('model', node_mask_type='object', edge_mask_type='object')
explanation = explainer(**graph, index=account)
print(f'\nWhy is account {account} flagged?')
for j in explanation.node_score.topk(3).indices.tolist():
    print(f'  account {j:4d}  score {explanation.node_score[j]:+6.2f}  {"a mule" if is_mule[j] else "no mule"}')
for e in explanation.edge_score.topk(3).indices.tolist():
    payer, payee = edge_index[:, e].tolist()
    print(f'  payment {payer:4d} -> {payee:4d} of {amount[e]:.1f}  score {explanation.edge_score[e]:+6.2f}')
print(certify(explainer, explanation))

# Which features of which account: attribute masks. Scores of a node's features add up to the node's score.
explainer = explainer_of('model', node_mask_type='attributes')
score = explainer(**graph, index=account).node_score  # [N, F]
payer, feature = divmod(int(score.argmax()), len(FEATURES))
print(f'\nThe feature that counts most: {FEATURES[feature]!r} of account {payer} ({x[payer, feature]:+.1f})')
for name, value in zip(FEATURES, score.sum(dim=0), strict=True):
    print(f'  {name:<20} {value:+6.2f} in all')

# An account that the model missed: what supports its class, honest, and what supports fraud?
missed = int(logit.masked_fill(flagged | ~y.bool(), -torch.inf).argmax())
explainer = explainer_of('model', node_mask_type='object')
honest = explainer(**graph, index=missed)
fraud = explainer_of('phenomenon', node_mask_type='object')(**graph, index=missed, target=y)
print(f'\nAccount {missed} is fraudulent, and the model missed it.')
for name, explanation in (('honest', honest), ('fraudulent', fraud)):
    top = ', '.join(f'{j}{" (a mule)" if is_mule[j] else ""}' for j in explanation.node_score.topk(3).indices.tolist())
    print(f'  What supports {name}: accounts {top}')

# All flagged accounts: is a mule among their three highest scores, and is the surrogate to be trusted there?
batch = explainer.algorithm.explain_nodes(model, **graph, index=flagged & y.bool(), top_k=3)
found = is_mule[batch.top_k(3)[0]].any(dim=1).float().mean()
print(f'\nOf {len(batch)} accounts rightly flagged, {found:.1%} have a mule among their three highest scores.')
print(f'The surrogate is linear, and where it does not follow the model, the verdicts say so:\n{batch.certificate}')
