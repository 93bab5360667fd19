"""The data structures of command lists: views of buffers, and commands whose addresses are filled in later.

A buffer is given by its number in the sequence of arrays that `Commands.run` gets, so nothing here has an address.
Negative numbers are the list's own buffers: its scratch memory and its constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.llvm.module import SIZES, WORDS_PER_OPERAND

Shape = tuple[int, ...]

# The buffer number of the scratch memory; constants have the numbers below.
SCRATCH = -1
# Bytes of a cache line; scratch arrays are aligned to it.
LINE = 64


class Unsuited(Exception):
    """This work has no native form."""


@dataclass(frozen=True, slots=True)
class BufferView:
    """A view of a buffer: the buffer's number, an offset in bytes, shape, strides in bytes, and dtype."""

    object: int
    offset: int
    shape: Shape
    strides: Shape
    dtype: np.dtype[Any]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def view(self, shape: Shape, strides: Shape, skip: int = 0) -> BufferView:
        """Another view of the same buffer, `skip` bytes later."""
        return BufferView(self.object, self.offset + skip, shape, strides, self.dtype)


def contiguous(number: int, offset: int, shape: Shape, dtype: np.dtype[Any]) -> BufferView:
    """A C-contiguous view."""
    strides, run = [], dtype.itemsize
    for size in reversed(shape):
        strides.append(run)
        run *= max(size, 1)
    return BufferView(number, offset, shape, tuple(reversed(strides)), dtype)


class Scratch:
    """Scratch memory for the commands of one request. All requests of a list share it."""

    def __init__(self) -> None:
        self.bytes = 0

    def allocate(self, shape: Shape, dtype: np.dtype[Any]) -> BufferView:
        """Allocate an array."""
        made = contiguous(SCRATCH, self.bytes, shape, dtype)
        self.bytes += -(-made.elements * dtype.itemsize // LINE) * LINE
        return made


@dataclass(slots=True)
class Command:
    """One native function and its argument blocks, whose address words are still offsets."""

    # "kernel", "matmul", or "" for what is not counted
    kind: str
    title: str
    function: int
    blocks: list[list[int]]
    # (block, word, buffer) of each address word
    addresses: list[tuple[int, int, int]]
    # Estimated nanoseconds
    work: float
    # Do the blocks run in the thread pool?
    shared: bool = False
    # Would BLAS use threads of its own here? They are switched off while the list runs.
    blas_threads: bool = False
    # Objects whose addresses are in the blocks.
    kept: object = None


def operand_addresses(views: Sequence[BufferView], blocks: int, first: int = 0) -> list[tuple[int, int, int]]:
    """The address words of a kernel's argument blocks, numbered from `first`, over the same views."""
    words = [(SIZES + WORDS_PER_OPERAND * k, view.object) for k, view in enumerate(views)]
    return [(block, at, number) for block in range(first, first + blocks) for at, number in words]
