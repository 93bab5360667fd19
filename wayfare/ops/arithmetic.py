"""Elementwise arithmetic, comparison and selection: the ops behind Python's operators."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from wayfare.op import Sample
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

