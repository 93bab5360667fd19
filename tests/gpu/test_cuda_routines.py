"""Kernels written by hand, in emulation against NumPy; and compiled for a GPU."""

import numpy as np
import pytest

from tests.gpu.cases import needs_compiler, needs_nvrtc
from tests.gpu.emulation.host import HostLauncher
from wayfare.codegen.cuda import nvrtc
from wayfare.codegen.cuda.kernels import random, rows, segments, table, update
from wayfare.codegen.cuda.kernels.routine import all_of, kernel_text, pointers, run
from wayfare.codegen.loop.expr import NUMPY
from wayfare.codegen.runtime.update import Update
from wayfare.core.counters import counted
from wayfare.ops.random.draws import draw_uniform

FLOATS = [np.float16, np.float32, np.float64]


@pytest.fixture
def launcher():
    return HostLauncher()


def compiles(*texts):
    assert b".entry" in nvrtc.nvrtc().compile("\n".join(texts), "compute_90")


# -- floats that are only stored


def rounded_to_bf16(x):
    """The bits of the nearest bfloat16 of each float32, ties to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@needs_compiler
def test_conversions_of_short_floats(launcher):
    body = (
        all_of("i", "a.n")
        + """    a.wide[i] = to_f32(a.h[i]); a.back[i] = to_f16(a.wide[i]); a.twice[i] = to_f16(a.x[i]);
    a.b_wide[i] = to_f32(bf16{a.h[i].bits}); a.b[i] = to_bf16((f32)a.x[i]);
  }
"""
    )
    fields = ("const f16* h", "const f64* x", "f32* wide", "f16* back", "f16* twice", "f32* b_wide", "bf16* b", "i64 n")
    text = kernel_text("conversions", fields, body)
    halves = np.arange(65536, dtype=np.uint16)
    rng = np.random.default_rng(0)
    # Among them halfway cases, and doubles next to halfway cases, which rounding twice would get wrong.
    x = np.float64(halves.view(np.float16))
    x = np.where(np.isfinite(x), x, 1.0) * rng.choice(
        [1, 1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40], 65536
    )
    wide, b_wide = np.zeros((2, 65536), np.float32)
    back, twice, b = np.zeros((3, 65536), np.uint16)
    words = [*pointers(launcher, halves, x, wide, back, twice, b_wide, b), 65536]
    run(launcher, text, "conversions", (3,), (64,), words)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(wide, halves.view(np.float16).astype(np.float32))
        number = ~np.isnan(wide)
        np.testing.assert_array_equal(back[number], halves[number])
        np.testing.assert_array_equal(twice, x.astype(np.float16).view(np.uint16))
        np.testing.assert_array_equal(b_wide.view(np.uint32), halves.astype(np.uint32) << 16)
        np.testing.assert_array_equal(b, rounded_to_bf16(x.astype(np.float32)))


# -- rows


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("width", [1, 3, 4, 64, 130])
def test_rows_are_gathered_by_index_and_by_address(launcher, dtype, width):
    rng = np.random.default_rng(0)
    table = rng.integers(0, 100, (50, width)).astype(dtype)
    keys = rng.integers(0, 50, (7, 11))
    out = np.zeros((7, 11, width), dtype)
    rows.gather_rows(launcher, keys, out, table)
    np.testing.assert_array_equal(out, table[keys])
    for count in (1, 77, 300, 1000):  # as arguments of the kernel, and as a copy
        keys = rng.integers(0, 50, count)
        out = np.zeros((count, width), dtype)
        rows.gather_at(launcher, launcher.pointer(table) + keys * table.strides[0], out)
        np.testing.assert_array_equal(out, table[keys])


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("width", [1, 5, 40])
@pytest.mark.parametrize("count", [20, 60, 300])
def test_rows_are_added_in_order(launcher, dtype, width, count):
    """To the last bit what a loop over the keys gives, with keys that repeat."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((9, width)).astype(dtype) if dtype != np.int64 else rng.integers(0, 9, (9, width))
    values = (rng.standard_normal((count, width)) * 1000).astype(dtype)
    keys = rng.integers(0, 9, count)
    want = table.copy()
    np.add.at(want, keys, values)
    order = np.argsort(keys, kind="stable")
    by_index, by_address = table.copy(), table.copy()
    rows.add_rows(launcher, keys, order, values, by_index)
    np.testing.assert_array_equal(by_index, want)
    rows.add_at(launcher, launcher.pointer(by_address) + keys * table.strides[0], values)
    np.testing.assert_array_equal(by_address, want)


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.bool_])
def test_the_last_of_equal_keys_is_written(launcher, dtype):
    rng = np.random.default_rng(0)
    table, values = np.zeros((9, 5), dtype), rng.integers(0, 2, (300, 5)).astype(dtype)
    keys = rng.integers(0, 9, 300)
    rows.put_rows(launcher, keys, np.argsort(keys, kind="stable"), values, table)
    want = np.zeros((9, 5), dtype)
    for key, value in zip(keys, values, strict=True):
        want[key] = value
    np.testing.assert_array_equal(table, want)


