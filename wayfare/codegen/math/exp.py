"""The exponential and functions based on it: exp exp2 expm1 sigmoid tanh sinh cosh.

x = n·ln 2 + r with |r| ≤ ln 2 / 2, then eˣ = 2ⁿ·eʳ. The sum x / ln 2 + 1.5·2²³ (2⁵² for f64) has n in its lowest bits;
a shift moves it into the exponent field, so no conversion to an integer is needed.
"""

from __future__ import annotations

from wayfare.codegen.loop.expr import Expr
from wayfare.codegen.math.parts import (
    Coefficients,
    Rule,
    at_least,
    at_most,
    fma,
    integer_bits,
    layout,
    magnitude,
    poly,
    power_of_two,
    signed_as,
    where,
)

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
# ln 2 as a sum of two floats: the product of the first with any n that occurs is exact.
LN2 = {"f32": (0.693145751953125, 1.4286068203094173e-06), "f64": (0.6931471805592082, 7.371002565167799e-13)}
# Outside these bounds the result overflows, or rounds to zero.
_RANGE = {"f32": (-104.0, 89.0), "f64": (-746.0, 710.0)}
_RANGE2 = {"f32": (-151.0, 128.0), "f64": (-1076.0, 1024.0)}

# (eʳ - 1 - r) / r² on |r| ≤ ln 2 / 2, to 2⁻²⁸ and 2⁻⁵⁷ of eʳ.
_EXP: Coefficients = {
    "f32": (0.0013838753, 0.008369208, 0.041668106, 0.16666517, 0.49999994),
    "f64": (2.5143506695661156e-08, 2.763203920925044e-07, 2.755722940753472e-06, 2.4801489099070972e-05,
            0.00019841269775884614, 0.0013888888946337581, 0.008333333333446035, 0.04166666666652435,
            0.16666666666666327, 0.5000000000000011),
}  # fmt: skip
# (2ʳ - 1) / r on |r| ≤ 1/2, to 2⁻²⁷ and 2⁻⁵⁵ of 2ʳ.
_EXP2: Coefficients = {
    "f32": (0.00015823836, 0.0013417747, 0.009617065, 0.055502728, 0.24022655, 0.69314724),
    "f64": (4.051437301175969e-10, 7.0725626236058035e-09, 1.0180829509887728e-07, 1.3215442581594628e-06,
            1.5252726929760134e-05, 0.00015403530442147765, 0.0013333558153950482, 0.009618129107606196,
            0.05550410866478794, 0.240226506959101, 0.6931471805599457),
}  # fmt: skip
# (sinh r - r) / r³ in r² on |r| ≤ 1, to 2⁻²⁵ and 2⁻⁶¹.
_SINH: Coefficients = {
    "f32": (0.0002037334, 0.008330271, 0.16666716),
    "f64": (7.776589876800827e-13, 1.60566594290491e-10, 2.505213099631705e-08, 2.7557319106766155e-06,
            0.00019841269841593397, 0.008333333333332912, 0.16666666666666669),
}  # fmt: skip
# (tanh r - r) / r³ in r² on |r| ≤ 0.6, to 2⁻²⁸, and (e²ʳ - 1) / r on |r| ≤ ln 2 / 4, to 2⁻²⁸: f32.
_TANH = (-0.005895099, 0.02079661, -0.053784274, 0.13331933, -0.333333)
_EXP_OF_DOUBLE = (0.088553235, 0.2678122, 0.6666897, 1.3333213, 1.9999998, 2.0)


def reduced(x: Expr, bias: int) -> tuple[Expr, Expr, Expr]:
    """(n, r, an integer whose low bits are n + bias)."""
    magic = layout(x).magic + bias
    high, low = LN2[x.dtype]
    shifted = fma(x, LOG2_E, magic)
    n = shifted - magic
    return n, fma(n, -low, fma(n, -high, x)), integer_bits(shifted)


def less_one(r: Expr) -> Expr:
    """eʳ - 1 for a small r."""
    return fma(r * r, poly(r, _EXP[r.dtype]), r)


