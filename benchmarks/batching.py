"""The suite `batching`: models written for one example, batched by `map`, beside PyTorch and DyNet.

DyNet is looked for in this Python, or in the one that the environment variable WAYFARE_BENCHMARK_DYNET names.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks import corpora
from benchmarks.contest import Limit, Outcome, compete, short
from benchmarks.harness import BenchmarkError, Measurement, Options, Report, Skipped, figure, sparkline
from benchmarks.judging import grid, judge, sum_up
from benchmarks.library import OWN_WAITING
from benchmarks.rows import state_threads
from benchmarks.sides import PYTORCH, WAYFARE, Side
from benchmarks.worker import Worker

SUMMARY = "models written for one example: trees, sequences, taggers, parsers, graphs, batched by map"

WIDTH = 100
MICRO = 1e6
DYNET_MEMORY = 1024  # megabytes it takes at its start
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MUST_OVERHEAD, AIM_OVERHEAD = 5.0, 2.5
JUDGED_COUNT = 64
WARM = 4  # steps at a time until a side has settled: each of the four batches once


@dataclass(frozen=True)
class SingleThread(Side):
    """A side that runs in one thread: with more, small operations often wait for each other."""

    def worker(self, options: Options, environment: Mapping[str, str] | None = None) -> Worker:
        """A process for this side, with one thread."""
        return super().worker(replace(options, threads=1), environment)


@dataclass(frozen=True)
class DyNet(Side):
    """DyNet, which is told to batch by arguments of its process and may live in a Python of its own."""

    def worker(self, options: Options, environment: Mapping[str, str] | None = None) -> Worker:
        """A process for DyNet; Skipped if it is not there."""
        python = os.environ.get("WAYFARE_BENCHMARK_DYNET")
        if python is None and importlib.util.find_spec("dynet") is None:
            raise Skipped("dynet cannot be imported.")
        arguments = ("--dynet-autobatch", "1", "--dynet-mem", str(DYNET_MEMORY))
        return Worker("dynet", options.threads, environment, python or sys.executable, arguments)


TORCH = Side("PyTorch per example", PYTORCH, "loop")
TORCH_SINGLE = SingleThread("PyTorch 1 thread", PYTORCH, "loop")
TORCH_PACKED = Side("PyTorch packed", PYTORCH, "packed")
DYNET = DyNet("DyNet", "dynet", "map")
LOOP = Side("Wayfare loop", WAYFARE, "loop")
MAP = Side("Wayfare map", WAYFARE, "map")
ALWAYS = Side("Wayfare map", WAYFARE, "always")
LIBRARY_CELL = Side("its own cell", WAYFARE, "map, library cell")

COLUMNS = [TORCH, TORCH_SINGLE, TORCH_PACKED, DYNET, LOOP, MAP]
PER_EXAMPLE = (TORCH, TORCH_SINGLE)  # a limit over PyTorch per example is over the faster of these


_HOW = (
    "H = 128, float32, four batches in turn, no update; the loss is that of the root unless said. Each example's loss "
    "and the gradients were compared before timing. PyTorch runs the same code in a loop (packed: sequences packed "
    "beforehand, nn.LSTM); with several threads it is often slower than with one, and judged by the faster. DyNet "
    "batches automatically, and computes in one thread."
)


@dataclass(frozen=True)
class Row:
    """One training step of 64 (or 40) examples: which work, by which sides beyond PyTorch and Wayfare, judged how."""

    name: str
    title: str
    work: str
    limits: tuple[Limit, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    more: tuple[Side, ...] = ()
    data: bool = False  # whether it is given trees

    def compete(self, options: Options, data: str) -> Outcome:
        """Run this row's work on its sides."""
        own = [side for side in COLUMNS if side in (*PER_EXAMPLE, LOOP, MAP) or side in self.more]
        sides = own + [side for side in self.more if side not in own]
        if options.threads == 1 and TORCH in sides:
            sides.remove(TORCH_SINGLE)  # it would be the same twice
        parameters = {**self.parameters, **({"data": data} if self.data else {}), **SMALLER}
        return compete(options, sides, self.work, {}, OWN_WAITING, WARM, **parameters)


