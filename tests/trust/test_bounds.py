import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyg_dnx.trust.theory import (
    chi_square_quantile,
    local_lipschitz,
    paper_bound,
    paper_probable_bound,
    tight_bound,
    tight_probable_bound,
)

NUM_DRAWS = 4000
WEIGHTS = ('random', 'zero', 'rank one', 'zero-sum', 'equal columns', 'one large')
TABLE = [  # probability, degrees, and the quantile that textbooks print
    (0.005, 10, 2.156),
    (0.05, 1, 0.00393),
    (0.05, 10, 3.940),
    (0.50, 1, 0.455),
    (0.50, 5, 4.351),
    (0.90, 4, 7.779),
    (0.95, 1, 3.841),
    (0.95, 2, 5.991),
    (0.95, 10, 18.307),
    (0.95, 30, 43.773),
    (0.95, 100, 124.342),
    (0.975, 20, 34.170),
    (0.99, 3, 11.345),
    (0.995, 50, 79.490),
    (0.999, 1, 10.828),
]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def matrix_of(kind, num_features, num_classes, generator):
    r"""A weight [F, C] of rank 1, of rank 0, with rows that sum to zero, and the like."""
    weight = torch.randn(num_features, num_classes, generator=generator, dtype=torch.float64)
    if kind == 'zero':
        return torch.zeros_like(weight)
    if kind == 'rank one':
        return weight[:, :1] * weight[:1]
    if kind == 'zero-sum':
        return weight - weight.mean(dim=1, keepdim=True)
    if kind == 'equal columns':
        return weight[:, :1].expand(-1, num_classes).contiguous()
    if kind == 'one large':
        weight[0] *= 1e3
    return weight


def problem(sizes, kind, seed, scales=(1.0, 1.0)):
    r"""Rows [B, n], what a mask takes away from them [B, n], features [K + 1, n, F], a weight [F, C], a bias [C]."""
    num_rows, num_nodes, num_features, num_classes, num_perturbations = sizes
    generator = torch.Generator().manual_seed(seed)
    row = torch.rand(num_rows, num_nodes, generator=generator, dtype=torch.float64)
    mask = torch.rand(num_rows, num_nodes, generator=generator, dtype=torch.float64)
    mask[torch.rand(mask.shape, generator=generator) < 0.3] = 1.0
    features = torch.randn(num_perturbations + 1, num_nodes, num_features, generator=generator, dtype=torch.float64)
    features[1:] = features[0] + 0.3 * features[1:]
    weight = matrix_of(kind, num_features, num_classes, generator)
    bias = torch.randn(num_classes, generator=generator, dtype=torch.float64)
    return row, row * (1.0 - mask), features * scales[0], weight * scales[1], bias


def unfaithfulness(row, change, features, weight, bias, link=lambda logits: logits.softmax(dim=-1)):
    r"""The mean distance between the surrogate's answers before and after the change, by its definition, [B]."""
    distances = []
    for x in features:
        before, after = row @ x @ weight + bias, (row - change) @ x @ weight + bias
        distances.append((link(before) - link(after)).norm(dim=1))
    return torch.stack(distances).mean(dim=0)


def rounding(row, features, weight):
    r"""How far float64 may be off in what :func:`unfaithfulness` returns."""
    return 1e-14 * (1.0 + float((row.abs() @ features.abs() @ weight.abs()).max()))


def cdf(value, degrees):
    return float(torch.special.gammainc(tensor(degrees / 2.0), tensor(value / 2.0)))


@pytest.mark.parametrize(('probability', 'degrees', 'expected'), TABLE)
def test_quantiles_are_the_textbook_s(probability, degrees, expected):
    assert chi_square_quantile(probability, degrees) == pytest.approx(expected, rel=0.0, abs=5.1e-4)


@given(probability=st.floats(1e-9, 1.0 - 1e-12), degrees=st.integers(1, 10_000))
def test_a_quantile_is_the_first_number_to_reach_the_probability(probability, degrees):
    quantile = chi_square_quantile(probability, degrees)
    assert cdf(quantile, degrees) >= probability
    assert cdf(math.nextafter(quantile, 0.0), degrees) < probability


