r"""Heterogeneous graphs at other levels, many explanations of them, and what is measured of these."""

import pytest
import torch
from hetero_case import CONFIG, MODELS, WRITES, ByRelation, dense, explained, small_data
from torch_geometric.explain import Explainer, GNNExplainer, HeteroExplanation
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_add_pool

from pyg_dnx import (
    DnX,
    FastDnX,
    LinkExplanations,
    NodeExplanations,
    ProbeDnX,
    certify,
    check,
    explain_graphs,
    explain_links,
    explain_nodes,
    refine,
    trust_report,
)
from pyg_dnx.graph.graph import Graph
from pyg_dnx.teacher.local import Local, Masks
from pyg_dnx.teacher.teacher import Teacher

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
ALGORITHMS = {'FastDnX': FastDnX, 'DnX': DnX, 'ProbeDnX': lambda **options: ProbeDnX(num_probes=16, **options)}
GRAPHS = {**CONFIG, 'task_level': 'graph'}
LINKS = {**CONFIG, 'mode': 'regression', 'task_level': 'edge'}


class Pooled(ByRelation):
    r"""One output a graph, from the sum over its papers."""

    def forward(self, x_dict, edge_index_dict, batch_dict=None):
        found = super().forward(x_dict, edge_index_dict)
        return global_add_pool(found, None if batch_dict is None else batch_dict['paper'])


class Linked(ByRelation):
    r"""The product of what an author and a paper have, for some pairs of these."""

    def forward(self, x_dict, edge_index_dict, edge_label_index=None):
        for layer in self.layers:
            x_dict = {name: x.relu() for name, x in layer(x_dict, edge_index_dict).items()}
        if edge_label_index is None:
            return self.lin(x_dict['paper'])
        return (x_dict['author'][edge_label_index[0]] * x_dict['paper'][edge_label_index[1]]).sum(dim=1, keepdim=True)


@pytest.fixture(scope='module')
def data():
    return small_data()


@pytest.fixture(scope='module')
def model(data):
    torch.manual_seed(0)
    return ByRelation(data)


@pytest.fixture(scope='module')
def explainer(model):
    return Explainer(model, FastDnX(), 'model', node_mask_type='object', edge_mask_type='object', model_config=CONFIG)


@pytest.mark.parametrize('name', ALGORITHMS)
def test_graphs_are_complete_over_all_types(name, data):
    torch.manual_seed(0)
    model = Pooled(data)
    batch = {'paper': torch.tensor([0, 0, 0, 0, 1, 1, 1]), 'author': torch.tensor([0, 0, 0, 1, 1])}
    data = small_data()
    data[WRITES].edge_index[1, 3] = 3  # no edge between both graphs
    data['paper', 'by', 'author'].edge_index = data[WRITES].edge_index.flip(0)
    batch['author'][2] = 0
    batch['author'][3], data[WRITES].edge_index[0, 3] = 1, 2
    data['paper', 'by', 'author'].edge_index = data[WRITES].edge_index.flip(0)
    for kwargs in ({}, {'batch_dict': batch}):
        explanation = explained(model, ALGORITHMS[name](), data, 0, model_config=GRAPHS, kwargs=kwargs)
        assert isinstance(explanation, HeteroExplanation)
        assert explanation.validate()
        scores = torch.cat([explanation[kind].node_score for kind in data.node_types])
        assert bool(scores.isfinite().all())
        assert float(scores.abs().max()) > 0.0
        if kwargs:
            assert float(explanation['paper'].node_score[4:].abs().max()) == 0.0


def test_data_sets_of_heterogeneous_graphs_are_refused(data):
    explainer = Explainer(Pooled(data), FastDnX(), 'model', node_mask_type='object', model_config=GRAPHS)
    for several in ([data, data], DataLoader([data, data], batch_size=2)):
        with pytest.raises(
            TypeError, match=r"'data' must .*HeteroData.*: pass 'x_dict', 'edge_index_dict' and 'batch_"
        ):
            explain_graphs(explainer, several)


def test_pairs_of_two_types_are_explained_from_both_ends(data, tmp_path):
    torch.manual_seed(0)
    model = Linked(data)
    pairs = torch.tensor([[0, 1, 2], [3, 0, 6]])
    for algorithm in (FastDnX(target_type=('author', 'paper')), ProbeDnX(num_probes=16, target_type=WRITES)):
        explanation = explained(model, algorithm, data, 1, model_config=LINKS, kwargs={'edge_label_index': pairs})
        assert explanation.edge_label_index is pairs
        for kind in data.node_types:
            store = explanation[kind]
            assert store.node_mask.shape == (data[kind].num_nodes, 1)
        assert float(explanation['author'].node_mask[1]) > 0.0
        assert float(explanation['paper'].node_mask[0]) > 0.0
        explain = Explainer(model, algorithm, 'model', node_mask_type='object', model_config=LINKS)
        assert float(certify(explain, explanation).index) == 1
        assert check(explain, explanation).unfaithfulness.isfinite().all()
        assert refine(explain, explanation, size=2).gain >= 0
        many = explain_links(explain, data.x_dict, data.edge_index_dict, edge_label_index=pairs)
        many.save(tmp_path / 'links.pt')
        read = LinkExplanations.load(tmp_path / 'links.pt', data.x_dict, data.edge_index_dict, edge_label_index=pairs)
        assert read[1]['author'].node_score.equal(many[1]['author'].node_score)
    with pytest.raises(ValueError, match="'target_type' must be given where pairs may be of several types"):
        explained(model, FastDnX(), data, 1, model_config=LINKS, kwargs={'edge_label_index': pairs})
    algorithm = FastDnX(target_type=('author', 'paper'))
    Explainer(model, algorithm, 'model', node_mask_type='object', model_config=LINKS)
    with pytest.raises(IndexError, match="'edge_label_index' must hold ids of 'author' from 0 to 4"):
        algorithm.forward(
            model, data.x_dict, data.edge_index_dict, target=torch.zeros(3, 1), edge_label_index=pairs.flip(0)
        )


