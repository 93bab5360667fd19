"""The pending calls of a session: running them in groups, and materialising their tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter
from types import FrameType
from typing import Any
from weakref import ref

from wayfare.batch.analysis.purity import mutates_only_tensors
from wayfare.batch.fibers.errors import (
    FAILED,
    FailedCall,
    find_failed_call,
    left_in_order,
    name_late_error,
    raise_past_try,
)
from wayfare.batch.fibers.example import Example, is_within
from wayfare.batch.fibers.hub import Hub
from wayfare.batch.function_profile import FunctionProfile, MapTiming
from wayfare.batch.garbage_collection import COLLECTOR
from wayfare.batch.record.call import Array, Call, Value
from wayfare.batch.record.opaque_call import run_opaque
from wayfare.batch.record.opaque_fast_path import FastPath
from wayfare.batch.record.ownership import Ownership
from wayfare.batch.record.ragged_signature import RaggedSignatures
from wayfare.batch.record.row_copy import RowCopies
from wayfare.batch.record.signature import OWN_LEAF, Signature
from wayfare.batch.run.call_loops import mark_as_run, order_rows, take_needed
from wayfare.batch.run.chain import Chain, merge_chains
from wayfare.batch.run.group import Group
from wayfare.batch.run.materialise import materialise_tensors
from wayfare.batch.run.ragged_group import RaggedGroup, RaggedStack
from wayfare.batch.run.row_group import RowGroup
from wayfare.batch.run.schedule import Agenda, Schedule
from wayfare.batch.run.segment import Segment
from wayfare.batch.run.stacked import Stacked, find_stacks
from wayfare.batch.run.steps import StackCalls, Steps
from wayfare.batch.stats import SignatureStats, Stats
from wayfare.codegen.routines.transposed_weights import Copies, caching_transposes
from wayfare.core.callsite import locate, user_frame
from wayfare.core.executor import Interceptor
from wayfare.core.mode import STATE, Mode, changed_mode, current, outer_mode, set_mode, watcher
from wayfare.core.stand_in import StandIn, become
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import latest_write, owner_of

# Pending calls run when their results (plus 1000 bytes for each call) would take more bytes than this.
LIMIT = 256 * 1024 * 1024
_GROUPS = {Steps: Chain, StackCalls: Stacked}


class PendingCalls(Interceptor):
    """The part of a session that runs calls; `Session` adds how they are recorded."""

    # What recording a call reads has slots, which the native module knows.
    __slots__ = ("__dict__", "__weakref__", "callees", "hub", "limit", "live", "no_common_calls", "op_fast_paths",
                 "opaque_fast_paths", "pending", "pending_bytes", "row_copies")  # fmt: skip

    def __init__(self, outer: Mode | None, schedule: Schedule | None = None, limit: int | None = None) -> None:
        self.outer = outer
        self.schedule = schedule or Agenda()
        self.limit = LIMIT if limit is None else limit
        self.stats = Stats()
        # (id of the code, offset) → [code, offset, how often examples waited there]
        self._waits: dict[tuple[int, int], list[Any]] = {}
        self.hub = Hub(self)
        self.signatures: dict[Any, Signature] = {}
        # Signatures that are out of date, kept for the statistics.
        self.retired: list[Signature] = []
        # Signatures that differ in a length only.
        self.ragged_signatures = RaggedSignatures()
        # For signatures without rows: the values that all their calls have in common.
        self.common_results: dict[Signature, tuple[Value, ...]] = {}
        # Class of a module → (function, OpaqueInfo) if its calls may be opaque, else False.
        self.opaque_classes: dict[type, Any] = {}
        # A function or method of the user → what is called in its place; a function → its copy.
        self.callees: dict[Any, Any] = {}
        self.copies: dict[Any, Any] = {}
        self.clear_fast_paths()
        self.pending: list[Call] = []
        self.pending_bytes = 0
        # How many of the pending calls stayed pending in the last round.
        self._looked_at = 0
        # Transposed copies of weights, and the time of the latest write when they were made.
        self._transposed: Copies = {}
        self._written = 0
        # What was needed in the last round: values that Python will probably read.
        self.awaited: Sequence[Value] = ()
        # How many calls have left `pending`.
        self.calls_run = 0
        # Weak references to the lazy tensors that are to be materialised if they are still held.
        self.live: list[ref[Tensor]] = []
        # Ordinary tensors that an in-place write made lazy, and their old arrays.
        self.overwritten: list[tuple[Tensor, Array]] = []
        # Which example made what.
        self.ownership = Ownership()
        # The profile of the mapped function, and the timing of this map.
        self.profile: FunctionProfile | None = None
        self.timing: MapTiming | None = None
        # True if examples must not share calls, because they register hooks on what they compute.
        self.no_common_calls = False
        # What pending calls read of ordinary tensors.
        self.row_copies = RowCopies()
        # ids of the memory of ordinary tensors that lazy tensors are views of.
        self.viewed_memory: set[int] = set()
        self._segment = Segment(self.stats)
        self._groups = 0
        # True if a call failed and its example went on.
        self._has_failed_calls = False
        self._modes: dict[bool, Mode | None] = {}
        COLLECTOR.enter()
        self._began = perf_counter()

    def clear_fast_paths(self) -> None:
        """Forget all fast paths."""
        # grad mode → id of an owner → its fast paths.
        self.opaque_fast_paths: dict[bool, dict[Any, tuple[FastPath, ...]]] = {True: {}, False: {}}
        # grad mode → (op, rows) → a function that records such a call.
        self.op_fast_paths: dict[bool, dict[Any, Callable[..., Any]]] = {True: {}, False: {}}

    def outside(self) -> outer_mode:
        """The mode outside the session, with the grad mode of the inside."""
        return outer_mode(self.outer)

    def set_outer_mode(self, grad: bool) -> None:
        """Set the mode outside the session, with this grad mode."""
        if grad not in self._modes:
            self._modes[grad] = (self.outer or Mode()).replace(grad=grad, executor=None)
        set_mode(self._modes[grad])

    def born(self, thing: Any) -> None:
        """The running example made a module, or an array that owns its memory."""
        self.ownership.add(thing, self.hub.current, self.calls_run + len(self.pending))

    def changes(self, thing: Any, how: str) -> None:
        """A tensor or a module is about to change (None: some state of the process).

        If other examples can see it, this example waits for its turn, and from then on examples run one after another.
        """
        example = self.hub.current
        if example is None or (thing is not None and self.ownership.maker(thing) is example):
            return
        began = self.hub.others_began()
        restart = bool(began) and all([mutates_only_tensors(f) for f in {e.function for e in began}])
        late = [] if restart else began
        if self.hub.take_turn(how, restart) or late:  # a later example may have waited for its turn already
            self._warn_in_order(how, late)
        self.leave()
        self.hub.stop_after_failure()

    def leave(self) -> None:
        """The running example stops recording: from here on its ops run eagerly."""
        self.materialise()
        mode = STATE.mode
        assert mode is not None
        set_mode(mode.replace(executor=None))

    def is_read(self, tensor: Tensor) -> bool:
        """Whether a pending call reads the memory of a tensor itself, and not a copy of it."""
        memory = owner_of(tensor._array)
        since = max(self.ownership.born_at(tensor) - self.calls_run, 0)
        signatures = {call.signature for call in self.pending[since:]}
        shared = [owner_of(t._array) is memory for signature in signatures for t in signature.shared]
        return True in shared or self.row_copies.read_memory_of(tensor)

    def memory_shared(self, tensor: Tensor) -> None:
        """Another tensor is about to be made on the memory of this one."""
        self.ownership.share(tensor)

    def note_outside_view(self, tensor: Tensor) -> None:
        """A lazy tensor was made that is a view of an ordinary one."""
        self.viewed_memory.add(id(owner_of(tensor._array)))
        self.ownership.share(tensor)

    def flag_set(self, tensor: Tensor, what: str) -> None:
        """`requires_grad` of a tensor is about to change: calls recorded before must see the old flag."""
        if what != "requires_grad":
            return
        if self.ownership.given_to(tensor) is not self.hub.current:
            self.changes(tensor, "it sets requires_grad of a tensor that all examples see")
        if tensor._requires_grad:
            self.materialise()  # calls that have run still give it a gradient
        elif self.is_read(tensor):
            self.hub.wait(None)
            if self.pending:
                self.flush()
        if self.ownership.given_to(tensor) is self.hub.current is not None and not hasattr(tensor, "_role"):
            tensor._handle = OWN_LEAF
        else:
            self.retired += self.signatures.values()
            self.signatures = {}
            self.ragged_signatures.clear()
            self.clear_fast_paths()
            self.common_results.clear()

    def data_set(self, tensor: Tensor) -> None:
        """`tensor.data` is about to be set: pending calls must read the old memory."""
        self.changes(tensor, "it sets the .data of a tensor")
        self.materialise()

    def grad_written(self, tensor: Tensor, grad: Tensor | None) -> None:
        """`tensor.grad` is about to be set."""
        self.changes(tensor, "it sets the .grad of a tensor")

    def before_update(self, name: str) -> None:
        """A fused update is about to run: pending calls must read the old values."""
        self.changes(None, f"{name} updates tensors that all examples see")
        self.materialise()

    def custom(self, function: Any, args: tuple[Any, ...], run: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
        """A custom Function runs at once, on ordinary tensors."""
        if any(["mark_dirty" in part.__code__.co_names for part in (function.forward, function.setup_context)]):
            for given in args:
                if isinstance(given, Tensor):
                    self.changes(given, f"{function.__name__} writes to a tensor that all examples see")
        return self.for_real(lambda: current().executor.custom(function, args, run))

    def note_wait(self, frame: FrameType) -> None:
        """Count a wait for a value at this place of the user's code, for the statistics."""
        code, offset = frame.f_code, frame.f_lasti
        found = self._waits.get((id(code), offset))
        if found is None:
            found = self._waits[id(code), offset] = [code, offset, 0]
        found[2] += 1

    def discard_calls_of(self, examples: Sequence[Example]) -> None:
        """Drop the pending calls of these examples: they will restart."""
        gone = set(examples)
        self._keep_only([c for c in self.pending if not is_within(c.example, gone)])

    def discard_calls_after(self, order: list[int]) -> None:
        """Drop the pending calls of all later examples: they were stopped."""
        depth = len(order)  # the examples of an inner map count as part of the outer example
        self._keep_only([c for c in self.pending if c.example is None or c.example.order[:depth] <= order])

    def _keep_only(self, calls: list[Call]) -> None:
        """Keep only these calls, and the calls they need (another example may have recorded a common one first)."""
        if len(calls) < len(self.pending):
            kept = take_needed(self.pending, 0, calls, False)
            for call in self.pending:
                call.handles = None  # it may hold what holds it
            self._put_back(kept, [])
            self.common_results.clear()

    def run_calls_of(self, examples: Sequence[Example]) -> None:
        """Run the calls of finished examples, and only those; errors are raised here."""
        try:
            self.run(self.values_of(examples), only=True)
        except FailedCall as failed_call:
            self.drop(failed_call.call)
            raise failed_call.error from None

    def values_of(self, examples: Sequence[Example]) -> list[Value]:
        """One value of each pending call of these examples."""
        own = set(examples)
        calls = [c for c in self.pending if is_within(c.example, own)]
        return [Value(c, 0, c.signature.outs[0], False) for c in calls]

    def _warn_in_order(self, how: str, began: list[Example]) -> None:
        """Warn that examples run one after another from here, and why; once for a function."""
        frame = user_frame(2)
        line = "" if frame is None else f" ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"
        if self.profile is not None:
            self.profile.set_in_order(how + line, [e.number for e in began])

    def for_real(self, function: Callable[[], Any], changes: str = "") -> Any:
        """Run an op that cannot be recorded, on ordinary tensors."""
        if changes:
            self.changes(None, changes)
        self.materialise()
        self.ownership.share_all()
        with self.outside():
            return function()

    def flush(self, targets: Sequence[Value] | None = None, only: bool = False) -> None:
        """Run pending calls: all, or those that `targets` need and (unless `only`) those that can join their groups."""
        while True:
            try:
                self.run(targets, only)
            except FailedCall as failed_call:
                if not self.hub.deliver_error(failed_call):
                    if targets is not None and any([v.call is failed_call.call for v in targets]):
                        raise failed_call.error from None
                    raise_past_try(self.hub.current, failed_call.error)
            else:
                break
        self.hub.raise_late_errors()

    def run(self, targets: Sequence[Value] | None, only: bool = False) -> None:
        """The same; raises FailedCall, which names the call that failed."""
        self.awaited = targets or ()
        recorded = self.pending[self._looked_at :] if targets is not None else self.pending
        if targets is not None:
            calls = take_needed(self.pending, self._looked_at, [v.call for v in targets], not only)
            self._looked_at = min(self._looked_at, len(self.pending)) if only else len(self.pending)
            self.pending_bytes -= sum([call.signature.pending_bytes for call in calls])
        else:
            calls, self.pending = self.pending, []
            self.pending_bytes = self._looked_at = 0
        self.calls_run += len(calls)
        if not calls:
            return
        began = perf_counter()
        groups = self.schedule.order(calls)
        groups = find_stacks(groups if watcher() is not None else merge_chains(groups))
        order_rows(groups)
        scheduled = perf_counter()
        ahead = self._segment.calls_ahead = {}
        for members in groups:
            ahead[members[0].signature] = ahead.get(members[0].signature, 0) + len(members)
        if targets is None or only or self._written != latest_write[0]:
            # Between two rounds no write goes unnoticed, because the functions have no side effects.
            self._transposed, self._written = {}, latest_write[0]
        with changed_mode(executor=None), caching_transposes(self._transposed):
            for members in groups:
                try:
                    self._run(members)
                except BaseException as error:
                    # The other calls may still run, if the example handles the error.
                    self._put_back(left_in_order(error, calls, self.pending, recorded), [])
                    raise
        stats = self.stats
        stats.rounds += 1
        stats.seconds_scheduling += scheduled - began
        stats.seconds_running += perf_counter() - scheduled
        if not self.pending:
            self.row_copies.clear()

    def _run(self, calls: list[Call]) -> None:
        signature = calls[0].signature
        for call in calls if self._has_failed_calls else ():
            if any([v.__class__ is Value and v.call.group is FAILED for v in call.inputs]):
                raise FailedCall(FAILED.error(), call)
        self._groups += 1
        counted: Any = signature
        of_calls: Any = _GROUPS.get(calls.__class__, RowGroup if signature.run is run_opaque else Group)
        if signature.ragged is not None and any([call.signature is not signature for call in calls]):
            of_calls = RaggedStack if calls.__class__ is StackCalls else RaggedGroup
            counted = signature.ragged
        group: Group = of_calls(self._groups, self.stats.rounds, signature, calls)
        grad = signature.grad
        self.set_outer_mode(grad)
        observer = watcher()
        if observer is not None:
            observer.starts(calls)
        failed = False
        try:
            memory = signature.memory
            late = len(memory.late_errors())
            with memory.active():
                group.run(self._segment, calls)
            for error in memory.late_errors()[late:]:
                name_late_error(error, calls)
        except Exception as error:
            if calls.__class__ is not Steps:
                raise find_failed_call(error, calls, self._segment) from None
            failed = True
        finally:
            if observer is not None:
                observer.ended(calls)
        if failed:  # step by step, to find the call that fails
            for level in calls.levels():  # type: ignore[attr-defined]
                self._run(level)
            return
        counted.groups += 1
        counted.nodes += len(calls)
        counted.largest = max(counted.largest, len(calls))
        if group.differentiable:
            self._segment.groups.append(group)
        self._segment.calls_ahead[signature] -= len(calls)
        mark_as_run(calls, group, group.start, 0 if group.single else len(signature.outs), self.live)

    def drop(self, call: Call) -> None:
        """A call has failed: so have all calls that read its results."""
        failed = {call}
        for c in self.pending:
            if any([v.__class__ is Value and v.call in failed for v in c.inputs]):
                failed.add(c)
        for c in failed:
            c.handles = c.example = None
            c.inputs = ()
            c.group = FAILED
        self._has_failed_calls = True
        self._put_back([c for c in self.pending if c not in failed], [])

    def _put_back(self, calls: list[Call], others: list[Call]) -> None:
        """These calls, and after them those others, are what is pending."""
        self.pending, self._looked_at = calls + others, 0
        self.pending_bytes = sum([call.signature.pending_bytes for call in self.pending])

    def materialise(self) -> None:
        """Run all pending calls, and make every tensor that is still held an ordinary one."""
        self.hub.wait(None)
        if self.pending:  # other examples went on before this one
            self.flush()
        self.viewed_memory.clear()
        self.overwritten = []
        segment, self._segment = self._segment, Segment(self.stats)
        live, self.live = self.live, []
        self.common_results.clear()
        with changed_mode(executor=None):
            set_mode(self.outer)
            materialise_tensors(live, segment, self.ownership, self.timing)

    def close(self) -> Stats:
        """End the session: materialise, and release everything."""
        self.materialise()
        stats = self.stats
        stats.seconds = perf_counter() - self._began
        self.release()
        return stats

    def release(self) -> None:
        """Release everything, finished or not."""
        stats = self.stats
        signatures = [*self.retired, *self.signatures.values()]
        counted: list[Any] = [*signatures, *self.ragged_signatures.all]
        stats.kinds = [SignatureStats(k.name, k.nodes, k.groups, k.largest) for k in counted if k.nodes]
        stats.nodes = sum([k.nodes for k in counted])
        stats.groups = sum([k.groups for k in counted])
        for code, offset, count in self._waits.values():
            line = str(locate(code, offset))
            stats.waits[line] = stats.waits.get(line, 0) + count
        self._waits.clear()
        for signature in signatures:
            signature.session = signature.record = None
        self.ragged_signatures.clear()
        for call in self.pending:
            call.handles = call.example = None
            call.inputs = ()
        for tensor, array in self.overwritten:
            # Only after a failure: undo in-place writes that did not run.
            if tensor.__class__ is StandIn:
                become(tensor, wrap(array))
        self.signatures, self.retired, self.common_results, self.pending, self.live = {}, [], {}, [], []
        self._transposed = {}
        self.clear_fast_paths()
        self.callees, self.copies = {}, {}  # what is called in place of a function holds the session
        self.overwritten = []
        self.awaited = ()
        self._segment = Segment(stats)
        self.hub.release()
        self.ownership.clear()
        COLLECTOR.leave()