@pytest.mark.parametrize('probability', [1e-12, 1e-3, 0.5, 0.95, 0.999, 1.0 - 1e-6, 1.0 - 1e-9])
def test_quantiles_with_a_closed_form(probability):
    # One degree is a squared normal variable, two an exponential one.
    root = float(torch.special.erfinv(tensor(probability)))
    assert chi_square_quantile(probability, 1) == pytest.approx(2.0 * root**2, rel=1e-6, abs=0.0)
    assert chi_square_quantile(probability, 2) == pytest.approx(-2.0 * math.log1p(-probability), rel=1e-6, abs=0.0)


@pytest.mark.parametrize('probability', [0.01, 0.5, 0.95, 0.999])
@pytest.mark.parametrize('degrees', [10**6, 10**9, 10**12])
def test_quantiles_of_huge_degrees(probability, degrees):
    normal, share = float(torch.special.ndtri(tensor(probability))), 2.0 / (9.0 * degrees)
    expected = degrees * (1.0 - share + normal * math.sqrt(share)) ** 3  # Wilson and Hilferty (1931)
    deviation = math.sqrt(2.0 * degrees)
    assert chi_square_quantile(probability, degrees) == pytest.approx(expected, rel=0.0, abs=1e-4 * deviation)


@given(low=st.floats(0.0, 1.0), high=st.floats(0.0, 1.0), few=st.integers(0, 1000), many=st.integers(0, 1000))
def test_quantiles_grow_with_the_probability_and_the_degrees(low, high, few, many):
    low, high, few, many = min(low, high), max(low, high), min(few, many), max(few, many)
    assert chi_square_quantile(low, few) <= chi_square_quantile(high, few)
    assert chi_square_quantile(low, few) <= chi_square_quantile(low, many)
    if high > low + 1e-3 and few > 0 and high < 1.0:
        assert chi_square_quantile(low, few) < chi_square_quantile(high, few)
        assert chi_square_quantile(high, few) < chi_square_quantile(high, few + 1)


@pytest.mark.parametrize(
    ('probability', 'degrees', 'expected'),
    [(0.95, 0, 0.0), (1.0, 0, 0.0), (0.0, 5, 0.0), (-1.0, 5, 0.0), (1.0, 5, math.inf), (2.0, 5, math.inf)],
)
def test_quantiles_at_the_edges(probability, degrees, expected):
    assert chi_square_quantile(probability, degrees) == expected


def test_default_device_is_not_used():
    torch.set_default_device('meta')
    try:
        assert chi_square_quantile(0.95, 1) == pytest.approx(3.841, rel=1e-3)
    finally:
        torch.set_default_device(None)


@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (3, 6, 4, 4)), st.integers(0, 3)),
    kind=st.sampled_from(WEIGHTS),
    seed=st.integers(0, 2**16),
    scales=st.tuples(*[st.sampled_from([1e-8, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e6])] * 2),
)
def test_bounds_hold(sizes, kind, seed, scales):
    row, change, features, weight, bias = problem(sizes, kind, seed, scales)
    found = unfaithfulness(row, change, features, weight, bias)
    tight, paper = tight_bound(change, features, weight), paper_bound(change, features, weight)
    assert found.shape == tight.shape == paper.shape == (sizes[0],)
    assert bool((found <= tight + rounding(row, features, weight)).all())
    assert bool((tight <= 0.5 * paper * (1.0 + 1e-12)).all())  # by a factor of 2, as the softmax is ½-Lipschitz

    linear = unfaithfulness(row, change, features, weight, bias, link=lambda logits: logits)
    error = rounding(row, features, weight) + float(bias.abs().max()) * 1e-15
    torch.testing.assert_close(tight_bound(change, features, weight, lipschitz=1.0), linear, rtol=1e-9, atol=error)
    assert bool((linear <= paper * (1.0 + 1e-12) + error).all())


