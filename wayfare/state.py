"""What is in force in this thread: whether to record, which executor runs ops, which hooks watch.

`STATE.mode` is None in the ordinary case (eager, recording), so the hot path asks one question. Everything else
is a Mode, installed by a `with` block and restored when it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol


class Executor(Protocol):
    """Another way of running ops than eagerly: the single point where vmap (and later ways) step in."""

    def apply(self, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Run one op on tensors."""

    def read(self, tensor: Any, how: str) -> Any:
        """Python looks at a value (`bool()`, `.item()`, …): give the array, or refuse with the reason."""

    def behind(self, tensor: Any) -> Any:
        """The tensor whose memory this one shows."""

    def write(self, tensor: Any, result: Any, move: Callable[[Any, Any], Any]) -> None:
        """Write in place: call `move(tensor, values)` for what stands behind the two."""


class Mode:
    """The state of a thread when it is not the ordinary one."""

    __slots__ = ("anomaly", "executor", "grad", "inference", "saved_hooks")

    def __init__(
        self,
        grad: bool = True,
        executor: Executor | None = None,
        inference: bool = False,
        anomaly: bool = False,
        saved_hooks: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
    ) -> None:
        self.grad = grad
        self.executor = executor
        self.inference = inference
        self.anomaly = anomaly
        self.saved_hooks = saved_hooks

    def replace(self, **changes: Any) -> Mode | None:
        """This mode with some parts changed; None when that is the ordinary state."""
        values = {name: getattr(self, name) for name in Mode.__slots__} | changes
        ordinary = values["grad"] and not (
            values["executor"] or values["inference"] or values["anomaly"] or values["saved_hooks"]
        )
        if ordinary:
            return None
        mode = Mode(**values)
        plain = not (mode.grad or mode.executor or mode.inference or mode.anomaly or mode.saved_hooks)
        return NO_GRAD if plain else mode


class _State(threading.local):
    mode: Mode | None = None


STATE = _State()
_ORDINARY = Mode()
# The commonest unusual state is one object, so that the hot path knows it by identity.
NO_GRAD = Mode(grad=False)

# Threads that are not in the ordinary state. The hot path asks whether this is empty before it looks at its own
# thread's mode, because a thread-local look-up costs four times as much.
UNUSUAL: set[int] = set()


def set_mode(mode: Mode | None) -> None:
    """Put a mode in force in this thread."""
    STATE.mode = mode
    if mode is None:
        UNUSUAL.discard(threading.get_ident())
    else:
        UNUSUAL.add(threading.get_ident())


def current() -> Mode:
    """The mode in force, never None."""
    return STATE.mode or _ORDINARY


def runs_here() -> bool:
    """Do ops run now, so that the arrays of tensors are there to be looked at?"""
    return STATE.mode is None or STATE.mode.executor is None


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
