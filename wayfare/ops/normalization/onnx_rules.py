"""ONNX rules of normalisation."""

from __future__ import annotations

from typing import Any

from wayfare.core.spec import float32, float64


def layer_norm(b: Any, x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    """Its own operator, which gives mean and deviation in single precision; doubles step by step."""
    if x.dtype is float64:
        dim = tuple(range(x.ndim - weight.ndim, x.ndim))
        hat, mean, variance = b.ops.standardize(x, dim=dim, eps=eps)
        return hat * weight + bias, mean, 1 / b.ops.sqrt(variance + eps)
    made = b.node("LayerNormalization", x, weight, bias, outputs=3, dtype=(x.dtype, float32, float32),
                  axis=-weight.ndim, epsilon=float(eps))  # fmt: skip
    return tuple(b.cast(value, x.dtype) for value in made)
