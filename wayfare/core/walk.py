"""Walking the graph: always a loop, never a recursion, so a chain of a million nodes is no trouble."""

from __future__ import annotations

from typing import Any

from wayfare.core.node import Node


def split_edge(edge: Any) -> tuple[Any, int]:
    """(node or leaf or None, output number) of an edge."""
    return (edge[0], edge[1]) if edge.__class__ is tuple else (edge, 0)


def reachable(roots: list[Any], since: int = 0) -> tuple[list[Node], list[Any]]:
    """All nodes from which the roots were computed, oldest first, and the leaves among them in order of first use.

    With `since`, only nodes from that number on: what older ones were computed from does not matter.
    """
    seen: set[Any] = set()
    nodes: list[Node] = []
    stack = [split_edge(edge)[0] for edge in roots]
    leaves: dict[Any, None] = {}
    while stack:
        target = stack.pop()
        if target is None or target in seen:
            continue
        seen.add(target)
        if isinstance(target, Node) and target.number >= since:
            nodes.append(target)
            stack.extend(split_edge(edge)[0] for edge in target.edges)
    nodes.sort(key=lambda node: node.number)
    for node in nodes:
        for edge in node.edges:
            target = split_edge(edge)[0]
            if target is not None and not isinstance(target, Node):
                leaves[target] = None
    for edge in roots:
        target = split_edge(edge)[0]
        if target is not None and not isinstance(target, Node):
            leaves[target] = None
    return nodes, list(leaves)
