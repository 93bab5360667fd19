"""Elementwise ops in the loop language that are neither their formula nor a function of the same name there.

Each is the `expression` of a record, `rule(args, attrs, parameter)`: `parameter(number, dtype)` is a number that is
given when the loop runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wayfare.codegen.loop.expr import NARROW, OF_NUMPY, Expr, const, index
from wayfare.codegen.loop.expr import cast as convert
from wayfare.codegen.math.library import loop_math
from wayfare.ir.fuse.expressions import Parameter, computed_in, converted

Attrs = dict[str, Any]


def cast(args: Sequence[Expr], attrs: Attrs, parameter: Parameter) -> Expr:
    """A cast like NumPy's astype. A cast to a narrow float rounds, and the loop goes on in single precision."""
    dtype = attrs["dtype"].numpy
    name = OF_NUMPY[dtype]
    if name in NARROW:
        return convert(converted(args[0], name), "f32")
    return converted(args[0], computed_in(dtype))


def zeros_like(args: Sequence[Expr], attrs: Attrs, parameter: Parameter) -> Expr:
    """Zero for every input."""
    return const(0, args[0].dtype)


def sign(args: Sequence[Expr], attrs: Attrs, parameter: Parameter) -> Expr:
    """-1, 0 or 1, in the dtype of the input; 0 for NaN."""
    (x,) = args
    if x.dtype == "bool":
        return x
    zero, one = const(0, x.dtype), const(1, x.dtype)
    if x.dtype == "u8":
        return loop_math.where(x > zero, one, zero)  # type: ignore[no-any-return]
    return loop_math.where(x > zero, one, loop_math.where(x < zero, const(-1, x.dtype), zero))  # type: ignore[no-any-return]


_POWERS: dict[float, Callable[[Expr], Expr]] = {
    0.5: lambda x: loop_math.sqrt(x),
    -0.5: lambda x: 1 / loop_math.sqrt(x),
    -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
    0: lambda x: const(1, x.dtype),
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    4: lambda x: (x * x) * (x * x),
}


def pow_to_number(args: Sequence[Expr], attrs: Attrs, parameter: Parameter) -> Expr:
    """A power by a few products where the exponent is a small number."""
    (x,) = args
    exponent = float(attrs["exponent"])
    quick = _POWERS.get(exponent)
    if quick is not None:
        return quick(x)
    return loop_math.pow(x, parameter(exponent, x.dtype))  # type: ignore[no-any-return]


def at_index(args: Sequence[Expr], attrs: Attrs, parameter: Parameter) -> Expr:
    """The element whose position in its row is the second input, 0 elsewhere."""
    x, place = args
    return loop_math.where(index() == convert(place, "i64"), x, const(0, x.dtype))  # type: ignore[no-any-return]


def wrong_class(args: Sequence[Expr], attrs: Attrs, parameter: Parameter) -> Expr:
    """Is this neither one of the classes nor the number to ignore?"""
    x = convert(args[0], "i64")
    outside = (x < const(0, "i64")) | (x >= parameter(attrs["classes"], "i64"))
    return outside & (x != parameter(attrs["ignore_index"], "i64"))


def wrong_length(args: Sequence[Expr], attrs: Attrs, parameter: Parameter) -> Expr:
    """Is this negative, or more than there are (-1: no limit)?"""
    x, most = convert(args[0], "i64"), parameter(attrs["most"], "i64")
    zero = const(0, "i64")
    return (x < zero) | ((x > most) & (most >= zero))
