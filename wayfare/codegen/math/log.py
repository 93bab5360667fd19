"""Logarithms and functions based on them: log log2 log10 log1p logaddexp logaddexp2 xlogy xlog1py asinh acosh atanh.

x = 2ᵉ·(1 + f) with √½ ≤ 1 + f < √2, from integer arithmetic on the bits; then log x = e·ln 2 + log(1 + f).
"""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.codegen.loop.expr import Expr, apply, bits, cast, const
from wayfare.codegen.math.exp import LN2, LN_2, LOG2_E
from wayfare.codegen.math.parts import (
    INF,
    NAN,
    Rule,
    both,
    choose,
    fma,
    integer_bits,
    layout,
    magnitude,
    poly,
    signed_as,
    where,
)

LOG10_E = 0.4342944819032518
_LOG10_2 = {"f32": (0.301025390625, 4.605038981195214e-06), "f64": (0.301029995663157, 8.241712586023572e-13)}
_ROOT_HALF_BITS = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}

# (log(1 + f) - f + f²/2) / f³ on √½ ≤ 1 + f ≤ √2, to 2⁻²⁹.
_LOG_F32 = (0.053360216, -0.10914209, 0.12108429, -0.1254981, 0.14209636, -0.16659373, 0.20002222, -0.25000167,
            0.33333313)  # fmt: skip
# (2·atanh(s) - 2s) / s³ in s², where s = f / (2 + f), to 2⁻⁵⁸; a short one to 2⁻⁴³ for f32 results.
_ATANH = (0.1479827759421074, 0.1531383038561968, 0.1818357241968198, 0.22222198427854348, 0.2857142874369567,
          0.39999999999409325, 0.6666666666666735)  # fmt: skip
ATANH_SHORT = (0.19585515430688694, 0.2217609999125643, 0.2857211112673687, 0.39999995604836713, 0.6666666667584585)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """x = 2ᵉ·(1 + f); `scale`, if asked for, is 2¹⁻ᵉ (2⁻ᵉ may underflow)."""

    e: Expr
    f: Expr
    scale: Expr | None = None


def split(x: Expr, *, denormals: bool = True, scale: bool = False) -> Split:
    """Split a positive number."""
    shape, dtype = layout(x), x.dtype
    root_half, one = _ROOT_HALF_BITS[dtype], shape.bias << shape.mantissa
    offset = float(shape.bias)
    e_offset = const(offset, dtype)
    if denormals:
        small = x < shape.tiny
        x = where(small, x * 2.0**shape.mantissa, x)
        e_offset = choose(x, small, offset + shape.mantissa, offset)
    shifted = integer_bits(x) + (one - root_half)
    biased = shifted >> shape.mantissa
    if dtype == "f32":
        e = cast(biased, "f32") - e_offset
    else:  # few processors convert 64-bit integers: OR the bits into those of 2⁵² instead
        e = bits((biased & 0x7FF) | 0x4330000000000000, "f64") - (e_offset + 2.0**52)
    f = bits((shifted & ((1 << shape.mantissa) - 1)) + root_half, dtype) - 1
    inverse = bits((2 * shape.bias + 1 - biased) << shape.mantissa, dtype) if scale else None
    return Split(e, f, inverse)


def log_near_one(f: Expr) -> tuple[Expr, Expr]:
    """log(1 + f) as a sum of two terms, the second much smaller."""
    half_square = 0.5 * (f * f)
    if f.dtype == "f32":
        return f, fma(f * (f * f), poly(f, _LOG_F32), -half_square)
    s = f / (f + 2)
    z = s * s
    return f, fma(s, fma(z, poly(z, _ATANH), half_square), -half_square)


def _at_the_edges(x: Expr, value: Expr) -> Expr:
    """`value`, with the right results for 0, infinity, NaN and negative x."""
    value = where(x == INF, x, value)
    return where(x > 0, value, choose(x, x == 0, -INF, NAN))


def log(x: Expr) -> Expr:
    parts = split(x)
    high, low = LN2[x.dtype]
    first, second = log_near_one(parts.f)
    return _at_the_edges(x, fma(parts.e, high, first + fma(parts.e, low, second)))


def log2(x: Expr) -> Expr:
    parts = split(x)
    first, second = log_near_one(parts.f)
    return _at_the_edges(x, fma(first + second, LOG2_E, parts.e))


def log10(x: Expr) -> Expr:
    parts = split(x)
    high, low = _LOG10_2[x.dtype]
    first, second = log_near_one(parts.f)
    return _at_the_edges(x, fma(parts.e, high, fma(first + second, LOG10_E, parts.e * low)))


def log1p(x: Expr) -> Expr:
    total = x + 1
    lost = x - (total - 1)
    parts = split(total, denormals=False, scale=True)
    assert parts.scale is not None
    high, low = LN2[x.dtype]
    # The rounding error of 1 + x is added to f. (It is NaN for infinite x; `_at_the_edges` corrects that.)
    first, second = log_near_one(fma(0.5 * lost, parts.scale, parts.f))
    value = _at_the_edges(total, fma(parts.e, high, first + fma(parts.e, low, second)))
    return where(magnitude(x) < 2.0 ** -(layout(x).mantissa + 2), x, value)


def logaddexp(a: Expr, b: Expr) -> Expr:
    larger = apply("maximum", a, b)
    value = larger + apply("log1p", apply("exp", -magnitude(a - b)))
    return where(a == b, a + LN_2, value)


def logaddexp2(a: Expr, b: Expr) -> Expr:
    larger = apply("maximum", a, b)
    value = larger + apply("log1p", apply("exp2", -magnitude(a - b))) * LOG2_E
    return where(a == b, a + 1, value)


def xlogy(x: Expr, y: Expr) -> Expr:
    return where(both(x == 0, y == y), const(0.0, x.dtype), x * apply("log", y))


def xlog1py(x: Expr, y: Expr) -> Expr:
    return where(both(x == 0, y == y), const(0.0, x.dtype), x * apply("log1p", y))


# The inverse hyperbolic functions are rare, so f32 is computed in f64: simple formulas are then precise enough.
def in_f64(rule: Rule) -> Rule:
    """The f64 rule, used for f32 as well (cast, compute, cast back)."""

    def through(*args: Expr) -> Expr:
        return cast(rule(*(cast(a, "f64") for a in args)), args[0].dtype)

    return through


def _asinh(x: Expr) -> Expr:
    size = magnitude(x)
    large = size > 1e100
    square = size * size
    value = apply("log1p", where(large, size, size + square / (apply("sqrt", square + 1) + 1)))
    return signed_as(where(large, value + LN_2, value), x)


def _acosh(x: Expr) -> Expr:
    large = x > 1e100
    above = x - 1
    value = apply("log1p", where(large, x, above + apply("sqrt", fma(above, above, 2 * above))))
    return where(x >= 1, where(large, value + LN_2, value), NAN)


def _atanh(x: Expr) -> Expr:
    size = magnitude(x)
    return signed_as(0.5 * apply("log1p", 2 * size / (1 - size)), x)


RULES: dict[str, Rule] = {
    "log": log, "log2": log2, "log10": log10, "log1p": log1p, "logaddexp": logaddexp, "logaddexp2": logaddexp2,
    "xlogy": xlogy, "xlog1py": xlog1py, "asinh": in_f64(_asinh), "acosh": in_f64(_acosh), "atanh": in_f64(_atanh),
}  # fmt: skip
