"""ONNX rules of elementwise ops: arithmetic, comparison, selection, rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.spec import bool_, float64, int32, int64


def of_floats(kind: str, of_integers: Callable[..., Any]) -> Callable[..., Any]:
    """An operator for floats; integers are treated otherwise."""

    def rule(b: Any, x: Any) -> Any:
        return b.node(kind, x) if x.dtype.is_floating_point else of_integers(b, x)

    return rule


def relu(b: Any, x: Any) -> Any:
    """Its own operator, which ONNX Runtime has for floats."""
    return b.node("Relu", x) if x.dtype.is_floating_point else b.node("Max", x, b.number(0, x.dtype))


def same(b: Any, x: Any, **_attrs: Any) -> Any:
    """The value itself."""
    return x


def truth(kind: str) -> Callable[..., Any]:
    """A logical operator; numbers are true where they are not zero."""

    def rule(b: Any, *inputs: Any) -> Any:
        return b.node(kind, *[b.cast(x, bool_) for x in inputs])

    return rule


def bits(of_numbers: str, of_bools: str) -> Callable[..., Any]:
    """A bitwise operator, which ONNX has for integers only."""

    def rule(b: Any, *inputs: Any) -> Any:
        return b.node(of_bools if inputs[0].dtype is bool_ else of_numbers, *inputs)

    return rule


def never(b: Any, x: Any) -> Any:
    """False everywhere."""
    return b.full(x.shape, False, bool_)


def is_finite(b: Any, x: Any) -> Any:
    """Less than infinity, which a NaN is not."""
    if not x.dtype.is_floating_point:
        return b.full(x.shape, True, bool_)
    return b.node("Less", b.node("Abs", x), b.number(math.inf, x.dtype))


def not_equal(b: Any, x: Any, y: Any) -> Any:
    """ONNX has no operator for it."""
    return b.node("Not", b.node("Equal", x, y))


def sign_bit(b: Any, x: Any) -> Any:
    """Is it negative? Minus zero shows itself in its reciprocal."""
    if not x.dtype.is_floating_point:
        return x < 0
    return b.node("Or", x < 0, b.node("Less", b.node("Reciprocal", x), b.number(0, x.dtype)))


def copy_sign(b: Any, x: Any, y: Any) -> Any:
    """The size of one and the sign of the other."""
    size = abs(x)
    return b.ops.where(sign_bit(b, y), -size, size)


def sign(b: Any, x: Any) -> Any:
    """A NaN has none: 0."""
    if x.dtype is bool_:
        return x
    made = b.node("Sign", x)
    return b.ops.where(b.node("IsNaN", x), 0, made) if x.dtype.is_floating_point else made


def past_nan(kind: str) -> Callable[..., Any]:
    """fmax and fmin: a NaN gives way to the other."""

    def rule(b: Any, x: Any, y: Any) -> Any:
        if not x.dtype.is_floating_point:
            return b.node(kind, x, y)
        other = b.ops.where(b.node("IsNaN", y), x, b.node(kind, x, y))
        return b.ops.where(b.node("IsNaN", x), y, other)

    return rule


def _divisor(b: Any, y: Any) -> tuple[Any, Any]:
    """A divisor of integers with 1 in place of -1, and where that was: the least number divided by -1 is more than the
    greatest, and ONNX Runtime does not survive it."""
    if y.dtype.name in ("bool", "uint8"):
        return y, None
    turns = b.node("Equal", y, b.number(-1, y.dtype))
    return b.node("Where", turns, b.number(1, y.dtype), y), turns


def _rest(b: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The remainder of floats with the sign of the dividend, and where that is not the sign of the divisor."""
    rest = b.node("Mod", x, y, fmod=1)
    return rest, b.node("And", rest != 0, b.node("Xor", rest < 0, y < 0))


def remainder(b: Any, x: Any, y: Any) -> Any:
    """With the sign of the divisor, as Python has it; of floats ONNX has only the other one."""
    if not x.dtype.is_floating_point:
        return b.node("Mod", x, _divisor(b, y)[0])
    rest, wrong_side = _rest(b, x, y)
    return b.ops.where(wrong_side, rest + y, rest)


def _floor_divide_integers(b: Any, x: Any, y: Any) -> Any:
    """ONNX rounds towards zero: one less, where that was up."""
    by, turns = _divisor(b, y)
    rest = b.node("Mod", x, by)
    if turns is None:
        # By way of the remainder, which refuses a zero; the division alone does not survive it.
        return b.node("Div", b.node("Sub", x, rest), by)
    zero = b.number(0, x.dtype)
    apart = b.node("Xor", b.node("Less", x, zero), b.node("Less", by, zero))
    up = b.node("And", b.node("Not", b.node("Equal", rest, zero)), apart)
    whole = b.node("Sub", b.node("Div", x, by), b.cast(up, x.dtype))
    return b.node("Where", turns, b.node("Neg", x), whole)


