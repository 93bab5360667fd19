"""The suite `accuracy`: how far reductions, scans, norms and losses are from the exact result, beside PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rich.console import Console

from benchmarks.contest import short
from benchmarks.harness import BenchmarkError, Options, Report, Sides
from benchmarks.judging import grid
from benchmarks.works.accuracy import CASES, OFFSET

SUMMARY = "errors of reductions, scans, norms and losses against exact results, in roundings of the dtype"

WIDTH = 120
SHAPE, QUICK_SHAPE = (96, 1024), (16, 64)
LENGTH, QUICK_LENGTH = 2_000_000, 20_000
# Far from zero a half has no digits left after the point.
OFFSETS: dict[str, tuple[float, ...]] = {
    "float32": (0, 1e2, 1e4, 1e6), "float16": (0, 1e2), "float64": (0, 1e6),
}  # fmt: skip
LONG_OFFSETS = (0, 1e2, 1e6)
# An error is too large beyond so many roundings and so many times the peer's.
ROUNDINGS, TIMES = 8.0, 4.0

_HOW = (
    "An error is the largest distance from the exact result, as a part of its largest number, in roundings (epsilons) "
    "of the dtype. Arrays of {shape}, normal numbers with standard deviation 1 around the offset; the worst of the "
    "last, the first and all dimensions, of arrays as they lie and turned, plain and compiled."
)

WHATS = ("forward", "gradient")
DASH = "–"
# What was found: {table: {function: {offset: {"forward" or "gradient": [of each side]}}}}
Found = dict[str, dict[str, dict[str, dict[str, list[float | None]]]]]


def run(options: Options) -> Report:
    """Measure every function the options want in every dtype, then long rows; list what is too far off."""
    report = Report("accuracy", options, console=Console(width=WIDTH, highlight=False))
    report.begin()
    shape, length = (QUICK_SHAPE, QUICK_LENGTH) if options.quick else (SHAPE, LENGTH)
    report.note(_HOW.format(shape=" × ".join(map(str, shape))))
    found: Found = {}
    with Sides(options) as sides:
        for dtype, offsets in OFFSETS.items():

            def of_dtype(name: str, offset: float, dtype: str = dtype) -> list[Any]:
                return sides.call("accuracy.worst", name=name, dtype=dtype, offset=offset, shape=shape)

            names = [name for name in CASES if options.wants(f"{dtype} {name}")]
            found[dtype] = measured(report, dtype, names, offsets, of_dtype)

        def of_long(name: str, offset: float) -> list[Any]:
            return sides.call("accuracy.long", name=name, offset=offset, length=length)

        title = f"one row of {length:,} float32"
        names = [name for name, case in CASES.items() if case.long and options.wants(f"long {name}")]
        found[title] = measured(report, title, names, LONG_OFFSETS, of_long)
    report.curves["found"] = found
    far = too_far(found)
    report.note(f"\n{len(far)} errors are above {ROUNDINGS:g} roundings and {TIMES:g} times those of {options.peer}.")
    for line in far:
        report.note(f"  {line}")
    return report


def measured(
    report: Report, title: str, names: list[str], offsets: tuple[float, ...], ask: Callable[[str, float], list[Any]]
) -> dict[str, dict[str, dict[str, list[float | None]]]]:
    """The errors of these functions at these offsets, printed as a table."""
    found: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for name in names:
        for offset in offsets if CASES[name].data == OFFSET else offsets[:1]:
            try:
                sides = ask(name, offset)
            except BenchmarkError as error:
                report.skip(title, f"{name}, offset {offset:g}", short(error))
                continue
            pairs = {what: [side[k] for side in sides] for k, what in enumerate(WHATS)}
            found.setdefault(name, {})[f"{offset:g}"] = pairs
    for what in WHATS:
        grid(report, f"{title}, {what}", *table(found, offsets, what))
    return found


def table(found: dict[str, Any], offsets: tuple[float, ...], what: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: one function a row, the sides' errors beside each other; without what nobody could judge."""
    rows = [[name, *(pair(by.get(f"{o:g}", {}).get(what)) for o in offsets)] for name, by in found.items()]
    return ["function", *(f"around {o:,.0f}" for o in offsets)], [row for row in rows if set(row[1:]) != {DASH}]


def pair(errors: list[float | None] | None) -> str:
    """The errors of the sides as `0.5 / 12`; a dash where nobody could tell."""
    if errors is None or errors[0] is None:
        return DASH
    return " / ".join(DASH if e is None else text(e) for e in errors)


def text(error: float) -> str:
    """Two digits are enough to judge an error."""
    if not math.isfinite(error):
        return "∞"
    return f"{error:.1f}" if error < 99.5 else f"{float(f'{error:.1e}'):,.0f}" if error < 1e6 else f"{error:.0e}"


def too_far(found: Found) -> list[str]:
    """Every error that is too large beside the peer's, in words."""
    lines = []
    for title, functions in found.items():
        for name, by_offset in functions.items():
            for offset, at in by_offset.items():
                for what, errors in at.items():
                    if len(errors) < 2 or errors[0] is None or errors[1] is None or math.isnan(errors[1]):
                        continue
                    if not errors[0] <= max(ROUNDINGS, TIMES * errors[1]):
                        lines.append(f"{title}: {name}, offset {offset}, {what}: {pair(errors)}")
    return lines
