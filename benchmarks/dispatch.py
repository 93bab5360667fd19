"""Where native loops overtake NumPy: the measurement behind `_NATIVE_FROM` in wayfare/ops/_define.py.

`python -m benchmarks.dispatch` times every elementwise record on contiguous float32 arrays of growing size, both ways,
and prints from how many elements on the native loop is faster.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.op import REGISTRY, Op

SIZES = [2**k for k in range(6, 19)]
_REPEATS = 7


def best(call: Callable[[], Any], seconds: float = 0.002) -> float:
    """Seconds of one call, the best of several rounds."""
    call()
    begin = time.perf_counter()
    call()
    count = max(1, int(seconds / max(time.perf_counter() - begin, 1e-7)))
    rounds = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - begin) / count)
    return min(rounds)


def overtaken(op: Op) -> tuple[int | None, list[tuple[int, float]]]:
    """From which size on the native loop wins, and the ratios native / NumPy at every size tried."""
    rng = np.random.default_rng(0)
    sample = next(iter(op.samples(rng)))
    ratios = []
    for size in SIZES:
        arrays = [np.resize(x, size).astype(np.float32 if x.dtype.kind == "f" else x.dtype) for x in sample.inputs]
        with np.errstate(all="ignore"):
            numpy = best(lambda: op.forward(*arrays, **sample.attrs))  # noqa: B023
            native = best(lambda: op.large(*arrays, **sample.attrs))  # noqa: B023
        ratios.append((size, native / numpy))
        if len(ratios) > 3 and all(r < 0.8 for _, r in ratios[-3:]):
            break
    losing = [size for size, ratio in ratios if ratio > 1]
    if not losing:
        return SIZES[0], ratios
    first = next((size for size, _ in ratios if size > losing[-1]), None)
    return first, ratios


def main() -> None:
    """Print the table; names on the command line choose records."""
    wanted = sys.argv[1:] or [name for name, op in REGISTRY.items() if op.family == "elementwise" and op.large]
    print(f"native faster than NumPy from how many elements on (float32, {wf.get_num_threads()} threads)")
    for name in wanted:
        first, ratios = overtaken(REGISTRY[name])
        shown = " ".join(f"{ratio:.2f}" for _, ratio in ratios)
        print(f"{name:28} {first if first is not None else 'never':>8}   {shown}", flush=True)


if __name__ == "__main__":
    main()
