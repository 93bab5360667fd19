"""Kernels: what can be looked at, what is refused, where results go, and that they are vector code."""

import re

import numpy as np
import pytest

import wayfare as wf
from tests.codegen.loops import row_loop
from wayfare.codegen.llvm import code
from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.loop.call import PLANS
from wayfare.codegen.loop.expr import apply, call, cast, load, reduction, reload
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage, elementwise
from wayfare.codegen.math.library import numpy_function
from wayfare.codegen.runtime import kernel as native
from wayfare.core.config import settings
from wayfare.core.counters import counted
from wayfare.core.errors import LoopError

pytestmark = pytest.mark.skipif(not native.available(), reason="llvmlite does not work here")

X, Y = load(0, "f32"), load(1, "f32")
ADD = elementwise("add_for_tests", ["f32", "f32"], X + Y)
FLOATS = np.arange(12, dtype=np.float32).reshape(3, 4)


# -- looking inside -----------------------------------------------------------------------------------------------


def test_a_kernel_shows_its_loop_its_ir_and_its_machine_code():
    kernel = native.Kernel(ADD)
    assert kernel.source == "loop add_for_tests(x0: f32, x1: f32) -> (y0: f32)\n  for each element:\n    y0 = x0 + x1"
    assert "define void @k" in kernel.llvm and "fadd" in kernel.llvm
    assert ".rows" in kernel.asm
    assert repr(kernel) == "<kernel add_for_tests>"


needs_x86 = pytest.mark.skipif(not native.available() or not machine().is_x86, reason="reads x86 assembly")


def packed(asm, stem):
    return re.findall(rf"\bv?{stem}p[sd]\s[^\n]*%[xyz]mm", asm)


@needs_x86
@pytest.mark.parametrize(("dtype", "letter"), [("f32", "s"), ("f64", "d")])
def test_the_main_loop_is_vector_code(dtype, letter):
    x, y = load(0, dtype), load(1, dtype)
    asm = native.Kernel(elementwise("vectors", [dtype, dtype], x * y + x)).asm
    assert re.search(rf"\bv?mulp{letter}\s[^\n]*%[xyz]mm", asm), "no packed multiplication"
    assert re.search(rf"\bv?addp{letter}\s[^\n]*%[xyz]mm", asm), "no packed addition"
    assert not re.search(rf"\bv?muls{letter}\s", asm), "a scalar multiplication is left"


@needs_x86
def test_loops_over_bf16_are_vector_code_without_calls():
    x, y = (cast(load(i, "bf16"), "f32") for i in range(2))
    asm = native.Kernel(elementwise("narrow", ["bf16", "bf16"], cast(x * y + x, "bf16"))).asm
    body = asm.split(".rows:")[1].split(".Lfunc_end")[0]
    assert packed(body, "mul") and not re.search(r"\bcall|\bv?mulss\s", body)
    assert re.search(r"\bv?pslld\s[^\n]*%[xyz]mm", body), "bf16 is not widened in vectors"


@needs_x86
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("function", ["exp", "tanh", "sigmoid", "log", "erf", "log1p", "expm1"])
def test_elementary_functions_are_vector_code_without_calls(function, dtype):
    kernel = native.Kernel(elementwise(function, [dtype], apply(function, load(0, dtype))))
    body = kernel.asm.split(".rows:")[1].split(".Lfunc_end")[0]
    assert not re.search(r"\bcall", body), "the loop calls a function"
    assert packed(body, "mul") or packed(body, "fmadd...") or packed(body, "fnmadd...")


@needs_x86
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_reductions_are_vector_code(kind):
    asm = native.Kernel(row_loop(kind)).asm
    assert packed(asm, {"sum": "add", "max": r"(?:max|cmp\w*)"}[kind])


def test_a_library_function_is_called_where_there_is_no_other_way():
    kernel = native.Kernel(elementwise("gamma", ["f64"], apply("lgamma", load(0, "f64"))))
    assert "scipy_lgamma" in kernel.llvm
    x = np.linspace(0.5, 9, 100)
    np.testing.assert_allclose(kernel([x])[0], numpy_function("lgamma")(x), 1e-14)


