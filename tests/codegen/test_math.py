"""The maths library: how near it is to the exact functions, over the whole range and in every odd case."""

import mpmath
import numpy as np
import pytest
import scipy.special

from tests.codegen.math_reference import DTYPES, EXACT, distance, exactly, numbers, special
from wayfare.codegen.loop.expr import NUMPY, PRIMITIVES, apply, load, walk
from wayfare.codegen.loop.interpreter import interpret
from wayfare.codegen.loop.language import elementwise
from wayfare.codegen.math.library import KNOWN, expand, loop_math, lower, numpy_function, symbol_address
from wayfare.codegen.runtime import kernel
from wayfare.core.errors import LoopError

# The most units of the last place a function may be away from the exact result: (f32, f64).
BOUNDS = {
    "exp": (1.1, 1), "exp2": (1.2, 1.2), "expm1": (1.7, 2), "log": (1, 1), "log2": (1.9, 1.6), "log10": (2, 1.8),
    "log1p": (1.6, 1.5), "tanh": (1.6, 2.6), "sigmoid": (2, 2), "sinh": (1.8, 1.8), "cosh": (1.6, 1.5),
    "asinh": (0.6, 1.9), "acosh": (0.6, 1.9), "atanh": (0.6, 1.9), "sin": (1.7, 1.3), "cos": (1.7, 1.7),
    "tan": (2, 2.6), "asin": (1.6, 1.7), "acos": (1.3, 1.3), "atan": (1.5, 1.5), "erf": (1.7, 1.4),
    "erfc": (0.6, 3.7), "erfcx": (0.6, 3), "ndtr": (0.6, 4), "log_ndtr": (0.6, 4.6), "rsqrt": (1.5, 1.5),
    "square": (0.5, 0.5), "reciprocal": (0.5, 0.5),
}  # fmt: skip
BOUNDS_OF_TWO = {
    "pow": (0.6, 1), "atan2": (1.9, 1.9), "hypot": (0.6, 1.3), "xlogy": (2.1, 2.1), "xlog1py": (2.3, 2.5),
    "ldexp": (0.5, 0.5),
}  # fmt: skip
# What NumPy computes exactly, so do we.
SAME_AS_NUMPY = ("fmod", "remainder", "floor_divide", "fmax", "fmin", "heaviside", "nextafter")
OF_INTEGERS = ("fmod", "remainder", "floor_divide", "fmax", "fmin", "bitwise_left_shift", "bitwise_right_shift")
CALLS = {
    "erfinv": 1, "ndtri": 1, "lgamma": 1, "digamma": 1, "i0": 1, "i0e": 1, "i1": 1, "i1e": 1, "j0": 1, "j1": 1,
    "y0": 1, "y1": 1, "k0": 1, "k0e": 1, "k1": 1, "k1e": 1, "gammainc": 2, "gammaincc": 2,
}  # fmt: skip
# Beyond this an f64 angle has no bound in units of the last place (the C library computes it).
LARGEST_ANGLE = 1e8

ways = pytest.mark.parametrize("way", ["meaning", "native"])
floats = pytest.mark.parametrize("dtype", ["f32", "f64"])


def run(way, name, dtype, *arrays):
    """A function through its primitives: by the interpreter, or as machine code."""
    (value,) = lower([getattr(loop_math, name)(*(load(i, dtype) for i in range(len(arrays))))])
    loop = elementwise(name, [dtype] * len(arrays), value)
    if way == "meaning":
        return interpret(loop, arrays, numpy_function)[0]
    if not kernel.available():
        pytest.skip("llvmlite does not work here")
    return kernel.build(loop)(list(arrays))[0]


def worst(name, got, inputs, dtype, bits=300):
    """The largest distance from the exact results, and where."""
    found = exactly(name, *inputs, bits=bits)
    away = [(distance(g, e, dtype), i) for i, (g, e) in enumerate(zip(got, found, strict=True)) if e is not None]
    size, i = max(away)
    given = tuple(x[i] for x in inputs)
    return size, f"{name}{given} = {got[i]!r}, exactly {mpmath.nstr(found[i], 20)}: {size:.3f} ulp"


