"""The autograd node of a replayed call, and the values it saves."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.autograd.function import saved_and_written
from wayfare.autograd.kept import used_up, written_since
from wayfare.compiler.record.graph import Source
from wayfare.compiler.replay.expand import Gone
from wayfare.core.callsite import locate
from wayfare.core.errors import InPlaceError
from wayfare.core.node import Node
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import latest_write, version, version_at, written_after
from wayfare.ir.graph import Value

if TYPE_CHECKING:
    from wayfare.compiler.replay.call_gradient import Gradient, Part


class CallNode(Node):
    """One node for many ops. Its saved values are freed op by op, as they would be with one node for each op."""

    __slots__ = ("_kept", "gradient", "results")

    gradient: Gradient
    # Weak references to its outputs, if some are computed from others.
    results: Sequence[weakref.ref[Tensor]]
    _kept: Kept | None

    @property
    def outs(self) -> tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]:
        """Shape and dtype of all outputs."""
        return self.gradient.outs

    @property
    def kept(self) -> Any:
        """Its saved values, as other nodes have them; `Kept` knows which are freed."""
        return (self._kept,)

    @kept.setter
    def kept(self, value: Any) -> None:
        if value is None and self._kept is not None:
            self._kept.spend()

    def unroll(self) -> None:
        """Expand into the nodes of its ops, if a result is computed from another result."""
        if self._kept is not None and self.gradient.nested:
            self._kept.whole = True
            self.gradient.unroll(self, self._kept)
            self._kept = None


class Kept:
    """What a node saves of its call: values for the plan, the input tensors, and the random keys."""

    __slots__ = ("_arguments", "_arrays", "_gradient", "_made", "_passing", "_time", "edges", "given", "last", "line",
                 "saved", "spent", "used", "whole")  # fmt: skip

    def __init__(
        self, gradient: Gradient, arguments: Sequence[Tensor], made: Sequence[Array], saved: Sequence[Array],
        given: Sequence[Any], time: int,
    ) -> None:  # fmt: skip
        self._gradient = gradient
        self.saved: Sequence[Array] | None = saved
        self.given = tuple(given)
        self._arguments = tuple(arguments)
        self._passing = {id(source): source.tensor(arguments) for source in gradient.passing}
        self._arrays: dict[int, Array] = {}
        for key, source in gradient.reads:
            t = source.tensor(arguments)
            if t is not None:
                self._arrays[key] = t._array
        # Weak references to results that share memory with saved values.
        self._made = {i: weakref.ref(made[i]) for i in gradient.shown}
        self._time = time
        self.edges: tuple[Any, ...] = ()
        self.line: tuple[Any, int] = (None, 0)
        # The last backward pass (results with a gradient, steps); all freed steps; the results whose passes freed them.
        self.last: tuple[tuple[bool, ...], frozenset[int]] = ((), frozenset())
        self.used: frozenset[int] = frozenset()
        self.spent: set[int] = set()
        self.whole = False  # is the node being expanded?

    def spend(self) -> None:
        """Free the values of the last backward pass (`retain_graph=False`)."""
        arrived, steps = self.last
        self.used |= steps
        self.spent.update(i for i, here in enumerate(arrived) if here)
        if self._gradient.keeping <= self.used:
            self.saved, self._arguments = None, ()
            self._arrays.clear()
            self._passing.clear()

    def tensor(self, source: Source) -> Tensor | None:
        """The tensor that the call found at a source."""
        key = id(source)
        return self._passing[key] if key in self._passing else source.tensor(self._arguments)

    def arrays_for(self, places: Sequence[tuple[int, int]], seeds: Sequence[Any]) -> list[Array]:
        """The input arrays of a plan (see `Part.inputs`)."""
        held: tuple[Any, ...] = (self.saved, seeds, self._arrays)
        return [held[kind][at] for kind, at in places]

    def array_of(self, value: Value) -> Array | None:
        """The array of an input or of a saved value; None for any other value."""
        gradient = self._gradient
        if self.saved is None:
            raise Gone
        number = gradient.saved_at.get(value)
        if number is not None:
            # If the result is alive, use its own array, so that later writes to it are noticed.
            made = self._made.get(gradient.made_at.get(value, -1))
            result = None if made is None else made()
            return self.saved[number] if result is None or self._is_lost(result) else result
        source = gradient.by_value.get(value)
        if source is None:
            return None
        array = self._arrays.get(id(source))
        if array is None:
            t = self.tensor(source)
            assert t is not None
            array = t._array
            if written_after(array, self._time):
                raise InPlaceError(f"{gradient.name}: a tensor it was given was written in place since, so what was "
                                   "computed from it is lost", fix="Write to a .clone().")  # fmt: skip
        return array

    def check(self, part: Part) -> None:
        """Raise an error if saved values were freed or written in place since the call."""
        if part.keeping.isdisjoint(self.used):
            if latest_write[0] <= self._time or not any([self._is_written(home) for home in part.homes]):
                return
        # Raise the error of the first node of the backward pass that has one.
        for step, visit, homes in part.way:
            if step in self.used and not visit.repeatable:
                raise used_up(visit.grad_name, locate(visit.code, visit.offset))
            for home in homes if step not in self.used else ():
                if self._is_written(home):
                    array = self._home(home)
                    now, then = version(array), version_at(array, self._time)
                    if visit.custom:
                        raise saved_and_written(visit.name, now, then)
                    raise written_since(visit.name, locate(visit.code, visit.offset), now, then)

    def _is_lost(self, result: Array) -> bool:
        """Was a result written in place, and must that be ignored because the node is not being expanded?"""
        return not self.whole and written_after(result, self._time)

    def _home(self, home: int | Source) -> Array | None:
        return self._made[home]() if isinstance(home, int) else self._arrays.get(id(home))

    def _is_written(self, home: int | Source) -> bool:
        array = self._home(home)
        return array is not None and written_after(array, self._time)
