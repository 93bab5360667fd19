"""From shapes and strides to the argument blocks of a kernel: axes dropped, joined and put in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wayfare.codegen.llvm.module import Layout
from wayfare.codegen.loop.language import Loop
from wayfare.core.errors import LoopError

Shape = tuple[int, ...]


@dataclass(slots=True)
class Axis:
    """One axis of the nest: its size, and the byte stride of every operand along it."""

    size: int
    strides: list[int]


@dataclass(frozen=True, slots=True)
class Nest:
    """Three axes (outer, rows, elements) and the class of every operand along the lanes' axis."""

    layout: Layout
    sizes: tuple[int, int, int]
    strides: tuple[tuple[int, int, int], ...]

    def words(self, part: tuple[int, int, int] | None = None, start: tuple[int, int, int] = (0, 0, 0)) -> list[int]:
        """The argument block of a part of the nest; the address words hold offsets from the arrays' beginnings."""
        words = list(part or self.sizes)
        for own in self.strides:
            words += [sum(a * b for a, b in zip(start, own, strict=True)), *own]
        return words

    @property
    def elements(self) -> int:
        """Visits of one stage."""
        return math.prod(self.sizes)


class Scattered(LoopError):
    """The operands cannot be walked with three axes: some must be copied first."""


def _axes(shape: Shape, strides: Sequence[Shape], sizes: Sequence[Shape]) -> list[Axis]:
    """The nest's axes, with stride 0 where an operand is stretched."""
    rank = len(shape)
    made = []
    for axis, size in enumerate(shape):
        row = []
        for own_sizes, own in zip(sizes, strides, strict=True):
            place = axis - rank + len(own_sizes)
            row.append(own[place] if place >= 0 and own_sizes[place] != 1 else 0)
        made.append(Axis(size, row))
    return made


def _joined(axes: list[Axis]) -> list[Axis]:
    """Axes of size 1 dropped, neighbours joined where every operand runs on from one into the other."""
    out: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if out and all(a == b * axis.size for a, b in zip(out[-1].strides, axis.strides, strict=True)):
            out[-1] = Axis(out[-1].size * axis.size, axis.strides)
        else:
            out.append(axis)
    return out


def _classes(axis: Axis, sizes: Sequence[int]) -> str:
    return "".join(
        "b" if stride == 0 else "c" if stride == size else "s" for stride, size in zip(axis.strides, sizes, strict=True)
    )


def _nest(mode: str, axes: Sequence[Axis], itemsizes: Sequence[int]) -> Nest:
    lanes = axes[2] if mode == "along" else axes[1]
    strides = tuple(zip(*(axis.strides for axis in axes), strict=True))
    outer, rows, elements = axes
    return Nest(Layout(mode, _classes(lanes, itemsizes)), (outer.size, rows.size, elements.size), strides)


def elementwise_nest(
    shape: Shape, sizes: Sequence[Shape], strides: Sequence[Shape], itemsizes: Sequence[int], outputs: int
) -> Nest:
    """The nest of a loop without rows: operands of these sizes and strides, the last `outputs` of them written."""
    axes = _joined(_axes(shape, strides, sizes))
    # The axis along which the results lie side by side is the innermost, whatever the arrays' order of axes.
    axes.sort(key=lambda axis: -max((abs(s) for s in axis.strides[-outputs:]), default=0))
    axes = _joined(axes)
    none = [0] * len(sizes)
    if len(axes) > 3:
        raise Scattered("more than three axes")
    axes = [Axis(1, none)] * (3 - len(axes)) + axes
    if axes[2].size == 1 and not any(axes[2].strides):
        # A single element: side by side by definition.
        axes[2] = Axis(1, list(itemsizes))
    return _nest("along", axes, itemsizes)


