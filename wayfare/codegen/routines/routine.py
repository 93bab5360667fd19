"""Routines: small native functions that are written in IR by hand, for work the loop language has no words for.

    ROUTINE = Routine("gather_rows", write)      # `write(host)` gives IR that defines @NAME(ptr block)
    ROUTINE.run(words, count)                    # `count` argument blocks of 64-bit words, in several threads if more

A routine is made when it is first wanted, and kept on disk as kernels are. The words of a block are its own affair; an
address among them must stay good until `run` returns. `ready` says whether there is one at all: if not, the caller does
the work in NumPy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from wayfare.codegen.llvm import objects
from wayfare.codegen.llvm.expr import Writer
from wayfare.codegen.llvm.machine import BUILDING, Machine, machine
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.kernel import available, refuse
from wayfare.core.counters import COUNTERS

NAME = "NAME"


class Routine:
    """One native function of argument blocks."""

    def __init__(self, name: str, write: Callable[[Machine], str]) -> None:
        self.name = name
        self._write = write
        # Where the function begins, once it is `ready`.
        self.address = 0
        self._single: Any = None
        self._broken = False

    @property
    def ready(self) -> bool:
        """Is there native code? Made now if it was not before."""
        return bool(self.address) or (not self._broken and self._make())

    @property
    def llvm(self) -> str:
        """The IR, as it was before LLVM simplified it."""
        return self._write(machine())

    def run(self, words: Sequence[int], count: int = 1) -> None:
        """Run `count` argument blocks, one after the other in `words`. Outputs are written when it returns."""
        blocks = (ctypes.c_int64 * len(words))(*words)
        COUNTERS.kernels_run += 1
        if count == 1:
            self._single(blocks)
        else:
            COUNTERS.kernels_split += 1
            thread_pool.run(self.address, ctypes.addressof(blocks), count, 8 * len(words) // count)

    def run_block(self, block: Any) -> None:
        """Run one argument block that the caller keeps as a ctypes array."""
        COUNTERS.kernels_run += 1
        self._single(block)

    def _make(self) -> bool:
        with BUILDING:
            if self.address or self._broken:
                return bool(self.address)
            if not available():
                self._broken = True
                return False
            try:
                address = _address(self.name, self._write(machine()))
                self._single = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
                self.address = address
            except Exception as error:
                self._broken = True
                refuse(self.name, error)
        return bool(self.address)


def _address(name: str, text: str) -> int:
    host = machine()
    key = objects.key(text)
    symbol = "r" + key[:32]
    made = objects.fetch(
        key, lambda: {"name": name, "source": "written by hand", "layout": ""},
        lambda: (text.replace(f"@{NAME}", f"@{symbol}"), frozenset()),
    )  # fmt: skip
    thread_pool.prepare()
    host.load(made.code, made.symbols)
    return host.address(symbol)


def function(writer: Writer) -> str:
    """The IR of a routine whose body was written."""
    body = "\n".join(["entry:", *writer.allocas, *writer.lines, "  ret void"])
    return f"define void @{NAME}(ptr %block) {{\n{body}\n}}\n" + "\n".join(sorted(writer.declared.values())) + "\n"


def word(writer: Writer, number: int) -> str:
    """A 64-bit word of the argument block."""
    place = writer.let(f"getelementptr i64, ptr %block, i64 {number}")
    return writer.let(f"load i64, ptr {place}")


def pointer(writer: Writer, number: int) -> str:
    """A word of the argument block that is an address."""
    return writer.let(f"inttoptr i64 {word(writer, number)} to ptr")
