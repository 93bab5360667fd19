"""Signs, steps, shifts and division with remainder, on floats and integers, with NumPy's results in all edge cases."""

from __future__ import annotations

from wayfare.codegen.loop.expr import NUMPY, Expr, apply, bits, call, cast, const
from wayfare.codegen.math.parts import (
    Rule,
    at_least,
    at_most,
    both,
    choose,
    fma,
    integer_bits,
    is_integer,
    layout,
    magnitude,
    power_of_two,
    signed_as,
    where,
)
from wayfare.core.errors import LoopError


def square(x: Expr) -> Expr:
    return x * x


def rsqrt(x: Expr) -> Expr:
    layout(x)
    return 1 / apply("sqrt", x)


def reciprocal(x: Expr) -> Expr:
    layout(x)
    return 1 / x


def sign(x: Expr) -> Expr:
    if x.dtype == "u8":
        return where(x > 0, const(1, "u8"), const(0, "u8"))
    one, zero = const(1, x.dtype), const(0, x.dtype)
    steps = where(x > 0, one, where(x < 0, -one, zero))
    return steps if is_integer(x) else where(x == x, steps, x)


def heaviside(x: Expr, at_zero: Expr) -> Expr:
    step = where(x > 0, const(1, x.dtype), const(0, x.dtype))
    step = where(x == 0, at_zero, step)
    return step if is_integer(x) else where(x == x, step, x)


def fmax(a: Expr, b: Expr) -> Expr:
    if a.dtype not in ("f32", "f64"):
        return apply("maximum", a, b)
    return where(either_first(a, b, a >= b), a, b)


def fmin(a: Expr, b: Expr) -> Expr:
    if a.dtype not in ("f32", "f64"):
        return apply("minimum", a, b)
    return where(either_first(a, b, a <= b), a, b)


def either_first(a: Expr, b: Expr, wins: Expr) -> Expr:
    """Is `a` the result: because it wins the comparison, or because `b` is NaN?"""
    return apply("logical_or", wins, b != b)


def hypot(a: Expr, b: Expr) -> Expr:
    inf = float("inf")
    infinite = apply("logical_or", magnitude(a) == inf, magnitude(b) == inf)
    if a.dtype == "f32":  # squares of f32 fit f64, and so does their sum
        wide, other = cast(a, "f64"), cast(b, "f64")
        length = cast(apply("sqrt", fma(wide, wide, other * other)), "f32")
    else:
        layout(a)
        top = apply("maximum", magnitude(a), magnitude(b))
        # Scaled by powers of two so that the squares neither overflow nor underflow.
        scale = where(top > 2.0**500, 2.0**-600, choose(top, top < 2.0**-500, 2.0**600, 1.0))
        back = where(top > 2.0**500, 2.0**600, choose(top, top < 2.0**-500, 2.0**-600, 1.0))
        x, y = a * scale, b * scale
        length = apply("sqrt", fma(x, x, y * y)) * back
    return where(infinite, inf, length)


# -- division with a remainder -------------------------------------------------------------------------------------


def _signs_differ(a: Expr, b: Expr) -> Expr:
    return (a < 0) != (b < 0)


def fmod(a: Expr, b: Expr) -> Expr:
    """The remainder of division rounded towards zero: it has the sign of a."""
    if is_integer(a):
        return where(b == 0, const(0, a.dtype), a - apply("quotient", a, b) * b)
    layout(a)
    # The C library's fmod is exact for every quotient; no fixed number of float operations is.
    return cast(call("fmod", a, b), a.dtype)


def remainder(a: Expr, b: Expr) -> Expr:
    """The remainder of division rounded down: it has the sign of b."""
    rest = fmod(a, b)
    if a.dtype == "u8":
        return rest
    if is_integer(a):
        return where(both(rest != 0, _signs_differ(a, b)), rest + b, rest)
    return where(rest == 0, signed_as(const(0.0, a.dtype), b), where(_signs_differ(rest, b), rest + b, rest))


def floor_divide(a: Expr, b: Expr) -> Expr:
    """Division rounded down; integer division by zero gives 0."""
    if is_integer(a):
        q = apply("quotient", a, b)
        if a.dtype == "u8":
            return q
        inexact = both(q * b != a, b != 0)
        return where(both(inexact, _signs_differ(a, b)), q - 1, q)
    rest = fmod(a, b)
    adjust = both(rest != 0, _signs_differ(rest, b))
    quotient = (a - rest) / b
    quotient = where(adjust, quotient - 1, quotient)
    floored = apply("floor", quotient)
    floored = where(quotient - floored > 0.5, floored + 1, floored)
    plain = a / b
    floored = where(quotient == 0, signed_as(const(0.0, a.dtype), plain), floored)
    return where(b == 0, plain, floored)


# -- bits ----------------------------------------------------------------------------------------------------------


def _shift(op: str, a: Expr, count: Expr) -> Expr:
    if not is_integer(a):
        raise LoopError(f"{op} shifts integers, not {a.dtype}")
    width = 8 * NUMPY[a.dtype].itemsize
    fits = both(count >= 0, count < width) if a.dtype != "u8" else count < width
    gone = const(0, a.dtype)
    if op == "shift_right" and a.dtype != "u8":
        gone = where(a < 0, const(-1, a.dtype), gone)
    return where(fits, apply(op, a, where(fits, count, const(0, a.dtype))), gone)


def bitwise_left_shift(a: Expr, count: Expr) -> Expr:
    return _shift("shift_left", a, count)


def bitwise_right_shift(a: Expr, count: Expr) -> Expr:
    return _shift("shift_right", a, count)


def ldexp(x: Expr, n: Expr) -> Expr:
    """x·2ⁿ rounded once; n is an integer in the dtype of x."""
    if x.dtype == "f32":  # every f32 times every such power is an f64
        n = at_least(at_most(n, 300.0), -300.0)
        return cast(cast(x, "f64") * _two_to(cast(n, "f64")), "f32")
    for _ in range(2):
        high, low = n > 1023.0, n < -1022.0
        # Downwards in steps that keep 53 bits above the smallest number, so that only the last step rounds.
        x = x * where(high, 2.0**1023, choose(x, low, 2.0**-969, 1.0))
        n = n - where(high, 1023.0, choose(x, low, -969.0, 0.0))
    return x * _two_to(at_least(at_most(n, 1023.0), -1022.0))


def _two_to(n: Expr) -> Expr:
    return power_of_two(integer_bits(n + (layout(n).magic + layout(n).bias)), n.dtype)


def nextafter(x: Expr, towards: Expr) -> Expr:
    i = integer_bits(x)
    one = const(1, i.dtype)
    step = where((x < towards) == (x > 0), one, -one)
    least = bits(one, x.dtype)
    moved = where(x == 0, signed_as(least, towards), bits(i + step, x.dtype))
    moved = where(x == towards, towards, moved)
    return where(apply("isnan", x), x, where(apply("isnan", towards), towards, moved))


RULES: dict[str, Rule] = {
    "square": square, "rsqrt": rsqrt, "reciprocal": reciprocal, "sign": sign, "heaviside": heaviside, "fmax": fmax,
    "fmin": fmin, "hypot": hypot, "fmod": fmod, "remainder": remainder, "floor_divide": floor_divide,
    "bitwise_left_shift": bitwise_left_shift, "bitwise_right_shift": bitwise_right_shift, "ldexp": ldexp,
    "nextafter": nextafter,
}  # fmt: skip
