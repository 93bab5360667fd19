"""A segment of a session, which becomes one autograd node: its groups in the order they ran, and all row addresses."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.batch.record.call import Array, Value, row_of_array
from wayfare.batch.record.memory import HOST
from wayfare.batch.record.row_copy import RowCopy
from wayfare.batch.record.signature import MAX_ROW_BYTES
from wayfare.batch.run.call_loops import rows_of
from wayfare.batch.run.group import Group, Located, Scattered, Shared, as_slice
from wayfare.core.device import copied
from wayfare.core.tensor import Tensor

_FIRST = 1024
_COPIES = {RowCopy}


class Segment:
    """The groups that ran since the session began or last materialised its tensors."""

    def __init__(self, stats: Any) -> None:
        self.stats = stats
        # Only the groups that need a gradient.
        self.groups: list[Group] = []
        self.count = 0
        self.addresses: Array = np.empty(_FIRST, np.int64)
        # For each row id an index into `_numbered`, the (group, output) the row belongs to; -1 without a gradient.
        self.outputs: Array = np.empty(_FIRST, np.int32)
        self._numbered: list[tuple[Group, int]] = []
        # How many calls of each signature will run in groups that have not run yet; and memory for their results.
        self.calls_ahead: dict[Any, int] = {}
        self.arenas: dict[Any, Any] = {}

    def allocate_rows(self, group: Group, arrays: list[Array], size: int) -> int:
        """Ids for the rows of a group's results, those of one call side by side; returns the first."""
        start, step = self.count, len(arrays)
        group.start = start
        end = self.count = start + size * step
        if end > len(self.addresses):
            grown = np.empty(2 * end, np.int64)
            grown[:start] = self.addresses[:start]
            self.addresses = grown
            numbers = np.empty(2 * end, np.int32)
            numbers[:start] = self.outputs[:start]
            self.outputs = numbers
        for number, array in enumerate(arrays):
            group.place_rows(self.addresses, number, array)
            # A group without a gradient is not stored here, so that it is freed when nobody needs its rows.
            self.outputs[start + number : end : step] = len(self._numbered) if group.differentiable else -1
            if group.differentiable:
                self._numbered.append((group, number))
        return start

    def locate(self, values: tuple[Any, ...], grad: bool) -> Located:
        """Where the rows of one input of all calls lie."""
        first = values[0]
        # By identity: `==` on tensors compares elements.
        if values[-1] is first and all([v is first for v in values]):
            return self._shared(first, grad)
        rows = rows_of(values, self.addresses, self.outputs)
        if rows is None:
            return self._mixed(values, grad)
        ids, moved, needed, distance, addresses, numbers = rows
        if not grad:
            needed = 0
        found = as_slice(values, distance)
        source: Any = None
        if found is not None:
            self.stats.copies_avoided += 1
            if needed:
                source = found if needed == len(values) else self.scattered(values)
            return found.rows(), None, source, True
        if addresses is None:
            addresses = self.addresses[ids] if moved is None else self.addresses[ids] + moved
        self.stats.gathers += 1
        if needed == len(values):
            groups = self._groups_at(ids) if numbers is None else tuple([self._numbered[n] for n in numbers])
            source = Scattered(None, ids, moved, groups, [])
        elif needed:
            source = self.scattered(values)
        return None, addresses, source, True

    def _shared(self, value: Any, grad: bool) -> Located:
        if value.__class__ is Value:
            array = value.call.group.array_of(value)
            return array, None, Shared(value.without_base()) if grad and value.needs_grad else None, False
        array = value._array
        if array.__class__ is not np.ndarray and array.nbytes <= MAX_ROW_BYTES:
            array = copied(array)  # it was not copied when it was recorded, and it may be written before the gradient
        return array, None, Shared(value) if grad and value._requires_grad else None, False

    def _mixed(self, values: tuple[Any, ...], grad: bool) -> Located:
        self.stats.gathers += 1
        if set(map(type, values)) == _COPIES:
            return HOST.stack_copies(values, values[0].row), None, None, True
        arrays = [v.call.group.array_of(v) if v.__class__ is Value else v._array for v in values]
        row = row_of_array(arrays[0])
        return row.memory.stack(arrays, row), None, self.scattered(values) if grad else None, True

    def scattered(self, values: tuple[Any, ...]) -> Scattered | None:
        """The source of these rows; None if none of them needs a gradient."""
        inside = [i for i, v in enumerate(values) if v.__class__ is Value and v.needs_grad]
        outside = [(i, v) for i, v in enumerate(values) if isinstance(v, Tensor) and v._requires_grad]
        if not inside and not outside:
            return None
        chosen = [values[i] for i in inside]
        ids = np.array([v.call.row_id + v.number for v in chosen], np.int64)
        offsets = [v.offset for v in chosen]
        return Scattered(np.array(inside, np.int64), ids, np.array(offsets) if any(offsets) else None,
                         self._groups_at(ids), outside)  # fmt: skip

    def _groups_at(self, row_ids: Array) -> tuple[tuple[Group, int], ...]:
        """The (group, output) pairs that these rows belong to."""
        if not len(row_ids):
            return ()
        # Mostly few rows, for which a set is several times as fast as np.unique.
        return tuple([self._numbered[n] for n in sorted(set(self.outputs[row_ids].tolist())) if n >= 0])
