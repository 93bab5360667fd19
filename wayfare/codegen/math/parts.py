"""What the maths library is written with: shorthands of the loop language and the layout of floats.

Coefficients everywhere in the library are minimax fits (Remez exchange in 50 digits, weighted for the relative error of
the function), rounded to the dtype from the lowest power up with the higher ones refitted after each rounding. They are
written from the highest power down, as Horner's scheme reads them.
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


def rules(*functions: Rule) -> dict[str, Rule]:
    """Functions by their names, without the underscore of a private one."""
    return {function.__name__.strip("_"): function for function in functions}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a float lies in its bits, and two numbers made from that."""

    integer: str
    mantissa: int
    bias: int

    @property
    def tiny(self) -> float:
        """The smallest number with a full mantissa."""
        return 2.0 ** (1 - self.bias)

    @property
    def magic(self) -> float:
        """Added to a small number it leaves the nearest integer in the lowest bits."""
        return 1.5 * 2.0**self.mantissa


LAYOUT = {"f32": Layout("i32", 23, 127), "f64": Layout("i64", 52, 1023)}


def layout(x: Expr) -> Layout:
    """The layout of a float; what is none is refused."""
    if x.dtype not in LAYOUT:
        raise LoopError(f"the maths library computes in f32 and f64, not in {x.dtype}", fix="Cast the value first.")
    return LAYOUT[x.dtype]


def is_integer(x: Expr) -> bool:
    """A whole-number dtype (bool is none)."""
    return x.dtype in INTEGERS


def fma(a: Any, b: Any, c: Any) -> Expr:
    """a * b + c."""
    return apply("fma", a, b, c)


def where(condition: Expr, a: Any, b: Any) -> Expr:
    """One of two values."""
    return apply("where", condition, a, b)


def choose(x: Expr, condition: Expr, a: float, b: float) -> Expr:
    """One of two numbers, in the dtype of x."""
    return apply("where", condition, const(a, x.dtype), const(b, x.dtype))


def both(a: Expr, b: Expr) -> Expr:
    """Two conditions at once."""
    return apply("logical_and", a, b)


def either(a: Expr, b: Expr) -> Expr:
    """One of two conditions."""
    return apply("logical_or", a, b)


# A comparison and a choice become one instruction when NaN falls through to the value itself.
def at_most(x: Expr, bound: float) -> Expr:
    """The value or the bound above it; NaN stays."""
    return where(x > bound, bound, x)


def at_least(x: Expr, bound: float) -> Expr:
    """The value or the bound below it; NaN stays."""
    return where(x < bound, bound, x)


def magnitude(x: Expr) -> Expr:
    """|x|."""
    return apply("abs", x)


def signed_as(value: Expr, x: Expr) -> Expr:
    """The magnitude of a value with the sign of x."""
    return apply("copysign", value, x)


def poly(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """A polynomial, highest power first."""
    value: Any = const(coefficients[0], x.dtype)
    for c in coefficients[1:]:
        value = fma(value, x, c)
    return value  # type: ignore[no-any-return]


def whole_bits(x: Expr) -> Expr:
    """The bits of a float as an integer."""
    return bits(x, layout(x).integer)


def power_of_two(biased: Expr, dtype: str) -> Expr:
    """2ⁿ from an integer whose low bits are n + bias; what stands above them is shifted out."""
    return bits(biased << LAYOUT[dtype].mantissa, dtype)
