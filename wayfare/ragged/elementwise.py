"""Functions of each value by itself: operators with broadcasting, and the usual functions as methods.

A ragged tensor counts as [rows, length, *features], and operands are broadcast against that by the ordinary rule, from
the right. Only 1 fits the ragged length: [features] and [1, features] go to every value, [rows, 1, features] goes by
row, and [rows, features] does not fit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentTypeError, ShapeError

if TYPE_CHECKING:
    from wayfare.ragged.ragged import Ragged

_OPERANDS = (wf.Tensor, np.ndarray, np.generic, int, float)


def fitted(op: str, values: wf.Tensor, offsets: wf.Tensor, other: Any) -> Any:
    """A tensor or number so that it broadcasts against the packed values."""
    if not isinstance(other, _OPERANDS):
        raise ArgumentTypeError(f"{op}: a ragged tensor does not go with {type(other).__name__}",
                                fix="Use a ragged tensor, a tensor or a number.")  # fmt: skip
    if not isinstance(other, (wf.Tensor, np.ndarray)):
        return other
    other = wf.as_tensor(other)
    rows = offsets.shape[0] - 1
    if other.ndim < values.ndim or (other.ndim == values.ndim and other.shape[0] == 1):
        return other
    if other.ndim == values.ndim + 1 and other.shape[1] == 1:
        if other.shape[0] == rows:
            return wf.segment_repeat(other.squeeze(1), offsets)
        if other.shape[0] == 1:
            return other.squeeze(1)
    shape = ", ".join(map(str, (rows, "length", *values.shape[1:])))
    row_by_row = other.ndim == values.ndim and other.shape[0] == rows
    raise ShapeError(f"{op}: {other.spec} does not broadcast with a ragged tensor of [{shape}]",
                     fix="For one row of it to each row, write t.unsqueeze(1)." if row_by_row else
                     "Use [features], or [rows, 1, features] for one to each row.")  # fmt: skip


def same_lengths(op: str, first: wf.Tensor, other: wf.Tensor) -> None:
    """Refuse two sets of offsets that differ, by the first row that does."""
    if first is other or (first.shape == other.shape and bool((first == other).all())):
        return
    if first.shape != other.shape:
        raise ShapeError(f"{op}: one ragged tensor has {first.shape[0] - 1} rows and another {other.shape[0] - 1}")
    mine, theirs = (offsets[1:] - offsets[:-1] for offsets in (first, other))
    row = int((mine != theirs).to(wf.int64).argmax())
    raise ShapeError(f"{op}: row {row} has {int(mine[row])} values in one ragged tensor and {int(theirs[row])} in "
                     "another")  # fmt: skip


def _binary(name: str, function: Callable[[Any, Any], Any], *, reflected: bool = False) -> Callable[[Any, Any], Ragged]:
    def call(self: Any, other: Any) -> Any:
        if not isinstance(other, (type(self), *_OPERANDS)):
            return NotImplemented
        if reflected:
            return type(self).apply(lambda mine, theirs: function(theirs, mine), self, other)
        return type(self).apply(function, self, other)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{function.__name__}` of each value with an operand that broadcasts."
    return call


def _unary(name: str) -> Callable[..., Ragged]:
    function = getattr(wf.Tensor, name)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        return self.map_values(lambda values: function(values, *args, **options))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`Tensor.{name}` of each value."
    return call


class Elementwise:
    """The operators and functions of single values."""

    __slots__ = ()

    # NumPy arrays on the left leave it to the ragged tensor.
    __array_ufunc__ = None

    __add__ = _binary("__add__", operator.add)
    __radd__ = _binary("__radd__", operator.add, reflected=True)
    __sub__ = _binary("__sub__", operator.sub)
    __rsub__ = _binary("__rsub__", operator.sub, reflected=True)
    __mul__ = _binary("__mul__", operator.mul)
    __rmul__ = _binary("__rmul__", operator.mul, reflected=True)
    __truediv__ = _binary("__truediv__", operator.truediv)
    __rtruediv__ = _binary("__rtruediv__", operator.truediv, reflected=True)
    __floordiv__ = _binary("__floordiv__", operator.floordiv)
    __rfloordiv__ = _binary("__rfloordiv__", operator.floordiv, reflected=True)
    __mod__ = _binary("__mod__", operator.mod)
    __rmod__ = _binary("__rmod__", operator.mod, reflected=True)
    __pow__ = _binary("__pow__", operator.pow)
    __rpow__ = _binary("__rpow__", operator.pow, reflected=True)
    __and__ = _binary("__and__", operator.and_)
    __or__ = _binary("__or__", operator.or_)
    __xor__ = _binary("__xor__", operator.xor)
    __lt__ = _binary("__lt__", operator.lt)
    __le__ = _binary("__le__", operator.le)
    __gt__ = _binary("__gt__", operator.gt)
    __ge__ = _binary("__ge__", operator.ge)
    __eq__ = _binary("__eq__", operator.eq)  # type: ignore[assignment]
    __ne__ = _binary("__ne__", operator.ne)  # type: ignore[assignment]
    # Equality is by value and gives a mask, so a ragged tensor is known by its identity, as a tensor is.
    __hash__ = object.__hash__

    __neg__ = _unary("neg")
    __abs__ = _unary("abs")
    __invert__ = _unary("bitwise_not")
    abs = _unary("abs")
    ceil = _unary("ceil")
    clamp = _unary("clamp")
    clip = _unary("clip")
    cos = _unary("cos")
    erf = _unary("erf")
    exp = _unary("exp")
    expm1 = _unary("expm1")
    floor = _unary("floor")
    isfinite = _unary("isfinite")
    isinf = _unary("isinf")
    isnan = _unary("isnan")
    log = _unary("log")
    log1p = _unary("log1p")
    log2 = _unary("log2")
    logical_not = _unary("logical_not")
    nan_to_num = _unary("nan_to_num")
    neg = _unary("neg")
    pow = _binary("pow", operator.pow)
    reciprocal = _unary("reciprocal")
    relu = _unary("relu")
    round = _unary("round")
    rsqrt = _unary("rsqrt")
    sigmoid = _unary("sigmoid")
    sign = _unary("sign")
    sin = _unary("sin")
    sqrt = _unary("sqrt")
    square = _unary("square")
    tan = _unary("tan")
    tanh = _unary("tanh")
