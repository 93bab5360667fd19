"""Helpers of the maths library: shorthands for expressions, and the bit layout of floats.

All coefficients of the library are minimax fits (Remez exchange in 50 digits, weighted for the relative error of
the function), rounded to the dtype from the lowest power up with the higher ones refitted after each rounding. They are
listed from the highest power down, for Horner's scheme.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wayfare.codegen.loop.expr import INTEGERS, Expr, apply, bits, const
from wayfare.core.errors import LoopError

Rule = Callable[..., Expr]
Coefficients = dict[str, tuple[float, ...]]

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True, slots=True)
class Layout:
    """The bit layout of a float dtype."""

    integer: str
    mantissa: int
    bias: int

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def magic(self) -> float:
        """Adding this to a small number puts the nearest integer into the lowest mantissa bits."""
        return 1.5 * 2.0**self.mantissa


LAYOUT = {"f32": Layout("i32", 23, 127), "f64": Layout("i64", 52, 1023)}


def layout(x: Expr) -> Layout:
    """The layout of an f32 or f64; raises LoopError for other dtypes."""
    if x.dtype not in LAYOUT:
        raise LoopError(f"the maths library computes in f32 and f64, not in {x.dtype}", fix="Cast the value first.")
    return LAYOUT[x.dtype]


def is_integer(x: Expr) -> bool:
    """Is the dtype an integer? (bool is not.)"""
    return x.dtype in INTEGERS


def fma(a: Any, b: Any, c: Any) -> Expr:
    """a * b + c."""
    return apply("fma", a, b, c)


def where(condition: Expr, a: Any, b: Any) -> Expr:
    """a where the condition holds, else b."""
    return apply("where", condition, a, b)


def choose(x: Expr, condition: Expr, a: float, b: float) -> Expr:
    """One of two constants, in the dtype of x."""
    return apply("where", condition, const(a, x.dtype), const(b, x.dtype))


def both(a: Expr, b: Expr) -> Expr:
    """a and b."""
    return apply("logical_and", a, b)


def either(a: Expr, b: Expr) -> Expr:
    """a or b."""
    return apply("logical_or", a, b)


# Compare and select become one min or max instruction if NaN falls through to x.
def at_most(x: Expr, bound: float) -> Expr:
    """min(x, bound); NaN stays."""
    return where(x > bound, bound, x)


def at_least(x: Expr, bound: float) -> Expr:
    """max(x, bound); NaN stays."""
    return where(x < bound, bound, x)


def magnitude(x: Expr) -> Expr:
    """|x|."""
    return apply("abs", x)


def signed_as(value: Expr, x: Expr) -> Expr:
    """|value| with the sign of x."""
    return apply("copysign", value, x)


def poly(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """A polynomial, highest power first."""
    value: Any = const(coefficients[0], x.dtype)
    for c in coefficients[1:]:
        value = fma(value, x, c)
    return value  # type: ignore[no-any-return]


def integer_bits(x: Expr) -> Expr:
    """The bits of a float as an integer."""
    return bits(x, layout(x).integer)


def power_of_two(biased: Expr, dtype: str) -> Expr:
    """2ⁿ from an integer whose low bits are n + bias; higher bits are shifted out."""
    return bits(biased << LAYOUT[dtype].mantissa, dtype)
