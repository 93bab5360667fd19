"""A comparison as three rows: training time, memory and flexibility of each way of running the same step.

The row on flexibility says what was seen: shapes that came, values that Python read, calls that were recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from wayfare.core.format import bytes_text, counted, time_text
from wayfare.see.pages.markup import Markup, join, tag
from wayfare.see.profile.tables import render
from wayfare.see.profile.ways import EAGER, STATIC, TORCH, Row

if TYPE_CHECKING:
    from wayfare.see.profile.comparison import Comparison

_ORDER = (STATIC, EAGER, TORCH)


def cells(found: Comparison) -> list[tuple[str, list[list[str]]]]:
    """(title, for each way the lines of its cell) of each row."""
    rows = _in_order(found)
    eager = found[EAGER]
    return [
        ("training time", [_time(row, eager) for row in rows]),
        ("memory", [_memory(row) for row in rows]),
        ("flexibility", [_flexibility(row, found.shapes) for row in rows]),
    ]


def _in_order(found: Comparison) -> list[Row]:
    return [row for way in _ORDER for row in found.rows if row.way == way]


def _time(row: Row, eager: Row) -> list[str]:
    lines = [f"{time_text(row.seconds)} a step"]
    if row is not eager:
        lines.append(f"{eager.seconds / row.seconds:.2f}× eager's speed")
    if row.device_seconds:
        lines.append(f"the GPU works {time_text(row.device_seconds)}")
    lines.append(f"first {time_text(row.first_seconds)}")
    return lines


def _memory(row: Row) -> list[str]:
    lines = [f"{bytes_text(row.peak_bytes)} at most"]
    if row.device_seconds:
        lines.append(f"{bytes_text(row.device_peak_bytes)} on the GPU")
    return lines


def _flexibility(row: Row, shapes: int) -> list[str]:
    seen = f"{counted(shapes, 'shape')} of arguments"
    if row.way in (EAGER, TORCH):
        return [seen, "Python runs every call", "nothing recorded"]
    lines = [seen, "Python runs when recording"]
    lines.append(f"{row.recorded} recorded, {row.retraces} after the warm-up")
    if row.decisions:
        lines.append(f"{counted(row.decisions, 'line')} decide{'s' * (row.decisions == 1)} by values: "
                     f"{counted(row.paths, 'path')}")  # fmt: skip
    else:
        lines.append("no decision by values seen")
    lines += [f"ran as plain Python, because {reason}" for reason in row.python]
    return lines


def text(found: Comparison) -> str:
    """For 80 columns."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, width=80, show_lines=False)
    table.add_column("")
    for row in _in_order(found):
        table.add_column(row.way, ratio=1)
    for title, lines in cells(found):
        table.add_row(title, *["\n".join(cell) for cell in lines], end_section=True)
    return f"{found.name}, {counted(found.batches, 'batch')}\n" + render(table)


def html(found: Comparison) -> Markup:
    """As an HTML table; how it looks is up to the page."""
    head = tag("tr", tag("th"), *(tag("th", row.way, scope="col") for row in _in_order(found)))
    body = [tag("tr", tag("th", title, scope="row"), *map(_cell, lines)) for title, lines in cells(found)]
    return tag("table", tag("caption", found.name), tag("thead", head), tag("tbody", *body), class_="comparison")


def _cell(lines: list[str]) -> Markup:
    return tag("td", lines[0], *(join([tag("br"), line]) for line in lines[1:]))
