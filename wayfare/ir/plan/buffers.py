"""Where the values of a plan lie: each is some memory seen through an offset and strides.

Views are other looks at the same memory and cost nothing. A value that is one part of a larger one (of a `cat`, or of
the gradient of several slices) lies in the memory of the larger one from the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.runtime.command import BufferView
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.ir.assemble import cover, numpy_key, placed
from wayfare.ir.graph import Step, Value
from wayfare.ir.lower import FOLDS, RESHAPES
from wayfare.ir.plan.lower import is_product

# Views that reach beyond what they are given.
_BEYOND = frozenset({"as_strided"})
# Ops that look at their input and hand it on.
CHECKS = frozenset({"checked_classes", "checked_lengths"})


class Memory:
    """One piece of memory: of an input, of a constant, in the arena, of a result, or made by a Python step."""

    __slots__ = ("_into", "bytes", "first", "host", "kind", "last", "number", "offset")

    def __init__(self, kind: str, size: int, number: int = -1) -> None:
        self.kind = kind  # "input", "constant", "arena", "result" or "slot"
        self.bytes = size
        # The object in which it lies, and where in it; known when all is laid out.
        self.number, self.offset = number, 0
        # The actions that write and use it first and last.
        self.first, self.last = math.inf, -1.0
        # The result in whose memory a piece of the arena lies, as long as that is not written.
        self.host: Memory | None = None
        self._into: Memory | None = None

    @property
    def real(self) -> Memory:
        """The memory that this one has become part of."""
        found = self
        while found._into is not None:
            found = found._into
        return found

    def become(self, other: Memory) -> None:
        """Lie where another one lies, from its beginning."""
        self._into = other


@dataclass(frozen=True, slots=True)
class Seat:
    """How a value lies in some memory. Offset and strides are in bytes."""

    memory: Memory
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_whole(self) -> bool:
        """Does it fill its memory, row after row?"""
        if self.offset or self.memory.bytes != math.prod(self.shape) * self.dtype.itemsize:
            return False
        return self.strides == row_strides(self.shape, self.dtype) or is_row_after_row(self)

    def place(self) -> BufferView:
        """The same for a command list."""
        real = self.memory.real
        return BufferView(real.number, real.offset + self.offset, self.shape, self.strides, self.dtype)

    def seen(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Seat:
        """The same memory in another shape."""
        return Seat(self.memory, self.offset, shape, strides, self.dtype)


def row_strides(shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """The strides of an array that lies row after row."""
    strides, run = [], dtype.itemsize
    for n in reversed(shape):
        strides.append(run)
        run *= max(n, 1)
    return tuple(reversed(strides))


def fresh(shape: tuple[int, ...], dtype: np.dtype[Any], kind: str = "arena") -> Seat:
    """Memory of its own, row after row."""
    return Seat(Memory(kind, math.prod(shape) * dtype.itemsize), 0, shape, row_strides(shape, dtype), dtype)


def is_row_after_row(seat: Seat) -> bool:
    """The same question, whatever the strides of single elements are."""
    wanted = row_strides(seat.shape, seat.dtype)
    return all(n == 1 or a == b for n, a, b in zip(seat.shape, seat.strides, wanted, strict=True))


def is_view(op: Op) -> bool:
    """Is this op another look at its input, wherever that lies well enough?"""
    return op.view and op.name not in _BEYOND


class Seating:
    """The seats of all values of a graph."""

    def __init__(self, steps: Sequence[Step], inputs: Sequence[Value], samples: Sequence[Array]) -> None:
        self.seats: dict[Value, Seat] = {}
        # Views of something that does not lie well enough: these are copied.
        self.copies: set[Value] = set()
        # Arrays put together from parts that keep clear of each other: do the parts cover the whole?
        self.assembled: dict[Value, bool] = {}
        self.constants: list[Array] = []
        self._steps = steps
        self._samples = dict(zip(inputs, samples, strict=True))
        self._numbers = {v: i for i, v in enumerate(inputs)}
        room = max([_extent(a)[1] - _extent(a)[0] for a in samples], default=0)
        room = max([room, *(_bytes(v) for step in steps for v in step.outputs)])
        for step in steps:
            if step.name == "array":
                low, high = _extent(np.asarray(step.leaf[1]))
                room = max(room, high - low)
        self._scratch = np.empty(2 * room + 64, np.uint8)
        self._start = self._scratch.ctypes.data
        self._middle = room // 16 * 16
        self._place_parts()
        for step in steps:
            self._seat(step)
        del self._scratch

    def __getitem__(self, v: Value) -> Seat:
        return self.seats[v]

    # -- arrays put together from parts

    def _place_parts(self) -> None:
        """Give values their place in the larger ones they are part of, the largest first."""
        reshaped = {v for step in self._steps if step.op is not None and step.op.name in RESHAPES for v in step.inputs}
        for step in reversed(self._steps):
            if step.outputs[0] in reshaped and _turns_stack(step):
                self._turn(step.outputs[0], fresh(tuple(step.outputs[0].shape), step.outputs[0].dtype))
                continue
            indexes = placed(step.op, step.attrs)
            if indexes is None or 0 in step.outputs[0].shape:
                continue
            (out,) = step.outputs
            apart, whole = True, step.inputs[0].size == out.size
            if len(indexes) > 1:
                apart, whole = cover(out.shape, indexes)
            if not apart:
                continue
            self.assembled[out] = whole
            seat = self.seats.get(out)
            if seat is None:
                seat = self.seats[out] = fresh(tuple(out.shape), out.dtype)
            for part, index in zip(step.inputs, indexes, strict=True):
                if part not in self.seats and part not in reshaped and _can_be_part(part, self.assembled):
                    found = self._looked(seat, self._array(seat)[numpy_key(index)])
                    if _suits(part, found):
                        self.seats[part] = found
                elif _turns_stack(part.step):
                    self._turn(part, self._looked(seat, self._array(seat)[numpy_key(index)]))

    def _turn(self, turned: Value, seat: Seat) -> None:
        """Have a stack of products written such that, with its axes in another order, it has this seat."""
        product = turned.step.inputs[0]
        found = self._looked(seat, self._array(seat).transpose(np.argsort(turned.step.attrs["dims"])))
        if product not in self.seats and _suits(product, found):
            self.seats[product] = found

    # -- seats

    def _array(self, seat: Seat) -> Array:
        """An array that lies like this, somewhere: only to see what becomes of its strides."""
        return np.ndarray(seat.shape, seat.dtype, self._scratch, self._middle + seat.offset, seat.strides)

    def _looked(self, seat: Seat, array: Array) -> Seat:
        """The seat of a view, from what NumPy made of the stand-in."""
        offset = array.__array_interface__["data"][0] - self._start - self._middle
        return Seat(seat.memory, offset, array.shape, array.strides, array.dtype)

    def _seat(self, step: Step) -> None:
        if step.op is None:
            self._seat_leaf(step)
            return
        if step.op.name in CHECKS:
            self.seats[step.outputs[0]] = self.seats[step.inputs[0]]
            return
        if is_view(step.op):
            seat = self.seats[step.inputs[0]]
            (out,) = step.outputs
            array = step.op.forward(self._array(seat), **step.attrs)
            if array.size and np.may_share_memory(array, self._scratch):
                self.seats[out] = self._looked(seat, array)
                return
            self.copies.add(out)
        for v in step.outputs:
            if v not in self.seats:
                self.seats[v] = fresh(tuple(v.shape), v.dtype)

    def _seat_leaf(self, step: Step) -> None:
        (v,) = step.outputs
        if step.name == "input":
            array, memory = self._samples[v], Memory("input", 0, self._numbers[v])
        else:
            array = np.asarray(step.leaf[1], v.dtype) if step.name == "number" else np.asarray(step.leaf[1])
            memory = Memory("constant", 0, len(self.constants))
            self.constants.append(array)
        memory.bytes = array.nbytes
        self.seats[v] = Seat(memory, 0, array.shape, array.strides, array.dtype)


def _bytes(v: Value) -> int:
    return math.prod(v.shape) * v.dtype.itemsize


def _extent(array: Array) -> tuple[int, int]:
    """The bytes an array reaches over, from its first element."""
    low = sum(min(0, (n - 1) * s) for n, s in zip(array.shape, array.strides, strict=True) if n)
    high = sum(max(0, (n - 1) * s) for n, s in zip(array.shape, array.strides, strict=True) if n)
    return low, high + array.itemsize


def _can_be_part(v: Value, assembled: dict[Value, bool]) -> bool:
    """Is this computed by something that can write to any place?"""
    op = v.step.op
    if op is None or is_view(op) or op.name in CHECKS:
        return False
    return v in assembled or is_product(v.step) or op.family == "elementwise" or op.name in FOLDS


def _turns_stack(step: Step) -> bool:
    """Does a step put the axes of a stack of products into another order?"""
    if step.name != "permute" or not is_product(step.inputs[0].step):
        return False
    return min(v.ndim for v in step.inputs[0].step.inputs) > 2


def _suits(v: Value, seat: Seat) -> bool:
    """Do the rows lie side by side, so that it is written as fast as it would be elsewhere?"""
    return not seat.shape or seat.shape[-1] == 1 or seat.strides[-1] == v.dtype.itemsize
