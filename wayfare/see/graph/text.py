"""`wf.graph(t)`: the graph behind a tensor, to iterate over, to read, to count and to compare.

    graph of f32[8,3] · 1 node, 2 leaves
      %a  leaf         f32[8,3]
      %b  leaf         f32[3]
      %0  mul(%a, %b)  f32[8,3]  train.py:12  h = x * w
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wayfare.core.errors import ArgumentTypeError
from wayfare.core.format import counted
from wayfare.core.node import Node
from wayfare.core.tensor import Tensor
from wayfare.core.walk import reachable, split_edge
from wayfare.see.graph.diff import GraphDiff
from wayfare.see.graph.document import graph_document
from wayfare.see.graph.drawing import as_html, as_svg
from wayfare.see.graph.listing import listing
from wayfare.see.graph.naming import Names
from wayfare.see.graph.node_info import values_kept
from wayfare.see.graph.stats import GraphStats


class Graph:
    """The nodes and leaves behind some tensors, oldest first."""

    def __init__(self, tensors: list[Tensor], modules: Any = None) -> None:
        self._tensors = tensors
        # What the graph is of: the edge of each tensor, None for one that requires no gradient.
        self.roots = [t._edge or (t if t.requires_grad else None) for t in tensors]
        self.nodes, self.leaves = reachable(self.roots)
        self.names = Names(self.nodes, self.leaves, modules)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def depth(self) -> int:
        """The number of nodes on the longest way from a leaf to a root."""
        depths: dict[Any, int] = {}
        for node in self.nodes:
            below = [depths.get(split_edge(edge)[0], 0) for edge in node.edges if edge is not None]
            depths[node] = 1 + max(below, default=0)
        return max(depths.values(), default=0)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    @property
    def title(self) -> str:
        """What it is the graph of, and how large it is."""
        shown = " and ".join(repr(t.spec) for t in self._tensors)
        return f"graph of {shown} · {counted(len(self.nodes), 'node')}, {counted(len(self.leaves), 'leaf', 'leaves')}"

    def text(self, values: bool = False, fold: bool = False, whole: bool = False) -> str:
        """The listing: a line for each leaf and node.

        `values` shows under a node what came out of it, where something still keeps it: small values whole, others by
        statistics; after a backward pass little is left. `fold` shows the turns of a loop once (×37). A long listing is
        shown by its beginning and end, unless it is wanted `whole`.
        """
        found = self.values() if values else None
        return listing(self.nodes, self.leaves, self.names, self.title, values=found, folded=fold, whole=whole)

    def values(self) -> dict[tuple[Node, int], Any]:
        """(node, output number) → array, for every result that is still alive: kept for a gradient, or a root."""
        found = values_kept(self.nodes)
        for tensor in self._tensors:
            target, number = split_edge(tensor._edge)
            if target is not None:
                found[target, number] = tensor._array
        return found

    def stats(self) -> GraphStats:
        """Nodes, depth, parameters, arithmetic and bytes, by op, line and (if a model was given) module."""
        return GraphStats(self.nodes, self.leaves, self.depth, self.names)

    def diff(self, other: Graph) -> GraphDiff:
        """What is different in another graph: print it, or look at its `added`, `removed`, `changed` and `lines`."""
        if not isinstance(other, Graph):
            raise ArgumentTypeError(f"diff: expected a graph, not {type(other).__name__}",
                                    fix="Write wf.graph(a).diff(wf.graph(b)).")  # fmt: skip
        return GraphDiff(self, other)

    def document(self) -> dict[str, Any]:
        """The graph in the form that the viewer shows, without values."""
        return graph_document(self, self.title)

    def svg(self) -> str:
        """A drawing of the graph, for at most a few hundred nodes."""
        return as_svg(self.nodes, self.leaves, self.names)

    def _repr_html_(self) -> str:
        return as_html(self)


def graph(*tensors: Any, modules: Any = None) -> Graph:
    """The graph behind one or more tensors: print it, iterate over its nodes, ask for its `stats()` or a `diff()`.

    Each line shows a node with its op, inputs, shape and the user's line that made it; `·` stands for an input that
    requires no gradient. With a model, `wf.graph(loss, model)`, parameters have their names; `modules` takes a
    dictionary of several modules (or tensors) by name.
    """
    given = list(tensors)
    if len(given) > 1 and modules is None and not isinstance(given[-1], Tensor) and hasattr(given[-1], "named_modules"):
        modules = given.pop()
    fix = "Give what was computed with the model first: wf.graph(loss, model)."
    if not given:
        raise ArgumentTypeError("graph: expected at least one Tensor", fix=fix)
    for t in given:
        if not isinstance(t, Tensor):
            hint = fix if hasattr(t, "named_modules") else ""
            if isinstance(t, (list, tuple)):
                hint = "Give its tensors one by one: wf.graph(*outputs)."
            raise ArgumentTypeError(f"graph: expected a Tensor, not {type(t).__name__}", fix=hint)
    return Graph(given, modules)
