"""A profile as HTML: one page that needs nothing else, and the tables and the curve it shares with a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wayfare.core.format import bytes_text, share_text
from wayfare.see.pages.charts import bar, curves
from wayfare.see.pages.markup import Markup, join, muted, row, sheet, standalone, tag
from wayfare.see.pages.parts import part
from wayfare.see.profile import tables
from wayfare.see.profile.costs import Cost
from wayfare.see.profile.memory import Alive, in_columns

if TYPE_CHECKING:
    from wayfare.see.profile.block import Profile

__all__ = ["alive_sheet", "cost_sheet", "memory_curve", "memory_over_time", "piece", "whole"]

_ROWS = 30
_TITLES = {"op": "By op", "line": "By line", "module": "By module", "kernel": "Compiled functions",
           "group": "Groups of automatic batching"}  # fmt: skip


def whole(p: Profile) -> str:
    """A page of its own."""
    return standalone("Profile", piece(p), "body { margin: 0 auto; max-width: 1200px; padding: 1.5em; background: "
                      "light-dark(#ffffff, #16191f); }")  # fmt: skip


def piece(p: Profile) -> Markup:
    """Headline, memory over time, and tables, inside one element."""
    parts: list[object] = [tag("style", Markup(part("wayfare.see.profile", "profile.css"))), tag("h1", "Profile")]
    parts += [*map(muted, tables.headline(p)), legend()]
    if p.peak_bytes:
        parts.append(tag("section", tag("h2", "Memory over time"), memory_over_time(p)))
        parts.append(tag("section", tag("h2", "In use at the highest point"), alive_sheet(p.alive_at_peak, _ROWS)))
    if p.device_peak_bytes:
        found = alive_sheet(p.device_alive_at_peak, _ROWS)
        parts.append(tag("section", tag("h2", "In use on the GPU at its highest point"), found))
    for by, title in _TITLES.items():
        rows = p.rows(by)
        if rows and not (by == "module" and len(rows) <= 2):
            parts.append(tag("section", tag("h2", title), cost_sheet(by, rows, _ROWS)))
    if p.batching.sessions:
        parts.append(muted(tables.batching_text(p.batching)))
    if p.left_out:
        parts.append(muted(f"A trace has the first events only: {p.left_out} more are counted here."))
    return tag("div", *parts, class_="profile")


def legend() -> Markup:
    """What the two parts of the bars are."""
    names = enumerate(("forward", "backward"))
    return tag("ul", *(tag("li", tag("span", class_=f"key c{n}"), name) for n, name in names), class_="legend")


def memory_over_time(p: Profile) -> Markup:
    """Memory in use while the block ran."""
    # Time is even on the page, events are not: the highest of each stretch of time.
    return memory_curve("in use", in_columns(p.memory, 101, p.seconds), "Memory over the time", "% of the time", 0)


def memory_curve(
    name: str, sizes: Sequence[int], title: str, across: str, start: int, marks: Mapping[int, str] | None = None
) -> Markup:
    """A curve of sizes in bytes, in a unit that suits the largest."""
    scale, unit = (2**20, "MB") if max(sizes) >= 2**20 else (2**10, "KB")
    return curves({name: [size / scale for size in sizes]}, f"{title}, {unit}", across, start, "{:.3g}", marks)


def cost_sheet(by: str, rows: list[Cost], most: int) -> Markup:
    """The first rows as a table, and the rest as one row."""
    columns = [title for title in tables.columns_of(by, rows) if title != "share"]
    shown = []
    for cost in tables.shortened(rows, most):
        about = tag("small", f" {cost.text}") if cost.text not in ("", cost.name) else None
        back = cost.share * (cost.backward_seconds / cost.seconds if cost.seconds else 0.0)
        share = bar(cost.share - back, share_text(cost.share), more=back)
        shown.append(row(join([cost.name, about]), share, *(tables.cell(title, cost) for title in columns)))
    return sheet((tables.FIRST[by], "share", *columns), shown, words=(0, 1), kind="bars")


def alive_sheet(found: list[Alive], most: int) -> Markup:
    """What was in use at the highest point, the largest first."""
    largest = max((each.bytes for each in found), default=0) or 1
    rows = []
    for each in found[:most]:
        place, site = each.place, each.place.site
        line = tag("small", f" {site}  {site.text}") if site is not None else None
        module = tag("small", "" if place.module is None else place.module.shown(True))
        rows.append(row(join([place.name, line]), bar(each.bytes / largest, bytes_text(each.bytes)),
                        tag("code", f"{list(each.shape)} {each.dtype}"), module, f"{each.count:,}"))  # fmt: skip
    return sheet(("made by", "bytes", "shape", "module", "arrays"), rows, words=range(4), kind="bars")
