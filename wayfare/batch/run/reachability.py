"""Which outside tensors get a gradient from given results: the result of one example reaches only what it was computed
from, not what the other examples read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.batch.record.call import Array, Value
from wayfare.batch.run.group import Shared, Slice


def reachable_from(tape: Any, seeds: Sequence[Value]) -> tuple[set[int], Array]:
    """The ids of the outside tensors that these values depend on, and a flag for each row on the way."""
    rows: Array = np.zeros(tape.count, np.bool_)
    found: set[int] = set()
    for value in seeds:
        _mark(rows, value)
    for group in reversed(tape.groups):
        step = len(group.signature.outs)
        own = rows[group.start : group.start + step * (1 if group.single else group.calls)]
        if own.any():
            group.mark_before(own)
            calls: Array = np.any(own.reshape((-1, step)), axis=1)
            found.update([id(t) for t in group.signature.shared])
            for number, source in enumerate(group.sources):
                _mark_inputs(rows, found, source, group.of_input(number, calls))
    return found, rows


def _mark_inputs(rows: Array, found: set[int], source: Any, calls: Array) -> None:
    """Mark the source of one input of a group's calls."""
    if source is None:
        return
    if source.__class__ is Shared:
        if source.value.__class__ is Value:
            _mark(rows, source.value)
        else:
            found.add(id(source.value))
    elif source.__class__ is Slice:
        step = len(source.group.signature.outs)
        first = source.group.start + source.number + source.first * step
        rows[first : first + source.size * step : step] |= calls
    else:
        found.update([id(t) for i, t in source.outside if calls[i]])
        rows[source.row_ids[calls if source.at is None else calls[source.at]]] = True


def _mark(rows: Array, value: Value) -> None:
    if value.call.group.differentiable:
        rows[value.call.row_id + value.number] = True
