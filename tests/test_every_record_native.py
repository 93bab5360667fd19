"""Every record that has a native form: the form against the record's own forward and gradient rules.

The forms are called directly, whatever the size of the arrays, for every dtype the record takes and on several layouts.
Records without a form are listed by name with the reason; the list fails when it is wrong in either direction.
"""

import zlib

import numpy as np
import pytest

import wayfare as wf
from wayfare.api.testing.every_op import samples_of
from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import counted
from wayfare.core.op import REGISTRY, raw_ops
from wayfare.core.spec import OF_NUMPY as DTYPE_OF
from wayfare.core.spec import Spec, spec_of
from wayfare.errors import DTypeError

pytestmark = [
    pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here"),
    # What NumPy warns about on the way (overflow, a logarithm of zero) is not the subject.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

_RECURRENCE = "a recurrence as long as one of its inputs says"
NO_FORM = {
    "gcd": "a loop whose length depends on the numbers", "lcm": "a loop whose length depends on the numbers",
    "overwrite": "one array or the other as it is: nothing to compute",
    "at_index": "gives numbers by their place, which is no formula of its input",
    "cast": "NumPy's astype is the loop already",
    "frexp": "two outputs", "polygamma": "SciPy's, by way of zeta", "zeta": "SciPy's", "airy_ai": "SciPy's",
    **dict.fromkeys((
        "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
        "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
        "shifted_chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
        "legendre_polynomial_p",
    ), _RECURRENCE),
}  # fmt: skip
NO_FOLD = {
    "max_at": "a value and its place at once", "min_at": "a value and its place at once",
    "pool_sum": "windows that overlap", "max_pool": "windows that overlap",
    "adaptive_max_pool": "windows of many sizes", "median_of_all": "a rank, not a fold",
    "sum_to": "its forward takes the native sum itself",
}  # fmt: skip
# Rounded once, or not at all: the same bits as NumPy's.
EXACT = {
    "add", "sub", "mul", "div", "neg", "abs", "sqrt", "square", "floor", "ceil", "trunc", "round", "sign", "maximum",
    "minimum", "where", "relu", "copysign", "reciprocal", "positive", "signbit", "fmax", "fmin", "remainder",
    "floor_divide", "heaviside", "zeros_like",
}  # fmt: skip
# (relative, absolute) by dtype; formulas of several steps lose a bit more than the 2 ulp of a single function.
TOLERANCE = {"e": (2e-3, 1e-6), "f": (1e-5, 2e-6), "d": (1e-12, 1e-13)}
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64"]
if kernel.available() and machine().processor.half:
    DTYPES.append("float16")

ELEMENTWISE = sorted(op.name for op in REGISTRY.values() if op.family == "elementwise")
FORMS = [name for name in ELEMENTWISE if name not in NO_FORM]
FOLDS = sorted(op.name for op in REGISTRY.values() if op.family == "reduction" and op.large is not None)
OTHERS = sorted(op.name for op in REGISTRY.values()
                if op.large is not None and op.family not in ("elementwise", "reduction"))  # fmt: skip


def has_form(op, inputs, attrs):
    return op.large is not None and op.large.find(tuple(inputs), attrs) is not None


def test_the_list_of_records_without_a_form_is_right():
    found = set()
    for name in ELEMENTWISE:
        op = REGISTRY[name]
        if any(not has_form(op, s.inputs, s.attrs) for s in samples_of(op) if s.inputs[0].dtype != np.bool_):
            found.add(name)
    assert found == set(NO_FORM)


def test_the_list_of_reductions_without_a_form_is_right():
    assert {op.name for op in REGISTRY.values() if op.family == "reduction" and op.large is None} == set(NO_FOLD)


def grown(op, sample, dtype, rng):
    """The sample's numbers drawn again into larger arrays of a dtype; masks stay masks. None where it takes no such."""
    kind = np.dtype(dtype)
    inputs = []
    for array in sample.inputs:
        if array.size == 0:
            return None
        drawn = rng.choice(array.ravel(), (5, 67))
        if array.dtype == np.float64:
            drawn = np.abs(drawn) if kind.kind in "bu" else drawn
            drawn = (drawn > 0.5) if kind.kind == "b" else drawn.astype(kind)
        elif array.dtype == np.int64 and kind.kind in "iu":
            drawn = drawn.astype(kind)
        inputs.append(drawn)
    if all(a.dtype != kind for a in inputs):
        return None
    if op.promotion == "float" and any(a.dtype.kind in "biu" for a in inputs if a.dtype == kind):
        return None  # whole numbers become floats before the record sees them
    try:
        op.infer(*map(spec_of, inputs), **sample.attrs)
    except DTypeError:
        return None
    return inputs


def layouts(inputs):
    """The same arrays laid out in several ways; the last with some of them stretched."""
    yield "contiguous", inputs
    yield "transposed", [np.asfortranarray(a) for a in inputs]
    yield "backwards", [a[::-1, ::-2] for a in inputs]
    yield "columns", [np.ascontiguousarray(a[:, :1]) if i % 2 else a for i, a in enumerate(inputs)]
    yield "rows", [a[:1] if i % 2 == 0 and len(inputs) > 1 else a for i, a in enumerate(inputs)]
    yield "numbers", [np.array(a[0, 0]) for a in inputs]


def agree(op, got, want, what):
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    if got.dtype.kind != "f" or (op.name in EXACT and got.dtype.char != "e"):
        np.testing.assert_array_equal(got, want, err_msg=what)
    else:
        rtol, atol = TOLERANCE[got.dtype.char]
        np.testing.assert_allclose(got, want, rtol, atol, err_msg=what)


@pytest.mark.parametrize("name", FORMS)
def test_the_form_agrees_with_the_forward(name):
    op = REGISTRY[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    seen, checked = set(), 0
    for sample in samples_of(op):
        key = repr(sample.attrs)
        if key in seen or any(a.size == 0 for a in sample.inputs):
            continue
        seen.add(key)
        for dtype in DTYPES:
            inputs = grown(op, sample, dtype, rng)
            if inputs is None or not has_form(op, inputs, sample.attrs):
                continue
            for how, arrays in layouts(inputs):
                with counted() as counts:
                    got = op.large(*arrays, **sample.attrs)
                assert counts.kernels_run == 1 and counts.kernels_failed == 0, f"{name} {dtype} {how}"
                want = op.forward(*arrays, **sample.attrs)
                # Some forwards leave the dtype of whole numbers to NumPy; the form keeps to the record's rule.
                want = np.asarray(want, op.infer(*map(spec_of, arrays), **sample.attrs).dtype.numpy)
                agree(op, got, want, f"{name} {dtype} {how} {sample.attrs}")
                checked += 1
    assert checked >= 6, f"{name} was compared {checked} times"


@pytest.mark.parametrize("name", sorted(EXACT & set(FORMS)))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values_come_out_as_numpys(name, dtype):
    op = REGISTRY[name]
    info = np.finfo(dtype)
    odd = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, np.nan, np.inf, -np.inf, info.max, info.min, info.tiny,
                    info.smallest_subnormal, -info.smallest_subnormal, 1e9 + 0.5], dtype)  # fmt: skip
    sample = next(samples_of(op))
    count = len(sample.inputs)
    grid = [np.ascontiguousarray(g) for g in np.meshgrid(*[odd] * count, indexing="ij")]
    inputs = [g > 0 if a.dtype == np.bool_ else g for g, a in zip(grid, sample.inputs, strict=True)]
    try:
        op.infer(*map(spec_of, inputs), **sample.attrs)
    except DTypeError:
        pytest.skip(f"{name} takes no floats")
    got, want = op.large(*inputs, **sample.attrs), op.forward(*inputs, **sample.attrs)
    agree(op, got, want, name)