SMALLER: dict[str, Any] = {}  # sizes that tests put in place of the works' own

ROWS = [
    Row("tree, library cell", "Tree-LSTM, library cell", "trees.tree_lstm",
        (Limit(PER_EXAMPLE, 0.06, 0.04), Limit((DYNET,), 0.65, 0.4)), more=(DYNET,), data=True),
    Row("tree, user's cell", "Tree-LSTM, user's cell", "trees.tree_lstm",
        (Limit(PER_EXAMPLE, 0.09, 0.05), Limit((DYNET,), 0.9, 0.5)), {"cell": "user"}, (DYNET,), True),
    Row("tree, compiled cell", "Tree-LSTM, user's cell compiled", "trees.tree_lstm",
        (Limit(PER_EXAMPLE, 0.06, 0.04), Limit((LIBRARY_CELL,), 1.1, 1.0)), {"cell": "compiled"},
        (LIBRARY_CELL,), True),
    Row("tree, every node", "Tree-LSTM, loss at every node", "trees.tree_lstm",
        (Limit(PER_EXAMPLE, None, None), Limit((DYNET,), None, None)), {"every": True}, (DYNET,), True),
    Row("child-sum", "child-sum trees that keep states", "structures.child_sum", (Limit(PER_EXAMPLE, 0.2, 0.1),),
        data=True),
    Row("crf", "BiLSTM-CRF, best path read by tag", "structures.crf_tagger", (Limit(PER_EXAMPLE, 0.3, 0.15),),
        data=True),
    Row("classifier", "LSTM over sequences of 5–60", "sequences.classifier",
        (Limit(PER_EXAMPLE, 0.07, 0.04), Limit((TORCH_PACKED,), 0.45, 0.3)), more=(TORCH_PACKED,)),
    Row("tagger", "BiLSTM tagger, rare words spelt", "sequences.tagger",
        (Limit(PER_EXAMPLE, None, None), Limit((DYNET,), 1.0, 0.6)), more=(DYNET,), data=True),
    Row("halting", "adaptive computation, halts itself", "sequences.halting", (Limit(PER_EXAMPLE, 0.12, 0.06),)),
    Row("parser", "parser that acts by its scores", "trees.parser", (Limit(PER_EXAMPLE, 0.2, 0.125),), data=True),
    Row("graph", "graph network over molecules", "graphs.network", (Limit(PER_EXAMPLE, 0.1, None),)),
]  # fmt: skip


def run(options: Options) -> Report:
    """Measure every part the options want, print each as it is done, and count what was met."""
    report = Report("batching", options, console=Console(width=WIDTH, highlight=False))
    report.begin()
    state_threads(report)
    report.note(f"{'dynet':9} {_dynet(options)}")
    with TemporaryDirectory() as folder:
        data = Path(folder) / "trees.json"
        report.note(f"{'trees':9} {corpora.write(data)}")
        rows = [row for row in ROWS if options.wants(f"steps {row.name}")]
        if rows:
            steps(report, rows, str(data))
        if options.wants("curve"):
            curve(report, str(data))
    sum_up(report, _HOW)
    return report


def steps(report: Report, rows: list[Row], data: str) -> None:
    """Training steps of every side."""
    outcomes, judged = [], []
    for row in rows:
        outcome = row.compete(report.options, data)
        outcomes.append(outcome)
        report.curves[f"seconds, {row.name}"] = {side.name: found for side, found in outcome.seconds.items()}
        for limit in row.limits:
            against = outcome.fastest(list(limit.against))
            if against is not None and MAP in outcome.seconds:
                judged.append(measured(row, outcome, against, limit))
        for side, reason in outcome.reasons.items():
            report.skip("steps", f"{row.title}, {side.name}", reason)
    sides = [side for side in COLUMNS if any(side in outcome.seconds for outcome in outcomes)]
    cells = [
        [row.title, *(outcome.cell(side, "ms") for side in sides)]
        for row, outcome in zip(rows, outcomes, strict=True)
    ]
    columns = ["ms", *(side.name for side in sides)]
    grid(report, "Training step of 64 examples: forward, loss, backward", columns, cells)
    judge(report, "Wayfare map over a peer", judged)


