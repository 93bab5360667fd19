"""Reductions of large arrays as native loops, one for each run of adjacent axes; the sum that undoes broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import NARROW, OF_NUMPY, Expr, cast, load, reduction, truth
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage
from wayfare.codegen.routines.short_reductions import total
from wayfare.codegen.runtime import kernel
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core.spec import FLOAT_KINDS

Array = np.ndarray[Any, np.dtype[Any]]
# Shorter rows do not fill the vector lanes.
_SHORT = 64
_ARG = ("argmax", "argmin")


@cache
def reducing_loop(kind: str, given: str, made: str) -> Loop:
    """The loop that reduces elements of dtype `given` to results of dtype `made`."""
    # f16 and bf16 are reduced in f32.
    value: Expr = cast(load(0, given), "f32") if given in NARROW else load(0, given)
    if kind in ("any", "all"):
        value = truth(value)
    elif kind in ("sum", "prod"):
        value = cast(value, "f32" if made in NARROW else made)
    elif given == "bool":
        value = cast(value, "u8")
    one = Reduction(kind, value)
    result = reduction(0, one.dtype)
    result = truth(result) if made == "bool" else cast(result, made)
    return Loop(kind, (Operand(given),), (Operand(made, per_row=True),), (Stage(reductions=(one,)),), ((0, result),))


@cache
def _kernel(kind: str, given: str, made: str) -> Kernel:
    return kernel.build(reducing_loop(kind, given, made))


def runs(axis: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Group sorted axes into runs of adjacent ones; axes of size 1 in between do not separate them."""
    made: list[list[int]] = []
    for a in axis:
        if made and all(n == 1 for n in shape[made[-1][-1] + 1 : a]):
            made[-1] += range(made[-1][-1] + 1, a + 1)
        else:
            made.append([a])
    return [tuple(r) for r in made]


def _better_by_numpy(kind: str, x: Array, row: int) -> bool:
    """Is NumPy faster along the last axis, for rows of `row` elements?"""
    if kind in _ARG:
        # NumPy's argmax and argmin are vectorised, and stop at the first True for bool.
        return x.dtype.char in "fdil?q" and x.flags.c_contiguous
    # For short rows, `short_reductions` is faster.
    return row < _SHORT and kind in ("sum", "max", "min")


def reduce_axes(kind: str, x: Array, axis: tuple[int, ...], keepdims: bool, dtype: np.dtype[Any]) -> Any:
    """Reduce over sorted axes to an array of `dtype`; None where NumPy must do it. `kind` is one of REDUCTIONS."""
    if not kernel.available() or x.size == 0 or not axis:
        return None
    parts = runs(axis, x.shape)
    if parts[-1][-1] == x.ndim - 1 and _better_by_numpy(kind, x, math.prod([x.shape[a] for a in parts[-1]])):
        return None
    return reduce_by(_kernel, kind, x if x.__class__ is np.ndarray else np.asarray(x), axis, keepdims, dtype)


def reduce_by(
    kernel_of: Callable[[str, str, str], Any], kind: str, x: Any, axis: tuple[int, ...], keepdims: bool,
    dtype: np.dtype[Any],
) -> Any:  # fmt: skip
    """Reduce an array of any device over sorted axes with kernels of `reducing_loop`, one for each run of adjacent
    axes; None where there is no kernel."""
    given, made = OF_NUMPY.get(x.dtype), OF_NUMPY.get(dtype)
    if given is None or made is None or not axis or x.size == 0:
        return None
    # With several runs of axes, intermediate results are f32 where the final result is f16 or bf16.
    between = "f32" if made in NARROW else made
    parts = runs(axis, x.shape)
    if len(parts) > 1 and kind in _ARG:
        return None
    out = x
    for k, run in enumerate(reversed(parts)):
        wanted = made if k == len(parts) - 1 else between
        found = kernel_of(kind, given, wanted)
        if found is None:
            return None
        out = found.rows((out,), run)[0]
        given = wanted
    return out if keepdims else out.reshape([n for a, n in enumerate(x.shape) if a not in axis])


# From so many elements on, `sum_to` uses native loops.
_LARGE = 32768


def large_total(array: Any, axes: tuple[int, ...]) -> Any:
    """The sum over sorted axes, which keep size 1: by a native loop where possible."""
    out = reduce_axes("sum", array, axes, True, array.dtype)
    return total(array, axes, True) if out is None else out


def sum_to(array: Any, shape: tuple[int, ...]) -> Any:
    """Undo broadcasting: sum `array` over the axes along which `shape` was broadcast."""
    extra = array.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        axis + extra for axis, size in enumerate(shape) if size == 1 and array.shape[axis + extra] != 1
    )
    if not axes:
        out = array
    elif array.dtype.kind in FLOAT_KINDS:
        out = large_total(array, axes) if array.size >= _LARGE else total(array, axes, True)
    else:
        out = np.add.reduce(array, axis=axes, keepdims=True)
    return out.reshape(shape) if out.shape != shape else out
