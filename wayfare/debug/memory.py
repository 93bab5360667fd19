"""Which arrays are alive, what they weigh, and which value each of them is. They are held weakly."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.backend.pool import owns_memory

_ndarray = np.ndarray


class Alive(weakref.ref):  # type: ignore[type-arg]
    """An array that still lives: which value it is (-1: none), and what it weighs."""

    __slots__ = ("bytes", "key", "node")

    bytes: int
    key: int
    node: int


class Memory:
    """The arrays that were seen and are alive."""

    def __init__(self) -> None:
        self.bytes = 0
        # By the id of the array, which is its own as long as it is in here.
        self.alive: dict[int, Alive] = {}
        self._dead: Callable[[Any], None] = self._died

    def note(self, array: Any, node: int) -> None:
        """Count an array until it is let go of; `node` is the value it is, -1 for none."""
        key = id(array)
        known = self.alive.get(key)
        if known is not None:
            if known.node < 0:
                known.node = node
            return
        self.alive[key] = known = Alive(array, self._dead)
        known.key = key
        known.node = node
        if owns_memory(array):
            known.bytes = size = array.nbytes
            self.bytes += size
            return
        known.bytes = 0
        if array.base.__class__ is _ndarray:
            # A view weighs nothing, but what it looks into does.
            self.note(array.base, -1)

    def _died(self, known: Any) -> None:
        self.bytes -= known.bytes
        self.alive.pop(known.key, None)

    def let_go(self) -> None:
        """Count no longer."""
        self.alive = {}
        self._dead = _ignore


def _ignore(_known: Any) -> None:
    """Nobody counts any more."""
