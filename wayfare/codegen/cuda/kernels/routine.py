"""A kernel written by hand: its parameter, its text, and its launches."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from wayfare.codegen.cuda.launch import Grid, Launcher
from wayfare.codegen.cuda.prelude import prelude
from wayfare.core.counters import COUNTERS

THREADS = 256


def kernel_text(name: str, fields: Sequence[str], body: str, helpers: str = "") -> str:
    """The whole text of a kernel `name`. Each field of its parameter `a` has 8 bytes, or is an array of such."""
    declared = " ".join(f"{field};" for field in fields)
    return (f"{prelude()}{helpers}struct {name}_words {{ {declared} }};\n"
            f'extern "C" __global__ void {name}(const __grid_constant__ {name}_words a) {{\n{body}}}\n')  # fmt: skip


def run(
    launcher: Launcher, text: str, name: str, grid: Sequence[int], block: Sequence[int], words: Sequence[int | float]
) -> None:
    """Launch a kernel on a parameter of these words. A float becomes the bits of a double."""
    COUNTERS.kernels_run += 1
    COUNTERS.device_calls += 1
    whole = [struct.unpack("<q", struct.pack("<d", w))[0] if isinstance(w, float) else w for w in words]
    function = launcher.compile(text)[name]
    launcher.launch(function, _three(grid), _three(block), 0, (ctypes.c_int64 * len(whole))(*whole))


def _three(sizes: Sequence[int]) -> Grid:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def blocks_for(launcher: Launcher, count: int, threads: int = THREADS) -> int:
    """How many blocks of `threads` do `count` things; threads do several if there are too many."""
    return max(1, min(-(-count // threads), launcher.limits.most_blocks))


def all_of(index: str, count: str) -> str:
    """The head of a loop over all things of a launch: thread by thread, then a whole grid further."""
    return (f"for (i64 {index} = (i64)blockIdx.x * blockDim.x + threadIdx.x; {index} < {count}; "
            f"{index} += (i64)gridDim.x * blockDim.x) {{\n")  # fmt: skip


def pointers(launcher: Launcher, *arrays: Any) -> list[int]:
    """The addresses of arrays."""
    return [launcher.pointer(a) for a in arrays]
