"""`wf.graph(t)`: the graph behind a tensor, to iterate over and to read.

    graph of f32[8,3] · 1 node, 2 leaves
      %a  leaf         f32[8,3]
      %b  leaf         f32[3]
      %0  mul(%a, %b)  f32[8,3]  train.py:12  h = x * w
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wayfare.errors import ArgumentTypeError
from wayfare.graph.node import Node
from wayfare.graph.walk import reachable, split_edge
from wayfare.spec import Spec
from wayfare.tensor import Tensor

# A listing longer than this shows its beginning and its end.
_LONGEST = 200


class Graph:
    """The nodes and leaves behind some tensors, oldest first."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._roots = [t._edge or (t if t.requires_grad else None) for t in tensors]
        self._specs = [t.spec for t in tensors]
        self.nodes, self.leaves = reachable(self._roots)

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
        names: dict[Any, str] = {leaf: f"%{_letters(i)}" for i, leaf in enumerate(self.leaves)}
        names |= {node: f"%{i}" for i, node in enumerate(self.nodes)}
        rows = [(names[leaf], "leaf", repr(leaf.spec), "", "") for leaf in self.leaves]
        rows += [_row(node, names) for node in self.nodes]
        shown = " and ".join(map(repr, self._specs))
        head = f"graph of {shown} · {_count(len(self.nodes), 'node')}, {_count(len(self.leaves), 'leaf', 'leaves')}"
        return "\n".join([head, *_table(rows)])

    def __repr__(self) -> str:
        return str(self)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _letters(i: int) -> str:
    """a, b, …, z, aa, ab, …"""
    text = ""
    i += 1
    while i:
        i, rest = divmod(i - 1, 26)
        text = chr(97 + rest) + text
    return text


def _row(node: Node, names: dict[Any, str]) -> tuple[str, str, str, str, str]:
    inputs = []
    for edge in node.edges:
        target, number = split_edge(edge)
        name = names.get(target, "·")
        several = isinstance(target, Node) and target.outs is not None
        inputs.append(f"{name}.{number}" if several else name)
    # A flag that is off says nothing.
    attrs = [f"{key}={_short(value)}" for key, value in node.attrs.items() if value is not False]
    site = node.site
    specs: tuple[Spec, ...] = node.specs
    return (
        names[node],
        f"{node.op.name}({', '.join(inputs + attrs)})",
        ", ".join(map(repr, specs)),
        "" if site is None else str(site),
        "" if site is None else site.text,
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _table(rows: list[tuple[str, str, str, str, str]]) -> list[str]:
    if len(rows) > _LONGEST:
        left_out = len(rows) - _LONGEST
        middle = ("…", f"{left_out} more", "", "", "")
        rows = [*rows[: _LONGEST // 2], middle, *rows[-_LONGEST // 2 :]]
    widths = [min(max((len(row[i]) for row in rows), default=0), 48) for i in range(4)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        text = row[4] if len(row[4]) <= 60 else row[4][:57] + "..."
        lines.append(("  " + "  ".join([*cells, text])).rstrip())
    return lines


def graph(*tensors: Tensor) -> Graph:
    """The graph behind one or more tensors: print it, iterate over its nodes, ask for its depth.

    Each line shows a node with its op, inputs, shape and the user's line that made it; `·` stands for an input that
    requires no gradient.
    """
    for t in tensors:
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(f"graph: expected a Tensor, not {type(t).__name__}")
    return Graph(list(tensors))
