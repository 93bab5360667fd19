"""Arrays read and written at indices on CUDA, by rows.

An index is a tuple of integer arrays and full slices, as NumPy takes it. It becomes one number for each row of a table,
and kernels do the rest: results are those of NumPy's loop over the index, the same at every run. Nothing is added
atomically. An index out of range does no harm; whoever gives one says so (`CudaBackend.require`).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from wayfare.codegen.cuda.kernels.rows import add_rows, fold_rows, gather_rows, put_rows


def take(b: Any, x: Any, index: Any, dim: int) -> Any:
    """x.take(index, axis=dim); negative indices count from the end."""
    if dim or not x.flags.c_contiguous:
        return b.xp.take(x, index, axis=dim)
    out = b.empty((*index.shape, *x.shape[1:]), x.dtype)
    if x.size:
        gather_rows(b.launcher, _keys(b, index), out, x)
    return out


def add_at(b: Any, out: Any, index: tuple[Any, ...], values: Any) -> None:
    """`out[index] += values` in place, where an index that repeats adds each time."""
    _at(b, add_rows, out, index, values)


def put_at(b: Any, out: Any, index: tuple[Any, ...], values: Any) -> None:
    """`out[index] = values` in place; where an index repeats, the last value stays."""
    _at(b, put_rows, out, index, values)


def _at(b: Any, run: Any, out: Any, index: tuple[Any, ...], values: Any) -> None:
    """Run a kernel on the rows of a C-contiguous array that an index names."""
    xp = b.xp
    dims = [d for d, entry in enumerate(index) if not isinstance(entry, slice)]
    if not out.size:
        return
    keys: Any = 0
    for d in dims:
        keys = keys * out.shape[d] + index[d].astype(np.int64) % out.shape[d]
    if not keys.size:
        return
    # In the result the indexed part stands where the first index is; in front if the indices are apart.
    before = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    rest = [n for d, n in enumerate(out.shape) if d not in dims]
    values = xp.broadcast_to(values, (*rest[:before], *keys.shape, *rest[before:]))
    values = xp.moveaxis(values, range(before, before + keys.ndim), range(keys.ndim))
    keys = _keys(b, keys)
    order = xp.argsort(keys, kind="stable")
    leading = xp.moveaxis(out, dims, range(len(dims)))
    table = b.in_c_order(leading)
    run(b.launcher, keys, order, b.in_c_order(values), table.reshape(-1, math.prod(rest)))
    if not leading.flags.c_contiguous:
        leading[...] = table


def _keys(b: Any, index: Any) -> Any:
    return b.in_c_order(index.astype(np.int64, copy=False)).reshape(-1)


def extreme_at(b: Any, out: Any, index: Any, values: Any, how: str) -> None:
    """`out[index] = maximum(out[index], values)` in place, over all that are named; or minimum. NaN wins."""
    _at(b, partial(fold_rows, how), out, index, values)
