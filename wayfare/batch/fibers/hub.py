"""The hub switches between the fibers of examples (as in gevent, the hub is the greenlet that resumes all others).

Each example runs until it needs a value that is not computed yet; then it waits. When every example waits or is done,
the hub runs the pending calls, and all examples go on. An example that is about to change what all examples see waits
for its turn: the examples before it end first, and from then on examples run one after another, as in a loop.

An example that fails ends the map as it would end the loop: examples before it run to their end (if one of those fails
too, that is the error), examples after it are stopped where they wait, and their `finally` and `with` blocks run.
"""

from __future__ import annotations

import contextvars
import sys
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from greenlet import GreenletExit, getcurrent, greenlet

from wayfare.batch.analysis.exception_scopes import in_try, in_update
from wayfare.batch.fibers.errors import FailedCall, name_example
from wayfare.batch.fibers.example import Example
from wayfare.batch.record.call import Call, Value
from wayfare.core.callsite import is_debugged, user_frame
from wayfare.core.mode import STATE, Mode, set_mode

if TYPE_CHECKING:
    from wayfare.batch.run.pending_calls import PendingCalls


_ORDER = attrgetter("order")


class Hub:
    """Resumes the examples of a session, and runs their pending calls when none can go on."""

    __slots__ = ("__dict__", "__weakref__", "current", "in_order")  # the native module knows where the last two are

    def __init__(self, session: PendingCalls) -> None:
        self._session = session
        self._greenlet: Any = None
        # Fibers whose example has ended: the next one to begin runs in one of them.
        self._idle: list[Any] = []
        self._ready: deque[Example] = deque()
        self._waiting: list[Example] = []
        self._stopping = False
        # The first example that failed, while some before it are not done.
        self._failed: Example | None = None
        # The examples of the outermost map, their mode, and the example after which all must restart.
        self._all: list[Example] = []
        self._mode: Mode | None = None
        self._restart_from: Example | None = None
        # Finished examples in whose calls an error was found later.
        self._late_failures: list[Example] = []
        # For an example in whose calls an error was found: that error, and the calls before that one.
        self._found: dict[Example, tuple[Exception, set[Call]]] = {}
        self._running = False
        self.current: Example | None = None
        # Why examples run one after another; "" while they run concurrently.
        self.in_order = ""

    def run(self, examples: list[Example]) -> None:
        """Run examples to their end."""
        if not examples:
            return
        mode = STATE.mode
        assert mode is not None
        parent = self.current
        for example in examples:
            example.prepare(mode, parent)
        if parent is None:
            self._ready.extend(examples)
            self._greenlet = getcurrent()
            self._all, self._mode = examples, mode
            self._run_all(mode)
            self._all = []
            return
        parent.children, parent.inner = len(examples), examples
        if self._has_side_effects(examples[0]):
            # The outer example must not be interrupted: its inner examples run before all others.
            self._ready.extendleft(reversed(examples))
        else:
            self._ready.extend(examples)
        self._suspend(parent, for_inner=True)

    def release(self) -> None:
        """Release the session."""
        self._session = self._greenlet = self._mode = None  # type: ignore[assignment]
        self._all, self._found = [], {}

    def wait(self, value: Value | None) -> None:
        """Return when a value has been computed (None: when all pending calls have run)."""
        example = self.current
        if example is None or getcurrent() is not example.fiber:
            self._session.flush(None if value is None else [value])
            return
        if self._stopping:
            raise GreenletExit
        if value is None and not self._session.pending:
            return
        if (self.in_order or is_debugged()) and self._is_first(example):
            # No other example may run meanwhile: it is this one's turn, or a debugger steps through it.
            self._session.flush(None if value is None else [value])
            return
        frame = user_frame(2)
        if self._has_side_effects(example) or in_update(frame):
            # Other examples would see what it wrote to Python objects, and it would see theirs: run only its own calls.
            self._session.flush(None if value is None else [value], only=True)
            return
        example.waits_for = value
        self._waiting.append(example)
        if frame is not None:
            self._session.note_wait(frame)
            del frame  # of the caller: it must not be held while others run
        self._suspend(example)

    def _has_side_effects(self, example: Example | None) -> bool:
        while example is not None:
            parent = example.parent
            siblings = self._all if parent is None else parent.inner
            known = example.side_effects
            if known is None or known[0] != len(siblings):
                last = siblings[-1] if siblings else example
                other = last if last is not example or not siblings else siblings[0]
                others = other.args if other is not example else (None,) * len(example.args)
                found = example.analysis.has_side_effects(example.function, example.args, others)
                known = example.side_effects = len(siblings), found
            if known[1]:
                return True
            example = parent
        return False

    def take_turn(self, why: str, restart: bool) -> bool:
        """The running example is about to change what all examples see: return when the examples before it are done.

        From now on examples run one after another; with `restart`, later ones that have begun already start again.
        Returns whether this is the first time.
        """
        example = self.current
        if example is None or getcurrent() is not example.fiber or self._stopping:
            return False
        new = not self.in_order
        self.in_order = self.in_order or why
        if restart:
            self._restart_from = example
        if restart or not self._is_first(example):
            example.waits_for = None
            self._waiting.append(example)
            self._suspend(example)
        return new

    def stop_after_failure(self) -> None:
        """Stop the running example if a call of an earlier one has failed: in the loop it would not have begun."""
        example = self.current
        if example is None or getcurrent() is not example.fiber:
            return
        if any([failed.order < example.order for failed in self._late_failures]):
            example.waits_for = None
            self._waiting.append(example)
            self._suspend(example)

    def others_began(self) -> list[Example]:
        """The examples after the running one (and after those it is inside of) that have begun already."""
        found: list[Example] = []
        now: Example | None = self.current
        while now is not None:
            siblings = self._all if now.parent is None else now.parent.inner
            found += [e for e in siblings if e.order > now.order and (e.done or e.fiber is not None)]
            now = now.parent
        return found

    def _restart_after(self, after: Example) -> None:
        """Restart all examples after one: what they have read so far is about to change."""
        self._stop(after=after.order)
        self._late_failures = [e for e in self._late_failures if e.order < after.order]
        if self._failed is not None and self._failed.order > after.order:
            self._failed = None
        now: Example | None = after
        while now is not None:
            parent = now.parent
            later = [e for e in (self._all if parent is None else parent.inner) if e.order > now.order]
            self._session.discard_calls_of(later)
            mode = self._mode if parent is None else now.mode
            assert mode is not None
            for example in later:
                example.restart(mode)
            self._ready.extend(later)
            if parent is not None:
                parent.children = sum([not e.done for e in parent.inner])
            now = parent

    def _is_first(self, example: Example) -> bool:
        """Whether all examples before it are done."""
        order = example.order
        return not any([e.order < order for e in self._ready]) and not any([e.order < order for e in self._waiting])

    def _suspend(self, example: Example, for_inner: bool = False) -> None:
        # Each example has its own thread state: save it, and restore it when the example goes on.
        mode, plain = STATE.mode, STATE.example
        self._greenlet.switch()
        self.current = example
        STATE.example = plain
        set_mode(mode)
        if example.error is not None:
            if not for_inner and in_try(sys._getframe(1)):
                raise GreenletExit  # a call from before the `try` failed: its handlers must not see that
            _raise_error(example)

    def _run_all(self, mode: Mode | None) -> None:
        self._running = True
        try:
            while self._ready or self._waiting or self._late_failures:
                if self._restart_from is not None:
                    after, self._restart_from = self._restart_from, None
                    self._restart_after(after)
                elif self._late_failures:
                    self._fail(self._late_failures.pop())
                elif self.in_order:
                    self._run_first()
                elif self._ready:
                    self._resume(self._ready.popleft())
                else:
                    set_mode(mode)
                    self._run_waiting()
                if self._failed is not None and not self._ready and not self._waiting:
                    # In the loop the calls of the examples before it would have run by now.
                    self._session.discard_calls_after(self._failed.order)
                    self._compute(None)
            failed, self._failed = self._failed, None
            if failed is not None:
                _raise_error(failed)
        except BaseException:
            self._failed, self._late_failures, self._all, self._restart_from = None, [], [], None
            self._stop()
            raise
        finally:
            self._running = False
            self._found = {}
            self.current = None
            self._end_fibers()
            set_mode(mode)

    def _run_waiting(self) -> None:
        """All examples wait: run what they wait for, and make them ready in order."""
        waiting = sorted(self._waiting, key=_ORDER)
        values = [example.waits_for for example in waiting]
        if self._compute(None if None in values else values):  # type: ignore[arg-type]
            self._waiting = []
            self._ready.extend(waiting)

    def _run_first(self) -> None:
        """Run the first example that is not done."""
        example = min([*self._ready, *self._waiting], key=_ORDER)
        if example in self._waiting:
            if not self._compute(None if example.waits_for is None else [example.waits_for]):
                return
            self._waiting.remove(example)
        else:
            if example.fiber is None:
                # It has recorded nothing yet: it runs eagerly.
                self._session.materialise()
                if self._late_failures:
                    return  # an earlier example failed: in the loop this one may not begin
                assert example.mode is not None
                example.mode = example.mode.replace(executor=None)
            self._ready.remove(example)
        self._resume(example)

    def _compute(self, values: list[Value] | None) -> bool:
        """Run what values need (None: all pending calls); False if a call failed."""
        try:
            self._session.run(values)
        except FailedCall as failed_call:
            if not self.deliver_error(failed_call):
                raise failed_call.error from None
            return False
        return True

    def deliver_error(self, failed_call: FailedCall) -> bool:
        """Give the error of a failed call to its example. False if it has none, or if that example is running."""
        self._session.drop(failed_call.call)
        example = failed_call.example
        if example is None or example is self.current:
            return False
        known, before = self._found.get(example, (None, ()))
        if known is not None and example.error is known and failed_call.call not in before:
            return True  # in the loop the other call fails first, and this one is never made
        name_example(failed_call.error, example)
        example.error = failed_call.error
        self._found[example] = failed_call.error, failed_call.calls_before
        if example.done:
            self._late_failures.append(example)
        elif example in self._waiting:
            # The error is raised in the example, which may handle it.
            self._waiting.remove(example)
            self._ready.append(example)
        return True

    def raise_late_errors(self) -> None:
        """After all examples are done: raise the error that the loop would have met first, if any."""
        failures, self._late_failures = self._late_failures, []
        if failures and not self._running:
            self._found = {}
            _raise_error(min(failures, key=_ORDER))
        self._late_failures = failures

    def _resume(self, example: Example) -> None:
        if example.fiber is None:
            example.fiber = self._idle.pop() if self._idle else greenlet(self._work, self._greenlet)
            # A new greenlet starts without context variables: give it those of the caller.
            example.fiber.gr_context = contextvars.copy_context()
            set_mode(example.mode)  # one that goes on sets its mode itself
        self.current = example
        plain = STATE.example
        example.fiber.switch(example)  # one that goes on does not look at what it is given
        STATE.example = plain
        self.current = None
        if example.done:
            example.fiber = None
            self._finish(example)

    def _work(self, example: Example | None) -> None:
        """What a fiber runs: one example after another. A new greenlet costs several times as much as a switch."""
        fiber = getcurrent()
        while example is not None:
            example.body()
            self._idle.append(fiber)
            example = self._greenlet.switch()

    def _end_fibers(self) -> None:
        idle, self._idle = self._idle, []
        for fiber in idle:
            fiber.switch(None)

    def _finish(self, example: Example) -> None:
        if example.error is not None:
            self._fail(example)
            return
        parent = example.parent
        if parent is not None:
            parent.children -= 1
            if parent.children == 0:
                self._resume_parent(parent)

    def _resume_parent(self, parent: Example) -> None:
        """The inner examples of one are done: it goes on, with an error if one of them failed."""
        failed = parent.failed
        if failed is not None:
            # In the loop its own calls, and those of the examples before it, would have run by now.
            # (A map may run its examples in two parts, so the failed one may not be in `parent.inner`.)
            self._session.discard_calls_of([e for e in parent.inner if e.order > failed.order])
            while not self._compute(self._session.values_of([parent])):
                pass
            late = [e for e in self._late_failures if e.parent is parent]
            self._late_failures = [e for e in self._late_failures if e.parent is not parent]
            failed = min([failed, *late], key=_ORDER)
        parent.failed = None
        if failed is not None:
            parent.error, failed.error = failed.error, None
        if self._has_side_effects(parent):
            self._ready.appendleft(parent)
        else:
            self._ready.append(parent)

    def _fail(self, example: Example) -> None:
        """An example ended with an error: stop the examples after it; those before it go on."""
        assert example.error is not None
        name_example(example.error, example)
        if not isinstance(example.error, Exception):
            _raise_error(example)  # Ctrl-C or sys.exit(): everything stops
        parent = example.parent
        if parent is not None and parent.children == 0:
            # All inner examples were done, and the outer one has gone on already.
            parent.error, example.error = example.error, None
            if parent.done:
                self._fail(parent)
            elif parent in self._waiting:
                self._waiting.remove(parent)
                self._ready.append(parent)
            return
        self._stop(parent, after=example.order)
        before = [e for e in [*self._ready, *self._waiting] if parent is None or _is_inside(e, parent)]
        earlier = self._failed if parent is None else parent.failed
        if earlier is not None and earlier.order < example.order:
            example = earlier
        if parent is None:
            self._failed = example
            return
        parent.failed = example
        depth = len(example.order)
        parent.children = len({tuple(e.order[:depth]) for e in before})
        if parent.children == 0:
            self._resume_parent(parent)

    def _stop(self, inside: Example | None = None, after: list[int] | None = None) -> None:
        """Stop the unfinished examples (only those inside one, or after a position), the last one first."""
        chosen = [e for e in [*self._ready, *self._waiting]
                  if (inside is None or _is_inside(e, inside)) and (after is None or e.order > after)]  # fmt: skip
        # An example that waits for its inner examples is in neither list.
        parents = {id(e): e for e in chosen}
        for example in list(chosen):
            above = example.parent
            while above is not None and above is not inside and (after is None or above.order > after):
                parents.setdefault(id(above), above)
                above = above.parent
        if inside is None and after is None and self.current is not None:
            above = self.current.parent
            while above is not None:
                parents.setdefault(id(above), above)
                above = above.parent
        self._ready = deque(e for e in self._ready if id(e) not in parents)
        self._waiting = [e for e in self._waiting if id(e) not in parents]
        before, self._stopping = self._stopping, True
        try:
            for example in sorted(parents.values(), key=_ORDER, reverse=True):
                if example.fiber is not None and not example.done:
                    self.current = example
                    set_mode(example.mode)
                    plain = STATE.example
                    example.fiber.throw(GreenletExit)
                    STATE.example = plain
        finally:
            self._stopping = before
            self.current = None


def _raise_error(example: Example) -> NoReturn:
    """Raise an example's error, and drop all references to it, to avoid a cycle with its traceback."""
    error, example.error = example.error, None
    assert error is not None
    try:
        raise error
    finally:
        del error


def _is_inside(example: Example, outer: Example) -> bool:
    above = example.parent
    while above is not None:
        if above is outer:
            return True
        above = above.parent
    return False