# -- what is refused ----------------------------------------------------------------------------------------------

ROWS = native.Kernel(row_loop("sum"))
BIASED = native.Kernel(Loop("biased", (Operand("f32"), Operand("f32", True)), (Operand("f32"),),
                            (Stage(((0, X + Y),)),)))  # fmt: skip
KERNEL = native.Kernel(ADD)


def read_only():
    array = np.zeros((3, 4), np.float32)
    array.flags.writeable = False
    return array


REFUSED = {
    "lists": (lambda: KERNEL([[1.0, 2.0], [3.0, 4.0]]), "list of arrays, not list, list"),
    "nothing": (lambda: KERNEL([None, None]), "not NoneType"),
    "one array for two": (lambda: KERNEL([FLOATS]), "takes 2 arrays, not 1"),
    "three arrays for two": (lambda: KERNEL([FLOATS] * 3), "takes 2 arrays, not 3"),
    "no arrays": (lambda: KERNEL([]), "takes 2 arrays, not 0"),
    "another dtype": (lambda: KERNEL([FLOATS, FLOATS.astype("f8")]), "float64 was given for one of float32"),
    "the other byte order": (lambda: KERNEL([FLOATS, FLOATS.astype(">f4")]), ">f4 was given for one of float32"),
    "objects": (lambda: KERNEL([FLOATS, FLOATS.astype(object)]), "object was given"),
    "a read-only output": (lambda: KERNEL([FLOATS, FLOATS], [read_only()]), "read-only.*writable"),
    "an output of another dtype": (lambda: KERNEL([FLOATS, FLOATS], [np.zeros((3, 4))]), "output of float64"),
    "an output of another shape": (lambda: KERNEL([FLOATS, FLOATS], [np.zeros((4, 3), "f4")]), r"\[3, 4\] is made"),
    "two outputs for one": (lambda: KERNEL([FLOATS, FLOATS], [FLOATS, FLOATS]), "makes 1 arrays, not 2"),
    "no outputs": (lambda: KERNEL([FLOATS, FLOATS], []), "makes 1 arrays, not 0"),
    "a list to write to": (lambda: KERNEL([FLOATS, FLOATS], [[0.0] * 12]), "not list"),
    "rows without an axis": (lambda: ROWS([FLOATS]), "works on rows.*kernel.rows"),
    "an axis that is not there": (lambda: ROWS.rows([FLOATS], 2), "no axis 2 in an array of 2 dimensions"),
    "an axis before the first": (lambda: ROWS.rows([FLOATS], -3), "no axis -3"),
    "no axis": (lambda: ROWS.rows([FLOATS], ()), r"no axis \(\)"),
    "the same axis twice": (lambda: ROWS.rows([FLOATS], (0, 0)), "must be adjacent"),
    "axes apart": (lambda: ROWS.rows([FLOATS[None]], (0, 2)), "must be adjacent"),
    "an axis by name": (lambda: ROWS.rows([FLOATS], "rows"), "no axis 'rows'"),
    "rows of a number": (lambda: ROWS.rows([np.float32(1)], 0), "no axis 0 in an array of 0 dimensions"),
    "rows of lists": (lambda: ROWS.rows([[1.0]], 0), "not list"),
    "too many values for a row": (lambda: BIASED.rows([FLOATS, FLOATS], 1), r"\[3, 4\] was given for one value"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_an_error_with_a_reason(what):
    run, message = REFUSED[what]
    with pytest.raises(LoopError, match=message):
        run()


def test_shapes_that_do_not_broadcast_are_numpys_error():
    """The engine tells such errors in its own words, with the user's shapes; so they must not be ours."""
    with pytest.raises(ValueError, match=r"\(3, ?4\).*\(2, ?4\)") as caught:
        KERNEL([FLOATS, FLOATS[:2]])
    assert not isinstance(caught.value, LoopError)
    with pytest.raises(wf.errors.ShapeError, match=r"add: shapes \[100, 300\] and \[7\]"):
        wf.ones(100, 300) + wf.ones(7)


def test_the_same_layout_with_another_dtype_is_refused_the_second_time_too():
    kernel = native.Kernel(elementwise("again", ["f32"], X + X))
    for _ in range(3):
        kernel([FLOATS])
    with pytest.raises(LoopError, match="int32 was given"):
        kernel([FLOATS.astype(np.int32)])
    with pytest.raises(LoopError, match=">f4 was given"):
        kernel([FLOATS.astype(">f4")])


class Strange(np.ndarray):
    """A subclass with an opinion about everything."""

    def __array_finalize__(self, obj):
        self.extra = "yes"

    def __array_ufunc__(self, *args, **kwargs):
        raise AssertionError("a kernel is no ufunc")


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("make", [
    np.matrix, lambda a: np.ma.array(a, mask=a > 3), lambda a: a.view(Strange), lambda a: a.copy(), np.asfortranarray,
])  # fmt: skip
def test_subclasses_of_arrays_are_read_as_the_arrays_they_are(make):
    array = make(FLOATS)
    for _ in range(3):
        (got,) = KERNEL([array, FLOATS])
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, FLOATS + FLOATS)
    out = make(np.zeros_like(FLOATS))
    (got,) = KERNEL([FLOATS, FLOATS], [out])
    assert got is out
    np.testing.assert_array_equal(np.asarray(out), FLOATS + FLOATS)


def test_a_memory_map_is_read_and_written(tmp_path):
    FLOATS.tofile(tmp_path / "numbers")
    mapped = np.memmap(tmp_path / "numbers", np.float32, "r+", shape=(3, 4))
    KERNEL([mapped, FLOATS], [mapped])
    mapped.flush()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "numbers", np.float32), 2 * FLOATS.ravel())
    fixed = np.memmap(tmp_path / "numbers", np.float32, "r", shape=(3, 4))
    np.testing.assert_array_equal(KERNEL([fixed, FLOATS])[0], 3 * FLOATS)