def gradients_by_rule(op, g, y, inputs, attrs):
    """What the rules give one by one, and what they were given."""
    kept = op.packer((True,) * len(inputs))(y, *inputs)
    made = [None if rule is None else rule(raw_ops, g, *kept, **attrs) for rule in op.vjp]
    return kept, made


GRADIENTS = [name for name in FORMS if REGISTRY[name].large_vjp is not None
          and not any(getattr(rule, "refuses", False) for rule in REGISTRY[name].vjp)]  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_agree_with_the_rules(name):
    op = REGISTRY[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    seen = set()
    for sample in samples_of(op):
        key = repr(sample.attrs)
        if key in seen or any(a.size == 0 for a in sample.inputs):
            continue
        seen.add(key)
        for dtype in sorted({"float32", "float64", "float16"} & set(DTYPES)):
            inputs = grown(op, sample, dtype, rng)
            if inputs is None:
                continue
            y = op.forward(*inputs, **sample.attrs)
            if y.dtype.kind != "f":
                continue
            g = rng.standard_normal(y.shape).astype(y.dtype)
            kept, want = gradients_by_rule(op, g, y, inputs, sample.attrs)
            got = op.large_vjp(g, kept, (True,) * len(inputs), sample.attrs)
            if dtype == "float16":
                # The rules step by step round too often to be compared with.
                wide = [a.astype(np.float32) if a.dtype == np.float16 else a for a in (g, y, *inputs)]
                _, want = gradients_by_rule(op, *wide[:2], wide[2:], sample.attrs)
            if got is None:
                continue
            for made, expected in zip(got, want, strict=True):
                if expected is None:
                    assert made is None
                    continue
                expected = np.broadcast_to(expected, y.shape)
                rtol, atol = {"e": (1e-2, 1e-3), "f": (1e-4, 1e-5), "d": (1e-11, 1e-12)}[y.dtype.char]
                np.testing.assert_allclose(made, expected, rtol, atol, err_msg=f"{name} {dtype} {sample.attrs}")
                assert made.dtype == g.dtype


# -- folds --------------------------------------------------------------------------------------------------------

SHAPES = [((70, 33), (0,)), ((70, 33), (1,)), ((70, 33), (0, 1)), ((5, 40, 9), (1,)), ((5, 40, 9), (0, 2)),
          ((3, 1, 4), (1,)), ((1000,), (0,))]  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
def test_folds_agree_with_the_forward(name):
    op = REGISTRY[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    checked = 0
    attrs_seen = {repr({k: v for k, v in s.attrs.items() if k not in ("dim", "keepdim")}): s.attrs
                  for s in samples_of(op)}  # fmt: skip
    for given in attrs_seen.values():
        for dtype in DTYPES:
            for shape, dim in SHAPES:
                kind = np.dtype(dtype)
                if name in ("argmax", "argmin") and len(dim) > 1:
                    continue
                attrs = given | {"dim": dim, "keepdim": bool(checked % 2)}
                x = rng.integers(0, 2, shape).astype(kind) if kind.kind == "b" else (
                    rng.integers(0, 9, shape).astype(kind) if kind.kind in "iu" else
                    rng.uniform(0.5, 1.5, shape).astype(kind))  # fmt: skip
                if kind.kind not in op.kinds:
                    continue
                try:
                    said = op.infer(Spec(shape, DTYPE_OF[kind]), **attrs)
                    want = op.forward(x, **attrs)
                except (DTypeError, TypeError, ValueError):
                    continue
                for array in (x, np.asfortranarray(x)[::-1]):
                    wide = array.astype(np.float32) if kind == np.float16 else array
                    want = op.forward(wide, **attrs).astype(said.dtype.numpy)
                    got = op.large(array, **attrs)
                    assert spec_of(np.asarray(got)) == said, f"{name} {dtype} {shape} {dim}"
                    if got.dtype.kind == "f":
                        rtol = {"e": 3e-3, "f": 2e-5, "d": 1e-12}[got.dtype.char]
                        np.testing.assert_allclose(got, want, rtol, 1e-12, err_msg=f"{name} {dtype} {shape} {attrs}")
                    else:
                        np.testing.assert_array_equal(got, want, err_msg=f"{name} {dtype} {shape} {attrs}")
                    checked += 1
    assert checked >= 24, f"{name} was compared {checked} times"


@pytest.mark.parametrize("name", [n for n in ("amax", "amin", "argmax", "argmin", "sum", "mean", "prod") if n in FOLDS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values_are_folded_as_numpy_does(name, dtype):
    op = REGISTRY[name]
    rng = np.random.default_rng(0)
    for trial in range(60):
        shape, dim = SHAPES[trial % 3]
        x = rng.integers(-3, 3, shape).astype(dtype)
        odd = rng.random(shape) < (0.01, 0.2, 0.9)[trial // 3 % 3]
        x[odd] = rng.choice([np.nan, np.inf, -np.inf, -0.0][trial % 2 :], shape)[odd]
        attrs = {"dim": dim, "keepdim": False} if "arg" not in name else {"dim": dim[:1], "keepdim": False}
        for array in (x, x.T, np.asfortranarray(x)):
            got, want = op.large(array, **attrs), op.forward(array, **attrs)
            np.testing.assert_allclose(got, want, 1e-5, err_msg=f"{name} {attrs}")


@pytest.mark.parametrize("name", OTHERS)
def test_other_forms_agree_with_the_forward(name):
    op = REGISTRY[name]
    for sample in samples_of(op):
        for dtype in (np.float32, np.float64):
            inputs = [a.astype(dtype) if a.dtype == np.float64 else a for a in sample.inputs]
            got, want = op.large(*inputs, **sample.attrs), op.forward(*inputs, **sample.attrs)
            for g, w in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
                assert g.dtype == w.dtype and g.shape == w.shape, f"{name} {sample.attrs}"
                np.testing.assert_allclose(g, w, 3e-5 if dtype is np.float32 else 1e-10, 1e-5, err_msg=name)


# -- through the public functions -------------------------------------------------------------------------------------


def test_an_attribute_of_minus_zero_is_not_zero():
    x = wf.full((20_000,), float("nan"))
    zero, minus = wf.nan_to_num(x, nan=0.0), wf.nan_to_num(x, nan=-0.0)
    assert not wf.signbit(zero).any() and wf.signbit(minus).all()
