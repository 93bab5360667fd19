"""Attention whose memory grows with the length and not with its square: for devices that have kernels for it.

The matrix of weights is never kept: the op keeps the logarithm of each row's sum, from which its gradient computes the
weights again. On the CPU, where `attention` is faster, it is computed in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from wayfare.core.autocast import LOWER
from wayfare.core.device import BACKENDS
from wayfare.core.errors import DTypeError, ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import NotExportable, Sample, joint
from wayfare.core.signature import FLAG, NUMBER, takes
from wayfare.core.spec import NARROW, Spec, float32
from wayfare.ops._define import define, expand_unbatched
from wayfare.ops.contraction.attention import gradients_in_ops

_ON_DEVICES = NotExportable("it is how attention runs on a GPU; move the model to the CPU")


def _scores(xp: Any, q: Any, k: Any, scale: float, causal: bool) -> Any:
    scores = (q @ k.swapaxes(-1, -2)) * scale
    if causal:
        seen = xp.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
        scores = xp.where(seen, scores, xp.full((), -math.inf, scores.dtype))
    return scores


def attend(xp: Any, q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> tuple[Any, Any]:
    """The forward in one piece, on arrays of NumPy or of a module like it."""
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2] or not q.dtype == k.dtype == v.dtype:
        raise ValueError("they do not fit")
    if q.dtype.char == "e":
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        out, logs = attend(xp, q, k, v, scale=scale, causal=causal)
        return out.astype(np.float16), logs
    if not q.size or not k.size:
        return xp.zeros(q.shape, q.dtype), xp.full(q.shape[:-1], math.inf, q.dtype)
    scores = _scores(xp, q, k, scale, causal)
    top = xp.max(scores, axis=-1, keepdims=True)
    raised = xp.exp(scores - top)
    total = xp.sum(raised, axis=-1, keepdims=True)
    return (raised / total) @ v, (top + xp.log(total))[..., 0]


def gradients(
    xp: Any, g: Any, q: Any, k: Any, v: Any, out: Any, logs: Any, *, scale: float, causal: bool
) -> tuple[Any, Any, Any]:
    """The backward pass in one piece."""
    if q.dtype.char == "e":
        g, q, k, v, out = (x.astype(np.float32) for x in (g, q, k, v, out))
        made = gradients(xp, g, q, k, v, out, logs, scale=scale, causal=causal)
        return made[0].astype(np.float16), made[1].astype(np.float16), made[2].astype(np.float16)
    weights = xp.exp(_scores(xp, q, k, scale, causal) - logs[..., None])
    dots = xp.sum(g * out, axis=-1, keepdims=True)
    of_scores = weights * (g @ v.swapaxes(-1, -2) - dots) * scale
    return of_scores @ k, of_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ g


def _infer(q: Spec, k: Spec, v: Spec, *, scale: float, causal: bool) -> tuple[Spec, Spec]:
    if min(q.ndim, k.ndim) < 2 or k.shape != v.shape or q.shape[:-2] != k.shape[:-2] or q.shape[-1] != k.shape[-1]:
        raise ShapeError(f"attention_in_tiles: query {q}, key {k} and value {v} do not fit",
                         fix="They share their features, key and value their positions.")  # fmt: skip
    if not q.dtype.is_floating_point or k.dtype is not q.dtype or v.dtype is not q.dtype:
        raise DTypeError("attention_in_tiles: queries, keys and values must be of one floating-point dtype")
    return q, Spec(q.shape[:-1], float32 if q.dtype in NARROW else q.dtype)


def _vjp(
    m: Any, needs: Any, g: Any, y: Any, q: Any, k: Any, v: Any, *, scale: float, causal: bool
) -> Any:  # fmt: skip
    if not (m.works_on_arrays or q.__class__ in BACKENDS):
        return gradients_in_ops(m, g[0], None, q, k, v, None, scale, causal, 0.0)[:3]
    return m.attention_in_tiles_backward(g[0], q, k, v, *y, scale=scale, causal=causal)


def _work(products: int) -> Any:
    """`products` of matrices for each weight."""

    def work(inputs: Any, outputs: Any, attrs: dict[str, Any]) -> int | None:
        q, k = inputs[-5:-3] if products > 2 else inputs[:2]
        if q is None or k is None:
            return None
        return math.prod(q[:-1]) * k[-2] * (2 * products * q[-1] + 5)  # type: ignore[no-any-return]

    return work


def _batched(name: str) -> Any:
    def batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        return getattr(m, name)(*expand_unbatched(m, size, inputs, batched), **attrs)

    return batch


def _reference(q: Array, k: Array, v: Array, scale: float, causal: bool) -> Any:
    """Query by query."""
    out, logs = np.zeros(q.shape), np.full(q.shape[:-1], math.inf)
    for place in np.ndindex(q.shape[:-1]):
        seen = place[-1] + 1 if causal else None
        raised = np.exp(k[place[:-1]][:seen] @ q[place] * scale)
        if raised.size:
            out[place] = raised @ v[place[:-1]][:seen] / raised.sum()
            logs[place] = np.log(raised.sum())
    return out, logs


def _backward_reference(
    g: Array, q: Array, k: Array, v: Array, out: Array, logs: Array, scale: float, causal: bool
) -> Any:
    """Weight by weight."""
    made = [np.zeros(x.shape) for x in (q, k, v)]
    for place in np.ndindex(q.shape[:-1]):
        for j in range(min(place[-1] + 1, k.shape[-2]) if causal else k.shape[-2]):
            other = (*place[:-1], j)
            weight = math.exp(q[place] @ k[other] * scale - logs[place])
            of_score = weight * (g[place] @ (v[other] - out[place])) * scale
            made[0][place] += of_score * k[other]
            made[1][other] += of_score * q[place]
            made[2][other] += weight * g[place]
    return tuple(made)


def _samples(rng: Any) -> Iterable[Sample]:
    for q, k, causal in (((2, 3, 2), (2, 4, 2), False), ((3, 2), (3, 2), True), ((2, 1, 3, 2), (2, 1, 2, 2), True)):
        given = (rng.normal(size=q), rng.normal(size=k), rng.normal(size=k))
        yield Sample(given, {"scale": 0.7, "causal": causal})


def _backward_samples(rng: Any) -> Iterable[Sample]:
    for sample in _samples(rng):
        out, logs = _reference(*sample.inputs, **sample.attrs)
        yield Sample((rng.normal(size=out.shape), *sample.inputs, out, logs), sample.attrs)


# softmax(q @ k.T * scale) @ v, and the logarithm of the sum of each row's exponentials.
attention_in_tiles = define(
    "attention_in_tiles", autocast=LOWER,
    signature=takes(3, scale=NUMBER, causal=FLAG),
    onnx=_ON_DEVICES,
    family="attention",
    forward=partial(attend, np),
    infer=_infer,
    vjp=joint(_vjp),
    batch=_batched("attention_in_tiles"),
    samples=_samples,
    reference=_reference,
    outputs=2,
    work=_work(2),
    differentiable_outputs=(0,),
    kinds="f",
    grad_name="ScaledDotProductAttentionBackward0",
)  # fmt: skip

# The gradients of queries, keys and values, from that of the result and from both results. Only a plain backward pass
# runs it: a gradient that is recorded is made of other ops.
attention_in_tiles_backward = define(
    "attention_in_tiles_backward",
    signature=takes(6, scale=NUMBER, causal=FLAG),
    onnx=_ON_DEVICES,
    family="attention",
    forward=partial(gradients, np),
    infer=lambda g, q, k, v, out, logs, **_attrs: (q, k, v),
    vjp=None,
    batch=_batched("attention_in_tiles_backward"),
    samples=_backward_samples,
    reference=_backward_reference,
    outputs=3,
    work=_work(5),
    kinds="f",
)  # fmt: skip
