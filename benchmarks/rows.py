"""The rows of a suite whose sides are compared before they are timed, and what such a suite says around them."""

from __future__ import annotations

from typing import Any

from benchmarks.agreement import check
from benchmarks.harness import Measurement, Report, Sides, Skipped, version
from benchmarks.quiet import WAITING_SHARE, quiet_rounds


class Rows:
    """The rows of one table: each is checked for agreement, then timed, or skipped for a reason."""

    def __init__(self, report: Report, part: str, unit: str, factor: float) -> None:
        self.report, self.part, self.unit, self.factor = report, part, unit, factor
        self.measured: list[Measurement] = []
        self.skipped: list[tuple[str, str]] = []

    def measure(
        self,
        sides: Sides,
        title: str,
        work: str,
        must: float | None,
        aim: float | None,
        waiting: float = WAITING_SHARE,
        **parameters: Any,
    ) -> None:
        """One row; `waiting` is how much of a round its threads may have had to wait for a core."""
        try:
            check(sides, work, **parameters)
            seconds = quiet_rounds(sides, work, self.report.options.rounds, waiting, **parameters)
        except Skipped as reason:
            self.skipped.append((title, str(reason)))
            return
        scaled = [[value * self.factor for value in side] for side in seconds]
        self.measured.append(Measurement(self.part, title, self.unit, scaled, must, aim))

    def print(self, title: str) -> None:
        if self.measured:
            self.report.add(title, self.measured)
        else:
            self.report.note(f"\n{title}")
        for work, reason in self.skipped:
            self.report.skip(self.part, work, reason)


def state_threads(report: Report) -> None:
    """What the sides answer, not only what they were told: a ratio between unequal threads is worth nothing."""
    with Sides(report.options) as sides:
        answers = sides.call("threads.used")
    told = [
        f"{module} {'has no setting (NumPy loops use 1, BLAS ' + str(report.options.threads) + ')' if n is None else n}"
        for module, n in zip(report.options.modules(), answers, strict=True)
    ]
    report.note(f"{'threads':9} {', '.join(told)}")
    report.note(f"{'llvmlite':9} {version('llvmlite')}")


def sum_up(report: Report) -> None:
    judged = [row for row in report.measurements if row.met is not None]
    aimed = [row for row in report.measurements if row.aim_met is not None]
    options = report.options
    report.note(f"\nmust: {sum(row.met is True for row in judged)} of {len(judged)} rows met")
    report.note(f"aim:  {sum(row.aim_met is True for row in aimed)} of {len(aimed)} rows met")
    report.note(
        f"Times and ratio: best of {options.rounds} interleaved rounds after warm-up, counting only rounds whose "
        "threads always had a core; median: of the ratios within a round. Both sides' results were compared "
        f"before timing. {options.peer} runs eagerly, uncompiled."
    )
    if report.skipped:
        report.note(f"{len(report.skipped)} rows were not measured, for the reasons above.")
