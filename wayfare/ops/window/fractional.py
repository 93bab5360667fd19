"""Where the windows of fractional max pooling lie: at random places, as samples from 0 to 1 decide."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.core.flops import nothing
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample
from wayfare.core.signature import SIZES, STEPS, takes
from wayfare.core.spec import Shape, Spec, int64
from wayfare.ops._define import define
from wayfare.ops.window import onnx_rules as rules


def _starts(samples: Array, size: int, count: int, kernel: int) -> Array:
    """Where the windows begin, (N, C, count): steps of two lengths in an order that the sample decides."""
    if count == 1:
        return np.full((*samples.shape, 1), size - kernel)
    step = (size - kernel) / (count - 1)
    shift = samples[..., None].astype(np.float64)
    begin = ((np.arange(count) + shift) * step).astype(np.int64) - (shift * step).astype(np.int64)
    begin[..., -1] = size - kernel
    return np.asarray(begin)


def _fractional_places(samples: Array, *, sizes: Shape, counts: Shape, kernel: Shape) -> Array:
    rank = len(sizes)
    out: Any = 0
    for axis, (size, count, width) in enumerate(zip(sizes, counts, kernel, strict=True)):
        # PyTorch's order: with two samples the first is for the width, with three for the depth.
        begin = _starts(samples[..., 1 - axis if rank == 2 else axis], size, count, width)
        shape = [1] * (2 * rank)
        shape[axis] = count
        offset = [1] * (2 * rank)
        offset[rank + axis] = width
        out = out * size + begin.reshape(*begin.shape[:2], *shape) + np.arange(width).reshape(offset)
    return np.asarray(out).reshape(*samples.shape[:2], math.prod(counts), math.prod(kernel))


def _fractional_infer(samples: Spec, *, sizes: Shape, counts: Shape, kernel: Shape) -> Spec:
    return Spec((*samples.shape[:2], math.prod(counts), math.prod(kernel)), int64)


def _fractional_reference(samples: Array, sizes: Shape, counts: Shape, kernel: Shape) -> Array:
    """One window after the other, one element after the other."""
    rows = []
    for drawn in samples.reshape(-1, len(sizes)):
        own = drawn[::-1] if len(sizes) == 2 else drawn
        for window in np.ndindex(*counts):
            begin = []
            for u, i, n, c, k in zip(own, window, sizes, counts, kernel, strict=True):
                step = (n - k) / (c - 1) if c > 1 else 0
                begin.append(n - k if i == c - 1 else int((i + u) * step) - int(u * step))
            for inside in np.ndindex(*kernel):
                rows.append(np.ravel_multi_index([a + o for a, o in zip(begin, inside, strict=True)], sizes))
    return np.array(rows, np.int64).reshape(*samples.shape[:2], math.prod(counts), math.prod(kernel))


def _fractional_samples(rng: Any) -> Iterable[Sample]:
    forms = (((7, 6), (3, 2), (2, 3)), ((5, 9), (1, 4), (2, 2)), ((4, 5, 6), (2, 3, 1), (2, 1, 3)))
    for sizes, counts, kernel in forms:
        attrs = {"sizes": sizes, "counts": counts, "kernel": kernel}
        yield Sample((rng.uniform(0, 1, (2, 3, len(sizes))),), attrs, smooth=False)


# The flat places of every element of every window: (N, C, windows, elements), from samples (N, C, dimensions).
define(
    "fractional_places",
    signature=takes(1, counts=SIZES, kernel=STEPS, sizes=SIZES),
    onnx=rules.fractional_places,
    family="indexing",
    work=nothing,
    forward=_fractional_places,
    infer=_fractional_infer,
    vjp=None,
    samples=_fractional_samples,
    reference=_fractional_reference,
    kinds="f",
)
