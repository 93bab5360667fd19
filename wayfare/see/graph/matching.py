"""Matching the nodes of two graphs.

First nodes that were computed in exactly the same way, from the leaves up: so 37 iterations of a loop are matched with
the first 37 of 40. Then, from the results down, nodes that do the same at the same line: so what follows the loop is
matched too. Then the rest, in order. Every step is linear in the number of nodes (the last one except for small rests),
and none is recursive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from wayfare.core.node import Node
from wayfare.core.walk import split_edge
from wayfare.see.graph.aligning import align
from wayfare.see.graph.listing import attrs_text
from wayfare.see.graph.node_info import CallSites

Key = tuple[Any, ...]


class Side:
    """One of the two graphs, with what its nodes are compared by."""

    def __init__(self, nodes: Sequence[Node], leaves: Sequence[Any], roots: Sequence[Any], path: Any) -> None:
        self.nodes, self.leaves, self.roots = nodes, leaves, roots
        self.path: Callable[[Any], str] = path
        self.sites = CallSites()
        self.place: dict[Any, int] = {node: i for i, node in enumerate(nodes)}
        # By op and line; and by attributes, shapes and dtypes too.
        self.loose: list[Key] = []
        self.exact: list[Key] = []
        lines: dict[Any, Hashable] = {}
        for node in nodes:
            where = (node.code, node.offset)
            if where not in lines:
                lines[where] = self._line(node)
            loose = (node.op.name, lines[where], len(node.edges))
            self.loose.append(loose)
            attrs = tuple(attrs_text(node.attrs)) if node.attrs else ()
            self.exact.append((*loose, attrs, node.shape, node.dtype.num, node.outs))

    def _line(self, node: Node) -> Hashable:
        """The line by its text, which stays when lines above it come or go; by file and number where there is none."""
        site = self.sites.of(node)
        if site is None:
            return None
        return (site.function, site.text) if site.text else (site.filename, site.line)

    def leaf_key(self, leaf: Any) -> Key:
        """What leaves of two graphs are compared by, when they are not the same tensor."""
        return (self.path(leaf), leaf.spec)


class Matching:
    """Pairs of nodes, and of leaves: `of[i]` is the number in the second graph of node i of the first, or -1."""

    def __init__(self, a: Side, b: Side) -> None:
        self.a, self.b = a, b
        self.of = [-1] * len(a.nodes)
        self.back = [-1] * len(b.nodes)
        self.leaves: dict[Any, Any] = {}
        self._match_leaves()
        self._from_leaves()
        self._from_results(a.exact, b.exact)
        self._in_order(a.exact, b.exact)
        self._from_results(a.loose, b.loose)
        self._in_order(a.loose, b.loose)
        self._replaced()
        self._leaves_in_place()

    def _pair(self, i: int, j: int) -> None:
        self.of[i], self.back[j] = j, i

    def _match_leaves(self) -> None:
        theirs = set(self.b.leaves)
        for leaf in self.a.leaves:
            if leaf in theirs:
                self.leaves[leaf] = leaf
                theirs.discard(leaf)
        left: dict[Key, deque[Any]] = {}
        for leaf in self.b.leaves:
            if leaf in theirs:
                left.setdefault(self.b.leaf_key(leaf), deque()).append(leaf)
        for leaf in self.a.leaves:
            same = left.get(self.a.leaf_key(leaf)) if leaf not in self.leaves else None
            if same:
                self.leaves[leaf] = same.popleft()

    def _from_leaves(self) -> None:
        """Nodes with equal keys and equal inputs, all the way down, are equal; equal ones are paired in order."""
        numbers: dict[Any, int] = {}
        leaf_of_b = {other: own for own, other in self.leaves.items()}
        marks_a = _whole_marks(self.a, numbers, lambda leaf: leaf)
        marks_b = _whole_marks(self.b, numbers, lambda leaf: leaf_of_b.get(leaf, leaf))
        waiting: dict[int, deque[int]] = {}
        for j, mark in enumerate(marks_b):
            waiting.setdefault(mark, deque()).append(j)
        for i, mark in enumerate(marks_a):
            same = waiting.get(mark)
            if same:
                self._pair(i, same.popleft())

    def _from_results(self, keys_a: list[Key], keys_b: list[Key]) -> None:
        """From paired results, and from what was paired before, to the inputs in the same position."""
        for edge_a, edge_b in zip(self.a.roots, self.b.roots, strict=False):
            self._try(split_edge(edge_a)[0], split_edge(edge_b)[0], keys_a, keys_b)
        # Inputs are always older: one pass from the youngest to the oldest meets every pair it makes.
        for i in range(len(self.of) - 1, -1, -1):
            j = self.of[i]
            if j >= 0:
                for edge_a, edge_b in zip(self.a.nodes[i].edges, self.b.nodes[j].edges, strict=False):
                    self._try(split_edge(edge_a)[0], split_edge(edge_b)[0], keys_a, keys_b)

    def _try(self, x: Any, y: Any, keys_a: list[Key], keys_b: list[Key]) -> None:
        i, j = self.a.place.get(x, -1), self.b.place.get(y, -1)
        if i >= 0 and j >= 0 and self.of[i] < 0 and self.back[j] < 0 and keys_a[i] == keys_b[j]:
            self._pair(i, j)

    def _in_order(self, keys_a: list[Key], keys_b: list[Key]) -> None:
        """What is left, aligned in the order in which it ran."""
        left_a = [i for i, j in enumerate(self.of) if j < 0]
        left_b = [j for j, i in enumerate(self.back) if i < 0]
        if left_a and left_b:
            for i, j in align([keys_a[i] for i in left_a], [keys_b[j] for j in left_b]):
                self._pair(left_a[i], left_b[j])

    def _replaced(self) -> None:
        """Pair nodes of different ops whose inputs and readers are paired: one op replaced the other."""
        if -1 not in self.of or -1 not in self.back:
            return
        users_a, users_b = _users(self.a), _users(self.b)
        for i, node in enumerate(self.a.nodes):
            if self.of[i] >= 0:
                continue
            for user, position in users_a.get(node, ()):
                j = self.of[user]
                edges = self.b.nodes[j].edges if j >= 0 else ()
                other = split_edge(edges[position])[0] if position < len(edges) else None
                k = self.b.place.get(other, -1)
                if k < 0 or self.back[k] >= 0 or len(users_b[self.b.nodes[k]]) != len(users_a[node]):
                    continue
                if self._same_inputs(node, self.b.nodes[k]):
                    self._pair(i, k)
                    break

    def _same_inputs(self, x: Node, y: Node) -> bool:
        if len(x.edges) != len(y.edges):
            return False
        for edge_x, edge_y in zip(x.edges, y.edges, strict=True):
            (source, number), (other, other_number) = split_edge(edge_x), split_edge(edge_y)
            if isinstance(source, Node) and isinstance(other, Node):
                if self.of[self.a.place[source]] != self.b.place[other] or number != other_number:
                    return False
            elif isinstance(source, Node) or isinstance(other, Node) or (source is None) != (other is None):
                return False
        return True

    def _leaves_in_place(self) -> None:
        """Leaves that are left, read in the same position by nodes that are paired: their names have changed."""
        met = set(self.leaves.values())
        for i, j in enumerate(self.of):
            edges = zip(self.a.nodes[i].edges, self.b.nodes[j].edges, strict=False) if j >= 0 else ()
            for x, y in edges:
                both_leaves = hasattr(x, "spec") and hasattr(y, "spec")
                if both_leaves and x not in self.leaves and y not in met and x.spec == y.spec:
                    self.leaves[x] = y
                    met.add(y)


def _whole_marks(side: Side, numbers: dict[Any, int], leaf: Callable[[Any], Any]) -> list[int]:
    """A number for each node that stands for its key and those of all that it was made from."""
    marks: list[int] = []
    for key, node in zip(side.exact, side.nodes, strict=True):
        inputs: list[Any] = []
        for edge in node.edges:
            target, number = split_edge(edge)
            if isinstance(target, Node):
                inputs.append((marks[side.place[target]], number))
            else:
                inputs.append(None if target is None else id(leaf(target)))
        marks.append(numbers.setdefault((key, *inputs), len(numbers)))
    return marks


def _users(side: Side) -> dict[Node, list[tuple[int, int]]]:
    """Node → (number of a node that reads it, at which position)."""
    found: dict[Node, list[tuple[int, int]]] = {}
    for i, node in enumerate(side.nodes):
        for position, edge in enumerate(node.edges):
            target = split_edge(edge)[0]
            if isinstance(target, Node):
                found.setdefault(target, []).append((i, position))
    return found
