"""Convolution in any number of dimensions, natively or as products of matrices over columns of windows.

Three records that are each other's gradients: `conv` (input, weight → output), `conv_input` (output, weight → input;
a transposed convolution) and `conv_weight` (input, output → weight). Every one is linear in both arguments, so
gradients of any order stay among the three. `conv_bias` is `conv` and a number for each output channel. The input is
(N, C, *sizes), the weight (C out, C in / groups, *kernel).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from wayfare.codegen.routines import conv as direct
from wayfare.codegen.routines import depthwise
from wayfare.codegen.routines.windows import Sizes
from wayfare.codegen.runtime.gemm import matmul
from wayfare.core import buffer_pool
from wayfare.core.autocast import LOWER
from wayfare.core.errors import DTypeError, ShapeError
from wayfare.core.flops import convolution, convolution_to_input, convolution_to_weight
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample
from wayfare.core.signature import SIZES, STEP, STEPS, takes
from wayfare.core.spec import Shape, Spec
from wayfare.ops import _workspace
from wayfare.ops._define import define, expand_unbatched
from wayfare.ops._workspace import COLUMN_LIMIT as _COLUMN_LIMIT
from wayfare.ops.contraction.matmul import dtypes_differ
from wayfare.ops.window import onnx_rules as rules
from wayfare.ops.window._windows import Windows, columns_of, image_of

# Windows of one example that make a product of its own worth while, and multiplications from which on BLAS splits a
# product over threads: many such products after one another would wait for the threads each time.
_MANY_WINDOWS = 128
_SPLIT_PRODUCT = 1 << 21


def _pieces(batch: int, columns: int) -> Iterator[slice]:
    """The batch in pieces whose columns (this many numbers each) fit the limit."""
    size = max(1, _COLUMN_LIMIT // max(columns, 1))
    return (slice(first, min(first + size, batch)) for first in range(0, batch, size))


def _wide(x: Array) -> Array:
    """NumPy multiplies half-precision matrices one number at a time: single precision is much faster."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _one_by_one(windows: Windows, made: int, rows: int, count: int) -> bool:
    """Is one product for each example faster than one for all? It needs no transposed copies, and maybe no columns."""
    return count >= _MANY_WINDOWS and (windows.trivial or made * rows * count <= _SPLIT_PRODUCT)


# -- the three products ------------------------------------------------------------------------------------------


def _conv_bias(x: Array, weight: Array, bias: Array, **how: Any) -> Array:
    if bias.shape != weight.shape[:1] or bias.dtype != x.dtype:
        raise ValueError("the bias does not fit")
    return _conv(x, weight, bias, **how)


def _conv(x: Array, weight: Array, bias: Array | None = None, *, groups: int, **how: Sizes) -> Array:
    windows = Windows(weight.shape[2:], **how)
    counts = windows.counts(x.shape[2:])
    if x.shape[1] != weight.shape[1] * groups or min(counts) < 1 or x.dtype != weight.dtype:
        raise ValueError("shapes or dtypes do not fit")
    if groups == x.shape[1] == weight.shape[0]:
        out = depthwise.forward(x, weight, windows.slide(counts))
    else:
        out = direct.forward(x, weight, bias, windows.slide(counts), groups)
        if out is not None:
            return out
    if out is None:
        out = _conv_by_columns(x, weight, windows, counts, groups)
    if bias is not None:
        out += bias.reshape(-1, *(1,) * len(counts))
    return out


def _conv_by_columns(x: Array, weight: Array, windows: Windows, counts: Sizes, groups: int) -> Array:
    rows, made, count = weight.shape[1] * math.prod(windows.kernel), weight.shape[0] // groups, math.prod(counts)
    matrix, wide = _wide(weight).reshape(groups, made, rows), _wide(x)
    out = buffer_pool.empty((x.shape[0], weight.shape[0], *counts), wide.dtype)
    for piece in _pieces(x.shape[0], groups * rows * count):
        size = piece.stop - piece.start
        if _one_by_one(windows, made, rows, count):
            each = columns_of(wide[piece], windows, counts).reshape(size, groups, rows, count)
            matmul(matrix, each, out=out[piece].reshape(size, groups, made, count))
        else:
            every = columns_of(wide[piece], windows, counts, True).reshape(groups, rows, size * count)
            out[piece] = matmul(matrix, every).reshape(weight.shape[0], size, *counts).swapaxes(0, 1)
    return out.astype(x.dtype, copy=False)


