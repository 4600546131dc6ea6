r"""What it costs to ask the model about explanations, on Cora: one verdict, a thousand, and better masks."""

import statistics
import time

import torch
from calls import train
from common import MODEL_CONFIG, ratio, say, side_by_side
from torch_geometric.datasets import Planetoid
from torch_geometric.explain import CaptumExplainer, DummyExplainer, Explainer

from pyg_dnx import FastDnX, certify, refine

TOP, MANY = 5, 1000
HUB = 0.05  # the share of nodes with the most neighbours, told apart


def run(args):
    data = Planetoid(args.root, 'Cora')[0]
    model = train(data, int(data.y.max()) + 1)
    inputs, config = (data.x, data.edge_index), {'explanation_type': 'model', 'model_config': MODEL_CONFIG}
    fast = Explainer(model, FastDnX(distillation='masked'), node_mask_type='object', **config)
    dummy = Explainer(model, DummyExplainer(), node_mask_type='object', **config)
    rival = Explainer(model, CaptumExplainer('IntegratedGradients'), node_mask_type='attributes', **config)
    degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    hubs = degree.topk(int(HUB * data.num_nodes)).indices
    nodes = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    results = {}
    for name, some in (('nodes', nodes[: 10 if args.quick else 40]), ('hubs', hubs[: 5 if args.quick else 20])):
        found = {'certify': [], 'refine': [], 'refine / Integrated Gradients': [], 'evaluations': []}
        for node in some.tolist():
            explanation = fast(*inputs, index=node).threshold('topk_hard', TOP)
            functions = {
                'dummy': lambda node=node: dummy(*inputs, index=node),
                'certify': lambda explanation=explanation: certify(fast, explanation),
                'refine': lambda explanation=explanation: refine(fast, explanation, progress=False),
                'rival': lambda node=node: rival(*inputs, index=node),
            }
            seconds = side_by_side(functions, 1 if args.quick else 3)
            found['certify'].append(seconds['certify'] / seconds['dummy'])
            found['refine'].append(seconds['refine'])
            found['refine / Integrated Gradients'].append(seconds['refine'] / seconds['rival'])
            found['evaluations'].append(int(refine(fast, explanation, progress=False).num_evaluations))
        middle = {key: statistics.median(values) for key, values in found.items()}
        bars = ('<= 5x', '<= 1x') if name == 'nodes' else ('', '')
        say(f'{name}: certify / DummyExplainer', ratio(middle['certify']), bars[0])
        say(f'{name}: refine / Integrated Gradients', ratio(middle['refine / Integrated Gradients']), bars[1])
        say(f'{name}: most evaluations of refine', str(max(found['evaluations'])), '<= 300')
        results[name] = found
    start = time.perf_counter()
    fast.algorithm.explain_nodes(model, *inputs, index=nodes[:MANY], top_k=TOP, certify=True, progress=False)
    results['many'] = time.perf_counter() - start
    say(f'{MANY:,} explanations with verdicts', f'{results["many"]:.1f} s', '<= 60 s')
    return results
