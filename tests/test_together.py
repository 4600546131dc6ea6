r"""The same result whatever the number of processes, and by whatever drives them."""

import os
from dataclasses import replace

import pytest
import torch
from helpers import example_graphs
from models import Teacher, connected
from together import together
from torch_geometric.explain.config import ModelConfig

from pyg_dnx import DnX, FastDnX, NodeExplanations, ProbeDnX
from pyg_dnx.distill.solvers import fit_classifier, fit_regressor, fit_stacked
from pyg_dnx.graph.features import Features, num_blocks, propagate, propagate_together
from pyg_dnx.graph.operator import normalized_adjacency, shared_adjacency
from pyg_dnx.graph.rows import rows_of
from pyg_dnx.run import Run, parts_of
from pyg_dnx.tables import Tables

pytestmark = [
    pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning'),
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork'),
]
NUM_NODES, NUM_FEATURES = 2500, 12
REGRESSION = ModelConfig(mode='regression', task_level='node', return_type='raw')


class Case:
    r"""A graph as a CSR matrix, what a model says of it, and what under masks."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        edges = torch.randint(NUM_NODES, (2, 6 * NUM_NODES), generator=generator).unique(dim=1)
        edges = edges[:, edges[0] != edges[1]]
        size = (NUM_NODES, NUM_NODES)
        weight = torch.rand(edges.size(1), generator=generator, dtype=torch.float64) + 0.5
        self.adjacency = torch.sparse_coo_tensor(edges, weight, size).coalesce().to_sparse_csr()
        self.x = torch.randn(NUM_NODES, NUM_FEATURES, generator=generator, dtype=torch.float64)
        near = self.x + torch.sparse.mm(self.adjacency, self.x)
        self.outputs = torch.tanh(near @ torch.randn(NUM_FEATURES, 3, generator=generator, dtype=torch.float64))
        noise = torch.randn(10, NUM_NODES, 3, generator=generator, dtype=torch.float64)
        self.probes = torch.cat([self.outputs[None], (self.outputs + 0.1 * noise)[1:]])

    def explain(self, name, **how):
        kind, options, given = EXPLAINERS[name]
        algorithm = connected(kind(cache=None, **{'num_hops': 2, **options}))
        if 'regression' in name:
            algorithm.connect(algorithm.explainer_config, REGRESSION)
        given = {'probe_outputs': self.probes} if given else {'teacher_outputs': self.outputs}
        return algorithm.explain_nodes(None, self.x, self.adjacency, top_k=10, **given, **how)


EXPLAINERS = {
    'FastDnX': (FastDnX, {}, False),
    'target': (FastDnX, {'score': 'target', 'contrast': 'runner_up'}, False),
    'DnX': (DnX, {}, False),
    'ProbeDnX': (ProbeDnX, {'num_probes': 8}, True),
    'masked': (FastDnX, {'distillation': 'masked'}, True),
    'auto': (FastDnX, {'num_hops': 'auto'}, False),
    'sign': (FastDnX, {'filter': 'sign'}, False),
    'regression': (FastDnX, {}, False),
    'masked regression': (FastDnX, {'distillation': 'masked'}, True),
}


@pytest.fixture(scope='module')
def case():
    return Case()


def parts(found):
    certificate = found.certificate
    return {
        'weight': found.surrogate.weight,
        'bias': found.surrogate.bias,
        'num_hops': found.surrogate.num_hops,
        'agreement': found.surrogate.report.agreement,
        'nodes': found.top_k(10)[0].clone(),
        'scores': found.top_k(10)[1].clone(),
        'verdict': certificate.verdict.clone(),
        'expected': certificate.expected_unfaithfulness.clone(),
        'error': found.distillation_error.clone(),
        'one': found[7].node_score,
    }


def explained(rank, group, case, name, folder):
    return parts(case.explain(name, checkpoint=folder, group=group))


@pytest.mark.parametrize('name', EXPLAINERS)
def test_any_number_of_processes_explains_the_same(name, case, tmp_path):
    expected = parts(case.explain(name))
    for num_processes in (1, 2, 4):
        answers = together(explained, num_processes, tmp_path, case, name, tmp_path / f'{num_processes}')
        for found in answers:
            assert not isinstance(found, Exception), found
            if name == 'sign' and num_processes == 1:  # without a group, another solver distils it
                torch.testing.assert_close(found['weight'], expected['weight'], rtol=0.0, atol=1e-5)
                expected = found
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
            assert found['weight'].equal(answers[0]['weight'])


def test_a_lone_call_goes_by_itself(case, tmp_path):
    def task(rank, group):
        return parts(case.explain('FastDnX')) if rank == 1 else None

    found = together(task, 2, tmp_path)
    torch.testing.assert_close(found[1], parts(case.explain('FastDnX')), rtol=0.0, atol=0.0)


def test_an_array_of_jobs_needs_no_group(case, tmp_path):
    expected = parts(case.explain('DnX'))
    first, second = (case.explain('DnX', checkpoint=tmp_path, part=(k, 2)) for k in range(2))
    assert len(first) + len(second) == NUM_NODES
    assert first.index.tolist() + second.index.tolist() == list(range(NUM_NODES))
    for found in (case.explain('DnX', checkpoint=tmp_path, part=(0, 1)), case.explain('DnX', checkpoint=tmp_path)):
        torch.testing.assert_close(parts(found), expected, rtol=1e-9, atol=1e-10)
        assert found[7:9].for_node(8).node_mask.equal(found[8].node_mask)


def test_results_are_read_from_files(case, tmp_path):
    found = case.explain('ProbeDnX', checkpoint=tmp_path / 'shared', part=(0, 1))
    found[:20].save(tmp_path / 'saved.pt')
    again = NodeExplanations.load(tmp_path / 'saved.pt', case.x, case.adjacency)
    torch.testing.assert_close(again[3].node_score, found[3].node_score)
    found.to_csv(tmp_path / 'scores.csv')
    assert (tmp_path / 'scores.csv').read_text().count('\n') == 1 + int((found.top_k(10)[0] >= 0).sum())


def asked(rank, group, folder, bias):
    graph, model = example_graphs()['weighted'], Counting(bias)
    ASKED.clear()
    algorithm = connected(FastDnX(num_hops=2, distillation='masked', num_masks=4, cache=None))
    found = algorithm.explain_nodes(
        model, graph.x, graph.edge_index, edge_weight=graph.edge_weight, top_k=3, checkpoint=folder, group=group
    )
    return found.surrogate.weight, *(part.clone() for part in found.top_k(3)), len(ASKED)


ASKED = []  # an entry for each evaluation in this process


class Counting(Teacher):
    r"""A model of which it is known how often it was asked."""

    def __init__(self, bias):
        super().__init__()
        with torch.no_grad():
            self.conv2.bias.add_(bias * torch.arange(3))

    def forward(self, *args, **kwargs):
        ASKED.append(None)
        return super().forward(*args, **kwargs)


def test_processes_ask_the_model_in_turn(tmp_path):
    *expected, alone = asked(0, None, None, 0.0)
    for num_processes in (1, 3):
        folder = tmp_path / str(num_processes)
        answers = together(asked, num_processes, tmp_path, folder, 0.0)
        for *found, _ in answers:
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
        counts = [count for *_, count in answers]
        assert sum(counts) == alone
        assert max(counts) < alone or num_processes == 1
    again = together(asked, 2, tmp_path, folder, 0.0)  # to see whether it is still the same
    assert [count for *_, count in again] == [1, 0]
    with pytest.raises(ValueError, match='written for another model'):
        raise together(asked, 2, tmp_path, folder, 1.0)[0]


# What each stage computes, by several processes.


def shared(folder, group, **options):
    return Run(group=group, tables=Tables(folder), **options)


def block_by_block(rank, group, case, folder):
    run = shared(folder, group, entries=4096)
    operator = shared_adjacency(case.adjacency, torch.float64, run)
    features = propagate_together(operator, case.x, ((0.0, 0.0, 1.0),), torch.float64, run, 'features')
    return operator.rowptr, operator.col, operator.value.clone(), features.rows().clone()


@pytest.mark.parametrize('num_processes', [1, 3])
def test_operator_and_features_are_the_same_bit_for_bit(num_processes, case, tmp_path):
    operator = normalized_adjacency(case.adjacency, None, NUM_NODES, torch.float64)
    features = propagate(operator, case.x, 2, torch.float64, 2**30)
    for found in together(block_by_block, num_processes, tmp_path, case, tmp_path / 'shared'):
        for one, other in zip(found, (operator.rowptr, operator.col, operator.value, features.rows()), strict=True):
            assert one.equal(other)


def fits(rank, group, features, targets):
    run = Run(group=group)
    every = Features([features[:, :5], features[:, 5:]], run)
    large = Features([block.float() for block in every.blocks], run)
    probs = targets.softmax(dim=1)
    return {
        'newton': fit_classifier(every, probs, 1e-3, 'newton')[:2],
        'newton-cg': fit_classifier(every, probs, 1e-3, 'newton-cg')[:2],
        'float32': fit_classifier(large, probs, 1e-3, 'newton-cg')[:2],
        'regression': fit_regressor(every, targets, 1e-3)[:2],
        'masked': fit_stacked(((part, targets[part.mine]) for part in (every, every)), 2 * len(targets), 1e-3)[:2],
    }


def test_solvers_sum_over_processes(tmp_path):
    torch.manual_seed(0)
    features, targets = torch.randn(501, 8, dtype=torch.float64), torch.randn(501, 4, dtype=torch.float64)
    features[:, 3] = 0.0
    expected = fits(0, None, features, targets)
    for found in together(fits, 3, tmp_path, features, targets):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_a_product_in_blocks_of_rows():
    graph = example_graphs()['weighted']
    operator = normalized_adjacency(graph.edge_index, graph.edge_weight, 8, torch.float32)
    for most in (1, 4, 7, operator.col.numel() - 1):
        blocks = replace(operator, most=most)
        assert (blocks @ graph.x).equal(operator @ graph.x)
        assert blocks.walks(3).equal(operator.walks(3))


@pytest.mark.parametrize('num_hops', [1, 2, 3])
def test_rows_of_an_operator_with_too_many_entries(num_hops, case):
    operator = normalized_adjacency(case.adjacency, None, NUM_NODES, torch.float64)
    nodes = torch.tensor([5, 17, 0])
    expected = rows_of(operator, nodes, num_hops).matrix(NUM_NODES).to_dense()
    found = rows_of(replace(operator, most=operator.col.numel() - 1), nodes, num_hops)
    torch.testing.assert_close(found.matrix(NUM_NODES).to_dense(), expected, rtol=1e-12, atol=0.0)


def test_explaining_with_too_many_entries(case, tmp_path):
    run = shared(tmp_path, None)
    operator = shared_adjacency(case.adjacency, torch.float64, run, most=999)
    assert operator.col.dtype == torch.int32
    whole = normalized_adjacency(case.adjacency, None, NUM_NODES, torch.float64)
    assert (operator @ case.x).equal(whole @ case.x)
    found = propagate_together(operator, case.x, ((0.0, 1.0),), torch.float64, run, 'features').rows()
    torch.testing.assert_close(found, dense_product(case), rtol=1e-12, atol=1e-14)


def dense_product(case):
    matrix = case.adjacency.to_dense() + torch.eye(NUM_NODES, dtype=torch.float64)
    scale = matrix.sum(dim=1).rsqrt()
    return scale[:, None] * matrix * scale @ case.x


@pytest.mark.parametrize('change', ['order', 'twice', 'outside', 'weight'])
def test_bad_matrices_are_named(change, case, tmp_path):
    rowptr, col, value = torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0]), torch.ones(3)
    if change == 'weight':
        value[0] = -3.0
    else:
        col[:2] = torch.tensor({'order': [2, 1], 'twice': [1, 1], 'outside': [1, 3]}[change])
    matrix = torch.sparse_csr_tensor(rowptr, col, value, (3, 3), check_invariants=False)
    errors = {'outside': (IndexError, 'node ids from 0 to 2'), 'weight': (ValueError, 'positive in-degree')}
    error, text = errors.get(change, (ValueError, 'columns of each row ascending, each once'))
    with pytest.raises(error, match=text):
        shared_adjacency(matrix, torch.float32, shared(tmp_path, None))


def test_blocks_and_parts_depend_on_sizes_alone():
    assert [num_blocks(size) for size in (1, 3, 32, 100, 128, 768)] == [1, 3, 4, 8, 8, 64]
    assert [part.stop for part in parts_of(10, 4)] == [4, 8, 10]
    assert len(parts_of(10**7, 1)) <= 4096
