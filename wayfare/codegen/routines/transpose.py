"""Transposing copies: square tiles go through registers, so that both sides are accessed contiguously.

Element by element, one side would be accessed with a stride, and each access would cost a cache line.
"""

from __future__ import annotations

from functools import cache

from wayfare.codegen.llvm.builder import Writer
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.llvm.module import SIZES, WORDS_PER_OPERAND
from wayfare.codegen.loop.layout import Nest
from wayfare.codegen.routines.routine import Routine, function, word

# Elements of one side of a tile, and bytes of a cache line.
TILE, _LINE = 8, 64


def _write(size: int, _host: Machine) -> str:
    """The argument block is that of a kernel with one input and one output. The source is contiguous along the second
    axis, the target along the third."""
    writer = Writer()
    kind, vector = f"i{8 * size}", f"<{TILE} x i{8 * size}>"
    outer, rows, columns = (word(writer, k) for k in range(SIZES))
    source, source_outer, _, source_step = (word(writer, SIZES + k) for k in range(WORDS_PER_OPERAND))
    target, target_outer, target_step, _ = (
        word(writer, SIZES + WORDS_PER_OPERAND + k) for k in range(WORDS_PER_OPERAND)
    )

    times = writer.mul

    def address_of(start: str, *steps: str) -> str:
        for step in steps:
            start = writer.add(start, step)
        return writer.pointer(start)

    def single(first: str, second: str, row: str, column: str) -> None:
        source_at = address_of(first, times(row, size), times(column, source_step))
        target_at = address_of(second, times(row, target_step), times(column, size))
        writer.store(kind, writer.load(kind, source_at, 1), target_at, 1)

    whole_rows, whole_columns = (writer.multiple(n, TILE) for n in (rows, columns))
    with writer.loop("0", outer, 1) as i:
        first = writer.add(source, times(i, source_outer))
        second = writer.add(target, times(i, target_outer))
        # All tiles that share cache lines of the source are visited together.
        together = max(_LINE // size, TILE)
        with writer.loop("0", whole_rows, together) as line:
            stop = writer.smaller(writer.add(line, together), whole_rows)
            with writer.loop("0", whole_columns, TILE) as column, writer.loop(line, stop, TILE) as row:
                run = []
                for k in range(TILE):
                    at = writer.add(column, k)
                    source_at = address_of(first, times(row, size), times(at, source_step))
                    run.append(writer.load(vector, source_at, 1))
                for k, value in enumerate(transposed_tile(writer, vector, run)):
                    at = writer.add(row, k)
                    to = address_of(second, times(at, target_step), times(column, size))
                    writer.store(vector, value, to, 1)
        with writer.loop("0", whole_rows, 1) as row, writer.loop(whole_columns, columns, 1) as column:
            single(first, second, row, column)
        with writer.loop(whole_rows, rows, 1) as row, writer.loop("0", columns, 1) as column:
            single(first, second, row, column)
    return function(writer)


def transposed_tile(writer: Writer, vector: str, rows: list[str]) -> list[str]:
    """Transpose a tile of 8 × 8 in registers: exchange halves, then quarters, then eighths."""
    half = TILE // 2
    while half:
        made = list(rows)
        for i in (i for i in range(TILE) if not i & half):
            upper = [c if not c & half else TILE + c - half for c in range(TILE)]
            lower = [c + half if not c & half else TILE + c for c in range(TILE)]
            for to, lanes in ((i, upper), (i + half, lower)):
                mask = ", ".join(f"i32 {lane}" for lane in lanes)
                pair = f"{vector} {rows[i]}, {vector} {rows[i + half]}"
                made[to] = writer.let(f"shufflevector {pair}, <{TILE} x i32> <{mask}>")
        rows, half = made, half // 2
    return rows


@cache
def _routine(size: int) -> Routine:
    return Routine(f"transpose_{8 * size}", _write, size)


def transposed_nest(nest: Nest, size: int) -> Nest | None:
    """The nest of a copy of elements of `size` bytes, if it transposes matrices, with the source contiguous along the
    second axis. None for any other copy."""
    source, target = nest.strides
    if target[2] != size or source[2] == size or min(nest.sizes[2], max(nest.sizes[:2])) < TILE:
        return None
    for axis, other in ((1, 0), (0, 1)):
        if source[axis] == size and nest.sizes[axis] >= TILE:
            order = (other, axis, 2)
            sizes, first, second = ((x[order[0]], x[order[1]], x[order[2]]) for x in (nest.sizes, source, target))
            return Nest(nest.layout, sizes, (first, second))
    return None


def address(size: int) -> int:
    """The address of the function for elements of `size` bytes; 0 if there is no native code."""
    routine = _routine(size)
    return routine.address if routine.ready else 0
