"""Nested tuples, lists and dictionaries of arguments and results: flattened into tensors and a key, and rebuilt."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np

from wayfare.compiler.captures.purity import is_user_class
from wayfare.core.device import Device
from wayfare.core.spec import DType, Size
from wayfare.core.tensor import Tensor

PLAIN = frozenset({int, bool, str, bytes, type(None), type(Ellipsis), DType, Device, Size, range})


class _Mark:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


TENSOR, VALUE, OBJECT = _Mark("tensor"), _Mark("value"), _Mark("object")
# The number in a tensor of one element, as a Python number.
ITEM = _Mark("item")


class Opaque(Exception):
    """An object whose contents cannot be compared from one call to the next."""


def take_apart(
    structure: Any, tensors: list[Tensor], objects: list[Any], met: dict[int, Any] | None = None
) -> Any:
    """Collect the tensors; returns a hashable description of the rest.

    Modules, functions and other objects are described by their identity and added to `objects`: the caller must keep
    them alive and guard their contents. With `met` (ids of known containers), lists and dictionaries must be new: a
    replay makes new ones, so an existing one would be returned as a different object.
    """
    kind = structure.__class__
    if isinstance(structure, Tensor):
        tensors.append(structure)
        return TENSOR
    if kind in PLAIN:
        return (kind, VALUE, structure)
    if kind is float or kind is complex:
        return (kind, VALUE, structure, repr(structure))  # -0.0 is not 0.0, and NaN is NaN
    if met is not None and (kind is list or kind is dict):
        if id(structure) in met:
            raise Opaque(f"a {kind.__name__} that was there before, or twice the same one")
        met[id(structure)] = structure
    if kind is tuple or kind is list or hasattr(structure, "_fields"):
        return (kind, *[take_apart(part, tensors, objects, met) for part in structure])
    if kind is dict:
        parts = []
        for key, part in structure.items():
            if key.__class__ not in PLAIN and key.__class__ is not tuple:
                raise Opaque(f"a dictionary with keys of type {type(key).__name__}")
            parts.append((key.__class__, key, take_apart(part, tensors, objects, met)))
        return (kind, *parts)
    if kind is slice:
        ends = (structure.start, structure.stop, structure.step)
        return (kind, *[take_apart(part, tensors, objects) for part in ends])
    if isinstance(structure, (enum.Enum, np.generic, np.dtype)):
        return (kind, VALUE, structure, repr(structure))
    if isinstance(structure, (type, FunctionType, MethodType, BuiltinFunctionType)) or has_identity(kind):
        objects.append(structure)
        return (kind, OBJECT, id(structure))
    raise Opaque(f"an object of type {kind.__name__}")


@lru_cache(1024)
def has_identity(kind: type) -> bool:
    """Is an object of this class compared by identity (a module, an optimiser, an object of the user's)?"""
    if is_user_class(kind):
        return not issubclass(kind, (list, dict, set, tuple, frozenset, np.ndarray))
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "wayfare" and base.__name__ in (
            "Module", "Optimizer", "LRScheduler", "Generator", "Compiled", "Fused", "FusedUpdate",
        ):  # fmt: skip
            return True
    return False


def put_together(shape: Any, tensors: Iterator[Tensor]) -> Any:
    """Rebuild the structure with other tensors."""
    if shape is TENSOR:
        return next(tensors)
    if shape is ITEM:
        return next(tensors).item()
    kind = shape[0]
    if len(shape) >= 3 and shape[1] is VALUE:
        return shape[2]
    if kind is dict:
        return {key: put_together(part, tensors) for _, key, part in shape[1:]}
    parts = [put_together(part, tensors) for part in shape[1:]]
    return kind(*parts) if hasattr(kind, "_fields") or kind is slice else kind(parts)


def has_objects(shape: Any) -> bool:
    """Does it contain an object that is compared by identity?"""
    if shape is TENSOR or not isinstance(shape, tuple):
        return False
    return OBJECT in shape[1:2] or any(has_objects(part[2] if shape[0] is dict else part) for part in shape[1:])
