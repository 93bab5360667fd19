"""Writing whole tensors in place: copy_, fill_, zero_, and the forms that only change how memory is seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from wayfare.api.functions._new import fitting, read_number, read_size
from wayfare.api.functions._public import add_method, as_dtype_of, named
from wayfare.api.functions.shape import squeeze, stretched_shape, swapaxes, swapdims, t, transpose, unsqueeze
from wayfare.core.device import BACKENDS, zeros_on_device_of
from wayfare.core.dispatch import apply2
from wayfare.core.errors import InPlaceError, OperationError, ShapeError
from wayfare.core.inplace import check_history, check_writable, move_into, set_history, stand_alone
from wayfare.core.mode import current
from wayfare.core.op import REGISTRY
from wayfare.core.spec import DType
from wayfare.core.tensor import Tensor, to_tensor, wrap
from wayfare.ops.movement.windows import memory_of

__all__ = ["fill"]

_OVERWRITE = REGISTRY["overwrite"]


def write_values(self: Tensor, values: Tensor, name: str) -> Tensor:
    """Replace the values of the tensor by `values` (of its dtype, broadcast)."""
    if current().grad and (self.requires_grad or values.requires_grad):
        values = apply2(_OVERWRITE, self, values)
    return move_into(self, values, name)


def _copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Write the values of `src` (broadcast, converted) into this tensor; gradients flow to `src`."""
    check_writable(self, "copy_")
    source = as_dtype_of(to_tensor(src, op="copy_"), self.dtype)
    if BACKENDS and source.device != self.device:
        source = source.to(self.device)
    stretched_shape("copy_", source, self.shape)
    return write_values(self, source, "copy_")


def _value_for(value: Any, dtype: DType, op: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.ndim == 0:
            return as_dtype_of(value, dtype)
        raise ShapeError(f"{op}: takes a number or a 0-dim tensor, not {value.spec}", fix="Use copy_ for many values.")
    return as_dtype_of(fitting(op, read_number(op, "the value", value), dtype), dtype)


def fill(input: Tensor, value: Any) -> Tensor:
    """A tensor like `input` with `value` everywhere; gradients flow to `value` if it is a 0-dim tensor."""
    return apply2(_OVERWRITE, input, _value_for(value, input.dtype, "fill"))


def _fill(self: Tensor, value: Any) -> Tensor:
    """Write one value everywhere."""
    check_writable(self, "fill_")
    return write_values(self, _value_for(value, self.dtype, "fill_"), "fill_")


def _zero(self: Tensor) -> Tensor:
    """Write zeros everywhere."""
    check_writable(self, "zero_")
    return write_values(self, as_dtype_of(0, self.dtype), "zero_")


def _fill_diagonal(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Write one value on the main diagonal; with `wrap` it begins again below, in matrices that are tall enough."""
    if self.ndim < 2 or (self.ndim > 2 and len(set(self.shape)) > 1):
        raise ShapeError(f"fill_diagonal_: needs a matrix, or more dimensions of one size; this is {self.spec}")
    rows, columns = self.shape[:2]
    for first in range(0, rows if wrap and self.ndim == 2 else 1, columns + 1):
        diagonal = self[first:] if first else self
        while diagonal.ndim > 1:
            diagonal = diagonal.diagonal()
        diagonal.fill_(fill_value)
    return self


def _detach(self: Tensor) -> Tensor:
    """Cut this tensor itself from its history: it becomes a leaf that requires no gradient."""
    stand_alone(self)
    if self._view is not None or (self._extras is not None and "handed_through" in self._extras):
        raise InPlaceError("detach_: a view cannot be cut from the history of its base", fix="Use .detach().")
    self._edge = None
    self._requires_grad = False
    return self


def _resize(self: Tensor, *sizes: Any, memory_format: Any = None) -> Tensor:
    """Another shape of any number of elements: the first ones stay, new ones are undefined."""
    shape = read_size("resize_", sizes)
    if self.requires_grad:
        raise OperationError("resize_: a tensor that requires a gradient cannot be resized",
                             fix="Use reshape, narrow or pad.")  # fmt: skip
    found, count = memory_of(self._array), math.prod(shape)
    if found is not None and found[1] + count <= found[0].size:
        self._array = found[0][found[1] : found[1] + count].reshape(shape)
    else:
        fresh = zeros_on_device_of(self._array, (count,), self._array.dtype)
        kept = min(count, self._array.size)
        fresh[:kept] = self._array.reshape(-1)[:kept]
        self._array = fresh.reshape(shape)
    self._view = None
    return self


def _resize_as(self: Tensor, other: Tensor, memory_format: Any = None) -> Tensor:
    """`resize_` to the shape of `other`."""
    return _resize(self, other.shape)


add_method("detach_", _detach)
add_method("resize_", _resize)
add_method("resize_as_", _resize_as)
add_method("copy_", _copy)
add_method("fill_", _fill)
add_method("fill_diagonal_", _fill_diagonal)
add_method("zero_", _zero)


def _reseen(function: Callable[..., Tensor]) -> None:
    """The in-place form of a view: the tensor itself becomes the view."""
    name = function.__name__ + "_"

    def change(self: Tensor, *args: Any, **options: Any) -> Tensor:
        check_history(self, name)
        # A stand-in keeps the old form of the tensor, as the base of the new view.
        before = wrap(self._array)
        before._edge, before._requires_grad, before._view = self._edge, self._requires_grad, self._view
        after = function(before, *args, **options)
        if after is before:
            return self
        self._array = after._array
        if current().grad:
            set_history(self, after._edge, after._requires_grad)
        if self._edge is not None or not self._requires_grad:  # a leaf stays one
            self._view = after._view
            self._more()["before"] = before  # views taken earlier look for it here: see `renew`
        return self

    doc = f"Like `{function.__name__}`, but the tensor itself takes the new shape and is returned."
    add_method(name, named(change, name, doc))


for _function in (squeeze, unsqueeze, transpose, swapaxes, swapdims, t):
    _reseen(_function)
