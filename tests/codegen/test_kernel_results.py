"""What the primitives and reductions of kernels compute: NumPy's results, in all edge cases."""


import numpy as np
import pytest

from tests.codegen.loops import row_loop
from wayfare.codegen.loop.expr import FLOATS as FLOATING
from wayfare.codegen.loop.expr import NUMPY, apply, bits, cast, const, expr, index, load, reduction
from wayfare.codegen.loop.interpreter import interpret
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage, elementwise
from wayfare.codegen.math.library import numpy_function
from wayfare.codegen.runtime import kernel as native
from wayfare.core.spec import BFLOAT16

pytestmark = pytest.mark.skipif(not native.available(), reason="llvmlite does not work here")

X, Y = load(0, "f32"), load(1, "f32")
FLOATS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32", "i64"])
@pytest.mark.parametrize("op", ["shift_left", "shift_right"])
def test_shifts_by_any_distance_are_numpys(op, dtype):
    info = np.iinfo(NUMPY[dtype])
    numbers = np.array([0, 1, 5, info.max, info.min, info.min + 1, 77], NUMPY[dtype])
    distances = np.array([0, 1, 3, 7, 8, 9, 15, 16, 31, 32, 63, 64, 100, info.max, info.min], np.int64)
    distances = distances.astype(NUMPY[dtype])
    a, b = (np.ascontiguousarray(g) for g in np.meshgrid(numbers, distances))
    x, y = load(0, dtype), load(1, dtype)
    want = (np.left_shift if op == "shift_left" else np.right_shift)(a, b)
    np.testing.assert_array_equal(native.build(elementwise(op, [dtype, dtype], apply(op, x, y)))([a, b])[0], want)
    fixed = native.build(elementwise(op + "_3", [dtype], apply(op, x, const(3, dtype))))
    np.testing.assert_array_equal(fixed([a])[0], (np.left_shift if op == "shift_left" else np.right_shift)(a, 3))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("target", list(NUMPY))
@pytest.mark.parametrize("source", list(NUMPY))
def test_casts_are_numpys(source, target):
    rng = np.random.default_rng(1)
    if source in FLOATING:
        numbers = rng.standard_normal(500) * 10.0 ** rng.integers(-9, 6, 500)
        numbers = np.concatenate([numbers, [0.0, -0.0, 65504, 65519.9, 65520, 2.0**-24, 2.0**-25, 1.00048828125]])
        if target not in (*FLOATING, "bool"):
            # What does not fit is nobody's to say.
            limit = np.iinfo(NUMPY[target])
            numbers = np.clip(numbers, max(limit.min, -(2.0**40)), min(limit.max, 2.0**40) - 1)
            numbers = np.clip(numbers, -60000, 60000) if source == "f16" else numbers
            numbers = 0.99 * numbers if source == "bf16" else numbers  # its rounding goes up to 1/256 further
        else:
            numbers = np.concatenate([numbers, [np.nan, np.inf, -np.inf]])
        x = numbers.astype(NUMPY[source])
    else:
        x = rng.integers(0, 256, 4000, dtype=np.uint8).view(NUMPY[source]) if source != "bool" else rng.random(99) < 0.5
    loop = Loop("cast", (Operand(source),), (Operand(target),), (Stage(((0, cast(load(0, source), target)),)),))
    (got,) = native.Kernel(loop)([x])
    want = x.astype(NUMPY[target])
    # NumPy does not know that a NaN of bfloat16 is one.
    np.testing.assert_array_equal(*[a.astype(np.float32) if target == "bf16" else a for a in (got, want)])
    if target in FLOATING:
        np.testing.assert_array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


def test_doubles_are_rounded_to_halves_once():
    """By way of single precision some would be rounded up twice."""
    x = np.concatenate([1 + 2.0**-11 + np.array([2.0**-30, -(2.0**-30), 2.0**-50, 0.0, -(2.0**-52)]),
                        2.0**-25 * (1 + np.array([0, 2.0**-40, -(2.0**-40)])), [65519.999999999, 65520.0]])  # fmt: skip
    x = np.concatenate([x, -x])
    kernel = native.build(elementwise("half", ["f64"], cast(load(0, "f64"), "f16")))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(kernel([x])[0].view(np.uint16), x.astype(np.float16).view(np.uint16))


