"""Skinny gemm: a few rows times a transposed matrix, as a linear layer computes for a small batch.

BLAS packs matrices before it multiplies. Where each weight is used only a few times, packing takes longer than the
multiplications. Here the matrix is read in place, once. Lanes run along the inner dimension of both sides; the sums of
a tile (rows × columns) stay in registers, and are added horizontally at the end.
"""

from __future__ import annotations

from functools import cache

from wayfare.codegen.llvm.builder import vector
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.llvm.vector import VectorCode
from wayfare.codegen.loop.expr import OF_NUMPY
from wayfare.codegen.routines.routine import Routine, function
from wayfare.codegen.runtime.command import BufferView, Command, Scratch, Unsuited
from wayfare.codegen.runtime.command_kernels import copy_commands
from wayfare.codegen.runtime.work_split import parts_for

_WORDS = ("*rows", "*matrix", "*out", "row_step", "matrix_step", "out_step", "count", "columns", "inner", "add")
# Rows of a tile.
_TILE = 8
# Sums in registers, of 32 or 16; the other registers hold vectors of the matrix.
_SUMS_OF_32, _SUMS_OF_16, _MOST_COLUMNS = 24, 12, 6
# Columns of a tile of one row: they are added up horizontally together.
_COLUMNS_OF_ONE = 16
# Nanoseconds of one multiplication, of reading one element of the matrix, and of a call; for float32.
_COST, _READ, _CALL = 0.02, 0.04, 100.0
# Rows a multiple of this many bytes apart map to the same L1 sets; they are copied with one more cache line between.
_APART, _LINE = 1024, 64


def _write(dtype: str, rows: int, host: Machine) -> str:
    """The IR for tiles of `rows` rows; the last tile may overlap the one before it."""
    code = VectorCode(host, dtype, _WORDS)
    w, lanes, size = code.words, code.lanes, code.size
    whole = code.mul(code.div(w.inner, lanes), lanes)
    rest = code.first_lanes(lanes, code.sub(w.inner, whole))

    def tile(row: str, column: str, columns: int) -> None:
        own = code.at(w.matrix, column, w.matrix_step)
        sides = [code.at(own, str(c), w.matrix_step) for c in range(columns)]
        first = code.at(w.rows, row, w.row_step)
        given = [code.at(first, str(r), w.row_step) for r in range(rows)]
        sums = code.zeros(rows * columns, lanes)

        def visit(at: str, mask: str) -> None:
            numbers = [code.load(code.at(side, at, size), lanes, mask) for side in sides]
            for r, start in enumerate(given):
                value = code.load(code.at(start, at, size), lanes, mask)
                for c, number in enumerate(numbers):
                    code.multiply_add(lanes, number, value, sums[r * columns + c])

        with code.writer.loop("0", whole, lanes) as k:
            visit(k, "")
        with code.only_if("slt", whole, w.inner):
            visit(whole, rest)
        kind = vector(columns, code.kind)
        there = code.writer.splat(columns, "i1", code.writer.compare("ne", w.add, 0))
        target = code.at(code.at(w.out, row, w.out_step), column, size)
        for r, made in enumerate(code.rows_of_sums([s.get() for s in sums], rows, columns)):
            address = code.at(target, str(r), w.out_step)
            code.store(code.writer.float_add(kind, made, code.load(address, columns, there)), address, columns)

    def all_rows(column: str, columns: int) -> None:
        with code.writer.loop("0", w.count, rows) as row:
            tile(code.smaller(row, code.sub(w.count, str(rows))), column, columns)

    most = min(_MOST_COLUMNS, (_SUMS_OF_32 if code.many else _SUMS_OF_16) // rows)
    widths = {max(1, most), 1} | ({_COLUMNS_OF_ONE} if rows == 1 and code.many else set())
    code.in_steps(w.columns, tuple(sorted(widths, reverse=True)), all_rows)
    return function(code.writer)


@cache
def _routine(dtype: str, rows: int) -> Routine:
    return Routine(f"skinny_gemm_{dtype}_{rows}", _write, dtype, rows)


def skinny_gemm_commands(
    a: BufferView, b: BufferView, out: BufferView, add: bool, threads: int, scratch: Scratch
) -> list[Command]:
    """out = a @ b, or out += a @ b, of two matrices; the last command is the gemm.

    Raises Unsuited unless b is column-major and the others row-major, and where overlapping tiles would add twice.
    """
    (rows, inner), columns, item = a.shape, b.shape[1], out.dtype.itemsize
    tile = -(-rows // -(-rows // _TILE))
    runs = ((inner, a.strides[1]), (inner, b.strides[0]), (columns, out.strides[1]))
    routine = _routine(OF_NUMPY[out.dtype], tile)
    if any(n > 1 and step != item for n, step in runs) or (add and rows % tile) or not routine.ready:
        raise Unsuited
    made: list[Command] = []
    if rows > 2 and a.strides[0] % _APART == 0:
        padded = scratch.allocate((rows, inner + _LINE // item), a.dtype)
        apart = padded.view(a.shape, padded.strides)
        made, a = copy_commands(a, apart, threads), apart
    work = inner * columns * (rows * _COST + _READ) * item / 4 + _CALL
    each = -(-columns // parts_for(work, threads))
    blocks = [
        [a.offset, b.offset + first * b.strides[1], out.offset + first * item, a.strides[0], b.strides[1],
         out.strides[0], rows, min(each, columns - first), inner, int(add)]
        for first in range(0, columns, each)
    ]  # fmt: skip
    addresses = [(block, at, view.object) for block in range(len(blocks)) for at, view in enumerate((a, b, out))]
    gemm = Command("matmul", "", routine.address, blocks, addresses, work, shared=len(blocks) > 1)
    return [*made, gemm]
