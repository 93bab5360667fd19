"""Running a group: gather the input rows of its calls, run one batched op, and register the output rows.

Rows that are adjacent in one earlier result are not copied. The source of each input is stored for the backward pass:
a slice of an earlier result, rows scattered over several results, or tensors from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from wayfare.autograd.kept import unpack
from wayfare.batch.record.call import Array, Call, Row, Value
from wayfare.batch.record.memory import Memory, memory_of
from wayfare.batch.record.signature import Signature
from wayfare.batch.run.call_loops import columns_of
from wayfare.batch.run.missing_gradients import may_be_zero
from wayfare.core.dispatch import apply1, tensor_ops
from wayfare.core.errors import InPlaceError
from wayfare.core.mode import changed_mode
from wayfare.core.native import NATIVE
from wayfare.core.op import REGISTRY
from wayfare.core.spec import FLOAT_KINDS
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.walk import reachable
from wayfare.core.write_clock import latest_write, tick, written_after

if TYPE_CHECKING:
    from wayfare.batch.run.segment import Segment


# Where the rows of one input of all calls lie: (array, or None and their addresses; source, or None if they need no
# gradient; False if all calls have the same row, which is then the array).
Located = tuple[Array | None, Array | None, Any, bool]


_TO_DEVICE = REGISTRY["to_device"]


class Slice:
    """A source of rows: adjacent rows of one earlier result, or the same part of each of them."""

    __slots__ = ("first", "group", "number", "offset", "row", "size")

    def __init__(self, group: Group, number: int, first: int, size: int, offset: int, row: Row) -> None:
        self.group, self.number = group, number
        self.first, self.size = first, size
        self.offset, self.row = offset, row

    def rows(self) -> Any:
        """The rows, as a view of the earlier result."""
        array: Any = self.group.arrays[self.number][self.first : self.first + self.size]
        row = self.row
        if self.offset == 0 and row is self.group.signature.outs[self.number]:
            return array
        if array.size == 0 or row.bytes == 0:
            return row.memory.empty((self.size, *row.shape), row.dtype)
        return row.memory.parts(array, row, self.offset)


class Scattered:
    """A source of rows: rows of several results, and tensors from outside."""

    __slots__ = ("at", "groups", "offsets", "outside", "row_ids")

    def __init__(
        self, at: Array | None, row_ids: Array, offsets: Array | None, groups: tuple[Any, ...],
        outside: list[tuple[int, Tensor]],
    ) -> None:  # fmt: skip
        # Which of the input rows these are (None: all), the ids of the rows they came from, and offsets in bytes.
        self.at, self.row_ids, self.offsets = at, row_ids, offsets
        # The (group, output) pairs that those rows belong to.
        self.groups = groups
        self.outside = outside

    def part(self, array: Array, i: int) -> Array:
        """What the i-th value has of an array of all rows."""
        return array[i, ...]


class Shared:
    """A source: one tensor or value for all calls."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Group:
    """Calls of one signature that run as one."""

    # Whether its calls differ in their lengths (`ragged_group.py`).
    has_lengths = False

    __slots__ = (
        "arrays", "batched", "calls", "differentiable", "extras", "held", "leaves", "number", "on_host", "outputs",
        "round", "signature", "single", "sources", "start", "time",
    )  # fmt: skip

    def __init__(self, number: int, round_number: int, signature: Signature, calls: list[Call]) -> None:
        self.number = number
        self.round = round_number
        self.signature = signature
        self.calls = len(calls)
        # For each input of the calls: the tensor of the gathered rows, and its source (None: needs no gradient).
        self.leaves: list[Tensor] = []
        self.sources: list[Any] = []
        self.outputs: list[Tensor] = []
        self.arrays: list[Array] = []
        # Copies of arrays of another device, by output, that Python has read values of.
        self.on_host: dict[int, Array] = {}
        self.batched: list[bool] = []
        self.extras: list[Any] = []
        self.differentiable = False
        # The memory of the tensors that all calls share, when it ran: `.data = …` gives a tensor other memory.
        self.held: dict[int, Array] = {}
        # True if all calls have the same inputs: then there is one result for all of them.
        self.single = False
        # The id of its first output row.
        self.start = 0
        # When it ran, by the clock of nodes and in-place writes.
        self.time = tick()

    @property
    def memory(self) -> Memory:
        """Where its results lie."""
        return self.signature.memory

    def run(self, segment: Segment, calls: list[Call]) -> None:
        """Gather the inputs, run the op, and register the outputs."""
        signature = self.signature
        self.held = {id(t): t._array for t in signature.shared}
        columns = self.columns(calls)
        located = [self.locate(segment, i, column, signature.grad) for i, column in enumerate(columns)]
        if self.run_natively(segment, calls, located):
            return
        scattered = [(found[1], column[0].row) for found, column in zip(located, columns, strict=True)
                     if found[0] is None]  # fmt: skip
        gathered = iter(scattered[0][1].memory.gather_each(scattered) if scattered else ())
        for array, _, source, several in located:
            leaf = wrap(next(gathered) if array is None else array)
            leaf._requires_grad = source is not None
            self.leaves.append(leaf)
            self.sources.append(source)
            self.batched.append(several)
        if calls[0].extra is not None:
            self.extras = [c.extra for c in calls]
        self.single = not (True in self.batched or self.extras or self.has_lengths)
        self.outputs = self.compute(self.joined(self.leaves))
        self.differentiable = signature.grad and any([out._requires_grad for out in self.outputs])
        self._register(segment)
        if not self.differentiable:
            # Only the results are needed from now on.
            self.leaves, self.sources, self.outputs = [], [], []

    def run_natively(self, segment: Segment, calls: list[Call], located: Sequence[Located]) -> bool:
        """Run without tensors and nodes if that is possible (`row_group.py`)."""
        return False

    def joined(self, leaves: list[Tensor]) -> list[Tensor]:
        """The inputs, with those rows that are numbers of the CPU on the device that they join: one copy for each."""
        to = self.signature.joins
        if to is None:
            return leaves
        return [apply1(_TO_DEVICE, leaf, to) if several and leaf._array.__class__ is np.ndarray else leaf
                for leaf, several in zip(leaves, self.batched, strict=True)]  # fmt: skip

    def locate(self, segment: Segment, number: int, column: tuple[Any, ...], grad: bool) -> Located:
        """Where the rows of one input lie."""
        return segment.locate(column, grad)

    def columns(self, calls: list[Call]) -> Sequence[tuple[Any, ...]]:
        """For each input, its rows."""
        return columns_of(calls)

    def of_input(self, number: int, flags: Array) -> Array:
        """A flag for each row of one of its inputs, from flags for the calls."""
        return flags

    def reached_rows(self, number: int, by_call: Array | None) -> Array | None:
        """A flag for each row of an input: whether a gradient reaches it from the results of the calls that `by_call`
        (calls × results) says. None: from all to all."""
        if by_call is None:
            return None
        signature = self.signature
        reach = getattr(signature.target, "reach", None)
        if reach is not None and not reach().all():
            rows = [i for i, shared in enumerate(signature.pattern) if shared is None]
            by_call = by_call & reach()[rows[number]]
        return self.of_input(number, np.any(by_call, axis=1))

    def rows_of_input(self, number: int, flags: Array) -> Array:
        """A flag for each row of the tensor of one of its inputs, from flags for the calls."""
        return self.of_input(number, flags)

    def rows_of_output(self, number: int, chosen: Array) -> Array:
        """The rows of one output that belong to chosen calls."""
        return chosen

    def mark_before(self, rows: Array) -> None:
        """Mark the rows of this group that marked rows of it are computed from: there are none."""

    def signature_of(self, i: int) -> Signature:
        """The signature of the i-th call."""
        return self.signature

    def leaf_part(self, number: int, leaf: Tensor, i: int) -> Tensor:
        """The i-th row of one of its inputs."""
        return tensor_ops.select(leaf, dim=0, index=i)  # type: ignore[no-any-return]

    def inputs_of(self, i: int, columns: Sequence[Any], made: Any) -> list[Tensor]:
        """The inputs of one call, from functions that give those of each column."""
        return [column(i) for column in columns]

    def compute(self, leaves: list[Tensor]) -> list[Tensor]:
        """The outputs for given inputs."""
        signature = self.signature
        made = signature.run(signature, self.calls, leaves, self.batched, self.extras)
        return list(made) if made.__class__ is tuple or made.__class__ is list else [made]

    def is_stale(self) -> bool:
        """Whether a tensor that all its calls read was written in place, or got other memory, since: then it cannot be
        recomputed."""
        if any([t._array is not self.held[id(t)] for t in self.signature.shared]):
            return True
        if latest_write[0] <= self.time:
            return False
        shared = [leaf for leaf, several in zip(self.leaves, self.batched, strict=True) if not several]
        return any([written_after(t._array, self.time) for t in (*self.signature.shared, *shared)])

    def check_saved(self) -> None:
        """Raise an error if a tensor saved for its gradient was written in place: recomputing would not notice."""
        for node in reachable([out._edge for out in self.outputs if out._edge is not None])[0]:
            unpack(node, False)

    def refuse_rerun(self) -> NoReturn:
        """Raise the error for a group that would have to be recomputed from values that are overwritten."""
        raise InPlaceError(
            f"{self.signature.name} must be recomputed for this gradient, but a tensor that it read was "
            "written in place or given other `.data` since",
            fix="Write after the backward pass, or to a clone.",
        )

    def recompute(self, chosen: Array) -> tuple[list[Tensor], list[Tensor]]:
        """Run some of its calls again, without the others; gives their inputs and outputs."""
        leaves = []
        for leaf, several in zip(self.leaves, self.batched, strict=True):
            part = wrap(memory_of(leaf._array).take(leaf._array, chosen) if several else leaf._array)
            part._requires_grad = leaf._requires_grad
            leaves.append(part)
        extras = [self.extras[i] for i in chosen.tolist()] if self.extras else []
        with self.differentiating():
            made = self.signature.run(self.signature, len(chosen), self.joined(leaves), self.batched, extras)
        return leaves, list(made) if made.__class__ is tuple or made.__class__ is list else [made]

    def split_by_gradient(self, by_call: Array, reached: Array) -> list[Array]:
        """Split a group of which only some outputs got a gradient: the calls that must be differentiated apart from
        each other. Empty if all can be differentiated together.

        Calls without a gradient are left out. If a call that got a gradient for some of its outputs only has NaN or
        infinite values, calls are split by which outputs got one; else a zero gradient for the others does no harm.
        """
        if self.single:
            return []
        if self.is_stale():
            if not self._is_finite(None):
                self.refuse_rerun()
            return []
        partly = reached & ~by_call.all(axis=1)
        if partly.any() and not may_be_zero(self.outputs, by_call, reached) and not self._is_finite(partly):
            patterns = np.unique(by_call, axis=0)
            found = [np.flatnonzero((by_call == pattern).all(axis=1)) for pattern in patterns if pattern.any()]
            return found if len(found) > 1 or len(found[0]) < len(by_call) else []
        return [] if reached.all() else [np.flatnonzero(reached)]

    def _is_finite(self, calls: Array | None) -> bool:
        """Whether the inputs and outputs of some calls (None: of all) are finite."""
        if calls is not None and not calls.any():
            return True
        if not self.memory.is_host:
            return False  # to know it, Python would wait
        pairs = [*[(a, True) for a in self.arrays], *zip([t._array for t in self.leaves], self.batched, strict=True)]
        for array, several in pairs:
            if array.dtype.kind not in FLOAT_KINDS:
                continue
            found = None
            if several and calls is not None and NATIVE is not None:
                found = NATIVE.are_finite(array, calls)
            if found is None:
                found = np.isfinite(array[calls] if several and calls is not None else array).all()
            if not found:
                return False
        return True

    def differentiating(self) -> Any:
        """The mode in which calls are recomputed."""
        return changed_mode(grad=True, executor=None)

    def _register(self, segment: Segment) -> None:
        """Make all output rows contiguous, and give them ids."""
        size = 1 if self.single else self.calls
        for number, row in enumerate(self.signature.outs):
            array = self.outputs[number]._array
            if self.single:
                array = array.reshape((1, *array.shape))
            if array.shape != (size, *row.shape) or array.dtype != row.dtype:
                array = np.broadcast_to(array, (size, *row.shape)).astype(row.dtype)
            if array.strides[1:] != row.strides and not _dense_rows(array, row):
                array = row.memory.contiguous(array)
            self.arrays.append(array)
        self.start = segment.allocate_rows(self, self.arrays, size)

    def index_of(self, call: Call) -> int:
        """The index of a call's row in the results."""
        return (call.row_id - self.start) // len(self.signature.outs)

    def place_rows(self, addresses: Array, number: int, array: Array) -> None:
        """Enter the addresses of the rows of one output."""
        self.memory.place_rows(addresses, self.start + number, len(self.signature.outs), array)

    def room(self, number: int) -> tuple[int, ...]:
        """The shape of the array of one output."""
        return (1 if self.single else self.calls, *self.signature.outs[number].shape)

    def row_at(self, array: Array, number: int, i: int) -> Array:
        """The i-th row of the array of one output, or of an array like that."""
        return array[i, ...]

    def array_of(self, value: Value) -> Array:
        """The array of a value; must not be written to."""
        number, call = value.number, value.call
        array = self.row_at(self.arrays[number], number, self.index_of(call))
        if value.is_part and (value.offset or value.row is not call.signature.outs[number]):
            array = value.row.memory.part(array, value.row, value.offset)
        return array


def _dense_rows(array: Array, row: Row) -> bool:
    """Whether each row is contiguous. The stride of a dimension of size one has no meaning."""
    if array.size == 0:
        return True
    return all(n == 1 or s == t for n, s, t in zip(row.shape, array.strides[1:], row.strides, strict=True))


def as_slice(values: Sequence[Value], distance: int) -> Slice | None:
    """These rows as a slice of one earlier result, if they are adjacent there; `distance` is that of their ids."""
    first, last = values[0], values[-1]
    group: Group = first.call.group
    if distance != len(group.signature.outs) or group is not last.call.group or first.number != last.number:
        return None
    if group.has_lengths:
        return None
    return Slice(group, first.number, group.index_of(first.call), len(values), first.offset, first.row)