def test_every_pair_of_halves_of_a_float_is_rounded_as_numpy_does():
    """All numbers of bf16 (infinities, subnormal numbers and NaN among them), times others: every way to round."""
    x = np.arange(1 << 16, dtype=np.uint16).view(BFLOAT16)
    y = np.random.default_rng(0).permutation(x)
    product = cast(load(0, "bf16"), "f32") * cast(load(1, "bf16"), "f32")
    loop = elementwise("product", ["bf16", "bf16"], cast(product, "bf16"))
    (got,), (want,) = native.Kernel(loop)([x, y]), interpret(loop, [x, y], numpy_function)
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "u8"])
def test_whole_division_never_traps(dtype):
    info = np.iinfo(NUMPY[dtype])
    numbers = np.array([info.min, info.min + 1, 0, 1, 7, info.max] + ([-1, -7] if dtype != "u8" else []), NUMPY[dtype])
    a, b = (np.ascontiguousarray(g) for g in np.meshgrid(numbers, numbers))
    for op in ("quotient", "remainder", "floor_divide"):
        loop = elementwise(op, [dtype, dtype], apply(op, load(0, dtype), load(1, dtype)))
        (got,) = native.Kernel(loop)([a, b])
        np.testing.assert_array_equal(got, interpret(loop, [a, b], numpy_function)[0], err_msg=op)


def test_bits_are_read_as_they_are():
    x = np.array([0.0, -0.0, 1.0, np.inf, -np.nan], np.float32)
    kernel = native.build(elementwise("bits", ["f32"], bits(X, "i32"), bits(bits(X, "i32"), "f32")))
    integer, back = kernel([x])
    np.testing.assert_array_equal(integer, x.view(np.int32))
    np.testing.assert_array_equal(back.view(np.int32), x.view(np.int32))


def test_a_fused_product_is_as_exact_as_two_steps():
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(1000).astype(np.float32) for _ in range(3))
    kernel = native.build(elementwise("fma", ["f32"] * 3, expr("fma", (X, Y, load(2, "f32")), "f32")))
    wide = a.astype(np.float64) * b + c
    (got,) = kernel([a, b, c])
    size = np.abs(a.astype(np.float64) * b) + np.abs(c)
    assert (np.abs(got - wide) <= size * 2.0**-23).all()


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 100, 1000])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin", "sum", "any", "all"])
def test_nan_and_infinity_at_every_position(kind, dtype, size):
    """NaN wins; the first of equals is found; across and along."""
    value = load(0, dtype) if kind not in ("any", "all") else apply("isnan", load(0, dtype))
    made = Reduction(kind, value)
    loop = Loop(kind, (Operand(dtype),), (Operand(made.dtype, True),), (Stage((), (made,)),),
                ((0, reduction(0, made.dtype)),))  # fmt: skip
    kernel = native.build(loop)
    positions = sorted({0, 1, size // 2, size - 2, size - 1} & set(range(size)))
    rows = [np.full(size, filler, NUMPY[dtype]) for filler in (1.0, -np.inf, np.inf, np.nan, -0.0)]
    for position in positions:
        for other in positions:
            row = np.ones(size, NUMPY[dtype])
            row[position], row[other] = np.nan, np.inf
            rows += [row, np.where(np.isnan(row), -np.inf, row), -row]
    x = np.array(rows)
    reduce = {"any": lambda a, axis: np.isnan(a).any(axis), "all": lambda a, axis: np.isnan(a).all(axis)}.get(
        kind, getattr(np, kind))  # fmt: skip
    with np.errstate(invalid="ignore"):
        want = reduce(x, axis=1)
    for array, axis in ((x, 1), (np.ascontiguousarray(x.T), 0), (np.asfortranarray(x), 1), (x[:, None], 2)):
        (got,) = kernel.rows([array], axis)
        np.testing.assert_array_equal(got.ravel(), want, err_msg=f"{array.strides}")


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_are_at_least_as_exact_as_numpys(dtype, axis):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((3, 200_000)) + 1).astype(NUMPY[dtype])
    x = np.ascontiguousarray(x if axis else x.T)
    wide = x.astype(np.longdouble).sum(axis, keepdims=True)
    (got,) = native.build(row_loop("sum", dtype)).rows([x], axis)
    pairwise = np.ascontiguousarray(np.moveaxis(x, axis, 1)).sum(1).reshape(wide.shape)
    assert (np.abs(got - wide) <= np.maximum(np.abs(pairwise - wide), np.spacing(np.abs(wide).astype(got.dtype)))).all()


def test_the_index_counts_along_the_row():
    loop = Loop("count", (Operand("f32"),), (Operand("i64"),), (Stage(((0, index()),)),))
    for array, axis in ((FLOATS, 1), (FLOATS, 0), (FLOATS, (0, 1)), (FLOATS.T, 0), (FLOATS[::-1], 0)):
        (got,) = native.build(loop).rows([array], axis)
        if axis == (0, 1):
            want = np.arange(12).reshape(3, 4)
        else:
            want = np.broadcast_to(np.expand_dims(np.arange(array.shape[axis]), 1 - axis), array.shape)
        np.testing.assert_array_equal(got, want)
