"""ONNX rules with loops: gcd, orthogonal polynomials of any degree, series of two variables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from wayfare.core.spec import float64, int64
from wayfare.ops._onnx_loop import loop


def _all_dims(x: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim))


# -- divisors ---------------------------------------------------------------------------------------------------------


def gcd(b: Any, x: Any, y: Any) -> Any:
    """Euclid's algorithm: (x, y) becomes (y, x mod y) until all y are 0."""
    shape = b.broadcast(x, y)
    start = [b.ops.expand(b.ops.abs(v), shape=shape) for v in (x, y)]

    def step(inner: Any, _i: Any, p: Any, q: Any) -> Any:
        done = q == 0
        # ONNX Runtime crashes when the smallest integer is divided by -1.
        trivial = done if x.dtype.name == "uint8" else inner.node("Or", done, q == -1)
        rest = inner.node("Mod", p, inner.ops.where(trivial, 1, q))
        return inner.ops.where(done, p, q), inner.ops.where(done, q, rest)

    def asks(any_builder: Any, _p: Any, q: Any) -> Any:
        return any_builder.ops.any(q != 0, dim=_all_dims(q), keepdim=False)

    return b.ops.abs(loop(b, None, start, step, asks)[0])


def lcm(b: Any, x: Any, y: Any) -> Any:
    """The product divided by the gcd."""
    common = b.ops.gcd(x, y)
    whole = b.node("Div", b.ops.abs(x), b.ops.where(common == 0, 1, common))
    return whole * b.ops.abs(y)


# -- polynomials ------------------------------------------------------------------------------------------------------


def by_recurrence(first: Callable[[Any], Any], step: Callable[[Any, Any, Any, Any], Any]) -> Callable[..., Any]:
    """P0 = 1, P1 = first(x), P(k+1) = step(x, Pk, P(k-1), k), up to the highest degree asked for."""

    def rule(b: Any, x: Any, n: Any) -> Any:
        shape = b.broadcast(x, n)
        degree = b.ops.expand(b.ops.trunc(n), shape=shape)
        x = b.ops.expand(x, shape=shape)
        whole = abs(degree) < math.inf
        # An infinite degree has no polynomial; and the maximum of an empty tensor would be an error.
        zero = b.full((1,), 0, x.dtype)
        flat = b.ops.reshape(b.ops.where(whole, degree, 0), shape=(math.prod(shape),))
        highest = b.ops.amax(b.node("Concat", zero, flat, axis=0, shape=(flat.shape[0] + 1,)), dim=(0,), keepdim=False)
        all_whole = b.ops.all(whole, dim=_all_dims(whole), keepdim=False)
        trips = b.ops.where(all_whole, b.cast(highest, int64), 0)
        one = b.full(shape, 1, x.dtype)
        start = [b.cast(degree == 0, x.dtype), one, b.ops.expand(first(x), shape=shape)]

        def turn(inner: Any, i: Any, out: Any, before: Any, now: Any) -> Any:
            k = inner.cast(i + 1, x.dtype)
            found = inner.ops.where(inner.own(degree) == k, now, out)
            return found, now, step(inner.own(x), now, before, k)

        return loop(b, trips, start, turn)[0]

    return rule


# -- functions of two numbers -----------------------------------------------------------------------------------------

_EXACT = 1e-16
# More iterations than any argument needs whose result is not 0, 1 or infinite.
_TURNS = 1_000_000


def _both(b: Any, x: Any, y: Any) -> list[Any]:
    """Two inputs in double precision and of one shape."""
    shape = b.broadcast(x, y)
    return [b.ops.expand(b.cast(v, float64), shape=shape) for v in (x, y)]


def _going(test: Callable[..., Any]) -> Callable[..., Any]:
    """The condition of a loop: does the test hold for any element?"""

    def asks(b: Any, *state: Any) -> Any:
        held = test(*state)
        return b.ops.any(held, dim=_all_dims(held), keepdim=False)

    return asks


def _gamma_series(b: Any, a: Any, x: Any) -> Any:
    """The sum of x^n / (a (a+1) … (a+n)), for x below a + 1."""

    def step(inner: Any, i: Any, total: Any, term: Any) -> Any:
        term = term * inner.own(x) / (inner.own(a) + inner.cast(i + 1, float64))
        return total + term, term

    start = 1 / a
    asks = _going(lambda total, term: term > total * _EXACT)
    return loop(b, b.number(_TURNS, int64), [start, start], step, asks)[0]


