"""ONNX rules of elementwise ops: arithmetic, comparison, selection, rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.spec import bool_, float64, int32, int64


def of_floats(kind: str, of_integers: Callable[..., Any]) -> Callable[..., Any]:
    """An ONNX operator for floats, another rule for integers."""
    return lambda b, x: b.node(kind, x) if x.dtype.is_floating_point else of_integers(b, x)


def relu(b: Any, x: Any) -> Any:
    """Its own operator, which ONNX Runtime has for floats."""
    return b.node("Relu", x) if x.dtype.is_floating_point else b.node("Max", x, b.number(0, x.dtype))


def same(b: Any, x: Any, **_attrs: Any) -> Any:
    """The value itself."""
    return x


def truth(kind: str) -> Callable[..., Any]:
    """A logical operator; numbers are true where they are not zero."""
    return lambda b, *inputs: b.node(kind, *[b.cast(x, bool_) for x in inputs])


def bits(of_numbers: str, of_bools: str) -> Callable[..., Any]:
    """A bitwise operator, which ONNX has for integers only."""
    return lambda b, *inputs: b.node(of_bools if inputs[0].dtype is bool_ else of_numbers, *inputs)


def never(b: Any, x: Any) -> Any:
    """False everywhere."""
    return b.full(x.shape, False, bool_)


def is_finite(b: Any, x: Any) -> Any:
    """|x| < infinity, which is false for NaN."""
    if not x.dtype.is_floating_point:
        return b.full(x.shape, True, bool_)
    return b.node("Less", b.node("Abs", x), b.number(math.inf, x.dtype))


def not_equal(b: Any, x: Any, y: Any) -> Any:
    """ONNX has no operator for it."""
    return b.node("Not", b.node("Equal", x, y))


def sign_bit(b: Any, x: Any) -> Any:
    """Is it negative? -0 is recognised by its reciprocal, -infinity."""
    if not x.dtype.is_floating_point:
        return x < 0
    return b.node("Or", x < 0, b.node("Less", b.node("Reciprocal", x), b.number(0, x.dtype)))


def copy_sign(b: Any, x: Any, y: Any) -> Any:
    """The magnitude of x with the sign of y."""
    size = abs(x)
    return b.ops.where(sign_bit(b, y), -size, size)


def sign(b: Any, x: Any) -> Any:
    """The sign; 0 for NaN."""
    if x.dtype is bool_:
        return x
    made = b.node("Sign", x)
    return b.ops.where(b.node("IsNaN", x), 0, made) if x.dtype.is_floating_point else made


def past_nan(kind: str) -> Callable[..., Any]:
    """fmax and fmin: if one is NaN, the other is the result."""

    def rule(b: Any, x: Any, y: Any) -> Any:
        if not x.dtype.is_floating_point:
            return b.node(kind, x, y)
        other = b.ops.where(b.node("IsNaN", y), x, b.node(kind, x, y))
        return b.ops.where(b.node("IsNaN", x), y, other)

    return rule


def _divisor(b: Any, y: Any) -> tuple[Any, Any]:
    """An integer divisor with -1 replaced by 1, and a mask of where that was. ONNX Runtime crashes when the smallest
    integer is divided by -1, because the quotient overflows."""
    if y.dtype.name in ("bool", "uint8"):
        return y, None
    turns = b.node("Equal", y, b.number(-1, y.dtype))
    return b.node("Where", turns, b.number(1, y.dtype), y), turns


def _rest(b: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The remainder of floats with the sign of the dividend, and where that is not the sign of the divisor."""
    rest = b.node("Mod", x, y, fmod=1)
    return rest, b.node("And", rest != 0, b.node("Xor", rest < 0, y < 0))


def remainder(b: Any, x: Any, y: Any) -> Any:
    """The remainder with the sign of the divisor, as in Python; for floats ONNX has only that of the dividend."""
    if not x.dtype.is_floating_point:
        return b.node("Mod", x, _divisor(b, y)[0])
    rest, wrong_side = _rest(b, x, y)
    return b.ops.where(wrong_side, rest + y, rest)


