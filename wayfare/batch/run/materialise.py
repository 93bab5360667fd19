"""Materialising lazy tensors: each becomes an ordinary tensor, with memory and an edge to the segment's node."""

from __future__ import annotations

import weakref
from typing import Any

from wayfare.batch.function_profile import MapTiming
from wayfare.batch.record.call import Row, Value
from wayfare.batch.record.layout import copy_with_layout
from wayfare.batch.record.ownership import Ownership
from wayfare.batch.record.views import PickedView
from wayfare.batch.run.backward import Tape
from wayfare.batch.run.group import Scattered, Shared
from wayfare.batch.run.segment import Segment
from wayfare.batch.stats import CallInfo
from wayfare.core.dispatch import apply
from wayfare.core.stand_in import StandIn, become
from wayfare.core.tensor import Tensor, wrap


def materialise_tensors(
    live: list[weakref.ref[Tensor]], segment: Segment, ownership: Ownership, timing: MapTiming | None
) -> None:
    """Materialise the lazy tensors that are still held. `timing` will be told how long their backward passes take."""
    held = []
    seen: set[int] = set()
    for reference in live:
        t = reference()
        if t is not None and t.__class__ is StandIn and id(t) not in seen:
            seen.add(id(t))
            held.append(t)
    views: list[Tensor] = []
    bases: list[Tensor] = []
    waiting = held
    while waiting:
        # The base of a view is materialised before the view, whether it is held elsewhere or not.
        following = []
        for t in waiting:
            origin = t._handle.origin
            if origin is None:
                bases.append(t)
            else:
                views.append(t)
                if origin[0].__class__ is StandIn and id(origin[0]) not in seen:
                    seen.add(id(origin[0]))
                    following.append(origin[0])
        waiting = following
    examples = [t._handle.call.example for t in bases]
    _materialise_bases(bases, segment, timing)
    for t, example in zip(bases, examples, strict=True):
        ownership.add(t._array, example)
    _materialise_views(views)
    for t in views:
        ownership.share(t)


def _materialise_bases(tensors: list[Tensor], segment: Segment, timing: MapTiming | None) -> None:
    seeds: list[Value] = []
    with_history = []
    for t, real in zip(tensors, map(wrap, _copies([t._handle for t in tensors])), strict=True):
        value = t._handle
        if t._requires_grad:
            with_history.append((t, real))
            seeds.append(value)
        else:
            _become(t, real)
    if not seeds:
        return
    node = Tape(segment, seeds, _outside_tensors(segment), timing).node()
    node.results = [weakref.ref(t) for t, _ in with_history]
    for number, (t, real) in enumerate(with_history):
        real._edge = (node, number)
        real._requires_grad = True
        _become(t, real)


def _copies(values: list[Value]) -> list[Any]:
    """The arrays of values, in memory of their own; those of other devices at once."""
    made: list[Any] = [None] * len(values)
    together: dict[Row, list[int]] = {}
    for i, value in enumerate(values):
        if value.row.memory.is_host or value.row.layout is not None:
            made[i] = copy_with_layout(value.call.group.array_of(value), value.row)
        else:
            together.setdefault(value.row, []).append(i)
    for row, places in together.items():
        arrays = [values[i].call.group.array_of(values[i]) for i in places]
        for i, array in zip(places, row.memory.copies(arrays, row), strict=True):
            made[i] = array
    return made


def _materialise_views(views: list[Tensor]) -> None:
    """Materialise views, each after its base."""
    while views:
        later = []
        for t in views:
            base, op, attrs = t._handle.view_of
            if base.__class__ is StandIn or (op.__class__ is PickedView and op.is_waiting):
                later.append(t)
            elif op is None:
                _become(t, base.detach())
            else:
                real = op.select(base) if op.__class__ is PickedView else apply(op, (base,), attrs)
                if real._requires_grad and not t._requires_grad:
                    real = real.detach()  # the view was made under no_grad
                _become(t, real)
        views = later


def _become(t: Tensor, real: Tensor) -> None:
    call = t._handle.call
    info = CallInfo(call.signature, call.group.number, call.group.round)
    become(t, real)
    t._handle = info
    if call.signature.inference:
        t._more()["inference"] = True


def _outside_tensors(segment: Segment) -> list[Tensor]:
    """All tensors from outside that get a gradient from this segment."""
    found: dict[int, Tensor] = {}

    def note(t: Any) -> None:
        if isinstance(t, Tensor) and t._requires_grad:
            found[id(t)] = t

    for group in segment.groups:
        for t in group.signature.shared:
            note(t)
        for source in group.sources:
            if source.__class__ is Shared:
                note(source.value)
            elif isinstance(source, Scattered):
                for _, t in source.outside:
                    note(t)
    return list(found.values())
