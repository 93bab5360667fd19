"""Running a group: bring the rows of its calls together, run one batched op, and say where each result lies.

Rows that lie together already are not copied. Where the rows came from is noted, so that the gradient finds its way
back: a whole earlier result, rows scattered over several, or tensors from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from wayfare.autograd.kept import unpack
from wayfare.batch.record.call import Array, Call, Row, Value
from wayfare.batch.record.signature import Signature
from wayfare.codegen.routines import addresses as by_address
from wayfare.core import buffer_pool
from wayfare.core.errors import InPlaceError
from wayfare.core.mode import changed_mode
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.walk import reachable
from wayfare.core.write_clock import latest_write, tick, written_after

if TYPE_CHECKING:
    from wayfare.batch.run.segment import Segment


# Bytes of a row that is put behind others as bytes.
_SMALL = 1024


class Slice:
    """Rows that lie one behind the other in one earlier result, or the same part of each of them."""

    __slots__ = ("first", "group", "number", "offset", "row", "size")

    def __init__(self, group: Group, number: int, first: int, size: int, offset: int, row: Row) -> None:
        self.group, self.number = group, number
        self.first, self.size = first, size
        self.offset, self.row = offset, row

    def rows(self) -> Array:
        """The rows themselves, where they lie."""
        array = self.group.arrays[self.number][self.first : self.first + self.size]
        row = self.row
        if self.offset == 0 and row is self.group.signature.outs[self.number]:
            return array
        if array.size == 0 or row.bytes == 0:
            return np.empty((self.size, *row.shape), row.dtype)
        # Only the first row is looked at as bytes: the step from row to row is the array's own.
        start = part_of(array[0, ...], row, self.offset)
        return np.lib.stride_tricks.as_strided(start, (self.size, *row.shape), (array.strides[0], *row.strides))


class Scattered:
    """Rows of several results and of tensors from outside."""

    __slots__ = ("at", "groups", "offsets", "outside", "row_ids")

    def __init__(
        self, at: Array | None, row_ids: Array, offsets: Array | None, groups: tuple[Any, ...],
        outside: list[tuple[int, Tensor]],
    ) -> None:  # fmt: skip
        # Which of the rows these are (None: all of them), and the places they came from.
        self.at, self.row_ids, self.offsets = at, row_ids, offsets
        # The (group, output) pairs among them.
        self.groups = groups
        self.outside = outside


class Shared:
    """One tensor or value for all calls."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Group:
    """Calls of one kind that run as one."""

    __slots__ = (
        "arrays", "batched", "calls", "differentiable", "extras", "leaves", "number", "outputs", "round", "signature",
        "single", "sources", "start", "time",
    )  # fmt: skip

    def __init__(self, number: int, round_number: int, signature: Signature, calls: list[Call]) -> None:
        self.number = number
        self.round = round_number
        self.signature = signature
        self.calls = len(calls)
        # Of each row input: the tensor that was made of it, and where its rows came from (None: no gradient there).
        self.leaves: list[Tensor] = []
        self.sources: list[Any] = []
        self.outputs: list[Tensor] = []
        self.arrays: list[Array] = []
        self.batched: list[bool] = []
        self.extras: list[Any] = []
        self.differentiable = False
        # Did the calls have nothing of their own, so that there is one result for all of them?
        self.single = False
        # The place of the first row.
        self.start = 0
        # When it ran, by the clock of nodes and writes.
        self.time = tick()

    def run(self, segment: Segment, calls: list[Call]) -> None:
        """Run it."""
        signature = self.signature
        for column in zip(*[c.inputs for c in calls], strict=True):
            array, source, several = segment.gather(column, signature.grad)
            leaf = wrap(array)
            leaf._requires_grad = source is not None
            self.leaves.append(leaf)
            self.sources.append(source)
            self.batched.append(several)
        if calls[0].extra is not None:
            self.extras = [c.extra for c in calls]
        self.single = not (True in self.batched or self.extras)
        self.outputs = self.compute(self.leaves)
        self.differentiable = signature.grad and any([out._requires_grad for out in self.outputs])
        self._register(segment)
        if not self.differentiable:
            # Only the results are wanted from now on.
            self.leaves, self.sources, self.outputs = [], [], []

    def compute(self, leaves: list[Tensor]) -> list[Tensor]:
        """The outputs for given rows."""
        signature = self.signature
        made = signature.run(signature, self.calls, leaves, self.batched, self.extras)
        return list(made) if made.__class__ is tuple or made.__class__ is list else [made]

    def is_stale(self) -> bool:
        """Was something that all its calls read written in place since? Then it cannot simply run once more."""
        if latest_write[0] <= self.time:
            return False
        shared = [leaf for leaf, several in zip(self.leaves, self.batched, strict=True) if not several]
        return any([written_after(t._array, self.time) for t in (*self.signature.shared, *shared)])

    def check_saved(self) -> None:
        """What it has kept for its gradient must be as it was: what runs once more would not notice."""
        for node in reachable([out._edge for out in self.outputs if out._edge is not None])[0]:
            unpack(node, False)

    def refuse_rerun(self) -> NoReturn:
        """It would have to run once more, on what is there no longer."""
        raise InPlaceError(f"{self.signature.name} must run once more for this gradient, and a tensor that it read was "
                           "written in place since", fix="Write after the backward pass, or to a clone.")  # fmt: skip

    def recompute(self, chosen: Array) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs and outputs of some of its calls, run once more by themselves."""
        leaves = []
        for leaf, several in zip(self.leaves, self.batched, strict=True):
            part = wrap(leaf._array[chosen] if several else leaf._array)
            part._requires_grad = leaf._requires_grad
            leaves.append(part)
        extras = [self.extras[i] for i in chosen.tolist()] if self.extras else []
        with changed_mode(grad=True, executor=None):
            made = self.signature.run(self.signature, len(chosen), leaves, self.batched, extras)
        return leaves, list(made) if made.__class__ is tuple or made.__class__ is list else [made]

    def _register(self, segment: Segment) -> None:
        """Give the rows of all outputs their places."""
        size = 1 if self.single else self.calls
        for number, row in enumerate(self.signature.outs):
            array = self.outputs[number]._array
            if self.single:
                array = array.reshape((1, *array.shape))
            if array.shape != (size, *row.shape) or array.dtype != row.dtype:
                array = np.broadcast_to(array, (size, *row.shape)).astype(row.dtype)
            if array.strides[1:] != row.strides and not _dense_rows(array, row):
                array = np.ascontiguousarray(array)
            self.arrays.append(array)
        self.start = segment.allocate_rows(self, self.arrays, size)

    def index_of(self, call: Call) -> int:
        """Which row of the results is a call's."""
        return (call.row_id - self.start) // len(self.signature.outs)

    def array_of(self, value: Value) -> Array:
        """The numbers of a value; not to be written to."""
        number = value.number
        array = self.arrays[number][self.index_of(value.call), ...]
        if value.is_part and (value.offset or value.row is not self.signature.outs[number]):
            array = part_of(array, value.row, value.offset)
        return array


