"""Attention: a mixture of values, each weighted by how well its key fits a query."""

from __future__ import annotations

import math

import numpy as np

from wayfare.eager import apply
from wayfare.errors import ArgumentError, ShapeError
from wayfare.functions._along import check_floating, check_tensor
from wayfare.functions._linalg import reshaped, stretched, turned
from wayfare.functions._public import promoted
from wayfare.functions.matmul import matmul
from wayfare.functions.softmax import softmax
from wayfare.nn.functional.dropout import dropout
from wayfare.op import REGISTRY
from wayfare.spec import bool_
from wayfare.tensor import Tensor, wrap

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`softmax(query @ key.mT * scale + mask) @ value`, with scale 1 / √features unless given.

    A bool `attn_mask` says which keys a query may look at, a floating one is added to the scores. `is_causal` lets
    each query look at the keys up to its own position. `enable_gqa` shares one head of keys and values among several
    heads of queries. A query that may look at nothing gets zeros.
    """
    op = "scaled_dot_product_attention"
    for name, t in (("query", query), ("key", key), ("value", value)):
        check_tensor(op, t)
        check_floating(op, t)
        if t.ndim < 2:
            raise ShapeError(f"{op}: {name} needs the shape (…, positions, features), not {t.spec}")
    if is_causal and attn_mask is not None:
        raise ArgumentError(f"{op}: is_causal=True already makes a mask, so attn_mask cannot be given too",
                            fix="Put the causal part into attn_mask.")  # fmt: skip
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(f"{op}: query {query.spec}, key {key.spec} and value {value.spec} do not fit",
                         fix="Query and key share their features, key and value their positions.")  # fmt: skip
    if enable_gqa:
        key, value = _shared_heads(op, query, key), _shared_heads(op, query, value)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None and query.shape[-1] else (scale or 1.0)
    scores = matmul(query * factor, turned(key))
    if is_causal:
        attn_mask = wrap(np.tri(query.shape[-2], key.shape[-2], dtype=np.bool_))
    weights = softmax(scores, -1) if attn_mask is None else _masked_softmax(scores, attn_mask)
    if dropout_p > 0:
        weights = dropout(weights, dropout_p)
    return matmul(weights, value)


def _shared_heads(op: str, query: Tensor, shared: Tensor) -> Tensor:
    """Repeat each head of keys or values for the group of query heads that use it."""
    if query.ndim < 3 or shared.ndim < 3 or shared.shape[-3] == 0 or query.shape[-3] % shared.shape[-3]:
        raise ShapeError(f"{op}: enable_gqa needs query heads in groups, {query.spec} has not a multiple of the heads "
                         f"of {shared.spec}")  # fmt: skip
    *lead, heads, positions, features = shared.shape
    group = query.shape[-3] // heads
    spread = stretched(reshaped(shared, *lead, heads, 1, positions, features), *lead, heads, group, positions, features)
    return reshaped(spread, *lead, heads * group, positions, features)


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    where = REGISTRY["where"]
    if mask.dtype is bool_:
        lowest = wrap(np.full((), -math.inf, scores.dtype.numpy))
        scores = apply(where, (mask, scores, lowest))
    else:
        scores = promoted(REGISTRY["add"], (scores, mask))
    if scores.shape[-1] == 0:
        return softmax(scores, -1)
    # A softmax of nothing but -inf is NaN, and so would its gradient be: such rows go around it.
    attrs = {"dim": (scores.ndim - 1,), "keepdim": True}
    nothing = apply(REGISTRY["amax"], (scores.detach(),), attrs) == -math.inf
    zero = wrap(np.zeros((), scores.dtype.numpy))
    weights = softmax(apply(where, (nothing, zero, scores)), -1)
    return apply(where, (nothing, zero, weights))  # type: ignore[no-any-return]
