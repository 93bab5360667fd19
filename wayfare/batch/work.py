"""The work of a session: calls that are pending, running them in groups, and making their tensors ordinary ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import repeat
from time import perf_counter
from typing import Any
from weakref import ref

from wayfare.batch.collecting import COLLECTOR
from wayfare.batch.entering import Lane
from wayfare.batch.example import Example
from wayfare.batch.faults import LOST, Blamed, blame, fail
from wayfare.batch.group import Group
from wayfare.batch.hub import Hub
from wayfare.batch.kind import OWN_LEAF, Kind
from wayfare.batch.known import Known, Record
from wayfare.batch.lazy import LazyTensor, become
from wayfare.batch.pure import changes_only_tensors
from wayfare.batch.schedule import Agenda, Schedule, placed
from wayfare.batch.segment import Segment
from wayfare.batch.settling import settle_tensors
from wayfare.batch.sharing import Owned
from wayfare.batch.stats import KindStats, Stats
from wayfare.batch.value import Array, Call, Value
from wayfare.codegen.routines.transposed_weights import caching_transposes
from wayfare.core.callsite import user_frame
from wayfare.core.executor import Interceptor
from wayfare.core.mode import STATE, Mode, changed_mode, current, outer_mode, set_mode, watcher
from wayfare.core.tensor import Tensor, wrap

# Bytes of results (and a thousand for each call) that may be pending before they are computed.
LIMIT = 256 * 1024 * 1024


class Work(Interceptor):
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
        # Calls that are pending no more.
        self.ran = 0
        # Weakly, tensors that are to become ordinary ones if somebody still holds them at the end.
        self.live: list[ref[Tensor]] = []
        # Ordinary tensors that a write in place made lazy, and what was in them.
        self.overwritten: list[tuple[Tensor, Array]] = []
        # What examples have made themselves.
        self.owned = Owned()
        # What is known of the function that is mapped.
        self.known: Known | None = None
        self.took: Record | None = None
        # Have examples no call in common, because they put hooks on what they compute?
        self.apart = False
        # Do lazy tensors look into the memory of ordinary ones?
        self.looking_outside = False
        self._segment = Segment(self.stats)
        self._groups = 0
        # Has a call failed, and its example gone on?
        self._lost = False
        self._modes: dict[bool, Mode | None] = {}
        COLLECTOR.enter()
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

    def born(self, thing: Any) -> None:
        """An array of its own memory, or a module, was made by the example that runs."""
        self.owned.note(thing, self.hub.current, self.ran + len(self.pending))

    def changes(self, thing: Any, how: str) -> None:
        """A tensor or a module is about to change (None: something of the whole process).

        Where others may see it, this example waits for its turn, and from then on they run one after the other.
        """
        example = self.hub.current
        if example is None or (thing is not None and self.owned.maker(thing) is example):
            return
        began = self.hub.others_began()
        again = bool(began) and all([changes_only_tensors(f) for f in {e.function for e in began}])
        late = [] if again else began
        if self.hub.take_turn(how, again) or late:  # one after it may have waited for its turn already
            self._say_in_order(how, late)
        self.leave()
        self.hub.give_way()

    def leave(self) -> None:
        """What runs now records no more: from here on it is plain Python."""
        self.settle()
        mode = STATE.mode
        assert mode is not None
        set_mode(mode.replace(executor=None))

    def is_read(self, tensor: Tensor) -> bool:
        """Is a tensor that an example has made read by a call that is pending?"""
        since = max(self.owned.born_at(tensor) - self.ran, 0)
        return any([v is tensor for call in self.pending[since:] for v in (*call.inputs, *call.kind.leaves)])

    def flag_set(self, tensor: Tensor, what: str) -> None:
        """Whether a tensor requires a gradient is about to change: what was recorded before counts on what it was."""
        if what != "requires_grad":
            return
        if self.owned.given_to(tensor) is not self.hub.current:
            self.changes(tensor, "it sets requires_grad of a tensor that all examples see")
        if tensor._requires_grad:
            self.settle()  # what has run already still has a gradient for it
        elif self.is_read(tensor):
            self.hub.wait(None)
            if self.pending:
                self.flush()
        if self.owned.given_to(tensor) is self.hub.current is not None and not hasattr(tensor, "_role"):
            tensor._lazy = OWN_LEAF
        else:
            self.retired += self.kinds.values()
            self.kinds = {}
            self.forget_short_ways()
            self.once.clear()

    def data_set(self, tensor: Tensor) -> None:
        """A tensor is about to get other memory: what is pending counts on the memory it had."""
        self.changes(tensor, "it sets the .data of a tensor")
        self.settle()

    def grad_written(self, tensor: Tensor, grad: Tensor | None) -> None:
        """`tensor.grad` is about to be set."""
        self.changes(tensor, "it sets the .grad of a tensor")

    def before_update(self, name: str) -> None:
        """What was recorded before a fused update must still see the old values."""
        self.changes(None, f"{name} updates tensors that all examples see")
        self.settle()

    def custom(self, function: Any, args: tuple[Any, ...], run: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
        """A custom Function runs at once, on ordinary tensors."""
        if any(["mark_dirty" in part.__code__.co_names for part in (function.forward, function.setup_context)]):
            for given in args:
                if isinstance(given, Tensor):
                    self.changes(given, f"{function.__name__} writes to a tensor that all examples see")
        return self.for_real(lambda: current().executor.custom(function, args, run))

    def note_wait(self) -> None:
        """An example waits for a value: remember its line."""
        frame = user_frame(3)
        if frame is not None:
            line = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            self.stats.waits[line] = self.stats.waits.get(line, 0) + 1

    def forget(self, examples: Sequence[Example]) -> None:
        """What these examples have recorded is not to be computed: they begin again."""
        gone = set(examples)
        self._keep([c for c in self.pending if c.example not in gone and not _is_inside(c.example, gone)])

    def forget_after(self, order: list[int]) -> None:
        """What the examples after one have recorded is not to be computed: they were stopped."""
        depth = len(order)  # what runs inside an example counts as that example's own
        self._keep([c for c in self.pending if c.example is None or c.example.order[:depth] <= order])

    def _keep(self, calls: list[Call]) -> None:
        """Only these calls are to be made, and what they need: of what all have in common, some other may have been the
        first to ask for it."""
        if len(calls) < len(self.pending):
            self.pending = _due(self.pending, [Value(c, 0, c.kind.outs[0], False) for c in calls], True)[0]
            self.once.clear()

    def make_calls_of(self, examples: Sequence[Example]) -> None:
        """Make the calls of examples that are done, by themselves; an error is raised here."""
        try:
            self.run(self.values_of(examples), only=True)
        except Blamed as blamed:
            self.drop(blamed.call)
            raise blamed.error from None

    def values_of(self, examples: Sequence[Example]) -> list[Value]:
        """A value of every pending call of these examples."""
        own = set(examples)
        calls = [c for c in self.pending if c.example in own or _is_inside(c.example, own)]
        return [Value(c, 0, c.kind.outs[0], False) for c in calls]

    def _say_in_order(self, how: str, began: list[Example]) -> None:
        """Examples run one after the other from here: say why, once for a function."""
        frame = user_frame(2)
        line = "" if frame is None else f" ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"
        if self.known is not None:
            self.known.runs_in_order(how + line, [e.number for e in began])

    def for_real(self, function: Callable[[], Any], changes: str = "") -> Any:
        """Run what cannot be recorded, on ordinary tensors."""
        if changes:
            self.changes(None, changes)
        self.settle()
        with self.outside():
            return function()

    def flush(self, targets: Sequence[Value] | None = None, only: bool = False) -> None:
        """Run what is pending, or what these values and (if not `only` them) the examples that still run need of it."""
        while True:
            try:
                self.run(targets, only)
            except Blamed as blamed:
                if not self.hub.hands_over(blamed):
                    if targets is not None and any([v.call is blamed.call for v in targets]):
                        raise blamed.error from None
                    fail(self.hub.current, blamed.error)
            else:
                break
        self.hub.raise_broken()

    def run(self, targets: Sequence[Value] | None, only: bool = False) -> None:
        """The same; an error comes with the call that is to blame for it."""
        calls = self.pending
        if targets is not None:
            calls, self.pending = _due(calls, targets, only)
        else:
            self.pending = []
            self.pending_bytes = 0
        self.ran += len(calls)
        if not calls:
            return
        began = perf_counter()
        groups = self.schedule.order(calls)
        placed(groups)
        scheduled = perf_counter()
        with changed_mode(executor=None), caching_transposes():
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
        self.live += [held for call in calls for held in call.handles if held() is not None]
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
            settle_tensors(live, segment, self.owned, self.took)

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
        self.owned.clear()
        COLLECTOR.leave()


def _is_inside(example: Example | None, outer: set[Example]) -> bool:
    while example is not None:
        example = example.parent
        if example in outer:
            return True
    return False


def _due(calls: list[Call], targets: Sequence[Value], only: bool) -> tuple[list[Call], list[Call]]:
    """The calls of examples that still run (not if `only` the values), the values they wait for, and all those need;
    and the other calls, which can wait for company."""
    due = [] if only else [c for c in calls if c.example is None or not c.example.done]
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

