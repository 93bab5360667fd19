"""A profile as HTML: one page that needs nothing else, or the same as a piece of a report."""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING

from wayfare.profile import tables
from wayfare.profile.costs import Cost
from wayfare.units import bytes_text, time_text

if TYPE_CHECKING:
    from wayfare.profile.block import Profile

_ROWS = 30
_PICTURE = (960, 180)
_TITLES = {"op": "By op", "line": "By line", "module": "By module", "kernel": "Compiled functions",
           "group": "Groups of automatic batching"}  # fmt: skip
_LEGEND = '<p class="legend"><i></i> forward <b></b> backward</p>'
STYLE = """
.profile { --ink: #1d2129; --soft: #667080; --line: #dde2ea; --bar: #4a7bd0; --back: #c98b2b; --ground: #ffffff;
  font: 14px/1.45 system-ui, sans-serif; color: var(--ink); }
@media (prefers-color-scheme: dark) { .profile { --ink: #e4e8ef; --soft: #98a2b3; --line: #333a46; --bar: #7ba4ee;
  --back: #dfae5c; --ground: #16191f; } }
.profile h1 { font-size: 20px; margin: 0 0 .4em; }
.profile .legend i, .profile .legend b { display: inline-block; width: 10px; height: 10px; border-radius: 2px; }
.profile .legend i { background: var(--bar); } .profile .legend b { background: var(--back); margin-left: 1em; }
.profile h2 { font-size: 16px; margin: 1.6em 0 .5em; }
.profile p { margin: .3em 0; color: var(--soft); }
.profile table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.profile th { text-align: right; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--line); }
.profile td { text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
.profile th, .profile td { padding: .25em .6em; }
.profile th:first-child, .profile td:first-child { text-align: left; white-space: normal; }
.profile code { font: 12.5px ui-monospace, monospace; color: var(--soft); }
.profile .share { width: 120px; height: 10px; background: var(--line); border-radius: 2px; overflow: hidden;
  display: inline-flex; vertical-align: middle; }
.profile .share i { background: var(--bar); } .profile .share b { background: var(--back); }
.profile svg { width: 100%; height: auto; } .profile svg text { fill: var(--soft); font-size: 12px; }
.profile svg path { fill: var(--bar); fill-opacity: .35; stroke: var(--bar); }
.profile svg line { stroke: var(--line); }
"""


def whole(p: Profile) -> str:
    """A page of its own."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Profile</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<style>:root { color-scheme: light dark; } body { margin: 0 auto; max-width: 1200px; padding: 1.5em; "
        "background: light-dark(#ffffff, #16191f); } "
        f"</style></head>\n<body>{piece(p)}</body></html>\n"
    )


def piece(p: Profile) -> str:
    """Headline, memory over time, and tables, inside one element."""
    parts = ["<h1>Profile</h1>", *[f"<p>{escape(line)}</p>" for line in tables.headline(p)], _LEGEND]
    if p.peak_bytes:
        parts += [_section("Memory over time", picture(p)), _section("In use at the highest point", _alive(p))]
    for by, title in _TITLES.items():
        rows = p.rows(by)
        if rows and not (by == "module" and len(rows) <= 2):
            parts.append(_section(title, _table(by, rows)))
    if p.batching.sessions:
        parts.append(f"<p>{escape(tables.batching_text(p.batching))}</p>")
    if p.left_out:
        parts.append(f"<p>A trace has the first events only: {p.left_out} more are counted here.</p>")
    return f'<div class="profile"><style>{STYLE}</style>{"".join(parts)}</div>'


def picture(p: Profile) -> str:
    """Memory in use as an SVG."""
    width, height = _PICTURE
    left, top, bottom = 70, 10, height - 24
    points = p.memory
    end, peak = max(p.seconds, 1e-12), max(p.peak_bytes, 1)

    def x(at: float) -> float:
        return left + (width - left - 10) * min(at / end, 1.0)

    def y(size: int) -> float:
        return bottom - (bottom - top) * size / peak

    # Between two events nothing is made, so the line goes in steps.
    steps = [f"M{left} {bottom}"]
    for at, size in points:
        steps.append(f"H{x(at):.1f}V{y(size):.1f}")
    steps.append(f"H{width - 10}V{bottom}Z")
    marks = "".join(
        f'<line x1="{left}" x2="{width - 10}" y1="{y(size):.1f}" y2="{y(size):.1f}"/>'
        f'<text x="{left - 6}" y="{y(size) + 4:.1f}" text-anchor="end">{escape(bytes_text(size))}</text>'
        for size in (0, peak // 2, peak)
    )
    times = (
        f'<text x="{left}" y="{height - 6}">0</text>'
        f'<text x="{width - 10}" y="{height - 6}" text-anchor="end">{escape(time_text(p.seconds))}</text>'
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="memory over time">{marks}{times}'
        f'<path d="{"".join(steps)}"/></svg>'
    )


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inside}</section>"


def _table(by: str, rows: list[Cost]) -> str:
    columns = tables.COLUMNS[by]
    head = "".join(f"<th>{escape(title)}</th>" for title in (tables.FIRST[by], *columns, ""))
    shown = rows[:_ROWS] + ([tables.together(rows[_ROWS:])] if rows[_ROWS:] else [])
    body = "".join(_row(row, columns) for row in shown)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(row: Cost, columns: tuple[str, ...]) -> str:
    name = escape(row.name) + (f" <code>{escape(row.text)}</code>" if row.text not in ("", row.name) else "")
    cells = "".join(f"<td>{escape(tables.cell(title, row))}</td>" for title in columns)
    forward, backward = (
        100 * row.share * (part / row.seconds if row.seconds else 0.0)
        for part in (row.forward_seconds, row.backward_seconds)
    )
    bar = f'<span class="share"><i style="width:{forward:.1f}%"></i><b style="width:{backward:.1f}%"></b></span>'
    return f"<tr><td>{name}</td>{cells}<td>{bar}</td></tr>"


def _alive(p: Profile) -> str:
    rows = []
    for a in p.alive_at_peak[:_ROWS]:
        place, site = a.place, a.place.site
        line = "" if site is None else f"{os.path.basename(site.filename)}:{site.line}"
        code = "" if site is None else site.text
        module = "" if place.module is None else place.module.shown(True)
        rows.append(
            f"<tr><td>{escape(line)} <code>{escape(code)}</code></td><td>{escape(place.name)}</td>"
            f"<td>{escape(module)}</td><td>{a.count}</td><td>{escape(str(list(a.shape)))} {escape(a.dtype)}</td>"
            f"<td>{escape(bytes_text(a.bytes))}</td></tr>"
        )
    head = "".join(f"<th>{title}</th>" for title in ("line", "made by", "module", "arrays", "shape", "bytes"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
