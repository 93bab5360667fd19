"""A session of automatic batching: the executor that records calls, and runs them in groups when values are needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from wayfare.batched.examples import Hub
from wayfare.batched.faults import blame
from wayfare.batched.group import Group
from wayfare.batched.kind import Kind, Unkeyable, as_of_now, attributes_key, carried, is_own, is_shared, outcome
from wayfare.batched.lazy import LazyTensor, become, lazy, seen_from
from wayfare.batched.parts import part_seen
from wayfare.batched.runners import run_op, run_random, run_selected
from wayfare.batched.schedule import Agenda, Schedule, placed
from wayfare.batched.segment import Segment
from wayfare.batched.settling import settle_tensors
from wayfare.batched.stats import KindStats, Stats
from wayfare.batched.value import Array, Call, Value, row_of
from wayfare.batched.whole import call_whole
from wayfare.eager import apply
from wayfare.op import REGISTRY, Op
from wayfare.site import INSIDE
from wayfare.state import STATE, Mode, changed_mode, current, set_mode
from wayfare.tensor import Tensor, wrap

_getframe = sys._getframe
_SELECT, _EXPAND, _CAST = REGISTRY["select"], REGISTRY["expand"], REGISTRY["cast"]
# Bytes of results (and a thousand for each call) that may be pending before they are computed.
LIMIT = 256 * 1024 * 1024


class Session:
    """Records what examples do and runs it in groups. It is in force as an executor."""

    def __init__(self, outer: Mode | None, schedule: Schedule | None = None, limit: int | None = None) -> None:
        self.outer = outer
        self.schedule = schedule or Agenda()
        self.limit = LIMIT if limit is None else limit
        self.stats = Stats()
        self.hub = Hub(self)
        self._kinds: dict[Any, Kind] = {}
        self._retired: list[Kind] = []
        # Of kinds without rows of their own: the one value that all their calls have.
        self._once: dict[Kind, tuple[Value, ...]] = {}
        self._pending: list[Call] = []
        self._pending_bytes = 0
        self._live: list[Tensor] = []
        # Ordinary tensors that a write in place made lazy, and what was in them.
        self._overwritten: list[tuple[Tensor, Array]] = []
        # Do lazy tensors look into the memory of ordinary ones?
        self._looking_outside = False
        self._segment = Segment(self.stats)
        self._groups = 0
        self._began = perf_counter()

    # -- recording

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Record one op."""
        mode = STATE.mode
        assert mode is not None
        grad = mode.grad
        extra = None
        key: list[Any] = [op, "inference" if mode.inference else grad]
        rows: list[Any] = []
        concrete = True
        for t in inputs:
            if t.__class__ is LazyTensor:
                value = t._lazy
                key.append(value.row)
                rows.append(value)
                concrete = False
            elif is_shared(t):
                key.append(t)
            else:
                array = t._array
                key.append(row_of(array.shape, array.dtype))
                rows.append(t if is_own(array) else as_of_now(t))
        if concrete and (not inputs or op.view) and not (grad and any([t._requires_grad for t in inputs])):
            return self._now(op, inputs, attrs)
        if attrs:
            if attrs.get("key") is not None:
                extra = attrs["key"]
                attrs = attrs | {"key": None}
            elif op is _SELECT and not rows and attrs["dim"] == 0:
                extra = attrs["index"]
                attrs = {"dim": 0, "index": None}
            try:
                attrs_key = attributes_key(attrs)
            except Unkeyable:
                return self._now(op, inputs, attrs)
            key.append(attrs_key)
            if op.view and extra is None and not concrete:
                seen = part_seen(op, attrs, attrs_key, rows[0].row)
                if seen is not None:
                    row, offset = seen
                    value = rows[0]
                    part = value.part(row, offset, grad and value.needs and row.is_float)
                    return seen_from(inputs[0], part, op, attrs)
        found = tuple(key)
        kind = self._kinds.get(found)
        if kind is None:
            kind = self._new_kind(op, found, inputs, attrs, extra, grad)
            if kind is None:
                return self._now(op, inputs, attrs if extra is None else attrs | {"key": extra})
        made = self.record(kind, rows, extra)
        if op.view:
            if concrete:
                self._looking_outside = True
            else:
                inputs[0]._lazy.viewed = True
            if extra is not None:
                attrs = attrs | {"index": extra}
            made[0]._lazy.seen_from = (inputs[0], op, attrs)
        return made[0] if op.outputs == 1 else tuple(made)

    def record(self, kind: Kind, rows: list[Any], extra: Any) -> list[LazyTensor]:
        """Enter a call; gives tensors for its outputs."""
        if not rows and extra is None:
            known = self._once.get(kind)
            if known is not None:
                made = [lazy(v) for v in known]
                self._live += made
                return made
        needs = False
        if kind.differentiable:
            needs = kind.leaf_needs
            if not needs:
                for v in rows:
                    if v.needs if v.__class__ is Value else v._requires_grad:
                        needs = True
                        break
        if self._pending_bytes > self.limit:
            self.flush()
        call = Call()
        call.kind = kind
        call.inputs = tuple(rows)
        call.extra = extra
        call.group = None
        call.example = self.hub.current
        outs = kind.outs
        if len(outs) == 1:
            values: tuple[Value, ...] = (Value(call, 0, outs[0], needs and kind.carries[0]),)
        else:
            carries = kind.carries
            values = tuple([Value(call, i, row, needs and carries[i]) for i, row in enumerate(outs)])
        call.outputs = values
        made = call.handles = [lazy(v) for v in values]
        frame: Any = _getframe(2)
        code = frame.f_code
        while INSIDE[code.co_filename]:
            frame = frame.f_back
            if frame is None:  # The function itself is one of the library's.
                code = None
                break
            code = frame.f_code
        call.code = code
        call.offset = 0 if code is None else frame.f_lasti
        kind.nodes += 1
        self._pending.append(call)
        if not rows and extra is None:
            self._once[kind] = values
        self._pending_bytes += kind.pending_bytes
        return made

    @property
    def has_pending(self) -> bool:
        """Is anything recorded that has not run?"""
        return bool(self._pending)

    def keep(self, t: Tensor) -> None:
        """Note a tensor that is to become an ordinary one if it is still held at the end."""
        self._live.append(t)

    def _new_kind(
        self, op: Op, key: Any, inputs: tuple[Tensor, ...], attrs: dict[str, Any], extra: Any, grad: bool
    ) -> Kind | None:
        """A kind met for the first time; None for an op whose shape rule needs the numbers."""
        pattern = [t if t.__class__ is not LazyTensor and is_shared(t) else None for t in inputs]
        rows = [t._lazy.row if t.__class__ is LazyTensor else row_of(t._array.shape, t._array.dtype) for t in inputs]
        run = run_op
        given = attrs
        if extra is not None:
            run = run_selected if op is _SELECT else run_random
            given = attrs | ({"index": extra} if op is _SELECT else {"key": extra})
        try:
            outs = outcome(op, given, attributes_key(attrs), rows)
        except NotImplementedError:
            return None
        kind = Kind(self, key, op.name, op, attrs, pattern, outs, carried(op, outs), run, grad)
        return self.enter(kind)

    def changing(self) -> None:
        """Something that calls count on is about to change: what was recorded before must run first."""
        self.hub.wait(None)
        if self._pending:
            self.flush()
        self._retired += self._kinds.values()
        self._kinds = {}
        self._once.clear()

    def for_real(self, function: Callable[[], Any]) -> Any:
        """Run what cannot be recorded, on ordinary tensors."""
        self.settle()
        with self.outside():
            return function()

    def is_contiguous(self, t: Tensor) -> bool:
        """Would its rows lie one after the other?"""
        if t.__class__ is not LazyTensor:
            return bool(t._array.flags.c_contiguous)
        while t.__class__ is LazyTensor and t._lazy.seen_from is not None:
            base, op, _ = t._lazy.seen_from
            if op is not None and not t._lazy.is_part:
                return False
            t = base
        return True

    def enter(self, kind: Kind) -> Kind:
        """Remember a kind."""
        self._kinds[kind.key] = kind
        return kind

    def known(self, key: Any) -> Kind | None:
        """The kind of a key, if it was met before."""
        return self._kinds.get(key)

    def _now(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Run an op for real, on ordinary tensors."""
        if any([t.__class__ is LazyTensor for t in inputs]):
            self.settle()
        with self.outside():
            return apply(op, inputs, attrs)

    def outside(self) -> Any:
        """The mode outside the session, but recording gradients as inside."""
        return _Outside(self.outer)

    # -- values

    def read(self, tensor: Tensor, how: str) -> Array:
        """Python looks at a value: wait until it is there."""
        if tensor.__class__ is not LazyTensor:
            return tensor._array
        if how == "numpy()" or how == "data_ptr()":
            # Whoever holds the memory may write to it, or see it written to.
            memory: Array = tensor._array
            return memory
        value = tensor._lazy
        if value.call.group is None:
            self.hub.wait(value)
        array: Array = value.call.group.array_of(value)
        return array

    def flush(self, targets: Sequence[Value] | None = None) -> None:
        """Run what is pending, or what these values need of it."""
        calls = self._pending
        if targets is not None:
            calls, self._pending = _due(calls, targets)
        else:
            self._pending = []
            self._pending_bytes = 0
        if not calls:
            return
        began = perf_counter()
        groups = self.schedule.order(calls)
        placed(groups)
        scheduled = perf_counter()
        with changed_mode(executor=None):
            for number, members in enumerate(groups):
                try:
                    self._run(members)
                except BaseException:
                    # What has not run may still do so, if an example lives with the error.
                    self._pending = [c for rest in groups[number:] for c in rest] + self._pending
                    raise
        stats = self.stats
        stats.rounds += 1
        stats.seconds_scheduling += scheduled - began
        stats.seconds_running += perf_counter() - scheduled
        if targets is not None:
            self._pending_bytes = sum([call.kind.pending_bytes for call in self._pending])

    def _run(self, calls: list[Call]) -> None:
        kind = calls[0].kind
        self._groups += 1
        group = Group(self._groups, self.stats.rounds, kind, calls)
        set_mode((self.outer or Mode()).replace(grad=kind.grad, executor=None))
        try:
            group.run(self._segment, calls)
        except Exception as error:
            raise blame(error, calls, self._segment) from None
        kind.groups += 1
        kind.largest = max(kind.largest, len(calls))
        if group.differentiable:
            self._segment.groups.append(group)
        live = self._live
        for call in calls:
            call.group = group
            call.inputs = call.outputs = ()
            call.example = None
            for t in call.handles:
                # Three: the list, the loop's variable, and the question itself.
                if sys.getrefcount(t) > 3:
                    live.append(t)
            call.handles = None

    def drop(self, call: Call) -> None:
        """A call cannot be made: neither can those that read it."""
        lost = {call}
        for c in self._pending:
            if any([v.__class__ is Value and v.call in lost for v in c.inputs]):
                lost.add(c)
        for c in lost:
            c.handles = c.example = None
            c.inputs = c.outputs = ()
        self._pending = [c for c in self._pending if c not in lost]

    def settle(self) -> None:
        """Run all that is pending, and make every tensor still held an ordinary one."""
        self.hub.wait(None)
        if self._pending:  # Others went on before this example did.
            self.flush()
        self.stats.settled += 1
        self._looking_outside = False
        self._overwritten = []
        segment, self._segment = self._segment, Segment(self.stats)
        live, self._live = self._live, []
        self._once.clear()
        with changed_mode(executor=None):
            set_mode(self.outer)
            settle_tensors(live, segment)

    def close(self) -> Stats:
        """The end: settle, and let go of everything."""
        self.settle()
        stats = self.stats
        stats.settled -= 1
        stats.seconds = perf_counter() - self._began
        self.release()
        return stats

    def release(self) -> None:
        """Let go of everything, finished or not."""
        stats = self.stats
        kinds = [*self._retired, *self._kinds.values()]
        stats.kinds = [KindStats(k.name, k.nodes, k.groups, k.largest) for k in kinds if k.nodes]
        stats.nodes = sum([k.nodes for k in kinds])
        stats.groups = sum([k.groups for k in kinds])
        for kind in kinds:
            kind.session = None
        for call in self._pending:
            call.handles = call.example = None
            call.inputs = call.outputs = ()
        for tensor, array in self._overwritten:
            # Only after a failure: what was written in place is as it was.
            if tensor.__class__ is LazyTensor:
                become(tensor, wrap(array))
        self._kinds, self._retired, self._once, self._pending, self._live = {}, [], {}, [], []
        self._overwritten = []
        self._segment = Segment(stats)
        self.hub.release()

    # -- writing in place

    def behind(self, tensor: Tensor) -> Tensor | None:
        """The tensor whose memory a write goes to; None where that is not there yet."""
        return None if tensor.__class__ is LazyTensor else tensor

    def write(self, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
        """Write in place. A tensor that nobody looks into just becomes the result."""
        # Under no_grad a tensor keeps the history it has, whatever is written into it.
        silent = tensor._requires_grad and not current().grad
        if not silent and self._may_become(tensor) and self._become(tensor, result):
            return
        lazy_ones = tensor.__class__ is LazyTensor or result.__class__ is LazyTensor
        if lazy_ones or self._looking_outside or tensor.requires_grad or result.requires_grad:
            # Also what has run already must not see another history than the one it was computed from.
            self.settle()
        else:
            # What is pending must still see the old values.
            self.hub.wait(None)
            self._once.clear()
        with self.outside():
            move(tensor, result)

    def _may_become(self, tensor: Tensor) -> bool:
        if tensor.__class__ is LazyTensor:
            value = tensor._lazy
            return value.seen_from is None and not value.viewed
        array = tensor._array
        # Two: the tensor's slot and our name. (And the question itself.) Nobody else sees this memory.
        return (
            tensor._view is None and tensor._edge is None and not tensor._requires_grad and tensor._extras is None
            and not hasattr(tensor, "_role") and array.base is None and sys.getrefcount(array) <= 3
            and self.hub.current is not None
        )  # fmt: skip

    def _become(self, tensor: Tensor, result: Tensor) -> bool:
        if result.__class__ is not LazyTensor:
            if tensor.__class__ is not LazyTensor:
                return False
            result = self._as_lazy(result)
        row = tensor._lazy.row if tensor.__class__ is LazyTensor else row_of(tensor._array.shape, tensor._array.dtype)
        made: Any = result
        if made._lazy.row.dtype != row.dtype:
            if _rank(made.dtype) > _rank(tensor.dtype):
                return False
            made = self.apply(_CAST, (made,), {"dtype": tensor.dtype})
        if made._lazy.row.shape != row.shape:
            made = self.apply(_EXPAND, (made,), {"shape": row.shape})
        old = made._lazy
        # A value of its own: what is written next must not show in the result, nor the other way round.
        value = old.part(old.row, 0, old.needs)
        if tensor.__class__ is not LazyTensor:
            if any([tensor is v for call in self._pending for v in call.inputs]):
                # They must still see the old values, and nobody waits for a tensor that is itself to come.
                self.flush()
            self._overwritten.append((tensor, tensor._array))
            tensor.__class__ = LazyTensor
        tensor._lazy = value
        tensor._requires_grad = value.needs
        self._live.append(tensor)
        return True

    def _as_lazy(self, tensor: Tensor) -> Tensor:
        """An ordinary tensor as a call that gives it back."""
        return self.apply(REGISTRY["clone"], (tensor,), {})  # type: ignore[no-any-return]

    # -- whole calls

    def whole_call(
        self, owner: Any, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], *,
        guard: Any = None, in_front: bool = False, name: str,
    ) -> Any:  # fmt: skip
        """A cell or a compiled function as one call; NotImplemented where it must be taken apart."""
        return call_whole(self, owner, function, args, options, guard=guard, in_front=in_front, name=name)


def _rank(dtype: Any) -> int:
    return int(dtype.rank)


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


class _Outside:
    __slots__ = ("_mode", "_previous")

    def __init__(self, mode: Mode | None) -> None:
        self._mode = mode
        self._previous: Mode | None = None

    def __enter__(self) -> None:
        self._previous = STATE.mode
        grad = self._previous is None or self._previous.grad
        base = self._mode if self._mode is not None else Mode()
        set_mode(base.replace(grad=grad, executor=None))

    def __exit__(self, *error: object) -> None:
        set_mode(self._previous)
