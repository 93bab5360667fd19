"""ONNX rules of special functions: the gamma family by recurrence and Stirling's series, the others by polynomials.

The polynomials are fitted when a model is written, to the functions themselves, so there are no tables of numbers here.
All of it is arithmetic in double precision, whatever the dtype.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import numpy as np

from wayfare.core.spec import float64

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
# From here on the asymptotic series of the gamma family are exact.
_FAR = 8


def _special(name: str) -> Any:
    return getattr(importlib.import_module("scipy.special"), name)


def _in_double(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule in double precision, with its result cast back."""

    @wraps(rule)
    def wide(b: Any, x: Any, **attrs: Any) -> Any:
        return b.cast(rule(b, b.cast(x, float64), **attrs), x.dtype)

    return wide


# -- polynomials ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _fitted(function: Callable[[Any], Any], low: float, high: float, degree: int) -> tuple[float, ...]:
    """The polynomial, lowest power first, in a variable from -1 to 1."""
    middle, half = (low + high) / 2, (high - low) / 2
    # By attribute: importing the module would slow down the import of the package.
    chebyshev = np.polynomial.chebyshev
    fit = chebyshev.chebinterpolate(lambda t: function(middle + half * t), degree)
    return tuple(float(c) for c in chebyshev.cheb2poly(fit))


def _near(x: Any, function: Callable[[Any], Any], low: float, high: float, degree: int = 14) -> Any:
    """A function between two bounds, by a fitted polynomial."""
    t = (x - (low + high) / 2) / ((high - low) / 2)
    *rest, total = _fitted(function, low, high, degree)
    for c in reversed(rest):
        total = t * total + c
    return total


def _below(b: Any, x: Any, most: float) -> Any:
    return b.node("Min", x, b.number(most, float64))


def _above(b: Any, x: Any, least: float) -> Any:
    return b.node("Max", x, b.number(least, float64))


# -- the gamma family -------------------------------------------------------------------------------------------------


def _shifted(b: Any, y: Any, count: int = _FAR) -> tuple[Any, Any, Any]:
    """Whether y is small; y, or y + count where it is small; and y, y + 1, … along a new dimension."""
    small = y < count
    steps = b.ops.add(b.ops.reshape(y, shape=(*y.shape, 1)), np.arange(count, dtype=np.float64))
    return small, b.ops.where(small, y + count, y), steps


def _off_integers(b: Any, x: Any) -> Any:
    """π times the difference to the nearest integer: the angle for sine and cosine of πx."""
    return (x - b.node("Round", x)) * math.pi


@_in_double
def lgamma(b: Any, x: Any) -> Any:
    """log|Γ(x)|: shifted to where Stirling's series is exact, minus the logarithms of the factors; negative x by
    reflection."""
    negative = x < 0
    small, z, steps = _shifted(b, b.ops.where(negative, 1 - x, x))
    product = b.ops.where(small, b.ops.prod(steps, dim=(x.ndim,), keepdim=False), 1)
    r = 1 / z
    q = r * r
    series = r * (1 / 12 - q * (1 / 360 - q * (1 / 1260 - q * (1 / 1680 - q * (1 / 1188 - q * (691 / 360360))))))
    made = (z - 0.5) * b.ops.log(z) - z + _LOG_ROOT_TWO_PI + series - b.ops.log(product)
    mirrored = math.log(math.pi) - b.ops.log(abs(b.ops.sin(_off_integers(b, x)))) - made
    return b.ops.where(abs(x) == math.inf, abs(x), b.ops.where(negative, mirrored, made))


@_in_double
def digamma(b: Any, x: Any) -> Any:
    """The derivative of log Γ, in the same way."""
    negative = x < 0
    small, z, steps = _shifted(b, b.ops.where(negative, 1 - x, x))
    taken = b.ops.where(small, b.ops.sum(1 / steps, dim=(x.ndim,), keepdim=False), 0)
    q = 1 / (z * z)
    series = q * (1 / 12 - q * (1 / 120 - q * (1 / 252 - q * (1 / 240 - q * (1 / 132 - q * (691 / 32760))))))
    made = b.ops.log(z) - 0.5 / z - series - taken
    angle = _off_integers(b, x)
    whole = angle == 0
    mirrored = made - math.pi * b.ops.cos(angle) / b.ops.sin(b.ops.where(whole, 1, angle))
    made = b.ops.where(negative, b.ops.where(whole, math.nan, mirrored), made)
    # The sign of a zero is lost in the sum.
    return b.ops.where(x == 0, -1 / x, made)


