"""New tensors by rule: ranges, grids, identity and the indices of triangles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.functions._new import made, read_device, read_dtype, read_int, read_number
from wayfare.api.functions.join import stack
from wayfare.api.functions.shape import expanded, reshaped
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentTypeError, OperationError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.op_failure import memory_error, no_memory
from wayfare.core.spec import default_dtype, float64, int64
from wayfare.core.tensor import Tensor

__all__ = [
    "arange", "linspace", "logspace", "eye", "tril_indices", "triu_indices",
    "meshgrid", "cartesian_prod", "combinations",
]  # fmt: skip


def arange(
    *args: Any, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False, **named: Any,
) -> Tensor:  # fmt: skip
    """`arange(start=0, end, step=1)`: numbers from start up to, not including, end; int64 if all are ints."""
    start, end, step = _bounds(args, named)
    whole = not any(isinstance(v, float) for v in (start, end, step))
    kind = read_dtype("arange", dtype, int64 if whole else default_dtype())
    if step == 0:
        raise OperationError("arange: step must not be zero")
    if not all(math.isfinite(v) for v in (start, end, step)):
        raise OperationError(f"arange: bounds must be finite, given {start}, {end} and step {step}")
    if (end - start) * step < 0:
        raise OperationError(f"arange: steps of {step} do not lead from {start} to {end}")
    if kind is int64:
        start, end, step = int(start), int(end), int(step)
        if step == 0:
            raise OperationError("arange: a step below 1 is zero in int64", fix="Give dtype=wf.float32.")
        count = max(0, -((start - end) // step))
    else:
        count = math.ceil((end - start) / step)
    try:
        array = np.arange(count) * step + start
    except (MemoryError, ValueError):
        raise no_memory("arange", (count,), kind.numpy) from None
    return made(array.astype(kind.numpy, copy=False), requires_grad, read_device(device))


def _bounds(args: Sequence[Any], named: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(start, end, step) from `arange(end)`, `arange(start, end)`, `arange(start, end, step)` or by name."""
    given = dict(
        zip(
            ("end",) if len(args) == 1 and "end" not in named else ("start", "end", "step"),
            args,
            strict=False,
        )
    )
    if len(args) > 3 or set(named) - {"start", "end", "step"} or set(named) & set(given) or "end" not in given | named:
        raise ArgumentTypeError("arange: takes (end), (start, end) or (start, end, step)")
    given |= named
    values = (given.get("start", 0), given["end"], given.get("step", 1))
    start, end, step = (
        read_number("arange", name, v) for name, v in zip(("start", "end", "step"), values, strict=True)
    )
    return start, end, step


def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """`steps` evenly spaced numbers from start to end, both included."""
    kind = read_dtype("linspace", dtype)
    numbers = _evenly("linspace", start, end, steps, kind.rank == 1)
    return made(numbers.astype(kind.numpy), requires_grad, read_device(device))


def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """`base` to the power of `steps` evenly spaced numbers from start to end."""
    kind = read_dtype("logspace", dtype)
    exponents = _evenly("logspace", start, end, steps, kind.rank == 1)
    with np.errstate(all="ignore"):
        return made(np.power(float(base), exponents).astype(kind.numpy), requires_grad, read_device(device))


