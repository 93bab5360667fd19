"""`wf.map` and `wf.batching`: automatic batching, as users call it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, TypedDict, TypeVar, Unpack, overload

from wayfare.batch import lanes as _lanes  # noqa: F401 - installs methods of lazy tensors
from wayfare.batch.deep import explain_recursion, room_for_recursion
from wayfare.batch.example import Example
from wayfare.batch.faults import in_example
from wayfare.batch.hooks import frame_puts_hooks
from wayfare.batch.known import Known, Record, known_of
from wayfare.batch.schedule import Agenda, ByDepth, Schedule
from wayfare.batch.session import Session
from wayfare.batch.stats import Stats
from wayfare.batch.trying import in_try
from wayfare.compiler.sleep import wake_all
from wayfare.core.callsite import current_site, is_debugged, user_frame
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.core.generator import key_for
from wayfare.core.mode import LOOPING, STATE, changed_mode, current, watcher, watchers
from wayfare.core.op import memory_error
from wayfare.core.tensor import Tensor

__all__ = ["batching", "map"]


# Bytes of a tensor above which examples run as they come.
_LARGE = 1 << 20


class _Last(threading.local):
    stats: Stats | None = None
    # The session in force.
    session: Session | None = None


_LAST = _Last()


A = TypeVar("A")
B = TypeVar("B")
Result = TypeVar("Result")


class _Options(TypedDict, total=False):
    batch: bool | None
    schedule: Schedule | None
    limit: int | None


@overload
def map(fn: Callable[[A], Result], examples: Iterable[A], /, **options: Unpack[_Options]) -> list[Result]: ...
@overload
def map(
    fn: Callable[[A, B], Result], first: Iterable[A], second: Iterable[B], /, **options: Unpack[_Options]
) -> list[Result]: ...
@overload
def map(
    fn: Callable[..., Result], first: Iterable[Any], second: Iterable[Any], third: Iterable[Any], /,
    *more: Iterable[Any], **options: Unpack[_Options],
) -> list[Result]: ...  # fmt: skip
def map(
    fn: Callable[..., Any], *iterables: Iterable[Any], batch: bool | None = None, schedule: Schedule | None = None,
    limit: int | None = None,
) -> list[Any]:  # fmt: skip
    """`[fn(example) for example in examples]`, with the work of all examples run in few large groups.

    `fn` is written for one example, in plain Python with loops, branches and recursion. Its ops are recorded; when it
    looks at a value it waits, and when all examples wait or are done, what they have recorded is grouped and run.
    Values, gradients and errors are those of the loop. Several iterables of one length are passed side by side.

    Each example has random numbers of its own, which depend on its place and not on its company. An example that
    changes what all see (parameters, buffers, gradients) waits until those before it are done, and from then on they
    run one after the other, with a warning.

    A function that takes longer batched than as a loop runs as a loop; `wf.batching.last()` has the account.
    `batch=True` always batches; `batch=False` never does, and runs one example after the other, line by line, with the
    same random numbers. `schedule` says in which order groups run (`wf.batching.Agenda()`, `wf.batching.ByDepth()`),
    `limit` how many bytes may be pending before they are run; with either the map is always batched.
    """
    if not callable(fn):
        raise ArgumentTypeError(f"map: the first argument must be a function of one example, not {type(fn).__name__}")
    if not iterables:
        raise ArgumentTypeError("map: there are no examples", fix="Call wf.map(function, examples).")
    _check(schedule, limit)
    columns = [_listed(column) for column in iterables]
    if len(columns) > 1 and len({len(column) for column in columns}) > 1:
        lengths = ", ".join(str(len(column)) for column in columns)
        raise ArgumentError(f"map: the iterables have different lengths: {lengths}",
                            fix="Give one item of each for every example.")  # fmt: skip
    key = key_for(None)
    site = current_site()
    around = running_example()
    examples = [Example(fn, args, number, key, site, around) for number, args in enumerate(zip(*columns, strict=True))]
    executor = current().executor
    executor.effect("it calls wf.map")
    if not executor.sizes_may_differ:  # in a model file the examples are a loop
        executor.not_replayable("it calls wf.map, whose examples are batched anew each time")
    if not examples:
        return []
    known = known_of(fn)
    try:
        if isinstance(executor, Session) and batch is not False:
            _batched(executor, known, examples, known.first(fn))
            if in_try(user_frame(2)):
                executor.make_calls_of(examples)  # what fails in them fails here
        elif batch is False or not executor.allows_batches or _line_by_line():
            _one_by_one(examples)
        elif batch or schedule is not None or limit is not None:
            with _OfMap(schedule, limit) as session:
                _batched(session._session, known, examples, known.first(fn))
        else:
            _as_it_pays(known, examples, schedule, limit)
    except MemoryError as error:
        raise memory_error("map", error) from None
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
            example.release()
    return results


def _as_it_pays(known: Known, examples: list[Example], schedule: Schedule | None, limit: int | None) -> None:
    """Run examples batched, or as the loop where that is faster or the only right way."""
    loop, first, timed = known.begins(len(examples), examples[0].function)
    if loop or _are_large(examples):
        known.timed(_one_by_one(examples))
        _LAST.stats = Stats(looped=len(examples), known=known)
        return
    # Some are timed as a loop: in turns the first ones and the last ones, for examples may be sorted by size.
    at_the_end = bool(timed and known.maps % 2)
    batched = examples[:-timed] if at_the_end else examples[timed:]
    if timed and not at_the_end:
        known.timed(_one_by_one(examples[:timed]))
    with _OfMap(schedule, limit) as session:
        record = session._session.took = Record(len(batched))
        _batched(session._session, known, batched, first)
    stats = session.stats
    record.seconds = stats.seconds
    if not session._session.hub.in_order:
        known.ended(record, stats.waits)
    if at_the_end:
        known.timed(_one_by_one(examples[-timed:]))
    stats.looped, stats.known = timed, known


def _are_large(examples: list[Example]) -> bool:
    """Is each example's own data so large that an op on it takes far longer than recording it?"""
    own = [part for part, other in zip(examples[0].args, examples[-1].args, strict=True) if part is not other]
    return any([isinstance(part, Tensor) and part.nbytes >= _LARGE for part in own])


