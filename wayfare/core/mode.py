"""What is in force in this thread: whether to record, which executor runs ops, which hooks watch.

`STATE.mode` is None in the ordinary case (eager, recording), so the hot path asks one question. Everything else
is a Mode, installed by a `with` block and restored when it ends.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

from wayfare.core.callsite import INSIDE


class Executor(Protocol):
    """Another way of running ops than eagerly: the single point where vmap (and later ways) step in."""

    def apply(self, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Run one op on tensors."""

    def read(self, tensor: Any, how: str) -> Any:
        """Python looks at a value (`bool()`, `.item()`, …): give the array, or refuse with the reason."""

    def behind(self, tensor: Any) -> Any:
        """The tensor whose memory this one shows; None where a write to it was found lawful before."""

    def write(self, tensor: Any, result: Any, move: Callable[[Any, Any], Any]) -> None:
        """Write in place: call `move(tensor, values)` for what stands behind the two."""


class CallOut(Protocol):
    """Python that runs again whenever a recorded call is replayed: counters go up, numbers are worked out anew.

    The call-outs of a recording run in its order. `run` looks for itself whether it may; `ready` only asks.
    """

    # Why the last `ready` said no: a clause for "recorded again because …".
    reason: str

    def ready(self) -> bool:
        """Would the call still do what was recorded? Changes nothing."""

    def run(self) -> list[tuple[float, ...]]:
        """Advance the Python state by one call, and give the numbers of each fused update it makes, in order.

        Raises `StaleCall`, having changed nothing, where `ready` would have said no.
        """

    def undo(self) -> None:
        """Put the Python state back as it was before the last `run`."""

    def left(self) -> Any:
        """The Python state that `run` changes, as it is now, for a comparison."""


class StaleCall(Exception):
    """A call-out would no longer do what was recorded."""


class Recorder(Executor, Protocol):
    """An executor that runs ops for real and writes down what happened, to do it again later without Python."""

    # What tells a recorder from other executors.
    records: bool

    def calling(self, call: CallOut) -> AbstractContextManager[None]:
        """What happens inside belongs to this call-out; entered around the real call."""

    def update(self, update: Any, written: list[Any], read: list[Any], numbers: Sequence[float]) -> None:
        """Run a fused update (a `backend.update.Update`) on tensors, and write it down."""

    def draw(self, generator: Any, key: tuple[int, int]) -> None:
        """A random key was taken from a generator; one that was put back gives the same key again."""

    def flag_set(self, t: Any, what: str) -> None:
        """Something about a tensor is set that is no number: `requires_grad`, `retain_grad()`."""

    def give_up(self, reason: str) -> NoReturn:
        """What happens here cannot be done again without Python."""