@needs_compiler
def test_nothing_outside_a_table_is_gathered(launcher):
    table, out = np.arange(6.0).reshape(3, 2), np.zeros((5, 2))
    rows.gather_rows(launcher, np.array([-1, -3, 3, -4, 1 << 40]), out, table)
    np.testing.assert_array_equal(out, table[[2, 0, 0, 0, 0]])


@needs_compiler
def test_half_precision_is_added_in_single(launcher):
    table, values = np.zeros((2, 3), np.float16), np.ones((5000, 3), np.float16)
    rows.add_rows(launcher, np.ones(5000, np.int64), np.arange(5000), values, table)
    np.testing.assert_array_equal(table, np.array([[0] * 3, [5000] * 3], np.float16))


@needs_compiler
def test_no_rows_launch_nothing(launcher):
    empty = np.empty((0, 3), np.float32)
    rows.gather_rows(launcher, np.empty(0, np.int64), empty, np.ones((2, 3), np.float32))
    rows.add_rows(launcher, *[np.empty(0, np.int64)] * 2, empty, np.ones((2, 3), np.float32))
    rows.gather_at(launcher, np.empty(0, np.int64), empty)
    rows.add_at(launcher, np.empty(0, np.int64), empty)
    assert len(launcher.names) == 0


@needs_nvrtc
def test_rows_compile():
    compiles(*map(rows.gather_text, (1, 2, 4, 8, 16)), *map(rows.put_text, (1, 2, 4, 8)),
             *[rows.fold_text(how, dtype) for how in ("add", "maximum", "minimum")
               for dtype in ("f16", "bf16", "f32", "f64", "i64", "i8", "bool")],
             *[rows.gather_at_text(piece, room) for piece, room in ((1, 0), (2, 56), (4, 160), (8, 480), (16, 480))],
             *[rows.add_at_text(d, r) for d, r in (("f16", 0), ("bf16", 56), ("f32", 480), ("f64", 160))])  # fmt: skip


# -- segments


@needs_compiler
@pytest.mark.parametrize("dtype", [*FLOATS, np.int64])
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("columns", [1, 33])
def test_segments(launcher, dtype, kind, columns):
    rng = np.random.default_rng(0)
    lengths = np.array([3, 0, 1, 100, 17, 0])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    x = rng.integers(-9, 9, (offsets[-1], columns)).astype(dtype)
    if dtype in FLOATS:
        x[5, 0] = np.nan
    out = np.zeros((6, columns), dtype)
    segments.reduce(launcher, x, offsets, out, kind)
    low = -np.inf if dtype in FLOATS else np.iinfo(dtype).min
    high = np.inf if dtype in FLOATS else np.iinfo(dtype).max
    empty = {"sum": 0, "max": low, "min": high}[kind]
    for s in range(6):
        part = x[offsets[s] : offsets[s + 1]]
        want = getattr(np, kind)(part, axis=0) if len(part) else np.full(columns, empty, dtype)
        np.testing.assert_array_equal(out[s], want)
    back = np.zeros_like(x)
    segments.spread(launcher, out, offsets, back)
    np.testing.assert_array_equal(back, np.repeat(out, lengths, axis=0))