def rows_nest(
    loop: Loop, shape: Shape, axis: tuple[int, ...], sizes: Sequence[Shape], strides: Sequence[Shape],
    itemsizes: Sequence[int],
) -> Nest:  # fmt: skip
    """The nest of a loop over rows that run along `axis` (adjacent axes of `shape`)."""
    every = _axes(shape, strides, sizes)
    before, row, after = every[: axis[0]], every[axis[0] : axis[-1] + 1], every[axis[-1] + 1 :]
    row = _joined(row)
    none = [0] * len(sizes)
    if len(row) > 1:
        raise Scattered("the row has more than one axis")
    elements = row[0] if row else Axis(1, none)
    outer = _joined(before + after)
    # Which axis lies side by side in memory, counted over the operands that have a value for each element?
    per_element = [k for k, o in enumerate((*loop.inputs, *loop.outputs)) if not o.per_row]

    # What is stretched along an axis is small: the whole operands decide, the others where those do not.
    moving = [a for a in (*outer, elements) if a.size > 1]
    whole = [k for k in per_element if all(a.strides[k] for a in moving)]

    def contiguous(a: Axis) -> tuple[int, int]:
        lying = [k for k in per_element if a.strides[k] == itemsizes[k]]
        return len([k for k in lying if k in whole]), len(lying)

    best = max(outer, key=contiguous, default=None)
    if best is not None and contiguous(best) > contiguous(elements):
        # Lanes are the rows of that axis. The other rows are outside.
        rest = [a for a in outer if a is not best]
        if len(rest) > 1:
            raise Scattered("too many axes beside the lanes")
        return _nest("across", [*(rest or [Axis(1, none)]), best, elements], itemsizes)
    if len(outer) > 2:
        raise Scattered("too many axes beside the row")
    axes = [Axis(1, none)] * (2 - len(outer)) + outer
    nest = _nest("along", [*axes, elements], itemsizes)
    # A row operand has one value for the row even where the row has one element.
    operands = (*loop.inputs, *loop.outputs)
    fixed = "".join("b" if operands[k].per_row else c for k, c in enumerate(nest.layout.classes))
    if elements.size == 1:
        fixed = "".join("b" if operands[k].per_row else "c" for k in range(len(operands)))
    return Nest(Layout("along", fixed), nest.sizes, nest.strides)


# Lanes are not cut apart: a part has a multiple of this many elements along their axis.
_GRAIN = 64


def parts(nest: Nest, count: int) -> list[list[int]]:
    """The nest cut into about `count` argument blocks that may run at the same time."""
    # The axis to cut: any but the one that is folded; the longest of them, outer ones first.
    axis = max((0, 1), key=lambda a: (nest.sizes[a] >= count, nest.sizes[a]))
    return _cut(nest, axis, count)


def elementwise_parts(nest: Nest, count: int) -> list[list[int]]:
    """The same where the elements themselves may be cut, too."""
    return _cut(nest, next((a for a in (0, 1) if nest.sizes[a] >= 4 * count), 2), count)


def row_pieces(nest: Nest, count: int) -> list[list[int]]:
    """Every row cut into about `count` pieces."""
    return _cut(nest, 2, count)


def pieces(nest: Nest, elements: int) -> list[list[int]]:
    """A nest without rows cut into argument blocks of about so many elements, so that threads share them evenly."""
    axis = max((0, 1, 2), key=lambda a: nest.sizes[a])
    return _cut(nest, axis, -(-nest.elements // elements))


def _cut(nest: Nest, axis: int, count: int) -> list[list[int]]:
    size = nest.sizes[axis]
    grain = _GRAIN if axis == (2 if nest.layout.mode == "along" else 1) else 1
    share = -(-size // count)
    share = -(-share // grain) * grain
    made = []
    for begin in range(0, size, share):
        length = min(share, size - begin)
        part, start = list(nest.sizes), [0, 0, 0]
        part[axis], start[axis] = length, begin
        made.append(nest.words((part[0], part[1], part[2]), (start[0], start[1], start[2])))
    return made

