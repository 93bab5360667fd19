"""What is recorded while examples run: pending calls, and the values they will produce.

A value is the handle of a lazy tensor, which is the stand-in that the user's code gets for it.

A call is one op (or one opaque call, such as an LSTM cell) on one example. Its inputs are *rows*: values of earlier
calls, or tensors from outside. Weights that all examples share are not inputs but part of the call's signature. A group
of calls with one signature runs as one batched op; after that each value is a row of the group's result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from wayfare.batch.record.memory import HOST, Memory, memory_of
from wayfare.core.callsite import NO_LINE, Site, locate
from wayfare.core.device import Device
from wayfare.core.errors import GraphError
from wayfare.core.spec import FLOAT_KINDS
from wayfare.core.stand_in import StandIn, stand_in
from wayfare.core.tensor import Tensor

if TYPE_CHECKING:
    from wayfare.batch.record.signature import Signature

Array = np.ndarray[Any, np.dtype[Any]]


Strides = tuple[int, ...]


class Row:
    """Shape, dtype, layout and device of the tensor that one example sees. Interned, so rows are compared by identity.

    In a group's result every row is C-contiguous (`strides`). `layout` holds the strides that the tensor would have in
    the plain loop, if they differ: what is computed from a transposed tensor is transposed too.
    """

    __slots__ = ("bytes", "dtype", "is_float", "layout", "memory", "shape", "strides")

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], layout: Strides | None, memory: Memory = HOST
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.layout = layout
        self.memory = memory
        self.is_float = dtype.kind in FLOAT_KINDS
        size = dtype.itemsize
        strides = []
        for n in reversed(shape):
            strides.append(size)
            size *= n
        self.strides = tuple(reversed(strides))
        self.bytes = size

    def __repr__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


_ROWS: dict[tuple[tuple[int, ...], np.dtype[Any], Strides | None, Memory], Row] = {}


def row_of(
    shape: tuple[int, ...], dtype: np.dtype[Any], layout: Strides | None = None, memory: Memory = HOST
) -> Row:  # fmt: skip
    """The interned Row of a shape, a dtype, a layout and a memory."""
    found = _ROWS.get((shape, dtype, layout, memory))
    if found is None:
        found = _ROWS[shape, dtype, layout, memory] = Row(shape, dtype, layout, memory)
    return found


def row_of_array(array: Array) -> Row:
    """The Row of an array."""
    return row_of(array.shape, array.dtype, None if array.flags.c_contiguous else array.strides, memory_of(array))


class Call:
    """One recorded call of one example."""

    __slots__ = (
        "code", "depth", "example", "extra", "group", "handles", "inputs", "offset", "row_id", "signature",
    )  # fmt: skip

    signature: Signature
    inputs: tuple[Any, ...]  # one for each row that is read: a Value, or a Tensor from outside
    row_id: int  # number of its first output among all rows of the segment; its other outputs follow
    extra: Any  # what differs between calls of one signature besides their rows: a random key, an index
    group: Any  # the group it ran in; None while it is pending
    handles: Any  # while it is pending, the lazy tensors of its outputs: weak references, or (native) they themselves
    depth: Any  # scratch space of the schedule
    example: Any  # the Example it belongs to; None in a block without examples
    code: Any  # code object and instruction offset of the user's line
    offset: int

    @property
    def site(self) -> Site | None:
        """The user's line that recorded the call."""
        if self.example is not None and (self.code is None or self.code.co_filename == NO_LINE):
            called: Site | None = self.example.site
            return called
        return locate(self.code, self.offset)


class Value:
    """One output of a call, or a contiguous part of one (an item, a slice, another shape)."""

    __slots__ = ("call", "has_views", "is_part", "needs_grad", "number", "offset", "row", "view_of")

    def __init__(self, call: Call, number: int, row: Row, needs_grad: bool) -> None:
        self.call = call
        self.number = number  # index of the output
        self.row = row
        self.needs_grad = needs_grad
        # For a part of an output: where it begins, in bytes.
        self.is_part = False
        self.offset = 0

    # Two that are set on few values only.
    has_views: bool  # set if some tensor is a view of this one
    view_of: Any  # if this one is a view: (base tensor, view op, attributes)

    # It is computed, so if it requires a gradient it is no leaf.
    is_leaf = False

    @property
    def origin(self) -> Any:
        """What it is a view of: (base tensor, view op, attributes); None if it is no view."""
        return getattr(self, "view_of", None)

    def without_base(self) -> Value:
        """The same value without its base tensor: whoever stores the value must not keep the base alive."""
        if self.origin is None:
            return self
        made = self.part(self.row, 0, self.needs_grad)
        made.is_part = self.is_part
        return made

    def part(self, row: Row, offset: int, needs_grad: bool) -> Value:
        """The part of this value that begins `offset` bytes into it."""
        made = Value(self.call, self.number, row, needs_grad)
        made.is_part = True
        made.offset = self.offset + offset
        return made

    # -- as the handle of a lazy tensor (see core/stand_in.py)

    @property
    def device(self) -> Device:
        """Where its tensor is."""
        return self.row.memory.device

    @property
    def extras(self) -> dict[str, Any] | None:
        """`Tensor._extras` of its tensor."""
        return {"inference": True} if self.call.signature.inference else None

    @property
    def is_view(self) -> bool:
        """Whether its tensor is a view of another one."""
        return self.origin is not None

    @property
    def history_name(self) -> str:
        """The name of the node that its tensor would have in the plain loop."""
        return getattr(self.call.signature.target, "grad_name", "MapBackward")

    def materialise(self) -> None:
        """Run all pending calls, and make this and every other lazy tensor of the session an ordinary one."""
        session = self.call.signature.session
        if session is None:
            raise GraphError("this tensor was never computed: its map or batching block ended with an error before",
                             fix="Compute it again.")  # fmt: skip
        session.materialise()

    def detached(self, tensor: StandIn) -> Tensor:
        """The same values, cut from the history."""
        return lazy_view(tensor, self.part(self.row, 0, False), None, {})

    def text(self, tensor: StandIn) -> str:
        """What `repr` shows: the numbers."""
        return Tensor.__repr__(tensor)


def lazy_view(base: Tensor, value: Value, op: Any, attrs: dict[str, Any]) -> StandIn:
    """A lazy tensor that is a view of `base` by a view op (None: `base.detach()`)."""
    base._handle.has_views = True
    value.view_of = (base, op, attrs)
    t = stand_in(value, value.needs_grad)
    session = value.call.signature.session
    assert session is not None
    session.live.append(ref(t))
    return t
