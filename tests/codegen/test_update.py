"""Updates: a formula of one element over arrays of every layout, dtype and size, natively and without native code."""

import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.codegen.runtime import commands, kernel
from wayfare.codegen.runtime.update import Update
from wayfare.core.config import settings as wayfare_settings
from wayfare.core.counters import counted
from wayfare.core.write_clock import version
from wayfare.errors import DTypeError, InPlaceError, ShapeError


def momentum_formula(m, p, g, v, rate, keep):
    v = v * keep + g
    return p - v * rate, v


def plain_momentum(p, g, v, rate, keep):
    v = keep * v + g
    return p - rate * v, v


SGD = Update("test_sgd", lambda m, p, g, rate: (p - g * rate,), 2, (0,), 1)
MOMENTUM = Update("test_momentum", momentum_formula, 3, (0, 2), 2)


def sgd(params, grads, rate):
    SGD(params, grads, (rate,))


def momentum(params, grads, velocities, rate=0.1, keep=0.5):
    MOMENTUM([*params, *velocities], grads, (rate, keep))


def arrays_like(rng, shapes, dtype=np.float64):
    return [np.asarray(rng.normal(size=shape), dtype) for shape in shapes]


shapes_lists = st.lists(st.lists(st.integers(0, 5), max_size=4).map(tuple), min_size=0, max_size=5)


