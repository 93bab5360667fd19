"""The dropout mask: a hash of a key and the element's index, computed inside the loop that uses it.

The index of an element is the number of its row and its position in the row. The mask depends on nothing else: not on
threads, memory layout or the presence of native code. The hash takes a few instructions for each element, so backward
computes it again instead of storing the mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import NARROW, NUMPY, OF_NUMPY, Expr, apply, cast, const, index, load
from wayfare.codegen.loop.language import Loop, Operand, Stage
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]
Key = tuple[int, int]

# Flat arrays are treated as rows of this many elements.
_COLUMNS = 1024
_SIGN = 1 << 31
_64 = (1 << 64) - 1

# The operands of a loop that draws a mask: row numbers, two words of the key, the threshold.
OPERANDS = (Operand("i64", True), Operand("i32", True), Operand("i32", True), Operand("i32", True))


# -- the hash -----------------------------------------------------------------------------------------------------


def _word(value: int) -> Expr:
    """A 32-bit constant, as i32."""
    return const((value + _SIGN) % (1 << 32) - _SIGN, "i32")


def _xor_shifted(x: Expr, shift: int) -> Expr:
    """x ^ (x >> shift), as a logical shift."""
    return x ^ ((x >> shift) & _word((1 << (32 - shift)) - 1))


def _mixed(x: Expr, key: Expr) -> Expr:
    """A bijective 32-bit mix of x and the key: every bit of the result depends on all bits of both.

    The constants are published ones with very low bias (a variant of the murmur finaliser).
    """
    x = _xor_shifted(x, 16) * _word(0x21F0AAAD)
    x = (_xor_shifted(x, 15) + key) * _word(0x735A2D97)
    return _xor_shifted(x, 15)


def is_kept(first: int) -> Expr:
    """Is the element kept? `first` is the input number of the first of OPERANDS."""
    row = cast(load(first, "i64"), "i32")
    low, high, limit = (load(first + k, "i32") for k in (1, 2, 3))
    # Each row has its own start and its own key, so that rows are independent.
    start = _mixed(row + low, high)
    way = _mixed(start + high, low)
    return apply("ge", _mixed(cast(index(), "i32") * _word(0x9E3779B1) + start, way), limit)


def _mixed_64(x: int) -> int:
    """A 64-bit mix (splitmix64), for keys."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _64
    return x ^ (x >> 31)


@lru_cache(64)
def words(key: Key, p: float) -> tuple[Array, Array, Array]:
    """Two words of a key, and the threshold: elements with a smaller hash are dropped."""
    seed, call = key
    mixed = _mixed_64(_mixed_64(seed + 0x9E3779B97F4A7C15 & _64) + call * 0x9E3779B97F4A7C15 & _64)
    low, high = np.array([mixed], np.uint64).view(np.int32)
    limit = min(round(p * (1 << 32)), (1 << 32) - 1) - _SIGN
    return np.array(low), np.array(high), np.array(limit, np.int32)


@lru_cache(64)
def _rows(shape: tuple[int, ...], start: int) -> Array:
    return np.arange(start, start + math.prod(shape)).reshape(*shape, 1)


def drawing(key: Key, p: float, rows: tuple[int, ...], start: int = 0) -> list[Array]:
    """The arrays for OPERANDS: rows of this shape, numbered from `start`."""
    return [_rows(rows, start), *words(key, p)]


# -- masks and dropout --------------------------------------------------------------------------------------------


@cache
def scaling(dtype: str) -> Kernel:
    """Rows times a factor where they are kept, times 0 elsewhere: the array, the factor, OPERANDS."""
    wide = factor_dtype(dtype)
    # Multiply by 0 instead of selecting 0, so that NaN stays NaN.
    factor = apply("where", is_kept(2), load(1, wide), const(0.0, wide))
    value = cast(cast(load(0, dtype), wide) * factor, dtype)
    inputs = (Operand(dtype), Operand(wide, True), *OPERANDS)
    return native.build(Loop("dropout", inputs, (Operand(dtype),), (Stage(((0, value),)),)))


def factor_dtype(dtype: str) -> str:
    """The dtype of the factor of `scaling`."""
    return "f32" if dtype in NARROW else dtype


@cache
def masking() -> Kernel:
    """The mask of rows: any bools of the shape, OPERANDS."""
    inputs = (Operand("bool"), *OPERANDS)
    return native.build(Loop("dropout_mask", inputs, (Operand("bool"),), (Stage(((0, is_kept(1)),)),)))


def pieces(size: int) -> Iterator[tuple[slice, tuple[int, int], int]]:
    """A flat array as rows: all full rows, then the rest as one short row. The part, its shape, its first row."""
    full = size // _COLUMNS
    if full:
        yield slice(0, full * _COLUMNS), (full, _COLUMNS), 0
    if size % _COLUMNS:
        yield slice(full * _COLUMNS, size), (1, size % _COLUMNS), full


def dropout_mask(key: Key, shape: tuple[int, ...], p: float) -> Array:
    """True where an element is kept: each is dropped independently with probability p."""
    if p <= 0 or p >= 1:
        return np.full(shape, p <= 0)
    out = buffer_pool.empty((math.prod(shape),), np.dtype(bool))
    for where, rows, start in pieces(out.size):
        given = [np.broadcast_to(np.False_, rows), *drawing(key, p, rows[:1], start)]
        masking().into(given, [out[where].reshape(rows)], rows, (1,))
    return out.reshape(shape)


def dropped_out(x: Array, key: Key, p: float) -> Array:
    """`x` times `dropout_mask(key, x.shape, p)` and 1 / (1 - p), in one pass; 0 < p < 1."""
    flat = np.ascontiguousarray(x).reshape(-1)
    out = buffer_pool.empty(flat.shape, x.dtype)
    name = OF_NUMPY[x.dtype]
    factor = np.array(1 / (1 - p), NUMPY[factor_dtype(name)])
    for where, rows, start in pieces(flat.size):
        given = [flat[where].reshape(rows), factor, *drawing(key, p, rows[:1], start)]
        scaling(name).into(given, [out[where].reshape(rows)], rows, (1,))
    return out.reshape(x.shape)
