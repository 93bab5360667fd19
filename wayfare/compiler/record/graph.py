"""The graph that all recordings of an entry share. Steps are interned: equal ops on equal values are one step.

So two recordings with the same beginning share its values, and one plan serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.core.device import Device, memory_key, to_host
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.core.tensor import Tensor
from wayfare.ir.graph import Step, Value, constant, leaf
from wayfare.ir.passes.common_subexpressions import array_key, number_key, step_key


class Source:
    """Where a call finds an input of the graph: an argument, a captured tensor, the `.grad` of one of these, or the
    base of a view."""

    __slots__ = ("kind", "layout", "path", "value", "what")

    def __init__(self, kind: str, what: Any, array: Array, number: int) -> None:
        self.kind = kind  # "argument", "captured", "grad", "base"
        self.what = what
        self.value = leaf("input", number, array.shape, array.dtype)
        self.layout = array.strides, memory_key(array)
        self.path: tuple[Any, ...] = ()  # of a base: the view ops from it to the view

    def tensor(self, arguments: Sequence[Tensor]) -> Tensor | None:
        """The tensor of this call; None if there is no such gradient or base."""
        what = self.what
        if self.kind == "argument":
            return arguments[what] if what < len(arguments) else None
        if self.kind == "captured":
            return what  # type: ignore[no-any-return]
        owner = what.tensor(arguments)
        if owner is None:
            return None
        if self.kind == "grad":
            grad = owner._grad
            return grad if grad.__class__ is Tensor else owner.grad
        return owner._view.base if owner._view is not None else None


class Graph:
    """Interned values and steps."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._by_key: dict[Any, Source] = {}
        self._same: dict[Any, Any] = {}
        # Where the arrays of the last recording are; None while there are none.
        self.device: Device | None = None
        # By the first output of a step: for each input, whether gradients stop there.
        self.cuts: dict[Value, tuple[bool, ...]] = {}

    def source(self, kind: str, what: Any, array: Array) -> Source:
        """The input for this source."""
        key = (kind, what if kind == "argument" else id(what))
        found = self._by_key.get(key)
        if found is None or found.value.shape != array.shape or found.value.dtype != array.dtype or (
            kind == "grad" and found.layout != (array.strides, memory_key(array))
        ):  # fmt: skip
            found = self._by_key[key] = Source(kind, what, array, len(self.sources))
            self.sources.append(found)
        return found

    def number(self, array: Array) -> Value:
        """A Python number."""
        number = array.item()
        return self._once(number_key(number, array.dtype), lambda: leaf("number", number, (), array.dtype))

    def constant(self, array: Array) -> Value:
        """An array that the function creates in every call."""
        copy = np.array(to_host(array))
        return self._once(array_key(copy), lambda: constant(copy))

    def fresh(self, what: Any, array: Array) -> Value:
        """The seed number `what` of a backward pass: a gradient of a result."""
        return self._once(("fresh", what, array.shape, array.dtype.char),
                          lambda: leaf("seed", what, array.shape, array.dtype))  # fmt: skip

    def _once(self, key: Any, make: Callable[[], Value]) -> Value:
        if key is None:
            return make()
        found = self._same.get(key)
        if found is None:
            found = self._same[key] = make()
        return found

    def step(
        self, op: Op, inputs: Sequence[Value], attrs: dict[str, Any], made: Sequence[Array], cut: tuple[bool, ...] = ()
    ) -> tuple[Value, ...]:
        """The outputs of an op on these values; `made` are the arrays that it returned.

        `cut` says for each input whether gradients stop there. It is used when the steps are differentiated again.
        """
        key = step_key(op, inputs, attrs)
        if key is not None:
            key = (key, tuple([(a.shape, a.dtype.char) for a in made]), cut)
            found = self._same.get(key)
            if found is not None:
                return found  # type: ignore[no-any-return]
        step = Step(op, tuple(inputs), attrs)
        step.outputs = tuple([Value(step, i, a.shape, a.dtype) for i, a in enumerate(made)])
        if key is not None:
            self._same[key] = step.outputs
        if True in cut:
            self.cuts[step.outputs[0]] = cut
        return step.outputs


def like(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A stand-in array with this shape and dtype that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
