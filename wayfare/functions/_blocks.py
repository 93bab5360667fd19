"""The in-place forms that optimisers live on, written block after block when nothing is recorded.

A block stays in the cache between the steps of a formula, and no temporary as large as a parameter is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.backend.cpu import Array
from wayfare.backend.writes import note_write
from wayfare.functions._public import as_method, in_place_form, may_overwrite, write_binary
from wayfare.op import Op
from wayfare.tensor import Tensor

_BLOCK = 16384


def overwritable(t: Tensor, *others: Any) -> bool:
    """Can block after block of `t` be written from tensors of its own shape that share no memory with it?"""
    # may_overwrite comes first: under vmap a tensor has no array of its own.
    return all(
        isinstance(o, Tensor)
        and may_overwrite(t, o)
        and o._array.shape == t._array.shape
        and t._array.flags.c_contiguous
        and o._array.flags.c_contiguous
        and not np.may_share_memory(t._array, o._array)
        for o in others
    )


def write_scaled(op: Op, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`x.add_(y, alpha=a)`: in blocks that stay in cache, so that no temporary as large as `y` is made."""
    plain = write_binary(op, function, op.name + "_")
    general = in_place_form(function, op.name)

    def write(self: Tensor, other: Tensor | float, *, alpha: float = 1) -> Tensor:
        if alpha == 1:
            return plain(self, other)
        if overwritable(self, other):
            _in_blocks(op.forward, self._array.reshape(-1), other._array.reshape(-1), alpha)  # type: ignore[union-attr]
            note_write(self._array)
            return self
        return general(self, other, alpha=alpha)

    return as_method(write, general)


def _in_blocks(ufunc: Any, array: Array, values: Array, alpha: float) -> None:
    factor = array.dtype.type(alpha)
    space = np.empty(min(_BLOCK, array.size), array.dtype)
    for start in range(0, array.size, _BLOCK):
        part = array[start : start + _BLOCK]
        scaled = np.multiply(values[start : start + _BLOCK], factor, out=space[: part.size])
        ufunc(part, scaled, part)


def write_combination(function: Callable[..., Tensor], ufunc: Any) -> Callable[..., Tensor]:
    """`x.addcmul_(a, b, value=v)` and its like: in blocks that stay in cache, when nothing is recorded."""
    general = in_place_form(function, function.__name__)

    def write(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        if overwritable(self, tensor1, tensor2):
            arrays = [t._array.reshape(-1) for t in (self, tensor1, tensor2)]
            factor = None if value == 1 else arrays[0].dtype.type(value)
            space = np.empty(min(_BLOCK, arrays[0].size), arrays[0].dtype)
            for start in range(0, arrays[0].size, _BLOCK):
                part, a, b = (array[start : start + _BLOCK] for array in arrays)
                term = ufunc(a, b, space[: part.size])
                if factor is not None:
                    np.multiply(term, factor, term)
                np.add(part, term, part)
            note_write(self._array)
            return self
        return general(self, tensor1, tensor2, value=value)  # type: ignore[no-any-return]

    return as_method(write, general)


def write_lerp(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`x.lerp_(y, w)` in the same way."""
    general = in_place_form(function, "lerp")

    def write(self: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
        if weight.__class__ is float and weight < 0.5 and overwritable(self, end):
            array, target = self._array.reshape(-1), end._array.reshape(-1)
            factor = array.dtype.type(weight)
            space = np.empty(min(_BLOCK, array.size), array.dtype)
            for start in range(0, array.size, _BLOCK):
                part = array[start : start + _BLOCK]
                way = np.subtract(target[start : start + _BLOCK], part, space[: part.size])
                np.multiply(way, factor, way)
                np.add(part, way, part)
            note_write(self._array)
            return self
        return general(self, end, weight)  # type: ignore[no-any-return]

    return as_method(write, general)
