"""Making lazy tensors ordinary: each gets its numbers in memory of its own, and a place in the graph."""

from __future__ import annotations

import weakref
from typing import Any

from wayfare.batch.function_profile import Record
from wayfare.batch.record.call import Value
from wayfare.batch.record.layout import laid_out
from wayfare.batch.record.lazy_tensor import LazyTensor, become
from wayfare.batch.record.ownership import Owned
from wayfare.batch.record.views import Picked
from wayfare.batch.run.backward import Tape
from wayfare.batch.run.group import Scattered, Shared
from wayfare.batch.run.segment import Segment
from wayfare.batch.stats import Story
from wayfare.core.dispatch import apply
from wayfare.core.tensor import Tensor, wrap


def settle_tensors(
    live: list[weakref.ref[Tensor]], segment: Segment, owned: Owned, record: Record | None
) -> None:
    """Make those that are still held ordinary tensors. `record` is told what their backward passes take."""
    held = []
    seen: set[int] = set()
    for reference in live:
        t = reference()
        if t is not None and t.__class__ is LazyTensor and id(t) not in seen:
            seen.add(id(t))
            held.append(t)
    views: list[Tensor] = []
    whole: list[Tensor] = []
    waiting = held
    while waiting:
        # What a view looks into becomes ordinary first, held by anybody else or not.
        following = []
        for t in waiting:
            origin = t._lazy.origin
            if origin is None:
                whole.append(t)
            else:
                views.append(t)
                if origin[0].__class__ is LazyTensor and id(origin[0]) not in seen:
                    seen.add(id(origin[0]))
                    following.append(origin[0])
        waiting = following
    examples = [t._lazy.call.example for t in whole]
    _settle_whole(whole, segment, record)
    for t, example in zip(whole, examples, strict=True):
        owned.note(t._array, example)
    _settle_views(views)


def _settle_whole(tensors: list[Tensor], segment: Segment, record: Record | None) -> None:
    seeds: list[Value] = []
    with_history = []
    for t in tensors:
        value = t._lazy
        real = wrap(laid_out(value.call.group.array_of(value), value.row.layout))
        if t._requires_grad:
            with_history.append((t, real))
            seeds.append(value)
        else:
            _become(t, real)
    if not seeds:
        return
    node = Tape(segment, seeds, _outside_of(segment), record).node()
    node.results = [weakref.ref(t) for t, _ in with_history]
    for number, (t, real) in enumerate(with_history):
        real._edge = (node, number)
        real._requires_grad = True
        _become(t, real)


def _settle_views(views: list[Tensor]) -> None:
    """Bases before what looks into them."""
    while views:
        later = []
        for t in views:
            base, op, attrs = t._lazy.seen_from
            if base.__class__ is LazyTensor or (op.__class__ is Picked and op.is_waiting):
                later.append(t)
            elif op is None:
                _become(t, base.detach())
            else:
                real = op.look(base) if op.__class__ is Picked else apply(op, (base,), attrs)
                if real._requires_grad and not t._requires_grad:
                    real = real.detach()  # The view was made under no_grad.
                _become(t, real)
        views = later


def _become(t: Tensor, real: Tensor) -> None:
    call = t._lazy.call
    story = Story(call.kind, call.group.number, call.group.round)
    become(t, real)
    t._lazy = story
    if call.kind.inference:
        t._more()["inference"] = True


def _outside_of(segment: Segment) -> list[Tensor]:
    """All tensors from outside that a gradient of this segment goes to."""
    found: dict[int, Tensor] = {}

    def note(t: Any) -> None:
        if isinstance(t, Tensor) and t._requires_grad:
            found[id(t)] = t

    for group in segment.groups:
        for t in group.kind.leaves:
            note(t)
        for source in group.sources:
            if source.__class__ is Shared:
                note(source.what)
            elif source.__class__ is Scattered:
                for _, t in source.outside:
                    note(t)
    return list(found.values())