def _gamma_fraction(b: Any, a: Any, x: Any) -> Any:
    """The continued fraction of the upper incomplete gamma function, for x ≥ a + 1, by Lentz's algorithm."""

    def step(inner: Any, i: Any, value: Any, c: Any, d: Any, _by: Any) -> Any:
        n = inner.cast(i + 1, float64)
        above, below = n * (inner.own(a) - n), inner.own(x) - inner.own(a) + 1 + 2 * n
        d, c = 1 / (above * d + below), below + above / c
        return value * c * d, c, d, c * d

    first = 1 / (x - a + 1)
    huge = first * 0 + 1e300
    asks = _going(lambda _value, _c, _d, by: abs(by - 1) > 4 * _EXACT)
    return loop(b, b.number(_TURNS, int64), [first, huge, first, first * 0], step, asks)[0]


def incomplete_gamma(upper: bool) -> Callable[..., Any]:
    """The regularised incomplete gamma function, lower or upper: by a series for small x, else by a fraction."""

    def rule(b: Any, given: Any, at: Any) -> Any:
        a, x = _both(b, given, at)
        plain = b.node("And", b.node("And", a > 0, a < math.inf), b.node("And", x > 0, x < math.inf))
        a, x = b.ops.where(plain, a, 1), b.ops.where(plain, x, 1)
        under = x < a + 1
        scale = b.ops.exp(a * b.ops.log(x) - x - b.ops.lgamma(a))
        # Where the other formula is used, arguments with which this one converges at once.
        below = _gamma_series(b, a, b.ops.where(under, x, 0)) * scale
        above = _gamma_fraction(b, a, b.ops.where(under, a * 2 + 9, x)) * scale
        made = b.ops.where(under, 1 - below, above) if upper else b.ops.where(under, below, 1 - above)
        return b.cast(b.ops.where(plain, made, _share_at_edges(b, given, at, upper)), given.dtype)

    return rule


def _share_at_edges(b: Any, given: Any, at: Any, upper: bool) -> Any:
    """The values where an argument is 0 or infinite; NaN below 0."""
    a, x = _both(b, given, at)
    none, everything = (1.0, 0.0) if upper else (0.0, 1.0)
    nothing = a * 0 * x
    made = b.ops.where(b.node("Or", a == 0, x == math.inf), everything, nothing)
    made = b.ops.where(b.node("Or", x == 0, a == math.inf), none, made)
    both = b.node("Or", b.node("And", a == 0, x == 0), b.node("And", a == math.inf, x == math.inf))
    unknown = b.node("Or", b.node("IsNaN", a), b.node("IsNaN", x))
    undefined = b.node("Or", b.node("Or", a < 0, x < 0), b.node("Or", both, unknown))
    return b.ops.where(undefined, math.nan, made)


def zeta(b: Any, given: Any, at: Any) -> Any:
    """The sum of (q + n)^-x: term by term while q + n is small, the rest by the Euler-Maclaurin formula."""
    x, q = _both(b, given, at)
    pole = b.node("And", q <= 0, b.node("Equal", q, b.node("Floor", q)))
    # Negative numbers have no real powers with fractional exponents.
    broken = b.node("And", q < 0, b.node("Not", b.node("Equal", x, b.node("Floor", x))))
    plain = b.node("And", b.node("And", x > 1, x < math.inf), b.node("And", abs(q) < math.inf, b.node("Not", pole)))
    plain = b.node("And", plain, b.node("Not", broken))
    s, start = b.ops.where(plain, x, 2), b.ops.where(plain, q, 1)
    # The tail formula needs q + n > x; where that is out of reach, the sum is 0 or its first terms are enough.
    far = b.node("Min", s, b.number(200, float64)) + 9

    def step(inner: Any, _i: Any, total: Any, z: Any) -> Any:
        near = z < inner.own(far)
        added = inner.ops.pow(inner.ops.where(near, z, 1), -inner.own(s))
        return inner.ops.where(near, total + added, total), inner.ops.where(near, z + 1, z)

    asks = _going(lambda _total, z: z < z.builder.own(far))
    total, z = loop(b, b.number(_TURNS, int64), [start * 0, start], step, asks)
    power = b.ops.pow(z, -s)
    made = total + power * z / (s - 1) + power * 0.5
    rising = s
    for j, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6), 1):
        power = power / z if j == 1 else power / (z * z)
        made = made + rising * power * (bernoulli / math.factorial(2 * j))
        rising = rising * (s + (2 * j - 1)) * (s + 2 * j)
    made = b.ops.where(plain, made, math.nan)
    endless = b.ops.where(q < 1, math.inf, b.ops.where(q == 1, b.number(1, float64), math.nan))
    made = b.ops.where(x == math.inf, endless, made)
    made = b.ops.where(b.node("And", q == math.inf, x > 1), 0, made)
    made = b.ops.where(x < 1, math.nan, b.ops.where(pole, math.inf, made))
    return b.cast(b.ops.where(x == 1, math.inf, made), given.dtype)
