"""The layout of a stored gradient: that of its tensor where the tensor's memory has no gaps, rows one by one otherwise.

So `.grad` can be viewed as its tensor can, and loops over both walk memory in one order.
"""

from __future__ import annotations

import numpy as np

from wayfare.core.numpy_math import Array


def in_layout_of(g: Array, like: Array) -> Array:
    """The gradient itself if it lies as it should beside `like`, else a copy that does."""
    if g.strides == like.strides and (like.flags.c_contiguous or _is_dense(like)):
        return g
    wanted = np.empty_like(like, dtype=g.dtype) if _is_dense(like) else np.empty(g.shape, g.dtype)
    if _walks_alike(g, wanted):
        return g
    wanted[...] = g
    return wanted


def _is_dense(array: Array) -> bool:
    """Do its elements fill a piece of memory, in whatever order of dimensions, each once?"""
    return _walks_alike(array, np.empty_like(array))


def _walks_alike(one: Array, other: Array) -> bool:
    """Have they the same strides, as far as strides matter: one of a dimension of size 1 is never taken."""
    pairs = zip(one.shape, one.strides, other.strides, strict=True)
    return one.size == 0 or all(size == 1 or a == b for size, a, b in pairs)
