"""A graph, or two of them compared, as the document that the viewer shows: columns of numbers, texts only once.

It has the form of a recorded run without what only a run knows (values, gradients, times). Of a comparison it has the
nodes of the second graph, then those that only the first one has, and beside them

    "diff": {"same": [node…], "added": [node…], "removed": [node…], "changed": [[-1, node, what]…],
             "summary": the lines of the comparison as text}

where a node that changed is shown as it is in the second graph only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wayfare.core.node import Node
from wayfare.core.walk import split_edge
from wayfare.see.graph.listing import attrs_text
from wayfare.see.graph.naming import Names
from wayfare.see.graph.node_info import arrays_in, bytes_of
from wayfare.see.run_document import COLUMNS, LEAF, OP, Places, Strings, heading

if TYPE_CHECKING:
    from wayfare.see.graph.diff import GraphDiff
    from wayfare.see.graph.text import Graph

_NONE = -1


class Writer:
    """Enters nodes in a document."""

    def __init__(self, title: str) -> None:
        self._string = Strings()
        self._places = Places(self._string)
        self._modules: dict[str, int] = {}
        self._module_rows: list[list[int]] = []
        # (path of a module, how manieth call) → (its number, that of the call around it); what the last one has read.
        self._calls: dict[tuple[str, int], tuple[int, int]] = {}
        self._turns: dict[str, tuple[int, set[int]]] = {}
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        # (node, output number) or leaf → its number in the document; a node that another stands for has that one's.
        self.numbers: dict[Any, int] = {}
        # Node or leaf → the numbers of what was entered for it.
        self.rows: dict[Any, list[int]] = {}
        self._title = title

    def enter(self, nodes: Sequence[Node], leaves: Sequence[Any], used: set[Any], names: Names) -> None:
        """Enter leaves and nodes; `used` has the (node, output number) pairs that something reads."""
        for leaf in leaves:
            self.numbers[leaf] = row = self._row(
                op="leaf", kind=LEAF, name=names.path(leaf), inputs=[], spec=leaf.spec,
            )  # fmt: skip
            self.rows[leaf] = [row]
        for node in nodes:
            inputs = []
            for edge in node.edges:
                target, number = split_edge(edge)
                key = (target, number) if isinstance(target, Node) else target
                if key in self.numbers:
                    inputs.append(self.numbers[key])
            attrs, call = ", ".join(attrs_text(node.attrs)), self._call(node, names)
            saved = sum(array.nbytes for array in arrays_in(node.kept))
            self.rows[node] = []
            for number, spec in enumerate(node.specs):
                if number and (node, number) not in used:
                    continue
                self.numbers[node, number] = row = self._row(
                    op=node.op.name, kind=OP, name="", inputs=inputs, spec=spec, attrs=attrs, call=call,
                    site=self._places(node.code, node.offset), out=number, saved=0 if number else saved,
                )  # fmt: skip
                self.rows[node].append(row)

    def _row(
        self, *, op: str, kind: int, name: str, inputs: list[int], spec: Any, attrs: str = "", site: int = _NONE,
        call: int = _NONE, out: int = 0, saved: int = 0,
    ) -> int:  # fmt: skip
        row = {
            "op": self._string(op), "kind": kind, "name": self._string(name) if name else _NONE, "inputs": inputs,
            "attrs": self._string(attrs) if attrs else _NONE, "shape": list(spec.shape),
            "dtype": self._string(spec.dtype.short), "site": site, "call": call, "example": _NONE, "saved": saved,
            "bytes": bytes_of([spec]), "out": out, "stats": _NONE, "grad": _NONE, "value": _NONE, "gradvalue": _NONE,
        }  # fmt: skip
        for column, value in row.items():
            self._columns[column].append(value)
        return len(self._columns["op"]) - 1

    def _call(self, node: Node, names: Names) -> int:
        """The call of the module whose parameters a node reads.

        A graph does not tell calls apart: one that reads a parameter for the second time is taken for another call.
        """
        leaves = [leaf for leaf in (split_edge(edge)[0] for edge in node.edges) if leaf is not None]
        known = [(leaf, names.module(leaf)) for leaf in leaves if not isinstance(leaf, Node)]
        module = next((found for _, found in known if found is not None and found[0]), None)
        if module is None:
            return _NONE
        own = {id(leaf) for leaf, found in known if found == module}
        turn, read = self._turns.get(module[0], (0, set()))
        if own & read:
            turn, read = turn + 1, set()
        self._turns[module[0]] = (turn, read | own)
        return self._called(*module, turn)

    def _called(self, path: str, kind: str, turn: int) -> int:
        above = path.rpartition(".")[0]
        if path not in self._modules:
            if above:
                self._called(above, "", turn)
            parent = self._modules[above] if above else _NONE
            self._modules[path] = len(self._modules)
            self._module_rows.append([self._string(path), self._string(kind), parent])
        if kind:
            self._module_rows[self._modules[path]][1] = self._string(kind)
        if (path, turn) not in self._calls:
            around = self._called(above, "", turn) if above else _NONE
            self._calls[path, turn] = (len(self._calls), around)
        return self._calls[path, turn][0]

    def document(self) -> dict[str, Any]:
        """The document so far."""
        steps = [rows for thing, rows in self.rows.items() if isinstance(thing, Node)]
        return heading(self._title, datetime.now(UTC)) | {
            "files": self._places.files(),
            "sites": self._places.sites,
            "modules": self._module_rows,
            "calls": [[self._modules[path], around, turn] for (path, turn), (_, around) in self._calls.items()],
            "nodes": self._columns,
            "stats": [],
            "values": [],
            # The first value that a node made, and how many if there are several.
            "events": [["f", rows[0], *([len(rows)] if len(rows) > 1 else [])] for rows in steps],
            "memory": [],
            "batching": None,
            "plans": None,
            "strings": self._string.all,
        }


def used_outputs(graph: Graph) -> set[Any]:
    """(node, output number) of everything that something reads, or that the graph is of."""
    edges = [split_edge(edge) for node in graph.nodes for edge in node.edges]
    return {pair for pair in (*edges, *(split_edge(root) for root in graph.roots)) if isinstance(pair[0], Node)}


def graph_document(graph: Graph, title: str) -> dict[str, Any]:
    """The document of one graph."""
    writer = Writer(title)
    writer.enter(graph.nodes, graph.leaves, used_outputs(graph), graph.names)
    return writer.document()


def diff_document(diff: GraphDiff) -> dict[str, Any]:
    """The document of two graphs compared."""
    writer = Writer("two graphs compared")
    writer.enter(diff.after.nodes, diff.after.leaves, used_outputs(diff.after), diff.after.names)
    # What was removed hangs on what it was made from: the nodes that are still there stand in for their old selves.
    pairs = [*diff.same, *[(old, new) for old, new, _ in diff.changed]]
    for old, new in pairs:
        for number in range(len(old.specs)):
            writer.numbers[old, number] = writer.numbers.get((new, number), writer.rows[new][0])
    writer.numbers.update({old: writer.numbers[new] for old, new in diff.leaf_pairs.items()})
    writer.enter(diff.removed, diff.removed_leaves, used_outputs(diff.before), diff.before.names)

    def rows(*groups: Iterable[Any]) -> list[int]:
        return sorted(row for group in groups for thing in group for row in writer.rows[thing])

    document = writer.document()
    document["diff"] = {
        "same": rows((new for _, new in diff.same), diff.leaf_pairs.values()),
        "added": rows(diff.added, diff.added_leaves),
        "removed": rows(diff.removed, diff.removed_leaves),
        "changed": [[_NONE, row, what] for _, new, what in diff.changed for row in writer.rows[new]],
        "summary": str(diff).splitlines(),
    }
    return document