def test_bytes_at_any_address_are_read():
    for offset in range(1, 9):
        raw = bytes(offset) + FLOATS.tobytes()
        array = np.frombuffer(raw, np.float32, offset=offset)
        np.testing.assert_array_equal(KERNEL([array, array])[0], 2 * FLOATS.ravel())


def test_a_mask_may_have_any_bits_set():
    raw = np.array([0, 1, 2, 128, 255, 0], np.uint8)
    loop = elementwise("mask", ["bool"], load(0, "bool"), cast(load(0, "bool"), "i32"))
    truth, number = native.Kernel(loop)([raw.view(bool)])
    assert truth.view(np.uint8).tolist() == [0, 1, 1, 1, 1, 0] and number.tolist() == [0, 1, 1, 1, 1, 0]


# -- where results go ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [-3, -1, 0, 1, 5])
def test_an_output_that_overlaps_an_input(shift):
    memory = np.arange(100, dtype=np.float32)
    source, target = memory[10:60], memory[10 + shift : 60 + shift]
    want = source + source
    native.build(ADD)([source, source], [target])
    np.testing.assert_array_equal(target, want)


def test_an_output_that_is_the_input_backwards():
    memory = np.arange(50, dtype=np.float32)
    want = memory + memory
    native.build(ADD)([memory, memory], [memory[::-1]])
    np.testing.assert_array_equal(memory[::-1], want)


def test_an_output_that_is_an_inputs_row():
    memory = np.arange(12, dtype=np.float32).reshape(3, 4)
    want = memory + memory[1]
    KERNEL([memory, memory[1]], [memory])
    np.testing.assert_array_equal(memory, want)


def test_two_outputs_that_overlap_are_written_one_after_the_other():
    loop = elementwise("two", ["f32"], X + 1.0, X * 2.0)
    x, out = np.arange(50, dtype=np.float32), np.zeros(60, np.float32)
    native.build(loop)([x], [out[:50], out[10:]])
    want = np.zeros(60, np.float32)
    want[:50] = x + 1
    want[10:] = x * 2
    np.testing.assert_array_equal(out, want)
    native.build(loop)([x], [x, x])
    np.testing.assert_array_equal(x, np.arange(50) * 2)


