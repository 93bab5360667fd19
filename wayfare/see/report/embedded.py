"""The graph of one step, in the viewer, inside the page."""

from __future__ import annotations

import re
from typing import Any

from wayfare.core.format import counted
from wayfare.see.pages.markup import join, muted, tag
from wayfare.see.report.section import Material, Section
from wayfare.see.viewer import page

__all__ = ["document_of", "graph_section"]


def document_of(run: Any) -> dict[str, Any] | None:
    """The run's document; a document stays one."""
    return run if run is None or isinstance(run, dict) else dict(run.document())


def graph_section(material: Material) -> Section:
    """The section."""
    section = Section("graph", "The graph")
    document = document_of(material.run)
    if document is None:
        section.missing = ("Give a batch and a loss, or a run: with wf.debug.record() as run: …, then "
                           "wf.report(model, run=run).")  # fmt: skip
        return section
    viewer = page(document, "One step")
    nodes = len(document.get("nodes", {}).get("op", ()))
    events = document.get("events") or ()
    back = sum(1 for event in events if event and event[0] == "b")
    section.body = join([
        muted("One step as it was recorded: pan and zoom, open and close modules, click a node for its values and its "
              "line; the slider and the arrow keys step forward and then backward through the run."),
        tag("div", tag("iframe", srcdoc=viewer, title="The graph of one step", loading="lazy",
                       sandbox="allow-scripts"),
            tag("button", "Full screen", type="button", class_="full"), class_="viewer"),
    ])  # fmt: skip
    section.scripts = re.findall(r"script-src ('sha256-[A-Za-z0-9+/=]+')", viewer.partition("<style")[0])
    section.lines = [f"{counted(nodes, 'value')} recorded, {counted(back, 'step')} backward"]
    return section
