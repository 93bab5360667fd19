"""Callbacks for the end of a backward pass: a hook that has seen a gradient may have something to finish."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

__all__ = ["BackwardPass", "after_backward"]


class _Passes(threading.local):
    """The passes that are under way in a thread: one, or one inside a hook of another."""

    depth = 0
    callbacks: list[Callable[[], None]]

    def __init__(self) -> None:
        self.callbacks = []


_PASSES = _Passes()


class BackwardPass:
    """Around a backward pass. When the outermost one has ended without an error, the callbacks run."""

    __slots__ = ()

    def __enter__(self) -> None:
        _PASSES.depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _PASSES.depth -= 1
        if _PASSES.depth or not _PASSES.callbacks:
            return
        callbacks, _PASSES.callbacks = _PASSES.callbacks, []
        if error is None:
            for callback in callbacks:
                callback()


def after_backward(callback: Callable[[], None]) -> None:
    """Call `callback()` when the backward pass that is under way has ended; not if it raises."""
    _PASSES.callbacks.append(callback)
