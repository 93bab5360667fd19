"""Memory that a map and its workers share: the values of the tensors that a function sees, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from multiprocessing import shared_memory
from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor, wrap

_ALIGN = 64

# What a tensor is like: shape, dtype, whether it wants a gradient, and what a module takes it for.
TensorSpec = tuple[tuple[int, ...], str, bool, str | None]


def spec_of(t: Tensor) -> TensorSpec:
    """What a tensor is like."""
    return tuple(t._array.shape), t._array.dtype.name, bool(t.requires_grad), getattr(t, "_role", None)


class Block:
    """A piece of shared memory with an array for each spec. The process that makes it removes it.

    NumPy does not keep the memory mapped: whoever has an array of it must keep the block too.
    """

    def __init__(self, specs: Sequence[TensorSpec], copies: int = 1, name: str | None = None) -> None:
        self._places = []
        size = 0
        for shape, dtype, _, _ in specs:
            self._places.append((size, shape, np.dtype(dtype)))
            size += -(-math.prod(shape) * np.dtype(dtype).itemsize // _ALIGN) * _ALIGN
        self.bytes = size
        self._memory = shared_memory.SharedMemory(name, create=name is None, size=max(size * copies, 1))
        self.name = self._memory.name

    def array(self, number: int, copy: int = 0) -> Array:
        """One of the arrays."""
        offset, shape, dtype = self._places[number]
        return np.ndarray(shape, dtype, self._memory.buf, copy * self.bytes + offset)

    def remove(self) -> None:
        """Remove the memory. Its arrays must not be used any more."""
        self._memory.close()
        self._memory.unlink()


def tensor_in(block: Block, number: int, spec: TensorSpec) -> Tensor:
    """A worker's tensor on the values in a block."""
    t = wrap(block.array(number))
    t._requires_grad = spec[2]
    if spec[3] is not None:
        t._role = spec[3]
    return t


def as_sent(t: Tensor) -> Any:
    """The numbers of a tensor, as one block of memory."""
    array = t._read("pickle")
    return array if array.flags.c_contiguous else array.copy("C")
