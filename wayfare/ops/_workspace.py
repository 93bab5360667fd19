"""Workspace of ops in elements: padded images, indices of windows, the memory that strides span."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from wayfare.core.spec import Spec

# Columns of windows are made in pieces of this many numbers: large enough for a fast gemm, small enough for memory.
COLUMN_LIMIT = 1 << 22


def of_windows(specs: Sequence[Spec], attrs: dict[str, Any]) -> int:
    """The padded image, and a place for each element of each window."""
    sizes = attrs["sizes"] if "sizes" in attrs else specs[0].shape[2:]
    kernel = attrs["kernel"] if "kernel" in attrs else specs[1].shape[2:]
    stride, padding = attrs["stride"], attrs["padding"]
    dilation = attrs.get("dilation", (1,) * len(sizes))
    spans = list(zip(sizes, kernel, stride, padding, dilation, strict=True))
    if "counts" in attrs:
        counts = attrs["counts"]
    elif "kernel" in attrs and len(specs) == 2:
        counts = specs[1].shape[2:]
    elif "sizes" in attrs and len(specs[0].shape) == len(sizes) + 2:
        counts = specs[0].shape[2:]
    else:
        counts = tuple(max((n + 2 * p - d * (k - 1) - 1) // s + 1, 0) for n, k, s, p, d in spans)
    reach = [max(n + 2 * p, (c - 1) * s + d * (k - 1) + 1)
             for (n, k, s, p, d), c in zip(spans, counts, strict=True)]  # fmt: skip
    planes = math.prod(specs[0].shape[:2])
    return int(max(max(planes, 1) * math.prod(reach), math.prod(kernel) * math.prod(counts)))


def of_convolution(specs: Sequence[Spec], attrs: dict[str, Any]) -> int:
    """The padded images, and columns of windows: of one image, or of several up to a bound."""
    images = specs[0].shape[0]
    channels = specs[1].shape[1] * attrs["groups"] if "sizes" in attrs else specs[0].shape[1]
    kernel = attrs["kernel"] if "kernel" in attrs else specs[1].shape[2:]
    if "kernel" in attrs:
        counts = specs[1].shape[2:]
    elif "sizes" in attrs:
        counts = specs[0].shape[2:]
    else:
        sizes = zip(specs[0].shape[2:], kernel, attrs["stride"], attrs["padding"], attrs["dilation"], strict=True)
        counts = tuple(max((n + 2 * p - d * (k - 1) - 1) // s + 1, 0) for n, k, s, p, d in sizes)
    columns = channels * math.prod(kernel) * math.prod(counts)
    return max(of_windows(specs, attrs), columns, min(images * columns, COLUMN_LIMIT))


def of_strides(specs: Sequence[Spec], attrs: dict[str, Any]) -> int:
    """All the memory between the first and the last element that is looked at."""
    own = attrs["size"] if "size" in attrs else specs[0].shape
    given = specs[0].shape if "size" in attrs else attrs["shape"]
    reaches = [
        sum(max(n - 1, 0) * step for n, step in zip(sizes, steps, strict=True))
        for sizes, steps in ((given, attrs["layout"]), (own, attrs["stride"]))
    ]
    return int(max(reaches)) + abs(int(attrs["offset"]))


def of_labels(specs: Sequence[Spec], attrs: dict[str, Any]) -> int:
    """The largest product of two operands that an einsum of several could begin with."""
    if len(specs) < 3:
        return 0
    terms = attrs["equation"].partition("->")[0].replace(" ", "").split(",")
    pairs = itertools.combinations(zip(terms, specs, strict=True), 2)
    return max(
        math.prod({label: n for t, s in pair for label, n in zip(t, s.shape, strict=True)}.values()) for pair in pairs
    )
