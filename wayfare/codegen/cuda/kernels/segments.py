"""Reductions over segments of rows, and their broadcasts.

    reduce(launcher, x, offsets, out, "sum")        out[s] = x[offsets[s]:offsets[s + 1]].sum(0); also "max", "min"
    spread(launcher, table, offsets, out)           out[i] = table[s] for every row i of segment s

Arrays are C-contiguous, offsets int64 on the device; rows that do not exist are left out. An empty segment gives 0, or
the dtype's lowest or highest number. A block does 32 columns of a segment with 8 threads each; sums are as accurate as
those of loops, and always the same.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from wayfare.codegen.cuda.kernels.routine import THREADS, all_of, blocks_for, kernel_text, pointers, run
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.cuda.nest import reduction_type
from wayfare.codegen.cuda.prelude import COLUMN_ROWS, COLUMN_THREADS
from wayfare.codegen.cuda.types import computed, memory, narrowed, widened
from wayfare.codegen.loop.expr import OF_NUMPY


@cache
def reduce_text(dtype: str, kind: str) -> str:
    """Reduces the rows of every segment."""
    kept, wide = memory(dtype), computed(dtype)
    total = reduction_type(kind, wide)
    body = f"""  for (i64 s = blockIdx.y; s < a.segments; s += gridDim.y) {{
    const i64 begin = a.offsets[s] < 0 ? 0 : a.offsets[s];
    const i64 end = a.offsets[s + 1] > a.rows ? a.rows : a.offsets[s + 1];
    for (i64 first = (i64)blockIdx.x * {COLUMN_ROWS}; first < a.columns; first += (i64)gridDim.x * {COLUMN_ROWS}) {{
      const bool live = first + threadIdx.x < a.columns;
      const i64 column = live ? first + threadIdx.x : a.columns - 1;
      {total} f = {total}::empty();
      for (i64 row = begin + threadIdx.y; row < end; row += blockDim.y)
        f.take({widened(dtype, "a.x[row * a.columns + column]")}, 0);
      const {wide} value = column_total(f.total()).result();
      if (live && threadIdx.y == 0) a.out[s * a.columns + column] = {narrowed(dtype, "value")};
    }}
  }}
"""
    fields = (f"const {kept}* x", "const i64* offsets", f"{kept}* out", "i64 segments", "i64 columns", "i64 rows")
    return kernel_text(f"segments_{kind}_{dtype}", fields, body)


@cache
def spread_text(size: int) -> str:
    """Copies the row of a segment to all its rows; finds the segment of a row by bisection."""
    kind = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[size]
    body = (
        all_of("i", "a.rows * a.columns")
        + """    const i64 row = i / a.columns;
    i64 low = 0, high = a.segments;  // offsets[low] <= row < offsets[high]
    while (high - low > 1) {
      const i64 middle = (low + high) / 2;
      if (a.offsets[middle] <= row) low = middle; else high = middle;
    }
    a.out[i] = a.table[low * a.columns + i % a.columns];
  }
"""
    )
    fields = (f"const {kind}* table", "const i64* offsets", f"{kind}* out", "i64 segments", "i64 rows", "i64 columns")
    return kernel_text(f"segments_spread{size}", fields, body)


def reduce(launcher: Launcher, x: Any, offsets: Any, out: Any, kind: str) -> None:
    """Reduce the rows of every segment: "sum", "max" or "min"."""
    segments, columns = out.shape[0], math.prod(out.shape[1:])
    if not segments or not columns:
        return
    dtype = OF_NUMPY[x.dtype]
    grid = (blocks_for(launcher, columns, COLUMN_ROWS), min(segments, 65535))
    words = [*pointers(launcher, x, offsets, out), segments, columns, x.shape[0]]
    run(launcher, reduce_text(dtype, kind), f"segments_{kind}_{dtype}", grid, (COLUMN_ROWS, COLUMN_THREADS), words)


def spread(launcher: Launcher, table: Any, offsets: Any, out: Any) -> None:
    """The row of each segment, for every row of the segment."""
    rows, columns = out.shape[0], math.prod(out.shape[1:])
    if not rows or not columns:
        return
    words = [*pointers(launcher, table, offsets, out), table.shape[0], rows, columns]
    text, name = spread_text(out.itemsize), f"segments_spread{out.itemsize}"
    run(launcher, text, name, (blocks_for(launcher, rows * columns),), (THREADS,), words)
