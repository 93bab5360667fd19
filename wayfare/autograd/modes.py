"""Modes of recording: no_grad, enable_grad, set_grad_enabled, inference_mode, detect_anomaly, saved_tensors_hooks.

Each is a context manager and a decorator; it changes the mode of this thread and restores it at the end.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from wayfare.autograd.anomaly import Anomaly
from wayfare.core.mode import changed_mode, current, set_mode

F = TypeVar("F", bound=Callable[..., Any])


class _Block(changed_mode):
    """A change of mode that also works as a decorator, with or without brackets."""

    __slots__ = ()

    def __new__(cls, *args: Any, **options: Any) -> Any:
        if args and callable(args[0]):
            return cls()(args[0])
        return super().__new__(cls)

    def __call__(self, function: F) -> F:
        changes = self._changes
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def step_through(*args: Any, **options: Any) -> Any:
                # The mode must be set while the generator's own code runs, not while its consumer's does.
                generator = function(*args, **options)
                sent: Any = None
                while True:
                    try:
                        with changed_mode(**changes):
                            value = generator.send(sent)
                    except StopIteration as stop:
                        return stop.value
                    sent = yield value

            return step_through  # type: ignore[return-value]

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with changed_mode(**changes):
                return function(*args, **options)

        return call  # type: ignore[return-value]


class no_grad(_Block):
    """Nothing is recorded inside: results require no gradient."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(grad=False)


class enable_grad(_Block):
    """Recording is on inside, even within `no_grad`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(grad=True)


class set_grad_enabled(_Block):
    """Recording on or off: at once when called, until the end of the block when used in `with`."""

    __slots__ = ()

    def __init__(self, mode: bool) -> None:
        super().__init__(grad=bool(mode))
        self._previous.append(current().replace())
        set_mode(current().replace(grad=bool(mode)))

    def __enter__(self) -> Any:
        # The mode was changed when this object was made; `__exit__` restores the one before that.
        return self

    def __call__(self, function: F) -> F:
        set_mode(self._previous.pop())
        return super().__call__(function)


class inference_mode(_Block):
    """Like `no_grad`, and what is made inside may never join a graph."""

    __slots__ = ()

    def __init__(self, mode: bool = True) -> None:
        if mode:
            super().__init__(grad=False, inference=True)
        else:
            super().__init__(inference=False)


class detect_anomaly(_Block):
    """Stop at the first NaN or infinity, forward or backward, and name the op, the line and the module that made it."""

    __slots__ = ()

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__(anomaly=Anomaly() if check_nan else None)


class set_detect_anomaly(set_grad_enabled):
    """Anomaly mode on or off: at once when called, until the end of the block when used in `with`."""

    __slots__ = ()

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        anomaly = Anomaly() if mode and check_nan else None
        changed_mode.__init__(self, anomaly=anomaly)
        self._previous.append(current().replace())
        set_mode(current().replace(anomaly=anomaly))


class saved_tensors_hooks(_Block):
    """Inside, values kept for gradients are replaced by `pack_hook(tensor)`; backward gets them by `unpack_hook`."""

    __slots__ = ()

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        super().__init__(saved_hooks=(pack_hook, unpack_hook))

    def __new__(cls, *args: Any, **options: Any) -> Any:
        return object.__new__(cls)


def is_grad_enabled() -> bool:
    """Is recording on in this thread?"""
    return current().grad


def is_inference_mode_enabled() -> bool:
    """Is `inference_mode` in force in this thread?"""
    return current().inference


def is_anomaly_enabled() -> bool:
    """Is anomaly mode in force in this thread?"""
    return current().anomaly is not None
