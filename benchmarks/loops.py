"""The suite `loops`: is `wf.map` ever slower than the plain loop? What people write for one example, both ways."""

from __future__ import annotations

import statistics
from dataclasses import replace

from rich.console import Console
from rich.markup import escape

from benchmarks.contest import short
from benchmarks.harness import BenchmarkError, Measurement, Options, Report, figure, limit_text
from benchmarks.judging import grid
from benchmarks.worker import Worker
from benchmarks.works.map_patterns import MAPS

SUMMARY = "never slower: functions of one example by wf.map beside a plain loop, after some maps and from the first one"

WIDTH = 100
TARGET = 1.1
FULL = {"rounds": 40, "warm": 16, "seconds": 2.0}
QUICK = {"rounds": 6, "warm": 8, "seconds": 0.1}
PART = "maps"
COLUMNS = ["for each example", "loop", "map", "ratio", "target", "first maps", "said"]

_HOW = (
    "Both sides run in one process, in turns, with their backward passes; the loop is a list comprehension. ratio: the "
    "median over rounds of map/loop after {warm} maps, the first of a function never mapped before. first maps: those "
    "{warm} over as many loops. said: the map has told that it runs as a loop, and why."
)


def run(options: Options) -> Report:
    """Measure every pattern the options want."""
    report = Report("loops", replace(options, peer=""), console=Console(width=WIDTH, highlight=False))
    report.begin()
    cells = []
    for name in [name for name in MAPS if options.wants(name)]:
        with Worker(options.subject, options.threads) as worker:
            try:
                found = worker.call("map_patterns.measure", name=name, **(QUICK if options.quick else FULL))
            except BenchmarkError as error:
                report.skip(PART, name, short(error))
                continue
        row = Measurement(PART, name, "s", [found.pop("map"), found.pop("loop")], TARGET, by_median=True)
        report.measurements.append(row)
        report.curves[name] = found
        times = [_time(statistics.median(row.rounds[side])) for side in (1, 0)]
        limit = limit_text(row.wanted, row.met)
        early = f"{found['early']:.2f}×"
        cells.append([escape(name), *times, f"{row.median_ratio:.2f}×", limit, early, "yes" if found["warned"] else ""])
    grid(report, "Maps over loops", COLUMNS, cells)
    met = [row.met for row in report.measurements]
    report.note(f"{sum(bool(m) for m in met)} of {len(met)} patterns take at most {TARGET}× the time of the loop")
    report.note(_HOW.format(**(QUICK if options.quick else FULL)))
    return report


def _time(seconds: float) -> str:
    return f"{figure(seconds * 1e6)} µs" if seconds < 1e-3 else f"{figure(seconds * 1e3)} ms"
