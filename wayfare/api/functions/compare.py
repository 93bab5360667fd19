"""Comparison, logic, and the bits of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.api.functions._along import check_tensors
from wayfare.api.functions._public import (
    add_method,
    alias,
    as_dtype_of,
    binary,
    common_dtype,
    giving_way,
    method,
    named,
    need_tensors,
    operand,
    operator,
    promoted,
)
from wayfare.core.device import BACKENDS, common_device
from wayfare.core.dispatch import apply
from wayfare.core.errors import DTypeError, OperationError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import bool_
from wayfare.core.tensor import Tensor

__all__ = [
    "allclose", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "eq", "equal", "ge", "greater", "greater_equal", "gt", "isclose", "le", "less", "less_equal", "logical_and",
    "logical_not", "logical_or", "logical_xor", "lt", "ne", "not_equal",
]  # fmt: skip

_OPS = REGISTRY

eq = binary(_OPS["eq"], "`input == other`, element by element.", tensors="first")
ne = binary(_OPS["ne"], "`input != other`, element by element.", tensors="first")
lt = binary(_OPS["lt"], "`input < other`, element by element.", tensors="first")
le = binary(_OPS["le"], "`input <= other`, element by element.", tensors="first")
gt = binary(_OPS["gt"], "`input > other`, element by element.", tensors="first")
ge = binary(_OPS["ge"], "`input >= other`, element by element.", tensors="first")


def _logical(name: str, doc: str) -> Callable[[Tensor, Tensor], Tensor]:
    def call(input: Tensor, other: Tensor) -> Tensor:
        need_tensors(name, "all", input, other)
        input, other = operand(input, name), operand(other, name)
        return apply(_OPS[name], (as_dtype_of(input, bool_), as_dtype_of(other, bool_)))  # type: ignore[no-any-return]

    return method(name=name, inplace=True)(named(call, name, doc))


logical_and = _logical("logical_and", "True where both are non-zero.")
logical_or = _logical("logical_or", "True where at least one is non-zero.")
logical_xor = _logical("logical_xor", "True where exactly one is non-zero.")


@method(inplace=True)
def logical_not(input: Tensor) -> Tensor:
    """True where an element is zero."""
    return apply(_OPS["logical_not"], (as_dtype_of(input, bool_),))  # type: ignore[no-any-return]


def _bits(name: str, doc: str) -> Callable[[Any, Any], Tensor]:
    """An op on integers; floats are refused by name."""
    op = _OPS[name]

    def call(input: Tensor | int, other: Tensor | int) -> Tensor:
        need_tensors(name, "any", input, other)
        values = [operand(input, name), operand(other, name)]
        dtype = common_dtype(name, values)
        if dtype.kind not in op.kinds:
            raise DTypeError(f"{name}: works on integers, not on {dtype}", fix="Convert with .int() first.")
        return apply(op, tuple(as_dtype_of(v, dtype) for v in values))  # type: ignore[no-any-return]

    return method(name=name, inplace=True)(named(call, name, doc))


bitwise_and = _bits("bitwise_and", "The bits set in both.")
bitwise_or = _bits("bitwise_or", "The bits set in either.")
bitwise_xor = _bits("bitwise_xor", "The bits set in exactly one.")
bitwise_left_shift = _bits("bitwise_left_shift", "The bits of `input` moved up by `other` places.")
bitwise_right_shift = _bits("bitwise_right_shift", "The bits of `input` moved down by `other` places.")


@method(inplace=True)
def bitwise_not(input: Tensor) -> Tensor:
    """All bits inverted; for bools, `not`."""
    if input.dtype.is_floating_point:
        raise DTypeError(f"bitwise_not: works on integers, not on {input.dtype}", fix="Convert with .int() first.")
    return apply(_OPS["bitwise_not"], (input,))  # type: ignore[no-any-return]


@method
def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """True where `|input - other| <= atol + rtol * |other|`."""
    need_tensors("isclose", "all", input, other)
    if rtol < 0 or atol < 0:
        raise OperationError(f"isclose: rtol and atol must not be negative, but are {rtol} and {atol}")
    if input.dtype is not other.dtype:
        raise DTypeError(f"isclose: both must have one dtype, not {input.dtype} and {other.dtype}")
    same = eq(input, other)
    if not input.dtype.is_floating_point and rtol == 0 and atol == 0:
        return same
    wide = as_dtype_of(input, common_dtype("isclose", (input,), to_float=True))
    target = as_dtype_of(other, wide.dtype)
    gap = promoted(_OPS["abs"], (wide - target,))
    allowed = promoted(_OPS["abs"], (target,)) * rtol + atol
    near = logical_and(le(gap, allowed), apply(_OPS["isfinite"], (gap,)))
    close = logical_or(same, near)
    if equal_nan:
        close = logical_or(close, logical_and(ne(wide, wide), ne(target, target)))
    return close


@method
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Are all elements close (see `isclose`)?"""
    return bool(isclose(input, other, rtol, atol, equal_nan)._read("allclose()").all())


@method
def equal(input: Tensor, other: Tensor) -> bool:
    """Have both the same shape and the same elements?"""
    check_tensors("equal", input, other)
    if BACKENDS and input.device != other.device:
        common_device("equal", (input, other))
    return bool(np.array_equal(input._read("equal()"), other._read("equal()")))


greater, greater_equal = alias("greater", gt), alias("greater_equal", ge)
less, less_equal, not_equal = alias("less", lt), alias("less_equal", le), alias("not_equal", ne)


for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    add_method(_name, operator(_OPS[_name.strip("_")]))
for _name, _function in {
    "and": bitwise_and, "or": bitwise_or, "xor": bitwise_xor, "lshift": bitwise_left_shift,
    "rshift": bitwise_right_shift,
}.items():  # fmt: skip
    add_method(f"__{_name}__", giving_way(_function))
    add_method(f"__r{_name}__", giving_way(_function, reverse=True))
    add_method(f"__i{_name}__", getattr(Tensor, _function.__name__ + "_"))
add_method("__invert__", bitwise_not)
