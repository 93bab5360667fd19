"""Cumulative sums and products, and linear recurrences, along one axis as loops with a carry.

    running("add", x, dim, reverse)     out[i] = out[i - 1] + x[i]; also "mul"
    linear(a, b, dim, reverse)          out[i] = b[i] + a[i] * out[i - 1]

The carry is a float64 for every dtype, so rounding errors of a long float32 scan do not accumulate: each element is
rounded once, when it is stored. The functions return None where NumPy should do it: small arrays, no native code.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import OF_NUMPY, apply, carry, cast, const, index, load
from wayfare.codegen.loop.language import Loop, Operand, Stage
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Elements from which on native code is faster than NumPy.
NATIVE_FROM = 2048
# What leaves the first element as it is, -0.0 included.
_STARTS = {"add": -0.0, "mul": 1.0, "linear": -0.0}


@cache
def _kernel(how: str, dtype: str) -> Kernel:
    before, x = carry(0, "f64"), cast(load(0, dtype), "f64")
    if how == "linear":
        # The first factor is not used: it may be infinite. 0.0 times the start is -0.0.
        factor = apply("where", apply("eq", index(), 0), 0.0, x)
        value = cast(load(1, dtype), "f64") + factor * before
    else:
        value = apply(how, before, x)
    inputs = (Operand(dtype),) * (2 if how == "linear" else 1)
    stage = Stage(((0, cast(value, dtype)),), carries=((const(_STARTS[how], "f64"), value),))
    return native.build(Loop(f"scan_{how}", inputs, (Operand(dtype),), (stage,)))


def running(how: str, x: Array, dim: int, reverse: bool) -> Array | None:
    """The cumulative sum ("add") or product ("mul") along `dim`, from the end if `reverse`."""
    return _scanned(how, [x], dim, reverse)


def linear(a: Array, b: Array, dim: int, reverse: bool) -> Array | None:
    """b[i] + a[i] out[i - 1] along `dim`, or with `reverse` b[i] + a[i] out[i + 1]."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return None
    return _scanned("linear", [a, b], dim, reverse)


def _scanned(how: str, arrays: list[Array], dim: int, reverse: bool) -> Array | None:
    first = arrays[0]
    dtype = OF_NUMPY.get(first.dtype)
    if dtype not in ("f32", "f64") or first.size < max(NATIVE_FROM, 1) or not native.available():
        return None
    shape = (-1, first.shape[dim], math.prod(first.shape[dim + 1 :]))
    out = buffer_pool.empty(first.shape, first.dtype)
    order = slice(None, None, -1 if reverse else 1)
    *given, made = (np.ascontiguousarray(array).reshape(shape)[:, order] for array in (*arrays, out))
    _kernel(how, dtype).into(given, [made], made.shape, (1,))
    return out
