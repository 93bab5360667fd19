"""The words of a command list: where arrays lie, and commands as argument blocks whose addresses are still missing.

An array is named by the number of its object in the sequence that `Commands.run` is given, so nothing here knows an
address. Objects of negative numbers are the list's own: its scratch memory and its constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.llvm.module import SIZES, WORDS_PER_OPERAND

Shape = tuple[int, ...]

# The object that is the list's own scratch memory; its constants have the numbers below.
SCRATCH = -1
# Scratch arrays begin on lines of the cache.
LINE = 64


class Unsuited(Exception):
    """This work has no native form."""


@dataclass(frozen=True, slots=True)
class BufferView:
    """Where an array lies: in which object, how many bytes from its beginning, and how. Strides are in bytes."""

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
        """The same memory as another shape, from `skip` bytes on."""
        return BufferView(self.object, self.offset + skip, shape, strides, self.dtype)


def contiguous(number: int, offset: int, shape: Shape, dtype: np.dtype[Any]) -> BufferView:
    """The place of a C-contiguous array."""
    strides, run = [], dtype.itemsize
    for size in reversed(shape):
        strides.append(run)
        run *= max(size, 1)
    return BufferView(number, offset, shape, tuple(reversed(strides)), dtype)


class Scratch:
    """Memory for what one command leaves to the next; a later request begins anew at its start."""

    def __init__(self) -> None:
        self.bytes = 0

    def allocate(self, shape: Shape, dtype: np.dtype[Any]) -> BufferView:
        """Room for an array."""
        made = contiguous(SCRATCH, self.bytes, shape, dtype)
        self.bytes += -(-made.elements * dtype.itemsize // LINE) * LINE
        return made


@dataclass(slots=True)
class Command:
    """One native function and its argument blocks, in whose address words there are only offsets so far."""

    # "kernel", "product", or "" for what is not counted
    kind: str
    title: str
    function: int
    blocks: list[list[int]]
    # Which word of which block is an address, and in which object
    addresses: list[tuple[int, int, int]]
    # Nanoseconds, about
    work: float
    # Do several threads share the blocks?
    shared: bool = False
    # Products only: is it one that BLAS would use threads of its own for?
    blas_threads: bool = False
    # What must live as long as the blocks do, because they hold its address.
    kept: object = None


def operand_addresses(views: Sequence[BufferView], blocks: int, first: int = 0) -> list[tuple[int, int, int]]:
    """The address words of a kernel's argument blocks from `first` on, all of which are over the same objects."""
    words = [(SIZES + WORDS_PER_OPERAND * k, view.object) for k, view in enumerate(views)]
    return [(block, at, number) for block in range(first, first + blocks) for at, number in words]
