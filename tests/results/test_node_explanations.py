import builtins
import errno
import pickle
import sys

import pytest
import torch
from helpers import example_graphs
from models import Teacher, connected, explainer

from pyg_dnx import DnX, FastDnX, NodeExplanations, Surrogate, files
from pyg_dnx.results import node_explanations

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
COLUMNS = ['node', 'neighbour', 'score', 'surrogate_agreement', 'distillation_error', 'bias_decides']
COLUMNS_OF_TOP = [*COLUMNS, 'expected_unfaithfulness', 'verdict']
INDEX = torch.tensor([5, 0, 6, 0])  # node 6 has a neighbourhood of one
KEYS = ['node_mask', 'edge_mask', 'node_score', 'edge_score', 'distillation_error', 'surrogate_agreement', 'target']
SETTINGS = {  # the algorithm, the type of explanation, and the kinds of masks
    'FastDnX': (FastDnX, {}, 'model', 'object'),
    'FastDnX, target': (FastDnX, {'score': 'target', 'edge_score': 'endpoints'}, 'model', 'attributes'),
    'FastDnX, phenomenon': (FastDnX, {'mask': 'positive'}, 'phenomenon', 'object'),
    'DnX': (DnX, {'epsilon': 0.1, 'prior': 'propagation'}, 'model', 'object'),
    'DnX, phenomenon': (DnX, {'mask': 'minmax'}, 'phenomenon', 'common_attributes'),
}


def explain(name='FastDnX', **options):
    kind, settings, explanation_type, mask = SETTINGS[name]
    x, edge_index, edge_weight = example_graphs()['weighted']
    algorithm = explainer(Teacher(), kind(**settings), 'multiclass raw', explanation_type, mask, 'object').algorithm
    target = torch.arange(8) % 3 if explanation_type == 'phenomenon' else None
    given = {'index': INDEX, 'target': target, 'edge_weight': edge_weight, **options}
    return algorithm.explain_nodes(Teacher(), x, edge_index, **given)


def compare(found, expected):
    assert found.index.equal(expected.index)
    for name in ['surrogate_agreement', 'distillation_error', 'bias_decides']:
        assert getattr(found, name).equal(getattr(expected, name))
    assert (found.scores is None) == (expected.scores is None)
    if expected.scores is not None:
        assert found.scores.to_dense().equal(expected.scores.to_dense())
        assert found.scores.col_indices().equal(expected.scores.col_indices())
    for one, other in zip(found.top_k(2), expected.top_k(2), strict=True):
        assert one.equal(other)
    assert found.surrogate.weight.equal(expected.surrogate.weight)
    assert found.surrogate.report == expected.surrogate.report
    assert (found.certificate is None) == (expected.certificate is None) == (expected.scores is not None)
    assert str(found.certificate) == str(expected.certificate)


@pytest.mark.parametrize('top_k', [None, 3])
@pytest.mark.parametrize('name', SETTINGS)
def test_loaded_explanations_are_the_saved_ones(name, top_k, tmp_path):
    saved = explain(name, top_k=top_k)
    saved.save(tmp_path / 'saved.pt')
    x, edge_index, edge_weight = example_graphs()['weighted']
    loaded = NodeExplanations.load(tmp_path / 'saved.pt', x, edge_index, edge_weight=edge_weight)
    compare(loaded, saved)
    assert repr(loaded) == repr(saved)
    for found, expected in zip(loaded, saved, strict=True):
        assert found.keys() == expected.keys()
        for key in KEYS:
            torch.testing.assert_close(found[key], expected[key], rtol=1e-5, atol=1e-7)
        assert found.validate(raise_on_error=True)
        assert found._model_args == expected._model_args == ['edge_weight']
        assert found._model_config.return_type == expected._model_config.return_type


@pytest.mark.parametrize('top_k', [None, 3])
def test_files_of_format_1_are_read(top_k, tmp_path):
    path, saved = tmp_path / 'saved.pt', explain(top_k=top_k)
    saved.save(path)
    content = files.read(path, 'NodeExplanations', dict)
    torch.save({'format': 'pyg_dnx.NodeExplanations/1', **content}, path)
    compare(NodeExplanations.load(path), saved)
    saved.surrogate.save(path)
    content = files.read(path, 'Surrogate', dict)
    torch.save({'format': 'pyg_dnx.Surrogate/1', **content}, path)
    assert Surrogate.load(path).weight.equal(saved.surrogate.weight)