def test_a_stretched_output_gets_a_value():
    out = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (5,), (0,))
    native.build(ADD)([np.ones(5, np.float32), np.ones(5, np.float32)], [out])
    assert out[0] == 2


def test_rows_that_are_read_again_after_they_were_written():
    loop = Loop("twice", (Operand("f32"),), (Operand("f32"),), (
        Stage(((0, X * 2.0),), (Reduction("sum", X),)), Stage(((0, X + reload(0, "f32") + reduction(0, "f32")),)),
    ))  # fmt: skip
    want = FLOATS * 3 + FLOATS.sum(1, keepdims=True)
    x = FLOATS.copy()
    native.build(loop).rows([x], 1, [x])
    np.testing.assert_array_equal(x, want)


def test_fresh_outputs_keep_the_order_of_the_inputs():
    (got,) = KERNEL([np.asfortranarray(FLOATS), np.asfortranarray(FLOATS)])
    assert got.flags.f_contiguous and not got.flags.c_contiguous


def test_inputs_are_never_written():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((7, 33)).astype(np.float32) for _ in range(2)]
    before = [a.copy() for a in arrays]
    for layout in (lambda a: a, lambda a: a[::-1], lambda a: a.T, lambda a: a[:, ::3]):
        KERNEL([layout(a) for a in arrays])
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_is_written_or_read_outside_the_arrays():
    """Guards on both sides of every array stay as they are, and poison there never reaches a result."""
    for size in (1, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100):
        for step in (1, 2, -1):
            room = np.full((3, 3 * size + 64), np.nan, np.float32)
            views = [row[32 : 32 + size * abs(step)][::step] for row in room]
            views[0][...] = views[1][...] = 1
            kept = room[2].copy()
            native.build(ADD)(views[:2], [views[2]])
            assert (views[2] == 2).all()
            views[2][...] = np.nan
            np.testing.assert_array_equal(room[2], kept)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3)])
def test_empty_arrays(shape):
    empty = np.zeros(shape, np.float32)
    (got,) = KERNEL([empty, empty])
    assert got.shape == shape
    (got,) = KERNEL([empty, np.float32(1)], [empty.copy()])
    assert got.shape == shape


def test_empty_rows_have_the_neutral_sum_and_no_largest_element():
    for axis, shape in ((1, (3, 0)), (0, (0, 3)), ((0, 1), (0, 3)), (1, (0, 3))):
        (got,) = ROWS.rows([np.zeros(shape, np.float32)], axis)
        want = np.zeros(shape, np.float32).sum(axis, keepdims=True)
        assert got.shape == want.shape and (got == want).all()
    with pytest.raises(ValueError, match="zero-size"):
        native.Kernel(row_loop("max")).rows([np.zeros((3, 0), np.float32)], 1)


# -- kernels in memory --------------------------------------------------------------------------------------------


def test_equal_loops_share_a_kernel_and_two_kernels_of_a_loop_may_live_together():
    loop = elementwise("shared", ["f32"], X * 7.0)
    assert native.build(loop) is native.build(elementwise("shared", ["f32"], load(0, "f32") * 7.0))
    for kernel in [native.Kernel(loop) for _ in range(3)]:
        np.testing.assert_array_equal(kernel([FLOATS])[0], FLOATS * 7)


def test_code_does_not_depend_on_sizes():
    kernel = native.Kernel(elementwise("sizes", ["f32"], X * 11.0))
    with counted() as counts:
        for size in (1, 2, 100, 1001, 7):
            kernel([np.ones(size, np.float32)])
            kernel([np.ones((size, 3), np.float32)])
    assert counts.kernels_built + counts.kernels_loaded == 1 and counts.kernels_run == 10


