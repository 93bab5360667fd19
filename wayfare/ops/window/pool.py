"""The largest element of each window, with its place: max_pool and adaptive_max_pool, (N, C, *sizes).

Both give (values, places); a place is the number of the element in the flattened sizes, as PyTorch counts it.
`max_pool_spread` is their gradient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.codegen.routines.max_pooling import LONGEST_TABLE, max_over_windows, window_table
from wayfare.codegen.routines.windows import Sizes
from wayfare.core.errors import ShapeError
from wayfare.core.flops import per_window
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample, raw_ops
from wayfare.core.signature import SIZES, STEPS, takes
from wayfare.core.spec import Spec, int64
from wayfare.ops import _workspace
from wayfare.ops._define import define, expand_unbatched
from wayfare.ops.indexing.scatter import add_along
from wayfare.ops.window import onnx_rules as rules
from wayfare.ops.window._windows import Windows, pad_sizes
from wayfare.ops.window.fold import merged


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _max_pool(x: Array, *, kernel: Sizes, counts: Sizes, **how: Sizes) -> tuple[Array, Array]:
    windows = Windows(kernel, **how)
    if math.prod(kernel) * math.prod(counts) <= LONGEST_TABLE:
        found = max_over_windows(x, window_table(x.shape[2:], windows.slide(counts)), counts)
        if found is not None:
            return found
    padded = pad_sizes(x, windows, counts, _lowest(x.dtype))
    shape = (*x.shape[:2], *counts)
    values, which = np.full(shape, _lowest(x.dtype), x.dtype), np.full(shape, -1)
    for number, offset in enumerate(np.ndindex(*kernel)):
        part = padded[(slice(None), slice(None), *windows.places(offset, counts))]
        # The first element is always taken: the window itself, not only the padding, may hold the lowest number.
        larger = (part > values) | (which < 0)
        if x.dtype.kind == "f":
            larger |= np.isnan(part)
        if padded is not x:
            larger &= _inside(offset, x.shape[2:], windows, counts)
        np.copyto(values, part, where=larger)
        which[larger] = number
    return values, np.where(which < 0, -1, _places(which, x.shape[2:], windows, counts))


def _inside(offset: Sizes, sizes: Sizes, windows: Windows, counts: Sizes) -> Array:
    """Where one element of the kernel meets the input itself, for all windows (*counts)."""
    out: Any = True
    for axis, (size, o, i) in enumerate(zip(sizes, counts, offset, strict=True)):
        at = np.arange(o) * windows.stride[axis] - windows.padding[axis] + i * windows.dilation[axis]
        out = out & ((at >= 0) & (at < size)).reshape((-1,) + (1,) * (len(sizes) - axis - 1))
    return out  # type: ignore[no-any-return]


def _some_empty(sizes: Sizes, windows: Windows, counts: Sizes) -> bool:
    """Is there a window of padding only? That needs a dilated kernel, whose gaps can jump over the input."""
    for size, k, s, p, d, o in zip(
        sizes, windows.kernel, windows.stride, windows.padding, windows.dilation, counts, strict=True
    ):
        if p and d > 1:
            at = np.arange(o)[:, None] * s - p + np.arange(k) * d
            if not ((at >= 0) & (at < size)).any(1).all():
                return True
    return False


def _places(which: Array, sizes: Sizes, windows: Windows, counts: Sizes) -> Array:
    """From the number within the kernel to the number within the input."""
    out: Any = 0
    steps = [math.prod(windows.kernel[axis + 1 :]) for axis in range(len(sizes))]
    for axis, size in enumerate(sizes):
        offset = which // steps[axis] % windows.kernel[axis]
        start = np.arange(counts[axis]) * windows.stride[axis] - windows.padding[axis]
        start = start.reshape((-1,) + (1,) * (len(sizes) - axis - 1))
        out = out * size + (start + offset * windows.dilation[axis])
    return out  # type: ignore[no-any-return]


def _max_vjp(m: Any, g: Any, y: Any, x_spec: Spec, *, counts: Sizes, **how: Any) -> Any:
    return m.max_pool_spread(g[0], y[1], sizes=x_spec.shape[2:], **(how or _CELLS))


def _max_infer(x: Spec, *, counts: Sizes, **_how: Any) -> tuple[Spec, Spec]:
    shape = (*x.shape[:2], *counts)
    if min(counts) < 1:
        raise ShapeError(f"max_pool: no window fits into {x}")
    return Spec(shape, x.dtype), Spec(shape, int64)


def _largest_of(x: Array, cells: list[list[int]], counts: Sizes) -> tuple[Array, Array]:
    """For the references: the first largest among the flat places of each cell."""
    flat = x.reshape(*x.shape[:2], -1)
    places = np.stack([np.asarray(cell)[np.argmax(flat[..., cell], -1)] for cell in cells], -1)
    shape = (*x.shape[:2], *counts)
    return np.take_along_axis(flat, places, -1).reshape(shape), places.reshape(shape)


def _max_pool_reference(x: Array, counts: Sizes, **how: Sizes) -> tuple[Array, Array]:
    numbers = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
    cells: dict[Sizes, list[int]] = {window: [] for window in np.ndindex(*counts)}
    for at, _, window in Windows(**how).meetings(x.shape[2:], counts):
        cells[window].append(int(numbers[at]))
    return _largest_of(x, list(cells.values()), counts)


def _how(kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, counts: Sizes) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "counts": counts}


max_pool = define(
    "max_pool",
    workspace=_workspace.of_windows,
    signature=takes(1, dilation=STEPS, kernel=STEPS, padding=SIZES, counts=SIZES, stride=STEPS),
    onnx=rules.max_pool,
    family="reduction",
    work=per_window,
    forward=_max_pool,
    infer=_max_infer,
    vjp=(_max_vjp,),
    batch=merged("max_pool"),
    reference=_max_pool_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(2, 1, 5)),), _how((2,), (2,), (0,), (1,), (2,))),
        Sample((rng.normal(size=(1, 2, 4, 5)),), _how((2, 3), (1, 2), (1, 1), (1, 1), (5, 3))),
        Sample((rng.normal(size=(1, 1, 5)),), _how((2,), (2,), (0,), (2,), (2,))),
        # The last window reaches over the edge.
        Sample((rng.normal(size=(1, 1, 2, 3)),), _how((2, 2), (2, 2), (0, 0), (1, 1), (1, 2))),
    ],
    outputs=2,
    differentiable_outputs=(0,),
    kept_outputs=(1,),
    grad_name="MaxPoolWithIndicesBackward0",
)


# -- the gradient -------------------------------------------------------------------------------------------------

# The windows of adaptive pooling have no kernel.
_CELLS: dict[str, Sizes] = {"kernel": (), "stride": (), "padding": (), "dilation": ()}


def _flat(m: Any, places: Any, sizes: Sizes, how: dict[str, Sizes]) -> tuple[Any, Any]:
    """Places with one dimension of space; and, where some windows have no elements, which ones have."""
    counts = tuple(places.shape[2:])
    places = m.reshape(places, shape=(*places.shape[:2], math.prod(counts)))
    if how["kernel"] and _some_empty(sizes, Windows(**how), counts):
        return m.clamp(places, low=0, high=None), places >= 0
    return places, None


def _max_spread(g: Array, places: Array, *, sizes: Sizes, **how: Sizes) -> Array:
    if g.shape != places.shape:
        raise ValueError("they do not fit")
    at, seen = _flat(raw_ops, places, sizes, how)
    g = g.reshape(at.shape)
    out = np.zeros((*g.shape[:2], math.prod(sizes)), g.dtype)
    add_along(out, at, g if seen is None else raw_ops.gate(g, seen), 2)
    return out.reshape(*g.shape[:2], *sizes)


def _max_spread_infer(g: Spec, places: Spec, *, sizes: Sizes, **_how: Any) -> Spec:
    if g.shape != places.shape:
        raise ShapeError(f"max_pool_spread: {g} does not fit the places {places}")
    return Spec((*g.shape[:2], *sizes), g.dtype)


def _max_spread_vjp(m: Any, h: Any, _y: Any, g_spec: Spec, places: Any, *, sizes: Sizes, **how: Sizes) -> Any:
    at, seen = _flat(m, places, sizes, how)
    found = m.gather(m.reshape(h, shape=(*g_spec.shape[:2], math.prod(sizes))), at, dim=2)
    return m.reshape(found if seen is None else m.gate(found, seen), shape=g_spec.shape)


def _max_spread_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    g, places = (m.reshape(x, shape=(size * x.shape[1], *tuple(x.shape)[2:]))
                 for x in expand_unbatched(m, size, inputs, batched))  # fmt: skip
    out = m.max_pool_spread(g, places, **attrs)
    return m.reshape(out, shape=(size, -1, *tuple(out.shape)[1:]))


def _max_spread_reference(g: Array, places: Array, sizes: Sizes, **_how: Any) -> Array:
    out = np.zeros((*g.shape[:2], math.prod(sizes)))
    for at in np.ndindex(*g.shape):
        if places[at] >= 0:
            out[(*at[:2], places[at])] += g[at]
    return out.reshape(*g.shape[:2], *sizes)


def _max_spread_samples(rng: Any) -> Iterable[Sample]:
    def sample(forward: Any, x: Array, **how: Any) -> Sample:
        values, places = forward(x, **how)
        given = {name: sizes for name, sizes in how.items() if name != "counts"} or _CELLS
        return Sample((rng.normal(size=values.shape), places), {"sizes": x.shape[2:], **given})

    yield sample(_max_pool, rng.normal(size=(1, 2, 4, 5)), **_how((2, 3), (1, 2), (1, 1), (1, 1), (5, 3)))
    # The first window lies in the padding.
    yield sample(_max_pool, rng.normal(size=(1, 1, 1)), **_how((2,), (1,), (1,), (3,), (2,)))
    yield sample(_adaptive_max_pool, rng.normal(size=(2, 1, 5)), counts=(3,))


# Every number goes to the place that was the largest of its window.
max_pool_spread = define(
    "max_pool_spread",
    signature=takes(2, sizes=SIZES, dilation=STEPS, kernel=STEPS, padding=SIZES, stride=STEPS),
    onnx=rules.max_pool_spread,
    family="indexing",
    forward=_max_spread,
    infer=_max_spread_infer,
    vjp=(_max_spread_vjp, None),
    batch=_max_spread_batch,
    reference=_max_spread_reference,
    samples=_max_spread_samples,
)

# -- cells --------------------------------------------------------------------------------------------------------


def adaptive_bounds(size: int, count: int) -> list[tuple[int, int]]:
    """(first, last) of `count` cells of nearly equal size; neighbours may overlap by one."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