def split_by_gradient(group: Group, by_call: Array, reached: Array) -> list[Array]:
    """Which calls of a group must be differentiated apart from each other, where a gradient came to some outputs only;
    none if all can go together.

    A call that no gradient came to is left out. One that a gradient came to for some outputs of several goes with its
    like, if there are numbers that are not finite: elsewhere the gradients of zero do no harm.
    """
    if group.single:
        return []
    numbers = [a for a in (*group.arrays, *[t._array for t in group.leaves]) if a.dtype.kind == "f"]
    if group.is_stale():
        if not all([np.isfinite(a).all() for a in numbers]):
            group.refuse_rerun()
        return []
    if by_call.shape[1] > 1 and not all([np.isfinite(a).all() for a in numbers]):
        split_by_gradient = np.unique(by_call, axis=0)
        found = [np.flatnonzero((by_call == pattern).all(axis=1)) for pattern in split_by_gradient if pattern.any()]
        return found if len(found) > 1 or len(found[0]) < len(by_call) else []
    return [] if reached.all() else [np.flatnonzero(reached)]


def part_of(array: Array, row: Row, offset: int) -> Array:
    """A dense part of a dense array."""
    if row.bytes == 0:
        return np.empty(row.shape, row.dtype)
    flat = array.reshape(-1).view(np.uint8)[offset : offset + row.bytes]
    return flat.view(row.dtype).reshape(row.shape)


def _dense_rows(array: Array, row: Row) -> bool:
    """Does each row lie without gaps? The step along a dimension of size one says nothing."""
    if array.size == 0:
        return True
    return all(n == 1 or s == t for n, s, t in zip(row.shape, array.strides[1:], row.strides, strict=True))


def as_slice(values: Sequence[Value], row_ids: list[int], offsets: list[int]) -> Slice | None:
    """The part of one earlier result that these rows are, if they lie in it one behind the other."""
    first, last = values[0], values[-1]
    size = len(values)
    group: Group = first.call.group
    step = len(group.signature.outs)
    if row_ids[-1] - row_ids[0] != (size - 1) * step or row_ids != list(range(row_ids[0], row_ids[-1] + 1, step)):
        return None
    offset = first.offset
    if group is not last.call.group or first.number != last.number or offsets.count(offset) != size:
        return None
    return Slice(group, first.number, group.index_of(first.call), size, offset, first.row)


def gather_rows(addresses: Array, row: Row) -> Array:
    """A copy of rows that lie anywhere."""
    out = buffer_pool.empty((len(addresses), *row.shape), row.dtype)
    if row.bytes:
        by_address.gather(addresses, out)
    return out


def stack_rows(arrays: list[Array], row: Row) -> Array:
    """A copy of arrays, one behind the other."""
    if 0 < row.bytes <= _SMALL and False not in [a.flags.c_contiguous for a in arrays]:
        # Their bytes one behind the other: for numbers and short rows that is many times faster than by NumPy.
        joined: Any = bytearray().join(arrays)  # type: ignore[arg-type]
        return np.frombuffer(joined, row.dtype).reshape((len(arrays), *row.shape))
    out = buffer_pool.empty((len(arrays), *row.shape), row.dtype)
    if row.shape and row.bytes:
        np.concatenate(arrays, out=out.reshape((-1, *row.shape[1:])))
    else:
        for i, array in enumerate(arrays):
            out[i] = array
    return out
