"""Kernels in CUDA C on NumPy arrays, through the emulation: forms of launches, special values, plans, refusals."""

import ctypes
import math

import numpy as np
import pytest

from tests.codegen.loops import row_loop, same
from tests.gpu.cases import Case, close, needs_compiler, needs_nvrtc, run_cases
from tests.gpu.emulation.host import HostLauncher
from wayfare.codegen.cuda import layout as layouts
from wayfare.codegen.cuda import nest, nvrtc
from wayfare.codegen.cuda.kernel import CudaKernel, build
from wayfare.codegen.cuda.layout import Limits
from wayfare.codegen.loop.expr import FLOATS, NUMPY, cast, index, load, reduction, reload
from wayfare.codegen.loop.interpreter import interpret_rows
from wayfare.codegen.loop.language import REDUCTIONS, Loop, Operand, Reduction, Stage, elementwise
from wayfare.codegen.math.library import loop_math, numpy_function
from wayfare.core.counters import counted
from wayfare.errors import LoopError

pytestmark = needs_compiler


def summed(dtype="f32"):
    return elementwise("summed", [dtype, dtype], load(0, dtype) + load(1, dtype))


def softmax():
    x = load(0, "f32")
    e = loop_math.exp(x - reduction(0, "f32"))
    return Loop("softmax", (Operand("f32"),), (Operand("f32"),), (
        Stage(reductions=(Reduction("max", x),)), Stage(((0, e),), (Reduction("sum", e),)),
        Stage(((0, reload(0, "f32") / reduction(1, "f32")),)),
    ))  # fmt: skip


def layer_norm():
    """Rows with three stages, values per row that are given, and values per row that are made."""
    x, count = load(0, "f32"), load(1, "f32")
    mean = reduction(0, "f32") / count
    centred = x - mean
    scale = loop_math.rsqrt(reduction(1, "f32") / count + 1e-5)
    return Loop(
        "layer_norm", (Operand("f32"), Operand("f32", True)), (Operand("f32"), Operand("f32", True)),
        (Stage(reductions=(Reduction("sum", x),)), Stage(reductions=(Reduction("sum", centred * centred),)),
         Stage(((0, centred * scale),))), ((1, scale),),
    )  # fmt: skip


def layouts_met(kernel):
    return list(kernel._texts)


# -- loops without rows


@pytest.mark.parametrize("dtype, vector", [("f32", 4), ("f64", 2), ("i16", 8), ("u8", 16)])
@pytest.mark.parametrize("size", [1, 15, 16, 4096, 4099])
def test_contiguous_arrays_are_loaded_in_groups(dtype, vector, size):
    kernel = CudaKernel(summed(dtype), HostLauncher())
    x = np.arange(size).astype(NUMPY[dtype])
    same(kernel([x, x])[0], x + x)
    (found,) = layouts_met(kernel)
    assert found.vector == (vector if size > vector or size == vector == 16 else found.vector)
    assert found.tail == (size % found.vector != 0)


def test_broadcast_operands_are_loaded_in_groups_or_once():
    launcher = HostLauncher()
    kernel = CudaKernel(summed(), launcher)
    x = np.arange(24 * 40, dtype=np.float32).reshape(24, 40)
    for other in (x[0], x[:, :1], x[:1, :1]):
        same(kernel([x, other])[0], x + other)
    assert {(f.vector, f.classes) for f in layouts_met(kernel)} == {(4, "ccc"), (4, "cbc")}


def test_memory_that_is_not_aligned_is_loaded_one_by_one():
    launcher = HostLauncher()
    kernel = CudaKernel(summed(), launcher)
    memory = np.arange(101, dtype=np.float32)
    for start in (0, 1, 0):
        x = memory[start : start + 100]
        same(kernel([x, x])[0], x + x)
    assert sorted(f.vector for f in layouts_met(kernel)) == [1, 4]


def test_arrays_of_many_axes_need_no_copy():
    kernel = CudaKernel(summed(), HostLauncher())
    x = np.arange(2 * 3 * 4 * 5 * 6, dtype=np.float32).reshape(2, 3, 4, 5, 6)
    a, b = (
        x[:, ::-1, :, ::2],
        x.transpose(0, 1, 2, 4, 3)[:, :, :, :5, :][..., :3].transpose(0, 1, 2, 4, 3)[..., [0, 1, 2, 3, 4, 0]],
    )
    same(kernel([a, b])[0], a + b)
    assert max(f.element_axes for f in layouts_met(kernel)) >= 4


