"""Attention: a weighted mean of values, with weights from the products of queries and keys."""

from __future__ import annotations

import math
from typing import Any

from wayfare.api.functions._along import check_floating, check_tensor
from wayfare.api.functions._linalg import reshaped, stretched
from wayfare.api.functions._public import as_dtype_of
from wayfare.core.constant import constant
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, DTypeError, ShapeError
from wayfare.core.generator import key_for
from wayfare.core.op import REGISTRY
from wayfare.core.spec import NARROW, bfloat16, bool_, broadcast, float16, float32, float64
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.ragged_attention import by_length, check_ragged, is_ragged

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """`softmax(query @ key.mT * scale + mask) @ value`, with scale 1 / √features unless given.

    A bool `attn_mask` says which keys a query may look at, a floating one is added to the scores. `is_causal` lets
    each query look at the keys up to its own position. `enable_gqa` shares one head of keys and values among several
    heads of queries. A query that may look at nothing gets zeros.

    Ragged queries, keys and values, [rows, length, heads, features] or [rows, length, features], give ragged rows:
    each looks at its own keys only.
    """
    op = "scaled_dot_product_attention"
    if is_ragged(query):
        rows = (query, key, value)
        return _within_rows(op, *rows, attn_mask, dropout_p, is_causal, scale, enable_gqa)  # type: ignore[no-any-return]
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
    lead = broadcast(op, *(tuple(t.shape[:-2]) for t in (query, key, value)))
    query, key, value = (_led(t, lead) for t in (query, key, value))
    plain = attn_mask is None and not dropout_p and key.shape == value.shape and query.dtype is key.dtype is value.dtype
    if plain and _in_tiles(query, query.shape[-2], key.shape[-2]):
        return _tiled(query, key, value, scale, is_causal)
    mask = _mask(op, attn_mask, (*lead, query.shape[-2], key.shape[-2]), query)
    attrs = attention_settings(query.shape[-1], scale, is_causal, dropout_p)
    return apply(REGISTRY["attention"], (query, key, value, mask), attrs)[0]  # type: ignore[no-any-return]


# On a GPU, float32 is computed in tiles from so many scores of a head on; with fewer, matrix products are faster.
_MANY_SCORES = 2048 * 2048
_TILED_FEATURES = (32, 64, 128)


def _in_tiles(x: Tensor, queries: int, keys: int) -> bool:
    """Is attention of such rows without a matrix of weights in memory? On a GPU, where there are kernels for it."""
    if not x.is_cuda or x.shape[-1] not in _TILED_FEATURES:
        return False
    return x.dtype in NARROW or (x.dtype is float32 and queries * keys >= _MANY_SCORES)


def _tiled(query: Tensor, key: Tensor, value: Tensor, scale: float | None, is_causal: bool) -> Tensor:
    attrs = attention_settings(query.shape[-1], scale, is_causal, 0.0)
    return apply(REGISTRY["attention_in_tiles"], (query, key, value), attrs)[0]  # type: ignore[no-any-return]


def _within_rows(
    op: str, query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: float | None,
    enable_gqa: bool,
) -> Any:  # fmt: skip
    check_ragged(op, query, key, value, attn_mask=attn_mask)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = q.ndim > 3
        if heads:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = scaled_dot_product_attention(q, k, v, None, dropout_p, is_causal, scale, enable_gqa)
        return out.transpose(1, 2) if heads else out

    packed = by_length(attend, *((x.values, x.offsets) for x in (query, key, value)))
    return query.map_values(lambda _: packed)


def self_attention(packed: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool) -> Tensor:
    """Attention of queries, keys and values side by side, [N, L, 3, heads, features] to [N, L, heads, features].

    The result lies in memory as they do.
    """
    if mask is None and not dropout_p and _in_tiles(packed, packed.shape[-4], packed.shape[-4]):
        query, key, value = (part.transpose(-2, -3) for part in packed.unbind(-3))
        return _tiled(query, key, value, None, is_causal).transpose(-2, -3)
    attrs = attention_settings(packed.shape[-1], None, is_causal, dropout_p)
    given = no_mask(packed) if mask is None else mask
    return apply(REGISTRY["self_attention"], (packed, given), attrs)[0]  # type: ignore[no-any-return]


def attention_settings(features: int, scale: float | None, is_causal: bool, dropout_p: float) -> dict[str, Any]:
    """The attributes of the record: the scale is 1 / √features unless given, a mask of dropout has a key."""
    attrs: dict[str, Any] = {
        "scale": float(scale if scale is not None else 1 / math.sqrt(features) if features else 1.0),
        "causal": bool(is_causal),
    }
    if dropout_p:
        if not 0 <= dropout_p <= 1:
            raise ArgumentError(f"dropout: p is a probability from 0 to 1, but is {dropout_p!r}")
        attrs |= {"p": float(dropout_p), "key": key_for(None)}
    return attrs


def _led(t: Tensor, lead: tuple[int, ...]) -> Tensor:
    return t if t.shape[:-2] == lead else stretched(t, *lead, *t.shape[-2:])


def _mask(op: str, mask: Tensor | None, scores: tuple[int, ...], query: Tensor) -> Tensor:
    """The mask as the record takes it; without a mask, one number that is added everywhere."""
    if mask is None:
        return no_mask(query)
    check_tensor(op, mask)
    if mask.dtype is not bool_ and mask.dtype is not query.dtype:
        if not mask.dtype.is_floating_point:
            raise DTypeError(f"{op}: attn_mask must be of bool or of a floating-point dtype, not {mask.spec}")
        mask = as_dtype_of(mask, query.dtype)
    if mask.ndim > len(scores) or any(m not in (1, s) for m, s in zip(mask.shape[::-1], scores[::-1], strict=False)):
        raise ShapeError(f"{op}: attn_mask {mask.spec} does not fit scores of shape {list(scores)}",
                         fix="It is broadcast to (…, queries, keys).")  # fmt: skip
    return mask if mask.ndim else stretched(mask, 1)


_NO_MASK = {dtype.numpy: constant(0, dtype.numpy) for dtype in (float16, bfloat16, float32, float64)}


def no_mask(query: Tensor) -> Tensor:
    """What the record takes for "no mask"."""
    return _NO_MASK[query.dtype.numpy]


def _shared_heads(op: str, query: Tensor, shared: Tensor) -> Tensor:
    """Repeat each head of keys or values for the group of query heads that use it."""
    if query.ndim < 3 or shared.ndim < 3 or shared.shape[-3] == 0 or query.shape[-3] % shared.shape[-3]:
        raise ShapeError(f"{op}: enable_gqa needs query heads in groups, {query.spec} has not a multiple of the heads "
                         f"of {shared.spec}")  # fmt: skip
    *lead, heads, positions, features = shared.shape
    group = query.shape[-3] // heads
    spread = stretched(reshaped(shared, *lead, heads, 1, positions, features), *lead, heads, group, positions, features)
    return reshaped(spread, *lead, heads * group, positions, features)