def _conv_input(g: Array, weight: Array, *, sizes: Sizes, groups: int, **how: Sizes) -> Array:
    windows = Windows(weight.shape[2:], **how)
    counts = g.shape[2:]
    if g.shape[1] != weight.shape[0] or g.dtype != weight.dtype:
        raise ValueError("shapes or dtypes do not fit")
    if groups == g.shape[1] and weight.shape[1] == 1:
        found = depthwise.by_input(g, weight, (*g.shape[:2], *sizes), windows.slide(counts))
    else:
        shape = (g.shape[0], weight.shape[1] * groups, *sizes)
        found = direct.by_input(g, weight, shape, windows.slide(counts), groups)
    if found is not None:
        return found
    channels, rows, made = weight.shape[1] * groups, weight.shape[1] * math.prod(windows.kernel), g.shape[1] // groups
    matrix, wide = _wide(weight).reshape(groups, made, rows).swapaxes(1, 2), _wide(g)
    count = math.prod(counts)
    images = []
    for piece in _pieces(g.shape[0], groups * rows * count):
        size = piece.stop - piece.start
        shape = (size, channels, *sizes)
        if _one_by_one(windows, made, rows, count):
            parts = matmul(matrix, wide[piece].reshape(size, groups, made, count))
            images.append(image_of(parts.reshape(size, groups * rows, count), shape, windows, counts))
        else:
            parts = matmul(matrix, wide[piece].swapaxes(0, 1).reshape(groups, made, size * count))
            images.append(image_of(parts.reshape(groups * rows, size * count), shape, windows, counts, True))
    if len(images) != 1:
        return np.concatenate([np.zeros((0, channels, *sizes), wide.dtype), *images], dtype=g.dtype)
    return images[0].astype(g.dtype, copy=False)


def _conv_weight(x: Array, g: Array, *, kernel: Sizes, groups: int, **how: Sizes) -> Array:
    windows = Windows(kernel, **how)
    counts = g.shape[2:]
    if groups == x.shape[1] == g.shape[1]:
        found = depthwise.by_weight(x, g, windows.slide(counts))
    else:
        found = direct.by_weight(x, g, windows.slide(counts), groups)
    if found is not None:
        return found
    own, rows = x.shape[1] // groups, x.shape[1] // groups * math.prod(kernel)
    made, count = g.shape[1] // groups, math.prod(counts)
    wide, wide_g = _wide(x), _wide(g)
    total = np.zeros((groups, made, rows), wide.dtype)
    for piece in _pieces(x.shape[0], groups * rows * count):
        size = piece.stop - piece.start
        if made * rows <= count:
            each = columns_of(wide[piece], windows, counts).reshape(size, groups, rows, count)
            gradients = wide_g[piece].reshape(size, groups, made, count)
            # BLAS is faster with the larger matrix first.
            total += matmul(each, gradients.swapaxes(2, 3)).sum(axis=0).swapaxes(1, 2)
        else:
            every = columns_of(wide[piece], windows, counts, True).reshape(groups, rows, size * count)
            whole = wide_g[piece].swapaxes(0, 1).reshape(groups, made, size * count)
            total += matmul(whole, every.swapaxes(1, 2))
    return total.reshape(g.shape[1], own, *kernel).astype(x.dtype, copy=False)


# -- shapes ------------------------------------------------------------------------------------------------------


