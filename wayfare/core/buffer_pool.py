"""Buffers that outlive the tensors in them.

The C library returns a large block to the system when it is freed, and the next one costs a page fault for every
4 KB: two to four times the work of a mid-sized op. Here a freed block goes to a stack of blocks of its size and is
reused, the last one first because the caches may still hold it.

An array of the pool looks like any new array: it is C-contiguous, its views have it as their base, its history of
writes is empty. Only its own base is not None but the Lease of its block; `owns_memory` tells whether an array is a
view. Everything that can access the memory holds the lease: the array, its views through the array, and code that took
the array's base. When the lease dies, the callback of a weak reference (the `append` of the stack) returns the block:
no search, no counting of references, and no Python code runs inside a destructor, where an exception (Ctrl-C) would be
lost. `deque` takes and returns blocks atomically, so two threads never get the same block.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import deque
from dataclasses import dataclass
from itertools import count
from math import prod
from threading import RLock
from typing import Any

import numpy as np

from wayfare.core.config import settings
from wayfare.core.counters import COUNTERS

Array = np.ndarray[Any, Any]

# Smaller blocks are kept by the C library itself, which is faster than any pool.
SMALLEST = 128 * 1024
# From here on the system is asked for large pages, as NumPy does for its own memory.
_LARGE = 4 * 1024 * 1024
_PAGE = 4096
# Blocks start at different offsets in their page, 9 cache lines apart: at equal offsets, several operands would compete
# for the same lines of the first cache.
_STAGGER = 9 * 64

# By default POSIX shares this memory with a forked child, so ask for private memory. Windows has no fork.
_PRIVATE: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)


class Block(mmap.mmap):
    """Memory from the system, of one size class."""

    __slots__ = ("end", "room", "start")

    end: _End | None
    room: int
    start: int


class Lease:
    """The memory of a block while it is in use: the base of the array in it."""

    __slots__ = ()


class _End(weakref.ref[Any]):
    """A weak reference to the lease of a block; when the lease dies, it is put on the stack of free blocks."""

    __slots__ = ("block",)

    block: Block


def _leases_of(size: int) -> Any:
    """The function that makes leases of blocks of one size: objects whose buffer is the block."""
    kind: Any = type(f"Lease{size}", (Lease, ctypes.c_char * (size + _PAGE)), {})
    return kind.from_buffer


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Bytes of the pool's blocks: of all, and of the free ones."""

    held: int
    free: int


_free: dict[int, deque[_End]] = {}
_lease: dict[int, Any] = {}
_held = 0
# Only for making and dropping blocks. Reentrant, because a destructor that runs meanwhile may need a buffer.
_changing = RLock()
_place = count()

_ndarray = np.ndarray
_empty = np.empty


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array with uninitialised values; `dtype` is a NumPy dtype of numbers."""
    need = prod(shape) * dtype.itemsize
    if need < SMALLEST:
        return _empty(shape, dtype)
    # Eight sizes to each doubling: at most an eighth is wasted.
    shift = need.bit_length() - 4
    size = -(-need >> shift) << shift
    block: Block | None
    try:
        free = _free[size]
        block = free.pop().block
        COUNTERS.pool_reused += 1
    except (KeyError, IndexError):
        _lease.setdefault(size, _leases_of(size))
        free = _free.setdefault(size, deque())
        block = _make(size)
    if block is None:
        try:
            return _empty(shape, dtype)
        except MemoryError:
            if not trim():
                raise
            return _empty(shape, dtype)  # in the memory of the freed blocks
    lease = _lease[size](block)
    array: Array = _ndarray(shape, dtype, lease, block.start)
    end = _End(lease, free.append)
    end.block = block
    block.end = end  # a weak reference calls back only while somebody holds it
    return array


def owns_memory(array: Array) -> bool:
    """Does this array own its memory, so that it is not a view of another array?"""
    base: Any = array.base
    return base is None or isinstance(base, Lease)


def trim(wanted: int | None = None) -> int:
    """Return free blocks to the system: all, or the oldest until `wanted` bytes are freed. Returns the bytes freed."""
    gone = 0
    with _changing:
        for free in list(_free.values()):
            while wanted is None or gone < wanted:
                try:
                    block = free.popleft().block
                except IndexError:
                    break
                gone += block.room
                _drop(block)
    return gone


def stats() -> PoolStats:
    """How much memory the pool holds now."""
    return PoolStats(_held, sum(size * len(free) for size, free in list(_free.items())))


def _make(size: int) -> Block | None:
    """A new block; None if it would exceed the limit of the pool."""
    global _held
    limit = settings.pool_limit
    if size > limit // 2:
        return None
    with _changing:
        if _held + size > limit and trim(_held + size - limit) < _held + size - limit:
            return None
        try:
            block = Block(-1, size + _PAGE, **_PRIVATE)
        except (OSError, ValueError, MemoryError):
            return None  # if there is no memory for NumPy either, it raises an error
        block.room = size
        block.start = next(_place) * _STAGGER % _PAGE
        block.end = None
        _held += size
    if size >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            block.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a system without large pages
    COUNTERS.pool_made += 1
    return block


def _drop(block: Block) -> None:
    """Forget a block; its memory is returned to the system with the last reference to it."""
    global _held
    block.end = None
    with _changing:
        _held -= block.room


def _renew_lock() -> None:
    global _changing
    _changing = RLock()


if hasattr(os, "register_at_fork"):
    # Another thread of the parent may hold the lock; in the child nobody would release it.
    os.register_at_fork(after_in_child=_renew_lock)