class Batcher(Executor, Protocol):
    """The executor of automatic batching: it records calls and runs them later, many at once."""

    # What tells it from other executors.
    batches: bool

    def whole_call(self, owner: Any, function: Any, args: tuple[Any, ...], options: dict[str, Any], about: Any) -> Any:
        """`function(owner, *args, **options)` as one call; NotImplemented where it is to be taken apart."""

    def module_call(self, module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The same for a module of the user's, if its forward only computes."""

    def shows(self, tensors: tuple[Any, ...]) -> bool:
        """May a check look at the numbers of these tensors?"""

    def is_view(self, t: Any, shape: tuple[int, ...]) -> bool:
        """Could the tensor have that shape without a copy?"""

    def settle(self) -> None:
        """Run all that is pending, and make every tensor an ordinary one."""

    def for_real(self, function: Callable[[], Any]) -> Any:
        """Run what cannot be recorded, on ordinary tensors."""

    def born(self, thing: Any) -> None:
        """An array of its own memory, or a module, was made by the example that runs."""

    def flag_set(self, t: Any, what: str) -> None:
        """Something about a tensor is about to be set that is no number."""

    def changes(self, thing: Any, how: str) -> None:
        """A tensor or a module is about to change (None: something of the whole process)."""


class Watcher:
    """Somebody who looks on while code runs: told of everything that happens, and asked for nothing.

    This one takes no notice; a subclass says what it wants to be told of. What a watcher raises stops the user's code
    at the line that did what it was told of.
    """

    # May compiled functions replay their plans, and may examples run batched? Else all runs line by line, and what is
    # told of happens on the user's own line.
    allows_plans = True
    allows_batches = True

    def starts(self, what: Any) -> None:
        """Something begins: an op (`ran` will tell), the gradient rule of a node (`stepped` will), or what ends with
        `ended`: a backward pass, a call of a compiled function, a step of an optimiser, a session of batching and each
        group of its calls (a list of them)."""

    def ended(self, what: Any) -> None:
        """It has ended, be it by an error."""

    def ran(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        """An op has run on tensors."""

    def stepped(self, node: Any, given: Any, made: Sequence[Any]) -> None:
        """The gradient rule of a node has run: it was given an array (a tuple for several outputs), and made these."""

    def looked(self, tensor: Any, how: str, array: Any) -> None:
        """Python looked at a value (`bool()`, `item()`, …), and may decide by it."""

    def entered(self, module: Any) -> None:
        """A call of a module begins."""

    def left(self, module: Any) -> None:
        """A call of a module has ended, be it by an error."""


_GIVEN = ("grad", "executor", "inference", "anomaly", "saved_hooks", "generator", "watcher")


class Mode:
    """The state of a thread when it is not the ordinary one."""

    __slots__ = (*_GIVEN, "batcher", "watchers")

    def __init__(
        self,
        grad: bool = True,
        executor: Executor | None = None,
        inference: bool = False,
        anomaly: Any = None,
        saved_hooks: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
        generator: Any = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.grad = grad
        # Who looks on and wants everything to happen on the user's own line wants no batches; hooks for what is kept
        # must see it when it is.
        if getattr(executor, "batches", False):
            watched = not all([w is None or w.allows_batches for w in (anomaly, watcher)])
            executor = None if watched or saved_hooks is not None else executor
        self.executor = executor
        self.inference = inference
        # Who looks for bad numbers (also a Watcher), or None.
        self.anomaly = anomaly
        self.saved_hooks = saved_hooks
        # Where random numbers come from when no generator is named; None for the default one.
        self.generator = generator
        self.watcher = watcher
        # Derived, because every call of a module asks for them: who looks on, and the executor if it is a `Batcher`.
        self.watchers: tuple[Any, ...] = tuple([w for w in (anomaly, watcher) if w is not None])
        self.batcher: Any = executor if getattr(executor, "batches", False) else None

    def replace(self, **changes: Any) -> Mode | None:
        """This mode with some parts changed; None when that is the ordinary state."""
        values = {name: getattr(self, name) for name in _GIVEN} | changes
        ordinary = values["grad"] and not (
            values["executor"] or values["inference"] or values["anomaly"] or values["saved_hooks"]
            or values["generator"] or values["watcher"]
        )  # fmt: skip
        if ordinary:
            return None
        mode = Mode(**values)
        plain = not (
            mode.grad or mode.executor or mode.inference or mode.anomaly or mode.saved_hooks or mode.generator
            or mode.watcher
        )  # fmt: skip
        return NO_GRAD if plain else mode


class _State(threading.local):
    mode: Mode | None = None
    # (array, copy) of what was set aside before a write in place, where somebody wants to know.
    copies: list[tuple[Any, Any]] | None = None
    # The example of `wf.map` that runs line by line; None outside of one.
    example: Any = None
    # Is a forward derivative being made of reverse mode? Then a rule that is by design not the adjoint of its op (as in
    # PyTorch: each of several writes to one place has the gradient of that place) must be it.
    exact: bool = False


STATE = _State()
_ORDINARY = Mode()
# The commonest unusual state is one object, so that the hot path knows it by identity.
NO_GRAD = Mode(grad=False)

# Threads that run examples of `wf.map` one by one, in the ordinary state: each example has random numbers of its own.
LOOPING: set[int] = set()

# Threads that are not in the ordinary state. The hot path asks whether this is empty before it looks at its own
# thread's mode, because a thread-local look-up costs four times as much.
UNUSUAL: set[int] = set()


_ident = threading.get_ident


def set_mode(mode: Mode | None) -> None:
    """Put a mode in force in this thread."""
    STATE.mode = mode
    if mode is None:
        UNUSUAL.discard(_ident())
    else:
        UNUSUAL.add(_ident())


def current() -> Mode:
    """The mode in force, never None."""
    return STATE.mode or _ORDINARY


def runs_here() -> bool:
    """Do ops run now, and nobody but us takes notice?"""
    return STATE.mode is None or STATE.mode.executor is None


def may_look(*tensors: Any) -> bool:
    """May a check look at the numbers of these tensors? Not where they are only traced, or still to be computed."""
    mode = STATE.mode
    if mode is None or mode.executor is None:
        return True
    return mode.batcher is not None and mode.batcher.shows(tensors)


def recorder() -> Any | None:
    """The executor in force in this thread if it is a `Recorder`, else None."""
    mode = STATE.mode if UNUSUAL else None
    executor = mode.executor if mode is not None else None
    return executor if getattr(executor, "records", False) else None


def called_by_user(depth: int) -> bool:
    """Is the code so many frames above the caller of this function the user's, and not ours?"""
    return not INSIDE[sys._getframe(depth + 1).f_code.co_filename]


def recorder_around() -> Any | None:
    """The recorder in force, be it outside other executors (a vmap inside a recorded function)."""
    mode = STATE.mode if UNUSUAL else None
    while mode is not None and mode.executor is not None:
        if getattr(mode.executor, "records", False):
            return mode.executor
        mode = getattr(mode.executor, "outer", None)
    return None


def exporter() -> Any | None:
    """The executor in force in this thread if it writes a function down for a model file, else None."""
    found = recorder()
    return found if hasattr(found, "region") else None


def watcher() -> Any | None:
    """The `Watcher` in force in this thread, or None."""
    mode = STATE.mode if UNUSUAL else None
    return None if mode is None else mode.watcher


def watchers() -> tuple[Any, ...]:
    """All who look on in this thread: anomaly mode, and the `Watcher` in force."""
    mode = STATE.mode if UNUSUAL else None
    return () if mode is None else mode.watchers


def batcher() -> Any | None:
    """The executor in force in this thread if it is a `Batcher`, else None."""
    mode = STATE.mode if UNUSUAL else None
    return None if mode is None else mode.batcher


def flag_set(t: Any, what: str) -> None:
    """Something about a tensor is about to be set that is no number: `requires_grad`, `retain_grad()`."""
    for executor in (recorder(), batcher()):
        if executor is not None:
            executor.flag_set(t, what)


def about_to_change(thing: Any, how: str) -> None:
    """A tensor or a module is about to change (None: something of the whole process): examples of a map take turns."""
    batching = batcher()
    if batching is not None:
        batching.changes(thing, how)


class outer_mode:
    """`with outer_mode(mode):` — the mode around an executor, but recording and drawing as inside it."""

    __slots__ = ("_mode", "_previous")

    def __init__(self, mode: Mode | None) -> None:
        self._mode = mode or _ORDINARY
        self._previous: Mode | None = None

    def __enter__(self) -> None:
        inside = current()
        self._previous = STATE.mode
        set_mode(self._mode.replace(grad=inside.grad, generator=inside.generator))

    def __exit__(self, *error: object) -> None:
        set_mode(self._previous)


class changed_mode:
    """`with changed_mode(grad=False):` — the base of every context manager that changes the state."""

    __slots__ = ("_changes", "_previous")

    def __init__(self, **changes: Any) -> None:
        self._changes = changes
        self._previous: list[Mode | None] = []

    def __enter__(self) -> Any:
        self._previous.append(STATE.mode)
        set_mode(current().replace(**self._changes))
        return self

    def __exit__(self, *error: object) -> None:
        set_mode(self._previous.pop())
