"""A profile in words: tables for 80 columns, and memory over time drawn in blocks."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from wayfare.core.format import bytes_text, count_text, counted, share_text, time_text
from wayfare.see.profile.costs import Cost
from wayfare.see.profile.memory import Alive, Memory, in_columns
from wayfare.see.profile.others import BatchingCost, CompiledCost

if TYPE_CHECKING:
    from wayfare.see.profile.block import Profile

WIDTH = 80
_HEIGHT = 4
_BLOCKS = " ▁▂▃▄▅▆▇█"
_SUMMARY_ROWS = 8
# Columns of each table after its first: title, and what stands there.
COLUMNS = {
    "op": ("calls", "forward", "backward", "share", "FLOPs", "made"),
    "line": ("calls", "forward", "backward", "share", "made"),
    "module": ("calls", "with inner", "forward", "backward", "share", "FLOPs"),
    "kernel": ("calls", "time", "share"),
    "group": ("calls", "time", "share"),
}
_GPU = "GPU"  # a column where a GPU has worked
FIRST = {"op": "op", "line": "line", "module": "module", "kernel": "compiled function", "group": "batched call"}


def columns_of(by: str, rows: list[Cost]) -> tuple[str, ...]:
    """The columns of a table after its first."""
    columns = COLUMNS[by]
    if not any(row.device_seconds for row in rows):
        return columns
    at = columns.index("share") if "share" in columns else len(columns)
    return (*columns[:at], _GPU, *columns[at:])


def table(by: str, rows: list[Cost], top: int) -> str:
    """The first rows as a table, and the rest as one row."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, width=WIDTH)
    made.add_column(FIRST[by], no_wrap=True, overflow="ellipsis", ratio=1)
    columns = columns_of(by, rows)
    for title in columns:
        made.add_column(title, justify="right", no_wrap=True)
    for row in shortened(rows, top):
        made.add_row(_name(by, row), *[cell(title, row) for title in columns])
    return render(made)


def render(made: Table) -> str:
    """A table as text, without colours and without blanks at the ends of lines."""
    text = io.StringIO()
    Console(file=text, width=WIDTH, markup=False, highlight=False, no_color=True, emoji=False).print(made)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def cell(title: str, row: Cost) -> str:
    """What a row has in a column; nothing where it would be zero."""
    if title == "calls":
        return f"{row.calls:,}" if row.calls else ""
    if title == "share":
        return share_text(row.share)
    if title == "FLOPs":
        return count_text(row.flops) if row.flops else ""
    if title == "made":
        return bytes_text(row.bytes) if row.bytes else ""
    seconds = {"forward": row.forward_seconds, "backward": row.backward_seconds, "time": row.seconds,
               "with inner": row.total_seconds, _GPU: row.device_seconds}[title]  # fmt: skip
    return time_text(seconds) if seconds else ""


def _name(by: str, row: Cost) -> str:
    if by == "module" and row.text and row.text != row.name:
        return f"{row.name} ({row.text})"
    return f"{row.name}  {row.text}" if row.text and by != "module" else row.name


def shortened(rows: list[Cost], most: int) -> list[Cost]:
    """The first `most` rows, and the rest as one."""
    rest = rows[most:]
    if not rest:
        return rows
    made = Cost(f"{len(rest)} more", "rest")
    for name in ("calls", "seconds", "forward_seconds", "backward_seconds", "flops", "bytes", "share",
                 "device_seconds"):  # fmt: skip
        setattr(made, name, sum(getattr(row, name) for row in rest))
    return [*rows[:most], made]


def headline(p: Profile) -> list[str]:
    """Where the time went, in a few words, and what the profiling has cost."""
    by_kind: dict[str, float] = {}
    for row in p.rows("op"):
        if row.kind == "op":
            by_kind["ops"] = by_kind.get("ops", 0.0) + row.forward_seconds
            by_kind["gradients"] = by_kind.get("gradients", 0.0) + row.backward_seconds
        else:
            name = "gradients" if row.kind == "backward" else row.kind
            by_kind[name] = by_kind.get(name, 0.0) + row.seconds
    whole = sum(by_kind.values()) or 1.0
    order = ("ops", "gradients", "compiled", "batching", "optimiser", "waiting", "outside")
    parts = [f"{name} {share_text(by_kind[name] / whole)}" for name in order if by_kind.get(name)]
    share = p.own_seconds / p.seconds if p.seconds else 0.0
    gpu = []
    if p.device_seconds:
        busy = share_text(p.device_seconds / p.seconds if p.seconds else 0.0)
        gpu.append(f"The GPU worked {time_text(p.device_seconds)} of it ({busy}), with at most "
                   f"{bytes_text(p.device_peak_bytes)} of memory.")  # fmt: skip
    return [
        f"{time_text(p.seconds)}: " + ", ".join(parts),
        *gpu,
        f"Profiling cost about {share_text(share)} on top, which is left out here.",
    ]


