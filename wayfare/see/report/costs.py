"""Time and memory: what the step spends its time on, memory over the run, and what was alive at the highest point."""

from __future__ import annotations

from typing import Any

from wayfare.core.format import bytes_text, count_text, time_text
from wayfare.see.pages.markup import Markup, figures, join, muted, tag
from wayfare.see.profile.page import alive_sheet, cost_sheet, legend, memory_curve, memory_over_time
from wayfare.see.report.embedded import document_of
from wayfare.see.report.section import Material, Section

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
                  tag("div", memory_over_time(profile), class_="charts") if profile.peak_bytes else None]  # fmt: skip
        section.lines.append(f"the step takes {time} and {peak} at most")
        for by, what in (("op", "By operation"), ("line", "By source line"), ("module", "By module")):
            parts += [tag("h3", what), legend() if by == "op" else None]
            parts.append(cost_sheet(by, profile.rows(by=by), MOST_ROWS))
        if profile.alive_at_peak:
            parts += [tag("h3", "Alive at the highest point"), alive_sheet(profile.alive_at_peak, MOST_ROWS)]
    else:
        assert document is not None
        parts.append(_over_events(document))
        section.lines.append(f"at most {bytes_text(max(document['memory']))} alive in the recorded step")
    section.body = join(parts)
    return section


def _over_events(document: dict[str, Any]) -> Markup:
    """Memory over the events of a recorded run, with a mark where backward begins."""
    events = document.get("events") or []
    turn = next((at for at, event in enumerate(events) if event and event[0] == "b"), None)
    marks = {} if turn is None else {turn: "backward begins"}
    picture = memory_curve("alive", document["memory"], "Memory over the recorded step", "event", 1, marks)
    words = muted("For times by operation and line give a profile: with wf.profile() as p: …")
    return join([tag("div", picture, class_="charts"), words])
