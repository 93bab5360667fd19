"""Attention as one record: two matrix products with one loop between them, and four with one loop on the way back.

`attention` takes queries, keys and values apart, `self_attention` takes them side by side as one projection makes them:
its gradient is then one array too. Both give their result in the order in which their first input lies in memory, so
that heads are parted and joined without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.codegen.routines.attention import scores_gradient, weights
from wayfare.codegen.runtime.gemm import batched_matmul
from wayfare.core import buffer_pool
from wayfare.core.autocast import LOWER
from wayfare.core.errors import DTypeError, ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample, joint
from wayfare.core.signature import FLAG, KEY, MAYBE_NUMBER, NUMBER, takes
from wayfare.core.spec import FLOAT_KINDS, NARROW, Spec, bool_, broadcast, float32
from wayfare.ops import _ragged as ragged
from wayfare.ops._define import by_loop, define, expand_unbatched
from wayfare.ops.contraction import onnx_rules as rules
from wayfare.ops.contraction.matmul import swap

Key = tuple[int, int] | None

# -- on arrays ----------------------------------------------------------------------------------------------------


def written_like(x: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array whose axes have the same order in memory as those of x; its rows are contiguous."""
    order = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    if order[-1] != x.ndim - 1 or 0 in x.strides:
        return buffer_pool.empty(shape, dtype)
    out = buffer_pool.empty(tuple(shape[axis] for axis in order), dtype)
    return out.transpose(sorted(range(x.ndim), key=order.__getitem__))


def _transposed(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def _mask_of(mask: Array) -> Array | None:
    """None for a single float, which stands for "no mask": softmax does not change if it is added to all scores."""
    return None if mask.ndim == 0 and mask.dtype.kind in FLOAT_KINDS else mask


def _attend(
    q: Array, k: Array, v: Array, mask: Array, out: Array, scale: float, causal: bool, p: float, key: Key
) -> tuple[Array, Array]:
    """Write the result; return the weights for backward, before and after dropout."""
    scores = batched_matmul(q, _transposed(k), buffer_pool.empty((*q.shape[:-1], k.shape[-2]), q.dtype))
    kept, used = weights(scores, _mask_of(mask), scale, causal, p, key)
    batched_matmul(used, v, out)
    return kept, used


def _gradients(
    g: Array, kept: Array, used: Array, q: Array, k: Array, v: Array, outs: tuple[Array, Array, Array], scale: float,
    p: float,
) -> Array:  # fmt: skip
    """Write the gradients of queries, keys and values; return that of the scores, which includes the scale."""
    of_q, of_k, of_v = outs
    batched_matmul(_transposed(used), g, of_v)
    of_used = batched_matmul(g, _transposed(v), buffer_pool.empty(used.shape, used.dtype))
    of_scores = scores_gradient(of_used, kept, scale, p)
    batched_matmul(of_scores, k, of_q)
    batched_matmul(_transposed(of_scores), q, of_k)
    return of_scores


def _in_rows(x: Array) -> Array:
    """A matrix with contiguous rows, which BLAS can read; any other is copied."""
    return x if x.strides[-1] == x.itemsize and 0 not in x.strides else np.ascontiguousarray(x)


# -- in ops: for gradients of gradients ---------------------------------------------------------------------------


def gradients_in_ops(
    m: Any, g: Any, kept: Any, q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, p: float
) -> tuple[Any, Any, Any, Any]:
    """The gradients by queries, keys, values and scores. `mask`: None for none; `kept` is read if p > 0."""
    scores = m.matmul(q, swap(m, k)) * scale
    seen: Any = None
    if mask is not None and mask.dtype == (bool_ if hasattr(mask.dtype, "numpy") else np.bool_):
        seen = mask
    elif mask is not None and mask.ndim:
        scores = scores + mask
    if causal:
        lower = m.tril(m.zeros_like(scores) + 1, diagonal=0) > 0
        seen = lower if seen is None else m.logical_and(seen, lower)
    if seen is not None:
        scores = m.where(seen, scores, m.zeros_like(scores) - math.inf)
    last = (scores.ndim - 1,)
    zeros = m.zeros_like(scores)
    # A query that sees no key at all: softmax would make it NaN.
    blind = m.sum(m.where(scores == -math.inf, zeros, zeros + 1), dim=last, keepdim=True) == 0
    share = m.where(blind, zeros, m.softmax(m.where(blind, zeros, scores), dim=last[0]))
    factor = m.where(m.signbit(kept), zeros, zeros + (1 / (1 - p) if p < 1 else 0.0)) if p > 0 else zeros + 1
    of_share = m.matmul(g, swap(m, v)) * factor
    of_scores = (of_share - m.sum(of_share * share, dim=last, keepdim=True)) * share
    of_q = m.matmul(of_scores, k) * scale
    of_k = m.matmul(swap(m, of_scores), q) * scale
    return of_q, of_k, m.matmul(swap(m, share * factor), g), of_scores


# -- queries, keys and values apart -------------------------------------------------------------------------------


def _attention(
    q: Array, k: Array, v: Array, mask: Array, *, scale: float, causal: bool, p: float = 0.0, key: Key = None
) -> tuple[Array, Array, Array]:
    if q.dtype.char == "e":
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        out, kept, used = _attention(q, k, v, mask, scale=scale, causal=causal, p=p, key=key)
        return out.astype(np.float16), kept, used
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2] or not q.dtype == k.dtype == v.dtype:
        raise ValueError("they do not fit")
    out = written_like(q, (*q.shape[:-1], v.shape[-1]), q.dtype)
    return out, *_attend(_in_rows(q), _in_rows(k), _in_rows(v), mask, out, scale, causal, p, key)