@pytest.mark.parametrize("loop, axis", [(summed(), None), (row_loop("sum"), 1), (row_loop("argmax"), 0)])
def test_large_arrays_have_64_bit_indices(monkeypatch, loop, axis):
    monkeypatch.setattr(layouts, "_NARROW", 16)
    kernel = CudaKernel(loop, HostLauncher())
    x = np.arange(600, dtype=np.float32).reshape(20, 30) % 7
    if axis is None:
        same(kernel([x, x])[0], x + x)
    else:
        same(kernel.rows([x], axis)[0], interpret_rows(loop, [x], (axis,), numpy_function)[0])
    assert all(f.wide for f in layouts_met(kernel))


def test_transposed_inputs_give_transposed_outputs():
    kernel = CudaKernel(summed(), HostLauncher())
    x = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    (out,) = kernel([x, x])
    assert out.flags.f_contiguous
    same(out, x + x)


# -- rows

FORMS = [((9, 20), 1, "lanes", 1), ((9, 3), 1, "lanes", 1), ((40, 80), 1, "lanes", 1), ((40, 97), 1, "block", 1),
         ((3, 400), 1, "block", 2), ((1, 5000), 1, "block", 2),
         ((33, 40), 0, "column", 2), ((400, 500), 0, "column", 2), ((60, 500), 0, "column", 1),
         ((5, 33, 40), 1, "column", 1), ((3, 4, 5), (0, 1, 2), "lanes", 1)]  # fmt: skip


@pytest.mark.parametrize("shape, axis, form, chunked", FORMS)
def test_forms_of_rows(shape, axis, form, chunked):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    axes = (axis,) if isinstance(axis, int) else axis
    for loop, inputs in ((softmax(), [x]), (layer_norm(), [x, np.full((1,) * x.ndim, 7, np.float32)])):
        launcher = HostLauncher()
        kernel = CudaKernel(loop, launcher)
        made = kernel.rows(inputs, axis)
        for got, want in zip(made, interpret_rows(loop, inputs, axes, numpy_function), strict=True):
            close(got, want, f"{loop.name} {shape} {axis}")
        assert {f.form for f in layouts_met(kernel)} == {form}
        parts = len(loop.stages) + bool(loop.results)
        assert len(launcher.names) == (parts if chunked > 1 else 1)


@pytest.mark.parametrize("length, threads", [(100, 64), (1024, 64), (1028, 128), (2048, 128), (2052, 0), (101, 0)])
def test_a_row_that_several_stages_read_is_loaded_once(length, threads):
    """If it fits in the registers of a block of one of two sizes, and is loaded in groups; else each stage loads it."""
    x = np.random.default_rng(0).standard_normal((40, length)).astype(np.float32)
    for loop, inputs in ((softmax(), [x]), (layer_norm(), [x, np.full((1, 1), 7, np.float32)])):
        kernel = CudaKernel(loop, HostLauncher())
        made = kernel.rows(inputs, 1)
        for got, want in zip(made, interpret_rows(loop, inputs, (1,), numpy_function), strict=True):
            close(got, want, loop.name)
        (layout,) = layouts_met(kernel)
        assert (layout.form, layout.held) == ("block", 4 if threads else 0)
        loads = kernel.text.count("(p_x0 + ")
        assert loads == 1 if threads else loads > 1
        if threads:
            (plan,) = kernel._plans.values()
            assert [step.block for step in plan._steps] == [(threads, 1, 1)]


ON_AN_H200 = [((8192, 4096), 0, 1024), ((4096, 8192), 1, 4096), ((1, 1 << 25), 1, 1056), ((50, 1 << 20), 1, 1050),
              ((256, 4096), 0, 128)]  # fmt: skip


@pytest.mark.parametrize("shape, axis, blocks", ON_AN_H200)
def test_launches_on_an_h200_have_blocks_enough(shape, axis, blocks):
    """Eight blocks for each of 132 processors where the arrays are large, without running anything."""
    loop = row_loop("sum")
    strides = (shape[1] * 4, 4)
    made = (1 if axis == 0 else shape[0], 1 if axis == 1 else shape[1])
    out = (0, 4) if axis == 0 else (4, 0)
    arranged = layouts.rows(loop, shape, (axis,), [shape, made], [strides, out], [4, 4], Limits(), True)
    assert math.prod(arranged.launches[0].grid) == blocks


