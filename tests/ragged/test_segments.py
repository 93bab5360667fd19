"""Segments: native code against NumPy for every dtype, the public functions, batching, and their sentences."""

from itertools import pairwise

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.routines import segments
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import counted
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, OperationError, ShapeError

LENGTHS = [3, 0, 200, 1, 64, 65, 0, 7]
OFFSETS = np.cumsum([0, *LENGTHS])
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64"]


def numbers(dtype, *shape):
    drawn = np.random.default_rng(0).normal(size=shape) * 20
    return (drawn > 0) if dtype == "bool" else np.abs(drawn).astype(dtype) if dtype == "uint8" else drawn.astype(dtype)


@pytest.fixture
def without_native(monkeypatch):
    """A function run with NumPy only."""

    def run(function, *args):
        with monkeypatch.context() as patch:
            patch.setattr(segments, "_native", lambda *_: False)
            return function(*args)

    return run


@pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")
@pytest.mark.parametrize("width", [(), (1,), (5,), (90,), (3, 4)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_native_code_equals_numpy(dtype, width, without_native):
    x = numbers(dtype, OFFSETS[-1], *width)
    for how in ("add", "maximum", "minimum"):
        got, want = segments.reduce(x, OFFSETS, how), without_native(segments.reduce, x, OFFSETS, how)
        assert got.dtype == want.dtype == x.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3 if dtype == "float32" else 1e-9)
    table = numbers(dtype, len(LENGTHS), *width)
    np.testing.assert_array_equal(segments.spread(table, OFFSETS), np.repeat(table, LENGTHS, axis=0))
    np.testing.assert_array_equal(without_native(segments.spread, table, OFFSETS), np.repeat(table, LENGTHS, axis=0))
    if dtype != "bool":
        np.testing.assert_array_equal(segments.combine(x, table, OFFSETS, "sub"), x - np.repeat(table, LENGTHS, axis=0))
    if dtype.startswith("float"):
        got = segments.combine(x, table, OFFSETS, "div")
        np.testing.assert_array_equal(got, x / np.repeat(table, LENGTHS, axis=0))
        np.testing.assert_array_equal(without_native(segments.combine, x, table, OFFSETS, "div"), got)


@pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")
def test_native_code_runs_where_it_should():
    for size, kernels in ((2000, 1), (3, 0)):
        with counted() as counts:
            segments.reduce(numbers("float32", size), np.array([0, size]), "add")
        assert counts.kernels_run == kernels


def test_strided_values():
    x = numbers("float64", OFFSETS[-1], 12)[:, ::2]
    want = np.stack([x[a:b].sum(0) for a, b in pairwise(OFFSETS)])
    np.testing.assert_allclose(segments.reduce(x, OFFSETS, "add"), want, rtol=1e-12, atol=1e-12)


def test_a_sum_does_not_depend_on_the_number_of_threads():
    x = wf.from_numpy(numbers("float32", 40_000, 16))
    offsets = wf.arange(0, 40_001, 40)
    before, sums = wf.get_num_threads(), []
    try:
        for count in (1, 2):
            wf.set_num_threads(count)
            sums.append(wf.segment_sum(x, offsets).numpy())
    finally:
        wf.set_num_threads(before)
    np.testing.assert_array_equal(*sums)


def test_public_functions():
    x, offsets = wf.tensor([1.0, 2.0, 3.0, 5.0]), wf.tensor([0, 3, 4])
    assert wf.segment_sum(x, offsets).tolist() == [6.0, 5.0]
    assert wf.segment_mean(x, offsets).tolist() == [2.0, 5.0]
    assert wf.segment_max(x, offsets).tolist() == [3.0, 5.0]
    assert wf.segment_min(x, offsets).tolist() == [1.0, 5.0]
    assert wf.segment_repeat(wf.tensor([7, 8]), offsets).tolist() == [7, 7, 7, 8]
    assert wf.allclose(wf.segment_softmax(x, offsets)[:3], x[:3].softmax(0))
    assert wf.allclose(wf.segment_log_softmax(x, offsets)[:3], x[:3].log_softmax(0))
    assert wf.allclose(wf.segment_logsumexp(x, offsets)[0], x[:3].logsumexp(0))
    assert wf.segment_sum(wf.tensor([True, True, False]), wf.tensor([0, 3])).tolist() == [2]
    assert wf.segment_sum(x.half(), offsets).dtype is wf.float16


def test_batched():
    x, offsets = wf.randn(3, 6, 2, dtype=wf.float64), wf.tensor([0, 2, 2, 6])
    got = wf.vmap(lambda one: wf.segment_softmax(one, offsets))(x)
    assert wf.allclose(got, wf.stack([wf.segment_softmax(one, offsets) for one in x]))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: wf.segment_sum(x, [0, 4]), ArgumentTypeError, "offsets must be a tensor, not list"),
        (lambda x: wf.segment_sum([1.0], wf.tensor([0, 1])), ArgumentTypeError, "expected a tensor, not list"),
        (lambda x: wf.segment_sum(x, wf.tensor([0, 3])), ArgumentError, "go from 0 to 4.* from 0 to 3"),
        (lambda x: wf.segment_max(x, wf.tensor([0, 3, 2, 4])), ArgumentError, r"offsets\[1\] is 3 and offsets\[2\]"),
        (lambda x: wf.segment_sum(x, wf.tensor([0.0, 4.0])), DTypeError, "offsets must be int64"),
        (lambda x: wf.segment_sum(x, wf.tensor([[0, 4]])), ShapeError, "shape .segments . 1"),
        (lambda x: wf.segment_sum(x, wf.empty(0, dtype=wf.int64)), ShapeError, "shape .segments . 1"),
        (lambda x: wf.segment_sum(x.sum(), wf.tensor([0, 4])), ShapeError, "at least one dimension"),
        (lambda x: wf.segment_min(x, wf.tensor([0, 4, 4])), OperationError, "segment 1 is empty, so it has no min"),
        (lambda x: wf.segment_softmax(x.long(), wf.tensor([0, 4])), DTypeError, "floating-point"),
        (lambda x: wf.segment_mean(x.long(), wf.tensor([0, 4])), DTypeError, "floating-point"),
        (lambda x: wf.segment_repeat(x, wf.tensor([0, 4])), ShapeError, "1 segments need as many rows, this has 4"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(call, error, words):
    with pytest.raises(error, match=words):
        call(wf.ones(4))


@pytest.mark.parametrize("name", ["max", "min"])
def test_an_extreme_that_is_nan_gives_its_gradient_to_the_nans(name):
    values = np.array([1.0, np.nan, 3.0, 3.0, np.nan, np.nan])
    x = wf.tensor(values, requires_grad=True)
    out = getattr(wf, f"segment_{name}")(x, wf.tensor([0, 2, 4, 6]))
    (out * wf.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 1.5, 1.5]
    torch = pytest.importorskip("torch")
    theirs = torch.tensor(values, requires_grad=True)
    out = torch.segment_reduce(theirs, name, lengths=torch.tensor([2, 2, 2]))
    (out * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == theirs.grad.tolist()