def _check(op: str, mask: Spec, scores: tuple[int, ...], dtype: Any, *rest: Any) -> None:
    if not dtype.is_floating_point or any(other is not dtype for other in rest):
        given = ", ".join(str(other) for other in (dtype, *rest))
        raise DTypeError(f"{op}: queries, keys and values must be of one floating-point dtype, not {given}",
                         fix="Convert them with .to(...) of one of them.")  # fmt: skip
    if broadcast(op, mask.shape, scores) != scores:
        raise ShapeError(f"{op}: a mask of {mask} does not fit scores of shape {list(scores)}")


def _computed(scores: tuple[int, ...], dtype: Any) -> Spec:
    return Spec(scores, float32 if dtype in NARROW else dtype)


def _attention_infer(
    q: Spec, k: Spec, v: Spec, mask: Spec, *, scale: float, causal: bool, p: float = 0.0, key: Key = None
) -> tuple[Spec, Spec, Spec]:
    fits = min(q.ndim, k.ndim, v.ndim) > 1 and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    if not fits or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(f"attention: query {q}, key {k} and value {v} do not fit",
                         fix="Query and key share their features, key and value their positions.")  # fmt: skip
    scores = (*q.shape[:-1], k.shape[-2])
    _check("attention", mask, scores, q.dtype, k.dtype, v.dtype)
    weight = _computed(scores, q.dtype)
    return Spec((*q.shape[:-1], v.shape[-1]), q.dtype), weight, weight


def _attention_vjp(
    m: Any, needs: Any, g: Any, y: Any, q: Any, k: Any, v: Any, mask: Any, *, scale: float, causal: bool,
    p: float = 0.0, key: Key = None,
) -> Any:  # fmt: skip
    _, kept, used = y
    given = g[0]
    if not m.works_on_arrays:
        *made, of_scores = gradients_in_ops(m, given, kept, q, k, v, mask, scale, causal, p)
        return [*made, m.sum_to(of_scores, shape=tuple(mask.shape)) if needs[3] else None]
    if q.dtype.char == "e":
        wide = (x.astype(np.float32) for x in (given, q, k, v))
        given, q, k, v = wide
        outs = _attention_gradients(m, needs, given, kept, used, q, k, v, mask, scale, p)
        return [None if x is None else x.astype(np.float16) for x in outs]
    return _attention_gradients(m, needs, given, kept, used, q, k, v, mask, scale, p)


def _attention_gradients(
    m: Any, needs: Any, g: Any, kept: Any, used: Any, q: Any, k: Any, v: Any, mask: Any, scale: float, p: float
) -> list[Any]:
    outs = (written_like(q, q.shape, q.dtype), written_like(k, k.shape, q.dtype), written_like(v, v.shape, q.dtype))
    scaled = 1.0 if needs[3] else scale
    of_scores = _gradients(_in_rows(g), kept, used, _in_rows(q), _in_rows(k), _in_rows(v), outs, scaled, p)
    of_mask = None
    if needs[3]:
        of_mask = m.sum_to(of_scores, shape=mask.shape).astype(mask.dtype, copy=False)
        for out in outs[:2]:
            out *= out.dtype.type(scale)
    return [*outs, of_mask]


def _lined_up(m: Any, mask: Any, is_batched: bool, rank: int) -> Any:
    """A batch of masks with ones between the batch axis and its own, so that it lies along the scores."""
    if not is_batched or mask.ndim >= rank:
        return mask
    shape = tuple(mask.shape)
    return m.reshape(mask, shape=(shape[0],) + (1,) * (rank - mask.ndim) + shape[1:])


