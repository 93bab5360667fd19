"""Command lists: kernels, matmuls and copies over one set of arrays, run by one native call.

    commands = Commands()
    if commands.matmul(x, weight, hidden) and commands.kernel(relu, (32, 64), None, [hidden], [hidden]):
        commands.finish()
    commands.run([x_array, weight_array, arena])      # arrays by object number

Everything that depends on shapes and strides is computed while the list is built. A run reads the addresses of the
arrays, fills in the argument blocks and executes the commands, without returning to Python in between. The building
methods return False and add nothing for work that has no native form.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from wayfare.codegen.loop.layout import Scattered
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.blas import openblas
from wayfare.codegen.runtime.command import LINE, SCRATCH, BufferView, Command, Scratch, Shape, Unsuited
from wayfare.codegen.runtime.command_gemm import matmul_commands
from wayfare.codegen.runtime.command_kernels import copy_commands, fill_commands, kernel_commands, update_commands
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.codegen.runtime.run_list import RUN_LIST
from wayfare.codegen.runtime.work_split import QUICK
from wayfare.core.counters import COUNTERS

__all__ = ["BufferView", "Commands"]

Array = np.ndarray[Any, np.dtype[Any]]
# A function of (threads, scratch) that makes the commands of one request.
Request = Callable[[int, Scratch], list[Command]]

# The offset of the first item in a tuple object.
ITEMS = tuple.__basicsize__


# -- native part --------------------------------------------------------------------------------------------------


@cache
def ready() -> bool:
    """Is there native code, and do tuples have the expected memory layout?"""
    probe = (object(),)
    return RUN_LIST.ready and ctypes.c_int64.from_address(id(probe) + ITEMS).value == id(probe[0])


@cache
def _calls() -> tuple[Any, Any]:
    """The native function that keeps the GIL, and the one that releases it."""
    address = RUN_LIST.address
    return ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address), ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)


class _Bound:
    """The argument blocks of a list for a number of threads. Used by one thread at a time."""

    __slots__ = ("_alive", "address", "blas", "call", "kernels", "matmuls", "split", "threads", "words")

    def __init__(self, commands: list[Command], constants: list[Array], scratch: int, threads: int) -> None:
        self.threads = threads
        # The BLAS that must use one thread during a run.
        self.blas = openblas() if any(c.blas_threads for c in commands) else None
        memory = np.empty(scratch + LINE, np.uint8)
        own = {SCRATCH - 1 - k: a.ctypes.data for k, a in enumerate(constants)}
        own[SCRATCH] = -(-memory.ctypes.data // LINE) * LINE
        blocks = np.array([w for c in commands for block in c.blocks for w in block], np.int64)
        first = blocks.ctypes.data
        table: list[tuple[int, int, int]] = []
        list_words: list[int] = []
        start = 0
        for command in commands:
            size, count = len(command.blocks[0]), len(command.blocks)
            for number, offset, name in command.addresses:
                at = start + number * size + offset
                if name < 0:
                    blocks[at] += own[name]
                else:
                    table.append((first + 8 * at, name, int(blocks[at])))
            # A negative size: too little work to wake a thread for, unless such work comes often.
            small = command.shared and command.work < QUICK
            list_words += [command.function, first + 8 * start, count, (-8 if small else 8) * size, int(command.shared)]
            start += size * count
        entries, rows = np.array(table, np.int64), np.array(list_words, np.int64)
        self._alive = (memory, blocks, entries, rows, [c.kept for c in commands])
        # The first word is set for each run: the address of the array objects.
        self.words = (ctypes.c_int64 * 5)(0, entries.ctypes.data, len(table), rows.ctypes.data, len(commands))
        self.address = ctypes.addressof(self.words)
        work = sum(c.work / min(threads, len(c.blocks)) if c.shared else c.work for c in commands)
        self.call = _calls()[0 if work < QUICK else 1]
        self.kernels = sum(c.kind == "kernel" for c in commands)
        self.matmuls = sum(c.kind == "matmul" for c in commands)
        self.split = sum(c.shared for c in commands)


# -- the list -----------------------------------------------------------------------------------------------------


class Commands:
    """A list of commands over numbered arrays: built once, then run many times."""

    def __init__(self, threads: int | None = None) -> None:
        self._requests: list[Request] = []
        # The commands of the requests, until `finish`; and for how many threads (those of the process) they are.
        self._made: list[list[Command]] = []
        self._made_for = threads or thread_pool.threads()
        self.constants: list[Array] = []  # arrays that belong to the list
        # Bindings that are not in use: each run takes one, so that two threads never share one.
        self._free: list[_Bound] = []
        self.titles: list[str] = []
        self.scratch_bytes = 0

    # -- building

    def kernel(
        self, kernel: Kernel, shape: Shape, axes: tuple[int, ...] | None, inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
    ) -> bool:  # fmt: skip
        """A kernel over `shape`. Inputs broadcast; rows run along `axes` (adjacent, in order), where per-row outputs
        have size 1. Without rows, an output may be an input of the same layout; else it overlaps no input."""
        return self._add(
            lambda threads, scratch: kernel_commands(kernel, shape, axes, inputs, outputs, threads, scratch)
        )

    def matmul(self, a: BufferView, b: BufferView, out: BufferView, *, add: bool = False) -> bool:
        """`out = a @ b`, or `out += a @ b`, of vectors, matrices and batches; `out` overlaps neither."""
        if a.shape and a.shape[-1] == 0:
            return add or self.fill(out, 0)
        return self._add(lambda threads, scratch: matmul_commands(a, b, out, add, threads, scratch))

    def copy(self, source: BufferView, target: BufferView) -> bool:
        """Copy one view to another of the same shape and dtype that does not overlap it."""
        return self._add(lambda threads, _scratch: copy_commands(source, target, threads))

    def fill(self, target: BufferView, value: Any) -> bool:
        """Write one value to all elements."""
        view = self.own(np.array(value, target.dtype))
        return self._add(lambda threads, _scratch: fill_commands(view, target, threads))

    def update(self, kernel: Kernel, sets: Sequence[Sequence[BufferView]], numbers: BufferView) -> bool:
        """An elementwise kernel over many sets of views that do not overlap. A set has the inputs (without the last
        ones, which are the scalars in `numbers`, read at each run), then the outputs."""
        return self._add(lambda threads, _scratch: update_commands(kernel, sets, numbers, threads))

    def routine(self, request: Request) -> bool:
        """Add the commands that `request(threads, scratch)` makes."""
        return self._add(request)

    def _add(self, request: Request) -> bool:
        if not ready():
            return False
        try:
            made = self._answer(request, self._made_for)
        except (Unsuited, Scattered):
            return False
        self._requests.append(request)
        self._made.append(made)
        self.titles += [c.title for c in made]
        return True

    def _answer(self, request: Request, threads: int) -> list[Command]:
        # Commands run one after the other, so all requests use the same scratch memory.
        scratch = Scratch()
        made = request(threads, scratch)
        self.scratch_bytes = max(self.scratch_bytes, scratch.bytes)
        return made

    def finish(self) -> None:
        """Prepare to run. Nothing can be added afterwards."""
        if self._requests:
            commands = [command for made in self._made for command in made]
            self._free.append(_Bound(commands, self.constants, self.scratch_bytes, self._made_for))
        self._made = []

    def made(self, threads: int) -> list[Command]:
        """The commands for a number of threads."""
        if self._made and self._made_for == threads:
            return [command for made in self._made for command in made]
        return [command for request in self._requests for command in self._answer(request, threads)]

    def release(self) -> None:
        """Free the memory that is kept for the next run, which then has to be prepared again."""
        self._free.clear()

    def own(self, array: Array) -> BufferView:
        """A view of an array that belongs to the list."""
        self.constants.append(array)
        return BufferView(SCRATCH - len(self.constants), 0, array.shape, array.strides, array.dtype)

    def _bind(self, threads: int) -> _Bound:
        return _Bound(self.made(threads), self.constants, self.scratch_bytes, threads)

    # -- running

    def run(self, objects: Sequence[Array]) -> None:
        """Run on these arrays, by buffer number. The caller keeps them alive; they have the layout of the views."""
        if not self._requests:
            return
        given = objects if objects.__class__ is tuple else tuple(objects)
        threads = thread_pool.threads()
        try:
            bound = self._free.pop()
        except IndexError:
            bound = self._bind(threads)
        else:
            if bound.threads != threads:
                bound = self._bind(threads)
        bound.words[0] = id(given) + ITEMS
        COUNTERS.lists_run += 1
        COUNTERS.kernels_run += bound.kernels
        COUNTERS.kernels_split += bound.split
        COUNTERS.matmuls_run += bound.matmuls
        blas = bound.blas
        if blas is None:
            bound.call(bound.address)
        else:
            with blas:
                bound.call(bound.address)
        self._free.append(bound)

    def describe(self) -> str:
        """One line for each command."""
        return "\n".join(self.titles)
