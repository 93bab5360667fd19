"""The FLOPs of a traced graph: the sum over its ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from wayfare.core.spec import OF_NUMPY, Spec
from wayfare.core.symbolic_sizes import evaluated
from wayfare.ir.graph import Value, in_order


def traced_flops(outputs: Iterable[Value], symbols: Sequence[Any] = ()) -> int | None:
    """The FLOPs of all steps behind some values, for given sizes; None if one of them is unknown."""
    total = 0
    for step in in_order(outputs):
        if step.op is None:
            continue
        inputs, made = ([Spec(evaluated(v.shape, symbols), OF_NUMPY[v.dtype]) for v in group]
                        for group in (step.inputs, step.outputs))  # fmt: skip
        count = step.op.flops(inputs, made, evaluated(step.attrs, symbols))
        if count is None:
            return None
        total += count
    return total
