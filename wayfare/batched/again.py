"""The groups of a segment run once more in the open: as ordinary ops that are recorded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.batched.group import Group, Shared, Slice
from wayfare.batched.value import Value
from wayfare.eager import tensor_ops
from wayfare.tensor import Tensor, wrap


class Again:
    """All groups of a segment, run once more by ops that are recorded one by one, on rows that are tensors each."""

    def __init__(self, groups: Sequence[Group], instead: dict[int, Tensor]) -> None:
        self._instead = instead
        self._made: dict[int, list[Tensor]] = {}
        self._rows: dict[tuple[int, int, int], Tensor] = {}
        for group in groups:
            leaves = [leaf if source is None else self._input(source, leaf)
                      for leaf, source in zip(group.leaves, group.sources, strict=True)]  # fmt: skip
            self._made[group.number] = group.again(leaves)

    def _input(self, source: Any, leaf: Tensor) -> Tensor:
        if source.__class__ is Shared:
            return self.tensor_of(source.what) if source.what.__class__ is Value else self._outside(source.what)
        if source.__class__ is Slice:
            rows = [self._part(self._row(source.group, source.number, i), source.row.shape, source.offset)
                    for i in range(source.first, source.first + source.size)]  # fmt: skip
            return tensor_ops.stack(*rows, dim=0)  # type: ignore[no-any-return]
        found: dict[int, Tensor] = {i: self._outside(t) for i, t in source.outside}
        at = range(len(source.places)) if source.at is None else source.at.tolist()
        offsets = [0] * len(source.places) if source.offsets is None else source.offsets.tolist()
        by_place = {group.start + number + i * len(group.kind.outs): (group, number, i)
                    for group, number in source.groups for i in range(1 if group.single else group.calls)}  # fmt: skip
        for i, place, offset in zip(at, source.places.tolist(), offsets, strict=True):
            found[i] = self._part(self._row(*by_place[place]), leaf._array.shape[1:], offset)
        # What nothing is sent back to stays as it was.
        values = leaf.detach()
        rows = [found[i] if i in found else tensor_ops.select(values, dim=0, index=i) for i in range(len(leaf._array))]
        return tensor_ops.stack(*rows, dim=0)  # type: ignore[no-any-return]

    def _outside(self, t: Tensor) -> Tensor:
        return self._instead.get(id(t), t)

    def _row(self, group: Group, number: int, index: int) -> Tensor:
        """One row of one result: always the same tensor, so that its gradient is the whole of it."""
        key = (group.number, number, index)
        found = self._rows.get(key)
        if found is None:
            whole = self._made[group.number][number]
            found = whole if group.single else tensor_ops.select(whole, dim=0, index=index)
            self._rows[key] = found
        return found

    def _part(self, row: Tensor, shape: tuple[int, ...], offset: int) -> Tensor:
        if offset == 0 and tuple(row.shape) == shape:
            return row
        first, count = offset // row.itemsize, int(np.prod(shape, dtype=np.int64))
        flat = tensor_ops.reshape(row, shape=(int(np.prod(row.shape, dtype=np.int64)),))
        part = tensor_ops.slice(flat, dim=0, start=first, stop=first + count, step=1)
        return tensor_ops.reshape(part, shape=shape)  # type: ignore[no-any-return]

    def tensor_of(self, value: Value) -> Tensor:
        """A value as a tensor with a history."""
        group: Group = value.call.group
        if group.number not in self._made:
            return wrap(np.array(group.array_of(value)))
        return self._part(self._row(group, value.number, group.index_of(value.call)), value.row.shape, value.offset)
