"""Exponentials, logarithms, roots, trigonometric and hyperbolic functions."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from wayfare.core.autocast import FLOAT32_ON_CUDA, WIDEST_ON_CUDA
from wayfare.core.numpy_math import numpy_math
from wayfare.ops._define import UFUNC, elementwise
from wayfare.ops.elementwise import onnx_functions as rules

# All of these give floats: integers become the default float first.
_float = partial(elementwise, promotion="float", kinds="f")
_POSITIVE = (0.2, 3.0)
_INSIDE = (-0.9, 0.9)
# In float32 NumPy's vector forms of some are better than ours: these say numpy_dtypes="f".

exp = _float(
    "exp", autocast=FLOAT32_ON_CUDA,
    small_vjp="exp", native_from=16384, onnx="Exp", reference=math.exp, vjp=lambda m, g, y, _x: g * y,
)  # fmt: skip
exp2 = _float("exp2", onnx=rules.exp2, reference=lambda x: 2.0**x, vjp=lambda m, g, y, _x: g * y * math.log(2))
expm1 = _float(
    "expm1", autocast=FLOAT32_ON_CUDA,
    native_from=32768, onnx=rules.expm1, reference=math.expm1, vjp=lambda m, g, y, _x: g * (y + 1),
)  # fmt: skip
log = _float(
    "log", autocast=FLOAT32_ON_CUDA,
    small_vjp="log", onnx="Log", reference=math.log, domain=_POSITIVE, vjp=lambda m, g, _y, x: g / x,
)  # fmt: skip
log2 = _float(
    "log2", autocast=FLOAT32_ON_CUDA,
    onnx=rules.times("Log", 1 / math.log(2)), reference=math.log2, domain=_POSITIVE, vjp=lambda m, g, _y,
    x: g / (x * math.log(2)),
)  # fmt: skip
log10 = _float(
    "log10", autocast=FLOAT32_ON_CUDA, numpy_dtypes="f",
    onnx=rules.times("Log", 1 / math.log(10)), reference=math.log10, domain=_POSITIVE, vjp=lambda m, g, _y,
    x: g / (x * math.log(10)),
)  # fmt: skip
log1p = _float(
    "log1p", autocast=FLOAT32_ON_CUDA,
    onnx=rules.log1p, reference=math.log1p, domain=(-0.8, 3.0), vjp=lambda m, g, _y, x: g / (x + 1),
)  # fmt: skip
sqrt = _float(
    "sqrt", small_vjp="sqrt", native_from=16384, onnx="Sqrt", reference=math.sqrt, domain=_POSITIVE,
    vjp=lambda m, g, y, _x: g / (y + y),
)  # fmt: skip
rsqrt = _float(
    "rsqrt", autocast=FLOAT32_ON_CUDA,
    native_from=16384, formula=lambda m, x: 1 / m.sqrt(x), reference=lambda x: x**-0.5, domain=_POSITIVE,
    vjp=lambda m, g, y, _x: g * (y * y * y) * -0.5,
)  # fmt: skip
reciprocal = _float(
    "reciprocal", autocast=FLOAT32_ON_CUDA, native_from=UFUNC,
    onnx="Reciprocal", formula=lambda m, x: 1 / x, reference=lambda x: x**-1, domain=_POSITIVE,
    vjp=lambda m, g, y, _x: -(g * y * y),
)  # fmt: skip

sin = _float(
    "sin", native_from=2048, numpy_dtypes="f", onnx="Sin", reference=math.sin, vjp=lambda m, g, _y, x: g * m.cos(x),
)  # fmt: skip
cos = _float(
    "cos", native_from=2048, numpy_dtypes="f", onnx="Cos", reference=math.cos, vjp=lambda m, g, _y, x: -(g * m.sin(x)),
)  # fmt: skip
tan = _float(
    "tan", autocast=FLOAT32_ON_CUDA,
    native_from=2048, numpy_dtypes="f", onnx="Tan", reference=math.tan, domain=(-1.2, 1.2),
    vjp=lambda m, g, y, _x: g + g * (y * y),
)  # fmt: skip
asin = _float(
    "asin", autocast=FLOAT32_ON_CUDA,
    onnx="Asin", reference=math.asin, domain=_INSIDE, vjp=lambda m, g, _y, x: g / m.sqrt(1 - x * x),
)  # fmt: skip
acos = _float(
    "acos", autocast=FLOAT32_ON_CUDA,
    onnx="Acos", reference=math.acos, domain=_INSIDE, vjp=lambda m, g, _y, x: -g / m.sqrt(1 - x * x),
)  # fmt: skip
atan = _float("atan", onnx="Atan", reference=math.atan, vjp=lambda m, g, _y, x: g / (x * x + 1))
sinh = _float("sinh", autocast=FLOAT32_ON_CUDA, onnx="Sinh", reference=math.sinh, vjp=lambda m, g, _y, x: g * m.cosh(x))
cosh = _float("cosh", autocast=FLOAT32_ON_CUDA, onnx="Cosh", reference=math.cosh, vjp=lambda m, g, _y, x: g * m.sinh(x))
# Not g - g * y * y, which is NaN for an infinite gradient.
tanh = _float(
    "tanh", small_vjp="tanh", onnx="Tanh", reference=math.tanh, vjp=lambda m, g, y, _x: g * (1 - y * y),
)  # fmt: skip
asinh = _float(
    "asinh", numpy_dtypes="f", onnx="Asinh", reference=math.asinh, vjp=lambda m, g, _y, x: g / m.sqrt(x * x + 1),
)  # fmt: skip
acosh = _float(
    "acosh", numpy_dtypes="f",
    onnx="Acosh", reference=math.acosh, domain=(1.2, 3.0), vjp=lambda m, g, _y, x: g / m.sqrt(x * x - 1),
)  # fmt: skip
atanh = _float(
    "atanh", numpy_dtypes="f", onnx="Atanh", reference=math.atanh, domain=_INSIDE,
    vjp=lambda m, g, _y, x: g / (1 - x * x),
)  # fmt: skip
sigmoid = _float(
    "sigmoid", small_vjp="sigmoid", native_from=4096,
    onnx="Sigmoid", reference=lambda x: 1 / (1 + math.exp(-x)), vjp=lambda m, g, y, _x: g * (y - y * y),
)  # fmt: skip


def _logit_vjp(m: Any, g: Any, _y: Any, x: Any) -> Any:
    inverse = x - x * x
    # Outside [0, 1] there is neither a value nor a gradient.
    return g / m.where(inverse < 0, m.zeros_like(x) + math.nan, inverse)


logit = _float(
    "logit", formula=lambda m, x: m.log(x / (1 - x)), reference=lambda x: math.log(x) - math.log1p(-x),
    domain=(0.1, 0.9), vjp=_logit_vjp,
)  # fmt: skip


def _sinc(m: Any, x: Any) -> Any:
    angle = math.pi * x
    safe = m.where(x == 0, angle + 1, angle)
    return m.where(x == 0, angle * 0 + 1, m.sin(safe) / safe)


def _sinc_vjp(m: Any, g: Any, y: Any, x: Any) -> Any:
    # The gradient is (cos(pi x) - sinc(x)) / x, and 0 at 0.
    safe = m.where(x == 0, m.cos(m.zeros_like(x)), x)
    return m.gate(g * ((m.cos(math.pi * safe) - y) / safe), x)


sinc = _float(
    "sinc", formula=_sinc, vjp=_sinc_vjp, domain=(0.1, 2.0),
    reference=lambda x: math.sin(math.pi * x) / (math.pi * x),
)  # fmt: skip

_LOG_2 = math.log(2)


def _logaddexp(a: Any, b: Any) -> Any:
    """np.logaddexp computes one element at a time; for many elements the formula is five times faster."""
    if max(a.size, b.size) < 1024:
        return np.logaddexp(a, b)
    # Two equal infinities can be added but not subtracted.
    return numpy_math.where(a == b, a + _LOG_2, np.maximum(a, b) + np.log1p(np.exp(-np.abs(a - b))))


logaddexp = _float(
    "logaddexp", onnx=rules.log_add_exp(1.0), arity=2, forward=_logaddexp, reference=lambda a,
    b: math.log(math.exp(a) + math.exp(b)),
    vjp=(lambda m, g, _y, a, b: g / (m.exp(b - a) + 1), lambda m, g, _y, a, b: g / (m.exp(a - b) + 1)),
)  # fmt: skip
logaddexp2 = _float(
    "logaddexp2", onnx=rules.log_add_exp(_LOG_2), arity=2, reference=lambda a, b: math.log2(2**a + 2**b),
    vjp=(lambda m, g, _y, a, b: g / (m.exp2(b - a) + 1), lambda m, g, _y, a, b: g / (m.exp2(a - b) + 1)),
)  # fmt: skip
hypot = _float(
    "hypot", native_from=2048, onnx=rules.hypot, arity=2, reference=math.hypot, domain=(0.3, 2.0),
    vjp=(lambda m, g, y, a, _b: g * (a / y), lambda m, g, y, _a, b: g * (b / y)),
)  # fmt: skip


def _atan2_gradient(m: Any, g: Any, leg: Any, a: Any, b: Any) -> Any:
    # The angle of the origin has no gradient: 0, as in PyTorch.
    square = a * a + b * b
    return m.where(square == 0, m.zeros_like(square), g * (leg / square))


atan2 = _float(
    "atan2", autocast=WIDEST_ON_CUDA, onnx=rules.atan2, arity=2, reference=math.atan2, domain=((0.3, 2.0), (-2.0, 2.0)),
    vjp=(lambda m, g, _y, a, b: _atan2_gradient(m, g, b, a, b), lambda m, g, _y, a, b: -_atan2_gradient(m, g, a, a, b)),
)  # fmt: skip
