"""What every suite shares: the options, the two sides, interleaved timing, and the table of ratios."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.worker import ROOT, BenchmarkError, Skipped, Worker

__all__ = ["BenchmarkError", "Measurement", "Options", "Report", "Sides", "Skipped", "available_cores", "interleave"]

WIDTH = 80
ROUND_SECONDS = 0.03  # short rounds: a passing disturbance spoils few of them


def available_cores() -> int:
    """The cores this process may use, which is what both sides get unless told otherwise."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    quick: bool = False
    threads: int = 1
    only: str | None = None
    subject: str = "wayfare"
    peer: str = "torch"  # nothing: the subject is compared with itself
    busy: int = 0  # processes that keep cores busy meanwhile
    json: Path | None = None  # where the figures go
    device: str = "cpu"
    budget: float | None = None  # seconds for the whole suite, where it keeps to one
    patience: float | None = None  # seconds after which a side that gives no answer is ended

    @property
    def rounds(self) -> int:
        return 5 if self.quick else 30

    def wants(self, part: str) -> bool:
        return self.only is None or any(word in part for word in self.only.split(","))

    def modules(self) -> list[str]:
        """The subject and, if it can be imported, its peer."""
        sys.path.insert(0, str(ROOT))
        try:
            if importlib.util.find_spec(self.subject) is None:
                raise BenchmarkError(f"{self.subject} cannot be imported: install it first.")
            return [self.subject] + [self.peer] * (bool(self.peer) and importlib.util.find_spec(self.peer) is not None)
        finally:
            sys.path.remove(str(ROOT))


class Sides:
    """The processes of a comparison: the subject first, then the peer if there is one."""

    def __init__(self, options: Options, environment: Mapping[str, str] | None = None) -> None:
        self._stack = ExitStack()
        self.workers = [
            self._stack.enter_context(Worker(module, options.threads, environment)) for module in options.modules()
        ]

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prepare(self, work: str, **parameters: Any) -> None:
        for worker in self.workers:
            worker.prepare(work, **parameters)

    def call(self, work: str, **parameters: Any) -> list[Any]:
        return [worker.call(work, **parameters) for worker in self.workers]


@dataclass
class Measurement:
    """One row: the rounds of each side, in units of `unit`, the ratio that is wanted and the one aimed at.

    In an `absolute` row the subject stands alone, and what is wanted of it is in units of `unit`. A row is judged by
    its best rounds, or `by_median` of the ratios, where a lucky round must not count.
    """

    part: str
    work: str
    unit: str
    rounds: list[list[float]]
    wanted: float | None = None
    aim: float | None = None
    absolute: bool = False
    by_median: bool = False

    def best(self, side: int) -> float:
        return min(self.rounds[side])

    @property
    def ratio_of_best(self) -> float | None:
        return self.best(0) / self.best(1) if len(self.rounds) > 1 else None

    @property
    def median_ratio(self) -> float | None:
        """The median over rounds of subject/peer: drift of the machine hits both halves of a round alike."""
        if len(self.rounds) == 1:
            return None
        mine, theirs = self.rounds
        return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))

    @property
    def met(self) -> bool | None:
        return self._within(self.wanted)

    @property
    def aim_met(self) -> bool | None:
        return self._within(self.aim)

    def _within(self, limit: float | None) -> bool | None:
        judged = self.best(0) if self.absolute else self.median_ratio if self.by_median else self.ratio_of_best
        return None if judged is None or limit is None else judged <= limit

    def as_json(self) -> dict[str, Any]:
        derived = {"ratio_of_best": self.ratio_of_best, "median_ratio": self.median_ratio}
        return {**asdict(self), **derived, "met": self.met, "aim_met": self.aim_met}


def interleave(sides: Sides, work: str, rounds: int, **parameters: Any) -> list[list[float]]:
    """Seconds per step of each side in `rounds` rounds that alternate between the sides."""
    sides.prepare(work, **parameters)
    slowest = max(worker.time(1) for worker in sides.workers)
    number = max(1, round(ROUND_SECONDS / slowest))
    seconds: list[list[float]] = [[] for _ in sides.workers]
    for turn in range(rounds):
        # Whoever goes first finds the caches cold and the clock speed low, so they take turns.
        order = range(len(sides.workers)) if turn % 2 == 0 else reversed(range(len(sides.workers)))
        for side in order:
            seconds[side].append(sides.workers[side].time(number))
    return seconds