def test_ever_new_shapes_do_not_pile_up():
    kernel = native.Kernel(elementwise("piling", ["f32"], X * 13.0))
    for size in range(1, 3 * PLANS):
        kernel([np.ones(size, np.float32)])
    assert len(kernel._plans) <= PLANS and len(kernel._plans_of_new) <= PLANS


# -- building that fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("culprit", ["object_code", "load", "address"])
def test_a_loop_that_cannot_be_built_warns_once_and_is_interpreted(monkeypatch, culprit):
    def fail(*args):
        raise RuntimeError("LLVM has a bad day\nand says a lot")

    monkeypatch.setattr(type(machine()), culprit, fail)
    monkeypatch.setattr(settings, "cache_folder", None)
    name = f"unbuilt_{culprit}"
    kernel = native.Kernel(elementwise(name, ["f32"], apply("tanh", X)))
    rows = native.Kernel(row_loop("argmax", name=name + "_rows"))
    with pytest.warns(UserWarning) as seen, counted() as counts:
        for array in (FLOATS, FLOATS.T, FLOATS[:, ::-1], FLOATS):
            np.testing.assert_array_equal(kernel([array])[0], np.tanh(array))
            for axis in (0, 1, (0, 1)):
                want = array.reshape(-1).argmax() if axis == (0, 1) else array.argmax(axis)
                np.testing.assert_array_equal(rows.rows([array], axis)[0].ravel(), want)
        out = FLOATS.copy()
        kernel([out], [out])
        np.testing.assert_array_equal(out, np.tanh(FLOATS))
    said = [str(w.message) for w in seen]
    assert len(said) == 2 and said[0].startswith(f"{name}: no native kernel (LLVM has a bad day)")
    assert counts.kernels_run == 0 and counts.kernels_failed == 17


def test_a_library_function_that_is_missing_is_a_reason_to_fall_back(monkeypatch):
    def missing(symbol):
        raise LoopError(f"this SciPy has no C function {symbol!r}")

    monkeypatch.setattr("wayfare.codegen.llvm.machine.symbol_address", missing)
    monkeypatch.setattr(machine(), "_symbols", set())
    kernel = native.Kernel(elementwise("missing_symbol", ["f64"], call("sin", load(0, "f64"))))
    with pytest.warns(UserWarning, match="missing_symbol: no native kernel .*no C function 'sin'"):
        (got,) = kernel([np.ones(3)])
    np.testing.assert_allclose(got, np.sin(np.ones(3)))


def test_a_loop_of_very_many_arrays_falls_back():
    total = X
    for number in range(1, 200):
        total = total + load(number, "f32")
    kernel = native.Kernel(elementwise("crowded", ["f32"] * 200, total))
    with pytest.warns(UserWarning, match="crowded: no native kernel .*201 arrays are too many"):
        (got,) = kernel([np.full(5, number, np.float32) for number in range(200)])
    assert got.tolist() == [199 * 100] * 5


def test_a_processor_without_halves_falls_back(monkeypatch):
    import dataclasses

    host = machine()
    monkeypatch.setattr(host, "processor", dataclasses.replace(host.processor, half=False))
    x = np.array([1, 1 / 3, 100], np.float32)
    loops = [elementwise("halves", ["f16"], cast(cast(load(0, "f16"), "f32") * 2.0, "f16")),
             elementwise("halves_between", ["f32"], cast(cast(X, "f16"), "f32") * 2.0)]  # fmt: skip
    for loop, array in zip(loops, (x.astype(np.float16), x), strict=True):
        with pytest.warns(UserWarning, match=f"{loop.name}: no native kernel .*half precision"):
            (got,) = native.Kernel(loop)([array])
        np.testing.assert_array_equal(got, (x.astype(np.float16) * 2).astype(got.dtype))


def test_the_lowered_loop_is_all_primitives():
    from wayfare.codegen.loop.expr import PRIMITIVES

    loop = code.lowered(elementwise("gelu", ["f32"], X * apply("erf", X) + apply("tanh", apply("exp", X))))
    found = {e.op for e in code.expressions(loop) if e.args}
    assert found <= PRIMITIVES and len(found) > 5
