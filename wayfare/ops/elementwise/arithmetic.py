"""Elementwise arithmetic, comparison and selection: the ops behind Python's operators."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from wayfare.core.autocast import FLOAT32_ON_CUDA
from wayfare.core.flops import nothing
from wayfare.core.numpy_math import Array
from wayfare.core.op import Rule, Sample
from wayfare.core.select import bounded
from wayfare.core.select import gate as _gate
from wayfare.core.signature import DTYPE, NUMBER, NUMBER_OR_NONE, takes
from wayfare.core.spec import NARROW_CHARS, DType, Spec, float64, int32
from wayfare.ops import _loop
from wayfare.ops._define import NEVER, UFUNC, define, elementwise, in_front
from wayfare.ops.elementwise import onnx_arithmetic as rules

add = elementwise(
    "add", small_vjp="add", onnx="Add", arity=2, reference=operator.add,
    vjp=(lambda m, g, _y, _a, _b: g, lambda m, g, _y, _a, _b: g),
)  # fmt: skip

sub = elementwise(
    "sub", small_vjp="sub", onnx="Sub", arity=2, reference=operator.sub, kinds="iuf",
    vjp=(lambda m, g, _y, _a, _b: g, lambda m, g, _y, _a, _b: -g),
)  # fmt: skip

mul = elementwise(
    "mul", small_vjp="mul", onnx="Mul", arity=2, reference=operator.mul,
    vjp=(lambda m, g, _y, _a, b: g * b, lambda m, g, _y, a, _b: g * a),
)  # fmt: skip

div = elementwise(
    "div", small_vjp="div", onnx="Div", arity=2, reference=operator.truediv, promotion="float", kinds="f",
    domain=((-2, 2), (0.5, 2.0)),
    # The second rule reads a, not the quotient: so `(a / b).mul_(c)` overwrites nothing that a node keeps.
    vjp=(lambda m, g, _y, _a, b: g / b, lambda m, g, _y, a, b: -g * (a / b / b)),
)  # fmt: skip

neg = elementwise(
    "neg", small_vjp="neg", onnx="Neg", reference=operator.neg, kinds="iuf", vjp=lambda m, g, _y, _x: -g,
)  # fmt: skip


def _to_number(x: Any, *, exponent: float) -> Any:
    """np.power, but by a few products where the exponent is a small number: a hundred times faster."""
    quick = _QUICK_POWERS.get(exponent)
    return np.power(x, np.asarray(exponent, x.dtype)) if quick is None else quick(x)


_QUICK_POWERS: dict[float, Callable[[Any], Any]] = {
    0.5: np.sqrt,
    -0.5: lambda x: np.reciprocal(np.sqrt(x)),
    -1: np.reciprocal,
    -2: lambda x: np.reciprocal(x * x),
    0: np.ones_like,
    1: np.positive,
    2: np.square,
    3: lambda x: x * x * x,
}


def _pow_by_base(m: Any, g: Any, _y: Any, x: Any, exponent: Any) -> Any:
    # At exponent 0 the gradient is 0 even where x ** -1 is not finite.
    return g * m.where(exponent == 0, m.zeros_like(exponent), exponent * m.pow(x, exponent - 1))


def _pow_by_exponent(m: Any, g: Any, y: Any, x: Any, exponent: Any) -> Any:
    # 0 ** e is 0 for every e >= 0: no gradient there, though log 0 is not finite.
    flat = m.logical_and(x == 0, exponent >= 0)
    return m.where(flat, m.zeros_like(y), g * y * m.log(x))


pow_ = elementwise(
    "pow", autocast=FLOAT32_ON_CUDA,
    native_from=NEVER, onnx="Pow", arity=2, reference=math.pow, domain=((0.3, 2.0), (-2.0, 3.0)), kinds="iuf",
    vjp=(_pow_by_base, _pow_by_exponent),
)  # fmt: skip


def _to_number_vjp(m: Any, g: Any, _y: Any, x: Any, *, exponent: float) -> Any:
    if exponent == 0:
        return m.zeros_like(g)
    return g * (m.pow_to_number(x, exponent=exponent - 1) * exponent)


# The exponent is one Python number, as it nearly always is.
pow_to_number = elementwise(
    "pow_to_number", autocast=FLOAT32_ON_CUDA, native_from=16384, expression=_loop.pow_to_number,
    attrs={"exponent": NUMBER}, onnx=rules.power_of_number, forward=_to_number, formula=lambda m, x, *,
    exponent: m.pow(x, exponent), kinds="f",
    reference=lambda x, exponent: x**exponent, vjp=_to_number_vjp, domain=(0.3, 2.0), grad_name="PowBackward0",
    sample_attrs=tuple({"exponent": e} for e in (-2, -1, -0.5, 0, 0.5, 1, 2, 3, 2.7)),
)  # fmt: skip

zeros_like = elementwise(
    "zeros_like", native_from=UFUNC, expression=_loop.zeros_like,
    onnx=lambda b, x: b.full(x.shape, 0, x.dtype), forward=np.zeros_like, formula=lambda m, x: m.where(x == 0, x, 0),
    reference=lambda x: x * 0,
)


def _sign(x: Any) -> Any:
    if x.dtype.kind != "f":
        return x.copy() if x.dtype.kind == "b" else np.sign(x)
    # NaN has no sign: 0, as in PyTorch.
    out = np.asarray(np.sign(x))
    np.copyto(out, 0, where=out != out)
    return out


abs_ = elementwise("abs", onnx="Abs", reference=abs, kinds="iuf", vjp=lambda m, g, _y, x: g * m.sign(x))
sign = elementwise(
    "sign", native_from=4096, expression=_loop.sign,
    onnx=rules.sign, forward=_sign, formula=lambda m, x: m.where(x > 0, 1, 0) - m.where(x < 0, 1, 0),
    reference=lambda x: (x > 0) - (x < 0), vjp=lambda m, g, _y, _x: m.zeros_like(g),
)  # fmt: skip
angle = elementwise(
    "angle", formula=lambda m, x: m.where(x < 0, math.pi, m.where(m.isnan(x), x, 0)), promotion="float", kinds="f",
    reference=lambda x: math.atan2(0, x), vjp=lambda m, g, _y, _x: m.zeros_like(g),
)  # fmt: skip
square = elementwise(
    "square", small_vjp="square", onnx=lambda b, x: x * x, reference=lambda x: x * x, kinds="iuf",
    vjp=lambda m, g, _y, x: g * (x + x), grad_name="PowBackward0",
)  # fmt: skip


def _whole_quotient_vjp(m: Any, g: Any, _y: Any, a: Any, b: Any) -> Any:
    return -(g * m.floor(a / b))


floor_divide = elementwise(
    "floor_divide", native_from=2048,
    onnx=rules.floor_divide, arity=2, reference=lambda a, b: math.floor(a / b), domain=((-5, 5), (0.5, 2.0)),
    vjp=(lambda m, g, _y, _a, _b: m.zeros_like(g), lambda m, g, _y, _a, _b: m.zeros_like(g)),
)  # fmt: skip
remainder = elementwise(
    "remainder", native_from=2048,
    onnx=rules.remainder, arity=2, reference=operator.mod, domain=((-5, 5), (0.5, 2.0)), kinds="iuf",
    vjp=(lambda m, g, _y, _a, _b: g, _whole_quotient_vjp),
)  # fmt: skip
fmod = elementwise(
    "fmod", onnx=rules.truncated_remainder, arity=2, reference=math.fmod, domain=((-5, 5), (0.5, 2.0)), kinds="iuf",
    vjp=(lambda m, g, _y, _a, _b: g, lambda m, g, _y, a, b: -(g * m.trunc(a / b))),
)  # fmt: skip


def _share_of(loses: Callable[[Any, Any], Any], first: bool) -> Rule:
    """The gradient goes to the operand that is chosen. Equal operands share it; if one is NaN, both get it."""

    def rule(m: Any, g: Any, _y: Any, a: Any, b: Any) -> Any:
        mine, other = (a, b) if first else (b, a)
        return m.where(mine == other, g / 2, m.gate(g, m.logical_not(loses(mine, other))))

    return rule


_higher = (_share_of(operator.lt, True), _share_of(operator.lt, False))
_lower = (_share_of(operator.gt, True), _share_of(operator.gt, False))
elementwise("maximum", onnx="Max", arity=2, reference=max, vjp=_higher)
elementwise("minimum", onnx="Min", arity=2, reference=min, vjp=_lower)


def _share_past_nan(pick: str, first: bool) -> Rule:
    """fmax and fmin ignore NaN, so the gradient goes to the operand that is the result."""

    def rule(m: Any, g: Any, _y: Any, a: Any, b: Any) -> Any:
        takes_first = m.logical_or(a >= b if pick == "max" else a <= b, m.isnan(b))
        return m.gate(g, takes_first if first else m.logical_not(takes_first))

    return rule


for _name, _pick in (("fmax", max), ("fmin", min)):
    elementwise(
        _name, native_from=32768, onnx=rules.past_nan(_pick.__name__.capitalize()), arity=2, reference=_pick,
        vjp=(_share_past_nan(_pick.__name__, True), _share_past_nan(_pick.__name__, False)),
    )  # fmt: skip


def _clamp(m: Any, x: Any, *, low: Any, high: Any) -> Any:
    if low is not None:
        x = m.maximum(x, low)
    return m.minimum(x, high) if high is not None else x


def _clamp_forward(x: Any, *, low: Any, high: Any) -> Any:
    # The bounds wrap around as the tensor's own numbers do: -1 is 255 for uint8.
    dtype = x.dtype
    low, high = (None if b is None else np.asarray(b).astype(dtype) for b in (low, high))
    return bounded(x, low, high)


def _clamp_vjp(m: Any, g: Any, _y: Any, x: Any, *, low: Any, high: Any) -> Any:
    if low is None:
        return m.gate(g, x <= high)
    return m.gate(g, x >= low if high is None else m.logical_and(x >= low, x <= high))


clamp = elementwise(
    "clamp", native_from=UFUNC, attrs={"low": NUMBER_OR_NONE, "high": NUMBER_OR_NONE},
    onnx=rules.clamp, formula=_clamp, forward=_clamp_forward, kinds="iuf", vjp=_clamp_vjp,
    reference=lambda x, low, high: min(max(x, low if low is not None else x), high if high is not None else 9e9),
    sample_attrs=({"low": -0.5, "high": 0.7}, {"low": None, "high": 0.3}, {"low": 0.1, "high": None}),
)  # fmt: skip

copysign = elementwise(
    "copysign", native_from=8192, onnx=rules.copy_sign, arity=2, reference=math.copysign, promotion="float", kinds="f",
    vjp=(
        lambda m, g, y, a, _b: m.where(m.signbit(y), -g, g) * m.sign(a),
        lambda m, g, _y, _a, _b: m.zeros_like(g),
    ),
)  # fmt: skip
nextafter = elementwise(
    "nextafter", native_from=2048, onnx=rules.next_after, arity=2, reference=math.nextafter,
    kinds="f", as_is=True, numpy_dtypes=NARROW_CHARS,
    vjp=(lambda m, g, _y, a, b: m.gate(g, a != b), lambda m, g, _y, _a, _b: m.zeros_like(g)),
)  # fmt: skip
heaviside = elementwise(
    "heaviside", onnx=rules.heaviside, arity=2, reference=lambda x, at_zero: at_zero if x == 0 else float(x > 0),
    formula=lambda m, x, at_zero: m.where(x == 0, at_zero, m.where(x > 0, 1, 0)),
    forward=lambda x, at_zero: np.where(x == 0, at_zero, (x > 0).astype(x.dtype)),
    vjp=(lambda m, g, _y, _x, _at_zero: m.zeros_like(g), lambda m, g, _y, x, _at_zero: m.gate(g, x == 0)),
)  # fmt: skip


def _nan_to_num(m: Any, x: Any, *, nan: float, posinf: float, neginf: float) -> Any:
    x = m.where(m.isnan(x), nan, x)
    return m.where(x == math.inf, posinf, m.where(x == -math.inf, neginf, x))


def _odd_samples(rng: Any) -> list[Sample]:
    attrs = {"nan": 1.5, "posinf": 2.0, "neginf": -2.0}
    odd = np.array([0.5, math.nan, math.inf, -math.inf])
    return [Sample((rng.normal(size=(2, 3)),), attrs), Sample((odd,), attrs, smooth=False)]


nan_to_num = elementwise(
    "nan_to_num", attrs={"nan": NUMBER, "posinf": NUMBER, "neginf": NUMBER}, formula=_nan_to_num, samples=_odd_samples,
    vjp=lambda m, g, _y, x, *, nan, posinf, neginf: m.gate(g, m.isfinite(x)),
    reference=lambda x, nan, posinf, neginf: (
        nan if math.isnan(x) else posinf if x == math.inf else neginf if x == -math.inf else x
    ),
)  # fmt: skip

_test = partial(elementwise, result="bool", smooth=False)
_test("isnan", onnx=rules.of_floats("IsNaN", rules.never), reference=math.isnan)
_test("isinf", onnx=rules.of_floats("IsInf", rules.never), reference=math.isinf)
_test("isfinite", onnx=rules.is_finite, reference=math.isfinite)
_test("signbit", onnx=rules.sign_bit, reference=lambda x: math.copysign(1, x) < 0)

for _name, _rule in (
    ("eq", "Equal"), ("ne", rules.not_equal), ("lt", "Less"), ("le", "LessOrEqual"), ("gt", "Greater"),
    ("ge", "GreaterOrEqual"),
):  # fmt: skip
    _test(_name, onnx=_rule, arity=2, reference=getattr(operator, _name))

where = elementwise(
    "where", native_from=4096, onnx="Where", arity=3, masks=(0,), reference=lambda c, a, b: a if c else b,
    vjp=(
        None,
        lambda m, g, _y, c, _a, _b: m.gate(g, c),
        lambda m, g, _y, c, _a, _b: m.gate(g, m.logical_not(c)),
    ),
)  # fmt: skip

# g where the mask holds, else 0. Gradients of selections use it: a product with 0 would turn infinity into NaN.
gate = elementwise(
    "gate", native_from=32768,
    onnx=rules.gate, arity=2, masks=(1,), forward=_gate, formula=lambda m, g, mask: m.where(mask, g, 0),
    reference=lambda g, mask: g if mask else 0.0,
    # A mask of numbers (the result of relu) has the gradient 0, which is not the same as having none.
    vjp=(lambda m, g, _y, _x, mask: m.gate(g, mask), lambda m, g, _y, _x, _mask: m.zeros_like(g)),
)  # fmt: skip

_logical = partial(elementwise, native_from=4096, result="bool")
_logical("logical_and", onnx=rules.truth("And"), arity=2, reference=lambda a, b: bool(a) and bool(b))
_logical("logical_or", onnx=rules.truth("Or"), arity=2, reference=lambda a, b: bool(a) or bool(b))
_logical("logical_xor", onnx=rules.truth("Xor"), arity=2, reference=lambda a, b: bool(a) != bool(b))
_logical("logical_not", onnx=rules.truth("Not"), reference=lambda a: not a)


def _cast(x: Array, *, dtype: DType) -> Array:
    # An expanded array has no layout of its own to keep; NumPy would put the expanded dimension innermost.
    return x.astype(dtype.numpy, order="C" if 0 in x.strides else "K")


cast = define(
    "cast", signature=takes(1, mixed=True, dtype=DTYPE), onnx=rules.cast, expression=_loop.cast,
    family="elementwise",
    work=nothing,
    forward=_cast,
    as_is=True,
    infer=lambda x, *, dtype: Spec(x.shape, dtype),
    vjp=(lambda m, g, _y, x_spec, *, dtype: m.cast(g, dtype=x_spec.dtype),),
    batch=in_front("cast"),
    reference=lambda x, dtype: np.array([dtype.numpy.type(v) for v in x.ravel()], dtype.numpy).reshape(x.shape),
    samples=lambda rng: [Sample((rng.normal(size=(2, 3)),), {"dtype": dtype}) for dtype in (float64, int32)],
    grad_name="ToCopyBackward0",
)


def _bound(name: str, keeps: Callable[[Any, Any], Any], moves: Callable[[Any, Any], Any], pick: str) -> None:
    """clamp by a tensor: at the bound itself the gradient stays with the input; beside a NaN there is none."""
    elementwise(
        name, native_from=UFUNC, arity=2, formula=lambda m, x, limit: getattr(m, pick)(x, limit),
        reference=max if moves(0, 1) else min,
        vjp=(
            lambda m, g, _y, x, limit: m.gate(g, keeps(x, limit)),
            lambda m, g, _y, x, limit: m.gate(g, moves(x, limit)),
        ), grad_name="ClampBackward1",
    )  # fmt: skip


_bound("clamp_low", operator.ge, operator.lt, "maximum")
_bound("clamp_high", operator.le, operator.gt, "minimum")


def _lerp(m: Any, a: Any, b: Any, weight: Any) -> Any:
    # From the nearer end, so that both ends come out exactly.
    return m.where(weight < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight))


lerp = elementwise(
    "lerp", arity=3, formula=_lerp, kinds="f", reference=lambda a, b, w: (1 - w) * a + w * b,
    vjp=(
        lambda m, g, _y, _a, _b, weight: g * (1 - weight),
        lambda m, g, _y, _a, _b, weight: g * weight,
        lambda m, g, _y, a, b, _weight: g * (b - a),
    ),
)  # fmt: skip
