"""Attention decomposed into matmuls and loops, so that all its intermediate values are in the arena of the plan.

Attention with dropout, which needs a random key at each run, is run by its own record. So is narrow attention on the
CPU, and on a device what would need a large matrix of weights. Of narrow floats only what matmuls read is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.core.op import Op
from wayfare.core.spec import NARROW_ARRAYS, OF_NUMPY, DType, float32
from wayfare.ir.graph import Value, trace_ops

IN_TILES = "attention_in_tiles"
# The largest matrix of weights on a device, in elements.
_LARGEST = 1 << 26


def is_plain_attention(op: Op, values: Sequence[Any], attrs: dict[str, Any], on_device: bool) -> bool:
    """Is this attention without dropout, in a dtype that BLAS supports? `values` (anything with shapes and dtypes) are
    the inputs of the record, or of its gradient, and what it keeps: on a device the matrix of weights, or sums of its
    rows."""
    if op.name == IN_TILES:
        sums = min(values, key=lambda v: v.ndim)
        return on_device and sums.size * max([v.shape[-2] for v in values if v is not sums]) <= _LARGEST
    if op.name not in ("attention", "self_attention") or attrs.get("p", 0.0) != 0.0:
        return False
    return max([v.size for v in values]) <= _LARGEST if on_device else values[0].dtype.char in "fd"


def forward(op: Op, inputs: Sequence[Value], attrs: dict[str, Any]) -> tuple[Value, ...]:
    """The outputs of the record: the result, and the weights before and after dropout, or the logarithms of sums."""
    given, mask = (inputs, None) if op.name == IN_TILES else (inputs[:-1], inputs[-1])
    narrow = OF_NUMPY[given[0].dtype] if given[0].dtype in NARROW_ARRAYS else None
    given = [_cast(x, float32 if narrow else None) for x in given]
    q, k, v = given if op.name != "self_attention" else _parts(given[0])
    share = _weights(q, k, mask, attrs["scale"], attrs["causal"])
    out = _cast(trace_ops.matmul(_rounded(share, narrow), v), narrow)
    if op.name == IN_TILES:
        scores = _scores(q, k, attrs["scale"], attrs["causal"])
        return out, trace_ops.logsumexp(scores, dim=(scores.ndim - 1,), keepdim=False)
    return (out if op.name == "attention" else _other_order(out)), share, share


def input_grads(
    op: Op, needs: Sequence[bool], grads: Sequence[Value], kept: Sequence[Any], attrs: dict[str, Any]
) -> list[Value | None]:
    """The gradients of the inputs; `kept` are the saved values, as for the rule of the record."""
    m = trace_ops
    apart = op.name != "self_attention"
    saved, *given, mask = (*kept, None) if op.name == IN_TILES else kept
    q, k, v = given if apart else _parts(given[0])
    # Recomputed weights are those of the forward pass: equal steps become one.
    share = saved[1] if op.name != IN_TILES else _weights(q, k, None, attrs["scale"], attrs["causal"])
    g = grads[0] if apart else _other_order(grads[0])
    narrow = _source_dtype(given[0])
    of_share = m.matmul(g, _transposed(v))
    of_scores = (of_share - m.sum(of_share * share, dim=(share.ndim - 1,), keepdim=True)) * share
    scaled, used = _rounded(of_scores * attrs["scale"], narrow), _rounded(share, narrow)
    made = [m.matmul(scaled, k), m.matmul(_transposed(scaled), q), m.matmul(_transposed(used), g)]
    if op.name == IN_TILES:
        return [*made]
    of_mask = m.sum_to(of_scores, shape=tuple(mask.shape)) if needs[-1] else None
    if apart:
        return [*made, of_mask]
    return [m.stack(*map(_other_order, made), dim=given[0].ndim - 3), of_mask]


def _scores(q: Value, k: Value, scale: float, causal: bool, mask: Value | None = None) -> Value:
    """q @ k.T * scale + mask."""
    m = trace_ops
    scores = m.matmul(q, _transposed(k)) * scale
    if mask is not None and mask.dtype.kind == "b":
        scores = m.where(mask, scores, m.zeros_like(scores) - math.inf)
    elif mask is not None and mask.ndim > 0:
        scores = scores + m.cast(mask, dtype=q.spec.dtype)
    if causal:
        seen = np.tri(*scores.shape[-2:], dtype=np.bool_)
        scores = m.where(seen, scores, m.zeros_like(scores) - math.inf)
    return scores  # type: ignore[no-any-return]


def _weights(q: Value, k: Value, mask: Value | None, scale: float, causal: bool) -> Value:
    """softmax(q @ k.T * scale + mask); a query that sees no key has weights of zero."""
    m = trace_ops
    scores = _scores(q, k, scale, causal, mask)
    last = scores.ndim - 1
    if mask is None or (mask.ndim == 0 and mask.dtype.kind != "b"):
        return m.softmax(scores, dim=last)  # type: ignore[no-any-return]
    top = m.amax(scores, dim=(last,), keepdim=True)
    raised = m.exp(scores - m.where(top == -math.inf, m.zeros_like(top), top))
    total = m.sum(raised, dim=(last,), keepdim=True)
    return raised / m.where(total == 0, m.zeros_like(total) + 1, total)  # type: ignore[no-any-return]


def _source_dtype(x: Value) -> DType | None:
    """The narrow dtype that a float32 value was converted from; None if it was not."""
    source = x.step.inputs[0].dtype if x.step.name == "cast" else x.dtype
    return OF_NUMPY[source] if source in NARROW_ARRAYS else None


def _cast(x: Value, dtype: DType | None) -> Value:
    return x if dtype is None else trace_ops.cast(x, dtype=dtype)


def _rounded(x: Value, narrow: DType | None) -> Value:
    """What a matmul reads, with the precision of the narrow dtype."""
    return x if narrow is None else _cast(_cast(x, narrow), float32)


def _parts(x: Value) -> list[Value]:
    """Queries, keys and values […, heads, positions, features] of […, positions, 3, heads, features]."""
    return [_other_order(trace_ops.select(x, dim=x.ndim - 3, index=i)) for i in range(3)]


def _other_order(x: Value) -> Value:
    """Swap positions and heads."""
    n = x.ndim
    return trace_ops.permute(x, dims=(*range(n - 3), n - 2, n - 3, n - 1))  # type: ignore[no-any-return]


def _transposed(x: Value) -> Value:
    n = x.ndim
    return trace_ops.permute(x, dims=(*range(n - 2), n - 1, n - 2))  # type: ignore[no-any-return]
