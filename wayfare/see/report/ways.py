"""Eager versus compiled: the same step run in every way there is."""

from __future__ import annotations

from wayfare.core.format import counted, time_text
from wayfare.see.pages.markup import Markup, join, muted, tag
from wayfare.see.report.section import Material, Section

__all__ = ["ways_section"]


def ways_section(material: Material) -> Section:
    """The section."""
    section = Section("ways", "Eager versus compiled")
    found = material.comparison
    if found is None:
        section.missing = ("Give comparison=wf.profile.compare(step, batches), or comparison=True with a batch and a "
                           "loss (the step then runs some dozens of times).")  # fmt: skip
        return section
    section.body = join([
        muted(f"The same step ({found.name}, {counted(found.batches, 'batch')}) eagerly and compiled: "
              "the time of an iteration, its memory, and what each way was seen to do."),
        tag("div", Markup(found.html()), class_="scroll"),
    ])  # fmt: skip
    section.lines = [", ".join(f"{row.way} {time_text(row.seconds)}" for row in found.rows) + " an iteration"]
    return section