@needs_nvrtc
def test_segments_compile():
    compiles(*(segments.reduce_text(d, k) for d in ("f16", "bf16", "f32", "f64", "i64") for k in ("sum", "max", "min")),
             *map(segments.spread_text, (1, 2, 4, 8)))  # fmt: skip


# -- random numbers


@needs_compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("key", [(0, 0), (7, 1), (2**63 + 5, 2**40), (123456789, 2**64 - 1)])
def test_uniform_numbers_are_those_of_the_cpu(launcher, dtype, key):
    for shape in ((1,), (3, 5), (1000,), (4097,)):
        out = np.zeros(shape, dtype)
        random.uniform(launcher, key, out)
        np.testing.assert_array_equal(out, draw_uniform(key, shape, np.dtype(dtype)))


@needs_nvrtc
def test_random_numbers_compile():
    compiles(*map(random.uniform_text, ("f16", "f32", "f64")))


# -- updates


def adam(m, p, g, first, second, rate, beta1, beta2, scale1, scale2, eps):
    first = first * beta1 + g * (1 - beta1)
    second = second * beta2 + g * g * (1 - beta2)
    return p - rate * (first * scale1) / (m.sqrt(second * scale2) + eps), first, second


NUMBERS = [0.1, 0.9, 0.999, 1.2, 1.1, 1e-8]


@needs_compiler
@pytest.mark.parametrize("dtypes", [("f32",) * 4, ("f64",) * 4, ("f16", "f32", "f32", "f32")])
def test_one_launch_updates_many_arrays(launcher, dtypes):
    rng = np.random.default_rng(0)
    step = Update("adam", adam, arguments=4, written=(0, 2, 3), numbers=6)
    loop = step.kernel(dtypes).loop
    sets = []
    for shape in [(3,), (64, 33), (), (5000,), (0,), *[(k, 7) for k in range(1, 30)]]:
        sets.append([np.array(np.abs(rng.standard_normal(shape)), NUMPY[d]) for d in dtypes])
    want = [[a.copy() for a in s] for s in sets]
    for p, g, first, second in want:
        if p.size:
            step.one([p, g, first, second], [p, first, second], NUMBERS)
    with counted() as counts:
        update.update(launcher, loop, [[*s, s[0], s[2], s[3]] for s in sets], NUMBERS)
    assert len(launcher.names) == counts.kernels_run == 1
    for got, expected in zip(sets, want, strict=True):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, 2e-3 if a.dtype == np.float16 else 1e-6)


@needs_compiler
def test_more_arrays_than_a_parameter_holds(launcher):
    step = Update("halve", lambda m, p: (p * 0.5,), arguments=1, written=(0,), numbers=0)
    loop = step.kernel(("f32",)).loop
    arrays = [np.full(2, k, np.float32) for k in range(2000)]
    update.update(launcher, loop, [[a, a] for a in arrays], [])
    assert len(launcher.names) == 3
    assert all((a == k / 2).all() for k, a in enumerate(arrays))


@needs_nvrtc
def test_updates_compile():
    step = Update("adam", adam, arguments=4, written=(0, 2, 3), numbers=6)
    loop = step.kernel(("f32",) * 4).loop
    compiles(update.update_text(loop, 6, 256)[1], update.update_text(loop, 6, 256, True)[1],
             *[table.write_text(room)[1] for room in (6, 500)],
             *[table.move_text(room)[1] for room in (4, 64)])  # fmt: skip
