"""Automatic batching: how many calls were recorded, and how they ran together."""

from __future__ import annotations

from typing import Any

from wayfare.core.format import cut, time_text
from wayfare.see.pages.charts import bar
from wayfare.see.pages.markup import Markup, figures, join, muted, row, sheet, tag
from wayfare.see.report.section import Material, Section

__all__ = ["batching_section"]

MOST_KINDS = 20


def batching_section(material: Material) -> Section:
    """The section."""
    section = Section("batching", "Batching")
    stats = material.batching
    if stats is not None and not stats.nodes and (stats.paths is not None or stats.looped):
        section.body = join([
            muted("The model is written for one example. Examples that took a path through the Python code which was "
                  "recorded before ran in groups, without Python. The others ran one after another."),
            tag("pre", str(stats)),
        ])  # fmt: skip
        section.lines = str(stats).splitlines()[:1]
        return section
    if stats is None or not stats.nodes:
        section.missing = ("Nothing was batched in this step. A model written for one example runs over many with "
                           "wf.map(model, examples); then give batching=wf.batching.last().")  # fmt: skip
        return section
    times = {
        "recording (Python runs the examples)": stats.seconds_recording, "scheduling": stats.seconds_scheduling,
        "running": stats.seconds_running,
    }  # fmt: skip
    section.body = join([
        muted("The model is written for one example. Its calls for all examples were recorded, and equal ones ran "
              "together as one group; the graph's batching view shows them side by side."),
        figures([("calls", f"{stats.nodes:,}"), ("groups", f"{stats.groups:,}"),
                 ("calls a group", f"{stats.mean_group:.1f}"), ("rounds", f"{stats.rounds:,}"),
                 ("inputs gathered", f"{stats.gathers:,}"), ("already contiguous", f"{stats.copies_avoided:,}")]),
        tag("h3", "Where the time went"), _times(times, stats.seconds),
        tag("h3", "What ran together"), _kinds(stats.kinds),
    ])  # fmt: skip
    section.lines = [f"{stats.nodes:,} calls ran as {stats.groups:,} groups of {stats.mean_group:.1f} on average"]
    return section


def _times(times: dict[str, float], whole: float) -> Markup:
    rows = [row(name, bar(seconds / whole if whole else 0.0, time_text(seconds))) for name, seconds in times.items()]
    return sheet(("", ""), rows, kind="bars")


def _kinds(kinds: list[Any]) -> Markup:
    """Calls by name; a name may stand for several kinds, which differ in shapes or attributes."""
    by_name: dict[str, list[Any]] = {}
    for kind in kinds:
        by_name.setdefault(kind.name, []).append(kind)
    order = sorted(by_name.items(), key=lambda item: -sum(kind.nodes for kind in item[1]))
    most = max((sum(kind.nodes for kind in same) for _, same in order), default=1)
    rows = []
    for name, same in order[:MOST_KINDS]:
        calls, groups = sum(kind.nodes for kind in same), sum(kind.groups for kind in same)
        cells = (len(same), groups, f"{calls / max(groups, 1):.1f}", max(kind.largest for kind in same))
        rows.append(row(cut(name, 60), bar(calls / most, f"{calls:,}"), *cells))
    more = len(order) - MOST_KINDS
    return join([
        sheet(("what", "calls", "kinds", "groups", "a group", "largest"), rows, words=(0, 1), kind="bars"),
        muted("Calls of one name but of different kinds (other shapes, other attributes, other shared tensors) cannot "
              "run together." + (f" {more} more names are left out." if more > 0 else "")),
    ])  # fmt: skip