def polygamma(b: Any, x: Any, *, n: int) -> Any:
    """A higher derivative: a sum of inverse powers with an Euler-Maclaurin tail; negative x by reflection."""
    return digamma(b, x) if n == 0 else _higher(b, x, n=n)


@_in_double
def _higher(b: Any, x: Any, *, n: int) -> Any:
    negative = x < 0
    power = n + 1
    small, z, steps = _shifted(b, b.ops.where(negative, 1 - x, x), _FAR + n)
    first = b.ops.sum(b.ops.pow(steps, -float(power)), dim=(x.ndim,), keepdim=False)
    made = b.ops.where(small, first, 0) + b.ops.pow(z, -float(n)) * (1 / n) + b.ops.pow(z, -float(power)) * 0.5
    rising = float(power)
    for j, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730), 1):
        made = made + b.ops.pow(z, -float(n + 2 * j)) * (bernoulli / math.factorial(2 * j) * rising)
        rising *= (power + 2 * j - 1) * (power + 2 * j)
    made = made * ((-1.0) ** power * math.factorial(n))
    angle = _off_integers(b, x)
    whole = angle == 0
    cotangent = b.ops.cos(angle) / b.ops.sin(b.ops.where(whole, 1, angle))
    # The derivatives of the cotangent are polynomials in it, because its first one is -(1 + cot²).
    derivative = np.array([0.0, 1.0])
    for _ in range(n):
        derivative = -np.polynomial.polynomial.polymul(np.polynomial.polynomial.polyder(derivative), [1, 0, 1])
    *rest, total = (float(c) for c in derivative)
    for c in reversed(rest):
        total = cotangent * total + c
    mirrored = made * (-1.0) ** n - total * math.pi**power
    pole = b.node("Or", b.node("And", x <= 0, whole), x == -math.inf)
    return b.ops.where(pole, (-1.0) ** power * math.inf, b.ops.where(negative, mirrored, made))


# -- the normal distribution ------------------------------------------------------------------------------------------


def _scaled_erfc(t: Any) -> Any:
    z = 3 * (1 + t) / (1 - t)
    return (1 + 2 * z) * _special("erfcx")(z)


def _erfcx_above(b: Any, z: Any) -> Any:
    """exp(z²) erfc(z) for z ≥ 0."""
    finite = _below(b, z, 1e300)
    return _near((finite - 3) / (finite + 3), _scaled_erfc, -1, 1, 22) / (1 + 2 * z)


@_in_double
def erfcx(b: Any, x: Any) -> Any:
    """Fitted for positive numbers, reflected for negative ones."""
    made = _erfcx_above(b, abs(x))
    return b.ops.where(x < 0, 2 * b.ops.exp(x * x) - made, made)


@_in_double
def log_ndtr(b: Any, x: Any) -> Any:
    """The logarithm of the cumulative normal distribution, exact in both tails."""
    z = abs(x) * math.sqrt(0.5)
    tail = _erfcx_above(b, z) * 0.5
    return b.ops.where(x < 0, b.ops.log(tail) - z * z, b.ops.log1p(-(tail * b.ops.exp(-(z * z)))))


def _inverse_inside(w: Any) -> Any:
    x = np.sqrt(-np.expm1(-w))
    return _special("erfinv")(x) / x


def _inverse_outside(s: Any) -> Any:
    small = np.exp(-s * s)
    return -_special("ndtri")(small / (2 + 2 * np.sqrt(1 - small))) / math.sqrt(2)


def _inverse_erf(b: Any, x: Any, room: Any) -> Any:
    """The inverse error function of x, where `room` is 1 - x²: from log(room), in the tails from its root."""
    w = -b.ops.log(room)
    # Beyond this, 1 - x² is 0 in double precision.
    s = b.ops.sqrt(b.ops.clamp(w, low=6, high=729))
    tail = b.ops.where(w < 49, _near(_below(b, s, 7), _inverse_outside, math.sqrt(6), 7), _near(_above(b, s, 7),
                       _inverse_outside, 7, 27))  # fmt: skip
    inside = x * _near(_below(b, w, 6), _inverse_inside, 0, 6)
    made = b.ops.where(w < 6, inside, b.ops.where(x < 0, -tail, tail))
    return b.ops.where(room == 0, x * math.inf, b.ops.where(room < 0, math.nan, made))


