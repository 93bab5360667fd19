"""`wf.map` and `wf.batching`: automatic batching, as users call it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from wayfare.batched import lanes as _lanes  # noqa: F401 - installs methods of lazy tensors
from wayfare.batched.deep import explain_recursion, room_for_recursion
from wayfare.batched.examples import Example
from wayfare.batched.faults import in_example
from wayfare.batched.schedule import Agenda, ByDepth, Schedule
from wayfare.batched.session import Session
from wayfare.batched.stats import Stats
from wayfare.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.functions.generator import example_generator, key_for
from wayfare.state import STATE, changed_mode, current, exporter, recorder_around, watcher, watchers

__all__ = ["batching", "map"]


class _Last(threading.local):
    stats: Stats | None = None
    # The session in force.
    session: Session | None = None


_LAST = _Last()


def map(
    fn: Callable[..., Any], *iterables: Iterable[Any], batch: bool = True, schedule: Schedule | None = None,
    limit: int | None = None,
) -> list[Any]:  # fmt: skip
    """`[fn(example) for example in examples]`, with the work of all examples run in few large groups.

    `fn` is written for one example, in plain Python with loops, branches and recursion. Its ops are recorded; when it
    looks at a value it waits, and when all examples wait or are done, what they have recorded is grouped and run.
    Values, gradients and errors are those of the loop. Several iterables of one length are passed side by side.

    Each example has random numbers of its own, which depend on its place and not on its company. `batch=False` runs
    the examples one after the other, line by line, with the same random numbers. `schedule` says in which order groups
    run (`wf.batching.Agenda()`, `wf.batching.ByDepth()`), `limit` how many bytes may be pending before they are run.
    """
    if not callable(fn):
        raise ArgumentTypeError(f"map: the first argument must be a function of one example, not {type(fn).__name__}")
    if not iterables:
        raise ArgumentTypeError("map: there are no examples", fix="Call wf.map(function, examples).")
    _check(schedule, limit)
    columns = [_listed(column) for column in iterables]
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(str(len(column)) for column in columns)
        raise ArgumentError(f"map: the iterables have different lengths: {lengths}",
                            fix="Give one item of each for every example.")  # fmt: skip
    key = key_for(None)
    examples = [Example(fn, args, number, example_generator(key, number))
                for number, args in enumerate(zip(*columns, strict=True))]  # fmt: skip
    for example in examples:
        example.around = STATE.example
    executor = current().executor
    watching = recorder_around()
    if watching is not None and exporter() is None:  # in a model file the examples are a loop
        watching.give_up("it calls wf.map, whose examples are batched anew each time")
    try:
        if isinstance(executor, Session) and batch:
            executor.hub.run(examples)
        elif not batch or (executor is not None and executor is not watching) or _line_by_line():
            _one_by_one(examples)
        else:
            with batching(schedule, limit) as session:
                session._session.hub.run(examples)
    except RecursionError as error:
        sentence = explain_recursion(error)
        if sentence is None:
            raise
        explained = OperationError(f"map: {sentence}", fix="Visit each part of it once, or copy shared parts.")
        for note in getattr(error, "__notes__", []):
            explained.add_note(note)
        raise explained from None
    finally:
        results = [example.result for example in examples]
        for example in examples:
            example.result = None  # The examples live as long as what is known of their calls.
    return results


def _listed(column: Any) -> list[Any]:
    try:
        return list(column)
    except TypeError:
        raise ArgumentTypeError(f"map: examples must be iterable, and {type(column).__name__} is not",
                                fix="Pass a list of examples.") from None  # fmt: skip


def _check(schedule: Any, limit: Any) -> None:
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ArgumentTypeError(f"batching: schedule must be a Schedule, not {type(schedule).__name__}",
                                fix="Use wf.batching.Agenda() or wf.batching.ByDepth().")  # fmt: skip
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ArgumentError(f"batching: limit is a number of bytes, not {limit!r}")


def _line_by_line() -> bool:
    """Does somebody look on who wants everything to happen on the user's own line?"""
    return any(not looking.allows_batches for looking in watchers())


def running_example() -> Example | None:
    """The example of a `wf.map` whose lines run now in this thread, batched or one by one; None outside of all."""
    session = _LAST.session
    inside = None if session is None else session.hub.current
    plain: Example | None = STATE.example
    return inside or plain


def _one_by_one(examples: list[Example]) -> None:
    """The plain loop, with each example's own random numbers."""
    with room_for_recursion():
        outer = STATE.example
        for example in examples:
            STATE.example = example
            try:
                with changed_mode(generator=example.generator):
                    example.result = example.function(*example.args)
            except BaseException as error:
                in_example(error, example)
                raise
            finally:
                STATE.example = outer


class _Plain:
    """In the place of a session where somebody looks on who wants no batches: nothing is recorded, so nothing ran."""

    def __init__(self) -> None:
        self.stats = Stats()


class batching:
    """`with wf.batching() as b:` — what is computed in the block is recorded, and run in groups when it is needed.

    Looking at a value runs what it needs; the end of the block runs the rest. Tensors made in the block are ordinary
    ones afterwards. `b.stats` says what happened. A block (or a `wf.map`) inside another belongs to the outer one.
    """

    Agenda = Agenda
    ByDepth = ByDepth

    def __init__(self, schedule: Schedule | None = None, limit: int | None = None) -> None:
        _check(schedule, limit)
        self._schedule = schedule
        self._limit = limit
        self._mode: Any = None
        self._room: Any = None
        self._session: Any = None
        self._around: Session | None = None
        self._looking: Any = None
        self._inner = False

    @staticmethod
    def last() -> Stats | None:
        """What the last session of this thread did; None before the first."""
        return _LAST.stats

    @property
    def stats(self) -> Stats:
        """What was recorded and run; complete when the block has ended."""
        if self._session is None:
            raise OperationError("batching: there are no statistics before the block was entered")
        stats: Stats = self._session.stats
        return stats

    def __enter__(self) -> batching:
        if self._session is not None:
            raise OperationError("batching: this block is in use or was used already", fix="Make a new wf.batching().")
        executor = current().executor
        self._inner = isinstance(executor, Session)
        if self._inner:
            self._session = executor
            return self
        if _line_by_line():
            # Everything happens at once, as if the block were inside another one that does nothing.
            self._inner, self._session = True, _Plain()
            return self
        watching = recorder_around()
        if watching is not None:
            watching.give_up("it uses wf.batching")
        elif executor is not None:
            raise OperationError("batching: a block cannot be inside vmap or another transform of functions",
                                 fix="Put wf.batching() outside of it.")  # fmt: skip
        outer = current().replace(executor=None)
        self._session = Session(outer, self._schedule, self._limit)
        self._room = room_for_recursion()
        self._room.__enter__()
        self._mode = changed_mode(executor=self._session)
        self._mode.__enter__()
        self._around, _LAST.session = _LAST.session, self._session
        self._looking = watcher()
        if self._looking is not None:
            self._looking.starts(self._session)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._inner:
            return
        try:
            if error[0] is None:
                self._session.close()
            else:
                self._session.release()
        except BaseException:
            self._session.release()
            raise
        finally:
            _LAST.stats, _LAST.session = self._session.stats, self._around
            self._mode.__exit__(*error)
            self._room.__exit__(*error)
            if self._looking is not None:
                self._looking.ended(self._session)
