"""In-place forms that optimisers use most, computed block by block when nothing is recorded.

A block stays in the cache between the steps of a formula, and no temporary as large as a parameter is made.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from wayfare.api.functions._public import as_method, in_place_form, may_overwrite, write_binary
from wayfare.core.constant import constant
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.core.quiet import COMPLAINTS, quietly
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import note_write

_BLOCK = 16384


def _side_by_side(array: Array, other: Array) -> bool:
    """Can both be walked block after block, the one written while the other is read?"""
    return (
        array.shape == other.shape
        and array.flags.c_contiguous
        and other.flags.c_contiguous
        and not np.may_share_memory(array, other)
    )


def _written(ufunc: Any, array: Array, term: Any) -> bool:
    """`array = ufunc(array, term)`, if the term's shape fits: the general way has the sentence if it does not."""
    try:
        ufunc(array, term, array)
    except COMPLAINTS:
        pass  # NumPy complains of numbers when all of them are written.
    except ValueError:
        return False
    note_write(array)
    return True


def write_scaled(op: Op, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`x.add_(y, alpha=a)`: in blocks that stay in cache, so that no temporary as large as `y` is made."""
    plain = write_binary(op, function, op.name + "_")
    general = in_place_form(function, op.name)

    def write(self: Tensor, other: Tensor | float, *, alpha: float = 1) -> Tensor:
        if alpha == 1:
            return plain(self, other)
        if isinstance(other, Tensor) and may_overwrite(self, other):
            array, values = self._array, other._array
            if array.size <= _BLOCK:
                with suppress(*COMPLAINTS):  # of the term, before anything is written
                    if _written(op.forward, array, np.multiply(values, constant(alpha, array.dtype)._array)):
                        return self
            elif _side_by_side(array, values):
                _in_blocks(op.forward, array.reshape(-1), values.reshape(-1), alpha)
                note_write(array)
                return self
        return general(self, other, alpha=alpha)  # type: ignore[no-any-return]

    return as_method(write, general)


def _in_blocks(ufunc: Any, array: Array, values: Array, alpha: float) -> None:
    factor = array.dtype.type(alpha)
    space = np.empty(_BLOCK, array.dtype)
    with quietly():
        for start in range(0, array.size, _BLOCK):
            part = array[start : start + _BLOCK]
            scaled = np.multiply(values[start : start + _BLOCK], factor, out=space[: part.size])
            ufunc(part, scaled, part)


def write_combination(function: Callable[..., Tensor], ufunc: Any) -> Callable[..., Tensor]:
    """`x.addcmul_(a, b, value=v)` and its like: in blocks that stay in cache, when nothing is recorded."""
    general = in_place_form(function, function.__name__)

    def write(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        if all(isinstance(t, Tensor) and may_overwrite(self, t) for t in (tensor1, tensor2)):
            array, first, second = self._array, tensor1._array, tensor2._array
            factor = constant(value, array.dtype)._array
            if array.size <= _BLOCK:
                with suppress(*COMPLAINTS):
                    if first.shape == second.shape == array.shape and _written(
                        np.add, array, np.multiply(ufunc(first, second), factor)
                    ):
                        return self
            elif _side_by_side(array, first) and _side_by_side(array, second):
                space = np.empty(_BLOCK, array.dtype)
                arrays = [part.reshape(-1) for part in (array, first, second)]
                with quietly():
                    for start in range(0, array.size, _BLOCK):
                        part, a, b = (x[start : start + _BLOCK] for x in arrays)
                        term = ufunc(a, b, space[: part.size])
                        np.add(part, np.multiply(term, factor, term), part)
                note_write(array)
                return self
        return general(self, tensor1, tensor2, value=value)  # type: ignore[no-any-return]

    return as_method(write, general)


def write_lerp(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`x.lerp_(y, w)` in the same way."""
    general = in_place_form(function, "lerp")

    def write(self: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
        if weight.__class__ is float and weight < 0.5 and isinstance(end, Tensor) and may_overwrite(self, end):
            array, target = self._array, end._array
            factor = constant(weight, array.dtype)._array
            if array.size <= _BLOCK:
                with suppress(*COMPLAINTS):
                    if target.shape == array.shape and _written(
                        np.add, array, np.multiply(np.subtract(target, array), factor)
                    ):
                        return self
            elif _side_by_side(array, target):
                space = np.empty(_BLOCK, array.dtype)
                own, goal = array.reshape(-1), target.reshape(-1)
                with quietly():
                    for start in range(0, array.size, _BLOCK):
                        part = own[start : start + _BLOCK]
                        way = np.subtract(goal[start : start + _BLOCK], part, space[: part.size])
                        np.add(part, np.multiply(way, factor, way), part)
                note_write(array)
                return self
        return general(self, end, weight)  # type: ignore[no-any-return]

    return as_method(write, general)