@pytest.mark.parametrize('level', ['graph', 'edge'])
def test_outputs_for_each_node_of_a_type_are_explained_as_such(level, model, data):
    one = explained(model, FastDnX(distillation='paper', score='projection', ridge=1e-5), data, 2)
    config = {**CONFIG, 'task_level': level}
    other = explained(
        model, FastDnX(distillation='paper', score='projection', ridge=1e-5), data, 2, model_config=config
    )
    assert one['author'].node_score.equal(other['author'].node_score)


@pytest.mark.parametrize('name', ALGORITHMS)
def test_many_nodes_are_explained_as_one_by_one(name, model, data, tmp_path):
    explainer = Explainer(
        model, ALGORITHMS[name](), 'model', node_mask_type='object', edge_mask_type='object', model_config=CONFIG
    )
    index = torch.tensor([2, 5, 0])
    many = explain_nodes(explainer, data.x_dict, data.edge_index_dict, index=index)
    assert many.node_types == ['paper', 'author']
    assert many.targets.equal(model(data.x_dict, data.edge_index_dict).argmax(dim=1)[index])
    nodes, scores = many.top_k(3)
    kinds, ids = many.places(nodes)
    for b, node in enumerate(index.tolist()):
        one = explainer(data.x_dict, data.edge_index_dict, index=node)
        for key in ('paper', 'author'):
            torch.testing.assert_close(many[b][key].node_score, one[key].node_score, rtol=0, atol=1e-9)
            torch.testing.assert_close(many[b][key].node_mask, one[key].node_mask)
            assert many[b][key].x is data[key].x
        for kind, place, score in zip(kinds[b].tolist(), ids[b].tolist(), scores[b].tolist(), strict=True):
            expected = 0.0 if kind < 0 else float(one[many.node_types[kind]].node_score[place])
            assert abs(score - expected) < 1e-9
    many.save(tmp_path / 'many')
    loaded = NodeExplanations.load(tmp_path / 'many', data.x_dict, data.edge_index_dict)
    torch.testing.assert_close(loaded[1]['author'].node_score, many[1]['author'].node_score)
    assert NodeExplanations.load(tmp_path / 'many').places(nodes)[1].equal(ids)
    many.to_csv(tmp_path / 'many.csv')
    header, first, *_ = (tmp_path / 'many.csv').read_text().splitlines()
    assert header.startswith('node,neighbour_type,neighbour,score')
    assert first.split(',')[1] in ('paper', 'author')
    assert 'node 2: ' in str(many)
    assert 'paper' in str(many)


def test_the_best_of_many_have_verdicts(explainer, model, data):
    many = explain_nodes(explainer, data.x_dict, data.edge_index_dict, top_k=2)
    assert many.certificate.index.tolist() == list(range(7))


def test_checks_ask_the_model_with_masks_by_type(explainer, model, data):
    explanation = explainer(data.x_dict, data.edge_index_dict, index=2)
    masks = explanation.collect('node_mask'), explanation.collect('edge_mask')
    found = check(explainer, explanation)
    before = model(data.x_dict, data.edge_index_dict).softmax(dim=1)[2]
    kept = explainer.get_masked_prediction(data.x_dict, data.edge_index_dict, *masks).softmax(dim=1)[2]
    assert abs(float(found.unfaithfulness) - float((before - kept).norm())) < 1e-12
    many = [explainer(data.x_dict, data.edge_index_dict, index=node) for node in (2, 4)]
    together = check(explainer, many)
    one_by_one = torch.cat([check(explainer, one).unfaithfulness for one in many])
    torch.testing.assert_close(together.unfaithfulness, one_by_one)


def test_checks_take_other_explainers(model, data):
    explainer = Explainer(
        model, GNNExplainer(epochs=2), 'model', node_mask_type='attributes', model_config=CONFIG,
        threshold_config=('topk_hard', 3),
    )  # fmt: skip
    explanation = explainer(data.x_dict, data.edge_index_dict, index=2)
    before = model(data.x_dict, data.edge_index_dict).softmax(dim=1)[2]
    kept = model({key: x * explanation[key].node_mask for key, x in data.x_dict.items()}, data.edge_index_dict)
    expected = (before - kept.softmax(dim=1)[2]).norm()
    assert abs(float(check(explainer, explanation).unfaithfulness) - float(expected)) < 1e-6