def summary(p: Profile) -> str:
    """All of it on a page or two."""
    p.rows()  # says so if the block has not ended
    parts = ["\n".join(headline(p)), table("op", p.rows("op"), _SUMMARY_ROWS)]
    if len(p.rows("line")) > 1:
        parts.append(table("line", p.rows("line"), _SUMMARY_ROWS))
    if len(p.rows("module")) > 2:  # more than what is in no module, and outside
        parts.append(table("module", p.rows("module"), _SUMMARY_ROWS))
    parts += [f"{cost.name} (compiled): {compiled_text(cost)}" for cost in p.compiled]
    if p.batching.sessions:
        parts.append(batching_text(p.batching) + "\n\n" + table("group", p.rows("group"), _SUMMARY_ROWS))
    if p.peak_bytes or p.device_peak_bytes:
        parts.append(p.picture() + "\n" + alive_text(p.device_alive_at_peak or p.alive_at_peak))
    if p.left_out:
        parts.append(f"The trace has the first events only: {p.left_out} more are counted above.")
    return "\n\n".join(part for part in parts if part)


def compiled_text(cost: CompiledCost) -> str:
    """How the calls of a compiled function ran."""
    parts = [f"{cost.hits} replayed", f"{cost.recorded} recorded"]
    if cost.plain:
        parts.append(f"{cost.plain} in plain Python")
    parts += [counted(cost.kernels, "kernel"), counted(cost.products, "product")]
    text = ", ".join(parts)
    return text + "".join(f"\n  recorded again because {reason}" for reason in cost.reasons)


def batching_text(cost: BatchingCost) -> str:
    """What automatic batching did, all sessions together."""
    return (
        f"batching: {counted(cost.sessions, 'session')}, {counted(cost.calls, 'call')} in "
        f"{counted(cost.groups, 'group')}, {cost.mean_group:.1f} a group\n"
        f"recording {time_text(cost.seconds_recording)}, scheduling {time_text(cost.seconds_scheduling)}, "
        f"running {time_text(cost.seconds_running)}"
    )


def picture(memory: Memory, seconds: float, what: str = "memory") -> str:
    """Memory over time in blocks, the highest of each column."""
    if not memory.peak:
        return ""
    scale = _HEIGHT * 8 / memory.peak
    heights = [min(round(size * scale), _HEIGHT * 8) for size in in_columns(memory.curve.points(), WIDTH, seconds)]
    lines = ["".join([_BLOCKS[max(0, min(8, h - 8 * row))] for h in heights]) for row in range(_HEIGHT - 1, -1, -1)]
    title = f"{what}: at most {bytes_text(memory.peak)} at {time_text(memory.peak_at)}"
    end = time_text(seconds)
    return "\n".join([title, *[line.rstrip() for line in lines], "0" + end.rjust(WIDTH - 1)])


def alive_text(alive: list[Alive], top: int = _SUMMARY_ROWS) -> str:
    """What was in use at the highest point."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, width=WIDTH)
    for title, right in (("in use then", True), ("arrays", True), ("shape", False), ("of", False)):
        made.add_column(title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    made.add_column("line", no_wrap=True, overflow="ellipsis", ratio=1)
    for a in alive[:top]:
        site = a.place.site
        line = "" if site is None else f"{site}  {site.text}"
        made.add_row(bytes_text(a.bytes), str(a.count), f"{list(a.shape)} {a.dtype}", a.place.name, line)
    if len(alive) > top:
        rest = alive[top:]
        made.add_row(bytes_text(sum(a.bytes for a in rest)), str(sum(a.count for a in rest)), "", "others", "")
    return render(made)

