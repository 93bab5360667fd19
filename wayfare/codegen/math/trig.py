"""Trigonometric functions and their inverses: sin cos tan asin acos atan atan2.

An angle is n·π/2 + r with |r| ≤ π/4. The lowest bits of n say whether the result is the sine or the cosine of r, and
its sign. For f32 the reduction is exact for every angle: 1/2π is split into parts of 28 bits, whose products with the
24 bits of an f32 are exact in f64; full turns are dropped before the parts are added. For f64, π/2 is subtracted in
four parts, which is precise up to 1e8; larger angles, which are rare, go to the C library.
"""

from __future__ import annotations

from wayfare.codegen.loop.expr import Expr, apply, bits, cast, const, rescue
from wayfare.codegen.math.parts import (
    Coefficients,
    Rule,
    choose,
    fma,
    integer_bits,
    layout,
    magnitude,
    poly,
    signed_as,
    where,
)

PI = 3.141592653589793
# π/2 as a sum of two floats.
_PI_2 = {"f32": (1.57079637, -4.37113883e-08), "f64": (1.5707963267948966, 6.123233995736766e-17)}

_INVERSE_TWO_PI = (0.15915494225919247, 8.327028684640414e-10, 5.69002511952534e-19, 6.3170650472507054e-27,
               4.170716914254881e-35, 2.8971783207221377e-44, 1.763489793601074e-52)  # fmt: skip
_QUARTER_PARTS = (1.570796325802803, 9.920935739593517e-10, 5.721188709663575e-18, 1.6446256936324258e-26)

_FAR = 1e8

# (sin r - r) / r³ in r² on |r| ≤ π/4, to 2⁻³² and 2⁻⁵⁷.
_SIN: Coefficients = {
    "f32": (2.8325467e-06, -0.00019853066, 0.008333379, -0.16666667),
    "f64": (1.5895433232462013e-10, -2.5050734389806787e-08, 2.755731353852458e-06, -0.00019841269829358558,
            0.00833333333332184, -0.1666666666666663),
}  # fmt: skip
# (cos r - 1 + r²/2) / r⁴ in r² on |r| ≤ π/4, to 2⁻³² and 2⁻⁶³.
_COS: Coefficients = {
    "f32": (2.4432327e-05, -0.001388731, 0.041666646),
    "f64": (-1.135861704469183e-11, 2.0875703139873575e-09, -2.7557314203079376e-07, 2.4801587288965227e-05,
            -0.0013888888888873307, 0.041666666666666595),
}  # fmt: skip
# (tan r - r) / r³ in r² on |r| ≤ π/4, to 2⁻²⁵ and 2⁻⁵⁶.
_TAN: Coefficients = {
    "f32": (0.009403435, 0.0030907763, 0.024447279, 0.05340686, 0.13338846, 0.33333156),
    "f64": (2.0961933760861826e-05, -4.528823555202851e-05, 9.021534665703358e-05, -2.7213893533366928e-05,
            0.0001371084396945245, 0.00022210043844591229, 0.0005951576806848691, 0.0014547364682318778,
            0.003592292492212658, 0.008863218802924922, 0.021869489633261407, 0.053968253925717656,
            0.1333333333341648, 0.33333333333332765),
}  # fmt: skip
# Above this border the half angle is below 1/2, so that doubling it costs no accuracy.
_ASIN_BORDER = 0.5404
# (asin s - s) / s³ in s² on |s| ≤ the border, to 2⁻²⁹ and 2⁻⁵⁶.
_ASIN: Coefficients = {
    "f32": (0.04360276, 0.0099478355, 0.03303352, 0.04436615, 0.075013064, 0.16666646),
    "f64": (0.045804777194203006, -0.043420894834127005, 0.03858296817198099, -0.0036858293192135036,
            0.01286693512770385, 0.011001927662866316, 0.014032538844816301, 0.01734701756283874,
            0.022372486935252865, 0.030381932470477373, 0.0446428574001419, 0.07499999999722064,
            0.16666666666667715),
}  # fmt: skip
# (atan s - s) / s³ in s² on |s| ≤ 1, to 2⁻²⁵ and 2⁻⁵⁴.
_ATAN: Coefficients = {
    "f32": (0.0029151165, -0.016347801, 0.04318285, -0.07550091, 0.10665178, -0.14210893, 0.1999376, -0.33333153),
    "f64": (-2.0139252599006844e-05, 0.00022191029630135197, -0.0011593070657362635, 0.003843537301418997,
            -0.009162450104414598, 0.01694969880828934, -0.025799748278326613, 0.03404822550721876,
            -0.04091552472513807, 0.046734877469858056, -0.05239082826697841, 0.058772708214276194,
            -0.06665853601244733, 0.07692212034248784, -0.09090901152685323, 0.11111110673743131,
            -0.14285714271153882, 0.19999999999751716, -0.3333333333333184),
}  # fmt: skip


