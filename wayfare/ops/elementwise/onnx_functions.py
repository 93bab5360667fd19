"""ONNX rules of elementary functions and activations that have no ONNX operator, or a less exact one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from wayfare.core.spec import float64


def times(kind: str, factor: float) -> Callable[..., Any]:
    """An operator and a constant factor."""
    return lambda b, x: b.node(kind, x) * factor


def exp2(b: Any, x: Any) -> Any:
    """A power of two."""
    return b.node("Pow", b.number(2, x.dtype), x)


def log1p(b: Any, x: Any) -> Any:
    """log(u) · x / (u - 1) with u = 1 + x: the quotient corrects the rounding of u."""
    u = x + 1
    step = u - 1
    ordinary = b.node("Log", u) * (x / b.ops.where(step == 0, 1, step))
    # Large x needs no correction, and infinity / infinity would be NaN.
    return b.ops.where(step == 0, x, b.ops.where(x > 1, b.node("Log", u), ordinary))


def expm1(b: Any, x: Any) -> Any:
    """exp(x) - 1; near zero, where that cancels, from tanh(x / 2)."""
    t = b.node("Tanh", x * 0.5)
    near = 2 * t / (1 - t)
    return b.ops.where(abs(x) < 0.5, near, b.node("Exp", x) - 1)


def log_add_exp(base: float) -> Callable[..., Any]:
    """log(exp x + exp y) without overflow, of exponentials of `base · x`."""

    def rule(b: Any, x: Any, y: Any) -> Any:
        larger = b.node("Max", x, y)
        gap = -abs(x - y) if base == 1 else -abs(x - y) * base
        more = b.ops.log1p(b.node("Exp", gap))
        # The difference of two equal infinities is NaN, so they are handled separately.
        return b.ops.where(x == y, x + math.log(2) / base, larger + (more if base == 1 else more / base))

    return rule


def hypot(b: Any, x: Any, y: Any) -> Any:
    """The root of the sum of squares, scaled so that nothing overflows."""
    x, y = abs(x), abs(y)
    larger = b.node("Max", x, y)
    ratio = b.node("Min", x, y) / b.ops.where(larger == 0, 1, larger)
    made = larger * b.node("Sqrt", ratio * ratio + 1)
    # Infinity wins, even against a NaN.
    return b.ops.where(b.node("Or", x == math.inf, y == math.inf), math.inf, made)


def atan2(b: Any, y: Any, x: Any) -> Any:
    """The angle of a point: the arc tangent of a quotient of at most 1, moved to the right octant."""
    steep = abs(y) > abs(x)
    above, below = b.ops.where(steep, x, y), b.ops.where(steep, y, x)
    diagonal = b.node("And", abs(x) == math.inf, abs(y) == math.inf)
    slope = above / b.ops.where(below == 0, 1, below)
    angle = b.node("Atan", b.ops.where(diagonal, b.node("Sign", x) * b.node("Sign", y), slope))
    half = b.ops.copysign(b.full((), math.pi / 2, x.dtype), y)
    flat = b.ops.where(b.ops.signbit(x), angle + 2 * half, angle)
    return b.ops.where(steep, half - angle, flat)


def normal_cdf(b: Any, x: Any) -> Any:
    """The cumulative normal distribution."""
    return (b.node("Erf", x * math.sqrt(0.5)) + 1) * 0.5


def erfc(b: Any, x: Any) -> Any:
    """1 - erf(x)."""
    return 1 - b.node("Erf", x)


def x_log(log: str, shift: float) -> Callable[..., Any]:
    """x * log(y + shift), which is 0 where x is, unless y is a NaN."""

    def rule(b: Any, x: Any, y: Any) -> Any:
        zero = b.node("And", x == 0, b.node("Not", b.node("IsNaN", y)))
        inside = b.ops.where(zero, 1 - shift, y)
        return b.ops.where(zero, 0, x * getattr(b.ops, log)(inside))

    return rule


# -- activations ------------------------------------------------------------------------------------------------------
# ONNX Runtime has these operators in single precision only; doubles are written in simpler ones.


def leaky_relu(b: Any, x: Any, *, slope: float) -> Any:
    """Its own operator."""
    return b.ops.where(x > 0, x, x * slope) if x.dtype is float64 else b.node("LeakyRelu", x, alpha=float(slope))


def elu(b: Any, x: Any, *, alpha: float, scale: float, inner: float) -> Any:
    """Its own operator, or celu's or selu's."""
    if x.dtype is not float64:
        if inner == 1 and scale == 1:
            return b.node("Elu", x, alpha=float(alpha))
        if inner == 1:
            return b.node("Selu", x, alpha=float(alpha), gamma=float(scale))
        if scale == 1 and alpha * inner == 1:
            return b.node("Celu", x, alpha=float(alpha))
    return b.ops.where(x > 0, x * scale, b.ops.expm1(b.node("Min", x, b.number(0, x.dtype)) * inner) * (alpha * scale))


def _softplus(b: Any, x: Any) -> Any:
    if x.dtype is not float64:
        return b.node("Softplus", x)
    return b.node("Max", x, b.number(0, x.dtype)) + log1p(b, b.node("Exp", -abs(x)))


def softplus(b: Any, x: Any, *, beta: float, threshold: float) -> Any:
    """ONNX's Softplus; above the threshold x itself."""
    smooth = _softplus(b, x) if beta == 1 else _softplus(b, x * beta) / beta
    if threshold >= 20:
        return smooth
    return b.ops.where((x if beta == 1 else x * beta) > threshold, x, smooth)


def log_sigmoid(b: Any, x: Any) -> Any:
    """-softplus(-x)."""
    return -_softplus(b, -x)


def mish(b: Any, x: Any) -> Any:
    """Times the hyperbolic tangent of softplus."""
    return x * b.node("Tanh", _softplus(b, x))


def gelu(b: Any, x: Any) -> Any:
    """Its own operator since version 20."""
    return b.node("Gelu", x) if b.opset >= 20 else x * normal_cdf(b, x)


def gelu_tanh(b: Any, x: Any) -> Any:
    """The same by its approximation."""
    if b.opset >= 20 and x.dtype is not float64:
        return b.node("Gelu", x, approximate="tanh")
    return x * 0.5 * (b.node("Tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))) + 1)


def hard_sigmoid(b: Any, x: Any) -> Any:
    """Its own operator."""
    if x.dtype is float64:
        return b.ops.clamp(x + 3, low=0, high=6) / 6
    return b.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)


def hard_swish(b: Any, x: Any) -> Any:
    """Its own operator."""
    return x * hard_sigmoid(b, x) if x.dtype is float64 else b.node("HardSwish", x)
