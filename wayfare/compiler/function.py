"""A compiled function: its calls are recorded, planned at the second call, replayed, and checked from time to time."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from wayfare.compiler.bypass import end_bypass, start_bypass
from wayfare.compiler.cache import EntryCache
from wayfare.compiler.captures.guards import Guards
from wayfare.compiler.captures.reach import reach
from wayfare.compiler.check.self_check import SelfCheck
from wayfare.compiler.costs import Budget, perf_counter
from wayfare.compiler.explain import Explanation, explain
from wayfare.compiler.fallback import Fallback, Plain
from wayfare.compiler.finish import Dropped, Retry, finish_recording
from wayfare.compiler.opaque_call import Elsewhere
from wayfare.compiler.record.call_audit import CallAudit
from wayfare.compiler.record.effects import Assigned, Variable
from wayfare.compiler.record.recorder import GiveUp, Recorder
from wayfare.compiler.replay.entry import Entry, Unseen
from wayfare.compiler.replay.fast_end import Ended
from wayfare.compiler.replay.fast_path import MISS, FastPaths, fast_path
from wayfare.compiler.replay.trace_tree import Inconsistent
from wayfare.compiler.signature import Signature
from wayfare.compiler.structure import Opaque
from wayfare.core import buffer_pool
from wayfare.core.callsite import MONITORS, is_debugged
from wayfare.core.errors import CheckError, is_late
from wayfare.core.format import time_text
from wayfare.core.locks import lock
from wayfare.core.mode import LOOPING, STATE, Mode, changed_mode, current, set_mode
from wayfare.core.op_failure import memory_error
from wayfare.core.tensor import Tensor

# Recordings in a row that could not be kept (with a reason, without one) before a signature runs as plain Python.
_STRIKES, _MISSES = 3, 8
# The most reasons for recording again that are kept.
_REASONS = 32
# Calls that are timed after each self-check.
_SAMPLES = 6
# The most replays that a new fast path has to wait for.
_WAIT = 16
# After these numbers of replays, this many calls run as plain Python and are timed.
_BURSTS, _BURST = (4, 64, 1024), 6


class Compiled(Elsewhere):
    """A compiled function. Made by `wf.compile`."""

    def __init__(self, function: Callable[..., Any], *, check: bool | None = None, fullgraph: bool = False) -> None:
        # The attributes of a function are copied; those of a module stay with the module.
        functools.update_wrapper(self, function, updated=("__dict__",) if inspect.isroutine(function) else ())
        self._function = function
        self._check = check
        self._name = getattr(function, "__name__", type(function).__name__)
        self._cache = EntryCache(self._forget)
        self._budget = Budget()
        self._fallback = Fallback(function, self._name, fullgraph, self._budget)
        self._states: list[Variable] = []  # variables that calls both read and assign: inputs, like arguments
        self._is_method = False
        # Captured tensors that recordings met and that no guard leads to.
        self._found_tensors: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._fast_paths = FastPaths()
        self._samples = 0  # calls still to be timed
        self._clock: Any = None  # the device's clock for this call
        self._answered: Entry | None = None  # the entry that the last call replayed
        self._lock = lock()
        self._recording = self._running = False  # is Python recorded, is a fast path running?
        self.records_gradient = True  # the backward pass that may follow a call is recorded with it
        self._calls = self._recorded = self._checked = self._timed_calls = 0
        self._retraces: deque[str] = deque(maxlen=_REASONS)

    def __repr__(self) -> str:
        return f"<compiled function {self._name}>"

    # Like a plain function: a copy is the function itself, and a pickle holds its name.

    def __copy__(self) -> Compiled:
        return self

    def __deepcopy__(self, _memo: Any) -> Compiled:
        return self

    def __reduce__(self) -> str:
        return str(getattr(self, "__qualname__", self._name))

    def __set_name__(self, owner: type, name: str) -> None:
        self._is_method = True

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # In a class it becomes a method like a plain function, also if it is assigned to the class later.
        if instance is None:
            return self
        self._is_method = True
        return types.MethodType(self, instance)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function: replay a recording that holds for this call, or run Python (and record it)."""
        mode = STATE.mode
        if sys.gettrace() is not None or (MONITORS and is_debugged()) or (LOOPING and STATE.example is not None):
            return self._elsewhere(args, options)  # a debugger sees lines run; an example of a loop has its own numbers
        if mode is not None and (
            not mode.executor.works_on_arrays or mode.anomaly or mode.saved_hooks is not None
            or mode.generator is not None or (mode.watcher is not None and not mode.watcher.allows_plans)
        ):  # fmt: skip
            return self._elsewhere(args, options)
        observer = None if mode is None else mode.watcher
        try:
            if observer is None and not self._samples:
                self._calls += 1
                if self._fast_paths.last:
                    made = self._try_fast_paths(args, options, mode)
                    if made is not MISS:
                        return made
                return self._slow_path(args, options, mode)
            return self._watched(args, options, mode, observer)
        except MemoryError as error:
            raise memory_error(self._name, error) from None

    def _watched(self, args: tuple[Any, ...], options: dict[str, Any], mode: Mode | None, observer: Any) -> Any:
        """A call that is timed, or that an observer is told of."""
        if observer is not None:
            observer.starts(self)
        try:
            self._calls += 1
            began, self._answered = perf_counter(), None
            self._clock = self._fast_paths.start_clock() if self._samples else None
            made = self._try_fast_paths(args, options, mode) if self._fast_paths.last else MISS
            if made is MISS:
                return self._slow_path(args, options, mode)
            if self._samples:
                self._samples -= 1
                self._sampled(perf_counter() - began)
            return made
        finally:
            self._clock = None
            if observer is not None:
                observer.ended(self)

    def _sampled(self, seconds: float) -> None:
        """Add the time of the last call, which was a replay; leave it to Python if that is faster."""
        entry, clock, self._clock = self._answered, self._clock, None
        if entry is not None:
            entry.timings.add(entry.timings.calls, seconds, clock, entry.on_device)
            if (found := entry.timings.loses()) is not None:
                now, python = map(time_text, found)
                self._leave(entry, f"replaying it takes {now} and plain Python {python}")

    def _slow_path(self, args: tuple[Any, ...], options: dict[str, Any], mode: Mode | None) -> Any:
        """Compute the signature of a call; replay it, record it, or run plain Python."""
        began = perf_counter()
        try:
            call = Signature(args, options, mode, self._is_method, self._states)
        except (Opaque, TypeError) as reason:
            return self._fallback.run(Plain(f"it is called with {reason}"), args, options, self._calls)
        if not self._wait():
            return self._fallback.run(Plain(""), args, options, self._calls)
        try:
            answer = self._answer(call, args, options, began)
        finally:
            self._lock.release()
        if answer.__class__ is not Plain:
            return answer
        made = self._fallback.run(answer, args, options, self._calls)
        if self._fallback.bypass_calls:
            start_bypass(self)
        return made

    def _wait(self) -> bool:
        """Acquire the lock; False if another thread runs Python in this function, that may take long or wait for us."""
        while not self._lock.acquire(timeout=0.02):
            if self._recording:
                return False
        return True

    # -- replaying

    def _answer(self, call: Signature, args: Any, options: Any, began: float) -> Any:
        """The result of the call, or `Plain` if Python has to run it."""
        cache, key = self._cache, call.key
        if (reason := cache.reason(key)) is not None:
            return Plain(reason)
        variants = cache.entries.get(key) or ()
        for thorough in (False, True) if len(variants) > 1 else (True,):
            for entry in variants:
                if entry.holds(call.tensors, thorough):
                    return self._replay(entry, call, args, options, began)
        if variants:
            why = variants[0].why
            if why and not (variants[0].eager_reason or (self._retraces and self._retraces[-1] == why)):
                self._retraces.append(why)
            if cache.strike(key) >= _MISSES:
                cache.leave(key, f"what it depends on is different at nearly every call: {why}")
                self._forget()
                return Plain(cache.reason(key) or "")
        why = self._retraces[-1] if variants and self._retraces else ""
        return cache.may_record(key, self._budget, why) or self._record(None, call, args, options)

    def _replay(self, entry: Entry, call: Signature, args: Any, options: Any, began: float) -> Any:
        """Replay a call with the recordings of an entry."""
        if entry.eager_reason:
            return Plain(entry.eager_reason)
        if entry.tree.root is None:
            return self._record(entry, call, args, options)
        if entry.burst:
            return self._timed(entry, args, options)
        if entry.tree.root.plan is None and not self._budget.allows():
            return self._cache.refuse()
        try:
            progress = entry.follow(call.tensors)
            check = None
            if self._check is not False and (self._check or progress.end.hits >= progress.end.next_check):
                check = SelfCheck(entry, progress, call.tensors)
            else:
                result = entry.complete(progress, call.tensors)
        except Unseen as new:
            reason = self._account(entry, began)
            if reason:
                return Plain(reason)
            return self._cache.may_grow(entry, new, self._budget) or self._record(entry, call, args, options)
        except Exception as error:
            return self._failed(entry, error, args, options)
        if check is not None:
            return self._tried(entry, check, progress.end, args, options)
        self._cache.strikes.pop(call.key, None)
        self._account(entry, began)
        if self._check is not True:
            self._add_fast_path(entry, call, args, options)
        return result

    def _account(self, entry: Entry, began: float) -> str:
        """Account for the time of a replay. Returns the reason if the entry runs as plain Python from now on."""
        seconds = perf_counter() - began
        self._budget.total += seconds
        if entry.planning:
            self._budget.spent += entry.planning
            entry.planning = 0.0
        else:
            self._answered = entry
            self._sampled(seconds)
        return entry.eager_reason

    def _tried(self, entry: Entry, check: SelfCheck, end: Any, args: Any, options: Any) -> Any:
        """Compare a replay with plain Python, whose result is returned."""
        self._checked += 1
        budget = self._budget
        planning, entry.planning = entry.planning, 0.0
        budget.spent += check.seconds + planning
        end.hits += 1
        entry.hits += 1
        end.next_check = 2 * end.hits - 1
        self._samples += _SAMPLES
        if end.hits in _BURSTS and not self._check:
            entry.burst = _BURST
            self._fast_paths.keep(lambda path: path.entry is not entry)
            entry.fast_path_tried = -1
        try:
            result, seconds, difference = check.compare(lambda: self._aside(args, options))
        except Exception as error:
            if not is_late(error):
                self._leave(entry, f"a replay succeeded where Python raises {type(error).__name__}")
            raise
        buffer_pool.trim()  # buffers of Python's run would be kept, and are of no use to a plan
        entry.timings.add(entry.timings.eager, seconds, None, entry.on_device)
        budget.total += seconds + check.seconds + planning
        if difference:
            if self._check:
                raise CheckError(f"check: {self._name}, replayed, differs from plain Python in {difference}",
                                 fix="It depends on something that is not guarded: pass that as an argument.")
            self._leave(entry, f"a replay was found to differ from Python in {difference}")
            self._fallback.tell(entry.eager_reason)
        return result

    def _timed(self, entry: Entry, args: Any, options: Any) -> Any:
        """Run plain Python and time it, with warm caches (after a self-check they are not)."""
        entry.burst -= 1
        self._timed_calls += 1
        began, clock = perf_counter(), entry.start_clock()
        result = self._aside(args, options)
        seconds = perf_counter() - began
        entry.timings.add(entry.timings.eager, seconds, clock, entry.on_device)
        self._budget.total += seconds
        if not entry.burst:
            buffer_pool.trim()
        return result

    def _aside(self, args: Any, options: Any) -> Any:
        """Run plain Python; other threads may do the same meanwhile."""
        before, self._recording = self._recording, True
        try:
            return self._function(*args, **options)
        finally:
            self._recording = before

    def _failed(self, entry: Entry, error: Exception, args: Any, options: Any) -> Any:
        """A plan raised an error: run Python, which raises it on the user's line, or else the plan was wrong."""
        if is_late(error):
            raise error
        result = self._aside(args, options)
        self._leave(entry, f"its plan failed: {type(error).__name__}: {error}")
        if self._fallback.fullgraph:
            raise error
        self._fallback.tell(entry.eager_reason)
        return result

    def _leave(self, entry: Entry, reason: str) -> None:
        """Run calls of this entry as plain Python from now on."""
        entry.eager_reason = reason
        self._fast_paths.keep(lambda path: path.entry is not entry)

    def _forget(self) -> None:
        """Drop the fast paths of entries that are no longer kept."""
        kept = {id(entry) for entries in self._cache.entries.values() for entry in entries}
        self._fast_paths.keep(lambda path: id(path.entry) in kept)

    # -- fast paths

    def _try_fast_paths(self, args: tuple[Any, ...], options: dict[str, Any], mode: Mode | None) -> Any:
        """The result from a fast path, or `MISS`."""
        if not self._lock.acquire(not self._recording):  # by position: a keyword costs 0.1 µs
            return MISS
        nested, self._running = self._running, True
        try:
            if nested:
                return MISS  # by a finaliser or a signal handler in the middle of a call, whose buffers are in use
            paths = self._fast_paths
            path: Any = paths.last
            made = path.call(args, options, mode)
            if made is MISS:
                made = paths.another(args, options, mode)
                path = paths.last
            if made is not MISS:
                self._answered = path.entry
                if self._cache.strikes:
                    self._cache.strikes.pop(path.key, None)
            return made
        except Ended as ended:
            raise ended.__cause__ or ended from None
        except Exception:
            pass  # Nothing was changed: the slow path fails again, and handles the error.
        finally:
            self._running = nested
            self._lock.release()
        return MISS

    def _add_fast_path(self, entry: Entry, call: Signature, args: Any, options: Any) -> None:
        """Make a fast path for calls with this signature if that is possible, or tell it that weights have moved."""
        for path in self._fast_paths:
            if path.entry is entry and path.version == entry.version:
                if path.moved != entry.moved:
                    path.renew()
                return
        if entry.fast_path_tried != entry.version and entry.hits >= entry.next_fast_path and not self._states:
            entry.fast_path_tried = entry.version
            entry.next_fast_path = entry.hits + min(entry.recordings - 1, _WAIT)  # while the tree grows, not each time
            if self._check is False:
                for block in entry.tree.walk():
                    block.next_check = sys.maxsize
            self._fast_paths.keep(lambda path: path.entry is not entry)
            if (made := fast_path(entry, call.key, args, options, call.tensors, call.objects)) is not None:
                entry.timings.calls.clear()  # the times of the slow path say nothing about the calls to come
                self._fast_paths.add(made)

    # -- recording

    def _record(self, entry: Entry | None, call: Signature, args: Any, options: Any) -> Any:
        """Run Python and record it."""
        if not CallAudit.can_start():
            return Plain("")  # another profiler is installed: not now
        began = perf_counter()
        function, cache, key = self._function, self._cache, call.key
        if entry is None:
            states = frozenset(state.identity for state in self._states)
            seen = reach(function, tuple(call.objects) if call.objects else None, states)
            if seen.unguardable is not None:
                cache.leave(key, seen.unguardable)
                return Plain(seen.unguardable)
            entry = Entry(self._name, Guards(seen))
            cache.enter(key, entry)
            cache.watch(key, call.objects)
        self._recorded += 1
        seen = entry.guards.seen
        recorder = Recorder(entry.graph, call.tensors, {**seen.tensors, **self._found_tensors})
        recorder.code = getattr(function, "__code__", None)
        recorder.seen_arrays = seen.arrays
        recorder.records_gradient = self.records_gradient
        self._recording = True
        mode = current()
        try:
            assigned = Assigned(seen, self._states)
            with changed_mode(executor=recorder):
                with CallAudit(seen.codes) as recorder.audit:
                    result = function(*args, **options)
                recorder.show_parts()
                left = current()
                if (left.grad, left.inference) != (mode.grad, mode.inference):
                    recorder.failed = recorder.failed or "it changes grad mode or inference mode"
                if recorder.audit.reason:
                    recorder.failed = recorder.failed or recorder.audit.reason
                self._keep(entry, call, recorder, assigned, result)
        finally:
            self._recording = False
            self._budget.recorded(perf_counter() - began)
        if (left.grad, left.inference) != (mode.grad, mode.inference):
            set_mode(current().replace(grad=left.grad, inference=left.inference))
        return result

    def _keep(self, entry: Entry, call: Signature, recorder: Recorder, assigned: Assigned, result: Any) -> None:
        """Add a recording to its entry, if it can be replayed."""
        cache, key = self._cache, call.key
        try:
            recording = finish_recording(entry, call, recorder, assigned, result, self._states, self._found_tensors)
            entry.add(recording, call.tensors)
        except (GiveUp, Inconsistent) as reason:
            self._leave(entry, str(reason))
        except Dropped as reason:
            cache.leave(key, str(reason))
            self._forget()
        except Retry as changed:
            entry.reset_graph()
            strikes, what = cache.strike(key), str(changed)
            if strikes >= (_STRIKES if what else _MISSES):
                why = f"it changes what it depends on: {what}" if what else "it creates tensors that outlive the call"
                cache.leave(key, why)
                self._forget()
            elif what:
                # The next call may find objects that this one has created.
                states = frozenset(state.identity for state in self._states)
                entry.guards = Guards(entry.guards.seen.refreshed(states))
        except Exception as error:  # the call itself succeeded
            self._leave(entry, f"recording it failed: {type(error).__name__}: {error}")

    def _plain(self) -> dict[str, int]:
        """Why calls ran as plain Python, and how many did."""
        end_bypass(self)
        return dict(self._fallback.reasons)

    def explain(self, verbose: bool = False) -> Explanation:
        """Its signatures, plans and guards, and why calls were recorded again."""
        with self._lock:
            return explain(self, verbose)
