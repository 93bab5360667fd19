"""Captured gradients, for `grad()` and `inputs=`: only the nodes on paths to the wanted tensors run."""

from __future__ import annotations

from typing import Any

from wayfare.core.node import Node
from wayfare.core.walk import reachable, split_edge


class Capture:
    """The wanted gradients, kept apart from those that are added to `.grad`.

    With `since`, each tensor made before that number counts as a leaf: the pass does not go beyond it.
    """

    __slots__ = ("_only", "_since", "nodes", "tensors")

    def __init__(self, wanted: list[Any], roots: list[Any], since: int = 0) -> None:
        self.tensors: dict[Any, Any] = {}  # leaf tensor → gradient
        self.nodes: dict[Any, dict[int, Any]] = {}  # node → output number → gradient
        for edge in wanted:
            target, number = split_edge(edge)
            if isinstance(target, Node):
                self.nodes.setdefault(target, {})[number] = None
            else:
                self.tensors[target] = None
        # The nodes on a path to something wanted; the others need not run.
        self._only: set[Node] = set()
        self._since = since
        for node in reachable(roots, since)[0]:
            if any(self._leads_on(edge) for edge in node.edges):
                self._only.add(node)

    def of(self, t: Any) -> Any:
        """The gradient of a wanted tensor; None if it got none."""
        target, number = split_edge(t._edge)
        return self.tensors.get(t) if target is None else self.nodes[target][number]

    def _leads_on(self, edge: Any) -> bool:
        target = split_edge(edge)[0]
        if target is None:
            return False
        if target in self._only or target in self.nodes or target in self.tensors:
            return True
        # Also visit older nodes that are not wanted, so that the pass notices a tensor that was forgotten.
        return isinstance(target, Node) and target.number < self._since

    def takes(self, node: Node, gradients: Any, several: bool) -> bool:
        """Store the gradients of a node's outputs if they are wanted. Returns whether the node itself must run."""
        numbers = self.nodes.get(node)
        if numbers is not None:
            for number in numbers:
                numbers[number] = gradients[number] if several else gradients
        return node in self._only

    def ends_at(self, node: Node) -> bool:
        """Does this node count as a leaf? Then its hooks are not called."""
        return node.number < self._since

    def towards(self, edges: tuple[Any, ...]) -> tuple[Any, ...]:
        """The edges on a path to something wanted; None for the others."""
        return tuple(edge if self._leads_on(edge) else None for edge in edges)
