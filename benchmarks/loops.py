"""The suite `loops`: is `wf.map` ever slower than the plain loop? What people write for one example, both ways."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.markup import escape

from benchmarks import corpora
from benchmarks.batching import ROWS, SMALLER
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
PART, WORKS = "maps", "works of the suite `batching`, maps"
COUNTS = (1, 2, 8, 64)
COLUMNS = ["for each example", "loop", "map", "ratio", "target", "first maps", "said"]

_HOW = (
    "Both sides run in one process, in turns, with their backward passes; the loop is a list comprehension. ratio: the "
    "median over rounds of map/loop after {warm} maps, the first of a function never mapped before. first maps: those "
    "{warm} over as many loops. said: the map has told that it runs as a loop, and why."
)


def run(options: Options) -> Report:
    """Measure every pattern, and every work of the suite `batching` with few and many examples, that is wanted."""
    report = Report("loops", replace(options, peer=""), console=Console(width=WIDTH, highlight=False))
    report.begin()
    patterns = {name: {"name": name} for name in MAPS if options.wants(name)}
    measure(report, PART, "map_patterns.measure", patterns)
    with TemporaryDirectory() as folder:
        data = Path(folder) / "trees.json"
        corpora.write(data)
        works: dict[str, dict[str, Any]] = {}
        for row in ROWS:
            for count in COUNTS:
                given = {**row.parameters, **({"data": str(data)} if row.data else {}), **SMALLER, "count": count}
                name = f"{row.title}, {count} example{'s' * (count > 1)}"
                if options.wants(name):
                    works[name] = {"of": row.work, "parameters": given}
        measure(report, WORKS, "map_patterns.measure_work", works)
    met = [row.met for row in report.measurements]
    report.note(f"{sum(bool(m) for m in met)} of {len(met)} take at most {TARGET}× the time of the loop")
    report.note(_HOW.format(**_limits(options)))
    return report


def measure(report: Report, part: str, function: str, chosen: dict[str, dict[str, Any]]) -> None:
    """One table: each row in a process of its own, by a function of the works."""
    cells = []
    for name, given in chosen.items():
        with Worker(report.options.subject, report.options.threads) as worker:
            try:
                found = worker.call(function, **given, **_limits(report.options))
            except BenchmarkError as error:
                report.skip(part, name, short(error))
                continue
        row = Measurement(part, name, "s", [found.pop("map"), found.pop("loop")], TARGET, by_median=True)
        report.measurements.append(row)
        report.curves[name] = found
        times = [_time(statistics.median(row.rounds[side])) for side in (1, 0)]
        limit = limit_text(row.wanted, row.met)
        early = f"{found['early']:.2f}×"
        cells.append([escape(name), *times, f"{row.median_ratio:.2f}×", limit, early, "yes" if found["warned"] else ""])
    if cells:
        grid(report, f"{part.capitalize()} over loops", COLUMNS, cells)


def _limits(options: Options) -> dict[str, Any]:
    return QUICK if options.quick else FULL


def _time(seconds: float) -> str:
    return f"{figure(seconds * 1e6)} µs" if seconds < 1e-3 else f"{figure(seconds * 1e3)} ms"
