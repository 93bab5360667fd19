"""The values a node keeps for its gradient: unpacking them, and checking them for later in-place writes."""

from __future__ import annotations

from typing import Any

from wayfare.core.device import ARRAYS
from wayfare.core.dispatch import with_history
from wayfare.core.errors import GraphError, InPlaceError
from wayfare.core.node import Node
from wayfare.core.op import DROP, SPEC, VALUE
from wayfare.core.packed import Packed
from wayfare.core.spec import Spec
from wayfare.core.walk import split_edge
from wayfare.core.write_clock import latest_write, version, version_at, written_after


def unpack(node: Node, create: bool) -> tuple[Any, ...]:
    """The values the node kept; as Tensors with their history if the gradient is to be recorded."""
    if node.kept is None:
        return _made_again(node)
    if latest_write[0] > node.number:
        check_versions(node)
    through = None if node.extras is None else node.extras.unpack
    if not create and through is None:
        return node.kept
    values: list[Any] = []
    for position, value in enumerate(node.kept):
        if value.__class__ is Packed:
            assert through is not None
            value = through(value.value)._array
        if create and value.__class__ in ARRAYS:
            edge = node if position == 0 else node.edges[position - 1]
            value = with_history(value, edge)
        elif create and position == 0 and value.__class__ is tuple and node.outs is not None:
            value = tuple(None if v is None else with_history(v, (node, i)) for i, v in enumerate(value))
        values.append(value)
    return tuple(values)


def check_versions(node: Node) -> None:
    """Refuse to compute a gradient from values that were written in place since they were kept."""
    for array in kept_arrays(node):
        if written_after(array, node.number):
            now, then = version(array), version_at(array, node.number)
            raise written_since(node.op.name, node.site, now, then)


def kept_arrays(node: Node) -> list[Any]:
    """The arrays that a node keeps and that an in-place write could change."""
    found: list[Any] = []
    for kept in node.kept or ():
        for array in kept if kept.__class__ is tuple else (kept,):
            if array.__class__ is Packed:
                array = array.source()
            if array.__class__ in ARRAYS:
                found.append(array)
    return found


# Advice for a graph that was freed. There are two usual causes, with different remedies.
FREED = ("If a result of an earlier step is used again, such as the hidden state of an RNN, cut it off with .detach(); "
         "to go through the graph a second time, call the first backward with retain_graph=True.")  # fmt: skip


def written_since(name: str, site: Any, now: int, then: int) -> InPlaceError:
    """The error for a node whose kept tensor was written since."""
    return InPlaceError(
        f"{name} on line {site} kept a tensor for its gradient that was modified by an in-place operation since: it is "
        f"at version {now}, expected version {then}",
        fix="Write to a .clone(), or use the form of the op without the underscore.",
    )


def _made_again(node: Node) -> tuple[Any, ...]:
    """Rebuild what a node kept before it was freed, if that was shapes and dtypes only; else raise."""
    of_output: int = VALUE
    of_inputs: tuple[int, ...] = ()
    if node.op.family != "custom":
        of_output, of_inputs = node.op.keeps(tuple(edge is not None for edge in node.edges))
    if VALUE not in (of_output, *of_inputs) and (of_output == DROP or node.outs is None):
        pairs = list(zip(of_inputs, node.edges, strict=True))
        if all(how == DROP or edge is not None for how, edge in pairs):
            output = node.specs[0] if of_output == SPEC else None
            return (output, *[_spec_of_edge(edge) if how == SPEC else None for how, edge in pairs])
    raise used_up(node.name(), node.site)


def used_up(name: str, site: Any) -> GraphError:
    """The error for a second backward pass through a node."""
    return GraphError(
        f"backward: {name} (line {site}) was already used and what it kept is freed",
        fix=FREED,
    )


def is_made_again(node: Node) -> bool:
    """Can the gradient of a freed node still be computed?"""
    try:
        _made_again(node)
    except GraphError:
        return False
    return True


def _spec_of_edge(edge: Any) -> Spec:
    target, number = split_edge(edge)
    return target.specs[number] if isinstance(target, Node) else target.spec