def _attention_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    if attrs.get("p"):
        return by_loop("attention")(m, size, inputs, batched, attrs)
    q, k, v = expand_unbatched(m, size, inputs[:3], batched[:3])
    return m.attention(q, k, v, _lined_up(m, inputs[3], batched[3], q.ndim), **attrs)


def _reference(
    q: Array, k: Array, v: Array, mask: Array, scale: float, causal: bool, p: float = 0.0, key: Key = None
) -> tuple[Any, Any, Any]:
    """Query by query. Which weights are dropped is read from the signs of the op's own result."""
    kept = np.zeros((*q.shape[:-1], k.shape[-2]))
    full = np.broadcast_to(mask, kept.shape)
    for place in np.ndindex(q.shape[:-1]):
        scores = k[place[:-1]] @ q[place] * scale
        scores = np.where(full[place], scores, -math.inf) if mask.dtype == bool else scores + full[place]
        if causal:
            scores[place[-1] + 1 :] = -math.inf
        if scores.size and scores.max() > -math.inf:
            kept[place] = np.exp(scores) / np.exp(scores).sum()
    used = kept
    if p:
        signs = np.signbit(_attention(q, k, v, mask, scale=scale, causal=causal, p=p, key=key)[1])
        used = np.where(signs, 0.0, kept / (1 - p))
        kept = np.where(signs, -kept, kept)
    return np.einsum("...qk,...kd->...qd", used, v), kept, used


def _attention_samples(rng: Any) -> Iterable[Sample]:
    def some(*shape: int) -> Array:
        return rng.normal(size=shape)  # type: ignore[no-any-return]

    plain = {"scale": 0.7, "causal": False}
    yield Sample((some(2, 3, 2), some(2, 4, 2), some(2, 4, 3), np.zeros(())), plain)
    yield Sample((some(3, 2), some(3, 2), some(3, 2), np.zeros(())), {"scale": 0.5, "causal": True})
    yield Sample((some(2, 1, 3, 2), some(2, 1, 2, 2), some(2, 1, 2, 2), some(3, 2)), plain)
    mask = np.array([[[True, False, True]], [[False, False, False]]])
    yield Sample((some(2, 2, 2), some(2, 3, 2), some(2, 3, 2), mask), plain)
    yield Sample((some(3, 2), some(4, 2), some(4, 2), np.zeros(())), plain | {"p": 0.4, "key": (7, 1)})
    yield Sample((some(2, 2), some(0, 2), some(0, 2), np.zeros(())), plain)
    transposed = some(3, 2, 2).transpose(1, 0, 2)
    yield Sample((transposed, transposed[:, ::-1], some(2, 2, 3).swapaxes(1, 2), np.zeros(())), plain)


# softmax(q @ k.T * scale + mask) @ v, with dropout of the weights; and the weights before (dropped ones negative) and
# after dropout. A bool mask says what is seen.
attention = define(
    "attention", autocast=LOWER,
    signature=takes(4, p=MAYBE_NUMBER, key=KEY, scale=NUMBER, causal=FLAG),
    onnx=rules.attention,
    family="attention",
    forward=_attention,
    infer=_attention_infer,
    vjp=joint(_attention_vjp),
    batch=_attention_batch,
    ragged=ragged.attention,
    samples=_attention_samples,
    reference=_reference,
    outputs=3,
    differentiable_outputs=(0,),
    kept_outputs=(1, 2),
    grad_name="ScaledDotProductAttentionBackward0",
)


# -- side by side -------------------------------------------------------------------------------------------------


def parts_of(x: Array) -> tuple[Array, Array, Array]:
    """Queries, keys and values as views […, heads, positions, features] of […, positions, 3, heads, features]."""
    q, k, v = (x[..., i, :, :].swapaxes(-2, -3) for i in range(3))
    return q, k, v


def _self_attention(
    x: Array, mask: Array, *, scale: float, causal: bool, p: float = 0.0, key: Key = None
) -> tuple[Array, Array, Array]:
    if x.dtype.char == "e":
        out, kept, used = _self_attention(x.astype(np.float32), mask, scale=scale, causal=causal, p=p, key=key)
        return out.astype(np.float16), kept, used
    if x.ndim < 4 or x.shape[-3] != 3:
        raise ValueError("no queries, keys and values")
    x = _in_rows(x)
    first = x[..., 0, :, :]
    out = written_like(first, first.shape, x.dtype)
    return out, *_attend(*parts_of(x), mask, out.swapaxes(-2, -3), scale, causal, p, key)


