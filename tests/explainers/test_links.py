r"""Links: what a bilinear surrogate says of a pair, by hand, and that every form of asking gives the same."""

import itertools
import math

import pytest
import torch
from helpers import dense_adjacency, example_graphs
from link_case import PAIRS, TASKS, Edges, Linker, Planted, Renamed, explainer
from models import evaluations, graph, in_chunks

from pyg_dnx import DnX, FastDnX, LinkExplanations, ProbeDnX, SurrogateWarning, certify, check, to_html
from pyg_dnx.run import Run
from pyg_dnx.view.scene import scene_of
from pyg_dnx.view.words import names_of, question_of

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

CLOSE = {'rtol': 1e-10, 'atol': 1e-10}
KINDS = {'FastDnX': FastDnX, 'DnX': DnX, 'ProbeDnX': lambda **options: ProbeDnX(num_probes=16, **options)}
kinds = pytest.mark.parametrize('kind', KINDS.values(), ids=KINDS)


def inputs(name='looped'):
    x, edge_index = graph(name)
    return x.double(), edge_index


def ten_nodes():
    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    ring = torch.stack([torch.arange(10), (torch.arange(10) + 1) % 10])
    return x, torch.cat([ring, ring.flip(0), torch.tensor([[2, 7], [5, 0]])], dim=1)


def direction_of(explanation, surrogate, task):
    r"""The direction of the model's own prediction [C], for explanations of one pair."""
    if task.startswith('regression'):
        return explanation.prediction.view(-1, surrogate.bias.numel())[int(explanation.index)] - surrogate.bias
    index, size = int(explanation.get('index') or 0), surrogate.bias.numel()
    target = torch.nn.functional.one_hot(explanation.target[index], size).double()
    return target - 1.0 / size


@pytest.mark.parametrize('task', ['binary raw [Q]', 'multiclass raw', 'regression [Q, 2]'])
@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_scores_are_complete_and_so_are_their_halves(kind, task):
    model, (x, edge_index) = Linker(task).double().eval(), inputs()
    explain = explainer(model, kind(), task)
    surrogate = explain.algorithm.distill(model, x, edge_index, edge_label_index=PAIRS)
    evidence = surrogate(x, edge_index, edge_label_index=PAIRS) - surrogate.bias
    for index in range(PAIRS.size(1)):
        found = explain(x, edge_index, edge_label_index=PAIRS, index=index)
        expected = evidence[index] @ direction_of(found, surrogate, task)
        torch.testing.assert_close(found.node_score.sum(), expected, **CLOSE)
        torch.testing.assert_close(found.source_score + found.target_score, found.node_score, **CLOSE)


def test_halves_are_shapley_values_of_a_game_in_which_each_end_sees_nodes_of_its_own():
    model, (x, edge_index), pair = Linker('multiclass raw', 'mlp').double().eval(), ten_nodes(), torch.tensor([1, 4])
    explain = explainer(model, FastDnX(), 'multiclass raw')
    found = explain(x, edge_index, edge_label_index=pair)
    surrogate = explain.algorithm.distill(model, x, edge_index, edge_label_index=pair)
    masks = torch.tensor([*itertools.product([0.0, 1.0], repeat=10)], dtype=torch.float64)  # of one end
    power = torch.linalg.matrix_power(dense_adjacency(edge_index, None, 10), 2)
    first, second = (masks @ (power[end, :, None] * x) @ surrogate.weight for end in pair.tolist())
    direction, decoder = direction_of(found, surrogate, 'multiclass raw'), surrogate.decoder
    value = first @ torch.einsum('c,crs->rs', direction, decoder.both) @ second.T  # of all pairs of coalitions
    value = value + (first @ decoder.first.T @ direction)[:, None] + (second @ decoder.second.T @ direction)
    size = masks.sum(dim=1)[:, None] + masks.sum(dim=1)
    weight = [math.factorial(s) * math.factorial(19 - s) / math.factorial(20) for s in range(20)] + [0.0]
    weight = torch.tensor(weight, dtype=torch.float64)[size.long()]
    for name, table, chance in (('source_score', value, weight), ('target_score', value.T, weight.T)):
        expected = []
        for node in range(10):
            without = masks[:, node] == 0.0
            expected.append((chance[without] * (table[~without] - table[without])).sum())
        torch.testing.assert_close(found[name], torch.stack(expected), **CLOSE)


