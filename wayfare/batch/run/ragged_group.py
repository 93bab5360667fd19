"""Groups of calls that differ in the length of their first dimension: the rows of all calls lie one after another.

An input or result that has the length is one array of the rows of all calls; offsets say where those of each begin.
Those without the length have the calls in front, as in every group (`RaggedSignature.ragged_rows` and `ragged_outs`).
Ids are those of calls: a result with the length has one id and one address for all of its rows, which are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.batch.record.call import Array, Call, Value, row_of
from wayfare.batch.record.ragged_signature import RaggedSignature
from wayfare.batch.record.signature import Signature
from wayfare.batch.run.call_loops import rows_of
from wayfare.batch.run.group import Group, Located, Scattered
from wayfare.batch.run.steps import StackCalls
from wayfare.codegen.routines import addresses as by_address
from wayfare.core import buffer_pool
from wayfare.core.dispatch import tensor_ops
from wayfare.core.tensor import Tensor, wrap
from wayfare.ops._ragged import FLAT, Segments

if TYPE_CHECKING:
    from wayfare.batch.run.segment import Segment


class RaggedRows(Scattered):
    """A source of rows of many lengths: the values of calls, each with rows of its own."""

    __slots__ = ("ones", "segments")

    segments: Segments
    ones: int  # how many dimensions of one stand before the length

    def part(self, array: Array, i: int) -> Array:
        """What the i-th value has of an array of all rows."""
        part = array[self.segments.starts[i] : self.segments.starts[i + 1]]
        return part.reshape((1,) * self.ones + part.shape)

    def addresses(self, of_values: Array, row_bytes: int) -> Array:
        """The address of each row that needs a gradient, from those of the values."""
        segments = self.segments if self.at is None else Segments(self.segments.lengths[self.at])
        return spread_addresses(of_values, segments, row_bytes)

    def taken(self, g: Array) -> Array:
        """The gradients of the rows that need one."""
        if self.at is None:
            return g
        chosen = np.zeros(self.segments.count, np.bool_)
        chosen[self.at] = True
        return g[self.segments.rows_of(chosen)]


def spread_addresses(of_values: Array, segments: Segments, row_bytes: int) -> Array:
    """The address of each row of values, which are contiguous."""
    firsts = of_values - segments.starts[:-1] * row_bytes
    return np.repeat(firsts, segments.lengths) + np.arange(segments.total) * row_bytes


class RaggedGroup(Group):
    """Calls of one ragged signature that run as one."""

    __slots__ = ("made", "members", "ragged", "segments")

    has_lengths = True

    def __init__(self, number: int, round_number: int, signature: Signature, calls: list[Call]) -> None:
        super().__init__(number, round_number, signature, calls)
        self.members = [call.signature for call in calls]
        self.ragged: RaggedSignature = signature.ragged
        self.segments = Segments(np.array([member.length for member in self.members]))
        # For each result: where the rows of each call are; None: each call has one row.
        self.made: list[Segments | None] = []
        for number, axis in enumerate(self.ragged.ragged_outs):
            found = None if axis == -1 else self.segments
            if axis is FLAT:
                found = Segments(np.array([math.prod(member.outs[number].shape) for member in self.members]))
            self.made.append(found)

    # -- forward

    def locate(self, segment: Segment, number: int, column: tuple[Any, ...], grad: bool) -> Located:
        """Where the rows of one input lie; those with the length are gathered."""
        axis = self.ragged.ragged_rows[number]
        if axis < 0:
            return segment.locate(column, grad)
        segments = self.segments
        first = column[0].row if column[0].__class__ is Value else column[0]._array
        unit = row_of(first.shape[axis + 1 :], first.dtype)
        segment.stats.gathers += 1
        found = rows_of(column, segment.addresses, segment.outputs)
        if found is None:
            arrays = [v.call.group.array_of(v) if v.__class__ is Value else v._array for v in column]
            arrays = [a.reshape(a.shape[axis:]) for a in arrays]
            return np.concatenate(arrays), None, self._source(segment.scattered(column), axis) if grad else None, True
        ids, moved, needed, _, addresses, _ = found
        if addresses is None:
            addresses = segment.addresses[ids] if moved is None else segment.addresses[ids] + moved
        rows = buffer_pool.empty((segments.total, *unit.shape), unit.dtype)
        if rows.size:
            by_address.gather(spread_addresses(addresses, segments, unit.bytes), rows)
        return rows, None, self._source(segment.scattered(column), axis) if grad and needed else None, True

    def _source(self, found: Scattered | None, axis: int) -> RaggedRows | None:
        if found is None:
            return None
        at = found.at if found.at is not None and len(found.at) < self.calls else None
        made = RaggedRows(at, found.row_ids, found.offsets, found.groups, found.outside)
        made.segments, made.ones = self.segments, axis
        return made

    def compute(self, leaves: list[Tensor]) -> list[Tensor]:
        """The outputs for given inputs."""
        return self._computed(self.segments, leaves)

    def _computed(self, segments: Segments, leaves: list[Tensor]) -> list[Tensor]:
        flags = iter(self.batched)
        several = [t is None and next(flags) for t in self.signature.pattern]
        return self.ragged.run(segments, self.signature.inputs(leaves), several)

    def _register(self, segment: Segment) -> None:
        for out, row in zip(self.outputs, self.signature.outs, strict=True):
            array = out._array
            if array.dtype != row.dtype:
                array = array.astype(row.dtype)
            self.arrays.append(np.ascontiguousarray(array))
        self.start = segment.allocate_rows(self, self.arrays, self.calls)

    # -- rows of calls in arrays

    def place_rows(self, addresses: Array, number: int, array: Array) -> None:
        """Enter the address of each call's rows of one output."""
        segments = self.made[number]
        if segments is None:
            super().place_rows(addresses, number, array)
            return
        step = len(self.signature.outs)
        first = array.__array_interface__["data"][0]
        row_bytes = array.strides[0] if array.size else 0
        at = self.start + number
        addresses[at : at + self.calls * step : step] = first + segments.starts[:-1] * row_bytes

    def room(self, number: int) -> tuple[int, ...]:
        """The shape of the array of one output."""
        segments, axis = self.made[number], self.ragged.ragged_outs[number]
        if segments is None:
            return super().room(number)
        return (segments.total,) if axis is FLAT else (segments.total, *self.signature.outs[number].shape[axis + 1 :])

    def row_at(self, array: Array, number: int, i: int) -> Array:
        """What the i-th call has of the array of one output."""
        segments = self.made[number]
        if segments is None:
            return super().row_at(array, number, i)
        return array[segments.starts[i] : segments.starts[i + 1]].reshape(self.members[i].outs[number].shape)

    def signature_of(self, i: int) -> Signature:
        """The signature of the i-th call."""
        return self.members[i]

    def leaf_part(self, number: int, leaf: Tensor, i: int) -> Tensor:
        """What the i-th call has of one input."""
        axis = self.ragged.ragged_rows[number]
        if axis < 0:
            return super().leaf_part(number, leaf, i)
        start, stop = self.segments.starts[i : i + 2].tolist()
        part = tensor_ops.slice(leaf, dim=0, start=start, stop=stop, step=1)
        return tensor_ops.reshape(part, shape=(*(1,) * axis, *part.shape))  # type: ignore[no-any-return]

    def rows_of_input(self, number: int, flags: Array) -> Array:
        """A flag for each row of one of its inputs, from flags for the calls."""
        return flags if self.ragged.ragged_rows[number] < 0 else self.segments.rows_of(flags)

    def rows_of_output(self, number: int, chosen: Array) -> Array:
        """The rows of one output that belong to chosen calls."""
        segments = self.made[number]
        if segments is None:
            return chosen
        flags = np.zeros(self.calls, np.bool_)
        flags[chosen] = True
        return np.flatnonzero(segments.rows_of(flags))

    # -- backward

    def recompute(self, chosen: Array) -> tuple[list[Tensor], list[Tensor]]:
        """Run some of its calls again, without the others; gives their inputs and outputs."""
        flags = np.zeros(self.calls, np.bool_)
        flags[chosen] = True
        leaves = []
        for number, (leaf, several) in enumerate(zip(self.leaves, self.batched, strict=True)):
            part = wrap(leaf._array[self.rows_of_input(number, flags)] if several else leaf._array)
            part._requires_grad = leaf._requires_grad
            leaves.append(part)
        with self.differentiating():
            return leaves, self._computed(Segments(self.segments.lengths[flags]), leaves)

    def _is_finite(self, calls: Array | None) -> bool:
        return super()._is_finite(None)


