"""One way of running a step, from its first call to its row of the table of `compare`."""

from __future__ import annotations

import gc
import importlib
import json
import os
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import wayfare as wf
from wayfare.compiler.function import Compiled
from wayfare.core import buffer_pool
from wayfare.core.counters import counted
from wayfare.see.profile.snapshot import Snapshot

# A round lasts at least this long, so that the clock does not matter.
_ROUND_SECONDS = 0.02
_WARM_UP = 3
EAGER, STATIC, TORCH = "eager", "compiled", "PyTorch"


@dataclass
class Row:
    """One way of running a step. Times and counts are of one iteration."""

    way: str
    seconds: float  # median of the rounds
    first_seconds: float  # the very first call
    peak_bytes: int  # memory at the highest point of a step, beyond what was in use before it
    kernels: float  # native kernels
    products: float  # products of matrices in plans
    native_calls: float  # calls of native command lists
    recorded: int  # calls that were recorded, from the first call to the last
    retraces: int  # those after the warm-up
    python: list[str] = field(default_factory=list)  # why calls ran as plain Python
    decisions: int = 0  # lines of the step that read a value, by which a plan chooses its path
    paths: int = 0  # paths through the step that are planned
    device_seconds: float = 0.0  # that a GPU worked
    device_peak_bytes: int = 0  # memory of the GPU at the highest point of a step, beyond what was in use before it
    graphs: float = 0.0  # CUDA graphs replayed


def _finish() -> None:
    """Wait for the GPU, if one is in use: a step has ended when its work is done."""
    if wf.cuda.is_initialized():
        wf.cuda.synchronize()


class _Timed:
    """A step and its batches: the first call, a warm-up, then rounds of as many passes as the clock needs."""

    def __init__(self, called: Any, batches: Sequence[tuple[Any, ...]]) -> None:
        self._called, self._batches = called, batches
        self._seconds: list[float] = []
        self._peak = self._device_peak = 0
        self._device_seconds = 0.0
        _finish()
        self._prepare()
        start = time.perf_counter()
        called(*batches[0])
        _finish()
        self._first = time.perf_counter() - start
        for batch in batches[1:]:
            called(*batch)
        for _ in range(_WARM_UP):
            self._pass()
        start = time.perf_counter()
        with counted() as self._counts:
            self._pass()
        once = max(time.perf_counter() - start, 1e-9)
        self._passes = max(1, min(1000, round(_ROUND_SECONDS / once)))

    def _prepare(self) -> None:
        """Called before each pass, outside of the clock."""

    def _pass(self) -> None:
        self._prepare()
        called = self._called
        for batch in self._batches:
            called(*batch)
        _finish()

    def round(self) -> None:
        """Time some passes over the batches."""
        spent = 0.0
        called, batches = self._called, self._batches
        for _ in range(self._passes):
            self._prepare()
            start = time.perf_counter()
            for batch in batches:
                called(*batch)
            _finish()
            spent += time.perf_counter() - start
        self._seconds.append(spent / (self._passes * len(batches)))


class Run(_Timed):
    """One way, from its first call to its row of the table."""

    def __init__(self, way: str, called: Any, batches: Sequence[tuple[Any, ...]], before: Snapshot) -> None:
        self.way = way
        self._compiled: Any = called if isinstance(called, Compiled) else getattr(called, "_compiled", None)
        self._before = before
        super().__init__(called, batches)
        self._warm = self._recorded()

    def _prepare(self) -> None:
        self._before.restore_arguments()

    def measure_memory(self) -> None:
        """The highest use of memory in any step, beyond what was in use when it began.

        With the pool of buffers set aside, all arrays come from NumPy, which tells tracemalloc of them.
        """
        limit, tracing = wf.settings.pool_limit, tracemalloc.is_tracing()
        wf.settings.pool_limit = 0
        try:
            for _ in range(2):  # what was made in buffers of the pool is gone after two passes
                self._pass()
                buffer_pool.trim()
            gc.collect()
            if not tracing:
                tracemalloc.start()
            self._before.restore_arguments()
            for batch in self._batches:
                tracemalloc.reset_peak()
                at_start = tracemalloc.get_traced_memory()[0]
                self._called(*batch)
                self._peak = max(self._peak, tracemalloc.get_traced_memory()[1] - at_start)
        finally:
            wf.settings.pool_limit = limit
            if not tracing:
                tracemalloc.stop()
        if wf.cuda.is_initialized():
            self._measure_device()

    def _measure_device(self) -> None:
        """The same for the memory of the GPU, and how long it works."""
        self._before.restore_arguments()
        for batch in self._batches:
            wf.cuda.reset_peak_memory_stats()
            at_start = wf.cuda.memory_allocated()
            self._called(*batch)
            self._device_peak = max(self._device_peak, wf.cuda.max_memory_allocated() - at_start)
        self._prepare()
        with wf.profile(events=0, memory=False) as found:
            for batch in self._batches:
                self._called(*batch)
        self._device_seconds = found.device_seconds

    def _recorded(self) -> int:
        return 0 if self._compiled is None else int(self._compiled.explain().data["recorded"])

    def row(self) -> Row:
        """What was found."""
        count = len(self._batches)
        told = {} if self._compiled is None else self._compiled.explain().data
        decisions, paths = counted_paths(told)
        return Row(
            self.way, statistics.median(self._seconds), self._first, self._peak, self._counts.kernels_run / count,
            self._counts.matmuls_run / count, self._counts.lists_run / count, self._recorded(),
            self._recorded() - self._warm, [entry["reason"] for entry in told.get("python", ())],
            decisions, paths, self._device_seconds / count, self._device_peak, self._counts.graphs_replayed / count,
        )  # fmt: skip


def counted_paths(told: dict[str, Any]) -> tuple[int, int]:
    """(lines that decide by a value, ways from the beginning to the end) in what `explain` tells of a function."""
    trees = [tree for kind in told.get("signatures", ()) for variant in kind["variants"]
             for tree in (variant["tree"],) if tree is not None]  # fmt: skip
    decisions, paths = set(), 0
    while trees:
        tree = trees.pop()
        if tree["outcomes"]:
            decisions.add(tree["line"])
        paths += tree["ends"]
        trees += [outcome["then"] for outcome in tree["outcomes"]]
    return len(decisions), paths


class TorchRun(_Timed):
    """The same step written for PyTorch. Its model stays trained: its state is not known, so it is not restored."""

    def measure_memory(self) -> None:
        """The highest use of memory in any step, as reported by PyTorch's own profiler."""
        profiler: Any = importlib.import_module("torch").profiler
        for batch in self._batches:
            with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as found:
                self._called(*batch)
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "trace.json")
                found.export_chrome_trace(path)
                with open(path, encoding="utf-8") as file:
                    events = json.load(file)["traceEvents"]
            now = 0
            for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: float(e["ts"])):
                now += event["args"]["Bytes"]
                self._peak = max(self._peak, now)

    def row(self) -> Row:
        """What was found."""
        return Row(TORCH, statistics.median(self._seconds), self._first, self._peak, 0.0, 0.0, 0.0, 0, 0)


def as_torch(value: Any) -> Any:
    """A batch for PyTorch: tensors are copied, lists, tuples and dictionaries gone through."""
    if isinstance(value, wf.Tensor):
        made = importlib.import_module("torch").from_numpy(value.detach().cpu().numpy().copy())
        return made.to(str(value.device)) if value.is_cuda else made
    if isinstance(value, dict):
        return {name: as_torch(inside) for name, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(as_torch(inside) for inside in value)
    return value