@ways
@pytest.mark.parametrize("name", BOUNDS)
def test_f64_is_near_the_exact_function(name, way):
    x = numbers("f64", 400, seed=1)
    if name in ("sin", "cos", "tan"):
        quarters = np.round(np.random.default_rng(2).uniform(-1, 1, 300) * LARGEST_ANGLE / 2) * (np.pi / 2)
        x = np.concatenate([x[~(np.abs(x) > LARGEST_ANGLE)], quarters])
    size, what = worst(name, run(way, name, "f64", x), [x], "f64")
    assert size <= BOUNDS[name][1], what


@ways
@pytest.mark.parametrize("name", BOUNDS)
def test_f32_is_near_the_exact_function(name, way):
    x = numbers("f32", 30_000, seed=3)
    got = run(way, name, "f32", x)
    reference = scipy.special.expit if name == "sigmoid" else numpy_function(name)
    with np.errstate(all="ignore"):
        wide = reference(x.astype(np.float64))
        exact = wide.astype(np.float32)
        unit = np.maximum(np.exp2(np.floor(np.log2(np.abs(wide))) - 23), 2.0**-149)
        away = np.abs(got.astype(np.float64) - wide) / unit
    away[(got == exact) | (np.isnan(got) & np.isnan(exact))] = 0.5
    away[np.isnan(away)] = np.inf
    i = np.argmax(away)
    assert away[i] <= BOUNDS[name][0], f"{name}({x[i]!r}) = {got[i]!r}, exactly {wide[i]!r}: {away[i]:.3f} ulp"


@ways
@floats
@pytest.mark.parametrize("name", BOUNDS)
def test_special_values_are_numpys(name, dtype, way):
    x = special(dtype)
    x = x[~np.isfinite(x) | (x == 0) | (np.abs(x) == 1)]
    got = run(way, name, dtype, x)
    with np.errstate(all="ignore"):
        wanted = numpy_function(name)(x)
    unusual = ~np.isfinite(wanted) | (wanted == 0)
    np.testing.assert_array_equal(got[unusual], wanted[unusual], err_msg=str(x[unusual]))
    if name != "log_ndtr":  # whose zero is negative, and has either sign in SciPy
        zero = wanted == 0
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(wanted[zero]), err_msg=str(x[zero]))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))


def pairs(dtype, count, seed):
    """Special values with each other, bit patterns, ordinary sizes, small whole numbers."""
    draw = np.random.default_rng(seed)
    odd = special(dtype)
    a, b = (grid.ravel() for grid in np.meshgrid(odd, odd))
    x = numbers(dtype, count, seed)
    y = draw.permutation(x)
    size, whole = np.abs(draw.normal(0, 3, count)), draw.integers(-9, 9, (2, count))
    parts = [(a, b), (x, y), (size, draw.normal(0, 5, count)), whole]
    return tuple(np.concatenate([p[k].astype(DTYPES[dtype]) for p in parts]) for k in (0, 1))


@ways
@floats
@pytest.mark.parametrize("name", BOUNDS_OF_TWO)
def test_functions_of_two_are_near_the_exact_ones(name, dtype, way):
    x, y = pairs(dtype, 300, seed=4)
    if name == "ldexp":
        y = np.round(np.clip(np.nan_to_num(y), -3000, 3000)).astype(x.dtype)
    if name == "pow":  # an exact power of these would have too many digits to be written
        with np.errstate(all="ignore"):
            usual = np.abs(np.float64(y) * np.log2(np.maximum(np.abs(np.float64(x)), 1e-320))) < 3000
        x, y = x[usual], y[usual]
    size, what = worst(name, run(way, name, dtype, x, y), [x, y], dtype)
    assert size <= BOUNDS_OF_TWO[name][dtype == "f64"], what


