"""Activations: the non-linear steps of networks, each one record with one formula."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from wayfare.core.autocast import FLOAT32_ON_CUDA, LOWER
from wayfare.core.numpy_math import small
from wayfare.core.select import MANY, ZEROS, bounded, select, zero_of
from wayfare.core.signature import NUMBER
from wayfare.ops._define import UFUNC, elementwise
from wayfare.ops.elementwise import onnx_arithmetic as elementwise_rules
from wayfare.ops.elementwise import onnx_functions as rules

_float = partial(elementwise, kinds="f")


def _relu(x: Any) -> Any:
    return bounded(x, zero_of(x.dtype), None)


small(_relu, lambda: np.maximum, below=MANY, second=ZEROS)

# The gate is open where y is not 0: that is where x was positive, or NaN.
relu = elementwise(
    "relu", small_vjp="relu", native_from=UFUNC, onnx=elementwise_rules.relu, formula=lambda m, x: m.maximum(x, 0),
    kinds="iuf", forward=_relu, reference=lambda x: max(x, 0.0), vjp=lambda m, g, y, _x: m.gate(g, y),
)  # fmt: skip


relu6 = _float(
    "relu6", native_from=UFUNC,
    formula=lambda m, x: m.minimum(m.maximum(x, 0), 6), reference=lambda x: min(max(x, 0.0), 6.0), kinds="iuf",
    forward=lambda x: bounded(x, 0, 6), domain=(-3, 9), grad_name="HardtanhBackward0",
    vjp=lambda m, g, _y, x: m.gate(g, m.logical_and(x > 0, x < 6)),
)  # fmt: skip
hardtanh = _float(
    "hardtanh", native_from=UFUNC, attrs={"low": NUMBER, "high": NUMBER},
    formula=lambda m, x, *, low, high: m.minimum(m.maximum(x, low), high), kinds="iuf",
    forward=lambda x, *, low, high: bounded(x, low, high),
    reference=lambda x, low, high: min(max(x, low), high), sample_attrs=({"low": -1.0, "high": 1.0},),
    vjp=lambda m, g, _y, x, *, low, high: m.gate(g, m.logical_and(x > low, x < high)),
)  # fmt: skip


def _leaky_relu(x: Any, *, slope: float) -> Any:
    scaled = x * slope
    return np.maximum(x, scaled) if 0 <= slope <= 1 else select(x > 0, x, scaled)


leaky_relu = _float(
    "leaky_relu", native_from=32768, attrs={"slope": NUMBER},
    onnx=rules.leaky_relu, formula=lambda m, x, *, slope: m.where(x > 0, x, x * slope),
    forward=_leaky_relu,
    sample_attrs=({"slope": 0.1}, {"slope": -0.5}, {"slope": 2.0}),
    reference=lambda x, slope: x if x > 0 else x * slope,
    vjp=lambda m, g, _y, x, *, slope: m.where(x > 0, g, g * slope),
)  # fmt: skip
prelu = _float(
    "prelu", autocast=LOWER,
    arity=2, formula=lambda m, x, w: m.where(x > 0, x, x * w), reference=lambda x, w: x if x > 0 else x * w,
    vjp=(
        lambda m, g, _y, x, w: m.where(x > 0, g, g * w),
        lambda m, g, _y, x, _w: m.gate(g * x, x <= 0),
    ), grad_name="PreluKernelBackward0",
)  # fmt: skip
threshold = _float(
    "threshold", attrs={"value": NUMBER, "limit": NUMBER},
    formula=lambda m, x, *, limit, value: m.where(x <= limit, value, x), kinds="iuf",
    reference=lambda x, limit, value: x if x > limit else value, sample_attrs=({"limit": 0.1, "value": 3.0},),
    vjp=lambda m, g, _y, x, *, limit, value: m.gate(g, m.logical_not(x <= limit)),
)  # fmt: skip

# elu(x) = scale * (x if x > 0 else alpha * (exp(inner * x) - 1)); selu and celu are special cases of it.
elu = _float(
    "elu", attrs={"inner": NUMBER, "alpha": NUMBER, "scale": NUMBER}, onnx=rules.elu,
    formula=lambda m, x, *, alpha, scale, inner: m.where(
        x > 0, x * scale, m.expm1(m.minimum(x, 0) * inner) * (alpha * scale)
    ),
    reference=lambda x, alpha, scale, inner: scale * (x if x > 0 else alpha * math.expm1(inner * x)),
    vjp=lambda m, g, _y, x, *, alpha, scale, inner: m.where(
        x > 0, g * scale, g * m.exp(m.gate(x, m.logical_not(x > 0)) * inner) * (alpha * scale * inner)
    ),
    sample_attrs=({"alpha": 1.0, "scale": 1.0, "inner": 1.0}, {"alpha": 0.7, "scale": 1.3, "inner": 0.9}),
)  # fmt: skip

silu = _float(
    "silu", formula=lambda m, x: x * m.sigmoid(x), reference=lambda x: x / (1 + math.exp(-x)),
    vjp=lambda m, g, _y, x: _silu_gradient(m, g, x),
)  # fmt: skip


def _silu_gradient(m: Any, g: Any, x: Any) -> Any:
    s = m.sigmoid(x)
    return g * (s + x * (s - s * s))


def _softplus(m: Any, x: Any, *, beta: float, threshold: float) -> Any:
    scaled = x if beta == 1 else x * beta
    # log(1 + exp(z)) = max(z, 0) + log1p(exp(-|z|)) does not overflow.
    smooth = m.maximum(scaled, 0) + m.log1p(m.exp(-m.abs(scaled)))
    return m.where(scaled > threshold, x, smooth if beta == 1 else smooth / beta)


softplus = _float(
    "softplus", autocast=FLOAT32_ON_CUDA,
    attrs={"beta": NUMBER, "threshold": NUMBER}, onnx=rules.softplus, formula=_softplus,
    sample_attrs=({"beta": 1.0, "threshold": 20.0}, {"beta": 2.0, "threshold": 1.0}),
    reference=lambda x, beta, threshold: x if x * beta > threshold else math.log1p(math.exp(x * beta)) / beta,
    vjp=lambda m, g, _y, x, *, beta, threshold: m.where(x * beta > threshold, g, g * m.sigmoid(x * beta)),
)  # fmt: skip
logsigmoid = _float(
    "logsigmoid", onnx=rules.log_sigmoid, formula=lambda m, x: m.minimum(x, 0) - m.log1p(m.exp(-m.abs(x))),
    reference=lambda x: -math.log1p(math.exp(-x)), vjp=lambda m, g, _y, x: g * m.sigmoid(-x),
    grad_name="LogSigmoidBackward0",
)  # fmt: skip
mish = _float(
    "mish", onnx=rules.mish, formula=lambda m, x: x * m.tanh(m.maximum(x, 0) + m.log1p(m.exp(-m.abs(x)))),
    reference=lambda x: x * math.tanh(math.log1p(math.exp(x))), vjp=lambda m, g, _y, x: _mish_gradient(m, g, x),
)  # fmt: skip


def _mish_gradient(m: Any, g: Any, x: Any) -> Any:
    t = m.tanh(m.softplus(x, beta=1.0, threshold=20.0))
    return g * (t + x * m.sigmoid(x) * (1 - t * t))


_ROOT_HALF = math.sqrt(0.5)
_ROOT_TWO_BY_PI = math.sqrt(2 / math.pi)
gelu = _float(
    "gelu", onnx=rules.gelu, formula=lambda m, x: x * m.normal_cdf(x),
    reference=lambda x: 0.5 * x * math.erfc(-x * _ROOT_HALF),
    vjp=lambda m, g, _y, x: g * (
        m.erf(x * _ROOT_HALF) * 0.5 + 0.5 + x * (m.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi)))
    ),
)  # fmt: skip
gelu_tanh = _float(
    "gelu_tanh", onnx=rules.gelu_tanh, formula=lambda m,
    x: x * 0.5 * (m.tanh(_ROOT_TWO_BY_PI * (x + 0.044715 * (x * x * x))) + 1),
    reference=lambda x: 0.5 * x * (1 + math.tanh(_ROOT_TWO_BY_PI * (x + 0.044715 * x**3))),
    vjp=lambda m, g, _y, x: _gelu_tanh_gradient(m, g, x), grad_name="GeluBackward0",
)  # fmt: skip


def _gelu_tanh_gradient(m: Any, g: Any, x: Any) -> Any:
    t = m.tanh(_ROOT_TWO_BY_PI * (x + 0.044715 * (x * x * x)))
    inner = _ROOT_TWO_BY_PI * (1 + 3 * 0.044715 * (x * x))
    return g * (0.5 * (t + 1) + 0.5 * x * (1 - t * t) * inner)


hardsigmoid = _float(
    "hardsigmoid", onnx=rules.hard_sigmoid, formula=lambda m, x: m.minimum(m.maximum(x + 3, 0), 6) / 6, domain=(-5, 5),
    reference=lambda x: min(max(x + 3, 0), 6) / 6,
    vjp=lambda m, g, _y, x: m.gate(g * (1 / 6), m.logical_and(x > -3, x < 3)),
)  # fmt: skip
hardswish = _float(
    "hardswish", onnx=rules.hard_swish, formula=lambda m, x: x * (m.minimum(m.maximum(x + 3, 0), 6) / 6),
    domain=(-5, 5),
    reference=lambda x: x * min(max(x + 3, 0), 6) / 6,
    vjp=lambda m, g, _y, x: m.where(x >= 3, g, m.gate(g * (x / 3 + 0.5), m.logical_not(x <= -3))),
)  # fmt: skip
hardshrink = _float(
    "hardshrink", attrs={"lambd": NUMBER}, formula=lambda m, x, *, lambd: m.where(m.abs(x) <= lambd, 0, x), kinds="f",
    reference=lambda x, lambd: x if abs(x) > lambd else 0.0, sample_attrs=({"lambd": 0.5},),
    vjp=lambda m, g, _y, x, *, lambd: m.gate(g, m.abs(x) > lambd),
)  # fmt: skip
softshrink = _float(
    "softshrink", attrs={"lambd": NUMBER},
    formula=lambda m, x, *, lambd: m.where(m.abs(x) <= lambd, 0, x - m.sign(x) * lambd),
    reference=lambda x, lambd: math.copysign(abs(x) - lambd, x) if abs(x) > lambd else 0.0,
    sample_attrs=({"lambd": 0.5},), vjp=lambda m, g, _y, x, *, lambd: m.gate(g, m.abs(x) > lambd),
)  # fmt: skip
