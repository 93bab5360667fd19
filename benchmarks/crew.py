"""The processes of the sides of a suite that has little time: kept from row to row, started again after an error.

Starting a process, its library and its card takes longer than most rows. A process that compiles for PyTorch is new for
every row all the same: its compiler remembers the shapes of earlier rows, and gives up after some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import agreement, harness
from benchmarks.contest import Outcome, settle, short
from benchmarks.harness import BenchmarkError, Options, Skipped
from benchmarks.sides import PYTORCH, TORCH, WAYFARE, Side
from benchmarks.worker import Worker

LEAST_ROUNDS = 3
ROUND = 2  # times the usual length: a round ends with waiting for the device, which must not count


@dataclass(frozen=True)
class Tolerance:
    """How far results may be apart: a part of each number, and a part of the array's largest."""

    relative: float = agreement.RELATIVE
    of_largest: float = agreement.OF_LARGEST


FLOAT32 = Tolerance()


class Crew:
    """A process for each side that is asked for, until the end of the `with` block."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._workers: dict[Side, Worker] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for side in list(self._workers):
            self.dismiss(side)

    def worker(self, side: Side) -> Worker:
        """The process of a side, a new one where it is needed; Skipped if its library is not there."""
        if _always_new(side):
            self.dismiss(side)
        if side not in self._workers:
            self._workers[side] = side.worker(self.options)
        return self._workers[side]

    def dismiss(self, side: Side) -> None:
        """End the process of a side, if it has one."""
        worker = self._workers.pop(side, None)
        if worker is not None:
            worker.close()

    def release(self) -> None:
        """Let every side drop its work and give the memory of its device back."""
        for side, worker in list(self._workers.items()):
            try:
                if not _always_new(side):
                    worker.release()
                    continue
            except BenchmarkError:
                pass
            self.dismiss(side)

    def ask(self, side: Side, work: str, **parameters: Any) -> Any:
        """The answer of a function that measures by itself."""
        try:
            return self.worker(side).call(work, **parameters)
        except Skipped:
            raise
        except BenchmarkError:
            self.dismiss(side)  # after an error on a device every further call of the process may fail
            raise

    def compete(
        self,
        ways: Mapping[Side, Mapping[str, Any]],
        work: str,
        seconds: float,
        tolerance: Tolerance = FLOAT32,
        warm: int = 3,
    ) -> Outcome:
        """Let the sides agree on the results of `work`, each with its own parameters, then time them in turns.

        A side that fails or disagrees with the first is out of this work, for a reason. After `seconds` of rounds there
        are no more than the least. Warnings of Wayfare are kept: one may say that a step was not compiled at all.
        """
        reasons: dict[Side, str] = {}
        remarks: dict[Side, list[str]] = {}
        ready: dict[Side, Worker] = {}
        first: tuple[Side, list[np.ndarray]] | None = None
        for side, parameters in ways.items():
            try:
                worker = self.worker(side)
                said = worker.prepare(work, **parameters)
                if side.module == WAYFARE and said:
                    remarks[side] = said
                found = _results(worker)
                if first is None:
                    first = side, found
                elif (reason := _apart(found, first[1], tolerance)) is not None:
                    reasons[side] = f"it disagrees with {first[0].name}: {reason}."
                    worker.release()
                    continue
                settle(worker, warm)
                ready[side] = worker
            except BenchmarkError as error:
                reasons[side] = short(error)
                if not isinstance(error, Skipped):
                    self.dismiss(side)
        return Outcome(self._rounds(ready, reasons, seconds), reasons, remarks=remarks)

    def _rounds(self, ready: dict[Side, Worker], reasons: dict[Side, str], seconds: float) -> dict[Side, list[float]]:
        found: dict[Side, list[float]] = {side: [] for side in ready}
        numbers: dict[Side, int] = {}
        started = perf_counter()
        for turn in range(self.options.rounds):
            if turn >= LEAST_ROUNDS and perf_counter() - started > seconds:
                break
            # Whoever goes first finds caches cold and clock speeds low, so they take turns.
            order = list(ready)
            pivot = turn % max(1, len(order))
            for side in order[pivot:] + order[:pivot]:
                try:
                    if side not in numbers:
                        once = min(ready[side].time(1) for _ in range(2))
                        numbers[side] = max(1, round(ROUND * harness.ROUND_SECONDS / once))
                    found[side].append(ready[side].time(numbers[side]))
                except BenchmarkError as error:
                    reasons[side] = short(error)
                    del ready[side], found[side]
                    self.dismiss(side)
        return {side: rounds for side, rounds in found.items() if rounds}


def _always_new(side: Side) -> bool:
    return side.module == PYTORCH and side.mode != TORCH.mode


def _results(worker: Worker) -> list[np.ndarray]:
    """The results of the work that is prepared; they travel as a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "results.npz"
        worker.save_results(path)
        with np.load(path) as stored:
            return [stored[name] for name in stored.files]


def _apart(ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: Tolerance) -> str | None:
    return agreement.difference(ours, theirs, tolerance.relative, tolerance.of_largest)
