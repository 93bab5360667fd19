"""The work of a session: calls that are pending, running them in groups, and making their tensors ordinary ones."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from itertools import repeat
from time import perf_counter
from typing import Any

from wayfare.backend.turned import turning
from wayfare.batched.entering import Lane
from wayfare.batched.examples import Hub
from wayfare.batched.faults import LOST, Blamed, blame
from wayfare.batched.group import Group
from wayfare.batched.kind import Kind
from wayfare.batched.lazy import LazyTensor, become
from wayfare.batched.schedule import Agenda, Schedule, placed
from wayfare.batched.segment import Segment
from wayfare.batched.settling import settle_tensors
from wayfare.batched.stats import KindStats, Stats
from wayfare.batched.value import Array, Call, Value
from wayfare.state import Mode, changed_mode, outer_mode, set_mode, watcher
from wayfare.tensor import Tensor, wrap

# Bytes of results (and a thousand for each call) that may be pending before they are computed.
LIMIT = 256 * 1024 * 1024


class Work:
    """Pending calls, and how they are run."""

    def __init__(self, outer: Mode | None, schedule: Schedule | None = None, limit: int | None = None) -> None:
        self.outer = outer
        self.schedule = schedule or Agenda()
        self.limit = LIMIT if limit is None else limit
        self.stats = Stats()
        self.hub = Hub(self)
        self.kinds: dict[Any, Kind] = {}
        # Those that calls are no longer of.
        self.retired: list[Kind] = []
        # Of kinds without rows of their own: the one value that all their calls have.
        self.once: dict[Kind, tuple[Value, ...]] = {}
        # Classes of modules whose calls may be taken as one: the function that is called, and what is to know of it.
        self.whole_classes: dict[type, Any] = {}
        self.forget_short_ways()
        self.pending: list[Call] = []
        self.pending_bytes = 0
        # Tensors that are to become ordinary ones if they are still held at the end.
        self.live: list[Tensor] = []
        # Ordinary tensors that a write in place made lazy, and what was in them.
        self.overwritten: list[tuple[Tensor, Array]] = []
        # Do lazy tensors look into the memory of ordinary ones?
        self.looking_outside = False
        self._segment = Segment(self.stats)
        self._groups = 0
        # Has a call failed, and its example gone on?
        self._lost = False
        self._modes: dict[bool, Mode | None] = {}
        # Recording makes many small objects and no garbage: looking for it takes up to two fifths of the time.
        self._collects = gc.isenabled()
        gc.disable()
        self._began = perf_counter()

    def forget_short_ways(self) -> None:
        """Every call goes the long way once more."""
        # Into calls like the last ones of each cell, by whether gradients are recorded.
        self.lanes: dict[bool, dict[Any, tuple[Lane, ...]]] = {True: {}, False: {}}
        # Into calls of ops without attributes: (op, rows) → what enters such a call.
        self.shorts: dict[bool, dict[Any, Callable[..., Any]]] = {True: {}, False: {}}

    def outside(self) -> outer_mode:
        """The mode outside the session, but recording gradients as inside."""
        return outer_mode(self.outer)

    def changing(self) -> None:
        """Something that calls count on is about to change: what was recorded before must run first."""
        self.hub.wait(None)
        if self.pending:
            self.flush()
        self.retired += self.kinds.values()
        self.kinds = {}
        self.forget_short_ways()
        self.once.clear()

    def for_real(self, function: Callable[[], Any]) -> Any:
        """Run what cannot be recorded, on ordinary tensors."""
        self.settle()
        with self.outside():
            return function()

    def flush(self, targets: Sequence[Value] | None = None) -> None:
        """Run what is pending, or what these values and the examples that still run need of it."""
        try:
            self.run(targets)
        except Blamed as blamed:
            self.drop(blamed.call)
            raise blamed.error from None

    def run(self, targets: Sequence[Value] | None) -> None:
        """The same; an error comes with the call that is to blame for it."""
        calls = self.pending
        if targets is not None:
            calls, self.pending = _due(calls, targets)
        else:
            self.pending = []
            self.pending_bytes = 0
        if not calls:
            return
        began = perf_counter()
        groups = self.schedule.order(calls)
        placed(groups)
        scheduled = perf_counter()
        with changed_mode(executor=None), turning():
            for number, members in enumerate(groups):
                try:
                    self._run(members)
                except BaseException:
                    # What has not run may still do so, if an example lives with the error.
                    self.pending = [c for rest in groups[number:] for c in rest] + self.pending
                    raise
        stats = self.stats
        stats.rounds += 1
        stats.seconds_scheduling += scheduled - began
        stats.seconds_running += perf_counter() - scheduled
        if targets is not None:
            self.pending_bytes = sum([call.kind.pending_bytes for call in self.pending])

    def _run(self, calls: list[Call]) -> None:
        kind = calls[0].kind
        for call in calls if self._lost else ():
            if any([v.__class__ is Value and v.call.group is LOST for v in call.inputs]):
                raise Blamed(LOST.error(), call)
        self._groups += 1
        group = Group(self._groups, self.stats.rounds, kind, calls)
        grad = kind.grad
        if grad not in self._modes:
            self._modes[grad] = (self.outer or Mode()).replace(grad=grad, executor=None)
        set_mode(self._modes[grad])
        looking = watcher()
        if looking is not None:
            looking.starts(calls)
        try:
            group.run(self._segment, calls)
        except Exception as error:
            raise blame(error, calls, self._segment) from None
        finally:
            if looking is not None:
                looking.ended(calls)
        kind.groups += 1
        kind.nodes += len(calls)
        kind.largest = max(kind.largest, len(calls))
        if group.differentiable:
            self._segment.groups.append(group)
        count = sys.getrefcount
        # Three: the tuple, the loop's variable, and the question itself.
        self.live += [t for call in calls for t in call.handles if count(t) > 3]
        step = len(kind.outs)
        places = repeat(group.start) if group.single else range(group.start, group.start + step * len(calls), step)
        for call, place in zip(calls, places, strict=False):
            call.group = group
            call.place = place
            call.inputs = ()
            call.handles = None

    def drop(self, call: Call) -> None:
        """A call cannot be made: neither can those that read it."""
        lost = {call}
        for c in self.pending:
            if any([v.__class__ is Value and v.call in lost for v in c.inputs]):
                lost.add(c)
        for c in lost:
            c.handles = c.example = None
            c.inputs = ()
            c.group = LOST
        self._lost = True
        self.pending = [c for c in self.pending if c not in lost]

    def settle(self) -> None:
        """Run all that is pending, and make every tensor still held an ordinary one."""
        self.hub.wait(None)
        if self.pending:  # Others went on before this example did.
            self.flush()
        self.looking_outside = False
        self.overwritten = []
        segment, self._segment = self._segment, Segment(self.stats)
        live, self.live = self.live, []
        self.once.clear()
        with changed_mode(executor=None):
            set_mode(self.outer)
            settle_tensors(live, segment)

    def close(self) -> Stats:
        """The end: settle, and let go of everything."""
        self.settle()
        stats = self.stats
        stats.seconds = perf_counter() - self._began
        self.release()
        return stats

    def release(self) -> None:
        """Let go of everything, finished or not."""
        stats = self.stats
        kinds = [*self.retired, *self.kinds.values()]
        stats.kinds = [KindStats(k.name, k.nodes, k.groups, k.largest) for k in kinds if k.nodes]
        stats.nodes = sum([k.nodes for k in kinds])
        stats.groups = sum([k.groups for k in kinds])
        for kind in kinds:
            kind.session = kind.record = None
        for call in self.pending:
            call.handles = call.example = None
            call.inputs = ()
        for tensor, array in self.overwritten:
            # Only after a failure: what was written in place is as it was.
            if tensor.__class__ is LazyTensor:
                become(tensor, wrap(array))
        self.kinds, self.retired, self.once, self.pending, self.live = {}, [], {}, [], []
        self.forget_short_ways()
        self.overwritten = []
        self._segment = Segment(stats)
        self.hub.release()
        if self._collects:
            gc.enable()


def _due(calls: list[Call], targets: Sequence[Value]) -> tuple[list[Call], list[Call]]:
    """The calls of examples that still run, the values they wait for, and all those need; and the other calls, which
    can wait for company."""
    due = [c for c in calls if c.example is None or not c.example.done]
    if len(due) == len(calls):
        return calls, []
    due += [v.call for v in targets if v.call.group is None]
    waiting, needed = list(due), set(due)
    while waiting:
        for v in waiting.pop().inputs:
            if v.__class__ is Value:
                call = v.call
                if call.group is None and call not in needed:
                    needed.add(call)
                    waiting.append(call)
    return [c for c in calls if c in needed], [c for c in calls if c not in needed]

