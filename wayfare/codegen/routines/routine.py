"""Routines: native functions written in IR by hand, for work that a loop cannot do as fast.

    ROUTINE = Routine("gather_rows", write)      # `write(host)` gives IR that defines @NAME(ptr block)
    ROUTINE = Routine("add_rows", write, "f32")  # `write("f32", host)`
    ROUTINE.run(words, count)                    # `count` argument blocks of 64-bit words; in the thread pool if > 1

A routine is compiled at its first use and cached on disk like kernels. Each routine defines the words of its block;
addresses in it must stay valid until `run` returns. If `ready` is false there is no native code, and the caller uses
NumPy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from wayfare.codegen.llvm import objects
from wayfare.codegen.llvm.builder import Writer
from wayfare.codegen.llvm.machine import BUILDING, Machine, machine
from wayfare.codegen.llvm.module import DATA_OFFSET
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.kernel import available, refuse
from wayfare.core.counters import COUNTERS

Array = np.ndarray[Any, np.dtype[Any]]

NAME = "NAME"


class Routine:
    """One native function of argument blocks."""

    def __init__(self, name: str, write: Callable[..., str], *given: Any) -> None:
        self.name = name
        self._write: Callable[[Machine], str] = partial(write, *given)
        # The function's address, once `ready` was true.
        self.address = 0
        self._single: Any = None
        self._broken = False

    @property
    def ready(self) -> bool:
        """Is there native code? Compiles it if needed."""
        return bool(self.address) or (not self._broken and self._make())

    @property
    def llvm(self) -> str:
        """The IR before LLVM's optimisations."""
        return self._write(machine())

    def run(self, words: Sequence[int], count: int = 1) -> None:
        """Run `count` argument blocks, which follow each other in `words`."""
        blocks = (ctypes.c_int64 * len(words))(*words)
        COUNTERS.kernels_run += 1
        if count == 1:
            self._single(blocks)
        else:
            COUNTERS.kernels_split += 1
            thread_pool.run(self.address, ctypes.addressof(blocks), count, 8 * len(words) // count)

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


def address_of(array: Array) -> int:
    """The address of an array's data, read out of the array object; `kernel.available` has checked the offset."""
    return ctypes.c_int64.from_address(id(array) + DATA_OFFSET).value


def function(writer: Writer) -> str:
    """The IR of a routine with this body."""
    body = "\n".join(["entry:", *writer.allocas, *writer.lines, "  ret void"])
    return f"define void @{NAME}(ptr %block) {{\n{body}\n}}\n" + "\n".join(sorted(writer.declared.values())) + "\n"


def word(writer: Writer, number: int) -> str:
    """A 64-bit word of the argument block."""
    return writer.load("i64", writer.element("i64", "%block", number))


def pointer(writer: Writer, number: int) -> str:
    """A word of the argument block that is an address."""
    return writer.pointer(word(writer, number))