def measured(row: Row, outcome: Outcome, against: Side, limit: Limit) -> Measurement:
    """How `map` stands against another side."""
    name = "PyTorch per example" + ", 1 thread" * (against is TORCH_SINGLE) if against in PER_EXAMPLE else against.name
    return outcome.measured("steps", f"{row.title}, over {name}", "ms", MAP, against, limit.must, limit.aim)


def curve(report: Report, data: str) -> None:
    """The Tree-LSTM with more and more examples a step: what one of them costs, and what is spent on finding groups."""
    repeats = max(3, report.options.rounds // 3)
    found: dict[Side, dict[int, float]] = {}
    recorded: dict[int, dict[str, float]] = {}
    for side in (DYNET, ALWAYS):
        try:
            with side.worker(report.options) as worker:
                for count in COUNTS:
                    worker.prepare("trees.tree_lstm", mode=side.mode, data=data, **{**SMALLER, "count": count})
                    seconds = [worker.time(max(1, corpora.COUNT // count)) for _ in range(repeats)]  # all examples
                    found.setdefault(side, {})[count] = min(seconds) / count
                    if side is ALWAYS:
                        recorded[count] = _least(worker, repeats)
        except BenchmarkError as error:
            report.skip("curve", side.name, short(error))
    mine, theirs = found.get(ALWAYS, {}), found.get(DYNET, {})
    report.curves["examples a step"] = {
        "seconds an example": {side.name: values for side, values in found.items()},
        "recorded": recorded,
    }
    cells = []
    for count in COUNTS:
        statistics = recorded.get(count)
        shown = ["—"] * 4
        if statistics:
            shown = [f"{statistics['nodes']:.0f}", f"{statistics['nodes'] / max(1.0, statistics['groups']):.1f}",
                     figure(statistics["recording"]), figure(statistics["scheduling"])]  # fmt: skip
        costs = [figure(side[count] * MICRO) if count in side else "—" for side in (theirs, mine)]
        cells.append([f"{count}", *costs, *shown])
    columns = ["examples a step", "DyNet µs each", "map µs each", "nodes", "mean group", "µs recording", "µs grouping"]
    grid(report, "Tree-LSTM, library cell: one example's cost, and what each recorded node costs", columns, cells)
    if mine:
        report.note(f"  cost of one example from {min(mine)} to {max(mine)} a step: {sparkline(list(mine.values()))}")
    judged_count = JUDGED_COUNT if JUDGED_COUNT in recorded else max(recorded, default=0)
    if judged_count:
        overhead = recorded[judged_count]["recording"] + recorded[judged_count]["scheduling"]
        title = f"µs of recording and grouping for each recorded node, {judged_count} examples"
        rows = [Measurement("curve", title, "µs", [[overhead]], MUST_OVERHEAD, AIM_OVERHEAD, absolute=True)]
        judge(report, "Overhead", rows)


def _least(worker: Worker, repeats: int) -> dict[str, float]:
    """Nodes and groups of a step, and the least microseconds of recording and scheduling for each node."""
    found = []
    for _ in range(repeats):
        worker.time(1)
        found.append(worker.call("recorded.last"))
    least = {
        part: min(answer[f"seconds_{part}"] / max(1.0, answer["nodes"]) for answer in found) * MICRO
        for part in ("recording", "scheduling")
    }
    return {"nodes": found[-1]["nodes"], "groups": found[-1]["groups"], **least}


def _dynet(options: Options) -> str:
    try:
        with DYNET.worker(options) as worker:
            return f"{worker.call('recorded.version')}, batching automatically"
    except BenchmarkError as error:
        return f"{short(error)} (pip install dynet38)"
