"""Rematerialisation: the calls of a segment run again as ordinary ops, each with its own autograd node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from wayfare.batch.record.call import Array, Value
from wayfare.batch.run.group import Group, Slice
from wayfare.core.device import copied, is_writable
from wayfare.core.dispatch import record_one, tensor_ops
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import written_after

_CLONE = REGISTRY["clone"]


class Rematerialised:
    """The calls of a segment, run again one by one, each row as a tensor of its own.

    As in the plain loop, examples have no node in common. `rows` (a flag for each row id) selects the calls to run;
    None: all of them. `replacements` maps the id of an outside tensor to the tensor to use instead.
    """

    def __init__(self, groups: Sequence[Group], replacements: dict[int, Tensor], rows: Array | None = None) -> None:
        self._replacements = replacements
        self._groups = {group.number for group in groups}
        self._rows: dict[tuple[int, int, int], Tensor] = {}
        for group in groups:
            count, step = 1 if group.single else group.calls, len(group.signature.outs)
            wanted = np.arange(count)
            if rows is not None:
                own = rows[group.start : group.start + step * count].reshape((-1, step))
                wanted = np.flatnonzero(np.any(own, axis=1))
            if len(wanted):
                self._make(group, wanted.tolist())

    def _make(self, group: Group, wanted: list[int]) -> None:
        """Run some calls of a group one by one."""
        stale = group.is_stale()
        if stale:
            group.check_saved()
            if getattr(group.signature.target, "steps", 1) > 1:
                group.refuse_rerun()
        parts = zip(group.leaves, group.sources, group.batched, strict=True)
        columns = [self._column(group, number, *part) for number, part in enumerate(parts)]
        for i in wanted:
            signature = group.signature_of(i)
            leaves = group.inputs_of(i, columns, self._rows)
            extras = group.extras[i : i + 1]
            made = signature.run(signature, 1, leaves, [False] * len(leaves), extras)
            for number, out in enumerate(made if isinstance(made, (tuple, list)) else [made]):
                # A run with an extra (a random key, an index) returns a batch of one.
                row = signature.outs[number].shape
                out = out if tuple(out.shape) == row else tensor_ops.reshape(out, shape=row)
                if stale:
                    then = group.row_at(group.arrays[number], number, 0 if group.single else i)
                    out = _as_it_was(out, then, (*leaves, *signature.shared))
                self._rows[group.number, number, i] = out

    def _column(self, group: Group, number: int, leaf: Tensor, source: Any, several: bool) -> Callable[[int], Tensor]:
        """A function that gives one input of the i-th call."""
        if not several:
            whole = leaf if source is None else self._shared(source.value)
            return lambda i: whole
        values = leaf.detach()
        if source is None:
            return lambda i: group.leaf_part(number, values, i)
        if source.__class__ is Slice:
            return lambda i: self._part(
                self._rows[source.group.number, source.number, source.first + i], source.row.shape, source.offset
            )
        found = self._scattered(source, leaf, group.time)
        return lambda i: found[i]() if i in found else group.leaf_part(number, values, i)

    def _shared(self, what: Any) -> Tensor:
        return self.tensor_of(what) if what.__class__ is Value else self._outside(what)

    def _scattered(self, source: Any, leaf: Tensor, time: int) -> dict[int, Callable[[], Tensor]]:
        """For the rows of an input that need a gradient: a function that gives the tensor."""
        found: dict[int, Callable[[], Tensor]] = {}
        for i, t in source.outside:
            found[i] = partial(self._outside_then, t, source.part(leaf._array, i), time)
        at = range(len(source.row_ids)) if source.at is None else source.at.tolist()
        offsets = [0] * len(source.row_ids) if source.offsets is None else source.offsets.tolist()
        by_row_id = {group.start + number + i * len(group.signature.outs): (group, number, i)
                    for group, number in source.groups for i in range(1 if group.single else group.calls)}  # fmt: skip
        for i, row_id, offset in zip(at, source.row_ids.tolist(), offsets, strict=True):
            found[i] = partial(self._part_at, by_row_id[row_id], source.part(leaf._array, i).shape, offset)
        return found

    def _part_at(self, output: tuple[Group, int, int], shape: tuple[int, ...], offset: int) -> Tensor:
        return self._part(self._rows[output[0].number, output[1], output[2]], shape, offset)

    def _outside_then(self, t: Tensor, row: Array, time: int) -> Tensor:
        """An outside tensor with the values it had when the group ran, which are those of `row`."""
        now = self._outside(t)
        if not written_after(t._array, time):
            return now
        then = wrap(copied(row))
        record_one(_CLONE, (now,), [now._array], then, {})
        return then

    def _outside(self, t: Tensor) -> Tensor:
        return self._replacements.get(id(t), t)

    def _part(self, row: Tensor, shape: tuple[int, ...], offset: int) -> Tensor:
        if offset == 0 and tuple(row.shape) == shape:
            return row
        first, count = offset // row.itemsize, int(np.prod(shape, dtype=np.int64))
        flat = tensor_ops.reshape(row, shape=(int(np.prod(row.shape, dtype=np.int64)),))
        part = tensor_ops.slice(flat, dim=0, start=first, stop=first + count, step=1)
        return tensor_ops.reshape(part, shape=shape)  # type: ignore[no-any-return]

    def tensor_of(self, value: Value) -> Tensor:
        """The rematerialised tensor of a value."""
        group: Group = value.call.group
        if group.number not in self._groups:
            return wrap(copied(group.array_of(value)))
        row = self._rows[group.number, value.number, group.index_of(value.call)]
        return self._part(row, value.row.shape, value.offset)


def _as_it_was(out: Tensor, row: Array, inputs: Sequence[Tensor]) -> Tensor:
    """A result with the values that it had when its group ran."""
    if not is_writable(out._array) or any([np.may_share_memory(out._array, t._array) for t in inputs]):
        out = tensor_ops.clone(out)
    out._array[...] = row
    return out
