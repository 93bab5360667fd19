"""From shapes and strides to launches: which threads do which elements, and the sizes and strides that a kernel gets.

A loop without rows has one thread for each element, or for each group of elements that are loaded at once. In a loop
over rows a team of threads does a row:

    lanes    a part of a warp, for short rows
    block    a block, for longer rows
    column   threads of a block that are 32 apart; neighbours have neighbouring rows, for rows that lie across memory

Few long rows are split into chunks, one for each block. Each stage is then a launch of its own, which writes its
reductions of each chunk to a table; the next stage combines the table before it begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wayfare.codegen.cuda.prelude import COLUMN_ROWS, COLUMN_THREADS
from wayfare.codegen.loop.expr import NUMPY, walk
from wayfare.codegen.loop.language import Loop, Reduction
from wayfare.codegen.loop.layout import Axis, Shape, axes_of, joined

# Byte offsets and element counts below this are computed in 32 bits, with room for a step of the whole grid.
_NARROW = 2**30
# The bytes of one load.
_LOAD_BYTES = 16
# Registers hold a row of this many loads of each thread, from this many inputs, in teams of up to this many threads.
_HELD, _HELD_INPUTS, HELD_THREADS = 4, 4, 512
# How many blocks keep a processor busy with loads.
_BLOCKS_EACH = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What a launcher's device is like, and the sizes at which another form is used.

    - `block`: threads of a block.
    - `processors`: how many blocks should run at once.
    - `most_blocks`: of one launch; threads do several elements or rows if there are more.
    - `lanes_row`: the longest row that part of a warp does.
    - `chunk`, `column_chunk`: the fewest elements of a chunk of a row.
    """

    block: int = 256
    processors: int = 132
    most_blocks: int = 1 << 20
    lanes_row: int = 1024
    chunk: int = 4096
    column_chunk: int = 128


@dataclass(frozen=True, slots=True)
class Layout:
    """What the text of a kernel depends on beside its loop.

    - `form`: "elements" for loops without rows, else how a team is made: "lanes", "block" or "column".
    - `row_axes`, `element_axes`: how many axes rows and elements have.
    - `wide`: 64-bit indices?
    - `vector`: how many elements are loaded at once; `classes` then says for each operand whether it is contiguous
      (c), broadcast (b) or per row (r) along the elements. `tail`: the last group may be shorter.
    - `part`: None for the whole loop; with chunks the number of a stage, or the number of stages for the results.
    - `held`: the most groups of elements of a thread, if a row fits in the registers of its team; else 0.
    """

    form: str
    row_axes: int
    element_axes: int
    wide: bool
    vector: int = 1
    classes: str = ""
    tail: bool = False
    part: int | None = None
    held: int = 0


@dataclass(slots=True)
class Launch:
    """One launch: the layout of its kernel, grid and block, and the values of the kernel's fields by name."""

    layout: Layout
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    values: dict[str, int]


@dataclass(slots=True)
class Arrangement:
    """The launches of a loop on arrays, one after the other.

    - `alignment`: what the address of each operand must be a multiple of.
    - `tables`: the bytes of the table of each reduction, where rows are split into chunks.
    """

    launches: list[Launch]
    alignment: tuple[int, ...]
    tables: tuple[int, ...] = ()


def operand_names(loop: Loop) -> list[str]:
    """What operands are called in the text: x0, x1, …, y0, …"""
    return [f"x{k}" for k in range(len(loop.inputs))] + [f"y{k}" for k in range(len(loop.outputs))]


def total_bytes(reduction: Reduction) -> int:
    """The bytes of the total of a reduction in a table."""
    size = NUMPY[reduction.value.dtype].itemsize
    if reduction.kind in ("argmax", "argmin"):
        return 16
    if reduction.kind == "sum":
        return {"f32": 8, "f64": 16}.get(reduction.value.dtype, size)
    return 8 if reduction.kind == "prod" else size


def _is_wide(axes: Sequence[Axis], itemsizes: Sequence[int]) -> bool:
    if math.prod(a.size for a in axes) >= _NARROW:
        return True
    reach = [sum(abs(a.strides[k]) * (a.size - 1) for a in axes) + size for k, size in enumerate(itemsizes)]
    return max(reach) >= _NARROW


