"""Rows gathered, added to and written, by index or by address.

    gather_rows(launcher, keys, out, table)           out[i] = table[keys[i]]: index_select, embedding
    add_rows(launcher, keys, order, values, table)    table[keys[i]] += values[i]: the gradient of the above
    fold_rows("maximum", launcher, keys, order, …)    table[keys[i]] = max(table[keys[i]], values[i]); "minimum", too
    put_rows(launcher, keys, order, values, table)    table[keys[i]] = values[i]
    gather_at(launcher, addresses, out)               out[i] = the row at addresses[i]: what batching reads
    add_at(launcher, addresses, values)               the row at addresses[i] += values[i]: the gradient of that

`keys` are int64 on the device, `order` is what sorts them stably; `out`, `values` and the table are C-contiguous. Where
rows are added or written, keys are not checked. Gathering counts negative keys from the end, and reads row 0 for one
that is out of range: the caller says so later. Addresses are int64 on the host, in a NumPy array. Up to 480 words are
arguments of the kernel; more are copied to the device first, without waiting.

Results are those of a loop over the keys to the last bit, at every run. For each column, one thread
handles all rows with equal keys: it adds them in order, or writes the last. f16 is added in f32 and rounded once.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from wayfare.codegen.cuda.kernels.routine import THREADS, all_of, blocks_for, kernel_text, pointers, run
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.cuda.types import computed, loaded, memory, narrowed, widened
from wayfare.codegen.loop.expr import FLOATS, OF_NUMPY

# A row is copied in pieces of this many bytes, the largest that divides row, stride and addresses.
_PIECES = {16: "Vec<u32, 4>", 8: "u64", 4: "u32", 2: "u16", 1: "u8"}
# How many addresses the parameter of a kernel has room for. It may have 4 KB; shorter ones are launched sooner.
_ROOMS = (56, 160, 480)


@cache
def gather_text(piece: int) -> str:
    """Copies rows of a table in pieces of so many bytes."""
    kind = _PIECES[piece]
    body = (all_of("i", "a.rows * a.pieces")
            + "  const i64 row = i / a.pieces, at = i % a.pieces;\n"
            "  i64 key = a.keys[row];\n"
            "  if (key < 0) key += a.count;\n"
            "  if (key < 0 || key >= a.count) key = 0;\n"
            f"  (({kind}*)a.out)[i] = (({kind}*)(a.base + key * a.stride))[at];\n}}\n")  # fmt: skip
    fields = ("char* base", "const i64* keys", "char* out", "i64 stride", "i64 rows", "i64 pieces", "i64 count")
    return kernel_text(f"gather_rows{piece}", fields, body)


_FIELDS = ("char* base", "const i64* keys", "const i64* order", "const char* values", "i64 stride", "i64 rows",
           "i64 columns")  # fmt: skip


def _combined(how: str, dtype: str) -> str:
    """Two elements of a dtype combined, as a format of their texts."""
    if how != "add":
        return how + "({}, {})"
    return "{} + {}" if computed(dtype) in FLOATS else "wrap_add({}, {})"


@cache
def fold_text(how: str, dtype: str) -> str:
    """Adds rows to rows, or takes the larger or smaller elements. The thread of the first of equal keys combines all of
    them, in order."""
    kept = memory(dtype)
    combined = _combined(how, dtype)
    target = f"*({kept}*)(a.base + key * a.stride + column * sizeof({kept}))"
    value = f"((const {kept}*)a.values)[a.order[k] * a.columns + column]"
    body = (all_of("i", "a.rows * a.columns")
            + "  const i64 place = i / a.columns, column = i % a.columns, key = a.keys[a.order[place]];\n"
            "  if (place > 0 && a.keys[a.order[place - 1]] == key) continue;\n"
            f"  {computed(dtype)} sum = {loaded(dtype, widened(dtype, target))};\n"
            "  for (i64 k = place; k < a.rows && a.keys[a.order[k]] == key; ++k)\n"
            f"    sum = {combined.format('sum', loaded(dtype, widened(dtype, value)))};\n"
            f"  {target} = {narrowed(dtype, 'sum')};\n}}\n")  # fmt: skip
    return kernel_text(f"{how}_rows_{dtype}", _FIELDS, body)


def _words(room: int) -> str:
    """The field of the addresses: so many of them, or where they are."""
    return f"i64 words[{room}]" if room else "const i64* words"


@cache
def gather_at_text(piece: int, room: int) -> str:
    """Copies rows at addresses in pieces of so many bytes."""
    kind = _PIECES[piece]
    body = (all_of("i", "a.rows * a.pieces")
            + f"  (({kind}*)a.out)[i] = ((const {kind}*)a.words[i / a.pieces])[i % a.pieces];\n}}\n")  # fmt: skip
    return kernel_text(f"gather_at{piece}_{room}", ("char* out", "i64 rows", "i64 pieces", _words(room)), body)


@cache
def add_at_text(dtype: str, room: int) -> str:
    """Adds rows to rows at addresses. The words are the sorted addresses, then the numbers of their rows. The thread of
    the first of equal addresses adds all of them, in order."""
    kept = memory(dtype)
    combined = _combined("add", dtype)
    target = f"(({kept}*)address)[column]"
    value = f"((const {kept}*)a.values)[a.words[a.rows + k] * a.columns + column]"
    body = (all_of("i", "a.rows * a.columns")
            + "  const i64 place = i / a.columns, column = i % a.columns, address = a.words[place];\n"
            "  if (place > 0 && a.words[place - 1] == address) continue;\n"
            f"  {computed(dtype)} sum = {loaded(dtype, widened(dtype, target))};\n"
            "  for (i64 k = place; k < a.rows && a.words[k] == address; ++k)\n"
            f"    sum = {combined.format('sum', loaded(dtype, widened(dtype, value)))};\n"
            f"  {target} = {narrowed(dtype, 'sum')};\n}}\n")  # fmt: skip
    fields = ("const char* values", "i64 rows", "i64 columns", _words(room))
    return kernel_text(f"add_at_{dtype}_{room}", fields, body)


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


def gather_rows(launcher: Launcher, keys: Any, out: Any, table: Any) -> None:
    """out[i] = table[keys[i]]."""
    rows = math.prod(keys.shape)
    size = math.prod(out.shape) * out.itemsize // rows if rows else 0
    if not size:
        return
    base, keys_at, out_at = pointers(launcher, table, keys, out)
    stride = _row(table) * table.itemsize
    piece = math.gcd(16, size, out_at, base, stride)
    pieces = size // piece
    blocks = blocks_for(launcher, rows * pieces)
    words = [base, keys_at, out_at, stride, rows, pieces, table.shape[0]]
    run(launcher, gather_text(piece), f"gather_rows{piece}", (blocks,), (THREADS,), words)


def gather_at(launcher: Launcher, addresses: np.ndarray[Any, np.dtype[Any]], out: Any) -> None:
    """out[i] = the row at addresses[i]."""
    rows = len(addresses)
    size = math.prod(out.shape) * out.itemsize // rows if rows else 0
    if not size:
        return
    out_at = launcher.pointer(out)
    piece = math.gcd(16, size, out_at, int(np.bitwise_or.reduce(addresses)))
    pieces = size // piece
    room, words, _held = _travelling(launcher, addresses)
    blocks = (blocks_for(launcher, rows * pieces),)
    text, name = gather_at_text(piece, room), f"gather_at{piece}_{room}"
    run(launcher, text, name, blocks, (THREADS,), [out_at, rows, pieces, *words])


def add_at(launcher: Launcher, addresses: np.ndarray[Any, np.dtype[Any]], values: Any) -> None:
    """The row at addresses[i] += values[i]; addresses may repeat."""
    rows = len(addresses)
    columns = math.prod(values.shape) // rows if rows else 0
    if not columns:
        return
    order = np.argsort(addresses, kind="stable")
    room, words, _held = _travelling(launcher, np.concatenate([addresses[order], order]))
    dtype = OF_NUMPY[values.dtype]
    blocks = (blocks_for(launcher, rows * columns),)
    text, name = add_at_text(dtype, room), f"add_at_{dtype}_{room}"
    run(launcher, text, name, blocks, (THREADS,), [launcher.pointer(values), rows, columns, *words])


def _travelling(launcher: Launcher, words: np.ndarray[Any, np.dtype[Any]]) -> tuple[int, list[int], Any]:
    """How words reach a kernel: the room that it has for them (0: none) and what it is given, and what must live until
    the launch."""
    room = next((room for room in _ROOMS if len(words) <= room), 0)
    if not room:
        copy = launcher.to_device(words)
        return 0, [launcher.pointer(copy)], copy
    return room, [*words.tolist(), *[0] * (room - len(words))], None


def add_rows(launcher: Launcher, keys: Any, order: Any, values: Any, table: Any) -> None:
    """table[keys[i]] += values[i]; keys may repeat."""
    fold_rows("add", launcher, keys, order, values, table)


def fold_rows(how: str, launcher: Launcher, keys: Any, order: Any, values: Any, table: Any) -> None:
    """table[keys[i]] = combined with values[i] by `how`: add, maximum or minimum, where NaN wins. Keys may repeat."""
    dtype = OF_NUMPY[values.dtype]
    _run(launcher, fold_text(how, dtype), f"{how}_rows_{dtype}", keys, order, values, table)


def put_rows(launcher: Launcher, keys: Any, order: Any, values: Any, table: Any) -> None:
    """table[keys[i]] = values[i]; of keys that repeat the last wins."""
    size = values.itemsize
    _run(launcher, put_text(size), f"put_rows{size}", keys, order, values, table)


def _run(launcher: Launcher, text: str, name: str, keys: Any, order: Any, values: Any, table: Any) -> None:
    rows = math.prod(keys.shape)
    columns = math.prod(values.shape) // rows if rows else 0
    if not columns:
        return
    words = [*pointers(launcher, table, keys, order, values), _row(table) * table.itemsize, rows, columns]
    run(launcher, text, name, (blocks_for(launcher, rows * columns),), (THREADS,), words)
