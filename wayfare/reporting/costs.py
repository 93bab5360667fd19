"""Time and memory: what the step spends its time on, memory over the run, and what was alive at the highest point."""

from __future__ import annotations

from typing import Any

from wayfare.pages.charts import bar, curves
from wayfare.pages.markup import Markup, figures, join, muted, sheet, tag
from wayfare.profile.memory import in_columns
from wayfare.reporting.embedded import document_of
from wayfare.reporting.section import Material, Section
from wayfare.units import bytes_text, count_text, cut, time_text

__all__ = ["costs_section"]

MOST_ROWS = 12


def costs_section(material: Material) -> Section:
    """The section."""
    section = Section("costs", "Time and memory")
    profile, document = material.profile, document_of(material.run)
    if profile is None and not (document or {}).get("memory"):
        section.missing = ("Give a batch and a loss, or a profile: with wf.profile() as p: …, then "
                           "wf.report(model, profile=p).")  # fmt: skip
        return section
    parts: list[Markup | None] = []
    if profile is not None:
        time, peak = time_text(profile.seconds), bytes_text(profile.peak_bytes)
        flops = sum(row.flops for row in profile.rows(by="op"))
        parts += [figures([("the step", time), ("peak memory", peak), ("arithmetic", count_text(flops, "FLOP"))]),
                  tag("div", *_pictures(profile), class_="charts")]  # fmt: skip
        section.lines.append(f"the step takes {time} and {peak} at most")
        for by, what in (("op", "By operation"), ("line", "By source line"), ("module", "By module")):
            parts.append(tag("h3", what))
            parts.append(_rows(profile.rows(by=by)))
        parts.append(_alive(profile.alive_at_peak))
    else:
        assert document is not None
        parts.append(_over_events(document))
        section.lines.append(f"at most {bytes_text(max(document['memory']))} alive in the recorded step")
    section.body = join(parts)
    return section


def _pictures(profile: Any) -> list[Markup]:
    points = profile.memory
    if len(points) < 2:
        return []
    # Time is even on the page, events are not: the highest of each stretch of time.
    highest = in_columns(points, 101, profile.seconds)
    scale, unit = _memory_unit(max(highest))
    sizes = {"in use": [size / scale for size in highest]}
    return [curves(sizes, f"Memory over the step, {unit}", across="% of the step", start=0, unit="{:.3g}")]


def _memory_unit(largest: float) -> tuple[float, str]:
    return (2**20, "MB") if largest >= 2**20 else (2**10, "KB")


def _over_events(document: dict[str, Any]) -> Markup:
    """Memory over the events of a recorded run, with a mark where backward begins."""
    sizes, events = document["memory"], document.get("events") or []
    scale, unit = _memory_unit(max(sizes))
    turn = next((at for at, event in enumerate(events) if event and event[0] == "b"), None)
    marks = {} if turn is None else {turn: "backward begins"}
    alive = {"alive": [size / scale for size in sizes]}
    picture = curves(alive, f"Memory over the recorded step, {unit}", across="event", unit="{:.3g}", marks=marks)
    words = muted("For times by operation and line give a profile: with wf.profile() as p: …")
    return join([tag("div", picture, class_="charts"), words])


def _rows(rows: list[Any]) -> Markup:
    shown = []
    for row in rows[:MOST_ROWS]:
        about = tag("small", f" {cut(row.text, 60)}") if row.text else None
        cells = (f"{row.calls:,}" if row.calls else "", _time(row.forward_seconds), _time(row.backward_seconds),
                 count_text(row.flops) if row.flops else "", bytes_text(row.bytes) if row.bytes else "")  # fmt: skip
        shown.append(tag("tr", tag("th", cut(row.name, 48), about, scope="row"),
                         tag("td", bar(row.share, f"{row.share:.1%}")),
                         *(tag("td", cell, class_="number") for cell in cells)))  # fmt: skip
    more = len(rows) - MOST_ROWS
    names = ("what", "share", "calls", "forward", "backward", "FLOP", "bytes made")
    return join([sheet(names, shown, words=(0, 1), kind="bars"),
                 muted(f"{more} more are left out.") if more > 0 else None])  # fmt: skip


def _time(seconds: float) -> str:
    return time_text(seconds) if seconds else ""


def _alive(found: list[Any]) -> Markup | None:
    if not found:
        return None
    most = found[0].bytes or 1
    rows = []
    for each in found[:MOST_ROWS]:
        where = "" if each.place.site is None else f" {each.place.site}"
        rows.append(tag("tr", tag("th", each.place.name, tag("small", where), scope="row"),
                        tag("td", bar(each.bytes / most, bytes_text(each.bytes))),
                        tag("td", f"{each.count:,}", class_="number")))  # fmt: skip
    title = tag("h3", "Alive at the highest point")
    return join([title, sheet(("made by", "bytes", "arrays"), rows, words=(0, 1), kind="bars")])
