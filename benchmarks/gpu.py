"""The suite `gpu`: training steps, models by map, and kernels on a card, beside PyTorch on the same card.

Everything is measured within a time budget, the most important rows first. A row is printed and written to the file of
figures as soon as it is there, so a run that is cut off leaves what it has measured.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks import corpora, costs
from benchmarks.contest import UNITS, Limit, Outcome, short
from benchmarks.crew import Crew
from benchmarks.gpu_rows import COPY, ROWS, SMALL_TRANSFORMER, Row
from benchmarks.harness import BenchmarkError, Measurement, Options, Report, figure, limit_text
from benchmarks.judging import grid, show
from benchmarks.sides import COMPILED, EAGER, TORCH, TORCH_COMPILE, Side

SUMMARY = "on a GPU: small ops, compiled steps, models by map, large arrays, attention, ResNet-18, first compiled call"

WIDTH = 110
BUDGET, QUICK_BUDGET = 540.0, 240.0
LEAST_PATIENCE = 90.0  # seconds: torch.compile may take a minute to start
ROW_SECONDS, QUICK_ROW_SECONDS = 8.0, 4.0  # of rounds, for one row
GIGA, MEGA = 1e9, 1e6
FLOAT_BYTES = 4
OF_COPY = 0.9  # of the copy's bandwidth is what a kernel is to reach
# Twice as long, twice the memory; a matrix of all pairs would need four times as much.
LINEAR = 2.2
FIRST_CALL = "first call"

_HOW = (
    "Best of the rounds, which alternate between the sides, each in its own process; a round is several steps and ends "
    "when the device is done. Results were compared before timing. TF32 is off on every side."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options that only this suite has."""
    add = command.add_argument
    limits = f"{BUDGET:g}, with --quick {QUICK_BUDGET:g}"
    add("--device", default="cuda", metavar="DEVICE", help="cuda, cuda:1, or cpu for a small trial (cuda)")
    add("--budget", type=float, metavar="SECONDS", help=f"rows that would begin later are left out ({limits})")


def run(options: Options) -> Report:
    """Measure every row the options want within the budget, print each as it is done, and count what was met."""
    started = perf_counter()
    budget = options.budget or (QUICK_BUDGET if options.quick else BUDGET)
    options = replace(options, budget=budget, patience=max(LEAST_PATIENCE, budget / 4))
    report = Report("gpu", options, console=Console(width=WIDTH, highlight=False))
    report.begin()
    with Crew(options) as crew, TemporaryDirectory() as folder:
        state_devices(report, crew)
        measuring = Measuring(report, crew, Path(folder))
        works: list[tuple[str, str, Callable[[], None]]] = [
            *((row.name, row.title, partial(measuring.row, row)) for row in ROWS),
            (FIRST_CALL, "first compiled call", partial(first_call, report)),
        ]
        if not options.quick:
            others = [row.with_others() for row in ROWS if row.beside]
            works += [(row.name, row.title, partial(measuring.row, row)) for row in others]
        for name, title, measure in works:
            if not options.wants(name):
                continue
            if perf_counter() - started > budget:
                report.skip("rows", title, f"the budget of {budget:g} s was used up before.")
                continue
            try:
                measure()
            except Exception as error:  # the next rows are worth as much as this one
                traceback.print_exc()
                report.skip("rows", title, f"{type(error).__name__}: {error}")
            report.keep()
    measuring.tables()
    sum_up(report, perf_counter() - started)
    return report


def state_devices(report: Report, crew: Crew) -> None:
    """Say which card is there and who can use it; BenchmarkError if nobody can."""
    device = report.options.device
    found, reasons = {}, {}
    for side in (TORCH, EAGER):
        try:
            found[side] = crew.ask(side, "devices.describe", device=device)
        except BenchmarkError as error:
            reasons[side] = short(error)
    if not found:
        told = " ".join(reasons.values())
        raise BenchmarkError(f"no side can use the device {device!r}: {told} `--device cpu` tries the suite without.")
    card = next(iter(found.values()))
    memory = f", {card['total'] / GIGA:.0f} GB" if card.get("total") else ""
    report.note(f"{'device':9} {card['name']}{memory}")
    report.curves["device"] = card
    for side, reason in reasons.items():
        report.skip("device", side.module, reason)
    if not on_card(report.options):
        report.note("Not on a card: sizes are small, and nothing is judged.")


