"""How much memory the values of one call of a program hold, and when a value is not needed any more."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array
from wayfare.exporters.bundle.json_values import Bad
from wayfare.exporters.program import Block, Var


class Held:
    """The memory that a call has made and that is still in use: counted once, whoever looks at it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._owners: dict[int, weakref.ref[Any]] = {}

    def expect(self, name: str, result: int, room: int) -> None:
        """A step of that name is about to make a result of so many bytes, and needs so many more on its way."""
        if self._total + result > self._limit:
            raise self._too_much(name, self._total + result)
        if self._total + result + room > self._limit:
            raise Bad(f"{name} would need {room:,} bytes on its way beside the {self._total + result:,} of its values, "
                      f"over the {self._limit:,} allowed")  # fmt: skip

    def add(self, name: str, array: Array) -> None:
        """A step of that name has given this array."""
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
    """For each node (by id) the variables (by id) of its own block that nobody needs after it."""
    found: dict[int, list[int]] = {}
    _uses(block, found)
    return found


def _uses(block: Block, found: dict[int, list[int]]) -> set[int]:
    """Everything that a block looks at; where what it makes itself is looked at for the last time goes to `found`."""
    last: dict[int, int] = {}
    used: set[int] = set()
    for number, node in enumerate(block.nodes):
        found[id(node)] = []
        inside = {id(v) for v in node.inputs}
        for inner in node.blocks:
            inside |= _uses(inner, found)
        used |= inside
        for var in (*inside, *[id(v) for v in node.outputs]):
            last[var] = number
    results = {id(v) for v in block.outputs}
    own = {id(v) for v in (*block.inputs, *[v for node in block.nodes for v in node.outputs]) if not _constant(v)}
    for var, number in last.items():
        if var in own and var not in results:
            found[id(block.nodes[number])].append(var)
    return used | results


def _constant(var: Var) -> bool:
    return var.array is not None
