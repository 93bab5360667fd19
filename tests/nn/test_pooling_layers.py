"""Pooling as layers against windows in NumPy, with ties, NaN and empty batches, and back again by MaxUnpool."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import wayfare as wf
from wayfare import nn
from wayfare.errors import ArgumentError, OperationError, ShapeError

rng = np.random.default_rng(0)


def windows(x, kernel, stride):
    """(…, *counts, elements of a window)."""
    rank = len(kernel)
    seen = sliding_window_view(x, kernel, tuple(range(-rank, 0)))
    every = (..., *(slice(None, None, s) for s in stride), *(slice(None),) * rank)
    taken = seen[every]
    return taken.reshape(*taken.shape[:-rank], -1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
@pytest.mark.parametrize("shape", [(2, 3, 30), (8, 4, 9, 10), (2, 3, 6, 5, 7), (3, 9, 10)])
def test_the_largest_of_each_window(shape, dtype):
    rank = 2 if len(shape) != 5 and shape[-1] == 10 else len(shape) - 2
    x = rng.integers(-50, 50, shape).astype(dtype)
    layer = getattr(nn, f"MaxPool{rank}d")(2, 2, return_indices=True)
    values, places = layer(wf.from_numpy(x))
    seen = windows(x, (2,) * rank, (2,) * rank)
    np.testing.assert_array_equal(values.numpy(), seen.max(-1))
    flat = x.reshape(*x.shape[:-rank], -1)
    at = places.numpy().reshape(*flat.shape[:-1], -1)
    np.testing.assert_array_equal(np.take_along_axis(flat, at, -1).reshape(values.shape), seen.max(-1))


@pytest.mark.parametrize("size", [4, 40])
def test_the_first_of_equals_gets_the_gradient(size):
    x = wf.zeros(1, 1, size, size, requires_grad=True)
    nn.MaxPool2d(2)(x).sum().backward()
    wanted = np.zeros((size, size))
    wanted[::2, ::2] = 1
    np.testing.assert_array_equal(x.grad.numpy()[0, 0], wanted)


def test_windows_that_overlap_add_up():
    x = np.zeros((1, 1, 20, 20), np.float32)
    x[0, 0, 10, 10] = 1
    given = wf.from_numpy(x).requires_grad_()
    nn.MaxPool2d(3, 1)(given).sum().backward()
    assert given.grad[0, 0, 10, 10].item() == 9


def test_nan_is_the_largest_and_padding_is_never():
    x = np.full((1, 1, 24, 24), -np.inf, np.float32)
    x[0, 0, 5, 5] = np.nan
    values, places = nn.MaxPool2d(3, 2, 1, return_indices=True)(wf.from_numpy(x))
    nan = np.isnan(values.numpy()[0, 0])
    assert {tuple(map(int, at)) for at in np.argwhere(nan)} == {(2, 2), (2, 3), (3, 2), (3, 3)}
    assert places.numpy().min() >= 0
    assert places[0, 0, 0, 0].item() == 0


@pytest.mark.parametrize("size", [(6, 8), (7, 9)])
def test_what_was_taken_goes_back(size):
    x = wf.from_numpy(rng.permutation(2 * 3 * size[0] * size[1]).reshape(2, 3, *size).astype(np.float32))
    values, places = nn.MaxPool2d(2, return_indices=True)(x)
    back = nn.MaxUnpool2d(2)(values, places, output_size=x.shape)
    kept = back != 0
    assert back.shape == x.shape
    np.testing.assert_array_equal(back[kept].numpy(), x[kept].numpy())
    taken = values.numpy().ravel()
    np.testing.assert_array_equal(np.sort(back[kept].numpy()), np.sort(taken[taken != 0]))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_averages(rank):
    x = rng.normal(size=(2, 3, *(7, 6, 5)[:rank]))
    kernel, stride = (3, 2, 2)[:rank], (2, 1, 2)[:rank]
    out = getattr(nn, f"AvgPool{rank}d")(kernel, stride)(wf.from_numpy(x))
    np.testing.assert_allclose(out.numpy(), windows(x, kernel, stride).mean(-1))


def test_padding_counts_or_not():
    x = wf.ones(1, 1, 4)
    assert nn.AvgPool1d(2, padding=1)(x).tolist() == [[[0.5, 1, 0.5]]]
    assert nn.AvgPool1d(2, padding=1, count_include_pad=False)(x).tolist() == [[[1, 1, 1]]]
    assert nn.AvgPool2d(2, divisor_override=1)(wf.ones(1, 1, 2, 2)).item() == 4


def test_norms():
    x = rng.uniform(0.1, 1, (2, 3, 6, 6))
    out = nn.LPPool2d(3, 2)(wf.from_numpy(x))
    np.testing.assert_allclose(out.numpy(), (windows(x, (2, 2), (2, 2)) ** 3).sum(-1) ** (1 / 3))


def test_cells_of_any_size():
    x = rng.normal(size=(2, 3, 7, 5))
    parts = [(0, 3), (2, 5), (4, 7)]
    largest, places = nn.AdaptiveMaxPool2d((3, None), return_indices=True)(wf.from_numpy(x))
    mean = nn.AdaptiveAvgPool2d((3, None))(wf.from_numpy(x))
    for row, (first, last) in enumerate(parts):
        np.testing.assert_array_equal(largest.numpy()[:, :, row], x[:, :, first:last].max(2))
        np.testing.assert_allclose(mean.numpy()[:, :, row], x[:, :, first:last].mean(2))
    taken = np.take_along_axis(x.reshape(2, 3, 35), places.numpy().reshape(2, 3, 15), 2)
    np.testing.assert_array_equal(taken.reshape(largest.shape), largest.numpy())
    assert nn.AdaptiveAvgPool1d(1)(wf.from_numpy(x[0])).shape == (3, 7, 1)


def test_fractional_windows_lie_inside_and_reach_the_end():
    x = wf.arange(49.0).reshape(1, 1, 7, 7)
    out, places = nn.FractionalMaxPool2d(2, output_size=(3, 4), return_indices=True)(x)
    assert out.shape == (1, 1, 3, 4)
    assert places[0, 0, -1, -1].item() == 48
    np.testing.assert_array_equal(x.flatten()[places.flatten()].numpy(), out.flatten().numpy())


def test_an_empty_batch():
    for layer in (nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d(2)):
        assert layer(wf.zeros(0, 3, 4, 4)).shape == (0, 3, 2, 2)


REFUSED = {
    "dimensions": (lambda: nn.MaxPool2d(2)(wf.ones(4, 4)), ShapeError, r"this is f32\[4,4\], in MaxPool2d\("),
    "too small": (lambda: nn.MaxPool2d(5)(wf.ones(1, 1, 4, 4)), OperationError, r"no window of \[5, 5\]"),
    "padding": (lambda: nn.MaxPool2d(2, padding=2)(wf.ones(1, 1, 4, 4)), OperationError, "at most half"),
    "no channels": (lambda: nn.MaxPool2d(2)(wf.ones(1, 0, 4, 4)), OperationError, "only the batch"),
    "fraction": (lambda: nn.FractionalMaxPool2d(2), ArgumentError, "either output_size or output_ratio"),
    "ratio": (lambda: nn.FractionalMaxPool2d(2, output_ratio=1.5), ArgumentError, "between 0 and 1, it is 1.5"),
    "unpool": (lambda: nn.MaxUnpool1d(2)(wf.ones(1, 1, 2), wf.zeros(1, 1, 3, dtype=wf.int64)), ShapeError, "differ"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call()