@functools.lru_cache(maxsize=64)
def _cell_table(sizes: Sizes, counts: Sizes) -> Array:
    """The flat places of the elements of each cell; those smaller than the largest have -1 behind their places."""
    numbers = np.arange(math.prod(sizes), dtype=np.int32).reshape(sizes)
    bounds = [adaptive_bounds(n, o) for n, o in zip(sizes, counts, strict=True)]
    cells = [numbers[tuple(slice(*bounds[axis][i]) for axis, i in enumerate(c))].ravel() for c in np.ndindex(*counts)]
    table = np.full((max((cell.size for cell in cells), default=0), len(cells)), -1, np.int32)
    for column, cell in enumerate(cells):
        table[: cell.size, column] = cell
    return table


def _first_largest(x: Array) -> Array:
    """The index of the largest along the last axis: the first of equal ones, the last of NaNs, as in PyTorch."""
    at: Array = x.argmax(-1)
    if x.dtype.kind == "f":
        nan = np.isnan(x)
        if nan.any():
            at = np.where(nan.any(-1), x.shape[-1] - 1 - nan[..., ::-1].argmax(-1), at)
    return at


def _adaptive_max_pool(x: Array, *, counts: Sizes) -> tuple[Array, Array]:
    sizes = x.shape[2:]
    if math.prod(sizes) <= LONGEST_TABLE:
        found = max_over_windows(x, _cell_table(sizes, counts), counts)
        if found is not None:
            return found
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    values = np.empty((*x.shape[:2], *counts), x.dtype)
    places = np.empty(values.shape, np.int64)
    bounds = [adaptive_bounds(n, o) for n, o in zip(sizes, counts, strict=True)]
    for cell in np.ndindex(*counts):
        box = tuple(slice(*bounds[axis][i]) for axis, i in enumerate(cell))
        part = x[(slice(None), slice(None), *box)]
        part = part.reshape(*x.shape[:2], math.prod(part.shape[2:]))
        at = _first_largest(part)
        values[(..., *cell)] = np.take_along_axis(part, at[..., None], -1)[..., 0]
        places[(..., *cell)] = numbers[box].reshape(-1)[at]
    return values, places