@pytest.mark.parametrize("kind", sorted(REDUCTIONS))
def test_reductions_of_all_dtypes_and_forms(kind):
    rng = np.random.default_rng(1)
    cases = []
    for dtype in ("bool", "u8", "i8", "i16", "i32", "i64", "f32", "f64"):
        if (kind in ("any", "all")) != (dtype == "bool"):
            continue
        for shape, axis, *_ in FORMS:
            x = rng.integers(0, 5, shape) if kind != "prod" else rng.integers(1, 3, shape)
            axes = (axis,) if isinstance(axis, int) else axis
            x = (
                x.astype(NUMPY[dtype])
                if kind != "prod" or dtype not in FLOATS
                else np.where(x > 1, -1, 1).astype(NUMPY[dtype])
            )
            cases.append(Case(row_loop(kind, dtype), [x], axes, f"{kind} {dtype} {shape}"))
    run_cases(cases, same)


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin", "sum", "prod"])
def test_special_values_are_reduced_as_the_interpreter_does(kind):
    rng = np.random.default_rng(0)
    cases = []
    for trial in range(40):
        shape, axis, *_ = FORMS[trial % len(FORMS)]
        x = rng.integers(-3, 3, shape).astype(["f4", "f8"][trial % 2])
        odd = rng.random(shape) < (0.01, 0.2, 0.9)[trial % 3]
        x[odd] = rng.choice([np.nan, np.inf, -np.inf][trial // 2 % 2 :], shape)[odd]
        axes = (axis,) if isinstance(axis, int) else axis
        cases.append(Case(row_loop(kind, "f32" if x.dtype == np.float32 else "f64"), [x], axes))
    run_cases(cases)


def test_sums_are_as_accurate_as_those_of_the_cpu():
    rng = np.random.default_rng(0)
    launcher = HostLauncher(Limits(processors=16))
    numbers = rng.uniform(0.5, 1.5, 300_000).astype(np.float32)
    (got,) = CudaKernel(row_loop("sum"), launcher).rows([numbers], 0)
    assert abs(float(got[0]) - math.fsum(numbers)) <= np.spacing(np.float32(math.fsum(numbers)))
    wide = rng.standard_normal(100_000) * 10.0 ** rng.integers(-8, 8, 100_000)
    wide = np.concatenate([wide, -wide[::-1], [1.0]])
    (got,) = CudaKernel(row_loop("sum", "f64"), launcher).rows([wide], 0)
    assert abs(float(got[0]) - 1.0) < 1e-12


def test_the_index_is_the_position_in_the_row():
    x = load(0, "f32")
    loop = Loop("placed", (Operand("f32"),), (Operand("f32"), Operand("f32", True)),
                (Stage(((0, x + cast(index(), "f32")),), (Reduction("sum", cast(index(), "f32")),)),),
                ((1, reduction(0, "f32")),))  # fmt: skip
    rng = np.random.default_rng(0)
    run_cases([Case(loop, [rng.integers(0, 9, shape).astype(np.float32)], (axis,) if isinstance(axis, int) else axis)
               for shape, axis, *_ in FORMS], same)  # fmt: skip


def test_empty_rows():
    launcher = HostLauncher()
    x = np.empty((3, 0), np.float32)
    (total,) = CudaKernel(row_loop("sum"), launcher).rows([x], 1)
    same(total, np.zeros((3, 1), np.float32))
    with pytest.raises(LoopError, match="no largest"):
        CudaKernel(row_loop("max"), launcher).rows([x], 1)
    assert CudaKernel(row_loop("max"), launcher).rows([x.T], 1)[0].shape == (0, 1)
    assert CudaKernel(summed(), launcher)([x, x])[0].shape == (3, 0)


@needs_nvrtc
@pytest.mark.parametrize("loop, shape, axis, wanted", [
    (summed(), (4096,), None, b"ld.global.v4.f32"), (softmax(), (64, 512), 1, b"ld.global.v4.f32"),
    (summed("i16"), (4096,), None, b"ld.global.v4.u32"), (summed("f64"), (4096,), None, b"ld.global.v2.f64"),
])  # fmt: skip
def test_groups_are_one_load_each(loop, shape, axis, wanted):
    x = np.ones(shape, NUMPY[loop.inputs[0].dtype])
    kernel = CudaKernel(loop, HostLauncher(Limits()))
    text = kernel.texts([x] * len(loop.inputs), axis)[0]
    assert wanted in nvrtc.nvrtc().compile(text, "compute_90")


# -- plans and refusals


def test_a_second_call_compiles_and_plans_nothing(monkeypatch):
    launcher = HostLauncher()
    kernel = CudaKernel(softmax(), launcher)
    x = np.ones((4, 8), np.float32)
    first = kernel.rows([x], 1)
    monkeypatch.setattr(kernel, "plan", None)
    monkeypatch.setattr(launcher, "compile", None)
    with counted() as counts:
        again = kernel.rows([x + 1], 1)
    same(again[0], first[0])
    assert counts.kernels_run == 1 and len(launcher.names) == 2


@pytest.mark.parametrize("loop, shape, axes", [(row_loop("sum"), (1, 5000), (1,)), (row_loop("max"), (40, 9), (1,))])
def test_a_plan_is_launched_on_memory_of_the_caller(loop, shape, axes):
    launcher = HostLauncher()
    x, out = np.ones(shape, np.float32), np.zeros((shape[0], 1), np.float32)
    plan = CudaKernel(loop, launcher).plan_of([x, out], shape, axes)
    room = np.empty(plan.workspace + 1, np.uint8)
    assert (plan.workspace > 0) == (shape[0] == 1)
    launcher.empty = None
    plan.run([launcher.pointer(x), launcher.pointer(out)], launcher.pointer(room))
    same(out, np.full_like(out, shape[1] if loop.name == "reduction" and shape[0] == 1 else 1))
    out[...] = 0
    assert CudaKernel(loop, HostLauncher()).into([x], [out], shape, axes)[0] is out
    assert out.all()


def test_equal_loops_share_a_kernel():
    launcher = HostLauncher()
    assert build(softmax(), launcher) is build(softmax(), launcher)
    assert build(softmax(), launcher) is not build(softmax(), HostLauncher())


def test_sizes_share_a_text():
    launcher = HostLauncher()
    kernel = CudaKernel(summed(), launcher)
    for size in (8, 64, 640):
        x = np.ones(size, np.float32)
        kernel([x, x])
    assert len(layouts_met(kernel)) == 1


def test_what_is_refused():
    kernel = CudaKernel(softmax(), HostLauncher())
    x = np.ones((4, 8), np.float32)
    with pytest.raises(LoopError, match="works on rows"):
        kernel([x])
    with pytest.raises(LoopError, match="there is no axis 2"):
        kernel.rows([x], 2)
    with pytest.raises(LoopError, match="takes 1 arrays, not 2"):
        kernel.rows([x, x], 1)
    with pytest.raises(LoopError, match="float64 was given for one of float32"):
        kernel.rows([x.astype(np.float64)], 1)
    with pytest.raises(LoopError, match="an output of float32"):
        kernel.rows([x], 1, [np.ones((4, 7), np.float32)])
    with pytest.raises(LoopError, match="not list"):
        kernel.rows([[1.0]], 1)


def test_parts_of_a_loop_that_are_not_known_are_refused(monkeypatch):
    """A part that the language gets and this code generator has not must not be left out silently."""
    monkeypatch.setitem(nest._KNOWN, Stage, {"stores"})
    with pytest.raises(LoopError, match="softmax: reductions cannot be written"):
        CudaKernel(softmax(), HostLauncher())


def test_threads_that_wait_for_each_other_for_ever_are_noticed():
    text = """struct stuck_words { long long n; };
extern "C" __global__ void stuck(const stuck_words a) { if (threadIdx.x == 0) __syncthreads(); else __syncwarp(); }
"""
    launcher = HostLauncher()
    with pytest.raises(RuntimeError, match="for ever"):
        launcher.launch(launcher.compile(text)["stuck"], (1, 1, 1), (32, 1, 1), 0, (ctypes.c_int64 * 1)(0))
