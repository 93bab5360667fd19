"""Indexed loads, folds and stores by index: native code and the interpreter agree to the last bit; what is refused."""

import subprocess
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from tests.codegen.loops import laid, same
from tests.codegen.test_fuzz import LOOPS, row_shapes
from tests.codegen.window_loops import random_arrays, random_carries, random_windows
from wayfare.codegen.llvm import code
from wayfare.codegen.loop.expr import apply, carry, cast, const, expr, index, load, reduction
from wayfare.codegen.loop.interpreter import interpret_rows
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage, StoreAt, exact, source, validate
from wayfare.codegen.loop.window import fold, inside, largest, load_at, long_total, size, total
from wayfare.codegen.math.library import KNOWN, numpy_function
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime import work_split
from wayfare.core.config import settings
from wayfare.core.counters import counted
from wayfare.core.errors import LoopError

pytestmark = pytest.mark.filterwarnings("error")
OUT = (Operand("f32"),)


@pytest.fixture(autouse=True, scope="module")
def every_loop_is_split():
    before = work_split._SPLIT, settings.num_threads, settings.cache_folder
    work_split._SPLIT, settings.cache_folder = -1, None
    yield
    work_split._SPLIT, settings.num_threads, settings.cache_folder = before


def check(loop, inputs, outputs, shape, axes, kernel=None):
    """Run natively and by the interpreter; the outputs must agree to the last bit."""
    kernel = kernel or native.Kernel(loop)
    want = interpret_rows(loop, inputs, axes, numpy_function, shape, outputs)
    got = [np.array(o) for o in outputs] if all(o.flags.c_contiguous for o in outputs) else outputs
    with counted() as counts:
        kernel.into(inputs, got, shape, axes)
    assert counts.kernels_run == 1 and counts.kernels_failed == 0
    for made, expected in zip(got, want, strict=True):
        same(np.ascontiguousarray(made), np.ascontiguousarray(expected), loop)
    return got


@pytest.mark.long
@hypothesis.settings(max_examples=LOOPS, deadline=None)
@hypothesis.given(strategies.integers(0, 2**32 - 1))
def test_random_loops_with_windows(seed):
    rng = np.random.default_rng(seed)
    loop = random_windows(rng)
    kernel = native.Kernel(loop)
    for _ in range(6):
        settings.num_threads = int(rng.integers(1, 5))
        check(loop, *random_arrays(rng, loop), kernel)


@pytest.mark.long
@hypothesis.settings(max_examples=LOOPS, deadline=None)
@hypothesis.given(strategies.integers(0, 2**32 - 1))
def test_random_loops_with_carries(seed):
    rng = np.random.default_rng(seed)
    loop = random_carries(rng)
    kernel = native.Kernel(loop)
    for _ in range(4):
        settings.num_threads = int(rng.integers(1, 5))
        inputs, axis, want = row_shapes(rng, loop)
        for got, expected in zip(kernel.rows(inputs, axis), want, strict=True):
            same(got, expected, loop)


def test_a_running_sum():
    value = carry(0, "f64") + cast(load(0, "f32"), "f64")
    stage = Stage(((0, cast(value, "f32")),), carries=((const(0.0, "f64"), value),))
    loop = Loop("cumsum", (Operand("f32"),), (Operand("f32"),), (stage,))
    assert "for each element in order, from c0 = 0.0:" in source(loop) and not loop.elementwise
    x = np.random.default_rng(7).standard_normal((5, 40, 60)).astype(np.float32)
    kernel = native.Kernel(loop)
    for axis in range(3):
        for given in (x, np.flip(x, axis)):
            (got,) = kernel.rows([given], axis)
            np.testing.assert_array_equal(got, np.cumsum(given, axis, dtype=np.float64).astype(np.float32))


