"""The suite `compile`: training steps compiled, beside Wayfare and PyTorch eager, torch.compile and JAX's jit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from benchmarks.contest import Outcome, compete, short
from benchmarks.costs import first_call, lengths, peak_memory
from benchmarks.harness import BenchmarkError, Measurement, Options, Report, version
from benchmarks.judging import grid, judge, sum_up
from benchmarks.library import OWN_WAITING
from benchmarks.quiet import WAITING_SHARE
from benchmarks.rows import state_threads
from benchmarks.sides import (
    COLUMNS,
    COMPILED,
    JAX,
    JAX_REWRITTEN,
    JAX_WAITED,
    PEERS,
    TORCH,
    TORCH_COMPILE,
    TORCH_FUSED,
    UNCHECKED,
    Side,
)

SUMMARY = "compiled training steps: small and large models, loops, branches, many lengths, first call, memory"

WIDTH = 100
COMPARED = {"rate": 1e-3}  # while results are compared: what a wrong update does must show in the losses
BEST = None  # whoever is the fastest peer


_HOW = (
    "All sides have as many threads. Losses of several updates were compared before timing. JAX's steps return before "
    "they are done and rounds end with the last; “waited for” waits for each. torch.compile was given the whole step, "
    "in its default mode."
)


@dataclass(frozen=True)
class Limit:
    """At most `must` times the time of a side (of the fastest peer where that is None), better at most `aim` times."""

    against: Side | None
    must: float | None
    aim: float | None


@dataclass(frozen=True)
class Row:
    """One training step: which work, shown in which unit, judged against whom."""

    name: str
    title: str
    work: str
    unit: str
    limits: tuple[Limit, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    without: tuple[Side, ...] = ()
    more: tuple[Side, ...] = ()  # sides that have no column
    compared: bool = True
    waiting: float = WAITING_SHARE  # how much of a round its threads may wait for a core
    warm: int = 3  # steps before the first round

    def compete(self, options: Options, sides: list[Side]) -> Outcome:
        """Run this row's work on these sides."""
        parameters = {**self.parameters, **SMALLER.get(self.name, {})}
        compared = COMPARED if self.compared else None
        return compete(options, sides, self.work, compared, self.waiting, self.warm, **parameters)

    def measured(self, part: str, title: str, outcome: Outcome, mine: Side, against: Side, limit: Limit) -> Measurement:
        """How one side stands against another."""
        return outcome.measured(part, title, self.unit, mine, against, limit.must, limit.aim)


SMALL_MLP = {"batch": 32, "sizes": (16, 32, 32, 4)}
LARGE_MLP = {"batch": 256, "sizes": (784, 512, 512, 10)}
SMALLER: dict[str, dict[str, Any]] = {}  # sizes that tests put in place of a row's own

ROWS = [
    Row("logistic", "logistic regression 1000×10, SGD", "steps.logistic", "µs",
        (Limit(TORCH, 0.15, 0.1), Limit(JAX, 0.8, 0.5)), without=(TORCH_FUSED,)),
    Row("small mlp", "MLP 16-32-32-4, batch 32", "steps.mlp", "µs",
        (Limit(TORCH, 0.1, 0.07), Limit(JAX, 0.8, 0.5)), SMALL_MLP),
    Row("large mlp", "MLP 784-512-512-10, batch 256", "steps.mlp", "ms", (Limit(BEST, 1.0, 0.9),), LARGE_MLP),
    Row("transformer", "2 transformer blocks", "steps.transformer", "ms",
        (Limit(TORCH, 1.0, None), Limit(BEST, None, 0.85)), waiting=OWN_WAITING),
    Row("transformer, dropout", "the same, dropout 0.1", "steps.transformer", "ms",
        (Limit(TORCH, 1.0, None), Limit(BEST, None, 0.85)), {"dropout": 0.1}, without=(JAX, JAX_WAITED),
        compared=False, waiting=OWN_WAITING),
    Row("lstm", "LSTM, loop of 60 cells", "steps.lstm_loop", "ms", (Limit(TORCH, 0.3, 0.2),), more=(JAX_REWRITTEN,)),
    Row("halting", "branch and loop on values", "steps.halting", "µs", (Limit(TORCH, 0.2, 0.12),),
        more=(JAX_REWRITTEN,), warm=32),
]  # fmt: skip
CHECKED = ("small mlp", "large mlp", "transformer")
MUST_CHECK, AIM_CHECK = 1.1, 1.02


