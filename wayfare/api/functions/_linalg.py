"""What the linear-algebra functions share: running a record after its shape rule, stacks, triangles, identities."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_tensor
from wayfare.core.autocast import FLOAT32_ON_CPU
from wayfare.core.dispatch import apply
from wayfare.core.op import REGISTRY
from wayfare.core.spec import broadcast
from wayfare.core.tensor import Tensor, on_device_of


@follows_autocast(FLOAT32_ON_CPU)
def run(name: str, *tensors: Tensor, **attrs: Any) -> Any:
    """Run a record. The shape rule checks first, because NumPy would convert integers and half floats silently."""
    record = REGISTRY[name]
    for t in tensors:
        check_tensor(name, t)
    record.infer(*(t.spec for t in tensors), **attrs)
    return apply(record, tensors, attrs)


def transposed(x: Tensor) -> Tensor:
    """Each matrix transposed, as a view."""
    n = x.ndim
    return apply(REGISTRY["permute"], (x,), {"dims": (*range(n - 2), n - 1, n - 2)})  # type: ignore[no-any-return]


def reshaped(x: Tensor, *shape: int) -> Tensor:
    """The same elements under another shape."""
    return apply(REGISTRY["reshape"], (x,), {"shape": shape})  # type: ignore[no-any-return]


def stretched(x: Tensor, *shape: int) -> Tensor:
    """Broadcast to a shape, as a view."""
    if tuple(x.shape) == shape:
        return x
    return apply(REGISTRY["expand"], (x,), {"shape": shape})  # type: ignore[no-any-return]


def part(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    """A piece of one dimension, counted from the last if negative."""
    attrs = {"dim": dim % x.ndim, "start": start, "stop": stop, "step": 1}
    return apply(REGISTRY["slice"], (x,), attrs)  # type: ignore[no-any-return]


def lower(x: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle, zeros above it."""
    return apply(REGISTRY["tril"], (x,), {"diagonal": diagonal})  # type: ignore[no-any-return]


def upper(x: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle, zeros below it."""
    return apply(REGISTRY["triu"], (x,), {"diagonal": diagonal})  # type: ignore[no-any-return]


def total(x: Tensor, *dims: int, keepdim: bool = False) -> Tensor:
    """The sum over some dimensions, counted from the last if negative."""
    attrs = {"dim": tuple(sorted(d % x.ndim for d in dims)), "keepdim": keepdim}
    return apply(REGISTRY["sum"], (x,), attrs)  # type: ignore[no-any-return]


def identity(like: Tensor, rows: int, columns: int | None = None) -> Tensor:
    """An identity matrix of the dtype of another tensor."""
    return on_device_of(like, np.eye(rows, columns, dtype=like.dtype.numpy))


def constant_like(like: Tensor, values: Any) -> Tensor:
    """Numbers as a tensor of the dtype of another one."""
    return on_device_of(like, np.asarray(values).astype(like.dtype.numpy))


def same_stacks(op: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of matrices with their leading dimensions broadcast."""
    lead = broadcast(op, tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    return stretched(a, *lead, *a.shape[-2:]), stretched(b, *lead, *b.shape[-2:])
