"""Flattening nested tuples, lists and dictionaries into tensors, floats and a structure, and rebuilding them."""

from __future__ import annotations

from typing import Any

from wayfare.core.tensor import Tensor


def flatten(structure: Any, tensors: list[Tensor], floats: list[float]) -> Any:
    """Append tensors and floats to the lists; returns the structure for `rebuild`, hashable if its values are."""
    if isinstance(structure, Tensor):
        tensors.append(structure)
        return TENSOR
    if structure.__class__ is float:
        floats.append(structure)
        return _FLOAT
    if structure.__class__ in (tuple, list) or hasattr(structure, "_fields"):
        return (structure.__class__, *[flatten(part, tensors, floats) for part in structure])
    if structure.__class__ is dict:
        return (dict, *[(k, flatten(v, tensors, floats)) for k, v in structure.items()])
    return (structure.__class__, _LEAF, structure)


def rebuild(shape: Any, tensors: Any, floats: Any) -> Any:
    if shape is TENSOR:
        return next(tensors)
    if shape is _FLOAT:
        return next(floats)
    kind = shape[0]
    if len(shape) == 3 and shape[1] is _LEAF:
        return shape[2]
    if kind is dict:
        return {k: rebuild(v, tensors, floats) for k, v in shape[1:]}
    parts = [rebuild(part, tensors, floats) for part in shape[1:]]
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


TENSOR, _FLOAT, _LEAF = _Mark("tensor"), _Mark("float"), _Mark("value")
UNKNOWN: Any = _Mark("unknown")


def only_tensors(shape: Any) -> bool:
    if shape is TENSOR:
        return True
    if shape is _FLOAT or (len(shape) == 3 and shape[1] is _LEAF):
        return False
    return all(only_tensors(part[1] if shape[0] is dict else part) for part in shape[1:])
