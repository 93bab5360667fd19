"""Windows as columns and back (im2col, col2im), and sums over windows: linear ops and their adjoints."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.codegen.routines.windows import Sizes
from wayfare.core.errors import ShapeError
from wayfare.core.flops import per_window
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample
from wayfare.core.signature import SIZES, STEPS, takes
from wayfare.core.spec import Spec
from wayfare.ops import _workspace
from wayfare.ops._define import define
from wayfare.ops.window import onnx_rules as rules
from wayfare.ops.window._windows import Windows, columns_of, image_of, pad_sizes


def merged(name: str) -> Any:
    """The batch rule of ops on (N, C, …): a batch of batches is one larger batch."""

    def batch(m: Any, size: int, inputs: Any, batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        shape = tuple(inputs[0].shape)
        outs = getattr(m, name)(m.reshape(inputs[0], shape=(shape[0] * shape[1], *shape[2:])), **attrs)
        if not isinstance(outs, tuple):
            return m.reshape(outs, shape=(shape[0], shape[1], *tuple(outs.shape)[1:]))
        return tuple(m.reshape(out, shape=(shape[0], shape[1], *tuple(out.shape)[1:])) for out in outs)

    return batch


# -- columns ---------------------------------------------------------------------------------------------------


def _im2col(x: Array, **how: Sizes) -> Array:
    windows = Windows(**how)
    counts = windows.counts(x.shape[2:])
    if min(counts) < 1:
        raise ValueError("the kernel is too large")
    made = columns_of(x, windows, counts)
    return made.copy() if np.may_share_memory(made, x) else made


def _im2col_infer(x: Spec, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Spec:
    counts = Windows(kernel, stride, padding, dilation).counts(x.shape[2:])
    if min(counts) < 1:
        raise ShapeError(f"unfold: a kernel of {list(kernel)} (dilation {list(dilation)}) is larger than the padded "
                         f"input {x} (padding {list(padding)})")  # fmt: skip
    return Spec((x.shape[0], x.shape[1] * math.prod(kernel), math.prod(counts)), x.dtype)


def _col2im(columns: Array, *, sizes: Sizes, **how: Sizes) -> Array:
    windows = Windows(**how)
    counts, each = windows.counts(sizes), math.prod(windows.kernel)
    if columns.ndim != 3 or columns.shape[1] % each or min(counts) < 1 or columns.shape[2] != math.prod(counts):
        raise ValueError("the columns do not fit the windows")
    channels = columns.shape[1] // each
    made = image_of(columns, (columns.shape[0], channels, *sizes), windows, counts)
    return made.copy() if np.may_share_memory(made, columns) else made


def _col2im_infer(columns: Spec, *, sizes: Sizes, kernel: Sizes, **how: Sizes) -> Spec:
    count = math.prod(Windows(kernel, **how).counts(sizes))
    if columns.shape[1] % math.prod(kernel) or columns.shape[2] != count:
        raise ShapeError(f"fold: columns {columns} do not fit {count} windows of {list(kernel)} over {list(sizes)}")
    return Spec((columns.shape[0], columns.shape[1] // math.prod(kernel), *sizes), columns.dtype)


def _numbered(shape: tuple[int, ...], kernel: Sizes, **how: Sizes) -> Array:
    """For each entry of the columns the number of the element it shows, -1 for padding: by plain loops."""
    windows = Windows(kernel, **how)
    counts = windows.counts(shape[2:])
    numbers: Any = np.arange(int(np.prod(shape))).reshape(shape)
    out: Any = np.full((*shape[:2], *kernel, *counts), -1)
    for at, offset, window in windows.meetings(shape[2:], counts):
        out[(..., *offset, *window)] = numbers[(..., *at)]
    return out.reshape(shape[0], shape[1] * math.prod(kernel), math.prod(counts))  # type: ignore[no-any-return]


def _im2col_reference(x: Array, **how: Any) -> Array:
    numbers = _numbered(x.shape, **how)
    return np.where(numbers < 0, 0, x.ravel()[numbers])


def _col2im_reference(columns: Array, sizes: Sizes, kernel: Sizes, **how: Any) -> Array:
    shape = (columns.shape[0], columns.shape[1] // math.prod(kernel), *sizes)
    numbers = _numbered(shape, kernel, **how)
    return np.bincount(numbers.ravel() + 1, columns.ravel(), int(np.prod(shape)) + 1)[1:].reshape(shape)


def _how(kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}


im2col = define(
    "im2col",
    workspace=_workspace.of_windows,
    signature=takes(1, padding=SIZES, dilation=STEPS, stride=STEPS, kernel=STEPS),
    onnx=rules.im2col,
    family="movement",
    forward=_im2col,
    infer=_im2col_infer,
    vjp=(lambda m, g, _y, x_spec, **how: m.col2im(g, sizes=x_spec.shape[2:], **how),),
    batch=merged("im2col"),
    reference=_im2col_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(2, 2, 4, 3)),), _how((2, 2), (1, 1), (0, 1), (1, 1))),
        Sample((rng.normal(size=(1, 1, 5, 4)),), _how((2, 2), (2, 1), (1, 0), (2, 1))),
        Sample((rng.normal(size=(0, 1, 2, 2)),), _how((2, 1), (1, 1), (0, 0), (1, 1))),
    ],
)

# The adjoint of im2col: every column is added where its window lies.
col2im = define(
    "col2im",
    workspace=_workspace.of_windows,
    signature=takes(1, dilation=STEPS, kernel=STEPS, sizes=SIZES, padding=SIZES, stride=STEPS),
    onnx=rules.col2im,
    family="movement",
    forward=_col2im,
    infer=_col2im_infer,
    vjp=(lambda m, g, _y, _columns, *, sizes, **how: m.im2col(g, **how),),
    batch=merged("col2im"),
    reference=_col2im_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(2, 4, 6)),), {"sizes": (3, 4), **_how((2, 2), (1, 1), (0, 0), (1, 1))}),
        Sample((rng.normal(size=(1, 4, 4)),), {"sizes": (3, 3), **_how((2, 2), (2, 2), (1, 1), (1, 1))}),
    ],
)


# -- sums over windows -----------------------------------------------------------------------------------------------


_LONG_WINDOW = 32


def _sums_along(x: Array, dim: int, size: int, step: int, count: int) -> Array:
    """Sums of `count` windows along one dimension."""
    total: Any = None
    # Numbers are added one by one: over a long window single precision would lose digits.
    kind: Any = np.float64 if size > _LONG_WINDOW and x.dtype.kind == "f" else x.dtype
    for i in range(size):
        part = x[(slice(None),) * dim + (slice(i, i + (count - 1) * step + 1, step),)]
        total = part.astype(kind) if total is None else np.add(total, part, out=total)
    return total.astype(x.dtype, copy=False)  # type: ignore[no-any-return]


def _pool_sum(x: Array, *, kernel: Sizes, stride: Sizes, padding: Sizes, counts: Sizes) -> Array:
    """One dimension after the other: the work is that of the sides of a window, not of its area."""
    out = pad_sizes(x, Windows(kernel, stride, padding, (1,) * len(kernel)), counts)
    for axis, (size, step, count) in enumerate(zip(kernel, stride, counts, strict=True)):
        out = _sums_along(out, 2 + axis, size, step, count)
    return out


def _pool_spread(g: Array, *, sizes: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes) -> Array:
    counts = g.shape[2:]
    windows = Windows(kernel, stride, padding, (1,) * len(kernel))
    full = windows.padded(sizes, counts)
    for axis, (size, step, count) in enumerate(zip(kernel, stride, counts, strict=True)):
        dim = 2 + axis
        out = np.zeros((*g.shape[:dim], full[axis], *g.shape[dim + 1 :]), g.dtype)
        for i in range(size):
            out[(slice(None),) * dim + (slice(i, i + (count - 1) * step + 1, step),)] += g
        g = out
    return np.ascontiguousarray(g[(slice(None), slice(None), *windows.inside(sizes))])


def _pool_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(2, 1, 5)),), _pool((2,), (2,), (0,), (2,)))
    yield Sample((rng.normal(size=(1, 2, 3, 4)),), _pool((2, 3), (1, 2), (1, 1), (4, 2)))
    # The last window reaches over the edge.
    yield Sample((rng.normal(size=(1, 1, 4)),), _pool((3,), (2,), (0,), (2,)))


def _pool(kernel: Sizes, stride: Sizes, padding: Sizes, counts: Sizes) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "padding": padding, "counts": counts}


def _window_matrix(sizes: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, counts: Sizes) -> Array:
    """The sums as one matrix (windows, elements) of zeros and ones."""
    out = np.zeros((*counts, *sizes))
    for window in np.ndindex(*counts):
        first = [o * s - p for o, s, p in zip(window, stride, padding, strict=True)]
        out[(*window, *(slice(max(f, 0), max(f + k, 0)) for f, k in zip(first, kernel, strict=True)))] = 1
    return out.reshape(math.prod(counts), math.prod(sizes))


def _pool_sum_reference(x: Array, counts: Sizes, **how: Any) -> Array:
    matrix = _window_matrix(x.shape[2:], counts=counts, **how)
    return (x.reshape(*x.shape[:2], -1) @ matrix.T).reshape(*x.shape[:2], *counts)


def _pool_spread_reference(g: Array, sizes: Sizes, **how: Any) -> Array:
    matrix = _window_matrix(sizes, counts=g.shape[2:], **how)
    return (g.reshape(*g.shape[:2], -1) @ matrix).reshape(*g.shape[:2], *sizes)


pool_sum = define(
    "pool_sum",
    workspace=_workspace.of_windows,
    signature=takes(1, padding=SIZES, counts=SIZES, stride=STEPS, kernel=STEPS),
    onnx=rules.pool_sum,
    family="reduction",
    work=per_window,
    forward=_pool_sum,
    infer=lambda x, *, kernel, stride, padding, counts: Spec((*x.shape[:2], *counts), x.dtype),
    vjp=(lambda m, g, _y, x_spec, *, counts, **how: m.pool_spread(g, sizes=x_spec.shape[2:], **how),),
    batch=merged("pool_sum"),
    reference=_pool_sum_reference,
    samples=_pool_samples,
    grad_name="AvgPoolBackward0",
)

# The adjoint of pool_sum: every number goes to all elements of its window.
pool_spread = define(
    "pool_spread",
    workspace=_workspace.of_windows,
    signature=takes(1, padding=SIZES, stride=STEPS, kernel=STEPS, sizes=SIZES),
    onnx=rules.pool_spread,
    family="movement",
    forward=_pool_spread,
    infer=lambda g, *, sizes, **_how: Spec((*g.shape[:2], *sizes), g.dtype),
    vjp=(lambda m, g, _y, x_spec, *, sizes, **how: m.pool_sum(g, counts=x_spec.shape[2:], **how),),
    batch=merged("pool_spread"),
    reference=_pool_spread_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(1, 2, 3)),), {"sizes": (5,), "kernel": (2,), "stride": (2,), "padding": (1,)}),
        Sample(
            (rng.normal(size=(1, 1, 2, 2)),),
            {"sizes": (3, 4), "kernel": (2, 3), "stride": (1, 1), "padding": (0, 0)},
        ),
    ],
)
