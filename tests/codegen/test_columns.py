"""Columns of windows and back in native code: against plain loops in NumPy, bit for bit."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare.codegen.routines import columns, depthwise
from wayfare.codegen.routines.columns import add_columns
from wayfare.codegen.routines.windows import Slide
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime import work_split
from wayfare.core.config import settings as wayfare_settings
from wayfare.core.counters import counted

needs_native = pytest.mark.skipif(not native.available(), reason="no llvmlite here")


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    """Native code and two threads whatever the size."""
    monkeypatch.setattr(columns, "COLUMNS_FROM", 0)
    monkeypatch.setattr(depthwise, "DEPTHWISE_FROM", 0)
    monkeypatch.setattr(work_split, "_SPLIT", -1)
    monkeypatch.setattr(wayfare_settings, "num_threads", 2)


def slides(data, sizes):
    rank = len(sizes)

    def numbers(low, high):
        return tuple(data.draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    kernel, stride, padding, dilation = numbers(1, 4), numbers(1, 3), numbers(0, 5), numbers(1, 3)
    spans = zip(sizes, kernel, stride, padding, dilation, strict=True)
    counts = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spans)
    assume(min(counts) > 0)
    # A transposed convolution may have fewer windows than there is room for.
    return Slide(kernel, stride, padding, dilation, tuple(data.draw(st.integers(1, c)) for c in counts))


def meetings(shape, slide):
    """For each element of the kernel: (the slices of the padded image its windows meet)."""
    for offset in np.ndindex(*slide.kernel):
        spans = zip(offset, slide.counts, slide.stride, slide.dilation, strict=True)
        yield offset, tuple(slice(i * d, i * d + (o - 1) * s + 1, s) for i, o, s, d in spans)


def padded(x, slide):
    around = [(0, 0), (0, 0)]
    for n, k, s, p, d, o in zip(x.shape[2:], slide.kernel, slide.stride, slide.padding, slide.dilation, slide.counts,
                                strict=True):  # fmt: skip
        around.append((p, max(0, (o - 1) * s + d * (k - 1) + 1 - n - p)))
    return np.pad(x, around)


def plain_columns(x, slide):
    full = padded(x, slide)
    out = np.empty((*x.shape[:2], *slide.kernel, *slide.counts), x.dtype)
    for offset, slices in meetings(x.shape, slide):
        out[(slice(None), slice(None), *offset)] = full[(slice(None), slice(None), *slices)]
    return out


def plain_image(given, shape, slide):
    full = padded(np.zeros(shape, given.dtype), slide)
    for offset, slices in meetings(shape, slide):
        full[(slice(None), slice(None), *slices)] += given[(slice(None), slice(None), *offset)]
    inside = [slice(p, p + n) for p, n in zip(slide.padding, shape[2:], strict=True)]
    return full[(slice(None), slice(None), *inside)]


shapes = st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda front: st.lists(st.integers(1, 40), min_size=1, max_size=2).map(lambda sizes: (*front, *sizes))
)


@needs_native
@settings(max_examples=120, deadline=None)
@given(st.data(), shapes, st.sampled_from([np.float32, np.float64]), st.booleans())
def test_columns_and_their_adjoint(data, shape, dtype, channels_first):
    slide = slides(data, shape[2:])
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=shape[::-1]).astype(dtype).T[::-1]
    x.flags.writeable = False
    wanted = plain_columns(x, slide)
    rows, windows = shape[1] * int(np.prod(slide.kernel)), int(np.prod(slide.counts))
    with counted() as counts:
        made = columns.columns(x, slide, channels_first)
    assert counts.kernels_run == 1
    given = rng.normal(size=wanted.shape).astype(dtype)
    if channels_first:
        made = np.moveaxis(made.reshape(rows, shape[0], windows), 1, 0)
        matrix = np.moveaxis(given.reshape(shape[0], rows, windows), 0, 1).reshape(rows, -1)
    else:
        matrix = given.reshape(shape[0], rows, windows)
    np.testing.assert_array_equal(made, wanted.reshape(shape[0], rows, windows))
    back = add_columns(matrix, shape, slide, channels_first)
    np.testing.assert_array_equal(back, plain_image(given, shape, slide))


@needs_native
@settings(max_examples=80, deadline=None)
@given(st.data(), shapes, st.sampled_from([np.float32, np.float64]))
def test_every_channel_by_itself(data, shape, dtype):
    slide = slides(data, shape[2:])
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x, weight = rng.normal(size=shape).astype(dtype), rng.normal(size=(shape[1], 1, *slide.kernel)).astype(dtype)
    g = rng.normal(size=(*shape[:2], *slide.counts)).astype(dtype)
    rank = len(slide.kernel)
    spread = weight.reshape(1, shape[1], *slide.kernel, *[1] * rank)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    windows = plain_columns(x, slide)
    inside = tuple(range(2, 2 + rank))
    np.testing.assert_allclose(depthwise.forward(x, weight, slide), (windows * spread).sum(axis=inside), **tolerance)
    gradients = g.reshape(*shape[:2], *[1] * rank, *slide.counts)
    wanted = plain_image(gradients * spread, shape, slide)
    np.testing.assert_allclose(depthwise.by_input(g, weight, shape, slide), wanted, **tolerance)
    summed = (windows * gradients).sum(axis=(0, *range(2 + rank, 2 + 2 * rank))).reshape(weight.shape)
    np.testing.assert_allclose(depthwise.by_weight(x, g, slide), summed, **tolerance)


def test_what_native_code_does_not_do_is_left_to_numpy():
    slide = Slide((2, 2), (1, 1), (0, 0), (1, 1), (2, 2))
    assert columns.columns(np.zeros((1, 1, 3, 3), np.float16), slide) is None
    assert columns.columns(np.zeros((1, 1, 3, 3), np.int64), slide) is None
    three = Slide((1,) * 3, (1,) * 3, (0,) * 3, (1,) * 3, (2, 2, 2))
    assert columns.columns(np.zeros((1, 1, 2, 2, 2)), three) is None


CASES = [
    ((2, 4, 9), (6, 4, 3), {"stride": 2, "padding": 1}),
    ((3, 4, 14, 15), (6, 2, 3, 2), {"padding": (2, 1), "groups": 2}),
    ((2, 3, 20, 20), (8, 3, 1, 1), {}),
    ((2, 3, 20, 20), (8, 3, 1, 1), {"stride": 2}),
    ((2, 6, 17, 13), (6, 1, 3, 3), {"groups": 6, "dilation": 2}),
    ((2, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"padding": 1}),
    ((0, 2, 8, 8), (3, 2, 3, 3), {}),
]


@pytest.mark.parametrize(("shape", "weight_shape", "how"), CASES)
@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_convolutions_with_and_without_native_code_agree(shape, weight_shape, how, limit, monkeypatch):
    from wayfare.ops.window import conv

    monkeypatch.setattr(conv, "_COLUMN_LIMIT", limit)
    rng = np.random.default_rng(3)
    run = [wf.nn.functional.conv1d, wf.nn.functional.conv2d, wf.nn.functional.conv3d][len(shape) - 3]
    results = []
    for smallest, many in ((1 << 60, 1), (0, 1), (0, 1 << 60)):
        monkeypatch.setattr(columns, "COLUMNS_FROM", smallest)
        monkeypatch.setattr(depthwise, "DEPTHWISE_FROM", smallest)
        monkeypatch.setattr(conv, "_MANY_WINDOWS", many)
        rng = np.random.default_rng(3)
        x = wf.tensor(rng.normal(size=shape), requires_grad=True)
        weight = wf.tensor(rng.normal(size=weight_shape), requires_grad=True)
        out = run(x, weight, **how)
        out.backward(wf.tensor(rng.normal(size=tuple(out.shape))))
        results.append([out.detach().numpy(), x.grad.numpy(), weight.grad.numpy()])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_a_trivial_unfold_is_still_a_copy():
    x = wf.ones(2, 3, 4, 5)
    made = wf.nn.functional.unfold(x, 1)
    made.add_(1)
    assert x.sum().item() == 120
    back = wf.nn.functional.fold(made, (4, 5), 1)
    back.add_(1)
    assert made.sum().item() == 240