@ways
@floats
@pytest.mark.parametrize("name", ["pow", "atan2", "hypot", "xlogy", "xlog1py", "logaddexp", "logaddexp2"])
def test_special_values_of_two_are_numpys(name, dtype, way):
    x, y = pairs(dtype, 4, seed=5)
    got = run(way, name, dtype, x, y)
    with np.errstate(all="ignore"):
        wanted = numpy_function(name)(x, y)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    outside = ~(np.isfinite(x) & np.isfinite(y) & (x != 0) & (y != 0)) & ~np.isnan(wanted)
    np.testing.assert_allclose(got[outside], wanted[outside], rtol=1e-6 if dtype == "f32" else 1e-14)
    if name in ("pow", "atan2"):
        signs = np.signbit(got[outside]) == np.signbit(wanted[outside])
        assert signs.all(), (x[outside][~signs], y[outside][~signs])


@ways
@floats
@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_sums_of_exponentials_are_near_the_exact_ones(name, dtype, way):
    draw = np.random.default_rng(6)
    x, y = (draw.uniform(0.5, 50, 500).astype(DTYPES[dtype]) for _ in range(2))
    size, what = worst(name, run(way, name, dtype, x, y), [x, y], dtype)
    assert size <= 2, what


@ways
@floats
@pytest.mark.parametrize("name", SAME_AS_NUMPY)
def test_division_and_steps_are_numpys(name, dtype, way):
    x, y = pairs(dtype, 2000, seed=7)
    with np.errstate(all="ignore"):
        wanted = numpy_function(name)(x, y)
    got = run(way, name, dtype, x, y)
    np.testing.assert_array_equal(got, wanted)
    if name not in ("fmax", "fmin"):  # where NumPy itself lets either zero win
        assert np.array_equal(np.signbit(got[wanted == 0]), np.signbit(wanted[wanted == 0]))


@ways
@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32", "i64"])
def test_integers_are_numpys(dtype, way):
    kind = NUMPY[dtype]
    info, draw = np.iinfo(kind), np.random.default_rng(8)
    odd = np.array([0, 1, 2, 3, 7, 8, info.max, info.min, info.max - 1, info.min + 1], dtype=kind)
    if info.min:
        odd = np.concatenate([odd, np.array([-1, -2, -3], dtype=kind)])
    a, b = (grid.ravel() for grid in np.meshgrid(odd, odd))
    any_size = draw.integers(info.min, info.max, (2, 500), dtype=kind, endpoint=True)
    small = draw.integers(-9 if info.min else 0, 9, (2, 500)).astype(kind)
    x, y = np.concatenate([a, any_size[0], small[0]]), np.concatenate([b, any_size[1], small[1]])
    for name in OF_INTEGERS:
        with np.errstate(all="ignore"):
            wanted = numpy_function(name)(x, y)
        got = run(way, name, dtype, x, y)
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted, err_msg=f"{name} of {dtype}")
    for name in ("sign", "square"):
        np.testing.assert_array_equal(run(way, name, dtype, x), numpy_function(name)(x), err_msg=name)


@ways
@floats
def test_the_sign_of_a_float(dtype, way):
    x = special(dtype)
    np.testing.assert_array_equal(run(way, "sign", dtype, x), np.sign(x))


@ways
def test_every_f32_is_a_good_angle(way):
    # Among these is 16367173·2⁷², of all f32 the one nearest to a multiple of π/2.
    x = np.array([16367173.0 * 2.0**72, 3.4028235e38, 1e30, 2.0**60, 12345678.0, 2.5e9], np.float32)
    for name in ("sin", "cos", "tan"):
        size, what = worst(name, run(way, name, "f32", x), [x], "f32")
        assert size <= BOUNDS[name][0], what


def test_a_large_f64_angle_keeps_its_absolute_error():
    x = np.random.default_rng(10).uniform(1e9, 2.0**50, 500)
    for name in ("sin", "cos"):
        got = run("native", name, "f64", x)  # the interpreter's products are rounded: its bound is 1e8
        away = [abs(mpmath.mpf(g) - e) for g, e in zip(got, exactly(name, x), strict=True)]
        assert max(away) < 2.0**-50


