"""A process that was forked after CUDA had been started. The driver does not work there, and what it would do is not
known: it may fail, or stop for ever. So everything is refused with the fix, also what would only be a replay."""

from __future__ import annotations

import os
import weakref
from typing import Any, NoReturn

from wayfare.core.device import Device
from wayfare.core.errors import OperationError
from wayfare.core.native import NATIVE

# What the parent had. It is kept: freeing it would call the driver.
_KEPT: list[Any] = []
_STARTED: weakref.WeakSet[Any] = weakref.WeakSet()


class Forked:
    """What the backend, and each launcher, becomes in the child. Who holds one holds it still."""

    type = "cuda"
    has_kernels = False
    _read = None  # `exchange.py`

    def check(self, index: int | None) -> None:
        """Naming a device is no use of it."""

    def device_of(self, array: Any) -> Device:
        """Where an array lives."""
        made = Device.__new__(Device)
        object.__setattr__(made, "type", "cuda")
        object.__setattr__(made, "index", array.device.id)
        return made

    def plans_of(self, op: Any) -> tuple[None, None]:
        """No op is run by native code."""
        return None, None

    def is_pinned(self, array: Any) -> bool:
        """Memory of the child is not pinned."""
        return False

    def late_errors(self) -> list[Exception]:
        """What waits for a value waits in the parent."""
        return []

    def free_read(self) -> None:
        """What waits to be freed waits in the parent."""

    def explained(self, name: str, error: BaseException) -> None:
        """There are no faults of a device."""

    def mark(self) -> None:
        """No work is timed."""

    def has_passed(self, point: Any) -> bool:
        """There is no work."""
        return True

    def seconds_between(self, first: Any, last: Any) -> float:
        """There is no work."""
        return 0.0

    def __getattr__(self, name: str) -> NoReturn:
        raise OperationError("device: CUDA was started before this process was forked, and cannot be used in it",
                             fix="Start processes with the method 'spawn', or use CUDA only in them.")  # fmt: skip


def refuse_in_children(backend: Any) -> None:
    """Let the processes that are forked from this one refuse all use of a backend."""
    _STARTED.add(backend)


def _refuse() -> None:
    for backend in list(_STARTED):
        kept = backend.__dict__
        if isinstance(backend, Forked):  # a fork of a fork
            continue
        _KEPT.append(kept)
        for launcher in kept["_launchers"].values():
            _KEPT.append(launcher.__dict__)
            _become(launcher, {})
        _become(backend, {name: kept[name] for name in ("array", "count", "alone")})
        if NATIVE is not None:  # it looks for plans again, and finds none
            NATIVE.set_up_device(backend.array, backend, None)


def _become(thing: Any, attributes: dict[str, Any]) -> None:
    thing.__class__ = Forked
    thing.__dict__ = attributes


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse)
