"""What a pack hook (`saved_tensors_hooks`) made of the values that a node keeps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.device import ARRAYS
from wayfare.core.node import Node
from wayfare.core.tensor import Tensor, wrap


def pack(node: Node, hooks: tuple[Callable[[Any], Any], Callable[[Any], Any]]) -> None:
    """Replace what a node keeps by what the pack hook returns."""
    assert node.kept is not None
    pack_hook, unpack = hooks
    node.kept = tuple(Packed(pack_hook(wrap(k)), k) if k.__class__ in ARRAYS else k for k in node.kept)
    node.more().unpack = unpack


class Packed:
    """What a pack hook returned, and a weak reference to the array it was called with, to notice later writes."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, array: Any) -> None:
        self.value = value
        # If the hook returned a tensor in other memory, it is a copy, which later writes do not change.
        copied = isinstance(value, Tensor) and not _share_memory(value._array, array)
        self.source: Callable[[], Any] = _no_source if copied else weakref.ref(array)


def _share_memory(one: Any, other: Any) -> bool:
    return one.__class__ is other.__class__ and bool(np.may_share_memory(one, other))


def _no_source() -> None:
    return None
