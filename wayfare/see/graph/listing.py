"""A graph as text: one line for a node, with values under it and loops folded where that is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from wayfare.core.array_summary import numbers_text
from wayfare.core.format import counted, cut
from wayfare.core.node import Node
from wayfare.core.walk import split_edge
from wayfare.see.graph.folding import One, Part, fold
from wayfare.see.graph.naming import Names
from wayfare.see.graph.node_info import CallSites, kept_inputs

# A listing longer than this shows its beginning and its end.
_LONGEST = 200
# A value of at most this many elements is shown whole.
_SMALL = 6

Row = tuple[str, str, str, str, str]


def described(array: Any) -> str:
    """A value in a few words: small ones whole, others by their statistics."""
    return f"= {_plain(array.tolist())}" if array.size <= _SMALL else numbers_text(array)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def short(value: Any, width: int = 40) -> str:
    """An attribute, cut to a maximal number of characters."""
    try:
        text = repr(value)
    except Exception as error:  # The text of a user's object is the user's code, and may fail.
        text = f"<{type(value).__name__}: {type(error).__name__} in its repr>"
    return cut(text, width)


def telling(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that are listed: without flags that are off, and without the keys of random numbers."""
    return {name: value for name, value in attrs.items() if value is not False and name != "key"}


def attrs_text(attrs: Mapping[str, Any]) -> list[str]:
    """The attributes as they are listed."""
    return [f"{name}={short(value)}" for name, value in telling(attrs).items()]


def input_names(node: Node, names: Names) -> list[str]:
    """What a node was given, by name; the output's number behind the name of a node that has several."""
    shown = []
    for edge in node.edges:
        target, number = split_edge(edge)
        several = isinstance(target, Node) and target.outs is not None
        shown.append(f"{names[target]}.{number}" if several else names[target])
    return shown


def key_of(node: Node) -> tuple[Any, ...]:
    """What two turns of a loop have in common: op, place in the code, attributes, shapes and dtypes."""
    attrs = tuple(attrs_text(node.attrs)) if node.attrs else ()
    return (node.op.name, id(node.code), node.offset, node.shape, node.dtype.num, attrs)


class Listing:
    """The lines of a graph."""

    def __init__(self, nodes: Sequence[Node], leaves: Sequence[Any], names: Names) -> None:
        self._nodes, self._leaves, self._names = nodes, leaves, names
        self._sites = CallSites()
        self._values: Mapping[tuple[Any, int], Any] | None = None

    def lines(self, values: Mapping[tuple[Any, int], Any] | None, folded: bool, longest: int | None) -> list[str]:
        """All lines; a number of lines they are cut to, unless None."""
        self._values = values
        rows: list[Row | str] = []
        for leaf in self._leaves:
            rows.append((self._names[leaf], "leaf", repr(leaf.spec), "", ""))
            if values is not None:
                rows.append(f"      {described(leaf._array)}")
        if folded:
            self._folded(fold([key_of(node) for node in self._nodes]), "", rows)
        else:
            shown = self._nodes
            if longest is not None and len(rows) + len(shown) > longest:
                # Lines that will be cut are not written at all.
                head = max(0, longest // 2 + 1 - len(rows))
                shown = [*shown[:head], *shown[len(shown) - longest // 2 - 1 :]]
            for node in shown:
                self._add(node, "", rows)
            left_out = len(self._nodes) - len(shown)
            return _table(rows, longest, left_out)
        return _table(rows, longest, 0)

    def _add(self, node: Node, margin: str, rows: list[Row | str]) -> None:
        site = self._sites.of(node)
        rows.append((
            margin + self._names[node],
            f"{node.op.name}({', '.join([*self._inputs(node), *attrs_text(node.attrs)])})",
            ", ".join(map(repr, node.specs)),
            "" if site is None else str(site),
            "" if site is None else site.text,
        ))  # fmt: skip
        if self._values is not None:
            for number in range(len(node.specs)):
                array = self._values.get((node, number))
                if array is not None:
                    which = f".{number} " if node.outs is not None else ""
                    rows.append(f"  {margin}    {which}{described(array)}")

    def _inputs(self, node: Node) -> list[str]:
        shown = input_names(node, self._names)
        kept = kept_inputs(node) if self._values is not None and "·" in shown else None
        if kept is not None:
            for i, name in enumerate(shown):
                if name == "·" and isinstance(kept[i], np.ndarray) and kept[i].ndim == 0:
                    shown[i] = _plain(kept[i].item())
        return shown

    def _folded(self, parts: Iterable[Part], margin: str, rows: list[Row | str]) -> None:
        for part in parts:
            if isinstance(part, One):
                self._add(self._nodes[part.start], margin, rows)
                continue
            last = self._names[self._nodes[part.start + part.size - 1]]
            rows.append(f"  {margin}┌ ×{part.times} · {counted(part.width, 'node')} each, to {last}")
            self._folded(part.body, margin + "│ ", rows)
            rows.append(f"  {margin}└")


def _table(rows: list[Row | str], longest: int | None, left_out: int) -> list[str]:
    if longest is not None and len(rows) + left_out > longest:
        left_out += len(rows) - longest
        middle: Row = ("…", f"{left_out} more", "", "", "")
        rows = [*rows[: longest // 2], middle, *rows[len(rows) - longest // 2 :]]
    widths = [min(max((len(row[i]) for row in rows if isinstance(row, tuple)), default=0), 48) for i in range(4)]
    lines = []
    for row in rows:
        if isinstance(row, str):
            lines.append(row)
            continue
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(("  " + "  ".join([*cells, cut(row[4], 60)])).rstrip())
    return lines


def listing(
    nodes: Sequence[Node], leaves: Sequence[Any], names: Names, head: str, *,
    values: Mapping[tuple[Any, int], Any] | None = None, folded: bool = False, whole: bool = False,
) -> str:  # fmt: skip
    """The text of a graph under its headline."""
    lines = Listing(nodes, leaves, names).lines(values, folded, None if whole else _LONGEST)
    return "\n".join([head, *lines])
