"""What a call of a kernel may be given: shapes that broadcast, axes of rows. The same on every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.codegen.loop.language import Loop
from wayfare.core.errors import LoopError

Shape = tuple[int, ...]


def no_arrays(loop: Loop, given: Any) -> LoopError:
    """The error for something that is no list of arrays."""
    kinds = ", ".join(type(a).__name__ for a in given) if isinstance(given, (list, tuple)) else type(given).__name__
    return LoopError(f"loop {loop.name}: takes a list of arrays, not {kinds}")


def not_elementwise(loop: Loop) -> LoopError:
    """The error for a loop over rows that is called without an axis."""
    return LoopError(f"loop {loop.name} works on rows", fix="Say along which axis: kernel.rows(arrays, axis).")


def broadcast(loop: Loop, inputs: Sequence[Any]) -> Shape:
    """The shape that the inputs broadcast to."""
    if len(inputs) != len(loop.inputs):
        raise LoopError(f"loop {loop.name}: takes {len(loop.inputs)} arrays, not {len(inputs)}")
    try:
        first: Shape = inputs[0].shape
        for array in inputs:
            if array.shape != first:
                return tuple(np.broadcast_shapes(*(a.shape for a in inputs)))
        return first
    except AttributeError:
        raise no_arrays(loop, inputs) from None


def row_axes(loop: Loop, axis: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The axes of a row, ascending."""
    named = (axis,) if isinstance(axis, int) else tuple(axis)
    if not named or any(not isinstance(a, int) or not -rank <= a < rank for a in named):
        raise LoopError(f"loop {loop.name}: there is no axis {axis!r} in an array of {rank} dimensions")
    axes = tuple(sorted(a % rank for a in named))
    if axes != tuple(range(axes[0], axes[-1] + 1)):
        raise LoopError(f"loop {loop.name}: the axes {axes} of a row must be adjacent")
    return axes


def row_shapes(loop: Loop, inputs: Sequence[Any], shape: Shape, axes: tuple[int, ...]) -> tuple[Shape, list[Shape]]:
    """The shape of values per row, and the shape of each output."""
    short = tuple(1 if a in axes else n for a, n in enumerate(shape))
    for array, operand in zip(inputs, loop.inputs, strict=True):
        own = (1,) * (len(shape) - array.ndim) + array.shape
        if operand.per_row and any(own[a] != 1 for a in axes):
            raise LoopError(f"loop {loop.name}: an array of {list(array.shape)} was given for one value per row")
    return short, [short if o.per_row else shape for o in loop.outputs]


def check_outputs(loop: Loop, outputs: Sequence[Any], shapes: Sequence[Shape], dtypes: Sequence[np.dtype[Any]]) -> None:
    """Raise LoopError unless the arrays to write to have the shapes and dtypes that the loop makes."""
    if len(outputs) != len(shapes):
        raise LoopError(f"loop {loop.name}: makes {len(shapes)} arrays, not {len(outputs)}")
    for array, shape, dtype in zip(outputs, shapes, dtypes, strict=True):
        if array.shape != shape or array.dtype != dtype:
            raise LoopError(f"loop {loop.name}: an output of {array.dtype}{list(array.shape)} was given, "
                            f"{dtype}{list(shape)} is made")  # fmt: skip
