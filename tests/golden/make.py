r"""Chooses the golden cases and writes what a version of the package finds in them.

    PYTHONPATH=<checkout of the version>/src python tests/golden/make.py --commit <its commit>

Run with commit 8e36778, the last before the modules were rearranged. All options are spelt out, so that defaults may
change. Run it anew only where explanations are meant to change, and say so in the change log.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import torch
from cases import CONVS, TASKS, Teacher, explain, of_many, target_of
from torch_geometric.explain import Explainer

import pyg_dnx

FOLDER = Path(__file__).parent
SHARED = {
    **{'num_hops': 2, 'ridge': 1e-5, 'contrast': None, 'edge_score': 'flow', 'mask': 'rank'},
    **{'max_memory': 2**28, 'doubt': 0.2, 'distillation': 'paper', 'num_masks': 2},
}
FAST = {**SHARED, 'score': 'projection'}
DNX = {**FAST, 'epsilon': 0.01, 'prior': 'uniform', 'solver': 'newton', 'epochs': 100, 'lr': 0.1}
PROBE = {**SHARED, 'distillation': 'masked', 'num_probes': 8, 'answer': 'probability', 'shortlist': 0}
EXPLAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    'FastDnX': ('FastDnX', FAST),
    'FastDnX, target': ('FastDnX', {**FAST, 'score': 'target'}),
    'FastDnX, masked': ('FastDnX', {**FAST, 'score': 'target', 'distillation': 'masked', 'num_masks': 4}),
    'DnX': ('DnX', DNX),
    'DnX, propagation': ('DnX', {**DNX, 'prior': 'propagation', 'epsilon': 0.1, 'distillation': 'masked'}),
    'ProbeDnX': ('ProbeDnX', PROBE),
}
MASKS = [pair for pair in product(('object', 'attributes', 'common_attributes', None), ('object', None)) if any(pair)]
GRAPHS = ('looped', 'directed', 'weighted', 'duplicated')
TYPES = ('model', 'phenomenon')
INDEX = [0, 6, [1, 3]]  # node 6 has no neighbour but itself; several are explained jointly
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {  # options that are tried by themselves
    'FastDnX, no hops': ('FastDnX', {**FAST, 'num_hops': 0}),
    'FastDnX, three hops': ('FastDnX', {**FAST, 'num_hops': 3}),
    'FastDnX, hops chosen': ('FastDnX', {**FAST, 'num_hops': 'auto'}),
    'FastDnX, larger ridge': ('FastDnX', {**FAST, 'ridge': 1e-2}),
    'FastDnX, runner-up': ('FastDnX', {**FAST, 'contrast': 'runner_up'}),
    'DnX, runner-up': ('DnX', {**DNX, 'contrast': 'runner_up'}),
    'DnX, adam': ('DnX', {**DNX, 'solver': 'adam', 'edge_score': 'endpoints'}),
    'DnX, entropy': ('DnX', {**DNX, 'epsilon': 1.0}),
    'ProbeDnX, runner-up': ('ProbeDnX', {**PROBE, 'contrast': 'runner_up'}),
    'ProbeDnX, logit': ('ProbeDnX', {**PROBE, 'answer': 'logit'}),
    'ProbeDnX, logit, runner-up': ('ProbeDnX', {**PROBE, 'answer': 'logit', 'contrast': 'runner_up'}),
    'ProbeDnX, shortlist': ('ProbeDnX', {**PROBE, 'shortlist': 3}),
    'ProbeDnX, paper': ('ProbeDnX', {**PROBE, 'distillation': 'paper', 'num_probes': 16}),
    'ProbeDnX, no probes': ('ProbeDnX', {**PROBE, 'num_probes': 0}),
}


def graphs() -> dict[str, dict[str, torch.Tensor | None]]:
    r"""Eight nodes on a ring of six, by name: directed, with self-loops, with duplicate edges, with weights."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, generator=generator)
    ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])  # nodes 6 and 7 are isolated
    both = torch.cat([ring, ring.flip(0)], dim=1)
    looped = torch.cat([both, torch.tensor([[2, 2, 6], [2, 2, 6]])], dim=1)
    weight = torch.rand(looped.size(1), generator=generator) + 0.1
    return {
        'directed': {'x': x, 'edge_index': ring, 'edge_weight': None},
        'looped': {'x': x, 'edge_index': looped, 'edge_weight': None},
        'duplicated': {'x': x, 'edge_index': torch.cat([both, both[:, :4]], dim=1), 'edge_weight': None},
        'weighted': {'x': x, 'edge_index': looped, 'edge_weight': weight},
    }


