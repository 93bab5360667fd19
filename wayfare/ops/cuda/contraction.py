"""Products and attention on CUDA. Products are cuBLAS's, through CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.ops.contraction.einsum import contracted
from wayfare.ops.cuda.draws import mask_of_rows
from wayfare.ops.cuda.table import on_cuda, on_host

# -- matrices --------------------------------------------------------------------------------------------------------


def _fitting(*arrays: Any) -> None:
    """Operands of one numeric dtype; the shape rule has the sentence if not."""
    dtype = arrays[0].dtype
    if dtype.kind == "b" or any(a.dtype != dtype for a in arrays):
        raise TypeError("operands of one numeric dtype are needed")


@on_cuda("matmul", bfloat16=True)
def _matmul(b: Any, x: Any, y: Any) -> Any:
    _fitting(x, y)
    if not (x.ndim and y.ndim):
        raise ValueError("a number is no matrix")
    return b.matmul(x, y)


@on_cuda("linear_plain", bfloat16=True)
def _linear_plain(b: Any, x: Any, weight: Any) -> Any:
    _fitting(x, weight)
    return b.matmul(x, weight.T)


@on_cuda("linear", bfloat16=True)
def _linear(b: Any, x: Any, weight: Any, bias: Any) -> Any:
    _fitting(x, weight, bias)
    if bias.shape != weight.shape[:1]:
        raise ValueError("the bias does not fit")
    out = b.matmul(x, weight.T)
    out += bias
    return out


@on_cuda("einsum", bfloat16=True)
def _einsum(b: Any, *xs: Any, equation: str) -> Any:
    _fitting(*xs)

    def total(x: Any, axes: tuple[int, ...]) -> Any:
        return b.ops.sum(x, dim=axes, keepdim=False).astype(x.dtype, copy=False)

    return contracted(xs, equation, b.matmul, total)


@on_cuda("cross")
def _cross(b: Any, x: Any, y: Any, *, dim: int) -> Any:
    return b.xp.cross(x, y, axis=dim)


# -- attention --------------------------------------------------------------------------------------------------------


def _weights(b: Any, scores: Any, mask: Any, scale: float, causal: bool, p: float, key: Any) -> tuple[Any, Any]:
    """Softmax of the scores: the weights before dropout, negated where it removes them, and after it."""
    xp = b.xp
    scores = scores * scale
    if mask.dtype == np.bool_:
        scores = xp.where(mask, scores, xp.full((), -np.inf, scores.dtype))
    elif mask.ndim:
        scores = scores + mask.astype(scores.dtype, copy=False)
    if causal:
        seen = xp.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
        scores = xp.where(seen, scores, xp.full((), -np.inf, scores.dtype))
    if not scores.size:
        return scores, scores
    top = scores.max(axis=-1, keepdims=True)
    # A query that sees no key at all has weights of zero.
    raised = xp.exp(scores - xp.where(xp.isinf(top), xp.zeros((), top.dtype), top))
    total = raised.sum(axis=-1, keepdims=True)
    kept = raised / xp.where(total == 0, xp.ones((), total.dtype), total)
    if not p > 0:
        return kept, kept
    stays = mask_of_rows(b, key, scores.shape, p) if p < 1 else xp.zeros(scores.shape, bool)
    used = xp.where(stays, kept * (1 / (1 - p) if p < 1 else 0.0), xp.zeros((), kept.dtype))
    return xp.where(stays, kept, -kept), used


@on_cuda("attention")
def _attention(
    b: Any, q: Any, k: Any, v: Any, mask: Any, *, scale: float, causal: bool, p: float = 0.0, key: Any = None
) -> tuple[Any, Any, Any]:
    _fitting(q, k, v)
    half = q.dtype == np.float16
    if half:
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
    kept, used = _weights(b, b.matmul(q, k.swapaxes(-1, -2)), mask, scale, causal, p, key)
    out = b.matmul(used, v)
    return (out.astype(np.float16) if half else out), kept, used


@on_cuda("self_attention")
def _self_attention(
    b: Any, x: Any, mask: Any, *, scale: float, causal: bool, p: float = 0.0, key: Any = None
) -> tuple[Any, Any, Any]:
    if x.ndim < 4 or x.shape[-3] != 3:
        raise ValueError("no queries, keys and values")
    q, k, v = (x[..., i, :, :].swapaxes(-2, -3) for i in range(3))
    out, kept, used = _attention(b, q, k, v, mask, scale=scale, causal=causal, p=p, key=key)
    return b.xp.ascontiguousarray(out.swapaxes(-2, -3)), kept, used


# `wf.map` joins rows of many examples on the CPU only.
on_host("its batches follow from the offsets, which are values", "ragged_self_attention")