@_in_double
def erfinv(b: Any, x: Any) -> Any:
    """The inverse error function."""
    return _inverse_erf(b, x, (1 - x) * (1 + x))


@_in_double
def ndtri(b: Any, x: Any) -> Any:
    """The inverse of the cumulative normal distribution."""
    return _inverse_erf(b, 2 * x - 1, 4 * x * (1 - x)) * math.sqrt(2)


# -- Bessel functions -------------------------------------------------------------------------------------------------
# Near zero by a polynomial of x², beyond by one of 1 / x (times the root of x, and a wave or an exponential).


def _of_square(name: str, over: int, rest: Callable[[Any], Any] = lambda _x: 0.0) -> Callable[[Any], Any]:
    """A Bessel function of the root of its argument, less a part with a logarithm or pole, divided by a power of it."""
    return lambda q: (_special(name)(np.sqrt(q)) - rest(np.sqrt(q))) / np.sqrt(q) ** over


def _of_inverse(name: str, edge: float) -> Callable[[Any], Any]:
    return lambda u: _special(name)(edge / u) * np.sqrt(edge / u)


def _wave(order: int, part: int) -> Callable[[Any], Any]:
    """The slowly changing factors of cosine and sine in J = root(2/πx) (P cos - Q sin), Y = … (P sin + Q cos)."""

    def factor(u: Any) -> Any:
        x = 8 / u
        angle = x - (2 * order + 1) * math.pi / 4
        j, y = (_special(f"{kind}{order}")(x) * np.sqrt(math.pi * x / 2) for kind in "jy")
        return j * np.cos(angle) + y * np.sin(angle) if part == 0 else y * np.cos(angle) - j * np.sin(angle)

    return factor


def _half_log(name: str, factor: float) -> Callable[[Any], Any]:
    return lambda x: factor * np.log(x / 2) * _special(name)(x)


_BY_PI = 2 / math.pi
_SMALL = {
    "i0": _of_square("i0", 0), "i1": _of_square("i1", 1), "j0": _of_square("j0", 0), "j1": _of_square("j1", 1),
    "k0": _of_square("k0", 0, _half_log("i0", -1)),
    "k1": _of_square("k1", 1, lambda x: _half_log("i1", 1)(x) + 1 / x),
    "y0": _of_square("y0", 0, _half_log("j0", _BY_PI)),
    "y1": _of_square("y1", 1, lambda x: _half_log("j1", _BY_PI)(x) - _BY_PI / x),
}  # fmt: skip
_LARGE = {name: _of_inverse(name, edge) for name, edge in (("i0e", 8), ("i1e", 8), ("k0e", 2), ("k1e", 2))}
_WAVES = {(order, part): _wave(order, part) for order in (0, 1) for part in (0, 1)}


def _near_zero(b: Any, a: Any, name: str, edge: float) -> Any:
    """A Bessel function of numbers up to an edge, as far as a polynomial says it."""
    made = _near(_below(b, a * a, edge * edge), _SMALL[name], 0, edge * edge)
    return a * made if name.endswith("1") else made


def modified(order: int, scaled: bool) -> Callable[..., Any]:
    """I0 and I1, times exp(-|x|) if `scaled`."""

    @_in_double
    def rule(b: Any, x: Any) -> Any:
        a = abs(x)
        near = _near_zero(b, _below(b, a, 8), f"i{order}", 8)
        far = _near(8 / _above(b, a, 8), _LARGE[f"i{order}e"], 0, 1) / b.ops.sqrt(_above(b, a, 1))
        if scaled:
            made = b.ops.where(a < 8, near * b.ops.exp(-a), far)
        else:
            # In two steps, so that the exponential does not overflow before the result does.
            half = b.ops.exp(a * 0.5)
            made = b.ops.where(a < 8, near, far * half * half)
        return b.ops.where(x < 0, -made, made) if order else made

    return rule