def _adaptive_reference(x: Array, counts: Sizes) -> tuple[Array, Array]:
    numbers = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
    cells = []
    for cell in np.ndindex(*counts):
        box = tuple(
            slice(math.floor(i * n / o), math.ceil((i + 1) * n / o))
            for i, n, o in zip(cell, x.shape[2:], counts, strict=True)
        )
        cells.append([int(number) for number in numbers[box].ravel()])
    return _largest_of(x, cells, counts)


adaptive_max_pool = define(
    "adaptive_max_pool",
    signature=takes(1, counts=SIZES),
    onnx=rules.adaptive_max_pool,
    family="reduction",
    forward=_adaptive_max_pool,
    infer=lambda x, *, counts: (Spec((*x.shape[:2], *counts), x.dtype), Spec((*x.shape[:2], *counts), int64)),
    vjp=(_max_vjp,),
    batch=merged("adaptive_max_pool"),
    reference=_adaptive_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(2, 1, 5)),), {"counts": (3,)}),
        Sample((rng.normal(size=(1, 2, 4, 3)),), {"counts": (2, 1)}),
        Sample((rng.normal(size=(1, 1, 2)),), {"counts": (4,)}),
    ],
    outputs=2,
    differentiable_outputs=(0,),
    kept_outputs=(1,),
    grad_name="AdaptiveMaxPoolBackward0",
)