@ways
def test_a_far_f64_angle_is_as_right_as_a_near_one(way):
    x = np.array([1.5, 2.0**51, -1e300, 1e22, -3.0, 1e9, np.inf, -np.inf, np.nan])
    for name in ("sin", "cos", "tan"):
        with np.errstate(invalid="ignore"):
            wanted = getattr(np, name)(x)
        np.testing.assert_allclose(run(way, name, "f64", x), wanted, rtol=1e-15, atol=1e-16)


def test_exact_results_stay_exact():
    whole = np.arange(-126, 128, dtype=np.float32)
    np.testing.assert_array_equal(run("meaning", "exp2", "f32", whole), np.exp2(whole.astype(np.float64)))
    np.testing.assert_array_equal(run("meaning", "log2", "f32", np.exp2(whole)), whole)
    np.testing.assert_array_equal(run("meaning", "erfc", "f64", np.zeros(1)), [1.0])
    np.testing.assert_array_equal(run("meaning", "ndtr", "f64", np.zeros(1)), [0.5])
    np.testing.assert_array_equal(run("meaning", "sigmoid", "f32", np.array([0, 200, -200], np.float32)), [0.5, 1, 0])


@ways
@floats
@pytest.mark.parametrize("name", CALLS)
def test_library_functions_are_scipys(name, dtype, way):
    draw = np.random.default_rng(9)
    arrays = [draw.uniform(0.05, 0.95, 50).astype(DTYPES[dtype]) for _ in range(CALLS[name])]
    wanted = numpy_function(name)(*(a.astype(np.float64) for a in arrays)).astype(DTYPES[dtype])
    np.testing.assert_array_equal(run(way, name, dtype, *arrays), wanted)


@ways
@floats
def test_the_normal_distribution_of_gelu_is_near_in_absolute_terms(dtype, way):
    x = np.concatenate([np.linspace(-40, 40, 20001), special(dtype)]).astype(DTYPES[dtype])
    wanted = numpy_function("ndtr")(x.astype(np.float64))
    got = run(way, "normal_cdf", dtype, x)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1.2e-7 if dtype == "f32" else 2.3e-16)
    # Where erf would have lost most digits, some are left; and the far end is 0, so that gelu of it is.
    tail = (x > -5) & (x < 0)
    np.testing.assert_allclose(got[tail], wanted[tail], rtol=4e-3)
    assert (got[x < -6.1] < 1e-9).all()


def test_every_known_function_has_a_bound():
    elsewhere = {"sign", "logaddexp", "logaddexp2", "normal_cdf"}
    tested = {*BOUNDS, *BOUNDS_OF_TWO, *SAME_AS_NUMPY, *OF_INTEGERS, *CALLS, *elsewhere}
    assert tested == KNOWN
    assert {*BOUNDS, *BOUNDS_OF_TWO} <= {*EXACT}


def test_powers_written_in_the_formula_are_products():
    x = load(0, "f64")
    assert {e.op for e in walk(*lower([x**3]))} == {"load", "mul"}
    (integer,) = lower([load(0, "i32") ** 5])
    assert {e.op for e in walk(integer)} == {"load", "mul"}
    with pytest.raises(LoopError, match="exponent that is written in the formula"):
        lower([load(0, "i32") ** load(1, "i32")])


def test_lower_leaves_primitives_and_keeps_what_is_shared():
    x = load(0, "f32")
    shared = loop_math.exp(x)
    first, second = lower([loop_math.log1p(shared), shared * 2])
    assert all(e.op in PRIMITIVES or not e.args for e in walk(first, second))
    (alone,) = lower([shared])
    assert any(e is alone for e in walk(first))
    assert any(e is alone for e in walk(second))


def test_what_is_not_known_is_refused():
    with pytest.raises(LoopError, match="no function 'gcd'"):
        expand(apply("gcd", load(0, "i32"), load(1, "i32")))
    with pytest.raises(LoopError, match="f32 and f64, not in i32"):
        expand(loop_math.exp(load(0, "i32")))
    with pytest.raises(LoopError, match="no library function 'system'"):
        symbol_address("system")
