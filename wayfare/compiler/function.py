"""A compiled function: its calls are recorded, planned when they come again, replayed, and checked now and then."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable
from sys import gettrace
from typing import Any

from wayfare.compiler.account import Budget, perf_counter
from wayfare.compiler.check import Trial
from wayfare.compiler.effects import Assigned, Variable
from wayfare.compiler.entry import Entry, Unseen
from wayfare.compiler.explain import Explanation, explain
from wayfare.compiler.guards import Guards
from wayfare.compiler.known import Known
from wayfare.compiler.python import Plain, Python
from wayfare.compiler.reach import reach
from wayfare.compiler.recorder import GiveUp, Recorder
from wayfare.compiler.shortcut import MISS, Shortcut, shortcut
from wayfare.compiler.signature import Signature
from wayfare.compiler.sleep import fall_asleep, wake
from wayfare.compiler.structure import Opaque
from wayfare.compiler.take import Again, Dropped, take
from wayfare.compiler.tree import Unsteady
from wayfare.compiler.whole import WholeCall
from wayfare.compiler.witness import Witness
from wayfare.core.callsite import MONITORS, is_debugged
from wayfare.core.errors import CheckError
from wayfare.core.format import time_text
from wayfare.core.locks import lock
from wayfare.core.mode import LOOPING, STATE, Mode, changed_mode, current, set_mode
from wayfare.core.op import memory_error
from wayfare.core.tensor import Tensor

# Recordings in a row that did not last before the function is left to Python.
_STRIKES, _MISSES = 3, 8
# Kinds of calls that have a shortcut at one time.
_SHORTCUTS = 4
# Reasons for recording again that are remembered.
_REASONS = 32
# Calls that are timed after each check.
_SAMPLES = 6
# After these replays of a path so many calls run as plain Python, and are timed as well.
_BURSTS, _BURST = (4, 64, 1024), 6


class Compiled(WholeCall):
    """A compiled function. Made by `wf.compile`."""

    def __init__(self, function: Callable[..., Any], *, check: bool | None = None, fullgraph: bool = False) -> None:
        # A module's attributes are its own; a function's are few, and may be meant for whoever calls it.
        functools.update_wrapper(self, function, updated=("__dict__",) if inspect.isroutine(function) else ())
        self._function = function
        self._check = check
        self._name = getattr(function, "__name__", type(function).__name__)
        self._known = Known(self._forget)
        self._budget = Budget()
        self._python = Python(function, self._name, fullgraph, self._budget)
        self._states: list[Variable] = []  # what calls both read and assign: handed in like arguments
        self._is_method = False
        # Tensors from outside that recordings met and that no guard leads to.
        self._strange: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._shortcuts: list[Shortcut] = []
        self._samples = 0  # calls still to be timed
        self._answered: Entry | None = None  # who answered the last call by a replay
        self._turn = lock()
        self._recording = False
        self._calls = 0
        self._recorded = 0
        self._checked = 0
        self._timed_calls = 0
        self._retraces: deque[str] = deque(maxlen=_REASONS)

    def __repr__(self) -> str:
        return f"<compiled function {self._name}>"

    # Like a function it is copied as itself, and pickled by its name.

    def __copy__(self) -> Compiled:
        return self

    def __deepcopy__(self, _memo: Any) -> Compiled:
        return self

    def __reduce__(self) -> str:
        return str(getattr(self, "__qualname__", self._name))

    def __set_name__(self, owner: type, name: str) -> None:
        self._is_method = True

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # In a class it is a method like any other function, also where it was put there afterwards.
        if instance is None:
            return self
        self._is_method = True
        return types.MethodType(self, instance)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function: replayed if it was seen to do the same before, else run and recorded."""
        mode = STATE.mode
        if gettrace() is not None or (MONITORS and is_debugged()) or (LOOPING and STATE.example is not None):
            # Whoever follows the lines wants to see them run. Or the numbers it draws are those of an example.
            return self._elsewhere(args, options)
        if mode is not None and (
            not mode.executor.works_on_arrays or mode.anomaly or mode.saved_hooks is not None
            or mode.generator is not None or (mode.watcher is not None and not mode.watcher.allows_plans)
        ):  # fmt: skip
            return self._elsewhere(args, options)
        looking = None if mode is None else mode.watcher
        try:
            if looking is None and not self._samples:
                self._calls += 1
                if self._shortcuts and not options:
                    made = self._shortly(args, mode)
                    if made is not MISS:
                        return made
                return self._at_length(args, options, mode)
            return self._watched(args, options, mode, looking)
        except MemoryError as error:
            raise memory_error(self._name, error) from None

    def _watched(self, args: tuple[Any, ...], options: dict[str, Any], mode: Mode | None, looking: Any) -> Any:
        """A call that is timed, or that somebody looks at."""
        if looking is not None:
            looking.starts(self)
        try:
            self._calls += 1
            self._answered = None
            began = perf_counter()
            made = self._shortly(args, mode) if self._shortcuts and not options else MISS
            if made is MISS:
                return self._at_length(args, options, mode)
            if self._samples:
                self._samples -= 1
                self._sampled(perf_counter() - began)
            return made
        finally:
            if looking is not None:
                looking.ended(self)

    def _sampled(self, seconds: float) -> None:
        """The last call was a replay and took so long: does it pay?"""
        entry = self._answered
        if entry is None:
            return
        entry.ledger.calls.append(seconds)
        found = entry.ledger.loses()
        if found is not None:
            now, python = map(time_text, found)
            self._leave(entry, f"replaying it takes {now} and plain Python {python}")

    def _at_length(self, args: tuple[Any, ...], options: dict[str, Any], mode: Mode | None) -> Any:
        """Find out what kind of call it is; replay it, record it, or run Python."""
        began = perf_counter()
        try:
            call = Signature(args, options, mode, self._is_method, self._states)
        except (Opaque, TypeError) as reason:
            return self._python.run(Plain(f"it is called with {reason}"), args, options, self._calls)
        if not self._wait():
            return self._python.run(Plain(""), args, options, self._calls)
        try:
            answer = self._answer(call, args, options, began)
        finally:
            self._turn.release()
        if answer.__class__ is Plain:
            made = self._python.run(answer, args, options, self._calls)
            if self._python.nap:
                fall_asleep(self)
            return made
        return answer

    def _wait(self) -> bool:
        """Wait for other threads to be done with this function, and take the lock.

        False, without it, if one of them runs Python: that may take long, and may be waiting for this thread.
        """
        while not self._turn.acquire(timeout=0.02):
            if self._recording:
                return False
        return True

    # -- by what is known

    def _answer(self, call: Signature, args: Any, options: Any, began: float) -> Any:
        """What the call returns; `Plain` where Python has to run it."""
        known, key = self._known, call.key
        reason = known.reason(key)
        if reason is not None:
            return Plain(reason)
        variants = known.kinds.get(key)
        for look in (False, True) if variants and len(variants) > 1 else (True,):
            for entry in variants or ():
                if entry.holds(call.tensors, look):
                    return self._again(entry, call, args, options, began)
        if variants:
            why = variants[0].why
            if why and not (variants[0].eager_reason or (self._retraces and self._retraces[-1] == why)):
                self._retraces.append(why)
            if known.strike(key) >= _MISSES:
                known.leave(key, f"what it depends on is different at nearly every call: {why}")
                self._forget()
                return Plain(known.reason(key) or "")
        why = self._retraces[-1] if variants and self._retraces else ""
        return known.may_record(key, self._budget, why) or self._record(None, call, args, options)

    def _again(self, entry: Entry, call: Signature, args: Any, options: Any, began: float) -> Any:
        """Replay a call along what was recorded."""
        if entry.eager_reason:
            return Plain(entry.eager_reason)
        if entry.tree.root is None:
            return self._record(entry, call, args, options)
        if entry.burst:
            return self._timed(entry, args, options)
        if entry.tree.root.plan is None and not self._budget.allows():
            return self._known.refuse()
        try:
            way = entry.lead(call.tensors)
            trial = None
            if self._check is not False and (self._check or way.end.hits >= way.end.next_check):
                trial = Trial(entry, way, call.tensors)
            else:
                result = entry.complete(way, call.tensors)
        except Unseen as new:
            reason = self._took(entry, began)
            if reason:
                return Plain(reason)
            return self._known.may_grow(entry, new, self._budget) or self._record(entry, call, args, options)
        except Exception as error:
            return self._failed(entry, error, args, options)
        if trial is not None:
            return self._tried(entry, trial, way.end, args, options)
        self._known.strikes.pop(call.key, None)
        self._took(entry, began)
        if not options and self._check is not True:
            self._shorten(entry, call, args)
        return result

    def _took(self, entry: Entry, began: float) -> str:
        """A call has gone along an entry: enter what it took. Gives the reason if Python is better from now on."""
        seconds = perf_counter() - began
        budget, planning = self._budget, entry.planning
        budget.total += seconds
        if planning:
            entry.planning = 0.0
            budget.spent += planning
        else:
            self._answered = entry
            self._sampled(seconds)
        return entry.eager_reason

    def _tried(self, entry: Entry, trial: Trial, end: Any, args: Any, options: Any) -> Any:
        """Compare a replay with Python, whose result counts."""
        self._checked += 1
        budget = self._budget
        budget.spent += trial.seconds + entry.planning
        entry.planning = 0.0
        end.hits += 1
        entry.hits += 1
        end.next_check = 2 * end.hits - 1
        self._samples = _SAMPLES
        if end.hits in _BURSTS and not self._check:
            entry.burst = _BURST
            self._shortcuts = [short for short in self._shortcuts if short.entry is not entry]
            entry.shortened = False
        try:
            result, seconds, difference = trial.compare(lambda: self._aside(args, options))
        except Exception as error:
            self._leave(entry, f"a replay went well where Python raises {type(error).__name__}")
            raise
        entry.ledger.eager.append(seconds)
        budget.total += seconds + trial.seconds
        if difference:
            if self._check:
                raise CheckError(f"check: {self._name}, replayed, differs from plain Python in {difference}",
                                 fix="Something that is not guarded decides what it does: hand that in as an argument.")
            self._leave(entry, f"a replay was found to differ from Python in {difference}")
            self._python.tell(entry.eager_reason)
        return result

    def _timed(self, entry: Entry, args: Any, options: Any) -> Any:
        """A call by plain Python, to know what that takes when everything is warm; a check is not."""
        entry.burst -= 1
        self._timed_calls += 1
        began = perf_counter()
        result = self._aside(args, options)
        seconds = perf_counter() - began
        entry.ledger.eager.append(seconds)
        self._budget.total += seconds
        return result

    def _aside(self, args: Any, options: Any) -> Any:
        """Run Python, and let other threads do so in the meantime."""
        before, self._recording = self._recording, True
        try:
            return self._function(*args, **options)
        finally:
            self._recording = before

    def _failed(self, entry: Entry, error: Exception, args: Any, options: Any) -> Any:
        """A plan has failed: Python says what is wrong, on the user's line. If it finds nothing wrong, the plan was."""
        result = self._aside(args, options)
        self._leave(entry, f"its plan failed: {type(error).__name__}: {error}")
        if self._python.fullgraph:
            raise error
        self._python.tell(entry.eager_reason)
        return result

    def _leave(self, entry: Entry, reason: str) -> None:
        """Calls of this entry run as plain Python from now on."""
        entry.eager_reason = reason
        self._shortcuts = [short for short in self._shortcuts if short.entry is not entry]

    def _forget(self) -> None:
        """Drop the shortcuts of entries that are no longer kept."""
        kept = {id(entry) for entries in self._known.kinds.values() for entry in entries}
        self._shortcuts = [short for short in self._shortcuts if id(short.entry) in kept]

    # -- shortcuts

    def _shortly(self, args: tuple[Any, ...], mode: Mode | None) -> Any:
        """By a shortcut, or `MISS`."""
        if not self._turn.acquire(blocking=not self._recording):
            return MISS
        try:
            for short in self._shortcuts:
                made = short.call(args, mode)
                if made is not MISS:
                    self._answered = short.entry
                    if self._known.strikes:
                        self._known.strikes.pop(short.key, None)
                    if short is not self._shortcuts[0]:
                        self._shortcuts.remove(short)
                        self._shortcuts.insert(0, short)
                    return made
        except Exception:
            pass  # Nothing was changed: on the long way it fails again, and Python says why.
        finally:
            self._turn.release()
        return MISS

    def _shorten(self, entry: Entry, call: Signature, args: Any) -> None:
        """See that calls of this kind have a shortcut, if they can have one, that knows where weights lie."""
        for short in self._shortcuts:
            if short.entry is entry:
                if short.moved != entry.moved:
                    short.renew()
                return
        if not entry.shortened and not self._states:
            entry.shortened = True
            if self._check is False and entry.tree.root is not None:
                entry.tree.root.next_check = sys.maxsize
            made = shortcut(entry, call.key, args, call.tensors, call.objects)
            if made is not None:
                self._shortcuts.insert(0, made)
                del self._shortcuts[_SHORTCUTS:]

    # -- recording

    def _record(self, entry: Entry | None, call: Signature, args: Any, options: Any) -> Any:
        """Run Python and write down what it does."""
        if not Witness.can_look():
            return Plain("")  # somebody else looks at calls: not now
        began = perf_counter()
        function, known, key = self._function, self._known, call.key
        if entry is None:
            states = frozenset(state.identity for state in self._states)
            seen = reach(function, tuple(call.objects) if call.objects else None, states)
            if seen.unguardable is not None:
                known.leave(key, seen.unguardable)
                return Plain(seen.unguardable)
            entry = Entry(self._name, Guards(seen))
            known.enter(key, entry)
            known.watch(key, call.objects)
        self._recorded += 1
        seen = entry.guards.seen
        recorder = Recorder(entry.graph, call.tensors, {**seen.tensors, **self._strange})
        recorder.code = getattr(function, "__code__", None)
        recorder.seen_arrays = seen.arrays
        self._recording = True
        mode = current()
        try:
            assigned = Assigned(seen, self._states)
            with changed_mode(executor=recorder):
                with Witness(seen.codes) as recorder.witness:
                    result = function(*args, **options)
                recorder.show_parts()
                left = current()
                if (left.grad, left.inference) != (mode.grad, mode.inference):
                    recorder.failed = recorder.failed or "it leaves grad mode or inference mode other than it was"
                if recorder.witness.reason:
                    recorder.failed = recorder.failed or recorder.witness.reason
                self._keep(entry, call, recorder, assigned, result)
        finally:
            self._recording = False
            self._budget.recorded(perf_counter() - began)
        if (left.grad, left.inference) != (mode.grad, mode.inference):
            set_mode(current().replace(grad=left.grad, inference=left.inference))
        return result

    def _keep(
        self, entry: Entry, call: Signature, recorder: Recorder, assigned: Assigned, result: Any
    ) -> None:
        """Enter a recording, if it can be replayed without Python."""
        known, key = self._known, call.key
        try:
            recording = take(entry, call, recorder, assigned, result, self._states, self._strange)
            entry.add(recording, call.tensors)
        except (GiveUp, Unsteady) as reason:
            self._leave(entry, str(reason))
        except Dropped as reason:
            known.leave(key, str(reason))
            self._forget()
        except Exception as error:
            if not isinstance(error, Again):  # the call itself went well: Python goes on
                return self._leave(entry, f"recording it failed: {type(error).__name__}: {error}")
            changed = error
            entry.start_again()
            strikes, what = known.strike(key), str(changed)
            if strikes >= (_STRIKES if what else _MISSES):
                known.leave(key, f"it changes what it depends on: {what}" if what else "it makes tensors that stay")
                self._forget()
            elif what:
                # The next call may find what this one has made.
                states = frozenset(state.identity for state in self._states)
                entry.guards = Guards(entry.guards.seen.again(states))

    def _plain(self) -> dict[str, int]:
        """Why calls ran as plain Python, and how many did."""
        wake(self)
        return dict(self._python.reasons)

    def explain(self, verbose: bool = False) -> Explanation:
        """What is known of this function: its paths, plans and guards, and why calls were recorded again."""
        with self._turn:
            return explain(self, verbose)