def test_ten_thousand_cases():
    generator = torch.Generator().manual_seed(0)
    limits, cases, closest = torch.tensor([6, 4, 4, 4]), 0, 0.0
    for seed in range(1250):
        num_nodes, num_features, num_classes, num_draws = (
            (torch.rand(4, generator=generator) * limits).long() + 1
        ).tolist()
        sizes = (8, num_nodes, num_features, num_classes, num_draws - 1)
        scales = (10.0 ** (8.0 * torch.rand(2, generator=generator) - 5.0)).tolist()
        row, change, features, weight, bias = problem(sizes, WEIGHTS[seed % len(WEIGHTS)], seed, scales)
        found, error = unfaithfulness(row, change, features, weight, bias), rounding(row, features, weight)
        tight, paper = tight_bound(change, features, weight), paper_bound(change, features, weight)
        assert bool((found <= tight + error).all()), (sizes, seed)
        assert bool((tight <= 0.5 * paper * (1.0 + 1e-12)).all()), (sizes, seed)
        cases += found.numel()
        closest = max(closest, float((found / tight.clamp(min=1e-6)).max()))
    assert cases == 10_000
    assert closest > 0.9  # a bound that is hardly ever near says little by holding


def test_the_tight_bound_is_attained_between_two_equal_classes():
    weight, row, change = tensor([[1.0, -1.0, 0.0]]), tensor([[1e-4, 1e-4]]), tensor([[2e-4, 0.0]])
    features, bias = tensor([[[1.0], [0.0]]]), tensor([0.0, 0.0, -50.0])  # from (ε, -ε) to (-ε, ε)
    found = unfaithfulness(row, change, features, weight, bias)
    assert float(found) > 1e-4
    torch.testing.assert_close(tight_bound(change, features, weight), found, rtol=1e-6, atol=0.0)


def test_the_paper_s_bound_is_attained_along_the_largest_singular_vectors():
    # Norms: 5 of the change, 2 and 3 of the features, 7 of the weight.
    change, weight = tensor([[3.0, 4.0], [0.0, 0.0]]), tensor([[7.0, 0.0], [0.0, 1.0]])
    features = torch.stack([tensor([[2.0, 0.0], [0.0, 1.0]]), tensor([[0.0, 1.0], [-3.0, 0.0]])])
    assert paper_bound(change, features, weight).tolist() == pytest.approx([5.0 * 3.0 * 7.0, 0.0])
    assert paper_bound(change, features[:1], weight).tolist() == pytest.approx([5.0 * 2.0 * 7.0, 0.0])
    # The change of the logits: (42, 4), and (-84, 3).
    expected = 0.5 * 0.5 * (math.hypot(42.0, 4.0) + math.hypot(84.0, 3.0))
    assert tight_bound(change, features, weight).tolist() == pytest.approx([expected, 0.0])
    along = paper_bound(tensor([[0.0, 1.0]]), features[1:], weight)
    torch.testing.assert_close(along, tight_bound(tensor([[0.0, 1.0]]), features[1:], weight, lipschitz=1.0))


def test_probable_bounds_by_hand():
    change, weight = tensor([[3.0, 4.0], [0.0, 0.0]]), tensor([[7.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    features = tensor([[2.0, 0.0], [0.0, 1.0]])
    # Two perturbations of 2 × 2 features have 8 degrees of freedom, of which a weight of rank 1 lets 2 pass.
    paper = paper_probable_bound(change, features, weight, 0.1, 2, 0.95)
    assert paper.tolist() == pytest.approx([7.0 * 5.0 * (2.0 + 0.1 * (15.507 + 2.0) / 3.0), 0.0], rel=1e-4)
    tight = tight_probable_bound(change, features, weight, 0.1, 2, 0.95)
    expected = 3.0 * 2.0 * 7.0 + 7.0 * 5.0 * 0.1 * math.sqrt(2.0 * 5.991) / 3.0
    assert tight.tolist() == pytest.approx([0.5 * expected, 0.0], rel=1e-4)
    linear = tight_probable_bound(change, features, weight, 0.1, 2, 0.95, lipschitz=1.0)
    assert linear.tolist() == pytest.approx([expected, 0.0], rel=1e-4)


@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (3, 6, 4, 4, 5))),
    kind=st.sampled_from(WEIGHTS),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([1e-8, 1.0, 1e6]),
    noise=st.sampled_from([0.0, 1e-3, 0.1, 10.0]),
    probability=st.floats(0.01, 0.999),
)
def test_probable_bounds_in_order(sizes, kind, seed, scale, noise, probability):
    _, change, features, weight, _ = problem(sizes, kind, seed, (scale, 1.0 / scale))
    x = features[0]
    bounds = {p: tight_probable_bound(change, x, weight, noise, sizes[-1], p) for p in (probability, 0.9999)}
    paper = {p: paper_probable_bound(change, x, weight, noise, sizes[-1], p) for p in bounds}
    above = 1.0 + 1e-12
    assert all(bool((bounds[p] <= 0.5 * paper[p] * above).all()) for p in bounds)
    assert bool((tight_bound(change, x[None], weight) <= bounds[probability] * above).all())
    assert bool((paper_bound(change, x[None], weight) <= paper[probability] * above).all())
    for found in (bounds, paper):
        assert bool((found[probability] <= found[0.9999] * above).all())
    if noise > 0.0 and kind in ('random', 'zero-sum') and sizes[3] > 1:
        changed = change.norm(dim=1) > 0.0
        for found in (bounds, paper):
            assert bool((found[probability] < found[0.9999])[changed].all())