def _floor_divide_integers(b: Any, x: Any, y: Any) -> Any:
    """ONNX rounds towards zero: subtract 1 where that rounded up."""
    by, turns = _divisor(b, y)
    rest = b.node("Mod", x, by)
    if turns is None:
        # Computed with the remainder, which raises for a divisor of zero; the division alone crashes ONNX Runtime.
        return b.node("Div", b.node("Sub", x, rest), by)
    zero = b.number(0, x.dtype)
    apart = b.node("Xor", b.node("Less", x, zero), b.node("Less", by, zero))
    up = b.node("And", b.node("Not", b.node("Equal", rest, zero)), apart)
    whole = b.node("Sub", b.node("Div", x, by), b.cast(up, x.dtype))
    return b.node("Where", turns, b.node("Neg", x), whole)


def floor_divide(b: Any, x: Any, y: Any) -> Any:
    """(x - remainder) / y, which is exact."""
    if not x.dtype.is_floating_point:
        return _floor_divide_integers(b, x, y)
    rest, wrong_side = _rest(b, x, y)
    whole = b.node("Round", (x - rest) / y)
    return b.ops.where(y == 0, x / y, b.ops.where(wrong_side, whole - 1, whole))


def truncated_remainder(b: Any, x: Any, y: Any) -> Any:
    """The remainder with the sign of the dividend. ONNX Runtime computes this one of integers as doubles, which is
    wrong for large ones, so it is derived from the remainder with the sign of the divisor."""
    if x.dtype.is_floating_point:
        return b.node("Mod", x, y, fmod=1)
    by = _divisor(b, y)[0]
    rest, zero = b.node("Mod", x, by), b.number(0, x.dtype)
    apart = b.node("Xor", b.node("Less", x, zero), b.node("Less", by, zero))
    moves = b.node("And", b.node("Not", b.node("Equal", rest, zero)), apart)
    return b.node("Where", moves, b.node("Sub", rest, by), rest)


def clamp(b: Any, x: Any, *, low: Any, high: Any) -> Any:
    """Clamp; the bounds are converted to the tensor's dtype and wrap around as its numbers do."""
    for kind, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            known = not b.varies(bound)
            limit = b.constant(np.asarray(bound).astype(x.dtype.numpy)) if known else b.number(bound, x.dtype)
            x = b.node(kind, x, limit)
    return x


def gate(b: Any, x: Any, mask: Any) -> Any:
    """x where the mask is true or not zero, 0 elsewhere."""
    return b.ops.where(b.cast(mask, bool_), x, 0)


def power_of_number(b: Any, x: Any, *, exponent: float) -> Any:
    """A power; the usual exponents have operators of their own."""
    if exponent == 2:
        return b.node("Mul", x, x)
    if exponent == 3:
        return b.node("Mul", b.node("Mul", x, x), x)
    if exponent == -0.5:
        return b.node("Reciprocal", b.node("Sqrt", x))
    kind = {0.5: "Sqrt", -1: "Reciprocal", 1: "Identity"}.get(exponent)
    return b.node(kind, x) if kind else b.node("Pow", x, b.number(exponent, x.dtype))


def cast(b: Any, x: Any, *, dtype: Any) -> Any:
    """Another dtype."""
    return b.cast(x, dtype)


def trunc(b: Any, x: Any) -> Any:
    """Towards zero: up for negative numbers, down for others."""
    if not x.dtype.is_floating_point:
        return x
    return b.ops.where(x < 0, b.node("Ceil", x), b.node("Floor", x))


def round_half_even(b: Any, x: Any, *, decimals: int) -> Any:
    """Round to a number of decimal places."""
    if not x.dtype.is_floating_point:
        if decimals >= 0:
            return x
        raise b.refuse("integers rounded to tens or hundreds")
    if decimals == 0:
        return b.node("Round", x)
    factor = 10.0 ** abs(decimals)
    if decimals > 0:
        return b.node("Round", x * factor) / factor
    return b.node("Round", x / factor) * factor


def _powers_of_two(b: Any, count: Any) -> Any:
    table = np.array([1 << k for k in range(63)], np.int64)
    return b.node("Gather", table, b.node("Clip", count, b.number(0, int64), b.number(62, int64)), axis=0)


