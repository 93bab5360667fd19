"""ONNX rules of contractions: products of matrices, convolutions, pooling, attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.spec import bool_, float32, float64, int64

Sizes = tuple[int, ...]


# -- matrices ---------------------------------------------------------------------------------------------------------


def linear(b: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    """Gemm takes matrices; for any other shape the weight is turned beforehand (a constant, as a rule)."""
    if x.ndim == 2 and x.dtype.is_floating_point:
        return b.node("Gemm", x, weight, *(() if bias is None else (bias,)), transB=1)
    made = b.node("MatMul", x, b.node("Transpose", weight, perm=[1, 0]))
    return made if bias is None else b.node("Add", made, bias)


def einsum(b: Any, *given: Any, equation: str) -> Any:
    """Its own operator, which knows the letters of the alphabet."""
    if not all(c.isascii() for c in equation):
        raise b.refuse("it has more labels than there are letters")
    return b.node("Einsum", *given, equation=equation)


def cross(b: Any, x: Any, y: Any, *, dim: int) -> Any:
    """Each component from the two others."""
    after, before = np.array([1, 2, 0]), np.array([2, 0, 1])

    def turned(value: Any, order: Any) -> Any:
        return b.node("Gather", value, order, axis=dim, shape=value.shape)

    return turned(x, after) * turned(y, before) - turned(x, before) * turned(y, after)


def resample(b: Any, x: Any, places: Any, weights: Any, *, dim: int) -> Any:
    """Weighted places along a dimension: looked up all at once, then summed."""
    found = b.node("Gather", x, places, axis=dim)
    rank = x.ndim - dim - 1
    column = b.ops.reshape(b.cast(weights, x.dtype), shape=(*weights.shape, *(1,) * rank))
    return b.node("ReduceSum", b.node("Mul", found, column), [dim], keepdims=0)


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
    """A transposed convolution; what its size lacks is padded."""
    kernel = weight.shape[2:]
    spans = zip(sizes, x.shape[2:], kernel, stride, padding, dilation, strict=True)
    extra = [b.always(size - ((n - 1) * s - 2 * p + d * (k - 1) + 1)) for size, n, k, s, p, d in spans]
    if any(e is None for e in extra):
        raise b.refuse("how much its result is padded depends on a size that varies")
    # What is missing may be more than a step: ONNX pads less than that, the rest is zeros.
    inside = [min(e, s - 1) for e, s in zip(extra, stride, strict=True)]
    made = b.node(
        "ConvTranspose", x, weight, strides=list(stride), pads=[*padding, *padding], dilations=list(dilation),
        group=groups, kernel_shape=list(kernel), output_padding=inside,
    )  # fmt: skip
    rest = [e - i for e, i in zip(extra, inside, strict=True)]
    if not any(rest):
        return made
    return b.node("Pad", made, [0] * (2 + len(rest)) + [0, 0, *rest], b.number(0, x.dtype))


def _window_form(b: Any, x: Any, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, counts: Sizes) -> Any:
    """The attributes that give so many windows: padded as said, rounded up or down, or by as much as it takes."""
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
    """ONNX counts places through the whole tensor; those within a plane are what is left of a division."""
    form = _window_form(b, x, kernel, stride, padding, dilation, counts)
    values, places = b.node("MaxPool", x, outputs=2, dtype=(x.dtype, int64), **form)
    return values, b.node("Mod", places, b.number(math.prod(x.shape[2:]), int64))


def adaptive_max_pool(b: Any, x: Any, *, counts: Sizes) -> Any:
    """Every cell looked up, the smaller ones with a place twice, and its largest taken."""
    sizes = x.shape[2:]
    plane = math.prod(sizes)
    flat = b.ops.reshape(x, shape=(*x.shape[:2], plane))
    if all(count == 1 for count in counts):
        values, places = b.ops.max_at(flat, dim=2, keepdim=False)
        shape = (*x.shape[:2], *counts)
        return b.ops.reshape(values, shape=shape), b.ops.reshape(places, shape=shape)
    if any(b.varies(n) for n in sizes):
        raise b.refuse("its cells depend on a size that varies; pool to one cell, or with a kernel")
    table = _cells(sizes, counts)
    found = b.node("Gather", flat, table, axis=2, shape=(*x.shape[:2], *table.shape))
    values, number = b.ops.max_at(found, dim=3, keepdim=False)
    first = b.constant(np.arange(table.shape[0]) * table.shape[1])
    places = b.node("Gather", table.ravel(), b.node("Add", number, first), axis=0, shape=values.shape)
    shape = (*x.shape[:2], *counts)
    return b.ops.reshape(values, shape=shape), b.ops.reshape(places, shape=shape)


def _cells(sizes: Sizes, counts: Sizes) -> Any:
    """The flat places of each cell, one row for each."""
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    rows = []
    for cell in np.ndindex(*counts):
        box = tuple(slice(i * n // c, -(-(i + 1) * n // c)) for i, n, c in zip(cell, sizes, counts, strict=True))
        rows.append(numbers[box].ravel())
    longest = max(row.size for row in rows)
    return np.stack([np.concatenate([row, np.full(longest - row.size, row[0])]) for row in rows])


def pool_sum(b: Any, x: Any, *, kernel: Sizes, stride: Sizes, padding: Sizes, counts: Sizes) -> Any:
    """The mean of each window, padding and all, times its size."""
    whole = all(k is n or b.same_sizes((k,), (n,)) for k, n in zip(kernel, x.shape[2:], strict=True))
    if whole and not any(padding) and all(c == 1 for c in counts):
        return b.node("ReduceSum", x, list(range(2, x.ndim)), keepdims=1)
    form = _window_form(b, x, kernel, stride, padding, (1,) * len(kernel), counts)
    if form.get("ceil_mode"):
        raise b.refuse("its last window may reach over the edge, depending on a size that varies")
    if any(e > k for e, k in zip(form["pads"], [*kernel, *kernel], strict=True)):
        raise b.refuse("it is padded by more than a window")
    mean = b.node("AveragePool", x, count_include_pad=1, **form)
    return b.node("Mul", mean, b.number(math.prod(kernel), x.dtype))


def im2col(b: Any, x: Any, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Any:
    """A convolution whose every kernel picks one place of the window."""
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


# -- attention --------------------------------------------------------------------------------------------------------


def _attend(b: Any, q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, p: float) -> tuple[Any, Any]:
    """The result, and the weights of the keys."""
    if p:
        raise b.refuse("it drops weights at random; call .eval() on the model first")
    half = q.dtype.name == "float16"
    if half:
        q, k, v = (b.cast(x, float32) for x in (q, k, v))
    rank = k.ndim
    turned = b.ops.permute(k, dims=(*range(rank - 2), rank - 1, rank - 2))
    scores = b.ops.matmul(q, turned) * scale
    masked = mask.ndim > 0 or mask.dtype is bool_
    if mask.dtype is bool_:
        scores = b.ops.where(mask, scores, -math.inf)
    elif masked:
        scores = scores + b.cast(mask, scores.dtype)
    if causal:
        rows, columns = scores.shape[-2:]
        seen = b.ops.reshape(b.counting(rows), shape=(rows, 1)) >= b.counting(columns)
        scores = b.ops.where(seen, scores, -math.inf)
    weights = b.node("Softmax", scores, axis=-1, shape=scores.shape)
    if masked:
        # A query that sees no key at all: softmax would make it NaN.
        top = b.ops.amax(scores, dim=(scores.ndim - 1,), keepdim=True)
        weights = b.ops.where(top == -math.inf, 0, weights)
    return b.ops.matmul(weights, v), weights


def attention(b: Any, q: Any, k: Any, v: Any, mask: Any, *, scale: float, causal: bool, p: float = 0.0, key: Any = None
              ) -> Any:  # fmt: skip
    """Two products with a softmax between them."""
    made, weights = _attend(b, q, k, v, mask, scale, causal, p)
    return b.cast(made, q.dtype), weights, weights


def self_attention(b: Any, x: Any, mask: Any, *, scale: float, causal: bool, p: float = 0.0, key: Any = None) -> Any:
    """The same with queries, keys and values side by side: […, positions, 3, heads, features]."""
    n = x.ndim - 1
    order = (*range(n - 3), n - 2, n - 3, n - 1)
    q, k, v = (b.ops.permute(b.ops.select(x, dim=n - 2, index=i), dims=order) for i in range(3))
    made, weights = _attend(b, q, k, v, mask, scale, causal, p)
    return b.cast(b.ops.permute(made, dims=order), x.dtype), weights, weights


def layer_norm(b: Any, x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    """Its own operator, which gives mean and deviation in single precision; doubles step by step."""
    if x.dtype is float64:
        dim = tuple(range(x.ndim - weight.ndim, x.ndim))
        hat, mean, variance = b.ops.standardize(x, dim=dim, eps=eps)
        return hat * weight + bias, mean, 1 / b.ops.sqrt(variance + eps)
    made = b.node("LayerNormalization", x, weight, bias, outputs=3, dtype=(x.dtype, float32, float32),
                  axis=-weight.ndim, epsilon=float(eps))  # fmt: skip
    return tuple(b.cast(value, x.dtype) for value in made)
