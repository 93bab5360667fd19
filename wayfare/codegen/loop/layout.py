"""From shapes and strides to the argument blocks of a kernel: axes are dropped, merged and reordered."""

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
    """One axis of the loop nest: its size, and the byte stride of every operand along it."""

    size: int
    strides: list[int]


@dataclass(frozen=True, slots=True)
class Nest:
    """A loop nest of three axes (outer, rows, elements), and the class of every operand along the vectorised axis."""

    layout: Layout
    sizes: tuple[int, int, int]
    strides: tuple[tuple[int, int, int], ...]
    # The size and the byte stride of each operand's own axes.
    own: tuple[int, ...] = ()

    def words(self, part: tuple[int, int, int] | None = None, start: tuple[int, int, int] = (0, 0, 0)) -> list[int]:
        """The argument block of a part of the nest; the address words hold byte offsets from the arrays' starts."""
        words = list(part or self.sizes)
        for own in self.strides:
            words += [sum(a * b for a, b in zip(start, own, strict=True)), *own]
        return words + list(self.own)

    @property
    def elements(self) -> int:
        """How many elements one stage visits."""
        return math.prod(self.sizes)


class Scattered(LoopError):
    """The operands do not fit a nest of three axes: some must be copied first."""


def axes_of(shape: Shape, strides: Sequence[Shape], sizes: Sequence[Shape]) -> list[Axis]:
    """The axes of the nest, with stride 0 where an operand is broadcast."""
    rank = len(shape)
    made = []
    for axis, size in enumerate(shape):
        row = []
        for own_sizes, own in zip(sizes, strides, strict=True):
            own_axis = axis - rank + len(own_sizes)
            row.append(own[own_axis] if own_axis >= 0 and own_sizes[own_axis] != 1 else 0)
        made.append(Axis(size, row))
    return made


def joined(axes: list[Axis]) -> list[Axis]:
    """Drop axes of size 1, and merge neighbouring axes where every operand is contiguous across them."""
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
    axes = joined(axes_of(shape, strides, sizes))
    # The axis along which the results are contiguous becomes the innermost one.
    axes.sort(key=lambda axis: -max((abs(s) for s in axis.strides[-outputs:]), default=0))
    axes = joined(axes)
    none = [0] * len(sizes)
    if len(axes) > 3:
        raise Scattered("more than three axes")
    axes = [Axis(1, none)] * (3 - len(axes)) + axes
    if axes[2].size == 1 and not any(axes[2].strides):
        # A single element counts as contiguous.
        axes[2] = Axis(1, list(itemsizes))
    return _nest("along", axes, itemsizes)


def rows_nest(
    loop: Loop, shape: Shape, axis: tuple[int, ...], sizes: Sequence[Shape], strides: Sequence[Shape],
    itemsizes: Sequence[int],
) -> Nest:  # fmt: skip
    """The nest of a loop over rows that run along `axis` (adjacent axes of `shape`)."""
    if loop.indexed:
        return _indexed_nest(loop, shape, axis, sizes, strides, itemsizes)
    every = axes_of(shape, strides, sizes)
    before, row, after = every[: axis[0]], every[axis[0] : axis[-1] + 1], every[axis[-1] + 1 :]
    row = joined(row)
    none = [0] * len(sizes)
    if len(row) > 1:
        raise Scattered("the row has more than one axis")
    elements = row[0] if row else Axis(1, none)
    outer = joined(before + after)
    per_element = [k for k, o in enumerate((*loop.inputs, *loop.outputs)) if not o.per_row]

    # Broadcast operands are small: operands without broadcasting decide; the others only break ties.
    moving = [a for a in (*outer, elements) if a.size > 1]
    full = [k for k in per_element if all(a.strides[k] for a in moving)]

    def contiguous(a: Axis) -> tuple[int, int]:
        contiguous_ones = [k for k in per_element if a.strides[k] == itemsizes[k]]
        return len([k for k in contiguous_ones if k in full]), len(contiguous_ones)

    best = max(outer, key=contiguous, default=None)
    if best is not None and contiguous(best) > contiguous(elements):
        # Vectorise across the rows of that axis. The remaining axis is the outer loop.
        rest = [a for a in outer if a is not best]
        if len(rest) > 1:
            raise Scattered("too many axes beside the lanes")
        return _nest("across", [*(rest or [Axis(1, none)]), best, elements], itemsizes)
    if len(outer) > 2:
        raise Scattered("too many axes beside the row")
    axes = [Axis(1, none)] * (2 - len(outer)) + outer
    nest = _nest("along", [*axes, elements], itemsizes)
    # A per-row operand has class "b" even where the row has only one element.
    operands = (*loop.inputs, *loop.outputs)
    fixed = "".join("b" if operands[k].per_row else c for k, c in enumerate(nest.layout.classes))
    if elements.size == 1:
        fixed = "".join("b" if operands[k].per_row else "c" for k in range(len(operands)))
    return Nest(Layout("along", fixed), nest.sizes, nest.strides)


