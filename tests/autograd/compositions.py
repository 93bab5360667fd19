"""Compositions of the function transforms, generated; and what they must give, worked out on polynomials.

Every transform here takes a function from a vector of two numbers to a vector, and gives such a function. So each can
stand around each. A polynomial stays a polynomial under all of them, and its derivatives are exact.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

Powers = tuple[int, int, int]

POINT = (0.7, -0.4)
PARAMETER = 0.9
SCALES = (1.0, 0.5)  # the examples of vmap are the vector times these


class Polynomial:
    """A polynomial of x0, x1 and the parameter w: powers → coefficient."""

    def __init__(self, terms: dict[Powers, float]) -> None:
        self.terms = {powers: c for powers, c in terms.items() if c != 0.0}

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for powers, c in other.terms.items():
            terms[powers] = terms.get(powers, 0.0) + c
        return Polynomial(terms)

    def __mul__(self, other: Polynomial | float) -> Polynomial:
        if not isinstance(other, Polynomial):
            return Polynomial({powers: c * other for powers, c in self.terms.items()})
        terms: dict[Powers, float] = {}
        for (p, c), (q, d) in itertools.product(self.terms.items(), other.terms.items()):
            powers = (p[0] + q[0], p[1] + q[1], p[2] + q[2])
            terms[powers] = terms.get(powers, 0.0) + c * d
        return Polynomial(terms)

    def by(self, variable: int) -> Polynomial:
        """The derivative by x0, x1 or w."""
        terms = {}
        for powers, c in self.terms.items():
            if powers[variable]:
                lower = list(powers)
                lower[variable] -= 1
                terms[tuple(lower)] = c * powers[variable]
        return Polynomial(terms)

    def at_scaled(self, scale: float) -> Polynomial:
        """The polynomial of x * scale."""
        return Polynomial({powers: c * scale ** (powers[0] + powers[1]) for powers, c in self.terms.items()})

    def value(self) -> float:
        """Its value at the point."""
        return sum(c * POINT[0] ** i * POINT[1] ** j * PARAMETER**k for (i, j, k), c in self.terms.items())


X0, X1, W = Polynomial({(1, 0, 0): 1.0}), Polynomial({(0, 1, 0): 1.0}), Polynomial({(0, 0, 1): 1.0})


class Vector(list[Polynomial]):
    """What a function gives: a vector of polynomials."""

    def total(self) -> Polynomial:
        """The weighted sum of its elements."""
        total = Polynomial({})
        for p, c in zip(self, weights(len(self)), strict=True):
            total = total + p * c
        return total


def power(p: Polynomial, n: int) -> Polynomial:
    """p to the n-th."""
    out = Polynomial({(0, 0, 0): 1.0})
    for _ in range(n):
        out = out * p
    return out


# The degree is high enough that something is left after three Hessians.
BASE = Vector(power(X0 + X1 * 2.0, 7) * W * x for x in (X0, X1))


def base(m: Any, w: Any) -> Callable[[Any], Any]:
    """The same function, in tensor ops."""
    return lambda x: (x * m.tensor([1.0, 2.0], dtype=m.float64)).sum() ** 7 * w * x


def waves(m: Any, w: Any) -> Callable[[Any], Any]:
    """A function that is no polynomial."""
    return lambda x: (x * m.tensor([1.0, 2.0], dtype=m.float64)).sum().sin() * (w * x).exp()


def weights(count: int) -> list[float]:
    """How much each element of a vector counts in a sum: no two count the same."""
    return [(i + 1) / count for i in range(count)]


def weighted(m: Any, vector: Any) -> Any:
    """The weighted sum of a vector."""
    return (vector * m.tensor(weights(vector.shape[0]), dtype=m.float64)).sum()


def _pushed(v: Vector) -> list[Polynomial]:
    return [*v, *[p.by(0) * W + p.by(1) * 2.0 for p in v]]


def _jacobian(v: Vector) -> list[Polynomial]:
    return [p.by(i) for p in v for i in (0, 1)]


EXACT: dict[str, Callable[[Vector], list[Polynomial]]] = {
    "grad": lambda v: [v.total().by(0), v.total().by(1)],
    "vjp": lambda v: [*v, v.total().by(0) * W, v.total().by(1) * W],
    "jvp": _pushed,
    "linearize": _pushed,
    "jacrev": _jacobian,
    "jacfwd": _jacobian,
    "hessian": lambda v: [v.total().by(i).by(j) for i in (0, 1) for j in (0, 1)],
    "vmap": lambda v: [p.at_scaled(scale) for scale in SCALES for p in v],
}


def _vjp(m: Any, f: Any, w: Any, x: Any) -> Any:
    out, pull = m.func.vjp(f, x)
    return m.cat([out, *pull(m.tensor(weights(out.shape[0]), dtype=m.float64) * w)])


def _direction(m: Any, w: Any) -> Any:
    return m.stack([w, m.tensor(2.0, dtype=m.float64)])


def _linearize(m: Any, f: Any, w: Any, x: Any) -> Any:
    out, push = m.func.linearize(f, x)
    return m.cat([out, push(_direction(m, w))])


TRANSFORMS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "grad": lambda m, f, w, x: m.func.grad(lambda x: weighted(m, f(x)))(x),
    "vjp": _vjp,
    "jvp": lambda m, f, w, x: m.cat(m.func.jvp(f, (x,), (_direction(m, w),))),
    "linearize": _linearize,
    "jacrev": lambda m, f, w, x: m.func.jacrev(f)(x).reshape(-1),
    "jacfwd": lambda m, f, w, x: m.func.jacfwd(f)(x).reshape(-1),
    "hessian": lambda m, f, w, x: m.func.hessian(lambda x: weighted(m, f(x)))(x).reshape(-1),
    "vmap": lambda m, f, w, x: m.func.vmap(f)(m.stack([x * scale for scale in SCALES])).reshape(-1),
}


def compositions(depth: int) -> Iterator[tuple[str, ...]]:
    """All of this depth, the outermost transform first."""
    return itertools.product(TRANSFORMS, repeat=depth)


def composed(m: Any, names: tuple[str, ...], w: Any, of: Any = base) -> Callable[[Any], Any]:
    """The function that the transforms make of the base function."""
    function = of(m, w)
    for name in reversed(names):
        function = _around(m, TRANSFORMS[name], function, w)
    return function  # type: ignore[no-any-return]


def _around(m: Any, transform: Any, function: Any, w: Any) -> Callable[[Any], Any]:
    return lambda x: transform(m, function, w, x)


@functools.cache
def exact(names: tuple[str, ...]) -> Vector:
    """What it must give."""
    return Vector(EXACT[names[0]](exact(names[1:]))) if names else BASE


@functools.cache
def values(names: tuple[str, ...]) -> list[float]:
    """Its value at the point."""
    return [p.value() for p in exact(names)]


@functools.cache
def slopes(names: tuple[str, ...]) -> list[float]:
    """The gradient of its weighted sum, by x0, x1 and w."""
    return [exact(names).total().by(i).value() for i in range(3)]


def point(m: Any, requires_grad: bool) -> tuple[Any, Any]:
    """x and w."""
    return (m.tensor(POINT, dtype=m.float64, requires_grad=requires_grad),
            m.tensor(PARAMETER, dtype=m.float64, requires_grad=requires_grad))  # fmt: skip
