"""The strides that results have in plain Python, found without the numbers.

Where the input of an op is not C-contiguous, its result may not be either: the op runs once on an array of zeros with
the strides of the input, and the strides of what it makes are noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.core.device import Device
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.core.spec import Shape
from wayfare.core.symbolic_sizes import noted, plain
from wayfare.ir.graph import Value, in_order

Strides = tuple[int, ...]

# The largest array of zeros that is made for this; the results of larger inputs count as C-contiguous.
_MAX_BYTES = 1 << 20


def probe(shape: Shape, dtype: np.dtype[Any], strides: Strides, memory: bool = False) -> Array:
    """An array with these strides: of zeros, or (not `memory`) of one element, for views."""
    extent = sum([(n - 1) * s for n, s in zip(shape, strides, strict=True)]) // dtype.itemsize + 1
    if memory and (min(strides, default=0) < 0 or extent * dtype.itemsize > _MAX_BYTES):
        raise ValueError("too large")
    zeros = np.zeros(extent if memory else 1, dtype)
    return np.lib.stride_tricks.as_strided(zeros, shape, strides)


def layout_of(array: Array) -> Strides | None:
    """The strides of an array; None if it is C-contiguous."""
    return None if array.flags.c_contiguous else array.strides


def in_c_order(shape: Shape, dtype: np.dtype[Any]) -> Strides:
    """The strides of a C-contiguous array."""
    strides = []
    size = dtype.itemsize
    for n in reversed(shape):
        strides.append(size)
        size *= n
    return tuple(reversed(strides))


def layouts_of_results(
    op: Op, attrs: dict[str, Any], inputs: Sequence[tuple[Shape, np.dtype[Any], Strides]], count: int
) -> list[Strides | None]:
    """The strides of an op's outputs for inputs of such shapes, dtypes and strides; None for each that is
    C-contiguous."""
    made = None
    for memory in (False, True) if op.view else (True,):
        try:
            with np.errstate(all="ignore"):
                made = op.forward(*[probe(*given, memory) for given in inputs], **attrs)
            break
        except Exception:  # the op reads values, the array is too large, or the op needs real memory
            continue
    found = made if isinstance(made, tuple) else (made,) * count
    return [layout_of(array) if isinstance(array, np.ndarray) else None for array in found]


def keeps_memory(shape: Shape, strides: Strides, wanted: Shape) -> bool:
    """Can an array with these strides be seen in another shape without a copy?"""
    if 0 in shape:
        return True
    blocks: list[tuple[int, int]] = []  # dimensions that lie in memory as one: how many elements, and the last stride
    for n, stride in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if blocks and blocks[-1][1] == n * stride:
            blocks[-1] = (blocks[-1][0] * n, stride)
        else:
            blocks.append((n, stride))
    sizes = iter(wanted)
    for count, _ in blocks:
        product = 1
        while product < count:
            product *= next(sizes, count + 1)
        if product != count:
            return False
    return True


class Layouts:
    """The strides of traced values."""

    def __init__(self) -> None:
        self._found: dict[Value, Strides | None] = {}
        # Was it asked how values lie? Then what was traced is only valid for arguments that lie so.
        self.asked = False

    def add(self, value: Value, strides: Strides | None) -> None:
        """How a leaf lies; all others are C-contiguous."""
        self._found[value] = strides

    def keeps_memory(self, value: Value, wanted: Shape, device: Device) -> bool:
        """Can a value be seen in another shape without a copy?"""
        self.asked = True
        with noted():  # what is asked of symbolic sizes here is no condition of the trace
            shape, _, strides = self._lying(value, device)
            return keeps_memory(shape, strides, tuple(plain(n) for n in wanted))

    def _lying(self, value: Value, device: Device) -> tuple[Shape, np.dtype[Any], Strides]:
        for step in in_order([value]):
            if step.op is None or not step.outputs or step.outputs[0] in self._found:
                continue
            found: list[Strides | None] = [None] * len(step.outputs)
            if step.op.moves == "strides" and device.type != "cpu":
                pass  # windows are copies there
            elif step.op.view or any(self._found.get(v) is not None for v in step.inputs):
                given = [self._known(v) for v in step.inputs]
                found = layouts_of_results(step.op, step.attrs, given, len(step.outputs))
            self._found.update(zip(step.outputs, found, strict=True))
        return self._known(value)

    def _known(self, value: Value) -> tuple[Shape, np.dtype[Any], Strides]:
        shape = tuple(plain(n) for n in value.shape)
        return shape, value.dtype, self._found.get(value) or in_c_order(shape, value.dtype)
