"""`wf.profile.compare`: a user's own training step run eagerly, followed and as a plan, side by side.

    print(wf.profile.compare(step, batches))
"""

from __future__ import annotations

import gc
import io
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import wayfare as wf
from wayfare.backend import pool
from wayfare.backend.counters import counted
from wayfare.compiled.function import Compiled
from wayfare.compiled.module import CompiledModule
from wayfare.errors import ArgumentError, ArgumentTypeError
from wayfare.profile.snapshot import Snapshot

__all__ = ["Comparison", "Row", "compare"]

_WIDTH = 80
# A round lasts at least this long, so that the clock does not matter.
_ROUND_SECONDS = 0.02
_WARM_UP = 3


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


@dataclass
class Comparison:
    """What `compare` found: `rows` as data, `str()` as a table for 80 columns."""

    name: str
    batches: int
    rows: list[Row]

    def __getitem__(self, way: str) -> Row:
        for row in self.rows:
            if row.way == way:
                return row
        raise ArgumentError(f"compare: there is no row {way!r}", fix=f"There are {[row.way for row in self.rows]}.")

    def __str__(self) -> str:
        table = Table(box=SIMPLE_HEAD, title=f"{self.name}, {self.batches} batches", title_justify="left")
        for title in ("way", "time/iter", "× eager", "peak memory", "kernels", "retraces"):
            table.add_column(title, justify="left" if title == "way" else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(
                row.way, _time(row.seconds), f"{row.seconds / self.rows[0].seconds:.2f}", _bytes(row.peak_bytes),
                f"{row.kernels:.0f}", str(row.retraces) if row.way != "eager" else "",
            )  # fmt: skip
        text = io.StringIO()
        Console(file=text, width=_WIDTH, markup=False, highlight=False, no_color=True).print(table)
        reasons = [f"{row.way} ran as plain Python, because {reason}" for row in self.rows for reason in row.python]
        return "\n".join([line.rstrip() for line in text.getvalue().strip("\n").splitlines()] + reasons)


def compare(step: Callable[..., Any], batches: Iterable[Any], *, rounds: int = 5) -> Comparison:
    """Run a step on batches in every way there is, and measure each.

    `batches` is a list of argument tuples; what is no tuple is the only argument. The step runs for real, many times:
    afterwards the parameters, buffers, gradients, optimisers, schedules and random numbers it can see are put back as
    they were. What else it changes (a list it appends to, a file) stays changed.
    """
    function, given = _plain(step), [batch if isinstance(batch, tuple) else (batch,) for batch in batches]
    if not given:
        raise ArgumentError("compare: there are no batches", fix="Give a list of argument tuples.")
    if not isinstance(rounds, int) or rounds < 1:
        raise ArgumentError(f"compare: rounds must be a whole number from 1, it is {rounds!r}")
    ways: dict[str, Any] = {
        "eager": function,
        "dynamic": wf.compile(function, replay="dynamic"),
        "static plan": wf.compile(function),
    }
    before = Snapshot(function, given)
    try:
        runs = [_Run(way, called, given, before) for way, called in ways.items()]
        for _ in range(rounds):
            for run in runs:
                run.round()
        for run in runs:
            run.measure_memory()
        return Comparison(_name(function), len(given), [run.row() for run in runs])
    finally:
        before.restore()


def _plain(step: Any) -> Callable[..., Any]:
    if isinstance(step, CompiledModule):
        return step._orig_mod
    if isinstance(step, Compiled):
        return step._function
    if not callable(step):
        raise ArgumentTypeError(f"compare: takes a function that makes a step, not {type(step).__name__}",
                                fix="Give the function itself and, apart from it, its batches.")  # fmt: skip
    return step  # type: ignore[no-any-return]


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


class _Run:
    """One way, from its first call to its row of the table."""

    def __init__(self, way: str, called: Any, batches: Sequence[tuple[Any, ...]], before: Snapshot) -> None:
        self.way = way
        self._called = called
        self._compiled: Any = called if isinstance(called, Compiled) else getattr(called, "_compiled", None)
        self._batches = batches
        self._before = before
        self._seconds: list[float] = []
        self._peak = 0
        before.restore_arguments()
        start = time.perf_counter()
        called(*batches[0])
        self._first = time.perf_counter() - start
        for batch in batches[1:]:
            called(*batch)
        for _ in range(_WARM_UP):
            self._pass()
        start = time.perf_counter()
        with counted() as during:
            self._pass()
        self._counts = during
        once = max(time.perf_counter() - start, 1e-9)
        self._passes = max(1, min(1000, round(_ROUND_SECONDS / once)))
        self._warm = self._recorded()

    def _pass(self) -> None:
        self._before.restore_arguments()
        called = self._called
        for batch in self._batches:
            called(*batch)

    def round(self) -> None:
        """Time some passes over the batches."""
        spent = 0.0
        called, batches = self._called, self._batches
        for _ in range(self._passes):
            self._before.restore_arguments()
            start = time.perf_counter()
            for batch in batches:
                called(*batch)
            spent += time.perf_counter() - start
        self._seconds.append(spent / (self._passes * len(batches)))

    def measure_memory(self) -> None:
        """The highest use of memory in any step, beyond what was in use when it began.

        With the pool of buffers set aside, all arrays come from NumPy, which tells tracemalloc of them.
        """
        limit, tracing = wf.settings.pool_limit, tracemalloc.is_tracing()
        wf.settings.pool_limit = 0
        try:
            for _ in range(2):  # what was made in buffers of the pool is gone after two passes
                self._pass()
                pool.trim()
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

    def _recorded(self) -> int:
        return 0 if self._compiled is None else int(self._compiled.explain().data["recorded"])

    def row(self) -> Row:
        """What was found."""
        count = len(self._batches)
        told = {} if self._compiled is None else self._compiled.explain().data
        return Row(
            self.way, statistics.median(self._seconds), self._first, self._peak, self._counts.kernels_run / count,
            self._counts.products_run / count, self._counts.lists_run / count, self._recorded(),
            self._recorded() - self._warm, [entry["reason"] for entry in told.get("python", ())],
        )  # fmt: skip


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GB"
