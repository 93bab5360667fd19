"""Elementwise arithmetic, comparison and selection: the ops behind Python's operators."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.op import Rule, Sample
from wayfare.ops._define import define, elementwise
from wayfare.spec import DType, Spec, float64, int32

add = elementwise(
    "add", arity=2, reference=operator.add,
    vjp=(lambda m, g, _y, _a, _b: g, lambda m, g, _y, _a, _b: g),
)  # fmt: skip

sub = elementwise(
    "sub", arity=2, reference=operator.sub, kinds="iuf",
    vjp=(lambda m, g, _y, _a, _b: g, lambda m, g, _y, _a, _b: -g),
)  # fmt: skip

mul = elementwise(
    "mul", arity=2, reference=operator.mul,
    vjp=(lambda m, g, _y, _a, b: g * b, lambda m, g, _y, a, _b: g * a),
)  # fmt: skip

div = elementwise(
    "div", arity=2, reference=operator.truediv, promotion="float", kinds="f", domain=((-2, 2), (0.5, 2.0)),
    vjp=(lambda m, g, _y, _a, b: g / b, lambda m, g, y, _a, b: -g * (y / b)),
)  # fmt: skip

neg = elementwise("neg", reference=operator.neg, kinds="iuf", vjp=lambda m, g, _y, _x: -g)


def _pow(m: Any, x: Any, exponent: Any) -> Any:
    return m.pow(x, exponent)


def _pow_by_base(m: Any, g: Any, _y: Any, x: Any, exponent: Any) -> Any:
    # At exponent 0 the slope is 0 even where x ** -1 is not finite.
    return g * m.where(exponent == 0, m.zeros_like(exponent), exponent * m.pow(x, exponent - 1))


def _pow_by_exponent(m: Any, g: Any, y: Any, x: Any, exponent: Any) -> Any:
    # 0 ** e is 0 for every e >= 0: no slope there, though log 0 is not finite.
    flat = m.logical_and(x == 0, exponent >= 0)
    return m.where(flat, m.zeros_like(y), g * y * m.log(x))


pow_ = elementwise(
    "pow", arity=2, formula=_pow, reference=math.pow, domain=((0.3, 2.0), (-2.0, 3.0)), kinds="iuf",
    vjp=(_pow_by_base, _pow_by_exponent),
)  # fmt: skip

zeros_like = elementwise(
    "zeros_like", formula=lambda m, x: np.zeros_like(x), reference=lambda x: x * 0, vjp=None
)

abs_ = elementwise("abs", reference=abs, vjp=lambda m, g, _y, x: g * m.sign(x))
sign = elementwise("sign", reference=lambda x: (x > 0) - (x < 0), vjp=lambda m, g, _y, _x: m.zeros_like(g))
square = elementwise("square", reference=lambda x: x * x, vjp=lambda m, g, _y, x: g * (x + x), grad_name="PowBackward0")


def _floor_divide(a: float, b: float) -> float:
    return math.floor(a / b)


def _whole_quotient_vjp(m: Any, g: Any, _y: Any, a: Any, b: Any) -> Any:
    return -(g * m.floor(a / b))


floor_divide = elementwise(
    "floor_divide", arity=2, reference=_floor_divide, domain=((-5, 5), (0.5, 2.0)),
    vjp=(lambda m, g, _y, _a, _b: m.zeros_like(g), lambda m, g, _y, _a, _b: m.zeros_like(g)),
)  # fmt: skip
remainder = elementwise(
    "remainder", arity=2, reference=operator.mod, domain=((-5, 5), (0.5, 2.0)), kinds="iuf",
    vjp=(lambda m, g, _y, _a, _b: g, _whole_quotient_vjp),
)  # fmt: skip
fmod = elementwise(
    "fmod", arity=2, reference=math.fmod, domain=((-5, 5), (0.5, 2.0)), kinds="iuf",
    vjp=(lambda m, g, _y, _a, _b: g, lambda m, g, _y, a, b: -(g * m.trunc(a / b))),
)  # fmt: skip


def _share_of(wins: Callable[[Any, Any], Any], first: bool) -> Rule:
    """The gradient goes to the winner; equals share it."""

    def rule(m: Any, g: Any, _y: Any, a: Any, b: Any) -> Any:
        mine, other = (a, b) if first else (b, a)
        tie = mine == other
        return m.where(tie, g / 2, m.where(wins(mine, other), g, m.zeros_like(g)))

    return rule


_higher = (_share_of(operator.gt, True), _share_of(operator.gt, False))
_lower = (_share_of(operator.lt, True), _share_of(operator.lt, False))
maximum = elementwise("maximum", arity=2, reference=max, vjp=_higher)
minimum = elementwise("minimum", arity=2, reference=min, vjp=_lower)


def _share_past_nan(pick: str, first: bool) -> Rule:
    """fmax and fmin ignore NaN, so the gradient goes to whichever operand is the result."""

    def rule(m: Any, g: Any, _y: Any, a: Any, b: Any) -> Any:
        takes_first = m.logical_or(a >= b if pick == "max" else a <= b, m.isnan(b))
        return m.where(takes_first, g, m.zeros_like(g)) if first else m.where(takes_first, m.zeros_like(g), g)

    return rule


fmax = elementwise(
    "fmax", arity=2, reference=max, vjp=(_share_past_nan("max", True), _share_past_nan("max", False)))  # fmt: skip
fmin = elementwise(
    "fmin", arity=2, reference=min, vjp=(_share_past_nan("min", True), _share_past_nan("min", False)))  # fmt: skip

clamp = elementwise(
    "clamp", formula=lambda m, x, *, low, high: _clamp(m, x, low, high), kinds="iuf",
    reference=lambda x, low, high: min(max(x, low if low is not None else x), high if high is not None else 9e9),
    vjp=lambda m, g, _y, x, *, low, high: _clamp_vjp(m, g, x, low, high),
    sample_attrs=({"low": -0.5, "high": 0.7}, {"low": None, "high": 0.3}, {"low": 0.1, "high": None}),
)  # fmt: skip


def _clamp(m: Any, x: Any, low: Any, high: Any) -> Any:
    if low is not None:
        x = m.maximum(x, low)
    return m.minimum(x, high) if high is not None else x


def _clamp_vjp(m: Any, g: Any, x: Any, low: Any, high: Any) -> Any:
    if low is not None:
        g = g * (x >= low)
    return g * (x <= high) if high is not None else g


copysign = elementwise(
    "copysign", arity=2, reference=math.copysign, promotion="float", kinds="f",
    vjp=(lambda m, g, _y, a, b: g * m.sign(a) * m.copysign(m.cos(m.zeros_like(b)), b), lambda m, g, _y, _a, _b: m.zeros_like(g)),
)  # fmt: skip
nextafter = elementwise("nextafter", arity=2, reference=math.nextafter, kinds="f")
heaviside = elementwise("heaviside", arity=2, reference=lambda x, at_zero: at_zero if x == 0 else float(x > 0))


def _nan_to_num(m: Any, x: Any, *, nan: float, posinf: float | None, neginf: float | None) -> Any:
    limits = np.finfo(x.dtype) if np.asarray(x).dtype.kind == "f" else None
    if limits is None:
        return x
    high = limits.max if posinf is None else x.dtype.type(posinf)
    low = limits.min if neginf is None else x.dtype.type(neginf)
    x = m.where(m.isnan(x), x.dtype.type(nan), x)
    return m.where(m.isinf(x), m.where(x > 0, high, low), x)


nan_to_num = elementwise(
    "nan_to_num", formula=_nan_to_num, reference=lambda x, nan, posinf, neginf: x,
    vjp=lambda m, g, _y, x, *, nan, posinf, neginf: m.where(m.isfinite(x), g, m.zeros_like(g)),
    sample_attrs=({"nan": 0.0, "posinf": None, "neginf": None}, {"nan": 1.5, "posinf": 2.0, "neginf": -2.0}),
)  # fmt: skip

isnan = elementwise("isnan", reference=math.isnan, result="bool", smooth=False)
isinf = elementwise("isinf", reference=math.isinf, result="bool", smooth=False)
isfinite = elementwise("isfinite", reference=math.isfinite, result="bool", smooth=False)
signbit = elementwise("signbit", reference=lambda x: math.copysign(1, x) < 0, result="bool", smooth=False)

COMPARISONS = {
    name: elementwise(name, arity=2, reference=getattr(operator, name), result="bool", smooth=False)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
}

where = elementwise(
    "where", arity=3, masks=(0,), reference=lambda c, a, b: a if c else b,
    vjp=(
        None,
        lambda m, g, _y, c, _a, _b: m.where(c, g, m.zeros_like(g)),
        lambda m, g, _y, c, _a, _b: m.where(c, m.zeros_like(g), g),
    ),
)  # fmt: skip

logical_and = elementwise("logical_and", arity=2, reference=lambda a, b: bool(a) and bool(b), result="bool")
logical_or = elementwise("logical_or", arity=2, reference=lambda a, b: bool(a) or bool(b), result="bool")
logical_xor = elementwise("logical_xor", arity=2, reference=lambda a, b: bool(a) != bool(b), result="bool")
logical_not = elementwise("logical_not", reference=lambda a: not a, result="bool")


def _cast_infer(x: Spec, *, dtype: DType) -> Spec:
    return Spec(x.shape, dtype)


cast = define(
    "cast",
    family="elementwise",
    forward=lambda x, *, dtype: x.astype(dtype.numpy),
    infer=_cast_infer,
    vjp=(lambda m, g, _y, x_spec, *, dtype: m.cast(g, dtype=x_spec.dtype),),
    batch=lambda m, size, inputs, batched, attrs: m.cast(inputs[0], **attrs),
    reference=lambda x, dtype: np.array([dtype.numpy.type(v) for v in x.ravel()], dtype.numpy).reshape(x.shape),
    samples=lambda rng: [Sample((rng.normal(size=(2, 3)),), {"dtype": dtype}) for dtype in (float64, int32)],
    grad_name="ToCopyBackward0",
)



def _bound(name: str, keeps: Callable[[Any, Any], Any], pick: str, reference: Callable[..., Any]) -> None:
    """clamp by a tensor: at the bound itself the gradient stays with the input."""
    elementwise(
        name, arity=2, formula=lambda m, x, limit: getattr(m, pick)(x, limit), reference=reference, kinds="iuf",
        vjp=(
            lambda m, g, _y, x, limit: m.where(keeps(x, limit), g, m.zeros_like(g)),
            lambda m, g, _y, x, limit: m.where(keeps(x, limit), m.zeros_like(g), g),
        ), grad_name="ClampBackward1",
    )  # fmt: skip


_bound("clamp_low", operator.ge, "maximum", max)
_bound("clamp_high", operator.le, "minimum", min)