@pytest.mark.parametrize(("start", "value", "said"), [
    (const(0.0, "f32"), carry(0, "f64"), "no carry c0 of f64"),
    (const(0.0, "f64"), load(0, "f32") + carry(1, "f32"), "no carry c1"),
    (const(0.0, "f64"), load(0, "f32"), "starts as f64 and goes on as f32"),
    (load(0, "f32"), load(0, "f32"), "start of c0 uses a value of single elements"),
])  # fmt: skip
def test_wrong_carries_are_refused(start, value, said):
    stage = Stage(((0, load(0, "f32")),), carries=((start, value),))
    with pytest.raises(LoopError, match=said):
        validate(Loop("wrong", (Operand("f32"),), OUT, (stage,)), KNOWN)


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_processors_with_shorter_vectors(lanes, monkeypatch):
    monkeypatch.setattr(code, "_lanes", lambda loop, of_32_bits: lanes)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        loop = random_windows(rng)
        check(loop, *random_arrays(rng, loop))
    rng = np.random.default_rng(0)
    values, chosen = rng.standard_normal((9, 23)).astype(np.float32), rng.integers(0, 4, (9, 1))
    wide = Loop("scatter_rows", (Operand("f32"), Operand("i64", True)), (Operand("f32", axes=1),), ADD.stages)
    check(wide, [values, chosen], [np.zeros((1, 23, 4), np.float32)], (9, 23), (1,))


GATHER = Loop("gather", (Operand("f32", axes=1), Operand("i64", True)), (Operand("f32"),),
              (Stage(((0, load_at(0, "f32", load(1, "i64"))),)),))  # fmt: skip
ADD = Loop("scatter_add", (Operand("f32"), Operand("i64")), (Operand("f32", True, 1),),
           (Stage(stores_at=(StoreAt(0, (load(1, "i64"),), load(0, "f32"), "add"),)),))  # fmt: skip


def test_rows_of_a_table_are_vector_loads():
    """The table is contiguous along the row: no gather instruction."""
    rng = np.random.default_rng(0)
    table, chosen = rng.standard_normal((50, 37)).astype(np.float32), rng.integers(0, 50, (20, 1))
    kernel = native.Kernel(GATHER)
    (got,) = check(GATHER, [table.T[None], chosen], [np.zeros((20, 37), np.float32)], (20, 37), (1,), kernel)
    np.testing.assert_array_equal(got, table[chosen[:, 0]])
    assert "gather" not in kernel.llvm
    check(GATHER, [laid(rng, table.T[None]), chosen], [np.zeros((20, 37), np.float32)], (20, 37), (1,))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_stores_in_one_place_are_added_in_order(threads):
    rng = np.random.default_rng(1)
    values, chosen = rng.standard_normal(5000).astype(np.float32), rng.integers(0, 3, 5000)
    want = np.zeros(3, np.float32)
    np.add.at(want, chosen, values)
    settings.num_threads = threads
    (got,) = check(ADD, [values, chosen], [np.zeros((1, 3), np.float32)], (5000,), (0,))
    np.testing.assert_array_equal(got[0], want)


def test_stores_by_index_are_split_only_where_parts_cannot_meet():
    rng = np.random.default_rng(2)
    kernel = native.Kernel(ADD)
    settings.num_threads = 4
    arrays = [rng.standard_normal((8, 500)).astype(np.float32), rng.integers(0, 3, (8, 500))]
    one, each = np.zeros((1, 1, 3), np.float32), np.zeros((8, 1, 3), np.float32)
    with counted() as counts:
        kernel.into(arrays, [one], (8, 500), (1,))
    assert counts.kernels_split == 0
    with counted() as counts:
        kernel.into(arrays, [each], (8, 500), (1,))
    assert counts.kernels_split == 1
    np.testing.assert_allclose(each.sum(0), one[0], rtol=1e-5, atol=1e-5)


def sliding(value, rows=3, columns=3):
    """A loop over images (input 0) with a window of `value(i, j, row, column)` around each element."""
    row, column = load(1, "i64"), index()
    image = Operand("f32", True, 2)
    found = total(rows, lambda i: total(columns, lambda j: value(i, j, row + i - 1, column + j - 1)))
    return Loop("slide", (image, Operand("i64", True)), (Operand("f32"),), (Stage(((0, found),)),))


def test_a_window_over_images():
    loop = sliding(lambda i, j, r, c: load_at(0, "f32", r, c, mask=inside(0, r, c)))
    rng = np.random.default_rng(3)
    images = rng.integers(-5, 5, (2, 9, 70)).astype(np.float32)
    kernel = native.Kernel(loop)
    (got,) = check(loop, [images[:, None, None], np.arange(9)[:, None]], [np.zeros((2, 9, 70), np.float32)],
                   (2, 9, 70), (2,), kernel)  # fmt: skip
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    want = sum(padded[:, i : i + 9, j : j + 70] for i in range(3) for j in range(3))
    np.testing.assert_array_equal(got, want)
    assert "gather" not in kernel.llvm and "masked.load" in kernel.llvm