def test_soft_masks_of_edges_are_refused_where_layers_take_several_relations(data):
    torch.manual_seed(0)
    model = MODELS['HANConv'](data)
    explainer = Explainer(model, FastDnX(), 'model', edge_mask_type='object', model_config=CONFIG)
    explanation = explainer(data.x_dict, data.edge_index_dict, index=2)
    with pytest.raises(ValueError, match="'edge_mask' must be 0 or 1 everywhere for Native"):
        check(explainer, explanation)
    hard = explanation.threshold('topk_hard', 1)
    edges = {key: data[key].edge_index[:, hard[key].edge_mask > 0] for key in data.edge_types}
    kept = model(data.x_dict, edges).softmax(dim=1)[2]
    before = model(data.x_dict, data.edge_index_dict).softmax(dim=1)[2]
    assert abs(float(check(explainer, hard).unfaithfulness) - float((before - kept).norm())) < 1e-12


def test_certificates_are_of_masks_by_type(explainer, model, data):
    explanation = explainer(data.x_dict, data.edge_index_dict, index=2)
    certificate = certify(explainer, explanation)
    surrogate = explainer.algorithm.distill(model, data.x_dict, data.edge_index_dict)
    x, adjacency = dense(data)
    mask = torch.cat([explanation[key].node_mask for key in data.node_types])
    assert certificate.index.tolist() == [2]
    without_edges = explanation.clone()
    for store in without_edges.edge_stores:
        del store.edge_mask
    power = adjacency @ adjacency
    change = (power @ (x * mask) @ surrogate.weight - power @ x @ surrogate.weight)[2].norm() / 2
    bound = certify(explainer, without_edges).mask_bound
    assert abs(float(bound) - float(change)) < 1e-9


def test_a_report_is_of_the_nodes_of_the_target_type(explainer, data):
    report = trust_report(explainer, data.x_dict, data.edge_index_dict, num_checks=3)
    assert sum(group.num_nodes for group in report.by_degree) == 7
    assert sum(row.num_checked for row in report.reliability) == 3


def test_masks_are_refined_by_type(explainer, data):
    explanation = explainer(data.x_dict, data.edge_index_dict, index=2)
    refined = refine(explainer, explanation, size=2, num_evaluations=20)
    assert isinstance(refined[0], HeteroExplanation)
    assert sum(int(refined[0][key].node_mask.sum()) for key in data.node_types) == 2
    assert explanation['paper'].node_mask.max() == 1.0


@pytest.mark.parametrize('kind', MODELS)
@pytest.mark.parametrize('how', ['features', 'nodes', 'edges'])
def test_copies_answer_as_the_graph(kind, how, data):
    torch.manual_seed(0)
    model = MODELS[kind](data)
    explainer = Explainer(model, FastDnX(), 'model', node_mask_type='object', model_config=CONFIG)
    teacher = Teacher(model, explainer.model_config)
    graph = Graph.of(data.x_dict, data.edge_index_dict, {}).aimed((), 'paper')
    generator, outputs = torch.Generator().manual_seed(0), torch.tensor([0, 2, 2, 5])
    size = graph.edge_index.size(1) if how == 'edges' else graph.num_nodes
    table = torch.rand(4, size, generator=generator) < 0.6
    masks = Masks(edge=table) if how == 'edges' else Masks(node=table, how=how)
    known = teacher.outputs(graph).values
    on_graph = Local(teacher, graph, known, None).at(outputs, masks)
    on_copies = Local(teacher, graph, known, teacher.reach).at(outputs, masks)
    # HANConv weighs relations by a mean over all nodes, so that copies differ by what is tolerated.
    torch.testing.assert_close(on_copies, on_graph, rtol=0, atol=1e-3 if kind == 'HANConv' else 1e-9)
    if how == 'edges':
        for answer, output, kept in zip(on_graph, outputs, table, strict=True):
            parts = kept.split([data[key].num_edges for key in data.edge_types])
            edges = {key: data[key].edge_index[:, part] for key, part in zip(data.edge_types, parts, strict=True)}
            expected = model(data.x_dict, edges).softmax(dim=1)[output]
            torch.testing.assert_close(answer, expected, rtol=0, atol=1e-9)
    if how == 'features':
        for answer, output, kept in zip(on_graph, outputs, table, strict=True):
            x = {
                key: data[key].x * part[:, None] for key, part in zip(data.node_types, kept.split([7, 5]), strict=True)
            }
            expected = model(x, data.edge_index_dict).softmax(dim=1)[output]
            torch.testing.assert_close(answer, expected, rtol=0, atol=1e-9)


def test_a_page_tells_types_apart(explainer, data, tmp_path):
    from pyg_dnx import plot, to_html

    explanation = explainer(data.x_dict, data.edge_index_dict, index=2)
    to_html(explanation, tmp_path / 'page.html')
    assert 'author' in (tmp_path / 'page.html').read_text()
    assert '<' in explanation._repr_html_()
    plot.neighborhood(explanation, path=tmp_path / 'picture.png')