def _indexed_nest(
    loop: Loop, shape: Shape, axis: tuple[int, ...], sizes: Sequence[Shape], strides: Sequence[Shape],
    itemsizes: Sequence[int],
) -> Nest:  # fmt: skip
    """The nest of a loop with operands that have axes of their own. It is vectorised along the row.

    The class of such an operand is upper case if it is contiguous along the last of its own axes.
    """
    operands = (*loop.inputs, *loop.outputs)
    counts = [len(s) - o.axes for s, o in zip(sizes, operands, strict=True)]
    every = axes_of(shape, [s[:n] for s, n in zip(strides, counts, strict=True)],
                  [s[:n] for s, n in zip(sizes, counts, strict=True)])  # fmt: skip
    row, outer = joined(every[axis[0] : axis[-1] + 1]), joined(every[: axis[0]] + every[axis[-1] + 1 :])
    if len(row) > 1 or len(outer) > 2:
        raise Scattered("too many axes")
    one = Axis(1, [0] * len(sizes))
    nest = _nest("along", [*[one] * (2 - len(outer)), *outer, *(row or [one])], itemsizes)
    classes, own = [], []
    for k, (found, operand) in enumerate(zip(nest.layout.classes, operands, strict=True)):
        if operand.per_row:
            found = "b"
        elif not row and not operand.axes:
            found = "c"
        if operand.axes:
            own += [word for pair in zip(sizes[k][counts[k] :], strides[k][counts[k] :], strict=True) for word in pair]
            found = found.upper() if strides[k][-1] == itemsizes[k] else found
        classes.append(found)
    return Nest(Layout("along", "".join(classes)), nest.sizes, nest.strides, tuple(own))


# Along the vectorised axis, parts have a multiple of this many elements: vectors are not split.
_GRAIN = 64


def parts(nest: Nest, count: int) -> list[list[int]]:
    """Split the nest into about `count` argument blocks that can run in parallel."""
    # Split along any axis but the reduced one: the outer one if it is long enough, else the longest.
    axis = max((0, 1), key=lambda a: (nest.sizes[a] >= count, nest.sizes[a]))
    return _split(nest, axis, count)


def elementwise_parts(nest: Nest, count: int) -> list[list[int]]:
    """The same for elementwise loops, where the innermost axis may be split, too."""
    return _split(nest, next((a for a in (0, 1) if nest.sizes[a] >= 4 * count), 2), count)


def indexed_parts(nest: Nest, count: int, stored: Sequence[int], whole_rows: bool) -> list[list[int]]:
    """The same for loops with operands that have axes of their own. `stored` are those that are stored by index: only
    axes along which all of them move are split, so that no two parts store in one place. `whole_rows`: is the row not
    to be split?"""
    axes = [a for a in ((0, 1) if whole_rows else (0, 1, 2)) if all(nest.strides[k][a] for k in stored)]
    best = max(axes, key=lambda a: (min(nest.sizes[a] // (_GRAIN if a == 2 else 1), count), -a), default=None)
    return [nest.words()] if best is None or nest.sizes[best] < 2 else _split(nest, best, count)


def row_pieces(nest: Nest, count: int) -> list[list[int]]:
    """Split every row into about `count` pieces."""
    return _split(nest, 2, count)


def pieces(nest: Nest, elements: int) -> list[list[int]]:
    """Split an elementwise nest into argument blocks of about `elements` elements, so that threads get equal work."""
    axis = max((0, 1, 2), key=lambda a: nest.sizes[a])
    return _split(nest, axis, -(-nest.elements // elements))


def _split(nest: Nest, axis: int, count: int) -> list[list[int]]:
    size = nest.sizes[axis]
    grain = _GRAIN if axis == (2 if nest.layout.mode == "along" else 1) else 1
    part_size = -(-size // count)
    part_size = -(-part_size // grain) * grain
    made = []
    for begin in range(0, size, part_size):
        length = min(part_size, size - begin)
        part, start = list(nest.sizes), [0, 0, 0]
        part[axis], start[axis] = length, begin
        made.append(nest.words((part[0], part[1], part[2]), (start[0], start[1], start[2])))
    return made
