"""The suite `busy`: steps beside processes that keep cores busy. That may cost the fair share, and no cliff."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from benchmarks.harness import BenchmarkError, Measurement, Options, Report, available_cores, figure, limit_text
from benchmarks.judging import grid
from benchmarks.neighbours import neighbours
from benchmarks.sides import PYTORCH, WAYFARE, Side
from benchmarks.worker import Worker

SUMMARY = "beside 0, 1, 2 and 4 busy processes: at most twice the fair share, and not behind PyTorch"

WIDTH = 100
NEIGHBOURS = (0, 1, 2, 4)
ROUND_SECONDS = 0.25
SHARE = 2.0

_HOW = (
    "Median over {rounds} rounds that alternate between the sides, of the mean step of a round; each side in its own "
    "process with all threads, neighbours that do nothing but count. fair: the time alone times (cores + neighbours) / "
    "cores, which is what a scheduler that is fair to threads leaves; a step must take no more than twice that."
)


@dataclass(frozen=True)
class Row:
    """One work, and how each side runs it."""

    name: str
    title: str
    work: str
    mine: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)


ROWS = [
    Row("mapped", "LSTM over 64 sequences, by wf.map; packed", "sequences.classifier", {"mode": "map"},
        {"mode": "packed"}),
    Row("mlp", "784-512-512-10, batch 256, one step", "mlp.with_cross_entropy"),
    Row("product", "1024 × 1024 product", "products.square"),
]


def run(options: Options) -> Report:
    """Measure the works the options want, alone and in company."""
    report = Report("busy", options, console=Console(width=WIDTH, highlight=False))
    report.begin()
    for row in ROWS:
        if options.wants(row.name):
            measure(report, row)
    report.note(_HOW.format(rounds=options.rounds))
    return report


def measure(report: Report, row: Row) -> None:
    """One work beside each number of neighbours."""
    options = report.options
    rounds: dict[int, list[list[float]]] = {}
    with ExitStack() as stack:
        try:
            workers = [stack.enter_context(side.worker(options)) for side in _sides(options)]
            for worker, parameters in zip(workers, (row.mine, row.theirs), strict=False):
                worker.prepare(row.work, **parameters)
        except BenchmarkError as error:
            report.skip("busy", row.title, str(error).splitlines()[-1])
            return
        for number in NEIGHBOURS:
            with neighbours(number):
                rounds[number] = _rounds(workers, options.rounds)
    cells = []
    cores = available_cores()
    for number, found in rounds.items():
        fair = (cores + number) / cores
        alone = Measurement("busy", f"{row.title}, {number} neighbours, over alone", "ms", [found[0], rounds[0][0]],
                            SHARE * fair, by_median=True)  # fmt: skip
        report.measurements.append(alone)
        line = [str(number), *(figure(statistics.median(side)) for side in found), f"{alone.median_ratio:.2f}×",
                f"{fair:.1f}×", limit_text(alone.wanted, alone.met)]  # fmt: skip
        if len(found) > 1:
            peer = replace(alone, work=f"{row.title}, {number} neighbours, over PyTorch", rounds=found, wanted=1.0)
            report.measurements.append(peer)
            line += [f"{peer.median_ratio:.2f}×", limit_text(1.0, peer.met)]
        cells.append(line)
    names = [worker.module for worker in workers]
    columns = ["neighbours", *(f"{name} ms" for name in names), "over alone", "fair", "must"]
    grid(report, row.title, columns + (["over peer", "must"] if len(names) > 1 else []), cells)


def _sides(options: Options) -> list[Side]:
    return [Side("mine", WAYFARE, ""), Side("theirs", PYTORCH, "")][: len(options.modules())]


def _rounds(workers: list[Worker], count: int) -> list[list[float]]:
    """Milliseconds of a step, of each side in turn."""
    numbers = [max(1, round(ROUND_SECONDS / min(worker.time(1) for _ in range(2)))) for worker in workers]
    found: list[list[float]] = [[] for _ in workers]
    for turn in range(count):
        for side in range(len(workers)) if turn % 2 == 0 else reversed(range(len(workers))):
            found[side].append(1e3 * workers[side].time(numbers[side]))
    return found
