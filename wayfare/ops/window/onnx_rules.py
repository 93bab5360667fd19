"""ONNX rules of convolutions, pooling, windows as columns, and resampling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.core.spec import float64, int64

Sizes = tuple[int, ...]


def resample(b: Any, x: Any, places: Any, weights: Any, *, dim: int) -> Any:
    """Resampling along a dimension: one Gather of all source elements, then a weighted sum."""
    found = b.node("Gather", x, places, axis=dim)
    rank = x.ndim - dim - 1
    column = b.ops.reshape(b.cast(weights, x.dtype), shape=(*weights.shape, *(1,) * rank))
    return b.node("ReduceSum", b.node("Mul", found, column), [dim], keepdims=0)


def resample_back(b: Any, g: Any, places: Any, weights: Any, *, dim: int, size: int) -> Any:
    """The gradient of resample: each element, weighted, is added to its source elements."""
    rank = g.ndim - dim - 1
    column = b.ops.reshape(b.cast(weights, g.dtype), shape=(*weights.shape, *(1,) * rank))
    spread = b.ops.reshape(g, shape=(*g.shape[:dim], 1, *g.shape[dim:])) * column
    return b.ops.index_place(spread, places, shape=(*g.shape[:dim], size, *g.shape[dim + 1 :]), dims=(dim,))


# -- windows ----------------------------------------------------------------------------------------------------------


def conv(b: Any, x: Any, weight: Any, bias: Any = None, *, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
         ) -> Any:  # fmt: skip
    """Its own operator."""
    return b.node(
        "Conv", x, weight, *(() if bias is None else (bias,)), strides=list(stride), pads=[*padding, *padding],
        dilations=list(dilation), group=groups, kernel_shape=list(weight.shape[2:]),
    )  # fmt: skip


def conv_input(b: Any, x: Any, weight: Any, *, sizes: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes,
               groups: int) -> Any:  # fmt: skip
    """A transposed convolution, padded to the wanted size."""
    kernel = weight.shape[2:]
    spans = zip(sizes, x.shape[2:], kernel, stride, padding, dilation, strict=True)
    extra = [b.always(size - ((n - 1) * s - 2 * p + d * (k - 1) + 1)) for size, n, k, s, p, d in spans]
    if any(e is None for e in extra):
        raise b.refuse("how much its result is padded depends on a size that varies")
    # More may be missing than output_padding can add (less than a stride); the rest is padded with zeros.
    inside = [min(e, s - 1) for e, s in zip(extra, stride, strict=True)]
    made = b.node(
        "ConvTranspose", x, weight, strides=list(stride), pads=[*padding, *padding], dilations=list(dilation),
        group=groups, kernel_shape=list(kernel), output_padding=inside,
    )  # fmt: skip
    rest = [e - i for e, i in zip(extra, inside, strict=True)]
    if not any(rest):
        return made
    return b.node("Pad", made, [0] * (2 + len(rest)) + [0, 0, *rest], b.number(0, x.dtype))


def conv_weight(b: Any, x: Any, g: Any, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
                ) -> Any:  # fmt: skip
    """The gradient of the weight: a convolution of the input with the output's gradient, with batch and channels
    exchanged, and stride and dilation exchanged."""
    rows, channels, outs = x.shape[0], x.shape[1] // groups, g.shape[1]
    transposed = (2, 1, 0, *range(3, x.ndim + 1))
    sizes = x.shape[2:]
    # The input as [channels of a group, groups × rows, …], the kernels as [outputs, rows, …].
    given = b.ops.permute(b.ops.reshape(x, shape=(rows, groups, channels, *sizes)), dims=transposed)
    given = b.ops.reshape(given, shape=(channels, groups * rows, *sizes))
    kernels = b.ops.permute(g, dims=(1, 0, *range(2, g.ndim)))
    made = b.node("Conv", given, kernels, strides=list(dilation), pads=[*padding, *padding], dilations=list(stride),
                  group=groups)  # fmt: skip
    # Input elements that the stride did not reach give positions beyond the kernel: cut them off.
    axes = list(range(2, x.ndim))
    made = b.node("Slice", made, [0] * len(axes), list(kernel), axes, shape=(channels, outs, *kernel))
    return b.ops.permute(made, dims=(1, 0, *axes))


def _window_form(b: Any, x: Any, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, counts: Sizes) -> Any:
    """The attributes of an ONNX pooling operator that give `counts` windows: by ceil_mode, or by more padding."""
    spans = list(zip(x.shape[2:], kernel, stride, padding, dilation, counts, strict=True))
    reach = [d * (k - 1) + 1 for _, k, _, _, d, _ in spans]
    rooms = [n + 2 * p - r for (n, _, _, p, _, _), r in zip(spans, reach, strict=True)]
    how = {"kernel_shape": list(kernel), "strides": list(stride), "pads": [*padding, *padding]}
    if any(d != 1 for d in dilation):
        how["dilations"] = list(dilation)
    down = all(b.always(c - (room // s + 1)) == 0 for room, (_, _, s, _, _, c) in zip(rooms, spans, strict=True))
    if down:
        return how
    up = all(b.always(c - (-(-room // s) + 1)) == 0 for room, (_, _, s, _, _, c) in zip(rooms, spans, strict=True))
    ends = [b.always((c - 1) * s + r - n - p) for (n, _, s, p, _, c), r in zip(spans, reach, strict=True)]
    if all(e is not None for e in ends):
        return how | {"pads": [*padding, *(max(e, 0) for e in ends)]}
    if up:
        return how | {"ceil_mode": 1}
    raise b.refuse("how many windows there are depends on a size that varies")


def max_pool(b: Any, x: Any, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, counts: Sizes) -> Any:
    """ONNX's indices count through the whole tensor; those within a plane are the remainder of a division."""
    form = _window_form(b, x, kernel, stride, padding, dilation, counts)
    values, places = b.node("MaxPool", x, outputs=2, dtype=(x.dtype, int64), **form)
    return values, b.node("Mod", places, b.number(math.prod(x.shape[2:]), int64))