@pytest.mark.parametrize('name', ['save', 'to_csv'])
def test_a_full_disk_leaves_the_file_that_was_there(name, tmp_path, monkeypatch):
    path, saved = tmp_path / 'saved', explain()
    path.write_text('old')

    def fail(*_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(files, '_write', fail)
    with pytest.raises(OSError, match=r"'path' must be where there is room .* what was there is unchanged"):
        getattr(saved, name)(path)
    assert path.read_text() == 'old'
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize('top_k', [None, 3])
def test_without_the_graph_there_are_scores_only(top_k, tmp_path):
    saved = explain(top_k=top_k)
    saved.save(tmp_path / 'saved.pt')
    loaded = NodeExplanations.load(tmp_path / 'saved.pt')
    compare(loaded, saved)
    loaded.to_csv(tmp_path / 'loaded.csv')
    saved.to_csv(tmp_path / 'saved.csv')
    assert (tmp_path / 'loaded.csv').read_text() == (tmp_path / 'saved.csv').read_text()
    with pytest.raises(ValueError, match="without their graph have scores only: pass 'x' and 'edge_index' to"):
        loaded[0]


@pytest.mark.parametrize('shape', [(7, 3), (8, 2), (9, 3)])
def test_load_refuses_another_graph(shape, tmp_path):
    explain().save(tmp_path / 'saved.pt')
    with pytest.raises(ValueError, match=rf"'x' must have shape \[8, 3\], .*\(got \[{shape[0]}, {shape[1]}\]\): "):
        NodeExplanations.load(tmp_path / 'saved.pt', torch.zeros(shape), torch.zeros(2, 0).long())
    with pytest.raises(TypeError, match="'edge_index' must be"):
        NodeExplanations.load(tmp_path / 'saved.pt', torch.zeros(8, 3))


class Intruder:
    r"""Leaves a trace where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return builtins.open, (str(self.path), 'w')


def damage(way, path):
    if way == 'cut short':
        path.write_bytes(path.read_bytes()[:2000])
    elif way == 'end is missing':
        path.write_bytes(path.read_bytes()[:-200])
    elif way == 'no file of ours':
        path.write_bytes(b'node,score\n1,2\n')
    elif way == 'surrogate':
        explain().surrogate.save(path)
    elif way == 'plain pickle':
        path.write_bytes(pickle.dumps(Intruder(path.parent / 'trace'), protocol=2))
    else:
        content = files.read(path, 'NodeExplanations', dict)
        changes = {'rule': {'rule': {'name': 'Best'}}, 'other format': {'format': 'pyg_dnx.NodeExplanations/0'}}
        content.update(changes.get(way) or {'target': Intruder(path.parent / 'trace')})
        if way == 'incomplete':
            del content['target'], content['trust']
        if way == 'other format':
            torch.save(content, path)
        else:
            files.write(path, 'NodeExplanations', content)


@pytest.mark.parametrize(
    'way',
    [
        'cut short',
        'end is missing',
        'no file of ours',
        'surrogate',
        'incomplete',
        'rule',
        'other format',
        'plain pickle',
        'hidden',
    ],
)
def test_load_refuses_other_files_and_runs_no_code(way, tmp_path):
    path = tmp_path / 'saved.pt'
    explain().save(path)
    damage(way, path)
    with pytest.raises(ValueError, match=r"'path' must name a file written by 'NodeExplanations.save' \(got .*saved"):
        NodeExplanations.load(path)
    assert not (tmp_path / 'trace').exists()


def test_load_of_a_missing_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        NodeExplanations.load(tmp_path / 'missing.pt')


@pytest.mark.parametrize('name', ['FastDnX', 'DnX'])
@pytest.mark.parametrize('top_k', [None, 3])
def test_pickles(name, top_k):
    explanations = explain(name, top_k=top_k)
    copied = pickle.loads(pickle.dumps(explanations))
    compare(copied, explanations)
    assert copied[1].edge_mask.equal(explanations[1].edge_mask)


@pytest.mark.parametrize('rows', [2, 2**16])
def test_table_has_a_row_for_each_score(rows, monkeypatch):
    pytest.importorskip('pandas')
    monkeypatch.setattr(node_explanations, '_ROWS_AT_A_TIME', rows)
    explanations = explain()
    table = explanations.to_pandas()
    assert list(table) == COLUMNS
    assert list(table.index) == list(range(len(table)))
    assert len(table) == explanations.scores.values().numel()
    dense, first = explanations.scores.to_dense(), 0
    for b, node in enumerate(INDEX.tolist()):
        count = int(explanations.scores.crow_indices().diff()[b])
        part, first = table.iloc[first : first + count], first + count
        assert set(part['node']) == {node}
        assert part['score'].tolist() == dense[b, part['neighbour'].tolist()].tolist()
        for name in COLUMNS[3:]:
            assert set(part[name]) == {getattr(explanations, name)[b].item()}


@pytest.mark.parametrize('rows', [2, 2**16])
def test_table_of_the_top_has_no_padding(rows, monkeypatch):
    pytest.importorskip('pandas')
    monkeypatch.setattr(node_explanations, '_ROWS_AT_A_TIME', rows)
    explanations = explain(top_k=3)
    nodes, scores = explanations.top_k(3)
    table = explanations.to_pandas()
    assert list(table) == COLUMNS_OF_TOP
    assert int((nodes < 0).sum()) == 2  # of node 6
    assert table['node'].tolist() == INDEX[:, None].expand(4, 3)[nodes >= 0].tolist()
    assert table['neighbour'].tolist() == nodes[nodes >= 0].tolist()
    assert table['score'].tolist() == scores[nodes >= 0].tolist()
    for name in COLUMNS_OF_TOP[3:]:
        values = getattr(explanations.certificate, name)
        assert table[name].tolist() == values[:, None].expand(4, 3)[nodes >= 0].tolist()


@pytest.mark.parametrize('rows', [1, 2, 2**16])
@pytest.mark.parametrize('top_k', [None, 3])
def test_csv_is_the_table(rows, top_k, tmp_path, monkeypatch):
    pandas = pytest.importorskip('pandas')
    explanations = explain(top_k=top_k)
    expected = explanations.to_pandas()
    monkeypatch.setattr(node_explanations, '_ROWS_AT_A_TIME', rows)
    explanations.to_csv(tmp_path / 'table.csv')
    found = pandas.read_csv(tmp_path / 'table.csv')
    assert set(found['surrogate_agreement']) | set(found['bias_decides']) == {0, 1}
    assert 'True' not in (tmp_path / 'table.csv').read_text()
    assert list(found) == (COLUMNS if top_k is None else COLUMNS_OF_TOP)
    pandas.testing.assert_frame_equal(found.astype(dict(expected.dtypes)), expected, check_exact=True)


def test_tables_can_do_without_pandas(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'pandas', None)
    explanations = explain()
    with pytest.raises(ImportError, match="'to_pandas' needs pandas: install it, or write a file with 'to_csv'"):
        explanations.to_pandas()
    explanations.to_csv(tmp_path / 'table.csv')
    assert (tmp_path / 'table.csv').read_text().startswith(','.join(COLUMNS) + '\n')


def test_repr():
    assert repr(explain()) == 'NodeExplanations(4 nodes)'
    assert repr(explain(top_k=3)) == 'NodeExplanations(4 nodes, top_k=3)'


@pytest.mark.parametrize('task', ['binary raw [N, 2]', 'binary probs [N, 1]', 'regression [N, 2]'])
def test_files_of_every_task_are_read_back(task, tmp_path):
    x, edge_index, _ = example_graphs()['undirected']
    found = connected(FastDnX(num_hops=1), task).explain_nodes(Teacher(task=task), x, edge_index)
    found.save(tmp_path / 'saved.pt')
    loaded = NodeExplanations.load(tmp_path / 'saved.pt', x, edge_index)
    assert loaded.scores.shape == (8, 8)
    torch.testing.assert_close(loaded[3].node_score, found[3].node_score)


OTHER_GRAPHS = {
    'features': lambda x, edges, weight: (x.flip(0), edges, weight),
    'a feature': lambda x, edges, weight: (x + 1e-4 * torch.eye(*x.shape), edges, weight),
    'edges': lambda x, edges, weight: (x, edges.flip(0), weight),
    'weights': lambda x, edges, weight: (x, edges, weight.flip(0)),
    'no weights': lambda x, edges, weight: (x, edges, None),
}


@pytest.mark.parametrize('change', OTHER_GRAPHS)
@pytest.mark.parametrize('is_saved_again', [False, True])
def test_another_graph_of_the_same_size_is_refused(change, is_saved_again, tmp_path):
    x, edge_index, weight = example_graphs()['weighted']
    saved = connected(FastDnX()).explain_nodes(Teacher().eval(), x, edge_index, edge_weight=weight)
    saved.save(tmp_path / 'saved.pt')
    if is_saved_again:
        NodeExplanations.load(tmp_path / 'saved.pt').save(tmp_path / 'saved.pt')
    NodeExplanations.load(tmp_path / 'saved.pt', x.clone(), edge_index.clone(), edge_weight=weight.clone())
    x, edge_index, weight = OTHER_GRAPHS[change](x, edge_index, weight)
    with pytest.raises(ValueError, match=r"must be those of the explained graph \(got others for '.*saved.pt'\): pass"):
        NodeExplanations.load(tmp_path / 'saved.pt', x, edge_index, edge_weight=weight)