def floor_divide(b: Any, x: Any, y: Any) -> Any:
    """What is left when the remainder is taken away can be divided."""
    if not x.dtype.is_floating_point:
        return _floor_divide_integers(b, x, y)
    rest, wrong_side = _rest(b, x, y)
    whole = b.node("Round", (x - rest) / y)
    return b.ops.where(y == 0, x / y, b.ops.where(wrong_side, whole - 1, whole))


def truncated_remainder(b: Any, x: Any, y: Any) -> Any:
    """With the sign of the dividend. ONNX Runtime takes integers for doubles here, and so loses the large ones."""
    if x.dtype.is_floating_point:
        return b.node("Mod", x, y, fmod=1)
    by = _divisor(b, y)[0]
    rest, zero = b.node("Mod", x, by), b.number(0, x.dtype)
    apart = b.node("Xor", b.node("Less", x, zero), b.node("Less", by, zero))
    moves = b.node("And", b.node("Not", b.node("Equal", rest, zero)), apart)
    return b.node("Where", moves, b.node("Sub", rest, by), rest)


def clamp(b: Any, x: Any, *, low: Any, high: Any) -> Any:
    """Bounds wrap around as the tensor's own numbers do."""
    for kind, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            known = not b.varies(bound)
            limit = b.constant(np.asarray(bound).astype(x.dtype.numpy)) if known else b.number(bound, x.dtype)
            x = b.node(kind, x, limit)
    return x


def zeros_like(b: Any, x: Any) -> Any:
    """Zeros of the same shape."""
    return b.full(x.shape, 0, x.dtype)


def gate(b: Any, x: Any, mask: Any) -> Any:
    """What passes a mask, be it one of numbers."""
    return b.ops.where(b.cast(mask, bool_), x, 0)


def power_of_number(b: Any, x: Any, *, exponent: float) -> Any:
    """The common ones by their own operators."""
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


def overwrite(b: Any, x: Any, value: Any) -> Any:
    """Other values in the place of its own."""
    return b.node("Expand", value, b.sizes(b.broadcast(x, value)))


def trunc(b: Any, x: Any) -> Any:
    """Towards zero: up for negative numbers, down for others."""
    if not x.dtype.is_floating_point:
        return x
    return b.ops.where(x < 0, b.node("Ceil", x), b.node("Floor", x))


def round_half_even(b: Any, x: Any, *, decimals: int) -> Any:
    """To so many decimal places."""
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


def _shift_past(b: Any, x: Any, count: Any) -> Any:
    """Is nothing left of the bits? A count that is negative or no less than the width shifts them all out."""
    return b.node("Or", count < 0, count >= (63 if x.dtype is int64 else 8 * x.dtype.itemsize))


def shift_left(b: Any, x: Any, y: Any) -> Any:
    """ONNX shifts unsigned integers only: times a power of two, and what does not fit is cut off."""
    wide, count = b.cast(x, int64), b.cast(y, int64)
    made = b.node("Mul", wide, _powers_of_two(b, count))
    if x.dtype is int64:
        # The highest bit is the sign, and there is no power of two for it.
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
    return b.cast(b.node("Where", _shift_past(b, x, count), rest, whole), x.dtype)


def heaviside(b: Any, x: Any, at_zero: Any) -> Any:
    """The step itself, as a number."""
    return b.ops.where(x == 0, at_zero, b.cast(x > 0, x.dtype))


def frexp(b: Any, x: Any) -> tuple[Any, Any]:
    """Fraction from 1/2 to 1 and exponent: by the logarithm, put right where that was rounded."""
    a = abs(b.cast(x, float64))
    ordinary = b.node("And", a > 0, a < math.inf)
    safe = b.ops.where(ordinary, a, 1)
    exponent = b.ops.floor(b.ops.log(safe) * (1 / math.log(2))) + 1
    # In two steps, because the inverse of the smallest number is more than the greatest.
    half = b.ops.floor(exponent * 0.5)
    two = b.number(2, float64)
    part = safe * b.node("Pow", two, -half) * b.node("Pow", two, half - exponent)
    over, under = part >= 1, part < 0.5
    part = b.ops.where(over, part * 0.5, b.ops.where(under, part * 2, part))
    exponent = exponent + b.cast(over, float64) - b.cast(under, float64)
    fraction = b.cast(b.ops.where(x < 0, -part, part), x.dtype)
    return b.ops.where(ordinary, fraction, x), b.cast(b.ops.where(ordinary, exponent, 0), int32)


def next_after(b: Any, x: Any, y: Any) -> Any:
    """One step of the last digit towards y, worked out from the exponent; exact in double precision."""
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
