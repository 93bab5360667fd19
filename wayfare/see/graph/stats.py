"""Numbers about a graph: how large, how deep, how much arithmetic, how many bytes; by op, line and module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.core.errors import ArgumentError
from wayfare.core.format import bytes_text, count_text, counted, cut
from wayfare.core.node import Node
from wayfare.core.walk import split_edge
from wayfare.see.graph.naming import Names
from wayfare.see.graph.node_info import CallSites, CountedOnce, arrays_in, bytes_of, flops_of, inner_nodes

# Rows of a table that are shown.
_TOP = 12
NO_PARAMETERS = "(no parameters)"


class StatsRow:
    """The part of one op, line or module."""

    __slots__ = ("bytes", "flops", "kept", "name", "nodes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes = 0
        self.flops = 0
        # Bytes kept for the backward pass, and bytes of all results.
        self.kept = 0
        self.bytes = 0

    def __repr__(self) -> str:
        return (f"StatsRow({self.name!r}, nodes={self.nodes}, flops={self.flops}, kept={self.kept}, "
                f"bytes={self.bytes})")  # fmt: skip


class GraphStats:
    """What `graph(t).stats()` gives: totals as attributes, and rows `by_op`, `by_line`, `by_module`."""

    def __init__(self, nodes: Sequence[Node], leaves: Sequence[Any], depth: int, names: Names) -> None:
        self.nodes = len(nodes)
        self.leaves = len(leaves)
        self.depth = depth
        # Numbers in the leaves: what is trained.
        self.parameters = sum(math.prod(leaf.shape) for leaf in leaves)
        self.parameter_bytes = bytes_of(leaf.spec for leaf in leaves)
        # Arithmetic operations forward, and how many nodes could not say.
        self.flops = 0
        self.uncounted = 0
        self.kept = 0
        self.bytes = 0
        self._rows: dict[str, dict[str, StatsRow]] = {"op": {}, "line": {}}
        if names.has_modules:
            self._rows["module"] = {}
        # Memory that is there anyway, or was counted with an earlier node.
        memory = CountedOnce()
        for leaf in leaves:
            memory.new(leaf._array)
        sites = CallSites()
        for node in nodes:
            self._enter(node, sites, names, memory)

    @property
    def by_op(self) -> list[StatsRow]:
        """One row for each op, the most arithmetic first."""
        return self.rows("op")

    @property
    def by_line(self) -> list[StatsRow]:
        """One row for each line of the user's code."""
        return self.rows("line")

    @property
    def by_module(self) -> list[StatsRow]:
        """One row for each module whose parameters some op reads; all other ops are in one row."""
        return self.rows("module")

    def rows(self, by: str) -> list[StatsRow]:
        """The rows by "op", "line" or "module", the most arithmetic first."""
        if by == "module" and by not in self._rows:
            raise ArgumentError("stats: the modules are not known", fix="Give the model: wf.graph(loss, model).")
        if by not in self._rows:
            raise ArgumentError(f"stats: there are no rows by {by!r}", fix="Use 'op', 'line' or 'module'.")
        return sorted(self._rows[by].values(), key=lambda row: (-row.flops, -row.nodes, row.name))

    def _enter(self, node: Node, sites: CallSites, names: Names, memory: CountedOnce) -> None:
        flops = flops_of(node)
        made = 0 if node.op.view else bytes_of(node.specs)
        kept = sum(memory.new(array) for inner in (node, *inner_nodes(node)) for array in arrays_in(inner.kept))
        if flops is None:
            self.uncounted += 1
        self.flops += flops or 0
        self.kept += kept
        self.bytes += made
        site = sites.of(node)
        where = "(no line)" if site is None else f"{site}  {site.text}".strip()
        groups = {"op": node.op.name, "line": where}
        if names.has_modules:
            groups["module"] = _module(node, names)
        for by, name in groups.items():
            row = self._rows[by].setdefault(name, StatsRow(name))
            row.nodes += 1
            row.flops += flops or 0
            row.kept += kept
            row.bytes += made

    def __str__(self) -> str:
        lines = [
            f"{counted(self.nodes, 'node')}, {self.depth:,} deep · {counted(self.leaves, 'leaf', 'leaves')} of "
            f"{counted(self.parameters, 'number')} ({bytes_text(self.parameter_bytes)})",
            f"forward {count_text(self.flops, 'FLOP')} · results {bytes_text(self.bytes)} · kept for backward "
            f"{bytes_text(self.kept)}",
        ]  # fmt: skip
        if self.uncounted:
            lines.append(f"the arithmetic of {counted(self.uncounted, 'node')} is not known and not counted")
        for by in self._rows:
            lines += ["", *self._table(by)]
        return "\n".join(lines)

    __repr__ = __str__

    def table(self, by: str = "op") -> str:
        """The rows by "op", "line" or "module" as a table of 80 columns."""
        self.rows(by)
        return "\n".join(self._table(by))

    def _table(self, by: str) -> list[str]:
        rows = self.rows(by)
        lines = [f"{'by ' + by:<34}{'nodes':>8}{'flops':>12}{'results':>12}{'kept':>12}"]
        for row in rows[:_TOP]:
            lines.append(f"{cut(row.name, 33):<34}{row.nodes:>8,}{count_text(row.flops):>12}{bytes_text(row.bytes):>12}"
                         f"{bytes_text(row.kept):>12}")  # fmt: skip
        if len(rows) > _TOP:
            lines.append(f"… {len(rows) - _TOP} more")
        return lines


def _module(node: Node, names: Names) -> str:
    """The module whose parameter a node reads first."""
    for edge in node.edges:
        target = split_edge(edge)[0]
        found = None if target is None or isinstance(target, Node) else names.module(target)
        if found is not None:
            return found[0] or found[1] or NO_PARAMETERS
    return NO_PARAMETERS

