"""Walking the graph with loops, never by recursion, so that a chain of a million nodes is no problem."""

from __future__ import annotations

from typing import Any

from wayfare.core.node import Node


def split_edge(edge: Any) -> tuple[Any, int]:
    """(node or leaf or None, output number) of an edge."""
    return (edge[0], edge[1]) if edge.__class__ is tuple else (edge, 0)


def reachable(roots: list[Any], since: int = 0) -> tuple[list[Node], list[Any]]:
    """All nodes that the roots depend on, oldest first, and the leaves in order of first use.

    With `since`, only nodes from that number on.
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
