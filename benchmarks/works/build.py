"""Kernels of a fresh process, the first and another one: made from nothing, or loaded from the cache on disk."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.works import Unavailable, constant

FEW = 16  # elements: running the kernel on them costs nothing beside making it


def first_kernel(m: Any) -> dict[str, float]:
    """gelu from its formula to its first result on a few numbers: expression, loop, machine code or its file, link."""
    try:
        expr, loop, native = (_codegen(m, name) for name in ("loop.expr", "loop.language", "runtime.kernel"))
        loop_math = _codegen(m, "math.library").loop_math
        formula = importlib.import_module(f"{m.__name__}.ops.activation").gelu.formula
    except ImportError as error:
        raise Unavailable(f"{m.__name__} builds no native kernels: {error}.") from None
    few = np.linspace(-2, 2, FEW, dtype=np.float32)

    def run() -> object:
        try:
            value = formula(loop_math, expr.load(0, "f32"))
        except AttributeError as error:
            raise Unavailable(f"gelu has no loop: {error}.") from None
        return native.build(loop.elementwise("gelu", ["f32"], value))([few])

    return _measured(m, run)


def next_kernel(m: Any) -> dict[str, float]:
    """The same for a process that has run a kernel before: LLVM is there already."""
    try:
        expr, loop, native = (_codegen(m, name) for name in ("loop.expr", "loop.language", "runtime.kernel"))
    except ImportError as error:
        raise Unavailable(f"{m.__name__} builds no native kernels: {error}.") from None
    native.build(loop.elementwise("before", ["f32"], expr.load(0, "f32") + 1))([np.zeros(FEW, np.float32)])
    return first_kernel(m)


def first_call(m: Any, count: int = 1_000_000) -> dict[str, float]:
    """`gelu` as a user calls it for the first time: kernel and computation together."""
    x = constant(m, np.random.default_rng(0).standard_normal(count, dtype=np.float32))
    return _measured(m, lambda: m.nn.functional.gelu(x))


def _measured(m: Any, run: Callable[[], object]) -> dict[str, float]:
    """Seconds of LLVM's import and of the first run after it, and how many kernels were built and loaded in that."""
    try:
        counters = importlib.import_module(f"{m.__name__}.core.counters").COUNTERS
        _codegen(m, "runtime.kernel")
        started = perf_counter()
        importlib.import_module("llvmlite.binding")
        imported = perf_counter() - started
    except ImportError as error:
        raise Unavailable(f"{m.__name__} builds no native kernels: {error}.") from None
    built, loaded = counters.kernels_built, counters.kernels_loaded
    started = perf_counter()
    run()
    seconds = perf_counter() - started
    return {
        "llvmlite": imported,
        "seconds": seconds,
        "built": counters.kernels_built - built,
        "loaded": counters.kernels_loaded - loaded,
    }


def _codegen(m: Any, name: str) -> Any:
    return importlib.import_module(f"{m.__name__}.codegen.{name}")