def _batched(session: Session, known: Known, examples: list[Example], first: int) -> None:
    """Run examples in a session; of a new function some go first, to see whether they change what all see."""
    if session.hub.current is None:
        session.known = known
    reading = known.read(examples[0].function)
    for example in examples:
        example.reading = reading
        session.owned.give(example)
    session.apart = session.apart or reading.puts_hooks
    if known.late:
        session.hub.in_order = session.hub.in_order or known.loops
    if first:
        session.hub.run(examples[:first])
        reading.tried = True
    session.hub.run(examples[first:])


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
    if is_debugged():
        return True
    return any(not looking.allows_batches for looking in watchers())


def running_example() -> Example | None:
    """The example of a `wf.map` whose lines run now in this thread, batched or one by one; None outside of all."""
    session = _LAST.session
    inside = None if session is None else session.hub.current
    plain: Example | None = STATE.example
    return inside or plain


def _one_by_one(examples: list[Example]) -> list[float]:
    """The plain loop, with each example's own random numbers. Gives the seconds that each took."""
    mode = STATE.mode
    if mode is not None and mode.generator is not None:
        # The generator of a mode would go before that of the example.
        with changed_mode(generator=None):
            return _one_by_one(examples)
    thread = threading.get_ident()
    outermost = thread not in LOOPING
    LOOPING.add(thread)  # who draws random numbers in this thread asks which example runs
    outer = STATE.example
    seconds: list[float] = []
    try:
        with room_for_recursion():
            for example in examples:
                STATE.example = example
                began = perf_counter()
                example.result = example.function(*example.args)
                seconds.append(perf_counter() - began)
    except BaseException as error:
        if STATE.example is not outer:
            in_example(error, STATE.example)
        raise
    finally:
        STATE.example = outer
        if outermost:
            LOOPING.discard(thread)
    return seconds


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
    _is_block = True

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
        executor.not_replayable("it uses wf.batching")
        if not executor.allows_batches:
            raise OperationError("batching: a block cannot be inside vmap or another transform of functions",
                                 fix="Put wf.batching() outside of it.")  # fmt: skip
        outer = current().replace(executor=None)
        wake_all()  # compiled functions are one call each here
        self._session = Session(outer, self._schedule, self._limit)
        self._session.apart = self._is_block and frame_puts_hooks(user_frame(2))
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


class _OfMap(batching):
    """What a map runs in."""

    _is_block = False
