"""`x[...]` and `x[...] = value`: what stands between the brackets, taken apart.

Integers, slices, None and `...` make a view, in one step. Integer tensors and masks make a copy; where both occur,
the view is taken first, as in PyTorch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.functions._guard import tensor_advice
from wayfare.api.functions._new import fitting
from wayfare.api.functions._public import add_method, as_dtype_of
from wayfare.core.constant import constant
from wayfare.core.device import BACKENDS
from wayfare.core.dispatch import apply
from wayfare.core.dlpack import type_name
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DTypeError, IndexRangeError, ShapeError
from wayfare.core.inplace import check_writable, move_into
from wayfare.core.mode import UNUSUAL, current, executor
from wayfare.core.native import as_view
from wayfare.core.op import REGISTRY
from wayfare.core.spec import Shape, bool_, int32, int64
from wayfare.core.tensor import Tensor, to_tensor, wrap
from wayfare.core.write_clock import note_write
from wayfare.ops.indexing.advanced import check_bounds, full_index, picks_nothing
from wayfare.ops.movement.index import Entry, Index, numpy_index

_SELECT, _SLICE, _BASIC = REGISTRY["select"], REGISTRY["slice"], REGISTRY["basic_index"]
_INDEX, _INDEX_PUT = REGISTRY["index"], REGISTRY["index_put"]
_NUMBERED = frozenset((int64, int32))
_RESHAPE, _EXPAND = REGISTRY["reshape"], REGISTRY["expand"]

# An index taken apart: the basic part, then (dimension of what that leaves, integer tensor) pairs.
Parts = tuple[Index, list[tuple[int, Tensor]]]


def get(self: Tensor, index: Any) -> Tensor:
    """`self[index]`."""
    kind = index.__class__
    if kind is int:
        return select_at(self, 0, index, self.shape)
    if kind is slice and self.ndim:
        start, stop, step = bounds_of(index, self.shape[0])
        return apply(_SLICE, (self,), {"dim": 0, "start": start, "stop": stop, "step": step})  # type: ignore[no-any-return]
    if kind is Tensor and not BACKENDS and index.dtype in _NUMBERED and index.ndim and self.ndim:
        return apply(_INDEX, (self, index), {"dims": (0,)})  # type: ignore[no-any-return]
    basic, picked = take_apart(self, index)
    if not picked:
        return _view(self, basic)
    if not _takes_all(basic, self.shape):
        self = _view(self, basic)
    dims = tuple(dim for dim, _ in picked)
    out = apply(_INDEX, (self, *[i for _, i in picked]), {"dims": dims})
    if UNUSUAL and all(i.ndim == 0 for _, i in picked):
        executor().picked(self, tuple(picked), out)
    return out  # type: ignore[no-any-return]


def select_at(x: Tensor, dim: int, index: int, shape: Shape) -> Tensor:
    """One place along a dimension, as a view."""
    if not shape:
        raise IndexRangeError("index: a 0-dim tensor cannot be indexed with an integer",
                              fix="Use .item() for its number.")  # fmt: skip
    at = number_in_range(index, shape[dim], dim)
    return apply(_SELECT, (x,), {"dim": dim, "index": at})  # type: ignore[no-any-return]


def number_in_range(index: int, size: int, dim: int, op: str = "index") -> int:
    """An integer index made non-negative."""
    if not -size <= index < size:
        raise IndexRangeError(f"{op}: index {index} is out of range for dimension {dim} of size {size}",
                              fix=f"It can be from {-size} to {size - 1}." if size else "")  # fmt: skip
    return index + size if index < 0 else index


def bounds_of(part: slice, size: int) -> tuple[int, int, int]:
    """A slice as (start, stop, step), all non-negative and stop no less than start."""
    step = part.step
    if step is not None and step.__index__() < 1:
        raise ArgumentError(f"index: the step of a slice must be positive, not {step}",
                            fix="Use .flip(dim) to reverse a dimension." if step else "")  # fmt: skip
    try:
        start, stop, step = part.indices(size)
    except TypeError:
        raise ArgumentTypeError(f"index: the bounds of a slice must be integers, not {part}") from None
    return start, max(start, stop), step


def _view(x: Tensor, basic: Index) -> Tensor:
    return apply(_BASIC, (x,), {"index": basic})  # type: ignore[no-any-return]


def _takes_all(basic: Index, shape: Shape) -> bool:
    if len(basic) > len(shape):
        return False
    return all(e.__class__ is tuple and e == (0, n, 1) for e, n in zip(basic, shape))  # noqa: B905 - may be shorter


# -- taking an index apart -------------------------------------------------------------------------------------


def take_apart(x: Tensor, index: Any) -> Parts:
    """The basic part of an index and the tensors in it."""
    shape = x.shape
    if index.__class__ is not tuple:
        index = tuple(index) if isinstance(index, tuple) or _is_list_of_parts(index) else (index,)
    items = [e if e.__class__ in _PLAIN else _as_item(e) for e in index]
    left = len(shape) - sum(map(_dims_taken, items))
    if left < 0:
        raise IndexRangeError(f"index: {len(shape) - left} indices are too many for a shape of {list(shape)}")
    basic: list[Entry] = []
    picked: list[tuple[int, Tensor]] = []
    dim = out = 0
    for item in items:
        kind = item.__class__
        if kind is int:
            basic.append(number_in_range(item, shape[dim], dim))
            dim += 1
        elif kind is slice:
            basic.append(bounds_of(item, shape[dim]))
            dim += 1
            out += 1
        elif item is None:
            basic.append(None)
            out += 1
        elif item is Ellipsis:
            basic += [(0, size, 1) for size in shape[dim : dim + left]]
            dim += left
            out += left
            left = 0
        elif kind is bool:
            # A new dimension of which one place is taken, or none.
            basic.append(None)
            picked.append((out, wrap(np.zeros(int(item), np.int64))))
            out += 1
        else:
            parts = _places_in(item, shape, dim) if item.dtype.rank == 0 else (item,)
            for part in parts:
                basic.append((0, shape[dim], 1))
                picked.append((out, part))
                dim += 1
                out += 1
    if BACKENDS and picked and x.device.type != "cpu":
        picked = [(place, part.to(x.device)) for place, part in picked]
    return tuple(basic), picked


_PLAIN = frozenset((int, slice, bool, type(None), type(Ellipsis)))


def _dims_taken(item: Any) -> int:
    kind = item.__class__
    if kind is int or kind is slice:
        return 1
    if kind in _PLAIN:
        return 0
    return item.ndim if item.dtype.rank == 0 else 1


def _as_item(entry: Any) -> Any:
    """One entry as an int, a bool, or a tensor of integers or bools."""
    if not isinstance(entry, Tensor):
        if isinstance(entry, np.bool_):
            return bool(entry)
        if isinstance(entry, np.integer):
            return int(entry)
        if isinstance(entry, Sequence) and not isinstance(entry, str):
            entry = _tensor_of(entry)
        elif isinstance(entry, np.ndarray):
            entry = to_tensor(entry, op="index")
        elif hasattr(entry, "__index__"):
            return int(entry.__index__())
        else:
            raise IndexRangeError(f"index: {entry!r} ({type(entry).__name__}) cannot be an index",
                                  fix="Use integers, slices, None, ..., integer tensors or bool masks.")  # fmt: skip
    if entry.dtype.is_floating_point:
        raise IndexRangeError(f"index: a tensor of {entry.dtype} cannot be an index",
                              fix="Convert it with .long(), or compare it to make a mask.")  # fmt: skip
    if entry.dtype.name == "uint8":
        warnings.warn("a uint8 index is read as a mask; use .bool(), or .long() for numbers", stacklevel=5)
        entry = as_dtype_of(entry, bool_)
    if entry.ndim == 0 and (executor().works_on_arrays or entry.dtype is bool_):
        return entry._read("an index").item()
    return entry


def _tensor_of(entry: Sequence[Any]) -> Tensor:
    if len(entry) == 0:
        return wrap(np.zeros(0, np.int64))
    try:
        array = np.array([e.item() if isinstance(e, Tensor) else e for e in entry])
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "biu":
        raise IndexRangeError(f"index: the list {entry!r} cannot be an index",
                              fix="It must hold integers, or bools, in equal rows.")  # fmt: skip
    return wrap(array if array.dtype.kind == "b" else array.astype(np.int64))


def _is_list_of_parts(index: Any) -> bool:
    """PyTorch takes a list that holds more than numbers for a tuple."""
    return isinstance(index, list) and any(
        isinstance(e, (Tensor, np.ndarray, list, tuple, slice)) or e is None or e is Ellipsis for e in index
    )


def _places_in(mask: Tensor, shape: Shape, dim: int) -> tuple[Tensor, ...]:
    """A mask as one integer tensor for each of its dimensions."""
    if tuple(mask.shape) != shape[dim : dim + mask.ndim]:
        raise IndexRangeError(
            f"index: a mask of shape {list(mask.shape)} does not fit dimensions {dim} to {dim + mask.ndim - 1} "
            f"of a tensor of shape {list(shape)}"
        )
    return tuple(wrap(np.ascontiguousarray(places)) for places in mask._read("a mask as index").nonzero())


# -- assignment ------------------------------------------------------------------------------------------------


def put(self: Tensor, index: Any, value: Any) -> None:
    """`self[index] = value`."""
    by_ops = not executor().works_on_arrays or (bool(BACKENDS) and self.device.type != "cpu")
    if by_ops and _fills(self, index, value):
        check_writable(self, "x[...] = value")
        mask = index.to(self.device) if BACKENDS else index
        value = _as_value(self, value, None)
        self.masked_fill_(mask.reshape((*index.shape, *(1,) * (self.ndim - index.ndim))), value)
        return
    basic, picked = take_apart(self, index)
    check_writable(self, "x[...] = value")
    value = _as_value(self, value, index if picked else None)
    if BACKENDS and value.device != self.device:
        value = value.to(self.device)
    if by_ops or (current().grad and (value.requires_grad or self.requires_grad)):
        _put_recorded(self, basic, picked, value)
        return
    target = self._array[numpy_index(basic)]
    values = value._array
    where: Any = Ellipsis
    if picked:
        where = full_index(tuple(i._array for _, i in picked), tuple(dim for dim, _ in picked))
    try:
        target[where] = values
    except (IndexError, ValueError):
        if picked and picks_nothing(target.shape, tuple(i._array for _, i in picked), tuple(dim for dim, _ in picked)):
            fitted(value, _shape_of_part(target.shape, picked))
            return
        for dim, places in picked:
            check_bounds("x[...] = value", places._array, target.shape[dim], dim, wrap=True)
        raise _misfit(value, _shape_of_part(target.shape, picked)) from None
    note_write(self._array)


def _fills(x: Tensor, index: Any, value: Any) -> bool:
    """Is it one number for all places of a mask? Then their count is not needed."""
    if not isinstance(index, Tensor) or index.dtype is not bool_ or not 0 < index.ndim <= x.ndim:
        return False
    if tuple(index.shape) != tuple(x.shape[: index.ndim]):
        return False
    if isinstance(value, Tensor):
        return value.ndim == 0 and value.dtype is x.dtype
    # A float into integers is cut off here, and refused by masked_fill.
    return isinstance(value, (bool, int, float)) and (x.dtype.is_floating_point or not isinstance(value, float))


def _as_value(x: Tensor, value: Any, index: Any) -> Tensor:
    """The value in the dtype of `x`. Places that an index tensor names (`index`) take no other dtype, as in PyTorch;
    those of a mask take one number of any."""
    if isinstance(value, (bool, int, float, np.generic)):
        dtype = x.dtype
        # A number too large for floats is rounded to infinity here, as in PyTorch.
        number = value if dtype.is_floating_point else fitting("x[...] = value", value, dtype)
        return constant(number, dtype.numpy)
    if isinstance(value, np.ndarray):
        value, index = to_tensor(value, op="x[...] = value"), None
    if not isinstance(value, Tensor):
        given = type_name(value)
        raise ArgumentTypeError(f"x[...] = value: the value must be a tensor or a number, not {given}",
                                fix=tensor_advice(value))  # fmt: skip
    if index is not None and value.dtype is not x.dtype and not (value.shape.numel() == 1 and _has_mask(index)):
        raise DTypeError(f"x[...] = value: a value of {value.dtype} cannot be written at index tensors of a "
                         f"{x.dtype} tensor", fix=f"Convert it with .to(wf.{x.dtype.name}).")  # fmt: skip
    return as_dtype_of(value, x.dtype)


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype is bool_ for part in parts)


def _put_recorded(x: Tensor, basic: Index, picked: list[tuple[int, Tensor]], value: Tensor) -> None:
    """The view that is written takes the value's history; its base takes "itself with that part replaced"."""
    target = x if picked and _takes_all(basic, x.shape) else _view(x, basic)
    shape = _shape_of_part(target.shape, picked)
    value = fitted(value, shape)
    if picked:
        dims = tuple(dim for dim, _ in picked)
        inputs = (target, value, *[i for _, i in picked])
        value = apply(_INDEX_PUT, inputs, {"dims": dims, "accumulate": False})
    move_into(target, value, "x[...] = value")


