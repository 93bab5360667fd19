"""How a kernel slides over images: counts and places of windows, and windows as columns of a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.routines import columns
from wayfare.codegen.routines.windows import Sizes, Slide
from wayfare.core.numpy_math import Array
from wayfare.core.spec import Shape


@dataclass(frozen=True, slots=True)
class Windows:
    """How a kernel slides over an input: the same four numbers for every dimension."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes

    def counts(self, sizes: Sizes) -> Sizes:
        """How many windows fit along each dimension."""
        spans = zip(sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spans)

    def reach(self, counts: Sizes) -> Sizes:
        """The length of padded input that this number of windows covers."""
        spans = zip(counts, self.kernel, self.stride, self.dilation, strict=True)
        return tuple((o - 1) * s + d * (k - 1) + 1 for o, k, s, d in spans)

    def padded(self, sizes: Sizes, counts: Sizes) -> Sizes:
        """The size of the padded input, never less than the windows reach."""
        return tuple(max(n + 2 * p, r) for n, p, r in zip(sizes, self.padding, self.reach(counts), strict=True))

    def places(self, offset: Sizes, counts: Sizes) -> tuple[slice, ...]:
        """Where in the padded input one element of the kernel meets all the windows."""
        spans = zip(offset, counts, self.stride, self.dilation, strict=True)
        return tuple(slice(i * d, i * d + (o - 1) * s + 1, s) for i, o, s, d in spans)

    @property
    def trivial(self) -> bool:
        """Is every element a window, and every window an element?"""
        return all(k == s == 1 and p == 0 for k, s, p in zip(self.kernel, self.stride, self.padding, strict=True))

    def slide(self, counts: Sizes) -> Slide:
        """The same for the native code."""
        return Slide(self.kernel, self.stride, self.padding, self.dilation, counts)

    def inside(self, sizes: Sizes) -> tuple[slice, ...]:
        """Where in the padded input the input itself lies."""
        return tuple(slice(p, p + n) for p, n in zip(self.padding, sizes, strict=True))

    def meetings(self, sizes: Sizes, counts: Sizes) -> Iterator[tuple[Sizes, Sizes, Sizes]]:
        """(place in the input, element of the kernel, window) of each element in each window, for references."""
        for window in np.ndindex(*counts):
            for offset in np.ndindex(*self.kernel):
                spans = zip(window, offset, self.stride, self.padding, self.dilation, strict=True)
                at = tuple(o * s - p + i * d for o, i, s, p, d in spans)
                if all(0 <= a < n for a, n in zip(at, sizes, strict=True)):
                    yield at, offset, window


def pad_sizes(x: Array, windows: Windows, counts: Sizes, value: Any = 0) -> Array:
    """The input with its padding around it; the input itself if there is none."""
    sizes = x.shape[2:]
    full = windows.padded(sizes, counts)
    if full == sizes:
        return x
    out = np.full((*x.shape[:2], *full), value, x.dtype) if value else np.zeros((*x.shape[:2], *full), x.dtype)
    out[(slice(None), slice(None), *windows.inside(sizes))] = x
    return out


def window_view(x: Array, windows: Windows, counts: Sizes) -> Array:
    """A view (C, *kernel, N, *counts) of all the windows of a padded input (N, C, *sizes)."""
    batch, channels, *steps = x.strides
    strides = (
        channels,
        *(step * d for step, d in zip(steps, windows.dilation, strict=True)),
        batch,
        *(step * s for step, s in zip(steps, windows.stride, strict=True)),
    )
    shape = (x.shape[1], *windows.kernel, x.shape[0], *counts)
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)


def columns_of(x: Array, windows: Windows, counts: Sizes, channels_first: bool = False) -> Array:
    """The windows of (N, C, *sizes) as columns (N, C·kernel, windows), or (C·kernel, N·windows)."""
    rows = x.shape[1] * math.prod(windows.kernel)
    shape = (rows, x.shape[0] * math.prod(counts)) if channels_first else (x.shape[0], rows, math.prod(counts))
    if windows.trivial and not channels_first:
        return x.reshape(shape)
    made = columns.columns(x, windows.slide(counts), channels_first)
    if made is not None:
        return made
    view = window_view(pad_sizes(x, windows, counts), windows, counts)
    return (view if channels_first else np.moveaxis(view, 1 + len(counts), 0)).reshape(shape)


def image_of(given: Array, shape: Shape, windows: Windows, counts: Sizes, channels_first: bool = False) -> Array:
    """The adjoint: columns added where their windows lie in an image of a shape."""
    if windows.trivial and not channels_first and shape[2:] == counts:
        return given.reshape(shape)
    made = columns.add_columns(given, shape, windows.slide(counts), channels_first)
    if made is not None:
        return made
    sizes = shape[2:]
    out = np.zeros((*shape[:2], *windows.padded(sizes, counts)), given.dtype)
    if channels_first:
        split = given.reshape(shape[1], *windows.kernel, shape[0], *counts)
    else:
        split = np.moveaxis(given.reshape(*shape[:2], *windows.kernel, *counts), 0, 1 + len(counts))
    for offset in np.ndindex(*windows.kernel):
        places = (slice(None), slice(None), *windows.places(offset, counts))
        out[places] += split[(slice(None), *offset)].swapaxes(0, 1)
    return np.ascontiguousarray(out[(slice(None), slice(None), *windows.inside(sizes))])
