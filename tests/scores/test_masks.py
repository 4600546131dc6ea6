import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyg_dnx.scores import masks
from pyg_dnx.scores.masks import SCALINGS, to_mask

SCORES = torch.tensor([0.5, -2.0, 3.0, 0.5, 0.0, 3.0])
DTYPES = st.sampled_from([torch.float32, torch.float64])


@pytest.mark.parametrize(
    ('scaling', 'expected'),
    [
        ('rank', [3.5 / 6, 1 / 6, 5.5 / 6, 3.5 / 6, 2 / 6, 5.5 / 6]),
        ('size', [2.5 / 6, 4 / 6, 5.5 / 6, 2.5 / 6, 1 / 6, 5.5 / 6]),
        ('positive', [0.5 / 3, 0.0, 1.0, 0.5 / 3, 0.0, 1.0]),
        ('minmax', [0.5, 0.0, 1.0, 0.5, 0.4, 1.0]),
    ],
)
def test_by_hand(scaling, expected):
    torch.testing.assert_close(to_mask(SCORES, None, scaling, torch.float32), torch.tensor(expected))


@pytest.mark.parametrize('scaling', SCALINGS)
@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=12),
    ids=st.sets(st.integers(0, 11), min_size=1),
    dtype=DTYPES,
)
def test_masks_keep_the_order_of_scores(scaling, values, ids, dtype):
    scores = torch.tensor(values, dtype=dtype)
    inside = torch.tensor(sorted({i % len(values) for i in ids}))
    mask = to_mask(scores, inside, scaling, dtype)
    assert mask.dtype == dtype
    assert bool(((mask >= 0.0) & (mask <= 1.0)).all())
    outside = torch.ones(len(values), dtype=torch.bool)
    outside[inside] = False
    assert not bool(mask[outside].any())
    inner, inner_mask = scores[inside], mask[inside]
    inner, scaling = (inner.abs(), 'rank') if scaling == 'size' else (inner, scaling)
    for first, second in torch.combinations(torch.arange(inside.numel())).tolist():
        if inner[first] == inner[second]:
            assert inner_mask[first] == inner_mask[second]
        elif scaling == 'rank':
            assert (inner_mask[first] < inner_mask[second]) == (inner[first] < inner[second])
        else:  # these may round differences away, but not turn them round
            assert (inner_mask[second] - inner_mask[first]) * (inner[second] - inner[first]).sign() >= 0.0


@pytest.mark.parametrize('scaling', SCALINGS)
@pytest.mark.parametrize('shape', [(6,), (6, 4)])
def test_only_rows_inside_count(scaling, shape):
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([0, 2, 5])
    mask = to_mask(scores, ids, scaling, torch.float32)
    assert mask.shape == scores.shape
    assert mask[ids].equal(to_mask(scores[ids], None, scaling, torch.float32))
    assert not bool(mask[[1, 3, 4]].any())


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_ranks_are_the_same_from_all_pairs_and_from_sorting(dtype, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 7, 100, masks.MAX_PAIRS):
        scores = torch.randint(-count, count, (count,), generator=generator).to(dtype) / 3  # some tied, some not
        from_pairs = to_mask(scores, None, 'rank', dtype)
        with monkeypatch.context() as patch:
            patch.setattr(masks, 'MAX_PAIRS', 0)
            assert from_pairs.equal(to_mask(scores, None, 'rank', dtype))
        expected = [((scores < score).sum() + (scores <= score).sum() + 1) / (2 * count) for score in scores]
        torch.testing.assert_close(from_pairs, torch.stack(expected).to(dtype))


def test_rows_are_ranked_together():
    scores = torch.tensor([[1.0, 4.0], [3.0, 2.0]])
    assert to_mask(scores, None, 'rank', torch.float32).tolist() == [[0.25, 1.0], [0.75, 0.5]]


@pytest.mark.parametrize(
    ('scaling', 'value', 'expected'),
    [
        ('rank', 2.0, (4 + 1) / 2 / 4),
        ('positive', 2.0, 1.0),
        ('positive', 0.0, 0.0),
        ('positive', -2.0, 0.0),
        ('minmax', 2.0, 1.0),
        ('minmax', 0.0, 1.0),
    ],
)
def test_equal_scores(scaling, value, expected):
    mask = to_mask(torch.full((4,), value), None, scaling, torch.float32)
    assert mask.tolist() == [pytest.approx(expected)] * 4


@pytest.mark.parametrize('scaling', SCALINGS)
def test_nothing_inside(scaling):
    inside = torch.tensor([], dtype=torch.long)
    assert to_mask(torch.tensor([1.0, 2.0, 3.0]), inside, scaling, torch.float32).tolist() == [0.0] * 3
    assert to_mask(torch.zeros(0), None, scaling, torch.float32).shape == (0,)


@pytest.mark.parametrize('scaling', SCALINGS)
def test_single_precision_ranks_in_the_dtype_that_is_asked_for(scaling):
    assert to_mask(SCORES.double(), None, scaling, torch.float32).dtype == torch.float32
    assert to_mask(SCORES, torch.tensor([1]), scaling, torch.float64).dtype == torch.float64