@pytest.mark.parametrize('bound', [paper_probable_bound, tight_probable_bound])
def test_without_noise_or_perturbations_probable_bounds_are_certain(bound):
    _, change, features, weight, _ = problem((3, 5, 4, 3, 0), 'random', seed=0)
    certain = paper_bound if bound is paper_probable_bound else tight_bound
    expected = certain(change, features, weight)
    torch.testing.assert_close(bound(change, features[0], weight, 0.0, 7, 0.95), expected)
    torch.testing.assert_close(bound(change, features[0], weight, 0.3, 0, 0.95), expected)


def draws_below(bounds, row, change, x, weight, bias, noise, num_perturbations, link):
    r"""The share of Gaussian draws of all perturbations in which the unfaithfulness is within each bound."""
    generator = torch.Generator().manual_seed(0)
    size = (NUM_DRAWS, num_perturbations, *x.shape)
    perturbed = x + noise * torch.randn(size, generator=generator, dtype=torch.float64)
    features = torch.cat([x.expand(NUM_DRAWS, 1, *x.shape), perturbed], dim=1)
    before, after = row @ features @ weight + bias, (row - change) @ features @ weight + bias
    found = (link(before) - link(after)).norm(dim=-1).mean(dim=1)  # [NUM_DRAWS, B]
    return [(found <= value).double().mean(dim=0) for value in bounds]


def margin(probability):
    r"""Four standard deviations of the share of draws that are below a quantile."""
    return 4.0 * math.sqrt(probability * (1.0 - probability) / NUM_DRAWS)


