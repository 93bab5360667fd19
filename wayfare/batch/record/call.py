"""What is recorded while examples run: calls that are still to be made, and the values they will give.

A call is one op (or one whole cell) on one example. The rows it reads are values of earlier calls or tensors from
outside; weights that many examples share are not among them but part of its kind. When a group of calls of one kind has
run, each of its values knows the place of its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.core.callsite import NO_LINE, Site, locate

if TYPE_CHECKING:
    from wayfare.batch.record.signature import Signature

Array = np.ndarray[Any, np.dtype[Any]]


Strides = tuple[int, ...]


class Row:
    """Shape, dtype and strides of what one example sees. There is one object for each, so it is compared by identity.

    In a group's result rows always lie without gaps, the last dimension fastest (`strides`). `layout` is how the same
    tensor would lie in the loop, if not so: what was computed from a transposed tensor is transposed too.
    """

    __slots__ = ("bytes", "dtype", "is_float", "layout", "shape", "strides")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], layout: Strides | None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.layout = layout
        self.is_float = dtype.kind == "f"
        size = dtype.itemsize
        strides = []
        for n in reversed(shape):
            strides.append(size)
            size *= n
        self.strides = tuple(reversed(strides))
        self.bytes = size

    def __repr__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


_ROWS: dict[tuple[tuple[int, ...], np.dtype[Any], Strides | None], Row] = {}


def row_of(shape: tuple[int, ...], dtype: np.dtype[Any], layout: Strides | None = None) -> Row:
    """The one Row of a shape, a dtype and a layout."""
    found = _ROWS.get((shape, dtype, layout))
    if found is None:
        found = _ROWS[shape, dtype, layout] = Row(shape, dtype, layout)
    return found


def row_of_array(array: Array) -> Row:
    """The Row of what an array is."""
    return row_of(array.shape, array.dtype, None if array.flags.c_contiguous else array.strides)


class Call:
    """One call to be made for one example."""

    __slots__ = (
        "code", "depth", "example", "extra", "group", "handles", "inputs", "offset", "row_id", "signature",
    )  # fmt: skip

    signature: Signature
    inputs: tuple[Any, ...]  # a Value or a Tensor from outside for each row that is read
    row_id: int  # of its first output among all rows of a segment; the others follow
    extra: Any  # what differs between calls of one kind beside their rows: a random key, an index
    group: Any  # the group it has run in; None as long as it is pending
    handles: Any  # weakly, the tensors Python was given for the outputs, as long as the call is pending
    depth: Any  # for the schedule to use
    example: Any  # the Example it belongs to; None in a block without examples
    code: Any  # the user's line
    offset: int

    @property
    def site(self) -> Site | None:
        """The user's line that recorded it."""
        if self.example is not None and (self.code is None or self.code.co_filename == NO_LINE):
            called: Site | None = self.example.site
            return called
        return locate(self.code, self.offset)


class Value:
    """One result of a call, or a part of one (a row of it, a slice, another shape) that lies in it without gaps."""

    __slots__ = ("call", "has_views", "is_part", "needs_grad", "number", "offset", "row", "view_of")

    def __init__(self, call: Call, number: int, row: Row, needs_grad: bool) -> None:
        self.call = call
        self.number = number  # which output of the call it is (part of)
        self.row = row
        # Does a gradient flow through it?
        self.needs_grad = needs_grad
        # Is it a part of a result, and where in it does it begin, in bytes?
        self.is_part = False
        self.offset = 0

    # Two that few have: does some tensor look into this one's memory (there if so)? What does this one look into?
    has_views: bool
    view_of: Any

    @property
    def origin(self) -> Any:
        """What it looks into: (tensor, view op, attributes), or None."""
        return getattr(self, "view_of", None)

    def without_base(self) -> Value:
        """The same value, without the tensor it was seen from: what is kept must not keep that alive."""
        if self.origin is None:
            return self
        made = self.part(self.row, 0, self.needs_grad)
        made.is_part = self.is_part
        return made

    def part(self, row: Row, offset: int, needs_grad: bool) -> Value:
        """A part of this value that begins so many bytes into it."""
        made = Value(self.call, self.number, row, needs_grad)
        made.is_part = True
        made.offset = self.offset + offset
        return made
