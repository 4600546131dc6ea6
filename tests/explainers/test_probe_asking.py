r"""How often ProbeDnX asks the model, when it asks again, and what can be given in the model's place."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from models import Teacher, Versatile, connected, evaluations, explainer, graph, in_chunks
from probe_case import ProbeCase

from pyg_dnx import NodeExplanations, ProbeDnX, certify, shared_cache
from pyg_dnx.run import Run

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

TASKS = ['multiclass raw', 'multiclass log_probs', 'binary raw [N]', 'binary probs [N, 2]', 'regression [N]']
TASKS += ['regression [N, 2]']
ASKED = 1 + 8 + 1 + 12  # all, the masks of the distillation, none, and the probes below
CLOSE = {'rtol': 1e-5, 'atol': 1e-7}


def as_memmap(outputs, folder):
    np.save(folder / 'outputs.npy', outputs.numpy())
    return np.load(folder / 'outputs.npy', mmap_mode='r')


WAYS = {'tensor': lambda outputs, folder: outputs, 'array': lambda outputs, folder: outputs.numpy()}
WAYS |= {'memmap': as_memmap, 'more': lambda outputs, folder: torch.cat([outputs, outputs[:5]])}


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('task', TASKS)
def test_outputs_stand_for_the_model(task, way, tmp_path):
    case = ProbeCase(task=task, num_probes=12)
    expected, outputs = case.explain_nodes(), WAYS[way](case.raw, tmp_path)
    for model in (case.model, None):
        with evaluations(case.model, 0):
            found = case.explain_nodes(model=model, given={'probe_outputs': outputs})
            alone = found[3]
        torch.testing.assert_close(found.scores.to_dense(), expected.scores.to_dense())
        torch.testing.assert_close(found.probe_r2, expected.probe_r2)
        torch.testing.assert_close(alone.node_score, expected[3].node_score)
        assert found[3].target.equal(expected[3].target)


def test_fewer_probes_are_the_first_of_those_given():
    case = ProbeCase(num_probes=12)
    found = case.explain_nodes(model=None, num_probes=6, given={'probe_outputs': case.raw})
    torch.testing.assert_close(found.scores.to_dense(), case.explain_nodes(num_probes=6).scores.to_dense())


def test_known_outputs_save_their_evaluation():
    case = ProbeCase(num_probes=12)
    with evaluations(case.model, ASKED - 1):
        found = case.explain_nodes(given={'teacher_outputs': case.raw[0]})
    torch.testing.assert_close(found.scores.to_dense(), case.explain_nodes().scores.to_dense())


def test_the_model_is_asked_once_for_each_probe():
    case = ProbeCase(num_probes=12)
    explain = case.explainer(edge='object', edge_score='flow')
    with evaluations(case.model, ASKED):
        found = case.explain_nodes()
        for other in (
            case.explain_nodes(),
            case.explain_nodes(answer='logit'),
            case.explain_nodes(contrast='runner_up'),
        ):
            list(other)
        case.explain_nodes('phenomenon', target=torch.arange(8) % 3)
        list(found)
    with evaluations(case.model, 2):  # PyG's own
        explanation = explain(case.x, case.edge_index, index=1, **case.kwargs)
        explain(case.x, case.edge_index, index=2, **case.kwargs)
    certify(explain, explanation)
    with evaluations(case.model, 1 + 10):  # the surrogate is there
        case.explain_nodes(num_probes=10)
    shared_cache.clear()
    with evaluations(case.model, 2 * ASKED):
        for _ in range(2):
            list(case.explain_nodes(cache=None))


CHANGES = {
    'model': lambda model, x, edge_index: model.head.weight.data[0].add_(1),
    'x': lambda model, x, edge_index: x[0].mul_(2),
    'edge_index': lambda model, x, edge_index: edge_index[1, :1].fill_(4),
    'attribute': lambda model, x, edge_index: setattr(model, 'scale', 3.0),
}


@pytest.mark.parametrize('change', CHANGES)
@pytest.mark.parametrize('cache', [True, False])
@pytest.mark.parametrize('max_memory', [None, 1])
def test_what_has_changed_is_asked_again(change, cache, max_memory):
    model, inputs = Versatile().eval(), graph()
    options = {'num_probes': 12, 'max_memory': max_memory, **({} if cache else {'cache': None})}
    algorithm = connected(ProbeDnX(**options))
    before = algorithm.explain_nodes(model, *inputs)
    CHANGES[change](model, *inputs)
    with evaluations(model, ASKED):
        found = algorithm.explain_nodes(model, *inputs)
    expected = connected(ProbeDnX(num_probes=12, cache=None)).explain_nodes(model, *inputs)
    torch.testing.assert_close(found.scores.to_dense(), expected.scores.to_dense(), **CLOSE)
    assert not found.scores.to_dense().allclose(before.scores.to_dense())


@pytest.mark.parametrize('way', ['tensor', 'array'])
def test_changed_outputs_are_noticed(way):
    case = ProbeCase(num_probes=12)
    outputs = WAYS[way](case.raw.clone(), None)
    before = case.explain_nodes(model=None, given={'probe_outputs': outputs})
    outputs[4:9] *= -1.0
    after = case.explain_nodes(model=None, given={'probe_outputs': outputs})
    assert not after.scores.to_dense().allclose(before.scores.to_dense())


SCARCE = {  # the task, the type of explanation, and options
    'model': ('multiclass raw', 'model', {}),
    'logit': ('multiclass raw', 'model', {'answer': 'logit'}),
    'runner_up': ('multiclass raw', 'model', {'contrast': 'runner_up'}),
    'phenomenon': ('multiclass raw', 'phenomenon', {}),
    'phenomenon, contrast': ('multiclass probs', 'phenomenon', {'contrast': 2, 'answer': 'logit'}),
    'binary': ('binary raw [N]', 'model', {}),
    'binary phenomenon': ('binary probs [N, 2]', 'phenomenon', {}),
    'regression': ('regression [N]', 'model', {}),
    'regressions': ('regression [N, 2]', 'model', {}),
    'regression phenomenon': ('regression [N]', 'phenomenon', {}),
    'regressions phenomenon': ('regression [N, 2]', 'phenomenon', {}),
}


@pytest.mark.parametrize('double', [True, False])
@pytest.mark.parametrize('name', SCARCE)
def test_answers_alone_give_the_same_scores(name, double):
    task, explanation_type, options = SCARCE[name]
    case, target = ProbeCase(task=task, num_probes=12), None
    if explanation_type == 'phenomenon':
        target = {'regression [N]': 3 * case.x[:, 0], 'regression [N, 2]': 3 * case.x[:, :2]}.get(
            task, torch.arange(8) % 2
        )
    if not double:
        case.x, case.model, case.kwargs = case.x.float(), case.model.float(), {}
    given = {'top_k': 3}
    full, scarce = (
        case.explain_nodes(explanation_type, target=target, cache=None, max_memory=limit, given=given, **options)
        for limit in (None, 1)
    )
    close = CLOSE if double else {'rtol': 1e-3, 'atol': 1e-5}
    for one, other in zip(scarce.top_k(3), full.top_k(3), strict=True):
        torch.testing.assert_close(one, other, **close)
    for field in ('_trust', 'certificate'):
        first, second = (vars(getattr(found, field)) for found in (scarce, full))
        for key, value in second.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(first[key], value, **close)


def test_answers_alone_take_less_memory_and_are_not_mixed_up():
    case, target = ProbeCase(num_probes=12), torch.zeros(8, dtype=torch.long)
    with evaluations(case.model, 1 + 8 + 4 * 13):  # the answers for one set of targets are kept
        for label in (0, 1, 1, 0):
            found = case.explain_nodes('phenomenon', target=target + label, max_memory=1)
            torch.testing.assert_close(found.scores.to_dense(), case.fit(target + label).score, **CLOSE)
        case.explain_nodes(max_memory=1)
    full = case.explain_nodes()  # and are not taken where there is enough
    torch.testing.assert_close(full.scores.to_dense(), case.fit().score, **CLOSE)
    with evaluations(case.model, 0):
        case.explain_nodes('phenomenon', target=target + 2, max_memory=1)


def test_unknown_targets_of_other_nodes_change_nothing():
    for task, unknown in [('regression [N]', torch.nan), ('multiclass raw', -1)]:
        case = ProbeCase(task=task, num_probes=12)
        target = case.x[:, 0].clone() if 'regression' in task else torch.arange(8) % 3
        expected = case.explain_nodes('phenomenon', target=target, index=torch.tensor([1, 2]), cache=None)
        target[3:] = unknown
        for limit in (None, 1):
            given = {'target': target, 'index': torch.tensor([1, 2]), 'max_memory': limit}
            found = case.explain_nodes('phenomenon', cache=None, **given)
            torch.testing.assert_close(found.scores.to_dense(), expected.scores.to_dense(), **CLOSE)


class Remembering(Teacher):
    r"""Keeps what it computed last."""

    def forward(self, x, edge_index):
        self.last = super().forward(x, edge_index)
        return self.last


def test_a_model_that_keeps_its_last_outputs_is_asked_once():
    model, inputs = Remembering().eval(), graph()
    for _ in range(2):  # it has none yet at first
        connected(ProbeDnX(num_probes=12)).explain_nodes(model, *inputs)
    assert not hasattr(model, 'last')  # a copy was asked
    with evaluations(model, 0):
        connected(ProbeDnX(num_probes=12)).explain_nodes(model, *inputs)


def test_threads_with_other_options_leave_the_model_as_it_was():
    model, inputs, barrier = Versatile().train(), graph(), threading.Barrier(3)
    model.conv.cached = True
    expected = [connected(ProbeDnX(h, num_probes=12, cache=None)).explain_nodes(model, *inputs) for h in (0, 1, 2)]
    for _ in range(5):
        shared_cache.clear()

        def work(num_hops):
            barrier.wait()
            return connected(ProbeDnX(num_hops, num_probes=12)).explain_nodes(model, *inputs)

        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(work, (0, 1, 2)))
        for one, other in zip(found, expected, strict=True):
            assert one.scores.values().equal(other.scores.values())
        assert model.conv.cached
        assert all(module.training for module in model.modules())


def test_threads_ask_once():
    model, inputs, barrier = Versatile().eval(), graph(), threading.Barrier(4)

    def work(node):
        barrier.wait()
        return connected(ProbeDnX(num_probes=12)).explain_nodes(model, *inputs).scores.to_dense()[node]

    with evaluations(model, ASKED), ThreadPoolExecutor(4) as pool:
        found = torch.stack(list(pool.map(work, range(4))))
    assert found.equal(connected(ProbeDnX(num_probes=12)).explain_nodes(model, *inputs).scores.to_dense()[:4])


@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
def test_few_nodes_have_the_same_scores_on_copies(task):
    generator = torch.Generator().manual_seed(0)
    x, steps = torch.randn(120, 300, generator=generator).double(), torch.randint(120, (2, 130), generator=generator)
    inputs, model = (
        (x, torch.cat([steps, steps.flip(0)], dim=1)),
        Teacher('gcn', task, num_features=300).double().eval(),
    )
    explain, nodes = connected(ProbeDnX(num_probes=60), task).explain_nodes, torch.tensor([3, 50, 7])
    expected = connected(ProbeDnX(num_probes=60, cache=None), task).explain_nodes(model, *inputs)
    counts = []
    handle = model.register_forward_hook(lambda *_: counts.append(1))
    found = explain(model, *inputs, index=nodes)
    assert len(counts) < 20
    torch.testing.assert_close(found.scores.to_dense(), expected.scores.to_dense()[nodes])
    torch.testing.assert_close(found.probe_r2, expected.probe_r2[nodes])
    for node in range(120):
        found = explain(model, *inputs, index=node)
    handle.remove()
    torch.testing.assert_close(found.scores.to_dense(), expected.scores.to_dense()[-1:])
    with evaluations(model, 0):  # copies cost as much as the graph in the end, which was asked then
        explain(model, *inputs)


@pytest.mark.parametrize('top_k', [None, 3])
@pytest.mark.parametrize('task', ['multiclass raw', 'regression [N, 2]'])
def test_saved_explanations_are_whole(task, top_k, tmp_path):
    case, index = ProbeCase(task=task, num_probes=12), torch.tensor([4, 1, 6])
    found = case.explain_nodes(index=index, given={'top_k': top_k})
    found.save(tmp_path / 'file')
    loaded = NodeExplanations.load(tmp_path / 'file', case.x, case.edge_index, **case.kwargs)
    assert loaded.probe_r2.equal(found.probe_r2)
    assert loaded.top_k(3)[1].equal(found.top_k(3)[1])
    assert repr(loaded._request.rule) == repr(found._request.rule)
    for one, other in zip(loaded, found, strict=True):
        for key in ('node_score', 'node_mask', 'probe_r2', 'probe_evidence'):
            torch.testing.assert_close(one[key], other[key])
    if top_k is not None:
        assert loaded.certificate.probe_r2.equal(found.certificate.probe_r2)
        assert str(loaded.certificate) == str(found.certificate)
    assert {'probe_r2', 'probe_evidence', 'probe_bias'} <= {*loaded.to_pandas().columns}
    with pytest.raises(ValueError, match='loaded without their graph'):
        NodeExplanations.load(tmp_path / 'file')[0]


@pytest.mark.parametrize('top_k', [None, 3])
def test_interruptions_cost_only_what_was_worked_on(top_k, tmp_path):
    case, sizes = ProbeCase(num_probes=12), []
    expected = case.explain_nodes(given={'top_k': top_k})

    class Watched(Run):
        def bar(self, label, *args, **options):
            bar = super().bar(label, *args, **options)

            def update(size):
                sizes.append(size)
                if len(sizes) == 3:
                    raise KeyboardInterrupt

            bar.update = update if label == 'Explaining' else bar.update
            return bar

    def explain(**options):
        algorithm, inputs = in_chunks(case.algorithm(**options), 14, Watched), (case.model, case.x, case.edge_index)
        return algorithm.explain_nodes(*inputs, top_k=top_k, checkpoint=tmp_path, **case.kwargs)

    with pytest.raises(KeyboardInterrupt):
        explain()
    assert sum(sizes) < 8
    found = explain()
    assert sum(sizes) == 8  # no node again
    for one, other in zip(found.top_k(3), expected.top_k(3), strict=True):
        torch.testing.assert_close(one, other)
    for name, values in expected._trust.to_dict().items():
        torch.testing.assert_close(found._trust.to_dict()[name], values)
    for other in ({'answer': 'logit'}, {'num_probes': 10}, {'contrast': 'runner_up'}):
        with pytest.raises(ValueError, match=r"'checkpoint' must name a folder of the same .* another "):
            explain(**other)


class Failing(Teacher):
    fails_at = None

    def __init__(self):
        super().__init__()
        self.count = itertools.count(1)

    def forward(self, x, edge_index):
        if next(self.count) == self.fails_at:
            raise RuntimeError('halfway')
        return super().forward(x, edge_index)


@pytest.mark.parametrize('fails_at', [None, 2, 6])
@pytest.mark.parametrize('options', [{}, {'distillation': 'masked'}, {'max_memory': 1}])
def test_everything_is_left_as_it_was(fails_at, options):
    model, (x, edge_index), random = Failing().train(), graph(), torch.get_rng_state()
    model.conv1.eval()
    state, kept = {name: value.clone() for name, value in model.state_dict().items()}, (x.clone(), edge_index.clone())
    names = [{**vars(module)} for module in (model.conv1, model.conv2)]
    algorithm = connected(ProbeDnX(num_probes=12, **options))
    model.fails_at = fails_at
    if fails_at is None:
        algorithm.explain_nodes(model, x, edge_index)
    else:
        with pytest.raises(RuntimeError, match='halfway'):
            algorithm.explain_nodes(model, x, edge_index)
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in (model, model.conv1, model.conv2)] == [True, False, True]
    assert [vars(module).keys() for module in (model.conv1, model.conv2)] == [kept.keys() for kept in names]
    assert x.equal(kept[0])
    assert edge_index.equal(kept[1])
    assert torch.get_rng_state().equal(random)
    model.fails_at = None  # and a failed attempt leaves nothing behind
    found = algorithm.explain_nodes(model, x, edge_index)
    expected = connected(ProbeDnX(num_probes=12, cache=None)).explain_nodes(Teacher().eval(), x, edge_index)
    torch.testing.assert_close(found.scores.to_dense(), expected.scores.to_dense(), **CLOSE)


def test_progress_is_shown_when_asked_for(capsys):
    algorithm = connected(ProbeDnX(num_probes=12, cache=None))
    for progress, text in [(True, '12/12'), (False, ''), (None, '')]:
        algorithm.explain_nodes(Teacher().eval(), *graph(), progress=progress)
        shown = capsys.readouterr().err
        assert text in shown if text else shown == ''


def test_phenomenon_may_be_explained_one_by_one():
    model, inputs, target = Teacher().eval(), graph(), torch.arange(8) % 3
    explain = explainer(model, ProbeDnX(num_probes=12, max_memory=1), explanation_type='phenomenon')
    first, second = (explain(*inputs, target=target, index=node) for node in (1, 2))
    assert not first.node_score.equal(second.node_score)
