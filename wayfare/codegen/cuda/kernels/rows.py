"""Rows gathered, added to and written, by address or by index.

    gather_rows(launcher, keys, out)                        out[i] = the row at address keys[i]
    gather_rows(launcher, keys, out, table)                 out[i] = table[keys[i]]: index_select, embedding
    add_rows(launcher, keys, order, values)                 the row at address keys[i] += values[i]
    add_rows(launcher, keys, order, values, table)          table[keys[i]] += values[i]: the gradient of the above
    put_rows(launcher, keys, order, values, table)          table[keys[i]] = values[i]

`keys` are int64 on the device, `order` is what sorts them stably; `out`, `values` and the table are C-contiguous. Where
rows are added or written, keys are not checked. Gathering counts negative keys from the end, and reads row 0 for one
that is out of range: the caller says so later.

Results are those of a loop over the keys to the last bit, at every run. Each run of equal keys is one thread's for each
column: it adds all of them in order, or writes the last. f16 is added in f32 and rounded once.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from wayfare.codegen.cuda.kernels.routine import THREADS, all_of, blocks_for, kernel_text, pointers, run
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.cuda.types import computed, loaded, memory, narrowed, widened
from wayfare.codegen.loop.expr import FLOATS, OF_NUMPY

# A row is copied in pieces of this many bytes, the largest that divides row, stride and addresses.
_PIECES = {16: "Vec<u32, 4>", 8: "u64", 4: "u32", 2: "u16", 1: "u8"}


@cache
def gather_text(piece: int) -> str:
    """Copies rows in pieces of so many bytes."""
    kind = _PIECES[piece]
    body = (all_of("i", "a.rows * a.pieces")
            + "  const i64 row = i / a.pieces, at = i % a.pieces;\n"
            "  i64 key = a.keys[row];\n"
            "  if (a.count) { if (key < 0) key += a.count; if (key < 0 || key >= a.count) key = 0; }\n"
            f"  (({kind}*)a.out)[i] = (({kind}*)(a.base + key * a.stride))[at];\n}}\n")  # fmt: skip
    # `count` is the number of rows of a table, 0 without one.
    fields = ("char* base", "const i64* keys", "char* out", "i64 stride", "i64 rows", "i64 pieces", "i64 count")
    return kernel_text(f"gather_rows{piece}", fields, body)


_FIELDS = ("char* base", "const i64* keys", "const i64* order", "const char* values", "i64 stride", "i64 rows",
           "i64 columns")  # fmt: skip


@cache
def add_text(dtype: str) -> str:
    """Adds rows to rows. The thread of the first of equal keys adds all of them, in order."""
    kept = memory(dtype)
    plus = "{} + {}" if computed(dtype) in FLOATS else "wrap_add({}, {})"
    target = f"*({kept}*)(a.base + key * a.stride + column * sizeof({kept}))"
    value = f"((const {kept}*)a.values)[a.order[k] * a.columns + column]"
    body = (all_of("i", "a.rows * a.columns")
            + "  const i64 place = i / a.columns, column = i % a.columns, key = a.keys[a.order[place]];\n"
            "  if (place > 0 && a.keys[a.order[place - 1]] == key) continue;\n"
            f"  {computed(dtype)} sum = {loaded(dtype, widened(dtype, target))};\n"
            "  for (i64 k = place; k < a.rows && a.keys[a.order[k]] == key; ++k)\n"
            f"    sum = {plus.format('sum', loaded(dtype, widened(dtype, value)))};\n"
            f"  {target} = {narrowed(dtype, 'sum')};\n}}\n")  # fmt: skip
    return kernel_text(f"add_rows_{dtype}", _FIELDS, body)


@cache
def put_text(size: int) -> str:
    """Writes rows of elements of so many bytes. The thread of the last of equal keys writes its own."""
    kind = _PIECES[size]
    body = (all_of("i", "a.rows * a.columns")
            + "  const i64 place = i / a.columns, column = i % a.columns, from = a.order[place], key = a.keys[from];\n"
            "  if (place + 1 < a.rows && a.keys[a.order[place + 1]] == key) continue;\n"
            f"  (({kind}*)(a.base + key * a.stride))[column] = (({kind}*)a.values)[from * a.columns + column];\n}}\n"
            )  # fmt: skip
    return kernel_text(f"put_rows{size}", _FIELDS, body)


def _row(array: Any) -> int:
    """How many elements a row has: all dimensions but the first."""
    return math.prod(array.shape[1:])


def gather_rows(launcher: Launcher, keys: Any, out: Any, table: Any = None) -> None:
    """out[i] = the row at address keys[i], or table[keys[i]]."""
    rows = math.prod(keys.shape)
    size = math.prod(out.shape) * out.itemsize // rows if rows else 0
    if not size:
        return
    base, stride = (0, 1) if table is None else (launcher.pointer(table), _row(table) * table.itemsize)
    keys_at, out_at = pointers(launcher, keys, out)
    # Rows at addresses begin where their elements may begin, and no better is known.
    known = (size, out_at, base, stride) if table is not None else (size, out_at, out.itemsize)
    piece = math.gcd(16, *known)
    pieces = size // piece
    blocks = blocks_for(launcher, rows * pieces)
    words = [base, keys_at, out_at, stride, rows, pieces, 0 if table is None else table.shape[0]]
    run(launcher, gather_text(piece), f"gather_rows{piece}", (blocks,), (THREADS,), words)


def add_rows(launcher: Launcher, keys: Any, order: Any, values: Any, table: Any = None) -> None:
    """The row at address keys[i], or table[keys[i]], += values[i]; keys may repeat."""
    dtype = OF_NUMPY[values.dtype]
    _run(launcher, add_text(dtype), f"add_rows_{dtype}", keys, order, values, table)


def put_rows(launcher: Launcher, keys: Any, order: Any, values: Any, table: Any) -> None:
    """table[keys[i]] = values[i]; of keys that repeat the last wins."""
    size = values.itemsize
    _run(launcher, put_text(size), f"put_rows{size}", keys, order, values, table)


def _run(launcher: Launcher, text: str, name: str, keys: Any, order: Any, values: Any, table: Any) -> None:
    rows = math.prod(keys.shape)
    columns = math.prod(values.shape) // rows if rows else 0
    if not columns:
        return
    base, stride = (0, 1) if table is None else (launcher.pointer(table), _row(table) * table.itemsize)
    words = [base, *pointers(launcher, keys, order, values), stride, rows, columns]
    run(launcher, text, name, (blocks_for(launcher, rows * columns),), (THREADS,), words)
