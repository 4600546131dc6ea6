r"""What an explanation of one node costs through PyG's Explainer, on the whole graph."""

import copy
import time

import torch
from explainers import CONFIG
from measures import sample
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer, PGExplainer

from pyg_dnx import DnX, FastDnX, shared_cache

TIMED = ('FastDnX', 'DnX', 'GNNExplainer', 'PGExplainer', 'PGMExplainer', 'Integrated Gradients', 'Saliency')
CALLS = 5


def measure_time(model, data, job, size):
    r"""Seconds to set up (distil, or train PGExplainer on 30 nodes), and the median of some calls."""
    from torch_geometric.contrib.explain import PGMExplainer  # warns that it is experimental, and needs pgmpy

    model = copy.deepcopy(model)  # where explainers leave masks
    nodes = sample(data.edge_index[1].unique(), 30, seed=0)  # PGMExplainer fails for a node without neighbours
    target = model(data.x, data.edge_index).argmax(dim=1)
    kind, masks, kwargs = 'model', {'node_mask_type': 'object'}, {}
    if job.explainer in ('Integrated Gradients', 'Saliency', 'PGMExplainer'):
        masks = {'node_mask_type': 'attributes'}
    if job.explainer == 'PGExplainer':
        kind, masks, kwargs = 'phenomenon', {'edge_mask_type': 'object'}, {'target': target}
    algorithm = {
        'FastDnX': FastDnX,
        'DnX': DnX,
        'GNNExplainer': lambda: GNNExplainer(epochs=100),
        'PGExplainer': lambda: PGExplainer(epochs=30),
        'PGMExplainer': PGMExplainer,
        'Integrated Gradients': lambda: CaptumExplainer('IntegratedGradients'),
        'Saliency': lambda: CaptumExplainer('Saliency'),
    }[job.explainer]()
    explainer = Explainer(model, algorithm, kind, CONFIG, **masks)
    shared_cache.clear()
    start = time.perf_counter()
    if job.explainer in ('FastDnX', 'DnX'):
        algorithm.distill(model, data.x, data.edge_index)
    if job.explainer == 'PGExplainer':
        for epoch in range(30):
            for node in nodes:
                algorithm.train(epoch, model, data.x, data.edge_index, target=target, index=int(node))
    record, seconds = {'setup': time.perf_counter() - start}, []
    for node in nodes[: 2 if job.explainer == 'PGMExplainer' else CALLS]:
        start = time.perf_counter()
        explainer(data.x, data.edge_index, index=int(node), **kwargs)
        seconds.append(time.perf_counter() - start)
    record['seconds'] = float(torch.tensor(seconds).median())
    if job.explainer in ('FastDnX', 'DnX'):
        start = time.perf_counter()
        algorithm.explain_nodes(model, data.x, data.edge_index)
        record['batch'] = (time.perf_counter() - start) / data.num_nodes
    return record