def _evenly(op: str, start: Any, end: Any, steps: int, whole: bool) -> Any:
    """In float64, from both ends to the middle: symmetric. If `whole`, the bounds are cut to ints."""
    a, b = read_number(op, "start", start), read_number(op, "end", end)
    count = read_int(op, "steps", steps)
    if count < 0:
        raise OperationError(f"{op}: the number of steps must not be negative, but is {count}")
    if whole:
        a, b = int(a), int(b)
    if count <= 1:
        return np.full(count, float(a))
    step = (b - a) / (count - 1)
    try:
        index = np.arange(count)
        return np.where(index < count // 2, a + step * index, b - step * (count - 1 - index))
    except (MemoryError, ValueError):
        raise no_memory(op, (count,), float64.numpy) from None


def eye(
    n: int, m: int | None = None, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A matrix with ones on the diagonal and zeros elsewhere."""
    rows = read_int("eye", "n", n)
    columns = rows if m is None else read_int("eye", "m", m)
    if rows < 0 or columns < 0:
        raise OperationError(f"eye: sizes must not be negative, given {rows} and {columns}")
    kind = read_dtype("eye", dtype)
    try:
        return made(np.eye(rows, columns, dtype=kind.numpy), requires_grad, read_device(device))
    except (MemoryError, ValueError):
        raise no_memory("eye", (rows, columns), kind.numpy) from None


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, layout: Any = None
) -> Tensor:
    """Rows and columns of the lower triangle of a row × col matrix, as two rows of an int64 tensor."""
    return _triangle_indices("tril_indices", np.tril, row, col, offset, dtype, device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, layout: Any = None
) -> Tensor:
    """Rows and columns of the upper triangle of a row × col matrix, as two rows of an int64 tensor."""
    return _triangle_indices("triu_indices", np.triu, row, col, offset, dtype, device)


def _triangle_indices(op: str, cut: Any, row: int, col: int, offset: int, dtype: Any, device: Any) -> Tensor:
    if row < 0 or col < 0:
        raise OperationError(f"{op}: sizes must not be negative, given {row} and {col}")
    try:
        found = np.nonzero(cut(np.ones((row, col), bool), offset))
    except MemoryError as error:
        raise memory_error(op, error) from None
    except ValueError:  # more than NumPy can count
        raise no_memory(op, (row, col), bool) from None
    made_of = np.stack(found).astype(read_dtype(op, dtype, int64).numpy, copy=False)
    return made(made_of, device=read_device(device))


def _vectors(op: str, tensors: Sequence[Any]) -> tuple[Tensor, ...]:
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tensors[0]
    for number, x in enumerate(tensors):
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f"{op}: item {number} is {type(x).__name__}, not a tensor")
        if x.ndim > 1:
            raise ShapeError(f"{op}: expects tensors of at most 1 dimension, item {number} is {x.spec}")
        if x.dtype is not tensors[0].dtype:
            raise OperationError(f"{op}: all tensors must have one dtype, given {tensors[0].dtype} and {x.dtype}")
    return tuple(tensors)


def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """The coordinates of a grid: for vectors of sizes n, m, … tensors of shape (n, m, …), as views.

    `indexing="xy"` exchanges the first two dimensions, as for pictures; the default is "ij".
    """
    axes = _vectors("meshgrid", tensors)
    if indexing not in (None, "ij", "xy"):
        raise OperationError(f"meshgrid: indexing must be 'ij' or 'xy', not {indexing!r}")
    order = list(range(len(axes)))
    if indexing == "xy" and len(axes) > 1:
        order[:2] = [1, 0]
    sizes = [x.shape.numel() for x in axes]
    shape = tuple(sizes[i] for i in order)
    place = {number: d for d, number in enumerate(order)}
    return tuple(
        expanded(reshaped(x, tuple(sizes[i] if d == place[i] else 1 for d in range(len(axes)))), shape)
        for i, x in enumerate(axes)
    )


def cartesian_prod(*tensors: Any) -> Tensor:
    """All combinations of one element from each vector, as rows."""
    axes = _vectors("cartesian_prod", tensors)
    if len(axes) == 1:
        return reshaped(axes[0], (axes[0].shape.numel(),))
    return stack([reshaped(x, (x.shape.numel(),)) for x in meshgrid(*axes)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of `r` elements of a vector, in order, as rows."""
    if input.ndim != 1:
        raise OperationError(f"combinations: expects a vector, not {input.spec}")
    if r < 0:
        raise OperationError(f"combinations: r must not be negative, but is {r}")
    if r == 0:
        return made(np.empty(0, input.dtype.numpy), device=input.device)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    rows = apply(REGISTRY["index_select"], (input, made(chosen.reshape(-1), device=input.device)), {"dim": 0})
    return reshaped(rows, chosen.shape)