class RaggedStack(RaggedGroup):
    """Calls that only stack rows, some more than others: all rows of all calls, in order, are the result."""

    __slots__ = ("counts",)

    def __init__(self, number: int, round_number: int, signature: Signature, calls: StackCalls) -> None:
        super().__init__(number, round_number, signature, calls)
        # How many inputs each call has.
        self.counts = Segments(np.array([len(call.inputs) for call in calls]))

    def columns(self, calls: list[Call]) -> Sequence[tuple[Any, ...]]:
        """One column: the rows of all inputs."""
        return [calls.rows()]  # type: ignore[attr-defined]

    def locate(self, segment: Segment, number: int, column: tuple[Any, ...], grad: bool) -> Located:
        """Where the rows lie."""
        return segment.locate(column, grad)

    def compute(self, leaves: list[Tensor]) -> list[Tensor]:
        """The gathered rows in the shape of the results."""
        rows, shape = leaves[0], self.room(0)
        if not self.batched[0]:
            rows = tensor_ops.expand(rows, shape=(self.counts.total, *rows.shape))
        return [tensor_ops.reshape(rows, shape=shape)]

    def of_input(self, number: int, flags: Array) -> Array:
        """A flag for each row, from flags for the calls."""
        return self.counts.rows_of(flags)

    def rows_of_input(self, number: int, flags: Array) -> Array:
        """A flag for each row of its input, from flags for the calls."""
        return self.counts.rows_of(flags)

    def leaf_part(self, number: int, leaf: Tensor, i: int) -> Tensor:
        """The i-th row."""
        return Group.leaf_part(self, number, leaf, i)

    def split_by_gradient(self, by_call: Array, reached: Array) -> list[Array]:
        """Never: rows are only moved, so a zero gradient stays one."""
        return []

    def inputs_of(self, i: int, columns: Sequence[Any], made: Any) -> list[Tensor]:
        """The inputs of one call."""
        return [columns[0](k) for k in range(*self.counts.starts[i : i + 2].tolist())]
