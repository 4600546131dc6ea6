r"""Explains a graph by an array of jobs that know nothing of one another: Ray, Dask, or a loop.

python examples/ray_or_dask.py [--jobs 4] [--folder jobs] [--by loop | ray | dask]
"""

import argparse
import functools

import torch
from torch_geometric.explain.config import ExplainerConfig, ModelConfig
from torch_geometric.utils import erdos_renyi_graph

from pyg_dnx import FastDnX


def explain(folder, part):
    torch.manual_seed(0)  # in a real job, features, edges and outputs are memory-mapped files
    edge_index, x = erdos_renyi_graph(3000, 0.002), torch.randn(3000, 16)
    algorithm = FastDnX(num_hops=2)
    config = ModelConfig(mode='multiclass_classification', task_level='node', return_type='raw')
    algorithm.connect(ExplainerConfig('model', 'object'), config)
    given = {'teacher_outputs': x[:, :3].contiguous(), 'top_k': 10, 'checkpoint': folder, 'part': part}
    return algorithm.explain_nodes(None, x, edge_index, progress=False, **given)


def work(folder, num_jobs, k):
    return len(explain(folder, (k, num_jobs)))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--jobs', type=int, default=4)
    parser.add_argument('--folder', default='jobs')
    parser.add_argument('--by', choices=['loop', 'ray', 'dask'], default='loop')
    args = parser.parse_args()
    job, every = functools.partial(work, args.folder, args.jobs), range(args.jobs)
    if args.by == 'ray':
        import ray

        done = ray.get([ray.remote(job).remote(k) for k in every])
    elif args.by == 'dask':
        from dask.distributed import Client

        done = Client().gather(Client.current().map(job, every))
    else:
        done = [job(k) for k in every]
    print(f'{args.jobs} jobs explained {done} nodes')
    print(explain(args.folder, (0, 1)))  # reads all parts, and explains what is missing
