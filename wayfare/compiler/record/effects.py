"""Side effects: attributes, globals and closure variables that a function assigns.

`self.last = h` is assigned again after every replay, with the tensor of that replay; `self.calls += 1` is counted up. A
variable that a function both reads and assigns (`self.state`) is a state: an input of every call, like an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wayfare.compiler.captures.location import Path
from wayfare.compiler.captures.reach import Reach
from wayfare.compiler.structure import Opaque, has_objects, put_together, take_apart
from wayfare.core.structure_epoch import structure_changed
from wayfare.core.tensor import Tensor

ABSENT: Any = object()


class Begun(Exception):
    """A counter was created by this call: record the next call instead."""


class Variable:
    """A variable that is assigned: an entry of a dictionary (attributes, globals), or a closure cell."""

    __slots__ = ("holder", "in_module", "key", "path")

    def __init__(self, holder: Any, key: Any, path: Path, in_module: bool = False) -> None:
        self.holder, self.key, self.path, self.in_module = holder, key, path, in_module

    def get(self) -> Any:
        """Its value, or `ABSENT`."""
        if isinstance(self.holder, dict):
            return self.holder.get(self.key, ABSENT)
        try:
            return self.holder.cell_contents
        except ValueError:
            return ABSENT

    def set(self, value: Any) -> None:
        """Assign it."""
        if isinstance(self.holder, dict):
            self.holder[self.key] = value
        else:
            self.holder.cell_contents = value
        if self.in_module:
            structure_changed()

    @property
    def name(self) -> str:
        """Its name in the code that assigns it."""
        return str(self.path) if self.key == "cell_contents" else str(self.key)

    @property
    def identity(self) -> tuple[int, Any]:
        """A key that identifies it."""
        return id(self.holder), self.key


class Effect:
    """One assignment by a call: of a structure of tensors and values, or an integer that is counted up."""

    __slots__ = ("by", "outputs", "shape", "variable")

    def __init__(self, variable: Variable, shape: Any, by: int | None = None) -> None:
        self.variable = variable
        self.shape = shape
        self.by = by
        self.outputs: list[int] = []  # for each tensor of the structure: the number of the output

    def apply(self, tensors: Sequence[Tensor]) -> None:
        """Make the assignment; `tensors` are the outputs of the call."""
        self.variable.set(self.value(tensors))

    def value(self, tensors: Sequence[Tensor]) -> Any:
        """The assigned value."""
        if self.by is not None:
            return self.variable.get() + self.by
        return put_together(self.shape, iter([tensors[i] for i in self.outputs]))


class Assigned:
    """The variables that a function may assign, with their values before a call."""

    def __init__(self, seen: Reach, states: Sequence[Variable]) -> None:
        self._seen = seen
        names, self._states = seen.names, {state.identity for state in states}
        found = [Variable(held, name, path.attribute(name), module)
                 for held, path, module in seen.holders for name in names.stored]  # fmt: skip
        found += [Variable(holder, key, path) for holder, key, path in seen.assigned]
        self._before = [(variable, variable.get()) for variable in {v.identity: v for v in found}.values()]

    def effects(self, tensors: list[Tensor]) -> list[Effect]:
        """The assignments of the call; their tensors are added to `tensors`. Raises `Opaque` if one cannot be
        repeated."""
        found = []
        for variable, before in self._before:
            now = variable.get()
            if now is before or (self._is_guarded(variable) and variable.identity not in self._states):
                continue
            if now is ABSENT:
                raise Opaque(f"deletes {variable.path.called()}")
            if self._counts(variable) and type(now) is int:
                if type(before) is not int:
                    raise Begun(variable.path.called())
                found.append(Effect(variable, None, now - before))
                continue
            objects: list[Any] = []
            inside: list[Tensor] = []
            try:
                effect = Effect(variable, take_apart(now, inside, objects, {}))
            except Opaque as what:
                raise Opaque(f"assigns {what} to {variable.path.called()}") from None
            if has_objects(effect.shape):
                raise Opaque(f"assigns an object to {variable.path.called()}")
            effect.outputs = list(range(len(tensors), len(tensors) + len(inside)))
            tensors += inside
            found.append(effect)
        return found

    def _is_guarded(self, variable: Variable) -> bool:
        """Is it read as well? Then guards notice that it changed."""
        return variable.identity in self._seen.watched

    def _counts(self, variable: Variable) -> bool:
        names = self._seen.names
        return variable.name in names.counted and variable.name not in names.read


def values_of(states: Sequence[Variable], take: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The values of the states, flattened by `take`."""
    return tuple([ABSENT if (value := state.get()) is ABSENT else take(value) for state in states])