@settings(max_examples=30, deadline=None)
@given(shapes_lists, st.integers(0, 2**32 - 1))
def test_it_is_its_formula_for_any_shapes(shapes, seed):
    rng = np.random.default_rng(seed)
    params, velocities = arrays_like(rng, shapes), arrays_like(rng, shapes)
    wanted = [(p.copy(), v.copy()) for p, v in zip(params, velocities, strict=True)]
    for turn in range(3):
        grads = arrays_like(rng, shapes)
        momentum(params, grads, velocities, 0.1 * turn, 0.5)
        wanted = [plain_momentum(p, g, v, 0.1 * turn, 0.5) for (p, v), g in zip(wanted, grads, strict=True)]
    for p, v, (wanted_p, wanted_v) in zip(params, velocities, wanted, strict=True):
        np.testing.assert_allclose(p, wanted_p, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(v, wanted_v, rtol=1e-12, atol=1e-13)


def layouts_of(rng, dtype=np.float64):
    """Arrays of every kind of layout: transposed, sliced, reversed, with many axes in odd order."""

    def full(*shape):
        return np.asarray(rng.normal(size=shape), dtype)

    return [
        full(4, 6).T, full(8, 6)[::2, 1:5], full(9)[::-1], full(3, 4, 5).transpose(2, 0, 1)[:, ::2],
        full(3, 2, 4, 2, 3)[:, :, ::2, :, ::2].transpose(4, 1, 3, 0, 2), full(1), full(), full(2, 1, 3),
    ]  # fmt: skip


def test_arrays_of_any_layout():
    rng = np.random.default_rng(3)
    params, grads, velocities = (layouts_of(rng) for _ in range(3))
    velocities = [np.asarray(np.abs(v)) for v in velocities]  # also: other layouts than the parameters
    before = [tuple(a.copy() for a in row) for row in zip(params, grads, velocities, strict=True)]
    momentum(params, grads, velocities)
    for p, v, old in zip(params, velocities, before, strict=True):
        for got, wanted in zip((p, v), plain_momentum(*old, 0.1, 0.5), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_large_arrays_are_split_over_threads(monkeypatch):
    monkeypatch.setattr(wayfare_settings, "num_threads", 2)
    rng = np.random.default_rng(4)
    shapes = [(300, 301), (7,), (100_003,), (5, 1)]
    params, grads, velocities = (arrays_like(rng, shapes, np.float32) for _ in range(3))
    before = [tuple(a.astype(np.float64) for a in row) for row in zip(params, grads, velocities, strict=True)]
    with counted() as counts:
        momentum(params, grads, velocities)
    if kernel.available():
        assert counts.kernels_run == 1
    for p, old in zip(params, before, strict=True):
        np.testing.assert_allclose(p, plain_momentum(*old, 0.1, 0.5)[0], rtol=1e-5, atol=1e-6)


def test_one_thread_gives_the_same_bits(monkeypatch):
    results = []
    for threads in (1, 2):
        monkeypatch.setattr(wayfare_settings, "num_threads", threads)
        rng = np.random.default_rng(5)
        params, grads, velocities = (arrays_like(rng, [(90_001,)], np.float32) for _ in range(3))
        momentum(params, grads, velocities)
        results.append(params[0].tobytes())
    assert results[0] == results[1]


def test_what_is_read_may_be_other_arrays_at_every_call():
    # The plan is kept; the addresses in it must not be.
    params = [np.zeros(100, np.float32)]
    for value in (1.0, 2.0, 4.0):
        sgd(params, [np.full(100, value, np.float32)], 1.0)
    np.testing.assert_array_equal(params[0], np.full(100, -7.0, np.float32))


def test_what_is_read_may_lie_otherwise_at_every_call():
    params = [np.zeros((3, 4))]
    sgd(params, [np.ones((3, 4))], 1.0)
    sgd(params, [np.arange(12.0).reshape(4, 3).T], 1.0)
    np.testing.assert_array_equal(params[0], -1 - np.arange(12.0).reshape(4, 3).T)


def test_nothing_keeps_the_arrays_alive_or_takes_new_ones_for_them():
    update = Update("test_forgetting", lambda m, p, g, rate: (p - g * rate,), 2, (0,), 1)
    for turn in range(50):
        params = [np.zeros(10 + turn % 3)]
        update(params, [np.ones_like(params[0])], (1.0,))
        np.testing.assert_array_equal(params[0], -1)
        gone = weakref.ref(params[0])
        del params
        assert gone() is None
    assert not update._bound


def test_dtypes_side_by_side():
    dtypes = (np.float16, np.float32, np.float64)
    params = [np.ones(50, d) for d in dtypes]
    sgd(params, [np.full(50, 0.5, d) for d in dtypes], 0.5)
    for p, d in zip(params, dtypes, strict=True):
        assert p.dtype == d
        np.testing.assert_array_equal(p, np.full(50, 0.75, d))


def test_dtypes_within_a_set():
    params = [np.ones(5, np.float16), np.ones(5, np.float32)]
    sgd(params, [np.full(5, 0.5, np.float32), np.full(5, 1e-12)], 1.0)
    np.testing.assert_array_equal(params[0], np.full(5, 0.5, np.float16))
    np.testing.assert_array_equal(params[1], np.ones(5, np.float32))


def test_sets_that_overlap_are_updated_one_after_the_other():
    base = np.arange(6.0)
    sgd([base[:4], base[2:]], [np.ones(4), np.ones(4)], 1.0)
    np.testing.assert_array_equal(base, np.arange(6.0) - [1, 1, 2, 2, 1, 1])
    square = np.arange(9.0).reshape(3, 3)
    sgd([square], [square.T], 1.0)  # reads what it writes, at other places
    np.testing.assert_array_equal(square, np.arange(9.0).reshape(3, 3) - np.arange(9.0).reshape(3, 3).T)


def test_the_writes_are_noted():
    whole, other, grads = np.ones(6), np.ones(2), [np.ones(3), np.ones(2)]
    before = [version(a) for a in (whole, other, grads[0])]
    for turn in range(1, 4):
        sgd([whole[:3], other], grads, 1.0)
        assert [version(a) for a in (whole, other, grads[0])] == [before[0] + turn, before[1] + turn, before[2]]


def test_read_only_sources_are_fine_and_read_only_targets_refused():
    params, grads = [np.ones(5)], [np.ones(5)]
    grads[0].flags.writeable = False
    sgd(params, grads, 1.0)
    np.testing.assert_array_equal(params[0], np.zeros(5))
    params[0].flags.writeable = False
    for _ in range(2):
        with pytest.raises(InPlaceError, match="read-only"):
            sgd(params, grads, 1.0)
    np.testing.assert_array_equal(params[0], np.zeros(5))


@pytest.mark.parametrize(
    ("params", "grads", "error", "words"),
    [
        ([np.ones(3)], [np.ones(4)], ShapeError, r"shapes \[3\] and \[4\]"),
        ([np.ones(3, np.int64)], [np.ones(3)], DTypeError, "int64"),
        ([np.ones(3)], [np.ones(3, np.bool_)], DTypeError, "bool"),
    ],
)
def test_wrong_arguments_are_named(params, grads, error, words):
    with pytest.raises(error, match=words):
        sgd(params, grads, 1.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_without_native_code_the_result_is_the_same(monkeypatch, dtype):
    def run(update):
        rng = np.random.default_rng(8)
        params, grads = (arrays_like(rng, [(3, 4), (5,), ()], dtype) for _ in range(2))
        update(params, grads, (0.5,))
        return params

    wanted = run(SGD)
    monkeypatch.setattr(commands, "ready", lambda: False)
    half_way = run(Update("test_no_routine", SGD.formula, 2, (0,), 1))
    monkeypatch.setattr(kernel, "_usable", [False])
    without = run(Update("test_no_native", SGD.formula, 2, (0,), 1))
    for a, b, c in zip(wanted, half_way, without, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-3 if dtype == np.float16 else 1e-6)


def test_threads_do_not_mix_their_numbers():
    rounds, width = 50, 3000
    results = {}

    def train(rate):
        params = [np.zeros(width, np.float32) for _ in range(4)]
        grads = [np.ones(width, np.float32) for _ in range(4)]
        for _ in range(rounds):
            sgd(params, grads, rate)
        results[rate] = params

    workers = [threading.Thread(target=train, args=(rate,)) for rate in (0.5, 1.0, 2.0)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for rate, params in results.items():
        for p in params:
            np.testing.assert_array_equal(p, np.full(width, -rate * rounds, np.float32))


def test_one_set_into_given_arrays():
    p, g, v = np.ones(5), np.full(5, 2.0), np.ones(5)
    MOMENTUM.one([p, g, v], [p, v], (0.5, 1.0))
    np.testing.assert_array_equal(p, 1 - 0.5 * 3)
    np.testing.assert_array_equal(v, 3)
