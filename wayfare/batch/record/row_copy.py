"""Ordinary tensors as rows of calls: their values are copied when a call is recorded.

A call runs later. Until then anybody may write to the memory of a tensor that it reads: Wayfare through a view of it,
NumPy through an array. Nobody keeps account of who can see which memory, so every such row is copied. Large tensors are
not, nor are those of other devices than the CPU, where a copy would be a launch: there NumPy sees nothing, and pending
calls run before Wayfare writes (`PendingCalls.is_read`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.batch.record.call import Array, Row
from wayfare.batch.record.memory import memory_of
from wayfare.batch.record.signature import MAX_ROW_BYTES
from wayfare.core.dispatch import record_one
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import owner_of


class RowCopy:
    """The values that a tensor without history had when a call was recorded."""

    __slots__ = ("data", "row", "source")

    data: bytes
    row: Row
    source: Tensor  # the tensor that was copied

    # Like a tensor, it has an array and needs no gradient.
    _requires_grad = False

    @property
    def _array(self) -> Array:
        return np.ndarray(self.row.shape, self.row.dtype, self.data)


_new = RowCopy.__new__


class DeviceRow:
    """A tensor of another device, without history, as a row of a call: its memory, which is not copied."""

    __slots__ = ("_array", "row", "source")

    # Like a tensor, it has an array and needs no gradient.
    _requires_grad = False

    def __init__(self, t: Tensor, row: Row) -> None:
        self._array = t._array
        self.row = row
        self.source = t


class RowCopies:
    """What pending calls read of ordinary tensors. A tensor that is read again with the same values gives the same
    copy, so that calls can share it."""

    __slots__ = ("_copies", "_not_copied", "_of_devices", "_with_history")

    def __init__(self) -> None:
        # id of a tensor → its copy, which holds the tensor
        self._copies: dict[int, RowCopy] = {}
        # id of a tensor with a history → the tensor, its edge, and its copy
        self._with_history: dict[int, tuple[Tensor, Any, Tensor]] = {}
        # id of a tensor of another device → its row, which holds the tensor
        self._of_devices: dict[int, DeviceRow] = {}
        self._not_copied: list[Tensor | DeviceRow] = []

    def of(self, t: Tensor, row: Row) -> Any:
        """An ordinary tensor, of that shape and dtype, as a row of a call."""
        if t._requires_grad:
            return self._of_history(t, row)
        if not row.memory.is_host:
            return self._of_device(t, row)
        data = t._array.tobytes()
        copy = self._copies.get(id(t))
        if copy is not None and copy.row is row and copy.data == data:
            return copy
        copy = _new(RowCopy)
        copy.data = data
        copy.row = row
        copy.source = t
        self._copies[id(t)] = copy
        return copy

    def _of_device(self, t: Tensor, row: Row) -> DeviceRow:
        """The memory of a tensor now: the tensor itself may become another one before the call runs."""
        found = self._of_devices.get(id(t))
        if found is None or found._array is not t._array:
            found = self._of_devices[id(t)] = DeviceRow(t, row)
            self._not_copied.append(found)
        return found

    def on_device(self, t: Tensor, row: Row) -> DeviceRow | None:
        """A tensor of another device, without history, as a row like this one; None if it is not. (The native module
        asks.)"""
        array = t._array
        found = self._of_devices.get(id(t))
        if found is not None and found._array is array and found.row is row:
            return found
        if memory_of(array) is not row.memory or array.shape != row.shape or array.dtype is not row.dtype:
            return None
        if row.layout is not None or not array.flags.c_contiguous:
            return None
        found = self._of_devices[id(t)] = DeviceRow(t, row)
        self._not_copied.append(found)
        return found

    def _of_history(self, t: Tensor, row: Row) -> Tensor:
        array = t._array
        if array.nbytes > MAX_ROW_BYTES:
            self._not_copied.append(t)
            return t
        found = self._with_history.get(id(t))
        if found is not None and found[1] is t._edge and found[2]._array.shape == array.shape:
            if found[2]._array is array or (row.memory.is_host and found[2]._array.tobytes() == array.tobytes()):
                return found[2]
        if row.memory.is_host:
            copy = wrap(array.copy())
        else:
            copy = wrap(array)  # the same memory, but with the history that the tensor has now
            self._not_copied.append(copy)
        if t._edge is None:
            record_one(REGISTRY["clone"], (t,), [array], copy, {})  # so that the gradient reaches the leaf
        else:
            copy._edge, copy._requires_grad = t._edge, True
        self._with_history[id(t)] = t, t._edge, copy
        return copy

    def read_memory_of(self, tensor: Tensor) -> bool:
        """Whether a call reads the memory of a tensor itself. It does where that is too large to be copied."""
        memory = owner_of(tensor._array)
        return any([owner_of(t._array) is memory for t in self._not_copied])

    def clear(self) -> None:
        """Forget everything: no call is pending."""
        self._copies.clear()
        self._with_history.clear()
        self._of_devices.clear()
        self._not_copied.clear()
