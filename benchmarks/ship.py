"""The suite `ship`: models that answer requests, compiled and as files for ONNX Runtime, beside PyTorch's own ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks import corpora
from benchmarks.contest import Outcome, compete, short
from benchmarks.harness import BenchmarkError, Measurement, Options, Report
from benchmarks.judging import grid, judge, sum_up
from benchmarks.library import OWN_WAITING
from benchmarks.rows import state_threads
from benchmarks.sides import COMPILED, EAGER, PYTORCH, TORCH, WAYFARE, Side

SUMMARY = "answering requests: compiled inference and ONNX files, one request at a time and 64 at once"

WIDTH = 100
ONE, MANY = 1, 64
MUST, MUST_SMALL = 1.0, 0.2  # the second: for one request to a small model
WARM = 300  # requests before the first round: the tree model meets every tree once

TORCH_FILE = Side("PyTorch's ONNX file", PYTORCH, "onnx")
FILE = Side("Wayfare's ONNX file", WAYFARE, "onnx")
COLUMNS = [TORCH, TORCH_FILE, EAGER, COMPILED, FILE]

_HOW = (
    "A step is one call with one request, or with 64 as a batch, in float32, in eval and inference mode. Answers were "
    "compared before timing. Files are written by each library's own export with an open batch axis, and run by ONNX "
    "Runtime with as many threads. PyTorch goes through 64 trees one by one; compiled cells do one tree, `map` does 64."
)


@dataclass(frozen=True)
class Model:
    """A model that answers requests; a `small` one is judged more strictly when it answers one at a time."""

    name: str
    title: str
    work: str
    parameters: dict[str, Any] = field(default_factory=dict)
    small: bool = False
    data: bool = False  # whether it is given trees

    def compete(self, options: Options, batch: int, data: str) -> Outcome:
        """Let every side answer requests of `batch` examples."""
        given = {**self.parameters, "batch": batch, **({"data": data} if self.data else {})}
        given |= SMALLER.get(self.name, {})
        warm = max(3, WARM // batch) if self.data else 3
        return compete(options, COLUMNS, self.work, {}, OWN_WAITING, warm, **given)

    def must(self, batch: int) -> float:
        """At most so many times PyTorch's time."""
        return MUST_SMALL if self.small and batch == ONE else MUST


SMALLER: dict[str, dict[str, Any]] = {}  # sizes that tests put in place of a model's own

MODELS = [
    Model("small mlp", "MLP 16-32-32-4", "served.mlp", {"sizes": (16, 32, 32, 4)}, small=True),
    Model("mlp", "MLP 784-512-512-10", "served.mlp"),
    Model("cnn", "CNN on pictures of 8×8", "served.cnn", small=True),
    Model("transformer", "2 transformer blocks, d 256, T 32", "served.transformer"),
    Model("lstm", "LSTM 64→128 over 30 steps", "served.lstm"),
    Model("tree", "Tree-LSTM, H 128", "served.tree", data=True),
]


def run(options: Options) -> Report:
    """Measure every model the options want, print each table as it is done, and count what was met."""
    report = Report("ship", options, console=Console(width=WIDTH, highlight=False))
    report.begin()
    state_threads(report)
    for side in (TORCH_FILE, FILE):
        report.note(f"{'files':9} {side.module}: {_versions(options, side)}")
    with TemporaryDirectory() as folder:
        data = Path(folder) / "trees.json"
        if any(model.data and _wanted(options, model) for model in MODELS):
            report.note(f"{'trees':9} {corpora.write(data)}")
        for batch, title, unit in ((ONE, "One request", "µs"), (MANY, f"{MANY} requests at once", "ms")):
            chosen = [model for model in MODELS if options.wants(_name(model, batch))]
            if chosen:
                answers(report, title, unit, chosen, batch, str(data))
    sum_up(report, _HOW)
    return report


def answers(report: Report, title: str, unit: str, chosen: list[Model], batch: int, data: str) -> None:
    """The time of one call with `batch` requests, for these models and every side."""
    cells, judged = [], []
    for model in chosen:
        outcome = model.compete(report.options, batch, data)
        cells.append([model.title, *(outcome.cell(side, unit) for side in COLUMNS)])
        report.curves[f"seconds, {_name(model, batch)}"] = {
            side.name: found for side, found in outcome.seconds.items()
        }
        for mine, other, must in ((COMPILED, TORCH, model.must(batch)), (FILE, TORCH_FILE, None), (FILE, TORCH, None)):
            if mine in outcome.seconds and other in outcome.seconds:
                judged.append(measured(model, batch, unit, outcome, mine, other, must))
        for side, reason in outcome.reasons.items():
            report.skip(f"batch {batch}", f"{model.title}, {side.name}", reason)
    grid(report, f"{title}, {unit}", ["model", *(side.name for side in COLUMNS)], cells)
    judge(report, title, judged)


def measured(
    model: Model, batch: int, unit: str, outcome: Outcome, mine: Side, other: Side, must: float | None
) -> Measurement:
    """How one side stands against another."""
    sides = {COMPILED: "compiled", FILE: "file", TORCH: "PyTorch", TORCH_FILE: "PyTorch's file"}
    title = f"{model.title}: {sides[mine]} over {sides[other]}"
    return outcome.measured(f"batch {batch}", title, unit, mine, other, must)


def _name(model: Model, batch: int) -> str:
    return f"{model.name}, batch {batch}"


def _wanted(options: Options, model: Model) -> bool:
    return any(options.wants(_name(model, batch)) for batch in (ONE, MANY))


def _versions(options: Options, side: Side) -> str:
    """What a side writes files with and runs them by, or why it cannot."""
    try:
        with side.worker(options) as worker:
            found = worker.call("served.versions")
    except BenchmarkError as error:
        return short(error)
    return ", ".join(f"{name} {number}" for name, number in found.items()) or "no onnx and no onnxruntime is installed"