def _angle(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(r, a small correction to it, an integer whose low bits are n)."""
    if x.dtype == "f32":
        wide = cast(x, "f64")
        turns = None
        for part in _INVERSE_TWO_PI[:5]:
            product = wide * part
            rest = product - apply("rint", product)
            turns = rest if turns is None else turns + rest
        assert turns is not None
        for part in _INVERSE_TWO_PI[5:]:
            turns = fma(wide, part, turns)
        quarters = 4 * turns
        shifted = quarters + layout(wide).magic
        rest = (quarters - (shifted - layout(wide).magic)) * (PI / 2)
        r = cast(rest, "f32")
        return r, cast(rest - cast(r, "f64"), "f32"), cast(integer_bits(shifted), "i32")
    magic = layout(x).magic
    shifted = fma(x, 2 / PI, magic)
    n = shifted - magic
    rest = x
    for part in _QUARTER_PARTS[:2]:
        rest = fma(n, -part, rest)
    # The last subtractions keep their rounding errors: near a multiple of π/2 the whole result is in them.
    r = fma(n, -_QUARTER_PARTS[2], rest)
    tail = fma(n, -_QUARTER_PARTS[3], fma(n, -_QUARTER_PARTS[2], rest - r))
    near = r + tail
    return near, (r - near) + tail, integer_bits(shifted)


def _sine_cosine(r: Expr, tail: Expr) -> tuple[Expr, Expr]:
    """The sine and the cosine of r + tail."""
    z = r * r
    if r.dtype == "f32":  # the tail is below half a unit: it costs more than it gives
        return fma(r * z, poly(z, _SIN["f32"]), r), fma(z * z, poly(z, _COS["f32"]), fma(z, -0.5, 1))
    sine = r + fma(r * z, poly(z, _SIN[r.dtype]), tail)
    half = 0.5 * z
    first = 1 - half
    cosine = first + fma(z * z, poly(z, _COS[r.dtype]), (1 - first) - half - r * tail)
    return sine, cosine


def _sine_at(x: Expr, quarter: int) -> Expr:
    r, tail, n = _angle(x)
    sine, cosine = _sine_cosine(r, tail)
    if quarter:
        n = n + quarter
    value = where((n & 1) == 0, sine, cosine)
    sign = (n & 2) << (30 if x.dtype == "f32" else 62)
    return bits(integer_bits(value) ^ sign, x.dtype)


def _far(x: Expr, value: Expr, symbol: str) -> Expr:
    """`value`, or the C library's result for an f64 angle that is too large for the reduction."""
    return value if x.dtype == "f32" else rescue(magnitude(x) > _FAR, value, symbol, x)


def sin(x: Expr) -> Expr:
    # The reduction would lose the sign of zero.
    return _far(x, where(x == 0, x, _sine_at(x, 0)), "sin")


def cos(x: Expr) -> Expr:
    return _far(x, _sine_at(x, 1), "cos")


def tan(x: Expr) -> Expr:
    r, tail, n = _angle(x)
    z = r * r
    value = r + fma(r * z, poly(z, _TAN[x.dtype]), tail * (z + 1))
    return _far(x, where(x == 0, x, where((n & 1) == 0, value, -1 / value)), "tan")


# -- inverses ----------------------------------------------------------------------------------------------------------


def _half_angle(x: Expr) -> tuple[Expr, Expr]:
    """(is |x| small?, asin s) where s is |x| or √((1 - |x|)/2)."""
    size = magnitude(x)
    small = size < _ASIN_BORDER
    z = where(small, size * size, 0.5 * (1 - size))
    s = where(small, size, apply("sqrt", z))
    return small, fma(s * z, poly(z, _ASIN[x.dtype]), s)


def asin(x: Expr) -> Expr:
    high, low = _PI_2[x.dtype]
    small, angle = _half_angle(x)
    return signed_as(where(small, angle, high - (2 * angle - low)), x)


def acos(x: Expr) -> Expr:
    high, low = _PI_2[x.dtype]
    small, angle = _half_angle(x)
    angle_from_half = where(small, high - (signed_as(angle, x) - low), 2 * angle)
    return where(x <= -_ASIN_BORDER, 2 * high - (2 * angle - 2 * low), angle_from_half)


def _atan_ratio(below: Expr, above: Expr, over: Expr) -> Expr:
    """atan(below / above) for a ratio ≤ 1, or π/2 minus that where `over`."""
    high, low = _PI_2[below.dtype]
    t = below / above
    z = t * t
    rest = t * z * poly(z, _ATAN[t.dtype])
    return where(over, high - (t + (rest - low)), t + rest)


def atan(x: Expr) -> Expr:
    size = magnitude(x)
    over = size > 1.0
    angle = _atan_ratio(where(over, const(1.0, x.dtype), size), where(over, size, 1.0), over)
    return signed_as(angle, x)


def atan2(y: Expr, x: Expr) -> Expr:
    high, low = _PI_2[x.dtype]
    a, b = magnitude(y), magnitude(x)
    over = a > b
    below, above = where(over, b, a), where(over, a, b)
    # atan2(0, 0) is 0, and atan2(inf, inf) is π/4.
    equal = below == above
    below, above = where(equal, choose(x, below == 0, 0.0, 1.0), below), where(equal, 1.0, above)
    angle = _atan_ratio(below, above, over)
    angle = where(apply("signbit", x), 2 * high - (angle - 2 * low), angle)
    return where(apply("isnan", x), x, signed_as(angle, y))


RULES: dict[str, Rule] = {
    "sin": sin, "cos": cos, "tan": tan, "asin": asin, "acos": acos, "atan": atan, "atan2": atan2,
}  # fmt: skip