def case(named: tuple[str, dict[str, Any]], task: str, graph: str, number: int, **changes: Any) -> dict[str, Any]:
    r"""A case of ``explainer(...)``; what is not asked for follows from its ``number``, in turns."""
    node, edge = MASKS[number % len(MASKS)]
    explainer, options = named
    return {
        'call': 'explainer',
        **{'explainer': explainer, 'options': options, 'task': task, 'graph': graph},
        'conv': 'gcn' if graph == 'weighted' else list(CONVS)[number % len(CONVS)],
        'dtype': torch.float32 if number % 5 == 4 else torch.float64,
        'explanation_type': TYPES[number // 2 % 2],
        **{'node_mask_type': node, 'edge_mask_type': edge, 'index': INDEX, 'also': []},
        **changes,
    }


def chosen() -> dict[str, dict[str, Any]]:
    r"""The cases by name: each explainer with each task, with each kind of masks, and each option by itself."""
    found: dict[str, dict[str, Any]] = {}
    for number, (name, task) in enumerate(product(EXPLAINERS, TASKS)):
        graph = GRAPHS[(number + number // 10) % 4]
        found[f'{name}: {task}'] = case(EXPLAINERS[name], task, graph, number)
        batch = {'call': 'explain_nodes', 'index': [5, 0, 6, 0, 2], 'items': [1, 2]}
        for top_k in (None, 3):
            graph, number = GRAPHS[(GRAPHS.index(graph) + 1) % 4], number + 3
            label = f'{name}: {task}, many' + (f', top {top_k}' if top_k else '')
            found[label] = case(EXPLAINERS[name], task, graph, number, top_k=top_k, **batch)
    for number, (name, pair, kind) in enumerate(product(EXPLAINERS, MASKS, TYPES)):
        task = ('multiclass raw', 'regression [N, 2]', 'binary raw [N, 1]')[number // 14 % 3]
        masks = {'node_mask_type': pair[0], 'edge_mask_type': pair[1], 'explanation_type': kind}
        found[f'{name}: {", ".join(map(str, pair))}, {kind}'] = case(
            EXPLAINERS[name], task, GRAPHS[number % 4], number, **masks
        )
    scalings = product(EXPLAINERS, ('endpoints', 'geometric', 'flow'), ('positive', 'minmax'))
    for number, (name, edge_score, mask) in enumerate(scalings):
        explainer, options = EXPLAINERS[name]
        named = (explainer, {**options, 'edge_score': edge_score, 'mask': mask})
        task = ('multiclass probs', 'regression [N]', 'multiclass raw', 'binary raw [N, 2]')[number % 4]
        also = ['certificate', 'check', *(['bounds'] if explainer != 'ProbeDnX' else [])]
        masks = {'node_mask_type': 'object', 'edge_mask_type': 'object', 'also': also, 'dtype': torch.float64}
        found[f'{name}: {edge_score}, {mask}'] = case(named, task, GRAPHS[number // 2 % 4], number, **masks)
    for number, (name, named) in enumerate(OTHERS.items()):
        for task in ('multiclass raw', 'binary raw [N]') + (('regression [N]',) if 'runner' not in name else ()):
            masks = {'node_mask_type': 'object', 'edge_mask_type': 'object', 'explanation_type': 'model'}
            found[f'{name}: {task}'] = case(named, task, GRAPHS[number % 4], number, **masks)
    return found


def save_files(graph: dict[str, Any], teacher: dict[str, Any]) -> dict[str, Any]:
    r"""Writes explanations and a surrogate as the version does, and returns what is in them, to be read back."""
    inputs, found = (graph['x'], graph['edge_index']), {}
    for name in ('FastDnX', 'DnX', 'ProbeDnX'):
        for top_k in (None, 3):
            explainer, options = EXPLAINERS[name]
            task, kind = 'multiclass raw', {'FastDnX': 'phenomenon'}.get(name, 'model')
            one = case((explainer, options), task, 'weighted', 0, dtype=torch.float32, explanation_type=kind)
            model = Teacher('gcn', task)
            model.load_state_dict(teacher)
            algorithm = getattr(pyg_dnx, explainer)(**options, cache=None)
            config = {'mode': 'multiclass_classification', 'task_level': 'node', 'return_type': 'raw'}
            kinds = {'explanation_type': kind, 'node_mask_type': 'object', 'edge_mask_type': 'object'}
            Explainer(model, algorithm, model_config=config, **kinds)
            many = algorithm.explain_nodes(
                model.eval(),
                *inputs,
                index=torch.tensor([5, 0, 6, 0]),
                top_k=top_k,
                target=target_of(one, 8),
                edge_weight=graph['edge_weight'],
            )
            file = f'{name}{"" if top_k is None else "_top_3"}.pt'
            many.save(FOLDER / file)
            many.to_csv(FOLDER / 'table.csv')
            table = (FOLDER / 'table.csv').read_text(encoding='utf-8')
            (FOLDER / 'table.csv').unlink()
            found[file] = {
                'kind': kind,
                'found': of_many(many, range(4)),
                'table': table,
            }
    many.surrogate.save(FOLDER / 'Surrogate.pt')
    report = {name: value for name, value in vars(many.surrogate.report).items() if name != 'seconds'}
    logits = many.surrogate(*inputs, graph['edge_weight'])
    found['Surrogate.pt'] = {
        'num_hops': many.surrogate.num_hops,
        'flow': many.surrogate.flow,
        'report': report,
        'logits': logits,
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--commit', required=True, help='of the version that is run')
    args = parser.parse_args()
    torch.set_num_threads(1)
    content: dict[str, Any] = {'commit': args.commit, 'graphs': graphs(), 'teachers': {}, 'cases': chosen()}
    for conv, task in product(CONVS, TASKS):
        teacher, generator = Teacher(conv, task), torch.Generator().manual_seed(1)
        for parameter in teacher.parameters():
            torch.nn.init.normal_(parameter, std=0.8, generator=generator)
        content['teachers'][f'{conv}, {task}'] = teacher.state_dict()
    for one in content['cases'].values():
        one['found'] = explain(one, content['graphs'], content['teachers'])
    content['files'] = save_files(content['graphs']['weighted'], content['teachers']['gcn, multiclass raw'])
    torch.save(content, FOLDER / 'golden.pt')
    print(f'{len(content["cases"])} cases written to {FOLDER}')


if __name__ == '__main__':
    main()