def _conv_infer(
    x: Spec, weight: Spec, bias: Spec | None = None, *, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Spec:
    op = f"conv{x.ndim - 2}d"
    if x.dtype is not weight.dtype:
        raise dtypes_differ(op, x, weight)
    if x.shape[1] != weight.shape[1] * groups:
        split = f" in {groups} groups" if groups > 1 else ""
        raise ShapeError(f"{op}: the input {x} has {x.shape[1]} channels (dimension 1), the weight {weight} takes "
                         f"{weight.shape[1] * groups}{split}")  # fmt: skip
    if weight.shape[0] % groups:
        raise ShapeError(f"{op}: {weight.shape[0]} output channels cannot be split into {groups} groups")
    counts = Windows(weight.shape[2:], stride, padding, dilation).counts(x.shape[2:])
    if min(counts) < 1:
        raise ShapeError(f"{op}: a kernel of {list(weight.shape[2:])} (dilation {list(dilation)}) is larger than the "
                         f"padded input {x} (padding {list(padding)})")  # fmt: skip
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"{op}: the bias {bias} must have one number for each of {weight.shape[0]} channels")
    if bias is not None and bias.dtype is not x.dtype:
        raise DTypeError(f"{op}: the bias must have the dtype of the input, {x.dtype}, not {bias.dtype}",
                         fix=f"Convert it with .to(wf.{x.dtype.name}).")  # fmt: skip
    return Spec((x.shape[0], weight.shape[0], *counts), x.dtype)


def _conv_input_infer(g: Spec, weight: Spec, *, sizes: Sizes, groups: int, **_rest: Any) -> Spec:
    op = f"conv_transpose{g.ndim - 2}d"
    if g.dtype is not weight.dtype:
        raise dtypes_differ(op, g, weight)
    if g.shape[1] != weight.shape[0]:
        raise ShapeError(f"{op}: the input {g} has {g.shape[1]} channels (dimension 1), the weight {weight} takes "
                         f"{weight.shape[0]}")  # fmt: skip
    return Spec((g.shape[0], weight.shape[1] * groups, *sizes), g.dtype)


# -- gradients: each of the three by the other two ------------------------------------------------------------------


def _cut(m: Any, y: Any, shape: Shape) -> Any:
    """More windows may fit into the sizes of a transposed convolution than it had: cut those off."""
    return y if tuple(y.shape) == tuple(shape) else m.basic_index(y, index=tuple((0, n, 1) for n in shape))


def _conv_by_x(m: Any, g: Any, _y: Any, x_spec: Spec, weight: Any, *_bias: Any, **how: Any) -> Any:
    return m.conv_input(g, weight, sizes=x_spec.shape[2:], **how)


def _conv_by_weight(m: Any, g: Any, _y: Any, x: Any, weight_spec: Spec, *_bias: Any, **how: Any) -> Any:
    return m.conv_weight(x, g, kernel=weight_spec.shape[2:], **how)


def _conv_by_bias(m: Any, g: Any, *_rest: Any, **_how: Any) -> Any:
    return m.sum(g, dim=(0, *range(2, len(g.shape))), keepdim=False)


def _input_by_g(m: Any, h: Any, _y: Any, g_spec: Spec, weight: Any, *, sizes: Sizes, **how: Any) -> Any:
    return _cut(m, m.conv(h, weight, **how), g_spec.shape)


def _input_by_weight(m: Any, h: Any, _y: Any, g: Any, weight_spec: Spec, *, sizes: Sizes, **how: Any) -> Any:
    return m.conv_weight(h, g, kernel=weight_spec.shape[2:], **how)


def _weight_by_x(m: Any, h: Any, _y: Any, x_spec: Spec, g: Any, *, kernel: Sizes, **how: Any) -> Any:
    return m.conv_input(g, h, sizes=x_spec.shape[2:], **how)


def _weight_by_g(m: Any, h: Any, _y: Any, x: Any, g_spec: Spec, *, kernel: Sizes, **how: Any) -> Any:
    return _cut(m, m.conv(x, h, **how), g_spec.shape)


# -- batches: more examples, or more groups when the weights differ ---------------------------------------------------


def _as_groups(m: Any, x: Any) -> Any:
    """(B, N, C, …) to (N, B·C, …)."""
    shape = tuple(x.shape)
    moved = m.permute(x, dims=(1, 0, *range(2, len(shape))))
    return m.reshape(moved, shape=(shape[1], shape[0] * shape[2], *shape[3:]))


