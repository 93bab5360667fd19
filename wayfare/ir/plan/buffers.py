"""Buffer assignment: every value of a plan is a view of a buffer, with an offset and strides.

View ops share the buffer of their input and cost nothing. A value that is one part of a larger one (of a `cat`, or of
the gradient of several slices) is computed directly into the buffer of the larger one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.runtime.command import BufferView
from wayfare.core.device import BACKENDS
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.ir.assemble import cover, numpy_key, placed
from wayfare.ir.graph import Step, Value
from wayfare.ir.plan.lower import is_matmul


class Buffer:
    """One buffer: of an input, a constant or a result, a piece of the arena, or one made by a Python step."""

    __slots__ = ("_into", "bytes", "first", "host", "kind", "last", "number", "offset")

    def __init__(self, kind: str, size: int, number: int = -1) -> None:
        self.kind = kind  # "input", "constant", "arena", "result" or "slot"
        self.bytes = size
        # The object that contains it, and its offset there; set by the layout.
        self.number, self.offset = number, 0
        # The numbers of the first and last actions that use it.
        self.first, self.last = math.inf, -1.0
        # The result whose memory it uses, as long as that result is not written.
        self.host: Buffer | None = None
        self._into: Buffer | None = None

    @property
    def real(self) -> Buffer:
        """The buffer that this one was merged into."""
        found = self
        while found._into is not None:
            found = found._into
        return found

    def become(self, other: Buffer) -> None:
        """Use the memory of another buffer, from its start."""
        self._into = other


@dataclass(frozen=True, slots=True)
class View:
    """The position of a value in a buffer. Offset and strides are in bytes."""

    buffer: Buffer
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
        """Is it contiguous, and does it fill its buffer?"""
        if self.offset or self.buffer.bytes != math.prod(self.shape) * self.dtype.itemsize:
            return False
        return self.strides == contiguous_strides(self.shape, self.dtype) or is_contiguous(self)

    def resolve(self) -> BufferView:
        """The same in the form that command lists take."""
        real = self.buffer.real
        return BufferView(real.number, real.offset + self.offset, self.shape, self.strides, self.dtype)

    def as_strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
        """The same part of the buffer with another shape and other strides."""
        return View(self.buffer, self.offset, shape, strides, self.dtype)


def contiguous_strides(shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """The strides of a contiguous array."""
    strides, run = [], dtype.itemsize
    for n in reversed(shape):
        strides.append(run)
        run *= max(n, 1)
    return tuple(reversed(strides))


def new_view(shape: tuple[int, ...], dtype: np.dtype[Any], kind: str = "arena") -> View:
    """A contiguous view of a new buffer."""
    return View(Buffer(kind, math.prod(shape) * dtype.itemsize), 0, shape, contiguous_strides(shape, dtype), dtype)


def is_contiguous(view: View) -> bool:
    """Is a view contiguous? Strides of dimensions of size 1 do not matter."""
    wanted = contiguous_strides(view.shape, view.dtype)
    return all(n == 1 or a == b for n, a, b in zip(view.shape, view.strides, wanted, strict=True))


def is_view(op: Op) -> bool:
    """Is this a view op, if the layout of its input allows a view?"""
    return op.view and op.moves != "strides"


# The `data` of an assembled array whose parts may be assembled arrays, computed in place.
IN_PLACE = "in place"


class BufferAssignment:
    """Assigns a view of a buffer to every value of a graph."""

    def __init__(self, steps: Sequence[Step], inputs: Sequence[Value], samples: Sequence[Array]) -> None:
        self.views: dict[Value, View] = {}
        # Outputs of view ops that must be copied, because the layout of the input allows no view.
        self.copies: set[Value] = set()
        # Assembled arrays whose parts do not overlap: do the parts cover the whole array?
        self.assembled: dict[Value, bool] = {}
        self.constants: list[Array] = []
        self._steps = steps
        self._samples = dict(zip(inputs, samples, strict=True))
        self._numbers = {v: i for i, v in enumerate(inputs)}
        self._away = bool(BACKENDS) and any([a.__class__ in BACKENDS for a in samples])  # on another device
        room = max([_extent(a)[1] - _extent(a)[0] for a in samples], default=0)
        room = max([room, *(_bytes(v) for step in steps for v in step.outputs)])
        for step in steps:
            if step.name == "array":
                low, high = _extent(np.asarray(step.data))
                room = max(room, high - low)
        self._scratch = np.empty(2 * room + 64, np.uint8)
        self._start = self._scratch.ctypes.data
        self._middle = room // 16 * 16
        self._assign_parts()
        for step in steps:
            self._assign(step)
        del self._scratch

    def __getitem__(self, v: Value) -> View:
        return self.views[v]

    # -- assembled arrays

    def _assign_parts(self) -> None:
        """Assign parts to the buffers of the arrays they are part of, outermost first."""
        reshapes = [step for step in self._steps if step.op is not None and step.op.moves == "reshape"]
        reshaped = {v for step in reshapes for v in step.inputs}
        for step in reversed(self._steps):
            if step.outputs[0] in reshaped and _permutes_matmul(step):
                self._write_permuted(step.outputs[0], new_view(tuple(step.outputs[0].shape), step.outputs[0].dtype))
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
            view = self.views.get(out)
            if view is None:
                view = self.views[out] = new_view(tuple(out.shape), out.dtype)
            for part, index in zip(step.inputs, indexes, strict=True):
                fits = _can_be_part(part, self.assembled) or (step.data is IN_PLACE and _is_apart(part))
                if part not in self.views and part not in reshaped and fits:
                    found = self._view_from(view, self._array(view)[numpy_key(index)])
                    if _suits(part, found):
                        self.views[part] = found
                elif _permutes_matmul(part.step):
                    self._write_permuted(part, self._view_from(view, self._array(view)[numpy_key(index)]))

    def _write_permuted(self, permuted: Value, view: View) -> None:
        """Assign a batched matmul so that its permutation is this view."""
        matmul = permuted.step.inputs[0]
        found = self._view_from(view, self._array(view).transpose(np.argsort(permuted.step.attrs["dims"])))
        if matmul not in self.views and _suits(matmul, found):
            self.views[matmul] = found

    # -- views

    def _array(self, view: View) -> Array:
        """A stand-in array with this layout; NumPy computes the strides of its views."""
        return np.ndarray(view.shape, view.dtype, self._scratch, self._middle + view.offset, view.strides)

    def _view_from(self, view: View, array: Array) -> View:
        """The view that corresponds to a NumPy view of the stand-in array."""
        offset = array.__array_interface__["data"][0] - self._start - self._middle
        return View(view.buffer, offset, array.shape, array.strides, array.dtype)

    def _assign(self, step: Step) -> None:
        if step.op is None:
            self._assign_leaf(step)
            return
        if step.op.family == "check":
            self.views[step.outputs[0]] = self.views[step.inputs[0]]
            return
        if is_view(step.op):
            view = self.views[step.inputs[0]]
            (out,) = step.outputs
            array = step.op.forward(self._array(view), **step.attrs)
            if array.size and np.may_share_memory(array, self._scratch):
                self.views[out] = self._view_from(view, array)
                return
            self.copies.add(out)
        for v in step.outputs:
            if v not in self.views:
                self.views[v] = new_view(tuple(v.shape), v.dtype)

    def _assign_leaf(self, step: Step) -> None:
        (v,) = step.outputs
        if step.name == "input":
            array, buffer = self._samples[v], Buffer("input", 0, self._numbers[v])
        else:
            array = np.asarray(step.data, v.dtype) if step.name == "number" else np.asarray(step.data)
            if self._away:  # it is copied there, in C order
                array = np.asarray(array, order="C")
            buffer = Buffer("constant", 0, len(self.constants))
            self.constants.append(array)
        buffer.bytes = array.nbytes
        self.views[v] = View(buffer, 0, array.shape, array.strides, array.dtype)


def _bytes(v: Value) -> int:
    return math.prod(v.shape) * v.dtype.itemsize


def _extent(array: Array) -> tuple[int, int]:
    """The lowest and highest byte of an array, relative to its first element."""
    low = sum(min(0, (n - 1) * s) for n, s in zip(array.shape, array.strides, strict=True) if n)
    high = sum(max(0, (n - 1) * s) for n, s in zip(array.shape, array.strides, strict=True) if n)
    return low, high + array.itemsize


def _can_be_part(v: Value, assembled: dict[Value, bool]) -> bool:
    """Is this computed by an action that can write to any view?"""
    op = v.step.op
    if op is None or is_view(op) or op.family == "check":
        return False
    return v in assembled or is_matmul(v.step) or op.family == "elementwise" or bool(op.loop_reduction)


def _is_apart(v: Value) -> bool:
    """Is this an assembled array whose parts do not overlap?"""
    indexes = placed(v.step.op, v.step.attrs)
    return indexes is not None and len(indexes) > 1 and cover(v.shape, indexes)[0]


def _permutes_matmul(step: Step) -> bool:
    """Does a step permute the axes of a batched matmul?"""
    if step.name != "permute" or not is_matmul(step.inputs[0].step):
        return False
    return min(v.ndim for v in step.inputs[0].step.inputs) > 2


def _suits(v: Value, view: View) -> bool:
    """Are rows contiguous, so that writing there is as fast as elsewhere?"""
    return not view.shape or view.shape[-1] == 1 or view.strides[-1] == v.dtype.itemsize