def test_sums_of_windows_of_any_length():
    begin, end = load(1, "i64"), load(2, "i64")
    number = Operand("i64", True)
    loop = Loop("segments", (Operand("f32", axes=1), number, number), (Operand("f32"), Operand("f32")), (Stage((
        (0, long_total(end - begin, lambda k: load_at(0, "f32", begin + k))),
        (1, largest(end - begin, lambda k: load_at(0, "f32", begin + k))),
    )),))  # fmt: skip
    rng = np.random.default_rng(4)
    table = rng.standard_normal((3000, 70)).astype(np.float32)
    offsets = np.array([0, 5, 5, 64, 128, 129, 3000])[:, None]
    outs = [np.zeros((6, 70), np.float32) for _ in range(2)]
    sums, most = check(loop, [table.T[None], offsets[:-1], offsets[1:]], outs, (6, 70), (1,))
    for row, (a, b) in enumerate(zip(offsets[:-1, 0], offsets[1:, 0], strict=True)):
        np.testing.assert_allclose(sums[row], table[a:b].astype(np.float64).sum(0), atol=2e-5)
        np.testing.assert_array_equal(most[row], table[a:b].max(0, initial=-np.inf))


def test_a_fold_of_two_values_is_one_loop():
    """The largest element of a window and its place; among NaNs the last, which a reduction does not do."""

    def body(k, best, place):
        x = load_at(0, "f64", k)
        take = apply("logical_or", apply("gt", x, best), apply("isnan", x))
        return apply("where", take, x, best), apply("where", take, k, place)

    best, place = fold(size(0, 0), (const(-np.inf, "f64"), const(-1, "i64")), body)
    loop = Loop("largest", (Operand("f64", axes=1),), (Operand("f64"), Operand("i64")),
                (Stage(((0, best), (1, place))),))  # fmt: skip
    table = np.random.default_rng(5).integers(0, 9, (40, 6)).astype(np.float64)
    table[3, 2] = table[3, 4] = np.nan
    kernel = native.Kernel(loop)
    found, at = check(loop, [table], [np.zeros(40), np.zeros(40, np.int64)], (40,), (0,), kernel)
    assert at[3] == 4 and (np.delete(at, 3) == np.delete(table, 3, 0).argmax(1)).all()
    assert (found[at >= 0] == table.max(1))[np.delete(np.arange(40), 3)].all()
    assert kernel.llvm.count("load <") + kernel.llvm.count("gather.v") < 20


def test_a_fold_inside_a_reduction():
    value = total(size(1, 0), lambda k: load_at(1, "f64", k) * load(0, "f64"))
    loop = Loop("reduced", (Operand("f64"), Operand("f64", axes=1)), (Operand("f64", True),),
                (Stage(reductions=(Reduction("sum", value),)),), ((0, reduction(0, "f64")),))  # fmt: skip
    rng = np.random.default_rng(6)
    x, table = rng.integers(-4, 5, (3, 100)) / 2, rng.integers(-4, 5, (3, 100, 5)) / 2
    (got,) = check(loop, [x, table], [np.zeros((3, 1))], (3, 100), (1,))
    np.testing.assert_array_equal(got[:, 0], (x[:, :, None] * table).sum((1, 2)))


def test_equal_windows_are_one_expression():
    """Whatever folds were built before: variables are numbered by how folds are nested."""

    def made():
        return total(3, lambda i: total(size(0, 0), lambda j: load_at(0, "f32", i + j)))

    assert made() is made()
    two = [Loop("a", (Operand("f32", axes=1),), (Operand("f32"),), (Stage(((0, made()),)),)) for _ in range(2)]
    assert exact(two[0]) == exact(two[1])
    shared = total(2, lambda k: load_at(0, "f32", k))
    assert total(3, lambda k: shared) is total(3, lambda k: total(2, lambda j: load_at(0, "f32", j)))


