"""Facts about nodes beyond their fields: call sites, specs of inputs, values still kept, bytes, FLOPs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any

from wayfare.core.callsite import Site, locate
from wayfare.core.device import device_of, is_array
from wayfare.core.node import Node
from wayfare.core.spec import OF_NUMPY, Spec
from wayfare.core.walk import reachable, split_edge
from wayfare.core.write_clock import owner_of


class CallSites:
    """Call sites of nodes, computed once for each position in the code."""

    def __init__(self) -> None:
        self._known: dict[tuple[CodeType | None, int], Site | None] = {}

    def of(self, node: Node) -> Site | None:
        """The user's line that made a node."""
        key = (node.code, node.offset)
        if key not in self._known:
            self._known[key] = locate(node.code, node.offset)
        return self._known[key]


def spec_of_edge(edge: Any) -> Spec | None:
    """The spec of the target of an edge; None for no edge."""
    target, number = split_edge(edge)
    if target is None:
        return None
    spec: Spec = target.specs[number] if isinstance(target, Node) else target.spec
    return spec


def input_specs(node: Node) -> list[Spec | None]:
    """The spec of each input; None for one that requires no gradient and of which nothing is kept."""
    found = [spec_of_edge(edge) for edge in node.edges]
    kept = kept_inputs(node)
    for i, spec in enumerate(found):
        if spec is None and kept is not None and kept[i] is not None:
            found[i] = Spec(kept[i].shape, OF_NUMPY[kept[i].dtype]) if is_array(kept[i]) else kept[i]
    return found


def kept_inputs(node: Node) -> Sequence[Any] | None:
    """What a node keeps of each input: an array, a Spec or None each; None altogether once it is freed."""
    kept = node.kept
    if kept is None or len(kept) != len(node.edges) + 1:
        return None
    return [k if is_array(k) or isinstance(k, Spec) else None for k in kept[1:]]


def values_kept(nodes: Iterable[Node]) -> dict[tuple[Node, int], Any]:
    """(node, output number) → its result, for results that some node keeps for its gradient."""
    found: dict[tuple[Node, int], Any] = {}
    for node in nodes:
        kept = node.kept
        if not kept or len(kept) != len(node.edges) + 1:
            continue
        own = kept[0] if isinstance(kept[0], tuple) else (kept[0],)
        for number, (array, spec) in enumerate(zip(own, node.specs, strict=False)):
            if is_array(array) and array.shape == spec.shape:
                found[node, number] = array
        for edge, array in zip(node.edges, kept[1:], strict=True):
            target, number = split_edge(edge)
            if isinstance(target, Node) and is_array(array):
                if array.shape == target.specs[number].shape:
                    found[target, number] = array
    return found


def inner_nodes(node: Node) -> list[Node]:
    """The nodes that one node stands for: for a batched segment, those of its groups over all examples."""
    kept = node.kept
    groups = getattr(kept[0], "groups", None) if kept else None
    if groups is None:
        return []
    return reachable([out._edge for group in groups for out in group.outputs])[0]


def arrays_in(kept: Any) -> Iterator[Any]:
    """The arrays among what a node keeps, also those inside tuples and lists, and what a call of many ops saved."""
    stack = [kept]
    while stack:
        item = stack.pop()
        if is_array(item):
            yield item
        elif isinstance(item, (tuple, list)):
            stack.extend(item)
        elif item is not None:
            # A tensor, what a custom Function saved (one or all of it), what a compiled call saved.
            stack += [getattr(item, name) for name in ("_array", "array", "_saved", "saved") if hasattr(item, name)]


class CountedOnce:
    """Counts the bytes of each memory once, however many arrays share it; `on` one type of device only."""

    def __init__(self, on: str | None = None) -> None:
        self._on = on
        self._seen: set[int] = set()

    def new(self, array: Any) -> int:
        """The bytes of the memory an array lies in; 0 if it was counted before, or is no array."""
        if not is_array(array) or (self._on is not None and device_of(array).type != self._on):
            return 0
        owner = owner_of(array)
        if id(owner) in self._seen:
            return 0
        self._seen.add(id(owner))
        return int(owner.nbytes)


def bytes_of(specs: Iterable[Spec]) -> int:
    """The bytes of values of some specs."""
    return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)


def flops_of(node: Node) -> int | None:
    """The FLOPs of the forward op of a node; None if its shapes are not known any more, or there is no rule."""
    inner = inner_nodes(node)
    if inner:
        counts = [flops_of(n) for n in inner]
        return None if None in counts else sum(n for n in counts if n is not None)
    return node.op.flops(input_specs(node), node.specs, node.attrs)