def on_card(options: Options) -> bool:
    """Whether sizes are full and limits hold: they are for a GPU."""
    return options.device.startswith("cuda")


class Measuring:
    """The rows measured so far, and what they share: the trees, and how fast the card copies."""

    def __init__(self, report: Report, crew: Crew, folder: Path) -> None:
        self.report, self.crew, self.folder = report, crew, folder
        self.copied = 0.0  # bytes a second, read and written
        self.done: list[tuple[Row, Outcome]] = []

    def row(self, row: Row) -> None:
        """Measure one row, print it and keep it."""
        report, options = self.report, self.report.options
        seconds = QUICK_ROW_SECONDS if options.quick else ROW_SECONDS
        title = row.title
        given = {**row.parameters, **({} if on_card(options) else row.small), "device": options.device}
        if row.data:
            given["data"] = self._trees()
        if row.bytes_each and on_card(options):
            given["layers"], title = self._fitting(row, given["layers"])
        if given.get("layers") == 0:
            report.skip("rows", row.title, "the card has too little free memory.")
            return
        ways = {side: {**given, **own} for side, own in row.ways.items()}
        outcome = self.crew.compete(ways, row.work, seconds, row.tolerance, row.warm)
        row = replace(row, title=title)
        if row.name == COPY.name:
            self._copy_speed(row, outcome, given["count"])
        judged = [m for limit in row.limits if (m := measured(row, outcome, limit, on_card(options))) is not None]
        judged += self._over_copy(row, outcome, given)
        if row.memory:
            judged += self._memory(row, given)
        self.crew.release()
        self._tell(row, outcome, judged)

    def tables(self) -> None:
        """Print all rows again, as tables."""
        sides = list(dict.fromkeys(side for _, outcome in self.done for side in outcome.seconds))
        cells = [
            [f"{row.title}, {row.unit}", *(outcome.cell(side, row.unit) for side in sides)]
            for row, outcome in self.done
        ]
        grid(self.report, "What each side took", ["work", *(side.name for side in sides)], cells)
        show(self.report, "Judged", [row for row in self.report.measurements if row.part == "rows"])

    def _trees(self) -> str:
        path = self.folder / "trees.json"
        if not path.exists():
            self.report.note(f"{'trees':9} {corpora.write(path)}")
        return str(path)

    def _fitting(self, row: Row, layers: int) -> tuple[int, str]:
        """As many layers as fit in the free memory of the card, and what the row is then called."""
        free = 0
        for side in (TORCH, EAGER):
            try:
                free = free or self.crew.ask(side, "devices.memory")[0]
            except BenchmarkError:
                continue
        fit = min(layers, int(OF_COPY * free / row.bytes_each)) if free else layers
        return fit, row.title if fit == layers else f"{row.title}; only {fit} of {layers} layers fit in memory"

    def _copy_speed(self, row: Row, outcome: Outcome, count: int) -> None:
        fastest = outcome.fastest(list(outcome.seconds))
        if fastest is not None:
            self.copied = 2 * FLOAT_BYTES * count / min(outcome.seconds[fastest])
            self.report.note(f"  copy: {self.copied / GIGA:.0f} GB/s, read and write counted, by {fastest.name}")
            self.report.curves["copy, bytes a second"] = self.copied

    def _over_copy(self, row: Row, outcome: Outcome, given: dict[str, Any]) -> list[Measurement]:
        """The aim of a kernel that memory bounds: as long as a copy that moves as many bytes, and a ninth."""
        if not row.arrays or not self.copied or row.mine not in outcome.seconds:
            return []
        seconds = outcome.seconds[row.mine]
        ideal = row.arrays * FLOAT_BYTES * given["count"] / self.copied
        rounds = [[value * UNITS[row.unit] for value in side] for side in (seconds, [ideal] * len(seconds))]
        aim = 1 / OF_COPY if on_card(self.report.options) else None
        return [Measurement("rows", f"{row.title}, over a copy of as many bytes", row.unit, rounds, None, aim)]

    def _memory(self, row: Row, given: dict[str, Any]) -> list[Measurement]:
        """The peak of the step for the full length and for half of it."""
        peaks: dict[Side, list[float]] = {}
        self.crew.release()  # what is prepared would count
        for side in row.ways:
            try:
                peaks[side] = [
                    self.crew.ask(side, "devices.peak_of_step", of=row.work, **{**given, "length": length}) / MEGA
                    for length in (given["length"], given["length"] // 2)
                ]
            except BenchmarkError as error:
                self.report.skip("memory", f"{row.title}, {side.name}", short(error))
        self.report.curves[f"peak megabytes, {row.name}"] = {side.name: found for side, found in peaks.items()}
        for side, (whole, half) in peaks.items():
            self.report.note(f"  peak memory: {side.name} {figure(whole)} MB, for half the length {figure(half)} MB")
        if row.mine not in peaks:
            return []
        whole, half = peaks[row.mine]
        title = f"{row.title}: memory over that for half the length"
        return [Measurement("rows", title, "MB", [[whole], [half]], LINEAR, None)]

    def _tell(self, row: Row, outcome: Outcome, judged: list[Measurement]) -> None:
        """Print a row in a few lines and keep its figures."""
        report = self.report
        self.done.append((row, outcome))
        took = ", ".join(f"{side.name} {outcome.cell(side, row.unit)}" for side in outcome.seconds)
        report.note(f"\n{row.title}: {took or 'no figure'} {row.unit if took else ''}")
        for found in judged:
            limits = [limit_text(found.wanted, found.met), limit_text(found.aim, found.aim_met)]
            value = f"{figure(found.best(0))} {found.unit}" if found.absolute else f"{found.ratio_of_best:.3f}×"
            told = ", ".join(f"{word} {text}" for word, text in zip(("must", "aim"), limits, strict=True) if text)
            report.note(f"  {found.work.removeprefix(row.title).lstrip(',: ')}: {value}  {told}")
        report.measurements += judged
        for side, said in outcome.remarks.items():
            for text in said:
                report.note(f"  {side.name} warns: {text}")
        for side, reason in outcome.reasons.items():
            report.skip("rows", f"{row.title}, {side.name}", reason)
        report.curves[f"seconds, {row.name}"] = {side.name: found for side, found in outcome.seconds.items()}
        report.curves.setdefault("rows", []).append(
            {
                "name": row.name,
                "title": row.title,
                "unit": row.unit,
                "mine": row.mine.name,
                "best": {side.name: min(found) * UNITS[row.unit] for side, found in outcome.seconds.items()},
                "remarks": {side.name: said for side, said in outcome.remarks.items()},
                "missing": {side.name: reason for side, reason in outcome.reasons.items()},
                "judged": [found.as_json() for found in judged],
            }
        )
        report.console.file.flush()


def measured(row: Row, outcome: Outcome, limit: Limit, judged: bool = True) -> Measurement | None:
    """How this row's side of Wayfare stands against the fastest of the sides that a limit names, if they ran."""
    must, aim = (limit.must, limit.aim) if judged else (None, None)
    if row.mine not in outcome.seconds:
        return None
    if not limit.against:
        rounds = [[seconds * UNITS[row.unit] for seconds in outcome.seconds[row.mine]]]
        return Measurement("rows", f"{row.title}, {row.unit}", row.unit, rounds, must, aim, absolute=True)
    against = outcome.fastest(list(limit.against))
    if against is None:
        return None
    title = f"{row.title}, over {against.name.replace('- ', '-').replace('. ', '.')}"
    return outcome.measured("rows", title, row.unit, row.mine, against, must, aim)


def first_call(report: Report) -> None:
    """The first calls of a compiled step in a fresh process with empty caches."""
    options = report.options
    states = ("cold",) if options.quick else costs.STATES
    small = {} if on_card(options) else SMALL_TRANSFORMER
    costs.first_call(report, [TORCH_COMPILE, COMPILED], states, device=options.device, **small)


def sum_up(report: Report, seconds: float) -> None:
    """How many rows met what they must and what is aimed at."""
    judged = [row.met for row in report.measurements if row.met is not None]
    aimed = [row.aim_met for row in report.measurements if row.aim_met is not None]
    report.note(f"\nmust: {sum(judged)} of {len(judged)} met; aim: {sum(aimed)} of {len(aimed)} met; {seconds:.0f} s")
    report.note(_HOW)
    if report.skipped:
        report.note(f"{len(report.skipped)} figures are missing, for the reasons above.")
