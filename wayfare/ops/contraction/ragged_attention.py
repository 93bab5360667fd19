"""Self-attention of rows of many lengths, one after another, each looking at its own rows only.

Lengths that are near each other run together, the shorter ones padded: for sixty-four lengths that is six batches in
place of sixty-four small products. The weights are stored without padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from wayfare.codegen.routines.attention import scores_gradient, weights
from wayfare.codegen.runtime.gemm import batched_matmul
from wayfare.core import buffer_pool
from wayfare.core.errors import ShapeError
from wayfare.core.flops import attention
from wayfare.core.numpy_math import Array
from wayfare.core.op import NotExportable, Sample, joint
from wayfare.core.signature import COUNT, FLAG, NUMBER, takes
from wayfare.core.spec import NARROW, Spec, float32
from wayfare.ops._define import define
from wayfare.ops.contraction.attention import parts_of, self_attention_reference, self_attention_rule, written_like

# Rows are padded by at most this many, or this part of the longest ones.
_PADDING, _PART = 8, 4


class _Batch(NamedTuple):
    """Segments of about one length: which, where their rows are and which of those are padding (None: none is)."""

    segments: list[int]
    length: int
    places: Array  # [segments, length]
    valid: Array | None

    def gathered(self, x: Array) -> Array:
        """Their rows, [segments, length, …], with zeros for padding."""
        found = x[self.places]
        if self.valid is not None:
            found[~self.valid] = 0
        return found

    def scatter(self, rows: Array, out: Array) -> None:
        """Put their rows where they belong."""
        if self.valid is None:
            out[self.places] = rows
        else:
            out[self.places[self.valid]] = rows[self.valid]


def _batches(offsets: Array) -> Iterator[_Batch]:
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[order]
    begin, count = 0, int(np.count_nonzero(lengths))
    while begin < count:
        length = int(sorted_lengths[begin])
        least = max(length - max(_PADDING, length // _PART), 1)
        end = begin + int(np.count_nonzero(sorted_lengths[begin:] >= least))
        chosen = order[begin:end]
        steps = np.arange(length)
        valid = steps < lengths[chosen][:, None]
        places = np.minimum(offsets[chosen][:, None] + steps, offsets[-1] - 1)
        yield _Batch(chosen.tolist(), length, places, None if valid.all() else valid)
        begin = end


def _squares(offsets: Array, heads: int) -> list[int]:
    """Where the weights of each segment begin, and their end."""
    return [0, *np.cumsum(np.diff(offsets) ** 2 * heads).tolist()]


def _forward(x: Array, offsets: Array, *, scale: float, causal: bool, squares: int) -> tuple[Array, Array]:
    _check(x, offsets, squares)
    if x.dtype.char == "e":
        out, kept = _forward(x.astype(np.float32), offsets, scale=scale, causal=causal, squares=squares)
        return out.astype(np.float16), kept
    heads = x.shape[2]
    out = buffer_pool.empty((x.shape[0], *x.shape[2:]), x.dtype)
    kept = buffer_pool.empty((heads * squares,), x.dtype)
    at, lengths = _squares(offsets, heads), np.diff(offsets).tolist()
    for batch in _batches(offsets):
        q, k, v = parts_of(batch.gathered(x))
        length = batch.length
        scores = batched_matmul(q, k.swapaxes(-1, -2), buffer_pool.empty((*q.shape[:-1], length), x.dtype))
        mask = None if batch.valid is None else batch.valid[:, None, None, :]
        share, _ = weights(scores, mask, scale, causal, 0.0, None)
        made = buffer_pool.empty((len(batch.segments), length, *x.shape[2:]), x.dtype)
        batched_matmul(share, v, made.swapaxes(1, 2))
        batch.scatter(made, out)
        for i, segment in enumerate(batch.segments):
            n = lengths[segment]
            kept[at[segment] : at[segment + 1]] = share[i, :, :n, :n].reshape(-1)
    return out, kept


def _check(x: Array, offsets: Array, squares: int) -> None:
    if x.ndim != 4 or x.shape[1] != 3:
        raise ValueError("no queries, keys and values")
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != len(x) or (lengths < 0).any() or int((lengths**2).sum()) != squares:
        raise ShapeError(f"ragged_self_attention: offsets must rise from 0 to {len(x)}, and the squares of the lengths "
                         f"add up to {squares}")  # fmt: skip


def _infer(x: Spec, offsets: Spec, *, scale: float, causal: bool, squares: int) -> tuple[Spec, Spec]:
    if x.ndim != 4 or x.shape[1] != 3 or len(offsets.shape) != 1:
        raise ShapeError(f"ragged_self_attention: needs [total, 3, heads, features] and offsets, not {x} and {offsets}")
    wide = float32 if x.dtype in NARROW else x.dtype
    return Spec((x.shape[0], *x.shape[2:]), x.dtype), Spec((x.shape[2] * squares,), wide)


def _gradient(g: Array, kept: Array, x: Array, offsets: Array, scale: float) -> Array:
    out = np.zeros_like(x)
    heads = x.shape[2]
    at, lengths = _squares(offsets, heads), np.diff(offsets).tolist()
    for batch in _batches(offsets):
        count, length = len(batch.segments), batch.length
        share = np.zeros((count, heads, length, length), x.dtype)
        for i, segment in enumerate(batch.segments):
            n = lengths[segment]
            share[i, :, :n, :n] = kept[at[segment] : at[segment + 1]].reshape(heads, n, n)
        rows = batch.gathered(x)
        q, k, v = parts_of(rows)
        given = batch.gathered(g).swapaxes(1, 2)
        made = written_like(rows, rows.shape, rows.dtype)
        of_q, of_k, of_v = parts_of(made)
        batched_matmul(share.swapaxes(-1, -2), given, of_v)
        of_share = batched_matmul(given, v.swapaxes(-1, -2), buffer_pool.empty(share.shape, x.dtype))
        of_scores = scores_gradient(of_share, share, scale, 0.0)
        batched_matmul(of_scores, k, of_q)
        batched_matmul(of_scores.swapaxes(-1, -2), q, of_k)
        batch.scatter(made, out)
    return out


def _vjp(
    m: Any, needs: Any, g: Any, y: Any, x: Any, offsets: Any, *, scale: float, causal: bool, squares: int
) -> list[Any]:  # fmt: skip
    kept, given = y[1], g[0]
    if m.works_on_arrays:
        if x.dtype.char == "e":
            made = _gradient(given.astype(np.float32), kept, x.astype(np.float32), offsets, scale)
            return [made.astype(np.float16), None]
        return [_gradient(given, kept, x, offsets, scale), None]
    zero = m.zeros_like(m.sum(given, dim=(0, 1, 2), keepdim=False))
    parts = []
    for a, b in pairwise(offsets.tolist()):
        part, own = (m.slice(t, dim=0, start=a, stop=b, step=1) for t in (x, given))
        found = self_attention_rule(m, (True, False), (own, None, None), (None, None, None), part, zero,
                                    scale=scale, causal=causal)  # fmt: skip
        parts.append(found[0])
    return [m.cat(*parts, dim=0) if parts else m.zeros_like(x), None]


def _reference(x: Array, offsets: Array, scale: float, causal: bool, squares: int) -> tuple[Array, Array]:
    outs, shares = [np.zeros((0, *x.shape[2:]))], [np.zeros(0)]
    for a, b in pairwise(offsets.tolist()):
        out, share, _ = self_attention_reference(x[a:b], np.zeros(()), scale=scale, causal=causal)
        outs.append(out)
        shares.append(share.reshape(-1))
    return np.concatenate(outs), np.concatenate(shares)


def _samples(rng: Any) -> Iterable[Sample]:
    for lengths, heads, causal in (((3, 1, 2), 2, False), ((2, 0, 12), 1, True), ((1,), 1, False), ((), 1, False)):
        offsets = np.cumsum([0, *lengths])
        x = rng.normal(size=(int(offsets[-1]), 3, heads, 2))
        yield Sample((x, offsets), {"scale": 0.7, "causal": causal, "squares": sum(n * n for n in lengths)})


# x is [total, 3, heads, features]; `squares` is the sum of the squares of the lengths. The second result are the
# weights of all segments, each [heads, length, length].
define(
    "ragged_self_attention",
    signature=takes(2, scale=NUMBER, causal=FLAG, squares=COUNT),
    onnx=NotExportable("it joins rows of many examples; export the function of one example"),
    family="segments",
    work=attention,
    forward=_forward,
    infer=_infer,
    vjp=joint(_vjp),
    reference=_reference,
    samples=_samples,
    outputs=2,
    differentiable_outputs=(0,),
    kept_outputs=(1,),
    grad_name="ScaledDotProductAttentionBackward0",
)
