"""A contest of several sides over one work: they agree on its results first, then run in interleaved rounds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import numpy as np

from benchmarks import harness, quiet
from benchmarks.agreement import difference
from benchmarks.harness import BenchmarkError, Measurement, Options, Skipped, figure
from benchmarks.sides import Side
from benchmarks.worker import Worker

UNITS = {"µs": 1e6, "ms": 1e3}  # how many make a second
SETTLING_SECONDS = 3.0


@dataclass(frozen=True)
class Limit:
    """At most `must` times the time of the fastest of these sides, better at most `aim` times.

    Without any side the limits are in the unit of the row.
    """

    against: tuple[Side, ...]
    must: float | None
    aim: float | None


@dataclass
class Outcome:
    """What came of one work: the rounds of each side that ran, in seconds, and why the others did not."""

    seconds: dict[Side, list[float]]
    reasons: dict[Side, str]
    disturbed: set[Side] = field(default_factory=set)  # sides whose threads had to wait for a core
    compilations: dict[Side, dict[str, int]] = field(default_factory=dict)  # what each compiled, in its own units
    remarks: dict[Side, list[str]] = field(default_factory=dict)  # what each was warned of

    def cell(self, side: Side, unit: str) -> str:
        """The best round as a table shows it."""
        if side not in self.seconds:
            return "—"
        return "~" * (side in self.disturbed) + figure(min(self.seconds[side]) * UNITS[unit])

    def measured(
        self, part: str, title: str, unit: str, mine: Side, against: Side, must: float | None, aim: float | None = None
    ) -> Measurement:
        """How one side stands against another, both of which ran."""
        pairs = zip(self.seconds[mine], self.seconds[against], strict=False)
        rounds = [[seconds * UNITS[unit] for seconds in side] for side in zip(*pairs, strict=True)]
        disturbed = "~" * bool(self.disturbed & {mine, against})
        return Measurement(part, disturbed + title, unit, rounds, must, aim)

    def fastest(self, sides: list[Side]) -> Side | None:
        """Which of these sides ran fastest; None if none ran."""
        ran = [side for side in sides if side in self.seconds]
        return min(ran, key=lambda side: min(self.seconds[side]), default=None)


def compete(
    options: Options,
    sides: list[Side],
    work: str,
    compared: Mapping[str, Any] | None,
    waiting: float = quiet.WAITING_SHARE,
    warm: int = 3,
    **parameters: Any,
) -> Outcome:
    """Let the sides agree on the results of `work` (unless `compared`, what they run for it, is None), then time them.

    A side that fails, disagrees with the first or had too few undisturbed rounds is out of this work, for a reason.
    """
    reasons = {} if compared is None else disagreeing(options, sides, work, **parameters, **compared)
    with ExitStack() as stack:
        workers: dict[Side, Worker] = {}
        for side in sides:
            if side in reasons:
                continue
            try:
                worker = stack.enter_context(side.worker(options))
                worker.prepare(work, mode=side.mode, **parameters)
                settle(worker, warm)
                workers[side] = worker
            except BenchmarkError as error:
                reasons[side] = short(error)
        seconds, disturbed = alternate(options, workers, waiting)
        compilations = {side: worker.call("starting.compilations") for side, worker in workers.items()}
    for side in workers:
        if not seconds[side]:
            reasons[side] = "the machine was busy, too few rounds were undisturbed."
            del seconds[side]
    return Outcome(seconds, reasons, disturbed, compilations)


def settle(worker: Worker, steps: int) -> None:
    """Warm up: run steps until they get no faster, or for some seconds. What compiles as it runs needs many of them."""
    before = worker.time(steps)
    spent, steady = steps * before, 0
    while spent < SETTLING_SECONDS and steady < 2:
        now = worker.time(steps)
        spent += steps * now
        steady = steady + 1 if now > 0.95 * before else 0
        before = min(now, before)


def disagreeing(options: Options, sides: list[Side], work: str, **parameters: Any) -> dict[Side, str]:
    """The sides whose results differ from those of the first that has any, and those that have none; and why."""
    reasons: dict[Side, str] = {}
    first: tuple[Side, list[np.ndarray]] | None = None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "results.npz"
        for side in sides:
            try:
                # A process of its own, so that the one that is timed has compiled nothing else.
                with side.worker(options) as worker:
                    given = {**parameters, "mode": side.mode}
                    worker.call("answers.save", of=work, path=str(path), parameters=given)
            except BenchmarkError as error:
                reasons[side] = short(error)
                continue
            with np.load(path) as stored:
                found = [stored[name] for name in stored.files]
            if first is None:
                first = side, found
            elif (reason := difference(found, first[1])) is not None:
                reasons[side] = f"it disagrees with {first[0].name}: {reason}."
    return reasons


def alternate(
    options: Options, workers: Mapping[Side, Worker], waiting: float
) -> tuple[dict[Side, list[float]], set[Side]]:
    """Undisturbed rounds of every side in turn: as many as were asked for, at least half of them, or none.

    In a quick look a side that had too few shows the disturbed ones too, and is named.
    """
    numbers = {
        side: max(1, round(harness.ROUND_SECONDS / min(worker.time(1) for _ in range(3))))
        for side, worker in workers.items()
    }
    kept: dict[Side, list[float]] = {side: [] for side in workers}
    others: dict[Side, list[float]] = {side: [] for side in workers}
    turns = 0
    started = perf_counter()
    while turns < options.rounds or perf_counter() - started < quiet.PATIENCE_SECONDS:
        order = [side for side in workers if len(kept[side]) < options.rounds]
        if not order:
            break
        # Whoever goes first finds the caches cold and the clock speed low, so they take turns.
        pivot = turns % len(order)
        for side in order[pivot:] + order[:pivot]:
            taken, undisturbed = quiet.timed_round(workers[side], numbers[side], waiting)
            if taken * numbers[side] < harness.ROUND_SECONDS / 2:  # the first estimate was disturbed
                numbers[side] = round(harness.ROUND_SECONDS / taken)
            else:
                (kept if undisturbed else others)[side].append(taken)
            if not undisturbed:
                sleep(quiet.PAUSE_SECONDS)
        turns += 1
    disturbed = {side for side in workers if 2 * len(kept[side]) < options.rounds}
    for side in disturbed:
        kept[side] = kept[side] + others[side] if options.quick else []
    return kept, {side for side in disturbed if kept[side]}


def short(error: BenchmarkError) -> str:
    """A reason in one line: what was said for one, or the last line of a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines) if isinstance(error, Skipped) else lines[-1]