@dataclass
class Report:
    """The figures of a suite, printed part by part as they arrive and written to JSON at the end."""

    suite: str
    options: Options
    measurements: list[Measurement] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    curves: dict[str, Any] = field(default_factory=dict)
    console: Console = field(default_factory=lambda: Console(width=WIDTH, highlight=False))

    def begin(self) -> None:
        """Print what is compared with what, and where."""
        for name, text in self.environment().items():
            self.note(f"{name:9} {text}")
        if self.options.peer and len(self.options.modules()) == 1:
            self.note(f"{self.options.peer} cannot be imported: {self.options.subject} is shown alone.")
        if hasattr(os, "getloadavg") and os.getloadavg()[0] > available_cores() / 2:
            self.note("The machine is busy with other work: ratios are blurred, most of all with several threads.")

    def environment(self) -> dict[str, str]:
        """Names, versions, processor, threads and date: without them a figure means nothing."""
        load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
        busy = f", {self.options.busy} busy neighbours" if self.options.busy else ""
        return {
            "suite": self.suite + (" (quick: a look, not a measurement)" if self.options.quick else ""),
            "compared": " against ".join(f"{name} {version(name)}" for name in self.options.modules()),
            "under": f"Python {platform.python_version()}, NumPy {version('numpy')}, {platform.system()}",
            "machine": f"{processor()}, {available_cores()} cores{load}, {self.options.threads} threads used{busy}",
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        }

    def add(self, title: str, measurements: list[Measurement]) -> None:
        """Keep the rows of one part and print them as a table."""
        self.measurements += measurements
        self.table(title, measurements)

    def skip(self, part: str, work: str, reason: str) -> None:
        """Keep and print why a row is not there."""
        self.skipped.append({"part": part, "work": work, "reason": reason})
        self.note(f"  not measured: {work}: {reason}")

    def table(self, title: str, measurements: list[Measurement]) -> None:
        modules = self.options.modules()[: max(len(row.rounds) for row in measurements)]
        limits = ("must", "aim") if any(row.aim is not None for row in measurements) else ("wanted",)
        absolute = any(row.absolute for row in measurements)
        table = Table(title=title, title_justify="left", title_style="bold", width=WIDTH, box=box.SIMPLE_HEAD)
        table.add_column("work", ratio=1)
        for module in modules:
            table.add_column(module, justify="right", no_wrap=True)
        if len(modules) > 1 or absolute:
            for name in (("median",) if absolute else ("ratio", "median")) + limits:
                table.add_column(name, justify="right", no_wrap=True)
        for row in measurements:
            cells = [row.work, *(f"{figure(row.best(side))} {row.unit}" for side in range(len(modules)))]
            judgements = [limit_text(row.wanted, row.met), limit_text(row.aim, row.aim_met)][: len(limits)]
            if absolute:
                cells += [f"{figure(statistics.median(row.rounds[0]))} {row.unit}", *judgements]
            elif row.ratio_of_best is not None and row.median_ratio is not None:
                colour = {None: "default", True: "green", False: "red"}[row.met]
                cells += [f"[{colour}]{row.ratio_of_best:.2f}×", f"{row.median_ratio:.2f}×", *judgements]
            table.add_row(*cells)
        self.console.print()
        self.console.print(table)

    def note(self, text: str) -> None:
        self.console.print(text, markup=False)

    def keep(self) -> None:
        """Write what there is so far to the file of the options, if they name one."""
        if self.options.json is not None:
            self.write_json(self.options.json)

    def write_json(self, path: Path) -> None:
        """Write all figures; whoever looks sees the old file or the new one, never a part."""
        content = {
            "environment": self.environment(),
            "modules": self.options.modules(),
            "measurements": [measurement.as_json() for measurement in self.measurements],
            "skipped": self.skipped,
            "curves": self.curves,
        }
        unfinished = path.with_name(path.name + ".unfinished")
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(unfinished, path)


def limit_text(limit: float | None, met: bool | None) -> str:
    """A limit and whether it is kept, or nothing where there is none."""
    return "" if limit is None or met is None else f"≤ {limit:g} {'✓' if met else '✗'}"


def figure(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def sparkline(values: list[float]) -> str:
    """A curve in one line of text, from zero to the largest value."""
    bars = "▁▂▃▄▅▆▇█"
    top = max([*values, 1e-12])
    return "".join(bars[max(0, min(len(bars) - 1, round(value / top * (len(bars) - 1))))] for value in values)


def version(name: str) -> str:
    """The version of an installed distribution, or of a checkout's own `version.py`."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
    source = ROOT / name / "version.py"
    if source.exists():
        namespace: dict[str, Any] = {}
        exec(source.read_text(), namespace)
        return f"{namespace.get('__version__', 'unknown')} (checkout)"
    return "(version unknown)"


def processor() -> str:
    """The processor's own name where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
