"""The first calls of a training step in a fresh process: recording, compiling and all."""

from __future__ import annotations

from importlib import import_module
from time import perf_counter
from typing import Any

from benchmarks.works import CPU, resolve
from benchmarks.works.devices import synchronizer


def first_calls(m: Any, mode: str, of: str, calls: int = 4, **parameters: Any) -> dict[str, Any]:
    """Seconds of each of the first calls of the work `of`, and how many kernels or graphs were made in all of them."""
    prepared = resolve(of)(m, mode=mode, **parameters)
    wait = synchronizer(m, parameters.get("device", CPU))
    wait()
    before = compilations(m)
    seconds = []
    for _ in range(calls):
        started = perf_counter()
        prepared.step()
        prepared.finish()
        wait()
        seconds.append(perf_counter() - started)
    return {"seconds": seconds, **{name: count - before[name] for name, count in compilations(m).items()}}


def compilations(m: Any) -> dict[str, int]:
    """What the side has compiled so far in this process, in its own units."""
    if m.__name__ == "torch":
        counters = import_module("torch._dynamo.utils").counters
        return {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
    if m.__name__ == "wayfare":
        counters = import_module("wayfare.core.counters").COUNTERS
        return {"built": counters.kernels_built, "loaded": counters.kernels_loaded}
    return {}
