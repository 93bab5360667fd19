"""`wf.map`: a function of one example runs for many, in one of several ways."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import perf_counter, thread_time
from typing import Any, TypedDict, TypeVar, Unpack, overload

from wayfare.batch.analysis.exception_scopes import in_try
from wayfare.batch.batching_block import THREAD, MapSession, check_options, line_by_line
from wayfare.batch.fibers.errors import name_example
from wayfare.batch.fibers.example import Example
from wayfare.batch.fibers.recursion import explain_recursion, room_for_recursion
from wayfare.batch.function_profile import FunctionProfile, MapTiming, profile_of
from wayfare.batch.paths.choose import paths_for
from wayfare.batch.paths.recorded import LEAST, RecordedPaths
from wayfare.batch.paths.stats import PathStats
from wayfare.batch.run.schedule import Schedule
from wayfare.batch.session import Session
from wayfare.batch.stats import Stats
from wayfare.batch.workers.choose import workers_of
from wayfare.core.callsite import current_site, user_frame
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.core.executor import EAGER
from wayfare.core.generator import key_for
from wayfare.core.mode import LOOPING, STATE, UNUSUAL, changed_mode, current
from wayfare.core.op_failure import memory_error
from wayfare.core.tensor import Tensor

__all__ = ["map"]


# Examples with tensors of at least this many bytes run as a plain loop.
_LARGE = 1 << 20
# So few examples that are left by others run as a plain loop.
_FEW = 4


A = TypeVar("A")
B = TypeVar("B")
Result = TypeVar("Result")


class _Options(TypedDict, total=False):
    batch: bool | None
    schedule: Schedule | None
    limit: int | None
    workers: int | None


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
    limit: int | None = None, workers: int | None = None,
) -> list[Any]:  # fmt: skip
    """`[fn(example) for example in examples]`, with the work of all examples run in few large groups.

    `fn` is written for one example, in plain Python with loops, branches and recursion. Its ops are recorded. When an
    example reads a value it waits; when all examples wait or are done, the recorded calls are grouped and run. Values,
    gradients and errors are those of the loop. Several iterables of one length are passed side by side, as in `map`.

    Each example has its own random numbers, which depend only on its index. An example that changes what all examples
    see (parameters, buffers, gradients) waits until those before it are done; from then on examples run one after
    another, with a warning.

    A function that takes longer batched than as a loop runs as a loop; `wf.batching.last()` shows the measured times.
    `batch=True` always batches; `batch=False` never does, and runs one example after another, line by line, with the
    same random numbers. `schedule` decides in which order groups run (`wf.batching.Agenda()`, `wf.batching.ByDepth()`),
    `limit` is how many bytes of results may be pending before they are computed; with either the map is always batched.

    `workers=n` spreads the examples over n processes, where Python itself is the limit; they are kept from one map to
    the next. Values and gradients are those of one process to rounding. A function that changes Python objects or
    tensors that others see, or that is not faster so, runs in one process, with a warning.
    """
    if not callable(fn):
        raise ArgumentTypeError(f"map: the first argument must be a function of one example, not {type(fn).__name__}")
    if not iterables:
        raise ArgumentTypeError("map: there are no examples", fix="Call wf.map(function, examples).")
    check_options(schedule, limit)
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 0):
        raise ArgumentError(f"map: workers is a number of processes, not {workers!r}",
                            fix="Give a whole number, or leave it out.")  # fmt: skip
    columns = [_listed(column) for column in iterables]
    if len(columns) > 1 and len({len(column) for column in columns}) > 1:
        lengths = ", ".join(str(len(column)) for column in columns)
        raise ArgumentError(f"map: the iterables have different lengths: {lengths}",
                            fix="Give one item of each for every example.")  # fmt: skip
    profile = profile_of(fn)
    try:
        plain = batch is None and schedule is None and limit is None and workers is None
        if plain and not UNUSUAL and not LOOPING:
            count = len(columns[0])
            if count == 1 or profile.runs_straight(count):
                return _straight(profile, fn, columns)
        return _chosen(profile, fn, columns, batch, schedule, limit, workers)
    except MemoryError as error:
        if error.__class__ is MemoryError and error.args:
            raise  # the user's own
        raise memory_error("map", error) from None
    except RecursionError as error:
        sentence = explain_recursion(error)
        if sentence is None:
            raise
        explained = OperationError(f"map: {sentence}", fix="Visit each part of it once, or copy shared parts.")
        for note in getattr(error, "__notes__", []):
            explained.add_note(note)
        raise explained from None


def _straight(profile: FunctionProfile, fn: Callable[..., Any], columns: list[list[Any]]) -> list[Any]:
    """The plain loop in the ordinary state, where there is nothing to choose: what `_loop` does, with one `Example` for
    all of them, so that it costs little more than the loop of the user."""
    timed = len(columns[0]) > 1 and profile.wants_timing()
    began = thread_time() if timed else 0.0
    example = Example(fn, (), 0, key_for(None), None)
    results: list[Any] = []
    thread = threading.get_ident()
    LOOPING.add(thread)
    STATE.example = example
    try:
        with room_for_recursion():
            for args in zip(*columns, strict=True):
                results.append(fn(*args))
                example.number += 1
                example._generator = None
    except BaseException as error:
        example.site = current_site()
        name_example(error, example)
        raise
    finally:
        STATE.example = None
        LOOPING.discard(thread)
    if timed:
        profile.timed([(thread_time() - began) / len(results)])
    THREAD.stats = Stats(looped=len(results), profile=profile)
    return results


def _chosen(
    profile: FunctionProfile, fn: Callable[..., Any], columns: list[list[Any]], batch: bool | None,
    schedule: Schedule | None, limit: int | None, workers: int | None,
) -> list[Any]:  # fmt: skip
    """Run the examples in the way that the options, the state of the thread and the profile say."""
    key = key_for(None)
    site = current_site()
    outer = running_example()
    examples = [Example(fn, args, number, key, site, outer) for number, args in enumerate(zip(*columns, strict=True))]
    executor = current().executor
    executor.effect("it calls wf.map")
    if not executor.sizes_may_differ:  # in an exported model the examples are a loop
        executor.not_replayable("it calls wf.map, whose examples are batched anew each time")
    if not examples:
        return []
    try:
        if workers is not None and executor is EAGER and outer is None and schedule is None and limit is None:
            _spread(profile, examples, workers, batch)
        else:
            _run(profile, examples, batch, schedule, limit)
    finally:
        results = [example.result for example in examples]
        for example in examples:
            example.release()
    return results


def _run(
    profile: FunctionProfile, examples: list[Example], batch: bool | None, schedule: Schedule | None = None,
    limit: int | None = None,
) -> None:  # fmt: skip
    """Run examples in this process, in the way that the options and the profile say."""
    executor = current().executor
    if isinstance(executor, Session) and batch is not False:
        _batched(executor, profile, examples, profile.first(examples[0].function))
        if in_try(user_frame(2)):
            executor.run_calls_of(examples)  # errors must be raised inside this `try`
    elif batch is False or not executor.allows_batches or line_by_line():
        _loop(examples)
    elif schedule is not None or limit is not None:
        _in_session(profile, examples, schedule, limit)
    elif batch:
        left, path_stats = _along_paths(profile, paths_for(profile, examples), examples, always=True)
        if left:
            _in_session(profile, left).paths = path_stats
    else:
        _batched_or_loop(profile, examples)


def run_in_worker(fn: Callable[..., Any], examples: list[Example], batch: bool | None) -> Stats | None:
    """Run examples in a worker of `wf.map`."""
    THREAD.stats = None
    _run(profile_of(fn), examples, batch)
    return THREAD.stats


def _spread(profile: FunctionProfile, examples: list[Example], workers: int, batch: bool | None) -> None:
    """Run examples in worker processes, or here if that cannot be right or is not faster."""
    # Not before somebody wants it: multiprocessing takes a while to import.
    from wayfare.batch.workers.pool import in_a_worker
    from wayfare.batch.workers.sending import NotSpread
    from wayfare.batch.workers.spread import spread

    known = workers_of(profile)
    if workers < 2 or in_a_worker() or line_by_line() or len(examples) < 2 or not known.plan(profile):
        made = len(profile.by_map)
        began = perf_counter()
        _run(profile, examples, batch)
        timing = profile.by_map[-1] if len(profile.by_map) > made else None
        known.one_took(len(examples), perf_counter() - began, timing)
        return
    first = examples[0]
    device = first.elsewhere()
    why = known.effects_of(first.function, first.args)
    try:
        if device is not None:
            raise NotSpread(f"its tensors are on {device}, and processes are given those of the CPU")
        if why:
            raise NotSpread(f"it changes what others see: {why}")
        THREAD.stats = stats = spread(examples, workers, batch, known, profile, run_in_worker)
        known.spread_took(len(examples), stats)
    except NotSpread as reason:
        known.refused = str(reason)
        profile.warn_once(f"map: {profile.name} runs in one process, because {reason}.")
        _run(profile, examples, batch)


def _along_paths(
    profile: FunctionProfile, paths: RecordedPaths | None, examples: list[Example], always: bool = False
) -> tuple[list[Example], PathStats | None]:
    """Run the examples whose path is recorded. Returns the others, and the statistics (None: nothing was tried)."""
    if paths is None:
        return examples, None
    stats = PathStats()
    left = paths.run(examples, _loop, profile, stats, always)
    THREAD.stats = Stats(profile=profile, paths=stats)
    return left, stats


def _in_session(
    profile: FunctionProfile, examples: list[Example], schedule: Schedule | None = None, limit: int | None = None
) -> Stats:
    """Run examples batched."""
    with MapSession(schedule, limit) as session:
        _batched(session._session, profile, examples, profile.first(examples[0].function))
    return session.stats


def _batched_or_loop(profile: FunctionProfile, examples: list[Example]) -> None:
    """Run examples along recorded paths, batched, or as a loop if that is faster or necessary."""
    if len(examples) == 1:
        _loop(examples)
        THREAD.stats = Stats(looped=1, profile=profile)
        return
    large = _are_large(examples)
    count = len(examples)
    paths = None if large else paths_for(profile, examples)
    examples, path_stats = _along_paths(profile, paths, examples)
    if path_stats is not None and (len(examples) < _FEW or path_stats.growing):
        # Where examples wait for values, batches are little faster than the loop, and each would compile its own.
        _loop(examples)
        THREAD.stats = Stats(looped=len(examples), profile=profile, paths=path_stats)
        return
    loop, first, timed = profile.plan(len(examples), examples[0].function)
    if loop or large:
        timed_now = profile.wants_timing()
        seconds = _loop(examples, timed_now)
        if timed_now:
            profile.timed(seconds)
        THREAD.stats = Stats(looped=len(examples), profile=profile, paths=path_stats)
        if not large:
            # Of few examples paths were not looked for: that says nothing of more.
            profile.go_straight(LEAST - 1 if count < LEAST else None, None if paths is None else paths.skip)
        return
    # Some are timed as a loop: alternately the first and the last ones, because examples may be sorted by size.
    at_the_end = bool(timed and profile.maps % 2)
    batched = examples[:-timed] if at_the_end else examples[timed:]
    if timed and not at_the_end:
        profile.timed(_loop(examples[:timed], True))
    began = thread_time()
    with MapSession() as session:
        timing = session._session.timing = MapTiming(len(batched))
        _batched(session._session, profile, batched, first)
    stats = session.stats
    timing.seconds = thread_time() - began
    if not session._session.hub.in_order:
        profile.add_map(timing, stats.waits)
    if at_the_end:
        profile.timed(_loop(examples[-timed:], True))
    stats.looped, stats.profile, stats.paths = timed, profile, path_stats


def _are_large(examples: list[Example]) -> bool:
    """Whether each example's own data is so large that an op on it takes far longer than recording it."""
    own = [part for part, other in zip(examples[0].args, examples[-1].args, strict=True) if part is not other]
    return any([isinstance(part, Tensor) and part.nbytes >= _LARGE for part in own])


