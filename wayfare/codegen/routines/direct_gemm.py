"""Direct gemm: matmuls for processors with 32 vector registers, without packing where that is possible.

BLAS packs both matrices before it multiplies: with few rows that takes as long as the product. Here lanes run
along the rows of the second matrix, numbers of the first are splatted from where they lie, and the sums of a tile (8
rows × 3 vectors) stay in registers. The inner dimension is cut into blocks, whose sums are added in memory: this is as
exact as BLAS, and what a tile reads stays in the caches.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import vector
from wayfare.codegen.llvm.machine import Machine, machine
from wayfare.codegen.llvm.vector import VectorCode
from wayfare.codegen.loop.expr import OF_NUMPY
from wayfare.codegen.routines.routine import Routine, function
from wayfare.codegen.routines.transpose import TILE, transposed_tile
from wayfare.codegen.runtime.command import Command, Unsuited
from wayfare.codegen.runtime.gemm_blocks import Matrices, stacked

# The layout of `gemm_blocks.stacked`. Steps are in bytes.
_WORDS = (
    "a_row", "a_inner", "b_row", "rows", "columns", "inner", "out_row", "packs", "b_column", "add", "outer", "middle",
    "a", "a_outer", "a_middle", "b", "b_outer", "b_middle", "out", "out_outer", "out_middle",
)  # fmt: skip
# Lanes of float32 of a processor with 32 vector registers (AVX-512).
_LEAST_LANES = 16
# Rows of a tile, and of the tiles for the remaining rows; vectors of a tile.
_ROWS, _VECTORS = (8, 4, 2, 1), 3
# So many sums have to be under way to keep the processor busy.
_IN_FLIGHT = 8
# Products of one sum; rows whose part of the first matrix stays in the L2 cache.
_BLOCK, _CHUNK = 256, 256
# A panel of the second matrix is read where it lies, packed, or packed and transposed.
_AS_IT_LIES, _PACKS, _TRANSPOSES = range(3)
# From so many rows on, a panel of a second matrix with rows that lie at least so many bytes apart is packed: such rows
# map to few sets of the caches.
_PACK_ROWS, _PACK_STEP = 64, 2048
# Elements of a second matrix from which on BLAS multiplies one row with it faster.
_LARGE = 1 << 15
# Fewer columns leave too many lanes empty. The columns of a second matrix are transposed for at least so many rows.
_LEAST_COLUMNS, _TRANSPOSE_ROWS = 3, 8
# Multiplications from which on one gemm is split over threads (15 µs and less are not, measured in a loop of cells).
_SPLIT = 1 << 22
# Nanoseconds of one multiplication.
_COST = {np.dtype("float32"): 0.01, np.dtype("float64"): 0.02}


class _Code(VectorCode):
    def __init__(self, host: Machine, dtype: str) -> None:
        super().__init__(host, dtype, _WORDS)
        self.wide = _VECTORS * self.lanes
        self.vector = vector(self.lanes, self.kind)
        self.packed = "%packed"
        self.writer.allocas.append(f"  {self.packed} = alloca [{_BLOCK * self.wide} x {self.kind}], align 64")

    def written(self) -> str:
        """All matmuls of a block."""
        w, writer = self.words, self.writer
        with writer.loop("0", w.outer, 1) as i, writer.loop("0", w.middle, 1) as j:
            a, b, out = (
                writer.pointer(self.add(start, self.add(self.mul(i, outer), self.mul(j, middle))))
                for start, outer, middle in (
                    (w.a, w.a_outer, w.a_middle), (w.b, w.b_outer, w.b_middle), (w.out, w.out_outer, w.out_middle))
            )  # fmt: skip
            with writer.loop("0", w.inner, _BLOCK) as k, writer.loop("0", w.rows, _CHUNK) as row:
                self._chunk(
                    self.at(self.at(a, row, w.a_row), k, w.a_inner), self.at(b, k, w.b_row),
                    self.at(out, row, w.out_row), self.smaller(self.sub(w.inner, k), str(_BLOCK)),
                    self.smaller(self.sub(w.rows, row), str(_CHUNK)),
                    self.add(k, w.add),
                )  # fmt: skip
        return function(writer)

    def _chunk(self, a: str, b: str, out: str, inner: str, rows: str, adds: str) -> None:
        """Some rows times all columns, for one block of the inner dimension; added to `out` unless `adds` is 0."""
        w, writer, lanes, size = self.words, self.writer, self.lanes, self.size
        # One vector more than a multiple of three: two tiles of two vectors are faster than one of three and one.
        vectors = self.div(w.columns, lanes)
        wide = self.mul(self.div(vectors, _VECTORS), self.wide)
        alone = writer.compare("eq", self.sub(self.mul(vectors, lanes), wide), lanes)
        some = writer.compare("sgt", wide, 0)
        both = self.let(f"and i1 {alone}, {some}")
        start, end = "0", writer.select(both, self.sub(wide, self.wide), wide)

        def panel(column: str, count: int, mask: str = "") -> None:
            packs = writer.compare("ne", w.packs, 0)
            side, step = self.at(b, column, w.b_column), count * lanes * size
            with self.only_if("eq", w.packs, _PACKS), writer.loop("0", inner, 1) as k:
                for v in range(count):
                    skip = v * lanes * size
                    number = self.load(self.at(self.at(side, k, w.b_row), str(skip)), lanes, mask)
                    self.store(number, self.at(self.at(self.packed, k, step), str(skip)), lanes)
            with self.only_if("eq", w.packs, _TRANSPOSES):
                self._pack_transposed(side, self.sub(w.columns, column), inner, count * lanes)
            own = writer.select(packs, self.packed, side, "ptr")
            down = writer.select(packs, str(step), w.b_row)
            position = "0"
            for tile in _ROWS:
                last = self.add(position, self.mul(self.div(self.sub(rows, position), tile), tile))
                with writer.loop(position, last, tile) as row:
                    first = self.at(a, row, w.a_row)
                    target = self.at(self.at(out, row, w.out_row), column, size)
                    self._tile(tile, count, first, own, down, target, inner, mask, adds)
                position = last

        for count in range(_VECTORS, 0, -1):
            if count < _VECTORS:
                each = count * lanes
                end = self.add(start, self.mul(self.div(self.sub(w.columns, start), each), each))
            with writer.loop(start, end, count * lanes) as column:
                panel(column, count)
            start = end
        with self.only_if("slt", start, w.columns):
            panel(start, 1, self.first_lanes(lanes, self.sub(w.columns, start)))

    def _pack_transposed(self, side: str, columns: str, inner: str, width: int) -> None:
        """Pack a panel of a second matrix whose columns are contiguous, by tiles that are transposed in registers."""
        w, writer, size, kind = self.words, self.writer, self.size, vector(TILE, self.kind)

        def tile(k: str, column: str, mask: str) -> None:
            run = []
            for c in range(TILE):
                # Columns behind the last one are never stored: any number will do.
                at = self.smaller(self.add(column, c), self.sub(columns, 1))
                run.append(self.load(self.at(self.at(side, at, w.b_column), k, size), TILE, mask))
            for c, value in enumerate(transposed_tile(writer, kind, run)):
                address = self.at(self.at(self.packed, self.add(k, c), width * size), column, size)
                self.store(value, address, TILE)

        whole = writer.multiple(inner, TILE)
        with writer.loop("0", str(width), TILE) as column:
            with writer.loop("0", whole, TILE) as k:
                tile(k, column, "")
            with self.only_if("slt", whole, inner):
                tile(whole, column, self.first_lanes(TILE, self.sub(inner, whole)))

    def _tile(
        self, rows: int, vectors: int, a: str, b: str, step: str, out: str, inner: str, mask: str, adds: str
    ) -> None:  # fmt: skip
        w, lanes, size, writer = self.words, self.lanes, self.size, self.writer
        count = rows * vectors
        # A small tile has several sums for each of its elements, or it would wait for each addition.
        times = -(-_IN_FLIGHT // count)
        sums = self.zeros(count * times, lanes)
        given = [self.at(a, str(r), w.a_row) for r in range(rows)]

        def visit(k: str, first: int) -> None:
            own, skip = self.at(b, k, step), self.mul(k, w.a_inner)
            numbers = [self.load(self.at(own, str(v * lanes * size)), lanes, mask) for v in range(vectors)]
            for r, start in enumerate(given):
                value = self.in_every_lane(self.at(start, skip), lanes)
                for v, number in enumerate(numbers):
                    self.multiply_add(lanes, number, value, sums[first + r * vectors + v])

        whole = self.mul(self.div(inner, times), times) if times > 1 else inner
        with writer.loop("0", whole, times) as k:
            for t in range(times):
                visit(self.add(k, t), t * count)
        if times > 1:
            with writer.loop(whole, inner, 1) as k:
                visit(k, 0)
        for t in range(1, times):
            for total, more in zip(sums, sums[t * count : (t + 1) * count], strict=False):
                total.set(writer.float_add(self.vector, total.get(), more.get()))
        places = [
            (sums[r * vectors + v], self.at(self.at(out, str(r), w.out_row), str(v * lanes * size)))
            for r in range(rows) for v in range(vectors)
        ]  # fmt: skip
        # What is not added is not loaded, not even under a mask: a load waits for stores that overlap it.
        with self.only_if("ne", adds, 0):
            for total, address in places:
                total.set(writer.float_add(self.vector, total.get(), self.load(address, lanes, mask)))
        for total, address in places:
            self.store(total.get(), address, lanes, mask)


def _write(dtype: str, host: Machine) -> str:
    return _Code(host, dtype).written()


@cache
def _routine(dtype: str) -> Routine:
    return Routine(f"direct_gemm_{dtype}", _write, dtype)


def direct_gemm_routine(dtype: np.dtype[Any]) -> Routine:
    """The native function of direct gemms."""
    return _routine(OF_NUMPY[dtype])


def direct_gemm_command(views: Matrices, add: bool, threads: int) -> Command:
    """out = a @ b, or out += a @ b, of batches of matrices with equal batch sizes.

    Raises Unsuited unless the rows of out, and the rows or columns of b, are contiguous, and for few rows or columns.
    """
    a, b, out = views
    rows, columns, item = *out.shape[-2:], out.dtype.itemsize
    down, across = b.strides[-2:]
    packs = _PACKS if rows >= _PACK_ROWS and abs(down) >= _PACK_STEP else _AS_IT_LIES
    if across != item:
        packs = _TRANSPOSES
        if down != item or rows < _TRANSPOSE_ROWS:
            raise Unsuited
    large = rows == 1 and a.shape[-1] * columns >= _LARGE
    if large or columns < _LEAST_COLUMNS or out.strides[-1] != item or machine().processor.lanes < _LEAST_LANES:
        raise Unsuited
    routine = direct_gemm_routine(out.dtype)
    if not routine.ready:
        raise Unsuited
    words = [a.strides[-2], a.strides[-1], down, rows, columns, a.shape[-1], out.strides[-2], packs, across, int(add)]
    made = stacked(words, views, threads, _COST[out.dtype], least=_SPLIT)
    made.function = routine.address
    return made
