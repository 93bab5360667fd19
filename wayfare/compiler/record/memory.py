"""Which value an array holds while a function is recorded, and what a write in place does to all that look at it.

Steps have no memory: a write gives the memory a new value. Every array that looks into the memory knows the way there
from its base (a path of view ops) and takes its part of the new value when it is next used.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from wayfare.compiler.record.graph import Graph, like
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY
from wayfare.core.write_clock import owner_of
from wayfare.ir.graph import Value

Path = tuple[Any, ...]
_WRITE = REGISTRY["write_through"]


class Memory:
    """One piece of memory: what it holds now, seen as its base array sees it."""

    __slots__ = ("base", "source", "value", "version", "written")

    def __init__(self, base: Array, value: Value, source: Any = None) -> None:
        self.base = weakref.ref(base)
        self.value = value
        self.source = source  # the Source of memory that was there before the call
        self.version = 0
        self.written = False


class Known:
    """An array that was met: its memory, the way it looks at it, and the value it had when last used."""

    __slots__ = ("array", "memory", "path", "value", "version")

    def __init__(self, array: Any, memory: Memory, path: Path, value: Value) -> None:
        self.array = array
        self.memory = memory
        self.path = path
        self.value = value
        self.version = memory.version


class Arrays:
    """The arrays met in one recording."""

    def __init__(self, graph: Graph, note: Callable[[Any], None]) -> None:
        self._graph = graph
        self._note = note  # told of every step that is entered here
        self._known: dict[int, Known] = {}
        self._owners: dict[int, Any] = {}
        self.memories: list[Memory] = []

    def find(self, array: Array) -> Known | None:
        """What is known of an array."""
        found = self._known.get(id(array))
        return found if found is not None and found.array() is array else None

    def shares(self, array: Array) -> bool:
        """Does an array that is not known look into memory that is?"""
        owner = owner_of(array)
        found = self._owners.get(id(owner))
        return found is not None and found() is owner

    def owners(self) -> list[Array]:
        """The arrays that own the memories which are known, as far as they live."""
        return [owner for known in self._owners.values() if (owner := known()) is not None]

    def own(self, array: Array, value: Value, source: Any = None) -> Known:
        """An array with memory of its own."""
        memory = Memory(array, value, source)
        self.memories.append(memory)
        return self._enter(array, memory, (), value)

    def view(self, array: Array, value: Value, of: Known, path: Path) -> Known:
        """An array that looks into the memory of another."""
        return self._enter(array, of.memory, of.path + path, value)

    def _enter(self, array: Array, memory: Memory, path: Path, value: Value) -> Known:
        key = id(array)
        known = self._known
        # No Python runs when the array goes: an exception (Ctrl-C) would be lost there.
        found = known[key] = Known(weakref.ref(array, partial(known.pop, key)), memory, path, value)
        owner = owner_of(array)
        if id(owner) not in self._owners or self._owners[id(owner)]() is None:
            self._owners[id(owner)] = weakref.ref(owner)
        return found

    def value(self, known: Known) -> Value:
        """The value an array has now."""
        memory = known.memory
        if known.version != memory.version:
            known.value = self.look(memory.value, known.path)
            known.version = memory.version
        return known.value

    def look(self, value: Value, path: Path) -> Value:
        """What a chain of view ops shows of a value."""
        for name, attrs in path:
            op, options = REGISTRY[name], dict(attrs)
            spec = op.infer(value.spec, **options)
            (value,) = self._graph.step(op, (value,), options, (like(spec.shape, spec.dtype.numpy),))
            self._note(value.step)
        return value

    def write(self, known: Known, value: Value) -> None:
        """The part of memory that an array looks at has a new value."""
        memory = known.memory
        if known.path:
            whole = memory.value
            made = (like(whole.shape, whole.dtype),)
            (memory.value,) = self._graph.step(_WRITE, (whole, value), {"path": known.path}, made)
            self._note(memory.value.step)
        else:
            memory.value = value
        memory.version += 1
        memory.written = True
        known.value, known.version = value, memory.version
