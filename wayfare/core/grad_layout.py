"""The memory layout of a stored gradient: that of its tensor if the tensor is dense, otherwise C-contiguous.

So `.grad` can be viewed like its tensor, and loops over both access memory in the same order.
"""

from __future__ import annotations

import numpy as np

from wayfare.core.numpy_math import Array


def in_layout_of(g: Array, like: Array) -> Array:
    """The gradient itself if its layout fits that of `like`, else a copy that does."""
    if g.strides == like.strides and (like.flags.c_contiguous or _is_dense(like)):
        return g
    wanted = np.empty_like(like, dtype=g.dtype) if _is_dense(like) else np.empty_like(g, order="C")
    if _walks_alike(g, wanted):
        return g
    wanted[...] = g
    return wanted


def _is_dense(array: Array) -> bool:
    """Do its elements fill a range of memory without gaps or overlaps, in any order of dimensions?"""
    return _walks_alike(array, np.empty_like(array))


def _walks_alike(one: Array, other: Array) -> bool:
    """Have they the same strides? Strides of dimensions of size 1 do not matter."""
    pairs = zip(one.shape, one.strides, other.strides, strict=True)
    return one.size == 0 or all(size == 1 or a == b for size, a, b in pairs)
