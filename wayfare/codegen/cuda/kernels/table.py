"""A table of words in device memory: written by a launch that carries the words, and read by the copies of a graph.

The numbers of an optimiser, and the addresses of inputs and results, differ from one replay of a CUDA graph to the
next, so they cannot be in the graph. They are in one table, which one launch writes before the replay. The graph
reads numbers from there, and begins and ends with one launch each that copies between addresses of the table and
memory of its own.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from wayfare.codegen.cuda.kernels.routine import THREADS, kernel_text
from wayfare.codegen.cuda.launch import Launcher

# Words that one launch writes (a parameter of 4 KB), with smaller kernels for fewer.
_ROOMS = (6, 30, 126, 500)
# Bytes that one block copies.
_CHUNK = 64 * THREADS


@lru_cache
def write_text(room: int) -> tuple[str, str]:
    """The name and the text of a kernel that writes up to `room` words."""
    name = f"write_table_{room}"
    body = "  for (i32 k = threadIdx.x; k < (i32)a.count; k += blockDim.x) a.out[k] = a.word[k];\n"
    return name, kernel_text(name, ("i64* out", "i64 count", f"i64 word[{room}]"), body)


def table_writer(launcher: Launcher, start: int, words: int) -> Callable[[bytes], None]:
    """A function that writes so many words, given as bytes, to the table at `start`."""
    parts: list[tuple[Any, Any, memoryview, slice]] = []
    for first in range(0, words, _ROOMS[-1]):
        count = min(words - first, _ROOMS[-1])
        room = next(r for r in _ROOMS if r >= count)
        name, text = write_text(room)
        parameter = (ctypes.c_int64 * (room + 2))(start + 8 * first, count)
        view = memoryview(parameter).cast("B")[16 : 16 + 8 * count]
        parts.append((launcher.compile(text)[name], parameter, view, slice(8 * first, 8 * (first + count))))
    launch, threads = launcher.launch, (32 if words <= 32 else 128, 1, 1)

    def write(given: bytes) -> None:
        for function, parameter, view, part in parts:
            view[:] = given[part]
            launch(function, (1, 1, 1), threads, 0, parameter)

    return write


@lru_cache
def move_text(room: int) -> tuple[str, str]:
    """The name and the text of a kernel for up to `room` copies."""
    name = f"move_by_table_{room}"
    body = f"""  i32 low = 0, high = (i32)a.count;
  while (high - low > 1) {{
    const i32 middle = (low + high) / 2;
    if (a.first[middle] <= (i64)blockIdx.x) low = middle; else high = middle;
  }}
  char* const other = a.table[a.entry[low]] + a.skip[low];
  const char* const from = a.out ? a.own[low] : other;
  char* const to = a.out ? other : a.own[low];
  const i64 begin = ((i64)blockIdx.x - a.first[low]) * {_CHUNK};
  const i64 end = a.bytes[low] - begin < {_CHUNK} ? a.bytes[low] : begin + {_CHUNK};
  const u64 bits = (u64)from | (u64)to | (u64)a.bytes[low];
  if (!(bits & 15)) {{
    for (i64 i = begin + 16 * (i64)threadIdx.x; i < end; i += 16 * (i64)blockDim.x)
      *(Vec<u32, 4>*)(to + i) = *(const Vec<u32, 4>*)(from + i);
  }} else if (!(bits & 3)) {{
    for (i64 i = begin + 4 * (i64)threadIdx.x; i < end; i += 4 * (i64)blockDim.x)
      *(u32*)(to + i) = *(const u32*)(from + i);
  }} else {{
    for (i64 i = begin + threadIdx.x; i < end; i += blockDim.x) to[i] = from[i];
  }}
"""
    fields = ("i64 count", "i64 out", "char* const* table", f"i64 entry[{room}]", f"i64 first[{room}]",
              f"i64 bytes[{room}]", f"i64 skip[{room}]", f"char* own[{room}]")  # fmt: skip
    return name, kernel_text(name, fields, body)


def moves_by_table(
    launcher: Launcher, table: int, moves: Sequence[tuple[int, int, int, int]], out: bool
) -> list[Callable[[], None]]:
    """Launches that copy between memory at addresses that stand in a table, and memory at known addresses; `out`: to
    the former. A move is (entry of the table, bytes to skip there, known address, bytes)."""
    found: list[Callable[[], None]] = []
    for begin in range(0, len(moves), 64):
        chosen = moves[begin : begin + 64]
        room = 4 if len(chosen) <= 4 else 64
        name, text = move_text(room)
        entries, skips, own, sizes = (list(column) for column in zip(*chosen, strict=True))
        first, blocks = [], 0
        for size in sizes:
            first.append(blocks)
            blocks += -(-size // _CHUNK)
        empty = [0] * (room - len(chosen))
        words = [len(chosen), int(out), table]
        for column in (entries, first, sizes, skips, own):
            words += [*column, *empty]
        how = (launcher.compile(text)[name], (blocks, 1, 1), (THREADS, 1, 1), 0, (ctypes.c_int64 * len(words))(*words))
        found.append(partial(launcher.launch, *how))
    return found


def packed(numbers: Sequence[float], addresses: Sequence[int]) -> bytes:
    """The words of a table: numbers as doubles, then addresses."""
    return struct.pack(f"{len(numbers)}d{len(addresses)}Q", *numbers, *addresses)
