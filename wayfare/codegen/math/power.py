"""pow(x, y) with two variables.

For f32, logarithm and exponential are computed in f64, which gives the extra bits they need. For f64 they would need
two floats for every intermediate value, so pow of the C library is called.
"""

from __future__ import annotations

from wayfare.codegen.loop.expr import Expr, apply, call, cast, const
from wayfare.codegen.math.exp import LOG2_E
from wayfare.codegen.math.log import ATANH_SHORT, split
from wayfare.codegen.math.parts import (
    INF,
    NAN,
    Rule,
    at_least,
    at_most,
    both,
    choose,
    either,
    fma,
    integer_bits,
    is_integer,
    layout,
    magnitude,
    poly,
    power_of_two,
    where,
)
from wayfare.core.errors import LoopError

# (2ʳ - 1) / r on |r| ≤ 1/2, to 2⁻³².
_EXP2_SHORT = (1.3359726608774483e-05, 0.00015461366521990632, 0.001334195134823765, 0.00961805692213306,
               0.055504003750335464, 0.24022650920772565, 0.6931471838168853)  # fmt: skip


def _integer_power(x: Expr, n: int) -> Expr:
    """xⁿ by squaring."""
    result: Expr | None = None
    factor = x
    while n:
        if n & 1:
            result = factor if result is None else result * factor
        n >>= 1
        if n:
            factor = factor * factor
    return const(1, x.dtype) if result is None else result


def _positive_power(x: Expr, y: Expr) -> Expr:
    """|x|^y of f32, for |x| that is neither 0 nor infinite."""
    parts = split(cast(magnitude(x), "f64"), denormals=False)
    s = parts.f / (parts.f + 2)
    z = s * s
    logarithm = fma(fma(z * s, poly(z, ATANH_SHORT), 2 * s), LOG2_E, parts.e)
    # Outside these bounds an f32 result over- or underflows anyway. NaN and infinity are handled by the caller.
    power = at_least(at_most(cast(y, "f64") * logarithm, 200.0), -200.0)
    shape = layout(power)
    shifted = power + (shape.magic + shape.bias)
    r = power - (shifted - (shape.magic + shape.bias))
    return cast(fma(r, poly(r, _EXP2_SHORT), 1) * power_of_two(integer_bits(shifted), "f64"), "f32")


def pow(x: Expr, y: Expr) -> Expr:
    is_integer_power = y.op == "const" and float(y.value).is_integer()
    if is_integer_power and 0 <= y.value <= (4 if not is_integer(x) else 64):
        return _integer_power(x, int(y.value))
    if is_integer(x):
        raise LoopError(f"pow of {x.dtype} needs an exponent that is written in the formula",
                        fix="Cast the values to a float first.")  # fmt: skip
    if is_integer_power and y.value == -1:
        return 1 / x
    layout(x)
    if x.dtype == "f64":
        return call("pow", x, y)
    size, exponent = magnitude(x), magnitude(y)
    value = _positive_power(x, y)
    # |x| is 0 or infinite: 0 to a negative power and infinity to a positive one are infinite, the others 0.
    edge = choose(x, (size == 0) == (y < 0), INF, 0.0)
    value = where(either(size == 0, size == INF), edge, value)
    # y is infinite: the result is 0, 1 or infinity, depending on whether |x| is above or below 1.
    endless = where(size == 1, 1.0, choose(x, (size > 1) == (y > 0), INF, 0.0))
    value = where(exponent == INF, endless, value)
    rounded = apply("trunc", y)
    y_is_integer = rounded == y
    odd = both(y_is_integer, apply("trunc", 0.5 * y) != 0.5 * y)
    value = where(both(odd, apply("signbit", x)), -value, value)
    value = where(both(both(x < 0, size != INF), both(rounded != y, exponent != INF)), NAN, value)
    value = where(apply("isnan", x), x, where(apply("isnan", y), y, value))
    return where(either(y == 0, x == 1), 1.0, value)


RULES: dict[str, Rule] = {"pow": pow}