def decaying(order: int, scaled: bool) -> Callable[..., Any]:
    """K0 and K1, times exp(x) if `scaled`; defined for positive numbers."""

    @_in_double
    def rule(b: Any, x: Any) -> Any:
        small = _below(b, x, 2)
        log = b.ops.log(small * 0.5)
        near = _near_zero(b, small, f"k{order}", 2)
        other = log * _near_zero(b, small, f"i{order}", 8)
        near = near + other + 1 / small if order else near - other
        far = _near(2 / _above(b, x, 2), _LARGE[f"k{order}e"], 0, 1) / b.ops.sqrt(_above(b, x, 1))
        made = b.ops.where(x < 2, near * b.ops.exp(small) if scaled else near, far if scaled else far * b.ops.exp(-x))
        return b.ops.where(x == 0, math.inf, b.ops.where(x < 0, math.nan, made))

    return rule


def _far_wave(b: Any, a: Any, order: int, second: bool) -> Any:
    u = 8 / _above(b, a, 8)
    p, q = (_near(u, _WAVES[order, part], 0, 1) for part in (0, 1))
    angle = a - (2 * order + 1) * math.pi / 4
    cos, sin = b.ops.cos(angle), b.ops.sin(angle)
    return (p * sin + q * cos if second else p * cos - q * sin) * b.ops.sqrt(_BY_PI / _above(b, a, 1))


def first_kind(order: int) -> Callable[..., Any]:
    """J0 and J1."""

    @_in_double
    def rule(b: Any, x: Any) -> Any:
        a = abs(x)
        made = b.ops.where(a < 8, _near_zero(b, _below(b, a, 8), f"j{order}", 8), _far_wave(b, a, order, False))
        return b.ops.where(x < 0, -made, made) if order else made

    return rule


def second_kind(order: int) -> Callable[..., Any]:
    """Y0 and Y1, defined for positive numbers."""

    @_in_double
    def rule(b: Any, x: Any) -> Any:
        small = _below(b, x, 8)
        log = b.ops.log(small * 0.5) * _BY_PI
        near = _near_zero(b, small, f"y{order}", 8) + log * _near_zero(b, small, f"j{order}", 8)
        near = near - _BY_PI / small if order else near
        made = b.ops.where(x < 8, near, _far_wave(b, x, order, True))
        return b.ops.where(x == 0, -math.inf, b.ops.where(x < 0, math.nan, made))

    return rule


# -- Airy's function --------------------------------------------------------------------------------------------------

_AIRY_EDGE = 4.0
_AIRY_BENT = 2 / 3 * _AIRY_EDGE**1.5


def _airy_middle(x: Any) -> Any:
    return _special("airy")(x)[0]


def _airy_right(u: Any) -> Any:
    x = (1.5 * _AIRY_BENT / u) ** (2 / 3)
    return _special("airye")(x)[0] * x**0.25


def _airy_left(part: int) -> Callable[[Any], Any]:
    """The slowly changing factors of sine and cosine left of the edge."""

    def factor(u: Any) -> Any:
        bent = _AIRY_BENT / u
        z = (1.5 * bent) ** (2 / 3)
        ai, _, bi, _ = (v * z**0.25 for v in _special("airy")(-z))
        sin, cos = np.sin(bent + math.pi / 4), np.cos(bent + math.pi / 4)
        return ai * sin + bi * cos if part == 0 else bi * sin - ai * cos

    return factor


_AIRY_LEFT = (_airy_left(0), _airy_left(1))


@_in_double
def airy_ai(b: Any, x: Any) -> Any:
    """A polynomial in the middle, an exponential to the right and a wave to the left."""
    a = _above(b, abs(x), _AIRY_EDGE)
    root = b.ops.sqrt(a)
    bent = a * root * (2 / 3)
    u, quarter = _AIRY_BENT / bent, b.ops.sqrt(root)
    right = _near(u, _airy_right, 0, 1) * b.ops.exp(-bent)
    p, q = (_near(u, factor, 0, 1) for factor in _AIRY_LEFT)
    left = p * b.ops.sin(bent + math.pi / 4) - q * b.ops.cos(bent + math.pi / 4)
    middle = _near(b.ops.clamp(x, low=-_AIRY_EDGE, high=_AIRY_EDGE), _airy_middle, -_AIRY_EDGE, _AIRY_EDGE, 26)
    made = b.ops.where(abs(x) < _AIRY_EDGE, middle, b.ops.where(x < 0, left, right) / quarter)
    # SciPy, whose function the op is, has no limits.
    return b.ops.where(abs(x) == math.inf, math.nan, made)
