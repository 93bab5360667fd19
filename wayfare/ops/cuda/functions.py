"""Elementwise records in CuPy's functions, for loops that have no kernel: the `m` of their formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import gamma

from wayfare.core.numpy_math import OF_NUMPY, OF_SCIPY
from wayfare.core.op import Op
from wayfare.core.spec import NARROW_ARRAYS, Spec
from wayfare.core.spec import OF_NUMPY as DTYPES


class CupyMath:
    """Elementary functions by name, as `NumpyMath` has them. Names of CuPy are attributes, set by `functions_of`."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """`a` where the condition holds, `b` elsewhere."""
        return self.xp.where(condition, a, b)

    def fmax(self, a: Any, b: Any) -> Any:
        """The larger, not NaN if the other is a number; the first of equals."""
        out = self.xp.fmax(a, b)
        return self.xp.where(a == b, a, out) if out.dtype.kind == "f" else out

    def fmin(self, a: Any, b: Any) -> Any:
        """The smaller, not NaN if the other is a number; the first of equals."""
        out = self.xp.fmin(a, b)
        return self.xp.where(a == b, a, out) if out.dtype.kind == "f" else out

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """`a * b + c`."""
        return a * b + c

    def forward_of(self, op: Op) -> Callable[..., Any]:
        """A record as a function of arrays."""
        if op.formula is None:
            function = getattr(self, op.name, None) or op.forward
        else:
            formula = op.formula

            def function(*arrays: Any, **attrs: Any) -> Any:
                if any([a.dtype in NARROW_ARRAYS for a in arrays]):  # the steps would lose too much precision
                    arrays = tuple(a.astype(np.float32) if a.dtype in NARROW_ARRAYS else a for a in arrays)
                return formula(self, *arrays, **attrs)

        known: dict[Any, np.dtype[Any]] = {}

        def forward(*arrays: Any, **attrs: Any) -> Any:
            # Functions of SciPy have no float16 loops, and numbers in a formula are of no dtype.
            out, key = function(*arrays, **attrs), tuple([a.dtype.char for a in arrays])
            dtype = known.get(key)
            if dtype is None or attrs:
                dtype = known[key] = op.infer(*[Spec((), DTYPES[a.dtype]) for a in arrays], **attrs).dtype.numpy
            return out if out.dtype is dtype else out.astype(dtype)

        return forward


def functions_of(xp: Any, special: Any) -> CupyMath:
    """The functions of CuPy, under the names of `NumpyMath`."""
    made = CupyMath(xp)
    for word in OF_NUMPY.split():
        ours, _, theirs = word.partition("=")
        setattr(made, ours, getattr(xp, theirs or ours))
    for name in OF_SCIPY.split():
        setattr(made, name, getattr(special, name))
    made.sigmoid = special.expit  # type: ignore[attr-defined]
    made.normal_cdf = special.ndtr  # type: ignore[attr-defined]
    made.polygamma = _polygamma(special)  # type: ignore[attr-defined]
    gammaln = special.gammaln
    # CuPy gives -inf at -inf as SciPy does; here it is +inf, as at every negative integer.
    made.lgamma = lambda x: gammaln(xp.maximum(x, -3e38 if x.dtype.itemsize > 2 else -6e4))  # type: ignore[attr-defined]
    return made


def _polygamma(special: Any) -> Callable[..., Any]:
    """Derivatives of digamma by the zeta function: CuPy's own function takes no number as the order."""

    def polygamma(n: int, x: Any) -> Any:
        if n == 0:
            return special.digamma(x)
        factorial = float(gamma(n + 1.0))
        return (factorial if n % 2 else -factorial) * special.zeta(n + 1.0, x.astype(np.float64))

    return polygamma
