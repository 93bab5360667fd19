"""A graph, or two of them compared, in the viewer."""

from __future__ import annotations

from typing import Any

from wayfare.core.errors import ArgumentTypeError
from wayfare.see.debug.run import Run
from wayfare.see.graph.diff import GraphDiff
from wayfare.see.graph.text import Graph


def view(what: Any) -> Run:
    """A graph or a comparison of two as a page: `wf.debug.view(wf.graph(loss)).save("graph.html")`, or `.show()`.

    It is a run without what only a run knows: values, statistics and gradients.
    """
    if not isinstance(what, (Graph, GraphDiff)):
        raise ArgumentTypeError(f"view: expected a graph or the difference of two, not {type(what).__name__}",
                                fix="Give wf.graph(loss), or wf.graph(a).diff(wf.graph(b)).")  # fmt: skip
    document = what.document()
    return Run(document["title"], None, document)