def test_scores_of_features_are_the_surrogates_integrated_gradients():
    model, (x, edge_index) = Linker().double().eval(), inputs()
    explain = explainer(model, FastDnX(), node='attributes')
    surrogate = explain.algorithm.distill(model, x, edge_index, edge_label_index=PAIRS)
    found = explain(x, edge_index, edge_label_index=PAIRS, index=2)
    half = (0.5 * x).requires_grad_()  # of a quadratic function, the gradient halfway is the mean
    power = torch.linalg.matrix_power(dense_adjacency(edge_index, None, 8), 2)
    signal = power @ half @ surrogate.weight
    logits = surrogate.decoder.decode(signal[PAIRS[0]], signal[PAIRS[1]])[2]
    (gradient,) = torch.autograd.grad(logits @ direction_of(found, surrogate, 'binary raw [Q]'), half)
    torch.testing.assert_close(found.node_score, x * gradient, **CLOSE)


def planted_scores(model, x, edge_index, pair):
    r"""The planted model's own halves, [2, N]."""
    power = torch.linalg.matrix_power(dense_adjacency(edge_index, None, x.size(0)), 2)
    (u, v), signal = pair.tolist(), power @ x
    first = power[u, :, None] * x @ (0.5 * model.both @ signal[v] + model.first)
    return torch.stack([first, power[v, :, None] * x @ (0.5 * model.both.T @ signal[u] + model.second)]).detach()


@pytest.mark.parametrize('pair', [[0, 1], [3, 3], [4, 0], [2, 6]])
def test_probes_recover_a_planted_bilinear_model(pair):
    model, (x, edge_index), pair = Planted().double().eval(), ten_nodes(), torch.tensor(pair)
    explain = explainer(model, ProbeDnX(num_probes=40), 'regression [Q]')
    found = explain(x, edge_index, edge_label_index=pair)
    expected = planted_scores(model, x, edge_index, pair).sum(dim=0)
    sign = torch.sign(model(x, edge_index, pair) - 1.0)  # scores go toward the output, from that for blank features
    torch.testing.assert_close(found.node_score, sign * expected, rtol=1e-6, atol=1e-6)
    assert found.probe_r2 > 1.0 - 1e-6


def test_distillation_recovers_a_planted_bilinear_model():
    model, (x, edge_index), pair = Planted().double().eval(), ten_nodes(), torch.tensor([4, 0])
    explain = explainer(model, FastDnX(ridge=1e-12), 'regression [Q]')
    found = explain(x, edge_index, edge_label_index=pair)
    surrogate = explain.algorithm.distill(model, x, edge_index, edge_label_index=pair)
    assert surrogate.report.held_out_r2 > 1.0 - 1e-8
    assert surrogate.report.masked_r2 > 1.0 - 1e-8
    factor = model(x, edge_index, pair) - surrogate.bias
    halves = torch.stack([found.source_score, found.target_score])
    # With signals of both ends summing up to one matrix, W is only known up to what no pair can tell.
    torch.testing.assert_close(
        halves.sum(), (factor * planted_scores(model, x, edge_index, pair)).sum(), rtol=1e-4, atol=0
    )