def test_the_text_of_a_loop_shows_windows():
    assert "y0 = x0[x1]" in source(GATHER) and "x0: f32[1]" in source(GATHER)
    assert "y0[x1] += x0" in source(ADD)
    loop = Loop("t", (Operand("f32", axes=1),), (Operand("f32"),), (Stage(((0, total(4, lambda i: load_at(
        0, "f32", index() + i, mask=inside(0, index() + i)))),)),))  # fmt: skip
    assert "fold(c0_0 = 0; for i0 < 4: c0_0 = c0_0 + x0[t0 where t0 >= 0 & t0 < size(x0, 0)])" in source(loop)


TABLE = (Operand("f32", axes=1), Operand("f32"))


@pytest.mark.parametrize(("value", "said"), [
    (load(0, "f32"), "no input x0"),
    (load_at(1, "f32", index()), "no input x1"),
    (load_at(0, "f32", index(), index()), "with 2 axes"),
    (expr("cast", (load_at(0, "f64", index()),), "f32"), "no input x0 of f64"),
    (load_at(0, "f32", const(0, "i32")), "positions of i32"),
    (load_at(0, "f32", index(), mask=index()), "positions of i64, i64"),
    (expr("cast", (size(0, 1),), "f32"), "no axis 1"),
    (total(index(), lambda k: load_at(0, "f32", k)), "differs between the elements"),
    (total(expr("cast", (load(1, "f32"),), "i64"), lambda k: load_at(0, "f32", k)), "differs between the elements"),
    (expr("cast", (expr("step", (), "i64", 0),), "f32"), "outside its body"),
    (load(1, "f32") + expr("carried", (), "f32", (0, 0)), "outside its body"),
])  # fmt: skip
def test_what_breaks_a_rule_is_refused(value, said):
    with pytest.raises(LoopError, match=said):
        validate(Loop("wrong", TABLE, OUT, (Stage(((0, value),)),)), KNOWN)


@pytest.mark.parametrize(("outputs", "store", "said"), [
    (OUT, StoreAt(0, (index(),), load(1, "f32")), "no output y0 with 1 axes"),
    ((Operand("f32", axes=2),), StoreAt(0, (index(),), load(1, "f32")), "no output y0 with 1 axes"),
    ((Operand("f64", axes=1),), StoreAt(0, (index(),), load(1, "f32")), "is f64, the value"),
    ((Operand("f32", axes=1),), StoreAt(0, (index(),), load(1, "f32"), "mul"), "'mul' cannot combine"),
    ((Operand("f32", axes=1),), StoreAt(0, (index(),), load(1, "f32"), "set", index()), "a mask is bool"),
])  # fmt: skip
def test_wrong_stores_by_index_are_refused(outputs, store, said):
    with pytest.raises(LoopError, match=said):
        validate(Loop("wrong", TABLE, outputs, (Stage(stores_at=(store,)),)), KNOWN)


def test_folds_and_carries_are_for_the_loops_that_have_code_for_them():
    counted_up = fold(3, (const(0.0, "f32"),), lambda k, c: (c + load(0, "f32"),))
    with pytest.raises(LoopError, match="axes of their own"):
        validate(Loop("wrong", OUT, OUT, (Stage(((0, counted_up[0]),)),)), KNOWN)
    stage = Stage(((0, load(1, "f32")),), carries=((const(0.0, "f32"), load(1, "f32")),))
    with pytest.raises(LoopError, match="no operands with axes"):
        validate(Loop("wrong", TABLE, OUT, (stage,)), KNOWN)


def test_an_output_is_stored_by_index_once():
    store = StoreAt(0, (index(),), load(1, "f32"))
    with pytest.raises(LoopError, match="twice"):
        validate(Loop("wrong", TABLE, (Operand("f32", axes=1),), (Stage(stores_at=(store, store)),)), KNOWN)


def test_the_interpreter_refuses_positions_outside():
    with pytest.raises(IndexError, match="outside an array"):
        interpret_rows(GATHER, [np.zeros((1, 4, 3), np.float32), np.array([[3]])], (1,), numpy_function, (1, 4))


def test_rows_cannot_guess_what_the_loop_runs_over():
    with pytest.raises(LoopError, match=r"kernel\.into"):
        native.Kernel(GATHER).rows([np.zeros((3, 4), np.float32), np.zeros((3, 1), np.int64)], 1)


@pytest.mark.long
def test_nothing_outside_arrays_is_touched():
    run = [sys.executable, "-m", "tests.codegen.windows_between_walls", "8"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0 and "no wall was touched" in done.stdout, done.stderr