def fitted(value: Tensor, shape: Shape) -> Tensor:
    """A value stretched to the shape of the part it is written to; leading sizes of 1 are dropped."""
    own = tuple(value.shape)
    extra = len(own) - len(shape)
    if extra > 0 and own[:extra] == (1,) * extra:
        own = own[extra:]
        value = apply(_RESHAPE, (value,), {"shape": own})
    if own == tuple(shape):
        return value
    try:
        fits = np.broadcast_shapes(own, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise _misfit(value, shape)
    return apply(_EXPAND, (value,), {"shape": tuple(shape)})  # type: ignore[no-any-return]


def _shape_of_part(shape: Shape, picked: list[tuple[int, Tensor]]) -> Shape:
    if not picked:
        return tuple(shape)
    whole = wrap(np.broadcast_to(np.zeros((), np.bool_), shape))
    dims = tuple(dim for dim, _ in picked)
    return _INDEX.infer(whole.spec, *[i.spec for _, i in picked], dims=dims).shape  # type: ignore[no-any-return]


def _misfit(value: Tensor, shape: Shape) -> ShapeError:
    return ShapeError(
        f"x[...] = value: a value of shape {list(value.shape)} does not fit the indexed part of {list(shape)}"
    )


add_method("__getitem__", as_view(get))
add_method("__setitem__", put)
