"""Products and attention on CUDA. Products are cuBLAS's, through CuPy."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from wayfare.codegen.cuda.kernels import attention as kernels
from wayfare.core.op import REGISTRY
from wayfare.core.spec import BFLOAT16
from wayfare.ops.contraction.attention_in_tiles import attend, gradients
from wayfare.ops.contraction.einsum import contracted
from wayfare.ops.cuda.draws import mask_of_rows
from wayfare.ops.cuda.table import on_cuda, on_host

# The most blocks of a launch along its second dimension.
MOST_HEADS = 65535

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
    return b.matmul(x, weight, True)


@on_cuda("linear", bfloat16=True)
def _linear(b: Any, x: Any, weight: Any, bias: Any) -> Any:
    _fitting(x, weight, bias)
    if bias.shape != weight.shape[:1]:
        raise ValueError("the bias does not fit")
    return b.add_up(b.matmul(x, weight, True), bias, True)


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


def _in_rows(b: Any, x: Any) -> Any:
    """[batch, heads, positions, features] as the kernels take it."""
    x = x if x.ndim == 4 else x.reshape(math.prod(x.shape[:-2]), 1, *x.shape[-2:])
    return x if kernels.in_rows(b.launcher, x) else x.copy("C")


def _made_like(b: Any, x: Any) -> Any:
    """Room for a result in the order in which x, from `_in_rows`, lies in memory: heads are joined without a copy."""
    if x.strides[1] < x.strides[2]:
        batch, heads, positions, features = x.shape
        return b.empty((batch, positions, heads, features), x.dtype).swapaxes(1, 2)
    return b.empty(x.shape, x.dtype)


def _has_kernels(b: Any, q: Any, k: Any, v: Any, scale: float) -> bool:
    """Are there kernels for attention of these?"""
    return (b.has_kernels and q.dtype.itemsize <= 4 and q.shape[-1] in kernels.WIDTHS and k.shape == v.shape
            and scale > 0 and q.size > 0 and k.size > 0 and math.prod(q.shape[:-2]) <= MOST_HEADS)  # fmt: skip


def _in_one_piece(b: Any, name: str, function: Any, *arrays: Any, **attrs: Any) -> Any:
    """The same with a matrix of weights; in float32 for bfloat16."""
    if arrays[0].dtype is BFLOAT16:
        return REGISTRY[name].in_float32(partial(function, b.xp), *arrays, **attrs)
    return function(b.xp, *arrays, **attrs)


@on_cuda("attention_in_tiles", bfloat16=True)
def _attention_in_tiles(b: Any, q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    _fitting(q, k, v)
    if not _has_kernels(b, q, k, v, scale):
        return _in_one_piece(b, "attention_in_tiles", attend, q, k, v, scale=scale, causal=causal)
    q_rows, k_rows, v_rows = (_in_rows(b, x) for x in (q, k, v))
    out, logs = _made_like(b, q_rows), b.empty(q.shape[:-1], np.dtype(np.float32))
    kernels.forward(b.launcher, q_rows, k_rows, v_rows, out, logs, scale, causal)
    return out.reshape(q.shape), logs


@on_cuda("attention_in_tiles_backward", bfloat16=True)
def _attention_in_tiles_backward(
    b: Any, g: Any, q: Any, k: Any, v: Any, out: Any, logs: Any, *, scale: float, causal: bool
) -> Any:
    if not _has_kernels(b, q, k, v, scale):
        given = (g, q, k, v, out, logs)
        return _in_one_piece(b, "attention_in_tiles_backward", gradients, *given, scale=scale, causal=causal)
    shapes, rows = (q.shape, k.shape, v.shape), [_in_rows(b, x) for x in (q, k, v, out, g)]
    made = [_made_like(b, x) for x in rows[:3]]
    q, k, v, whole, g = rows
    kernels.backward(b.launcher, q, k, v, whole, b.in_c_order(logs), g, made[0], made[1], made[2], scale, causal)
    return tuple([x.reshape(shape) for x, shape in zip(made, shapes, strict=True)])


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