def adaptive_max_pool(b: Any, x: Any, *, counts: Sizes) -> Any:
    """The elements of every cell by Gather (smaller cells have an element twice), then the maximum."""
    sizes = x.shape[2:]
    plane = math.prod(sizes)
    flat = b.ops.reshape(x, shape=(*x.shape[:2], plane))
    if all(count == 1 for count in counts):
        values, places = b.ops.max_at(flat, dim=2, keepdim=False)
        shape = (*x.shape[:2], *counts)
        return b.ops.reshape(values, shape=shape), b.ops.reshape(places, shape=shape)
    open_sizes = any(b.varies(n) for n in sizes)
    table = _cells_of_any_size(b, sizes, counts) if open_sizes else b.constant(_cells(sizes, counts))
    found = b.node("Gather", flat, table, axis=2, shape=(*x.shape[:2], *table.shape))
    values, number = b.ops.max_at(found, dim=3, keepdim=False)
    cells, longest = table.shape
    places = b.ops.reshape(table, shape=(cells * longest,))
    places = b.node("Gather", places, number + b.counting(cells) * longest, axis=0, shape=values.shape)
    shape = (*x.shape[:2], *counts)
    return b.ops.reshape(values, shape=shape), b.ops.reshape(places, shape=shape)


def max_pool_spread(b: Any, g: Any, places: Any, *, sizes: Sizes, **_how: Any) -> Any:
    """The gradient of both: one place of each plane for every window, and one more for windows without elements."""
    lead, plane, windows = g.shape[:2], math.prod(sizes), math.prod(g.shape[2:])
    at = b.ops.reshape(places, shape=(*lead, windows))
    at = b.ops.where(b.node("Less", at, b.number(0, int64)), b.number(plane, int64), at)
    made = b.ops.scatter_place(b.ops.reshape(g, shape=(*lead, windows)), at, shape=(*lead, plane + 1), dim=2)
    inside = b.ops.basic_index(made, index=((0, lead[0], 1), (0, lead[1], 1), (0, plane, 1)))
    return b.ops.reshape(inside, shape=(*lead, *sizes))


