"""Windows over memory: sliding windows along a dimension (unfold), and any strides at all (as_strided)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.core.errors import ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample
from wayfare.core.signature import COUNT, DIM, INT, SIZES, STEP, takes
from wayfare.core.spec import Shape, Spec
from wayfare.core.write_clock import elements_overlap
from wayfare.ops import _workspace
from wayfare.ops._define import define, movement
from wayfare.ops.movement import onnx_rules as rules


def memory_of(x: Array) -> tuple[Array, int] | None:
    """The memory that `x` is a view of, as one row, and the position where `x` begins; None if it is not contiguous."""
    owner: Any = x
    while True:
        base = getattr(owner, "base", None)
        # as_strided of NumPy puts a carrier object between a view and its owner.
        if not isinstance(base, np.ndarray) and not isinstance(getattr(base, "base", None), np.ndarray):
            break
        owner = base
    if not isinstance(owner, np.ndarray) or owner.dtype != x.dtype:
        return None
    if owner.flags.c_contiguous:
        flat = owner.reshape(-1)
    elif owner.flags.f_contiguous:
        flat = owner.T.reshape(-1)
    else:
        return None
    gap = x.__array_interface__["data"][0] - flat.__array_interface__["data"][0]
    return flat, gap // x.itemsize


def _strided(x: Array, shape: Shape, strides: tuple[int, ...]) -> Array:
    """A view from the first element of `x` on with strides in bytes; read-only where elements overlap."""
    found = memory_of(x) if x.size else None
    if found is None:
        return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)
    flat, start = found
    return np.ndarray(shape, x.dtype, flat, start * x.itemsize, strides)


# -- sliding windows ---------------------------------------------------------------------------------------


def window_count(length: int, size: int, step: int) -> int:
    """How many windows of a size fit into a length."""
    return (length - size) // step + 1


def _unfold(x: Array, *, dim: int, size: int, step: int) -> Array:
    if step < 1 or not 0 <= size <= x.shape[dim]:
        raise ValueError(f"there are no windows of size {size} and step {step} in {x.shape[dim]}")
    count = window_count(x.shape[dim], size, step)
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :], size)
    strides = (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :], x.strides[dim])
    out = _strided(x, shape, strides)
    if (size > step and count > 1) or not x.flags.writeable:
        out.flags.writeable = False
    return out


def _unfold_shape(x: Shape, *, dim: int, size: int, step: int) -> Shape:
    if size > x[dim]:
        raise ShapeError(f"unfold: a window of {size} is longer than dimension {dim} of shape {list(x)}")
    return (*x[:dim], window_count(x[dim], size, step), *x[dim + 1 :], size)


def _unfold_reference(x: Array, dim: int, size: int, step: int) -> Array:
    starts = range(0, x.shape[dim] - size + 1, step)
    windows = [np.moveaxis(np.take(x, np.arange(s, s + size), axis=dim), dim, -1) for s in starts]
    return np.stack(windows, dim)


unfold = movement(
    "unfold",
    attrs={"step": STEP, "size": COUNT, "dim": DIM},
    onnx=rules.unfold,
    forward=_unfold,
    shape=_unfold_shape,
    vjp=lambda m, g, _y, x_spec, *, dim, size, step: m.fold_back(g, shape=x_spec.shape, dim=dim, step=step),
    reference=_unfold_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(2, 5)),), {"dim": 1, "size": 3, "step": 1}),
        Sample((rng.normal(size=(6, 2)),), {"dim": 0, "size": 2, "step": 2}),
        Sample((rng.normal(size=(3, 7)).T,), {"dim": 0, "size": 2, "step": 3}),
    ],
)


def _fold_back(g: Array, *, shape: Shape, dim: int, step: int) -> Array:
    out = np.zeros(shape, g.dtype)
    count = g.shape[dim]
    if step < 1 or out.ndim != g.ndim - 1 or (g.size and (count - 1) * step + g.shape[-1] > shape[dim]):
        raise ValueError("the windows do not fit the shape")
    for offset in range(g.shape[-1]):
        stretch = (slice(None),) * dim + (slice(offset, offset + (count - 1) * step + 1, step),)
        out[stretch] += g[..., offset]
    return out


def _fold_back_reference(x: Array, shape: Shape, dim: int, step: int) -> Array:
    out = np.zeros(shape)
    target, source = np.moveaxis(out, dim, 0), np.moveaxis(x, (dim, -1), (0, 1))
    for i in range(source.shape[0]):
        for k in range(source.shape[1]):
            target[i * step + k] += source[i, k]
    return out


# The adjoint of unfold: windows laid back over each other and summed.
fold_back = movement(
    "fold_back",
    attrs={"step": STEP, "shape": SIZES, "dim": DIM},
    onnx=rules.fold_back,
    forward=_fold_back,
    shape=lambda g, *, shape, dim, step: tuple(shape),
    vjp=lambda m, g, _y, x_spec, *, shape, dim, step: m.unfold(g, dim=dim, size=x_spec.shape[-1], step=step),
    reference=_fold_back_reference,
    samples=lambda rng: [Sample((rng.normal(size=(2, 3, 3)),), {"shape": (2, 5), "dim": 1, "step": 1})],
    view=False,
    grad_name="UnfoldBackward0",
)


# -- any strides -------------------------------------------------------------------------------------------
# `layout` is how the input itself lies in memory (strides in elements); `offset` counts from its first one.


def _as_strided(x: Array, *, size: Shape, stride: tuple[int, ...], offset: int, layout: tuple[int, ...]) -> Array:
    if len(size) != len(stride) or len(layout) != x.ndim or min(size, default=0) < 0:
        raise ValueError("sizes and strides do not fit")
    found = memory_of(x) if tuple(s // x.itemsize for s in x.strides) == layout else None
    if found is not None:
        flat, start = found
        ends = [(n - 1) * s for n, s in zip(size, stride, strict=True)]
        low, high = (start + offset + sum(kept(e, 0) for e in ends) for kept in (min, max))
        if 0 not in size and not 0 <= low <= high < flat.size:
            raise ValueError("it would reach beyond the memory of the tensor")
        steps = [s * x.itemsize for s in stride]
        out = np.ndarray(size, x.dtype, flat, (start + offset) * x.itemsize, steps)
        # Beyond the tensor's own elements it is for reading: the graph knows nothing of the numbers there.
        inside = x.flags.c_contiguous and start <= low and high < start + x.size
        out.flags.writeable = x.flags.writeable and inside and not elements_overlap(out)
        return out
    source, wanted = rules.memory_places(x.shape, layout), rules.memory_places(size, stride) + offset
    low = min(source.min(initial=0), wanted.min(initial=0))
    memory = np.zeros(max(source.max(initial=0), wanted.max(initial=0)) - low + 1, x.dtype)
    memory[source - low] = x
    return np.asarray(memory[wanted - low])


def _as_strided_vjp(
    m: Any, g: Any, _y: Any, x_spec: Spec, *, size: Shape, stride: Any, offset: int, layout: Any
) -> Any:
    return m.add_strided(g, shape=x_spec.shape, stride=stride, offset=offset, layout=layout)


def _add_strided(g: Array, *, shape: Shape, stride: Any, offset: int, layout: Any) -> Array:
    """Sum g into memory, then read it with the strides of the input; elements that the input repeats share the sum."""
    source, wanted = rules.memory_places(shape, layout), rules.memory_places(g.shape, stride) + offset
    low = min(source.min(initial=0), wanted.min(initial=0))
    length = int(max(source.max(initial=0), wanted.max(initial=0)) - low + 1)
    memory = np.bincount((wanted - low).ravel(), g.ravel(), length).astype(g.dtype)
    count = np.bincount((source - low).ravel(), minlength=length)
    out = memory[source - low]
    return np.asarray(out if count.max(initial=1) <= 1 else (out / count[source - low]).astype(g.dtype))


def _add_strided_vjp(
    m: Any, g: Any, _y: Any, x_spec: Spec, *, shape: Shape, stride: Any, offset: int, layout: Any
) -> Any:
    return m.as_strided(g, size=x_spec.shape, stride=stride, offset=offset, layout=layout)


def _as_strided_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(3, 4)),), {"size": (2, 3), "stride": (1, 2), "offset": 1, "layout": (4, 1)})
    yield Sample((rng.normal(size=(7,)),), {"size": (2, 2), "stride": (3, 3), "offset": 0, "layout": (1,)})
    yield Sample((rng.normal(size=(2, 3)).T,), {"size": (2,), "stride": (2,), "offset": 1, "layout": (1, 3)})


def _as_strided_reference(x: Array, size: Shape, stride: Any, offset: int, layout: Any) -> Array:
    memory = {sum(i * s for i, s in zip(at, layout, strict=True)): x[at] for at in np.ndindex(x.shape)}
    values = [memory[offset + sum(i * s for i, s in zip(at, stride, strict=True))] for at in np.ndindex(size)]
    return np.array(values).reshape(size)


as_strided = define(
    "as_strided",
    workspace=_workspace.of_strides,
    signature=takes(1, stride=SIZES, offset=INT, size=SIZES, layout=SIZES),
    onnx=rules.as_strided,
    family="movement",
    moves="strides",
    forward=_as_strided,
    infer=lambda x, *, size, stride, offset, layout: Spec(size, x.dtype),
    vjp=(_as_strided_vjp,),
    reference=_as_strided_reference,
    samples=_as_strided_samples,
    view=True,
)

add_strided = define(
    "add_strided",
    workspace=_workspace.of_strides,
    signature=takes(1, layout=SIZES, offset=INT, shape=SIZES, stride=SIZES),
    onnx=rules.add_strided,
    family="movement",
    forward=_add_strided,
    infer=lambda g, *, shape, stride, offset, layout: Spec(shape, g.dtype),
    vjp=(_add_strided_vjp,),
    reference=lambda g, shape, stride, offset, layout: np.array([[g[0], 0], [g[1], 0.0]]),
    samples=lambda rng: [
        Sample((rng.normal(size=(2,)),), {"shape": (2, 2), "stride": (2,), "offset": 0, "layout": (2, 1)})
    ],
)
