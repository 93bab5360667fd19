"""Which dimension of what is the batch of a `vmap`: numbers nested as the arguments or the results are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from wayfare.core.errors import ArgumentError


class VmapInfo(NamedTuple):
    """What the `vmap` of a custom Function is told of the batch."""

    batch_size: int
    randomness: str


class OtherStructure(Exception):
    """Dims that are nested in another way than what they are of."""


def is_dim(dim: Any) -> bool:
    """Can it say where a batch lies?"""
    return dim is None or (isinstance(dim, int) and not isinstance(dim, bool))


def no_dims(name: str, dims: Any) -> ArgumentError:
    """The error of something that says nothing of a batch."""
    return ArgumentError(f"vmap: {name} must be a number, None, or a tuple of those, not {dims!r}")


def each(structure: Any, dim: Any, leaf: Callable[[Any, Any], Any]) -> Any:
    """Apply `leaf(value, dim)` through tuples, lists and dictionaries; `dim` may have the same structure."""
    if isinstance(structure, dict):
        if isinstance(dim, dict) and dim.keys() != structure.keys():
            raise OtherStructure
        return {k: each(v, dim[k] if isinstance(dim, dict) else dim, leaf) for k, v in structure.items()}
    if isinstance(structure, (tuple, list)):
        dims = dim if isinstance(dim, (tuple, list)) else [dim] * len(structure)
        if len(dims) != len(structure):
            raise OtherStructure
        made = [each(v, d, leaf) for v, d in zip(structure, dims, strict=True)]
        if hasattr(structure, "_fields"):
            return type(structure)(*made)
        return type(structure)(made)
    if isinstance(dim, (tuple, list, dict)):
        raise OtherStructure
    if not is_dim(dim):
        raise no_dims("a dimension of the batch", dim)
    return leaf(structure, dim)
