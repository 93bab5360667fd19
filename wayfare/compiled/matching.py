"""Comparing what Python does with what was recorded: is this op, on these tensors, the next event?"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wayfare.backend.cpu import Array
from wayfare.compiled.events import Bind, Event
from wayfare.compiled.placeholder import Placeholder, pending
from wayfare.compiled.tree import Stretch
from wayfare.compiled.watch import bound_as
from wayfare.fusion.plan import Slot
from wayfare.state import current
from wayfare.tensor import Tensor


class Differs(Exception):
    """Python does something else than was recorded."""


class Matching:
    """Where Python is among the recorded events, and which tensors from outside stand for those of the recording."""

    def __init__(self, roots: Sequence[Stretch]) -> None:
        self._candidates = roots
        self._stretch: Stretch | None = None
        self._at = 0
        self.given: list[Tensor] = []
        self._numbers: dict[int, tuple[Array, int]] = {}
        self._places: dict[int, int] = {}
        self._slots: list[Any] = []

    def _next(self, kind: str, op: Any, tensors: Sequence[Tensor], attrs: Any = None) -> Event:
        """The recorded event that this one is; raises where it is none."""
        stretch = self._stretch
        event = None
        if stretch is not None and self._at < len(stretch.events):
            event = stretch.events[self._at]
        if event is None or not self._fits(event, kind, op, tensors, attrs):
            event = self._find(lambda other: self._fits(other, kind, op, tensors, attrs))
        if event.binds:
            self._bind(event, tensors)
        self._at += 1
        return event

    def _find(self, fits: Callable[[Event], bool]) -> Event:
        """Of several ways that were the same so far, the one that goes on with an event that fits."""
        for stretch in self._alike():
            if self._at < len(stretch.events) and fits(stretch.events[self._at]):
                self._stretch = stretch
                return stretch.events[self._at]
        raise Differs

    def _alike(self) -> Iterator[Stretch]:
        """The ways on which the same has happened so far."""
        here = self._stretch
        for stretch in self._candidates:
            events = stretch.events
            if here is None or stretch is here or (len(events) >= self._at and all(
                a.same(b) for a, b in zip(events[: self._at], here.events[: self._at], strict=True)
            )):  # fmt: skip
                yield stretch

    def _fits(self, event: Event, kind: str, op: Any, tensors: Sequence[Tensor], attrs: Any) -> bool:
        if event.op is not op or event.kind != kind or event.grad is not current().grad:
            return False
        if kind == "apply" and (
            not self._same_attrs(event.attrs, attrs) or event.flags != tuple([t._requires_grad for t in tensors])
        ):
            return False
        if kind == "write" and event.flags[0] is not tensors[1]._requires_grad:
            return False
        return self._numbers_of(event, tensors) == event.refs

    def _numbers_of(self, event: Event, tensors: Sequence[Tensor | None]) -> tuple[int | None, ...] | None:
        """The numbers of tensors, of new ones as this event would have them; None where they cannot be those."""
        binds: Iterator[Bind] | None = None
        new: dict[int, int] = {}
        numbers: list[int | None] = []
        for t in tensors:
            number = None if t is None else self._number(t)
            if number is None and t is not None:
                number = new.get(id(t._array))
                if number is None:
                    if binds is None:
                        binds = iter(event.binds)
                    number = could_be(t, binds)
                    if number is None:
                        return None
                    new[id(t._array)] = number
            numbers.append(number)
        return tuple(numbers)

    def _same_attrs(self, recorded: dict[str, Any], attrs: dict[str, Any]) -> bool:
        if "key" in attrs:
            slot = recorded.get("key")
            key = attrs["key"]
            if slot.__class__ is Slot:
                if slot.number >= len(self._slots) or self._slots[slot.number] != key:
                    return False
                attrs = {**attrs, "key": slot}
        try:
            return bool(recorded == attrs)
        except ValueError:
            return False

    def _number(self, t: Tensor) -> int | None:
        """The number of a tensor's array; None for one that was not met yet."""
        if t.__class__ is Placeholder:
            what = pending(t)
            if what.follower is self:
                return what.number
        if t._view is not None:
            t._renew()
        found = self._numbers.get(id(t._array))
        return found[1] if found is not None else None

    def _bind(self, event: Event, tensors: Sequence[Tensor]) -> None:
        """Take in the tensors from outside that this event brings."""
        if not event.binds:
            return
        unmet = [t for t in tensors if self._number(t) is None]
        binds = iter(event.binds)
        for t in unmet:
            if self._number(t) is None:
                self._take(t, binds)
        for bind in binds:
            if bind.kind == "grad":
                grad = self.given[bind.place]._grad
                if grad.__class__ is not Tensor or bound_as(grad) != bind.what:
                    raise Differs
                self._numbers[id(grad._array)] = (grad._array, bind.number)
            elif bind.kind == "tensor":
                self._take_second(bind, tensors)

    def _take_second(self, bind: Bind, tensors: Sequence[Tensor]) -> None:
        """Another tensor on the array of one that came before."""
        for t in tensors:
            if id(t) not in self._places and self._number(t) == bind.number and t._requires_grad is bind.needs:
                self._places[id(t)] = len(self.given)
                self.given.append(t)
                return
        raise Differs

    def _take(self, t: Tensor, binds: Iterator[Any]) -> None:
        for bind in binds:
            if bind.kind == "base":
                assert t._view is not None
                base = t._view.base
                self._numbers[id(base._array)] = (base._array, bind.number)
                continue
            if could_be(t, iter((bind,))) is None:
                raise Differs
            self._numbers[id(t._array)] = (t._array, bind.number)
            if bind.kind == "tensor":
                self._places[id(t)] = len(self.given)
                self.given.append(t)
            return


def could_be(t: Tensor, binds: Iterator[Bind]) -> int | None:
    """The number that a tensor from outside takes, if it is like the one recorded."""
    for bind in binds:
        if bind.kind == "base":
            continue
        if t._requires_grad is not bind.needs:
            return None
        last = bind.last
        if last is not None and last[0]() is t and last[1]() is t._array and (t._edge is None) is last[2]:
            return bind.number
        if bound_as(t) != bind.what:
            return None
        bind.last = (weakref.ref(t), weakref.ref(t._array), t._edge is None)
        return bind.number
    return None