def run(options: Options) -> Report:
    """Measure every part the options want, print each as it is done, and count what was met."""
    report = Report("compile", options, console=Console(width=WIDTH, highlight=False))
    report.begin()
    state_threads(report)
    report.note(f"{'jax':9} {_jax(options)}")
    report.note(f"{'C++':9} torch.compile builds with {shutil.which('g++') or 'no compiler: none was found'}")
    rows = [row for row in ROWS if options.wants(f"steps {row.name}")]
    if rows:
        steps(report, rows)
    for name, part in PARTS.items():
        if options.wants(name):
            part(report)
    sum_up(report, _HOW)
    return report


def steps(report: Report, rows: list[Row]) -> None:
    """Whole training steps of every side."""
    cells, judged = [], []
    for row in rows:
        outcome = row.compete(report.options, [side for side in COLUMNS if side not in row.without] + list(row.more))
        cells.append([f"{row.title}, {row.unit}", *(outcome.cell(side, row.unit) for side in COLUMNS)])
        report.curves[f"seconds, {row.name}"] = {side.name: found for side, found in outcome.seconds.items()}
        for limit in row.limits:
            against = limit.against or outcome.fastest(PEERS)
            if against in outcome.seconds and COMPILED in outcome.seconds:
                best = "" if limit.against else " (the best peer)"
                title = f"{row.title}, over {against.name}{best}"
                judged.append(row.measured("steps", title, outcome, COMPILED, against, limit))
        _explain(report, row, outcome)
    grid(report, "Training step: forward, backward, update", ["step", *(side.name for side in COLUMNS)], cells)
    judge(report, "Wayfare compiled over a peer", judged)


def checks(report: Report) -> None:
    """What the self-check costs: replays as they are by default, over replays that are never compared with Python."""
    cells, judged = [], []
    for row in ROWS:
        if row.name not in CHECKED:
            continue
        outcome = row.compete(report.options, [UNCHECKED, COMPILED])
        cells.append([f"{row.title}, {row.unit}", *(outcome.cell(side, row.unit) for side in (UNCHECKED, COMPILED))])
        if UNCHECKED in outcome.seconds and COMPILED in outcome.seconds:
            limit = Limit(UNCHECKED, MUST_CHECK, AIM_CHECK)
            judged.append(row.measured("checks", row.title, outcome, COMPILED, UNCHECKED, limit))
        for side, reason in outcome.reasons.items():
            report.skip("checks", f"{row.title}, {side.name}", reason)
    grid(report, "Replays without and with the self-check", ["step", "check=False", "default"], cells)
    judge(report, "With the self-check over without", judged)


PARTS: dict[str, Callable[[Report], None]] = {
    "checks": checks,
    "lengths": lengths,
    "first call": first_call,
    "memory": peak_memory,
}


def _explain(report: Report, row: Row, outcome: Outcome) -> None:
    """Why a side is not there, and what the ones without a column took."""
    for side, reason in outcome.reasons.items():
        report.skip("steps", f"{row.title}, {side.name}", reason)
    for side in row.more:
        if side in outcome.seconds:
            report.note(f"  {row.title}: {side.name} takes {outcome.cell(side, row.unit)} {row.unit}")
    made = outcome.compilations.get(TORCH_COMPILE)
    if made and made["breaks"]:
        report.note(f"  {row.title}: torch.compile made {made['graphs']} graphs, with {made['breaks']} breaks")


def _jax(options: Options) -> str:
    try:
        with JAX.worker(options) as worker:
            return f"{version('jax')}, {worker.call('threads.used')} threads"
    except BenchmarkError as error:
        return short(error)
