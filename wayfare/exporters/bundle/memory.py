"""The memory that the values of one call hold, and when a value can be freed."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array
from wayfare.exporters.bundle.json_values import Bad
from wayfare.ir.graph import Block


class MemoryUse:
    """Counts the bytes of arrays that a call has made and that are still in use; views count once, with their base."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._owners: dict[int, weakref.ref[Any]] = {}

    def expect(self, name: str, result: int, workspace: int) -> None:
        """Refuse a step whose result or workspace would exceed the limit."""
        if self._total + result > self._limit:
            raise self._too_much(name, self._total + result)
        if self._total + result + workspace > self._limit:
            raise Bad(f"{name} would need {workspace:,} bytes of workspace in addition to the "
                      f"{self._total + result:,} of its values, over the {self._limit:,} allowed")  # fmt: skip

    def add(self, name: str, array: Array) -> None:
        """Count an array that a step has made."""
        owner: Any = array
        while isinstance(getattr(owner, "base", None), np.ndarray):
            owner = owner.base
        key = id(owner)
        if key in self._owners:
            return
        size = owner.nbytes

        def gone(_reference: Any) -> None:
            self._total -= size
            del self._owners[key]

        self._owners[key] = weakref.ref(owner, gone)
        self._total += size
        if self._total > self._limit:
            raise self._too_much(name, self._total)

    def _too_much(self, name: str, total: int) -> Bad:
        return Bad(f"with the result of {name} its values take {total:,} bytes, over the {self._limit:,} allowed")


def last_uses(block: Block) -> dict[int, list[int]]:
    """For each step (by id), the values (by id) of its block that are not used after it."""
    found: dict[int, list[int]] = {}
    _uses(block, found)
    return found


def _uses(block: Block, found: dict[int, list[int]]) -> set[int]:
    """All values that a block uses. The last use of each of its own values is entered in `found`."""
    last: dict[int, int] = {}
    used: set[int] = set()
    for number, step in enumerate(block.steps):
        found[id(step)] = []
        inside = {id(v) for v in step.inputs}
        for inner in step.blocks:
            inside |= _uses(inner, found)
        used |= inside
        for value in (*inside, *[id(v) for v in step.outputs]):
            last[value] = number
    results = {id(v) for v in block.outputs}
    own = {id(v) for v in (*block.inputs, *[v for step in block.steps for v in step.outputs])}
    for value, number in last.items():
        if value in own and value not in results:
            found[id(block.steps[number])].append(value)
    return used | results
