"""Elementary functions of NumPy arrays: the `m` of a formula that runs on the CPU.

A formula such as `lambda m, x: 1 / (1 + m.exp(-x))` is written once; this is the `m` that computes with NumPy. SciPy is
imported at the first call of one of its functions, because it would double the import time of the package.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.select import select

Array = np.ndarray[Any, np.dtype[Any]]


def _scipy_special(name: str) -> Callable[..., Any]:
    found: list[Callable[..., Any]] = []

    def call(*arrays: Any) -> Any:
        if not found:
            found.append(getattr(importlib.import_module("scipy.special"), name))
        out = found[0](*arrays)
        # SciPy has no float16 loops and returns float32, where the op should give float16. All arrays have one dtype
        # here; the order of a polygamma comes before them, so take the last.
        dtype = arrays[-1].dtype
        return out if out.dtype is dtype or dtype.kind != "f" else out.astype(dtype)

    call.__name__ = name
    return call


_expit = _scipy_special("expit")
_gammaln = _scipy_special("gammaln")


def _lgamma(x: Any) -> Any:
    """The logarithm of |gamma|. SciPy gives -inf at -inf; here it is +inf, as at every negative integer."""
    return _gammaln(np.maximum(x, -3e38 if x.dtype.itemsize > 2 else -6e4))


def _sigmoid(x: Any) -> Any:
    """The sigmoid: SciPy's single call is faster below about a thousand elements, NumPy's vectorised exp above."""
    if x.size < 1024:
        return _expit(x)
    out = np.negative(x)
    np.exp(out, out)
    out += 1
    return np.reciprocal(out, out)


def _first_of_equals(ufunc: Any) -> Any:
    """fmax or fmin that returns the first of equal numbers (0 and -0), as native code does; NumPy returns either."""

    def call(a: Any, b: Any) -> Any:
        out = np.asarray(ufunc(a, b))
        if out.dtype.kind == "f":
            np.copyto(out, a, where=a == b)
        return out

    call.ufunc = ufunc  # type: ignore[attr-defined]
    return call


class NumpyMath:
    """Elementary functions by name; the code generator has the same names."""

    # Arithmetic and comparison that are also operators; named here because ops of these names exist.
    add = np.add
    sub = np.subtract
    mul = np.multiply
    div = np.true_divide
    floor_divide = np.floor_divide
    remainder = np.remainder
    fmod = np.fmod
    pow = np.power
    neg = np.negative
    abs = np.absolute
    eq = np.equal
    ne = np.not_equal
    lt = np.less
    le = np.less_equal
    gt = np.greater
    ge = np.greater_equal
    maximum = np.maximum
    minimum = np.minimum
    fmax = staticmethod(_first_of_equals(np.fmax))
    fmin = staticmethod(_first_of_equals(np.fmin))
    where = staticmethod(select)
    logical_and = np.logical_and
    logical_or = np.logical_or
    logical_xor = np.logical_xor
    logical_not = np.logical_not
    bitwise_and = np.bitwise_and
    bitwise_or = np.bitwise_or
    bitwise_xor = np.bitwise_xor
    bitwise_not = np.invert
    bitwise_left_shift = np.left_shift
    bitwise_right_shift = np.right_shift
    isnan = np.isnan
    isinf = np.isinf
    isfinite = np.isfinite
    signbit = np.signbit
    copysign = np.copysign
    nextafter = np.nextafter
    ldexp = np.ldexp
    floor = np.floor
    ceil = np.ceil
    trunc = np.trunc
    rint = np.rint
    sign = np.sign
    square = np.square
    sqrt = np.sqrt
    exp = np.exp
    exp2 = np.exp2
    expm1 = np.expm1
    log = np.log
    log2 = np.log2
    log10 = np.log10
    log1p = np.log1p
    logaddexp = np.logaddexp
    logaddexp2 = np.logaddexp2
    sin = np.sin
    cos = np.cos
    tan = np.tan
    asin = np.arcsin
    acos = np.arccos
    atan = np.arctan
    atan2 = np.arctan2
    sinh = np.sinh
    cosh = np.cosh
    tanh = np.tanh
    asinh = np.arcsinh
    acosh = np.arccosh
    atanh = np.arctanh
    hypot = np.hypot
    heaviside = np.heaviside
    gcd = np.gcd
    lcm = np.lcm
    sigmoid = staticmethod(_sigmoid)
    erf = staticmethod(_scipy_special("erf"))
    erfc = staticmethod(_scipy_special("erfc"))
    erfcx = staticmethod(_scipy_special("erfcx"))
    erfinv = staticmethod(_scipy_special("erfinv"))
    lgamma = staticmethod(_lgamma)
    digamma = staticmethod(_scipy_special("digamma"))
    polygamma = staticmethod(_scipy_special("polygamma"))
    zeta = staticmethod(_scipy_special("zeta"))
    ndtr = staticmethod(_scipy_special("ndtr"))
    # For NumPy the same as ndtr; the code generator may use a faster formula with a small absolute error.
    normal_cdf = staticmethod(_scipy_special("ndtr"))
    ndtri = staticmethod(_scipy_special("ndtri"))
    log_ndtr = staticmethod(_scipy_special("log_ndtr"))
    i0 = staticmethod(_scipy_special("i0"))
    i0e = staticmethod(_scipy_special("i0e"))
    i1 = staticmethod(_scipy_special("i1"))
    i1e = staticmethod(_scipy_special("i1e"))
    j0 = staticmethod(_scipy_special("j0"))
    j1 = staticmethod(_scipy_special("j1"))
    y0 = staticmethod(_scipy_special("y0"))
    y1 = staticmethod(_scipy_special("y1"))
    k0 = staticmethod(_scipy_special("k0"))
    k0e = staticmethod(_scipy_special("k0e"))
    k1 = staticmethod(_scipy_special("k1"))
    k1e = staticmethod(_scipy_special("k1e"))
    gammainc = staticmethod(_scipy_special("gammainc"))
    gammaincc = staticmethod(_scipy_special("gammaincc"))
    xlogy = staticmethod(_scipy_special("xlogy"))
    xlog1py = staticmethod(_scipy_special("xlog1py"))


numpy_math: Any = NumpyMath