def _batched(session: Session, profile: FunctionProfile, examples: list[Example], first: int) -> None:
    """Run examples in a session; the `first` ones alone, to find out whether they change what all examples see."""
    if session.hub.current is None:
        session.profile = profile
    analysis = profile.analysis_of(examples[0].function)
    for example in examples:
        example.analysis = analysis
        session.ownership.add_arguments(example)
    session.no_common_calls = session.no_common_calls or analysis.registers_hooks
    if profile.never_batch:
        session.hub.in_order = session.hub.in_order or profile.loop_reason
    if first:
        session.hub.run(examples[:first])
        analysis.tried = True
    session.hub.run(examples[first:])


def _listed(column: Any) -> list[Any]:
    try:
        return list(column)
    except TypeError:
        raise ArgumentTypeError(f"map: examples must be iterable, and {type(column).__name__} is not",
                                fix="Pass a list of examples.") from None  # fmt: skip


def running_example() -> Example | None:
    """The example of a `wf.map` that is running in this thread, batched or as a loop; None outside a map."""
    session = THREAD.session
    inside = None if session is None else session.hub.current
    plain: Example | None = STATE.example
    return inside or plain


def _loop(examples: list[Example], timed: bool = False) -> list[float]:
    """The plain loop, with each example's own random numbers. With `timed` it returns the seconds of each example, of
    this thread alone: those of the first one, and the mean of the others (the clock takes up to 2 µs)."""
    mode = STATE.mode
    if mode is not None and mode.generator is not None:
        # The generator of the mode would take precedence over that of the example.
        with changed_mode(generator=None):
            return _loop(examples, timed)
    thread = threading.get_ident()
    outermost = thread not in LOOPING
    LOOPING.add(thread)  # so that random numbers come from the running example
    outer = STATE.example
    times: list[float] = []
    try:
        with room_for_recursion():
            began = thread_time() if timed else 0.0
            for example in examples:
                STATE.example = example
                example.result = example.function(*example.args)
                if timed and not times:
                    times.append(thread_time() - began)
            if timed and len(examples) > 1:
                rest = len(examples) - 1
                times += [(thread_time() - began - times[0]) / rest] * rest
    except BaseException as error:
        if STATE.example is not outer:
            name_example(error, STATE.example)
        raise
    finally:
        STATE.example = outer
        if outermost:
            LOOPING.discard(thread)
    return times