def _from_groups(m: Any, y: Any, size: int) -> Any:
    shape = tuple(y.shape)
    split = m.reshape(y, shape=(shape[0], size, shape[1] // size, *shape[2:]))
    return m.permute(split, dims=(1, 0, *range(2, len(shape) + 1)))


def _merge(m: Any, x: Any) -> Any:
    shape = tuple(x.shape)
    return m.reshape(x, shape=(shape[0] * shape[1], *shape[2:]))


def _product_batch(name: str) -> Any:
    def batch(m: Any, size: int, inputs: Any, batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        run = getattr(m, name)
        if not batched[1]:
            out = run(_merge(m, inputs[0]), inputs[1], **attrs)
            return m.reshape(out, shape=(size, -1, *tuple(out.shape)[1:]))
        x, weight = expand_unbatched(m, size, inputs, batched)
        out = run(_as_groups(m, x), _merge(m, weight), **attrs | {"groups": attrs["groups"] * size})
        return _from_groups(m, out, size)

    return batch


def _bias_batch(m: Any, size: int, inputs: Any, batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
    *given, bias = inputs
    if any(batched[:2]):
        out = _product_batch("conv")(m, size, given, batched[:2], attrs)
    else:
        out = m.conv(*given, **attrs)
    lead, last = ((size, 1), (1,) * len(attrs["stride"])) if batched[2] else ((), (1,) * len(attrs["stride"]))
    return m.add(out, m.reshape(bias, shape=(*lead, bias.shape[-1], *last)))


def _weight_batch(m: Any, size: int, inputs: Any, batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
    x, g = (_as_groups(m, t) for t in expand_unbatched(m, size, inputs, batched))
    out = m.conv_weight(x, g, **attrs | {"groups": attrs["groups"] * size})
    return m.reshape(out, shape=(size, -1, *tuple(out.shape)[1:]))


# -- references: one window after the other ---------------------------------------------------------------------------


def _by_group(x: Array, groups: int, dim: int) -> list[Any]:
    return list(np.split(x, groups, axis=dim))


def _conv_reference(x: Array, weight: Array, groups: int, **how: Sizes) -> Array:
    windows = Windows(weight.shape[2:], **how)
    counts = windows.counts(x.shape[2:])
    parts = []
    for part, own in zip(_by_group(x, groups, 1), _by_group(weight, groups, 0), strict=True):
        out: Any = np.zeros((x.shape[0], own.shape[0], *counts))
        for at, offset, window in windows.meetings(x.shape[2:], counts):
            out[(..., *window)] += part[(..., *at)] @ own[(..., *offset)].T
        parts.append(out)
    return np.concatenate(parts, axis=1)


def _conv_input_reference(g: Array, weight: Array, sizes: Sizes, groups: int, **how: Sizes) -> Array:
    windows = Windows(weight.shape[2:], **how)
    parts = []
    for part, own in zip(_by_group(g, groups, 1), _by_group(weight, groups, 0), strict=True):
        out: Any = np.zeros((g.shape[0], own.shape[1], *sizes))
        for at, offset, window in windows.meetings(sizes, g.shape[2:]):
            out[(..., *at)] += part[(..., *window)] @ own[(..., *offset)]
        parts.append(out)
    return np.concatenate(parts, axis=1)


def _conv_weight_reference(x: Array, g: Array, kernel: Sizes, groups: int, **how: Sizes) -> Array:
    windows = Windows(kernel, **how)
    parts = []
    for part, own in zip(_by_group(x, groups, 1), _by_group(g, groups, 1), strict=True):
        out: Any = np.zeros((own.shape[1], part.shape[1], *kernel))
        for at, offset, window in windows.meetings(x.shape[2:], g.shape[2:]):
            out[(..., *offset)] += own[(..., *window)].T @ part[(..., *at)]
        parts.append(out)
    return np.concatenate(parts, axis=0)


def _how(stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1) -> dict[str, Any]:
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


def _conv_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(2, 2, 5)), rng.normal(size=(3, 2, 3))), _how((1,), (1,), (1,)))
    yield Sample((rng.normal(size=(1, 2, 4, 5)), rng.normal(size=(2, 1, 2, 2))), _how((2, 1), (0, 1), (1, 2), 2))
    yield Sample(
        (rng.normal(size=(1, 1, 2, 3, 2)), rng.normal(size=(2, 1, 1, 2, 2))),
        _how((1,) * 3, (0,) * 3, (1,) * 3),
    )
    yield Sample((rng.normal(size=(0, 1, 3)), rng.normal(size=(2, 1, 2))), _how((1,), (0,), (1,)))


def _conv_bias_samples(rng: Any) -> Iterable[Sample]:
    for sample in _conv_samples(rng):
        yield Sample((*sample.inputs, rng.normal(size=sample.inputs[1].shape[:1])), sample.attrs)


def _conv_input_samples(rng: Any) -> Iterable[Sample]:
    g, weight = rng.normal(size=(2, 3, 3)), rng.normal(size=(3, 2, 3))
    yield Sample((g, weight), {"sizes": (6,), **_how((2,), (1,), (1,))})
    g, weight = rng.normal(size=(1, 2, 2, 2)), rng.normal(size=(2, 2, 2, 2))
    yield Sample((g, weight), {"sizes": (3, 4), **_how((1, 2), (0, 0), (1, 1), 2)})
    # One more window than g has fits into the sizes.
    yield Sample((rng.normal(size=(1, 1, 2)), rng.normal(size=(1, 1, 2))), {"sizes": (5,), **_how((1,), (0,), (2,))})


def _conv_weight_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(2, 2, 5)), rng.normal(size=(2, 3, 5))), {"kernel": (3,), **_how((1,), (1,), (1,))})
    x, g = rng.normal(size=(1, 2, 3, 4)), rng.normal(size=(1, 2, 2, 2))
    yield Sample((x, g), {"kernel": (2, 2), **_how((1, 2), (0, 0), (1, 1), 2)})