def shift_left(b: Any, x: Any, y: Any) -> Any:
    """ONNX shifts unsigned integers only: times a power of two, and what does not fit is cut off."""
    wide, count = b.cast(x, int64), b.cast(y, int64)
    made = b.node("Mul", wide, _powers_of_two(b, count))
    if x.dtype is int64:
        # The highest bit is the sign, for which there is no positive power of two.
        odd = b.node("Equal", b.node("Mod", wide, b.number(2, int64)), b.number(1, int64))
        top = b.node("Where", odd, b.number(-(2**63), int64), b.number(0, int64))
        made = b.node("Where", b.node("Equal", count, b.number(63, int64)), top, made)
    gone = b.node("Or", count < 0, count >= 8 * x.dtype.itemsize)
    return b.cast(b.node("Where", gone, b.number(0, int64), made), x.dtype)


def shift_right(b: Any, x: Any, y: Any) -> Any:
    """Divided by a power of two and rounded down."""
    wide, count = b.cast(x, int64), b.cast(y, int64)
    power = _powers_of_two(b, count)
    whole = b.node("Div", b.node("Sub", wide, b.node("Mod", wide, power)), power)
    rest = b.node("Where", b.node("Less", wide, b.number(0, int64)), b.number(-1, int64), b.number(0, int64))
    # A count that is negative or at least the width shifts out all bits.
    past = b.node("Or", count < 0, count >= (63 if x.dtype is int64 else 8 * x.dtype.itemsize))
    return b.cast(b.node("Where", past, rest, whole), x.dtype)


def heaviside(b: Any, x: Any, at_zero: Any) -> Any:
    """The step function, with the value `at_zero` at 0."""
    return b.ops.where(x == 0, at_zero, b.cast(x > 0, x.dtype))


def frexp(b: Any, x: Any) -> tuple[Any, Any]:
    """Fraction (1/2 to 1) and exponent, from the logarithm; corrected where its rounding is off by one."""
    a = abs(b.cast(x, float64))
    ordinary = b.node("And", a > 0, a < math.inf)
    safe = b.ops.where(ordinary, a, 1)
    exponent = b.ops.floor(b.ops.log(safe) * (1 / math.log(2))) + 1
    # In two steps, because the inverse of the smallest number overflows.
    half = b.ops.floor(exponent * 0.5)
    two = b.number(2, float64)
    part = safe * b.node("Pow", two, -half) * b.node("Pow", two, half - exponent)
    over, under = part >= 1, part < 0.5
    part = b.ops.where(over, part * 0.5, b.ops.where(under, part * 2, part))
    exponent = exponent + b.cast(over, float64) - b.cast(under, float64)
    fraction = b.cast(b.ops.where(x < 0, -part, part), x.dtype)
    return b.ops.where(ordinary, fraction, x), b.cast(b.ops.where(ordinary, exponent, 0), int32)


def next_after(b: Any, x: Any, y: Any) -> Any:
    """The next float towards y, computed from the exponent in double precision, where that is exact."""
    limits = np.finfo(x.dtype.numpy)
    tiny, largest = float(limits.smallest_subnormal), float(limits.max)
    fraction, exponent = frexp(b, x)
    wide, up = b.cast(x, float64), x < y
    inward = b.node("Xor", up, x > 0)
    # Below a power of two numbers lie twice as close as above it.
    closer = b.node("And", inward, abs(fraction) == 0.5)
    digit = b.cast(exponent, float64) - (limits.nmant + 1) - b.cast(closer, float64)
    digit = b.node("Max", digit, b.number(int(limits.minexp) - limits.nmant, float64))
    size = b.node("Pow", b.number(2, float64), digit)
    size = b.ops.where(wide == 0, tiny, size)
    step = b.cast(wide + b.ops.where(up, size, -size), x.dtype)
    from_infinity = b.ops.where(x > 0, b.number(largest, x.dtype), -largest)
    made = b.ops.where(abs(x) == math.inf, from_infinity, step)
    return b.ops.where(b.node("Or", b.node("IsNaN", x), b.node("IsNaN", y)), x + y, b.ops.where(x == y, y, made))
