"""Command trees: command lists joined by jumps on computed values, run by one native call up to a stop.

    tree = CommandTree()
    first = tree.add(commands, numbers)                       # a piece: a command list and its buffers' numbers here
    tree.jump(first, Jump(flag, table={0: second}, otherwise=stop(1)))
    code = tree.run(arrays, first)                            # the code of the stop that was reached

A piece ends with a jump: the bits of one element are compared with those in a table, and the run goes on with the
piece found there, or ends. So a decision that was taken before does not return to Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.llvm.module import RUN
from wayfare.codegen.routines.routine import Routine, function, pointer, word
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.blas import openblas
from wayfare.codegen.runtime.command import LINE, SCRATCH, BufferView, Command
from wayfare.codegen.runtime.commands import ITEMS, Commands, ready
from wayfare.codegen.runtime.run_list import fields, fill_addresses, run_blocks
from wayfare.codegen.runtime.work_split import QUICK
from wayfare.core.counters import COUNTERS
from wayfare.core.spec import FLOAT_KINDS

Array = np.ndarray[Any, np.dtype[Any]]

# What a row of the native program is: blocks to run here, or in the thread pool; addresses to fill in; a jump.
_HERE, _POOL, _FILL, _JUMP = range(4)
_FIELDS = 5


def stop(code: int) -> int:
    """The target of a jump that ends the run with this code (0 or more)."""
    return -1 - code


@dataclass(slots=True)
class Jump:
    """Where a run goes on: at the piece that `table` has for the bits of `value` (under `mask`), or at `otherwise`.

    Targets are numbers of pieces, or stops. Without a value it goes to `otherwise`.
    """

    value: BufferView | None = None
    mask: int = -1
    table: dict[int, int] = field(default_factory=dict)
    otherwise: int = -1


@dataclass(slots=True)
class _Piece:
    commands: Commands
    numbers: Sequence[int]
    jump: Jump = field(default_factory=Jump)


class CommandTree:
    """Pieces and jumps. Used by one thread at a time."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        # Arrays that are the same in each run, by buffer number.
        self._fixed: dict[int, Array] = {}
        self._bound: _Bound | None = None

    def add(self, commands: Commands, numbers: Sequence[int]) -> int:
        """Add a list as a piece; its buffer k is the tree's buffer `numbers[k]`. Returns the number of the piece."""
        self._pieces.append(_Piece(commands, numbers))
        return len(self._pieces) - 1

    def jump(self, piece: int, jump: Jump) -> None:
        """What comes after a piece; the buffer of the value has the number that the piece's list gives it."""
        self._pieces[piece].jump = jump

    def fix(self, number: int, array: Array) -> None:
        """Use this array as a buffer in all runs."""
        self._fixed[number] = array

    def run(self, objects: tuple[Any, ...], start: int) -> int:
        """Run from a piece on, up to a stop, and return its code. `objects` has the arrays by buffer number."""
        bound = self._bound
        if bound is None or bound.threads != thread_pool.threads():
            bound = self._bound = _Bound(self._pieces, self._fixed, thread_pool.threads())
        words = bound.words
        words[0] = id(objects) + ITEMS
        words[2] = bound.first[start]
        if bound.blas is None:
            bound.call(bound.address)
        else:
            with bound.blas:
                bound.call(bound.address)
        code = -1 - words[2]
        kernels, matmuls, split = bound.counts[start, code]
        COUNTERS.lists_run += 1
        COUNTERS.kernels_run += kernels
        COUNTERS.matmuls_run += matmuls
        COUNTERS.kernels_split += split
        return code


