"""Buffers that outlive the tensors in them.

The C library gives a large block back to the system when it is freed, and the next one costs a page fault for every
4 KB: two to four times the work of a mid-sized op. Here a block goes back to a stack of its size and is handed out
again, the last one first because the caches may still hold it.

An array of the pool looks like any new array: it is C-contiguous, its views have it as their base, its record of writes
begins empty. Only its own base is not None but the Lease of its block; code that asks "is this memory its own?" asks
`owns_memory`. Whoever sees the memory holds the lease: the array, its views through the array, and anybody who took the
array's base. A weak reference to the lease, whose callback is the stack's own `append`, brings the block back when
nobody does any more: no search, no counting of references, and no Python code runs inside a destructor, where an
exception (Ctrl-C) would be lost. Taking from a stack and putting back are single steps of `deque`, so two threads never
get the same block.
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

# Below this the C library keeps what it gets back, and is faster than any pool.
SMALLEST = 128 * 1024
# From here on the system is asked for large pages, as NumPy does for its own memory.
_LARGE = 4 * 1024 * 1024
_PAGE = 4096
# Blocks start at different places in their page, 9 cache lines apart: equal places of several operands would fall
# onto the same lines of the first cache.
_STAGGER = 9 * 64

# Shared with a forked child is the default of POSIX; Windows has neither the choice nor the fork.
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
    """The memory of a block while somebody uses it: the base of the array that lies in it."""

    __slots__ = ()


class _End(weakref.ref[Any]):
    """A weak reference to the lease of a block; when the lease has ended, it lies on the stack of free blocks."""

    __slots__ = ("block",)

    block: Block


def _leases_of(size: int) -> Any:
    """Makes leases of blocks of one size: an object whose buffer is the block's."""
    kind: Any = type(f"Lease{size}", (Lease, ctypes.c_char * (size + _PAGE)), {})
    return kind.from_buffer


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Bytes of the pool's blocks: all of them, and those that no array lies in."""

    held: int
    free: int


_free: dict[int, deque[_End]] = {}
_lease: dict[int, Any] = {}
_held = 0
# Only for making and dropping blocks. It may be entered again: a destructor that runs meanwhile may want a buffer.
_changing = RLock()
_place = count()

_ndarray = np.ndarray
_empty = np.empty


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array with whatever values are in its memory; `dtype` is a NumPy dtype of numbers."""
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
            return _empty(shape, dtype)  # where the free blocks were
    lease = _lease[size](block)
    array: Array = _ndarray(shape, dtype, lease, block.start)
    end = _End(lease, free.append)
    end.block = block
    block.end = end  # a weak reference calls back only while somebody holds it
    return array


def owns_memory(array: Array) -> bool:
    """Is this array no view of another?"""
    base: Any = array.base
    return base is None or isinstance(base, Lease)


def trim(wanted: int | None = None) -> int:
    """Give free blocks back to the system: all of them, or the oldest until `wanted` bytes are gone; how many went."""
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
    """A new block, if there is room for it."""
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
            return None  # NumPy will say what is wrong, if it finds no memory either
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
    """Let go of a block; its memory goes back to the system with the last reference to it."""
    global _held
    block.end = None
    with _changing:
        _held -= block.room


def _renew_lock() -> None:
    global _changing
    _changing = RLock()


if hasattr(os, "register_at_fork"):
    # Another thread of the parent may have held the lock, and does not exist in the child to let it go.
    os.register_at_fork(after_in_child=_renew_lock)
