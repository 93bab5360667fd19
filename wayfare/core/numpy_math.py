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


def small(forward: Any, ufunc: Callable[[], Any], below: int, second: Any = None) -> None:
    """Say that a forward is this ufunc on fewer than `below` floats: native code may call the loop of the ufunc itself.
    `second` has the second operand of the ufunc for each dtype, if the op has none. The ufunc is asked for when it is
    needed, because SciPy is imported late."""
    forward.small = lambda: (ufunc(), below, second)


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


small(_sigmoid, lambda: importlib.import_module("scipy.special").expit, below=1024)


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

    fmax = staticmethod(_first_of_equals(np.fmax))
    fmin = staticmethod(_first_of_equals(np.fmin))
    where = staticmethod(select)
    sigmoid = staticmethod(_sigmoid)
    lgamma = staticmethod(_lgamma)
    # For NumPy the same as ndtr; the code generator may use a faster formula with a small absolute error.
    normal_cdf = staticmethod(_scipy_special("ndtr"))


# NumPy's functions, with another name in front where ops or Python's operators have one.
OF_NUMPY = """
    add sub=subtract mul=multiply div=true_divide floor_divide remainder fmod pow=power neg=negative abs=absolute
    eq=equal ne=not_equal lt=less le=less_equal gt=greater ge=greater_equal maximum minimum
    logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not=invert
    bitwise_left_shift=left_shift bitwise_right_shift=right_shift isnan isinf isfinite signbit copysign nextafter ldexp
    floor ceil trunc rint sign square sqrt exp exp2 expm1 log log2 log10 log1p logaddexp logaddexp2
    sin cos tan asin=arcsin acos=arccos atan=arctan atan2=arctan2 sinh cosh tanh asinh=arcsinh acosh=arccosh
    atanh=arctanh hypot heaviside gcd lcm
"""
OF_SCIPY = """
    erf erfc erfcx erfinv digamma polygamma zeta ndtr ndtri log_ndtr i0 i0e i1 i1e j0 j1 y0 y1 k0 k0e k1 k1e
    gammainc gammaincc xlogy xlog1py
"""
for _word in OF_NUMPY.split():
    _ours, _, _theirs = _word.partition("=")
    setattr(NumpyMath, _ours, getattr(np, _theirs or _ours))
for _name in OF_SCIPY.split():
    setattr(NumpyMath, _name, staticmethod(_scipy_special(_name)))

numpy_math: Any = NumpyMath