_SLIDES: dict[str, Any] = {"padding": SIZES, "dilation": STEPS, "stride": STEPS, "groups": STEP}

conv = define(
    "conv", autocast=LOWER,
    workspace=_workspace.of_convolution,
    signature=takes(2, **_SLIDES),
    onnx=rules.conv,
    family="contraction",
    fresh=True,
    work=convolution,
    forward=_conv,
    infer=_conv_infer,
    vjp=(_conv_by_x, _conv_by_weight),
    batch=_product_batch("conv"),
    reference=_conv_reference,
    samples=_conv_samples,
    grad_name="ConvolutionBackward0",
)

conv_bias = define(
    "conv_bias", autocast=LOWER,
    workspace=_workspace.of_convolution,
    signature=takes(3, **_SLIDES),
    onnx=rules.conv,
    family="contraction",
    fresh=True,
    work=convolution,
    forward=_conv_bias,
    infer=_conv_infer,
    vjp=(_conv_by_x, _conv_by_weight, _conv_by_bias),
    batch=_bias_batch,
    reference=lambda x, weight, bias, **how: (
        _conv_reference(x, weight, **how) + bias.reshape(-1, *(1,) * len(how["stride"]))
    ),
    samples=_conv_bias_samples,
    grad_name="ConvolutionBackward0",
)

conv_input = define(
    "conv_input", autocast=LOWER,
    workspace=_workspace.of_convolution,
    signature=takes(2, sizes=SIZES, **_SLIDES),
    onnx=rules.conv_input,
    family="contraction",
    work=convolution_to_input,
    forward=_conv_input,
    infer=_conv_input_infer,
    vjp=(_input_by_g, _input_by_weight),
    batch=_product_batch("conv_input"),
    reference=_conv_input_reference,
    samples=_conv_input_samples,
    grad_name="ConvolutionBackward0",
)

conv_weight = define(
    "conv_weight", autocast=LOWER,
    workspace=_workspace.of_convolution,
    signature=takes(2, kernel=STEPS, **_SLIDES),
    onnx=rules.conv_weight,
    family="contraction",
    work=convolution_to_weight,
    forward=_conv_weight,
    infer=lambda x, g, *, kernel, groups, **_how: Spec((g.shape[1], x.shape[1] // groups, *kernel), x.dtype),
    vjp=(_weight_by_x, _weight_by_g),
    batch=_weight_batch,
    reference=_conv_weight_reference,
    samples=_conv_weight_samples,
)
