"""What is in force in this thread: whether to record, which executor runs ops, which hooks watch.

`STATE.mode` is None in the ordinary case (eager, recording), so the hot path asks one question. Everything else
is a Mode, installed by a `with` block and restored when it ends.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from wayfare.core.callsite import INSIDE
from wayfare.core.executor import EAGER, Executor


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


_GIVEN = ("grad", "executor", "inference", "anomaly", "saved_hooks", "generator", "watcher", "autocast")


class Mode:
    """The state of a thread when it is not the ordinary one."""

    __slots__ = (*_GIVEN, "plain_calls", "watchers")

    def __init__(
        self,
        grad: bool = True,
        executor: Executor | None = None,
        inference: bool = False,
        anomaly: Any = None,
        saved_hooks: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
        generator: Any = None,
        watcher: Watcher | None = None,
        autocast: Any = None,
    ) -> None:
        self.grad = grad
        # Who looks on and wants everything to happen on the user's own line wants no batches; hooks for what is kept
        # must see it when it is; calls that autocast changes are not grouped.
        if executor is None:
            executor = EAGER
        elif executor.batches:
            watched = not all([w is None or w.allows_batches for w in (anomaly, watcher)])
            executor = EAGER if watched or saved_hooks is not None or autocast is not None else executor
        self.executor: Executor = executor
        self.inference = inference
        # Who looks for bad numbers (also a Watcher), or None.
        self.anomaly = anomaly
        self.saved_hooks = saved_hooks
        # Where random numbers come from when no generator is named; None for the default one.
        self.generator = generator
        self.watcher = watcher
        # Which ops run in which dtype (`core/autocast.py`), or None.
        self.autocast = autocast
        # Derived, because every call of a module needs them: who looks on, and whether calls of modules and layers just
        # run, because nobody looks on and the executor does not take them as one.
        self.watchers: tuple[Any, ...] = tuple([w for w in (anomaly, watcher) if w is not None])
        self.plain_calls = not self.watchers and executor.__class__.module_call is Executor.module_call

    def replace(self, **changes: Any) -> Mode | None:
        """This mode with some parts changed; None when that is the ordinary state."""
        values = {name: getattr(self, name) for name in _GIVEN} | changes
        if values["executor"] is None:
            values["executor"] = EAGER
        ordinary = values["grad"] and values["executor"] is EAGER and not (
            values["inference"] or values["anomaly"] or values["saved_hooks"] or values["generator"]
            or values["watcher"] or values["autocast"]
        )  # fmt: skip
        if ordinary:
            return None
        mode = Mode(**values)
        plain = mode.executor is EAGER and not (
            mode.grad or mode.inference or mode.anomaly or mode.saved_hooks or mode.generator or mode.watcher
            or mode.autocast
        )  # fmt: skip
        return NO_GRAD if plain else mode


    def with_generator(self, generator: Any) -> Mode:
        """This mode with its own random numbers: one for each example of a map, so it is made quickly."""
        mode = Mode.__new__(Mode)
        mode.grad, mode.executor, mode.inference, mode.anomaly = self.grad, self.executor, self.inference, self.anomaly
        mode.saved_hooks, mode.generator, mode.watcher = self.saved_hooks, generator, self.watcher
        mode.autocast, mode.plain_calls, mode.watchers = self.autocast, self.plain_calls, self.watchers
        return mode


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


def executor() -> Executor:
    """The executor in force in this thread. Call its methods; do not ask which one it is."""
    mode = STATE.mode if UNUSUAL else None
    return EAGER if mode is None else mode.executor


def called_by_user(depth: int) -> bool:
    """Is the code so many frames above the caller of this function the user's, and not ours?"""
    return not INSIDE[sys._getframe(depth + 1).f_code.co_filename]


def watcher() -> Any | None:
    """The `Watcher` in force in this thread, or None."""
    mode = STATE.mode if UNUSUAL else None
    return None if mode is None else mode.watcher


def watchers() -> tuple[Any, ...]:
    """All who look on in this thread: anomaly mode, and the `Watcher` in force."""
    mode = STATE.mode if UNUSUAL else None
    return () if mode is None else mode.watchers


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
