"""The suite `slower`: is a compiled function ever slower than the plain one? Many patterns, each beside itself."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape

from benchmarks.contest import short
from benchmarks.harness import BenchmarkError, Measurement, Options, Report, figure, limit_text
from benchmarks.judging import grid
from benchmarks.worker import Worker
from benchmarks.works.patterns import Pattern
from benchmarks.works.turns import PATTERNS

SUMMARY = "never slower: patterns compiled beside the same functions plain, after warm-up and from the first call"

WIDTH = 100
TARGET = 1.1
# Seconds are those of the plain function; the compiled one runs as often, or until its patience ends.
FULL = {"round_seconds": 0.03, "warm_seconds": 0.75, "warm_calls": 64, "seconds": 2.5, "rounds": 20, "patience": 6.0}
QUICK = {"round_seconds": 0.01, "warm_seconds": 0.1, "warm_calls": 16, "seconds": 0.2, "rounds": 5, "patience": 0.4}
WAYS = {"replayed": "replayed", "recorded": "recorded", "plain": "Python"}
COLUMNS = ["pattern", "plain", "compiled", "ratio", "target", "whole", "most calls"]

_HOW = (
    "Both sides run in one process, in rounds that alternate; arguments are made before the clock starts. ratio: the "
    "median over rounds of compiled/plain, after a warm-up of {warm_seconds} s and {warm_calls} calls. whole: all "
    "compiled calls over all plain calls, from the first one, about {seconds} s of the plain function. A compiled "
    "function that takes more than {patience:g} s for the warm-up, or after it, is stopped there. Kernels may be in "
    "the cache on disk. Without a target: a function that does no work, whose call alone is too much. *: named by the "
    "issue that asks for this suite."
)


def run(options: Options) -> Report:
    """Measure every pattern the options want, part by part, and list those that are too slow."""
    report = Report("slower", replace(options, peer=""), console=Console(width=WIDTH, highlight=False))
    report.begin()
    for part in dict.fromkeys(pattern.part for pattern in PATTERNS.values()):
        chosen = {name: p for name, p in PATTERNS.items() if p.part == part and options.wants(f"{part} {name}")}
        if chosen:
            measure(report, part, chosen)
    sum_up(report)
    return report


def measure(report: Report, part: str, chosen: dict[str, Pattern]) -> None:
    """The patterns of one part; each has a process of its own, unless it is just for a look."""
    cells, missed = [], []
    with ExitStack() as stack:
        worker: Worker | None = None
        for name, pattern in chosen.items():
            title = pattern.title + " *" * pattern.named
            if worker is None or not report.options.quick:
                stack.close()
                worker = stack.enter_context(Worker(report.options.subject, report.options.threads))
            try:
                found = worker.call("turns.measure", name=name, **(QUICK if report.options.quick else FULL))
            except BenchmarkError as error:
                report.skip(part, title, short(error))
                worker = None  # it may have died
                continue
            rounds = [found.pop("compiled"), found.pop("plain")]
            row = Measurement(part, title, "s", rounds, TARGET if pattern.judged else None, by_median=True)
            report.measurements.append(row)
            report.curves[name] = found
            cells.append(_cells(row, found))
            if row.met is False:
                missed.append(f"  {title}: {_account(found)}")
    grid(report, f"{part.capitalize()}: compiled over plain", COLUMNS, cells)
    for line in missed:
        report.note(line)


def sum_up(report: Report) -> None:
    """How many patterns are fast enough, and the others, the slowest first."""
    missed = [row for row in report.measurements if row.met is False]
    cells = []
    for row in sorted(missed, key=lambda row: -(row.median_ratio or 0)):
        cells.append([escape(row.work), row.part, f"{row.median_ratio:.2f}×", limit_text(row.wanted, row.met)])
    grid(report, "Too slow", ["pattern", "part", "ratio", "target"], cells)
    judged = [row.met for row in report.measurements if row.met is not None]
    whole = [found["whole"] <= TARGET for name, found in report.curves.items() if PATTERNS[name].judged]
    report.note(f"\nafter warm-up: {sum(judged)} of {len(judged)} patterns take at most {TARGET}× the plain time")
    report.note(f"whole run:     {sum(whole)} of {len(whole)}")
    report.note(_HOW.format(**(QUICK if report.options.quick else FULL)))
    if report.skipped:
        report.note(f"{len(report.skipped)} patterns were not measured, for the reasons above.")


def _cells(row: Measurement, found: dict[str, Any]) -> list[str]:
    engine = found["engine"]
    way = max(WAYS, key=lambda way: engine[way])
    share = f"{WAYS[way]} {100 * engine[way] / max(1, engine['calls']):.0f}%"
    times = [_time(statistics.median(row.rounds[side])) for side in (1, 0)]
    limit = limit_text(row.wanted, row.met)
    return [escape(row.work), *times, f"{row.median_ratio:.2f}×", limit, f"{found['whole']:.2f}×", share]


def _account(found: dict[str, Any]) -> str:
    """How calls were run, the first reason, and whether the user was told."""
    engine = found["engine"]
    ways = [f"{engine[way]:,} {text}" for way, text in WAYS.items() if engine[way]]
    told = f"warned: {found['warned'][0]}" if found["warned"] else "without a warning"
    return "; ".join(filter(None, [f"{engine['calls']:,} calls, " + ", ".join(ways), engine["reason"], told]))


def _time(seconds: float) -> str:
    return f"{figure(seconds * 1e6)} µs" if seconds < 1e-3 else f"{figure(seconds * 1e3)} ms"