class _Bound:
    """The native program of a tree for a number of threads."""

    __slots__ = ("_alive", "address", "blas", "call", "counts", "first", "threads", "words")

    def __init__(self, pieces: Sequence[_Piece], fixed: dict[int, Array], threads: int) -> None:
        self.threads = threads
        made = [piece.commands.made(threads) for piece in pieces]
        everything = [c for commands in made for c in commands]
        self.blas = openblas() if any(c.blas_threads for c in everything) else None
        memory = np.empty(max([p.commands.scratch_bytes for p in pieces], default=0) + LINE, np.uint8)
        scratch = -(-memory.ctypes.data // LINE) * LINE
        known = {number: array.ctypes.data for number, array in fixed.items()}
        self._alive: list[Any] = [memory, fixed, pieces, made]
        sizes = [len(commands) + 2 for commands in made]
        self.first = [sum(sizes[:i]) for i in range(len(pieces))]
        rows: list[tuple[int, ...]] = []
        for piece, commands in zip(pieces, made, strict=True):
            own = {SCRATCH - 1 - k: a.ctypes.data for k, a in enumerate(piece.commands.constants)}
            own[SCRATCH] = scratch
            rows += self._rows(piece, commands, own, known)
        table = np.array(rows, np.int64)
        self._alive.append(table)
        # Written before each run: the address of the array objects, and the first row. The run leaves its stop there.
        self.words = (ctypes.c_int64 * 3)(0, table.ctypes.data, 0)
        self.address = ctypes.addressof(self.words)
        work = max([sum(c.work for c in commands) for commands in made], default=0.0)
        kind = ctypes.PYFUNCTYPE if work < QUICK else ctypes.CFUNCTYPE
        assert ready() and RUN_TREE.ready
        self.call = kind(None, ctypes.c_void_p)(RUN_TREE.address)
        self.counts = _counts(pieces, made)

    def _rows(
        self, piece: _Piece, commands: list[Command], own: dict[int, int], known: dict[int, int]
    ) -> list[tuple[int, ...]]:
        """The rows of a piece: addresses to fill in, its commands, its jump."""
        filled: list[tuple[int, int, int]] = []
        rows: list[tuple[int, ...]] = []

        def placed(blocks: Sequence[Sequence[int]], addresses: Sequence[tuple[int, int, int]]) -> int:
            words = np.array([w for block in blocks for w in block], np.int64)
            self._alive.append(words)
            for block, offset, number in addresses:
                at = block * len(blocks[0]) + offset
                there = own.get(number) if number < 0 else known.get(piece.numbers[number])
                if there is not None:
                    words[at] += there
                else:
                    filled.append((words.ctypes.data + 8 * at, piece.numbers[number], int(words[at])))
            return int(words.ctypes.data)

        for c in commands:
            start = placed(c.blocks, c.addresses)
            # A negative size: too little work to wake a thread for, unless such work comes often.
            size = 8 * len(c.blocks[0]) * (-1 if c.shared and c.work < QUICK else 1)
            rows.append((c.function, start, len(c.blocks), size, _POOL if c.shared else _HERE))
        jump = piece.jump
        value = jump.value
        words = [0, 0, jump.mask, len(jump.table), self._row(jump.otherwise)]
        for bits, target in jump.table.items():
            words += [bits, self._row(target)]
        if value is not None:
            words[:2] = value.offset, value.dtype.itemsize
        rows.append((0, placed([words], [] if value is None else [(0, 0, value.object)]), 0, 0, _JUMP))
        table = np.array(filled, np.int64).reshape(-1, 3)
        self._alive.append(table)
        return [(0, table.ctypes.data, len(filled), 0, _FILL), *rows]

    def _row(self, target: int) -> int:
        return target if target < 0 else self.first[target]


def _counts(pieces: Sequence[_Piece], made: Sequence[list[Command]]) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Kernels, matmuls and split kernels of a run, by its first piece and the code of its stop."""
    own = [(sum(c.kind == "kernel" for c in commands), sum(c.kind == "matmul" for c in commands),
            sum(c.shared for c in commands)) for commands in made]  # fmt: skip
    counts: dict[tuple[int, int], tuple[int, int, int]] = {}
    targets = [{*piece.jump.table.values(), piece.jump.otherwise} for piece in pieces]
    inside = {target for found in targets for target in found}
    for start in range(len(pieces)):
        if start in inside:
            continue
        stack = [(start, (0, 0, 0))]
        while stack:
            here, before = stack.pop()
            total = (before[0] + own[here][0], before[1] + own[here][1], before[2] + own[here][2])
            for target in targets[here]:
                if target < 0:
                    counts.setdefault((start, -1 - target), total)
                else:
                    stack.append((target, total))
    return counts


def element_bits(array: Array) -> int:
    """The bits of an array of one element, as a jump compares them."""
    return int.from_bytes(np.ascontiguousarray(array).tobytes(), "little", signed=array.itemsize == 8)


def truth_mask(dtype: np.dtype[Any]) -> int:
    """The bits of an element that make it true if any is set: all but the sign of a float (-0.0 is false)."""
    if dtype.kind in FLOAT_KINDS:
        return (1 << (8 * dtype.itemsize - 1)) - 1
    return -1


def _write(_host: Machine) -> str:
    """Words: the address of the array objects, the rows (function, blocks, number of blocks, bytes of a block, kind of
    row), and the first row; there the run leaves the target of the stop. A jump's words: the address, the bytes and the
    mask of the value, the length of its table, the row for all other values, then bits and row of each entry."""
    writer = Writer()
    objects, rows = pointer(writer, 0), pointer(writer, 1)
    row = writer.variable("i64", word(writer, 2))
    writer.do("br label %test")
    writer.label("test")
    here = row.get()
    writer.do(f"br i1 {writer.compare('sge', here, 0)}, label %body, label %done")
    writer.label("body")
    row.set(writer.add(here, 1))
    called, first, many, size, kind = fields(writer, rows, here, _FIELDS)
    blocks = writer.pointer(first)
    places = {_HERE: "here", _POOL: "pool", _FILL: "fill", _JUMP: "jump"}
    cases = " ".join(f"i64 {number}, label %{name}" for number, name in places.items())
    writer.do(f"switch i64 {kind}, label %done [ {cases} ]")
    writer.label("here")
    run_blocks(writer, writer.pointer(called), blocks, many, size)
    writer.do("br label %test")
    writer.label("pool")
    writer.do(f"call void @{RUN}(ptr {writer.pointer(called)}, ptr {blocks}, i64 {many}, i64 {size})")
    writer.do("br label %test")
    writer.label("fill")
    fill_addresses(writer, objects, blocks, many)
    writer.do("br label %test")
    writer.label("jump")
    _jump(writer, blocks, row)
    writer.do("br label %test")
    writer.label("done")
    writer.store("i64", row.get(), writer.element("i64", "%block", 2))
    writer.declared[RUN] = f"declare void @{RUN}(ptr, ptr, i64, i64)"
    return function(writer)


def _jump(writer: Writer, words: str, row: Any) -> None:
    address, bytes_, mask, count, otherwise = fields(writer, words, "0", 5)
    value = writer.variable("i64", "0")
    source = writer.pointer(address)
    # Byte by byte: a load of eight might go past the end of the memory.
    with writer.loop("0", bytes_, 1) as k:
        byte = writer.let(f"zext i8 {writer.load('i8', writer.moved(source, k))} to i64")
        shifted = writer.let(f"shl i64 {byte}, {writer.mul(k, 8)}")
        value.set(writer.let(f"or i64 {value.get()}, {shifted}"))
    bits = writer.let(f"and i64 {value.get()}, {mask}")
    row.set(otherwise)
    entries = writer.moved(words, 8 * 5)
    with writer.loop("0", count, 1) as k:
        known, target = fields(writer, entries, k, 2)
        row.set(writer.select(writer.compare("eq", known, bits), target, row.get()))


RUN_TREE = Routine("run_tree", _write)
