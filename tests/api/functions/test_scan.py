"""Running sums and extremes, differences, integrals: edges and errors."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import ArgumentTypeError, IndexRangeError, OperationError

NAN = float("nan")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_scans_along_every_dim(shape, seed):
    x = np.random.default_rng(seed).normal(size=shape)
    t = wf.from_numpy(x)
    for d in range(x.ndim):
        np.testing.assert_allclose(t.cumsum(d).numpy(), np.cumsum(x, axis=d))
        np.testing.assert_allclose(t.cumprod(d - x.ndim).numpy(), np.cumprod(x, axis=d))
        values, indices = t.cummin(d)
        np.testing.assert_array_equal(values.numpy(), np.minimum.accumulate(x, axis=d))
        np.testing.assert_array_equal(np.take_along_axis(x, indices.numpy(), d), values.numpy())
        np.testing.assert_allclose(t.diff(dim=d).numpy(), np.diff(x, axis=d))


def test_in_place():
    x = wf.tensor([1.0, 2.0, 3.0])
    assert x.cumsum_(0) is x and x.tolist() == [1, 3, 6]
    with pytest.raises(OperationError, match=r"cumsum_: .*int64"):
        wf.tensor([True, False]).cumsum_(0)


def test_the_last_of_equals_and_the_first_nan_count():
    out = wf.tensor([1.0, 3.0, 3.0, 2.0]).cummax(0)
    assert out.values.tolist() == [1, 3, 3, 3] and out.indices.tolist() == [0, 1, 2, 2]
    out = wf.tensor([1.0, NAN, 5.0]).cummax(0)
    assert out.indices.tolist() == [0, 1, 1] and math.isnan(out.values[2].item())


def test_logcumsumexp_of_large_and_of_impossible_numbers():
    x = wf.tensor([-math.inf, 1000.0, 1000.0], dtype=wf.float64, requires_grad=True)
    out = x.logcumsumexp(0)
    assert out.tolist() == [-math.inf, 1000, pytest.approx(1000 + math.log(2))]
    out[2].backward()
    assert x.grad.tolist() == pytest.approx([0, 0.5, 0.5])


def test_diff_takes_ends():
    x = wf.tensor([1, 4, 9])
    assert x.diff(prepend=wf.tensor([0]), append=wf.tensor([16])).tolist() == [1, 3, 5, 7]
    assert x.diff(n=2).tolist() == [2]
    assert x.diff(n=5).tolist() == []
    assert wf.tensor([True, True, False]).diff().tolist() == [False, True]


def test_gradient_of_a_parabola():
    x = wf.linspace(0, 2, 5, dtype=wf.float64)
    (slope,) = wf.gradient(x * x, spacing=0.5, edge_order=2)
    np.testing.assert_allclose(slope.numpy(), 2 * x.numpy(), atol=1e-12)
    places = wf.tensor([0.0, 0.3, 1.0, 1.1, 2.0], dtype=wf.float64)
    (slope,) = wf.gradient(places * places, spacing=(places,), edge_order=2)
    np.testing.assert_allclose(slope.numpy(), 2 * places.numpy(), atol=1e-12)


def test_integrals():
    y = wf.tensor([0.0, 1.0, 4.0])
    assert wf.trapezoid(y).item() == 3
    assert wf.trapezoid(y, wf.tensor([0.0, 2.0, 4.0])).item() == 6
    assert wf.cumulative_trapezoid(y, dx=2.0).tolist() == [1, 6]


def test_errors():
    with pytest.raises(IndexRangeError, match=r"cumsum: dim 1 is out of range .*test_scan\.py:\d+"):
        wf.ones(3).cumsum(1)
    with pytest.raises(ArgumentTypeError, match="trapezoid: x and dx mean the same"):
        wf.trapezoid(wf.ones(2), wf.ones(2), dx=1.0)
    with pytest.raises(OperationError, match="diff: n must not be negative"):
        wf.ones(3).diff(-1)
    with pytest.raises(OperationError, match="gradient: edge_order must be 1 or 2"):
        wf.gradient(wf.ones(3), edge_order=3)