def scaled(value: Expr, twice_biased: Expr) -> Expr:
    """value · 2ⁿ from n + 2·bias, in two steps: 2ⁿ alone may overflow or underflow."""
    half = twice_biased >> 1
    return value * power_of_two(half, value.dtype) * power_of_two(twice_biased - half, value.dtype)


def exp_plus(x: Expr, correction: Expr | None = None, shift: int = 0) -> Expr:
    """exp(x + correction)·2^shift for a small correction (below 0.1) that would be lost in x + correction."""
    low, high = _RANGE[x.dtype]
    _, r, n = reduced(at_least(at_most(x, high - shift), low), 2 * layout(x).bias)
    return scaled(less_one(r if correction is None else r + correction) + 1, n + shift if shift else n)


def exp(x: Expr) -> Expr:
    return exp_plus(x)


def exp2(x: Expr) -> Expr:
    magic = layout(x).magic + 2 * layout(x).bias
    low, high = _RANGE2[x.dtype]
    x = at_least(at_most(x, high), low)
    shifted = x + magic
    r = x - (shifted - magic)
    return scaled(fma(r, poly(r, _EXP2[x.dtype]), 1), integer_bits(shifted))


def two_to_small(x: Expr) -> Expr:
    """2ˣ where the result neither overflows nor is subnormal."""
    magic = layout(x).magic + layout(x).bias
    shifted = x + magic
    r = x - (shifted - magic)
    return fma(r, poly(r, _EXP2[x.dtype]), 1) * power_of_two(integer_bits(shifted), x.dtype)


def expm1(x: Expr) -> Expr:
    # Computed as half the result, so that 2ⁿ does not overflow before the result does. Below -60 the result is -1.
    _, r, n = reduced(at_least(at_most(x, _RANGE[x.dtype][1]), -60.0), layout(x).bias - 1)
    half = power_of_two(n, x.dtype)
    value = 2 * fma(half, less_one(r), half - 0.5)
    return where(magnitude(x) < 2.0 ** -(layout(x).mantissa + 2), x, value)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e⁻ˣ), numerator and denominator scaled by a power of two so that e⁻ˣ does not overflow."""
    low, high, power = (-104.0, 40.0, -64) if x.dtype == "f32" else (-746.0, 300.0, -512)
    _, r, n = reduced(-at_least(at_most(x, high), low), layout(x).bias + power)
    scale = power_of_two(n, x.dtype)
    return 2.0**power / (scale + fma(scale, less_one(r), 2.0**power))


def tanh(x: Expr) -> Expr:
    size = magnitude(x)
    if x.dtype == "f64":  # (e²ˣ - 1) / (e²ˣ + 1)
        size = at_most(size, 22.0)
        _, r, n = reduced(size + size, layout(x).bias)
        scale = power_of_two(n, x.dtype)
        e = fma(scale, less_one(r), scale - 1)
        return signed_as(e / (e + 2), x)
    # For large |x|, 1 - 2 / (e²ˣ + 1) has no cancellation, and one float for ln 2 / 2 is precise enough.
    magic = layout(x).magic + layout(x).bias
    clipped = at_most(size, 10.0)
    shifted = fma(clipped, 2 * LOG2_E, magic)
    r = fma(shifted - magic, -LN_2 / 2, clipped)
    large = 1 - 2 / fma(fma(r, poly(r, _EXP_OF_DOUBLE), 1), power_of_two(integer_bits(shifted), x.dtype), 1)
    square = x * x
    small = fma(size * square, poly(square, _TANH), size)
    return signed_as(where(size < 0.6, small, large), x)


def sinh(x: Expr) -> Expr:
    size = magnitude(x)
    half = exp_plus(size, shift=-1)
    square = x * x
    small = fma(x * square, poly(square, _SINH[x.dtype]), x)
    return where(size < 1.0, small, signed_as(half - 0.25 / half, x))


def cosh(x: Expr) -> Expr:
    half = exp_plus(magnitude(x), shift=-1)
    return half + 0.25 / half


RULES: dict[str, Rule] = {
    "exp": exp, "exp2": exp2, "expm1": expm1, "sigmoid": sigmoid, "tanh": tanh, "sinh": sinh, "cosh": cosh,
}  # fmt: skip
