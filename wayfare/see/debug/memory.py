"""Which arrays are alive, how many bytes they take, and which value each of them is. They are held weakly."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from wayfare.core.buffer_pool import owns_memory
from wayfare.core.device import ARRAYS


class Alive(weakref.ref):  # type: ignore[type-arg]
    """An array that is alive: which value it is (-1: none), and its bytes."""

    __slots__ = ("bytes", "key", "node")

    bytes: int
    key: int
    node: int


class Memory:
    """The arrays that were seen and are alive."""

    def __init__(self) -> None:
        self._bytes = 0
        # By the id of the array, which is its own as long as it is in here.
        self._alive: dict[int, Alive] = {}
        # Dead ones are appended here, and removed at the next access: an exception (Ctrl-C) in Python code that runs
        # when an array dies would be lost.
        self._dead: deque[Alive] = deque()
        self._counts = True

    @property
    def bytes(self) -> int:
        """The bytes of the arrays that are alive."""
        self._bury()
        return self._bytes

    @property
    def alive(self) -> dict[int, Alive]:
        """The arrays that are alive, by id."""
        self._bury()
        return self._alive

    def note(self, array: Any, node: int) -> None:
        """Count an array until it is let go of; `node` is the value it is, -1 for none."""
        if not self._counts:
            return
        key = id(array)
        alive = self.alive
        known = alive.get(key)
        if known is not None:
            if known.node < 0:
                known.node = node
            return
        alive[key] = known = Alive(array, self._dead.append)
        known.key = key
        known.node = node
        if owns_memory(array):
            known.bytes = size = array.nbytes
            self._bytes += size
            return
        known.bytes = 0
        if array.base.__class__ in ARRAYS:
            # A view has no memory of its own; its base has.
            self.note(array.base, -1)

    def _bury(self) -> None:
        while self._dead:
            known = self._dead.popleft()
            self._bytes -= known.bytes
            self._alive.pop(known.key, None)

    def let_go(self) -> None:
        """Stop counting."""
        self._counts = False
        self._alive = {}
        self._dead.clear()
