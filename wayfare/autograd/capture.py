"""What `grad()` and `inputs=` ask for: some gradients, and only the nodes on the way to them."""

from __future__ import annotations

from typing import Any

from wayfare.core.node import Node
from wayfare.core.walk import reachable, split_edge


class Capture:
    """Gradients that are asked for, kept apart from those summed into leaves.

    With `since` each tensor made before that number is taken for a leaf: what it was computed from is not gone into.
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
        # The nodes from which something asked for can be reached; the others need not run.
        self._only: set[Node] = set()
        self._since = since
        for node in reachable(roots, since)[0]:
            if any(self._leads_on(edge) for edge in node.edges):
                self._only.add(node)

    def of(self, t: Any) -> Any:
        """The gradient of a tensor that was asked for; None if none came."""
        target, number = split_edge(t._edge)
        return self.tensors.get(t) if target is None else self.nodes[target][number]

    def _leads_on(self, edge: Any) -> bool:
        target = split_edge(edge)[0]
        if target is None:
            return False
        if target in self._only or target in self.nodes or target in self.tensors:
            return True
        # Who is older and was not asked for is gone to all the same: the pass will see that something was forgotten.
        return isinstance(target, Node) and target.number < self._since

    def takes(self, node: Node, gradients: Any, several: bool) -> bool:
        """Note the gradients of a node's outputs if they are asked for; does anything else lie beyond it?"""
        numbers = self.nodes.get(node)
        if numbers is not None:
            for number in numbers:
                numbers[number] = gradients[number] if several else gradients
        return node in self._only

    def ends_at(self, node: Node) -> bool:
        """Is it taken for a leaf? Its hooks are for those who go on from there."""
        return node.number < self._since

    def towards(self, edges: tuple[Any, ...]) -> tuple[Any, ...]:
        """The edges that lead to something asked for; None for the rest."""
        return tuple(edge if self._leads_on(edge) else None for edge in edges)
