"""Machine code of one loop for one layout class: read from the disk cache, or compiled by LLVM."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from wayfare.codegen.llvm import module, objects
from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.llvm.module import Layout
from wayfare.codegen.loop.expr import NUMPY
from wayfare.codegen.loop.language import Loop, exact, expressions, source
from wayfare.codegen.math.library import lowered
from wayfare.codegen.runtime import thread_pool
from wayfare.core.errors import LoopError

# LLVM's compile time grows with the square of the number of operands: above this it takes seconds.
_MOST_OPERANDS = 128


class Code:
    """Machine code of one loop for one layout class."""

    __slots__ = ("call", "quick_call", "rows", "text")

    def __init__(self, loop: Loop, layout: Layout) -> None:
        host = machine()
        count = len(loop.inputs) + len(loop.outputs)
        if count > _MOST_OPERANDS:
            raise LoopError(f"loop {loop.name}: {count} arrays are too many to compile")
        if not host.processor.half and any(e.dtype == "f16" for e in expressions(loop)):
            raise LoopError(f"loop {loop.name}: this processor has no half precision")
        # Along a row with carries, elements are visited one by one.
        lanes = 1 if loop.carrying and layout.mode == "along" else _lanes(loop, host.processor.lanes)
        key = objects.key(exact(loop), layout.mode, layout.classes, str(lanes))
        name = "k" + key[:32]
        self.text: Callable[[], str] = partial(_text, loop, layout, lanes, name)

        def write() -> tuple[str, frozenset[str]]:
            called = [e for e in expressions(lowered(loop)) if e.op in ("call", "rescue")]
            return self.text(), frozenset(str(e.value) for e in called)

        def about() -> dict[str, str]:
            return {"name": loop.name, "source": source(loop), "layout": f"{layout.mode} {layout.classes}"}

        made = objects.fetch(key, about, write)
        thread_pool.prepare()
        host.load(made.code, made.symbols)
        given: Any = (*[ctypes.py_object] * count, ctypes.c_void_p, ctypes.c_int64)
        address = host.address(f"{name}.call")
        self.call: Any = ctypes.CFUNCTYPE(None, *given)(address)
        # Keeps the GIL: releasing it and taking it back costs more than many loops.
        self.quick_call: Any = ctypes.PYFUNCTYPE(None, *given)(address)
        # The address of the function of one argument block, for `thread_pool.run`.
        self.rows: int = host.address(f"{name}.rows")


def _text(loop: Loop, layout: Layout, lanes: int, name: str) -> str:
    return module.module(lowered(loop), layout, lanes, name)


def _lanes(loop: Loop, of_32_bits: int) -> int:
    """As many lanes as fill a vector register with the loop's widest float dtype (f32 if it has no floats)."""
    sizes = [NUMPY[o.dtype].itemsize for o in (*loop.inputs, *loop.outputs) if o.dtype in ("f32", "f64")]
    return of_32_bits // 2 if sizes and max(sizes) == 8 else of_32_bits
