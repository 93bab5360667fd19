"""Gradients that some calls of a group did not get for one of their outputs: may a zero stand for them?

It may if another output, which got one, is computed from that output, as the h of a cell is from its c: then the zero
is added to a gradient before anything multiplies it. Elsewhere zero times infinity would be NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.batch.record.call import Array
from wayfare.core.node import Node
from wayfare.core.tensor import Tensor
from wayfare.core.walk import split_edge
from wayfare.ir.fuse.record import FusedRecord


def may_be_zero(outputs: Sequence[Tensor], by_call: Array, reached: Array) -> bool:
    """Whether zeros do no harm: `by_call` says which outputs of each call got a gradient, `reached` if any did."""
    if not outputs:
        return False  # the group ran natively, without a graph
    for number, output in enumerate(outputs):
        missing = reached & ~by_call[:, number]
        if output._requires_grad and missing.any():
            given = [other for k, other in enumerate(outputs) if k != number and by_call[missing, k].all()]
            if not any([_is_computed_from(other, output) for other in given]):
                return False
    return True


def _is_computed_from(later: Tensor, earlier: Tensor) -> bool:
    """Whether the graph of one output goes through the other."""
    source, wanted = split_edge(earlier._edge)
    if source is None or later._edge is None:
        return False
    waiting: list[Any] = [later._edge]
    seen: set[int] = set()
    while waiting:
        target, number = split_edge(waiting.pop())
        if target is source:
            if number == wanted and later._edge != earlier._edge:
                return True
            fused = getattr(target.op.forward, "__self__", None)
            if isinstance(fused, FusedRecord) and fused.reads(number, wanted):
                return True
        elif isinstance(target, Node) and id(target) not in seen:
            seen.add(id(target))
            waiting.extend(target.edges)
    return False
