"""Examples as fibers: each runs until it needs a value, then waits until all of them do.

The hub is where fibers are resumed from. When every example waits or is done, the hub has the pending work run, and all
go on. An example that fails takes the others with it: they are stopped where they wait, and their `finally` and `with`
blocks run.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from greenlet import GreenletExit, getcurrent, greenlet

from wayfare.batched.faults import Blamed, in_example
from wayfare.batched.value import Value
from wayfare.state import STATE, Mode, set_mode

if TYPE_CHECKING:
    from wayfare.batched.work import Work


_ORDER = attrgetter("order")


class Example:
    """One call of the user's function, in a fiber of its own."""

    __slots__ = (
        "around", "args", "children", "done", "error", "fiber", "function", "generator", "mode", "number", "order",
        "parent", "result", "waits_for",
    )  # fmt: skip

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], number: int, generator: Any) -> None:
        self.function = function
        self.args = args
        self.number = number
        self.generator = generator
        self.parent: Example | None = None
        # The example of a plain loop that this one is inside of.
        self.around: Example | None = None
        # Its place among all examples, once it is to be run.
        self.order: list[int] = []
        # Examples of a map inside this one that are not done yet.
        self.children = 0
        self.fiber: Any = None
        self.mode: Mode | None = None
        self.waits_for: Value | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False

    @property
    def path(self) -> list[int]:
        """Its number, after those of the examples it is inside of."""
        above = self.parent or self.around
        return [*(above.path if above is not None else []), self.number]

    def body(self) -> None:
        """What the fiber runs."""
        try:
            self.result = _begin(self.function, self.args)
        except GreenletExit:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        # The example may live as long as what is known of its calls; what it worked with need not.
        self.function = self.args = self.mode = self.waits_for = None  # type: ignore[assignment]


# A frame that counts as the user's: where the function itself is one of the library's, there is no other.
_begin: Any = eval(compile("lambda function, args: function(*args)", "<wf.map>", "eval"))


class Hub:
    """Resumes the examples of a session, and has their work run when none can go on."""

    def __init__(self, session: Work) -> None:
        self._session = session
        self._greenlet: Any = None
        self._ready: deque[Example] = deque()
        self._waiting: list[Example] = []
        self._stopping = False
        self.current: Example | None = None

    def run(self, examples: list[Example]) -> None:
        """Run examples to their end."""
        if not examples:
            return
        mode = STATE.mode
        assert mode is not None
        for example in examples:
            example.mode = mode.replace(generator=example.generator)
        parent = self.current
        for example in examples:
            example.parent = parent
            example.order = example.path
        self._ready.extend(examples)
        if parent is None:
            self._greenlet = getcurrent()
            self._run_all(mode)
            return
        parent.children = len(examples)
        self._suspend(parent)

    def release(self) -> None:
        """Let go of the session."""
        self._session = self._greenlet = None  # type: ignore[assignment]

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
        example.waits_for = value
        self._waiting.append(example)
        self._suspend(example)

    def _suspend(self, example: Example) -> None:
        mode = STATE.mode
        self._greenlet.switch()
        self.current = example
        set_mode(mode)
        if example.error is not None:
            _throw(example)

    def _run_all(self, mode: Mode | None) -> None:
        try:
            while True:
                while self._ready:
                    self._resume(self._ready.popleft())
                set_mode(mode)
                waiting = self._waiting
                if not waiting:
                    return
                # In the order of the examples, whatever they waited for.
                waiting.sort(key=_ORDER)
                values = [example.waits_for for example in waiting]
                try:
                    self._session.run(None if None in values else values)  # type: ignore[arg-type]
                except Blamed as blamed:
                    self._session.drop(blamed.call)
                    if blamed.example not in waiting:
                        raise blamed.error from None
                    # It happened in the example's own lines, which may know what to do about it.
                    waiting.remove(blamed.example)
                    blamed.example.error = blamed.error
                    self._ready.append(blamed.example)
                    continue
                self._waiting = []
                self._ready.extend(waiting)
        except BaseException:
            self._stop()
            raise
        finally:
            self.current = None
            set_mode(mode)

    def _resume(self, example: Example) -> None:
        if example.fiber is None:
            example.fiber = greenlet(example.body, self._greenlet)
            # A new greenlet has no context variables; those of the caller are the ones users expect.
            example.fiber.gr_context = contextvars.copy_context()
        self.current = example
        set_mode(example.mode)
        example.fiber.switch()
        self.current = None
        if example.done:
            example.fiber = None
            self._finish(example)

    def _finish(self, example: Example) -> None:
        parent = example.parent
        if example.error is not None:
            in_example(example.error, example)
            if parent is None:
                _throw(example)
            self._stop(parent)
            parent.children = 0
            parent.error, example.error = example.error, None
            self._ready.append(parent)
        elif parent is not None:
            parent.children -= 1
            if parent.children == 0:
                self._ready.append(parent)

    def _stop(self, inside: Example | None = None) -> None:
        """Stop the examples that are not done (or those inside of one), the youngest first."""
        chosen = [e for e in [*self._ready, *self._waiting] if inside is None or _is_inside(e, inside)]
        # An example that waits for those inside of it is in neither list.
        parents = {id(e): e for e in chosen}
        for example in list(chosen):
            above = example.parent
            while above is not None and above is not inside:
                parents.setdefault(id(above), above)
                above = above.parent
        if inside is None and self.current is not None:
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
                    example.fiber.throw(GreenletExit)
        finally:
            self._stopping = before
            self.current = None


def _throw(example: Example) -> NoReturn:
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
