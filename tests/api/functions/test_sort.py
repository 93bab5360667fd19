"""Sorting, order statistics, distinct values, histograms: ties, NaN, edges and errors."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import IndexRangeError, OperationError

NAN = float("nan")
INF = float("inf")

floats_with_edges = st.lists(st.sampled_from([0.0, 1.0, 1.0, -2.5, 3.0, NAN, INF, -INF]), min_size=1, max_size=12)


@given(floats_with_edges, st.booleans())
@settings(max_examples=60, deadline=None)
def test_sort_keeps_equals_in_order_and_nan_largest(values, descending):
    out = wf.tensor(values).sort(descending=descending)

    def rank(i):
        return (1, 0.0) if math.isnan(values[i]) else (0, values[i])

    places = sorted(range(len(values)), key=rank)
    if descending:
        places = sorted(range(len(values)), key=lambda i: tuple(-r for r in rank(i)))
    assert out.indices.tolist() == places
    np.testing.assert_array_equal(out.values.numpy(), np.float32(values)[places])


@given(st.integers(0, 99), st.integers(1, 300), st.booleans())
@settings(max_examples=40, deadline=None)
def test_topk_is_the_head_of_the_sort(seed, size, largest):
    rng = np.random.default_rng(seed)
    x = wf.from_numpy(rng.permutation(2 * size).reshape(2, size).astype(np.float64))
    k = int(rng.integers(0, size + 1))
    out, full = x.topk(k, largest=largest), x.sort(descending=largest)
    assert out.values.tolist() == full.values[:, :k].tolist()
    assert out.indices.tolist() == full.indices[:, :k].tolist()


@given(floats_with_edges)
@settings(max_examples=60, deadline=None)
def test_median_is_the_lower_middle(values):
    numbers = sorted(v for v in values if not math.isnan(v))
    got, ignoring = wf.tensor(values).median().item(), wf.tensor(values).nanmedian().item()
    if len(numbers) < len(values):
        assert math.isnan(got)
    else:
        assert got == numbers[(len(numbers) - 1) // 2]
    if numbers:
        assert ignoring == numbers[(len(numbers) - 1) // 2]
    else:
        assert math.isnan(ignoring)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=15))
@settings(max_examples=60, deadline=None)
def test_mode_is_the_smallest_of_the_commonest(values):
    out = wf.tensor(values).mode()
    most = max(values.count(v) for v in values)
    assert out.values.item() == min(v for v in values if values.count(v) == most)
    assert values[out.indices.item()] == out.values.item()


def test_kthvalue_counts_from_one():
    out = wf.tensor([[3.0, 1.0, 2.0], [9.0, 8.0, 7.0]]).kthvalue(2, keepdim=True)
    assert out.values.tolist() == [[2], [8]] and out.indices.tolist() == [[2], [1]]


@pytest.mark.parametrize("size", [1, 2, 5, 16, 31, 300])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64])
def test_of_equals_the_one_at_the_rank_of_a_stable_sort_is_named(size, dtype):
    rows = np.random.default_rng(size).integers(0, 3, (20, size)).astype(dtype)
    order = np.argsort(rows, axis=1, kind="stable")
    for t, dim in ((wf.from_numpy(rows), 1), (wf.from_numpy(rows.T.copy()), 0)):
        assert t.median(dim).indices.tolist() == order[:, (size - 1) // 2].tolist()
        assert t.nanmedian(dim).indices.tolist() == order[:, (size - 1) // 2].tolist()
        assert t.kthvalue(size // 2 + 1, dim).indices.tolist() == order[:, size // 2].tolist()


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_the_place_of_a_rank_among_nans(k):
    row = [np.nan, 1.0, np.nan, 1.0, 0.0]
    value, index = wf.tensor(row).kthvalue(k, 0)
    assert index.item() == [4, 1, 3, 0, 2][k - 1]
    np.testing.assert_equal(value.item(), row[index.item()])


def test_equals_share_the_gradient_of_a_median_of_all():
    def grad(function, values):
        x = wf.tensor(values, dtype=wf.float64, requires_grad=True)
        function(x).backward()
        return x.grad.tolist()

    for function in (wf.median, wf.nanmedian, wf.compile(wf.median, check=False)):
        assert grad(function, [[2.0, 1.0], [2.0, 2.0]]) == [[1 / 3, 0], [1 / 3, 1 / 3]]
        assert grad(function, [1.0, 3.0, 2.0, 5.0]) == [0, 0, 1, 0]
    nan = float("nan")
    assert grad(wf.median, [nan, 1.0, nan, 1.0]) == [0.5, 0, 0.5, 0]
    assert grad(wf.nanmedian, [nan, 1.0, nan, 1.0]) == [0, 0.5, 0, 0.5]
    assert grad(wf.nanmedian, [nan, nan]) == [0.5, 0.5]
    assert grad(wf.median, 4.0) == 1
    many = wf.vmap(wf.median)(wf.tensor([[1.0, 2.0, 2.0], [3.0, 0.0, 1.0]]))
    assert many.tolist() == [2, 1]


def test_gradients_go_to_where_the_values_were():
    x = wf.tensor([3.0, 1.0, 2.0], requires_grad=True)
    (x.sort().values * wf.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert x.grad.tolist() == [100, 1, 10]
    x.grad = None
    x.topk(1).values.backward()
    assert x.grad.tolist() == [1, 0, 0]
    assert not x.sort().indices.requires_grad


@given(st.lists(st.integers(0, 5), max_size=20))
@settings(max_examples=50, deadline=None)
def test_unique_can_be_undone(values):
    x = wf.tensor(values, dtype=wf.int64)
    distinct, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert distinct.tolist() == sorted(set(values))
    assert distinct[inverse].tolist() == values if values else inverse.shape == (0,)
    assert counts.tolist() == [values.count(v) for v in sorted(set(values))]
    runs, places, lengths = x.unique_consecutive(return_inverse=True, return_counts=True)
    assert [r for r, n in zip(runs.tolist(), lengths.tolist(), strict=True) for _ in range(n)] == values
    assert places.shape == (len(values),)


def test_unique_rows():
    x = wf.tensor([[1, 2], [0, 1], [1, 2]])
    assert x.unique(dim=0).tolist() == [[0, 1], [1, 2]]
    assert x.unique_consecutive(dim=0).tolist() == [[1, 2], [0, 1], [1, 2]]


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantile_agrees_with_numpy(interpolation):
    x = np.random.default_rng(0).normal(size=(4, 7))
    q = [0.0, 0.25, 0.6, 1.0]
    got = wf.from_numpy(x).quantile(wf.tensor(q, dtype=wf.float64), dim=1, interpolation=interpolation)
    np.testing.assert_allclose(got.numpy(), np.quantile(x, q, axis=1, method=interpolation), rtol=1e-12)


def test_quantile_of_nan():
    x = wf.tensor([1.0, NAN, 3.0])
    assert math.isnan(x.quantile(0.5).item()) and x.nanquantile(0.5).item() == 2


def test_histograms():
    x = wf.tensor([1.0, 2.0, 1.0, 4.0])
    assert x.histc(bins=3, min=1, max=4).tolist() == [2, 1, 1]
    out = x.histogram(wf.tensor([0.0, 1.5, 4.0]), density=True)
    np.testing.assert_allclose(out.hist.numpy(), [0.5 / 1.5, 0.5 / 2.5], rtol=1e-6)
    assert wf.bincount(wf.tensor([0, 2, 2]), minlength=4).tolist() == [1, 0, 2, 0]
    assert wf.bincount(wf.tensor([1, 1]), wf.tensor([0.5, 0.25])).tolist() == [0, 0.75]


def test_isin():
    assert wf.isin(wf.tensor([1, 2, 3]), wf.tensor([3, 1])).tolist() == [True, False, True]
    assert wf.isin(wf.tensor([1, 2]), 2, invert=True).tolist() == [True, False]


def test_errors():
    x = wf.ones(2, 3)
    with pytest.raises(OperationError, match=r"topk: k=4 is out of range, .* f32\[2,3\] .*test_sort\.py:\d+"):
        x.topk(4)
    with pytest.raises(OperationError, match="kthvalue: k=0 is out of range"):
        x.kthvalue(0)
    with pytest.raises(IndexRangeError, match="sort: dim 2 is out of range"):
        x.sort(2)
    with pytest.raises(OperationError, match="quantile: q must lie between 0 and 1"):
        x.quantile(1.5)
    with pytest.raises(OperationError, match="bincount: all numbers must be non-negative, the smallest is -1"):
        wf.bincount(wf.tensor([-1]))