def _cells_of_any_size(b: Any, sizes: Sizes, counts: Sizes) -> Any:
    """The flat indices of each cell, one row per cell, computed by the model; the last index fills smaller cells."""
    rank = len(sizes)
    total: Any = None
    longest = []
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        longest.append(-(-size // count) + 1)
        cell = b.counting(count)
        first = b.ops.floor_divide(cell * size, count)
        last = b.ops.floor_divide((cell + 1) * size + (count - 1), count) - 1
        column = tuple(count if a == axis else 1 for a in range(rank)) + (1,) * rank
        row = (1,) * rank + tuple(longest[-1] if a == axis else 1 for a in range(rank))
        steps = b.ops.reshape(b.counting(longest[-1]), shape=row)
        here = b.ops.minimum(b.ops.reshape(first, shape=column) + steps, b.ops.reshape(last, shape=column))
        total = here if total is None else total * size + here
    return b.ops.reshape(total, shape=(math.prod(counts), math.prod(longest)))


def _cells(sizes: Sizes, counts: Sizes) -> Any:
    """The flat indices of each cell, one row per cell."""
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    rows = []
    for cell in np.ndindex(*counts):
        box = tuple(slice(i * n // c, -(-(i + 1) * n // c)) for i, n, c in zip(cell, sizes, counts, strict=True))
        rows.append(numbers[box].ravel())
    longest = max(row.size for row in rows)
    return np.stack([np.concatenate([row, np.full(longest - row.size, row[0])]) for row in rows])


def pool_sum(b: Any, x: Any, *, kernel: Sizes, stride: Sizes, padding: Sizes, counts: Sizes) -> Any:
    """AveragePool, padding included, times the size of a window."""
    whole = all(k is n or b.same_sizes((k,), (n,)) for k, n in zip(kernel, x.shape[2:], strict=True))
    if whole and not any(padding) and all(c == 1 for c in counts):
        return b.node("ReduceSum", x, list(range(2, x.ndim)), keepdims=1)
    form = _window_form(b, x, kernel, stride, padding, (1,) * len(kernel), counts)
    if form.pop("ceil_mode", 0):
        # The last window may reach over the edge: pad with enough zeros that all windows are complete.
        none = [0] * (2 + len(kernel))
        x = b.node("Pad", x, [*none, 0, 0, *(s - 1 for s in stride)], b.number(0, x.dtype))
    if any(e > k for e, k in zip(form["pads"], [*kernel, *kernel], strict=True)):
        raise b.refuse("it is padded by more than a window")
    mean = b.node("AveragePool", x, count_include_pad=1, **form)
    return b.node("Mul", mean, b.number(math.prod(kernel), x.dtype))


def pool_spread(b: Any, g: Any, *, sizes: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes) -> Any:
    """A transposed convolution with ones; cut off beyond the edge, zero where no window reached."""
    whole = [(n - 1) * s + k for n, s, k in zip(g.shape[2:], stride, kernel, strict=True)]
    ends = [b.always(n + p - w) for n, p, w in zip(sizes, padding, whole, strict=True)]
    if any(e is None for e in ends):
        raise b.refuse("how far its windows reach depends on a size that varies")
    planes = g.shape[0] * g.shape[1]
    none = (0,) * len(kernel)
    made = b.ops.conv_input(
        b.ops.reshape(g, shape=(planes, 1, *g.shape[2:])), np.ones((1, 1, *kernel), g.dtype.numpy), sizes=tuple(whole),
        stride=stride, padding=none, dilation=(1,) * len(kernel), groups=1,
    )  # fmt: skip
    amounts = ((0, 0), (0, 0), *((-p, e) for p, e in zip(padding, ends, strict=True)))
    return b.ops.reshape(b.ops.pad(made, amounts=amounts, value=0), shape=(*g.shape[:2], *sizes))


def fractional_places(b: Any, samples: Any, *, sizes: Sizes, counts: Sizes, kernel: Sizes) -> Any:
    """In double precision, as in the op itself."""
    rank = len(sizes)
    out = None
    for axis, (size, count, width) in enumerate(zip(sizes, counts, kernel, strict=True)):
        drawn = b.ops.select(samples, dim=2, index=1 - axis if rank == 2 else axis)
        shift = b.cast(b.ops.reshape(drawn, shape=(*drawn.shape, 1)), float64)
        last = b.full((*drawn.shape, 1), size - width, int64)
        if count > 1:
            step = (size - width) / (count - 1)
            places = b.ops.add(shift, np.arange(count, dtype=np.float64))
            begin = b.cast(places * step, int64) - b.cast(shift * step, int64)
            last = b.ops.where(b.constant(np.arange(count) == count - 1), last, begin)
        shape = [count if a == axis else 1 for a in range(rank)] + [1] * rank
        offset = [1] * rank + [width if a == axis else 1 for a in range(rank)]
        here = b.ops.add(b.ops.reshape(last, shape=(*drawn.shape, *shape)), np.arange(width).reshape(offset))
        out = here if out is None else b.ops.add(out * size, here)
    assert out is not None
    return b.ops.reshape(out, shape=(*samples.shape[:2], math.prod(counts), math.prod(kernel)))


def im2col(b: Any, x: Any, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Any:
    """A convolution whose kernels each pick one element of the window."""
    channels, picks = x.shape[1], math.prod(kernel)
    if b.varies(channels):
        raise b.refuse("the number of channels varies")
    eye = np.tile(np.eye(picks, dtype=x.dtype.numpy).reshape(picks, 1, *kernel), (channels, *(1,) * (len(kernel) + 1)))
    made = b.node(
        "Conv", x, eye, strides=list(stride), pads=[*padding, *padding], dilations=list(dilation), group=channels,
        kernel_shape=list(kernel),
    )  # fmt: skip
    shape = b.spec_of("im2col", x, kernel=kernel, stride=stride, padding=padding, dilation=dilation).shape
    return b.node("Reshape", made, b.sizes(shape), allowzero=1)


def col2im(b: Any, x: Any, *, sizes: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Any:
    """Its own operator."""
    return b.node(
        "Col2Im", x, b.sizes(sizes), b.sizes(kernel), strides=list(stride), pads=[*padding, *padding],
        dilations=list(dilation),
    )  # fmt: skip
