"""What compiling costs, beside its gain: new sequence lengths, the first calls of a process, memory held."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contest import short
from benchmarks.harness import BenchmarkError, Measurement, Report
from benchmarks.judging import grid, judge
from benchmarks.sides import COMPILED, EAGER, JAX, TORCH, TORCH_COMPILE, Side
from benchmarks.works import memory

MEGABYTE = 1024 * 1024
FEW = 5  # steps of an epoch in which kernels may be built
FIRST_CALLS = 3  # recording, planning, and one more to see that this was all
CALLS_SHOWN = 5
REPEATS = 3
SIDES = [TORCH, TORCH_COMPILE, JAX, EAGER, COMPILED]
STARTERS = [TORCH_COMPILE, JAX, COMPILED]
SLOW_STARTERS = (TORCH_COMPILE, JAX)  # shown from one run: half a minute or more each
STATES = ("cold", "from disk")
BLOCKS = "2 transformer blocks, d 256, T 128, B 8"


def lengths(report: Report, count: int | None = None, epochs: int = 4, **size: int) -> None:
    """One transformer block over sequences of many lengths, one length a step, a new order each epoch."""
    if count is None:
        count = 20 if report.options.quick else 100
    found: dict[Side, dict[str, Any]] = {}
    for side in SIDES:
        try:
            answers = []
            for _ in range(_repeats(report, side)):
                with TemporaryDirectory() as folder:
                    parameters: dict[str, Any] = {"count": count, "number": epochs, **size}
                    answers.append(side.alone(report.options, "lengths.epochs", Path(folder), **parameters))
        except BenchmarkError as error:
            report.skip("lengths", side.name, short(error))
            continue
        seconds = [min(times) for times in zip(*(answer["seconds"] for answer in answers), strict=True)]
        found[side] = {**answers[0], "seconds": seconds}
    report.curves["lengths"] = {side.name: answer for side, answer in found.items()}
    _drop_wrong(report, found)
    cells = [
        [side.name, *(f"{seconds:.2f} s" for seconds in answer["seconds"]), *map(str, _made(answer["made"]))]
        for side, answer in found.items()
    ]
    columns = ["side", *(f"epoch {number + 1}" for number in range(epochs)), "compiled", "late"]
    grid(report, f"Epochs of {count} sequence lengths in random order", columns, cells)
    report.note(f"  Compiled: kernels, graphs (torch.compile), programs (JAX). Late: after {FEW} steps of an epoch.")
    if COMPILED not in found:
        return
    mine = found[COMPILED]
    late = float(_made(mine["made"])[1])
    rows = [Measurement("lengths", f"kernels built after the first {FEW} steps", "", [[late]], 0.0, absolute=True)]
    if EAGER in found:
        pairs = list(zip(mine["seconds"], found[EAGER]["seconds"], strict=True))
        rows += [
            Measurement("lengths", f"epoch {number + 1} over Wayfare eager", "s", [[ours], [theirs]], None, 1.0)
            for number, (ours, theirs) in enumerate(pairs)
            if number > 0
        ]
    judge(report, "Many lengths", rows)


def first_call(
    report: Report, starters: Sequence[Side] | None = None, states: Sequence[str] = STATES, **parameters: Any
) -> None:
    """The first calls of a transformer step in a fresh process, with empty cache folders and with filled ones."""
    given: dict[str, Any] = {"of": "steps.transformer", "calls": CALLS_SHOWN, **parameters}
    found: dict[tuple[Side, str], list[dict[str, Any]]] = {}
    for side in STARTERS if starters is None else starters:
        try:
            for _ in range(_repeats(report, side)):
                with TemporaryDirectory() as folder:
                    for state in states:
                        answer = side.alone(report.options, "starting.first_calls", Path(folder), **given)
                        found.setdefault((side, state), []).append(answer)
        except BenchmarkError as error:
            report.skip("first call", side.name, short(error))
    cells = []
    for (side, state), answers in found.items():
        best = min(answers, key=_together)
        made = ", ".join(f"{count} {name}" for name, count in best.items() if name != "seconds" and count)
        cells.append([f"{side.name}, {state}", *(f"{seconds:.3f} s" for seconds in best["seconds"]), made])
    calls = [f"call {number + 1}" for number in range(CALLS_SHOWN)]
    grid(report, f"First calls of a process: {BLOCKS}", ["side", *calls, "made"], cells)
    report.curves["first calls"] = {f"{side.name}, {state}": answers for (side, state), answers in found.items()}
    rows = []
    for mine, theirs, must, aim in (
        ("cold", "cold", 0.2, None),
        ("from disk", "cold", None, 0.05),
        ("from disk", "from disk", None, 0.05),
    ):
        pair = [found.get((COMPILED, mine), []), found.get((TORCH_COMPILE, theirs), [])]
        if all(pair):
            rounds = [[min(map(_together, answers))] for answers in pair]
            title = f"Wayfare compiled {mine}, over torch.compile {theirs}"
            rows.append(Measurement("first call", title, "s", rounds, must, aim))
    judge(report, f"The first {FIRST_CALLS} calls together", rows)


def peak_memory(report: Report, **size: int) -> None:
    """The peak of a transformer step, with all that the step holds on to between calls."""
    if not memory.measurable():
        report.note("\nPeak memory: not shown, since only Linux can tell and reset a high-water mark.")
        return
    found: dict[Side, list[float]] = {}
    for side in SIDES:
        try:
            with TemporaryDirectory() as folder:
                parameters = {"of": "steps.transformer", **size}
                peaks = side.alone(
                    report.options, "memory.peak_with_held", Path(folder), memory.ENVIRONMENT, **parameters
                )
            found[side] = [peak / MEGABYTE for peak in peaks]
        except BenchmarkError as error:
            report.skip("memory", side.name, short(error))
    cells = [[side.name, f"{min(peaks):.1f} MB", f"{max(peaks):.1f} MB"] for side, peaks in found.items()]
    grid(report, f"Peak memory of a step: {BLOCKS}", ["side", "least", "most"], cells)
    report.note("  Resident memory at a step's peak, less what is left when the step is dropped and its model is kept.")
    if TORCH in found and COMPILED in found:
        rounds = [found[COMPILED], found[TORCH]]
        judge(report, "Memory", [Measurement("memory", "Wayfare compiled over PyTorch eager", "MB", rounds, 0.8, 0.7)])


def _repeats(report: Report, side: Side) -> int:
    return 1 if report.options.quick or side in SLOW_STARTERS else REPEATS


def _together(answer: dict[str, Any]) -> float:
    """Seconds of the calls in which everything is compiled; libraries spread that over them differently."""
    return float(sum(answer["seconds"][:FIRST_CALLS]))


def _made(made: list[list[int]]) -> tuple[int, int]:
    """What was compiled in all epochs, and how much of it later than in the first few steps of one."""
    return sum(map(sum, made)), sum(sum(epoch[FEW:]) for epoch in made)


def _drop_wrong(report: Report, found: dict[Side, dict[str, Any]]) -> None:
    """Leave out the sides whose losses are not those of the first."""
    referee = next(iter(found.values()), {}).get("loss", [])
    for side, answer in list(found.items()):
        if any(abs(mine - other) > 1e-4 * abs(other) for mine, other in zip(answer["loss"], referee, strict=True)):
            report.skip("lengths", side.name, "its losses differ from the other sides'.")
            del found[side]
