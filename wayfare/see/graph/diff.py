"""What changed between two graphs: the same model on a short and a long sequence, two trees, before and after a layer
was added. `print(wf.graph(a).diff(wf.graph(b)))`."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from wayfare.core.callsite import Site
from wayfare.core.format import counted, cut
from wayfare.core.node import Node
from wayfare.see.graph.document import diff_document
from wayfare.see.graph.folding import One, fold
from wayfare.see.graph.listing import attrs_text, key_of
from wayfare.see.graph.matching import Matching, Side

if TYPE_CHECKING:
    from wayfare.see.graph.text import Graph

# Lines of one section of the text.
_TOP = 12


class LineChange:
    """A line of code that made more or fewer nodes: how often it ran where that can be told, and which ops."""

    __slots__ = ("after", "before", "ops", "site", "times_after", "times_before")

    def __init__(self, site: Site | None, before: Counter[Any], after: Counter[Any]) -> None:
        self.site = site
        # Nodes that the line made.
        self.before, self.after = before.total(), after.total()
        times_before, times_after = math.gcd(*before.values()), math.gcd(*after.values())
        pattern = {key: n // times_after for key, n in after.items()} if times_after else {}
        alike = {key: n // times_before for key, n in before.items()} == pattern if times_before else False
        # How often it ran; None where it did not do the same each time.
        self.times_before: int | None = times_before if alike else None
        self.times_after: int | None = times_after if alike else None
        self.ops = list(dict.fromkeys(key[0] for key in (after or before)))

    def __str__(self) -> str:
        where = "(no line)" if self.site is None else f"{self.site}  {cut(self.site.text, 44)}".rstrip()
        ops = _listed(self.ops)
        if self.times_after is not None:
            return f"{where}: ran {counted(self.times_after, 'time')}, not {self.times_before:,} ({ops})"
        if not self.before or not self.after:
            return f"{where}: {'new' if self.after else 'gone'}, {counted(self.before or self.after, 'node')} ({ops})"
        return f"{where}: {counted(self.after, 'node')}, not {self.before:,}"


class GraphDiff:
    """The difference of two graphs; true if there is any.

    `same` has pairs of nodes (before, after), `changed` has triples with what changed, `added` the nodes that only the
    second graph has, `removed` those that only the first has; `added_leaves` and `removed_leaves` likewise; `lines` has
    a `LineChange` for each line that made more or fewer nodes.
    """

    def __init__(self, before: Graph, after: Graph) -> None:
        self.before, self.after = before, after
        a = Side(before.nodes, before.leaves, before.roots, before.names.path)
        b = Side(after.nodes, after.leaves, after.roots, after.names.path)
        match = Matching(a, b)
        self.same: list[tuple[Node, Node]] = []
        self.changed: list[tuple[Node, Node, str]] = []
        for i, j in enumerate(match.of):
            if j >= 0 and a.exact[i] == b.exact[j]:
                self.same.append((a.nodes[i], b.nodes[j]))
            elif j >= 0:
                self.changed.append((a.nodes[i], b.nodes[j], _what(a, b, i, j)))
        self.removed = [a.nodes[i] for i, j in enumerate(match.of) if j < 0]
        self.added = [b.nodes[j] for j, i in enumerate(match.back) if i < 0]
        met = set(match.leaves.values())
        self.removed_leaves = [leaf for leaf in a.leaves if leaf not in match.leaves]
        self.added_leaves = [leaf for leaf in b.leaves if leaf not in met]
        self.leaf_pairs: dict[Any, Any] = match.leaves
        self.lines = _line_changes(a, b)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.added_leaves or self.removed_leaves)

    # -- text

    def __str__(self) -> str:
        sizes = f"{counted(len(self.before), 'node')} before, {len(self.after):,} after"
        if not self:
            return f"graphs compared: {sizes} · no difference"
        parts = [f"{len(nodes):,} {word}" for word, nodes in (
            ("added", self.added), ("removed", self.removed), ("changed", self.changed), ("the same", self.same))
            if nodes]  # fmt: skip
        lines = [f"graphs compared: {sizes} · {', '.join(parts)}"]
        lines += _shortened([f"  {change}" for change in self.lines])
        for word, leaves, graph in (
            ("added", self.added_leaves, self.after), ("removed", self.removed_leaves, self.before)
        ):  # fmt: skip
            lines += _shortened([f"  {word}: leaf {graph.names[leaf]} {leaf.spec!r}" for leaf in leaves])
        lines += _shortened(self._renamed())
        lines += _shortened(_changes(self))
        lines += _section("added", self.added, self.after)
        lines += _section("removed", self.removed, self.before)
        return "\n".join(lines)

    __repr__ = __str__

    def _renamed(self) -> list[str]:
        names = [(self.before.names.path(x), self.after.names.path(y)) for x, y in self.leaf_pairs.items()]
        return [f"  renamed: leaf {old} is now {new}" for old, new in names if old and new and old != new]

    def document(self) -> dict[str, Any]:
        """Both graphs as one document, in the form that the viewer shows."""
        return diff_document(self)


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else ", ".join(names[:5]) + f" and {len(names) - 5} more"


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _TOP else [*lines[: _TOP - 1], f"  … {len(lines) - _TOP + 1} more"]


def _what(a: Side, b: Side, i: int, j: int) -> str:
    """What is different about two nodes that were paired, in a few words."""
    x, y = a.nodes[i], b.nodes[j]
    found = []
    if x.op.name != y.op.name:
        found.append(f"op {x.op.name} → {y.op.name}")
    shapes_x, shapes_y = ([spec.shape for spec in n.specs] for n in (x, y))
    if x.specs != y.specs:
        word = "shape" if shapes_x != shapes_y else "dtype"
        found.append(f"{word} {', '.join(map(repr, x.specs))} → {', '.join(map(repr, y.specs))}")
    if x.op.name == y.op.name and attrs_text(x.attrs) != attrs_text(y.attrs):
        old, new = attrs_text(x.attrs), attrs_text(y.attrs)
        gone, come = [t for t in old if t not in new], [t for t in new if t not in old]
        found.append(f"{', '.join(gone) or 'nothing'} → {', '.join(come) or 'nothing'}")
    return ", ".join(found) or "line"


def _line_changes(a: Side, b: Side) -> list[LineChange]:
    """Lines with another number of nodes, in the order in which they first ran."""
    lines: dict[Any, tuple[Site | None, tuple[Counter[Any], Counter[Any]]]] = {}
    for number, side in enumerate((a, b)):
        for node, loose in zip(side.nodes, side.loose, strict=True):
            if loose[1] not in lines:
                lines[loose[1]] = (side.sites.of(node), (Counter(), Counter()))
            # Two calls of one op on a line are at two places in the code.
            lines[loose[1]][1][number][node.op.name, node.offset] += 1
    return [LineChange(site, *counts) for site, counts in lines.values() if counts[0].total() != counts[1].total()]


def _changes(diff: GraphDiff) -> list[str]:
    """Changes of one kind in one line."""
    groups: dict[tuple[str, str], list[Node]] = {}
    for _, node, what in diff.changed:
        groups.setdefault((what, node.op.name), []).append(node)
    lines = []
    for (what, op), nodes in groups.items():
        site = nodes[0].site
        where = "" if site is None else f"  {site}"
        times = f" ×{len(nodes)}" if len(nodes) > 1 else ""
        lines.append(f"  changed: {diff.after.names[nodes[0]]} {op}{times}  {what}{where}")
    return lines


def _section(word: str, nodes: list[Node], graph: Graph) -> list[str]:
    lines = []
    for part in fold([key_of(node) for node in nodes]):
        node = nodes[part.start]
        if isinstance(part, One):
            site = node.site
            where = "" if site is None else f"  {site}  {cut(site.text, 40)}".rstrip()
            lines.append(f"  {word}: {graph.names[node]} {node.op.name}  {', '.join(map(repr, node.specs))}{where}")
        else:
            inside = nodes[part.start : part.start + part.width]
            ops = _listed([n.op.name for n in inside])
            site = node.site
            where = "" if site is None else f"  {site}"
            lines.append(f"  {word}: {graph.names[node]} … ×{part.times} of ({ops}){where}")
    return _shortened(lines)