@pytest.mark.parametrize('probability', [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize('num_perturbations', [1, 3])
@pytest.mark.parametrize('kind', ['random', 'rank one', 'zero-sum'])
@pytest.mark.parametrize('regression', [False, True])
def test_probable_bounds_hold_as_often_as_they_say(kind, num_perturbations, probability, regression):
    row, change, features, weight, bias = problem((2, 3, 3, 3, 0), kind, seed=1)
    x, noise = 0.0 * features[0], 0.2  # with nothing but noise, it matters most
    options = {'lipschitz': 1.0} if regression else {}
    link = (lambda logits: logits) if regression else (lambda logits: logits.softmax(dim=-1))
    chances = (noise, num_perturbations, probability)
    bounds = (
        tight_probable_bound(change, x, weight, *chances, **options),
        paper_probable_bound(change, x, weight, *chances),
        tight_bound(change, x[None], weight, **options),
    )
    inputs = (row, change, x, weight, bias, noise, num_perturbations, link)
    tight, paper, without = draws_below(bounds, *inputs)
    assert bool((tight >= probability - margin(probability)).all())
    assert bool((paper >= probability - margin(probability)).all())
    assert bool((without < 0.01).all())


@pytest.mark.parametrize('probability', [0.3, 0.5, 0.95, 0.99])
@pytest.mark.parametrize('rank', [1, 2, 3])
def test_the_tight_probable_bound_is_exact_where_nothing_is_lost(rank, probability):
    # One perturbation, and a weight that stretches all that it keeps alike: then norms are chi-square variables.
    basis = torch.linalg.qr(tensor([[1.0, 2.0, 0.0], [0.5, -1.0, 1.0], [2.0, 0.0, 1.0]])).Q
    weight, change, x = 3.0 * basis[:, :rank], tensor([[0.5, -0.2], [1e-3, 2.0]]), torch.zeros(2, 3).double()
    bound = tight_probable_bound(change, x, weight, 0.4, 1, probability, lipschitz=1.0)
    inputs = (change, change, x, weight, torch.zeros(rank).double(), 0.4, 1, lambda logits: logits)
    (share,) = draws_below((bound,), *inputs)
    assert bool(((share - probability).abs() <= margin(probability)).all())


@pytest.mark.parametrize('probability', [0.5, 0.95])
def test_it_is_exact_for_two_classes_and_little_noise(probability):
    change, x, weight = tensor([[0.5, -0.2, 0.1]]), torch.zeros(3, 2).double(), tensor([[1.0, -1.0], [0.5, -0.5]])
    bound = tight_probable_bound(change, x, weight, 1e-3, 1, probability)
    bias = torch.zeros(2).double()
    inputs = (change, change, x, weight, bias, 1e-3, 1, lambda logits: logits.softmax(dim=-1))
    (share,) = draws_below((bound,), *inputs)
    assert abs(float(share) - probability) <= margin(probability)


def test_local_lipschitz_bounds_the_softmax():
    generator = torch.Generator().manual_seed(5)
    tighter = 0
    for num_classes in (1, 2, 3, 7):
        size = (2500, num_classes)
        scale, step = (
            10.0 ** (3.0 * torch.rand(2500, 1, generator=generator, dtype=torch.float64) - 2.0) for _ in 'ab'
        )
        logits, change = (torch.randn(size, generator=generator, dtype=torch.float64) for _ in 'ab')
        before, after = (scale * logits).softmax(dim=1), (scale * logits + step * change).softmax(dim=1)
        constant = local_lipschitz(before, after)
        assert bool((constant <= 0.5).all())
        excess = (before - after).norm(dim=1) - constant * (step * change).norm(dim=1)
        assert float(excess.max()) <= 1e-15
        tighter += int((constant < 0.1).sum())
    assert tighter > 1000


@pytest.mark.parametrize(
    ('before', 'after', 'constant'),
    [
        ([0.9, 0.1], [0.8, 0.2], 0.32),  # 2 * 0.2 * 0.8, by the less confident end
        ([0.8, 0.2], [0.9, 0.1], 0.32),
        ([0.6, 0.1, 0.3], [0.7, 0.3, 0.0], 0.48),  # all other classes together
        ([0.9, 0.1], [0.1, 0.9], 0.5),  # it passes through the middle
        ([0.4, 0.3, 0.3], [0.4, 0.3, 0.3], 0.5),
        ([1.0, 0.0], [1.0, 0.0], 0.0),
    ],
)
def test_local_lipschitz_by_hand(before, after, constant):
    assert float(local_lipschitz(torch.tensor(before), torch.tensor(after))) == pytest.approx(constant, abs=1e-6)


def test_each_change_of_the_logits_has_its_own_lipschitz_constant():
    change, weight = tensor([[1.0], [2.0]]), tensor([[3.0, -4.0]])
    features, constants = tensor([[[1.0]], [[2.0]]]), tensor([[0.1, 0.2], [0.3, 0.4]])  # [K + 1, B]
    found = tight_bound(change, features, weight, constants)  # of changes by 5, 10 and 10, 20
    assert found.tolist() == pytest.approx([0.5 * (0.1 * 5.0 + 0.3 * 10.0), 0.5 * (0.2 * 10.0 + 0.4 * 20.0)])


@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (3, 6, 4, 4)), st.integers(0, 3)),
    kind=st.sampled_from(WEIGHTS),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([0.1, 1.0, 10.0, 100.0]),
)
def test_local_lipschitz_constants_leave_the_tight_bound_a_bound(sizes, kind, seed, scale):
    row, change, features, weight, bias = problem(sizes, kind, seed, (scale, 1.0))
    before, after = ((kept @ features @ weight + bias).softmax(dim=-1) for kept in (row, row - change))
    found = unfaithfulness(row, change, features, weight, bias)
    local = tight_bound(change, features, weight, local_lipschitz(before, after))
    assert bool((found <= local + rounding(row, features, weight)).all())
    assert bool((local <= tight_bound(change, features, weight) * (1.0 + 1e-12)).all())
