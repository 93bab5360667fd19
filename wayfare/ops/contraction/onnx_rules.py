"""ONNX rules of matrix products, einsum, cross products and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.core.spec import bool_, float32

# -- matrices ---------------------------------------------------------------------------------------------------------


def linear(b: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    """Gemm takes matrices only; for any other shape, a product with the transposed weight (usually a constant)."""
    if x.ndim == 2 and x.dtype.is_floating_point:
        return b.node("Gemm", x, weight, *(() if bias is None else (bias,)), transB=1)
    made = b.node("MatMul", x, b.node("Transpose", weight, perm=[1, 0]))
    return made if bias is None else b.node("Add", made, bias)


def einsum(b: Any, *given: Any, equation: str) -> Any:
    """ONNX's Einsum, which takes the letters of the alphabet as labels."""
    if not all(c.isascii() for c in equation):
        raise b.refuse("it has more labels than there are letters")
    return b.node("Einsum", *given, equation=equation)


def cross(b: Any, x: Any, y: Any, *, dim: int) -> Any:
    """Each component from the two others."""
    after, before = np.array([1, 2, 0]), np.array([2, 0, 1])

    def transposed(value: Any, order: Any) -> Any:
        return b.node("Gather", value, order, axis=dim, shape=value.shape)

    return transposed(x, after) * transposed(y, before) - transposed(x, before) * transposed(y, after)


# -- attention --------------------------------------------------------------------------------------------------------


def _attend(b: Any, q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, p: float) -> tuple[Any, Any]:
    """The result, and the weights of the keys."""
    if p:
        raise b.refuse("it drops weights at random; call .eval() on the model first")
    half = q.dtype.name == "float16"
    if half:
        q, k, v = (b.cast(x, float32) for x in (q, k, v))
    rank = k.ndim
    transposed = b.ops.permute(k, dims=(*range(rank - 2), rank - 1, rank - 2))
    scores = b.ops.matmul(q, transposed) * scale
    masked = mask.ndim > 0 or mask.dtype is bool_
    if mask.dtype is bool_:
        scores = b.ops.where(mask, scores, -math.inf)
    elif masked:
        scores = scores + b.cast(mask, scores.dtype)
    if causal:
        rows, columns = scores.shape[-2:]
        seen = b.ops.reshape(b.counting(rows), shape=(rows, 1)) >= b.counting(columns)
        scores = b.ops.where(seen, scores, -math.inf)
    weights = b.node("Softmax", scores, axis=-1, shape=scores.shape)
    if masked:
        # For a query whose keys are all masked, softmax would give NaN.
        top = b.ops.amax(scores, dim=(scores.ndim - 1,), keepdim=True)
        weights = b.ops.where(top == -math.inf, 0, weights)
    return b.ops.matmul(weights, v), weights


def attention(b: Any, q: Any, k: Any, v: Any, mask: Any, *, scale: float, causal: bool, p: float = 0.0, key: Any = None
              ) -> Any:  # fmt: skip
    """Two products with a softmax between them."""
    made, weights = _attend(b, q, k, v, mask, scale, causal, p)
    return b.cast(made, q.dtype), weights, weights


def self_attention(b: Any, x: Any, mask: Any, *, scale: float, causal: bool, p: float = 0.0, key: Any = None) -> Any:
    """The same with queries, keys and values side by side: […, positions, 3, heads, features]."""
    n = x.ndim - 1
    order = (*range(n - 3), n - 2, n - 3, n - 1)
    q, k, v = (b.ops.permute(b.ops.select(x, dim=n - 2, index=i), dims=order) for i in range(3))
    made, weights = _attend(b, q, k, v, mask, scale, causal, p)
    return b.cast(b.ops.permute(made, dims=order), x.dtype), weights, weights
