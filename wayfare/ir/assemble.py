"""The `assemble` op: one array filled from parts at given indexes, such as the gradients of several slices of a
tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import Spec

Attrs = dict[str, Any]


def part_of(out: Array, index: Any) -> Array:
    """The part of an array that a basic index names, as a view."""
    return REGISTRY["basic_index"].forward(out, index=index)  # type: ignore[no-any-return]


class _Key:
    def __getitem__(self, key: Any) -> Any:
        return key


def numpy_key(index: Any) -> Any:
    """A basic index in the form that NumPy takes."""
    return REGISTRY["basic_index"].forward(_Key(), index=index)


def cover(shape: tuple[int, ...], indexes: Any) -> tuple[bool, bool]:
    """(do the parts not overlap, do they cover the whole array)"""
    seen = np.zeros(shape, np.int8)
    for index in indexes:
        part_of(seen, index)[...] += 1
    return bool((seen <= 1).all()), bool((seen >= 1).all())


def _forward(*parts: Array, shape: tuple[int, ...], indexes: Any) -> Array:
    out = np.zeros(shape, parts[0].dtype)
    for part, index in zip(parts, indexes, strict=True):
        part_of(out, index)[...] += part
    return out


def _by_ops(m: Any, parts: Any, attrs: Attrs) -> Any:
    placed = [m.place(p, shape=attrs["shape"], index=i) for p, i in zip(parts, attrs["indexes"], strict=True)]
    total = placed[0]
    for p in placed[1:]:
        total = m.add(total, p)
    return total


# Only made by lowering, after differentiation and batching.
ASSEMBLE = Op(
    name="assemble", family="movement", forward=_forward, vjp=None,
    infer=lambda *parts, shape, indexes: Spec(shape, parts[0].dtype),
    batch=lambda m, size, inputs, batched, attrs: _by_ops(m, inputs, attrs), samples=lambda rng: (), reference=_forward,
)  # fmt: skip


def placed(op: Op | None, attrs: Attrs) -> tuple[Any, ...] | None:
    """The indexes at which a step writes its inputs into zeros; None if it does something else."""
    if op is ASSEMBLE:
        return tuple(attrs["indexes"])
    return (attrs["index"],) if op is not None and op.name == "place" else None
