"""Examples as fibers: each runs until it needs a value, then waits until all of them do.

The hub is where fibers are resumed from. When every example waits or is done, the hub has the pending work run, and all
go on. An example that is about to change what all of them see waits for its turn: those before it end first, and from
then on the examples run one after the other, as in a loop.

An example that fails ends the map as it would end the loop: those before it run to their end (if one of them fails too,
that is the error), those after it are stopped where they wait, and their `finally` and `with` blocks run.
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
from wayfare.batch.record.call import Value
from wayfare.core.callsite import is_debugged
from wayfare.core.mode import STATE, Mode, set_mode

if TYPE_CHECKING:
    from wayfare.batch.run.pending_calls import PendingCalls


_ORDER = attrgetter("order")


class Hub:
    """Resumes the examples of a session, and has their work run when none can go on."""

    def __init__(self, session: PendingCalls) -> None:
        self._session = session
        self._greenlet: Any = None
        self._ready: deque[Example] = deque()
        self._waiting: list[Example] = []
        self._stopping = False
        # The first example that has failed while some before it are not done.
        self._failed: Example | None = None
        # The outermost examples, the mode they begin in, and the one after which they are to begin again.
        self._all: list[Example] = []
        self._mode: Mode | None = None
        self._restart_from: Example | None = None
        # Examples that were done when an error was found in a call of theirs.
        self._late_failures: list[Example] = []
        self._running = False
        self.current: Example | None = None
        # Why the examples run one after the other; "" as long as they need not.
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
        if self._changes_python(examples[0]):
            # They wait for nobody, and the one around them is next: nobody else is to go on meanwhile.
            self._ready.extendleft(reversed(examples))
        else:
            self._ready.extend(examples)
        self._suspend(parent, for_inner=True)

    def release(self) -> None:
        """Let go of the session."""
        self._session = self._greenlet = self._mode = None  # type: ignore[assignment]
        self._all = []

    def wait(self, value: Value | None) -> None:
        """Come back when a value (None: all that is pending) has been computed."""
        example = self.current
        if example is None or getcurrent() is not example.fiber:
            self._session.flush(None if value is None else [value])
            return
        if self._stopping:
            raise GreenletExit
        if value is None and not self._session.pending:
            return
        if (self.in_order or is_debugged()) and self._is_first(example):
            # Nobody else is to go on meanwhile: it is this one's turn, or somebody steps through it.
            self._session.flush(None if value is None else [value])
            return
        if self._changes_python(example) or in_update(sys._getframe(1)):
            # What it has written to Python objects would be seen by the others, and theirs by it.
            self._session.flush(None if value is None else [value], only=True)
            return
        example.waits_for = value
        self._waiting.append(example)
        self._session.note_wait()
        self._suspend(example)

    def _changes_python(self, example: Example | None) -> bool:
        while example is not None:
            parent = example.parent
            siblings = self._all if parent is None else parent.inner
            other = siblings[-1] if siblings and siblings[-1] is not example else siblings[0] if siblings else example
            others = other.args if other is not example else (None,) * len(example.args)
            if example.analysis.has_side_effects(example.function, example.args, others):
                return True
            example = parent
        return False

    def take_turn(self, why: str, restart: bool) -> bool:
        """The example that runs is about to change what all examples see: come back when those before it are done.

        From now on they run one after the other; those after it that have begun already may have to begin again. Says
        whether that is new.
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
        """If an error was found in a call of an example before the one that runs, this one goes no further: in the loop
        it would not have begun."""
        example = self.current
        if example is None or getcurrent() is not example.fiber:
            return
        if any([failed.order < example.order for failed in self._late_failures]):
            example.waits_for = None
            self._waiting.append(example)
            self._suspend(example)

    def others_began(self) -> list[Example]:
        """The examples after the one that runs that have begun already; so, too, after those it is inside of."""
        found: list[Example] = []
        now: Example | None = self.current
        while now is not None:
            siblings = self._all if now.parent is None else now.parent.inner
            found += [e for e in siblings if e.order > now.order and (e.done or e.fiber is not None)]
            now = now.parent
        return found

    def _restart_after(self, after: Example) -> None:
        """The examples after one begin once more: what they have seen so far has changed."""
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
        """Are all examples before it done?"""
        order = example.order
        return not any([e.order < order for e in self._ready]) and not any([e.order < order for e in self._waiting])

    def _suspend(self, example: Example, for_inner: bool = False) -> None:
        # What belongs to the thread belongs to each example while it runs.
        mode, plain = STATE.mode, STATE.example
        self._greenlet.switch()
        self.current = example
        STATE.example = plain
        set_mode(mode)
        if example.error is not None:
            if not for_inner and in_try(sys._getframe(1)):
                raise GreenletExit  # a call before the `try` has failed: its handlers have no part in that
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
                    # In the loop the calls of the examples before it would have been made by now.
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
            self.current = None
            set_mode(mode)

    def _run_waiting(self) -> None:
        """All wait: run what they wait for."""
        # In the order of the examples, whatever they waited for.
        waiting = sorted(self._waiting, key=_ORDER)
        values = [example.waits_for for example in waiting]
        if self._compute(None if None in values else values):  # type: ignore[arg-type]
            self._waiting = []
            self._ready.extend(waiting)

    def _run_first(self) -> None:
        """One after the other: the first example that is not done."""
        example = min([*self._ready, *self._waiting], key=_ORDER)
        if example in self._waiting:
            if not self._compute(None if example.waits_for is None else [example.waits_for]):
                return
            self._waiting.remove(example)
        else:
            if example.fiber is None:
                # It has recorded nothing yet, and need not.
                self._session.settle()
                if self._late_failures:
                    return  # in the loop it may not begin at all
                assert example.mode is not None
                example.mode = example.mode.replace(executor=None)
            self._ready.remove(example)
        self._resume(example)

    def _compute(self, values: list[Value] | None) -> bool:
        """Run what values need (None: all that is pending); False if an example failed by it."""
        try:
            self._session.run(values)
        except FailedCall as failed_call:
            if not self.deliver_error(failed_call):
                raise failed_call.error from None
            return False
        return True

    def deliver_error(self, failed_call: FailedCall) -> bool:
        """An error was found when a group ran: its example gets it. False if that is nobody, or who runs now."""
        self._session.drop(failed_call.call)
        example = failed_call.example
        if example is None or example is self.current:
            return False
        name_example(failed_call.error, example)
        example.error = failed_call.error
        if example.done:
            self._late_failures.append(example)
        elif example in self._waiting:
            # It happened in the example's own lines, which may know what to do about it.
            self._waiting.remove(example)
            self._ready.append(example)
        return True

    def raise_late_errors(self) -> None:
        """After the examples are done: the error that the loop would have met first, if any was found."""
        failures, self._late_failures = self._late_failures, []
        if failures and not self._running:
            _raise_error(min(failures, key=_ORDER))
        self._late_failures = failures

    def _resume(self, example: Example) -> None:
        if example.fiber is None:
            example.fiber = greenlet(example.body, self._greenlet)
            # A new greenlet has no context variables; those of the caller are the ones users expect.
            example.fiber.gr_context = contextvars.copy_context()
        self.current = example
        set_mode(example.mode)
        plain = STATE.example
        example.fiber.switch()
        STATE.example = plain
        self.current = None
        if example.done:
            example.fiber = None
            self._finish(example)

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
        """The examples inside one are done."""
        failed = parent.failed
        if failed is not None:
            # In the loop the calls of the examples before it would have been made by now.
            # (A map may run its examples in two parts: the one that failed need not be among those of the last.)
            self._session.discard_calls_of([failed, *(e for e in parent.inner if e.order > failed.order)])
            while not self._compute(self._session.values_of([parent])):
                pass
            late = [e for e in self._late_failures if e.parent is parent]
            self._late_failures = [e for e in self._late_failures if e.parent is not parent]
            failed = min([failed, *late], key=_ORDER)
        parent.failed = None
        if failed is not None:
            parent.error, failed.error = failed.error, None
        if self._changes_python(parent):
            self._ready.appendleft(parent)
        else:
            self._ready.append(parent)

    def _fail(self, example: Example) -> None:
        """An example has ended with an error: those after it are stopped, those before it go on."""
        assert example.error is not None
        name_example(example.error, example)
        if not isinstance(example.error, Exception):
            _raise_error(example)  # Ctrl-C, or an exit: everything stops
        parent = example.parent
        if parent is not None and parent.children == 0:
            # All inside it were done, and it has gone on already.
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
        """Stop the examples that are not done (or those inside of one, or after a place), the youngest first."""
        chosen = [e for e in [*self._ready, *self._waiting]
                  if (inside is None or _is_inside(e, inside)) and (after is None or e.order > after)]  # fmt: skip
        # An example that waits for those inside of it is in neither list.
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
    """Raise an example's error, and hold it no longer: it holds the frames that would hold it."""
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
