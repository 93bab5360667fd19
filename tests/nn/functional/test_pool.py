"""Pooling: windows over the edge, divisors, adaptive cells, places, NaN."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare.core.tensor import wrap
from wayfare.nn import functional as F


def tensor(values):
    return wrap(np.array(values, np.float64))


def test_max_pool_names_the_place_of_the_largest():
    x = tensor([[[1, 5, 2, 5, 0]]])
    values, places = F.max_pool1d(x, 3, stride=1, return_indices=True)
    assert values.tolist() == [[[5, 5, 5]]]
    assert places.tolist() == [[[1, 1, 3]]]  # of equals the first


def test_nan_wins_in_max_pool():
    x = tensor([[[1, np.nan, 2, 3]]])
    out = F.max_pool1d(x, 2)._array
    assert np.isnan(out[0, 0, 0]) and out[0, 0, 1] == 3


POOLS = {
    "1d": lambda F, x: F.max_pool1d(x.flatten(2), 3, 2, 1, return_indices=True),
    "1d with gaps": lambda F, x: F.max_pool1d(x.flatten(2), 3, 1, 1, 2, return_indices=True),
    "1d up": lambda F, x: F.max_pool1d(x.flatten(2), 3, 2, 1, 1, True, True),
    "2d": lambda F, x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "2d with gaps": lambda F, x: F.max_pool2d(x, 2, 1, 1, 2, return_indices=True),
    "3d": lambda F, x: F.max_pool3d(x.unsqueeze(2), 2, 2, 1, return_indices=True),
    "adaptive 1d": lambda F, x: F.adaptive_max_pool1d(x.flatten(2), 3, return_indices=True),
    "adaptive 2d": lambda F, x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True),
    "adaptive 3d": lambda F, x: F.adaptive_max_pool3d(x.unsqueeze(2), (1, 2, 3), return_indices=True),
    "fractional 2d": lambda F, x: F.fractional_max_pool2d(
        x, 2, 3, return_indices=True, _random_samples=x.new_full((*x.shape[:2], 2), 0.6)),
    "fractional 3d": lambda F, x: F.fractional_max_pool3d(
        x.unsqueeze(3).expand(*x.shape[:3], 5, 4), 2, (3, 3, 2), return_indices=True,
        _random_samples=x.new_full((*x.shape[:2], 3), 0.3)),
}  # fmt: skip


@pytest.mark.parametrize("planes", [1, 60])  # by NumPy, and by native code
@pytest.mark.parametrize("lowest", [-np.inf, np.nan, -1.0])
@pytest.mark.parametrize("kind", POOLS)
def test_nothing_but_the_lowest_number_as_pytorch(kind, lowest, planes):
    torch = pytest.importorskip("torch")
    given = np.full((1, planes, 5, 4), lowest)
    found = []
    for m in (torch, wf):
        x = m.tensor(given, requires_grad=True)
        values, places = POOLS[kind](m.nn.functional, x)
        (values * m.arange(1.0, values.numel() + 1).reshape(values.shape)).sum().backward()
        found.append((values.detach().numpy(), x.grad.numpy(), places.numpy()))
    for want, got in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("planes", [1, 300])
def test_a_window_that_jumps_over_the_input_has_no_largest_and_no_gradient(planes):
    x = wf.ones(1, planes, 4, 2, requires_grad=True)
    values, places = F.max_pool2d(x, 2, 1, 1, 3, return_indices=True)
    assert (values == -np.inf).all() and (places == -1).all() and values.shape == (1, planes, 3, 1)
    values.sum().backward()
    assert not x.grad.any()


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_the_padding_is_never_the_largest(dtype):
    lowest = -np.inf if dtype is np.float64 else np.iinfo(dtype).min
    x = wrap(np.full((1, 1, 3), lowest, dtype))
    values, places = F.max_pool1d(x, 3, stride=1, padding=1, return_indices=True)
    assert values.tolist() == [[[lowest] * 3]] and places.tolist() == [[[0, 0, 1]]]


def test_ceil_mode_drops_a_window_that_begins_behind_the_edge():
    x = tensor(np.arange(5.0)[None, None])
    assert F.max_pool1d(x, 2, ceil_mode=True).tolist() == [[[1, 3, 4]]]
    assert tuple(F.max_pool1d(x, 1, stride=4, ceil_mode=True).shape) == (1, 1, 2)
    assert tuple(F.max_pool1d(tensor(np.zeros((1, 1, 4))), 2, stride=3, padding=1, ceil_mode=True).shape) == (
        1,
        1,
        2,
    )


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, [1.5, 4.5]),
        ({"padding": 1}, [0.5, 3, 6]),
        ({"padding": 1, "count_include_pad": False}, [1, 3, 6]),
        ({"ceil_mode": True}, [1.5, 4.5, 7]),
    ],
)
def test_avg_pool_divides_by_what_a_window_holds(options, want):
    x = tensor([[[1, 2, 4, 5, 7]]])
    assert F.avg_pool1d(x, 2, **options).tolist() == [[want]]


def test_divisor_override():
    x = tensor(np.ones((1, 1, 2, 2)))
    assert F.avg_pool2d(x, 2, divisor_override=8).item() == 0.5
    with pytest.raises(RuntimeError, match="divisor_override"):
        F.avg_pool2d(x, 2, divisor_override=0)


@given(st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=40)
def test_adaptive_cells_cover_everything(size, count):
    x = np.random.default_rng(size * 10 + count).normal(size=(1, 2, size))
    cells = [x[..., i * size // count : -(-(i + 1) * size // count)] for i in range(count)]
    mean = F.adaptive_avg_pool1d(wrap(x), count)._array
    most = F.adaptive_max_pool1d(wrap(x), count)._array
    np.testing.assert_allclose(mean, np.stack([c.mean(-1) for c in cells], -1), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(most, np.stack([c.max(-1) for c in cells], -1))


def test_none_keeps_a_size():
    x = tensor(np.arange(12.0).reshape(1, 1, 3, 4))
    assert tuple(F.adaptive_avg_pool2d(x, (None, 2)).shape) == (1, 1, 3, 2)


def test_unpool_puts_the_largest_back():
    x = tensor([[[3, 1, 2, 8]]])
    values, places = F.max_pool1d(x, 2, return_indices=True)
    assert F.max_unpool1d(values, places, 2).tolist() == [[[3, 0, 0, 8]]]
    assert tuple(F.max_unpool1d(values, places, 2, output_size=(1, 1, 5)).shape) == (1, 1, 5)


def test_the_gradient_goes_to_the_largest_once_for_each_window():
    x = tensor([[[1, 9, 2]]]).requires_grad_()
    F.max_pool1d(x, 2, stride=1).backward(tensor([[[10, 1]]]))
    assert x.grad.tolist() == [[[0, 11, 0]]]


def test_lp_pool_is_the_norm_of_a_window():
    x = tensor([[[3, 4, 6, 8]]])
    np.testing.assert_allclose(F.lp_pool1d(x, 2, 2)._array, [[[5, 10]]])


REFUSALS = {
    "padding": (lambda: F.max_pool1d(tensor([[[1, 2]]]), 2, padding=2), "at most half of kernel_size"),
    "too large": (lambda: F.avg_pool1d(tensor([[[1, 2]]]), 3), r"no window of \[3\].*f64\[1,1,2\]"),
    "empty": (lambda: F.max_pool1d(tensor(np.zeros((1, 0, 4))), 2), "only the batch"),
    "cells": (lambda: F.adaptive_avg_pool2d(tensor(np.zeros((1, 1, 2, 2))), (1, 2, 3)), "one number or 2"),
    "unpool": (
        lambda: F.max_unpool1d(tensor([[[1]]]), wrap(np.zeros((1, 1, 2), np.int64)), 2),
        "differ in shape",
    ),
}


@pytest.mark.parametrize(("call", "text"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(call, text):
    with pytest.raises(wf.errors.WayfareError, match=text):
        call()


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_windows_cover_the_image_from_edge_to_edge(rank):
    pool = getattr(F, f"fractional_max_pool{rank}d")
    x = wrap(np.random.default_rng(0).normal(size=(2, 3) + (9,) * rank))
    out, places = pool(x, 2, output_size=4, return_indices=True)
    assert tuple(out.shape) == (2, 3) + (4,) * rank
    flat = x._array.reshape(2, 3, -1)
    found = np.take_along_axis(flat, places._array.reshape(2, 3, -1), -1)
    np.testing.assert_array_equal(out._array.reshape(2, 3, -1), found)
    for axis in range(rank):
        along = places._array // 9 ** (rank - 1 - axis) % 9
        along = np.moveaxis(along, 2 + axis, 0)
        assert along[0].max() <= 1 and along[-1].min() >= 7  # the first and the last window lie at the edges


def test_fractional_pooling_refuses():
    x = tensor(np.zeros((1, 1, 4, 4)))
    with pytest.raises(ValueError, match="either output_size or output_ratio"):
        F.fractional_max_pool2d(x, 2)
    with pytest.raises(RuntimeError, match=r"\[4, 4\] windows of \[2, 2\] do not fit"):
        F.fractional_max_pool2d(x, 2, output_size=4)


def test_what_is_not_a_tensor_or_a_size_is_named():
    x = wf.ones(1, 1, 4, 4)
    assert F.max_pool2d(x, np.int64(2), np.int64(1)).shape == (1, 1, 3, 3)
    with pytest.raises(TypeError, match="max_pool2d: expected a tensor, not ndarray"):
        F.max_pool2d(np.ones((1, 1, 4, 4)), 2)
    with pytest.raises(TypeError, match="avg_pool2d: stride must be an int or 2 of them, not 1.5"):
        F.avg_pool2d(x, 2, 1.5)