def _vector(
    inner: Axis, others: Sequence[Axis], itemsizes: Sequence[int], per_row: Sequence[bool], tail: bool
) -> tuple[int, str]:
    """How many elements can be loaded at once, and the class of every operand along the elements; (1, "") for one."""
    classes = "".join(
        "r" if row else "c" if stride == size else "b" if stride == 0 else "s"
        for stride, size, row in zip(inner.strides, itemsizes, per_row, strict=True)
    )
    contiguous = [k for k, c in enumerate(classes) if c == "c"]
    if "s" in classes or not contiguous:
        return 1, ""
    count = _LOAD_BYTES // max(itemsizes[k] for k in contiguous)
    while count > 1:
        fits = inner.size % count == 0 or (tail and inner.size > count)
        if fits and all(a.strides[k] % (count * itemsizes[k]) == 0 for a in others for k in contiguous):
            return count, classes
        count //= 2
    return 1, ""


def _alignment(vector: int, classes: str, itemsizes: Sequence[int]) -> tuple[int, ...]:
    if vector == 1:
        return tuple(itemsizes)
    return tuple(vector * s if c == "c" else s for c, s in zip(classes, itemsizes, strict=True))


def _axis_values(loop: Loop, letter: str, axes: Sequence[Axis], vector: int) -> dict[str, int]:
    """The fields of sizes and strides along axes; the last axis counts groups of `vector` elements."""
    values = {}
    for d, axis in enumerate(axes):
        groups = vector if d == len(axes) - 1 else 1
        values[f"{letter}_size{d}"] = -(-axis.size // groups)
        for name, stride in zip(operand_names(loop), axis.strides, strict=True):
            values[f"{name}_{letter}{d}"] = stride * groups
    return values


def elements(
    loop: Loop, shape: Shape, sizes: Sequence[Shape], strides: Sequence[Shape], itemsizes: Sequence[int],
    limits: Limits, aligned: bool,
) -> Arrangement:  # fmt: skip
    """The launch of a loop without rows. `aligned`: may elements be loaded in groups?"""
    axes = joined(axes_of(shape, strides, sizes))
    # The axis along which the results are contiguous becomes the innermost one.
    axes.sort(key=lambda axis: -max(abs(s) for s in axis.strides[-len(loop.outputs) :]))
    axes = joined(axes) or [Axis(1, list(itemsizes))]
    per_row = [False] * len(itemsizes)
    vector, classes = _vector(axes[-1], axes[:-1], itemsizes, per_row, len(axes) == 1) if aligned else (1, "")
    groups = math.prod(a.size for a in axes[:-1]) * -(-axes[-1].size // vector)
    layout = Layout("elements", 0, len(axes), _is_wide(axes, itemsizes), vector, classes, axes[-1].size % vector != 0)
    values = {"n": groups, "length": axes[-1].size} | _axis_values(loop, "e", axes, vector)
    blocks = min(-(-groups // limits.block), limits.most_blocks)
    launch = Launch(layout, (blocks, 1, 1), (limits.block, 1, 1), values)
    return Arrangement([launch], _alignment(vector, classes, itemsizes))


def rows(
    loop: Loop, shape: Shape, axis: tuple[int, ...], sizes: Sequence[Shape], strides: Sequence[Shape],
    itemsizes: Sequence[int], limits: Limits, aligned: bool,
) -> Arrangement:  # fmt: skip
    """The launches of a loop over rows that run along the axes `axis` of `shape`."""
    every = axes_of(shape, strides, sizes)
    operands = (*loop.inputs, *loop.outputs)
    none = [0] * len(sizes)
    inner = joined([every[a] for a in axis]) or [Axis(1, none)]
    outer = joined([a for d, a in enumerate(every) if d not in axis])
    best = _across(operands, outer, inner, itemsizes)
    if best is not None:
        outer = [a for a in outer if a is not best] + [best]
    outer = outer or [Axis(1, none)]
    count, length = math.prod(a.size for a in outer), math.prod(a.size for a in inner)
    vector, classes = 1, ""
    if aligned and best is None and len(inner) == 1 and length >= 4 * _LOAD_BYTES:
        vector, classes = _vector(inner[0], outer, itemsizes, [o.per_row for o in operands], tail=False)
    groups = length // vector
    block = (limits.block, 1, 1)
    values = {"n": groups, "rows": count, "chunk": groups, "chunks": 1}
    if best is not None:
        form, at_once, block = "column", COLUMN_ROWS, (COLUMN_ROWS, COLUMN_THREADS, 1)
    elif length > limits.lanes_row or (length >= 2 * limits.block and count < limits.processors):
        form, at_once = "block", 1
    else:
        form = "lanes"
        values["width"] = min(32, 1 << max(groups - 1, 0).bit_length())
        at_once = limits.block // values["width"]
    values |= _axis_values(loop, "o", outer, 1) | _axis_values(loop, "e", inner, vector)
    wide = _is_wide([*outer, *inner], itemsizes)
    layout = Layout(form, len(outer), len(inner), wide, vector, classes)
    tiles = -(-count // at_once)
    blocks = min(tiles, limits.most_blocks)
    alignment = _alignment(vector, classes, itemsizes)
    chunks = _chunks(form, tiles, length, limits)
    if chunks < 2:
        if form == "block" and held_inputs(loop, layout):
            team = next((t for t in (limits.block, min(2 * limits.block, HELD_THREADS)) if groups <= _HELD * t), 0)
            if team:
                layout, block = replace(layout, held=_HELD), (team, 1, 1)
        return Arrangement([Launch(layout, (blocks, 1, 1), block, values)], alignment)
    values["chunk"] = -(-groups // chunks)
    values["chunks"] = -(-groups // values["chunk"])
    launches = []
    for part in range(len(loop.stages) + bool(loop.results)):
        grid = (blocks, values["chunks"] if part < len(loop.stages) else 1, 1)
        launches.append(Launch(replace(layout, part=part), grid, block, values))
    tables = tuple(total_bytes(f) * count * values["chunks"] for f in loop.reductions)
    return Arrangement(launches, alignment, tables)


def _across(
    operands: Sequence[object], outer: Sequence[Axis], inner: Sequence[Axis], itemsizes: Sequence[int]
) -> Axis | None:
    """The axis of rows along which more arrays are contiguous than along the row; None if there is none."""
    per_element = [k for k, o in enumerate(operands) if not o.per_row]  # type: ignore[attr-defined]
    # Broadcast operands are small: operands without broadcasting decide; the others only break ties.
    moving = [a for a in (*outer, *inner) if a.size > 1]
    full = [k for k in per_element if all(a.strides[k] for a in moving)]

    def contiguous(a: Axis) -> tuple[int, int]:
        found = [k for k in per_element if a.strides[k] == itemsizes[k]]
        return len([k for k in found if k in full]), len(found)

    best = max(outer, key=contiguous, default=None)
    return best if best is not None and contiguous(best) > contiguous(inner[-1]) else None


def held_inputs(loop: Loop, layout: Layout) -> list[int]:
    """The inputs that threads hold in registers: read in groups and, if there are several stages, by more than one."""
    if layout.vector == 1:
        return []
    reads = [{e.value for e in walk(*stage.values) if e.op == "load"} for stage in loop.stages]
    found = [k for k in range(len(loop.inputs))
             if layout.classes[k] == "c" and sum(k in read for read in reads) >= min(2, len(reads))]  # fmt: skip
    return found if len(found) <= _HELD_INPUTS else []


def _chunks(form: str, tiles: int, length: int, limits: Limits) -> int:
    """Into how many chunks to split every row, so that all processors have work; 1 for no split."""
    few = 2 * tiles <= limits.processors
    if form == "column":
        # Its one load at a time needs more threads, and a second launch pays for longer rows only.
        least = limits.column_chunk if few else 4 * limits.column_chunk
    elif form == "block" and few:
        least = limits.chunk
    else:
        return 1
    return min(_BLOCKS_EACH * limits.processors // tiles, length // least)