@kinds
@pytest.mark.parametrize('explanation_type', ['model', 'phenomenon'])
@pytest.mark.parametrize('task', TASKS)
def test_every_form_of_asking_gives_the_same(kind, task, explanation_type):
    model, (x, edge_index) = Linker(task).double().eval(), inputs()
    pairs = torch.cat([PAIRS, PAIRS[:, 2:3]], dim=1)  # one of them twice
    explain = explainer(model, kind(), task, explanation_type, edge='object')
    target = None
    if explanation_type == 'phenomenon':
        shape = (7, *TASKS[task][2])
        target = torch.arange(7.0).view(7, 1).expand(7, math.prod(shape) // 7).reshape(shape).double().cos()
        target = target if 'regression' in task else torch.arange(7) % 2

    def one(index, of=pairs, target=target):
        return explain(x, edge_index, edge_label_index=of, index=index, target=target)

    single = [one(index) for index in range(7)]
    assert single[2].node_score.abs().max() > 1e-9
    for index in (-5, torch.tensor(2), torch.tensor([2]), torch.arange(7) == 2):
        assert one(index).node_score.equal(single[2].node_score)
    if explanation_type == 'model':
        torch.testing.assert_close(single[6].node_score, single[2].node_score, rtol=1e-6, atol=1e-9)
    joint = one(torch.tensor([0, 2, 5]))
    for name in ('node_score', 'edge_score', 'source_score', 'target_score'):
        expected = sum(single[index][name] for index in (0, 2, 5))
        torch.testing.assert_close(joint[name], expected, rtol=1e-6, atol=1e-9)
    batch = explain.algorithm.explain_links(model, x, edge_index, edge_label_index=pairs, target=target)
    assert isinstance(batch, LinkExplanations)
    assert batch.pairs.equal(pairs)
    scores = torch.stack([explanation.node_score for explanation in single])
    torch.testing.assert_close(batch.scores.to_dense(), scores, rtol=1e-6, atol=1e-9)
    for explanation, expected in zip(batch, single, strict=True):
        torch.testing.assert_close(explanation.edge_score, expected.edge_score, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(explanation.source_score, expected.source_score, rtol=1e-6, atol=1e-9)


@kinds
def test_one_pair_is_a_vector(kind):
    model, (x, edge_index) = Linker().double().eval(), inputs()
    explain = explainer(model, kind(), edge='object')
    alone = explain(x, edge_index, edge_label_index=PAIRS[:, 0])
    among = explain(x, edge_index, edge_label_index=PAIRS, index=0)
    scale = {'rtol': 0.2, 'atol': 0.02}  # a prior is chosen by the answers about the pairs that are given
    torch.testing.assert_close(alone.node_score, among.node_score, **scale)
    assert alone.node_score.shape == (8,)


@kinds
def test_the_argument_of_pairs_may_have_any_name(kind):
    (x, edge_index), plain = inputs(), Linker().double().eval()
    renamed = Renamed().double().eval()
    explain, expected = explainer(renamed, kind(pair_argument='pairs')), explainer(plain, kind())
    found, other = (
        one(x, edge_index, index=3, **{name: PAIRS})
        for one, name in ((explain, 'pairs'), (expected, 'edge_label_index'))
    )
    torch.testing.assert_close(found.node_score, other.node_score)
    many = explain.algorithm.explain_links(renamed, x, edge_index, pairs=PAIRS, index=[3, 5])
    torch.testing.assert_close(many[0].node_score, found.node_score, rtol=1e-6, atol=1e-9)
    measured = check(explain, [found, *many]).unfaithfulness
    torch.testing.assert_close(measured[:1], check(expected, other).unfaithfulness)
    assert measured[0] == measured[1]


@kinds
def test_a_model_may_score_all_edges_and_take_no_pairs(kind):
    model, (x, edge_index) = Edges().double().eval(), inputs('undirected')
    explain = explainer(model, kind(), edge='object')
    found = explain(x, edge_index, index=4)
    assert found.node_score.isfinite().all()
    torch.testing.assert_close(found.source_score + found.target_score, found.node_score)
    many = explain.algorithm.explain_links(model, x, edge_index, top_k=3)
    assert len(many) == edge_index.size(1)
    assert many.pairs.equal(edge_index)


@pytest.mark.parametrize('name', ['directed', 'weighted', 'no_edges'])
@kinds
def test_any_graph(kind, name):
    x, edge_index, weight = example_graphs()[name]
    kwargs = {} if weight is None else {'edge_weight': weight.double()}
    model = Linker(decoder='mlp', conv='weighted').double().eval()
    found = explainer(model, kind(), edge='object')(x.double(), edge_index, edge_label_index=PAIRS, index=1, **kwargs)
    assert found.node_score.isfinite().all()
    assert found.edge_score.shape == (edge_index.size(1),)
    torch.testing.assert_close(found.source_score + found.target_score, found.node_score)


@pytest.mark.parametrize('task', ['binary raw [Q, 1]', 'binary probs [Q]', 'multiclass raw', 'regression [Q]'])
@pytest.mark.parametrize(('node', 'edge'), [('object', None), ('attributes', 'object'), (None, 'object')])
def test_checks_are_the_models_answers(task, node, edge):
    model, (x, edge_index) = Linker(task).double().eval(), inputs('undirected')
    explain = explainer(model, FastDnX(), task, node=node, edge=edge)
    pairs = torch.cat([PAIRS, PAIRS], dim=1)  # more of them than nodes

    def answers(node_mask, edge_mask):
        outputs = explain.get_masked_prediction(x, edge_index, node_mask, edge_mask, edge_label_index=pairs)
        outputs = outputs.view(12, -1)
        if task == 'multiclass raw':
            return outputs.softmax(dim=1)
        if task.startswith('regression'):
            return outputs
        chance = outputs.sigmoid() if 'raw' in task else outputs
        return torch.cat([1.0 - chance, chance], dim=1)

    explanations = [explain(x, edge_index, edge_label_index=pairs, index=index) for index in (11, 0, -3)]
    found = check(explain, explanations)
    assert found.index.tolist() == [11, 0, 9]
    for b, explanation in enumerate(explanations):
        row, masks = int(found.index[b]), (explanation.get('node_mask'), explanation.get('edge_mask'))
        before = answers(None, None)[row]
        kept = answers(*masks)[row]
        removed = answers(*(None if mask is None else 1.0 - mask for mask in masks))[row]
        torch.testing.assert_close(found.unfaithfulness[b], (before - kept).norm(), rtol=1e-6, atol=1e-9)
        if not task.startswith('regression'):
            assert found.fidelity_minus[b] == float(before.argmax() != kept.argmax())
            assert found.fidelity_plus[b] == float(before.argmax() != removed.argmax())
    torch.testing.assert_close(check(explain, explanations[1]).unfaithfulness, found.unfaithfulness[1:2])


class Ranked(Linker):
    r"""What it says of a pair depends on the others."""

    def forward(self, x, edge_index, edge_label_index):
        found = super().forward(x, edge_index, edge_label_index)
        return found - found.mean(dim=0)


class Deaf(Linker):
    r"""Takes no notice of the pairs that it is told of."""

    def forward(self, x, edge_index, edge_label_index):
        return super().forward(x, edge_index, PAIRS[:, : edge_label_index.view(2, -1).size(1)])


@pytest.mark.parametrize('kind', [FastDnX, DnX])
def test_models_that_must_be_asked_about_the_given_pairs_alone(kind):
    (x, edge_index), model = inputs(), Ranked().double().eval()
    explain = explainer(model, kind())
    text = r"'model' must answer about each pair of 'edge_label_index' whatever the others are.* \(got.*use ProbeDnX$"
    for _ in range(2):
        with pytest.raises(ValueError, match=text):
            explain(x, edge_index, edge_label_index=PAIRS, index=0)
    found = explainer(model, KINDS['ProbeDnX']())(x, edge_index, edge_label_index=PAIRS, index=0)
    assert found.node_score.abs().max() > 1e-3
    assert found.probe_r2 > 0.5


@kinds
def test_models_that_take_no_notice_of_pairs(kind):
    (x, edge_index), model = inputs(), Deaf().double().eval()
    text = r"'model' must answer about the pairs of 'edge_label_index' \(got the same answers about others\): read them"
    with pytest.raises(ValueError, match=text):
        explainer(model, kind())(x, edge_index, edge_label_index=PAIRS, index=0)


BAD = {  # pairs, and what the error says
    'transposed': (PAIRS.T, "'edge_label_index' must hold pairs of nodes, of shape [2, Q] (got [6, 2] of torch.int64)"),
    'three ends': (torch.zeros(3, 2, dtype=torch.long), '(got [3, 2] of torch.int64): transpose it'),
    'one number': (torch.tensor(3), '(got [] of torch.int64)'),
    'matrix of pairs': (PAIRS[:, :, None], '(got [2, 6, 1] of torch.int64)'),
    'floats': (PAIRS.double(), '(got [2, 6] of torch.float64)'),
    'booleans': (PAIRS > 1, '(got [2, 6] of torch.bool)'),
    'list': (PAIRS.tolist(), '(got list)'),
    'too high': (
        PAIRS + 1,
        "'edge_label_index' must hold node ids from 0 to 7, as 'x' has 8 nodes (got ids from 1 to 8)",
    ),
    'negative': (PAIRS - 1, '(got ids from -1 to 6): pass pairs of nodes in this graph'),
}


@kinds
@pytest.mark.parametrize(('pairs', 'text'), BAD.values(), ids=BAD)
def test_bad_pairs(kind, pairs, text):
    (x, edge_index), model = inputs(), Linker().double().eval()
    algorithm = explainer(model, kind()).algorithm
    for call in (
        lambda: algorithm.explain_links(model, x, edge_index, edge_label_index=pairs),
        lambda: algorithm.distill(model, x, edge_index, edge_label_index=pairs),
        lambda: algorithm(model, x, edge_index, edge_label_index=pairs, target=torch.zeros(6).long(), index=0),
    ):
        with pytest.raises((ValueError, IndexError)) as caught:
            call()
        assert text in str(caught.value)


@kinds
def test_a_name_of_pairs_that_the_model_does_not_know(kind):
    (x, edge_index), model = inputs(), Linker().double().eval()
    algorithm = explainer(model, kind(pair_argument='pairs')).algorithm
    with pytest.raises(
        ValueError, match=r"^'model' must return outputs .* one row a.* edge of 'edge_index' \(got \[6\]"
    ):
        algorithm.explain_links(model, x, edge_index, edge_label_index=PAIRS)
    with pytest.raises(TypeError, match=r"'pair_argument' must be the name of the model's argument .*\(got 3\)"):
        kind(pair_argument=3)


def test_what_is_known_of_held_out_pairs():
    (x, edge_index), model = ten_nodes(), Linker(decoder='mlp').double().eval()
    report = explainer(model, FastDnX()).algorithm.distill(model, x, edge_index, edge_label_index=PAIRS).report
    assert report.held_out_r2 <= 1.0
    assert report.masked_r2 <= 1.0
    every = torch.cartesian_prod(torch.arange(10), torch.arange(10)).T
    links = float((model(x, edge_index, every) > 0).double().mean())
    assert 0.5 <= report.majority <= 1.0
    assert abs(report.majority - max(links, 1 - links)) < 0.2  # half of them are edges
    assert report.agreement_by_class.keys() <= {0, 1}
    shares = [report.agreement_by_class.get(label, 0.0) for label in (0, 1)]
    assert min(shares) - 1e-9 <= report.agreement <= max(shares) + 1e-9
    assert 'largest class' in str(report)
    assert 'links: ' in str(report)


class Parity(Linker):
    r"""Links whose chance no bilinear form of smooth signals tells."""

    def forward(self, x, edge_index, edge_label_index):
        return 4 * (40 * x.cumsum(dim=0)[edge_label_index].sum(dim=(0, -1))).sin()


def test_links_that_the_surrogate_does_not_predict_are_doubtful():
    x, edge_index = ten_nodes()
    for model, is_weak in ((Parity().double().eval(), True), (Planted().double().eval(), False)):
        task = 'binary raw [Q]' if is_weak else 'regression [Q]'
        explain = explainer(model, FastDnX(num_hops=2), task)
        found = explain.algorithm.explain_links(model, x, edge_index, edge_label_index=PAIRS, top_k=10)
        assert (found.surrogate.report.weakness is not None) == is_weak
        if is_weak:
            assert found.surrogate.report.weakness < 0.3
            assert int(found.certificate.verdict.min()) >= 1
            told = found.certificate.sentence(int(found.certificate.verdict.argmin()))
            assert 'held-out pairs (R²' in told or 'disagrees' in told
            with pytest.warns(SurrogateWarning, match=r'Explanations of links are doubtful: .*\. Use ProbeDnX\.$'):
                explain(x, edge_index, edge_label_index=PAIRS, index=0)


@kinds
@pytest.mark.parametrize('top_k', [None, 3])
def test_explanations_of_pairs_are_read_and_kept(kind, top_k, tmp_path):
    (x, edge_index), model = inputs(), Renamed('multiclass raw').double().eval()
    algorithm = explainer(model, kind(pair_argument='pairs'), 'multiclass raw').algorithm
    found = algorithm.explain_links(model, x, edge_index, pairs=PAIRS, index=[5, 0, 3], top_k=top_k)
    assert found.targets.equal(model(x, edge_index, PAIRS).argmax(dim=1)[[5, 0, 3]])
    assert '\n  1 → 4: ' in str(found)
    assert found.for_pair(0, 1).node_score.equal(found[1].node_score)
    with pytest.raises(KeyError, match=r"must be an explained pair \(got 1, 3\): see 'pairs'"):
        found.for_pair(1, 3)
    shown = found._repr_html_()
    assert '3 explained pairs' in shown
    assert '1 → 4' in shown
    table = found.to_pandas()
    assert table.columns[:5].tolist() == ['pair', 'source', 'target', 'neighbour', 'score']
    assert table[table.pair == 5].source.unique().tolist() == [1]
    found.save(tmp_path / 'file')
    loaded = LinkExplanations.load(tmp_path / 'file', x, edge_index, pairs=PAIRS)
    assert isinstance(loaded, LinkExplanations)
    assert loaded.pairs.equal(found.pairs)
    for one, other in zip(loaded, found, strict=True):
        torch.testing.assert_close(one.node_score, other.node_score)
    scores_only = LinkExplanations.load(tmp_path / 'file')
    assert scores_only.pairs is None
    assert 'pair 5: ' in str(scores_only)


@kinds
@pytest.mark.parametrize('top_k', [None, 3])
def test_chunks_and_interruptions_change_nothing(kind, top_k, tmp_path):
    (x, edge_index), model = inputs(), Linker().double().eval()
    every = torch.cartesian_prod(torch.arange(8), torch.arange(8)).T
    algorithm = explainer(model, kind()).algorithm
    expected = algorithm.explain_links(model, x, edge_index, edge_label_index=every, top_k=top_k)

    seen = []

    class Interrupted(Run):
        def bar(self, label, *args, **options):
            bar = super().bar(label, *args, **options)

            def update(size):
                seen.append(size)
                if len(seen) == 3:
                    raise KeyboardInterrupt

            bar.update = update if label == 'Explaining' else bar.update
            return bar

    in_chunks(algorithm, 40, Interrupted)
    given = {'edge_label_index': every, 'top_k': top_k, 'checkpoint': tmp_path}
    with pytest.raises(KeyboardInterrupt):
        algorithm.explain_links(model, x, edge_index, **given)
    found = algorithm.explain_links(model, x, edge_index, **given)
    assert sum(seen) == 64
    for one, other in zip(found.top_k(3), expected.top_k(3), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_the_model_is_asked_once_for_all_pairs():
    (x, edge_index), model = inputs(), Linker().double().eval()
    algorithm = explainer(model, ProbeDnX(num_probes=16)).algorithm
    with evaluations(model, 1 + 1 + 9 + 1 + 1 + 16):  # pairs, whether any will do, distillation, pairs, blank, probes
        algorithm.explain_links(model, x, edge_index, edge_label_index=PAIRS)
    with evaluations(model, 0):
        list(algorithm.explain_links(model, x, edge_index, edge_label_index=PAIRS, index=[1, 4], top_k=2))


def test_a_page_names_both_ends_however_the_model_is_told_of_them(tmp_path):
    x, edge_index = inputs()
    for model, pairs in ((Edges(), {}), (Renamed(), {'pairs': edge_index})):
        explain = explainer(model.double().eval(), FastDnX(pair_argument='pairs'), edge='object')
        explanation = explain(x, edge_index, index=2, **pairs)
        first, second = edge_index[:, 2].tolist()
        assert f'for the link {first} – {second}?' in question_of(explanation, names_of(explanation))[0]
        assert 0 in scene_of(explanation).hops
        last = explain(x, edge_index, index=-1, **pairs)
        first, second = edge_index[:, -1].tolist()
        assert f'for the link {first} – {second}?' in question_of(last, names_of(last))[0]
        to_html(last, tmp_path / 'page.html', certificate=certify(explain, last))
