"""Errors name their example, also those that are found only when a group runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

from greenlet import GreenletExit, getcurrent

from wayfare.batch.analysis.exception_scopes import in_try
from wayfare.batch.record.call import Call
from wayfare.core.callsite import NO_LINE
from wayfare.core.errors import GraphError, WayfareError
from wayfare.core.tensor import wrap
from wayfare.nn.hooks import name_the_way
from wayfare.nn.module import Module

if TYPE_CHECKING:
    from wayfare.batch.fibers.example import Example
    from wayfare.batch.run.segment import Segment

_IS_NAMED = "_wayfare_example"


def name_example(error: BaseException, example: Example) -> None:
    """Add the example to an error's message, unless an inner map did so already."""
    if getattr(error, _IS_NAMED, None) is not None or isinstance(error, (KeyboardInterrupt, SystemExit)):
        return
    nowhere = isinstance(error, WayfareError) and (not error.site or NO_LINE in error.site)
    _add_note(error, example, example.site if nowhere else None)


def name_late_error(error: Exception, calls: list[Call]) -> None:
    """Say which line an error comes from that a device will find in a group of calls, when a value is read. Which
    example it was is known only if there is one."""
    first = calls[0]
    if len(calls) == 1 and first.example is not None:
        _add_note(error, first.example, first.site)
    elif isinstance(error, WayfareError):
        error.happened_in("an example of wf.map" if first.example is not None else "", first.site)
        setattr(error, _IS_NAMED, [])


def example_of(error: BaseException) -> list[int]:
    """The path of the example that an error was named after; empty if there is none."""
    return list(getattr(error, _IS_NAMED, None) or [])


def _add_note(error: BaseException, example: Example, site: Any) -> None:
    numbers = example.path
    where = " of ".join(f"example {n}" for n in reversed(numbers)) + " of wf.map"
    if isinstance(error, WayfareError):
        error.happened_in(where, site)
    else:
        error.add_note(f"in {where}" + ("" if site is None else f" ({site})"))
    try:
        setattr(error, _IS_NAMED, numbers)
    except AttributeError:
        pass  # an exception class with slots: the note may be added twice


class _Failed:
    """Stands for the group of a call that failed."""

    number = round = -1

    def error(self) -> GraphError:
        """The error for whoever uses such a call's results."""
        return GraphError("this tensor could not be computed: the call that computes it has failed",
                          fix="Do not use it where that error is caught.")  # fmt: skip

    def array_of(self, value: Any) -> NoReturn:
        """There are no values."""
        raise self.error()

    @property
    def on_host(self) -> NoReturn:
        """There are no values."""
        raise self.error()


FAILED = _Failed()


class FailedCall(Exception):
    """An error found when a group ran, with the call that caused it and its example."""

    def __init__(self, error: Exception, call: Call) -> None:
        self.error = error
        self.call = call
        self.example = call.example
        # The calls of that example that were recorded before it, and have not run yet: in the loop such a call would
        # fail first.
        self.calls_before: set[Call] = set()


def raise_past_try(example: Example | None, error: Exception) -> NoReturn:
    """Raise the error of an earlier call of the running example, so that a `try` around the present line misses it."""
    if example is not None and getcurrent() is example.fiber and in_try(sys._getframe(2)):
        example.error = error
        raise GreenletExit
    raise error from None


def find_failed_call(error: Exception, calls: list[Call], segment: Segment) -> Exception:
    """Run the calls of a failed group one by one: the first that fails, as a FailedCall; else the group's error."""
    for call in calls:
        signature = call.signature
        rows: list[Any] = [segment.locate((v,), False)[0] for v in call.inputs]
        extras = [] if call.extra is None else [call.extra]
        try:
            signature.run(signature, 1, [wrap(r) for r in rows], [False] * len(rows), extras)
        except Exception as own:
            owner = getattr(signature.target, "owner", None)
            if isinstance(own, WayfareError) and owner is not None and isinstance(owner(), Module):
                name_the_way(owner(), own)
            if call.example is not None:
                _add_note(own, call.example, call.site)
            elif isinstance(own, WayfareError):
                own.happened_in("", call.site)
            return FailedCall(own, call)
    return error


def left_in_order(error: BaseException, calls: list[Call], pending: list[Call], recorded: list[Call]) -> list[Call]:
    """After an error: those of `calls` that have not run, and all that are pending, in the order of recording. Calls
    that are not in `recorded` come before it. A FailedCall learns which calls of its example come before its own."""
    known = set(recorded)
    before = [c for c in [*calls, *pending] if c not in known]
    left = [c for c in [*before, *recorded] if c.group is None]
    if isinstance(error, FailedCall):
        own = [c for c in left if c.example is error.example]
        error.calls_before = set(own[: own.index(error.call)])
    return left
