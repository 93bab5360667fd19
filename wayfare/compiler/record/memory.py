"""Aliasing: which value each array holds while a function is recorded, and how a write in place changes its views.

Steps are pure: a write gives a piece of memory a new value. Every array knows its memory and the view ops that lead to
it from the base array; when it is next used after a write, these view ops are applied to the new value.
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
    """One piece of memory, and the value that its base array holds now."""

    __slots__ = ("base", "source", "value", "version", "written")

    def __init__(self, base: Array, value: Value, source: Any = None) -> None:
        self.base = weakref.ref(base)
        self.value = value
        self.source = source  # its Source, if it existed before the call
        self.version = 0
        self.written = False


class ArrayState:
    """An array of the recording: its memory, its view ops, and its value when it was last used."""

    __slots__ = ("array", "memory", "path", "value", "version")

    def __init__(self, array: Any, memory: Memory, path: Path, value: Value) -> None:
        self.array = array
        self.memory = memory
        self.path = path
        self.value = value
        self.version = memory.version


class Arrays:
    """The arrays of one recording."""

    def __init__(self, graph: Graph, note: Callable[[Any], None]) -> None:
        self._graph = graph
        self._note = note  # called with every step that is recorded here
        self._known: dict[int, ArrayState] = {}
        self._owners: dict[int, Any] = {}
        self.memories: list[Memory] = []

    def find(self, array: Array) -> ArrayState | None:
        """The state of an array, or None."""
        found = self._known.get(id(array))
        return found if found is not None and found.array() is array else None

    def shares(self, array: Array) -> bool:
        """Does an unknown array share memory with a known one?"""
        owner = owner_of(array)
        found = self._owners.get(id(owner))
        return found is not None and found() is owner

    def owners(self) -> list[Array]:
        """The living arrays that own the known pieces of memory."""
        return [owner for known in self._owners.values() if (owner := known()) is not None]

    def own(self, array: Array, value: Value, source: Any = None) -> ArrayState:
        """Add an array that owns its memory."""
        memory = Memory(array, value, source)
        self.memories.append(memory)
        return self._enter(array, memory, (), value)

    def view(self, array: Array, value: Value, of: ArrayState, path: Path) -> ArrayState:
        """Add an array that is a view of another."""
        return self._enter(array, of.memory, of.path + path, value)

    def _enter(self, array: Array, memory: Memory, path: Path, value: Value) -> ArrayState:
        key = id(array)
        known = self._known
        # No Python code runs when the array is deleted: an exception there (Ctrl-C) would be lost.
        found = known[key] = ArrayState(weakref.ref(array, partial(known.pop, key)), memory, path, value)
        owner = owner_of(array)
        if id(owner) not in self._owners or self._owners[id(owner)]() is None:
            self._owners[id(owner)] = weakref.ref(owner)
        return found

    def value(self, known: ArrayState) -> Value:
        """The current value of an array."""
        memory = known.memory
        if known.version != memory.version:
            known.value = self.apply_views(memory.value, known.path)
            known.version = memory.version
        return known.value

    def apply_views(self, value: Value, path: Path) -> Value:
        """Apply a chain of view ops to a value."""
        for name, attrs in path:
            op, options = REGISTRY[name], dict(attrs)
            spec = op.infer(value.spec, **options)
            (value,) = self._graph.step(op, (value,), options, (like(spec.shape, spec.dtype.numpy),))
            self._note(value.step)
        return value

    def write(self, known: ArrayState, value: Value) -> None:
        """Give an array, and so its part of the memory, a new value."""
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
