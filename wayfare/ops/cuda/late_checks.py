"""Checks of values on a device: asked when Python next reads a value, so that nothing waits before."""

from __future__ import annotations

from typing import Any

from wayfare.core.errors import WayfareError

# How many checks may wait for the next read.
_MOST = 64


class LateChecks:
    """The checks of a backend that wait."""

    xp: Any

    def __init__(self) -> None:
        self._waiting: list[tuple[Any, WayfareError]] = []

    def require(self, fine: Any, error: WayfareError) -> None:
        """All of `fine` must hold. That is asked when Python next reads a value, so that nothing waits now; the error
        names the op and the user's line, which is this one."""
        if len(self._waiting) >= _MOST:
            self.check_now()
        self._waiting.append((fine.reshape(()) if fine.size == 1 else fine.all(), error))

    def late_errors(self) -> list[Exception]:
        """The errors of checks that wait."""
        return [error for _, error in self._waiting]

    def check_now(self) -> None:
        """Raise the first error among the checks that wait; the flags come in one copy."""
        waiting, self._waiting = self._waiting, []
        flags = [fine for fine, _ in waiting]
        if len({fine.device.id for fine in flags}) == 1:
            flags = self.xp.stack(flags).get().tolist()
        for fine, (_, error) in zip(flags, waiting, strict=True):
            if not bool(fine):
                raise error