def _self_attention_infer(
    x: Spec, mask: Spec, *, scale: float, causal: bool, p: float = 0.0, key: Key = None
) -> tuple[Spec, Spec, Spec]:
    if x.ndim < 4 or x.shape[-3] != 3:
        raise ShapeError(f"self_attention: needs […, positions, 3, heads, features], not {x}")
    *lead, positions, _, heads, features = x.shape
    scores = (*lead, heads, positions, positions)
    _check("self_attention", mask, scores, x.dtype)
    weight = _computed(scores, x.dtype)
    return Spec((*lead, positions, heads, features), x.dtype), weight, weight


def _parts_in_ops(m: Any, x: Any) -> tuple[Any, Any, Any]:
    n = x.ndim - 1
    order = (*range(n - 3), n - 2, n - 3, n - 1)
    q, k, v = (m.permute(m.select(x, dim=x.ndim - 3, index=i), dims=order) for i in range(3))
    return q, k, v


def self_attention_rule(
    m: Any, needs: Any, g: Any, y: Any, x: Any, mask: Any, *, scale: float, causal: bool, p: float = 0.0,
    key: Key = None,
) -> Any:  # fmt: skip
    """The gradients of what `self_attention` is given."""
    _, kept, used = y
    n = x.ndim - 1
    order = (*range(n - 3), n - 2, n - 3, n - 1)
    given = m.permute(g[0], dims=order)
    if not m.works_on_arrays:
        *made, of_scores = gradients_in_ops(m, given, kept, *_parts_in_ops(m, x), mask, scale, causal, p)
        of_x = m.stack(*(m.permute(part, dims=order) for part in made), dim=x.ndim - 3)
        return [of_x, m.sum_to(of_scores, shape=tuple(mask.shape)) if needs[1] else None]
    single = x.dtype.char != "e"
    x = _in_rows(x) if single else x.astype(np.float32)
    out = written_like(x, x.shape, x.dtype)
    scaled = 1.0 if needs[1] else scale
    given = _in_rows(given if single else given.astype(np.float32))
    of_scores = _gradients(given, kept, used, *parts_of(x), parts_of(out), scaled, p)
    of_mask = None
    if needs[1]:
        of_mask = m.sum_to(of_scores, shape=mask.shape).astype(mask.dtype, copy=False)
        out[..., :2, :, :] *= out.dtype.type(scale)
    return [out if single else out.astype(np.float16), of_mask]


def _self_attention_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    if attrs.get("p"):
        return by_loop("self_attention")(m, size, inputs, batched, attrs)
    (x,) = expand_unbatched(m, size, inputs[:1], batched[:1])
    return m.self_attention(x, _lined_up(m, inputs[1], batched[1], x.ndim - 1), **attrs)


def self_attention_reference(x: Array, mask: Array, **attrs: Any) -> tuple[Any, Any, Any]:
    """`self_attention`, query by query."""
    out, kept, used = _reference(*parts_of(x), mask, **attrs)
    return out.swapaxes(-2, -3), kept, used


def _self_attention_samples(rng: Any) -> Iterable[Sample]:
    attrs = {"scale": 0.7, "causal": False}
    yield Sample((rng.normal(size=(2, 3, 3, 2, 2)), np.zeros(())), attrs)
    yield Sample((rng.normal(size=(3, 3, 1, 2)), rng.normal(size=(3, 3))), attrs)
    transposed = rng.normal(size=(3, 2, 3, 2, 1)).transpose(1, 0, 2, 3, 4)
    yield Sample((transposed, np.zeros(())), {"scale": 0.7, "causal": True})
    yield Sample((rng.normal(size=(3, 3, 2, 2)), np.array([True, False, True])), attrs | {"p": 0.4, "key": (7, 1)})


# The same of […, positions, 3, heads, features]; the result is […, positions, heads, features].
self_attention = define(
    "self_attention", autocast=LOWER,
    signature=takes(2, p=MAYBE_NUMBER, key=KEY, scale=NUMBER, causal=FLAG),
    onnx=rules.self_attention,
    family="attention",
    forward=_self_attention,
    infer=_self_attention_infer,
    vjp=joint(self_attention_rule),
    batch=_self_attention_batch,
    ragged=ragged.self_attention,
    samples=_self_attention_samples,
    reference=self_attention_reference,
    outputs=3,
    differentiable_outputs=(0,),
    kept_outputs=(1, 2),
    grad_name="ScaledDotProductAttentionBackward0",
)
