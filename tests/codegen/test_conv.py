"""Direct convolution in native code: against plain loops in NumPy, in double precision."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import wayfare as wf
import wayfare.nn.functional as F
from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.routines import conv, conv_code
from wayfare.codegen.routines.routine import Routine
from wayfare.codegen.routines.windows import Slide
from wayfare.codegen.runtime import kernel as native
from wayfare.core.config import settings as wayfare_settings
from wayfare.core.counters import counted
from wayfare.errors import DTypeError, ShapeError

pytestmark = pytest.mark.skipif(not native.available(), reason="no llvmlite here")


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    """Native code and two threads whatever the size, and little scratch, so that images come in bands and chunks."""
    for name in ("CONV_FROM", "_PARALLEL_FROM", "_PHASE_FROM", "_PHASE_CHANNELS"):
        monkeypatch.setattr(conv, name, 0)
    monkeypatch.setattr(conv, "_SCRATCH", 2048)
    monkeypatch.setattr(conv, "_WEIGHT_SCRATCH", 4096)
    monkeypatch.setattr(conv, "_CHUNK", 5)
    monkeypatch.setattr(wayfare_settings, "num_threads", 2)


@st.composite
def cases(draw):
    rank = draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    batch, channels, made = draw(st.integers(1, 5)), draw(st.integers(1, 4)) * groups, draw(st.integers(1, 14)) * groups
    sizes = tuple(draw(st.integers(1, 36 // rank)) for _ in range(rank))

    def numbers(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    kernel, padding, dilation = numbers(1, 5), numbers(0, 4), numbers(1, 3)
    assume(max(kernel) > 1)
    stride = (*numbers(1, 3)[1:], draw(st.integers(1, 2)))
    spans = zip(sizes, kernel, stride, padding, dilation, strict=True)
    counts = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spans)
    assume(min(counts) > 0)
    # A transposed convolution may have fewer windows than there is room for.
    counts = tuple(draw(st.integers(max(1, c - 1), c)) for c in counts)
    return (batch, channels, *sizes), made, Slide(kernel, stride, padding, dilation, counts), groups


def windows(shape, slide):
    """For each element of the kernel: its index, and the slices of the padded image that its windows meet."""
    for offset in np.ndindex(*slide.kernel):
        spans = zip(offset, slide.counts, slide.stride, slide.dilation, strict=True)
        slices = (slice(i * d, i * d + (o - 1) * s + 1, s) for i, o, s, d in spans)
        yield (..., *offset), (..., *slices)


def padded(x, slide):
    return np.pad(x.astype(np.float64), [(0, 0), (0, 0), *((p, p) for p in slide.padding)])


def plain_output(x, weight, slide):
    image = padded(x, slide)
    return sum(
        np.einsum("nc...,oc->no...", image[slices], weight[at].astype(np.float64))
        for at, slices in windows(x.shape, slide)
    )


def plain_input(g, weight, shape, slide):
    image = padded(np.zeros(shape), slide)
    for at, slices in windows(shape, slide):
        image[slices] += np.einsum("no...,oc->nc...", g.astype(np.float64), weight[at].astype(np.float64))
    return image[(..., *(slice(p, p + n) for p, n in zip(slide.padding, shape[2:], strict=True)))]


def plain_weight(x, g, slide):
    image = padded(x, slide)
    out = np.empty((g.shape[1], x.shape[1], *slide.kernel))
    for at, slices in windows(x.shape, slide):
        n, c = image.shape[:2]
        seen = image[slices].reshape(n, c, -1)
        out[at] = np.einsum("nop,ncp->oc", g.astype(np.float64).reshape(n, g.shape[1], -1), seen)
    return out


def assert_close(tolerance, found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(20, np.abs(expected).max()))


def in_groups(groups, plain, *arrays, dims, join):
    """A plain function for each group of channels, split along `dims` and joined again."""
    parts = [np.split(a, groups, axis=d) for a, d in zip(arrays, dims, strict=True)]
    return np.concatenate([plain(*own) for own in zip(*parts, strict=True)], axis=join)


def check_all(shape, made, slide, groups, dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(dtype)
    weight = rng.normal(size=(made, shape[1] // groups, *slide.kernel)).astype(dtype)
    bias = rng.normal(size=made).astype(dtype)
    g = rng.normal(size=(shape[0], made, *slide.counts)).astype(dtype)
    close = partial(assert_close, 1e-6 if dtype == np.float32 else 1e-14)
    out = conv.forward(x, weight, bias, slide, groups)
    assert out.dtype == dtype
    plain = in_groups(groups, lambda a, b: plain_output(a, b, slide), x, weight, dims=(1, 0), join=1)
    close(out, plain + bias.reshape(-1, *(1,) * len(slide.kernel)))
    own = (shape[0], shape[1] // groups, *shape[2:])
    plain = in_groups(groups, lambda a, b: plain_input(a, b, own, slide), g, weight, dims=(1, 0), join=1)
    close(conv.by_input(g, weight, shape, slide, groups), plain)
    plain = in_groups(groups, lambda a, b: plain_weight(a, b, slide), x, g, dims=(1, 1), join=0)
    close(conv.by_weight(x, g, slide, groups), plain)


@settings(max_examples=120, deadline=None)
@given(cases(), st.sampled_from([np.float32, np.float64]))
def test_output_and_both_gradients(case, dtype):
    check_all(*case, dtype)


@pytest.fixture
def narrow(monkeypatch):
    """As on a processor with 16 vector registers of 256 bits."""
    host = SimpleNamespace(processor=dataclasses.replace(machine().processor, lanes=8))
    monkeypatch.setattr(conv, "machine", lambda: host)
    for name, write in (("_OUTPUT", conv_code.write_output), ("_WEIGHT", conv_code.write_weight)):
        kinds = {(d, s): Routine("narrow", lambda _, w=write, d=d, s=s: w(d, s, host))
                 for d in ("f32", "f64") for s in (1, 2)}  # fmt: skip
        monkeypatch.setattr(conv, name, kinds)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("made", [1, 7, 9])
def test_narrow_vectors(narrow, made, stride):
    n = (13 - 3) // stride + 1
    check_all((3, 2, 11, 12), made, Slide((3, 2), (stride,) * 2, (2, 1), (2, 1), ((10 // stride) + 1, n)), 1,
              np.float32)  # fmt: skip


@pytest.mark.parametrize("sizes", [(8, 8), (7, 7), (14, 14), (28, 28)])
@pytest.mark.parametrize("threads", [1, 2])
def test_usual_sizes_with_usual_scratch(monkeypatch, sizes, threads):
    monkeypatch.undo()
    monkeypatch.setattr(conv, "_PARALLEL_FROM", 0)
    monkeypatch.setattr(wayfare_settings, "num_threads", threads)
    with counted() as counts:
        check_all((5, 16, *sizes), 32, Slide((3, 3), (1, 1), (1, 1), (1, 1), sizes), 1, np.float32)
    assert counts.kernels_run == 3
    assert counts.kernels_split == (3 if threads == 2 else 0)


def test_one_image_is_shared_by_channels():
    slide = Slide((3, 3), (1, 1), (1, 1), (1, 1), (9, 9))
    with counted() as counts:
        check_all((1, 3, 9, 9), 11, slide, 1, np.float32)
    assert counts.kernels_split == 3


def test_long_sums_are_as_exact_as_products_of_matrices(monkeypatch):
    monkeypatch.undo()
    rng = np.random.default_rng(0)
    x, g = (rng.uniform(0, 1, (64, 2, 40, 40)).astype(np.float32) for _ in range(2))
    slide = Slide((3, 3), (1, 1), (1, 1), (1, 1), (40, 40))
    np.testing.assert_allclose(conv.by_weight(x, g, slide), plain_weight(x, g, slide), rtol=2e-6)


def test_many_channels_are_summed_in_parts():
    rng = np.random.default_rng(0)
    x, weight = (rng.uniform(0, 1, shape).astype(np.float32) for shape in ((1, 500, 4, 5), (3, 500, 3, 3)))
    slide = Slide((3, 3), (1, 1), (1, 1), (1, 1), (4, 5))
    np.testing.assert_allclose(conv.forward(x, weight, None, slide), plain_output(x, weight, slide), rtol=2e-6)


def test_the_same_bits_each_time():
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(9, 3, 12, 12)).astype(np.float32), rng.normal(size=(9, 5, 12, 12)).astype(np.float32)
    slide = Slide((3, 3), (1, 1), (1, 1), (1, 1), (12, 12))
    first = conv.by_weight(x, g, slide)
    assert all(np.array_equal(first, conv.by_weight(x, g, slide)) for _ in range(20))


def test_nothing_leaks_from_where_no_window_is():
    """An infinity reaches the outputs and the weights whose windows see it, and no others."""
    x, g = np.zeros((2, 1, 3, 5), np.float32), np.ones((2, 1, 3, 5), np.float32)
    x[0, 0, 2, 4] = np.inf
    slide = Slide((3, 3), (1, 1), (1, 1), (1, 1), (3, 5))
    weight = np.ones((1, 1, 3, 3), np.float32)
    out = conv.forward(x, weight, None, slide)
    assert np.isfinite(out[1]).all() and np.isfinite(out[0, 0, 0]).all() and np.isfinite(out[0, 0, :, :3]).all()
    assert np.isinf(out[0, 0, 1:, 3:]).all()
    gradient = conv.by_weight(x, g, slide)[0, 0]
    assert np.isinf(gradient[1:, 1:]).all()
    assert np.isfinite(gradient[0]).all() and np.isfinite(gradient[:, 0]).all()


@pytest.mark.parametrize(
    "slide, dtype",
    [
        (Slide((1, 1), (1, 1), (0, 0), (1, 1), (4, 4)), np.float32),  # a plain matmul
        (Slide((2, 2), (1, 3), (0, 0), (1, 1), (3, 1)), np.float32),
        (Slide((2, 2), (5, 1), (0, 0), (1, 1), (1, 3)), np.float32),
        (Slide((2, 2), (1, 1), (0, 0), (1, 1), (3, 3)), np.float16),
    ],
)
def test_what_is_left_to_columns(slide, dtype):
    x, weight = np.ones((1, 2, 4, 4), dtype), np.ones((3, 2, *slide.kernel), dtype)
    assert conv.forward(x, weight, None, slide) is None
    assert conv.by_weight(x, np.ones((1, 3, *slide.counts), dtype), slide) is None


# -- through the public functions ------------------------------------------------------------------------------------


def by_both_ways(monkeypatch, call):
    found = call()
    monkeypatch.setattr(conv, "CONV_FROM", 1 << 60)
    return found, call()


def test_layouts_and_empty_batches(monkeypatch):
    rng = np.random.default_rng(0)
    x = wf.tensor(rng.normal(size=(9, 4, 7, 3)).astype(np.float32)).permute(3, 1, 2, 0)[:, ::2]
    weight = wf.tensor(rng.normal(size=(3, 5, 2, 3)).astype(np.float32)).permute(1, 2, 0, 3)
    bias = wf.tensor(rng.normal(size=10).astype(np.float32))[::2]
    found, expected = by_both_ways(monkeypatch, lambda: F.conv2d(x, weight, bias, padding=(1, 2)).numpy())
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert F.conv2d(x[:0], weight, bias).shape == (0, 5, 5, 7)


def test_same_padding_and_transposes(monkeypatch):
    rng = np.random.default_rng(0)
    x, weight = (wf.tensor(rng.normal(size=s).astype(np.float32)) for s in ((2, 3, 9, 10), (3, 4, 2, 4)))
    for call in (
        lambda: F.conv2d(x, weight.transpose(0, 1), padding="same", dilation=3).numpy(),
        lambda: F.conv_transpose2d(x, weight).numpy(),
        lambda: F.conv_transpose2d(x, weight, stride=2, padding=3, output_padding=1).numpy(),
        lambda: F.conv_transpose2d(x, weight, stride=(2, 1), dilation=(2, 3), output_padding=(1, 2)).numpy(),
    ):
        monkeypatch.setattr(conv, "CONV_FROM", 0)
        found, expected = by_both_ways(monkeypatch, call)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_gradients(stride):
    rng = np.random.default_rng(0)
    given = [wf.tensor(rng.normal(size=s), requires_grad=True) for s in ((2, 2, 5, 6), (3, 2, 3, 2), (3,))]

    def call(x, w, b):
        return F.conv2d(x, w, b, stride=stride, padding=1)

    assert wf.autograd.gradcheck(call, given)
    assert wf.autograd.gradgradcheck(call, given)


def test_bias_is_part_of_the_convolution():
    x, weight, bias = wf.ones(1, 2, 4, 4), wf.ones(3, 2, 3, 3), wf.tensor([1.0, 2.0, 3.0], requires_grad=True)
    out = F.conv2d(x, weight, bias)
    assert out.grad_fn.name() == "ConvolutionBackward0"
    assert out[0, :, 0, 0].tolist() == [19.0, 20.0, 21.0]
    out.sum().backward()
    assert bias.grad.tolist() == [4.0, 4.0, 4.0]
    with pytest.raises(ShapeError, match="one number for each of 3 channels"):
        F.conv2d(x, weight, wf.ones(2))
    with pytest.raises(DTypeError, match="the bias must have the dtype of the input"):
        F.conv2d(x, weight, wf.ones(3, dtype=wf.float64))


def test_batches_of_biases():
    x, weight, bias = wf.rand(2, 2, 4, 4), wf.rand(3, 2, 3, 3), wf.rand(5, 3)
    found = wf.vmap(lambda b: F.conv2d(x, weight, b))(bias)
    expected = wf.stack([F.conv2d(x, weight, b) for b in bias])
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-6)
