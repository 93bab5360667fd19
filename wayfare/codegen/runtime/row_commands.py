"""A command list over the rows of a batch, for any number of rows.

Kernels and matmuls know no sizes: a list for 20 rows and one for 30 differ in a few words of their argument blocks. So
the words are computed at the ends of a range of row counts, and the native module (`native/row_commands.h`) fills in
those between. Every command works row by row. So a run is split into parts of at most `MOST` rows, which run the whole
list one after the other, or on several threads: what a command leaves is still in the cache when the next one reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.blas import one_thread
from wayfare.codegen.runtime.command import LINE, SCRATCH, Unsuited
from wayfare.codegen.runtime.commands import Commands
from wayfare.codegen.runtime.work_split import QUICK, parts_for
from wayfare.core import buffer_pool
from wayfare.core.counters import COUNTERS
from wayfare.core.native import NATIVE

Array = np.ndarray[Any, np.dtype[Any]]
# Rows of an input that are not adjacent: number of the buffer, offset in its rows, bytes of a row, addresses.
Gather = tuple[int, int, int, Array]

# The most rows of a part.
MOST = 256
# Where a range of row counts begins: between these, matmuls take the same way (`command_gemm`, `direct_gemm`).
_RANGES = (1, 2, 7, 9, 33, 64, MOST + 1)
# Rows of a tile of a direct gemm: parts have a multiple of them.
_TILE = 8
# Limits of the native module.
_MOST_WORDS, _MOST_BUFFERS = 256, 64
_BYTES = np.dtype(np.uint8)


class RowCommands:
    """A list over buffers of rows. `request(rows)` gives the list for a number of rows.

    The first buffers are the arrays that `run` gets: `strides` are the bytes between their rows (0: all rows use the
    same). The others are scratch memory of a part: `scratch` are the bytes of their rows.
    """

    def __init__(self, request: Callable[[int], Commands], strides: Sequence[int], scratch: Sequence[int]) -> None:
        self._request = request
        # For each number of rows the address of its code, which `_codes` keeps alive; 0: there is none yet.
        self._table: Array = np.zeros(MOST + 1, np.int64)
        self._codes: list[Array] = []
        self._kept: list[Any] = []
        # Scratch memory that is not in use: each run takes one, so that two threads never share one.
        self._free: list[Array] = []
        self._buffers = len(strides) + len(scratch)
        made = request(MOST).made(1)
        if self._buffers + 1 > _MOST_BUFFERS:
            raise Unsuited
        offsets = [0]
        for size in scratch:
            offsets.append(offsets[-1] + -(-MOST * size // LINE) * LINE)
        self.kernels = sum(c.kind == "kernel" for c in made)
        self.matmuls = sum(c.kind == "matmul" for c in made)
        self._work = sum(c.work for c in made) / MOST
        # Where BLAS is called, and must not use threads of its own: for which numbers of rows.
        self._calls_blas: Array = np.zeros(MOST + 1, np.bool_)
        thread_pool.prepare()
        # The last offset is that of the scratch memory of single commands, whose size is known when they are made.
        self._last = self._scratch_bytes = offsets[-1]
        words = [len(strides), len(offsets), self._last, thread_pool.address(), *strides, *scratch, 0, *offsets]
        self._layout: Array = np.array(words, np.int64)
        self._prepare(MOST)

    def run(self, rows: int, arrays: tuple[Array, ...], gathers: tuple[Gather, ...]) -> None:
        """Run on so many rows. Input rows that are given by address are gathered first."""
        work, threads = rows * self._work, thread_pool.threads()
        parts, part = -(-rows // MOST), rows
        if parts > 1 or parts_for(work, threads) > 1:
            # One for each thread, or a multiple: each part reads all the weights, so there are as few as possible.
            parts = -(-parts // threads) * threads
            part = min(-(-rows // (parts * _TILE)) * _TILE, MOST)
            parts = -(-rows // part)
        threaded = parts > 1 and threads > 1
        last = rows - (parts - 1) * part
        if not (self._table[part] and self._table[last]):
            self._prepare(part)
            self._prepare(last)
        COUNTERS.lists_run += 1
        COUNTERS.kernels_run += self.kernels
        COUNTERS.matmuls_run += self.matmuls
        COUNTERS.kernels_split += threaded
        need = self._scratch_bytes * (parts if threaded else 1)
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = buffer_pool.empty((need + LINE,), _BYTES)
        if scratch.nbytes < need:
            scratch = buffer_pool.empty((need + LINE,), _BYTES)
        how = 0 if not threaded else 1 if work < QUICK else 2
        if self._calls_blas[part] or self._calls_blas[last]:
            with one_thread():
                NATIVE.run_rows(self._layout, self._table, rows, part, how, arrays, gathers, scratch)
        else:
            NATIVE.run_rows(self._layout, self._table, rows, part, how, arrays, gathers, scratch)
        self._free.append(scratch)

    # -- the words of the argument blocks

    def _prepare(self, rows: int) -> None:
        """Enter the code for a number of rows, and for all others of its range if they differ in some words only."""
        first = max(begin for begin in _RANGES if begin <= rows)
        last = min(begin for begin in _RANGES if begin > rows) - 1
        middle = (first + last) // 2
        low, high = self._calls(first), self._calls(last)
        if not _on_one_line((low, first), (self._calls(middle), middle), (high, last)):
            first = last = rows
            low = high = self._calls(rows)
        code: list[int] = [first, len(low)]
        for one, other in zip(low, high, strict=True):
            steps = [(b - a) // max(last - first, 1) for a, b in zip(one.words, other.words, strict=True)]
            code += [one.function, len(one.words), len(one.addresses), *one.words, *steps]
            code += [n for pair in one.addresses for n in pair]
        made: Array = np.array(code, np.int64)
        self._codes.append(made)
        self._calls_blas[first : last + 1] = any([call.blas for call in low])
        self._table[first : last + 1] = made.ctypes.data

    def _calls(self, rows: int) -> list[_Call]:
        """The calls of native functions for a number of rows."""
        commands = self._request(rows)
        found = []
        for command in commands.made(1):
            self._kept.append(command.kept)
            for number, block in enumerate(command.blocks):
                addresses = [(at, self._buffers if name == SCRATCH else name) for k, at, name in command.addresses
                             if k == number]  # fmt: skip
                if len(block) > _MOST_WORDS or any(name < 0 for _, name in addresses):
                    raise Unsuited
                found.append(_Call(command.function, block, addresses, command.blas_threads))
        self._scratch_bytes = max(self._scratch_bytes, self._last + commands.scratch_bytes)
        self._layout[2] = self._scratch_bytes
        return found


class _Call(NamedTuple):
    """One call of a native function: its words, and (word, buffer) of each address among them."""

    function: int
    words: list[int]
    addresses: list[tuple[int, int]]
    blas: bool


def _on_one_line(low: tuple[list[_Call], int], middle: tuple[list[_Call], int], high: tuple[list[_Call], int]) -> bool:
    """Are these the same calls, and do their words at three numbers of rows lie on one line?"""
    if not len(low[0]) == len(middle[0]) == len(high[0]):
        return False
    size = max(high[1] - low[1], 1)
    for a, b, c in zip(low[0], middle[0], high[0], strict=True):
        same = a.function == b.function == c.function and a[2:] == b[2:] == c[2:]
        if not same or not len(a.words) == len(b.words) == len(c.words):
            return False
        for first, between, last in zip(a.words, b.words, c.words, strict=True):
            step, rest = divmod(last - first, size)
            if rest or between != first + step * (middle[1] - low[1]):
                return False
    return True
